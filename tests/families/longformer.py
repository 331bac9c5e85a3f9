"""Longformer."""

from pathlib import Path
from typing import Any

import torch

import glassformer as gf
from families import TOLERANCE, case, reference_folder
from families.bert import check_encoder
from glassformer.checkpoints.comparison.reference import relative, wide

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 32, "pad_token_id": 1,
}  # fmt: skip


def check_longformer(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """Compare as every encoder, and with global tokens: as many in each row, and not; with padding, and without."""
    errors = check_encoder(kind, config, folder, dtype)
    theirs = reference_folder(kind, config, folder, dtype)
    ours: Any = gf.load(folder, dtype=dtype)
    tokens = torch.randint(3, ours.config.vocab_size, (3, 11), generator=torch.Generator().manual_seed(2))
    marked = torch.zeros_like(tokens, dtype=torch.bool)
    marked[:, 0] = True
    for name, lengths in (("alike", None), ("unlike", None), ("unlike, padded", torch.tensor([11, 8, 9]))):
        if name != "alike":
            marked[1, 4:7] = marked[2, 5] = True
        real = torch.ones_like(tokens) if lengths is None else (torch.arange(11) < lengths[:, None]).long()
        ids = tokens.masked_fill(real == 0, 1)
        with torch.no_grad(), wide(dtype):
            out = theirs(input_ids=ids, attention_mask=real, global_attention_mask=marked.long())
            found = ours(ids, lengths=lengths, marked=marked)
        expected = out.logits if "logits" in out else out.last_hidden_state
        errors[f"global tokens, {name}"] = relative(found, expected, real.bool())
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


@case("Longformer", check_longformer)
def longformer() -> tuple[Any, Any]:
    from transformers import LongformerConfig, LongformerForMaskedLM

    return LongformerForMaskedLM, LongformerConfig(**_SIZES, attention_window=4)


@case("Longformer", check_longformer)
def longformer_with_a_window_by_layer() -> tuple[Any, Any]:
    from transformers import LongformerConfig, LongformerForMaskedLM

    changes: dict[str, Any] = {"attention_window": [4, 8], "hidden_act": "relu", "tie_word_embeddings": False}
    return LongformerForMaskedLM, LongformerConfig(**_SIZES, **changes)


@case("Longformer", check_longformer)
def longformer_without_a_head() -> tuple[Any, Any]:
    from transformers import LongformerConfig, LongformerModel

    return LongformerModel, LongformerConfig(**_SIZES, attention_window=6)
