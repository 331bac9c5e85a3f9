"""Bodies without a language model's head, or with classes in its place: they open, and give the reference's numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer as gf
from families import reference_folder
from glassformer.checkpoints import convert, parity
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.errors import AnalysisUnavailable, CheckpointError

transformers = pytest.importorskip("transformers")

LABELS = {0: "very good", 1: "bad", 2: "neither"}
SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
CLASSES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "BertForSequenceClassification": ("BertConfig", {}),
    "BertForTokenClassification": ("BertConfig", {}),
    "RobertaForSequenceClassification": ("RobertaConfig", {}),
    "DistilBertForSequenceClassification": ("DistilBertConfig", DISTIL),
    "BigBirdForSequenceClassification": ("BigBirdConfig", {"attention_type": "original_full"}),
    "LongformerForTokenClassification": ("LongformerConfig", {"attention_window": 8}),
    "LlamaForSequenceClassification": ("LlamaConfig", {}),
    "MistralForTokenClassification": ("MistralConfig", {}),
    "Qwen3ForTokenClassification": ("Qwen3Config", {"head_dim": 8}),
    "GPT2ForSequenceClassification": ("GPT2Config", GPT2),
    "GPT2ForTokenClassification": ("GPT2Config", GPT2),
    "GPTNeoXForSequenceClassification": ("GPTNeoXConfig", {}),
    "GPTNeoForTokenClassification": (
        "GPTNeoConfig", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ),
    "FalconForTokenClassification": ("FalconConfig", {}),
    "BloomForTokenClassification": ("BloomConfig", {"n_layer": 2, "n_head": 4}),
    "MptForTokenClassification": ("MptConfig", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "GPTBigCodeForTokenClassification": ("GPTBigCodeConfig", GPT2),
    "BioGptForTokenClassification": ("BioGptConfig", {}),
    # what its language model does to logits is not done to classes
    "Gemma2ForSequenceClassification": ("Gemma2Config", {"head_dim": 8, "final_logit_softcapping": 0.5}),
    "OPTForSequenceClassification": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 16}),
}  # fmt: skip
BODIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "LlamaModel": ("LlamaConfig", {}),
    "PhiModel": ("PhiConfig", {}),
    "GPTNeoXModel": ("GPTNeoXConfig", {}),
    "BertModel": ("BertConfig", {}),
    "T5EncoderModel": ("T5Config", T5),
}


def made(model: str, config: str, folder: Path, **more: Any) -> Path:
    named = {**SIZES, **more}
    if "Classification" in model:
        named = {"id2label": LABELS, "label2id": {label: id for id, label in LABELS.items()}, **named}
    reference_folder(getattr(transformers, model), getattr(transformers, config)(**named), folder, torch.float64)
    return folder


def changed(folder: Path, **fields: Any) -> Path:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | fields))
    return folder


@pytest.mark.parametrize("model", CLASSES)
def test_classes_have_the_logits_of_the_reference_and_their_names(model, tmp_path):
    config, more = CLASSES[model]
    folder = made(model, config, tmp_path, **more)
    # Bloom's reference has the constant of its GELU rounded
    found = parity(folder, dtype=torch.float64, steps=1, tolerance=1e-8)
    assert found.reference == model and found.first is None, found.first
    assert {"logits"} <= {difference.site for difference in found.differences}
    names = gf.load(folder).output_tokenizer
    assert names is not None and [names.token(id) for id in range(3)] == list(LABELS.values())


@pytest.mark.parametrize("model", BODIES)
def test_a_body_by_itself_is_that_of_the_reference_and_gives_no_logits(model, tmp_path):
    config, more = BODIES[model]
    folder = made(model, config, tmp_path, **more)
    found = parity(folder, dtype=torch.float64, steps=1)
    assert found.reference == model and found.first is None, found.first
    body = gf.load(folder)
    run = gf.run(body, [5, 17, 3], read=["blocks.*.attn.pattern"])
    assert run.logits is None and run.output.shape == (1, 3, 32)
    for ask in (lambda: gf.explain(body, [5, 17, 3]), lambda: gf.generate(body, [[5, 17, 3]], max_new_tokens=1)):
        with pytest.raises(AnalysisUnavailable, match=r"no unembedding|has no head|generates no text"):
            ask()


def test_what_adds_to_a_class_is_asked_by_its_name_where_the_text_is_told(tmp_path):
    for model, config, position in (
        ("BertForSequenceClassification", "BertConfig", 0),
        ("LlamaForSequenceClassification", "LlamaConfig", 4),
    ):
        loaded = gf.load(made(model, config, tmp_path / model))
        found = gf.explain(loaded, [5, 17, 3, 9, 2], answer="very good", against="bad")
        assert (found.position, found.answer.text) == (position, "very good")
        assert "3 classes of the whole text" in found.notes[0].seen
        assert found.against is not None
        difference = found.answer.logit - found.against.logit
        assert found.attribution.sum == pytest.approx(difference, abs=1e-9)
        with pytest.raises(AnalysisUnavailable, match=r"generates no text|writes no text: its outputs are classes"):
            gf.generate(loaded, [[5, 17]], max_new_tokens=1)


def test_classes_go_through_our_layout_and_back_bit_for_bit(tmp_path):
    for model, config in (
        ("RobertaForSequenceClassification", "RobertaConfig"),
        ("MistralForTokenClassification", "MistralConfig"),
    ):
        folder = made(model, config, tmp_path / model)
        ours = convert(folder, tmp_path / f"{model}-ours")
        names = gf.load(ours).output_tokenizer
        assert names is not None and names.token(0) == "very good"
        back, first = (
            load_file(convert(ours, tmp_path / f"{model}-back", "huggingface") / WEIGHTS),
            load_file(folder / WEIGHTS),
        )
        assert back.keys() == first.keys() and all(torch.equal(back[name], first[name]) for name in first)


def test_what_is_no_choice_among_classes_is_noted(tmp_path):
    folder = made("BertForSequenceClassification", "BertConfig", tmp_path, problem_type="multi_label_classification")
    (note,) = gf.load(folder).checkpoint_notes
    assert "sigmoid" in note.meaning and note in gf.run(gf.load(folder), [5, 17]).notes
    tensors = load_file(folder / WEIGHTS)
    save_file({n: v[:1].clone() if n.startswith("classifier.") else v for n, v in tensors.items()}, folder / WEIGHTS)
    (note,) = gf.load(changed(folder, id2label={"0": "stars"}, problem_type=None)).checkpoint_notes
    assert "numbers that were fitted" in note.seen


def test_labels_and_heads_that_do_not_fit_are_named(tmp_path):
    folder = made("BertForSequenceClassification", "BertConfig", tmp_path)
    with pytest.raises(CheckpointError, match=r"id2label must be names of the classes 0 to 2"):
        gf.load(changed(folder, id2label={"0": "a", "1": "b", "3": "c"}))
    with pytest.raises(CheckpointError, match=r"ForMultipleChoice.*names a head|nothing uses it"):
        gf.load(changed(folder, architectures=["BertForMultipleChoice"], id2label=LABELS))
    longer = made("LongformerForSequenceClassification", "LongformerConfig", tmp_path / "long", attention_window=8)
    with pytest.raises(CheckpointError, match=r"LongformerForSequenceClassification'\] names a head that is not read"):
        gf.load(longer)


def test_a_body_whose_files_have_a_language_head_keeps_it(tmp_path):
    folder = made("LlamaForCausalLM", "LlamaConfig", tmp_path)
    logits = gf.run(gf.load(folder), [5, 17, 3]).logits
    again = gf.run(gf.load(changed(folder, architectures=["LlamaModel"])), [5, 17, 3]).logits
    assert logits is not None and again is not None and torch.equal(again, logits)
