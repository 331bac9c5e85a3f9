"""The language model inside a model of text and images: its config, and its tensors by the names it has alone.

    config.json  {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", …}, "vision_config": {…}}
    files        language_model.model.layers.0.…, vision_tower.…, multi_modal_projector.…

Texts go through that part as they do in the whole model: its rotary positions in three directions are those of one
where nothing but text is read, and attention looks back. What belongs to images is left out, and a note says so.
Source: Wang et al. 2024, "Qwen2-VL", section 2.1 (for texts, its positions are one-dimensional ones).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from glassformer.checkpoints.families import head_of
from glassformer.checkpoints.tensors import StoredTensor, Tensors
from glassformer.provenance import ModelNote
from glassformer.words import sentence

# models whose language half reads text as it does by itself
WHOLE = (
    "gemma3", "idefics3", "internvl", "llava", "llava_next", "llava_onevision", "mistral3", "qwen2_5_vl", "qwen2_vl",
    "qwen3_vl", "smolvlm",
)  # fmt: skip
# halves that are a covered architecture under another name
_SAME = {
    "qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}  # fmt: skip
_LLAMA = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
# what a half's config leaves out where it is as its library has it
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
        "max_position_embeddings": 131_072,
    },
    "llama": {**_LLAMA, "intermediate_size": 11008, "max_position_embeddings": 2048},
    "mistral": {
        **_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
        "max_position_embeddings": 131_072,
    },
    "qwen2": {**_LLAMA, "vocab_size": 151_936, "intermediate_size": 22016, "max_position_embeddings": 32768},
    "qwen3": {
        **_LLAMA, "vocab_size": 151_936, "intermediate_size": 22016, "head_dim": 128, "max_position_embeddings": 32768,
    },
}  # fmt: skip
# of the whole, what holds of its language half too
_SHARED = (
    "architectures", "id2label", "num_labels", "problem_type", "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip
_INSIDE = re.compile(r"(?:model\.)?(?:language_model|text_model)\.(?:model\.)?(.+)")
_OUTSIDE = re.compile(
    r"(?:model\.)?(visual|vision_tower|vision_model|multi_modal_projector|mm_projector|connector|image_newline)(?:\..*)?"
)


def is_whole(config: Mapping[str, Any]) -> bool:
    """Whether a config is of a model of text and images whose language half is read."""
    return config.get("model_type") in WHOLE


def text_half(config: Mapping[str, Any], names: Collection[str] = ()) -> Mapping[str, Any]:
    """The config of the language half, as if it stood alone; a config of anything else as it is.

    Args:
        config: Of the whole.
        names: Of the tensors, as they are in the half.
    """
    if not is_whole(config):
        return config
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        # the first of them have its fields at the top
        inner = {name: value for name, value in config.items() if not name.endswith("_config")}
    kind = str(inner.get("model_type", "llama"))
    kind = _SAME.get(kind, kind)
    said = {**DEFAULTS.get(kind, {}), **{name: config[name] for name in _SHARED if name in config}, **inner}
    said["model_type"] = kind
    if head_of(config) == "language":
        # by the name that the half has alone, it is one
        said.pop("architectures", None)
    else:
        said["architectures"] = config["architectures"]
    # the whole ties its matrices, or does not, whatever its half says of itself
    if "tie_word_embeddings" in config:
        said["tie_word_embeddings"] = config["tie_word_embeddings"]
    elif names:
        said["tie_word_embeddings"] = "lm_head.weight" not in names
    for name in ("rope_parameters", "rope_scaling"):
        said |= {name: _along_the_text(said[name])} if isinstance(said.get(name), Mapping) else {}
    return said


def _along_the_text(rotary: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary positions without how they are dealt out to three directions."""
    found = {name: value for name, value in rotary.items() if not name.startswith("mrope_")}
    return found | {name: "default" for name in ("type", "rope_type") if found.get(name) == "mrope"}


class TextHalf(Tensors):
    """The tensors of the language half, by the names that it has alone.

    Args:
        files: Of the whole.
    """

    def __init__(self, files: Tensors) -> None:
        super().__init__(files.folder)
        self.files = files
        self.names = {own: name for name in files if (own := _own(name)) is not None}
        parts = dict.fromkeys(found[1] for name in files if (found := _OUTSIDE.fullmatch(name)) is not None)
        # parts that were left out, by their names
        self.left_out = tuple(parts)

    def __getitem__(self, name: str) -> StoredTensor:
        return self.files[self.names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, name: str) -> Tensor:
        return self.files.read(self.names[name])

    def as_stored(self, name: str) -> Tensor:
        return self.files.as_stored(self.names[name])

    def release(self, names: Iterable[str]) -> None:
        self.files.release([self.names[name] for name in names])

    @property
    def notes(self) -> tuple[ModelNote, ...]:
        """A note on what was left out; none if nothing was."""
        if not self.left_out:
            return ()
        seen = sentence(
            "The model reads images too; what reads them was left out: {parts}.", parts=", ".join(self.left_out)
        )
        return (ModelNote(seen, sentence("It reads texts as the whole does.")),)


def _own(name: str) -> str | None:
    """Return the name that a tensor has in the half by itself; None for what belongs to images."""
    if _OUTSIDE.fullmatch(name) is not None:
        return None
    inside = _INSIDE.fullmatch(name)
    if inside is None:
        return name
    return inside[1] if inside[1].startswith(("lm_head.", "score.")) else f"model.{inside[1]}"
