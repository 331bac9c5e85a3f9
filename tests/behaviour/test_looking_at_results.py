"""Every result can be looked at: drawn, shown, written as a page, seen in a notebook; one colour table for them all."""

import dataclasses
import re
import subprocess
import sys
import types
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from playwright.sync_api import Page

import glassformer as gf
from every_result import MAKERS, classes, result
from explanations import sample
from glassformer.analysis import Run, run
from glassformer.analysis.lens import lens_grid
from glassformer.analysis.vocabulary import skip_trigrams, token_pairs
from glassformer.errors import SaveError, SiteNotRead
from glassformer.figures import drawing
from glassformer.figures.colours import DARK, LIGHT, SERIES, Palette
from glassformer.labelled import Labelled, Result
from glassformer.provenance import Note
from glassformer.render.page import results_page
from glassformer.render.terminal import lines
from glassformer.render.viewing import framed
from glassformer.testing.models import subject
from pages import NASTY, Opener

browser_test = pytest.mark.browser
NAMES = [kind.__name__ for kind in classes()]
# a model, a run or a report of their own has to be made for these
SLOW = {
    "Circuits",
    "LossTrajectories",
    "Suppression",
    "AttentionSinks",
    "LensDivergence",
    "PhaseChange",
}
# of several models
OF_SEVERAL_MODELS = {"ShortCircuit"}
every = pytest.mark.parametrize(
    "name",
    [
        name if i % 5 == 0 and name not in SLOW else pytest.param(name, marks=pytest.mark.full)
        for i, name in enumerate(NAMES)
    ],
)


@dataclasses.dataclass(frozen=True, eq=False)
class Sign(Result):
    """A result that says which of its numbers have a sign.

    Args:
        change: Of either sign.
        amount: Never below zero.
    """

    HEADLINE = ("amount", "change")
    SIGNED = ("change",)

    change: Labelled
    amount: Labelled


def sign(values: torch.Tensor, *axes: str, **coords: list[Any]) -> Sign:
    found = Labelled(values, axes, coords)
    return Sign(found, found)


def maps(figure: Any) -> list[Any]:
    return [axes.images[0] for axes in figure.axes if axes.images]


# ---- every class of results


def test_there_is_a_result_of_every_class() -> None:
    assert sorted(MAKERS) == NAMES


def test_every_class_says_what_is_drawn_of_it_and_names_what_it_has() -> None:
    nested = {"Patching"}  # drawn as what they hold
    for kind in classes():
        assert kind.HEADLINE or kind.__name__ in nested, kind.__name__
        known = {*(f.name for f in dataclasses.fields(kind)), *kind.derived_names()}  # type: ignore[arg-type]
        assert {*kind.HEADLINE, *kind.SIGNED} <= known, kind.__name__


@every
def test_every_result_draws_itself_at_a_size_to_read(name: str) -> None:
    figure = result(name).plot()
    FigureCanvasAgg(figure).draw()
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert 1 <= len(panels) <= drawing.MOST_PANELS
    width, height = figure.get_size_inches()
    assert width <= 12 and width / height < 3
    for axes in panels:
        labels = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        for text in [*labels, axes.title, axes.xaxis.label, axes.yaxis.label]:
            assert text.get_fontsize() >= 8
    inside = figure.get_tightbbox()
    assert inside.x0 >= -0.01 and inside.x1 <= width + 0.01 and inside.y0 >= -0.01 and inside.y1 <= height + 0.01


@every
def test_no_drawing_holds_nothing_but_what_is_not_defined(name: str) -> None:
    panels = result(name).panels()
    assert any(bool(panel.value.values.isfinite().any()) for panel in panels)


@every
def test_numbers_below_zero_belong_to_what_a_class_says_has_a_sign(name: str) -> None:
    for panel in result(name).panels():
        values = panel.value.values
        several_units = {*panel.value.axes, panel.name} & {*drawing.UNITS, "numbers", ""}
        if values.is_complex() or several_units:
            continue
        assert panel.signed or not bool((values < -1e-6 * values.double().abs().nan_to_num().max()).any()), panel.name


