"""Windows in blocks: what the mask of all pairs gives, without it."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from glassformer.attention import (
    Alibi,
    Attention,
    Context,
    LogN,
    Mask,
    NoPositions,
    PositionsConfig,
    RelativeBias,
    Rope,
    Softmax,
    causal,
    padding,
    window,
)
from glassformer.attention.kernels import blocked
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, stream


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, so that texts of a few dozen tokens have many."""
    monkeypatch.setattr(blocked, "SHORTEST", 2)
    monkeypatch.setattr(blocked, "LONGEST", 4)


def layer(mixer: Softmax, positions: PositionsConfig | None = None, n_kv_heads: int = 2) -> Layer:
    config = Attention(2, n_kv_heads, 4, positions=positions or NoPositions(), mixer=mixer)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "attn").double()))


def both_routes(attention: Layer, n: int, context: Context, batch: int = 1) -> None:
    """Compare outputs and gradients of the route by blocks with those by way of the pattern."""
    x = stream(batch, n).requires_grad_()
    assert blocked.is_blocked(context, n, n, attention.mixer.config.window)
    found = []
    for tape in (None, attention.tape("pattern")):
        out = attention(x, context, tape=tape)
        wanted = [x, *attention.module.parameters()]
        found.append([out, *torch.autograd.grad(out.pow(3).sum(), wanted, allow_unused=True)])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            close(one, other)


MASKS = {
    "causal": causal(),
    "both ways": Mask(),
    "padded on the right": causal() & padding(torch.tensor([29, 40])),
    "padded on the left": causal() & padding(torch.tensor([29, 40]), total=40, left=True),
    "both ways, padded": padding(torch.tensor([29, 3])),
    "narrower in the mask": causal() & window(2),
    "either": causal() & (window(2) | padding(torch.tensor([10, 20]))),
}


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("sinks", [False, True])
def test_blocks_honour_every_mask(name: str, size: int, sinks: bool) -> None:
    positions = torch.arange(40)[None]
    both_routes(layer(Softmax(window=size, sinks=sinks)), 40, Context(MASKS[name], positions, positions), batch=2)


@pytest.mark.usefixtures("short_blocks")
@given(st.integers(30, 47), st.integers(1, 5), st.sampled_from([1, 2]))
@settings(max_examples=10)
def test_blocks_end_anywhere(n: int, size: int, n_kv_heads: int) -> None:
    attention = layer(Softmax(window=size, temperature=LogN(4)), Rope(), n_kv_heads)
    both_routes(attention, n, causal_context(stream(1, n)))


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("positions", [Alibi(), RelativeBias(4, 6), RelativeBias(4, 6, bidirectional=True)])
@pytest.mark.parametrize("sinks", [False, True])
def test_blocks_add_what_positions_add(positions: PositionsConfig, sinks: bool) -> None:
    attention = layer(Softmax(window=4, sinks=sinks), positions)
    for is_causal in (True, False):
        both_routes(attention, 40, make_context(1, 40, torch.device("cpu"), is_causal=is_causal))


@pytest.mark.usefixtures("short_blocks")
def test_a_bias_that_goes_by_place_is_left_to_the_mask_of_all_pairs() -> None:
    for positions in (Alibi(rounded="bfloat16"), Alibi()):
        attention, x = layer(Softmax(window=3), positions), stream(1, 40)
        start = torch.tensor([5])
        context = make_context(1, 40, x.device, is_causal=True, start=None if positions.rounded else start)
        seen = attention.module.positions.within(context)
        assert not blocked.is_blocked(seen, 40, 40, 3)
        close(attention(x, context), attention(x, context, tape=attention.tape("pattern")))


@pytest.mark.usefixtures("short_blocks")
def test_documents_are_cut_into_blocks_one_by_one() -> None:
    ids = torch.tensor([[0] * 25 + [1] * 15, [0] * 40])
    x, attention = stream(2, 40), layer(Softmax(window=3))
    context = causal_context(x, document_ids=ids)
    close(attention(x, context), attention(x, context, tape=attention.tape("pattern")))


def test_a_window_over_a_long_text_makes_nothing_for_each_pair_of_positions() -> None:
    n = 16_384
    x, attention = stream(1, n).float().requires_grad_(), layer(Softmax(window=256))
    attention.module.float()
    with Largest() as seen:
        attention(x).sum().backward()
    assert seen.numbers <= 2 * n * 512


def test_blocks_in_bfloat16_are_finite_and_near() -> None:
    x, attention = stream(1, 300), layer(Softmax(window=16))
    exact = attention(x)
    attention.module.to(torch.bfloat16)
    found = attention(x.to(torch.bfloat16))
    assert found.isfinite().all() and (found.double() - exact).norm() < 0.05 * exact.norm()
