"""Every command on every family: what works is listed, so that nothing stops working unnoticed."""

from pathlib import Path

import pytest
import torch

from families import all_cases, reference_folder
from family_commands import COMMANDS, WORKS, in_words, outcomes, with_tokenizer

CASES = all_cases()
# the first case of a family
FIRST = {case.family: name for name, case in reversed(CASES.items())}

REFUSED = "AnalysisUnavailable"
QK, OV, INDUCTION = "skip-trigrams", "copying by eigenvalues", "induction from weights"
OFFSETS, BANDWIDTH, SEEN = "heads that go by position", "bandwidth", "prefix matching"
ON_TEXT = ("ablation", "loss by position")


def circuits_without(*analyses: str) -> dict[str, str]:
    return {"circuits": f"{WORKS} without: {', '.join(sorted(analyses))}"}


# whatever is not listed works, with every analysis that it consists of
EXCEPTIONS: dict[str, dict[str, str]] = {
    # scores that no product of two matrices gives: a rotation by the text's length
    **dict.fromkeys(("llama_longrope_scaling", "phi3_longrope"), circuits_without(OFFSETS, INDUCTION, QK)),
    # and a context of a few tokens has no late ones to compare with early ones
    "llama_dynamic_scaling": circuits_without(OFFSETS, INDUCTION, QK, "loss by position"),
    # two maps per head, and a pattern that is their difference
    **dict.fromkeys(("diffllama_grouped_keys", "diffllama_biases_tied"), circuits_without(INDUCTION, QK)),
    # values that are cut off are no matrix's either
    **dict.fromkeys(
        ("olmo_clipped", "mpt_of_six_heads_clipped_untied"),
        circuits_without("composition", OV, OFFSETS, INDUCTION, QK),
    ),
    # and so are those that convolutions mix with those before them
    **dict.fromkeys(
        (
            "mamba2", "mamba2_one_group_tied_without_biases_of_convolutions",
            "mamba2_a_group_for_each_head_of_a_wider_stream", "mamba2_biases", "mamba2_limited_steps",
        ),
        circuits_without("composition", OV, OFFSETS, INDUCTION, QK),
    ),
    # scales of normed latents are held, but not for each position; experts are as below
    **dict.fromkeys(
        (
            "deepseek_v2", "deepseek_v2_lite_queries_of_the_stream", "deepseek_v2_groups_of_experts_tied",
            "deepseek_v3", "deepseek_v3_halves_turn_and_shares_are_as_they_are",
        ),
        circuits_without(BANDWIDTH, QK),
    ),
    # what is read at two positions is no matrix's, nor what is mixed by one head for each channel
    **dict.fromkeys(
        ("rwkv", "rwkv_deeper_narrow_mlp_tied"),
        circuits_without(BANDWIDTH, "composition", OV, OFFSETS, INDUCTION, QK),
    ),
    # which experts' matrices count differs by position
    **dict.fromkeys(
        (
            "gpt_oss_sinks_and_experts", "gpt_oss_tied_without_biases_and_narrow_limits", "mixtral",
            "mixtral_three_of_five_with_a_window", "qwen3_moe",
            "qwen3_moe_with_a_dense_layer_and_shares_that_sum_to_one", "olmoe",
            "olmoe_with_biases_and_shares_that_sum_to_one",
        ),
        circuits_without(BANDWIDTH),
    ),
    # norms on the stream itself, and gates, scales and an activation in the way of most layers' circuits
    **dict.fromkeys(
        ("minimax_layers_in_turn_and_a_larger_stream", "minimax_with_a_window"), circuits_without(BANDWIDTH, INDUCTION)
    ),
    "minimax_lightning_first_and_three_of_five_experts": circuits_without(BANDWIDTH, "composition", INDUCTION, QK),
    "opt_norms_behind_and_narrow_token_vectors": circuits_without(BANDWIDTH, INDUCTION),
    # losses are for models that go on from a text, and an encoder sees what comes next
    **dict.fromkeys(
        (
            "t5", "t5_deeper_decoder_few_buckets", "t5_of_version_1_1", "mt5", "blenderbot", "m2m_100",
            "m2m_100_untied_not_scaled", "pegasus",
        ),
        circuits_without(SEEN, *ON_TEXT),
    ),
    **dict.fromkeys(
        ("marian", "marian_with_separate_embeddings"), circuits_without(BANDWIDTH, INDUCTION, SEEN, *ON_TEXT)
    ),
    # and sources in a vocabulary of their own, for which the folder has no tokenizer
    **dict.fromkeys(
        ("marian_with_fewer_tokens_to_write", "marian_with_more_tokens_to_write_untied"),
        circuits_without(BANDWIDTH, INDUCTION, SEEN, *ON_TEXT)
        | dict.fromkeys(("explain", "lens", "patch", "generate"), "TextError"),
    ),
    # and a norm over the sum of a token's and a position's vector
    **dict.fromkeys(
        ("bart", "bart_scaled_uneven_untied", "mbart", "mbart_scaled_untied", "plbart"),
        circuits_without(BANDWIDTH, OV, OFFSETS, INDUCTION, QK, SEEN, *ON_TEXT),
    ),
    **dict.fromkeys(
        (
            "bert", "bert_untied_with_three_types", "big_bird", "big_bird_with_full_attention", "roberta",
            "roberta_in_other_languages", "distilbert", "distilbert_with_sines",
        ),
        {"generate": REFUSED} | circuits_without(BANDWIDTH, OV, OFFSETS, INDUCTION, QK, SEEN, *ON_TEXT),
    ),
    # two patterns per head, each of values of its own
    **dict.fromkeys(
        ("longformer", "longformer_with_a_window_by_layer"),
        {"generate": REFUSED}
        | circuits_without(
            BANDWIDTH, OV, OFFSETS, INDUCTION, QK, SEEN, "what heads attend to", *ON_TEXT
        ),
    ),
    # halves of a stream are not folded, and its hashes go by whole texts
    "reformer": dict.fromkeys(("generate", "circuits"), REFUSED),
    "reformer_with_factors_of_buckets_and_a_table_of_positions": dict.fromkeys(("generate", "circuits"), REFUSED),
    # without logits there is only the stream to be read
    "longformer_without_a_head": dict.fromkeys(("generate", "explain", "lens", "patch", "circuits"), REFUSED),
    "big_bird_without_a_head": dict.fromkeys(("generate", "explain", "lens", "patch", "circuits"), REFUSED),
    "bert_without_a_head": dict.fromkeys(("generate", "explain", "lens", "patch", "circuits"), REFUSED),
}  # fmt: skip


