"""Do positions become alike with depth, and what keeps them apart?

    ratio = |res X| / |X|,    res X = X - 1 mean(X),    |X| = sqrt(|X|_1 |X|_inf)

X is the stream, `pos d_model`; `|X|_1` is the largest absolute column sum and `|X|_inf` the largest absolute row sum.
The ratio is 0 if all rows are equal, that is if the rank is one in the way that attention alone tends to. Four variants
of the same weights are run: attention only, with MLPs, with skip connections, and the whole model. Norms stay where
they are. Under a causal mask what is lost is lost more slowly: the first position never mixes.

Source: Dong, Cordonnier and Loukas 2021, "Attention is Not All You Need: Pure Attention Loses Rank Doubly Exponentially
with Depth", section 4 (norm and ratio as in the authors' code).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.prepare import prepare
from glassformer.analysis.question import question
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import ModelLike, SubLayer, require_model
from glassformer.models.evaluation import evaluating
from glassformer.numerics import decompositions
from glassformer.trace import Apply, Edit, Set, Tape

Variant = Literal["attention only", "+ MLP", "+ skip", "full"]
VARIANTS: tuple[Variant, ...] = ("attention only", "+ MLP", "+ skip", "full")


@dataclasses.dataclass(frozen=True, eq=False)
class StreamRank(Result):
    """How different positions are, by depth, in four variants of a model.

    Args:
        ratio: `|res X| / |X|`, mean over rows of text, `weights variant depth`; depths are `embed`, `block 0`, ….
        ratio_spread: Standard deviation over rows; NaN with one row.
        effective_rank: Participation ratio of the stream's singular values, mean over rows, same axes; from 1 to the
            number of positions.
        rank_spread: Standard deviation over rows; NaN with one row.
        rows: How many texts were averaged over.
        left_out: Variants that are another one in this model, and why.
    """

    HEADLINE = ("ratio", "effective_rank")

    ratio: Labelled
    ratio_spread: Labelled
    effective_rank: Labelled
    rank_spread: Labelled
    rows: int
    left_out: dict[str, str]


@question("Does the stream collapse with depth?", of="texts")
@torch.no_grad()
def rank_of_stream(
    model: ModelLike,
    *inputs: Any,
    target: Any = None,
    stack: str | None = None,
    initial: int | None = 0,
    report: Callable[[int, int], None] | None = None,
) -> StreamRank:
    """Follow the ratio and the effective rank of the stream through depth, without and with skip and MLP.

    Args:
        model: A decoder or an encoder-decoder, any mechanism and wiring.
        inputs: Texts, or rows of ids of one length; give several, the spread is over them.
        initial: Seed of freshly drawn weights to compare with; None for none.

    Raises:
        ShapeMismatch: No input.
        AnalysisUnavailable: The model is not one of ours, or the stack has no blocks.
    """
    if not inputs:
        raise ShapeMismatch("rank_of_stream: give at least one text.")
    name = require_model(model, "rank_of_stream").stack_name(stack)
    models = {"trained": model}
    if initial is not None:
        models["initial"] = model.config.build(initial).to(model.unembed.stored)
    variants, left_out = _variants(_layers(model, name))
    given = [prepare(model, text, target) for text in inputs]
    done, total = 0, len(models) * len(variants) * len(given)
    ratios, ranks = list[Tensor](), list[Tensor]()
    for each in models.values():
        with evaluating(each):
            for variant in variants:
                found = list[Tensor]()
                for one in given:
                    blocks = each.stacks[name].blocks
                    places = [blocks[0].at_resid[0], *(block.at_resid[-1] for block in blocks)]
                    tape = Tape(each, places, _edits(_layers(each, name), variant), logits=False)
                    each(*one.args, **one.kwargs, tape=tape)
                    lengths = one.real_lengths(name == "encoder")
                    found.append(_numbers([tape.values[place] for place in places], lengths))
                    done += 1
                    if report is not None:
                        report(done, total)
                measured = torch.cat(found, 1)
                ratios.append(measured[0])
                ranks.append(measured[1])
    depth: list[Coordinate] = ["embed", *(f"block {i}" for i in range(ratios[0].shape[1] - 1))]
    axes, coords = ("weights", "variant", "depth"), {"weights": [*models], "variant": variants, "depth": depth}
    shape = (len(models), len(variants), -1)
    n = ratios[0].shape[0]

    def over_rows(values: list[Tensor], spread: bool) -> Labelled:
        rows = torch.stack(values)
        found = rows.mean(1) if not spread else rows.std(1) if n > 1 else rows.mean(1) * torch.nan
        return Labelled(found.view(shape), axes, coords)

    return StreamRank(
        over_rows(ratios, False), over_rows(ratios, True), over_rows(ranks, False), over_rows(ranks, True), n, left_out
    )


def residual_ratio(x: Float[Tensor, "pos d_model"]) -> Float[Tensor, ""]:
    """Return `|res X| / |X|`; 0 if all rows are equal, 0 for a stream of zeros.

    Args:
        x: The stream at one place.
    """
    size = _norm(x)
    return _norm(x - x.mean(0)) / size if bool(size > 0) else size


def _norm(x: Float[Tensor, "pos d_model"]) -> Float[Tensor, ""]:
    sizes = x.abs()
    return (sizes.sum(0).max() * sizes.sum(1).max()).sqrt()


def _numbers(streams: Sequence[Tensor], lengths: Tensor | None) -> Float[Tensor, "two row depth"]:
    rows = list[Tensor]()
    for row in range(len(streams[0])):
        n = streams[0].shape[1] if lengths is None else int(lengths[row])
        found = [x[row, :n].double().cpu() for x in streams]
        ratio = torch.stack([residual_ratio(x) for x in found])
        rank = torch.stack([decompositions.dimensions(decompositions.singular_values(x))[2] for x in found])
        rows.append(torch.stack((ratio, rank)))
    return torch.stack(rows, 1)


def _layers(model: ModelLike, name: str) -> list[SubLayer]:
    found = list(model.sub_layers(name))
    if not found:
        raise AnalysisUnavailable("rank_of_stream: a stack without blocks has no depth.")
    return found


def _variants(layers: list[SubLayer]) -> tuple[list[Variant], dict[str, str]]:
    """Return the variants that differ in this stack."""
    if any(layer.attention is None for layer in layers):
        return list(VARIANTS), {}
    return ["attention only", "full"], {"+ MLP": "there is none", "+ skip": "there is no MLP: it is the full model"}


def _edits(layers: list[SubLayer], variant: Variant) -> list[Edit]:
    """Return edits that take MLPs, skip connections or both out of a model."""
    mlps, skips = variant in ("+ MLP", "full"), variant in ("+ skip", "full")
    found = [Set(layer.at_write, 0.0) for layer in layers if layer.attention is None and not mlps]
    if skips:
        return [*found]
    return [*found, *_without_skips(layers, mlps)]


def _without_skips(layers: list[SubLayer], mlps: bool) -> Iterator[Edit]:
    """Yield edits after which what is written to each stream is the stream; an MLP that is taken out passes it on."""
    held = dict[str, Tensor]()

    def keep(x: Tensor) -> Tensor:
        held["x"] = x
        return x

    def take_out(last: SubLayer, x: Tensor) -> Tensor:
        # of a stream on the sphere, the share that is left of it
        return x - last.remainder(held["x"])

    # sub-layers that read one stream also add to one, and only together are they the stream behind them
    for _, group in itertools.groupby(layers, lambda layer: layer.entry):
        together = list(group)
        yield Apply(together[0].at_stream, keep)
        if mlps or any(layer.attention is not None for layer in together):
            yield Apply(together[-1].at_sum or together[-1].at_behind, partial(take_out, together[-1]))
