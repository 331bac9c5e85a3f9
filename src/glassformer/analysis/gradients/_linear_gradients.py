"""The gradient of a loss by every linear map of a model, as outer products that are never added up.

    dL/dW = sum over i of x_i' d_i         x_i what the map read at a position, d_i the VJP at what it gave there

The rank is at most the number of positions at which something came back. For a loss at the last position that is one
in whatever is read by that position alone: the output matrices and both matrices of the MLP of the last layer.

Source: Katz et al. 2024, "Backward Lens: Projecting Language Model Gradients into the Vocabulary Space", section 4.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.gradients.linear_maps import MapOfModel, Product, Products, maps_of, vjps_of
from glassformer.analysis.places import position_labels
from glassformer.analysis.prepare import answer_id, prepare, require_one_prompt
from glassformer.analysis.question import question
from glassformer.arguments import Several
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, nearest
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.models.evaluation import evaluating, require_gradients
from glassformer.models.reading import Inputs
from glassformer.numerics.indices import asked, entries
from glassformer.numerics.precision import wide
from glassformer.weights import Factored

ANALYSIS = "linear_gradients"
Answer = str | int | Sequence[str | int] | None
NOT_RUN = "no product with it was taken in the pass: nothing was sent to it, or it is multiplied otherwise"


@dataclasses.dataclass(frozen=True, eq=False)
class LinearGradients(Result):
    """What each linear map read, and what came back to it from a loss: its gradient's two factors.

    Args:
        norm: Size of each map's gradient (Frobenius), in nats per unit of weight, `map`.
        rank: Its rank, up to rounding, `map`.
        positions: At how many positions its outer product is more than rounding, `map`: the rank is no larger.
        inputs: What was read, by map, `pos d_in`; `row d_in` where rows are no positions (tokens that an expert was
            sent, steps of a recurrence, several uses of one matrix).
        vjps: What came back, by map, `pos d_out` or `row d_out`, in nats per unit.
        loss: Sum of -log p(answer) over the positions in question, in nats.
        answers: Token id in question at each of them.
        asked: The positions in question.
        left_out: Maps without a gradient, and why.
    """

    HEADLINE = ("norm", "rank")

    norm: Labelled
    rank: Labelled
    positions: Labelled
    inputs: dict[str, Labelled]
    vjps: dict[str, Labelled]
    loss: float
    answers: tuple[int, ...]
    asked: tuple[int, ...]
    left_out: dict[str, str]

    def gradient(self, label: str) -> Factored:
        """The gradient of one map, `d_in d_out` in the convention y = x W, as a product of its factors.

        Raises:
            AnalysisUnavailable: There is no such map.
        """
        if label not in self.inputs:
            raise AnalysisUnavailable(f'{ANALYSIS}: no gradient of "{label}".{nearest(label, self.inputs)}')
        return Factored(self.inputs[label].values.mT, self.vjps[label].values)


@question("What is the gradient of a loss by each linear map made of?", of="texts", holds=("gradients",))
def linear_gradients(
    model: ModelLike,
    text: Any,
    answer: Answer = None,
    *,
    target: Any = None,
    positions: Any = (-1,),
    maps: Several[str] | None = None,
) -> LinearGradients:
    """Take the gradient of -log p(answer) by every linear map, as what it read times what came back.

    Weights may be frozen: the question is what a step would do to them.

    Args:
        text: Text or ids, one row; the source of an encoder-decoder.
        answer: Token that the loss wants, or one per position; the likeliest by default.
        positions: Positions whose predictions the loss is of, or `all`.
        maps: Labels, such as `L0 mlp in`, `L1 attn Q`; all by default.

    Raises:
        AnalysisUnavailable: The model is not one of ours, its logits are not of tokens at positions, no graph can be
            kept, or there is no such map.
        ShapeMismatch: More than one row of text, or positions that it lacks.
        TokenOutOfRange: The answer lies outside the vocabulary.

    Example:
        >>> found = linear_gradients(model, "the keys to the cabinet", " are")
        >>> found.gradient("L1 mlp out").singular_values()
    """
    recorded = record(model, text, answer, target=target, positions=positions, maps=maps, analysis=ANALYSIS)
    inputs, vjps, measured = dict[str, Labelled](), dict[str, Labelled](), list[Tensor]()
    for label, (x, d) in recorded.factors.items():
        labels = recorded.labels(label)
        axis, coords = ("row", {}) if labels is None else ("pos", {"pos": labels})
        inputs[label], vjps[label] = Labelled(x, (axis, "d_in"), coords), Labelled(d, (axis, "d_out"), coords)
        measured.append(_measured(x, d))
    names = {"map": list(inputs)}
    norm, rank, count = torch.stack(measured).unbind(-1) if measured else [torch.empty(0)] * 3
    return LinearGradients(
        norm=Labelled(norm, ("map",), names),
        rank=Labelled(rank.long(), ("map",), names),
        positions=Labelled(count.long(), ("map",), names),
        inputs=inputs,
        vjps=vjps,
        loss=recorded.loss,
        answers=tuple(recorded.answers.tolist()),
        asked=tuple(recorded.places.tolist()),
        left_out=recorded.left_out,
    )


def _measured(x: Float[Tensor, "row d_in"], d: Float[Tensor, "row d_out"]) -> Float[Tensor, " three"]:
    """Return norm, rank and number of rows that count of x' d, where rounding counts as nothing."""
    x, d = wide(x), wide(d)
    spectrum = Factored(x.mT, d).singular_values()
    rows = x.norm(dim=-1) * d.norm(dim=-1)
    rounding = max(x.shape[-1], d.shape[-1]) * torch.finfo(x.dtype).eps
    rank = ((spectrum > rounding * spectrum[0]) & (spectrum > 0)).sum()
    # rows that are left out are together no larger than what the rank leaves out, so that it is never the larger number
    count = ((rows > rounding / len(rows) ** 0.5 * rows.max()) & (rows > 0)).sum()
    return torch.stack((spectrum.norm(), rank.to(spectrum), count.to(spectrum)))


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """One pass and the way back: factors of every gradient, and what they are of."""

    model: Model
    given: Inputs
    maps: Mapping[str, MapOfModel]
    products: Mapping[str, Sequence[Product]]
    factors: Mapping[str, tuple[Tensor, Tensor]]
    loss: float
    places: Int[Tensor, " query"]
    answers: Int[Tensor, " query"]
    left_out: dict[str, str]

    def labels(self, label: str) -> list[Coordinate] | None:
        """Return the names of the positions that a map's rows are; None if they are none."""
        rows, products = self.given.token_rows[0], self.products[label]
        of_source = self.model.source is not None and self.maps[label].layer.stack == self.model.source
        if of_source or (self.maps[label].layer.crosses and self.maps[label].side == "inside"):
            names = position_labels(list(self.given.source_rows[0]), "source ") if self.given.source_rows else []
        else:
            names = position_labels(list(rows))
        placed = len(products) == 1 and products[0].shape == (1, len(names))
        return names if placed else None


