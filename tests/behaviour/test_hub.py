"""Models of a hub that behaves as the real one, through the hub's own client: nothing here leaves this machine."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import checkpoints
from glassformer.checkpoints.tensors import INDEX
from glassformer.data import bytes_tokenizer
from glassformer.errors import CheckpointError, UnknownModel
from hub_stand_in import Hub, hub_stand_in

NAME = "org/tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published folder with its weights in several files."""
    from glassformer.models import DecoderConfig, Learned, Mlp, block, repeat

    model = DecoderConfig(260, 16, repeat(block(n_heads=2, mlp=Mlp(24)), 2), max_len=32, positions=Learned()).build()
    model.tokenizer = bytes_tokenizer()
    ours = gf.save(model, tmp_path_factory.mktemp("ours"))
    return checkpoints.convert(ours, tmp_path_factory.mktemp("made") / "theirs", "transformer-lens", shard_size=9000)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub, and a client that knows no other and has nothing cached."""
    from huggingface_hub import constants, file_download

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with hub_stand_in() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.endpoint)
        template = found.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):  # older clients keep a copy of their own
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
        # the client waits between attempts
        monkeypatch.setattr(file_download, "time", _Clock, raising=False)
        monkeypatch.chdir(tmp_path)
        forget_connections()
        yield found


def forget_connections() -> None:
    """Let the client connect anew: before 1.0, a connection stays as offline as it was when it was made."""
    from huggingface_hub import utils

    getattr(utils, "reset_sessions" if hasattr(utils, "reset_sessions") else "close_session")()


class _Clock:
    """Time that does not pass while one waits."""

    time, monotonic, perf_counter = time.time, time.monotonic, time.perf_counter

    @staticmethod
    def sleep(seconds: float) -> None:
        """Return at once."""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(one: Any, other: Any) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_model_of_the_hub_is_the_one_in_its_folder_and_is_downloaded_once(hub: Hub, folder: Path) -> None:
    unwanted = (
        "run.py",
        "tokenizer.py",
        "pytorch_model.bin",
        "vocab.bin",
        "consolidated.safetensors",
        "onnx/config.json",
    )
    hub.publish(NAME, contents(folder) | dict.fromkeys(unwanted, b"{}"))
    assert (folder / INDEX).exists(), "several files"
    model = gf.load(NAME)
    assert same(model, gf.load(folder)) and model.tokenizer is not None
    names = {path.rsplit("/", 1)[1] for path, _ in hub.downloads()}
    assert names == set(contents(folder)), "nothing that could be run, no weights twice"
    before = len(hub.downloads())
    assert same(gf.load(NAME), model)
    assert len(hub.downloads()) == before


def test_the_config_of_a_hub_model_needs_none_of_its_weights(hub: Hub, folder: Path) -> None:
    hub.publish(NAME, contents(folder))
    assert checkpoints.config_of(NAME) == checkpoints.config_of(folder)
    assert not [path for path, _ in hub.downloads() if path.endswith(".safetensors")]


WHOLE, PARTS = "tiny-Q8_0.gguf", [f"tiny-F16-{i:05d}-of-00002.gguf" for i in (1, 2)]


def test_a_repository_of_one_gguf_file_or_of_the_parts_of_one_is_that_file(hub: Hub) -> None:
    for name, files in (("org/whole", [WHOLE]), ("org/parts", PARTS)):
        hub.publish(name, {file: file.encode() for file in files} | {"README.md": b"", "mm/other.gguf": b""})
        for weights in (True, False):
            found = checkpoints.folder_of(name, weights=weights)
            assert found.name == files[0]
            assert {path.name: path.read_bytes().decode() for path in found.parent.glob("*.gguf")} == {
                file: file for file in files
            }
        before = len(hub.downloads())
        assert checkpoints.folder_of(name) == found and len(hub.downloads()) == before
    with pytest.raises(CheckpointError, match=rf'{WHOLE}" (is|holds|says).*GGUF'):
        gf.load("org/whole")


def test_of_several_gguf_files_the_one_that_is_named_is_fetched(hub: Hub) -> None:
    hub.publish(NAME, {file: file.encode() for file in (WHOLE, *PARTS)} | {"config.json": b"{}"})
    with pytest.raises(CheckpointError, match=rf"several GGUF models: .*{WHOLE}.*\n.*: {NAME}:tiny"):
        checkpoints.folder_of(NAME)
    assert not [path for path, _ in hub.downloads() if path.endswith(".gguf")]
    assert checkpoints.folder_of(f"{NAME}:{WHOLE}").name == WHOLE
    assert [path.rsplit("/", 1)[1] for path, _ in hub.downloads() if path.endswith(".gguf")] == [WHOLE]
    assert checkpoints.folder_of(f"{NAME}:{PARTS[1]}").name == PARTS[0]
    with pytest.raises(UnknownModel, match=rf'no such file. Nearest: "{WHOLE}". GGUF files there: '):
        checkpoints.folder_of(f"{NAME}:tiny-Q8_1.gguf")


def test_a_gguf_file_beside_safetensors_is_fetched_where_it_is_named_alone(hub: Hub, folder: Path) -> None:
    hub.publish(NAME, contents(folder) | {WHOLE: b"GGUF"})
    assert same(gf.load(NAME), gf.load(folder))
    assert not [path for path, _ in hub.downloads() if path.endswith(".gguf")]
    assert checkpoints.folder_of(f"{NAME}:{WHOLE}").read_bytes() == b"GGUF"


def test_a_gguf_file_in_the_cache_is_read_without_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.publish(NAME, {WHOLE: b"GGUF"})
    found = checkpoints.folder_of(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    forget_connections()
    assert checkpoints.folder_of(NAME) == checkpoints.folder_of(f"{NAME}:{WHOLE}") == found


def test_a_revision_is_that_one_and_no_other(hub: Hub, folder: Path, tmp_path: Path) -> None:
    other = gf.load(folder)
    with torch.no_grad():
        next(other.parameters()).mul_(2)
    changed = checkpoints.convert(gf.save(other, tmp_path / "a"), tmp_path / "b", "transformer-lens")
    hub.publish(NAME, contents(folder))
    commit = hub.publish(NAME, contents(changed), revision="v2")
    assert same(gf.load(NAME), gf.load(folder))
    assert same(gf.load(NAME, revision="v2"), other) and same(gf.load(NAME, revision=commit), other)
    with pytest.raises(UnknownModel, match=r"at revision v3: the hub has the model, but not this revision\. Give"):
        gf.load(NAME, revision="v3")


def test_a_model_that_was_renamed_is_found_by_its_old_name(hub: Hub, folder: Path) -> None:
    hub.publish("org/new", contents(folder))
    hub.moved[NAME] = "org/new"
    assert same(gf.load(NAME), gf.load(folder))


def test_a_connection_that_breaks_goes_on_where_it_stopped(hub: Hub, folder: Path) -> None:
    hub.publish(NAME, contents(folder))
    large = max(contents(folder), key=lambda name: len(contents(folder)[name]))
    hub.breaks[large] = 1
    try:
        found = gf.load(NAME)
    except CheckpointError as error:  # clients before 2.0 leave the next attempt to the caller
        assert "The same call fetches what is missing" in str(error)
        found = gf.load(NAME)
    assert same(found, gf.load(folder))
    ranges = [headers["range"] for path, headers in hub.downloads() if path.endswith(large) and "range" in headers]
    assert len(ranges) == 1 and ranges[0] != "bytes=0-"


def test_a_download_that_was_given_up_is_made_whole_by_the_same_call(hub: Hub, folder: Path) -> None:
    hub.publish(NAME, contents(folder))
    large = max(contents(folder), key=lambda name: len(contents(folder)[name]))
    hub.breaks[large] = 10**6
    with pytest.raises(CheckpointError, match=r"the download broke off \(.*The same call fetches what is missing"):
        gf.load(NAME)
    hub.breaks.clear()
    hub.asked.clear()
    assert same(gf.load(NAME), gf.load(folder))
    assert {path.rsplit("/", 1)[1] for path, _ in hub.downloads()} != set(contents(folder)), "what was whole is kept"


def test_a_private_model_opens_with_its_token_alone(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(NAME, contents(folder))
    hub.tokens[NAME] = "hf_right"
    with pytest.raises(UnknownModel, match=r"as far as you may see, on the hub\. Private models need a token"):
        gf.load(NAME)
    assert not any("authorization" in headers for _, _, headers in hub.asked)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert same(gf.load(NAME), gf.load(folder))
    assert not any("authorization" in headers for path, headers in hub.downloads() if path.startswith("/stored/"))


def test_a_gated_model_says_whose_terms_to_accept(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(NAME, contents(folder))
    hub.tokens[NAME], hub.gated = "hf_right", {NAME}
    for token in (None, "hf_wrong"):
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(UnknownModel, match=r'"org/tiny" is gated: accept its terms on its page, then log in'):
            gf.load(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert same(gf.load(NAME), gf.load(folder))


@pytest.mark.parametrize("name", ["org/none", "org/no--name-of-the-hub"])
def test_a_model_that_is_not_there_is_said_so(name: str, hub: Hub) -> None:
    with pytest.raises(UnknownModel, match=rf'no model "{name}": neither a folder here nor'):
        gf.load(name)


@pytest.mark.parametrize(
    ("asked", "status", "error", "said"),
    [
        # of a model, 401 is what the hub says of one that is not there
        ("files", 401, UnknownModel, r"the hub refuses your token \(401\)"),
        ("files", 403, UnknownModel, r"the hub refuses your token \(403\)"),
        ("model", 403, UnknownModel, r"the hub refuses your token \(403\)"),
        ("files", 500, CheckpointError, r"the hub answers with an error \(500\)\. Try again later"),
        ("model", 500, CheckpointError, r"the hub answers with an error \(500\)\. Try again later"),
    ],
)
def test_an_answer_without_content_is_said_by_its_status(
    asked: str, status: int, error: type[Exception], said: str, hub: Hub, folder: Path
) -> None:
    hub.publish(NAME, contents(folder))
    hub.refuses = dict.fromkeys([NAME] if asked == "model" else contents(folder), status)
    with pytest.raises(error, match=said):
        gf.load(NAME)


def test_offline_the_cache_serves_and_its_lack_is_said(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.publish(NAME, contents(folder))
    gf.load(NAME)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    forget_connections()
    assert same(gf.load(NAME), gf.load(folder))
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached \(HF_HUB_OFFLINE=1 is set\)"):
        gf.load("org/other")
    assert hub.asked == []


@pytest.mark.full
def test_a_hub_that_cannot_be_reached_leaves_the_cache(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.publish(NAME, contents(folder))
    gf.load(NAME)
    # nobody listens there
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert same(gf.load(NAME), gf.load(folder))
    with pytest.raises(CheckpointError, match=r"and the hub cannot be reached .*give the folder"):
        gf.load("org/other")


@pytest.mark.parametrize("name", ["./gpt-4l-tset", "runs/gpt-4l-tset", "../x/gpt-4l-tset", "runs/deeper/gpt-4l-tset"])
def test_a_mistyped_folder_asks_no_hub_and_names_the_nearest(name: str, hub: Hub, folder: Path, tmp_path: Path) -> None:
    near = name.replace("tset", "test")
    (tmp_path / "x").mkdir(exist_ok=True)
    shutil.copytree(folder, tmp_path / near)
    for asked in (lambda: gf.load(name), lambda: checkpoints.config_of(name)):
        with pytest.raises(UnknownModel, match=rf'no folder "{name}"\. Nearest: "{near}"'):
            asked()
    assert hub.asked == []


def test_a_hub_id_near_a_folder_is_asked_for_by_its_revision_or_once_it_is_cached(
    hub: Hub, folder: Path, tmp_path: Path
) -> None:
    hub.publish(NAME, contents(folder))
    (tmp_path / "org/tinny").mkdir(parents=True)
    with pytest.raises(UnknownModel, match=r'Nearest: "org/tinny"\.\n.*hf download org/tiny'):
        gf.load(NAME)
    assert same(gf.load(NAME, revision="main"), gf.load(folder))
    assert same(gf.load(NAME), gf.load(folder))


def test_a_folder_that_is_like_no_other_is_asked_of_the_hub(hub: Hub, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "org/something-else").mkdir(parents=True)
    hub.publish(NAME, contents(folder))
    assert same(gf.load(NAME), gf.load(folder))
