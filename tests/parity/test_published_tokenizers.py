"""Ids of published tokenizers against transformers' AutoTokenizer, on files made here."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from glassformer.data import lack_of_tokenizer, published
from glassformer.models.presets import attention_only
from glassformer.serve.runs import token_cards
from one_pass import in_one_pass

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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_token_stands_where_transformers_says_it_does_specials_in_a_text_too(kind, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    inner, told = kind()
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    theirs, tokenizer = AutoTokenizer.from_pretrained(str(tmp_path)), published(tmp_path)
    assert tokenizer is not None
    model = attention_only(1).replace(vocab_size=tokenizer.vocab_size).build()
    model.tokenizer = tokenizer
    # names of the tokens that are put around a text, at its beginning, are read as the tokens only if asked
    opening = "".join(tokenizer.tokens(tokenizer.around()[0]) * 2)
    for text, specials in [*((text, None) for text in TEXTS), (opening + TEXTS[1] + WRITTEN, "in-text")]:
        side = model.read(text, specials=specials, allow_unknown=True).output
        found = theirs(text, return_offsets_mapping=True, add_special_tokens=specials is None)
        assert side.rows == [found["input_ids"]]
        added = [a == b == 0 for a, b in found["offset_mapping"]] if specials is None else [False] * len(side.spans)
        assert side.spans == [None if no else tuple(at) for no, at in zip(added, found["offset_mapping"])]
        raw = text.encode()
        for card, at in zip(token_cards(model, side, False), side.spans):
            assert (card.span is None) == (at is None)
            assert at is None or card.span is None or raw[slice(*card.span)].decode() == text[slice(*at)]
    [ids] = model.read([3, 4]).output.rows
    assert model.read(ids).output.spans == [None, None]


AWKWARD = [
    *TEXTS, "I've 2024, we'LL 1234567  cats\r\n\n it's", "cafe\u0301 \u00e9", "naïve<|end|>  <mask> </s>x", "word",
]  # fmt: skip
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False}
END = FLAGS | {"content": "<|end|>", "special": True, "normalized": False, "rstrip": True}
WORD = FLAGS | {"content": "naïve", "special": False, "normalized": True}
SIX = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
    "cls_token": "<s>", "mask_token": {"__type": "AddedToken"} | END | {"content": "<mask>", "lstrip": True},
}  # fmt: skip
FIRST = ["<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|padding|>"]


def two_files(folder: Path, told: dict[str, Any], **others: Any) -> int:
    """Write vocabulary and merges, what lies beside them, and files of other names; return the vocabulary's size."""
    made = json.loads(bytes_bpe(FIRST).to_str())["model"]
    merges = "\n".join(" ".join(pair) for pair in made["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    files = {"vocab": made["vocab"], "tokenizer_config": told} | others
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return len(made["vocab"])


def require_the_same(folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(str(folder)), published(folder)
    assert ours is not None, lack_of_tokenizer(folder)
    begin, end = ours.around()
    meant = ours.adding(None, in_text=True)
    for text in AWKWARD:
        assert [*begin, *meant.encode(text), *end] == theirs(text)["input_ids"], text
    for role in ("bos", "eos", "pad", "mask"):
        if getattr(theirs, f"{role}_token_id") is not None:
            assert getattr(ours.roles, role) == getattr(theirs, f"{role}_token_id"), role
    assert ours.specials == {id: one.content for id, one in theirs.added_tokens_decoder.items() if one.special}


CLASSES_SAID = [
    {"tokenizer_class": "GPT2Tokenizer"},
    {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "bos_token": "</s>"},
    {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "additional_special_tokens": ["<unk>"]},
    {"tokenizer_class": "CodeGenTokenizer", "eos_token": {"__type": "AddedToken"} | END},
    {"tokenizer_class": "GPTNeoXTokenizer", "add_eos_token": True, "dropout": None},
    {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "errors": "replace"},
    {"tokenizer_class": "RobertaTokenizer"},
    {"tokenizer_class": "BartTokenizer", "add_prefix_space": True} | SIX,
    {"tokenizer_class": "LongformerTokenizerFast"} | SIX,
]


@in_one_pass
@pytest.mark.parametrize("told", CLASSES_SAID, ids=lambda told: told["tokenizer_class"])
def test_two_files_are_read_as_their_class_does(told) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size = two_files(folder, told)
        require_the_same(folder)
        two_files(folder, told | {"added_tokens_decoder": {str(size): WORD, str(size + 1): END}})
        require_the_same(folder)


@in_one_pass
@pytest.mark.parametrize(
    "beside",
    [
        {"added_tokens": {"naïve": 330, "<|end|>": 331}, "special_tokens_map": {"eos_token": END}},
        {"special_tokens_map": {"eos_token": "<|end|>", "pad_token": "<pad>"}},
        {"special_tokens_map": {"bos_token": {"content": "<s>", "lstrip": True}}},
    ],
    ids=["added", "map", "flags"],
)
@pytest.mark.parametrize("whole", [False, True], ids=["two files", "tokenizer.json"])
def test_tokens_that_files_beside_a_vocabulary_add_are_tokens(beside, whole: bool) -> None:
    told = {"tokenizer_class": "PreTrainedTokenizerFast" if whole else "GPT2Tokenizer", "eos_token": "</s>"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size = two_files(folder, told, **beside)
        if "added_tokens" in beside:
            two_files(folder, told, **beside | {"added_tokens": {"naïve": size, "<|end|>": size + 1}})
        if whole:
            bytes_bpe(FIRST).save(str(folder / "tokenizer.json"))
        require_the_same(folder)


@pytest.mark.parametrize("model, same_as", [("qwen3", "Qwen2Tokenizer"), ("gptj", "GPT2Tokenizer")])
def test_the_kind_of_model_says_the_class_where_no_file_does(model: str, same_as: str, tmp_path: Path) -> None:
    two_files(tmp_path, {}, config={"model_type": model})
    require_the_same(tmp_path)
    silent = published(tmp_path)
    two_files(tmp_path, {"tokenizer_class": same_as})
    said = published(tmp_path)
    assert silent is not None and said is not None and silent.to_json() == said.to_json()


@in_one_pass
@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({}, "no file says of which class"),
        ({"tokenizer_class": "WhisperTokenizer"}, "is a WhisperTokenizer, which is not known here"),
        ({"tokenizer_class": "GPT2Tokenizer", "dropout": 0.1}, '"dropout": 0.1, which is not known here'),
        ({"tokenizer_class": "GPT2Tokenizer", "auto_map": {"AutoTokenizer": ["a.b", None]}}, "code of its own"),
        ({"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"9999": END}}, "said to be token 9999"),
    ],
)
def test_two_files_that_are_not_understood_give_no_tokenizer_and_the_reason(told, why: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        two_files(folder, told)
        assert published(folder) is None
        assert why in lack_of_tokenizer(folder) and "AutoTokenizer" in lack_of_tokenizer(folder)


def test_a_special_that_the_model_has_no_vector_for_is_not_added(tmp_path: Path) -> None:
    told = {"tokenizer_class": "GPT2Tokenizer", "pad_token": "[more]"}
    size = two_files(tmp_path, told, config={"vocab_size": 0})
    two_files(tmp_path, told, config={"vocab_size": size})
    ours = published(tmp_path)
    assert ours is not None and ours.vocab_size == size and ours.pad is None


def test_added_tokens_of_a_byte_level_vocabulary_are_shown_and_decoded_as_they_are(tmp_path: Path) -> None:
    inner = bytes_bpe([])
    inner.add_tokens(["naïve", "Ödé"])
    inner.save(str(tmp_path / "tokenizer.json"))
    ours = published(tmp_path)
    assert ours is not None
    ids = ours.encode("a naïve Ödé café")
    assert "naïve" in ours.tokens(ids) and "Ödé" in ours.tokens(ids)
    assert ours.decode(ids) == "a naïve Ödé café"
    assert b"".join(ours.bytes_of(id) for id in ids).decode() == "a naïve Ödé café"
