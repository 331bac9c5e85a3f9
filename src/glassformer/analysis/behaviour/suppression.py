"""Do the last layers push the right answer down, by which parts, and what does it buy?

Answers are the tokens that really come next. Depth by depth the logit lens tells how likely they are; direct logit
attribution (norms frozen) splits their logit, less the mean logit, into what each head and MLP of the last layers adds,
and negative parts are the suppression. Two routes are examined:

    heads   rest on the first token, whose value as written raises frequent tokens
    MLPs    move the stream x towards the mean direction of the answers to come,  e = sum over w of frequency(w) W_U[w]

Then parts are taken out, and probability, loss and calibration are measured: what lowers the answer's probability may
well lower the loss.

Source: Lv et al. 2024, "Interpreting Key Mechanisms of Factual Recall in Transformer-Based Language Models"
(suppression in the last layer). How the two routes are put in numbers is ours.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.attribution import decoder_side
from glassformer.analysis.inputs import prepare, token_ids
from glassformer.analysis.losses import joined
from glassformer.analysis.run import evaluating
from glassformer.analysis.steps import FrozenNorm
from glassformer.attention import AttentionLayer, per_query_head
from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import Block, Decoder
from glassformer.models.parts import Norm
from glassformer.trace import At, Edit, Read, Set, Tape
from glassformer.weights import head_label

Value = Literal["zero", "mean"]
OUTCOMES = ("probability", "loss", "accuracy", "calibration_error")


@dataclasses.dataclass(frozen=True, eq=False)
class Suppression(Result):
    """What the last layers do to the tokens that come next.

    Args:
        by_depth: Logit lens over counted tokens, `depth measure`: mean probability and mean loss (nats) of the answer,
            median of its rank (1 is the likeliest).
        contributions: Mean direct effect on the answer's logit less the mean logit, `component`: everything before the
            last layers, their heads, biases and MLPs, and constants. They sum to the mean of that difference.
        negative: Mean of the negative parts only, `component`.
        spread: Standard deviation of the contribution over tokens, `component`.
        head_route: `head measure`: `first_mass`, mean weight on position 0 (queries from the second on), and
            `frequent`, correlation over tokens of what the first position's value as written adds to logits with the
            log of the token's frequency. NaN where a head has no pattern whose rows sum to one.
        mlp_route: `mlp measure`: cosine of what the MLP writes with e - x, projection of it on e / |e|, means over
            tokens.
        interventions: `intervention outcome`: probability of the answer, loss in nats, accuracy, expected calibration
            error over 15 bins; first of the model as it is.
        change_spread: Standard error over rows of the change of probability and loss, `intervention outcome`; NaN with
            one row.
        value: What takes the place of what is taken out.
        last: How many last layers.
        tokens: How many were counted.
        norms: Direct effects hold norm scales fixed; interventions are live.
        left_out: Interventions that are not defined here, and why.
    """

    by_depth: Labelled
    contributions: Labelled
    negative: Labelled
    spread: Labelled
    head_route: Labelled
    mlp_route: Labelled
    interventions: Labelled
    change_spread: Labelled
    value: Value
    last: int
    tokens: int
    norms: str
    left_out: Mapping[str, str]

    @property
    def suppressors(self) -> list[str]:
        """Heads and MLPs whose mean contribution is negative, most negative first."""
        pairs = zip(self.contributions.labels("component"), self.contributions.values.tolist())
        parts = [(value, str(label)) for label, value in pairs if value < 0 and str(label)[0] == "L"]
        return [label for _, label in sorted(parts)]


@torch.no_grad()
def suppression(
    model: Any,
    *inputs: Any,
    last: int = 1,
    value: Value = "mean",
    frequencies: Float[Tensor, " vocab"] | None = None,
    only_correct: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Suppression:
    """Examine what the last layers of a model do to the right answer.

    Args:
        model: A decoder or an encoder-decoder.
        inputs: Batches, texts, or rows of ids; their next tokens are the answers.
        last: How many last layers are examined.
        value: What takes the place of a part that is taken out: `mean` over these inputs, or `zero`.
        frequencies: Of all tokens, in any unit; counted in these inputs by default.
        only_correct: Count only tokens that the model puts first. It biases what is found: such answers can only lose.
        report: Called with passes done and to do.

    Raises:
        ShapeMismatch: No input, or no such number of layers.
        AnalysisUnavailable: The model is not one of ours, an encoder-decoder is given something else than batches, or
            no token counts.
    """
    stack, _ = decoder_side(model)
    blocks = [block for block in stack.blocks if isinstance(block, Block)]
    if not inputs:
        raise ShapeMismatch("suppression: give at least one text or batch.")
    if not 1 <= last <= len(blocks):
        raise ShapeMismatch(f"suppression: last={last}; the model has {len(blocks)} layers.")
    batches = [_batch(model, given) for given in inputs]
    frequency = _frequencies(model, batches, frequencies)
    plan, left_out = _plan(blocks[-last:])
    total, done = len(batches) * (1 + len(plan)), 0

    def tick() -> None:
        nonlocal done
        done += 1
        if report is not None:
            report(done, total)

    with evaluating(model):
        clean = list[_Clean]()
        for batch in batches:
            clean.append(_clean(model, blocks, last, batch, frequency, only_correct))
            tick()
        if not any(bool(known.counted.any()) for known in clean):
            raise AnalysisUnavailable("suppression: no token counts; give longer texts, or only_correct=False.")
        means = _means(clean) if value == "mean" else {}
        outcomes, rows = list[Tensor](), list[Tensor]()
        for edits in [[], *plan.values()]:
            changed = [_Set(site, where, means.get(site)) for site, where in edits]
            scored = list[_Scored]()
            for batch, known in zip(batches, clean):
                if not changed:
                    scored.append(_scored(known.logits, batch, known.counted))
                    continue
                edit = [one.edit() for one in changed]
                scored.append(_scored(_forward(model, batch, Tape(model, edit=edit)), batch, known.counted))
                tick()
            outcomes.append(_outcome(scored))
            rows.append(torch.stack([joined([getattr(s, n) for s in scored], 0) for n in ("probability", "loss")]))
    names = ["as it is", *plan]
    counted = joined([known.counted for known in clean]).double()
    over = (("intervention", "outcome"), {"intervention": names, "outcome": OUTCOMES})
    return Suppression(
        **_direct(blocks, clean), interventions=Labelled(torch.stack(outcomes), *over),
        change_spread=Labelled(_errors(rows, counted), *over), value=value, last=last, tokens=int(counted.sum()),
        norms="frozen", left_out=left_out,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class _Clean:
    """What one batch gave in the model as it is."""

    logits: Float[Tensor, "row pos vocab"]
    counted: Bool[Tensor, "row pos"]
    depth: Float[Tensor, "depth three token"]
    parts: dict[str, Float[Tensor, " token"]]
    heads: dict[str, tuple[float, float]]
    mlps: dict[str, Float[Tensor, "two token"]]
    out: dict[str, Float[Tensor, "token d_model"]]


def _clean(model: Any, blocks: list[Block], last: int, batch: Batch, frequency: Tensor, only_correct: bool) -> _Clean:
    stack, _ = decoder_side(model)
    examined = blocks[-last:]
    sites = [block.at_resid[0] for block in blocks[:1]] + [block.at_resid[-1] for block in blocks]
    reads: list[str | Read] = [*sites, *_scale_sites(stack.final)]
    for block in examined:
        reads += block.at_resid
        for name in block.names:
            part = block.part(name)
            reads += [*_scale_sites(block.norm_after(name)), f"{block.path}.{name}.out"]
            if isinstance(part, AttentionLayer):
                reads.append(part.at.head_out)
                if _rests(part):
                    reads += [part.at.value, Read(part.at.pattern, reduce=lambda p: p[..., 0])]
    tape = Tape(model, reads)
    logits = _forward(model, batch, tape)
    counted = batch.weight.bool()
    if only_correct:
        counted = counted & (logits.argmax(-1) == batch.targets)
    seen = tape.values
    direction = model.unembed.weight[batch.targets] - model.unembed.weight.mean(0)
    parts, constant = _parts(model, blocks, examined, seen, direction, batch.targets)
    parts["constants"] = constant
    depth = torch.stack([_lens(model, seen[site], batch, counted) for site in sites])
    mean_answer = frequency @ model.unembed.weight.double()
    heads, mlps, out = dict[str, tuple[float, float]](), dict[str, Tensor](), dict[str, Tensor]()
    for block in examined:
        for i, name in enumerate(block.names):
            part, site = block.part(name), f"{block.path}.{name}.out"
            out[site] = seen[site][counted].double()
            if isinstance(part, AttentionLayer):
                labels = [head_label("", name, block.layer, h) for h in range(part.dims.n_heads)]
                heads |= dict(zip(labels, _rest(model, stack.final, part, seen, counted, frequency)))
                continue
            x = seen[block.at_resid[0 if block.wiring == "parallel" else i]][counted].double()
            along = torch.nn.functional.cosine_similarity(out[site], mean_answer - x, dim=-1)
            mlps[f"L{block.layer} {name}"] = torch.stack((along, out[site] @ mean_answer / mean_answer.norm()))
    chosen = {label: value[counted].double() for label, value in parts.items()}
    return _Clean(logits, counted, depth, chosen, heads, mlps, out)


def _parts(
    model: Any,
    blocks: list[Block],
    examined: list[Block],
    seen: Mapping[str, Tensor],
    direction: Float[Tensor, "row pos d_model"],
    targets: Int[Tensor, "row pos"],
) -> tuple[dict[str, Tensor], Float[Tensor, "row pos"]]:
    """Return every part's contribution at every position, from the top down, and what is constant."""
    final = _frozen(decoder_side(model)[0].final, seen)
    constant = direction.new_zeros(direction.shape[:2])
    constant = constant + (0 if final.bias is None else direction @ final.bias)
    if (bias := model.unembed.bias) is not None:
        constant = constant + bias[targets] - bias.mean()
    u, found = final.adjoint(direction), dict[str, Tensor]()
    for block, name in [(one, each) for one in examined for each in one.names][::-1]:
        part, after = block.part(name), _frozen(block.norm_after(name), seen)
        if after.bias is not None:
            constant = constant + u @ after.bias
        at_write = after.adjoint(u)
        if isinstance(part, AttentionLayer):
            if part.merge.output.bias is not None:
                found[f"L{block.layer} {name} bias"] = at_write @ part.merge.output.bias
            written = torch.einsum("bhtd,btd->hbt", seen[part.at.head_out], at_write)
            labels = [head_label("", name, block.layer, h) for h in range(len(written))]
            found |= dict(reversed(list(zip(labels, written))))
        else:
            found[f"L{block.layer} {name}"] = (seen[f"{block.path}.{name}.out"] * at_write).sum(-1)
        u = at_write if block.wiring == "post" else u
    earlier = (seen[examined[0].at_resid[0]] * u).sum(-1)
    return {"earlier": earlier} | dict(reversed(list(found.items()))), constant


