"""T5, versions 1.0 and 1.1, and mT5."""

import json
from pathlib import Path
from typing import Any

import torch

from families import case, reference_folder
from families.pairs import check_pair, compare_pair

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_heads": 3,
    "decoder_start_token_id": 0,
}  # fmt: skip


@case("T5", check_pair)
def t5() -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration, T5Config(**_SIZES)


@case("T5", check_pair)
def t5_deeper_decoder_few_buckets() -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    few: dict[str, Any] = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    return T5ForConditionalGeneration, T5Config(**_SIZES, **few, num_decoder_layers=3, feed_forward_proj="gated-silu")


def check_untied(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """Compare as published: an unembedding of its own, and a config that says so."""
    theirs = reference_folder(kind, config, folder, dtype)
    drawn = torch.randn(theirs.lm_head.weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theirs.lm_head.weight = torch.nn.Parameter(0.3 * drawn.to(dtype))
    theirs.all_tied_weights_keys.pop("lm_head.weight")
    theirs.save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(said))
    return compare_pair(theirs, folder, dtype)


@case("T5", check_untied)
def t5_of_version_1_1() -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(**(_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}))
    return T5ForConditionalGeneration, config


@case("T5", check_pair)
def mt5() -> tuple[Any, Any]:
    from transformers import MT5Config, MT5ForConditionalGeneration

    return MT5ForConditionalGeneration, MT5Config(**(_SIZES | dict[str, Any](num_layers=1)))
