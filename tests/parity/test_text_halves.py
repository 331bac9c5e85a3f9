"""Models of text and images: the half that reads text opens, with the logits that the whole has for a text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer as gf
from families import reference_folder
from glassformer.checkpoints import config_of, convert
from glassformer.checkpoints.halves import DEFAULTS
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.testing import close

transformers = pytest.importorskip("transformers")

TEXT: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
SIGHT: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
DEEP = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32}
TURNED = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
CLIP, SIGLIP = {"model_type": "clip_vision_model"}, {"model_type": "siglip_vision_model"}
# of the whole: class, config, what its halves have beside
WHOLE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Gemma3ForConditionalGeneration": (
        "Gemma3Config", {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 4}, {**SIGHT, **SIGLIP},
    ),
    "LlavaForConditionalGeneration": ("LlavaConfig", {"model_type": "llama"}, {**SIGHT, **CLIP}),
    "LlavaNextForConditionalGeneration": ("LlavaNextConfig", {"model_type": "llama"}, {**SIGHT, **CLIP}),
    "LlavaOnevisionForConditionalGeneration": ("LlavaOnevisionConfig", {"model_type": "qwen2"}, {**SIGHT, **SIGLIP}),
    "InternVLForConditionalGeneration": (
        "InternVLConfig", {"model_type": "qwen2"}, {**SIGHT, "image_size": [28, 28], "patch_size": [14, 14]},
    ),
    "Mistral3ForConditionalGeneration": (
        "Mistral3Config", {"model_type": "mistral", "sliding_window": None, "head_dim": 8},
        {**SIGHT, "model_type": "pixtral"},
    ),
    "Idefics3ForConditionalGeneration": ("Idefics3Config", {"model_type": "llama"}, SIGHT),
    "SmolVLMForConditionalGeneration": ("SmolVLMConfig", {"model_type": "llama"}, SIGHT),
    "Qwen2VLForConditionalGeneration": (
        "Qwen2VLConfig", TURNED, {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
    ),
    "Qwen2_5_VLForConditionalGeneration": ("Qwen2_5_VLConfig", TURNED, {**DEEP, "fullatt_block_indexes": [0]}),
    "Qwen3VLForConditionalGeneration": (
        "Qwen3VLConfig", {"head_dim": 8, **TURNED},
        {**DEEP, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    ),
    "LlavaModel": ("LlavaConfig", {"model_type": "llama"}, {**SIGHT, **CLIP}),
}  # fmt: skip
IDS = [list(range(3, 20))]


def whole(model: str, folder: Path) -> Any:
    kind, text, sight = WHOLE[model]
    config = getattr(transformers, kind)(text_config=TEXT | text, vision_config=sight)
    return reference_folder(getattr(transformers, model), config, folder, torch.float64)


@pytest.mark.parametrize("model", WHOLE)
def test_the_half_that_reads_text_gives_what_the_whole_gives(model, tmp_path):
    theirs = whole(model, tmp_path)
    half = gf.load(tmp_path)
    with torch.no_grad():
        out = theirs(torch.tensor(IDS))
    run = gf.run(half, IDS)
    found = run.logits if half.predicts else run.output
    assert found is not None
    close(found, out.logits if half.predicts else out.last_hidden_state, 1e-6)
    (note,) = half.checkpoint_notes
    assert "left out: " in note.seen and note in run.notes


def test_names_of_both_layouts_mean_the_same(tmp_path):
    whole("Gemma3ForConditionalGeneration", tmp_path)
    want = gf.load(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    other = {
        re.sub(
            r"^language_model\.model\.", "model.language_model.", re.sub(r"^(vision|multi)", r"model.\1", name)
        ): value
        for name, value in tensors.items()
    }
    assert not other.keys() & tensors.keys()
    save_file(other, tmp_path / WEIGHTS)
    again = gf.load(tmp_path)
    assert again.config == want.config
    assert all(torch.equal(value, want.state_dict()[name]) for name, value in again.state_dict().items())
    # alone, it is a model of its own
    said = json.loads((convert(tmp_path, tmp_path / "alone", "huggingface") / "config.json").read_text())
    assert said["model_type"] == "gemma3_text"


def test_what_a_half_leaves_out_of_its_config_is_what_its_library_has(tmp_path):
    for kind, defaults in DEFAULTS.items():
        theirs = transformers.CONFIG_MAPPING[kind]()
        assert {name: getattr(theirs, name) for name in defaults} == defaults, kind
    # as Gemma 3 of four billion numbers was published
    inner = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    scaled = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    said = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner | scaled}
    (tmp_path / "config.json").write_text(json.dumps(said))
    found: Any = config_of(tmp_path)
    assert (found.vocab_size, found.max_len, len(found.layers), found.tied) == (262_208, 131_072, 34, True)
