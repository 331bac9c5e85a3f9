"""How much of the stream each component reads and writes, which components share it, and who takes things out.

    rank                   singular values above rounding
    rank_99                how many hold 99 % of the energy (sum of squares)
    participation_ratio    (sum s^2)^2 / sum s^4: between 1 and the rank, an effective number of directions
    overlap(A, B)          |Q_A Q_B'|^2 / min(rank A, rank B) of orthonormal bases, in [0, 1];
                           max(rank A, rank B) / d_model for random subspaces

Something is taken out of the stream by what writes the opposite of what it reads: neurons whose output points against
their input, heads whose OV circuit has negative eigenvalues and which attend to their own position. Weights show who
could; a run shows who does.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (subspaces and bandwidth, memory
management). That dimension is counted by participation ratio is our choice.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis._run import Run
from glassformer.analysis.from_weights.ports import Port, ports
from glassformer.analysis.from_weights.selection import LeftOut, by_head, layers_for
from glassformer.analysis.question import question
from glassformer.analysis.subspaces._basis import of_source, stream_rows
from glassformer.arguments import Count, Several
from glassformer.attention import linear
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.numerics import decompositions
from glassformer.numerics.precision import wide
from glassformer.weights import AttentionWeights, HeadWeights, WeightsLike

BUDGET = 1 << 27  # bytes of matrices that are stacked, or of projections, at a time
MEASURES = ("rank", "rank_99", "participation_ratio")


@dataclasses.dataclass(frozen=True, eq=False)
class Bandwidth(Result):
    """How many directions of the stream each component uses.

    Args:
        dimensions: `component measure`; components as in `virtual_weights`, what writes first, then what reads.
        d_model: How many there are.
        folded: Whether norms were folded into what reads.
    """

    HEADLINE = ("dimensions",)

    dimensions: Labelled
    d_model: int
    folded: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Overlaps(Result):
    """Which components share directions of the stream.

    Args:
        overlap: `component component_2`, in [0, 1]; 1 on the diagonal.
        chance: What random subspaces of these ranks would have.
        folded: Whether norms were folded into what reads.
    """

    HEADLINE = ("overlap",)

    overlap: Labelled
    chance: Labelled
    folded: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Erasers(Result):
    """Who could take things out of the stream, by weights.

    Args:
        neurons: Cosine of what a neuron reads and what it writes, the k most negative, `mlp rank`, in [-1, 1]. Gated
            neurons are taken by their linear branch, whose sign the gate may turn.
        neuron_ids: Which neurons.
        head_ratio: Sum of the OV circuit's eigenvalues over the sum of their sizes, on the stream itself, by `head`; -1
            for a head that takes out whatever it attends to (from where it attends).
        head_lowest: Its most negative real part, by `head`.
        folded: Whether norms were folded into what reads.
        left_out: Heads without an OV circuit, and why.
    """

    HEADLINE = ("neurons", "head_ratio")
    SIGNED = ("neurons", "head_ratio", "head_lowest")

    neurons: Labelled
    neuron_ids: Labelled
    head_ratio: Labelled
    head_lowest: Labelled
    folded: bool
    left_out: LeftOut


@dataclasses.dataclass(frozen=True, eq=False)
class Erasure(Result):
    """Who takes things out of the stream, by what was run.

    Args:
        cosine: Mean cosine of what a component writes and the part of the stream, at the same position, that it reads
            (heads: the projection on what values read; MLPs: on what neurons read), by `component`, in [-1, 1].
        spread: Standard deviation over positions.
        left_out: Components whose reading is not known, and why.
    """

    HEADLINE = ("cosine",)
    SIGNED = ("cosine",)

    cosine: Labelled
    spread: Labelled
    left_out: LeftOut


@dataclasses.dataclass(frozen=True, eq=False)
class StreamDimensions(Result):
    """How many directions activations use: participation ratios of their covariances, means taken out.

    Args:
        participation_ratio: By `site`; the stream at each layer, and what components write where the run read it.
        positions: How many vectors each is taken over; a ratio cannot exceed it.
    """

    HEADLINE = ("participation_ratio",)

    participation_ratio: Labelled
    positions: int


@dataclasses.dataclass(frozen=True, eq=False)
class JointPca(Result):
    """Principal directions shared by embedding and unembedding, rows scaled to length one.

    Args:
        variance: Share of the energy along each direction, `direction`, falling; sums to 1.
        embed_share: Of that, the embedding's part: 1/2 where both use a direction alike, 1 or 0 where one does alone.
        participation_ratio: Of the joint spectrum.
    """

    HEADLINE = ("variance", "embed_share")

    variance: Labelled
    embed_share: Labelled
    participation_ratio: float


@question("How many directions does each component read and write?", of="weights")
def bandwidth(model: WeightsLike) -> Bandwidth:
    """Count the directions each component reads or writes.

    Raises:
        AnalysisUnavailable: Post-norm blocks, as for `virtual_weights`.
    """
    w = weights.matrices(model)
    found = _both(w)
    rows = w.U.new_empty(len(found), len(MEASURES), dtype=wide(w.U).dtype)
    for at, stack in _alike(found):
        rows[at] = decompositions.dimensions(decompositions.singular_values(_core(stack)))
    coords = {"component": [port.label for port in found], "measure": MEASURES}
    return Bandwidth(Labelled(rows, ("component", "measure"), coords), len(w.U), w.folded)


@question("Which components read and write the same subspaces?", of="weights")
def overlaps(model: WeightsLike, components: Several[str] | None = None) -> Overlaps:
    """Compare the subspaces that components read and write.

    Args:
        components: Labels as in `virtual_weights`; by default all heads' reads and writes.

    Raises:
        AnalysisUnavailable: As for `bandwidth`, or there is no such component.
    """
    w = weights.matrices(model)
    found = _both(w)
    if components is None:
        # what spans the whole stream overlaps with everything
        known = {*w.labels, *(f"{label} {side}" for label in w.labels for side in "QKV")}
        found = [port for port in found if port.label in known]
    else:
        known = {port.label: port for port in found}
        for label in components:
            if label not in known:
                raise AnalysisUnavailable(f'overlaps: no component "{label}". Some: {", ".join(list(known)[:8])}.')
        found = [known[label] for label in components]
    order, bases = zip(*((at, _bases(stack)) for at, stack in _alike(found)))
    # back to the order of the components
    back = torch.tensor([i for at in order for i in at], device=w.U.device).argsort()
    ranks = torch.cat([basis.any(-1).sum(-1) for basis in bases])[back].to(wide(w.U).dtype)
    smaller, larger = torch.minimum(ranks[:, None], ranks), torch.maximum(ranks[:, None], ranks)
    labels = [port.label for port in found]
    axes, coords = ("component", "component_2"), {"component": labels, "component_2": labels}
    shared = _met(bases)[back][:, back] / smaller
    return Overlaps(Labelled(shared, axes, coords), Labelled(larger / len(w.U), axes, coords), w.folded)


@question("Which components could take things out of the stream?", of="weights", holds=("gates", "latent scales"))
def erasers(model: WeightsLike, *, k: Count = 10) -> Erasers:
    """List what could take things out of the stream, by weights alone.

    Args:
        k: Neurons per MLP.

    Raises:
        AnalysisUnavailable: No head has an OV circuit.
    """
    w = weights.matrices(model)
    layers, left_out = layers_for(w, None, _stays, by_value=True)
    left_out |= {layer.label: "neither attention nor an MLP" for layer in w.opaque}
    spectra = [layer.ov().eigenvalues() for layer in layers]
    ratio = [x.real.sum(-1) / x.abs().sum(-1) for x in spectra]
    cosines = [torch.nn.functional.cosine_similarity(m.W_in.mT, m.W_out, dim=-1) for m in w.mlps]
    k = min([k, *(len(x) for x in cosines)])
    lowest = [x.topk(k, largest=False) for x in cosines]
    coords = {"mlp": [m.label for m in w.mlps]}
    empty = w.U.new_zeros(0, k)
    return Erasers(
        Labelled(torch.stack([x.values for x in lowest]) if lowest else empty, ("mlp", "rank"), coords),
        Labelled(torch.stack([x.indices for x in lowest]) if lowest else empty.long(), ("mlp", "rank"), coords),
        by_head(layers, ratio), by_head(layers, [x.real.amin(-1) for x in spectra]), w.folded, left_out,
    )  # fmt: skip


def erasure_sites(model: ModelLike) -> list[str]:
    """Return the sites that `erasure` reads: what each component reads and writes."""
    found: list[str] = []
    for layer in require_model(model).sub_layers():
        found += [layer.at_read, layer.at_out if layer.attention is None else layer.attention.at.head_out]
    return list(dict.fromkeys(found))


@question("Which components take out of the stream what they read?", reads=erasure_sites)
def erasure(
    run: Any,
    text: Any = None,
    target: Any = None,
) -> Erasure:
    """Say who takes out of the stream what it reads, at the same position, on what was run.

    Norms: the stream is compared as read through the norm (its scale does not matter to a cosine), the writes as they
    are added but for the norm behind a sub-layer of a sandwich block.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: The model has neither self-attention nor an MLP.
    """
    run.require(erasure_sites(run.model), "erasure")
    w = weights.of(run.model)
    labels: list[str] = []
    cosines: list[Tensor] = []
    left_out: LeftOut = {}
    for place in require_model(run.model).sub_layers():
        x = wide(run[place.at_read].values)
        if place.attention is not None:
            layer = next(a for a in w.attention if a.path == place.path)
            if layer.crosses:
                left_out |= dict.fromkeys(layer.labels, "values of cross-attention read another stream")
                continue
            # values' directions of the stream; heads that share values read alike
            basis = _bases(wide(layer.V.mT))
            labels += layer.labels
            read = (x[:, None] @ basis.mT @ basis)[:, layer.group]
            cosines.append(_cosine(run[place.attention.at.head_out].values, read, run.lengths))
            continue
        mlp = next((m for m in w.mlps if m.path == place.path), None)
        if mlp is None:
            left_out[place.label] = "neither attention nor an MLP"
            continue
        reads = mlp.W_in.mT if mlp.W_gate is None else torch.cat((mlp.W_in, mlp.W_gate), 1).mT
        basis = _bases(wide(reads)[None])
        labels.append(mlp.label)
        cosines.append(_cosine(run[place.at_out].values[:, None], x[:, None] @ basis.mT @ basis, run.lengths))
    if not cosines:
        raise AnalysisUnavailable("erasure is of self-attention and of MLPs; this model has neither.")
    means, spreads = (torch.cat([f(c, -1) for c in cosines]) for f in (torch.mean, torch.std))
    coords = {"component": labels}
    return Erasure(Labelled(means, ("component",), coords), Labelled(spreads, ("component",), coords), left_out)


def _of_width(model: ModelLike) -> list[str]:
    """Return the sites of vectors of the stream: the stream itself, and what is written to it."""
    model = require_model(model, "what the stream is made of")
    shapes = ("batch", "pos", "d_model"), ("batch", "head", "pos", "d_model")
    return [name for name, site in model.sites().items() if site.axes in shapes]


@question("How many directions do activations use?", reads=_of_width)
def stream_dimensions(
    run: Any,
    text: Any = None,
    target: Any = None,
) -> StreamDimensions:
    """Count the directions that activations use, at every site of width d_model that a run read.

    The first position is left out: what gathers there would drown the rest. Read `blocks.*.resid_pre` for the stream,
    `blocks.*.attn.head_out` and `blocks.*.mlp.out` for what components write; each head is counted by itself.

    Args:
        run: A forward pass over many tokens, or a model.

    Raises:
        AnalysisUnavailable: Nothing of width d_model was read.
    """
    labels: list[str] = []
    found: list[Tensor] = []
    n = 0
    for site, value in run.items():
        if value.axes == ("batch", "pos", "d_model"):
            groups = {site: stream_rows(run, site)}
        elif value.axes == ("batch", "head", "pos", "d_model"):
            names = [str(label) for label in value.labels("head")]
            heads = value.values.unbind(1)
            groups = {f"{site} {x}": _rows(run, site, head) for x, head in zip(names, heads)}
        else:
            continue
        for label, rows in groups.items():
            labels.append(label)
            found.append(decompositions.dimensions(decompositions.singular_values(rows - rows.mean(0)))[2])
            n = len(rows)
    if not found:
        raise AnalysisUnavailable(
            "stream_dimensions: this run read no site of the stream.\n"
            "    Read some: gf.run(…, read=['blocks.*.resid_pre'])."
        )
    return StreamDimensions(Labelled(torch.stack(found), ("site",), {"site": labels}), n)


@question("Which directions do embedding and unembedding share?", of="weights")
def joint_pca(model: WeightsLike) -> JointPca:
    """Find the directions that embedding and unembedding share, and those that one of them keeps to itself."""
    w = weights.matrices(model)
    sides = [torch.nn.functional.normalize(rows, dim=-1) for rows in (w.E, w.U.mT)]
    grams = [(rows.mT @ rows).double() for rows in sides]
    values, directions = decompositions.eigh(grams[0] + grams[1])
    values, directions = values.flip(0).clamp_min(0), directions.flip(1)
    embed = torch.einsum("ai,ab,bi->i", directions, grams[0], directions)
    share = torch.where(values > 1e-12 * values[0], embed / values, torch.nan)
    ratio = float(values.sum().square() / values.square().sum())
    return JointPca(Labelled(values / values.sum(), ("direction",)), Labelled(share, ("direction",)), ratio)


def _both(w: HeadWeights) -> list[Port]:
    return ports(w, "write") + ports(w, "read")


def _stays(layer: AttentionWeights) -> None:
    layer.require_ov("erasers")
    if layer.crosses:
        raise AnalysisUnavailable(
            "erasers: cross-attention reads another stream than it writes to, so it takes nothing out of either."
        )


def _alike(found: Sequence[Port]) -> Iterator[tuple[list[int], Float[Tensor, "n width d_model"]]]:
    """Yield matrices of one shape together, with their places: as many at a time as `BUDGET` holds."""
    by_shape: dict[torch.Size, list[int]] = {}
    for i, port in enumerate(found):
        by_shape.setdefault(port.matrix.shape, []).append(i)
    for shape, places in by_shape.items():
        some = max(1, BUDGET // (shape.numel() * found[places[0]].matrix.element_size()))
        for at in (places[i : i + some] for i in range(0, len(places), some)):
            # a matrix by itself may be the vocabulary's: it is not copied
            yield at, torch.stack([found[i].matrix for i in at]) if len(at) > 1 else found[at[0]].matrix[None]


def _core(matrix: Float[Tensor, "*batch width d_model"]) -> Float[Tensor, "*batch least d_model"]:
    """Return a matrix of the same spectrum and right singular vectors, no larger than d_model square."""
    return matrix if matrix.shape[-2] <= matrix.shape[-1] else decompositions.triangular(matrix)


def _bases(matrices: Float[Tensor, "n width d_model"]) -> Float[Tensor, "n least d_model"]:
    """Return an orthonormal basis of what each matrix's rows span, filled up with rows of zeros."""
    _, s, vh = decompositions.svd(_core(matrices))
    there = (s > s[..., :1] * max(matrices.shape[1:]) * torch.finfo(matrices.dtype).eps) & (s > 0)
    return vh * there[..., None]


