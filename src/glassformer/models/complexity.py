"""How layers scale: work, sequential operations, longest path between two positions.

    n tokens, width d, d_head per head, window r, kernel k; work in multiply-adds, up to a constant factor

    full attention        n^2 d         1          1
    restricted            r n d         1          (n - 1) / (r - 1)
    linear                n d d_head    n / chunk  1
    recurrent             n d^2         n          n - 1
    convolution           k n d^2       1          (n - 1) / (k - 1), dilated log_k n
    separable             k n d + n d^2

`confirm` counts the FLOPs and finds the longest path for the layers that exist here.
Source: Vaswani et al. 2017, table 1; Katharopoulos et al. 2020 for linear attention.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention import Context, Linear, MixerConfig, Softmax, SubLayerConfig, causal
from glassformer.config import require
from glassformer.models.block import BlockConfig
from glassformer.models.convolution import Convolution
from glassformer.models.decoder import DecoderConfig
from glassformer.models.recurrent import Gru
from glassformer.models.schedules import block
from glassformer.models.stack import make_context, mapped

CHUNK = 64
WIDTH = 8  # of the layers that paths are found in


@dataclass(frozen=True)
class LayerCost:
    """One row: formulas and their values.

    Args:
        name: Kind of layer.
        work: Formula of the multiply-adds; `operations` is its value.
        sequential: Formula of the operations that must follow each other; `steps` is its value.
        path: Formula of the layers that a signal from the first position to the last must pass; `layers` is its value.
    """

    name: str
    work: str
    operations: int
    sequential: str
    steps: int
    path: str
    layers: int


@dataclass(frozen=True)
class Confirmation:
    """A layer that exists, measured.

    Args:
        name: As in `LayerCost`.
        form: How it was run: `parallel`, or `scan`, one position at a time over its state.
        counted: FLOPs that torch's counter saw: of mixing, summed over heads, or of a whole layer that has no heads.
        formula: What `MixerConfig.flops` or `SubLayerModule.flops` says.
        per_work: `counted` as a multiple of the table's leading term.
        layers: Least number of stacked layers whose last output has a gradient in the first input; of a recurrent
            layer, how often its state is handed on where cutting it would leave no gradient.
    """

    name: str
    form: str
    counted: int
    formula: int
    per_work: float
    layers: int


def complexity(length: int, d_model: int, *, d_head: int, window: int, kernel: int = 3) -> tuple[LayerCost, ...]:
    """Return the table for one size; raises `ConfigError` for a window or kernel that cannot pass a signal on."""
    require(length >= 2, f"complexity: length must be at least 2, found {length}.")
    require(window >= 2, f"complexity: window must be at least 2, found {window}.")
    require(kernel >= 2, f"complexity: kernel must be at least 2, found {kernel}.")
    n, d, r, k = length, d_model, min(window, length), kernel
    dilated = next(layers for layers in range(n + 1) if k**layers >= n)
    return (
        LayerCost("full attention", "n^2 d", n * n * d, "1", 1, "1", 1),
        LayerCost("restricted attention", "r n d", r * n * d, "1", 1, "(n-1)/(r-1)", ceil((n - 1) / max(r - 1, 1))),
        LayerCost("linear attention", "n d d_head", n * d * d_head, "n/chunk", ceil(n / CHUNK), "1", 1),
        LayerCost("recurrent", "n d^2", n * d * d, "n", n, "n-1", n - 1),
        LayerCost("convolution", "k n d^2", k * n * d * d, "1", 1, "(n-1)/(k-1)", ceil((n - 1) / (k - 1))),
        LayerCost("convolution, dilated", "k n d^2", k * n * d * d, "1", 1, "log_k n", dilated),
        LayerCost(
            "convolution, separable",
            "k n d + n d^2",
            k * n * d + n * d * d,
            "1",
            1,
            "(n-1)/(k-1)",
            ceil((n - 1) / (k - 1)),
        ),
    )


def confirm(length: int, d_model: int, *, d_head: int, window: int, kernel: int = 3) -> tuple[Confirmation, ...]:
    """Measure the layers that exist here. The path is found with real layers: keep `length` to a few dozen."""
    table = {row.name: row for row in complexity(length, d_model, d_head=d_head, window=window, kernel=kernel)}
    found = []

    def add(name: str, form: str, counts: tuple[int, int], layers: int) -> None:
        found.append(Confirmation(name, form, *counts, counts[0] / table[name].operations, layers))

    for name, mixer, scan in (
        ("full attention", Softmax(), False),
        ("restricted attention", Softmax(window=window), True),
        ("linear attention", Linear(), True),
    ):
        counts = count_mixing(mixer, length, d_model, d_head=d_head, scan=scan)
        add(name, "scan" if scan else "parallel", counts, path_length(alike(block(mixer, n_heads=2)), length))
    add("recurrent", "scan", count_sub_layer(Gru(), length, d_model), hand_overs(Gru(), length))
    plain = Convolution(kernel)
    reach = path_length(alike(BlockConfig((plain,))), length)
    add("convolution", "parallel", count_sub_layer(plain, length, d_model), reach)
    reach = path_length(lambda layer: BlockConfig((Convolution(kernel, dilation=kernel**layer),)), length)
    add("convolution, dilated", "parallel", count_sub_layer(plain, length, d_model), reach)
    return tuple(found)


@torch.no_grad()
def count_mixing(mixer: MixerConfig, length: int, d_model: int, *, d_head: int, scan: bool) -> tuple[int, int]:
    """Return FLOPs of one layer's mixing as torch counts them, and as its config says.

    Args:
        mixer: The mechanism.
        length: Positions.
        d_model: Width; it is split into heads of `d_head`.
        scan: Feed one position at a time over the state; otherwise all at once.
    """
    part = block(mixer, n_heads=max(1, d_model // d_head), d_head=d_head).parts[0]
    dims = part.dims(d_model, length)  # type: ignore[attr-defined]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        built = mixer.build(dims, "attn")
        streams = () if mixer.traits.streams == 1 else (mixer.traits.streams,)
        q, k = (torch.zeros(1, *streams, dims.n_heads, length, dims.d_head) for _ in range(2))
        v = torch.zeros(1, dims.n_heads, length, dims.d_value)
        state = built.begin(1, v) if scan else None
        step = 1 if scan else length
        for start in range(0, length, step):
            here = slice(start, start + step)
            positions = torch.arange(start + step)[None]
            context = Context(causal(), positions[:, start:], positions)
            _, state = built(q[..., here, :], k[..., here, :], v[..., here, :], q, context, state, None)
    formula = sum(mixer.flops(step, start + step, dims) for start in range(0, length, step))
    return counter.get_total_flops(), formula


def count_sub_layer(part: SubLayerConfig, length: int, d_model: int) -> tuple[int, int]:
    """Return FLOPs of a sub-layer over one sequence as torch counts them, and by the closed form."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        built = part.build(d_model, length, 0, "")
        built(torch.zeros(1, length, d_model), _causal(0, length))
    return counter.get_total_flops(), sum(built.flops(length, length, True).values())


