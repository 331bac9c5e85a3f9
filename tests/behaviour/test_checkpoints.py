"""Model folders: what is saved comes back, and whatever is wrong with a folder is said in one sentence."""

import errno
import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as serialise

from glassformer import checkpoints, files
from glassformer.attention import MixerConfig
from glassformer.checkpoints.own import TOKENIZER, sha256
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.data import bytes_tokenizer
from glassformer.errors import CheckpointError, ConfigError, SaveError, UnknownKind, UnknownModel
from glassformer.files.packaged import CONFIG
from glassformer.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Learned,
    Mlp,
    ModelConfig,
    block,
    repeat,
)

TINY = DecoderConfig(300, 16, repeat(block(n_heads=2, mlp=Mlp(24), bias=True), 2), max_len=8, positions=Learned())
TOKENS = torch.tensor([[5, 7, 11]])


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def forge(folder: Path, model: object = None, **tensors: torch.Tensor) -> None:
    """Change config or weights and write digests that fit: what a damaged file never has, but a strange one may."""
    envelope = json.loads((folder / CONFIG).read_text())
    if model is not None:
        envelope["model"] = model
    if tensors:
        (folder / WEIGHTS).write_bytes(serialise(tensors))
    envelope["sha256"]["model"] = sha256(json.dumps(envelope["model"], sort_keys=True))
    for name in (WEIGHTS, TOKENIZER):
        if (folder / name).exists():
            envelope["sha256"][name] = sha256((folder / name).read_bytes())
    (folder / CONFIG).write_text(json.dumps(envelope))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.save(TINY.build(), tmp_path / "model")


@pytest.mark.parametrize("kind", sorted(MixerConfig.registry))
def test_a_model_comes_back_as_it_was_saved(kind, tmp_path):
    mixer = MixerConfig.registry[kind]()
    assert isinstance(mixer, MixerConfig)
    layers = repeat(block(mixer, n_heads=2), 1)
    kind = EncoderConfig(TINY.vocab_size, TINY.d_model, layers) if mixer.bidirectional else TINY.replace(layers=layers)
    model = kind.build(seed=3).eval()
    model.tokenizer = bytes_tokenizer()
    loaded = checkpoints.load(checkpoints.save(model, tmp_path))
    assert loaded.config == model.config
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    assert loaded.require_tokenizer().encode("héllo") == model.require_tokenizer().encode("héllo")
    assert not loaded.training and all(p.requires_grad for p in loaded.parameters())


