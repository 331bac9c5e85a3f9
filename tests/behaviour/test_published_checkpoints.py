"""A published checkpoint that is not as it should be: one clear error, nothing run, nothing written.

Every damage is done to a copy of a sound, sharded checkpoint, in which whatever could be run would leave a mark.
"""

import dataclasses
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer as gf
from families import reference_folder
from families.llama import llama_grouped_keys
from glassformer.checkpoints import config_of, families, open_folder
from glassformer.checkpoints.families.missing import MISSING
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.cli import main
from glassformer.errors import CheckpointError, GlassformerError, UnknownModel

# what would write a file if anybody imported or unpickled it
BOMB = "import pathlib\npathlib.Path({mark!r}).write_text('ran')\n"
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Llama checkpoint of three shards."""
    folder = tmp_path_factory.mktemp("checkpoints") / "sound"
    kind, tiny = llama_grouped_keys()
    model = reference_folder(kind, tiny, folder, torch.float32)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="14KB")
    assert (folder / SHARD).is_file()
    return folder


@pytest.fixture
def copied(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy to be damaged, in a folder of its own that is also the current one."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(sound, tmp_path / "my-model"))


def config(**fields: Any) -> Callable[[Path], None]:
    """Return what changes fields of the config; ... removes one."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        data = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({name: value for name, value in data.items() if value is not ...}))

    return change


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    """Return what changes the tensors of the second shard."""

    def rewrite(folder: Path) -> None:
        found = load_file(folder / SHARD)
        change(found)
        save_file(found, folder / SHARD)

    return rewrite


def pickled(name: str, mark: str = "ran-by-pickle") -> Callable[[Path], None]:
    """Return what writes a pickle that leaves a mark when it is opened."""

    class Bomb:
        def __reduce__(self) -> Any:
            return exec, (BOMB.format(mark=mark),)

    def write(folder: Path) -> None:
        torch.save({"model.norm.weight": Bomb()}, folder / name)

    return write