def path_length(layer: Callable[[int], BlockConfig], length: int) -> int:
    """Return the least number of stacked layers through which the first position reaches the last one's output.

    Found by gradients through freshly drawn layers.

    Args:
        layer: The block of each index.
        length: Positions.

    Raises:
        ValueError: No depth below `length` is enough.
    """
    for n_layers in range(1, length):
        layers = tuple(layer(i) for i in range(n_layers))
        model = DecoderConfig(4, WIDTH, layers, max_len=length, init="xavier").build().double()
        stream = _stream(length)
        (gradient,) = torch.autograd.grad(model.resume(0, stream)[0, -1, 0], stream)
        if gradient[0, 0].any():
            return n_layers
    raise ValueError(f"{layer(0).names()}: the first of {length} positions never reaches the last.")


def hand_overs(part: SubLayerConfig, length: int) -> int:
    """Return at how many positions a layer hands on a state without which the first would not reach the last."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = part.build(WIDTH, length, 0, "").double()
    stream, needed = _stream(length), 0
    for cut in range(length - 1):
        state, out = built.begin(1, stream), stream
        for t in range(length):
            out, state = built(stream[:, t : t + 1], _causal(t, 1), state=state)
            state = mapped(state, torch.Tensor.detach) if t == cut else state
        (gradient,) = torch.autograd.grad(out.sum(), stream)
        needed += not gradient[0, 0].any()
    return needed


def alike(layer: BlockConfig) -> Callable[[int], BlockConfig]:
    """Return what gives every layer the same block."""
    return lambda _: layer


def _causal(past: int, length: int) -> Context:
    return make_context(1, length, torch.device("cpu"), is_causal=True, past=past)


def _stream(length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, length, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
