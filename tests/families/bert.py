"""BERT, RoBERTa and DistilBERT."""

from pathlib import Path
from typing import Any

import torch

from families import TOLERANCE, case, compared_whole, reference_folder
from glassformer.checkpoints.comparison.reference import relative, wide


def check_encoder(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """Compare an encoder with its reference: logits, hidden states, patterns, padding on both sides, token types."""
    theirs = reference_folder(kind, config, folder, dtype)
    # 0 to 2 may be padding, for which some references have a position of its own
    errors, ours = compared_whole(theirs, folder, dtype, first=3)
    if ours.embed.types is not None:
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(3, ours.config.vocab_size, (3, 7), generator=generator)
        types = torch.randint(0, len(ours.embed.types), tokens.shape, generator=generator)
        with torch.no_grad(), wide(dtype):
            out = theirs(input_ids=tokens, token_type_ids=types)
        expected = out.logits if "logits" in out else out.last_hidden_state
        errors["token types"] = relative(ours(tokens, types=types), expected)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 32,
}  # fmt: skip


@case("BERT", check_encoder)
def bert() -> tuple[Any, Any]:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM, BertConfig(**_SIZES)


@case("BERT", check_encoder)
def bert_untied_with_three_types() -> tuple[Any, Any]:
    from transformers import BertConfig, BertForMaskedLM

    changes: dict[str, Any] = {"hidden_act": "relu", "tie_word_embeddings": False, "type_vocab_size": 3}
    return BertForMaskedLM, BertConfig(**(_SIZES | changes), layer_norm_eps=1e-5)


@case("BERT", check_encoder)
def bert_without_a_head() -> tuple[Any, Any]:
    from transformers import BertConfig, BertModel

    return BertModel, BertConfig(**_SIZES)


@case("RoBERTa", check_encoder)
def roberta() -> tuple[Any, Any]:
    from transformers import RobertaConfig, RobertaForMaskedLM

    return RobertaForMaskedLM, RobertaConfig(**_SIZES, pad_token_id=1, type_vocab_size=1)


@case("RoBERTa", check_encoder)
def roberta_in_other_languages() -> tuple[Any, Any]:
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    return XLMRobertaForMaskedLM, XLMRobertaConfig(**_SIZES, pad_token_id=2, hidden_act="gelu_new")


@case("DistilBERT", check_encoder)
def distilbert() -> tuple[Any, Any]:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return DistilBertForMaskedLM, DistilBertConfig(
        vocab_size=23, dim=12, hidden_dim=20, n_layers=2, n_heads=2, max_position_embeddings=32
    )


@case("DistilBERT", check_encoder)
def distilbert_with_sines() -> tuple[Any, Any]:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return DistilBertForMaskedLM, DistilBertConfig(
        vocab_size=23, dim=12, hidden_dim=20, n_layers=2, n_heads=3, max_position_embeddings=32,
        sinusoidal_pos_embds=True, activation="relu",
    )  # fmt: skip
