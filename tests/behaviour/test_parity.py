"""`glassformer parity`: it agrees on a sound checkpoint, and names the first site behind a planted fault."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from elsewhere import ELSEWHERE, elsewhere
from families import all_cases, reference_folder
from families.llama import llama_grouped_keys, mistral_sliding_window
from families.reformer import reformer
from glassformer.checkpoints import load, parity, save
from glassformer.checkpoints.comparison import whole_checkpoint
from glassformer.checkpoints.comparison.reference import reference
from glassformer.checkpoints.comparison.whole_checkpoint import Parity
from glassformer.cli import main
from glassformer.data import word_tokenizer
from glassformer.errors import MissingExtra
from glassformer.models import DecoderConfig, block
from glassformer.numerics import placement
from glassformer.numerics.placement import place_of


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "sound"
    kind, config = llama_grouped_keys()
    reference_folder(kind, config, folder, torch.float32)
    return folder


@pytest.fixture
def faulty(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy for ours to read; the reference goes on reading the sound one."""
    folder = Path(shutil.copytree(sound, tmp_path / "faulty"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(whole_checkpoint, "reference", lambda _, dtype, attention: reference(sound, dtype, attention))
    return folder


def test_the_reference_is_the_class_that_the_library_picks_for_the_folder(tmp_path: Path) -> None:
    kind, config = mistral_sliding_window()
    assert config.num_hidden_layers == 2
    reference_folder(kind, config, tmp_path, torch.float32)
    said = json.loads((tmp_path / "config.json").read_text())
    kinds = {"layer_types": ["full_attention", "sliding_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(said | kinds))
    found = parity(tmp_path)
    assert (found.reference, found.family, found.first) == ("MinistralForCausalLM", "Ministral", None)


def test_a_reference_that_cannot_run_is_told_and_no_traceback(
    sound: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: Any, **named: Any) -> Any:
        raise RuntimeError("The size of tensor a (13) must match the size of tensor b (4)")

    monkeypatch.setattr(whole_checkpoint, "recorded", fails)
    assert main(["parity", str(sound)]) == 2
    shown = capsys.readouterr().err.replace("\n", " ")
    assert "as LlamaForCausalLM and cannot run it (RuntimeError: The size of" in shown
    assert "Traceback" not in shown


def change_tensor(folder: Path, name: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    assert name in tensors
    tensors[name].view(-1)[0] += 0.5
    save_file(tensors, path)


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_sound_checkpoint_agrees_in_every_layer_and_on_every_kind_of_rows(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "parity.json"
    assert main(["parity", str(sound), "--dtype", "float64", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "equal: largest error" in shown and "LlamaForCausalLM" in shown
    found = json.loads(file.read_text())
    assert found["agrees"] and found["first"] is None and found["family"] == "Llama"
    logits = {row["rows"]: row["error"] for row in found["differences"] if row["site"] == "logits"}
    assert set(logits) == {"one length", "padded right", "padded left", "cached"}
    assert max(logits.values()) < 1e-12


FAULTS = {
    "model.layers.1.mlp.down_proj.weight": ("blocks.1.mlp.out", "model.layers.1.mlp.down_proj"),
    "model.layers.0.self_attn.v_proj.weight": ("blocks.0.attn.out", "model.layers.0.self_attn.o_proj"),
    "model.layers.1.self_attn.k_proj.weight": ("blocks.1.attn.pattern", ""),
    "model.layers.1.input_layernorm.weight": ("blocks.1.attn.norm", "model.layers.1.input_layernorm"),
    "model.norm.weight": ("final.norm", "model.norm"),
    "lm_head.weight": ("logits", ""),
}


def enlarge(folder: Path) -> None:
    """Let pairs of neurons write a thousand times what others do, against each other, as trained models have them."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    gate, up, down = (tensors[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    for i in (0, 2, 4):
        gate[i + 1], up[i + 1] = gate[i], up[i] * (1 + 1e-3)
        down[:, i] *= 1e3
        down[:, i + 1] = -down[:, i]
    save_file(tensors, path)


def test_rounding_that_large_channels_leave_is_told_from_one_wrong_weight(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    large, wrong = Path(shutil.copytree(sound, tmp_path / "large")), tmp_path / "wrong"
    enlarge(large)
    found = parity(large)
    assert found.first is None and found.worst.error > found.tolerance
    assert found.worst.error <= found.allowed(found.worst) < 1e-2
    assert main(["parity", str(large)]) == 0
    assert "equal: largest error" in capsys.readouterr().out
    # asked for, a tolerance is what it says
    assert parity(large, tolerance=found.tolerance).first is not None
    shutil.copytree(large, wrong)
    tensors = load_file(wrong / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][3, 9] += 0.05
    save_file(tensors, wrong / "model.safetensors")
    monkeypatch.setattr(whole_checkpoint, "reference", lambda _, dtype, attention: reference(large, dtype, attention))
    broken = parity(wrong).first
    assert broken is not None and broken.site == "blocks.0.mlp.out"


def test_a_reference_that_hashes_by_chance_is_given_the_seed_that_ours_has(tmp_path: Path) -> None:
    kind, config = reformer()
    config.hash_seed = None
    reference_folder(kind, config, tmp_path, torch.float32)
    assert parity(tmp_path, dtype="float64", length=21).first is None


@pytest.mark.parametrize("tensor", FAULTS)
def test_a_changed_tensor_is_found_at_the_first_site_it_reaches(tensor: str, faulty: Path) -> None:
    change_tensor(faulty, tensor)
    found = parity(faulty)
    site, theirs = FAULTS[tensor]
    assert found.first is not None
    assert (found.first.site, found.first.theirs, found.first.rows) == (site, theirs, "one length")


# tensor -> first site it reaches
OTHERS = {
    "bert": ("bert.encoder.layer.1.output.dense.weight", "blocks.1.mlp.out"),
    "t5": ("decoder.block.1.layer.1.EncDecAttention.v.weight", "decoder.blocks.1.cross.out"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_fault_is_found_in_encoders_and_encoder_decoders(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, config = all_cases()[name].make()
    sound, folder = tmp_path / "sound", tmp_path / "faulty"
    reference_folder(kind, config, sound, torch.float32)
    assert parity(sound).first is None
    shutil.copytree(sound, folder)
    monkeypatch.setattr(whole_checkpoint, "reference", lambda _, dtype, attention: reference(sound, dtype, attention))
    tensor, site = OTHERS[name]
    change_tensor(folder, tensor)
    found = parity(folder)
    assert found.first is not None and found.first.site == site


def test_a_changed_field_of_the_config_is_found_and_is_exit_code_1(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_config(faulty, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert main(["parity", str(faulty)]) == 1
    assert 'first site that diverges: "blocks.0.attn.pattern", rows one length: error' in capsys.readouterr().out
    change_config(faulty, rms_norm_eps=0.1)
    assert main(["parity", str(faulty)]) == 1
    shown = capsys.readouterr().out
    assert 'diverges: "blocks.0.attn.norm" (theirs: "model.layers.0.input_layernorm")' in shown


def test_a_text_is_run_where_there_is_a_tokenizer(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", str(sound), "--text", "hello"]) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err


def test_a_folder_of_ours_has_nothing_to_be_compared_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = DecoderConfig(7, 8, (block(n_heads=2),), max_len=16).build()
    assert main(["parity", str(save(model, tmp_path / "ours"))]) == 2
    assert "is in our own layout" in capsys.readouterr().err


def test_without_transformers_the_error_names_the_extra(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"glassformer\[parity\]"):
        parity(sound)


def test_a_text_reads_rows_that_begin_at_other_tokens(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "with-tokenizer"))
    word_tokenizer(["the cat sat on a mat"]).save(folder)
    found = parity(folder, text="the cat sat on a mat the cat")
    assert found.first is None


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Where the reference, its tokens and ours lay, of each comparison in turn."""
    found: list[torch.device] = []
    compare = whole_checkpoint.comparisons_of

    def compared(checkpoint: Any, theirs: Any, tokens: torch.Tensor, steps: int) -> Any:
        found.extend((place_of(theirs), tokens.device))
        return compare(checkpoint, theirs, tokens, steps)

    def loaded(folder: Path, **how: Any) -> Any:
        ours = load(folder, **how)
        found.append(place_of(ours))
        return ours

    monkeypatch.setattr(whole_checkpoint, "comparisons_of", compared)
    monkeypatch.setattr(whole_checkpoint, "load", loaded)
    return found


# one of each kind of model
CHANGED = {"llama_grouped_keys": "model.layers.1.mlp.down_proj.weight"} | {name: OTHERS[name][0] for name in OTHERS}


@pytest.mark.parametrize("name", CHANGED)
def test_a_checkpoint_is_compared_on_any_device_with_the_errors_of_the_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[torch.device]
) -> None:
    _, faulty = changed_copy(name, tmp_path, monkeypatch)
    with elsewhere():
        there = parity(faulty, dtype="float64", steps=2, device=ELSEWHERE)
    assert places == [ELSEWHERE] * 3
    assert_same(there, parity(faulty, dtype="float64", steps=2))
    assert places[3:] == [torch.device("cpu")] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHANGED)
def test_a_gpu_finds_the_errors_of_the_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: torch.device
) -> None:
    sound, faulty = changed_copy(name, tmp_path, monkeypatch)
    assert parity(sound, device=cuda).first is None
    assert_same(parity(faulty, dtype="float64", device=cuda), parity(faulty, dtype="float64"))


def changed_copy(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return a sound checkpoint, and a copy with a tensor changed; the reference always reads the sound one."""
    kind, config = all_cases()[name].make()
    sound = folder / "sound"
    reference_folder(kind, config, sound, torch.float32)
    faulty = Path(shutil.copytree(sound, folder / "faulty"))
    change_tensor(faulty, CHANGED[name])
    monkeypatch.setattr(whole_checkpoint, "reference", lambda _, dtype, attention: reference(sound, dtype, attention))
    return sound, faulty


def assert_same(found: Parity, expected: Parity) -> None:
    """Assert that two comparisons found the same errors, but for rounding in float64."""
    assert [(d.site, d.rows) for d in found.differences] == [(d.site, d.rows) for d in expected.differences]
    assert found.first is not None and expected.first is not None and found.first.site == expected.first.site
    assert [d.error for d in found.differences] == pytest.approx([d.error for d in expected.differences], abs=1e-11)


def test_a_text_is_compared_on_any_device(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "with-tokenizer"))
    word_tokenizer(["the cat sat on a mat"]).save(folder)
    with elsewhere():
        assert parity(folder, text="the cat sat on a mat the cat", steps=1, device=ELSEWHERE).first is None


@pytest.mark.full
def test_the_command_compares_where_it_is_told_and_on_the_accelerator_by_default(
    sound: Path, monkeypatch: pytest.MonkeyPatch, places: list[torch.device]
) -> None:
    monkeypatch.setattr(placement, "_accelerator", lambda: ELSEWHERE)
    with elsewhere():
        assert main(["parity", str(sound), "--steps", "1"]) == 0
        assert main(["parity", str(sound), "--steps", "1", "--device", "cpu"]) == 0
    assert places == [ELSEWHERE] * 3 + [torch.device("cpu")] * 3


def test_a_device_that_is_not_there_is_refused_before_anything_is_loaded(
    sound: Path, capsys: pytest.CaptureFixture[str], places: list[torch.device]
) -> None:
    assert main(["parity", str(sound), "--device", "warp:1"]) == 2
    assert "device='warp:1' cannot be used" in capsys.readouterr().err
    assert places == []
