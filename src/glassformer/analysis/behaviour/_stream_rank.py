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
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import evaluating
from glassformer.analysis.components import decoder_side
from glassformer.analysis.prepare import prepare
from glassformer.analysis.question import question
from glassformer.analysis.subspaces._subspaces import dimensions
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import Block, EncoderDecoder
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

    ratio: Labelled
    ratio_spread: Labelled
    effective_rank: Labelled
    rank_spread: Labelled
    rows: int
    left_out: dict[str, str]


@question("Does the stream collapse with depth?", of="texts")
@torch.no_grad()
def rank_of_stream(
    model: Any,
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
        target: Text or ids of the decoder, for an encoder-decoder.
        stack: `encoder` or `decoder` of a model that has two; the decoder by default.
        initial: Seed of freshly drawn weights to compare with; None for none.
        report: Called with passes done and to do.

    Raises:
        ShapeMismatch: No input.
        AnalysisUnavailable: The model is not one of ours, or the stack has no blocks.
    """
    if not inputs:
        raise ShapeMismatch("rank_of_stream: give at least one text.")
    decoder_side(model)
    name = stack or "decoder" if isinstance(model, EncoderDecoder) else ""
    models = {"trained": model}
    if initial is not None:
        models["initial"] = model.config.build(initial).to(model.unembed.stored)
    variants, left_out = _variants(_blocks(model, name))
    given = [prepare(model, text, target) for text in inputs]
    done, total = 0, len(models) * len(variants) * len(given)
    ratios, ranks = list[Tensor](), list[Tensor]()
    for each in models.values():
        with evaluating(each):
            for variant in variants:
                found = list[Tensor]()
                for one in given:
                    blocks = _blocks(each, name)
                    places = [blocks[0].at_resid[0], *(block.at_resid[-1] for block in blocks)]
                    tape = Tape(each, places, _edits(blocks, variant), logits=False)
                    each(*one.args, **one.kwargs, tape=tape)
                    lengths = None if name == "encoder" else one.lengths
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
    """Return `|res X| / |X|`; 0 if all rows are equal, 0 for a stream of zeros."""
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
        rank = torch.stack([dimensions(torch.linalg.svdvals(x))[2] for x in found])
        rows.append(torch.stack((ratio, rank)))
    return torch.stack(rows, 1)


def _blocks(model: Any, name: str) -> list[Block]:
    found = [block for block in model.stacks[name].blocks if isinstance(block, Block)]
    if not found:
        raise AnalysisUnavailable("rank_of_stream: a stack without blocks has no depth.")
    return found


def _variants(blocks: list[Block]) -> tuple[list[Variant], dict[str, str]]:
    """Return the variants that differ in this stack."""
    if any(not _attends(block, name) for block in blocks for name in block.names):
        return list(VARIANTS), {}
    return ["attention only", "full"], {"+ MLP": "there is none", "+ skip": "there is no MLP: it is the full model"}


def _attends(block: Block, name: str) -> bool:
    return isinstance(block.part(name), AttentionLayer)


def _edits(blocks: list[Block], variant: Variant) -> list[Edit]:
    """Return edits that take MLPs, skip connections or both out of a model."""
    mlps, skips = variant in ("+ MLP", "full"), variant in ("+ skip", "full")
    found = list[Edit]()
    for block in blocks:
        found += [] if mlps else [Set(_added(block, name), 0.0) for name in block.names if not _attends(block, name)]
        found += [] if skips else _without_skip(block, mlps)
    return found


def _added(block: Block, name: str) -> str:
    """Return the site of what a sub-layer adds to the stream, behind its norm in a sandwich block."""
    after = block.norm_after(name)
    return after.at_out if after is not None and block.wiring == "sandwich" else f"{block.path}.{name}.out"


def _without_skip(block: Block, mlps: bool) -> list[Edit]:
    """Return edits after which each sub-layer's write is the stream; an MLP that is taken out passes it on."""
    held = dict[str, Tensor]()

    def keep(x: Tensor) -> Tensor:
        held["x"] = x
        return x

    def take_out(x: Tensor) -> Tensor:
        return x - held["x"]

    parallel = block.wiring == "parallel"
    found: list[Edit] = [Apply(block.at_resid[0], keep)]
    for i, name in enumerate(block.names):
        last = i + 1 == len(block.names)
        behind = block.at_resid[-1] if parallel else block.at_resid[i + 1]
        removed = not mlps and not _attends(block, name)
        if (parallel and last) or not (parallel or removed):
            found.append(Apply(block.at_sum[i] if block.wiring == "post" else behind, take_out))
        if not parallel and not last:
            found.append(Apply(behind, keep))
    return found
