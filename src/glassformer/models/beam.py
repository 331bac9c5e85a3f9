"""Beam search: the most probable continuations, several at a time.

    score = log P(continuation) / ((5 + length) / 6)^alpha        (Wu et al. 2016; alpha is 0.6 in Vaswani et al. 2017)

A continuation that ends takes its place in the beam with it, so one beam is greedy decoding, and as many beams as there
are continuations is exhaustive search.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.arguments import Count, Exponent, checked
from glassformer.errors import AnalysisUnavailable
from glassformer.models.generate import (
    Prompts,
    outgrown_notes,
    room_for,
    ruled_out,
    stops_of,
)
from glassformer.models.model import ModelLike, require_model
from glassformer.models.passes import Edits, Passes
from glassformer.models.reading import Inputs, read_opening
from glassformer.models.sampling import require_choice
from glassformer.provenance import Note, distinct
from glassformer.trace import of_single_rows


class Hypothesis(NamedTuple):
    """One continuation: new ids (stop token included), its log-probability in nats, its score, whether it ended."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    stopped: bool


@dataclass(frozen=True)
class Beams:
    """Hypotheses per row, best first: ended ones before those cut off, by score; `notes` as those of `Generation`."""

    hypotheses: tuple[tuple[Hypothesis, ...], ...]
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data: the class under `result`, and its fields."""
        found = [[one._asdict() for one in row] for row in self.hypotheses]
        notes = {"notes": [note.to_dict() for note in self.notes]} if self.notes else {}
        return {"result": "Beams", "hypotheses": found} | notes

    @property
    def best(self) -> tuple[Hypothesis, ...]:
        return tuple(row[0] for row in self.hypotheses)


@torch.no_grad()
@checked
def beam_search(
    model: ModelLike,
    prompts: Prompts | Inputs | None = None,
    *,
    source: Prompts | None = None,
    source_lengths: Int[Tensor, " batch"] | None = None,
    n_beams: Count = 4,
    length_penalty: Exponent = 0.6,
    max_new_tokens: int | None = None,
    stop_ids: Sequence[int] | None = None,
    beyond_context: bool = False,
    allow_unknown: bool = False,
    edit: Edits = (),
) -> Beams:
    """Beam search: the best continuations that a beam of width `n_beams` finds.

    Args:
        model: A decoder or an encoder-decoder.
        prompts: As in `generate`, and so the next two.
        source: Sources of an encoder-decoder.
        source_lengths: Real tokens per source row, when `source` is a padded tensor.
        n_beams: Width.
        length_penalty: alpha above; 0 compares log-probabilities as they are, which favours short continuations.
        max_new_tokens: Longest continuation; by default 64, as far as the context has room.
        stop_ids: Tokens that end a continuation; by default the model's `stops`.
        beyond_context: As in `generate`.
        allow_unknown: As in `generate`.
        edit: As in `generate`; every continuation is read under it. What a model does on the best one is recorded by
            reading it again: `gf.run(model, [*prompt, *found.best[0].tokens], edit=…, read=…)`.

    Raises:
        TextError, TokenOutOfRange, UnknownSite, UnknownAxis, ShapeMismatch: As `generate`.
        WrongArgument: A width below 1.
        ConfigError: A number of new tokens below 1.
        AnalysisUnavailable: Logits are NaN or infinite, or an edit tells rows from each other.
    """
    require_model(model, "beam search")
    inputs = read_opening(
        model, prompts, source=source, source_lengths=source_lengths, beyond_context=beyond_context,
        allow_unknown=allow_unknown,
    )  # fmt: skip
    assert inputs.ids is not None, "a model of ours reads ids"
    new = room_for(model, inputs.ids.shape[1], max_new_tokens, beyond_context)
    batch, device = inputs.ids.shape[0], inputs.ids.device
    passes = Passes(model, inputs, edit)
    _require_same_in_all_rows(passes)
    stops = torch.tensor(sorted(stops_of(model, stop_ids)), dtype=torch.int64, device=device)
    beams = [_Beam(n_beams, length_penalty) for _ in range(batch)]
    # one column per beam; at first they would all be equal, so only the first counts
    total = torch.full((batch, n_beams), float("-inf"), device=device, dtype=torch.float64)
    total[:, 0] = 0.0
    rows = torch.arange(batch, device=device).repeat_interleave(n_beams)
    for step in range(new):
        logits = passes.logits()
        if step == 0:
            logits = logits[rows]
            passes.select(rows)
        require_choice(logits)
        log_probs = logits.double().log_softmax(-1)
        if (out := ruled_out(passes, logits, step, new - step)) is not None:
            log_probs = log_probs.masked_fill(out, float("-inf"))
        log_probs = log_probs.unflatten(0, (batch, n_beams))
        candidates = (total[..., None] + log_probs).flatten(1)
        total, flat = candidates.topk(min(n_beams, candidates.shape[1]), -1)
        parent, token = flat // log_probs.shape[-1], flat % log_probs.shape[-1]
        ends = torch.isin(token, stops)
        for row, beam in enumerate(beams):
            beam.extend(total[row].tolist(), parent[row].tolist(), token[row].tolist(), ends[row].tolist())
        total = _widened(torch.tensor([beam.totals for beam in beams], dtype=torch.float64, device=device), n_beams)
        if not total.isfinite().any():
            break
        parent, token = _widened(parent, n_beams, 0.0), _widened(token, n_beams, 0.0)
        rows = (parent + n_beams * torch.arange(batch, device=device)[:, None]).flatten()
        passes.select(rows)
        passes.append(token.flatten())
    ranked = tuple(beam.ranked() for beam in beams)
    # the last token of each was drawn behind the others
    grown = [(n, len(one.tokens) - 1) for n, row in zip(inputs.output.counts, ranked) for one in row]
    notes = distinct(inputs.warnings, model.generation.notes(n_beams=n_beams), outgrown_notes(model, grown))
    return Beams(ranked, notes)


def _require_same_in_all_rows(passes: Passes) -> None:
    """Raise `AnalysisUnavailable` for edits of single rows: continuations stand beside each other in the batch."""
    for name, edits in passes.edits.items():
        for edit in edits:
            if of_single_rows(edit, passes.table[name]):
                raise AnalysisUnavailable(
                    f'beam search: {type(edit).__name__} at "{name}" is of single rows, and each prompt has several, '
                    "its continuations.\n    Search one prompt after another, each with edits of its own."
                )


class _Beam:
    """The bookkeeping of one row: continuations under way, and those that have ended."""

    def __init__(self, width: int, alpha: float) -> None:
        self.width, self.alpha = width, alpha
        self.alive: list[tuple[int, ...]] = [()] * width
        self.totals: list[float] = []
        self.ended: list[Hypothesis] = []

    def extend(self, totals: list[float], parents: list[int], tokens: list[int], ends: list[bool]) -> None:
        """Take the candidates, best first: as many as there are places not yet taken by ended continuations."""
        places = self.width - len(self.ended)
        alive, self.totals = [], []
        for rank, (total, parent, token, end) in enumerate(zip(totals, parents, tokens, ends)):
            line = (*self.alive[parent], token)
            taken = rank < places and total > float("-inf")
            if taken and end:
                self.ended.append(self._hypothesis(line, total, True))
            alive.append(line)
            self.totals.append(total if taken and not end else float("-inf"))
        self.alive = alive

    def ranked(self) -> tuple[Hypothesis, ...]:
        cut = [self._hypothesis(a, t, False) for a, t in zip(self.alive, self.totals) if t > float("-inf")]
        return tuple(sorted(self.ended + cut, key=lambda h: (h.stopped, h.score), reverse=True))

    def _hypothesis(self, tokens: tuple[int, ...], total: float, stopped: bool) -> Hypothesis:
        return Hypothesis(tokens, total, total / ((5 + len(tokens)) / 6) ** self.alpha, stopped)


def _widened(values: Tensor, width: int, fill: float = float("-inf")) -> Tensor:
    """Fill up to the beam's width: a vocabulary smaller than the beam gives fewer candidates at first."""
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=fill)
