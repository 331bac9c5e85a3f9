"""What a model costs, as integers: parameters by part, floating-point operations, bytes of state.

Conventions: 2 FLOPs per multiply-add; matrix products only (no norms, activations, softmax); both products of attention
over all pairs that its fast form hands to a kernel, masked ones included; of experts those that are chosen. The
backward has two products for each forward one, so training costs three times the forward pass; a fused kernel that
recomputes its scores spends more.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from glassformer.attention import (
    HeadNorm,
    Mixer,
    Positions,
    ShortConvolution,
    Smear,
    SubLayerModule,
    TokenShift,
)
from glassformer.attention.linear_map import parameters_of
from glassformer.attention.merge import MergeHeads
from glassformer.attention.projections import Projection
from glassformer.models.adaptive_softmax import Tail
from glassformer.models.decoder import DecoderConfig
from glassformer.models.denoiser import Condition, VelocityHead
from glassformer.models.embedding import Embedding, PositionTable, Unembedding
from glassformer.models.encoder import EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoderConfig
from glassformer.models.model import ModelConfig
from glassformer.models.norms import Norm
from glassformer.models.patches import PatchVectors
from glassformer.models.readout import ReadoutLayer
from glassformer.numerics.placement import NumberType, number_type
from glassformer.trace import Tape

# sub-layers that name parts of their own come between the two
PARTS = (
    ("embedding", "positions", "query", "latent", "key", "value", "mixing", "output", "output gate", "mechanism",
     "mlp in", "mlp gate", "mlp convolution", "mlp out", "router"),
    ("biases", "norms", "readout", "unembedding"),
)  # fmt: skip


@dataclass(frozen=True)
class Account:
    """The costs of one model.

    Args:
        parameters: By part; a tied unembedding has none of its own.
        length: Tokens per sequence (of source and of target) that the rest is counted for.
        flops: Forward FLOPs of one sequence, by part; `mixing` is what the mechanisms do between projections.
        spared: How many of them training does not need, whose loss asks for targets alone where an output layer makes
            probabilities of few decisions: as many as the counts of its words let one expect.
        state_bytes: State of one sequence after `length` positions.
        state_growth: Bytes that the last position added.
        dtype: Of weights and state.
    """

    parameters: dict[str, int]
    length: int
    flops: dict[str, int]
    state_bytes: int
    state_growth: int
    dtype: str
    spared: int = 0

    @property
    def total(self) -> int:
        """Number of parameters."""
        return sum(self.parameters.values())

    @property
    def forward(self) -> int:
        """FLOPs of the forward pass over one sequence."""
        return sum(self.flops.values())

    @property
    def backward(self) -> int:
        """FLOPs of the backward pass: two products for each forward one that training needs."""
        return 2 * (self.forward - self.spared)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "parameters": self.parameters | {"total": self.total},
            "length": self.length,
            "flops_forward": self.flops | {"total": self.forward},
            "flops_backward": self.backward,
            "flops_forward_in_training": self.forward - self.spared,
            "flops_forward_per_token": self.forward / self.length,
            "flops_backward_per_token": self.backward / self.length,
            "state_bytes": self.state_bytes,
            "state_bytes_last_position": self.state_growth,
            "dtype": self.dtype,
        }


def account(config: ModelConfig, length: int | None = None, dtype: NumberType = torch.float32) -> Account:
    """Return what a model costs at a sequence length (its `max_len` by default)."""
    length, kind = config.max_len if length is None else length, number_type(dtype)
    bytes_now, bytes_before = (state_bytes(config, n, dtype, source_length=length) for n in (length, length - 1))
    return Account(
        parameters=count_parameters(config),
        length=length,
        flops=count_flops(config, length),
        state_bytes=bytes_now,
        state_growth=bytes_now - bytes_before,
        dtype=str(kind).removeprefix("torch."),
        spared=spared_flops(config, length),
    )


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Return parameters by part, all biases together, without allocating any."""
    with torch.device("meta"):
        model = config.build()
    found: Counter[str] = Counter()
    for module in model.modules():
        for part, count in _own_parameters(module):
            found[part] += count
    total = sum(parameter.numel() for parameter in model.parameters())
    assert found.total() == total, f"{total - found.total()} parameters belong to no part"
    return _ordered(found)


def count_flops(config: ModelConfig, length: int, source_length: int | None = None) -> dict[str, int]:
    """Return forward FLOPs of one sequence by part, without a pass through the model.

    Args:
        config: The model.
        length: Tokens read (by an encoder-decoder: target tokens).
        source_length: Source tokens of an encoder-decoder; `length` by default.
    """
    m = length if source_length is None else source_length
    found: Counter[str] = Counter()
    for part, n, causal in _sub_layers(config, length, m):
        found.update(part.flops(n, m, causal))
    width = config.d_model
    if isinstance(config, DecoderConfig) and config.d_embed is not None:
        width = config.d_embed
        found.update(dict.fromkeys(("embedding", "unembedding"), 2 * length * width * config.d_model))
    if config.patches is not None:
        found["embedding"] = 2 * (length - config.patches.outside) * config.patches.n_pixels * config.d_model
        if (denoises := config.denoises) is not None:
            found["embedding"] += 2 * (denoises.d_time + config.d_model) * config.d_model
            found["unembedding"] = 2 * length * config.d_model * config.patches.n_pixels
    if isinstance(config, EncoderConfig) and config.readout is not None:
        found["readout"] = 2 * length * config.d_model**2
    if config.output_layer is not None:
        found["unembedding"] += length * config.output_layer.flops(config.n_outputs, config.d_model)
    elif config.predicts:
        found["unembedding"] += 2 * length * width * config.n_outputs
    return _ordered(found)


