"""Decoding by the few features that fired: a sum of k decoder rows in place of a product with all of them.

    x_r = sum_i v_ri W_dec[j_ri]     d v_ri = g_r . W_dec[j_ri]     d W_dec[j] = sum over r, i with j_ri = j of v_ri g_r

It costs k / n of the dense product, forward and backward. Features that are named twice in a row add up.
"""

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
