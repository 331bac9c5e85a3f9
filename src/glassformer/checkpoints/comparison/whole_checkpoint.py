"""A whole checkpoint against the reference implementation: every layer, padded on either side, and from a cache.

    found = parity("path/to/checkpoint")      runs both and compares
    found.first                               the first site of the forward pass that differs, if any does

What the reference computes is kept, and its model let go of before ours is loaded: one of them is in memory at a time.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention import Mixer
from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.checkpoints.comparison.reference import (
    DIVERGES,
    Difference,
    cache_argument,
    carries_state,
    compared_with,
    counterparts,
    library,
    real_positions,
    recorded,
    reference,
    relative,
    wide,
)
from glassformer.checkpoints.families import FAMILIES
from glassformer.checkpoints.loading import load, model_folder, open_folder
from glassformer.checkpoints.names import folder_of
from glassformer.config import require
from glassformer.errors import CheckpointError, TextError
from glassformer.models import EncoderDecoderConfig
from glassformer.numerics.placement import Device, NumberType, device_of, number_type
from glassformer.provenance import ModelNote
from glassformer.trace import Tape

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
# two roundings lie between ours and the reference, and rows and orders of summing other than those measured
ROUNDINGS = 4
# what compares ours, once it is loaded, with what was kept of the reference
Comparison = Callable[[Any], Iterator[Difference]]


@dataclass(frozen=True)
class Parity:
    """A comparison with the reference.

    Args:
        reference: Its class.
        family: What ours was read as.
        dtype: Both ran in.
        tolerance: Largest error that counts as equal, where rounding is no larger: see `allows`.
        differences: In the order of the forward passes.
        notes: What must be known of the weights.
    """

    reference: str
    family: str
    dtype: str
    tolerance: float
    differences: tuple[Difference, ...]
    notes: tuple[ModelNote, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The first site beyond the tolerance."""
        return next((d for d in self.differences if not self.allows(d)), None)

    def allowed(self, difference: Difference) -> float:
        """Return the largest error that counts as equal at a site: the tolerance, or some roundings of a float32."""
        return max(self.tolerance, ROUNDINGS * difference.rounding)

    def allows(self, difference: Difference) -> bool:
        """Whether a site counts as equal; NaN does not."""
        return difference.error <= self.allowed(difference)

    @property
    def worst(self) -> Difference:
        """The site with the largest error."""
        return max(self.differences, key=lambda d: DIVERGES if d.error != d.error else d.error)

    def to_dict(self) -> dict[str, Any]:
        """JSON data; errors that are no finite numbers become text."""
        data = dataclasses.asdict(self) | {"notes": [note.to_dict() for note in self.notes]}
        for row in data["differences"]:
            if not row["error"] < DIVERGES:
                row["error"] = str(row["error"])
        first = self.first
        return data | {"agrees": first is None, "first": None if first is None else first.site}