def spared_flops(config: ModelConfig, length: int) -> int:
    """Return how many of the forward FLOPs of one sequence training does not need, see `Account`."""
    if config.output_layer is None:
        return 0
    size = config.n_outputs, config.d_model
    return round(length * (config.output_layer.flops(*size) - config.output_layer.expected_flops(*size)))


def state_bytes(
    config: ModelConfig, length: int, dtype: NumberType = torch.float32, source_length: int | None = None
) -> int:
    """Return the bytes of one sequence's state after `length` positions.

    For keys and values this is `2 L h_kv d_head length` numbers. An encoder-decoder also holds the encoder's output
    and, from the first position on, each layer's projection of it. Recurrent states are float32 at least. An encoder
    carries nothing.
    """
    m = length if source_length is None else source_length
    crossed = isinstance(config, EncoderDecoderConfig)
    kind = number_type(dtype) or torch.float32
    total = m * config.d_model * kind.itemsize if crossed else 0
    return total + sum(part.state_bytes(n, m, kind) for part, n, causal in _sub_layers(config, length, m) if causal)


def shapes(config: ModelConfig, length: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every site in a forward pass over `length` tokens, computed on the meta device.

    No number is allocated or computed, so that any size of model will do. The batch holds one row; an encoder-decoder
    reads as many source tokens.

    Raises:
        TextError: More tokens than the model has learned positions for.
    """
    with torch.device("meta"), torch.no_grad():
        model = config.build().eval()
        tape = Tape(model, read="*")
        tokens = torch.zeros(1, length, dtype=torch.int64)
        model(*[tokens] * (2 if isinstance(config, EncoderDecoderConfig) else 1), tape=tape)
    tape.check_visited()
    return {name: tuple(tape.values[name].shape) for name in tape.table if name in tape.values}


def _sub_layers(config: ModelConfig, length: int, source_length: int) -> Iterator[tuple[SubLayerModule, int, bool]]:
    """Yield each sub-layer, the positions it reads, and whether it is causal."""
    with torch.device("meta"):
        model = config.build()
    for name, stack in model.stacks.items():
        n = source_length if name == "encoder" else length
        for part in stack.parts():
            yield part, n, name != "encoder" and not isinstance(config, EncoderConfig)


def _ordered(found: Counter[str]) -> dict[str, int]:
    first, last = PARTS
    others = [part for part in found if part not in (*first, *last)]
    return {part: found[part] for part in (*first, *others, *last) if found[part]}


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield (part, count) for a module that owns parameters; others yield nothing."""
    if isinstance(module, Embedding):
        yield "embedding", (0 if module.matrix is None else module.matrix.numel()) + _count(module.map)
        yield "embedding", 0 if module.types is None else module.types.numel()
    elif isinstance(module, PatchVectors):
        yield from parameters_of("embedding", module.map)
        yield "embedding", 0 if module.first is None else module.first.numel()
    elif isinstance(module, Condition):
        yield from parameters_of("embedding", module.of_time)
        yield from parameters_of("embedding", module.time)
        yield "embedding", module.classes.numel()
    elif isinstance(module, VelocityHead):
        yield from parameters_of("unembedding", module.map)
    elif isinstance(module, Tail):
        yield "unembedding", _count(module)
    elif isinstance(module, Unembedding):
        yield "unembedding", (0 if module.matrix is None else module.matrix.numel()) + _count(module.map)
        yield "unembedding", 0 if module.token_scale is None else module.token_scale.numel()
        yield "biases", 0 if module.bias is None else module.bias.numel()
    elif isinstance(module, (PositionTable, Positions)):
        yield "positions", _count(module)
    elif isinstance(module, (Norm, HeadNorm)):
        yield "norms", _count(module)
    elif isinstance(module, Projection):
        yield from module.own_parameters()
    elif isinstance(module, MergeHeads):
        yield from parameters_of("output", module.output)
        yield from parameters_of("output gate", module.gate)
        yield "norms", 0 if module.gain is None else module.gain.numel()
    elif isinstance(module, (Mixer, ShortConvolution, Smear, TokenShift)):
        yield "mechanism", _count(module)
    elif isinstance(module, ReadoutLayer):
        yield from parameters_of("readout", module.input)
    elif isinstance(module, SubLayerModule):
        yield from module.own_parameters()


def _count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())
