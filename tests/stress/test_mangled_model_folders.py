"""Whatever is done to a checkpoint folder, it opens or is refused: nothing in it is run, nothing outside it is read."""

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer import checkpoints
from glassformer.checkpoints.own import digest_of, sha256
from glassformer.checkpoints.tensors import INDEX, WEIGHTS
from glassformer.data import bytes_tokenizer
from glassformer.files.packaged import CONFIG
from glassformer.models import DecoderConfig, Learned, Mlp, block, repeat
from trials import Trials

SECRET = "the secret beside the folder"
JUNK = (b"{", b"}", b"9" * 30, b"null", b"[" * 3000, b"\0" * 9, b"\xff\xfe", b'"\\ud800"', b"NaN", b"1e999")
VALUES: tuple[Any, ...] = (
    -1, 0, 1, 7, 10**5, 10**12, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"), None, True, "", "\ud800",
    "x" * 5000, "../secret", "/etc/passwd", [], [[]], {}, {"kind": 3}, {"content": "\ud800"},
)  # fmt: skip


def _model() -> Any:
    model = DecoderConfig(260, 16, repeat(block(n_heads=2, mlp=Mlp(24)), 2), max_len=32, positions=Learned()).build()
    model.tokenizer = bytes_tokenizer()
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder of ours, a published one, and a published one of several files."""
    place = tmp_path_factory.mktemp("whole")
    ours = gf.save(_model(), place / "ours")
    theirs = checkpoints.convert(ours, place / "theirs", "transformer-lens")
    return [ours, theirs, checkpoints.convert(ours, place / "several", "transformer-lens", shard_size=9000)]


def _bytes(folder: Path, draw: random.Random) -> None:
    """Overwrite, insert or cut bytes, mostly where the structure is."""
    path = draw.choice(_files(folder))
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 4)):
        place = draw.randint(0, min(draw.choice([16, 300, len(content)]), len(content)))
        junk = draw.choice([*JUNK, draw.randbytes(draw.randint(1, 8))])
        stop = place + draw.choice([0, len(junk), draw.randint(1, 500)])
        content[place:stop] = junk if draw.random() < 0.7 else b""
    path.write_bytes(content)
    _with_digests(folder, draw)


def _values(folder: Path, draw: random.Random) -> None:
    """Replace, drop or rename values of a JSON file."""
    path = draw.choice([path for path in _files(folder) if path.suffix == ".json"])
    data = json.loads(path.read_text())
    for _ in range(draw.randint(1, 3)):
        holder, key = draw.choice([*_places(data)] or [(data, None)])
        if key is None:
            continue
        what = draw.random()
        if what < 0.6:
            holder[key] = draw.choice(VALUES)
        elif what < 0.8 or not isinstance(holder, dict):
            del holder[key]
        else:
            holder["x" * draw.choice([1, 5000])] = holder.pop(key)
    path.write_text(json.dumps(data))
    _with_digests(folder, draw)


def _special(folder: Path, draw: random.Random) -> None:
    """Put what is no regular file of the folder in the place of one."""
    path = draw.choice([*_files(folder), folder / INDEX, folder / "tokenizer_config.json", folder / "merges.txt"])
    path.unlink(missing_ok=True)
    makers: list[Callable[[], Any]] = [
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to("nowhere"),
        path.mkdir,
        lambda: path.touch(),
    ]
    draw.choice(makers)()


def _named_outside(folder: Path, draw: random.Random) -> None:
    """Let an index name files that do not lie in the folder."""
    named = draw.choice(["../secret", "/etc/passwd", str(folder.parent / "secret"), "a/../../secret", "..", "x\0y", ""])
    data = {"weight_map": dict.fromkeys(("embed.W_E", "pos_embed.W_pos"), named)}
    (folder / INDEX).write_text(json.dumps(data))


KINDS = (_bytes, _values, _special, _named_outside)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("mangle", KINDS)
def test_a_mangled_folder_opens_or_is_refused_and_nothing_else_happens(
    mangle: Callable[[Path, random.Random], None], folders: list[Path], tmp_path: Path, trials: Trials
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    for seed in trials(quick=10, sweep=90):
        draw = random.Random(seed)
        folder = Path(shutil.copytree(draw.choice(folders), tmp_path / "mangled"))
        mangle(folder, draw)
        stream = draw.random() < 0.3
        with _watched() as outside:
            found = trials.attempt(lambda folder=folder, stream=stream: _opened(folder, stream))
        assert outside == [], f"seed {seed}"
        assert SECRET not in str(found)
        shutil.rmtree(folder)


def _opened(folder: Path, stream: bool) -> Any:
    model = gf.load(folder, stream=stream)
    gf.run(model, "ab" if model.tokenizer is not None else [1, 2])
    return model


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _with_digests(folder: Path, draw: random.Random) -> None:
    """Half of the time, let our envelope hold the digests of what is there now, so that other checks stand alone."""
    try:
        envelope = json.loads((folder / CONFIG).read_text())
        if "sha256" in envelope and draw.random() < 0.5:
            for name in (WEIGHTS, "tokenizer.json"):
                envelope["sha256"][name] = sha256((folder / name).read_bytes())
            envelope["sha256"]["model"] = digest_of(envelope["model"])
            (folder / CONFIG).write_text(json.dumps(envelope))
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # past mending


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _places(data[key])


_watching: list[list[str]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if os.path.basename(path) in ("secret", "passwd"):
            _watching[-1].append(path)
    if event in ("os.system", "subprocess.Popen", "pickle.find_class"):
        _watching[-1].append(event)


sys.addaudithook(_hook)


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Note what is opened that lies elsewhere, and what is run."""
    found: list[str] = []
    _watching.append(found)
    try:
        yield found
    finally:
        _watching.pop()