def _lens(model: Any, x: Tensor, batch: Batch, counted: Tensor) -> Float[Tensor, "three token"]:
    stack, _ = decoder_side(model)
    log_probs = model.unembed.logits(stack.final(x)[counted]).double().log_softmax(-1)
    own = log_probs.gather(-1, batch.targets[counted][:, None])
    return torch.stack((own[:, 0].exp(), -own[:, 0], ((log_probs > own).sum(-1) + 1).double()))


def _rests(part: AttentionLayer) -> bool:
    return part.mixer.traits.rows_sum_to_one and not part.config.cross


def _rest(
    model: Any, final: Norm, part: AttentionLayer, seen: Mapping[str, Tensor], counted: Tensor, frequency: Tensor
) -> list[tuple[float, float]]:
    """Return for each head its weight on the first position, and whether that raises frequent tokens."""
    if not _rests(part):
        return [(math.nan, math.nan)] * part.dims.n_heads
    mass, value = seen[part.at.pattern], seen[part.at.value][..., :1, :]
    later = counted.clone()
    later[:, 0] = False
    masses = (mass * later[:, None]).double().sum((0, 2)) / later.sum()
    written = (per_query_head(value, mass[..., None]) @ part.merge.matrix())[:, :, 0]
    raised = final.linear(written, written.new_ones(written.shape[:-1])) @ model.unembed.weight.mT
    known = frequency > 0
    pair = torch.stack((raised[..., known].double(), frequency[known].log().expand_as(raised[..., known])))
    pair = pair - pair.mean(-1, keepdim=True)
    # a first token that writes nothing raises nothing: NaN says so
    correlation = (pair[0] * pair[1]).sum(-1) / (pair[0].norm(dim=-1) * pair[1].norm(dim=-1))
    return list(zip(masses.tolist(), correlation.mean(0).tolist()))


