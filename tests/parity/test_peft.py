"""Adapters in PEFT's layout: what PEFT computes with them, and what it begins from, is ours."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from families import reference_folder
from glassformer.adaptation import Adapter, CorDA, Lora, LowRank, MiLora, Svf, load_peft, mixed, save_peft
from glassformer.errors import CheckpointError
from glassformer.testing import close

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.full

IDS = torch.arange(3, 20)[None]
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def peft() -> Any:
    # importing it takes longer than a test may, and so not where tests are collected
    import peft

    return peft


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    made = tmp_path_factory.mktemp("base")
    reference_folder(transformers.LlamaForCausalLM, config, made, torch.float32)
    return made


def theirs(folder: Path) -> Any:
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def ours(folder: Path, adapter: Adapter) -> Tensor:
    model = gf.load(folder)
    with adapter.attached(model), torch.no_grad():
        return model(IDS)


def moved(adapter: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for one in adapter.parameters():
            if one.requires_grad:
                one += 0.1 * torch.randn(one.shape, generator=generator, dtype=one.dtype)
    return adapter


def test_what_we_write_computes_the_same_there_and_here(peft: Any, folder: Path, tmp_path: Path) -> None:
    model = gf.load(folder)
    kinds = Lora(2, 6.0), MiLora(3), CorDA(2)
    made = [
        moved(kind.build(model, ["blocks.0.attn.*", "blocks.1.mlp.*"], sample=[IDS[0]] if kind.reads_sample else None))
        for kind in kinds
    ]
    other = moved(Lora(1).build(model, "blocks.0.attn.query"))
    # ranks and scales that differ from one matrix to the other
    for i, adapter in enumerate([*made, mixed({made[0]: 0.5, other: 2.0})]):
        here = save_peft(adapter, tmp_path / str(i), model)
        found = logits(peft.PeftModel.from_pretrained(theirs(folder), here))
        close(found, ours(folder, adapter), 1e-5)
        assert (found - logits(theirs(folder))).abs().max() > 0.01
        close(ours(folder, load_peft(here, model)), ours(folder, adapter), 1e-5)
        close(logits(theirs(folder)), logits_of(gf.load(folder)), 1e-5)
        close(logits_of(gf.load(folder, adapter=here)), ours(folder, adapter), 1e-5)
    with pytest.raises(CheckpointError, match="holds an adapter"):
        gf.load(tmp_path / "0")


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS)


def test_what_peft_trained_computes_the_same_here(peft: Any, folder: Path, tmp_path: Path) -> None:
    config = peft.LoraConfig(
        r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], rank_pattern={"down_proj": 3},
        alpha_pattern={"v_proj": 2}, use_rslora=True, init_lora_weights=False,
    )  # fmt: skip
    model = moved(peft.get_peft_model(theirs(folder), config)).eval()
    model.save_pretrained(tmp_path)
    adapter = load_peft(tmp_path, gf.load(folder))
    assert set(adapter.changes) == {
        f"blocks.{i}.{name}" for i in range(2) for name in ("attn.query", "attn.value", "mlp.output")
    }
    assert not any(one.requires_grad for one in adapter.parameters())
    close(ours(folder, adapter), logits(model), 1e-5)


@pytest.mark.parametrize("keep", ["knowledge", "instruction"])
def test_corda_begins_from_the_same_product(peft: Any, folder: Path, tmp_path: Path, keep: Any) -> None:
    from peft.tuners.lora.config import CordaConfig
    from peft.tuners.lora.corda import preprocess_corda

    base, sample = theirs(folder), torch.randint(0, 100, (1, 64), generator=torch.Generator().manual_seed(2))
    names = {"blocks.0.attn.query": Q, "blocks.1.mlp.output": DOWN}
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=list(names.values()), init_lora_weights="corda",
        corda_config=CordaConfig(corda_method="kpm" if keep == "knowledge" else "ipm", prune_temporary_fields=True),
    )  # fmt: skip
    before = copy.deepcopy(base)
    preprocess_corda(base, config, run_model=lambda: base(sample))
    model = peft.get_peft_model(base, config)
    adapter = CorDA(4, keep).build(gf.load(folder), list(names), sample=list(sample))
    for ours_, theirs_ in names.items():
        layer = model.get_submodule(f"base_model.model.{theirs_}")
        product = layer.scaling["default"] * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        change = adapter.changes[ours_]
        assert isinstance(change, LowRank)
        # there moments are inverted in float32
        close(change.b @ change.a, product, 2e-3)
    # trained on, and written as what is added to the base as it was
    model.save_pretrained(tmp_path / "start")
    moved(model)
    expected = logits(model)
    model.save_pretrained(tmp_path / "end", path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    close(ours(folder, load_peft(tmp_path / "end", gf.load(folder))), expected, 1e-4)
    assert (expected - logits(before)).abs().max() > 0.01


def test_what_has_no_place_there_is_refused(peft: Any, folder: Path, tmp_path: Path) -> None:
    model = gf.load(folder)
    with pytest.raises(CheckpointError, match="svf is none"):
        save_peft(Svf().build(model), tmp_path / "svf", model)
    plain = model.config.build(0)
    with pytest.raises(CheckpointError, match="was opened from none"):
        save_peft(Lora(1).build(plain), tmp_path / "plain", plain)
    config = peft.LoraConfig(r=1, target_modules=["q_proj", "embed_tokens"])
    made = peft.get_peft_model(theirs(folder), config)
    made.save_pretrained(tmp_path / "embeddings", save_embedding_layers=False)
    with pytest.raises(CheckpointError, match=r'changes "model.embed_tokens".*\n.*glassformer.load'):
        load_peft(tmp_path / "embeddings", model)
