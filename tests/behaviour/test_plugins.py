"""Mechanisms of other packages: found by their entry points when a config names them, and named when broken."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.attention import MixerConfig, Softmax
from glassformer.config import PLUGINS
from glassformer.errors import UnknownKind

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sigmoid-attention"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of packages with two plug-ins: one whose import fails, one that registers nothing."""
    info = tmp_path / "strangers-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{PLUGINS}]\nbroken = broken_plugin\nidle = idle_plugin\n")
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "idle_plugin.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "nowhere",
            f'as an entry point "{PLUGINS}": install that. Plug-ins found: .*\'broken\' \\("broken_plugin" of stran',
        ),
        ("brokn", 'Nearest: "broken"'),
        ("broken", 'plug-in "broken_plugin" of strangers 1.2, which cannot be loaded: RuntimeError: not today'),
        ("idle", 'plug-in "idle_plugin" of strangers 1.2 was loaded and has not registered it'),
    ],
)
def test_an_unknown_kind_says_which_plug_in_may_hold_it(kind: str, message: str, installed: Path) -> None:
    with pytest.raises(UnknownKind, match=message):
        MixerConfig.from_dict({"kind": kind})
    # which is in the way of no other
    assert MixerConfig.from_dict({"kind": "softmax"}) == Softmax()


def test_a_kind_that_no_forward_pass_imports_is_found_by_its_entry_point() -> None:
    code = """
import sys
from glassformer.models import ModelConfig
assert "glassformer.dynamics" not in sys.modules
layer = {"parts": [{"kind": "attention", "n_heads": 2}]}
config = ModelConfig.from_dict(
    {"kind": "tem_t", "vocab_size": 8, "d_model": 8, "layers": [layer], "max_len": 8, "moves": [6, 7]}
)
print(type(config).__name__)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.split() == ["TemDecoderConfig"], ran.stderr


def test_the_example_package_is_the_file_of_the_page() -> None:
    page = (ROOT / "docs" / "how-to" / "write-a-mechanism.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    shown = {kind: [text for of, text in blocks if of == kind] for kind in ("python", "py", "toml")}
    assert (EXAMPLE / "sigmoid_attention.py").read_text(encoding="utf-8") == shown["python"][0]
    assert shown["py"][0] in (EXAMPLE / "test_sigmoid_attention.py").read_text(encoding="utf-8")
    assert shown["toml"][0] in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_example_package_installs_and_a_model_of_its_kind_opens(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    shutil.copytree(EXAMPLE, source)
    line = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        str(place),
        str(source),
    ]
    subprocess.run([sys.executable, "-m", "pip", *line], check=True)
    code = (
        "import glassformer as gf; from glassformer.checkpoints import save; from glassformer.models import *; "
        "from glassformer.attention import MixerConfig; "
        "sigmoid = MixerConfig.from_dict({'kind': 'sigmoid', 'bias': -3.0}); "
        "config = DecoderConfig(7, 8, (block(sigmoid, n_heads=2),), max_len=8); save(config.build(), 'model')"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(place), *sys.path])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
    command = [sys.executable, "-m", "glassformer", "params", "model"]
    assert subprocess.run(command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0
    without = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=without, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "no kind 'sigmoid'" in done.stderr and PLUGINS in done.stderr
