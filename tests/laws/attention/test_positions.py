"""Identities of position encodings."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import (
    Alibi,
    Attention,
    Context,
    Dims,
    Llama3Scaling,
    PositionsConfig,
    QueryKeyOnly,
    Rope,
    alibi_slopes,
    causal,
    sinusoids,
)
from glassformer.errors import ConfigError, TextError
from glassformer.models import DecoderConfig, Learned, NoNorm, Sinusoidal, block
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, seeds, stream
from glassformer.testing.models import subject


def layer(positions: PositionsConfig, n_heads: int = 2, d_head: int = 6) -> Layer:
    config = Attention(n_heads, d_head=d_head, positions=positions)
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval()))


def at(positions: Tensor) -> Context:
    return Context(causal(), positions, positions)


def count(n: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + n)[None]


def turn(rope: Rope, x: Tensor, start: int = 0) -> Tensor:
    dims = Dims(D_MODEL, 1, 1, x.shape[-1], x.shape[-1], 16)
    turned, _ = rope.build(dims).rotate(x, None, at(count(x.shape[-2], start)))
    return turned


ROPES = [
    Rope(),
    Rope(pairing="interleaved"),
    Rope(fraction=0.5),
    Rope(base=50.0, scaling=Llama3Scaling(original_length=16)),
]
ropes = pytest.mark.parametrize("rope", ROPES, ids=["half", "interleaved", "partial", "scaled"])


@ropes
@given(seeds, st.integers(1, 1000))
def test_shifting_all_positions_leaves_rotary_patterns_alone(rope: Rope, seed: int, shift: int) -> None:
    attention, x = layer(rope), stream(1, 5, seed)
    here, there = (attention.read(x, "pattern", context=at(count(5, s)))["pattern"] for s in (0, shift))
    close(there, here, 1e-8)


@ropes
def test_turning_keeps_lengths_and_leaves_position_zero_alone(rope: Rope) -> None:
    x = torch.randn(1, 2, 7, 8, dtype=torch.float64)
    turned = turn(rope, x)
    close(turned.norm(dim=-1), x.norm(dim=-1))
    close(turned[..., 0, :], x[..., 0, :])
    assert (turned[..., 1:, :] != x[..., 1:, :]).any()


def test_interleaved_equals_half_split_after_permuting_the_columns() -> None:
    x = torch.randn(1, 2, 7, 8, dtype=torch.float64)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    close(turn(Rope(pairing="interleaved"), x)[..., order], turn(Rope(), x[..., order]))


def test_a_pair_turns_by_position_times_frequency() -> None:
    x = torch.zeros(1, 1, 4, 6, dtype=torch.float64)
    x[..., 1] = 1.0
    for t in range(4):
        angle = t * 10000 ** (-2 / 6)
        turned = turn(Rope(), x)[0, 0, t]
        assert math.isclose(turned[1], math.cos(angle)) and math.isclose(turned[4], math.sin(angle), abs_tol=1e-15)


def test_partial_rotation_leaves_the_rest_alone() -> None:
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    turned = turn(Rope(fraction=0.5), x)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    close(turned[..., :4], turn(Rope(), x[..., :4]))


def test_an_endless_base_turns_all_but_the_first_pair_nowhere() -> None:
    x = torch.randn(1, 1, 5, 4, dtype=torch.float64)
    turned = turn(Rope(base=1e300), x)
    close(turned[..., [1, 3]], x[..., [1, 3]])


def test_llama_3_scaling_keeps_29_frequencies_blends_6_and_divides_29() -> None:
    plain, scaled = (Rope(base=500000.0, scaling=s).frequencies(128) for s in (None, Llama3Scaling()))
    ratio = plain / scaled
    kept, divided = torch.isclose(ratio, torch.ones_like(ratio)), torch.isclose(ratio, torch.full_like(ratio, 8.0))
    assert (int(kept.sum()), int((~kept & ~divided).sum()), int(divided.sum())) == (29, 6, 29)
    assert kept[:29].all() and divided[35:].all()
    # in between, frequencies are blended linearly in original_length / wavelength
    turns = 8192 * plain[29:35] / (2 * math.pi)
    share = (turns - 1) / 3
    close(scaled[29:35], (1 - share) * plain[29:35] / 8 + share * plain[29:35])


def test_scaling_by_one_is_no_scaling() -> None:
    close(Rope(scaling=Llama3Scaling(factor=1.0)).frequencies(64), Rope().frequencies(64))


def test_angles_at_long_range_are_those_of_float64() -> None:
    x = torch.randn(1, 1, 3, 8)
    close(turn(Rope(), x, start=1_000_000), turn(Rope(), x.double(), start=1_000_000).float(), 1e-6)


# sinusoids and tables -----------------------------------------------------------------------------------------------


def test_products_of_sinusoids_depend_on_distance_and_lengths_are_half_the_width() -> None:
    p = sinusoids(torch.arange(20), 12)
    gram = p @ p.T
    for offset in range(20):
        diagonal = gram.diagonal(offset)
        close(diagonal, diagonal[:1].expand_as(diagonal))
    close(gram.diagonal(), torch.full((20,), 6.0, dtype=torch.float64))


def test_a_shift_of_sinusoids_is_a_rotation() -> None:
    p = sinusoids(torch.arange(30), 8)
    solution = torch.linalg.lstsq(p[:-3], p[3:]).solution
    close(p[:-3] @ solution, p[3:], 1e-7)
    close(solution @ solution.T, torch.eye(8, dtype=torch.float64), 1e-6)


def test_sinusoids_interleave_sine_and_cosine() -> None:
    p = sinusoids(torch.tensor([3]), 4)[0]
    expected = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    close(p, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("with_state", [False, True])
def test_more_tokens_than_learned_positions_raise(with_state: bool) -> None:
    config = DecoderConfig(7, 8, (block(n_heads=2),), max_len=5, positions=Learned())
    model = config.build()
    tokens = torch.zeros(1, 6, dtype=torch.long)
    with pytest.raises(TextError) as caught:
        if with_state:
            _, state = model(tokens[:, :4], state=model.begin(1))
            model(tokens[:, 4:], state=state)
        else:
            model(tokens)
    assert str(caught.value) == (
        "6 tokens, but the model has learned positions for max_len=5 only; shorten the text to 5 tokens."
    )


def test_without_positions_a_bidirectional_stack_is_permutation_equivariant() -> None:
    model = subject("translator_linear").model
    with torch.no_grad():
        model.encoder_embed.positions.weight.zero_()
    source, order = torch.randint(0, 11, (2, 6)), torch.tensor([5, 1, 3, 0, 2, 4])
    close(model.encode(source[:, order]), model.encode(source)[:, order])


# alibi --------------------------------------------------------------------------------------------------------------


def test_slopes_follow_the_paper() -> None:
    close(alibi_slopes(8), torch.tensor([2.0**-i for i in range(1, 9)], dtype=torch.float64))
    # six heads: the slopes of four, then every other one of eight
    close(alibi_slopes(6), torch.tensor([2.0**-e for e in (2, 4, 6, 8, 1, 3)], dtype=torch.float64))
    assert len(alibi_slopes(1)) == 1


@given(seeds, st.integers(1, 50))
def test_alibi_is_minus_slope_times_distance_and_shift_invariant(seed: int, shift: int) -> None:
    attention, x = layer(Alibi(), n_heads=4), stream(1, 5, seed)
    values = attention.read(x, "query", "key", "pattern", context=at(count(5)))
    age = (torch.arange(5.0)[:, None] - torch.arange(5.0)).double()
    scores = values["query"] @ values["key"].mT / 6**0.5 - alibi_slopes(4)[:, None, None] * age
    expected = scores.masked_fill(age < 0, -torch.inf).softmax(-1)
    close(values["pattern"], expected)
    close(attention.read(x, "pattern", context=at(count(5, shift)))["pattern"], expected)


def test_a_factor_multiplies_the_penalty_and_rounding_counts_from_the_first_position() -> None:
    positions, keys = torch.arange(400)[None], torch.arange(400)[None]
    plain = Alibi().bias(6, positions, keys)
    close(Alibi(factor=0.25).bias(6, positions, keys), 0.25 * plain)
    rounded = Alibi(factor=0.25, rounded="bfloat16").bias(6, positions, keys)
    # a distance behind each query less what is the same for all its keys
    below = torch.ones(400, 400, dtype=torch.bool).tril()
    exact = (0.25 * plain - 0.25 * plain[..., :1])[..., below]
    # eight bits of the slope, and eight of the product
    assert ((rounded[..., below] - exact).abs() <= exact.abs() * 2**-7).all()
    assert (rounded[..., below] != exact).any()


def test_alibi_refuses_a_mechanism_without_scores() -> None:
    from glassformer.attention import Linear
    from glassformer.errors import ConfigError

    with pytest.raises(ConfigError) as caught:
        Attention(2, mixer=Linear(), positions=Alibi()).build(8, 4, 0, "")
    assert str(caught.value) == 'attention: positions "alibi" add to scores, but "linear" has none.'


# positions added to queries and keys only ---------------------------------------------------------------------------


@given(seeds)
def test_values_and_the_stream_stay_free_of_positions(seed: int) -> None:
    attention, x = layer(QueryKeyOnly()), stream(1, 5, seed)
    here, there = (attention.read(x, "query", "value", context=at(count(5, s))) for s in (0, 7))
    assert torch.equal(here["value"], there["value"])
    assert not torch.equal(here["query"], there["query"])


def test_the_slowest_frequency_is_that_of_the_last_pair() -> None:
    wide = sinusoids(torch.tensor([5000]), 12, "halves", slowest=True)[0]
    close(wide[[5, 11]], torch.tensor([math.sin(0.5), math.cos(0.5)], dtype=torch.float64))
    # and the quickest is 1 either way
    assert torch.equal(wide[[0, 6]], sinusoids(torch.tensor([5000]), 12, "halves")[0][[0, 6]])


def test_fixed_positions_may_be_counted_from_any_number() -> None:
    ids, like = torch.arange(4)[None], torch.zeros(1, 4, 8, dtype=torch.float64)
    later = Sinusoidal("halves", offset=3).build(8, 16)(ids, like)
    assert torch.equal(later, Sinusoidal("halves").build(8, 16)(ids + 3, like))
    with pytest.raises(ConfigError, match="offset must not be negative"):
        Sinusoidal(offset=-1)


def test_queries_and_keys_read_the_stream_plus_sinusoids() -> None:
    attention, x = layer(QueryKeyOnly(amplitude=3.0)), stream(1, 5)
    plain = Layer(layer(QueryKeyOnly(amplitude=0.0)).module)
    placed = x + 3 * sinusoids(torch.arange(5), D_MODEL)
    with_positions, without = attention.read(x, "query", "key"), plain.read(placed, "query", "key")
    for name in ("query", "key"):
        close(with_positions[name], without[name])


def test_an_attention_only_model_keeps_positions_out_of_its_stream() -> None:
    """Without attention between them, equal tokens at different places stay equal."""
    config = DecoderConfig(7, 8, (block(n_heads=2, positions=QueryKeyOnly(), norm=NoNorm()),), final_norm=NoNorm())
    model = randomise(config.build().double())
    logits = model(torch.tensor([[3, 3, 3]]))
    close(logits, logits[:, :1].expand_as(logits))