@every
def test_every_result_writes_its_page_and_shows_itself(name: str, tmp_path: Path, capsys: Any) -> None:
    found = result(name)
    path = found.html(tmp_path / "made" / "page.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    found.show()
    assert capsys.readouterr().out.strip()
    seen = found._repr_html_()
    assert "<script" not in seen and seen.count("<tr>") >= 1 and len(seen) < 20_000


@every
@browser_test
def test_the_page_of_every_result_draws_something(opened: Opener, name: str) -> None:
    drawn = opened(result(name).html)
    # numbers of what nothing is found in are folded, and drawn when they are asked for
    drawn.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    drawn.locator("canvas, svg, table, .number, .strip").first.wait_for(state="attached")


@every
def test_every_result_says_what_it_is_of(name: str) -> None:
    said = result(name).provenance
    if name in OF_SEVERAL_MODELS:
        return
    assert said is not None and said.analysis and said.model and said.version and said.torch
    assert said.digest or said.why


def test_results_and_runs_show_themselves_by_the_same_code() -> None:
    assert Run.show is Result.show and Run.html is Result.html


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaveError):
        result("Lens").html(tmp_path / "file" / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---- where it is shown


@pytest.mark.full
def test_results_of_a_room_that_was_imported_alone_can_be_looked_at() -> None:
    code = (
        "from glassformer.analysis.lens import logit_lens\n"
        "from glassformer.testing.models import subject\n"
        "import sys; assert 'glassformer.render' not in sys.modules\n"
        "found = subject('gpt2'); logit_lens(found.model, found.inputs[0][:1]).show()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "block 1" in done.stdout


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(monkeypatch: Any, capsys: Any) -> None:
    displayed: list[str] = []
    shell = types.SimpleNamespace(kernel=None)
    notebook: Any = types.ModuleType("IPython")
    notebook.get_ipython = lambda: shell
    screen: Any = types.ModuleType("IPython.display")
    screen.HTML, screen.display = str, displayed.append
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    sample("short").show()
    assert capsys.readouterr().out == ""
    [frame] = displayed
    assert 'sandbox="allow-scripts"' in frame and escape("<!doctype html>") in frame
    assert escape('id="explanation"') in frame  # a page of its own
    del shell.kernel  # a terminal
    sample("short").show()
    assert len(displayed) == 1 and capsys.readouterr().out


@browser_test
def test_a_frame_draws_its_page_and_lets_no_token_out(browser: Any, tmp_path: Path) -> None:
    labels = [f"{i}:{text}" for i, text in enumerate(NASTY)]
    hostile = sign(torch.rand(9, 9), "query", "key", query=labels, key=labels)
    notebook = hostile._repr_html_() + framed(results_page(hostile), NASTY[2])
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{notebook}", encoding="utf-8")
    page: Page = browser.new_page()
    page.goto(path.as_uri())
    inner = page.frame_locator("iframe")
    inner.locator("canvas.map").first.wait_for()
    assert page.evaluate("window.ran") is None and inner.locator("body").evaluate("() => window.ran") is None
    assert page.locator("img").count() == inner.locator("img").count() == 0
    page.close()


def test_no_token_becomes_a_tag_of_a_summary_or_of_its_frame() -> None:
    def tags(label: str) -> int:
        summary = sign(torch.tensor([3.0]), "key", key=[label])._repr_html_() + framed("", label)
        return summary.count("<") + summary.count('"')

    assert {tags(text) for text in NASTY} == {tags("harmless")}


def test_tokens_of_any_kind_can_be_drawn_and_are_told_apart() -> None:
    labels = [f"{i}:{text}" for i, text in enumerate([*NASTY, r"$\frac$", "a $x", "我", "\x00", "\ud800"])]
    figure = sign(torch.rand(14, 14), "query", "key", query=labels, key=labels).plot()
    FigureCanvasAgg(figure).draw()
    written = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len({*written}) == 14 and not any("\n" in text for text in written)


def test_spaces_around_a_token_are_seen() -> None:
    figure = sign(torch.rand(4), "pos", pos=["a", " a", "0: a", "final norm bias"]).plot()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "·a", "0:·a", "final norm bias"]


@pytest.mark.parametrize("second", ["outcome", "key"])
def test_tables_show_names_as_they_are_and_the_spaces_of_tokens_as_signs(second: str) -> None:
    named = {"condition": ["first key masked", "as it is"], "key": ["0: the", "source 1: a b"]}
    coords = named | {"outcome": ["loss", "accuracy"]}
    found = sign(torch.rand(2, 2) + 1, "condition", second, **{axis: coords[axis] for axis in ("condition", second)})
    whole = "\n".join(lines(found)) + found._repr_html_()
    assert "first key masked" in whole and "as it is" in whole
    assert ("0:·the" in whole and "source 1:·a·b" in whole) == (second == "key") == ("·" in whole)


def test_a_token_of_the_vocabulary_is_one_whatever_its_axis_is_called() -> None:
    whole = "\n".join(lines(sign(torch.ones(2, 1), "source", "rank", source=["31: the", "L0 mlp"])))
    assert "31:·the" in whole and "L0 mlp" in whole


# ---- figures


@pytest.mark.full
@pytest.mark.parametrize("trained", [None, 2, 3, 9])
def test_a_map_over_tokens_has_a_line_where_training_ended(trained: int | None) -> None:
    model, ids = subject("gpt2").model, torch.arange(4)[None]
    model.trained_length = trained
    beyond = trained is not None and trained < 4
    shown = run(model, ids, read=["blocks.0.attn.pattern"])
    for figure in (shown.plot(), lens_grid(model, ids).plot("entropy_bits")):
        drawn = figure.axes[0]
        lines = [line for line in drawn.lines if to_rgba(line.get_color()) == to_rgba(LIGHT.trained)]
        places = {float(x) for line in lines for x in {*line.get_xdata(), *line.get_ydata()} - {0, 1}}
        assert places == ({trained - 0.5} if trained is not None and beyond else set())
        assert ("trained on" in drawn.get_xlabel()) == beyond
        assert ("trained on" in figure.get_supxlabel()) == beyond


@dataclasses.dataclass(frozen=True, eq=False)
class Whole(Result):
    """A result of shares of a whole.

    Args:
        share: The shares, sample by sample.
    """

    SIGNED = ("share",)

    share: Labelled


def test_colours_of_shares_end_at_one_and_what_is_no_surer_than_noise_is_pale() -> None:
    values = torch.tensor([[0.2, 0.25, 0.3, 0.24], [0.9, -0.8, 0.7, -0.5]])
    (image,) = maps(Whole(Labelled(values.expand(2, 2, 4), ("layer", "head", "sample"))).plot())
    sure, pale = image.get_array()[0].tolist()
    assert (image.norm.vmin, image.norm.vmax) == (-1, 1)
    assert sure == pytest.approx(float(values[0].mean())) and abs(pale) < 0.01
    assert "pale: within two standard errors" in image.axes.get_title()
    named = Whole(Labelled(values, ("head", "sample"), {"head": ["L0H0", "L0H1"]})).plot()
    assert [bar.get_alpha() for bar in named.axes[0].patches] == [1.0, 0.3]
    # of one sample nothing is known of the noise
    (image,) = maps(Whole(Labelled(values[None, :, :1].expand(2, 2, 1), ("layer", "head", "sample"))).plot())
    assert "pale" not in image.axes.get_title()


def test_what_must_be_known_of_the_numbers_stands_below_a_figure() -> None:
    found = sign(torch.rand(3, 4), "query", "key").noted(Note("Seen.", "It means this.", "Do that."), Note("Read."))
    assert found.plot().get_supxlabel() == "Seen. It means this. Do that."


def test_a_mask_is_drawn_as_one_and_on_any_axes() -> None:
    for shape, axes in (((3, 4), ("query", "key")), ((5,), ("key",)), ((2, 3, 4), ("layer", "query", "key"))):
        figure = Labelled(torch.rand(shape) > 0.5, axes).plot()
        assert {int(x) for image in maps(figure) for x in image.get_array().flatten()} <= {0, 1}
        assert len(maps(figure)) == len(figure.axes)  # without colour bars


def test_four_panels_stand_two_by_two() -> None:
    width, height = Labelled(torch.rand(4, 5, 5), ("layer", "query", "key")).plot().get_size_inches()
    assert 1 < width / height < 1.6


def test_what_has_a_sign_has_zero_in_the_middle_whatever_the_data_are() -> None:
    rising = torch.arange(1.0, 7.0).reshape(2, 3)
    amount, change = maps(sign(rising, "layer", "head").plot())
    assert amount.get_clim() == (0.0, 6.0) and change.get_clim() == (-6.0, 6.0)
    amount, change = maps(sign(-rising, "layer", "head").plot())
    assert amount.get_clim() == change.get_clim() == (-6.0, 6.0)
    amount, _ = maps(sign(rising.double().index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(-1e-12).double()),
                         "layer", "head").plot())  # fmt: skip
    assert amount.get_clim() == (0.0, 6.0)


