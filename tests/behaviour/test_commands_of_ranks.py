"""A command that was started many times at once: its processes share the work, and the first one tells."""

import contextlib
import io
import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from torch import Tensor

from glassformer.cli import main
from glassformer.labelled import Labelled
from glassformer.testing import close
from ranks import on_processes

ASKED = ["patch", "attn-only-1l", "--n", "2", "--sites", "z"]


def told(file: Path) -> tuple[int, str]:
    """The exit code of a command on this rank, and what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*ASKED, "--json", str(file)])
    return code, out.getvalue()


def values(file: Path) -> Tensor:
    (found,) = json.loads(file.read_text(encoding="utf-8"))["results"]
    return Labelled.from_dict(found["tables"]["z"]["values"]).values


def test_processes_share_the_sweep_of_a_command_and_the_first_prints_and_writes(tmp_path: Path) -> None:
    found = on_processes(2, told, tmp_path / "shared.json")
    assert not any(isinstance(one, str) for one in found), found
    ((code, printed),), ((other, nothing),) = found
    assert (code, other, nothing) == (0, 0, "") and "z: change of logit difference" in printed
    assert told(tmp_path / "alone.json")[0] == 0
    # in float32, and rows have other neighbours in their batches
    close(values(tmp_path / "shared.json"), values(tmp_path / "alone.json"), 1e-4)


def test_a_dry_run_is_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    with patch.dict(os.environ, WORLD_SIZE="2"):
        assert main([*ASKED, "--dry-run"]) == 2
    assert "--dry-run measures one process" in capsys.readouterr().err
