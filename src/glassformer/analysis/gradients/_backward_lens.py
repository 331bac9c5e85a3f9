"""Backward lens: what a step of gradient descent would write into each linear map, as tokens.

    dL/dW = sum over i of x_i' d_i
    imprint    what reads the stream gets x_i, added to neuron j where d_i[j] < 0 and subtracted where it is > 0
    shift      what writes to the stream is moved by -d_i, in the rows of the neurons that were active

So a map that reads is spanned by its inputs and one that writes by its VJPs, vectors of the stream both, which the
final norm and the unembedding turn into tokens. Scaled to root mean square one, for a VJP may be so small that a norm
sees nothing but its own epsilon; and both ends are read alike, by half the difference of what v and -v give, in which
biases cancel. The norms between a map and the end of the stream are passed over, as by every lens.

Source: Katz et al. 2024, "Backward Lens: Projecting Language Model Gradients into the Vocabulary Space", sections 4-5.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.gradients._linear_gradients import Answer, Recorded, record
from glassformer.analysis.gradients.linear_maps import MapOfModel
from glassformer.analysis.lens.read_out import read_logits
from glassformer.analysis.places import position_labels
from glassformer.analysis.question import question
from glassformer.arguments import Count, Several, Share
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike
from glassformer.models.readable import readable_outputs
from glassformer.numerics.distributions import rank
from glassformer.numerics.precision import wide

ANALYSIS = "backward_lens"
ENTRIES = 1 << 23  # logits held at a time
NO_TOKEN = -1


@dataclasses.dataclass(frozen=True, eq=False)
class BackwardLens(Result):
    """What a step of descent on one loss would write, by linear map and position.

    Args:
        answer_rank: Rank of the answer at the end that a step writes: among what -d says for maps that write, among
            what x says for maps that read; `map pos`, 1 is the likeliest. Of several answers, the last one's.
        norm: Size of each position's outer product, length of x_i times that of d_i, in nats per unit of weight,
            `map pos`.
        vjp_norm: Length of d_i, in nats per unit of what the map gives, `map pos`.
        toward: Of maps that write, the cosine of -d_i and the answer's direction, `map pos`; NaN for others, and where
            tokens have no directions or it is small.
        added: Of maps that read, the share of their outputs to which a step adds x_i rather than subtracts it,
            `map pos`; NaN for others, and where small.
        small: Whether a position's outer product is so small that its tokens are noise, `map pos`.
        most: Tokens at the positive end of x_i or d_i, `map pos k`; -1 where small.
        least: Tokens at the negative end, likewise: of maps that write, those that a step moves towards.
        writes: Which maps write to the stream, `map`; the others read it.
        loss: Sum of -log p(answer), in nats.
        answers: Token id in question at each position asked.
        asked: Those positions.
        words: Text of every id among `most` and `least`.
        left_out: Maps that are no part of the grid, and why.
    """

    HEADLINE = ("answer_rank", "norm", "toward")
    SIGNED = ("toward",)

    answer_rank: Labelled
    norm: Labelled
    vjp_norm: Labelled
    toward: Labelled
    added: Labelled
    small: Labelled
    most: Labelled
    least: Labelled
    writes: Labelled
    loss: float
    answers: tuple[int, ...]
    asked: tuple[int, ...]
    words: Mapping[int, str]
    left_out: dict[str, str]

    def tokens(self, label: str, position: int = -1) -> list[str]:
        """What a step writes into one map at one position, best first; nothing where it is too small to say.

        That is the end at which `answer_rank` counts: `least` of maps that write, `most` of those that read.
        """
        if bool(self.small.select(map=label).values[position]):
            return []
        ids = self.least if bool(self.writes.select(map=label).values) else self.most
        return [self.words[id] for id in ids.select(map=label).values[position].tolist()]


@question("What would a gradient step write into each layer, as tokens?", of="texts", holds=("gradients",))
def backward_lens(
    model: ModelLike,
    text: Any,
    answer: Answer = None,
    *,
    target: Any = None,
    positions: Any = (-1,),
    maps: Several[str] | None = None,
    k: Count = 5,
    least: Share = 0.01,
) -> BackwardLens:
    """Read the vectors that span each gradient through the final norm and the unembedding.

    Args:
        text: Text or ids, one row; the source of an encoder-decoder.
        answer: Token that the loss wants, or one per position; the likeliest by default, which a step only makes surer.
        positions: Positions whose predictions the loss is of, or `all`.
        maps: Labels, such as `L0 mlp out`; all that read the stream or write to it by default.
        k: Tokens per end.
        least: Share of a map's largest outer product below which a position is marked as small.

    Raises:
        AnalysisUnavailable: As `linear_gradients`; or no map asked for reads or writes the stream of the logits.
        ShapeMismatch: More than one row of text, or positions that it lacks.
        TokenOutOfRange: The answer lies outside the vocabulary.

    Example:
        >>> backward_lens(model, "Lionel Messi plays for", " Paris").tokens("L3 mlp out")
    """
    recorded = record(model, text, answer, target=target, positions=positions, maps=maps, analysis=ANALYSIS)
    shown, left_out = _in_grid(recorded)
    if not shown:
        why = "; ".join(f"{label}: {reason}" for label, reason in list(left_out.items())[:3])
        raise AnalysisUnavailable(f"{ANALYSIS}: no linear map reads or writes the stream of the logits.\n    {why}")
    writes = torch.tensor([one.side == "write" for one in shown])
    pairs = [recorded.factors[one.label] for one in shown]
    x_norm, d_norm = (torch.stack([wide(pair[i]).norm(dim=-1) for pair in pairs]) for i in (0, 1))
    spans = torch.stack([wide(pair[one.side == "write"]) for one, pair in zip(shown, pairs)])
    norm = x_norm * d_norm
    small = _small(norm, least)
    found = _read(recorded, spans, writes.to(spans.device), k).said_of(~small)
    added = torch.stack([_added(one, d) for one, (_, d) in zip(shown, pairs)])
    names = {"map": [one.label for one in shown], "pos": position_labels(list(recorded.given.token_rows[0]))}

    def grid(values: Tensor, *more: str) -> Labelled:
        return Labelled(values, ("map", "pos", *more), names)

    return BackwardLens(
        answer_rank=grid(found.rank),
        norm=grid(norm),
        vjp_norm=grid(d_norm),
        toward=grid(_toward(recorded, spans, writes).masked_fill(small, torch.nan)),
        added=grid(added.masked_fill(small, torch.nan)),
        small=grid(small),
        most=grid(found.most, "k"),
        least=grid(found.least, "k"),
        writes=Labelled(writes, ("map",), {"map": names["map"]}),
        loss=recorded.loss,
        answers=tuple(recorded.answers.tolist()),
        asked=tuple(recorded.places.tolist()),
        words=_words(recorded.model, found.most, found.least),
        left_out=left_out,
    )


def _in_grid(recorded: Recorded) -> tuple[list[MapOfModel], dict[str, str]]:
    """Return the maps whose inputs or VJPs are vectors of the stream that ends in the logits, and why not others."""
    model, shown, left_out = recorded.model, list[MapOfModel](), dict(recorded.left_out)
    names = position_labels(list(recorded.given.token_rows[0]))
    for label in recorded.factors:
        one = recorded.maps[label]
        if one.layer.stack == model.source and model.source is not None:
            left_out[label] = "it is on the stream of the source, which ends in no logits"
        elif one.side == "inside":
            left_out[label] = "it neither reads the stream nor writes to it"
        elif recorded.labels(label) != names:
            left_out[label] = "its rows are not the positions of the text"
        else:
            shown.append(one)
    return shown, left_out


class _Ends(NamedTuple):
    rank: Float[Tensor, "map pos"]
    most: Int[Tensor, "map pos k"]
    least: Int[Tensor, "map pos k"]

    def said_of(self, there: Bool[Tensor, "map pos"]) -> "_Ends":
        """Return what is said where something is there to be said; no rank and no tokens elsewhere."""
        ids = (part.masked_fill(~there[..., None], NO_TOKEN) for part in (self.most, self.least))
        return _Ends(self.rank.masked_fill(~there, torch.nan), *ids)


def _read(recorded: Recorded, spans: Float[Tensor, "map pos d_model"], writes: Bool[Tensor, " map"], k: int) -> _Ends:
    """Return both ends of every vector, and the answer's rank at the end that a step writes."""
    model, n_maps, n_pos = recorded.model, *spans.shape[:2]
    answer = recorded.answers[-1].expand(n_maps * n_pos)
    sign = torch.where(writes, -1.0, 1.0).to(spans).repeat_interleave(n_pos)[:, None]
    k = min(k, model.config.n_outputs)
    parts = list[tuple[Tensor, Tensor, Tensor]]()
    for rows, logits in _projected(model, spans.flatten(0, 1)):
        most, least = logits.topk(k).indices, logits.topk(k, largest=False).indices
        parts.append((rank(logits * sign[rows], answer[rows]), most, least))
    ranks, most, least = (torch.cat(part).unflatten(0, (n_maps, n_pos)) for part in zip(*parts))
    return _Ends(ranks.to(spans), most, least)


