"""Norms and gates on mixed values, in either order and over heads or groups of them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention import Attention, Merge
from glassformer.errors import ConfigError
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, stream


def layer(merge: Merge, seed: int = 0) -> Layer:
    config = Attention(4, d_head=3, d_value=2, merge=merge)
    return Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval(), seed))


def normed(rows: Tensor, groups: int, eps: float) -> Tensor:
    """Return rows of which each group of neighbouring numbers is divided by its root mean square."""
    cut = rows.unflatten(-1, (groups, -1))
    return (cut / (cut.square().mean(-1, keepdim=True) + eps).sqrt()).flatten(-2)


@pytest.mark.parametrize("groups", [None, 1, 2, 4])
@pytest.mark.parametrize("first", [False, True])
def test_what_is_gated_is_normed_or_what_is_normed_is_gated(groups: int | None, first: bool) -> None:
    merge = Merge(norm="all", groups=groups, gate="silu", gate_bias=True, norm_before_gate=not first, eps=0.1)
    attention, x = layer(merge), stream(2, 5)
    read = attention.read(x, "z", "out")
    made: Any = attention.module.merge
    flat = read["z"].transpose(1, 2).flatten(-2)
    opened = F.silu(x @ made.gate.weight.T + made.gate.bias)
    rows = normed(flat * opened, groups or 1, 0.1) if first else normed(flat, groups or 1, 0.1) * opened
    close(read["out"], (rows * made.gain) @ made.output.weight.T)


def test_a_group_for_each_head_norms_each_head() -> None:
    x, own = stream(2, 5), layer(Merge(norm="head", gain=False))
    close(own(x), layer(Merge(norm="all", gain=False, groups=4))(x))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"groups": 2}, "groups=2"),
        ({"norm_before_gate": False, "norm": "all"}, "norm_before_gate"),
        ({"gate_bias": True}, "gate_bias without a gate"),
    ],
)
def test_what_has_no_meaning_together_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Merge(**fields)


def test_heads_that_do_not_divide_into_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 heads do not divide into groups=3"):
        layer(Merge(norm="all", groups=3))


def test_a_config_without_groups_and_order_reads_as_before() -> None:
    assert set(Merge().to_dict()) == {"bias", "norm", "gain", "eps", "factor", "gate"}
    assert torch.equal(
        layer(Merge.from_dict(Merge(norm="all").to_dict()))(stream(1, 3)), layer(Merge(norm="all"))(stream(1, 3))
    )
