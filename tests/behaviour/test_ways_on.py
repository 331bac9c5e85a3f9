"""What is asked in a way that the program does not know leads on: to the name, the command or the extra that works."""

import json
import shutil
import sys

import pytest

import glassformer as gf
from glassformer.attention import Linear, Softmax
from glassformer.cli import main
from glassformer.errors import AnalysisUnavailable, MissingExtra, RunFolderError, TextError
from glassformer.figures import drawing
from glassformer.files.packaged import shipped_folder
from glassformer.models import GREEDY, beam_search
from glassformer.training import read_metrics, train
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


def test_a_copy_of_a_shipped_model_is_drawn_as_the_model_is(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    copied = shutil.copytree(shipped_folder("attn-only-2l"), tmp_path / "attn-only-2l")
    drawn = []
    monkeypatch.setattr("glassformer.render.curves.save", lambda figure, path: drawn.append(figure))
    for run in ("attn-only-2l", str(copied)):
        assert main(["plot", run]) == 0
    first, second = ([(axes.get_title(), len(axes.lines)) for axes in figure.axes] for figure in drawn)
    assert first == second and first[0][0].startswith("25 % of the rows")
    capsys.readouterr()
    assert main(["plot", str(copied), "attn-only-1l", "--out", str(tmp_path / "x.png")]) == 0
    assert "787,968" in capsys.readouterr().out


def test_runs_are_compared_in_a_table_and_one_chart(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    for name, width in (("narrow", 16), ("wide", 32)):
        train(recipe(steps=3, model=recipe().model.replace(d_model=width)), tmp_path / name)
    drawn = []
    monkeypatch.setattr("glassformer.render.curves.save", lambda figure, path: drawn.append(figure))
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["plot", str(tmp_path / "narrow"), str(tmp_path / "wide"), "--out", str(tmp_path / "x.png")]) == 0
    said = capsys.readouterr().out
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    rows = {name: cells for name, *cells in table}
    models = [gf.load(str(tmp_path / name)) for name in ("narrow", "wide")]
    assert rows["parameters"] == [f"{sum(v.numel() for v in model.parameters()):,}" for model in models]
    losses = [
        [line["heldout_loss"] for line in read_metrics(tmp_path / n) if "heldout_loss" in line][-1]
        for n in ("narrow", "wide")
    ]
    assert rows["held-out loss (nats per token)"] == [f"{loss:.4g}" for loss in losses]
    assert all(float(cell.replace(",", "")) > 0 for cell in rows["tokens per second"])
    (axes,) = drawn[0].axes
    assert [line.get_label() for line in axes.lines] == ["narrow", "wide"]
    assert [line.get_ydata()[-1] for line in axes.lines] == losses and "Vocabularies differ" not in said
    assert main(["plot", "attn-only-2l", "zh-en", "--out", str(tmp_path / "y.png")]) == 0
    assert "Vocabularies differ" in capsys.readouterr().out
    # counts of tokens are written out, no power of ten in the corner
    figure = drawn[1]
    figure.draw_without_rendering()
    assert "2 M" in [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert not figure.axes[0].xaxis.get_offset_text().get_text()
