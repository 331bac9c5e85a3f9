"""What each part of the last layers does to the tokens that come next, in the model as it is.

Direct effects pull each answer's direction, less the mean over the vocabulary, back through every norm with its scale
fixed; together with what came before and what is constant they are the answer's logit less the mean logit.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.components import bias_of, head_labels
from glassformer.analysis.frozen.directions import carried_down
from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.analysis.prepare import prepare
from glassformer.analysis.uncertainty import deviation
from glassformer.attention import AttentionLayer, per_query_head
from glassformer.data import Batch
from glassformer.labelled import Coordinate, Labelled
from glassformer.models import Block, ModelLike, SubLayer
from glassformer.models.norms import Norm
from glassformer.trace import Read, Tape


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredPass:
    """What one batch gave in the model as it is; tokens are those that count.

    Args:
        logits: The predictions.
        counted: Which targets count.
        depth: Probability, loss and rank of each answer by the logit lens.
        parts: Direct effect on each answer's logit less the mean logit, by part.
        heads: Weight on the first position, and correlation of what it raises with frequency.
        mlps: Cosine and projection of each token's write along the way to the mean answer.
        out: What sub-layers wrote, by site.
    """

    logits: Float[Tensor, "row pos vocab"]
    counted: Bool[Tensor, "row pos"]
    depth: Float[Tensor, "depth three token"]
    parts: dict[str, Float[Tensor, " token"]]
    heads: dict[str, tuple[float, float]]
    mlps: dict[str, Float[Tensor, "two token"]]
    out: dict[str, Float[Tensor, "token d_model"]]


def measured(
    model: ModelLike,
    blocks: list[Block],
    last: int,
    batch: Batch,
    frequency: Float[Tensor, " vocab"],
    only_correct: bool,
) -> MeasuredPass:
    """Run a batch once and measure its answers by depth, by part of the last layers, and along both routes."""
    final, examined = model.output_stack.final, [s for s in model.sub_layers() if s.block in blocks[-last:]]
    sites = [block.at_resid[0] for block in blocks[:1]] + [block.at_resid[-1] for block in blocks]
    reads: list[str | Read] = [*sites, *_scale_sites(final)]
    for layer in examined:
        reads += [*layer.block.at_resid, *(site for norm in layer.behind for site in _scale_sites(norm)), layer.at_out]
        if (part := layer.attention) is not None:
            reads.append(part.at.head_out)
            if rests(part):
                reads += [part.at.value, Read(part.at.pattern, reduce=lambda p: p[..., 0])]
    tape = Tape(model, reads)
    logits = forward(model, batch, tape)
    counted = batch.weight.bool()
    if only_correct:
        counted = counted & (logits.argmax(-1) == batch.targets)
    seen = tape.values
    direction = model.unembed.weight[batch.targets] - model.unembed.weight.mean(0)
    parts, constant = _parts(model, examined, seen, direction, batch.targets)
    parts["constants"] = constant
    depth = torch.stack([_lens(model, seen[site], batch, counted) for site in sites])
    mean_answer = frequency @ model.unembed.weight.double()
    heads, mlps, out = dict[str, tuple[float, float]](), dict[str, Tensor](), dict[str, Tensor]()
    for layer in examined:
        written = out[layer.at_out] = seen[layer.at_out][counted].double()
        if layer.attention is not None:
            found = _rest(model, final, layer.attention, seen, counted, frequency)
            heads |= dict(zip(head_labels(layer), found))
            continue
        x = seen[layer.at_stream][counted].double()
        along = torch.nn.functional.cosine_similarity(written, mean_answer - x, dim=-1)
        mlps[layer.label] = torch.stack((along, written @ mean_answer / mean_answer.norm()))
    chosen = {label: value[counted].double() for label, value in parts.items()}
    return MeasuredPass(logits=logits, counted=counted, depth=depth, parts=chosen, heads=heads, mlps=mlps, out=out)


def _parts(
    model: ModelLike,
    examined: Sequence[SubLayer],
    seen: Mapping[str, Tensor],
    direction: Float[Tensor, "row pos d_model"],
    targets: Int[Tensor, "row pos"],
) -> tuple[dict[str, Tensor], Float[Tensor, "row pos"]]:
    """Return every part's contribution at every position, from the top down, and what is constant."""
    final = FrozenNorm.of(model.output_stack.final, seen.__getitem__)
    constant = direction.new_zeros(direction.shape[:2])
    constant = constant + (0 if final.bias is None else direction @ final.bias)
    if (bias := model.unembed.bias) is not None:
        constant = constant + bias[targets] - bias.mean()

    def before(norm: Norm, u: Tensor) -> Tensor:
        return FrozenNorm.of(norm, seen.__getitem__).adjoint(u)

    u, found = final.adjoint(direction), dict[str, Tensor]()
    for layer, at_write, above, below in carried_down(examined, u, before):
        if layer.shift is not None:
            constant = constant + above @ layer.shift
        if (part := layer.attention) is not None:
            if part.merge.output.bias is not None:
                found[bias_of(layer, "attn_bias").label] = at_write @ part.merge.output.bias
            written = torch.einsum("bhtd,btd->hbt", seen[part.at.head_out], at_write)
            found |= dict(reversed(list(zip(head_labels(layer), written))))
        else:
            found[layer.label] = (seen[layer.at_out] * at_write).sum(-1)
        u = below
    earlier = (seen[examined[0].at_stream] * u).sum(-1)
    return {"earlier": earlier} | dict(reversed(list(found.items()))), constant


