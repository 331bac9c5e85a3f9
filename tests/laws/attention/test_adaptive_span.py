"""Adaptive span: the mask behind the softmax that the paper has, and what a short span spares."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import AdaptiveSpan, Alibi, Attention, MixerConfig, NoPositions, Rope, Softmax
from glassformer.attention.kernels import blocked
from glassformer.models import DecoderConfig, block, repeat
from glassformer.models.stack import make_context, tensors
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, stream


def layer(mixer: MixerConfig, positions: Any = None, shares: tuple[float, float] = (0.4, 0.9)) -> Layer:
    made = randomise(
        Attention(2, 1, 4, positions=positions or NoPositions(), mixer=mixer).build(D_MODEL, 64, 0, "").double()
    )
    if isinstance(mixer, AdaptiveSpan):
        made.mixer.share.data = torch.tensor(shares, dtype=torch.float64)
    return Layer(made)


def test_weights_are_masked_behind_the_softmax_and_normalised_again() -> None:
    attention, x = layer(AdaptiveSpan(longest=6, ramp=3), Rope()), stream(2, 9)
    found = attention.read(x, "scores", "pattern", "query", "key")
    q, k = found["query"], found["key"].repeat_interleave(2, 1)
    plain = (q @ k.mT * 0.5).masked_fill(~torch.ones(9, 9).tril().bool(), float("-inf")).softmax(-1)
    t = torch.arange(9)
    apart = (t[:, None] - t).clamp_min(0).double()
    for head, z in enumerate((0.4, 0.9)):
        masked = plain[:, head] * ((3 + z * 6 - apart) / 3).clamp(0, 1)
        close(found["pattern"][:, head], masked / masked.sum(-1, keepdim=True))


def test_a_share_of_one_is_a_window_with_a_ramp_behind_it_and_all_is_softmax() -> None:
    x = stream(2, 9)
    plain = layer(Softmax(), Rope())
    whole = layer(AdaptiveSpan(longest=9, ramp=2), Rope(), (1.0, 1.0))
    whole.module.load_state_dict(plain.module.state_dict() | {"mixer.share": torch.ones(2)})
    close(whole(x), plain(x))
    window = layer(Softmax(window=4), Rope())
    short = layer(AdaptiveSpan(longest=3, ramp=1), Rope())
    short.module.load_state_dict(window.module.state_dict() | {"mixer.share": torch.ones(2)})
    close(short(x), window(x))


@pytest.mark.parametrize("positions", [Rope(), Alibi()])
def test_blocks_give_what_the_pattern_gives(positions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "SHORTEST", 2)
    attention, x = layer(AdaptiveSpan(longest=4, ramp=3), positions), stream(2, 41).requires_grad_()
    found = []
    for tape in (None, attention.tape("pattern")):
        out = attention(x, tape=tape)
        found.append([out, *torch.autograd.grad(out.pow(3).sum(), [x, *attention.module.parameters()])])
    for one, other in zip(*found, strict=True):
        close(one, other)
    assert found[0][-1].abs().sum() > 0


def test_the_state_is_as_long_as_the_furthest_head_sees() -> None:
    attention, x = layer(AdaptiveSpan(longest=8, ramp=2), Rope(), (0.0, 0.3)), stream(1, 14)
    state, out = attention.module.begin(1, x), []
    for t in range(14):
        context = make_context(1, 1, x.device, is_causal=True, past=t)
        z, state = attention.module(x[:, t : t + 1], context, state=state)
        out.append(z)
    close(torch.cat(out, 1), attention(x))
    # ceil(0.3 * 8) in full, two on the ramp, one of which is the next token itself
    assert {part.shape[-2] for part in tensors(state)} == {4}


def test_only_what_leads_back_moves_a_share_from_outside() -> None:
    attention = layer(AdaptiveSpan(longest=4, ramp=2), shares=(-0.2, 1.3))
    span = attention.mixer.span()
    close(span, torch.tensor([0.0, 4.0], dtype=torch.float64))
    for weights, expected in (((1.0, 1.0), (0.0, 4.0)), ((-1.0, -1.0), (-4.0, 0.0))):
        (found,) = torch.autograd.grad((attention.mixer.span() * torch.tensor(weights)).sum(), attention.mixer.share)
        assert found.tolist() == list(expected)


def test_training_pays_for_mean_spans() -> None:
    span = AdaptiveSpan(longest=10, ramp=2, start=0.5, cost=0.01)
    model = DecoderConfig(7, 8, repeat(block(span, n_heads=2), 3), max_len=16).build(0)
    penalty = model.penalty()
    assert penalty is not None and abs(penalty.item() - 3 * 0.01 * 5) < 1e-6
    assert DecoderConfig(7, 8, repeat(block(Softmax(), n_heads=2), 1), max_len=16).build(0).penalty() is None


def test_a_short_span_makes_nothing_for_each_pair_of_positions() -> None:
    n = 16_384
    attention = layer(AdaptiveSpan(longest=8192, ramp=32), Rope(), (0.0, 0.01))
    attention.module.float()
    x: Tensor = stream(1, n).float().requires_grad_()
    with Largest() as seen:
        attention(x, causal_context(x)).sum().backward()
    assert seen.numbers <= 2 * n * 512
