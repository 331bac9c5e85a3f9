"""Atrous and sparse attention: what they equal, and that the mask of all pairs is never made of a long text."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from glassformer.attention import (
    Alibi,
    Atrous,
    Attention,
    Context,
    LogN,
    Mask,
    MixerConfig,
    NoPositions,
    PositionsConfig,
    RelativeBias,
    Rope,
    Softmax,
    Sparse,
    causal,
    padding,
    window,
)
from glassformer.attention.kernels import blocked, union
from glassformer.errors import ConfigError
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, stream

FORMS = {
    "atrous": Atrous(rate=3),
    "dilated window": Atrous(rate=3, window=3),
    "rates by head": Atrous(rate=(4, 1), window=3, sinks=True),
    "strided": Sparse(stride=5),
    "strided, window wider": Sparse(stride=4, window=11),
    "strided, window narrower": Sparse(stride=7, window=3, sinks=True),
    "fixed": Sparse(form="fixed", stride=6, summary=2),
    "fixed, shared": Sparse(form="fixed", stride=8, summary=1, sinks=True),
}
MASKS = {
    "causal": causal(),
    "both ways": Mask(),
    "padded on the right": causal() & padding(torch.tensor([29, 40])),
    "padded on the left": causal() & padding(torch.tensor([29, 40]), total=40, left=True),
    "both ways, padded": padding(torch.tensor([29, 3])),
    "narrower": causal() & window(9),
    "either": causal() & (window(2) | padding(torch.tensor([10, 20]))),
}
every = pytest.mark.parametrize("name", FORMS)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, so that texts of a few dozen tokens have many."""
    monkeypatch.setattr(blocked, "SHORTEST", 2)
    monkeypatch.setattr(blocked, "LONGEST", 4)


def layer(mixer: MixerConfig, positions: PositionsConfig | None = None, n_kv_heads: int = 2) -> Layer:
    config = Attention(2, n_kv_heads, 4, positions=positions or NoPositions(), mixer=mixer)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double()))


def gradients(attention: Layer, x: Tensor, context: Context, *read: str) -> list[Tensor]:
    out = attention(x, context, tape=attention.tape(*read) if read else None)
    wanted = [x, *attention.module.parameters()]
    return [out, *torch.autograd.grad(out.pow(3).sum(), wanted, allow_unused=True, materialize_grads=True)]


def both_routes(attention: Layer, n: int, context: Context, batch: int = 1) -> None:
    """Compare outputs and gradients with those by way of the pattern."""
    x = stream(batch, n).requires_grad_()
    for one, other in zip(gradients(attention, x, context), gradients(attention, x, context, "pattern"), strict=True):
        close(one, other)


@every
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_is_honoured_without_the_pattern(name: str, mask: str) -> None:
    positions = torch.arange(40)[None]
    both_routes(layer(FORMS[name]), 40, Context(MASKS[mask], positions, positions), batch=2)


@every
@given(st.integers(1, 41), st.sampled_from([1, 2]))
@settings(max_examples=8)
def test_texts_of_any_length_equal_the_pattern(name: str, n: int, n_kv_heads: int) -> None:
    attention = layer(replace(FORMS[name], temperature=LogN(4)), Rope(), n_kv_heads)
    both_routes(attention, n, causal_context(stream(1, n)))


@every
@pytest.mark.parametrize("positions", [Alibi(), Alibi(rounded="bfloat16"), RelativeBias(4, 6)])
def test_what_positions_add_is_added_to_the_pairs_there_are(name: str, positions: PositionsConfig) -> None:
    start = torch.tensor([5, 0])
    for is_causal, begin in ((True, None), (False, None), (True, start)):
        both_routes(
            layer(FORMS[name], positions), 40, make_context(2, 40, start.device, is_causal=is_causal, start=begin), 2
        )


@every
def test_rows_padded_on_the_left_are_read_alike_by_both_routes(name: str) -> None:
    start = torch.tensor([5, 0])
    for is_causal in (True, False):
        both_routes(layer(FORMS[name]), 40, make_context(2, 40, start.device, is_causal=is_causal, start=start), 2)


