"""Byte-level BPEs of two files: what a tokenizer class makes of vocab.json and merges.txt.

These files hold pieces of words. How a text is cut before they apply, what is put around it and what its specials are
called is known by the class that tokenizer_config.json names, else config.json, else by the kind of model. A class that
is not in `CLASSES`, and an option that is not known here, give no tokenizer.

Sources: Radford et al. 2019 (GPT-2); Liu et al. 2019 (RoBERTa); Bai et al. 2023 (Qwen).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from glassformer.data.added_tokens import CONFIG_FILE, LISTED, SEVERAL, Said
from glassformer.errors import nearest

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"


@dataclass(frozen=True)
class ByteLevelClass:
    """What a class of tokenizers adds to the two files.

    Args:
        specials: Special tokens by role, where no file names them.
        cut: What cuts a text into words; None for GPT-2's own way.
        composed: Characters are composed first (NFC).
        around: Roles of the tokens put in front of a text and behind it; None for those that `add_bos_token` and
            `add_eos_token` ask for.
    """

    specials: Mapping[str, str]
    cut: str | None = None
    composed: bool = False
    around: tuple[str, str] | None = None

    def build(self, vocabulary: dict[str, int], merges: list[tuple[str, str]], space: bool) -> tokenizers.Tokenizer:
        """The tokenizer without its added tokens; with `space`, a text begins as a word behind a space does."""
        inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=self.cut is None)
        if self.cut is not None:
            words = pre_tokenizers.Split(Regex(self.cut), "isolated")
            inner.pre_tokenizer = pre_tokenizers.Sequence([words, inner.pre_tokenizer])
        if self.composed:
            inner.normalizer = normalizers.NFC()
        inner.decoder = decoders.ByteLevel()
        return inner

    def asked_around(self, options: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """Roles of the tokens put in front of a text and behind it, by what tokenizer_config.json says."""
        if self.around is not None:
            return self.around
        begin, end = (role if options.get(f"add_{role}_token") else None for role in ("bos", "eos"))
        return begin, end


_ENDS = {"bos_token": _END, "eos_token": _END, "unk_token": _END}
_GPT2 = ByteLevelClass(_ENDS)
_ROBERTA = ByteLevelClass(
    {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
        "cls_token": "<s>", "mask_token": "<mask>",
    },
    around=("cls", "sep"),
)  # fmt: skip
CLASSES = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "GPTNeoXTokenizer": ByteLevelClass(_ENDS | {"pad_token": "<|padding|>"}, composed=True),
    "Qwen2Tokenizer": ByteLevelClass(
        {"eos_token": _END, "unk_token": _END, "pad_token": _END}, cut=_QWEN, composed=True
    ),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"), _ROBERTA),
}
# what a model type of config.json stands for where no file names a class
OF_MODELS = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"), "GPT2Tokenizer"),
    "gpt_neox": "GPTNeoXTokenizer",
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("roberta", "roberta-prelayernorm", "bart", "longformer", "led"), "RobertaTokenizer"),
}
# options that say nothing about which ids a text has, besides those that end in _token
WITHOUT_EFFECT = {
    "tokenizer_class", "processor_class", "model_max_length", "max_len", "name_or_path", "special_tokens_map_file",
    "tokenizer_file", "vocab_file", "merges_file", "errors", "clean_up_tokenization_spaces", "padding_side",
    "truncation_side", "max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id",
    "padding", "truncation", "split_special_tokens", "trim_offsets", "use_fast", "chat_template", "response_schema",
    "response_template", "chat_control_tokens", "model_input_names", "return_token_type_ids", "backend", "is_local",
    "local_files_only", "init_inputs", "_commit_hash", "transformers_version", "model_specific_special_tokens",
}  # fmt: skip
HONOURED = {"add_prefix_space", LISTED, *SEVERAL}


def class_of(said: Said) -> ByteLevelClass | str:
    """The class of a folder's tokenizer, or why its two files cannot be read.

    Args:
        said: What each file says, by its name.
    """
    options, model = said[CONFIG_FILE], said["config.json"]
    name = options.get("tokenizer_class") or model.get("tokenizer_class")
    name = name if name is not None else OF_MODELS.get(str(model.get("model_type")))
    if name is None:
        return f"no file says of which class its tokenizer is ({CONFIG_FILE}, tokenizer_class)"
    plain = str(name).removesuffix("Fast")
    if plain not in CLASSES:
        return f"its tokenizer is a {name}, which is not known here.{nearest(plain, CLASSES)}"
    own = options.get("auto_map")
    if own and not (isinstance(own, Mapping) and not own.get("AutoTokenizer")):
        return "its tokenizer brings code of its own (auto_map), which is not run"
    for option, value in options.items():
        known = option in WITHOUT_EFFECT | HONOURED | {"auto_map"} or option.endswith("_token")
        if not known and value not in (None, False):
            return f'{CONFIG_FILE} says "{option}": {str(value)[:40]}, which is not known here'
    return CLASSES[plain]
