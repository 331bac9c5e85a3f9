"""Errata: what articles say is not so, and by how much."""

import math

from glassformer.book import errata


def test_heads_read_all_of_x() -> None:
    found = errata.pieces_of_x()
    # were rows of matrices drawn alike, 7 of 8 parts would lie outside
    assert found["if x were cut"] < 0.8 < found["least"] <= found["most"] < 0.95


def test_the_printed_parameters_are_those_of_50257_tokens() -> None:
    found = errata.size_of_vocabulary()
    assert found["tokens"] == 50_257
    assert found["product"] == found["printed product"] != found["their product"]


def test_what_is_masked_lies_above_the_diagonal_if_queries_are_rows_and_below_it_if_keys_are() -> None:
    found = errata.masked_triangle()
    masked = {where for where, total in found.items() if total == 0}
    assert masked == {"above the diagonal, queries as rows", "below the diagonal, keys as rows"}


def test_a_noun_looks_at_its_adjective_and_never_the_other_way_round() -> None:
    found = errata.who_attends()
    assert found["fluffy to creature"] == 0.0 and found["creature to fluffy"] > 0.5


def test_weights_of_a_mixture_sum_to_one_and_the_printed_ones_do_not() -> None:
    found = errata.sum_of_weights()
    assert math.isclose(found["printed"], 1.1) and abs(found["of a head"] - 1) < 1e-6


def test_queries_keys_and_values_are_a_quarter_of_a_layer_and_a_third_with_the_output() -> None:
    found = errata.share_of_queries_keys_values()
    assert math.isclose(found["query, key and value of a layer"], 1 / 4)
    assert math.isclose(found["with output"], 1 / 3)
    assert found["query, key and value of the model"] < 1 / 4


def test_true_is_seen_in_one_call_of_torch_and_hidden_in_the_other() -> None:
    found = errata.meaning_of_true()
    right = {call for call, gap in found.items() if gap < 1e-12}
    assert right == {"scaled_dot_product_attention, True is seen", "MultiheadAttention, True is hidden"}
    assert min(gap for call, gap in found.items() if call not in right) > 0.1


def test_a_matrix_that_tokens_share_tells_none_of_the_others() -> None:
    found = errata.shared_matrix()
    assert found["query"] == 0.0 and found["mixed values"] > 0.01


def test_rows_of_linear_attention_have_more_entropy_than_those_of_softmax() -> None:
    found = errata.entropy_of_linear()
    assert found["softmax"] < found["linear"] < found["all alike"]


def test_a_longer_vector_in_the_same_direction_beats_the_diagonal() -> None:
    found = errata.largest_on_the_diagonal()
    assert found["(1, 0) and (2, 0)"] == 0.5
    assert 0.5 < found["as they are"] < 1 == found["of length 1"]
    # by the inequality of Cauchy and Schwarz
    assert found["largest of all"] == 1


def test_the_printed_log_softmax_is_the_same_for_every_score() -> None:
    found = errata.index_of_log_softmax()
    assert found["spread as printed"] < 1e-12 and math.isclose(found["each as printed"], -math.log(3))
    assert math.isclose(found["spread"], 2) and found["from torch"] < 1e-12


def test_the_theorem_of_pola_needs_a_function_that_is_zero_at_zero() -> None:
    found = errata.theorem_of_pola()
    assert math.isclose(found["before"], 0.6365, abs_tol=1e-4) and math.isclose(
        found["after e^x"], 0.6919, abs_tol=1e-4
    )
    assert found["x^2"] == found["e^x - 1"] == found["x^2 + x"] == 1.0
    assert max(found["e^x"], found["x^2 + 1"]) < 0.5


def test_later_tokens_change_the_published_form_of_hashed_attention_and_not_ours() -> None:
    found = errata.later_tokens_and_hashes()
    assert found["as published"] > 0.01 and found["chunks within buckets"] < 1e-12


def test_a_rule_on_ids_takes_a_word_for_padding() -> None:
    assert errata.word_or_padding() == {"hidden": 3, "padding": 2, "first": 1}


def test_a_short_circuit_saves_no_byte_and_costs_what_was_learned_by_heart() -> None:
    found = errata.memory_of_short_circuits()
    assert found["bytes, whole"] == found["bytes, short-circuited"] > 0
    assert found["recited without the last two"] < 0.5
