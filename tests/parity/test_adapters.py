"""LoRA adapters merged into their base: the formula written out, and what is none of it refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import glassformer as gf
from families import reference_folder
from glassformer.checkpoints.comparison.reference import wide
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.cli import main
from glassformer.errors import CheckpointError
from glassformer.testing import close

transformers = pytest.importorskip("transformers")

IDS = [list(range(3, 20))]
PLAIN: dict[str, Any] = {"peft_type": "LORA", "base_model_name_or_path": "some/base", "r": 2, "lora_alpha": 6}
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attention_bias=True, tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("base")
    reference_folder(transformers.LlamaForCausalLM, config, folder, torch.float64)
    return folder


def adapter(folder: Path, tensors: dict[str, Tensor], **said: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | said))
    save_file(
        {f"base_model.model.{name}": value for name, value in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def factors(module: str, rows: int, columns: int, r: int = 2, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((r, columns), (rows, r)))
    return {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}


def with_tensors(model: Any, base: Path, **changed: Tensor) -> Tensor:
    """What a reference computes with some of its tensors changed."""
    # angles in the precision of the weights
    with wide(torch.float64), torch.no_grad():
        theirs = model.from_pretrained(base, dtype=torch.float64)
        told = theirs.load_state_dict({n.replace("__", "."): value for n, value in changed.items()}, strict=False)
        assert not told.unexpected_keys
        return theirs(torch.tensor(IDS)).logits


def merged(base: Path, folder: Path) -> Tensor:
    logits = gf.run(gf.load(base, adapter=folder), IDS).logits
    assert logits is not None
    return logits


def test_factors_are_added_by_the_scale_of_their_module(base, tmp_path):
    own, first = load_file(base / WEIGHTS), {**factors(Q, 32, 32), **factors(DOWN, 32, 48, r=3, seed=1)}
    folder = adapter(
        tmp_path / "lora", first, rank_pattern={"down_proj": 3}, alpha_pattern={"layers.1.mlp.down_proj": 12}
    )
    for rooted in (False, True):
        scales = {Q: 6 / (math.sqrt(2) if rooted else 2), DOWN: 12 / (math.sqrt(3) if rooted else 3)}
        adapter(
            folder,
            first,
            rank_pattern={"down_proj": 3},
            alpha_pattern={"layers.1.mlp.down_proj": 12},
            use_rslora=rooted,
        )
        want = {
            f"{module}.weight".replace(".", "__"): own[f"{module}.weight"]
            + scale * first[f"{module}.lora_B.weight"] @ first[f"{module}.lora_A.weight"]
            for module, scale in scales.items()
        }
        found = merged(base, folder)
        close(found, with_tensors(transformers.LlamaForCausalLM, base, **want), 1e-9)
        assert (found - with_tensors(transformers.LlamaForCausalLM, base)).abs().max() > 0.1
    model = gf.load(base, adapter=folder, stream=True)
    streamed = gf.run(model, IDS).logits
    assert streamed is not None and torch.equal(streamed, found)
    assert "An adapter was merged into the weights: lora, of 2 matrices." in str(gf.run(model, IDS).notes[0])


def test_embeddings_transposed_matrices_and_modules_that_were_saved_whole(base, tmp_path):
    own, seed = load_file(base / WEIGHTS), torch.Generator().manual_seed(3)
    a, b, head = (torch.randn(*size, generator=seed, dtype=torch.float64) for size in ((2, 100), (32, 2), (100, 32)))
    bias = torch.randn(32, generator=seed, dtype=torch.float64)
    tensors = {"model.embed_tokens.lora_embedding_A": a, "model.embed_tokens.lora_embedding_B": b}
    folder = adapter(tmp_path / "lora", {**tensors, "lm_head.weight": head, f"{Q}.bias": bias}, bias="lora_only")
    want = {
        "model__embed_tokens__weight": own["model.embed_tokens.weight"] + 3 * (b @ a).T,
        "lm_head__weight": head,
        f"{Q}.bias".replace(".", "__"): bias,
    }
    close(merged(base, folder), with_tensors(transformers.LlamaForCausalLM, base, **want), 1e-9)

    config = transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    gpt2 = tmp_path / "gpt2"
    reference_folder(transformers.GPT2LMHeadModel, config, gpt2, torch.float64)
    fused = "transformer.h.0.attn.c_attn"
    first = factors(fused, 96, 32)
    folder = adapter(tmp_path / "fan", first, fan_in_fan_out=True)
    product = first[f"{fused}.lora_B.weight"] @ first[f"{fused}.lora_A.weight"]
    changed = load_file(gpt2 / WEIGHTS)[f"{fused}.weight"] + 3 * product.T
    want = {f"{fused}.weight".replace(".", "__"): changed}
    close(merged(gpt2, folder), with_tensors(transformers.GPT2LMHeadModel, gpt2, **want), 1e-9)


def test_what_is_no_such_sum_is_refused_by_name(base, tmp_path):
    first = factors(Q, 32, 32)
    for said, told in (
        ({"peft_type": "IA3"}, "an adapter 'IA3'; LORA is read"),
        ({"use_dora": True}, "use_dora=True makes of it another adapter"),
        ({"layer_replication": [[0, 2]]}, r"layer_replication=\[\[0, 2\]\] makes"),
        ({"init_lora_weights": "pissa"}, "'pissa' changed the weights of the base too"),
        ({"r": 4}, "has 2 rows, and its config says r=4"),
    ):
        with pytest.raises(CheckpointError, match=told):
            gf.load(base, adapter=adapter(tmp_path / "lora", first, **said))
    for tensors, told in (
        (factors("model.layers.7.self_attn.q_proj", 32, 32), "trained beside another model, or with a head"),
        (factors(Q, 32, 40), r"makes \(32, 40\) of"),
        ({f"{Q}.lora_A.weight": torch.zeros(2, 32)}, "the other factor of"),
        ({f"{Q}.lora_B.weight": torch.zeros(32, 2)}, "the other factor of"),
        ({"score.weight": torch.zeros(2, 32)}, "with a head that this one has not"),
    ):
        with pytest.raises(CheckpointError, match=told):
            gf.load(base, adapter=adapter(tmp_path / "lora", tensors))
    (tmp_path / "lora" / "adapter_model.safetensors").rename(tmp_path / "lora" / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model.bin, which can run code"):
        gf.load(base, adapter=tmp_path / "lora")
    with pytest.raises(CheckpointError, match="merged into the weights of a published folder"):
        gf.load("attn-only-2l", adapter=tmp_path / "lora")
    with pytest.raises(CheckpointError, match="no folder"):
        gf.load(base, adapter=tmp_path / "nowhere")


def test_an_adapter_beside_its_base_is_noted_until_it_is_asked_for(base, tmp_path, tmp_path_factory, caplog):
    for name in ("config.json", WEIGHTS):
        (tmp_path / name).write_bytes((base / name).read_bytes())
    adapter(tmp_path, factors(Q, 32, 32))
    (note,) = gf.load(tmp_path).checkpoint_notes
    assert "was not merged" in note.seen and f'load("{tmp_path}", adapter=' in str(note)
    # what is written from it holds the base alone, with nothing beside it
    converted = tmp_path_factory.mktemp("converted")
    for to in ("huggingface", "glassformer"):
        written = gf.checkpoints.convert(tmp_path, converted / to, to)
        assert gf.load(written).checkpoint_notes == ()
    assert str(note) in caplog.messages
    (note,) = gf.load(tmp_path, adapter=tmp_path).checkpoint_notes
    assert "was merged" in note.seen


def test_verbs_that_read_no_weights_or_compare_them_say_what_lies_beside_them(base, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    for name in ("config.json", WEIGHTS):
        (tmp_path / name).write_bytes((base / name).read_bytes())
    for beside in (False, True):
        for verb in ("params", "parity"):
            assert main([verb, str(tmp_path), "--json", str(tmp_path / f"{verb}.json")]) == 0
            assert ("was not merged into them" in capsys.readouterr().out) is beside
            assert len(json.loads((tmp_path / f"{verb}.json").read_text())["notes"]) == beside
        adapter(tmp_path, factors(Q, 32, 32))
