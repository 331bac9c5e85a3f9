"""Reformer.

One round of hashes: where a token meets nothing but itself, in several of them, weights of the reference in float32 sum
to 1 within a thousandth, as -100,000 leaves a score so few decimals. Several rounds are compared by layers, in float64.
"""

from pathlib import Path
from typing import Any

import torch

import glassformer as gf
from families import TOLERANCE, case, reference_folder
from glassformer.checkpoints.comparison.reference import relative, wide

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 12, "feed_forward_size": 20, "num_attention_heads": 2, "attention_head_size": 5,
    "max_position_embeddings": 24, "axial_pos_shape": [4, 6], "axial_pos_embds_dim": [4, 8], "is_decoder": True,
    "hash_seed": 7, "num_buckets": 4, "num_hashes": 1, "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4,
    "pad_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def check_reformer(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """Compare logits of texts that are no longer than a chunk, and of several chunks, whole ones or not."""
    errors = {}
    for n in (3, 4, 7, 8, 21, 24):
        theirs = reference_folder(kind, config, folder, dtype)
        ours: Any = gf.load(folder, dtype=dtype)
        tokens = torch.randint(3, ours.config.vocab_size, (2, n), generator=torch.Generator().manual_seed(n))
        with torch.no_grad(), wide(dtype):
            expected = theirs(input_ids=tokens, use_cache=False).logits
            errors[f"{n} tokens"] = relative(ours(tokens), expected)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


@case("Reformer", check_reformer)
def reformer() -> tuple[Any, Any]:
    from transformers import ReformerConfig, ReformerModelWithLMHead

    return ReformerModelWithLMHead, ReformerConfig(**_SIZES, attn_layers=["local", "lsh", "lsh"])


@case("Reformer", check_reformer)
def reformer_with_factors_of_buckets_and_a_table_of_positions() -> tuple[Any, Any]:
    from transformers import ReformerConfig, ReformerModelWithLMHead

    changes: dict[str, Any] = {"num_buckets": [2, 4], "axial_pos_embds": False, "hidden_act": "gelu_new"}
    return ReformerModelWithLMHead, ReformerConfig(
        **(_SIZES | changes), attn_layers=["lsh", "local"], local_num_chunks_before=0
    )
