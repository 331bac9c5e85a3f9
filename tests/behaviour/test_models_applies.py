"""`glassformer models --applies` as a user calls it."""

import json
import re
import subprocess
import sys

import pytest

from glassformer.applicability import applied
from glassformer.cli import main


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def test_it_counts_for_every_row_how_analyses_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--applies"]) == 0
    shown = capsys.readouterr().out
    lines = iter(shown.splitlines())
    for row in applied().rows:
        # in this order: a name may stand in two groups, and begin another one
        line = next(line for line in lines if f"  {row.name}" in line)
        assert all(name in line for name in row.also)
        compared = sum(outcome.compared for outcome in row.outcomes.values())
        assert re.findall(r"\d+", line)[-1] == str(compared)
    assert "glassformer models --applies NAME" in shown


def test_a_mechanism_says_what_is_refused_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--applies", "differential"]) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "rollout" in line)
    assert "refused" in line and 'uses "differential" (rows_sum_to_one=False), whose weights are no shares' in line
    # another row of its group says where it differs, and a tiny model of the name has all of its own
    assert "mechanism differential, as published, where it differs from differential" in shown
    assert "model differential" in shown


def test_an_analysis_says_what_it_holds_of_which_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "source_effects", "--applies"]) == 0
    shown = capsys.readouterr().out
    assert "Which tokens do heads' shares of this logit come from?" in shown
    line = next(line for line in shown.splitlines() if "lightning, as published" in line)
    assert "per run, compared" in line and "patterns, norm scales, gates" in line
    assert "Compared with: the mechanism asked again with the values of one key alone" in shown


def test_its_json_is_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--applies", "--json"]) == 0
    table = applied()
    assert type(table).from_json(capsys.readouterr().out) == table
    assert main(["models", "--applies", "gru", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["name"] == "gru" and row["outcomes"]["rollout"]["status"] == "refused"
    assert main(["models", "--applies", "rollout", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["analysis"]["room"] == "token_flow"
    assert len(found["outcomes"]) == len(table.rows)


def test_an_unknown_name_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--applies", "rolout"]) == 2
    assert 'Nearest: "rollout".' in capsys.readouterr().err


def test_the_table_takes_no_pytorch() -> None:
    code = "import sys; from glassformer.cli import main; main(['models', '--applies', 'softmax']); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
