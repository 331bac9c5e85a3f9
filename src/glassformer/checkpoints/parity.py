"""Ours against the reference implementation of the `transformers` library, site by site.

    found = parity("path/to/checkpoint")      runs both and compares
    found.first                               the first site of the forward pass that differs, if any does

Compared are streams, patterns, what norms and parts give, and logits: of rows of one length, of rows padded on either
side, and of greedy tokens from a cache. The two models are in memory one after the other, not together.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.checkpoints.folder import folder_of, load, open_folder
from glassformer.checkpoints.reference import (
    counterparts,
    library,
    real_positions,
    recorded,
    recorded_left_padded,
    recorded_steps,
    reference,
)
from glassformer.config import require
from glassformer.errors import CheckpointError, TextError
from glassformer.models import Decoder
from glassformer.trace import Tape

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
DIVERGES = float("inf")


@dataclass(frozen=True)
class Difference:
    """How far a site is from the reference's.

    Args:
        site: Ours.
        error: Largest absolute difference over the root mean square of the reference; infinite where shapes or chosen
            tokens differ.
        rows: Which rows were run: of one length, padded right, padded left, cached.
        theirs: The reference's module that gives the same, where there is one.
    """

    site: str
    error: float
    rows: str = "one length"
    theirs: str = ""


@dataclass(frozen=True)
class Parity:
    """A comparison with the reference.

    Args:
        reference: Its class.
        family: What ours was read as.
        dtype: Both ran in.
        tolerance: Largest error that counts as equal.
        differences: In the order of the forward passes.
    """

    reference: str
    family: str
    dtype: str
    tolerance: float
    differences: tuple[Difference, ...]

    @property
    def first(self) -> Difference | None:
        """The first site beyond the tolerance."""
        # written so that nan counts as beyond
        return next((d for d in self.differences if not d.error <= self.tolerance), None)

    @property
    def worst(self) -> Difference:
        """The site with the largest error."""
        return max(self.differences, key=lambda d: DIVERGES if d.error != d.error else d.error)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data; errors that are no finite numbers become text."""
        data = dataclasses.asdict(self)
        for row in data["differences"]:
            if not row["error"] < DIVERGES:
                row["error"] = str(row["error"])
        first = self.first
        return data | {"agrees": first is None, "first": None if first is None else first.site}


def parity(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    text: str | None = None,
    length: int = 12,
    steps: int = 8,
    tolerance: float | None = None,
    seed: int = 0,
    revision: str | None = None,
    report: Callable[[int, int, str], None] | None = None,
) -> Parity:
    """Compare a published checkpoint as we load it with the reference implementation.

    Args:
        name: A folder, or a hub id.
        dtype: Both run in; `torch.float64` tells a wrong formula from rounding.
        text: What is run, cut to rows of unequal length; random tokens by default.
        length: Random tokens per row.
        steps: Greedy tokens generated from a cache.
        tolerance: Largest error, relative to the reference's root mean square; 1e-9 in float64, 1e-4 in float32.
        seed: Of the random tokens.
        revision: Of a hub model.
        report: Told (steps done, of how many, what is done now).

    Returns:
        All differences; `first` is the first beyond the tolerance.

    Raises:
        MissingExtra: `transformers` is not installed.
        CheckpointError: The folder is damaged, is in our own layout, or is of an architecture that is not compared.
        TextError: There is a text, and the checkpoint has no tokenizer.
    """
    require(length >= 4, f"parity: length must be at least 4, found {length}.")
    require(steps >= 1, f"parity: steps must be at least 1, found {steps}.")
    require(dtype in TOLERANCE, f"parity runs in float32 or float64, found {str(dtype).removeprefix('torch.')}.")
    tell = report or (lambda done, total, now: None)
    library()
    folder = folder_of(name, revision)
    checkpoint = open_folder(folder)
    if checkpoint.origin is None:
        raise CheckpointError(
            f'"{folder}" is in our own layout, of which there is no other implementation; parity is for checkpoints '
            "that another library wrote."
        )
    tokens, lengths = _rows(checkpoint, folder, text, length, seed)
    steps = min(steps, checkpoint.config.max_len - tokens.shape[1])
    tell(0, 4, "loading the reference")
    theirs = reference(folder, dtype)
    modules = counterparts(checkpoint)
    tell(1, 4, "running the reference")
    recordings = _recordings(checkpoint, theirs, tokens, lengths, steps, modules)
    kind = type(theirs).__name__
    del theirs
    tell(2, 4, "loading ours")
    ours: Any = load(folder, dtype=dtype)
    tell(3, 4, "running ours")
    found = [dataclasses.replace(d, theirs=modules.get(d.site, "")) for part in recordings for d in part(ours)]
    tell(4, 4, "done")
    allowed = TOLERANCE[dtype] if tolerance is None else tolerance
    return Parity(kind, checkpoint.origin.family, str(dtype).removeprefix("torch."), allowed, tuple(found))


Comparison = Callable[[Any], Iterator[Difference]]


