"""Bloom and Falcon."""

from pathlib import Path
from typing import Any

import torch

import glassformer as gf
from families import STEPS, TOLERANCE, case, generated, left_padded, reference_folder
from glassformer.checkpoints.comparison.reference import relative, wide

SIZES: dict[str, Any] = {"vocab_size": 23, "hidden_size": 24, "pad_token_id": None}


def _bloom(**changes: Any) -> tuple[Any, Any]:
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM, BloomConfig(**{**SIZES, "n_layer": 2, **changes})


@case("Bloom")
def bloom() -> tuple[Any, Any]:
    return _bloom(n_head=4)


@case("Bloom")
def bloom_of_six_heads_untied() -> tuple[Any, Any]:
    return _bloom(n_head=6, tie_word_embeddings=False)


def _falcon(**changes: Any) -> tuple[Any, Any]:
    from transformers import FalconConfig, FalconForCausalLM

    sizes: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
    return FalconForCausalLM, FalconConfig(**(SIZES | sizes | changes))


@case("Falcon")
def falcon_of_one_key_head_and_one_norm() -> tuple[Any, Any]:
    return _falcon()


@case("Falcon")
def falcon_of_grouped_keys_and_two_norms() -> tuple[Any, Any]:
    return _falcon(new_decoder_architecture=True, num_kv_heads=2, bias=True, ffn_hidden_size=20)


@case("Falcon")
def falcon_of_grouped_keys_and_one_norm_untied() -> tuple[Any, Any]:
    return _falcon(
        new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, tie_word_embeddings=False
    )  # fmt: skip


@case("Falcon")
def falcon_in_sequence_with_a_key_head_each() -> tuple[Any, Any]:
    return _falcon(multi_query=False, parallel_attn=False, bias=True)


def without_patterns(kind: Any, config: Any, folder: Path, dtype: torch.dtype) -> dict[str, float]:
    """Compare logits and streams where the reference's eager attention is not the one its models run.

    With ALiBi it adds the penalty to the mask and again to the scores; its fused attention, the default, adds it once.
    """
    theirs = reference_folder(kind, config, folder, dtype)
    theirs.config._attn_implementation = "sdpa"
    ours: Any = gf.load(folder, dtype=dtype)
    tokens = torch.randint(0, 23, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), wide(dtype):
        expected = theirs(input_ids=tokens, output_hidden_states=True, use_cache=False)
    run = gf.run(ours, tokens, read=["blocks.*.resid_pre", "final.norm"])
    assert run.logits is not None
    names = [*(f"blocks.{i}.resid_pre" for i in range(2)), "final.norm"]
    errors = {name: relative(run[name].values, hidden) for name, hidden in zip(names, expected.hidden_states)}
    errors["logits"] = relative(run.logits, expected.logits)
    errors["padded left"] = left_padded(ours, theirs, tokens, torch.tensor([40, 30, 1]))
    errors["cached generation"] = generated(ours, theirs, tokens[:2, :7], STEPS)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


@case("Falcon", check=without_patterns)
def falcon_with_alibi_in_sequence() -> tuple[Any, Any]:
    return _falcon(alibi=True, multi_query=False, parallel_attn=False, bias=True, num_attention_heads=6)


@case("Falcon", check=without_patterns)
def falcon_with_alibi_and_one_key_head() -> tuple[Any, Any]:
    return _falcon(alibi=True)