def _met(bases: Sequence[Float[Tensor, "_ _ d_model"]]) -> Float[Tensor, "component component_2"]:
    """Return |Q_A Q_B'|^2 of all pairs: the inner product of the projections Q'Q, made a few rows at a time."""
    n, d_model = sum(len(basis) for basis in bases), bases[0].shape[-1]
    total = bases[0].new_zeros(n, n)
    step = max(1, BUDGET // (n * d_model * bases[0].element_size()))
    for first in range(0, d_model, step):
        last = min(first + step, d_model)
        rows = torch.cat([(basis[..., first:last].mT @ basis[..., first:]).flatten(1) for basis in bases])
        # projections are symmetric: entries right of the block on the diagonal count twice in the product
        rows.view(n, last - first, -1)[..., last - first :] *= 2**0.5
        total += linear(rows, rows)
    return total


def _rows(run: Run, site: str, values: Tensor) -> Float[Tensor, "n d_model"]:
    """Return one head's writes as `stream_rows` returns the stream."""
    keep = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
    keep[:, 0] = values.shape[1] == 1
    if (lengths := run.inputs.real_lengths(of_source(site))) is not None:
        keep &= torch.arange(values.shape[1], device=values.device) < lengths[:, None].to(values.device)
    return values[keep].double()


def _cosine(
    written: Float[Tensor, "batch n pos d_model"], read: Tensor, lengths: Tensor | None
) -> Float[Tensor, "n kept"]:
    found = torch.nn.functional.cosine_similarity(wide(written), wide(read), dim=-1).movedim(1, 0)
    if lengths is None:
        return found.flatten(1)
    return found[:, torch.arange(found.shape[-1], device=found.device) < lengths[:, None].to(found.device)]