def test_an_overview_averages_prompts_and_says_so_and_a_named_field_does_not() -> None:
    values = torch.rand(3, 5)
    found = sign(values, "head", "batch", head=["L0H0", "L0H1", "L0H2"])
    axes = found.plot().axes[0]
    assert axes.get_title() == "amount, mean over 5 of batch"
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(values.mean(1).tolist())
    assert maps(found.plot("amount"))[0].get_array().shape == (3, 5)


def test_a_mean_is_over_what_is_defined_and_what_is_defined_nowhere_is_left_out() -> None:
    nowhere, partly = torch.full((3, 5), torch.nan), torch.rand(3, 5).index_fill(1, torch.tensor(2), torch.nan)
    axes, coords = ("head", "batch"), {"head": ["L0H0", "L0H1", "L0H2"]}
    figure = Sign(change=Labelled(partly, axes, coords), amount=Labelled(nowhere, axes, coords)).plot()
    assert [drawn.get_title() for drawn in figure.axes] == ["change, mean over 5 of batch"]
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx(partly.nanmean(1).tolist())


def test_bars_of_what_has_a_sign_have_its_colours_whatever_the_data_are() -> None:
    share, change = sign(torch.tensor([2.0, 1.0]), "part", part=["a", "b"]).plot().axes
    assert {bar.get_facecolor() for bar in share.patches} == {to_rgba(LIGHT.bar)}
    assert {bar.get_facecolor() for bar in change.patches} == {to_rgba(LIGHT.positive)}