def test_an_encoder_decoder_comes_back_as_it_was_saved(tmp_path):
    layers = repeat(block(n_heads=2), 1), repeat(block(n_heads=2, cross=True), 1)
    model = EncoderDecoderConfig(30, 16, *layers).build().eval()
    loaded = checkpoints.load(checkpoints.save(model, tmp_path))
    assert torch.equal(loaded(TOKENS, TOKENS), model(TOKENS, TOKENS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_half_the_bytes_and_comes_back_rounded_in_float32(dtype, tmp_path):
    model = TINY.build()
    whole, half = (checkpoints.save(model, tmp_path / name, dtype=d) for name, d in (("whole", None), ("half", dtype)))
    # headers differ by the length of a type's name
    header = 4000
    assert (half / WEIGHTS).stat().st_size - header < (whole / WEIGHTS).stat().st_size / 2
    loaded = checkpoints.load(half).state_dict()
    for name, value in model.state_dict().items():
        assert loaded[name].dtype == torch.float32
        assert torch.equal(loaded[name], value.to(dtype).float())


def test_a_tied_matrix_is_stored_once(tmp_path):
    sizes, names = [], []
    for tied in (True, False):
        out = checkpoints.save(TINY.replace(tied=tied).build(), tmp_path / str(tied))
        raw = (out / WEIGHTS).read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        names.append({name for name in header if name != "__metadata__"})
        sizes.append(sum(stop - start for start, stop in (header[name]["data_offsets"] for name in names[-1])))
    assert len(names[1]) - len(names[0]) == 1
    assert sizes[1] - sizes[0] == TINY.vocab_size * TINY.d_model * 4
    loaded: Any = checkpoints.load(tmp_path / "True")
    assert loaded.unembed.weight is loaded.embed.weight
    assert sizes[0] == sum(p.numel() for p in loaded.parameters()) * 4


def test_a_model_without_tokenizer_replaces_one_with(tmp_path):
    model = TINY.build()
    model.tokenizer = bytes_tokenizer()
    checkpoints.save(model, tmp_path)
    model.tokenizer = None
    assert checkpoints.load(checkpoints.save(model, tmp_path)).tokenizer is None


def test_an_unknown_model_is_answered_with_the_nearest_name(monkeypatch):
    monkeypatch.setattr("glassformer.checkpoints.names.shipped", lambda: ["attn-only-2l", "gpt-4l"])
    with pytest.raises(UnknownModel, match=r'no model "gpt-4"[.] Nearest: "gpt-4l"[.] Shipped: attn-only-2l, gpt-4l'):
        checkpoints.load("gpt-4")
    with pytest.raises(UnknownModel, match="or give a folder"):
        checkpoints.load("x" * 5000)


def test_a_file_where_a_folder_is_meant_is_said(folder):
    with pytest.raises(CheckpointError, match=r"is a file; give the folder that holds config.json"):
        checkpoints.load(folder / WEIGHTS)


def test_a_folder_without_config_lists_what_is_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no config.json \(found: an empty folder\)"):
        checkpoints.load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(CheckpointError, match=r"found: pytorch_model.bin\). Pickles can run code and are refused"):
        checkpoints.load(tmp_path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, (self.target,)

    def __init__(self, target: str) -> None:
        self.target = target


def test_a_digest_that_is_no_text_is_refused(folder):
    envelope = json.loads((folder / CONFIG).read_text())
    envelope["sha256"][WEIGHTS] = {}
    (folder / CONFIG).write_text(json.dumps(envelope))
    with pytest.raises(CheckpointError, match=r"the digest of model\.safetensors is no text"):
        checkpoints.load(folder)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "torch"])
def test_a_pickle_in_place_of_the_weights_is_refused_and_not_run(protocol, folder, tmp_path):
    bomb = Bomb(str(tmp_path / "ran"))
    if protocol == "torch":
        torch.save({"x": bomb}, folder / WEIGHTS)
    else:
        (folder / WEIGHTS).write_bytes(pickle.dumps(bomb, protocol=protocol))
    with pytest.raises(CheckpointError, match=r"is a pickle, not safetensors.*pickles can run code and are refused"):
        checkpoints.load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580])
def test_weights_whose_header_has_the_length_of_a_pickles_first_bytes_are_read(length, tmp_path):
    folder = checkpoints.save(TINY.replace(layers=()).build(), tmp_path)
    content = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(content[:8], "little")
    # headers may end in spaces
    header = content[8 : 8 + size].rstrip().ljust(length)
    assert len(header) == length
    (folder / WEIGHTS).write_bytes(length.to_bytes(8, "little") + header + content[8 + size :])
    forge(folder)
    assert checkpoints.load(folder).config == TINY.replace(layers=())