@torch.no_grad()
def _projected(model: Model, vectors: Float[Tensor, "n d_model"]) -> Iterator[tuple[slice, Float[Tensor, "n vocab"]]]:
    """Yield what vectors of the stream say, a few at a time: odd in the vector, whatever its length."""
    step = max(1, ENTRIES // (2 * model.config.n_outputs))
    for first in range(0, len(vectors), step):
        rows = slice(first, min(first + step, len(vectors)))
        v = vectors[rows]
        size = v.square().mean(-1, keepdim=True).sqrt()
        v = torch.where(size > 0, v / size, v).to(model.unembed.stored.dtype)
        plus, minus = (wide(read_logits(model, part)) for part in (v, -v))
        yield rows, (plus - minus) / 2


def _toward(recorded: Recorded, spans: Tensor, writes: Bool[Tensor, " map"]) -> Float[Tensor, "map pos"]:
    found = spans.new_full(spans.shape[:2], torch.nan)
    unembed = recorded.model.unembed
    if unembed.has_directions and unembed.readout is None:
        direction = wide(unembed.direction(recorded.answers[-1]).detach())
        found[writes] = -torch.nn.functional.cosine_similarity(spans[writes], direction, dim=-1)
    return found


def _added(one: MapOfModel, vjps: Float[Tensor, "pos d_out"]) -> Float[Tensor, " pos"]:
    back = wide((vjps != 0).to(vjps)).sum(-1)
    share = wide((vjps < 0).to(vjps)).sum(-1) / back
    return torch.full_like(share, torch.nan) if one.side == "write" else share


def _small(norm: Float[Tensor, "map pos"], least: float) -> Bool[Tensor, "map pos"]:
    return (norm < least * norm.amax(-1, keepdim=True)) | (norm == 0)


def _words(model: Model, *ids: Tensor) -> dict[int, str]:
    unique = torch.cat([part.flatten() for part in ids]).unique()
    unique = unique[unique != NO_TOKEN]
    return dict(zip(unique.tolist(), readable_outputs(model, unique[None].cpu())[0]))
