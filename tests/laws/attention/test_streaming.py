"""Streaming attention: what a cache of the first and the last tokens gives, whose positions are places in it."""

import pytest
import torch
from torch import Tensor

from glassformer.attention import Alibi, Attention, NoPositions, PositionsConfig, RelativeBias, Rope, Softmax, Streaming
from glassformer.attention.kernels import blocked
from glassformer.attention.mixer import MixerConfig
from glassformer.models.stack import make_context, tensors
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, stream
from one_pass import in_one_pass


def layer(mixer: MixerConfig, positions: PositionsConfig | None = None, n_kv_heads: int = 2) -> Layer:
    config = Attention(2, n_kv_heads, 4, positions=positions or NoPositions(), mixer=mixer)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "attn").double()))


def by_a_cache(attention: Layer, x: Tensor, first: int, window: int) -> Tensor:
    """Each position by itself: keys that are left, unrotated, at their places in the cache; the query at the last."""
    plain = layer(Softmax(), attention.config.positions)
    plain.module.load_state_dict(attention.module.state_dict())
    rows = []
    for t in range(x.shape[1]):
        left = [s for s in range(t + 1) if s < first or t - s < window]
        rows.append(plain(x[:, left])[:, -1])
    return torch.stack(rows, 1)


@in_one_pass
@pytest.mark.parametrize("positions", [NoPositions(), Rope(), Rope(fraction=0.5), Alibi(), RelativeBias(4, 6)])
@pytest.mark.parametrize(("first", "window"), [(2, 3), (0, 2), (1, 1), (3, 30)])
def test_positions_are_places_in_the_cache(positions: PositionsConfig, first: int, window: int) -> None:
    attention, x = layer(Streaming(first, window), positions), stream(2, 12)
    close(attention(x), by_a_cache(attention, x, first, window))


def test_a_text_that_fits_is_read_as_by_softmax_attention() -> None:
    attention, x = layer(Streaming(2, 6), Rope()), stream(2, 8)
    plain = layer(Softmax(), Rope())
    assert torch.equal(attention(x), plain(x))


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_blocks_give_what_the_pattern_gives(n_kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "SHORTEST", 2)
    x = stream(2, 41).requires_grad_()
    for first, window in ((2, 3), (5, 2), (0, 4), (7, 1)):
        attention = layer(Streaming(first, window), Rope(), n_kv_heads)
        found = []
        for tape in (None, attention.tape("pattern")):
            out = attention(x, tape=tape)
            found.append([out, *torch.autograd.grad(out.pow(3).sum(), [x, *attention.module.parameters()])])
        for one, other in zip(*found, strict=True):
            close(one, other)


def test_blocks_of_padded_rows_give_what_the_pattern_gives_and_what_each_row_gives_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocked, "SHORTEST", 2)
    lengths, x = torch.tensor([41, 1, 17, 4]), stream(4, 41).requires_grad_()
    for first, window in ((2, 3), (5, 2), (0, 4), (7, 1)):
        attention = layer(Streaming(first, window), Rope(), 1)
        dense = attention(x, causal_context(x, lengths=lengths), tape=attention.tape("pattern"))
        with monkeypatch.context() as without:
            without.setattr(attention.mixer, "dense", lambda *given: pytest.fail("the pattern is made"))
            found = attention(x, causal_context(x, lengths=lengths))
        for row, length in enumerate(lengths.tolist()):
            real = found[row : row + 1, :length]
            close(real, dense[row : row + 1, :length])
            close(real, attention(x[row : row + 1, :length]))
        of_x = [torch.autograd.grad(z[2, :17].pow(3).sum(), x, retain_graph=True)[0] for z in (found, dense)]
        close(of_x[0], of_x[1])


def test_a_state_stays_as_large_as_it_is_and_goes_on_with_what_softmax_cannot_see() -> None:
    attention, x = layer(Streaming(2, 4), Rope()), stream(1, 20)
    state = attention.module.begin(1, x)
    out = []
    for t in range(20):
        context = make_context(1, 1, x.device, is_causal=True, past=t)
        z, state = attention.module(x[:, t : t + 1], context, state=state)
        out.append(z)
        assert sum(part.numel() for part in tensors(state)) <= attention.mixer.config.state_numbers(
            20, attention.mixer.dims
        )
    close(torch.cat(out, 1), attention(x))


def test_rows_that_are_padded_on_the_left_keep_their_own_first_tokens() -> None:
    attention, x = layer(Streaming(2, 3), Rope()), stream(2, 14)
    start = torch.tensor([0, 5])
    alone = attention(x[1:, 5:])
    with torch.no_grad():
        state = attention.module.begin(2, x)
        found = []
        for begin, end in ((0, 7), (7, 8), (8, 9), (9, 14)):
            context = make_context(2, end - begin, x.device, is_causal=True, past=begin, start=start)
            z, state = attention.module(x[:, begin:end], context, state=state)
            found.append(z)
    close(torch.cat(found, 1)[1:, 5:], alone)
    close(attention(x, make_context(2, 14, x.device, is_causal=True, start=start))[1:, 5:], alone)


def test_a_long_text_makes_nothing_for_each_pair_of_positions() -> None:
    n = 16_384
    x, attention = stream(1, n).float().requires_grad_(), layer(Streaming(4, 252), Rope())
    attention.module.float()
    with Largest() as seen:
        attention(x, causal_context(x)).sum().backward()
    assert seen.numbers <= 2 * n * 512
    x = x[:, : n // 4]
    with Largest() as seen, torch.no_grad():
        attention(x, causal_context(x, lengths=torch.tensor([n // 8])))
    assert seen.numbers <= 2 * n // 4 * 512