def test_every_truncation_is_noticed(folder):
    for name in (WEIGHTS, CONFIG):
        whole = (folder / name).read_bytes()
        for kept in {0, 1, 7, 8, 9, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
            (folder / name).write_bytes(whole[:kept])
            with pytest.raises(CheckpointError):
                checkpoints.load(folder)
        (folder / name).write_bytes(whole)


def test_a_missing_file_is_named(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r'model" holds no safetensors file \(found: config.json\)'):
        checkpoints.load(folder)


def test_a_file_of_another_size_than_its_tensors_is_refused_before_it_is_read(folder, tmp_path, monkeypatch):
    # 1 TiB that takes no room on the disk
    os.truncate(folder / WEIGHTS, 1 << 40)
    monkeypatch.setattr("hashlib.file_digest", lambda *given: pytest.fail("all of it is read"))
    for reads in (
        lambda: checkpoints.load(folder),
        lambda: checkpoints.load(folder, stream=True),
        lambda: checkpoints.convert(folder, tmp_path / "out", to="glassformer"),
    ):
        with pytest.raises(CheckpointError, match=r"1,099,511,627,776 bytes\) is not a whole safetensors file"):
            reads()


def test_a_flipped_bit_in_any_region_of_the_weights_is_noticed(folder):
    whole = (folder / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    places = [0, 3, 7, 8, 9, header // 2, header - 1, header, (header + len(whole)) // 2, len(whole) - 1]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        (folder / WEIGHTS).write_bytes(flipped)
        with pytest.raises(CheckpointError, match="truncated or damaged"):
            checkpoints.load(folder)


def assert_flips_in_the_config_are_noticed(folder: Path, places: range) -> None:
    model = checkpoints.load(folder)
    whole = (folder / CONFIG).read_bytes()
    for place in places:
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            (folder / CONFIG).write_bytes(flipped)
            try:
                loaded = checkpoints.load(folder)
            except CheckpointError:
                continue
            # "1e-05" and "1E-05" are one number
            assert loaded.config == model.config and type(loaded.tokenizer) is type(model.tokenizer)
    (folder / CONFIG).write_bytes(whole)


def small_with_tokenizer(folder: Path) -> Path:
    model = TINY.replace(layers=repeat(block(n_heads=2), 1)).build()
    model.tokenizer = bytes_tokenizer()
    return checkpoints.save(model, folder)


def test_a_flipped_bit_in_the_config_is_noticed_or_changes_nothing(tmp_path):
    small_with_tokenizer(tmp_path)
    size = (tmp_path / CONFIG).stat().st_size
    assert_flips_in_the_config_are_noticed(tmp_path, range(0, size, 71))


@pytest.mark.full
def test_every_single_flipped_bit_in_the_config_is_noticed_or_changes_nothing(tmp_path):
    small_with_tokenizer(tmp_path)
    assert_flips_in_the_config_are_noticed(tmp_path, range((tmp_path / CONFIG).stat().st_size))


def test_a_flipped_bit_in_the_tokenizer_is_noticed(tmp_path):
    small_with_tokenizer(tmp_path)
    content = bytearray((tmp_path / TOKENIZER).read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / TOKENIZER).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer.json.* does not match the digest"):
        checkpoints.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "decodr"}, "no kind 'decodr'. Nearest: \"decoder\""),
        ({"d_modl": 16}, 'no field "d_modl". Nearest: "d_model"'),
        ({"d_model": "16"}, "d_model: expected int, found '16'"),
        ({"d_model": 17}, "d_model=17 does not divide into n_heads=2"),
        ({"d_model": 32}, "does not fit its config"),
        ({"layers": []}, "does not fit its config"),
        ({"layers": 3}, "layers: expected a list, found 3"),
        ({"max_len": 0}, "max_len must be at least 1, found 0"),
        ({"vocab_size": 10**9, "d_model": 10**9}, "impossible sizes"),
        ({"vocab_size": 10**6, "d_model": 10**6}, "does not fit its config"),
        ({"vocab_size": 10**400}, "vocab_size must be a whole number, 1 to 2147483647"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change, message, folder):
    forge(folder, model=TINY.to_dict() | change)
    with pytest.raises(CheckpointError, match=message):
        checkpoints.load(folder)


def test_a_config_of_hundreds_of_blocks_is_refused_before_it_is_built(folder):
    config = TINY.to_dict()
    forge(folder, model=config | {"layers": config["layers"][:1] * 300})
    with pytest.raises(CheckpointError, match="too few for the 300 blocks of its config"):
        checkpoints.load(folder)


def test_heads_that_do_not_divide_or_group_are_config_errors():
    with pytest.raises(ConfigError, match="n_heads=8 does not group into n_kv_heads=3; n_kv_heads must divide"):
        block(n_heads=8, n_kv_heads=3)
    with pytest.raises(
        ConfigError, match="d_model=20 does not divide into n_heads=3; change one of them or give d_head"
    ):
        DecoderConfig(9, 20, repeat(block(n_heads=3), 1)).build()
    with pytest.raises(ConfigError, match=r"encoder layer .0. has cross-attention; only the decoder may"):
        EncoderDecoderConfig(9, 20, (block(n_heads=2, cross=True),), (block(n_heads=2, cross=True),))


def test_a_config_of_unusable_numbers_is_a_config_error():
    with pytest.raises(ConfigError, match="finite"):
        ModelConfig.from_dict(TINY.to_dict() | {"layers": [TINY.to_dict()["layers"][0] | {"dropout": 10**400}]})
    with pytest.raises(UnknownKind, match="no kind None"):
        ModelConfig.from_dict({"vocab_size": 3})


def test_tensors_that_do_not_fit_are_named(folder):
    state = TINY.build().state_dict()
    name = "stack.blocks.1.mlp.input.weight"
    forge(folder, **{k: v for k, v in state.items() if k != name})
    with pytest.raises(CheckpointError, match=f'"{name}" is missing'):
        checkpoints.load(folder)
    forge(folder, **state, **{"stack.blocks.1.mlp.inpt.weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=f'inpt.weight" is not in the model. Nearest: "{name}"'):
        checkpoints.load(folder)
    forge(folder, **state | {name: torch.zeros(2, 3)})
    with pytest.raises(CheckpointError, match=r"has shape \(2, 3\), the config asks for \(24, 16\)"):
        checkpoints.load(folder)
    forge(folder, **state | {name: state[name].to(torch.int32)})
    with pytest.raises(CheckpointError, match=r"is stored as I32"):
        checkpoints.load(folder)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(folder):
    forge(folder)
    model = TINY.replace(vocab_size=200).build()
    model.tokenizer = bytes_tokenizer()
    with pytest.raises(CheckpointError, match="has 257 tokens, the model vocab_size=200"):
        checkpoints.load(checkpoints.save(model, folder))


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_model_as_it_was(call, folder, monkeypatch):
    before = contents(folder)
    monkeypatch.setattr(os, call, no_space)
    with pytest.raises(
        SaveError, match=r"No space left on device. Choose a folder that can be written to and has room"
    ):
        checkpoints.save(TINY.build(seed=1), folder)
    assert contents(folder) == before
    checkpoints.load(folder)


def test_a_disk_that_fills_up_between_two_files_leaves_the_old_model_as_it_was(folder, monkeypatch):
    before, calls, sync = contents(folder), [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: no_space() if calls else (calls.append(1), sync(handle)))
    with pytest.raises(SaveError):
        checkpoints.save(TINY.build(seed=1), folder)
    assert calls and contents(folder) == before


def test_a_failed_save_leaves_no_new_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(SaveError):
        checkpoints.save(TINY.build(), tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write(tmp_path / "a" / "file", "content")
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_a_save_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaveError, match="cannot write"):
        checkpoints.save(TINY.build(), tmp_path / "file" / "model")
    with pytest.raises(SaveError, match="a folder of that name is in the way"):
        files.write(tmp_path, "content")
    assert contents(tmp_path) == {"file": b"in the way"}


@pytest.fixture
def mount(tmp_path: Path):
    """Mount a tmpfs with given options, where the system lets us."""
    place = tmp_path / "mount"
    place.mkdir()

    def mounted(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            pytest.skip(f"no mount here: {error}")
        if done.returncode:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        return place

    yield mounted
    subprocess.run(["umount", str(place)], capture_output=True)


def test_a_disk_that_is_really_full_leaves_the_old_model_as_it_was(mount):
    place = mount("size=64k")
    small = DecoderConfig(50, 16, repeat(block(n_heads=2), 1)).build()
    checkpoints.save(small, place / "model")
    before = contents(place)
    with pytest.raises(SaveError, match="No space left on device"):
        checkpoints.save(TINY.replace(vocab_size=2000).build(), place / "model")
    assert contents(place) == before


def test_a_disk_that_is_really_read_only_is_a_save_error(mount):
    place = mount("ro")
    with pytest.raises(SaveError, match="Read-only file system"):
        checkpoints.save(TINY.build(), place / "model")
