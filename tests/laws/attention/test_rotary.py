"""Scalings of rotary frequencies: what they keep, what they change, and what states make of those that go by length."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer import weights
from glassformer.analysis.sweep import grid, logit_difference, one_by_one, sweep
from glassformer.attention import (
    Attention,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Rope,
    RopeScaling,
    Softmax,
    YarnScaling,
)
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import GREEDY, Decoder, DecoderConfig, block, generate
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, seeds, stream
from glassformer.trace import Apply, At
from one_pass import in_one_pass

LONG = LongScaling((1.0, 1.5, 2.0), (4.0, 6.0, 9.0), original_length=6, factor=4.0)
SCALINGS: list[RopeScaling] = [
    LinearScaling(4.0),
    DynamicScaling(4.0, original_length=6),
    Llama3Scaling(4.0, original_length=16),
    YarnScaling(4.0, original_length=16, fast=2.0),
    YarnScaling(4.0, original_length=16, fast=2.0, truncate=False, attention_factor=0.8),
    LONG,
]
scalings = pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s.kind)
by_length = pytest.mark.parametrize("scaling", [DynamicScaling(4.0, original_length=6), LONG], ids=lambda s: s.kind)


def layer(scaling: RopeScaling | None, fraction: float = 1.0) -> Layer:
    rope = Rope(base=50.0, scaling=scaling, fraction=fraction)
    d_head = round(6 / fraction)
    return Layer(randomise(Attention(2, d_head=d_head, positions=rope).build(D_MODEL, 16, 0, "").double().eval()))


def decoder(scaling: RopeScaling, window: int | None = None) -> Decoder:
    layers = (block(Softmax(window=window), n_heads=2, d_head=6, positions=Rope(50.0, scaling=scaling)),) * 2
    return randomise(DecoderConfig(11, 12, layers, tied=False).build().double().eval())


def length(n: int) -> Tensor:
    return torch.tensor(n)


@scalings
def test_a_scaling_survives_json(scaling: RopeScaling) -> None:
    rope = Rope(scaling=scaling)
    assert Rope.from_json(rope.to_json()) == rope


@scalings
@given(seeds)
def test_scores_are_products_of_turned_queries_with_plain_keys(scaling: RopeScaling, seed: int) -> None:
    """Holds with an attention factor too, and where only a part of each head turns."""
    for fraction in (1.0, 0.5):
        attention, x = layer(scaling, fraction), stream(1, 5, seed)
        scores = attention.read(x, "scores")["scores"]
        w = weights.attention_views(attention.module)
        for offset in range(5):
            qk = w.qk(offset=offset).dense() * w.scale
            expected = torch.einsum("bqd,hde,bke->bhqk", x, qk, x)
            close(scores.diagonal(-offset, -2, -1), expected.diagonal(-offset, -2, -1))


@scalings
def test_placed_rows_are_what_queries_and_keys_are_at_a_position(scaling: RopeScaling) -> None:
    attention, x = layer(scaling), stream(1, 5)
    turned, plain = attention.read(x, "query", "key"), layer(None)
    raw = plain.module.projection.heads(x, x, x)
    for name, rows in zip(("query", "key"), raw):
        close(attention.module.positions.placed(rows, torch.arange(5)), turned[name])


@scalings
def test_a_turn_by_several_offsets_is_the_mean_of_the_turns(scaling: RopeScaling) -> None:
    attention, rows = layer(scaling), stream(1, 5)[0]
    rope = attention.module.positions
    close(rope.turned(rows, torch.tensor([0, 2, 5])), torch.stack([rope.turned(rows, d) for d in (0, 2, 5)]).mean(0))


def test_linear_scaling_interpolates_positions() -> None:
    scaled, plain = Rope(scaling=LinearScaling(4.0)), Rope()
    far, near = torch.tensor([[0, 4, 20]]), torch.tensor([[0, 1, 5]])
    for ours, theirs in zip(scaled.rows(far, 8, torch.float64), plain.rows(near, 8, torch.float64)):
        close(ours, theirs)


def test_dynamic_scaling_keeps_the_slowest_pair_within_what_it_turned_in_training() -> None:
    rope, n = Rope(scaling=DynamicScaling(1.0, original_length=64)), 640
    slowest = [float(rope.frequencies(16, length(m))[-1]) * m for m in (64, n)]
    assert math.isclose(slowest[0], slowest[1], rel_tol=1e-12)
    close(rope.frequencies(16, length(n))[:1], Rope().frequencies(16)[:1])


@given(st.integers(1, 6))
def test_up_to_the_trained_length_dynamic_scaling_is_none(n: int) -> None:
    close(Rope(scaling=DynamicScaling(4.0, 6)).frequencies(8, length(n)), Rope().frequencies(8))


def test_yarn_keeps_fast_pairs_and_slows_slow_ones() -> None:
    ratio = Rope().frequencies(64) / Rope(scaling=YarnScaling(8.0, original_length=2048)).frequencies(64)
    turns = 2048 * Rope().frequencies(64) / (2 * math.pi)
    # truncation widens the blend to whole pairs: one beyond either end
    assert (ratio[turns > 32][:-1] == 1).all()
    close(ratio[turns < 1][1:], torch.full_like(ratio[turns < 1][1:], 8.0))
    assert (ratio.diff() >= 0).all()


def test_yarn_scores_grow_by_the_square_of_its_factor() -> None:
    scaling, x = YarnScaling(4.0, original_length=16, attention_factor=3.0), stream(1, 5)
    scores, plain = (layer(s).read(x, "scores")["scores"] for s in (scaling, scaling.replace(attention_factor=1.0)))
    close(scores.tril(), 9 * plain.tril())
    assert math.isclose(YarnScaling(math.e).amplitude, 1.1)


def test_longrope_divides_by_one_set_of_factors_or_the_other() -> None:
    rope = Rope(scaling=LONG)
    for n, factors in ((None, LONG.short), (6, LONG.short), (7, LONG.long)):
        found = Rope().frequencies(6) / rope.frequencies(6, None if n is None else length(n))
        close(found, torch.tensor(factors, dtype=torch.float64))
    assert math.isclose(LONG.amplitude, math.sqrt(1 + math.log(4) / math.log(6)))


@by_length
@given(seeds)
def test_what_goes_by_length_takes_it_from_the_whole_pass(scaling: RopeScaling, seed: int) -> None:
    """Beyond the trained length a token in front of a text changes how far the text behind it is turned."""
    attention, x = layer(scaling), stream(1, 9, seed)
    key = attention.read(x, "key")["key"]
    near = attention.read(x[:, :6], "key")["key"]
    assert not torch.allclose(key[..., 1:6, :], near[..., 1:, :])
    # what a long pass does is what fixed factors would do
    positions: Any = attention.config.positions
    factors = positions.replace(scaling=None).frequencies(6) / positions.frequencies(6, length(9))
    fixed = layer(LongScaling(tuple(factors.tolist()), tuple(factors.tolist()), 6, attention_factor=scaling.amplitude))
    close(key, fixed.read(x, "key")["key"])


@by_length
def test_a_batch_is_as_long_as_its_longest_row(scaling: RopeScaling) -> None:
    model, tokens = decoder(scaling), torch.randint(0, 11, (2, 9))
    together = model(tokens, lengths=torch.tensor([9, 4]))
    close(together[:1], model(tokens[:1]))
    assert not torch.allclose(together[1:, :4], model(tokens[1:, :4]))
    assert torch.allclose(model(tokens[:, :6], lengths=torch.tensor([6, 4]))[1:, :4], model(tokens[1:, :4]))


def test_generation_rereads_a_text_that_outgrows_the_short_factors() -> None:
    model, texts = decoder(LONG), [[1, 2, 3], [4]]
    found = generate(model, texts, GREEDY, max_new_tokens=8).tokens
    for _ in range(8):
        longest = max(len(text) for text in texts)
        ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
        logits, _ = model(ids, lengths=torch.tensor([len(text) for text in texts]), state=model.begin(2))
        texts = [[*text, int(row.argmax())] for text, row in zip(texts, logits[:, -1])]
    assert [text[-8:] for text in texts] == [list(row) for row in found]


@by_length
def test_sweeps_that_start_late_see_the_whole_length(scaling: RopeScaling) -> None:
    """Keys kept from the base run were turned for its length; where that cannot be had, rows run from the start."""
    for window in (None, 12):
        model, tokens = decoder(scaling, window), torch.randint(0, 11, (1, 200))
        plan = grid(
            lambda layer, pos: [Apply(f"blocks.{layer}.resid_pre", lambda x: 2 * x, at=At(pos=pos))],
            layer=range(2), pos=[3, 197],
        )  # fmt: skip
        metric = logit_difference(3, 5)
        found, plain = (run(model, tokens, plan, metric).values.values for run in (sweep, one_by_one))
        close(found, plain)


@by_length
def test_weights_alone_do_not_tell_scores_beyond_the_trained_length(scaling: RopeScaling) -> None:
    w = weights.attention_views(layer(scaling).module)
    assert w.qk(offset=5).dense().isfinite().all()
    with pytest.raises(AnalysisUnavailable, match="only texts of more than 6 tokens reach that far"):
        w.qk(offset=6)


@in_one_pass
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearScaling(0.0), "linear: factor must be positive, found 0.0."),
        (lambda: YarnScaling(slow=40.0), "rope scaling: slow=40.0 must not be above fast=32.0."),
        (
            lambda: LongScaling((1.0,), (1.0, 2.0)),
            "rope scaling: 1 factors for short texts, but 2 for long ones; both have one for each pair that turns.",
        ),
        (
            lambda: layer(LongScaling((1.0,), (1.0,))),
            "rope scaling: 1 factors for 3 pairs that turn; give one for each.",
        ),
        (
            lambda: Attention(2, d_head=2, positions=Rope(scaling=DynamicScaling())).build(4, 4, 0, ""),
            "rope scaling: dynamic needs more than one pair to turn, found 1.",
        ),
    ],
)
def test_scalings_that_make_no_sense_raise(make, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == message


def test_a_fraction_that_was_a_quotient_loses_no_pair() -> None:
    lost = [(part, d_head) for d_head in range(2, 130, 2) for part in range(2, d_head + 1, 2)
            if Rope(fraction=part / d_head).width(d_head) != part]  # fmt: skip
    assert lost == []
