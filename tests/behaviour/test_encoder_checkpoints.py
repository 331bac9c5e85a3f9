"""Encoders and encoder-decoders as they are found: old names, other heads, what is asked of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer as gf
from families import all_cases, reference_folder
from glassformer.errors import AnalysisUnavailable, CheckpointError
from glassformer.testing import close

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


@pytest.mark.full
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


@pytest.mark.parametrize("name", ["pegasus", "m2m_100"])
def test_a_table_of_positions_that_is_not_the_one_computed_is_refused(name: str, tmp_path: Path) -> None:
    kind, config = all_cases()[name].make()
    reference_folder(kind, config, tmp_path, torch.float32)
    tensors, stored = load_file(tmp_path / "model.safetensors"), "model.encoder.embed_positions.weight"
    if name == "m2m_100":
        # old files hold it, with a row for each token that may be padding in front
        places, stored = gf.models.Sinusoidal("halves", offset=2, slowest=True).build(12, 64), f"{stored}s"
        tensors[stored] = places.rows_of(66).nan_to_num(0.0)
        save_file(tensors, tmp_path / "model.safetensors")
    assert gf.load(tmp_path).config.d_model == 12
    half = {n: value.to(torch.bfloat16) if n == stored else value for n, value in tensors.items()}
    save_file(half, tmp_path / "model.safetensors")
    assert gf.load(tmp_path).config.d_model == 12
    tensors[stored][5, 3] += 0.02
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf'"{stored}" is off by up to 0.02 from what the model computes'):
        gf.load(tmp_path)


def test_a_head_for_answers_in_a_text_is_named_as_unused(tmp_path: Path) -> None:
    saved("BertForQuestionAnswering", tmp_path)
    with pytest.raises(CheckpointError, match=r'"qa_outputs\.weight" is there, and nothing uses it'):
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
    assert any("of the token that stands there" in str(note) for note in found.notes)
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


@pytest.fixture
def masked(tmp_path: Path) -> Any:
    """A tiny BERT with a tokenizer of words, as they are published."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    saved("BertForMaskedLM", tmp_path)
    words = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "to", "house", "and", "of", "in", "was"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    inner = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.add_special_tokens(names[:5])
    inner.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    inner.save(str(tmp_path / "tokenizer.json"))
    said = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    return tmp_path


def test_the_mask_tokens_name_is_the_token_and_its_place_is_what_is_asked_about(masked: Path) -> None:
    model = gf.load(masked)
    found = gf.explain(model, "the cat [MASK] on a mat")
    assert [token.text for token in found.tokens] == ["[CLS]", "the", "cat", "[MASK]", "on", "a", "mat", "[SEP]"]
    assert found.position == 3
    assert gf.explain(model, "the cat sat", position=1).position == 1
    trace = gf.analysis.causal.causal_trace(model, "the cat [MASK] on a mat", "cat", samples=2)
    logits = gf.run(model, "the cat [MASK] on a mat").logits
    assert logits is not None
    clean = logits[0, 3].softmax(-1).max()
    close(trace.clean.values[:1], clean[None], 1e-5)
    # another model's text does not turn into a special token
    assert model.require_tokenizer().encode("[MASK]") != [4]


def test_commands_ask_about_the_masked_position(masked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from glassformer.cli import main

    texts = ["--clean", "the cat [MASK] on", "--corrupt", "the dog [MASK] on", "--answer", "sat", "--wrong", "ran"]
    assert main(["patch", str(masked), *texts, "--sites", "resid_pre"]) == 0
    shown = capsys.readouterr().out
    model = gf.load(masked)
    logits = gf.run(model, "the cat [MASK] on").logits
    assert logits is not None
    assert f"{float(logits[0, 3, 7] - logits[0, 3, 12]):.3f}" in shown
    assert main(["route", str(masked), "the cat [MASK] on"]) == 0
    assert main(["patch", str(masked)]) == 2
    assert "with the mask token where the answer belongs" in capsys.readouterr().err


def test_two_stacks_alone_read_out_through_their_embeddings(tmp_path: Path) -> None:
    from transformers import BartConfig, BartModel

    config = BartConfig(
        vocab_size=23, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
    )  # fmt: skip
    theirs = reference_folder(BartModel, config, tmp_path, torch.float32)
    expected = theirs(input_ids=TOKENS, decoder_input_ids=TOKENS).last_hidden_state @ theirs.shared.weight.mT
    close(gf.load(tmp_path)(TOKENS, TOKENS), expected, 1e-4)
