"""Evaluators of heads: what they attend to and what they copy, on repetitions, on text, and on mixtures of both.

All sequences are rows of one batch, so that every head is scored in every setting by a single forward pass; patterns
are reduced where they arise.

    prefix_matching    attention to what followed earlier copies of the current token
    copying            of what the head's write raises among the logits of the row's tokens, the share that is the
                       attended token's
    previous_token, duplicate_token, first_token, current_token    as in `heads`

Copying at one query: the write's direct effect on the logits, centred over the vocabulary and cut at zero, gives each
token of the row a raise; a = the attended token's, averaged with the attention weights; r = a / (a + sum of all), zero
where nothing is raised; 4r - 1 lies between -1 and 1. Positive factors of the write cancel in it, so that no norm's
scale enters.

Source: Olsson et al. 2022, appendix on data collection. How the ratio is averaged is not said there: here over the
queries that prefix matching is defined at.
"""

import dataclasses
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.frozen.directions import carried_down
from glassformer.analysis.heads.roles import (
    ROLES,
    Head,
    Reading,
    drawable,
    heads,
    no_patterns,
    of_random_tokens,
    pattern_sites,
    patterned,
    repeated_tokens,
    role_masks,
    rows_of,
)
from glassformer.analysis.prepare import prepare
from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike
from glassformer.models.evaluation import evaluating
from glassformer.models.norms import Norm
from glassformer.numerics.placement import place_of
from glassformer.numerics.precision import wide
from glassformer.provenance import about
from glassformer.trace import Read, Tape

EVALUATORS = ("previous_token", "prefix_matching", "duplicate_token", "first_token", "current_token", "copying")
Setting = Literal["repeated", "shifted", "with_random", "with_text", "text"]


@dataclasses.dataclass(frozen=True, eq=False)
class HeadEvaluation(Result):
    """Scores of every head in every setting.

    Args:
        scores: `setting head evaluator`; NaN where nothing in the setting defines the score, and for copying if logits
            are not of the tokens that are read. Attention scores are shares (or signed shares, see `readings`), copying
            lies in [-1, 1].
        spread: Standard error over rows, same axes; NaN with fewer than two rows.
        positions: Number of queries each score is a mean over, `setting evaluator`.
        readings: For each head, `mass` or `signed`.
    """

    HEADLINE = ("scores",)
    SIGNED = ("scores",)

    scores: Labelled
    spread: Labelled
    positions: Labelled
    readings: tuple[Reading, ...]

    def best(self, evaluator: str, setting: str = "repeated") -> tuple[str, float]:
        """The head with the highest score, and the score."""
        (label, *_), score = self.scores.select(setting=setting, evaluator=evaluator).top(1)[0]
        return str(label), score


@question("How well does each head fit each known role, in each setting?", of="texts")
def evaluate_heads(
    model: ModelLike,
    text: Int[Tensor, "row text_pos"] | None = None,
    *,
    seed: int = 0,
    n_sequences: Count = 10,
    unit: Count = 25,
    repeats: Count = 4,
) -> HeadEvaluation:
    """Score every head by every evaluator, in every setting, in one forward pass.

    Settings: `repeated`, random tokens over and over; `shifted`, with a block of fresh random tokens between the
    copies; `with_random`, a quarter of all tokens replaced by random ones; and, if a text is given, `with_text`, copies
    of the unit between stretches of it, and `text` itself.

    Args:
        model: A decoder.
        text: Rows of ids. What is longer than the other rows is cut; if it is shorter, so is the unit.
        n_sequences: Rows per setting.
        unit: Length of what is repeated; shorter if the training, the context or the vocabulary has no room.
        repeats: How often it occurs.

    Raises:
        AnalysisUnavailable: The model is no decoder, or too small for any repetition.
        NoPattern: No head has a pattern.
        ShapeMismatch: The text is too short.
    """
    if not (isinstance(model, Model) and model.continues):
        raise AnalysisUnavailable(
            f"evaluate_heads repeats random tokens, which is defined for decoders, not for {type(model).__name__}.\n"
            "    Roles by the pattern, on such tokens: head_scores(model); on a text: head_roles(run)."
        )
    known = patterned(model)
    if not known:
        raise no_patterns("evaluate_heads", ", ".join(sorted({h.mechanism for h in heads(model)})) or "no attention")
    text = None if text is None else text.cpu()
    settings = settings_of(model, text, seed=seed, n_sequences=n_sequences, unit=unit, repeats=repeats)
    ids = torch.cat(list(settings.values())).to(place_of(model))
    meter = _ScoreMeter(model, ids)
    read = [read for path in dict.fromkeys(h.path for h in known) for read in meter.reads(path)]
    with evaluating(model), torch.no_grad(), about(of_random_tokens):
        given = prepare(model, ids)
        # nothing looks at the logits, which would be most of what is held
        model(*given.args, **given.kwargs, tape=Tape(model, read, logits=False))
    return _summarise(meter, known, {name: len(rows) for name, rows in settings.items()})


