"""Ids of published tokenizers against transformers' AutoTokenizer, on files made here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from glassformer.data import published

TEXTS = [
    "the cat sat on the mat, and didn't move",
    "The Cat's  two  spaces\n\tand a tab: naïve café",
    "我吃了一个苹果 \U0001f600",
    " leading and trailing ",
    "def f(x):\n    return x + 1  # 12345",
]
# names of specials in it, which are text unless asked
WRITTEN = "a <s> b </s> c [SEP] d <|endoftext|> e"


def trained(model: Any, trainer: Any, pre: Any, decoder: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer, inner.decoder = pre, decoder
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.train_from_iterator(TEXTS * 5, trainer)
    return inner


def bytes_bpe(specials: list[str]) -> tokenizers.Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    return trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def gpt2() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    return bytes_bpe(["<|endoftext|>"]), {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024}


def begins() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    inner = bytes_bpe(names)
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B", special_tokens=[(names[0], 0)]
    )
    inner.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return inner, {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names[0],
        "eos_token": {"__type": "AddedToken", "content": names[1], "special": True},
    }


def roberta() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    inner = bytes_bpe(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return inner, {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "unk_token": "<unk>",
    }  # fmt: skip


def pieces_of_t5() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    inner = trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace())
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return inner, {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
        "bos_token": None,
    }  # fmt: skip


def llama2() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    names = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=[*names, *bytes_], show_progress=False)
    pre = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made = json.loads(trained(models.BPE(unk_token="<unk>"), trainer, pre, decoder).to_str())
    made["model"] |= {"byte_fallback": True, "fuse_unk": True}
    # bytes are no specials: they stand for what no piece has
    made["added_tokens"] = [entry for entry in made["added_tokens"] if entry["content"] in names]
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    inner = tokenizers.Tokenizer.from_str(json.dumps(made))
    inner.post_processor = template
    return inner, {
        "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>",
        "eos_token": "</s>", "unk_token": "<unk>",
    }  # fmt: skip


def bert() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=names, show_progress=False)
    inner = trained(
        models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(),
        normalizers.BertNormalizer(),
    )  # fmt: skip
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    inner.enable_padding(length=64)
    inner.enable_truncation(max_length=8)
    return inner, {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]"}


KINDS: list[Callable[[], tuple[tokenizers.Tokenizer, dict[str, Any]]]] = [
    gpt2, begins, roberta, pieces_of_t5, llama2, bert,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_published_tokenizer_gives_the_ids_of_transformers(kind, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    inner, told = kind()
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    ours = published(tmp_path)
    assert ours is not None and ours.to_json() == (tmp_path / "tokenizer.json").read_text()
    begin, end = ours.around()
    for text in TEXTS:
        assert [*begin, *ours.encode(text), *end] == theirs(text)["input_ids"]
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.adding(False).around() == ((), ())
    asked = ours.adding(None, in_text=True)
    assert [*begin, *asked.encode(WRITTEN), *end] == theirs(WRITTEN)["input_ids"]
    assert ours.encode(WRITTEN) == theirs(WRITTEN, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    # pieces of a Unigram are found by their names alone, so there "</s>" is found in a text all the same
    if kind is not pieces_of_t5:
        assert not set(ours.encode(WRITTEN)) & (set(ours.specials) - {ours.unk})
    for role in ("bos", "eos", "pad", "unk"):
        if f"{role}_token" in told:
            assert getattr(ours, role) == getattr(theirs, f"{role}_token_id")


@pytest.mark.parametrize("told", [{}, {"add_bos_token": True}], ids=["plain", "opened"])
def test_vocabulary_and_merges_make_the_tokenizer_that_transformers_makes_of_them(told, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    made = json.loads(gpt2()[0].to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(made["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in made["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"} | told))
    theirs, ours = AutoTokenizer.from_pretrained(str(tmp_path)), published(tmp_path)
    assert ours is not None and ours.bos == theirs.bos_token_id
    for text in TEXTS:
        assert [*ours.around()[0], *ours.encode(text)] == theirs(text)["input_ids"]
