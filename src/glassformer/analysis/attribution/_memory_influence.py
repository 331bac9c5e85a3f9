"""How much what a memory gives at a position changes with what it was told at each: lengths of derivatives.

    influence[t, s] = |d z_t / d v_s| / sqrt(d_z)        z_t what a head reads at t, v_s the value at s

with queries, keys and gates as they were; or by x_s, what the layer reads at s, from which all of them are made. |J| is
the root of the sum of the squares of all derivatives.

A memory of several matrices is no linear function of values, and has no pattern: these are slopes at this text, and do
not say what is taken from where. Of a memory of one matrix z = P v + offset, so that d z_t / d v_s is P_ts times the
identity, and the influence of values is the size of the pattern, |P_ts|.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.places import position_labels
from glassformer.analysis.prepare import prepare, require_one_prompt
from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.attention import AttentionLayer, LinearMemory, NeuralMemory
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import MemoryContext, MemoryGate, ModelLike, SubLayer, require_model
from glassformer.models.evaluation import evaluating, require_gradients
from glassformer.models.reading import Inputs
from glassformer.numerics.indices import asked, entries
from glassformer.provenance import Note
from glassformer.trace import Tape
from glassformer.words import sentence

Told = Literal["value", "input"]
Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryInfluence(Result):
    """Lengths of derivatives of what memories give; they are slopes, no weights, and rows sum to nothing.

    Args:
        values: Influence of each key on what a head's memory gives at a query, `head query key`; of what is read, per
            unit of what it changes with.
        told: What it changes with: the `value` at a key, or the `input` of the layer there.
    """

    HEADLINE = ("values",)

    values: Labelled
    told: Told


class _Memory(NamedTuple):
    """A memory: the layer that it is, where it stands, and what is read there."""

    layer: AttentionLayer
    one: SubLayer
    in_context: bool

    @property
    def label(self) -> str:
        return self.one.block_label if self.one.attention is self.layer else f"{self.one.block_label} {self.one.name}"


@question(
    "How much does what a memory gives change with what it was told at each position?",
    of="texts",
    holds=("gradients",),
    judge="finite differences of the values that each mechanism is asked with",
)
def memory_influence(
    model: ModelLike,
    text: Any,
    *,
    target: Any = None,
    told: Told = "value",
    positions: Sequence[int] | Tensor | Literal["all"] = (-1,),
    rows_at_once: Count = 64,
    report: Report | None = None,
) -> MemoryInfluence:
    """Measure how much what memories that learn while they read give depends on each position before.

    Args:
        text: Text or ids, one row; the source of an encoder-decoder.
        told: By the values alone, or by what the layer reads, with queries, keys and gates made of it.
        positions: Positions at which memories are read, `all` for a map of the whole sequence.
        rows_at_once: Copies of the text in one pass.

    Raises:
        AnalysisUnavailable: The model has no such memory, or one as context, whose values are found on the way.
        ShapeMismatch: More than one row of text.
    """
    require_gradients(require_model(model, "memory_influence"), "memory_influence")
    memories = list(_memories(model, told))
    given = prepare(model, text, target)
    require_one_prompt(given.shape[0], "memory_influence")
    tokens = position_labels(list(given.token_rows[0]))
    at = slice(None) if isinstance(positions, str) and positions == "all" else asked(positions, "positions")
    chosen = entries(at, len(tokens), "positions")
    if not chosen:
        raise ShapeMismatch('memory_influence: positions= names none; give one at least, or "all".')
    found, labels = list[Tensor](), list[str]()
    with evaluating(model):
        for i, memory in enumerate(memories):
            found.append(_influence(model, given, memory, told, chosen, rows_at_once))
            labels += [f"{memory.label}H{h}" for h in range(memory.layer.dims.n_heads)]
            if report is not None:
                report(i + 1, len(memories))
    values = Labelled(
        torch.cat(found), ("head", "query", "key"),
        {"head": [*labels], "query": [tokens[i] for i in chosen], "key": tokens},
    )  # fmt: skip
    return MemoryInfluence(values, told).noted(
        Note(
            sentence("These are lengths of derivatives, no weights: a memory of several matrices has no pattern."),
            sentence("They say what a small change would do at this text, not what is taken from where."),
        )
    )


def _memories(model: ModelLike, told: Told) -> Iterator[_Memory]:
    """Yield the memories of a model, in the order they run."""
    none = True
    for stack in model.stacks:
        for one in model.sub_layers(stack):
            config: Any = getattr(one.part, "config", None)
            joined = isinstance(config, MemoryContext | MemoryGate)
            part: Any = one.part
            layer = part.memory if joined else one.attention
            if layer is None or not isinstance(layer.config.mixer, LinearMemory | NeuralMemory):
                continue
            none, in_context = False, isinstance(config, MemoryContext)
            if in_context and told == "value":
                raise AnalysisUnavailable(
                    f"memory_influence: {one.label} is a memory as context, whose values are found segment by segment, "
                    "each from what it has learnt before.\n    Ask what it changes with of all that the layer reads: "
                    'told="input".'
                )
            yield _Memory(layer, one, in_context)
    if none:
        raise AnalysisUnavailable(
            "memory_influence asks about memories that learn while they read, and no layer of this model has one.\n"
            "    Gradients of a prediction need none: analysis.attribution.input_gradients(model, text)."
        )


@torch.enable_grad()
def _influence(
    model: ModelLike, given: Inputs, memory: _Memory, told: Told, chosen: list[int], rows_at_once: int
) -> Float[Tensor, "head query key"]:
    """Return the influence on each head of one memory; every row of a pass is asked for one number of one position."""
    layer, dims = memory.layer, memory.layer.dims
    source = layer.at.value if told == "value" else memory.one.at_read
    # heads that share values, or all that read one stream, are asked one by one
    apart = dims.n_heads // dims.n_kv_heads if told == "value" else dims.n_heads
    asked_for = [(own, q, c) for own in range(apart) for q in range(len(chosen)) for c in range(dims.d_z)]
    total: Tensor | None = None
    for first in range(0, len(asked_for), rows_at_once):
        some = asked_for[first : first + rows_at_once]
        tape = Tape(model, [source, layer.at.z], grad=True, logits=False)
        _run(model, given, len(some), tape)
        z, leaf = tape.values[layer.at.z], tape.values[source]
        own, q, c = (torch.tensor(part, device=z.device) for part in zip(*some, strict=True))
        place = torch.tensor(chosen, device=z.device)[q]
        # the heads of a group after one another: row r asks for its own-th head of each
        by_group = z.unflatten(1, (-1, apart))
        numbers = by_group[torch.arange(len(some), device=z.device), :, own, place, c]
        (gradient,) = torch.autograd.grad(numbers.sum(), leaf)
        squares = gradient.detach().double().square().sum(-1)
        squares = squares[:, None] if told == "input" else squares
        if total is None:
            total = squares.new_zeros(squares.shape[1], apart, len(chosen), squares.shape[-1])
        group = torch.arange(squares.shape[1], device=z.device)
        total.index_put_((group, own[:, None], q[:, None]), squares, accumulate=True)
    assert total is not None, "there are heads, and positions"
    return (total.flatten(0, 1) / dims.d_z).sqrt()


def _run(model: ModelLike, given: Inputs, rows: int, tape: Tape) -> None:
    args = [x.expand(rows, *x.shape[1:]) if isinstance(x, Tensor) else x for x in given.args]
    kwargs = {k: x.expand(rows, *x.shape[1:]) if isinstance(x, Tensor) else x for k, x in given.kwargs.items()}
    model(*args, **kwargs, tape=tape)
