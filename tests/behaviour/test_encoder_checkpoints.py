"""Encoders and encoder-decoders as they are found: old names, other heads, what is asked of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer as gf
from closeness import close
from families import reference_folder
from glassformer.errors import AnalysisUnavailable, CheckpointError

SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 32,
}  # fmt: skip
TOKENS = torch.tensor([[2, 7, 4, 9, 3]])


def saved(kind: str, folder: Path, **changes: Any) -> Any:
    import transformers

    return reference_folder(
        getattr(transformers, kind), transformers.BertConfig(**(SIZES | changes)), folder, torch.float32
    )


def test_pooling_and_the_head_for_pairs_of_texts_are_left_unread(tmp_path: Path) -> None:
    theirs = saved("BertForPreTraining", tmp_path)
    ours = gf.load(tmp_path)
    assert "cls.seq_relationship.weight" in load_file(tmp_path / "model.safetensors")
    close(ours(TOKENS), theirs(TOKENS).prediction_logits, 1e-4)


def test_norms_by_their_old_names_are_read(tmp_path: Path) -> None:
    theirs = saved("BertForMaskedLM", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, before in old.items():
        tensors = {name.replace(new, before): value for name, value in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    close(gf.load(tmp_path)(TOKENS), theirs(TOKENS).logits, 1e-4)


def test_a_head_for_whole_texts_is_named_as_unused(tmp_path: Path) -> None:
    saved("BertForSequenceClassification", tmp_path)
    with pytest.raises(CheckpointError, match=r'"classifier\.weight" is there, and nothing uses it'):
        gf.load(tmp_path)


@pytest.mark.parametrize("field", ["is_decoder", "add_cross_attention"])
def test_an_encoder_made_into_a_decoder_is_refused(field: str, tmp_path: Path) -> None:
    saved("BertForMaskedLM", tmp_path)
    said = json.loads((tmp_path / "config.json").read_text()) | {field: True}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError, match=f"{field}=True cannot be represented"):
        gf.load(tmp_path)


def test_a_masked_position_is_explained_and_what_is_read_both_ways_generates_nothing(tmp_path: Path) -> None:
    saved("BertForMaskedLM", tmp_path)
    model = gf.load(tmp_path)
    found = gf.explain(model, TOKENS, position=2)
    assert abs(found.attribution.sum - found.attribution.total) < 1e-4
    assert any("of the token that stands there" in note for note in found.notes)
    assert [stage.stage for stage in found.pipeline][-3:] == ["readout", "logits", "probabilities"]
    with pytest.raises(AnalysisUnavailable, match="mask token"):
        gf.models.generate(model, TOKENS.tolist())


def test_ours_is_saved_and_loaded_like_any_model(tmp_path: Path) -> None:
    saved("BertModel", tmp_path / "theirs")
    model = gf.load(tmp_path / "theirs")
    gf.save(model, tmp_path / "ours")
    again = gf.load(tmp_path / "ours")
    assert again.config == model.config
    close(again(TOKENS), model(TOKENS))


def test_a_translation_is_the_one_that_the_reference_generates(tmp_path: Path) -> None:
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=23, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
        pad_token_id=22, decoder_start_token_id=22, eos_token_id=0,
    )  # fmt: skip
    theirs = reference_folder(MarianMTModel, config, tmp_path, torch.float32)
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack.embed_positions.weight.data.copy_(stack.embed_positions.create_weight())
    # as in published files: the padding token would be the likeliest
    theirs.final_logits_bias[0, 22] = 100.0
    theirs.save_pretrained(tmp_path)
    ours = gf.load(tmp_path)
    settings = GenerationConfig(
        max_new_tokens=20, bad_words_ids=[[22]], decoder_start_token_id=22, pad_token_id=22, eos_token_id=0
    )
    expected = theirs.generate(TOKENS, generation_config=settings)[0, 1:].tolist()
    made = gf.models.generate(ours, [[22]], gf.models.GREEDY, max_new_tokens=20, stop_ids=[0], source=TOKENS)
    # the last place allowed is forced to be the end by the reference, whatever its logits
    assert list(made.tokens[0])[:-1] == expected[:-1]
    found = gf.explain(ours, TOKENS, target=[[22, 5]])
    assert found.answer.id == 22, "the logits are those of the forward pass"
    assert found.sampling.draw.id != 22