def parity(
    name: str | Path,
    *,
    dtype: NumberType = torch.float32,
    text: str | None = None,
    length: int = 12,
    steps: int = 8,
    tolerance: float | None = None,
    patterns: bool = True,
    seed: int = 0,
    revision: str | None = None,
    device: Device | None = None,
    report: Callable[[int, int, str], None] | None = None,
) -> Parity:
    """Compare a published checkpoint as we load it with the reference implementation.

    Args:
        name: A folder, or a hub id.
        dtype: Both run in; `torch.float64` tells a wrong formula from rounding.
        text: What is run, cut to rows of unequal length; random tokens by default.
        length: Random tokens per row.
        steps: Greedy tokens generated from a cache.
        tolerance: Largest error, relative to the reference's root mean square. By default 1e-9 in float64; in float32
            1e-4, or four times what ours itself is off there from float64, where that is more: a few channels of
            trained models are a thousand times the rest, and a sum of them leaves fewer digits.
        patterns: Run the reference's eager attention and compare its patterns; otherwise its fused attention runs.
        seed: Of the random tokens.
        revision: Of a hub model.
        device: Where both run: a device by its name, or `"auto"`, this machine's accelerator if it has one and the CPU
            otherwise. The CPU by default.
        report: Told (steps done, of how many, what is done now).

    Returns:
        All differences; `first` is the first beyond the tolerance.

    Raises:
        MissingExtra: `transformers` is not installed.
        CheckpointError: The folder is damaged, or is in our own layout, or the reference cannot open or run it.
        TextError: There is a text, and the checkpoint has no tokenizer.
        ConfigError: There is no such device here, or `dtype` is neither float32 nor float64.
    """
    require(length >= 4, f"parity: length must be at least 4, found {length}.")
    require(steps >= 1, f"parity: steps must be at least 1, found {steps}.")
    computed = number_type(dtype)
    require(computed in TOLERANCE, f"parity runs in float32 or float64, found {str(dtype).removeprefix('torch.')}.")
    assert computed is not None, "what has a tolerance is a type"
    place = device_of(device) or torch.device("cpu")
    tell = report or (lambda done, total, now: None)
    library()
    folder = folder_of(name, revision)
    if model_folder(folder).in_memory:
        raise CheckpointError(
            f'"{folder}" is read by the library that it would be compared with. Write it as safetensors and compare '
            f'those: glassformer convert "{folder}" OUT --to huggingface.'
        )
    checkpoint = open_folder(folder)
    if checkpoint.origin is None:
        raise CheckpointError(
            f'"{folder}" is in our own layout, of which there is no other implementation; parity is for checkpoints '
            "that another library wrote."
        )
    tokens = _tokens(checkpoint, text, length, seed).to(place)
    tell(0, 4, "loading the reference")
    theirs = reference(folder, computed, "eager" if patterns else "sdpa").to(place)
    tell(1, 4, "running the reference")
    try:
        comparisons = comparisons_of(checkpoint, theirs, tokens, steps)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError) as error:
        raise CheckpointError(
            f'transformers opens "{folder}" as {type(theirs).__name__} and cannot run it ({type(error).__name__}: '
            f"{error}), so there is nothing to compare with."
        ) from error
    kind = type(theirs).__name__
    del theirs
    tell(2, 4, "loading ours")
    ours: Any = load(folder, dtype=computed, device=place)
    tell(3, 4, "running ours")
    with torch.no_grad():
        found = [difference for comparison in comparisons for difference in comparison(ours)]
    allowed = TOLERANCE[computed] if tolerance is None else tolerance
    if tolerance is None and computed == torch.float32 and any(not d.error <= allowed for d in found):
        low = _values(ours, found, tokens)
        del ours
        high = _values(load(folder, dtype=torch.float64, device=place), found, tokens)
        off = {site: relative(low[site], high[site]) for site in low}
        found = [dataclasses.replace(d, rounding=off.get(d.site, 0.0)) for d in found]
    tell(4, 4, "done")
    family, named = checkpoint.origin.family, str(computed).removeprefix("torch.")
    return Parity(kind, family, named, allowed, tuple(found), checkpoint.notes)


def _values(ours: Any, found: Iterable[Difference], tokens: Tensor) -> dict[str, Tensor]:
    """Return what ours gives at the sites that were compared, on rows of one length."""
    tape = Tape(ours, [name for name in dict.fromkeys(d.site for d in found) if name in ours.sites()])
    given = (tokens, _targets(tokens, ours.config.vocab_size)) if ours.reads_pairs else (tokens,)
    with torch.no_grad():
        ours(*given, tape=tape)
    return {name: tape.values[name] for name in tape.values}


