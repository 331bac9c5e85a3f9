"""Dense tensors: what holds one number in a place of its own for each entry, as computing on values takes."""

import torch
from torch import Tensor


def not_dense(values: Tensor) -> str:
    """Return why a tensor is none whose entries can be looked at, in a word; empty if it is one."""
    if values.is_quantized:
        return "quantised"
    if values.is_meta:
        return "without numbers (meta)"
    if values.is_nested:
        return "nested"
    return "" if values.layout == torch.strided else "sparse"