def test_units_are_drawn_apart() -> None:
    found = Labelled(torch.rand(3, 2), ("head", "measure"), {"head": ["a", "b", "c"], "measure": ["mass", "distance"]})
    assert [axes.get_title() for axes in found.plot().axes] == ["mass", "distance"]


@pytest.mark.full
def test_too_many_maps_are_the_first_of_them_in_an_overview() -> None:
    figure = sign(torch.rand(40, 3, 3), "layer", "query", "key").plot()
    assert len(maps(figure)) == drawing.MOST_PANELS and "the first 24 of 80 maps" in figure.get_suptitle()


def test_a_run_draws_its_patterns_or_the_sites_that_are_named() -> None:
    found = subject("gpt2")
    done = run(found.model, found.inputs[0][:1], read=["*.pattern", "blocks.0.resid_pre"])
    titles = [axes.get_title() for axes in done.plot().axes if axes.get_title()]
    assert titles[0] == "blocks.0.attn.pattern, head L0H0" and len(titles) == 8
    assert maps(done.plot("L1H2.pattern"))[0].get_array().shape == (7, 7)
    with pytest.raises(SiteNotRead):
        done.plot("L1H2.z")


# ---- one table of colours


def lightness(colour: str) -> float:
    linear = [((int(colour[i : i + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for i in (1, 3, 5)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_ramps_pass_through_the_colours_of_the_signs_and_never_turn_back(palette: Palette) -> None:
    signed, unsigned = palette.ramp("diverging"), palette.ramp("sequential")
    assert (palette.diverging[1], palette.diverging[-2]) == (palette.negative, palette.positive)
    assert (unsigned[0], unsigned[-1]) == (palette.sequential[0], palette.sequential[-1])
    way = 1 if palette is DARK else -1
    for ramp in (unsigned, signed[128:], signed[128::-1]):
        steps = [way * (b - a) for a, b in zip(map(lightness, ramp), map(lightness, ramp[1:]))]
        assert min(steps) > -0.004


# linear red, green and blue as eyes without one kind of cone get them (Machado and others 2009, full severity)
VISIONS = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no long": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no middle": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "no short": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
# to cones, and from their cube roots to lightness and two axes of colour (Ottosson 2020)
CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
AXES = (
    (0.2104542553, 0.793617785, -0.0040720468),
    (1.9779984951, -2.428592205, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.808675766),
)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_ramps_read_alike_with_any_colour_vision(palette: Palette, vision: str) -> None:
    def seen(ramp: tuple[str, ...]) -> torch.Tensor:
        bytes_ = torch.tensor([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in ramp]).double() / 255
        linear = torch.where(bytes_ <= 0.04045, bytes_ / 12.92, ((bytes_ + 0.055) / 1.055) ** 2.4)
        eye, cones, axes = (torch.tensor(rows).double() for rows in (VISIONS[vision], CONES, AXES))
        return (linear @ eye.mT).clamp(0, 1).matmul(cones.mT).pow(1 / 3) @ axes.mT

    way = 1 if palette is DARK else -1
    signed, unsigned = seen(palette.ramp("diverging")), seen(palette.ramp("sequential"))
    above, below = signed[128:], signed[:129].flip(0)
    for ramp, span in ((unsigned, 0.7), (above, 0.5), (below, 0.5)):
        # eight bits of a colour are coarser than single steps
        assert (way * ramp[::4, 0].diff()).min() > 0.005
        assert (ramp[-1, 0] - ramp[0, 0]).abs() > span
        steps = ramp[::16].diff(dim=0).norm(dim=-1)
        assert steps.min() > 0.75 * steps.mean()
    # a quarter of the colours away from zero a sign is seen, and from there on
    assert (above - below)[32:].norm(dim=-1).min() > 0.11


def test_figures_take_the_colours_of_the_table() -> None:
    found = Labelled(torch.tensor([2.0, -1.0]), ("head",), {"head": ["L0H0", "L0H1"]}).plot()
    assert [bar.get_facecolor()[:3] for bar in found.axes[0].patches] == [rgb(LIGHT.positive), rgb(LIGHT.negative)]
    image = maps(sign(torch.tensor([[3.0, -3.0], [0.0, 0.0]]), "a", "b").plot("change"))[0]
    assert [tuple(image.to_rgba(x)[:3]) for x in (3.0, -3.0)] == [rgb(LIGHT.diverging[-1]), rgb(LIGHT.diverging[0])]


def rgb(colour: str) -> Any:
    return pytest.approx(tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))


@browser_test
@pytest.mark.parametrize(("scheme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_a_page_takes_the_colours_of_the_table(opened: Opener, scheme: str, palette: Palette) -> None:
    shown = opened([sign(torch.tensor([2.0, -1.0]), "part", part=["a", "b"])], scheme=scheme)
    colours = shown.locator("figure:has-text('Change') .bar").evaluate_all(
        "bars => bars.map(bar => getComputedStyle(bar).backgroundColor)"
    )
    assert [_hexadecimal(colour) for colour in colours] == [palette.positive, palette.negative]
    variables = "names => names.map(name => getComputedStyle(document.body).getPropertyValue(name).trim())"
    assert shown.evaluate(variables, [f"--series-{i}" for i in range(len(SERIES))]) == list(SERIES)


def _hexadecimal(colour: str) -> str:
    return "#" + "".join(f"{int(x):02x}" for x in re.findall(r"\d+", colour)[:3])


@browser_test
def test_a_map_on_a_page_has_the_ramp_that_its_class_says(opened: Opener) -> None:
    # numbers above zero only: nothing but the class tells which of the two has a sign
    shown = opened([sign(torch.full((2, 2), 4.0), "layer", "head")])
    middle = """canvases => canvases.map(canvas => {
        const data = canvas.getContext("2d").getImageData(canvas.width - 30, canvas.height - 8, 1, 1).data;
        return [...data.slice(0, 3)].join(" ");
    })"""
    assert [_hexadecimal(colour) for colour in shown.locator("canvas.map").evaluate_all(middle)] == [
        LIGHT.sequential[-1],
        LIGHT.diverging[-1],
    ]


@pytest.mark.full
def test_curves_are_told_apart_by_all_kinds_of_colour_vision() -> None:
    # Machado, Oliveira and Fernandes 2009, in linear light
    seen = {
        "all": torch.eye(3),
        "no red": torch.tensor([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
        "no green": torch.tensor([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    }
    colours = torch.tensor([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in SERIES])
    linear = ((colours + 0.055) / 1.055) ** 2.4
    for matrix in seen.values():
        places = (linear @ matrix.mT).clamp(0, 1) ** (1 / 2.2)
        assert float(torch.pdist(places).min()) > 0.15


@pytest.mark.full
def test_strongest_pairs_and_skip_trigrams_are_drawn_under_their_tokens() -> None:
    model = gf.load("attn-only-1l")
    pairs = token_pairs(model, heads=["L0H0", "L0H1"], k=3)
    drawn = [panel.value.labels("tokens") for panel in pairs.panels()]
    ids = pairs.rows.values[1].tolist()
    assert [str(label).split(" → ")[0] for label in drawn[1]] == [
        pairs.names[id].partition(":")[2].replace(" ", "·")[:7] for id in ids
    ]
    [panel] = skip_trigrams(model, heads=["L0H0"], k=3).panels()
    assert all(str(label).count(" … ") == 1 and " → " in str(label) for label in panel.value.labels("tokens"))


@pytest.mark.full
def test_a_notebook_shows_a_figure_by_itself() -> None:
    figure: Any = Labelled(torch.rand(3), ("head",)).plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