def _lens(model: ModelLike, x: Tensor, batch: Batch, counted: Tensor) -> Float[Tensor, "three token"]:
    log_probs = model.unembed.logits(model.output_stack.final(x)[counted]).double().log_softmax(-1)
    own = log_probs.gather(-1, batch.targets[counted][:, None])
    return torch.stack((own[:, 0].exp(), -own[:, 0], ((log_probs > own).sum(-1) + 1).double()))


def rests(part: AttentionLayer) -> bool:
    """Whether each query of a layer has one unit of attention to put somewhere in its own stack."""
    return part.mixer.traits.rows_sum_to_one and not part.config.cross


def _rest(
    model: ModelLike, final: Norm, part: AttentionLayer, seen: Mapping[str, Tensor], counted: Tensor, frequency: Tensor
) -> list[tuple[float, float]]:
    """Return for each head its weight on the first position, and whether that raises frequent tokens."""
    if not rests(part):
        return [(math.nan, math.nan)] * part.dims.n_heads
    mass, value = seen[part.at.pattern], seen[part.at.value][..., :1, :]
    later = counted.clone()
    later[:, 0] = False
    masses = (mass * later[:, None]).double().sum((0, 2)) / later.sum()
    written = (per_query_head(value, mass[..., None]) @ part.merge.matrix())[:, :, 0]
    raised = FrozenNorm(final, None).unscaled(written) @ model.unembed.weight.mT
    known = frequency > 0
    pair = torch.stack((raised[..., known].double(), frequency[known].log().expand_as(raised[..., known])))
    pair = pair - pair.mean(-1, keepdim=True)
    # a first token that writes nothing raises nothing: NaN says so
    correlation = (pair[0] * pair[1]).sum(-1) / (pair[0].norm(dim=-1) * pair[1].norm(dim=-1))
    return list(zip(masses.tolist(), correlation.mean(0).tolist()))


def averaged(blocks: list[Block], clean: Sequence[MeasuredPass]) -> dict[str, Labelled]:
    """Return the fields of `Suppression` that tell of the model as it is."""
    depth = torch.cat([known.depth for known in clean], -1)
    # the lower median, by sorting: GPUs have no other way to it that repeats itself
    ranks = depth[:, 2].sort(-1).values
    table = torch.stack((depth[:, 0].mean(-1), depth[:, 1].mean(-1), ranks[..., (ranks.shape[-1] - 1) // 2]), -1)
    labels: list[Coordinate] = ["embed", *(f"block {i}" for i in range(len(blocks)))]
    measures = ("probability", "loss", "median_rank")
    found = {"by_depth": Labelled(table.cpu(), ("depth", "measure"), {"depth": labels, "measure": measures})}
    names = list(clean[0].parts)
    parts = torch.stack([torch.cat([known.parts[name] for known in clean]) for name in names]).cpu()
    sums = {"contributions": parts.mean(-1), "negative": parts.clamp_max(0).mean(-1), "spread": deviation(parts)}
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


def forward(model: ModelLike, batch: Batch, tape: Tape) -> Float[Tensor, "row pos vocab"]:
    """Return a batch's logits."""
    given = prepare(model, batch, None)
    return model(*given.args, **given.kwargs, tape=tape)


def _scale_sites(norm: Norm | None) -> list[str]:
    return [] if norm is None or norm.identity else [norm.at_scale]
