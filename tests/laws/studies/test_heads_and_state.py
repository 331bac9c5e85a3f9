"""What the study of heads compares: as many parameters at a width, whatever the heads, and the state that it says."""

from collections import defaultdict

from glassformer.models.accounting import count_parameters, state_bytes
from glassformer.studies.heads_and_state import (
    DATA,
    DEPTH,
    GQA,
    MHA,
    MIDDLE,
    MQA,
    NARROW,
    ONE,
    STUDY,
    WIDEST,
    decoder,
    heads,
)

# the cases of one seed
SEED = [case for case in STUDY.cases("small") if case.seed == 0]


def test_models_of_a_width_have_the_same_number_of_parameters_to_the_last_one() -> None:
    found = defaultdict(set)
    for case in SEED:
        width, keys, d_head = case["width"], case["keys"], case["d_head"]
        found[width].add(sum(count_parameters(decoder(width, keys, d_head)).values()))
    assert [len(counts) for counts in found.values()] == [1, 1, 1]
    assert sorted(found) == sorted(found, key=lambda width: min(found[width]))


def test_heads_fill_the_stream_and_the_state_is_that_of_their_keys_and_values() -> None:
    for case in SEED:
        width, keys, d_head = case["width"], case["keys"], case["d_head"]
        n, kv = heads(width, keys, d_head)
        assert n * d_head == width or keys == ONE
        own, shared = kv == n, kv == 1
        expected = {MHA: (True, False), GQA: (False, False), MQA: (False, True), ONE: (True, True)}
        assert n % kv == 0 and (own, shared) == expected[keys]
        assert state_bytes(decoder(width, keys, d_head), DATA.length) == 4 * 2 * kv * d_head * DEPTH * DATA.length


def test_claims_at_equal_state_are_of_models_that_have_it() -> None:
    def state(keys: str, d_head: int) -> int:
        return state_bytes(decoder(WIDEST, keys, d_head), DATA.length)

    assert all(state(MQA, d_head) == state(ONE, d_head) for d_head in (NARROW, MIDDLE))
    assert state(GQA, NARROW) == state(MQA, MIDDLE)
    assert state(MHA, NARROW) == 16 * state(MQA, NARROW) == state(ONE, WIDEST)
