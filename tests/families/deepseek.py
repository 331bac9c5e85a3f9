"""DeepSeek V2 and V3."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from families import TOLERANCE, case, compared_whole, reference_folder
from glassformer.checkpoints.comparison.reference import reference

# V2 takes pairs of numbers for complex ones, which in float64 lie evenly only in heads of even width
_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 64, "kv_lora_rank": 10, "q_lora_rank": 9,
    "qk_rope_head_dim": 6, "qk_nope_head_dim": 4, "v_head_dim": 7, "moe_intermediate_size": 8, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "pad_token_id": None, "eos_token_id": None,
}  # fmt: skip
_YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 0.7,
}  # fmt: skip


def _v2(**changes: Any) -> tuple[Any, Any]:
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    return DeepseekV2ForCausalLM, DeepseekV2Config(**(_SIZES | changes))


def _v3(**changes: Any) -> tuple[Any, Any]:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    sizes: dict[str, Any] = _SIZES | {"n_group": 3, "topk_group": 2} | changes
    return DeepseekV3ForCausalLM, DeepseekV3Config(**sizes)


@case("DeepSeek V2")
def deepseek_v2() -> tuple[Any, Any]:
    return _v2()


@case("DeepSeek V2")
def deepseek_v2_lite_queries_of_the_stream() -> tuple[Any, Any]:
    return _v2(q_lora_rank=None, first_k_dense_replace=0, rope_parameters=_YARN)


@case("DeepSeek V2")
def deepseek_v2_groups_of_experts_tied() -> tuple[Any, Any]:
    return _v2(
        topk_method="group_limited_greedy", n_group=3, topk_group=2, routed_scaling_factor=1.7, n_shared_experts=1,
        num_experts_per_tok=3, tie_word_embeddings=True, rope_parameters=_YARN | {"mscale": 1.0},
    )  # fmt: skip


def biased_choice(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """Compare as decoders are, the biases of the choice, which the reference keeps as buffers, set as well."""
    reference_folder(kind, config, folder, dtype)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("e_score_correction_bias")]:
        tensors[name] = torch.linspace(-0.4, 0.5, tensors[name].numel(), dtype=tensors[name].dtype).flip(0)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    errors, _ = compared_whole(reference(folder, dtype), folder, dtype)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


@case("DeepSeek V3", check=biased_choice)
def deepseek_v3() -> tuple[Any, Any]:
    return _v3(rope_parameters=_YARN)


@case("DeepSeek V3")
def deepseek_v3_halves_turn_and_shares_are_as_they_are() -> tuple[Any, Any]:
    return _v3(
        rope_interleave=False, norm_topk_prob=False, q_lora_rank=None, n_shared_experts=2, first_k_dense_replace=0,
        tie_word_embeddings=True,
    )  # fmt: skip