def _direct(blocks: list[Block], clean: Sequence[_Clean]) -> dict[str, Labelled]:
    """Return the fields of `Suppression` that tell of the model as it is."""
    depth = torch.cat([known.depth for known in clean], -1)
    table = torch.stack((depth[:, 0].mean(-1), depth[:, 1].mean(-1), depth[:, 2].median(-1).values), -1)
    labels: list[Coordinate] = ["embed", *(f"block {i}" for i in range(len(blocks)))]
    measures = ("probability", "loss", "median_rank")
    found = {"by_depth": Labelled(table.cpu(), ("depth", "measure"), {"depth": labels, "measure": measures})}
    names = list(clean[0].parts)
    parts = torch.stack([torch.cat([known.parts[name] for known in clean]) for name in names]).cpu()
    sums = {"contributions": parts.mean(-1), "negative": parts.clamp_max(0).mean(-1), "spread": parts.std(-1)}
    found |= {name: Labelled(values, ("component",), {"component": names}) for name, values in sums.items()}
    heads = list(clean[0].heads)
    counts = torch.tensor([float(known.counted.sum()) for known in clean], dtype=torch.float64)
    route = torch.tensor([[known.heads[head] for known in clean] for head in heads], dtype=torch.float64)
    route = torch.einsum("hnm,n->hm", route.view(len(heads), len(clean), 2), counts / counts.sum())
    measures = ("first_mass", "frequent")
    found["head_route"] = Labelled(route, ("head", "measure"), {"head": heads, "measure": measures})
    mlps = list(clean[0].mlps)
    means = [torch.cat([known.mlps[mlp] for known in clean], -1).mean(-1).cpu() for mlp in mlps]
    table = torch.stack(means) if means else torch.zeros(0, 2, dtype=torch.float64)
    measures = ("cosine", "projection")
    found["mlp_route"] = Labelled(table, ("mlp", "measure"), {"mlp": mlps, "measure": measures})
    return found


