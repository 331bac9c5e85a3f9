"""Encoding and decoding by the few features that fire, forward and backward, where a dense product has all of them.

    x_r = sum_i v_ri W_dec[j_ri]           d W_dec[j] = sum over r, i with j_ri = j of  v_ri g_r
    v_ri = u_r W_enc[:, j_ri] + b_enc[j]   d W_enc[:, j] = sum over r, i with j_ri = j of  d v_ri u_r

Which features are the largest takes the dense product u W_enc; everything else costs k / n of it. Features that are
named twice in a row add up.
"""

# torch does not type what a function of its own keeps
# pyright: reportUnknownMemberType=false

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def sparse_decode(
    values: Float[Tensor, "row k"], indices: Int[Tensor, "row k"], rows: Float[Tensor, "feature d_in"]
) -> Float[Tensor, "row d_in"]:
    """Return what some features of each row add up to.

    Args:
        values: Their activations.
        indices: Which they are.
        rows: Decoder row of every feature.
    """
    return F.embedding_bag(indices, rows, per_sample_weights=values, mode="sum")


def largest(
    centred: Float[Tensor, "row d_in"],
    columns: Float[Tensor, "d_in feature"],
    bias: Float[Tensor, " feature"],
    k: int,
) -> tuple[Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """Return the k largest pre-activations of each row, and of which features they are.

    Args:
        centred: Rows, scaled and without the decoder's bias.
        columns: The encoder.
        bias: Of the encoder.
        k: How many.
    """
    return _Largest.apply(centred, columns, bias, k)  # type: ignore[no-any-return]


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, centred: Tensor, columns: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
        found = torch.addmm(bias, centred, columns).topk(k, -1, sorted=False)
        ctx.save_for_backward(centred, columns, found.indices)
        ctx.mark_non_differentiable(found.indices)
        return found.values, found.indices

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        centred, columns, indices = ctx.saved_tensors
        to_bias = columns.new_zeros(columns.shape[1]).index_add(0, indices.flatten(), grads[0].flatten())
        with torch.enable_grad():
            # the gradient of a sum of rows is what goes to each of them; rows apart in memory are many times slower
            rows = columns.mT.detach().contiguous().requires_grad_()
            summed = sparse_decode(grads[0].detach(), indices, rows)
        (to_columns,) = torch.autograd.grad(summed, rows, centred)
        return summed.detach(), to_columns.mT, to_bias, None
