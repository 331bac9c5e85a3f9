"""What is asked in a way that the program does not know leads on: to the name, the command or the extra that works."""

import json
import sys

import pytest

import glassformer as gf
from glassformer.attention import Linear, Softmax
from glassformer.cli import main
from glassformer.errors import AnalysisUnavailable, MissingExtra, RunFolderError, TextError
from glassformer.figures import drawing
from glassformer.models import GREEDY, beam_search
from glassformer.training import train
from tiny_runs import recipe


def test_without_matplotlib_whatever_draws_names_the_extra(monkeypatch):
    run = gf.run(gf.load("attn-only-2l"), "a b", read="pattern")
    for name in ("matplotlib", "glassformer.figures._shown"):
        monkeypatch.setitem(sys.modules, name, None)
    # fonts that an earlier figure looked up
    for known in (drawing._families, drawing._fonts):
        known.cache_clear()
    for draws in (run, run["pattern", 1], run["pattern", 1][0, 0]):
        with pytest.raises(MissingExtra, match=r"pip install 'glassformer\[plot\]'"):
            draws.plot()


def test_a_target_starts_by_itself():
    model = gf.load("zh-en")
    sources = ["我喜欢猫", "你好"]
    assert model.tokenizer is not None
    stops = model.tokenizer.roles.stops
    found = gf.generate(model, source=sources, sampling=GREEDY, stop_ids=stops)
    started = gf.generate(model, [list(model.start)] * 2, source=sources, sampling=GREEDY, stop_ids=stops)
    assert found == started and all(found.texts)
    best = beam_search(model, source=sources[:1], n_beams=2, stop_ids=stops).best[0]
    assert best == beam_search(model, [list(model.start)], source=sources[:1], n_beams=2, stop_ids=stops).best[0]
    with pytest.raises(TextError, match="give a text or ids"):
        gf.generate(gf.load("attn-only-2l"))


def shown(capsys: pytest.CaptureFixture[str], *changes: str) -> dict[str, object]:
    assert main(["train", "attn-only-2l", "--show", "--set", *changes]) == 0
    return json.loads(capsys.readouterr().out)["model"]["layers"][1]["parts"][0]["mixer"]


def test_a_changed_kind_starts_from_its_own_defaults(capsys):
    mixer = "model.layers.1.parts.0.mixer"
    assert shown(capsys, f"{mixer}.kind=linear") == Linear().to_dict()
    assert shown(capsys, f"{mixer}.kind=linear", f"{mixer}.eps=0.5") == Linear(eps=0.5).to_dict()
    assert shown(capsys, f"{mixer}.window=7", f"{mixer}.kind=softmax") == Softmax(window=7).to_dict()


def test_names_of_other_programs_lead_to_ours(capsys):
    for command, told in (
        ("train attn-only-2l --show --set optim.learning_rate=1", 'Nearest: "optim.lr"'),
        ("train attn-only-2l --show --set optim.schedul=noam", 'Nearest: "optim.schedule"'),
        ("bench softmax", "glassformer bench attention softmax"),
    ):
        assert main(command.split()) == 2
        assert told in capsys.readouterr().err


def test_a_finished_run_says_how_one_goes_on_from_it(tmp_path):
    train(recipe(steps=1), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"steps.*\n.*--begin-from \".*run\""):
        train(recipe(steps=2), tmp_path / "run")
    train(recipe(steps=2), tmp_path / "further", begin_from=tmp_path / "run")
    other = recipe().model.replace(d_model=32)
    with pytest.raises(RunFolderError) as refused:
        train(recipe(model=other), tmp_path / "run")
    assert "--begin-from" not in str(refused.value)


def test_what_needs_patterns_names_what_needs_none():
    from glassformer.analysis.heads.roles import no_patterns

    error = no_patterns("heads", "linear")
    assert isinstance(error, AnalysisUnavailable) and "attribution needs none: analysis." in str(error)
