"""Folders of dictionaries: those that sae-lens 6.54 wrote are read as it reads them, and ours hold what they held."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glassformer.analysis.dictionaries import (
    JumpRelu,
    Relu,
    TopK,
    load_dictionary,
    save_dictionary,
)
from glassformer.errors import CheckpointError, ConfigError
from glassformer.testing import close

HERE = Path(__file__).parent / "dictionaries"
SITES = {"standard": "blocks.1.resid_post", "topk": "blocks.1.attn.z", "jumprelu": "blocks.1.resid_post"}


@pytest.mark.parametrize("name", SITES)
def test_what_sae_lens_wrote_fires_and_reconstructs_as_it_does_there(name: str) -> None:
    found, expected = load_dictionary(HERE / name), load_file(HERE / name / "expected.safetensors")
    assert bool((expected["features"] > 0).any(0).all() if name == "standard" else expected["features"].any())
    close(found.encode(expected["rows"]), expected["features"], tolerance=1e-6)
    close(found(expected["rows"]), expected["made"], tolerance=1e-6)
    assert found.facts == {"site": SITES[name], "model": "tiny"}


@pytest.mark.parametrize(
    "config", [Relu(6, 10, l1=3.0), TopK(6, 10, k=3, aux=0.1), JumpRelu(6, 10, bandwidth=0.2)], ids=lambda c: c.kind
)
def test_a_dictionary_comes_back_and_others_read_its_features_from_the_published_layout(
    config: Any, tmp_path: Path
) -> None:
    found = config.build(3).double()
    with torch.no_grad():
        found.scale.fill_(1.6)
        found.b_dec += torch.arange(6) / 10
        found.b_enc += torch.arange(10) / 20
    found.facts = {"site": "blocks.0.mlp.hidden", "model": "tiny", "steps": 4, "digest": "weights:0"}
    save_dictionary(found, tmp_path)
    again, x = load_dictionary(tmp_path), torch.randn(20, 6, dtype=torch.float64)
    assert again.config == config and again.facts == found.facts
    close(again.encode(x), found.encode(x))
    close(again(x), found(x))
    # by the layout alone: pre-activations of rows that nobody scaled
    said, tensors = json.loads((tmp_path / "cfg.json").read_text()), load_file(tmp_path / "sae_weights.safetensors")
    pre = (x - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"]
    close(pre, found.pre_activations(x))
    features = pre.relu() * (pre > tensors["threshold"]) if "threshold" in tensors else pre.relu()
    if said["architecture"] == "topk":
        features = torch.zeros_like(pre).scatter(-1, pre.topk(said["k"]).indices, pre.topk(said["k"]).values.relu())
    close(features @ tensors["W_dec"] + tensors["b_dec"], found(x))
    assert said["metadata"] == {"hook_name": "blocks.0.mlp.hook_post", "model_name": "tiny"}
    assert (said["d_in"], said["d_sae"], said["dtype"]) == (6, 10, "float64")


@pytest.mark.parametrize("config", [Relu(6, 10), TopK(6, 10, k=3), JumpRelu(6, 10)], ids=lambda c: c.kind)
def test_matrices_are_stored_in_half_precision_and_vectors_as_they_are(config: Any, tmp_path: Path) -> None:
    found = config.build(3)
    with torch.no_grad():
        found.scale.fill_(1.7)
        found.b_dec += torch.arange(6) / 7
        found.b_enc += torch.arange(10) / 30
    save_dictionary(found, tmp_path, dtype="float16")
    said, tensors = json.loads((tmp_path / "cfg.json").read_text()), load_file(tmp_path / "sae_weights.safetensors")
    assert said["dtype"] == "float16"
    assert {name for name, value in tensors.items() if value.dtype == torch.float16} == {"W_enc", "W_dec"}
    assert torch.equal(tensors["W_dec"], (found.W_dec.detach() / 1.7).half())
    again = load_dictionary(tmp_path)
    assert again.W_enc.dtype == torch.float32 and torch.equal(again.b_enc, found.b_enc)
    # half a unit in the last of eleven bits
    assert ((again.W_enc - found.W_enc).abs() <= found.W_enc.abs() * 2**-11 * 1.001 + 1e-7).all()
    # what was stored so is stored the same again
    save_dictionary(again, tmp_path / "again", dtype=torch.float16)
    for name in ("W_enc", "W_dec"):
        assert torch.equal(load_file(tmp_path / "again/sae_weights.safetensors")[name], tensors[name])
    with torch.no_grad():
        found.W_dec *= 1e6
    with pytest.raises(ConfigError, match='numbers of "W_dec" are too large for float16'):
        save_dictionary(found, tmp_path / "large", dtype=torch.float16)
    assert not (tmp_path / "large").exists()


def test_folders_that_hold_no_dictionary_of_ours_are_refused(tmp_path: Path) -> None:
    said, tensors = (
        json.loads((HERE / "standard/cfg.json").read_text()),
        load_file(HERE / "standard/sae_weights.safetensors"),
    )

    def refused(match: str, changes: dict[str, Any], dropped: str = "", **others: torch.Tensor) -> None:
        (tmp_path / "cfg.json").write_text(json.dumps(said | changes))
        kept = {name: value for name, value in (tensors | others).items() if name != dropped}
        save_file(kept, tmp_path / "sae_weights.safetensors")
        with pytest.raises(CheckpointError, match=match):
            load_dictionary(tmp_path)

    refused('architecture is "gated"', {"architecture": "gated"})
    refused("normalised one by one", {"normalize_activations": "layer_norm"})
    refused("tensors are not those of relu: b_enc", {}, dropped="b_enc")
    refused("tensors are not those of relu: r_mag", {}, r_mag=torch.zeros(10))
    refused("W_enc is", {"d_in": 7})
    refused("d_in", {"d_in": "six"})
    (tmp_path / "sae_weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="damaged"):
        load_dictionary(tmp_path)
    (tmp_path / "cfg.json").write_text("[]")
    with pytest.raises(CheckpointError):
        load_dictionary(tmp_path)
    with pytest.raises(CheckpointError, match="cannot read a dictionary"):
        load_dictionary(tmp_path / "nowhere")
