"""The Synthesizer: what each kind of scores depends on, and what it equals."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention import Attention, Context, Mask, Softmax, Synthesizer, per_query_head
from glassformer.errors import ConfigError, TextError
from glassformer.models import DecoderConfig, block
from glassformer.models.accounting import count_flops
from glassformer.models.stack import make_context, tensors
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass

PARTS: Any = ("dense", "random", "fixed", "factorised_dense", "factorised_random", "dot_product")
KEYLESS = PARTS[:-1]


def built(*parts: Any, max_len: int = 9, seed: int = 0, **fields: Any) -> Layer:
    config = Attention(4, 2, 3, 5, mixer=Synthesizer(parts, **fields))
    return Layer(randomise(config.build(D_MODEL, max_len, 0, "").double().eval(), seed))


@given(seeds, st.sampled_from(["random", "fixed", "factorised_random"]))
def test_a_random_pattern_is_that_of_every_row_and_of_every_input(seed: int, part: str) -> None:
    layer = built(part, seed=seed)
    one, other = (layer.read(stream(3, 6, s), "pattern")["pattern"] for s in (seed, seed + 1))
    assert torch.equal(one, other)
    assert torch.equal(one, one[:1].expand_as(one))


@given(seeds, st.sampled_from(["dense", "factorised_dense"]))
def test_a_dense_row_depends_on_its_own_position_alone(seed: int, part: str) -> None:
    layer, x = built(part, seed=seed), stream(1, 5, seed).requires_grad_()
    # everything may be attended to, so that every entry could depend on every position
    positions = torch.arange(5)[None]
    tape = layer.tape("pattern", grad=True)
    layer(x, Context(Mask(), positions, positions), tape=tape)
    rows = tape.values["pattern"][0].square().sum((0, 2))
    reach = torch.stack([torch.autograd.grad(row, x, retain_graph=True)[0][0].abs().sum(-1) for row in rows])
    assert (reach[~torch.eye(5, dtype=torch.bool)] == 0).all()
    assert (reach.diagonal() > 0).all()


@given(seeds)
def test_factors_as_wide_as_the_context_can_be_any_random_matrix(seed: int) -> None:
    whole, factored = built("random", seed=seed), built("factorised_random", rank=9, seed=seed + 1)
    theirs = dict(whole.module.named_parameters())
    with torch.no_grad():
        for name, value in factored.module.named_parameters():
            if name in theirs:
                value.copy_(theirs[name])
        factors = factored.mixer.made_by["factorised_random"]
        factors.rows.copy_(whole.mixer.made_by["random"].matrix)
        factors.columns.copy_(torch.eye(9).expand(4, -1, -1))
    x = stream(2, 7, seed)
    close(factored(x), whole(x))


@in_one_pass
@pytest.mark.parametrize("max_len", [1, 2, 7, 9, 12])
def test_factorised_dense_tiles_one_factor_and_repeats_the_other(max_len: int) -> None:
    layer, n = built("factorised_dense", max_len=max_len), max_len
    part, x = layer.mixer.made_by["factorised_dense"], stream(2, n)
    tiled, repeated = part.tiled(x), part.repeated(x)
    a, b = tiled.shape[-1], repeated.shape[-1]
    assert a * b >= max_len > a * (b - 1)
    scores = layer.read(x, "scores")["scores"]
    for i in range(n):
        for j in range(i + 1):
            close(scores[:, :, i, j], tiled[:, :, i, j % a] * repeated[:, :, i, j // a])
    # tiled first: neighbours share a factor of the other
    if a > 1 and n > 1:
        close(scores[:, :, -1, 1] / scores[:, :, -1, 0], tiled[:, :, -1, 1] / tiled[:, :, -1, 0], 1e-6)


@given(seeds)
def test_a_dense_row_is_what_two_layers_make_of_it(seed: int) -> None:
    layer, x = built("dense", d_hidden=2, seed=seed), stream(1, 4, seed)
    part, scores = layer.mixer.made_by["dense"], layer.read(x, "scores")["scores"]
    for head in range(4):
        for i in range(4):
            hidden = torch.stack([(x[0, i] @ part.w1[head, :, u] + part.b1[head, 0, u]).clamp(min=0) for u in (0, 1)])
            for j in range(i + 1):
                close(scores[0, head, i, j], hidden @ part.w2[head, j] + part.b2[head, j])


@given(seeds)
def test_a_mixture_is_of_scores_and_not_of_patterns(seed: int) -> None:
    mixed, x = built("random", "dot_product", seed=seed), stream(2, 5, seed)
    values = mixed.read(x, "query", "key", "scores", "pattern")
    dots = values["query"] @ per_query_head(values["key"], values["query"]).mT * 3**-0.5
    drawn, share = mixed.mixer.made_by["random"].matrix[:, :5, :5], mixed.mixer.weights.softmax(-1)[..., None, None]
    visible = torch.ones(5, 5).tril().bool()
    expected = share[:, 0] * drawn + share[:, 1] * dots
    close(values["scores"][..., visible], expected[..., visible])
    hidden = float("-inf")
    close(values["pattern"], expected.masked_fill(~visible, hidden).softmax(-1))
    parts = [part.masked_fill(~visible, hidden).softmax(-1) for part in (drawn, dots)]
    assert ((share[:, 0] * parts[0] + share[:, 1] * parts[1]) - values["pattern"]).abs().max() > 1e-6


@given(seeds)
def test_the_dot_product_alone_is_softmax(seed: int) -> None:
    ours, x = built("dot_product", seed=seed), stream(2, 6, seed)
    softmax = Attention(4, 2, 3, 5, mixer=Softmax()).build(D_MODEL, 9, 0, "").double().eval()
    softmax.load_state_dict(ours.module.state_dict())
    close(ours(x), Layer(softmax)(x))


@in_one_pass
@pytest.mark.parametrize("part", PARTS)
def test_a_document_reads_what_it_reads_alone(part: str) -> None:
    # more tokens in the row than there are places
    layer, x = built(part, max_len=4), stream(1, 10)
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2]])
    packed = layer.read(x, "pattern", context=causal_context(x, document_ids=ids))["pattern"]
    for document in range(3):
        where = (ids[0] == document).nonzero()[:, 0]
        alone = layer.read(x[:, where], "pattern")["pattern"]
        close(packed[:, :, where][..., where], alone)


@in_one_pass
@pytest.mark.parametrize("part", KEYLESS)
def test_a_state_without_a_dot_product_holds_values_alone(part: str) -> None:
    layer, x = built(part), stream(2, 6)
    _, state = layer.module(x, causal_context(x), state=layer.module.begin(2, x))
    (held,) = tensors(state)
    assert held.shape == (2, 2, 6, 5)
    # and no key is read, from the state or from the pass
    q, k, v = layer.module.projection.heads(x, x, x)
    one, other = (layer.mixer(q, keys, v, x, causal_context(x), None, None)[0] for keys in (k, k * torch.nan))
    assert torch.equal(one, other)


@in_one_pass
@pytest.mark.parametrize("part", PARTS)
def test_longer_texts_are_refused_with_or_without_state(part: str) -> None:
    layer, x = built(part), stream(1, 10)
    with pytest.raises(TextError, match=r"10 tokens, but layer 0 has parameters .* max_len=9 .* shorten the text to 9"):
        layer(x)
    _, state = layer.module(x[:, :9], causal_context(x[:, :9]), state=layer.module.begin(1, x))
    step = make_context(1, 1, x.device, is_causal=True, past=9)
    with pytest.raises(TextError, match="10 tokens"):
        layer.module(x[:, 9:], step, state=state)
    with pytest.raises(TextError, match="10 tokens"):
        layer(x, causal_context(x, document_ids=torch.zeros(1, 10, dtype=torch.int64)))


@pytest.mark.parametrize("parts", [("dense",), ("random", "dot_product")], ids=lambda parts: "+".join(parts))
def test_a_state_can_be_cut_to_any_earlier_length(parts: Any) -> None:
    layer, x = built(*parts), stream(2, 6)
    _, state = layer.module(x, causal_context(x), state=layer.module.begin(2, x))
    assert layer.module.keeps(6)
    for cut in range(6):
        context = make_context(2, 6 - cut, x.device, is_causal=True, past=cut)
        close(layer.module(x[:, cut:], context, state=layer.module.cut(state, cut))[0], layer(x)[:, cut:])


def test_what_is_fixed_is_stored_and_has_no_gradient() -> None:
    layer = built("fixed").module
    assert layer.state_dict()["mixer.made_by.fixed.matrix"].shape == (4, 9, 9)
    assert not any("fixed" in name for name, _ in layer.named_parameters())


@pytest.mark.parametrize("parts", [*[(part,) for part in PARTS], PARTS], ids=lambda parts: "+".join(parts))
def test_it_costs_what_torch_counts(parts: Any) -> None:
    config = DecoderConfig(11, 12, (block(Synthesizer(parts), n_heads=3),), max_len=10)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        config.build()(torch.zeros(1, 7, dtype=torch.int64))
    assert counter.get_total_flops() == sum(count_flops(config, 7).values())


def test_configs_that_say_nothing_or_too_much_are_refused() -> None:
    with pytest.raises(ConfigError, match="one part at least"):
        Synthesizer(())
    with pytest.raises(ConfigError, match="a part twice"):
        Synthesizer(("dense", "dense"))
    with pytest.raises(ConfigError, match="rank must be at least 1"):
        Synthesizer(rank=0)