_Plan = dict[str, list[tuple[str, At]]]


def _plan(examined: list[Block]) -> tuple[_Plan, dict[str, str]]:
    """Return what is taken out: sites and parts of them, by name."""
    found: _Plan = {}
    left_out = dict[str, str]()
    cut, whole = list[tuple[str, At]](), list[tuple[str, At]]()
    for block in examined:
        for name in block.names:
            site, part = f"{block.path}.{name}.out", block.part(name)
            found[f"without L{block.layer} {name}"] = [(site, At())]
            whole.append((site, At()))
            if not isinstance(part, AttentionLayer) or part.config.cross:
                continue
            if _rests(part) and part.mixer.traits.has_scores:
                cut.append((part.at.scores, At(query=slice(1, None), key=0)))
            else:
                left_out[f"L{block.layer} {name}: first key cut"] = f'"{part.config.mixer.kind}" has no such scores'
    if len(whole) > 1:
        found["without all of them"] = whole
    if cut:
        found["first key cut"] = cut
    return found, left_out


@dataclasses.dataclass(frozen=True, eq=False)
class _Set:
    site: str
    where: At
    mean: Tensor | None

    def edit(self) -> Edit:
        if self.where:
            return Set(self.site, -math.inf, at=self.where)
        return Set(self.site, 0.0 if self.mean is None else self.mean)


def _means(clean: Sequence[_Clean]) -> dict[str, Float[Tensor, " d_model"]]:
    return {site: torch.cat([known.out[site] for known in clean]).mean(0) for site in clean[0].out}