def record(
    model: ModelLike, text: Any, answer: Answer, *, target: Any, positions: Any, maps: Any, analysis: str
) -> Recorded:
    """Run a text, and take the loss back to what every map made."""
    model = require_model(model, analysis)
    require_gradients(model, analysis)
    if model.logits_of not in ("next_token", "token"):
        raise AnalysisUnavailable(
            f"{analysis} is of a loss on tokens, and this model's outputs are of {model.logits_of or 'no logits'}.\n"
            "    What moves one of its outputs: analysis.attribution.input_gradients(model, input)."
        )
    given = prepare(model, text, target)
    require_one_prompt(given.shape[0], analysis)
    chosen = _chosen(maps_of(model), maps, analysis)
    places = _places(given, positions, analysis)
    with evaluating(model), torch.enable_grad(), Products(list(chosen.values())) as seen:
        logits = model(*given.args, **given.kwargs)[0, places]
        answers = _answers(model, answer, logits, analysis)
        loss = -logits.log_softmax(-1).gather(1, answers[:, None]).sum()
    products = {label: of_map for label, of_map in seen.found.items() if any(len(one.read) for one in of_map)}
    factors = vjps_of(products, loss)
    left_out = {label: NOT_RUN for label in chosen if label not in products}
    return Recorded(
        model=model, given=given, maps=chosen, products=products, factors=factors, loss=float(loss.detach()),
        places=places, answers=answers, left_out=left_out,
    )  # fmt: skip


def _chosen(maps: Sequence[MapOfModel], names: Any, analysis: str) -> dict[str, MapOfModel]:
    known = {one.label: one for one in maps}
    if names is None:
        return known
    for name in names:
        if name not in known:
            raise AnalysisUnavailable(f'{analysis}: no linear map "{name}".{nearest(name, known)}')
    return {name: known[name] for name in names}


def _places(given: Inputs, positions: Any, analysis: str) -> Int[Tensor, " query"]:
    every = isinstance(positions, str) and positions == "all"
    chosen = entries(slice(None) if every else asked(positions, "positions"), len(given.token_rows[0]), "positions")
    if not chosen:
        raise ShapeMismatch(f'{analysis}: positions= names none; give one at least, or "all".')
    return torch.tensor(chosen, device=given.device)


def _answers(model: Model, answer: Answer, logits: Float[Tensor, "query vocab"], analysis: str) -> Tensor:
    if answer is None:
        return logits.detach().argmax(-1)
    each = [answer] * len(logits) if isinstance(answer, str | int) else list(answer)
    if len(each) != len(logits):
        raise ShapeMismatch(f"{analysis}: {len(each)} tokens as `answer` for {len(logits)} positions; give one each.")
    return torch.tensor([answer_id(model, token) for token in each], device=logits.device)