def _recordings(
    checkpoint: Checkpoint, theirs: Any, tokens: Tensor, lengths: Tensor, steps: int, modules: Mapping[str, str]
) -> list[Comparison]:
    """Run the reference, and return what compares ours with what it gave."""
    if not isinstance(checkpoint.model, Decoder):
        raise CheckpointError(
            f'"{checkpoint.folder}" holds a {type(checkpoint.model).__name__}, and parity compares decoders.'
        )
    equal = recorded(theirs, tokens, None, modules)
    padded = recorded(theirs, tokens, lengths, modules)
    left = recorded_left_padded(theirs, tokens, lengths)
    made, logits = recorded_steps(theirs, tokens, steps)
    return [
        lambda ours: compared_with(ours, equal, tokens),
        lambda ours: compared_with(ours, padded, tokens, lengths),
        lambda ours: iter([Difference("logits", left_padded(ours, left, tokens, lengths), "padded left")]),
        lambda ours: iter([Difference("logits", generated(ours, made, logits, tokens), "cached")]),
    ]


def _rows(checkpoint: Checkpoint, folder: Path, text: str | None, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return three rows of tokens, and lengths to pad them to."""
    config = checkpoint.config
    if text is None:
        generator = torch.Generator().manual_seed(seed)
        length = min(length, max(4, config.max_len // 2))
        tokens = torch.randint(0, config.vocab_size, (3, length), generator=generator)
    else:
        from glassformer.data import Tokenizer

        if not (folder / "tokenizer.json").is_file():
            raise TextError(f'"{folder}" has no tokenizer.json, so it reads no text; leave --text out for random ids.')
        ids = Tokenizer.load(folder).encode(text)[: config.max_len - 1]
        if len(ids) < 4:
            raise TextError(f"the text is {len(ids)} tokens long; four or more are needed for rows of unequal length.")
        # the same tokens from other starting points
        tokens = torch.tensor([ids[i:] + ids[:i] for i in range(3)])
    total = tokens.shape[1]
    return tokens, torch.tensor([total, max(1, total - 3), 1])


def relative(ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> float:
    """Return the largest difference over the reference's root mean square; infinite if shapes differ.

    Args:
        ours: A tensor `batch ...`.
        theirs: The reference.
        real: Which positions count, of the shape of the leading axes.
    """
    if ours.shape != theirs.shape:
        return DIVERGES
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if real is not None:
        ours, theirs = ours[real], theirs[real]
    scale = theirs.square().mean().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    error = (ours - theirs).abs().max() / scale if ours.numel() else torch.zeros(())
    return float(error)


def compared(
    ours: Any,
    theirs: Any,
    tokens: Tensor,
    lengths: Tensor | None = None,
    modules: Mapping[str, str] | None = None,
) -> Iterator[Difference]:
    """Yield the differences of one forward pass of a decoder: streams, patterns, what modules give, and logits.

    Args:
        ours: Our model.
        theirs: The reference.
        tokens: Ids, `batch pos`, padded on the right.
        lengths: Real tokens per row.
        modules: Its modules by our site, see `reference.counterparts`.
    """
    yield from compared_with(ours, recorded(theirs, tokens, lengths, modules), tokens, lengths)


def compared_with(
    ours: Any, recording: Mapping[str, Tensor], tokens: Tensor, lengths: Tensor | None = None
) -> Iterator[Difference]:
    """Yield the differences between one forward pass of a decoder and what was recorded of the reference's.

    Args:
        ours: Our model.
        recording: By our sites, see `reference.recorded`.
        tokens: Ids, `batch pos`, padded on the right.
        lengths: Real tokens per row.
    """
    real = torch.ones_like(tokens, dtype=torch.bool) if lengths is None else real_positions(tokens, lengths)
    names = [name for name in ours.sites() if name in recording and name != "logits"]
    tape = Tape(ours, names)
    with torch.no_grad():
        logits = ours(tokens, lengths=lengths, tape=tape)
    rows = "one length" if lengths is None else "padded right"
    for name in names:
        mine, other = tape.values[name], recording[name]
        if mine.shape != other.shape:
            yield Difference(name, DIVERGES, rows)
            continue
        here = real if mine.ndim == 3 else real[:, None].expand(-1, mine.shape[1], -1)
        yield Difference(name, relative(mine, other, here), rows)
    yield Difference("logits", relative(logits, recording["logits"], real), rows)


def left_padded(ours: Any, logits: Tensor, tokens: Tensor, lengths: Tensor) -> float:
    """Return the error of logits where rows of unequal length are padded on the left."""
    with torch.no_grad():
        mine, _ = ours(tokens, lengths=lengths, state=ours.begin(len(tokens)))
    return relative(mine, logits, real_positions(tokens, lengths, left=True))


def generated(ours: Any, made: Tensor, logits: Tensor, tokens: Tensor) -> float:
    """Return the error of logits over greedy steps from a cache; infinite if a token differs.

    Args:
        ours: Our model.
        made: The reference's tokens, `batch step`.
        logits: Those it chose them by, `batch step vocab`.
        tokens: Where both begin.
    """
    state, new, found = ours.begin(len(tokens)), tokens, []
    for step in range(made.shape[1]):
        with torch.no_grad():
            mine, state = ours(new, state=state)
        found.append(mine[:, -1])
        new = made[:, step : step + 1]
    chosen = torch.stack(found, 1)
    return relative(chosen, logits) if torch.equal(chosen.argmax(-1), made) else DIVERGES