def _targets(source: Tensor, size: int) -> Tensor:
    """Return a decoder's rows: other ones than the encoder's, shorter, of a vocabulary that may be smaller."""
    return source.flip(0, 1)[:, : (2 * source.shape[1] + 2) // 3] % size


def comparisons_of(checkpoint: Checkpoint, theirs: Any, tokens: Tensor, steps: int) -> list[Comparison]:
    """Run a reference on rows of every kind; return what compares ours with it.

    Args:
        checkpoint: What it was loaded from.
        theirs: The reference, where the tokens lie.
        tokens: Three rows of ids, `batch pos`, none of them padding; an encoder-decoder's decoder reads some backwards.
        steps: Greedy tokens generated from a cache, as far as the context reaches.
    """
    total = tokens.shape[1]
    lengths = torch.tensor([total, max(1, total - 3), 1], device=tokens.device)
    steps = min(steps, checkpoint.config.max_len - total)
    modules = counterparts(checkpoint)
    if checkpoint.model.reads_pairs:
        found = _pair(checkpoint, theirs, tokens, lengths, steps, modules)
    elif not checkpoint.model.generates:
        found = _encoder(checkpoint, theirs, tokens, lengths, modules)
    else:
        mixers = [part for part in checkpoint.model.modules() if isinstance(part, Mixer)]
        if all(mixer.config.continues for mixer in mixers):
            found = _decoder(checkpoint, theirs, tokens, lengths, steps, modules)
        else:
            # rows stand alone, and what such references compute on the way lies otherwise
            logits = {"logits": recorded(theirs, tokens)["logits"]}
            found = [lambda ours: compared_with(ours, logits, tokens)]

    def named(comparison: Comparison) -> Comparison:
        return lambda ours: (dataclasses.replace(d, theirs=modules.get(d.site, "")) for d in comparison(ours))

    return [named(comparison) for comparison in found]


def _decoder(
    checkpoint: Checkpoint, theirs: Any, tokens: Tensor, lengths: Tensor, steps: int, modules: Any
) -> list[Comparison]:
    passes = [placed(checkpoint, recorded(theirs, tokens, n, modules=modules)) for n in (None, lengths)]
    return [
        lambda ours: compared_with(ours, passes[0], tokens),
        lambda ours: compared_with(ours, passes[1], tokens, lengths),
        left_padded(theirs, tokens, lengths),
        # last: some references remember how long their longest text was
        *([generated(theirs, tokens, steps)] if steps > 0 else []),
    ]


def placed(checkpoint: Checkpoint, recording: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what was recorded of a reference by the sites of ours that hold the same, as its family says."""
    origin = checkpoint.origin
    place = next((family.place for family in FAMILIES if origin is not None and family.name == origin.family), None)
    if place is None:
        return dict(recording)
    sites = {name: place(checkpoint.config, name) for name in recording}
    return {site: recording[name] for name, site in sites.items() if site is not None}


def left_padded(theirs: Any, tokens: Tensor, lengths: Tensor) -> Comparison:
    """Run a decoder's reference on rows of unequal length, padded on the left; return what compares ours with it."""
    real = real_positions(tokens, lengths, left=True)
    if carries_state(theirs):
        # it would read the padding: each row alone, and nothing before it
        rows = [_run(theirs, input_ids=row[own][None], use_cache=False).logits[0] for row, own in zip(tokens, real)]
        logits = torch.stack([F.pad(row, (0, 0, tokens.shape[1] - len(row), 0)) for row in rows])
    else:
        given: dict[str, Any] = {"attention_mask": real.long(), "use_cache": False, **_counted(theirs, real)}
        logits = _run(theirs, input_ids=tokens, **given).logits

    def comparison(ours: Any) -> Iterator[Difference]:
        return _one("padded left", ours(tokens, lengths=lengths, state=ours.begin(len(tokens)))[0], logits, real)

    return comparison


def _counted(theirs: Any, real: Tensor) -> dict[str, Tensor]:
    """Return positions that do not count padding, as a reference's own `generate` makes them, where it takes any."""
    # models without position ids count by the mask
    if "position_ids" not in inspect.signature(theirs.forward).parameters:
        return {}
    return {"position_ids": (real.long().cumsum(-1) - 1).clamp_min(0)}


def generated(theirs: Any, tokens: Tensor, steps: int) -> Comparison:
    """Let a decoder's reference continue tokens greedily from its cache; return what compares ours with it."""
    # a reference with a state of its own takes single steps of one row
    tokens = tokens[:1] if carries_state(theirs) else tokens
    greedy = _greedy(theirs, tokens, steps, "input_ids", {})

    def comparison(ours: Any) -> Iterator[Difference]:
        return _steps(lambda new, state: ours(new, state=state), ours.begin(len(tokens)), tokens, greedy)

    return comparison


def _encoder(checkpoint: Checkpoint, theirs: Any, tokens: Tensor, lengths: Tensor, modules: Any) -> list[Comparison]:
    # some references count positions by which tokens are padding
    padding = theirs.config.pad_token_id or 0
    right, real = (real_positions(tokens, lengths, left=left) for left in (False, True))
    rows = [(tokens, None), (tokens.masked_fill(~right, padding), lengths)]
    passes = [recorded(theirs, ids, n, modules=modules) for ids, n in rows]
    padded = tokens.masked_fill(~real, padding)
    # called as its users do: which positions it makes of the mask is part of what is compared
    given = {"attention_mask": real.long()}
    if checkpoint.model.predicts_next:
        given |= _counted(theirs, real)
    out = _run(theirs, input_ids=padded, **given)
    left = out.logits if "logits" in out else out.last_hidden_state
    start, of_texts = tokens.shape[1] - lengths, checkpoint.config.classifies == "text"

    def padded_left(ours: Any) -> Iterator[Difference]:
        logits = ours(padded, start=start)
        if not of_texts:
            yield from _one("padded left", logits, left, real)
        elif ours.predicts_next:
            yield Difference("logits", relative(logits[:, -1], left), "padded left")
        # else theirs is read at the first column, which is padding

    return [*(lambda ours, i=i: compared_with(ours, passes[i], *rows[i]) for i in range(2)), padded_left]


def _pair(
    checkpoint: Checkpoint, theirs: Any, source: Tensor, lengths: Tensor, steps: int, modules: Any
) -> list[Comparison]:
    # and padded otherwise
    tokens = _targets(source, checkpoint.config.vocab_size)
    sources, targets = lengths, lengths.roll(1).clamp_max(tokens.shape[1])
    rows = [(tokens, None, None), (tokens, targets, sources)]
    passes = [recorded(theirs, t, n, source=source, source_lengths=m, modules=modules) for t, n, m in rows]
    mask = real_positions(source, sources).long()
    with torch.no_grad(), wide(next(theirs.parameters()).dtype):
        encoded = theirs.get_encoder()(input_ids=source, attention_mask=mask)
    config: Any = checkpoint.config
    start = torch.full((len(source), 1), config.start_id or 0, device=source.device)
    read = {"encoder_outputs": encoded, "attention_mask": mask}
    greedy = _greedy(theirs, start, steps, "decoder_input_ids", read)

    def forced(ours: Any, i: int) -> Iterator[Difference]:
        ids, n, m = rows[i]
        return compared_with(ours, passes[i], ids, n, source=source, source_lengths=m)

    def stepped(ours: Any) -> Iterator[Difference]:
        return _steps(lambda new, state: ours(None, new, state=state), ours.begin(source, sources), start, greedy)

    return [
        *(lambda ours, i=i: forced(ours, i) for i in range(2)),
        stepped,
        # padded targets only where positions go by distance: references count padding, and here each row reads as alone
        _pair_left_padded(theirs, tokens, targets if config.positions is None else None, source, sources),
    ]


def _pair_left_padded(
    theirs: Any, tokens: Tensor, targets: Tensor | None, source: Tensor, sources: Tensor
) -> Comparison:
    read, real = real_positions(source, sources, left=True), real_positions(tokens, targets, left=True)
    # some references count positions by which tokens are padding
    padded = source.masked_fill(~read, theirs.config.pad_token_id or 0)
    logits = _run(
        theirs, input_ids=padded, attention_mask=read.long(), decoder_input_ids=tokens,
        decoder_attention_mask=real.long(), use_cache=False,
    ).logits  # fmt: skip

    def comparison(ours: Any) -> Iterator[Difference]:
        state = ours.begin(padded, source_start=source.shape[1] - sources)
        return _one("padded left", ours(None, tokens, lengths=targets, state=state)[0], logits, real)

    return comparison


class Greedy(NamedTuple):
    """What a reference generates: its tokens `batch step`, and the logits it chose them by."""

    tokens: Tensor
    logits: Tensor


def _run(theirs: Any, **given: Any) -> Any:
    with torch.no_grad(), wide(next(theirs.parameters()).dtype):
        return theirs(**given)


def _greedy(theirs: Any, tokens: Tensor, steps: int, name: str, given: dict[str, Any]) -> Greedy:
    """Return what a reference generates from a cache; `name` is the argument that takes tokens."""
    chosen, logits, cache, new = [], [], None, tokens
    kept = cache_argument(theirs)
    for i in range(steps):
        # a reference whose first layer keeps no keys counts none of them: `generate` says where tokens are
        seen = 0 if i == 0 else tokens.shape[1] + i - 1
        counted = _counted(theirs, torch.ones_like(tokens[:, :1]).expand(-1, seen + new.shape[1]).bool())
        places = {what: ids[:, seen:] for what, ids in counted.items()} if name == "input_ids" else {}
        out = _run(theirs, use_cache=True, **{kept: cache, name: new}, **given, **places)
        cache = out[kept]
        logits.append(out.logits[:, -1])
        new = logits[-1].argmax(-1)[:, None]
        chosen.append(new)
    return Greedy(torch.cat(chosen, 1), torch.stack(logits, 1))


def _one(rows: str, ours: Tensor, theirs: Tensor, real: Tensor) -> Iterator[Difference]:
    yield Difference("logits", relative(ours, theirs, real), rows)


def _steps(step: Callable[[Tensor, Any], Any], state: Any, tokens: Tensor, greedy: Greedy) -> Iterator[Difference]:
    """Yield the error of logits over the reference's steps; infinite if ours chooses another token."""
    new, found = tokens, []
    for i in range(greedy.tokens.shape[1]):
        logits, state = step(new, state)
        found.append(logits[:, -1])
        new = greedy.tokens[:, i : i + 1]
    logits = torch.stack(found, 1)
    same = torch.equal(logits.argmax(-1), greedy.tokens)
    yield Difference("logits", relative(logits, greedy.logits) if same else DIVERGES, "cached")


def _tokens(checkpoint: Checkpoint, text: str | None, length: int, seed: int) -> Tensor:
    """Return three rows of tokens: of a text from three starting points, or drawn, leaving padding out."""
    config = checkpoint.config
    if text is None:
        generator = torch.Generator().manual_seed(seed)
        length = min(length, max(4, config.max_len // 2))
        size = config.n_sources if isinstance(config, EncoderDecoderConfig) else config.vocab_size
        drawn = torch.randint(0, size, (3, length), generator=generator)
        padding = (checkpoint.origin.config if checkpoint.origin else {}).get("pad_token_id")
        return drawn if padding is None else drawn.where(drawn != padding, (padding + 1) % size)
    from glassformer.data import Tokenizer

    folder = checkpoint.folder
    if not (folder / "tokenizer.json").is_file():
        raise TextError(f'"{folder}" has no tokenizer.json, so it reads no text; leave --text out for random ids.')
    ids = Tokenizer.load(folder).encode(text)[: config.max_len - 1]
    if len(ids) < 4:
        raise TextError(f"the text is {len(ids)} tokens long; four or more are needed for rows of unequal length.")
    return torch.tensor([ids[i:] + ids[:i] for i in range(3)])
