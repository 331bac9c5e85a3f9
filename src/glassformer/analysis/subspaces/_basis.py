"""Does the stream have a basis of its own? By function, no: turn what writes and what reads, and nothing changes.

    writes <- writes R        reads <- R' reads        R orthogonal

Norms must have no gain, which folding sees to; a norm that subtracts the mean singles out one direction, which R then
leaves alone. What training made of the coordinates is another matter: where single coordinates are special, their
distribution has heavier tails than that of the same activations turned at random.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (privileged basis).
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis._run import Run
from glassformer.analysis.prepare import prepare
from glassformer.analysis.question import question
from glassformer.arguments import Count, checked
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.models.padding import Padding
from glassformer.numerics import decompositions
from glassformer.trace import Site
from glassformer.weights import HeadWeights


@dataclasses.dataclass(frozen=True)
class RotationTest(Result):
    """What a random rotation of the stream does to a model's output.

    Args:
        folded: Largest change of a log-probability with folded weights, in nats: rounding, unless a norm kept a gain.
        unfolded: The same with weights as they are: gains, if they differ, know the coordinates.
        gains_left: Norms whose gain folding leaves in place (post-norm and sandwich blocks).
        seed: Of the rotation.
    """

    HEADLINE = ("folded", "unfolded")

    folded: float
    unfolded: float
    gains_left: tuple[str, ...]
    seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Kurtosis(Result):
    """How heavy the tails of stream coordinates are: E x^4 / (E x^2)^2 of each, averaged; 3 for a Gaussian.

    Args:
        coordinates: By `site`, for the coordinates as they are.
        rotated: For the same activations turned at random.
        tokens: How many vectors it is a mean over.
    """

    HEADLINE = ("coordinates", "rotated")

    coordinates: Labelled
    rotated: Labelled
    tokens: int


@question("Does the model notice if its stream is turned?", of="texts")
def rotation_test(model: ModelLike, ids: Any, source: Any = None, *, seed: int = 0) -> RotationTest:
    """Turn the stream at random and see whether log-probabilities change.

    Args:
        model: A decoder or an encoder-decoder; float64 shows it best.
        ids: A text or ids, or several, of any lengths.
        source: Those of the encoder, if there is one.
    """
    changes: list[float] = []
    folded = weights.of(model, fold=True)
    given = prepare(model, ids, None) if source is None else prepare(model, source, ids)
    ids = given.require_ids("rotation_test")
    of_source = None if given.source_ids is None else Padding.of(given.source_ids, given.real_lengths(True))
    padding = {"lengths": given.lengths, "source_lengths": None if of_source is None else of_source.lengths}
    real = Padding.of(ids, given.lengths).real(ids)
    with torch.no_grad():
        for w in (folded, weights.of(model)):
            before, after = (
                weights.logits(x, ids, given.source_ids, **padding).log_softmax(-1) for x in (w, rotate(w, seed))
            )
            changes.append(float((after - before)[real].abs().max()))
    left = tuple(path for path, (gain, _) in folded.norms.items() if gain is not None)
    return RotationTest(changes[0], changes[1], left, seed)


@checked
def rotate(w: HeadWeights, seed: int = 0) -> HeadWeights:
    """Copies of matrices for a stream turned at random; the direction of the mean stays if a norm takes it out.

    Augmented weights are not taken: their constant coordinate is no direction of the stream.

    Args:
        w: The weights; they stay as they are.

    Raises:
        ShapeMismatch: The weights are augmented.
        AnalysisUnavailable: A sub-layer is neither attention nor an MLP.
    """
    if w.augmented:
        raise ShapeMismatch("rotate turns the stream, and augmented weights have a constant beside it: augment later.")
    w.require_matrices("rotate", "A model turned whole: handmade.rotated(model).")
    turn = rotation(len(w.U), seed, keep_mean=_centres(w)).to(w.U)
    attention = tuple(
        dataclasses.replace(
            a, Q=turn.mT @ a.Q, K=turn.mT @ a.K, V=turn.mT @ a.V, O=a.O @ turn,
            bO=None if a.bO is None else a.bO @ turn,
            gate=None if a.gate is None else (turn.mT @ a.gate[0], a.gate[1]),
        )
        for a in w.attention
    )  # fmt: skip
    mlps = tuple(
        dataclasses.replace(
            m, W_in=turn.mT @ m.W_in, W_gate=None if m.W_gate is None else turn.mT @ m.W_gate, W_out=m.W_out @ turn,
            b_out=None if m.b_out is None else m.b_out @ turn,
        )
        for m in w.mlps
    )  # fmt: skip
    return dataclasses.replace(
        w, attention=attention, mlps=mlps, U=turn.mT @ w.U,
        embeddings={name: rows @ turn for name, rows in w.embeddings.items()},
        tables={name: None if rows is None else rows @ turn for name, rows in w.tables.items()},
    )  # fmt: skip


@checked
def rotation(d_model: Count, seed: int = 0, *, keep_mean: bool = False) -> Float[Tensor, "d_model d_model"]:
    """A uniformly drawn orthogonal matrix, float64.

    Args:
        d_model: Width of the stream.
        keep_mean: Leave (1, 1, …, 1) where it is.
    """
    generator = torch.Generator().manual_seed(seed)
    size = d_model - keep_mean
    q, r = decompositions.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    # with the signs of r's diagonal taken out, the draw is uniform
    turn = q * r.diagonal().sign()
    if not keep_mean:
        return turn
    # an orthonormal basis whose first member is the mean's direction
    columns = torch.eye(d_model, dtype=torch.float64)
    columns[:, 0] = 1
    basis = decompositions.qr(columns)[0]
    return basis @ torch.block_diag(torch.ones(1, 1, dtype=torch.float64), turn) @ basis.mT


def kurtosis_sites(model: ModelLike) -> list[str]:
    """Return the sites that `kurtosis` reads: the stream at the entry of each block and at the end."""
    found: list[str] = []
    for stack in require_model(model).stacks.values():
        found += [block.at_resid[0] for block in stack.blocks]
        found += [stack.blocks[-1].at_resid[-1]] if len(stack.blocks) else []
    return found


@question("Are the coordinates of the stream special?", reads=kurtosis_sites)
def kurtosis(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    seed: int = 0,
) -> Kurtosis:
    """Measure whether coordinates of the stream are special, against the same activations turned at random.

    The first position is left out: what gathers there (attention sinks) would drown the rest.

    Args:
        run: A forward pass over many tokens that read `[kurtosis]`, or a model.

    Raises:
        SiteNotRead: The run lacks a site.
    """
    sites = kurtosis_sites(run.model)
    run.require(sites, "kurtosis")
    plain, turned, n = [], [], 0
    for site in sites:
        x = stream_rows(run, site)
        x, n = x - x.mean(0), len(x)
        plain.append(_kurtosis(x))
        turned.append(_kurtosis(x @ rotation(x.shape[-1], seed).to(x.device)))
    coords = {"site": sites}
    return Kurtosis(
        Labelled(torch.stack(plain), ("site",), coords), Labelled(torch.stack(turned), ("site",), coords), n
    )


def stream_rows(run: Run, site: str) -> Float[Tensor, "n d_model"]:
    """Return what a site of the stream held at all real positions but the first, in float64."""
    x = run[site].values
    keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    keep[:, 0] = x.shape[1] == 1
    if (lengths := run.inputs.real_lengths(of_source(site))) is not None:
        keep &= torch.arange(x.shape[1], device=x.device) < lengths[:, None].to(x.device)
    return x[keep].double()


def of_source(site: str) -> bool:
    """Whether a site is of the encoder's text, whose rows are padded by themselves; the model may not be at hand."""
    return Site.named(site).stack == "encoder"


def _kurtosis(x: Float[Tensor, "n d_model"]) -> Tensor:
    second = x.square().mean(0)
    # coordinates that never move have no distribution
    moving = second > 0
    return (x.pow(4).mean(0)[moving] / second[moving].square()).mean()


def _centres(w: HeadWeights) -> bool:
    norms = [stack.final for stack in w.model.stacks.values()]
    return any(norm.centred for norm in norms + [norm for one in w.sub_layers.values() for norm in one.norms])
