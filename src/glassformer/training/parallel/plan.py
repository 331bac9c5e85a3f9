"""What training a model on a mesh of processes takes: bytes that a rank holds, and bytes that it sends in a step.

    held = weights + gradients + moments          of a rank's shares, in float32
         + weights and gradients that are whole   while a block runs
         + activations                            of its rows and positions
         + buffers                                of what goes around a ring, or is gathered, along a text
         + the whole model                        beside the first rank's share, which writes and measures; not where
                                                  checkpoints are shards

Activations are counted, weights are a built model's, exchanges are formulas (`wire`); what is assumed stands beside the
numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from glassformer.arguments import Count, Positive, checked
from glassformer.config import require
from glassformer.labelled import Labelled, Result
from glassformer.models import DecoderConfig, ModelConfig
from glassformer.models.saved_activations import ENDS, NORMS, Precision, saved_bytes
from glassformer.provenance import Provenance
from glassformer.training.parallel.mesh import Mesh
from glassformer.training.parallel.rank_part import rank_part
from glassformer.training.parallel.rows import rows_between
from glassformer.training.parallel.units import Units, units_of
from glassformer.training.parallel.wire import WIDE, Exchange, Pass, along_texts, exchanges, sequence_shards
from glassformer.training.sharing import Checkpoints
from glassformer.version import __version__
from glassformer.words import sentence

GIB = 2**30
# of AdamW, and the count of steps that each weight has
MOMENTS, STEP = 2, torch.float32.itemsize
WEIGHTS, GRADIENTS = sentence("weights"), sentence("gradients")
OF_ADAM = sentence("moments (AdamW)")
WHOLE_WEIGHTS, WHOLE_GRADIENTS = sentence("weights of running blocks, whole"), sentence("their gradients, whole")
# of what autograd saves, by the role of who saves it
SAVERS = {
    "attn": sentence("attention"),
    "cross": sentence("cross-attention"),
    "mlp": sentence("MLPs"),
    NORMS: sentence("norms"),
    ENDS: sentence("embeddings, logits and loss"),
}
BUFFERS = sentence("buffers of exchanges along a text")
LEADERS = sentence("the whole model and its moments, on rank 0")


@dataclass(frozen=True, eq=False)
class Plan(Result):
    """What a rank of a mesh holds and sends in a training step, in bytes; of each, the rank with the most.

    Args:
        memory: Bytes held at once, by `part`.
        wire: Bytes sent in a step, by `collective`.
        calls: Collectives of a step, by `collective`; of a ring, the tensors that are passed on.
        formulas: What gives the bytes of each collective.
        assumptions: What the numbers take for granted.
        beginning: Bytes that every rank holds when a run begins: the whole model, and a copy of it to cut up; its share
            in place of a copy where checkpoints are shards.
        resuming: The same of a run that goes on, whose moments are whole too, where checkpoints are.
        parameters: Of the whole model.
        mesh: Its shape.
        ranks: How many processes.
        length: Tokens of a row.
        batch: Rows of a step, all ranks' together.
        precision: Of the forward pass.
        capacity: Bytes that a rank has.
        checkpoints: What the ranks keep of a run: `whole`, the model, or `shards`.
    """

    HEADLINE = ("memory", "wire")

    memory: Labelled
    wire: Labelled
    calls: Labelled
    formulas: dict[str, str]
    assumptions: tuple[str, ...]
    beginning: int
    resuming: int
    parameters: int
    mesh: str
    ranks: int
    length: int
    batch: int
    precision: str
    capacity: int
    checkpoints: Checkpoints

    @property
    def held(self) -> float:
        """Bytes that the fullest rank holds in a step."""
        return float(self.memory.values.sum())

    @property
    def peak(self) -> float:
        """The most bytes that a rank holds, in a step, when a run begins, or when one goes on."""
        return max(self.held, float(self.beginning), float(self.resuming))

    @property
    def sent(self) -> float:
        """Bytes that a rank sends in a step."""
        return float(self.wire.values.sum())

    @property
    def fits(self) -> bool:
        """Whether a rank has room for the most it holds."""
        return self.peak <= self.capacity


class _Sizes(NamedTuple):
    """What is asked: rows of the fullest rank, pass by pass, and how long they are."""

    config: ModelConfig
    mesh: Mesh
    length: int
    rows: tuple[int, ...]
    precision: Precision
    checkpoints: Checkpoints


@checked
def plan(
    config: ModelConfig,
    mesh: Mesh = Mesh(),  # noqa: B008  (frozen)
    *,
    length: Count | None = None,
    batch: Count | None = None,
    accumulate: Count = 1,
    precision: Precision = "float32",
    memory: Positive = 80.0,
    checkpoints: Checkpoints = "whole",
) -> Plan:
    """What training a model on a mesh takes, rank by rank; nothing is allocated, and no process is started.

    Args:
        config: The model.
        mesh: Who shares a step.
        length: Tokens of a row; the model's longest context by default.
        batch: Rows of a step, all ranks' together; by default one for each rank of `dp` and part.
        accumulate: Parts of a batch, which run one after another.
        precision: Of the forward pass; weights, gradients and moments are float32.
        memory: GiB that a rank has.
        checkpoints: What the ranks keep of a run: the whole model, which rank 0 then holds, or each its shards.

    Raises:
        ConfigError: The model is not shared in such a way, or ranks would have no rows or positions.
    """
    length = config.max_len if length is None else length
    batch = mesh.dp * accumulate if batch is None else batch
    require(mesh.cp <= length, f'mesh "{mesh}": {mesh.cp} ranks cannot share {length} positions.')
    require(
        mesh.cp == 1 or isinstance(config, DecoderConfig),
        f'mesh "{mesh}": positions are shared where all look back, not in a "{config.kind}"; use dp.',
    )
    rows = tuple(_most_rows(part, mesh.dp) for part in _parts(batch, accumulate))
    sizes = _Sizes(config, mesh, length, rows, precision, checkpoints)
    part = rank_part(config, mesh.tp)
    units, whole = units_of(part), units_of(config)
    held = _held(sizes, part, units, whole)
    sent = exchanges(part, units, mesh, _passes(sizes))
    found = Plan(
        memory=_labelled(held, "part"),
        wire=_labelled({one.name: one.sent for one in sent}, "collective"),
        calls=_labelled({one.name: one.calls for one in sent}, "collective"),
        formulas={one.name: one.formula for one in sent},
        assumptions=tuple(_assumed(mesh, precision, sent, checkpoints)),
        beginning=_of_a_run(sizes, units, whole, goes_on=False),
        resuming=_of_a_run(sizes, units, whole, goes_on=True),
        parameters=whole.numbers,
        mesh=str(mesh),
        ranks=mesh.size,
        length=length,
        batch=batch,
        precision=precision,
        capacity=round(memory * GIB),
        checkpoints=checkpoints,
    )
    return found.bound(_provenance(config, precision))


def _provenance(config: ModelConfig, precision: Precision) -> Provenance:
    return Provenance(
        analysis="plan",
        model=config.kind or "",
        digest="",
        why=sentence("a config, whose weights change nothing"),
        trained_length=None,
        dtype=precision,
        device="",
        input=(),
        seed=None,
        version=__version__,
        torch=str(torch.__version__),
    )


def _parts(batch: int, count: int) -> list[int]:
    """Return the rows of each part of a batch, as training cuts it."""
    size = -(-batch // count)
    return [min(size, batch - start) for start in range(0, batch, size)]


def _most_rows(rows: int, ranks: int) -> int:
    """Return the rows of the rank with most of them; every rank has some, or `ConfigError` says so."""
    return max(stop - start for start, stop in (rows_between(rows, rank, ranks) for rank in range(ranks)))


def _passes(sizes: _Sizes) -> list[Pass]:
    itemsize = getattr(torch, sizes.precision).itemsize
    return [Pass(rows, sizes.length, itemsize) for rows in sizes.rows]


def _held(sizes: _Sizes, part: ModelConfig, units: Units, whole: Units) -> dict[str, int]:
    """Return the bytes that the fullest rank holds in a step, by part."""
    mesh, ranks = sizes.mesh, sizes.mesh.dp * sizes.mesh.cp
    share, tensors = WIDE * units.share(ranks), sum(len(unit.shapes) for unit in units.all)
    found: dict[str, int] = {WEIGHTS: share, GRADIENTS: share, OF_ADAM: MOMENTS * share + STEP * tensors}
    if ranks > 1:
        # what is outside of blocks stays whole from the way forth to the way back, and the next block is fetched ahead
        blocks = sorted(WIDE * unit.share(ranks) * ranks for unit in units.blocks)
        outside = WIDE * units.outside.share(ranks) * ranks
        found |= {WHOLE_WEIGHTS: outside + sum(blocks[-2:]), WHOLE_GRADIENTS: outside + sum(blocks[-1:])}
    rows, shards = max(sizes.rows), sequence_shards(part, sizes.length, mesh.cp) if mesh.cp > 1 else None
    length = sizes.length if shards is None else max(sum(shards.lengths(rank)) for rank in range(mesh.cp))
    for name, saved in saved_bytes(part, length, rows, sizes.precision).items():
        found[sentence("activations: {part}", part=SAVERS.get(name, name))] = saved
    if mesh.cp > 1:
        found[BUFFERS] = along_texts(part, mesh, Pass(rows, sizes.length, getattr(torch, sizes.precision).itemsize))
    if mesh.size > 1 and sizes.checkpoints == "whole":
        found[LEADERS] = WIDE * whole.numbers * (1 + MOMENTS)
    return found


def _of_a_run(sizes: _Sizes, units: Units, whole: Units, goes_on: bool) -> int:
    """Return the bytes of whole weights, the copy that is cut up, and whole moments, on every rank.

    What is cut up in place leaves a rank's share, and shards of moments are read as such.
    """
    mesh = sizes.mesh
    if sizes.checkpoints == "shards":
        share = units.share(mesh.dp * mesh.cp)
        return WIDE * (whole.numbers + share * (1 + MOMENTS * goes_on))
    copies = (2 if mesh.size > 1 else 1) + MOMENTS * goes_on
    return WIDE * whole.numbers * copies


def _labelled(numbers: Mapping[str, int], axis: str) -> Labelled:
    return Labelled(torch.tensor([*numbers.values()], dtype=torch.float64), (axis,), {axis: [*numbers]})


def _assumed(mesh: Mesh, precision: Precision, sent: Sequence[Exchange], checkpoints: Checkpoints) -> Iterator[str]:
    """Yield what the numbers take for granted."""
    yield sentence(
        "Weights, gradients and both moments of AdamW are float32. All that autograd saves in a pass is kept until the "
        "way back, nothing is made anew; attention runs in fused kernels where it has such."
    )
    yield sentence(
        "Not counted: what kernels take inside, batches, fragments between what is allocated, and messages of a few "
        "numbers."
    )
    if precision == "bfloat16":
        yield sentence(
            "Attention in bfloat16 is counted as a CPU computes its gradient, in float32: an upper bound elsewhere."
        )
    if sent:
        yield sentence(
            "Bytes sent are those of ring algorithms: all-gather and reduce-scatter (P - 1) / P of the whole, "
            "all-reduce twice that. A back-end may send more, as gloo does in a reduce-scatter: twice as much."
        )
    if mesh.dp * mesh.cp > 1:
        yield sentence(
            "Weights are shared by the ranks of dp and cp together (FSDP2): those of a block are whole while it runs, "
            "the next are fetched ahead, and those outside of blocks stay whole until gradients are there."
        )
    if mesh.tp > 1:
        yield sentence(
            "Each sub-layer sums over the ranks of tp once on the way forth and once back; the stream and norms are "
            "everybody's, and the loss sums over the vocabulary three numbers a position."
        )
    if mesh.cp > 1:
        yield sentence(
            "Attention over positions of several ranks keeps what attention over its own positions keeps; beside it "
            "lies what is under way between ranks."
        )
    if checkpoints == "shards":
        yield sentence(
            "Every rank builds the whole model before it keeps its share, and writes its shards alone: none has the "
            "whole again, but for one weight at a time."
        )
    elif mesh.size > 1:
        yield sentence(
            "Every rank builds the whole model before it keeps its share, and rank 0 keeps the whole beside it, "
            "moments too, which it writes and measures."
        )
