"""Pooling: means of near values, less one's own."""

import torch

from glassformer.attention import Attention, Pooling
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import Layer, causal_context, randomise, stream


def layer(mixer: Pooling) -> Layer:
    return Layer(randomise(Attention(2, mixer=mixer).build(12, 64, 0, "").double().eval()))


def test_a_constant_text_pools_to_zero_and_a_window_of_one_changes_nothing():
    pooled, same = layer(Pooling(window=3)), layer(Pooling(window=1, less_itself=False))
    x = stream(2, 1).expand(-1, 7, -1)
    for context in (causal_context(x), make_context(2, 7, x.device, is_causal=False)):
        assert pooled.read(x, "z", context=context)["z"].abs().max() < 1e-12
    x = stream(2, 7)
    found = same.read(x, "z", "value")
    close(found["z"], found["value"])


def test_rows_are_means_of_the_positions_that_are_there_less_ones_own():
    x = stream(1, 5)
    causal = layer(Pooling()).read(x, "pattern")["pattern"][0, 0]
    both = layer(Pooling()).read(x, "pattern", context=make_context(1, 5, x.device, is_causal=False))["pattern"][0, 0]
    half, third = 1 / 2, 1 / 3
    close(causal[:3, :3], torch.tensor([[0, 0, 0], [half, -half, 0], [0, half, -half]], dtype=torch.float64))
    close(both[0, :2], torch.tensor([-half, half], dtype=torch.float64))
    close(both[2], torch.tensor([0, third, third - 1, third, 0], dtype=torch.float64))


def test_running_sums_give_what_the_pattern_gives_both_ways():
    ours, x = layer(Pooling(window=5)), stream(2, 17)
    for context in (causal_context(x), make_context(2, 17, x.device, is_causal=False)):
        close(ours(x, context), ours(x, context, tape=ours.tape("pattern")))


def test_the_pattern_is_the_same_for_every_text():
    ours = layer(Pooling(window=3))
    one, other = (ours.read(stream(2, 6, seed), "pattern")["pattern"] for seed in (0, 1))
    assert torch.equal(one, other)
