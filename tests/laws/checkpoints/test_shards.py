"""Layers read one at a time are the layers of the whole model."""

import json

import pytest
import torch

from glassformer import weights
from glassformer.analysis.from_weights import composition
from glassformer.checkpoints import AttentionReader, load, save, save_shards
from glassformer.errors import CheckpointError
from glassformer.testing import close
from glassformer.testing.models import subject

DECODERS = ["gpt2", "llama", "alibi_window", "sandwich", "post", "parallel", "differential"]


def _by_block(model):
    """Return the state dict in one shard for each block, and one for the rest."""
    state = model.state_dict()
    shards = [{k: v for k, v in state.items() if k.startswith(f"stack.blocks.{i}.")} for i in range(2)]
    return [*shards, {k: v for k, v in state.items() if not k.startswith("stack.blocks.")}]


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("name", DECODERS)
def test_layers_read_one_at_a_time_compose_as_in_memory(name, sharded, tmp_path):
    model = subject(name).model
    if sharded:
        save_shards(model.config, _by_block(model), tmp_path)
    else:
        save(model, tmp_path)
    reader = AttentionReader(tmp_path)
    expected = composition(weights.of(model, fold=True), draws=0)
    found = composition(reader, draws=0)
    close(found.scores.values.nan_to_num(), expected.scores.values.nan_to_num())
    for fold in (True, False):
        for layer, whole in zip(AttentionReader(tmp_path, fold), weights.of(model, fold)):
            assert layer.labels == whole.labels
            for which in "QKVO":
                close(getattr(layer, which), getattr(whole, which))


def test_half_precision_comes_as_single_and_gram_matrices_reread_layers(tmp_path):
    model = subject("llama", dtype=torch.float32).model
    shards = [{k: v.bfloat16() for k, v in shard.items()} for shard in _by_block(model)]
    save_shards(model.config, shards, tmp_path)
    reader = AttentionReader(tmp_path)
    assert reader[0].Q.dtype == torch.float32
    rounded = weights.of(model.bfloat16().float(), fold=True)
    found = composition(reader, exact=False, budget=1, draws=0).scores.values
    close(found.nan_to_num(), composition(rounded, draws=0).scores.values.nan_to_num(), 1e-4)


def test_damage_is_told_where_it_shows(tmp_path):
    model = subject("llama").model
    save_shards(model.config, _by_block(model), tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    places = json.loads(index.read_text())
    name = "stack.blocks.1.attn.projection.qkv.weight"
    file = tmp_path / places["weight_map"].pop(name)
    index.write_text(json.dumps(places))
    with pytest.raises(CheckpointError, match=r"qkv.weight.* is missing"):
        AttentionReader(tmp_path)
    save_shards(model.config, _by_block(model), tmp_path)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="not a whole safetensors"):
        AttentionReader(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"d_model": 16', '"d_model": 32'))
    with pytest.raises(CheckpointError, match="digest"):
        AttentionReader(tmp_path)
    with pytest.raises(CheckpointError, match="no decoder"):
        translator = subject("translator_pre").model
        AttentionReader(save(translator, tmp_path / "translator"))


def test_a_sharded_folder_of_ours_loads_as_it_was_and_its_damage_is_noticed(tmp_path):
    model = subject("llama", dtype=torch.float32).model
    shards = _by_block(model)
    save_shards(model.config, shards, tmp_path)
    loaded = load(tmp_path)
    for one, other in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    file = next(tmp_path.glob("model-00002*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    # replaced, not written to: the loaded model's weights lie in the file
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match the digest"):
        load(tmp_path)
