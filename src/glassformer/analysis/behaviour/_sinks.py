"""Attention sinks as a behaviour: which heads park attention on the first token, what it carries, and who needs it.

What is parked there carries little if the first token's value is small where it is written; keys show how it attracts:
their size, and the score they get above the others. Then the model runs without it, in several ways that answer
different questions, and its loss is measured on the same tokens:

    first key masked            scores of key 0 set to minus infinity before the softmax, for all later queries
    first token dropped         another token comes first
    first token replaced        the first position with another token: place or token?
    neutral tokens in front     more tokens to rest on, the text shifted
    window                      each query sees the last r keys only
    window with first keys      the same, and the first s keys

Heads whose rows sum to less than one have a learned sink, which is no token, to rest on: what a row lacks is its share.
Of rows with signs a key's mass is the size of its weight over the sum of the sizes.

Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"; Gu et al. 2024, "When Attention
Sink Emerges in Language Models".
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.behaviour._resting import hardly_reached, rests, say_rate
from glassformer.analysis.behaviour._row_shares import Shares, say, shares, shares_of
from glassformer.analysis.heads.roles import Head, drawable, heads, layer_of, patterned, rows_of
from glassformer.analysis.prepare import rows_by_length, token_id
from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.attention import AttentionLayer, per_query_head
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike
from glassformer.models.evaluation import evaluating
from glassformer.models.readable import readable
from glassformer.trace import Apply, At, Edit, Read, Set, Tape

MEASURES = ("mass", "written_first", "written_others", "value_size_ratio", "key_size_ratio", "score_above_others")


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionSinks(Result):
    """The first token as a place to rest, head by head, and the model without it.

    Args:
        measures: Means over queries from the second on and over rows, `head measure`: `mass` on key 0; `written_first`,
            mass times the size of its value as written (before gates and norms on mixed values); `written_others`, the
            same summed over all other keys; `value_size_ratio` and `key_size_ratio`, its value as written and its key
            over the mean of the others; `score_above_others`, its score less the mean of the other keys a query sees.
            Of signed weights the mass is a share of sizes, and what is written goes by the sizes themselves; of a head
            with two maps, keys are both side by side and scores are their mean, or those of the value's own map.
        missing: Mean mass that rows lack to one, by `head`: what a learned sink has; 0 where there is none.
        sink_rate: Share of heads whose mass, if it is beyond `chance`, and what their rows lack is more than `above`.
        above: Mass from which a head counts into the sink rate.
        chance: Mass that heads hardly ever reach here with weights drawn anew (entries of each tensor shuffled): their
            largest and two deviations. NaN where the weights are not in memory.
        loss: Mean in nats of the tokens from the third on, `condition`; `as it is` first.
        loss_change: Less that of `as it is`, `condition`.
        spread: Standard error of the change over rows; NaN with one row.
        window: How many last keys each query sees in the conditions with a window (r).
        first: How many first keys one of them keeps (s), and how many neutral tokens come in front.
        neutral: The token that replaces the first one and is put in front, as text; its id without a tokenizer.
        left_out: Conditions and heads that are not defined here, and why.
    """

    HEADLINE = ("loss_change", "measures")
    SIGNED = ("loss_change",)

    measures: Labelled
    missing: Labelled
    sink_rate: float
    above: float
    chance: float
    loss: Labelled
    loss_change: Labelled
    spread: Labelled
    window: int
    first: int
    neutral: str
    left_out: Mapping[str, str]


@question("Do heads rest on the first token, and what is it worth?", of="texts")
@torch.no_grad()
def attention_sinks(
    model: ModelLike,
    text: Any,
    *,
    above: float = 0.3,
    window: Count = 16,
    first: Count = 4,
    neutral: str | int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> AttentionSinks:
    """Measure the first token as an attention sink, and the loss of the model without it.

    Args:
        model: A decoder with scores and patterns in some layer; only such heads are measured and masked, each value of
            those that have several by itself.
        text: A text or ids, what starts a text first; or several, of any lengths, which give a spread; or a `Batch`
            whose rows are one text each.
        above: Mass from which a head counts into the sink rate.
        window: Last keys seen under a window, the query's own included.
        first: First keys kept beside a window; also how many neutral tokens are put in front.
        neutral: A token that means nothing in particular; by default one drawn at random that is no special token.

    Raises:
        AnalysisUnavailable: The model is no decoder, or no layer has scores of keys and patterns: then nothing has to
            rest anywhere.
        ShapeMismatch: Fewer than three tokens in some row, or several documents.
    """
    known, left_out = _scored_heads(model)
    model.require_one_vocabulary("attention_sinks, which counts losses on next tokens,")
    groups = rows_by_length(model, text, "attention_sinks")
    longest, shortest = groups[0].shape[1], groups[-1].shape[1]
    if shortest < 3:
        raise ShapeMismatch(f"attention_sinks: three tokens at least are needed, found {shortest}.")
    other = _neutral(model, torch.cat([ids[:, :1] for ids in groups]), neutral)
    paths = list(dict.fromkeys(head.path for head in known))
    say(shares_of(_layer(model, path)) for path in paths)
    # a condition that some row has no room for is left out of all
    fits, cuts = longest + first <= model.config.max_len, shortest > window
    if not fits:
        left_out["neutral tokens in front"] = (
            f"{longest} tokens and {first} more do not fit in max_len={model.config.max_len}"
        )
    if not cuts:
        left_out["window"] = f"{shortest} tokens fit into it; give a longer text or a smaller window"
    runs = [_conditions(paths, ids, other, window, first, fits, cuts) for ids in groups]
    conditions, done = list(runs[0]), 0
    measures, losses = list[Tensor](), list[Tensor]()
    with evaluating(model):
        for ids, run in zip(groups, runs):
            measures.append(_measure(model, paths, ids))
            of_group = list[Tensor]()
            for tokens, edits, shift in run.values():
                tape = Tape(model, edit=edits) if edits else None
                logits = model(tokens, tape=tape)[:, shift + 1 : shift + ids.shape[1] - 1]
                of_group.append(-logits.double().log_softmax(-1).gather(-1, ids[:, 2:, None])[..., 0].mean(-1))
                done += 1
                if report is not None:
                    report(done, len(groups) * len(conditions))
            losses.append(torch.stack(of_group))
    rows = torch.cat(losses, 1).cpu()
    by_head = torch.cat(measures).mean(0)
    change = rows - rows[:1]
    n = rows.shape[1]
    spread = change.std(1) / math.sqrt(n) if n > 1 else change.mean(1) * math.nan
    over = (("condition",), {"condition": conditions})
    labels = [head.label for head in known]
    by_head, missing = by_head[:, :-1], by_head[:, -1]

    def masses(drawn: ModelLike) -> Float[Tensor, "head place"]:
        return torch.cat([_measure(drawn, paths, ids) for ids in groups]).mean(0)[:, :1]

    reached = hardly_reached(model, masses)
    chance = math.nan if reached is None else float(reached)
    resting = rests(by_head[:, 0], missing, above, chance)
    say_rate(resting, above, chance)
    return AttentionSinks(
        measures=Labelled(by_head, ("head", "measure"), {"head": labels, "measure": MEASURES}),
        missing=Labelled(missing, ("head",), {"head": labels}),
        sink_rate=float(resting.double().mean()),
        above=above,
        chance=chance,
        loss=Labelled(rows.mean(1), *over),
        loss_change=Labelled(change.mean(1), *over),
        spread=Labelled(spread, *over),
        window=window,
        first=first,
        neutral=readable(model, torch.tensor([[other]]))[0][0],
        left_out=left_out,
    )


def _scored_heads(model: ModelLike) -> tuple[list[Head], dict[str, str]]:
    if not (isinstance(model, Model) and model.continues):
        raise AnalysisUnavailable(
            f"attention_sinks drops and masks a decoder's first token; {type(model).__name__} is no decoder.\n"
            "    head_roles(run) gives every head's mass on it."
        )
    known = [head for head in patterned(model) if layer_of(model, head).mixer.traits.has_scores]
    measured = {head.path for head in known}
    left_out = {
        head.label: f'"{head.mechanism}" has no scores and patterns made of them'
        for head in heads(model)
        if head.path not in measured
    }
    if not known:
        kinds = ", ".join(sorted({head.mechanism for head in heads(model)})) or "no attention"
        raise AnalysisUnavailable(
            f"attention_sinks needs scores of keys and patterns made of them (has_scores, linear_in_value); found "
            f"{kinds}, where no weight has to rest anywhere.\n    head_roles(run) reads the first token's signed mass."
        )
    return known, left_out


def _layer(model: ModelLike, path: str) -> AttentionLayer:
    layer = model.sub_layer(path).attention
    assert layer is not None, "the path of a head is that of an attention layer"
    return layer


def _neutral(model: ModelLike, ids: Int[Tensor, "row pos"], neutral: str | int | None) -> int:
    if neutral is not None:
        return token_id(model, neutral)
    _, free = drawable(model)
    taken = set(ids[:, 0].tolist())
    candidates = [token for token in free.tolist() if token not in taken]
    if not candidates:
        raise AnalysisUnavailable("attention_sinks: every token comes first in some row; give `neutral`.")
    return candidates[int(torch.randint(len(candidates), (), generator=torch.Generator().manual_seed(0)))]


_Condition = tuple[Tensor, list[Edit], int]


def _conditions(
    paths: list[str], ids: Int[Tensor, "row pos"], neutral: int, window: int, first: int, fits: bool, cuts: bool
) -> dict[str, _Condition]:
    """Return by name: tokens, edits, and where the text's first token stands among them.

    `fits` says whether there is room for tokens in front, `cuts` whether rows are longer than the window.
    """
    scores = [f"{path}.scores" for path in paths]
    hide = [Set(site, -math.inf, at=At(query=slice(1, None), key=0)) for site in scores]
    replaced, front = ids.clone(), ids.new_full((len(ids), first), neutral)
    replaced[:, 0] = neutral
    found: dict[str, _Condition] = {
        "as it is": (ids, [], 0),
        "first key masked": (ids, list(hide), 0),
        "first token dropped": (ids[:, 1:], [], -1),
        "first token replaced": (replaced, [], 0),
    }
    if fits:
        found["neutral tokens in front"] = (torch.cat((front, ids), 1), [], first)
    if cuts:
        found["window"] = (ids, _windowed(scores, window, 0), 0)
        found["window with first keys"] = (ids, _windowed(scores, window, first), 0)
    return found


def _windowed(scores: list[str], window: int, first: int) -> list[Edit]:
    def hide(x: Float[Tensor, "batch *stream head query key"]) -> Tensor:
        q, k = (torch.arange(size, device=x.device) for size in x.shape[-2:])
        return x.masked_fill((q[:, None] - k >= window) & (k >= first), -math.inf)

    return [Apply(site, hide) for site in scores]


def _measure(model: ModelLike, paths: list[str], ids: Int[Tensor, "row pos"]) -> Float[Tensor, "row head measure"]:
    read = [f"{path}.{what}" for path in paths for what in ("key", "value")]
    readings: dict[str, Shares] = {path: shares_of(_layer(model, path)) for path in paths}
    reduced = [Read(f"{path}.pattern", reduce=partial(_columns, read=readings[path])) for path in paths]
    reduced += [Read(f"{path}.scores", reduce=_score_above) for path in paths]
    tape = Tape(model, [*read, *reduced])
    model(ids, tape=tape)
    found = list[Tensor]()
    for path in paths:
        columns, sizes = tape.values[f"{path}.pattern"].double().unbind(-2)
        columns, missing, sizes, layer = columns[..., :-1], columns[..., -1], sizes[..., :-1], _layer(model, path)
        key = layer.mixer.keys(tape.values[f"{path}.key"]).double()
        value = per_query_head(tape.values[f"{path}.value"], key).double()
        # two maps of a head lie side by side
        key = (key if key.ndim == 4 else key.movedim(1, -2).flatten(-2)).norm(dim=-1)
        # batch value_stream head key -> batch row key
        written = (layer.mixer.addends(value) @ layer.merge.matrix().double()).norm(dim=-1)
        written = written.transpose(1, 2).flatten(1, 2)
        carried, scores = sizes * written, tape.values[f"{path}.scores"].double()
        numbers = [
            columns[..., 0], carried[..., 0], carried[..., 1:].sum(-1), _ratio(written), _by_row(layer, _ratio(key)),
            _by_row(layer, scores), missing,
        ]  # fmt: skip
        found.append(torch.stack(numbers, -1))
    return torch.cat(found, 1).cpu()


def _by_row(layer: AttentionLayer, numbers: Float[Tensor, "batch *stream head"]) -> Float[Tensor, "batch row"]:
    """Return numbers of heads for each of their patterns: that of its map, or the mean where maps have no values."""
    n = layer.mixer.traits.value_streams
    if numbers.ndim == 3 and n > 1:
        return numbers.transpose(1, 2).flatten(1)
    return (numbers if numbers.ndim == 2 else numbers.mean(1)).repeat_interleave(n, 1)


def _columns(
    pattern: Float[Tensor, "batch *value_stream head query key"], read: Shares
) -> Float[Tensor, "batch row two places"]:
    """Return means over queries of the shares of all keys and the sink, and of the sizes of their weights."""
    # the first query has nowhere else to look
    pattern = rows_of(pattern)[:, :, 1:]
    found, missing = (part.mean(2) for part in shares(pattern, read))
    sizes = torch.cat((pattern.abs().mean(2), torch.zeros_like(missing)[..., None]), -1)
    return torch.stack((torch.cat((found, missing[..., None]), -1), sizes), -2)


def _score_above(scores: Float[Tensor, "batch *stream head query key"]) -> Float[Tensor, "batch *stream head"]:
    """Return the score of key 0 less the mean over the other keys that may be seen, over queries that see both."""
    others = scores[..., 1:, 1:]
    seen = others > -math.inf
    mean = others.masked_fill(~seen, 0.0).sum(-1) / seen.sum(-1).clamp_min(1)
    above = scores[..., 1:, 0] - mean
    both = (above > -math.inf) & seen.any(-1)
    return above.masked_fill(~both, 0.0).sum(-1) / both.sum(-1)


def _ratio(sizes: Float[Tensor, "batch head key"]) -> Float[Tensor, "batch head"]:
    return sizes[..., 0] / sizes[..., 1:].mean(-1)
