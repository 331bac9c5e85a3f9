"""Identities of softmax attention with persistent tokens."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.attention import Alibi, Attention, Persistent, Rope, Softmax
from glassformer.errors import AnalysisUnavailable
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream


def layer(mixer: Any, seed: int = 0, **kwargs: Any) -> Layer:
    config = Attention(4, 2, d_head=4, mixer=mixer, **kwargs)
    return Layer(randomise(config.build(D_MODEL, 400, 0, "").double().eval(), seed))


@given(
    seeds,
    st.integers(1, 9),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([{}, {"positions": Alibi()}, {"positions": Rope()}]),
)
def test_rows_and_the_share_of_persistent_tokens_sum_to_one_and_values_and_offset_to_z(
    seed: int, n: int, window: int | None, slots: dict[str, Any]
) -> None:
    attention, x = layer(Persistent(3, window), seed, **slots), stream(2, n)
    found, fast = attention.read(x, "pattern", "persistent"), attention.read(x, "query", "value", "z")
    close(found["pattern"].sum(-1) + found["persistent"], torch.ones(2, 4, n, dtype=torch.float64))
    key, value = (rows.repeat_interleave(2, 0) for rows in (attention.mixer.key, attention.mixer.value))
    weights = (fast["query"] @ key.mT / 2).softmax(-1) * found["persistent"][..., None]
    close(found["pattern"] @ fast["value"].repeat_interleave(2, 1) + weights @ value, fast["z"])


@pytest.mark.parametrize("window", [None, 3])
def test_tokens_that_no_query_likes_are_as_good_as_none(window: int | None) -> None:
    x = stream(2, 9)
    plain, attention = layer(Softmax(window=window), positions=Rope()), layer(Persistent(2, window), positions=Rope())
    attention.module.load_state_dict(plain.module.state_dict(), strict=False)
    with torch.no_grad():
        attention.mixer.key.zero_()
        # an even share: as many keys of no score more
        share = attention.read(x, "persistent")["persistent"]
        close(attention.read(x, "pattern")["pattern"] / (1 - share[..., None]), plain.read(x, "pattern")["pattern"])
        query = attention.read(x, "query")["query"]
        attention.mixer.key[:] = -1e4 * query[0, 0, 0]
    close(attention.read(x, "z")["z"][0, 0, 0], plain.read(x, "z")["z"][0, 0, 0])


@pytest.mark.parametrize("window", [3, 40])
def test_long_texts_go_in_blocks_and_give_what_the_pattern_gives(window: int) -> None:
    attention, x = layer(Persistent(3, window), positions=Rope()), stream(1, 300)
    close(attention(x), attention(x, tape=attention.tape("pattern")))


def test_scores_of_a_text_alone_make_no_pattern() -> None:
    attention = layer(Persistent())
    scores = attention.read(stream(1, 4), "scores")["scores"]
    with pytest.raises(AnalysisUnavailable, match="of no text"):
        attention.mixer.normalised(scores)


def test_a_row_without_keys_reads_nothing() -> None:
    attention, x = layer(Persistent()), stream(2, 5)
    context = causal_context(x, start=torch.tensor([3, 0]))
    for names in ((), ("persistent",)):
        tape = attention.tape("z", *names)
        attention(x, context, tape=tape)
        assert (tape.values["z"][0, :, :3] == 0).all() and (tape.values["z"][0, :, 3:] != 0).any()
