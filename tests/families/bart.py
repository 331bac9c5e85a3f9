"""BART and its relatives."""

from typing import Any

from families import case
from families.pairs import check_pair

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "d_model": 12, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip


@case("BART", check_pair)
def bart() -> tuple[Any, Any]:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration, BartConfig(**_SIZES)


@case("BART", check_pair)
def bart_scaled_uneven_untied() -> tuple[Any, Any]:
    from transformers import BartConfig, BartForConditionalGeneration

    changes: dict[str, Any] = {"encoder_layers": 1, "scale_embedding": True, "activation_function": "relu"}
    return BartForConditionalGeneration, BartConfig(**(_SIZES | changes), tie_word_embeddings=False)


@case("Marian", check_pair)
def marian() -> tuple[Any, Any]:
    from transformers import MarianConfig, MarianMTModel

    special: dict[str, Any] = {"pad_token_id": 22, "decoder_start_token_id": 22, "eos_token_id": 0}
    return MarianMTModel, MarianConfig(**_SIZES, **special, scale_embedding=True, activation_function="swish")


@case("Marian", check_pair)
def marian_with_separate_embeddings() -> tuple[Any, Any]:
    from transformers import MarianConfig, MarianMTModel

    special: dict[str, Any] = {"pad_token_id": 22, "decoder_start_token_id": 22, "eos_token_id": 0}
    return MarianMTModel, MarianConfig(**_SIZES, **special, share_encoder_decoder_embeddings=False)


def _relative(name: str, model: str = "ForConditionalGeneration", **changes: Any) -> tuple[Any, Any]:
    import transformers

    return getattr(transformers, name + model), getattr(transformers, f"{name}Config")(**(_SIZES | changes))


@case("Blenderbot", check_pair)
def blenderbot() -> tuple[Any, Any]:
    return _relative("Blenderbot")


@case("M2M-100", check_pair)
def m2m_100() -> tuple[Any, Any]:
    return _relative("M2M100", decoder_start_token_id=2)


@case("M2M-100", check_pair)
def m2m_100_untied_not_scaled() -> tuple[Any, Any]:
    return _relative("M2M100", scale_embedding=False, tie_word_embeddings=False, decoder_start_token_id=0)


@case("mBART", check_pair)
def mbart() -> tuple[Any, Any]:
    return _relative("MBart", decoder_start_token_id=2)


@case("mBART", check_pair)
def mbart_scaled_untied() -> tuple[Any, Any]:
    return _relative("MBart", scale_embedding=True, tie_word_embeddings=False, decoder_start_token_id=0)


@case("Pegasus", check_pair)
def pegasus() -> tuple[Any, Any]:
    return _relative("Pegasus", scale_embedding=True)


@case("PLBART", check_pair)
def plbart() -> tuple[Any, Any]:
    return _relative("PLBart", decoder_start_token_id=0)


def _two_vocabularies(written: int, **changes: Any) -> tuple[Any, Any]:
    from transformers import MarianConfig, MarianMTModel

    special = dict.fromkeys(("pad_token_id", "decoder_start_token_id"), min(written, _SIZES["vocab_size"]) - 1)
    return MarianMTModel, MarianConfig(
        **_SIZES, **special, eos_token_id=0, decoder_vocab_size=written, share_encoder_decoder_embeddings=False,
        **changes,
    )  # fmt: skip


@case("Marian", check_pair)
def marian_with_fewer_tokens_to_write() -> tuple[Any, Any]:
    return _two_vocabularies(17)


@case("Marian", check_pair)
def marian_with_more_tokens_to_write_untied() -> tuple[Any, Any]:
    return _two_vocabularies(31, tie_word_embeddings=False)
