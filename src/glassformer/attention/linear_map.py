"""The one matrix product of projections, MLPs and unembedding: y = x W' + b.

Float32 on the CPU goes through oneDNN, forwards and backwards; it reads the weights as they lie. On an AMD EPYC core
the library's default route took 1.2 to 1.8 times as long for one row and about twice as long for 2 to 256 rows; with
both gradients, for 2,048 rows, 1.5 to 1.9 times.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from glassformer.attention.learned_scale import LearnedScale


class LinearMap(nn.Linear):
    """`nn.Linear` by the quicker route."""

    def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        return linear(input, self.weight, self.bias)

    def named_rows(self) -> Iterator[tuple[str, range]]:
        """Yield the matrices in its weight: what each is called within it, and its rows; one without a name here."""
        yield "", range(self.out_features)


class LinearMaps(nn.Module):
    """Several linear maps of one shape, their matrices stacked: one for each expert."""

    def __init__(self, n: int, d_in: int, d_out: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, d_out, d_in))
        self.bias = nn.Parameter(torch.zeros(n, d_out)) if bias else None

    def named_rows(self) -> Iterator[tuple[str, range]]:
        """Yield each map's number and its rows, where the stack is laid out as one matrix."""
        n, rows = self.weight.shape[:2]
        yield from ((str(i), range(i * rows, (i + 1) * rows)) for i in range(n))

    def one(self, which: int, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Return what one of the maps makes of rows."""
        return linear(x, self.weight[which], None if self.bias is None else self.bias[which])

    def all(self, x: Float[Tensor, "*batch rows d_in"]) -> Float[Tensor, "*batch map d_out"]:
        """Return what each map makes of its own row, or of the one row that there is."""
        out = torch.einsum("...ni,noi->...no", x.expand(*x.shape[:-2], len(self.weight), -1), self.weight)
        return out if self.bias is None else out + self.bias


class NarrowMap(nn.Module):
    """A linear map through fewer numbers than it reads or gives: y = x A' B'."""

    bias = None

    def __init__(self, d_in: int, rank: int, d_out: int) -> None:
        super().__init__()
        self.inwards, self.outwards = LinearMap(d_in, rank, bias=False), LinearMap(rank, d_out, bias=False)

    @property
    def weight(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix that both make, which is stored nowhere."""
        return self.outwards.weight @ self.inwards.weight

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        return self.outwards(self.inwards(x))


class ScaledMap(nn.Module):
    """A linear map each of whose outputs has a learned factor: y = (x W') * scale."""

    bias = None

    def __init__(self, d_in: int, d_out: int, scale: LearnedScale, times: float = 1.0) -> None:
        """Make a map.

        Args:
            d_in: Numbers it reads.
            d_out: Numbers it gives.
            scale: Their factors.
            times: What these are multiplied by besides.
        """
        super().__init__()
        self.unscaled = LinearMap(d_in, d_out, bias=False)
        self.config, self.times, self.scale = scale, times, scale.stored(d_out)

    @property
    def factors(self) -> Float[Tensor, " d_out"]:
        """What the outputs of the matrix that is stored are multiplied by."""
        return self.config.factors(self.scale) * self.times

    @property
    def weight(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix with the factors in it, which is stored nowhere."""
        return self.unscaled.weight * self.factors[:, None]

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        return self.unscaled(x) * self.factors


class IdentityMap(nn.Module):
    """What stands in a linear map's place where there is none: y = x."""

    bias = None
    one: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        # lies where the model does, and has its dtype
        self.register_buffer("one", torch.ones(()))

    @property
    def weight(self) -> Float[Tensor, "d d"]:
        """The identity matrix, for those who ask what is multiplied by."""
        return torch.eye(self.width, dtype=self.one.dtype, device=self.one.device)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return x


def parameters_of(
    part: str, maps: nn.Linear | LinearMaps | NarrowMap | ScaledMap | IdentityMap | None
) -> Iterator[tuple[str, int]]:
    """Yield how many parameters a map has, as those of a part and as biases."""
    if isinstance(maps, IdentityMap):
        return
    if isinstance(maps, NarrowMap):
        yield part, maps.inwards.weight.numel() + maps.outwards.weight.numel()
    elif isinstance(maps, ScaledMap):
        yield part, maps.unscaled.weight.numel() + maps.scale.numel()
    elif maps is not None:
        yield part, maps.weight.numel()
        yield "biases", 0 if maps.bias is None else maps.bias.numel()


def linear(
    x: Float[Tensor, "*batch d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None = None
) -> Float[Tensor, "*batch d_out"]:
    """An affine map, x W' + b; equal to `F.linear` up to rounding."""
    if not _onednn_serves(x, weight):
        return F.linear(x, weight, bias)
    if has_torch_function((x, weight)):
        # `_Product` is none of torch's functions: a mode around the pass would not see what it is handed
        return handle_torch_function(linear, (x, weight), x, weight, bias)
    if torch.is_grad_enabled():
        return _Product.apply(x, weight, bias)  # type: ignore[no-any-return]
    return _onednn(x, weight, bias)


class _Product(torch.autograd.Function):
    """The product with its derivative, which oneDNN's operator lacks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        # going through `linear` keeps the gradients themselves differentiable
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            linear(grad, weight.mT.contiguous()) if for_x else None,
            linear(rows.mT.contiguous(), x.reshape(-1, x.shape[-1]).mT.contiguous()) if for_weight else None,
            rows.sum(0) if for_bias else None,
        )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _onednn_serves(x: Tensor, weight: Tensor) -> bool:
    # a compiler chooses its own kernels, as do autocast and function transforms; for tensors in shards there is no rule
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() > 0
        and not hasattr(weight, "placements")
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and torch.backends.mkldnn.is_available()
    )