@every
def test_documents_are_mixed_one_by_one_and_count_from_their_own_start(name: str) -> None:
    ids = torch.tensor([[0] * 25 + [1] * 15, [0] * 40])
    x, attention = stream(2, 40), layer(FORMS[name])
    both_routes(attention, 40, causal_context(x, document_ids=ids), 2)
    close(attention(x, causal_context(x, document_ids=ids))[:1, 25:], attention(x[:1, 25:]))


@every
@given(st.sets(st.integers(1, 29)))
@settings(max_examples=8)
def test_segments_with_carried_state_equal_one_pass(name: str, cuts: set[int]) -> None:
    attention, x = layer(FORMS[name], Rope()), stream(2, 30)
    state, pieces = attention.module.begin(2, x), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 30]):
        context = make_context(2, stop - start, x.device, is_causal=True, past=start)
        out, state = attention.module(x[:, start:stop], context, state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), attention(x))


@every
def test_both_routes_of_a_union_have_one_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, x = layer(FORMS[name]), stream(1, 40).requires_grad_()
    by_kernel = gradients(attention, x, causal_context(x))
    monkeypatch.setattr(union, "_has_kernel", lambda q, sets: False)
    for one, other in zip(by_kernel, gradients(attention, x, causal_context(x)), strict=True):
        close(one, other)


def looked_at(mixer: MixerConfig, n: int, *, is_causal: bool = True) -> Tensor:
    x = stream(1, n)
    attention = layer(mixer)
    return attention.read(x, "pattern", context=make_context(1, n, x.device, is_causal=is_causal))["pattern"][0, 0] > 0


