"""What a rank sends in one training step, collective by collective, by formulas.

    all-gather, reduce-scatter      (P - 1) shares                      of P ranks, each with one share
    all-reduce                      2 (P - 1) / P wholes
    ring                            what is passed on, hop by hop

These are the bytes that ring algorithms send, the least that there are for large messages. P stands for dp * cp where
weights are shared, for tp in a layer and for cp along a text.
Source: Rajbhandari et al. 2020, "ZeRO" (1910.02054), section 7, for weights and gradients; Shoeybi et al. 2019,
"Megatron-LM" (1909.08053), section 3, for layers; Liu et al. 2023, "Ring Attention" (2310.01889), and MiniMax 2025,
"MiniMax-01" (2501.08313), section 3, for positions.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from glassformer.attention import Attention, Dims, Lightning, Linear, MixerConfig, Softmax
from glassformer.config import require
from glassformer.models import ModelConfig
from glassformer.training.parallel.mesh import Mesh
from glassformer.training.parallel.shards import SequenceShards
from glassformer.training.parallel.units import Unit, Units
from glassformer.words import sentence

WIDE = torch.float32.itemsize  # of weights and gradients, and of what is summed over long ranges
# all-reduces of a number a position: the largest logit, the sum of exponentials, the target's logit
OF_THE_LOSS = 3


class Exchange(NamedTuple):
    """A collective of one step.

    Args:
        name: What is exchanged, and by which collective.
        calls: How often a rank takes part (of a ring: how many tensors it passes on).
        sent: Bytes that a rank sends; those of the rank that sends most.
        formula: What gives them.
    """

    name: str
    calls: int
    sent: int
    formula: str


class Pass(NamedTuple):
    """What one rank runs at once.

    Args:
        rows: Of the batch.
        length: Positions of a row, all ranks' together.
        itemsize: Bytes of a number on the stream.
    """

    rows: int
    length: int
    itemsize: int


def exchanges(part: ModelConfig, units: Units, mesh: Mesh, passes: Sequence[Pass]) -> list[Exchange]:
    """Collectives of a step, those that send anything.

    Args:
        part: What one rank of `tp` holds of the model.
        units: Its weights.
        mesh: Who shares the step.
        passes: What a rank runs, one after another, before weights change.

    Raises:
        ConfigError: Positions are shared, and a layer looks along a text in a way that no exchange is known for.
    """
    found = [*_of_weights(units, mesh.dp * mesh.cp, len(passes))]
    if mesh.tp > 1:
        found += _of_layers(part, mesh, passes)
    if mesh.cp > 1:
        found += _along_texts(part, mesh, passes)
    return [exchange for exchange in found if exchange.sent]


def _of_weights(units: Units, ranks: int, passes: int) -> Iterator[Exchange]:
    """Yield what FSDP exchanges: blocks are gathered in both ways, what is outside once, gradients of all shared."""
    others = (ranks - 1) * passes

    def exchange(name: str, of: Sequence[Unit], formula: str) -> Exchange:
        return Exchange(name, len(of) * passes if ranks > 1 else 0, others * _bytes(of, ranks), formula)

    blocks = [unit for unit in units.blocks if unit.shapes]
    formula = "passes * (dp * cp - 1) * sum over {} of ceil(rows / (dp * cp)) * columns * 4"
    everything = sentence("weights, for the forward pass (all-gather)")
    yield exchange(everything, units.all, formula.format("all weights"))
    yield exchange(sentence("weights, for the backward pass (all-gather)"), blocks, formula.format("weights of blocks"))
    yield exchange(sentence("gradients of weights (reduce-scatter)"), units.all, formula.format("all weights"))


def _bytes(of: Sequence[Unit], ranks: int) -> int:
    return WIDE * sum(unit.share(ranks) for unit in of)


def _of_layers(part: ModelConfig, mesh: Mesh, passes: Sequence[Pass]) -> Iterator[Exchange]:
    """Yield what tensor-parallel layers sum: what each sub-layer writes, and the gradient of what it reads."""
    tp, layers = mesh.tp, sum(len(block.parts) for blocks in part.blocks.values() for block in blocks)
    positions = [one.rows * _own_length(one.length, mesh.cp) for one in passes]
    stream = sum(n * part.d_model * one.itemsize for n, one in zip(positions, passes))
    share = "2 (tp - 1) / tp * rows * length / cp"
    for way in (sentence("what sub-layers write (all-reduce)"), sentence("gradients of what they read (all-reduce)")):
        calls, formula = layers * len(passes), f"sub-layers * {share} * d_model * bytes"
        yield Exchange(way, calls, layers * _all_reduced(stream, tp), formula)
    # vectors of tokens are looked up in float32, and gradients of the last stream come in its own type
    ends = WIDE * sum(positions) * part.d_model, stream
    vectors = sentence("vectors of tokens, and gradients of the last stream (all-reduce)")
    sent = sum(_all_reduced(size, tp) for size in ends)
    yield Exchange(vectors, 2 * len(passes), sent, f"{share} * d_model * (4 + bytes)")
    scalars = WIDE * sum(positions)
    yield Exchange(
        sentence("sums of the loss over the vocabulary (all-reduce)"), OF_THE_LOSS * len(passes),
        OF_THE_LOSS * _all_reduced(scalars, tp), f"{OF_THE_LOSS} * {share} * 4",
    )  # fmt: skip


def _all_reduced(size: int, ranks: int) -> int:
    return 2 * (ranks - 1) * size // ranks


def _own_length(length: int, ranks: int) -> int:
    return -(-length // ranks)


def _along_texts(part: ModelConfig, mesh: Mesh, passes: Sequence[Pass]) -> Iterator[Exchange]:
    """Yield what ranks exchange that share positions: keys and values, or memories."""
    layers = list(_mixers(part, mesh))
    softmax = [dims for mixer, dims in layers if isinstance(mixer, Softmax)]
    hops = 3 * mesh.cp - 2
    yield Exchange(
        sentence("keys and values, and their gradients (ring)"), 2 * hops * len(softmax) * len(passes),
        sum(ring_bytes(sequence_shards(part, one.length, mesh.cp), dims, one) for one in passes for dims in softmax),
        "layers * rows * key heads * (d_head + d_value) * (2 (length - length / cp) * bytes + length * 4)",
    )  # fmt: skip
    linear = [(mixer, dims) for mixer, dims in layers if not isinstance(mixer, Softmax)]
    sent = sum(
        memory_bytes(sequence_shards(part, one.length, mesh.cp), mixer.state_numbers(one.length, dims), dims, one)
        for one in passes
        for mixer, dims in linear
    )
    yield Exchange(
        sentence("memories, and their gradients (all-gather)"), 4 * len(linear) * len(passes), sent,
        "layers * 2 (cp - 1) * chunks * rows * (numbers of a memory + heads) * 4",
    )  # fmt: skip


def ring_bytes(shards: SequenceShards, dims: Dims, one: Pass) -> int:
    """Bytes that `ring_attention` sends in both ways; those of the rank that sends most.

    Forwards keys and values go on P - 1 times, backwards again, and P times with them their gradients, in float32 at
    least: a rank passes on every share but that of the rank behind it, and all shares of gradients.
    """
    numbers = one.rows * dims.n_kv_heads * (dims.d_head + dims.d_value)
    passed = shards.length - min(sum(shards.lengths(rank)) for rank in range(shards.ranks))
    return numbers * (2 * passed * one.itemsize + shards.length * max(one.itemsize, WIDE))


def memory_bytes(shards: SequenceShards, numbers: int, dims: Dims, one: Pass) -> int:
    """Bytes that `lasp_plus` sends in both ways: what each chunk writes, and keeps, gathered by all others.

    Args:
        shards: Which rank holds which positions.
        numbers: Of one text's memory.
        dims: Of the layer.
        one: What runs at once.
    """
    chunks = max(map(len, shards.chunks))
    return 2 * (shards.ranks - 1) * chunks * one.rows * (numbers + dims.n_heads) * max(one.itemsize, WIDE)


def along_texts(part: ModelConfig, mesh: Mesh, one: Pass) -> int:
    """Bytes of what is under way along a text, in the layer with most of it.

    Of a ring, keys and values that are met and those that come, and two sets of their gradients; of memories, those of
    all chunks.
    """
    shards, wide = sequence_shards(part, one.length, mesh.cp), max(one.itemsize, WIDE)
    own, found = max(sum(shards.lengths(rank)) for rank in range(mesh.cp)), 0
    for mixer, dims in _mixers(part, mesh):
        if isinstance(mixer, Softmax):
            numbers = one.rows * dims.n_kv_heads * (dims.d_head + dims.d_value) * own
            found = max(found, 2 * numbers * (one.itemsize + wide))
        else:
            of_chunk = one.rows * (mixer.state_numbers(one.length, dims) + dims.n_heads)
            found = max(found, mesh.cp * max(map(len, shards.chunks)) * of_chunk * wide)
    return found


def sequence_shards(part: ModelConfig, length: int, ranks: int) -> SequenceShards:
    """Which rank holds which positions: from either end where keys are met, so that all meet as many."""
    mixers = [mixer for mixer, _ in _mixers(part, Mesh(cp=ranks))]
    softmax = any(isinstance(mixer, Softmax) for mixer in mixers)
    return SequenceShards.zigzag(length, ranks) if softmax else SequenceShards.contiguous(length, ranks)


def _mixers(part: ModelConfig, mesh: Mesh) -> Iterator[tuple[MixerConfig, Dims]]:
    for blocks in part.blocks.values():
        for i, block in enumerate(blocks):
            for one in block.parts:
                if not isinstance(one, Attention):
                    require(one.role == "mlp", f'mesh "{mesh}": layer {i} has a sub-layer "{one.kind}", {_UNKNOWN}')
                    continue
                mixer = one.mixer
                plain = isinstance(mixer, Softmax) and mixer == Softmax(scale=mixer.scale)
                known = (plain or isinstance(mixer, Linear | Lightning)) and not one.cross
                require(known, f'mesh "{mesh}": layer {i} mixes by "{mixer.kind}" as set here, {_UNKNOWN}')
                yield mixer, one.dims(part.d_model, part.max_len, i)


_UNKNOWN = (
    "for which no exchange along a text is known. Softmax without window, cap, sinks and temperature, linear and "
    "lightning have one; use dp or tp for others."
)