def only_bin(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    pickled("pytorch_model.bin")(folder)


def remote_code(folder: Path) -> None:
    config(model_type="my_llm", auto_map={"AutoModelForCausalLM": "modeling_my_llm.MyLLM"})(folder)
    for name in ("modeling_my_llm.py", "configuration_my_llm.py", "__init__.py"):
        (folder / name).write_text(BOMB.format(mark="ran-by-code"))


def index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return rewrite


def header(entry: dict[str, Any]) -> Callable[[Path], None]:
    """Return what gives a shard a header of one's own."""

    def rewrite(folder: Path) -> None:
        text = json.dumps({"model.norm.weight": entry}).encode()
        (folder / SHARD).write_bytes(struct.pack("<Q", len(text)) + text + bytes(96))

    return rewrite


def tied_with_another_head(folder: Path) -> None:
    config(tie_word_embeddings=True)(folder)


def whole_file(**changed: torch.Tensor) -> Callable[[Path], None]:
    """Return what puts the tensors of all shards into one file beside them, some of them changed."""

    def write(folder: Path) -> None:
        found = {name: value for path in folder.glob("model-*") for name, value in load_file(path).items()}
        save_file(found | {name.replace("_", "."): value for name, value in changed.items()}, folder / WEIGHTS)

    return write


DAMAGES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "a truncated shard": (
        lambda f: (f / SHARD).write_bytes((f / SHARD).read_bytes()[:-50]),
        [SHARD, "bytes) is not a whole safetensors file", "Copy or download it again."],
    ),
    "an empty shard": (lambda f: (f / SHARD).write_bytes(b""), [SHARD, "(0 bytes) is not a whole safetensors file"]),
    "a missing shard": (
        lambda f: (f / SHARD).unlink(),
        ["lacks 1 of its 3 files", SHARD, "Copy or download them again."],
    ),
    "a header beyond the file": (
        header({"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}),
        [SHARD, "is not a whole safetensors file"],
    ),
    "a header of no tensor": (header({"dtype": "F32"}), [SHARD, "is not a whole safetensors file"]),
    "a shard of another checkpoint": (
        tensors(lambda t: t.update(extra=torch.zeros(2))),
        ['"extra" lies in', "missing from model.safetensors.index.json", "of another checkpoint"],
    ),
    "whole numbers for weights": (
        tensors(lambda t: t.update({n: v.round().to(torch.int8) for n, v in t.items()})),
        ["is stored as I8", "F16, BF16, F32 and F64 are read"],
    ),
    "eight-bit floats": (
        tensors(lambda t: t.update({n: v.to(torch.float8_e4m3fn) for n, v in t.items()})),
        ["is stored as F8_E4M3", "F16, BF16, F32 and F64 are read"],
    ),
    "a quantised config": (
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        ["quantised weights (GPTQ, 4 bits: quantization_config)", "Take the checkpoint it was made from"],
    ),
    "more layers than there are": (
        config(num_hidden_layers=3),
        ['"model.layers.2.', "is missing.", "read as Llama", "more)"],
    ),
    "fewer layers than there are": (
        config(num_hidden_layers=1),
        ['"model.layers.1.', "is there, and nothing uses it."],
    ),
    "another width": (config(hidden_size=32, head_dim=6), ["has shape", "does not fit what the config asks for"]),
    "other heads": (config(num_attention_heads=2, head_dim=6), ["has shape", "does not fit what the config asks for"]),
    "another vocabulary": (config(vocab_size=24), ['"model.embed_tokens.weight" has shape (23, 24)', "(24, 24)"]),
    "heads that do not group": (config(num_key_value_heads=3), ["config.json", "n_kv_heads must divide n_heads"]),
    "tied, with a head of its own": (
        tied_with_another_head,
        ['ties "lm_head.weight" to "model.embed_tokens.weight"', "the two differ", '"tie_word_embeddings": false'],
    ),
    "a width that is no number": (config(hidden_size="wide"), ["hidden_size must be a whole number, found 'wide'"]),
    "a width that is missing": (config(hidden_size=...), ['lacks "hidden_size".']),
    "a width that is null": (config(hidden_size=None), ["hidden_size is null, and what is built needs a value"]),
    "an activation nobody knows": (config(hidden_act="xgelu"), ["hidden_act must be one of", "'xgelu'"]),
    "no heads": (config(num_attention_heads=0, head_dim=...), ["config.json"]),
    "more heads than memory": (
        config(num_attention_heads=10**10, num_key_value_heads=10**10, head_dim=6),
        ["config.json", "n_heads must be at most"],
    ),
    "huge sizes": (config(vocab_size=2**39, hidden_size=2**39), ["config.json"]),
    "sizes beyond 64 bits": (config(intermediate_size=10**30), ["intermediate_size must be at most"]),
    "more layers than memory": (config(num_hidden_layers=10**12), ["num_hidden_layers must be at most 10,000"]),
    "an unknown architecture": (
        config(model_type="lama2"),
        [
            'the architecture "lama2"',
            "no family covers",
            'Nearest: "llama"',
            "gf.foreign",
            "docs/how-to/add-a-family.md",
        ],
    ),
    "no architecture": (config(model_type=..., architectures=...), ["a config without model_type", "no family covers"]),
    "a config asking for code of its own": (
        remote_code,
        ['the architecture "my_llm"', "asks for code of its own (auto_map), which is never run", "gf.foreign"],
    ),
    "a pickle renamed": (pickled(SHARD), [SHARD, "is a pickle, not safetensors, whatever its name says"]),
    "pickles alone": (only_bin, ["pytorch_model.bin", "can run code", "weights_only=True", "save_file"]),
    "a pointer of git-lfs": (
        lambda f: (f / SHARD).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n"),
        [SHARD, "is a pointer of git-lfs", "git lfs pull"],
    ),
    "an index that leaves the folder": (
        index(lambda d: d["weight_map"].update({"model.norm.weight": "../outside.safetensors"})),
        ['names "../outside.safetensors", which does not lie in the folder'],
    ),
    "an index that is none": (
        lambda f: (f / "model.safetensors.index.json").write_text("[1, 2]"),
        ["model.safetensors.index.json", "is no index of safetensors files"],
    ),
    "one file of other weights beside the shards": (
        whole_file(model_norm_weight=torch.full((24,), 7.0)),
        ["holds two sets of weights, model.safetensors and", '"model.norm.weight" differs', "take away model.saf"],
    ),
    "one file of more weights beside the shards": (
        whole_file(more=torch.ones(2)),
        ["holds two sets of weights", '"more" is in one of them alone'],
    ),
    "a shard left over": (
        lambda f: shutil.copy(f / SHARD, f / "model-00003-of-00004.safetensors"),
        ["holds model-00003-of-00004.safetensors, which model.safetensors.index.json does not name", "left over"],
    ),
    "an index that promises more": (
        index(lambda d: d["weight_map"].update({"model.more": SHARD})),
        ['says that "model.more" lies in', "which does not hold it"],
    ),
    "a config that is no JSON": (
        lambda f: (f / "config.json").write_text("{'model_type': 'llama'}"),
        ["config.json", "is not valid JSON"],
    ),
    "a config that is a list": (lambda f: (f / "config.json").write_text("[]"), ["config.json"]),
    "no config": (lambda f: (f / "config.json").unlink(), ["holds no config.json"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_clear_error_and_nothing_is_run_or_written(damage: str, copied: Path) -> None:
    harm, expected = DAMAGES[damage]
    harm(copied)
    before = {path: path.stat().st_mtime_ns for path in copied.parent.rglob("*")}
    with pytest.raises(CheckpointError) as caught:
        gf.load(copied)
    assert [phrase for phrase in expected if phrase not in str(caught.value)] == [], str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in copied.parent.rglob("*")} == before


def test_one_file_of_the_same_weights_beside_shards_is_no_damage(copied: Path) -> None:
    expected = gf.load(copied)(torch.tensor([[1, 2, 3]]))
    whole_file()(copied)
    # other files than shards belong to no index
    shutil.copy(copied / SHARD, copied / "consolidated.safetensors")
    assert torch.equal(gf.load(copied)(torch.tensor([[1, 2, 3]])), expected)


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "module._orig_mod.", "base_model.model."])
def test_what_wrappers_put_before_every_name_is_taken_off_and_said(
    wrapper: str, copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = gf.load(copied)(torch.tensor([[1, 2, 3]]))
    assert not caplog.records
    for path in copied.glob("model-*"):
        save_file({wrapper + name: value for name, value in load_file(path).items()}, path)
    index(lambda d: d.update(weight_map={wrapper + name: at for name, at in d["weight_map"].items()}))(copied)
    assert torch.equal(gf.load(copied)(torch.tensor([[1, 2, 3]])), expected)
    assert [f'begin with "{wrapper}"' in record.getMessage() for record in caplog.records] == [True]


def test_what_stands_before_some_names_alone_is_no_wrappers(copied: Path) -> None:
    tensors(lambda t: t.update({"module.extra": torch.ones(2)}))(copied)
    index(lambda d: d["weight_map"].update({"module.extra": SHARD}))(copied)
    with pytest.raises(CheckpointError, match=r'"module[.]extra" is there, and nothing uses it'):
        gf.load(copied)


def without_head(folder: Path) -> None:
    for path in folder.glob("model-*"):
        save_file({name: value for name, value in load_file(path).items() if name != "lm_head.weight"}, path)
    index(lambda d: d["weight_map"].pop("lm_head.weight"))(folder)


def test_a_head_that_is_missing_names_the_way_on_and_it_works(copied: Path) -> None:
    without_head(copied)
    with pytest.raises(CheckpointError, match=r'"lm_head.weight" is missing(.|\n)*set "tie_word_embeddings": true in'):
        gf.load(copied)
    config(tie_word_embeddings=True)(copied)
    assert gf.load(copied).config.tied


def test_the_text_half_of_a_model_of_several_is_named(copied: Path) -> None:
    inner = json.loads((copied / "config.json").read_text())
    outer = {"model_type": "llava_like", "text_config": inner, "vision_config": {"model_type": "sight"}}
    (copied / "config.json").write_text(json.dumps(outer))
    with pytest.raises(
        CheckpointError, match=r'Its text_config is of "llama", which is covered \(Llama\): a folder with'
    ):
        gf.load(copied)


def test_an_adapter_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "some/base"})
    )
    factor = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({factor: torch.zeros(2, 24)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(
        CheckpointError, match=r'an adapter \(LORA\) of "some/base", and no model(.|\n)*merge_and_unload'
    ):
        gf.load(tmp_path)
    (tmp_path / "adapter_config.json").write_text("[")
    with pytest.raises(CheckpointError, match="holds an adapter, and no model"):
        gf.load(tmp_path)


def test_a_known_architecture_with_code_of_its_own_loads_without_running_it(copied: Path) -> None:
    expected = gf.load(copied)(torch.tensor([[1, 2, 3]]))
    remote_code(copied)
    config(model_type="llama")(copied)
    assert torch.equal(gf.load(copied)(torch.tensor([[1, 2, 3]])), expected)
    assert not (copied.parent / "ran-by-code").exists()


def test_commands_say_it_in_a_sentence(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / SHARD).unlink()
    for line in ("explain my-model hi", "parity my-model", "lens my-model hi"):
        assert main(line.split()) == 2
        error = capsys.readouterr().err
        assert "lacks 1 of its 3 files" in error and "Traceback" not in error
    # what needs no weights does without them
    assert main(["params", "my-model"]) == 0


def test_a_missing_tokenizer_leaves_token_ids(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = gf.load(copied)
    assert model.tokenizer is None
    with pytest.raises(GlassformerError, match="has no tokenizer: give token ids"):
        gf.explain(model, "hello")
    assert main(["lens", "my-model", "1 2 3"]) == 0
    assert main(["lens", "my-model", "hello"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err


def test_a_damaged_tokenizer_is_named(copied: Path) -> None:
    (copied / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        gf.load(copied)


@pytest.mark.parametrize("where", ["header", "middle"])
def test_any_flipped_byte_of_a_shard_is_a_model_or_a_public_error(copied: Path, where: str) -> None:
    content = (copied / SHARD).read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    places = range(0, size, 7) if where == "header" else range(size, len(content), 1500)
    for place in places:
        (copied / SHARD).write_bytes(content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1 :])
        try:
            open_folder(copied).fill()
        except GlassformerError as error:
            assert str(error)


def test_a_hub_model_is_looked_for_in_the_cache_when_there_is_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="neither a folder nor in the hub's cache"):
        gf.load("somebody/a-model")
    assert main(["params", "somebody/a-model"]) == 2
    assert "the hub cannot be reached" in capsys.readouterr().err


def hub_error(kind: str) -> Exception:
    from huggingface_hub import errors

    found = getattr(errors, kind)
    # without the response of a server, which its own constructor asks for
    error = found.__new__(found)
    error.args = ("said no",)
    return error


def refused_token(status: int) -> Exception:
    error: Any = hub_error("HfHubHTTPError")
    error.response = SimpleNamespace(status_code=status)
    return error


HUB = {
    "GatedRepoError": (UnknownModel, "is gated: accept its terms"),
    "RevisionNotFoundError": (UnknownModel, '"somebody/a-model" at revision v9: the hub has the model, but not this'),
    "RepositoryNotFoundError": (UnknownModel, "nor, as far as you may see, on the hub"),
    "HfHubHTTPError": (CheckpointError, "the hub answers with an error (said no)"),
}


@pytest.mark.parametrize("kind", HUB)
def test_what_the_hub_refuses_is_said(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: Any, **__: Any) -> str:
        raise hub_error(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    error, message = HUB[kind]
    with pytest.raises(error) as caught:
        gf.load("somebody/a-model", revision="v9")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "refuses your token"), (403, "refuses your token"), (500, "answers with an error (500)")],
)
def test_a_token_that_is_refused_is_told_from_other_errors(
    status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def refuse(*_: Any, **__: Any) -> str:
        raise refused_token(status)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises((UnknownModel, CheckpointError)) as caught:
        gf.load("somebody/a-model")
    assert message in str(caught.value)


def test_a_revision_and_the_wanted_files_are_asked_of_the_hub(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **how: asked.append({"name": name} | how) or str(sound)
    )
    assert gf.load("somebody/a-model", revision="v2").name == "a-model"
    config_of("somebody/a-model")
    assert (asked[0]["name"], asked[0]["revision"]) == ("somebody/a-model", "v2")
    assert any(pattern.endswith(".safetensors") for pattern in asked[0]["allow_patterns"])
    # a config alone does not fetch weights, and nothing fetches code or pickles
    assert not any(pattern.endswith(".safetensors") for pattern in asked[1]["allow_patterns"])
    assert all({"*.py", "*.bin"} <= set(one["ignore_patterns"]) for one in asked)


def test_a_family_of_ones_own_is_asked_first_and_only_once(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", list(families.FAMILIES))
    llama = next(family for family in families.FAMILIES if family.name == "Llama")
    own = dataclasses.replace(llama, name="Lama", model_types=("lama2",))
    config(model_type="lama2")(copied)
    with pytest.raises(CheckpointError, match="no family covers"):
        gf.load(copied)
    assert families.register(own) is own and families.register(own) is own
    assert [family.name for family in families.FAMILIES].count("Lama") == 1
    assert gf.load(copied).origin.family == "Lama"


@pytest.mark.parametrize("kind", MISSING)
def test_an_architecture_without_a_family_is_refused_by_what_it_has(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=f'"{kind}", which no family covers. It has .*no part here computes'
    ) as found:
        gf.load(tmp_path)
    assert MISSING[kind] in str(found.value) and "gf.foreign" in str(found.value)


def test_architectures_said_to_be_missing_exist_and_are_missing() -> None:
    from transformers import CONFIG_MAPPING

    covered = {kind for family in families.FAMILIES for kind in family.model_types}
    assert not covered & MISSING.keys() and MISSING.keys() <= set(CONFIG_MAPPING.keys())