@pytest.mark.parametrize("is_causal", [True, False])
def test_patterns_are_those_of_the_papers(is_causal: bool) -> None:
    def expected(looks) -> Tensor:
        pairs = [[bool(looks(i, j)) and (j <= i or not is_causal) for j in range(20)] for i in range(20)]
        return torch.tensor(pairs)

    found = {mixer: looked_at(mixer, 20, is_causal=is_causal) for mixer in FORMS.values()}
    width, length, last = 4, 6, 2
    assert torch.equal(found[Atrous(rate=3)], expected(lambda i, j: (i - j) % 3 == 0))
    assert torch.equal(found[Atrous(rate=3, window=3)], expected(lambda i, j: (i - j) in (-6, -3, 0, 3, 6)))
    by_head = found[Atrous(rate=(4, 1), window=3, sinks=True)]
    assert torch.equal(by_head, expected(lambda i, j: (i - j) in (-8, -4, 0, 4, 8)))
    # Su: |i - j| <= w or a multiple of the rate
    su = looked_at(Sparse(stride=7, window=width + 1), 20, is_causal=is_causal)
    assert torch.equal(su, expected(lambda i, j: abs(i - j) <= width or (i - j) % 7 == 0))
    # Child et al.: {i - l, …, i} and multiples of l; blocks, and j mod l in [l - c, l)
    assert torch.equal(found[Sparse(stride=5)], expected(lambda i, j: abs(i - j) <= 5 or (i - j) % 5 == 0))
    fixed = expected(lambda i, j: i // length == j // length or length - last <= j % length < length)
    assert torch.equal(found[Sparse(form="fixed", stride=length, summary=last)], fixed)


def test_limits_are_full_attention_a_window_and_atrous_attention() -> None:
    x = stream(2, 12)
    for mixer, other in (
        (Atrous(rate=1), Softmax()),
        (Atrous(rate=1, window=4), Softmax(window=4)),
        (Atrous(rate=(2, 2), window=4), Atrous(rate=2, window=4)),
        (Sparse(stride=5, window=12), Softmax()),
        (Sparse(stride=12, window=4), Softmax(window=4)),
        (Sparse(stride=3, window=1), Atrous(rate=3)),
        (Sparse(stride=1), Softmax()),
        (Sparse(form="fixed", stride=4, summary=4), Softmax()),
        (Sparse(form="fixed", stride=12, summary=1), Softmax()),
        (Atrous(rate=12), Softmax(window=1)),
    ):
        close(layer(mixer)(x), layer(other)(x))


def test_classes_do_not_see_each_other() -> None:
    x = stream(1, 12).requires_grad_()
    out = layer(Atrous(rate=3))(x)
    for t in range(12):
        (influence,) = torch.autograd.grad(out[0, t].sum(), x, retain_graph=True)
        seen = influence[0].abs().sum(-1) > 0
        assert seen.tolist() == [s <= t and (t - s) % 3 == 0 for s in range(12)]


def test_layers_in_turn_connect_every_earlier_position_as_one_merged_head_does_in_two() -> None:
    n, stride = 30, 5
    turns = looked_at(Softmax(window=stride + 1), n).int() @ looked_at(Atrous(rate=stride), n).int() > 0
    merged = looked_at(Sparse(stride=stride), n).int()
    fixed = looked_at(Sparse(form="fixed", stride=stride, summary=1), n).int()
    everything = torch.ones(n, n).tril().bool()
    assert torch.equal(turns, everything) and torch.equal(merged @ merged > 0, everything)
    assert torch.equal(fixed @ fixed > 0, everything)


@pytest.mark.parametrize(
    "mixer", [Atrous(rate=128), Sparse(), Sparse(form="fixed")], ids=["atrous", "strided", "fixed"]
)
@pytest.mark.parametrize("padded", [False, True])
def test_nothing_is_made_for_each_pair_of_a_long_text(
    mixer: MixerConfig, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "SHORTEST", 32)
    monkeypatch.setattr(blocked, "LONGEST", 128)
    n = 16_384
    x, attention = stream(1, n).float().requires_grad_(), layer(mixer)
    attention.module.float()
    with Largest() as seen:
        attention(x, causal_context(x, lengths=torch.tensor([n - 5]) if padded else None)).sum().backward()
    # the pairs of a padded text have a mask: one in 128 of all, or 8 in 128 where 8 keys of a block are looked at
    assert seen.numbers <= n * n // 16 if padded else seen.numbers <= 2 * n * 128


def test_a_step_reads_the_keys_that_it_looks_at() -> None:
    x = stream(1, 2001).float()
    context = make_context(1, 1, x.device, is_causal=True, past=2000)
    for mixer in (Atrous(rate=50), Sparse(stride=50), Sparse(form="fixed", stride=50, summary=1)):
        attention = layer(mixer)
        attention.module.float()
        with torch.no_grad():
            _, state = attention.module(x[:, :2000], causal_context(x[:, :2000]), state=attention.module.begin(1, x))
            _, state = attention.module(x[:, 2000:], context, state=state)
            last, context_after = x[:, 2000:], make_context(1, 1, x.device, is_causal=True, past=2001)
            with Largest() as seen:
                attention.module(last, context_after, state=state)
        kept = state.mixer.key.numel()
        # views of the state are as large as it is, and made of nothing
        assert seen.numbers <= 1.1 * kept
    assert Atrous(rate=(4, 1), window=3).reach == 8 and Atrous(rate=4).reach is None


def test_bfloat16_is_finite_and_near() -> None:
    x = stream(1, 300)
    for mixer in FORMS.values():
        attention = layer(mixer)
        exact = attention(x)
        attention.module.to(torch.bfloat16)
        found = attention(x.to(torch.bfloat16))
        assert found.isfinite().all() and (found.double() - exact).norm() < 0.05 * exact.norm()


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate must be at least 1"):
        Atrous(rate=0)
    with pytest.raises(ConfigError, match="stride must be at least 1"):
        Sparse(stride=0)
    with pytest.raises(ConfigError, match='blocks of form "fixed" have no window, found 3'):
        Sparse(form="fixed", window=3)
    with pytest.raises(ConfigError, match="summary must be from 1 to the stride, 4, found 5"):
        Sparse(form="fixed", stride=4, summary=5)
    for mixer in (Atrous(), Sparse()):
        with pytest.raises(ConfigError, match="goes by distance"):
            Attention(2, mixer=mixer, cross=True)