def settings_of(
    model: ModelLike,
    text: Int[Tensor, "row text_pos"] | None = None,
    *,
    seed: int = 0,
    n_sequences: int = 10,
    unit: int = 25,
    repeats: int = 4,
) -> dict[Setting, Int[Tensor, "batch pos"]]:
    """Return the rows of each setting, all of one length; raises as `evaluate_heads`."""
    if text is not None:
        if text.shape[1] // repeats < 2:
            raise ShapeMismatch(
                f"evaluate_heads: the text has rows of {text.shape[1]} tokens, and {repeats} copies of anything need "
                f"{2 * repeats} at least."
            )
        unit = min(unit, text.shape[1] // repeats)
    plain = repeated_tokens(model, seed=seed, n_sequences=n_sequences, unit=unit, repeats=repeats)
    bos, free = drawable(model)
    begin = plain[:, : int(bos is not None)]
    body = plain[:, begin.shape[1] :]
    length, size = body.shape[1], body.shape[1] // repeats
    random = torch.Generator().manual_seed(seed + 1)
    fresh = free[torch.randint(len(free), body.shape, generator=random)]
    copies = body[:, :size]
    found: dict[Setting, Tensor] = {"repeated": plain}
    found["shifted"] = torch.cat((begin, _between(copies, fresh, length)), 1)
    replaced = torch.rand(body.shape, generator=random) < 0.25
    found["with_random"] = torch.cat((begin, torch.where(replaced, fresh, body)), 1)
    if text is not None:
        rows = text[:n_sequences]
        found["with_text"] = torch.cat((begin[: len(rows)], _between(copies[: len(rows)], rows, length)), 1)
        found["text"] = rows[:, : plain.shape[1]] if rows.shape[1] >= plain.shape[1] else plain[:0]
        if rows.shape[1] < plain.shape[1]:
            found["text"] = torch.cat((begin[: len(rows)], rows[:, :length]), 1)
    return found


def prefix_mask(ids: Int[Tensor, "batch pos"], offset: int = 1) -> Bool[Tensor, "batch query key"]:
    """Return where the token `offset` before the key is the query's, earlier than the query.

    Offset 1 is prefix matching: keys that follow an earlier copy. Offset -1 is what the paper's sentences say when read
    literally: keys that precede one.
    """
    n = ids.shape[1]
    q, k = torch.arange(n)[:, None], torch.arange(n)[None]
    source = k - offset
    same = ids[:, :, None] == ids[:, source.clamp(0, n - 1)[0]][:, None, :]
    return same & ((source >= 0) & (source < q) & (k <= q)).to(ids.device)


@question(
    "Which heads look where a mask says?",
    reads=pattern_sites,
    traits=("shows_patterns",),
    judge="sums over patterns found by marking one key's values",
)
def find_pattern(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    mask: Bool[Tensor, "*batch query key"],
    measure: Literal["mass", "closeness"] = "mass",
) -> Labelled:
    """Compare every head's pattern with a mask of where it should look.

    Args:
        mask: True where attention is expected; `query key`, or a mask per row. What it says of padding does not count.
        measure: `mass`, the share of all (absolute) attention that falls on the mask; or `closeness`, one less the
            mean distance of a query's row from the mask's: 1 where pattern and mask agree, down to -1.

    Returns:
        One number per head, and per value of heads that have several (`L0H1/0`).

    Raises:
        SiteNotRead: The run lacks a pattern.
        NoPattern: No head has one.
    """
    known = [h for h in patterned(run.model) if not h.crosses]
    if not known:
        raise no_patterns("find_pattern", "no attention with a pattern")
    paths = dict.fromkeys(h.path for h in known)
    run.require([f"{path}.pattern" for path in paths], "find_pattern")
    found: dict[str, Tensor] = {}
    for path in paths:
        read = run[f"{path}.pattern"]
        pattern = wide(rows_of(read.values))
        wanted = (mask if mask.ndim == 3 else mask[None]).to(pattern)[:, None]
        if wanted.shape[-2:] != pattern.shape[-2:]:
            shapes = [f"query={m.shape[-2]} key={m.shape[-1]}" for m in (wanted, pattern)]
            raise ShapeMismatch(f"find_pattern: the mask has {shapes[0]}, the pattern of {path} {shapes[1]}.")
        real = read.is_real()
        real = real if real is None or real.ndim == 4 else real[:, 0]
        if real is not None:
            pattern, wanted = pattern * real, wanted * real
        if measure == "mass":
            found[path] = (pattern * wanted).sum((0, 2, 3)) / pattern.abs().sum((0, 2, 3))
        else:
            queries = len(pattern) * pattern.shape[2] if real is None else real.any(-1).sum()
            found[path] = 1 - (pattern - wanted).abs().sum((0, 2, 3)) / queries
    values = torch.stack([found[h.path][h.row] for h in known])
    return Labelled(values, ("head",), {"head": [h.label for h in known]})


class _ScoreMeter:
    """Reduces each layer's pattern and writes to scores per row as they are made."""

    def __init__(self, model: Model, ids: Tensor) -> None:
        self.model, self.ids = model, ids
        self.masks = role_masks(ids)
        self.layers = {layer.path: layer for layer in model.sub_layers()}
        self.pattern: Tensor = ids
        self.masses: dict[str, Float[Tensor, "role batch head query"]] = {}
        self.copied: dict[str, Float[Tensor, "batch head query"]] = {}

    def reads(self, path: str) -> list[Read]:
        found = [Read(f"{path}.pattern", reduce=lambda pattern: self._attention(path, pattern))]
        if self.model.one_vocabulary():
            found.append(Read(f"{path}.head_out", reduce=lambda written: self._copying(path, written)))
        return found

    def _attention(self, path: str, pattern: Tensor) -> Tensor:
        n, pattern = self.ids.shape[1], wide(rows_of(pattern))
        total = pattern.abs().sum(-1).clamp_min(torch.finfo(pattern.dtype).tiny)
        # keys beyond the text (sinks, persistent memory) take part in the total, not in any role
        self.pattern = pattern[..., -n:].abs() / total[..., None]
        mass = torch.einsum("bhqk,rbqk->rbhq", pattern[..., -n:], self.masks.to(pattern.dtype))
        self.masses[path] = mass / total
        # what heads write is read afterwards, where it can be copying
        self.copied[path] = torch.full_like(self.masses[path][0], torch.nan)
        return pattern.new_zeros(())

    def _copying(self, path: str, written: Tensor) -> Tensor:
        effect, centre = self._directions(path)
        written = wide(written)
        # what a head writes is of all its values, and each of their patterns is asked whether it looks there
        written = written.repeat_interleave(self.pattern.shape[1] // written.shape[1], 1)
        # batch head query token: how much each token of the row is raised
        raised = torch.einsum("bhqd,btd->bhqt", written, effect) - (written @ centre)[..., None]
        raised = raised.clamp_min(0)
        # a token that occurs again is one token of the sample
        same = (self.ids[:, :, None] == self.ids[:, None, :]).tril(-1).any(-1)
        everything = (raised * ~same[:, None, None]).sum(-1)
        attended = torch.einsum("bhqt,bhqt->bhq", self.pattern, raised)
        ratio = attended / (attended + everything).clamp_min(torch.finfo(raised.dtype).tiny)
        self.copied[path] = 4 * ratio - 1
        return written.new_zeros(())

    def _directions(self, path: str) -> tuple[Float[Tensor, "batch token d_model"], Float[Tensor, " d_model"]]:
        """Return the logit directions of each row's tokens, and their mean over the vocabulary, before later norms.

        Scales are left out: they are positive, and one factor for all tokens.
        """
        directions = wide(self.model.unembed.weight)
        return self._before(path, directions[self.ids]), self._before(path, directions.mean(0))

    def _before(self, path: str, u: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """Return a direction behind the final norm as one of what a sub-layer writes."""

        def unscaled(norm: Norm, u: Tensor) -> Tensor:
            return norm.transposed(u)

        layers = list(self.layers.values())
        down = carried_down(layers, unscaled(self.model.output_stack.final, u), unscaled)
        return next(written for layer, written, _, _ in down if layer.path == path)


def _summarise(meter: _ScoreMeter, known: list[Head], sizes: dict[Setting, int]) -> HeadEvaluation:
    """Average over queries and rows, with the standard error over rows."""
    defined = meter.masks.any(-1)
    induction = ROLES.index("induction")
    defined = torch.cat((defined, defined[induction : induction + 1]))
    # evaluator batch head query
    values = [torch.cat((meter.masses[h.path][:, :, h.row], meter.copied[h.path][None, :, h.row])) for h in known]
    scores, spreads, counts = [], [], []
    start = 0
    for size in sizes.values():
        rows = slice(start, start + size)
        counted = defined[:, None, rows].to(values[0].dtype)
        per_head = torch.stack([v[:, rows] for v in values], 1) * counted
        total, count = per_head.sum(-1), counted.sum(-1)
        # 0 / 0 where nothing defines a score: NaN says so
        mean = total.sum(-1) / count.sum(-1)
        # each row pulls by how many queries it has: the error of a ratio of sums
        error = (total - mean[..., None] * count).square().sum(-1).sqrt() / count.sum(-1)
        spread = error * (size / (size - 1)) ** 0.5 if size > 1 else torch.full_like(mean, torch.nan)
        scores.append(mean.T)
        spreads.append(spread.T)
        counts.append(defined[:, rows].sum((1, 2)))
        start += size
    coords = {"setting": list(sizes), "head": [h.label for h in known], "evaluator": EVALUATORS}
    axes = ("setting", "head", "evaluator")
    return HeadEvaluation(
        Labelled(torch.stack(scores), axes, coords),
        Labelled(torch.stack(spreads), axes, coords),
        Labelled(torch.stack(counts), ("setting", "evaluator"), {k: coords[k] for k in ("setting", "evaluator")}),
        tuple(h.reading for h in known if h.reading is not None),
    )


def _between(unit: Int[Tensor, "batch unit"], other: Int[Tensor, "batch other"], length: int) -> Tensor:
    """Return the unit, a block of the other row half as long, the unit, the next block, …, cut to a length."""
    size = unit.shape[1]
    gap = max(size // 2, 1)
    parts, taken = [], 0
    while sum(part.shape[1] for part in parts) < length:
        parts += [unit, other[:, taken : taken + gap]]
        taken += gap
    return torch.cat(parts, 1)[:, :length]