@dataclasses.dataclass(frozen=True, eq=False)
class _Scored:
    """Of every target: probability, loss, and of every token counted: confidence and whether it was right."""

    probability: Float[Tensor, "row pos"]
    loss: Float[Tensor, "row pos"]
    counted: Bool[Tensor, "row pos"]
    confidence: Float[Tensor, " token"]
    right: Float[Tensor, " token"]


def _scored(logits: Tensor, batch: Batch, counted: Tensor) -> _Scored:
    log_probs = logits.double().log_softmax(-1)
    own = log_probs.gather(-1, batch.targets[..., None])[..., 0]
    best = log_probs[counted].max(-1)
    right = (best.indices == batch.targets[counted]).double()
    return _Scored(own.exp(), -own, counted, best.values.exp(), right)


def _outcome(scored: Sequence[_Scored], bins: int = 15) -> Float[Tensor, " outcome"]:
    probability, loss = (torch.cat([getattr(s, n)[s.counted] for s in scored]) for n in ("probability", "loss"))
    confidence, right = (torch.cat([getattr(s, n) for s in scored]) for n in ("confidence", "right"))
    return torch.stack(
        [probability.mean(), loss.mean(), right.mean(), calibration_error(confidence, right, bins)]
    ).cpu()


def calibration_error(
    confidence: Float[Tensor, " token"], right: Float[Tensor, " token"], bins: int = 15
) -> Float[Tensor, ""]:
    """Return the expected calibration error: mean |accuracy - confidence| of equal bins, weighted by their tokens."""
    at = (confidence * bins).long().clamp_max(bins - 1)
    # within a bin the share cancels the count that the means divide by
    off = confidence.new_zeros(bins).index_add_(0, at, right - confidence)
    return off.abs().sum() / len(confidence)


def _errors(rows: Sequence[Float[Tensor, "two row pos"]], counted: Tensor) -> Float[Tensor, "intervention outcome"]:
    """Return standard errors over rows of the changes of probability and loss."""
    table = torch.full((len(rows), len(OUTCOMES)), math.nan, dtype=torch.float64)
    n = counted.shape[0]
    for i, found in enumerate(rows):
        if n > 1:
            change = (found - rows[0]) * counted
            mean = change.sum((1, 2)) / counted.sum()
            # rows pull by how many tokens they have: the error of a ratio of sums
            off = change.sum(2) - mean[:, None] * counted.sum(1)
            table[i, :2] = (off.square().sum(1).sqrt() / counted.sum() * math.sqrt(n / (n - 1))).cpu()
    return table


def _frozen(norm: Norm | None, seen: Mapping[str, Tensor]) -> FrozenNorm:
    return FrozenNorm(norm, None if norm is None or norm.weight is None else seen[norm.at_scale])


def _scale_sites(norm: Norm | None) -> list[str]:
    return [] if norm is None or norm.weight is None else [norm.at_scale]


def _batch(model: Any, given: Any) -> Batch:
    if isinstance(given, Batch):
        return given
    if not isinstance(model, Decoder):
        raise AnalysisUnavailable("suppression: an encoder-decoder reads pairs; give a Batch with source and tokens.")
    return next_token_batch(token_ids(model, given))


def _forward(model: Any, batch: Batch, tape: Tape) -> Tensor:
    given = prepare(model, batch, None)
    return model(*given.args, **given.kwargs, tape=tape)


def _frequencies(model: Any, batches: Sequence[Batch], given: Tensor | None) -> Float[Tensor, " vocab"]:
    size, weight = model.config.vocab_size, model.unembed.weight
    if given is None:
        answers = torch.cat([batch.targets[batch.weight.bool()] for batch in batches])
        given = torch.bincount(answers.flatten(), minlength=size)
    if given.shape != (size,) or bool((given < 0).any()) or not bool(given.sum() > 0):
        raise ShapeMismatch(
            f"suppression: frequencies are {size} non-negative numbers, one per token of the vocabulary."
        )
    return given.to(weight.device, torch.float64) / given.sum()
