"""Configs and files as they were published, in the layout of their day: they read as those of today do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import glassformer as gf
from families import all_cases, reference_folder
from glassformer.checkpoints.published import translated
from glassformer.models.accounting import count_parameters
from one_pass import in_one_pass

WHERE = Path("config.json")
# what config.json of each says, and how many parameters its authors count
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt-neo-125m": (
        {
            "model_type": "gpt_neo", "vocab_size": 50257, "hidden_size": 768, "num_layers": 12, "num_heads": 12,
            "intermediate_size": None, "attention_types": [[["global", "local"], 6]], "window_size": 256,
            "max_position_embeddings": 2048, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        },
        125_198_592,
    ),
    "pythia-70m": (
        {
            "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 512, "num_hidden_layers": 6,
            "num_attention_heads": 8, "intermediate_size": 2048, "hidden_act": "gelu", "rotary_pct": 0.25,
            "rotary_emb_base": 10000, "max_position_embeddings": 2048, "layer_norm_eps": 1e-5,
            "use_parallel_residual": True, "tie_word_embeddings": False,
        },
        70_426_624,
    ),
    "gpt-j-6b": (
        {
            "model_type": "gptj", "vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64,
            "n_inner": None, "n_positions": 2048, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "rotary": True, "scale_attn_weights": True, "tie_word_embeddings": False,
        },
        6_050_882_784,
    ),
    "opt-350m": (
        {
            "model_type": "opt", "vocab_size": 50272, "hidden_size": 1024, "word_embed_proj_dim": 512, "ffn_dim": 4096,
            "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 2048,
            "do_layer_norm_before": False, "activation_function": "relu",
        },
        331_196_416,
    ),
    "phi-2": (
        {
            "model_type": "phi", "vocab_size": 51200, "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": None, "hidden_act": "gelu_new",
            "partial_rotary_factor": 0.4, "rope_theta": 10000.0, "rope_scaling": None, "qk_layernorm": False,
            "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "tie_word_embeddings": False,
        },
        2_779_683_840,
    ),
}  # fmt: skip


@in_one_pass
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_published_number_of_parameters(name: str) -> None:
    config, expected = PUBLISHED[name]
    assert sum(count_parameters(translated(config, WHERE)[1]).values()) == expected


@in_one_pass
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_says_the_same_in_the_layout_of_its_day_and_in_todays(name: str) -> None:
    from transformers import CONFIG_MAPPING

    config, _ = PUBLISHED[name]
    today = CONFIG_MAPPING[config["model_type"]].from_dict(config).to_dict()
    assert translated(config, WHERE)[1] == translated(today, WHERE)[1]


def _renamed(old: str, new: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name.replace(old, new): value for name, value in tensors.items()}


def _with(*names: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: tensors | {name: torch.ones(1) for name in names}


NEOX, NEO = "gpt_neox.layers.0.attention", "transformer.h.0.attn.attention"
# what files of other days hold in place of, or beside, what is written now
FILES: dict[str, tuple[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]]] = {
    "unembedding under its newer name": ("gpt_neox_parallel_quarter_rotary", _renamed("embed_out.", "lm_head.")),
    "masks and angles of GPT-NeoX": (
        "gpt_neox_parallel_quarter_rotary", _with(f"{NEOX}.bias", f"{NEOX}.masked_bias", f"{NEOX}.rotary_emb.inv_freq")
    ),
    "masks of GPT-Neo": ("gpt_neo_alternating_windows", _with(f"{NEO}.bias", f"{NEO}.masked_bias")),
    "masks of GPT-J": ("gptj_part_of_each_head_turns", _with("transformer.h.0.attn.bias")),
    "OPT without its first prefix": ("opt_norms_before", _renamed("model.decoder.", "decoder.")),
    "the tied matrix of OPT twice": (
        "opt_norms_before", lambda t: t | {"lm_head.weight": t["model.decoder.embed_tokens.weight"].clone()}
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_a_file_of_another_day_gives_the_same_model(what: str, tmp_path: Path) -> None:
    name, changed = FILES[what]
    reference_folder(*all_cases()[name].make(), tmp_path, torch.float32)
    weights = tmp_path / "model.safetensors"
    expected = gf.load(tmp_path).state_dict()
    save_file(changed(load_file(weights)), weights)
    found = gf.load(tmp_path).state_dict()
    assert all(torch.equal(found[key], value) for key, value in expected.items()) and len(found) == len(expected)