# one family stands for all of which the same is expected; the full sweep walks every case
STANDS = {(CASES[name].check.__name__, str(EXCEPTIONS.get(name))): name for name in FIRST.values()}


@pytest.mark.parametrize(
    "name", [name if name in STANDS.values() else pytest.param(name, marks=pytest.mark.full) for name in CASES]
)
def test_commands_work_or_say_in_a_typed_error_why_not(name: str, tmp_path: Path) -> None:
    reference_folder(*CASES[name].make(), tmp_path, torch.float32)
    found = outcomes(with_tokenizer(tmp_path))
    assert found == expected(name)


def expected(name: str) -> dict[str, str]:
    """Return what every command makes of a case."""
    return dict.fromkeys(COMMANDS, WORKS) | EXCEPTIONS.get(name, {})


def test_the_page_of_families_says_what_works_as_it_is_found_here() -> None:
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    section = page.partition("## What works\n\n")[2].partition("\n\n## ")[0]
    lines = [line.removeprefix("- ").partition(": ") for line in section.splitlines()]
    told = {name: words for names, _, words in lines for name in names.split(", ")}
    found = {family: in_words(expected(name)) for family, name in FIRST.items()}
    assert {family: told.get(family) for family in found} == found, "run `make families`"


def test_exceptions_are_of_cases_that_exist() -> None:
    assert set(EXCEPTIONS) <= set(CASES)
