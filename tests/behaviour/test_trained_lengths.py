"""How long the rows were that a published model was trained on: what its config says, read right, and kept."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from families import all_cases, reference_folder
from glassformer.checkpoints import convert
from glassformer.checkpoints.families import FIELD, Fields, trained_length
from glassformer.checkpoints.published import translated
from one_pass import in_one_pass

CASES = all_cases()
# what models of these say of their longest context, by the name they have for it
SAYS_ELSEWHERE = {"MPT": "max_seq_len", "Bloom": "seq_length", "RWKV": "context_length"} | dict.fromkeys(
    ("GPT-2", "GPT-J", "CodeGen", "GPT-BigCode", "T5"), "n_positions"
)
# columns that are kept for positions that padding takes
RESERVED = {
    "roberta": 2, "roberta_in_other_languages": 3, "longformer": 2, "longformer_with_a_window_by_layer": 2,
    "longformer_without_a_head": 2,
}  # fmt: skip
# scaled rotary positions: what was trained before they were stretched, or the whole where training used them
SPECIAL = {
    "llama_linear_scaling": 64, "llama_dynamic_scaling": 5, "llama_llama3_scaling": 64, "llama_yarn_scaling": 16,
    "llama_longrope_scaling": 64, "phi3_longrope": 20, "gpt_oss_sinks_and_experts": 64, "cwm_windows": 64,
    "gemma3_scaled_rotary_positions_in_global_layers": 64, "olmo3_scaled_where_it_sees_everything": 64,
    "deepseek_v2_lite_queries_of_the_stream": 16, "deepseek_v2_groups_of_experts_tied": 16, "deepseek_v3": 16,
}  # fmt: skip


@functools.cache
def said_by(name: str) -> dict[str, Any]:
    kind, config = CASES[name].make()
    return {"architectures": [kind.__name__]} | config.to_dict()


def read(said: dict[str, Any]) -> int | None:
    family, ours = translated(said, Path("config.json"))
    return trained_length(family, Fields(said), ours)


def test_every_case_with_scaled_positions_has_its_length_written_down_here() -> None:
    def is_scaled(said: dict[str, Any]) -> bool:
        rope: dict[str, Any] = said.get("rope_parameters") or {}
        return any(
            part.get("rope_type", "default") != "default"
            for part in (rope, *rope.values())
            if part and isinstance(part, dict)
        )

    assert {name for name in CASES if is_scaled(said_by(name))} == set(SPECIAL)


@in_one_pass
@pytest.mark.parametrize("name", CASES)
def test_the_length_a_config_says_is_the_trained_one_and_none_is_made_up(name: str) -> None:
    said = said_by(name)
    field = SAYS_ELSEWHERE.get(CASES[name].family, "max_position_embeddings")
    if field in said:
        assert read(said) == SPECIAL.get(name, said[field] - RESERVED.get(name, 0))
    silent = {key: value for key, value in said.items() if key != field and key != "n_ctx"}
    if name not in SPECIAL:
        assert read(silent) is None
        assert read(silent | {field: 48}) == 48 - RESERVED.get(name, 0)
        assert read(said | {FIELD: 5}) == 5
    assert read(said | {FIELD: None}) is None


@pytest.mark.parametrize("name", ["mistral_sliding_window", "gemma2_caps_and_windows", "gpt_neo_alternating_windows"])
def test_a_window_is_no_limit(name: str) -> None:
    assert read(said_by(name)) == 64


@pytest.mark.parametrize(
    "name", ["llama_yarn_scaling", "llama_dynamic_scaling", "phi3_longrope", "mpt", "t5", "bloom", "roberta", "xglm"]
)
def test_conversions_keep_what_is_known_and_that_nothing_is(name: str, tmp_path: Path) -> None:
    reference_folder(*CASES[name].make(), tmp_path / "theirs", torch.float32)
    known = gf.load(tmp_path / "theirs").trained_length
    assert known == read(json.loads((tmp_path / "theirs" / "config.json").read_text()))
    ours = convert(tmp_path / "theirs", tmp_path / "ours")
    assert gf.load(ours).trained_length == known
    assert gf.load(convert(ours, tmp_path / "back", "huggingface")).trained_length == known


def test_a_model_of_which_no_length_is_known_gets_none_from_the_fields_of_another_layout(tmp_path: Path) -> None:
    reference_folder(*CASES["llama_grouped_keys"].make(), tmp_path / "theirs", torch.float32)
    model = gf.load(tmp_path / "theirs")
    model.origin = model.trained_length = None
    gf.save(model, tmp_path / "ours")
    for to in ("huggingface", "transformer-lens"):
        there = convert(tmp_path / "ours", tmp_path / to, to)
        assert gf.load(there).trained_length is None, to
        assert gf.load(convert(there, tmp_path / f"{to}-back")).trained_length is None, to
