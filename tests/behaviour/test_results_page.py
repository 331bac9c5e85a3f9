"""The HTML page of results, opened from disk in a real browser; what it is drawn from, checked without one."""

import base64
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from playwright.sync_api import Page

from every_result import classes
from explanations import gpt
from glassformer.analysis.causal import CausalTrace, average_traces
from glassformer.analysis.lens import lens_grid
from glassformer.errors import ConfigError
from glassformer.labelled import Labelled, Result
from glassformer.render.page import results_document, results_page
from glassformer.testing import close
from one_pass import in_one_pass
from pages import NASTY, Opener, accessibility_report, open_everything
from results import HEAD, SAMPLES, document, sample

browser_test = pytest.mark.browser
ROOT = Path(__file__).parents[2]


def unpacked(entry: dict[str, Any]) -> torch.Tensor:
    numbers = numpy.frombuffer(base64.b64decode(entry["float32"]), "<f4").copy()
    return torch.from_numpy(numbers).reshape(entry["shape"])


@dataclasses.dataclass(frozen=True, eq=False)
class Mystery(Result):
    """A result that no view knows."""

    numbers: Labelled
    spread: float = 0.0


def one(values: torch.Tensor, *axes: str, **coords: list[Any]) -> list[Result]:
    """Return a result of one tensor."""
    return [Mystery(Labelled(values, axes, coords))]


# ---- the document


# what is the same in all results of a page stands above them
SAID_ONCE = {"notes", "provenance"}


@pytest.mark.parametrize("name", SAMPLES)
def test_numbers_survive_their_packing_and_everything_shown_has_its_words(name: str) -> None:
    packed = results_document(sample(name), HEAD)
    for result, stored in zip(document(name), packed["results"], strict=True):
        assert stored.keys() - SAID_ONCE == {*result, "derived"} - SAID_ONCE
        for field, value in result.items():
            if isinstance(value, dict) and "axes" in value:
                torch.testing.assert_close(
                    unpacked(stored[field]), Labelled.from_dict(value).values.float(), equal_nan=True
                )
    for about in packed["about"].values():
        assert about["summary"] and all(about["fields"].values())
    assert set(packed["about"]) >= {result["result"] for result in packed["results"]}
    json.dumps(packed, allow_nan=False)


@in_one_pass
@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_and_the_json_say_the_same_but_for_how_tensors_are_written(name: str) -> None:
    def without_tensors(value: Any) -> Any:
        if isinstance(value, dict):
            if "axes" in value:
                return {"axes": value["axes"], "coords": value["coords"]}
            return {k: without_tensors(v) for k, v in value.items() if k != "derived"}
        return [without_tensors(v) for v in value] if isinstance(value, list) else value

    packed = json.loads(json.dumps(results_document(sample(name))))
    alone = json.loads(json.dumps(document(name)))
    for stored, result in zip(packed["results"], alone, strict=True):
        said = [entry.pop("provenance", {}) for entry in (stored, result)]
        assert {**packed.get("provenance", {}), **said[0]} == said[1]
        assert all(note in packed.get("notes", []) for note in result.pop("notes", []))
    assert without_tensors(packed["results"]) == without_tensors(alone)


def test_sentences_for_readers_are_of_classes_that_there_are_and_of_what_these_draw_first() -> None:
    script = (ROOT / "web" / "src" / "results" / "words.ts").read_text(encoding="utf-8")
    readers = script.partition("const READERS")[2].partition("\n};")[0]
    said = re.findall(r"^  (\w+): \[(.*?)\],$", readers, re.MULTILINE | re.DOTALL)
    assert len(said) > 20
    known = {kind.__name__: kind.headline_names() for kind in classes()}
    report = (ROOT / "web" / "src" / "results" / "report.ts").read_text(encoding="utf-8")
    drawn = re.findall(r"^  (\w+): \[(.*?)\],$", report.partition("const SHOWN")[2].partition("\n};")[0], re.M | re.S)
    in_pictures = {name: set(re.findall(r'"(\w+)"', fields)) for name, fields in drawn}
    for name, sentences in said:
        fields = re.findall(r"[{ ](\w+): (?:spoken|[A-Z])", sentences.partition("{")[2])
        assert set(fields) <= set(known[name])
        assert set(known[name]) - set(fields) <= in_pictures.get(name, set())


def test_what_a_result_derives_is_what_its_property_says() -> None:
    [_, noising] = sample("patching")
    stored = results_document(noising)["results"][0]["tables"]["z"]
    entry = document("patching")[1]["tables"]["z"]
    fraction = (torch.tensor(entry["values"]["values"]).mean(-1) - torch.tensor(entry["corrupt"]["values"]).mean()) / (
        torch.tensor(entry["clean"]["values"]).mean() - torch.tensor(entry["corrupt"]["values"]).mean()
    )
    close(unpacked(stored["derived"]["carried"]), 1 - fraction, tolerance=1e-5)


def test_one_result_and_several_are_taken() -> None:
    first, second = sample("flow")
    for given, n in ((first, 1), ([first, second], 2), ((first, second), 2)):
        assert len(results_document(given)["results"]) == n
    assert 'id="results"' in results_page(first)


def test_the_head_stands_before_the_results() -> None:
    found = results_document(sample("flow"), HEAD)
    assert {name: found[name] for name in HEAD} == HEAD


@pytest.mark.parametrize("given", [[], (), [3], [{"values": 1}], [{"result": "Patched"}]])
def test_a_page_without_a_result_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="at least one result"):
        results_page(given)


def test_what_is_not_finite_is_left_empty() -> None:
    stored = Mystery(Labelled(torch.tensor([1.0, math.inf, math.nan]), ("layer",)), math.nan).to_dict(packed=True)
    assert stored["spread"] is None
    assert unpacked(stored["numbers"]).isnan().tolist() == [False, True, True]


def test_complex_numbers_are_packed_as_two_parts() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    stored = Labelled(values, ("row",)).to_dict(packed=True)
    assert stored["axes"] == ["row", "part"] and stored["coords"]["part"] == ["real", "imaginary"]
    assert unpacked(stored).tolist() == [[1.0, 2.0], [3.0, -4.0]]


# ---- the page


@pytest.mark.full
@browser_test
@pytest.mark.parametrize(("name", "scheme", "width"), [("patching", "light", 1280), ("lens", "dark", 390)])
def test_the_page_is_accessible(opened: Opener, name: str, scheme: str, width: int) -> None:
    assert accessibility_report(opened(sample(name), HEAD, scheme=scheme, width=width)) == ""


@browser_test
@pytest.mark.full
@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390)])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_accessible_with_everything_open(opened: Opener, name: str, scheme: str, width: int) -> None:
    shown = opened(sample(name), HEAD, scheme=scheme, width=width)
    open_everything(shown)
    assert accessibility_report(shown) == ""


@browser_test
@pytest.mark.parametrize(
    "name", [name if i % 3 == 0 else pytest.param(name, marks=pytest.mark.full) for i, name in enumerate(SAMPLES)]
)
def test_everything_opens_in_a_narrow_window_that_scrolls_only_downwards(opened: Opener, name: str) -> None:
    shown = opened(sample(name), HEAD, width=360)
    open_everything(shown)
    assert shown.evaluate("document.documentElement.scrollWidth") == 360
    assert shown.locator("main > section").count() >= 2


@browser_test
def test_a_map_tells_the_number_under_its_cursor(opened: Opener) -> None:
    values = torch.arange(12.0).reshape(3, 4) - 5
    shown = opened(one(values, "layer", "head"))
    told = shown.locator(".told")
    assert told.inner_text() == "layer 2, head 3: +6.00"
    shown.locator("canvas.map").focus()
    for key in ("ArrowUp", "ArrowLeft"):
        shown.keyboard.press(key)
    assert told.inner_text() == "layer 1, head 2: +1.00"
    shown.keyboard.press("Shift+ArrowUp")
    assert told.inner_text() == "layer 0, head 2: −3.00"
    assert "layer L0, head H2: −3.00" in (shown.locator("canvas.map").get_attribute("aria-label") or "")


@dataclasses.dataclass(frozen=True, eq=False)
class Part(Result):
    """A result that is a share of a whole."""

    share: Labelled


def last_colour(shown: Page) -> list[int]:
    """Return the colour of the last cell of the first map."""
    return shown.locator("canvas.map").first.evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(canvas.width - 30, canvas.height - 8, 1, 1).data]"
    )


@browser_test
@pytest.mark.parametrize(
    ("prompts", "pale", "noise"),
    [((0.04, 0.04), True, False), ((0.2, 1.4), True, True), ((0.5, 1.1), False, False)],
    ids=["little of a whole", "not sure", "sure"],
)
def test_a_share_is_paler_than_one_that_is_large_and_sure(
    prompts: tuple[float, float], pale: bool, noise: bool, opened: Opener
) -> None:
    def shown(*shares: float) -> Page:
        values = torch.tensor(shares)[:, None, None].expand(-1, 2, 2)
        return opened([Part(Labelled(values, ("prompt", "layer", "head")))])

    found = shown(*prompts)
    assert (last_colour(found) != last_colour(shown(0.8, 0.8))) == pale
    assert ("pale: within two standard errors of zero" in found.inner_text("figure .legend")) == noise


@browser_test
@pytest.mark.parametrize("prompts", [1, 2])
@pytest.mark.parametrize("lost", [0.0, 2.0])
def test_noise_that_lowers_nothing_is_said_to_leave_nothing_to_bring_back(
    lost: float, prompts: int, opened: Opener
) -> None:
    (trace,) = sample("tracing")
    assert isinstance(trace, CausalTrace)
    corrupt = trace.clean.values[:, None] - lost
    found = trace.replace(
        corrupt=dataclasses.replace(trace.corrupt, values=corrupt.expand(-1, trace.corrupt.size("sample")))
    )
    shown = opened([found if prompts == 1 else average_traces([found] * prompts)])
    assert shown.locator(".notes", has_text="There is nothing to bring back").count() == (lost == 0)


@browser_test
def test_prompts_are_averaged_and_each_can_be_chosen(opened: Opener) -> None:
    values = torch.tensor([[[1.0, 3.0]], [[5.0, math.nan]]])
    shown = opened(one(values.expand(2, 2, 2), "layer", "head", "batch"))
    told = shown.locator(".told")
    assert told.inner_text() == "layer 1, head 0: 5.00"
    shown.locator("canvas.map").focus()
    shown.keyboard.press("ArrowUp")
    assert told.inner_text() == "layer 0, head 0: 2.00 ± 1.00"
    shown.select_option("select", "1")
    assert told.inner_text() == "layer 0, head 0: 3.00"


@browser_test
def test_rows_over_tokens_are_shown_as_text(opened: Opener) -> None:
    shown = opened(sample("flow"), HEAD)
    figure = shown.locator("#result-1 figure").first
    texts = document("flow")[0]["rolled"]["coords"]["key"]
    assert figure.locator(".strip .token").count() == len(texts)


@browser_test
def test_denoising_and_noising_stand_beside_each_other(opened: Opener) -> None:
    shown = opened(sample("patching"), HEAD)
    families = shown.locator(".family")
    assert families.locator("h3.mono").all_inner_texts() == ["resid_pre", "z"]
    for family in families.all():
        assert family.locator("h4").all_inner_texts() == ["Denoising", "Noising"]
        first, second = (canvas.bounding_box() for canvas in family.locator("canvas.map").all())
        assert first and second and first["y"] == second["y"] and first["x"] < second["x"]


@browser_test
def test_a_cell_of_the_lens_tells_its_likeliest_tokens(opened: Opener) -> None:
    [grid] = document("lens")
    shown = opened(sample("lens"), HEAD)
    cells = shown.locator("table.lenses tbody tr").first.locator("td")
    assert cells.count() == len(grid["top"]["values"][0][0])
    cells.first.click()
    rows = shown.locator(".told.card tbody tr")
    assert rows.count() == 5
    probabilities = [float(re.sub(r"[^\d.]", "", row)) / 100 for row in rows.locator("td.number").all_inner_texts()]
    assert probabilities == pytest.approx(grid["top_probability"]["values"][0][0][0], rel=0.06)
    shown.keyboard.press("ArrowDown")
    assert "L0 mid" in shown.inner_text(".told.card p:first-child")


@browser_test
def test_no_column_of_a_lens_is_cut_by_the_labels_of_its_rows(opened: Opener) -> None:
    shown = opened(sample("lens"), HEAD, width=390)
    shown.wait_for_function("document.querySelector('table.lenses').parentNode.scrollLeft > 0")
    region, labels = (
        shown.locator(where).first.bounding_box() for where in (".scroll:has(.lenses)", ".lenses tbody th")
    )
    assert region and labels
    cells = [cell.bounding_box() for cell in shown.locator("table.lenses tbody tr:last-child td").all()]
    starts = [cell["x"] - labels["x"] - labels["width"] for cell in cells if cell]
    assert min(abs(start - 2) for start in starts) <= 1
    # the one that is told is the last
    assert cells[-1] and cells[-1]["x"] + cells[-1]["width"] <= region["x"] + region["width"] + 1


@browser_test
def test_a_slider_takes_edges_away(opened: Opener) -> None:
    shown = opened(sample("routes"), HEAD)
    slider, edges = shown.locator("input[type=range]"), shown.locator(".edge")
    whole = edges.count()
    assert whole > 5
    slider.focus()
    shown.keyboard.press("End")
    assert 0 < edges.count() < whole
    shown.keyboard.press("Home")
    assert edges.count() == whole


@browser_test
def test_the_circuit_of_the_known_model_is_drawn_as_it_is_wired(opened: Opener) -> None:
    found = document("pruning")[0]
    shown = opened(sample("pruning"), HEAD)
    graph = shown.locator("#result-1 svg").first
    titles = graph.locator("title").all_text_contents()
    assert sorted(title.split(":")[0] for title in titles) == sorted(" → ".join(edge) for edge in found["edges"])
    assert "L0H0 → L1H0.k" in " ".join(titles)


@browser_test
def test_no_token_becomes_markup(opened: Opener) -> None:
    values = torch.rand(9, 9, generator=torch.Generator().manual_seed(0))
    labels = [f"{i}:{text}" for i, text in enumerate(NASTY)]

    class Hostile(Mystery):
        """A result whose names are markup."""

        def to_dict(self, packed: bool = False) -> dict[str, Any]:
            return super().to_dict(packed) | {"left_out": {NASTY[2]: NASTY[0]}, NASTY[2]: NASTY[2]}

    hostile = Hostile(Labelled(values, ("query", "key"), {"query": labels, "key": labels}))
    shown = opened([hostile], {"model": {"name": NASTY[2]}, "given": {"text": NASTY[0], NASTY[2]: 1}})
    open_everything(shown)
    assert shown.evaluate("window.ran") is None
    assert shown.locator("img").count() == 0
    assert NASTY[0] in shown.locator(".strip .token").all_inner_texts()


@browser_test
def test_256_tokens_stay_readable(opened: Opener) -> None:
    labels = [f"{i}: w{i}" for i in range(256)]
    values = torch.rand(256, 256, generator=torch.Generator().manual_seed(0)).tril()
    shown = opened(one(values, "query", "key", query=labels, key=labels))
    box = shown.locator("canvas.map").bounding_box()
    assert box is not None and box["width"] <= 1280 and box["height"] >= 256 * 3
    assert shown.locator(".told").inner_text().startswith("query 255")


@browser_test
@pytest.mark.parametrize("name", ["patching", "direct", "gradients", "routes", "tracing", "lens"])
def test_what_stands_open_is_for_readers_and_what_the_code_says_is_behind_a_fold(opened: Opener, name: str) -> None:
    shown = opened(sample(name), HEAD)
    said = shown.locator("main > section:not(#reading) :is(.gloss, figcaption p):visible").all_inner_texts()
    assert len(said) > 1 and not any(re.search(r"`|NaN|\w_\w|float\(", words) for words in said)
    assert shown.locator("main code:visible").count() == 0
    fields = shown.locator("details.fields").first
    fields.locator("summary").click()
    about = results_document(sample(name), HEAD)["about"]
    told = {dt.inner_text(): dt.locator("xpath=../dd").inner_text() for dt in fields.locator("dt").all()}
    kind = "Patched" if name == "patching" else document(name)[0]["result"]
    assert told and all(about[kind]["fields"][field].replace("`", "") == words for field, words in told.items())


@browser_test
def test_bars_that_add_up_end_in_their_sum_largest_first(opened: Opener) -> None:
    result: Any = next(one for one in sample("direct") if one.to_dict()["contributions"]["axes"] == ["component"])
    shown = opened([result], HEAD)
    rows = shown.locator("#result-1 table.bars tbody tr").all()
    names = [row.locator("th").inner_text() for row in rows]
    numbers = [float(row.locator("td.number").inner_text().replace("−", "-")) for row in rows]
    assert [abs(x) for x in numbers[:-2]] == sorted((abs(x) for x in numbers[:-2]), reverse=True)
    assert "others together" in names[-2] and names[-1] == "sum"
    assert numbers[-1] == pytest.approx(float(result.sum), abs=0.06)
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.1)


@browser_test
def test_heads_that_routes_pass_stand_largest_first(opened: Opener) -> None:
    shown = opened(sample("routes"), HEAD)
    bars = shown.locator("figure", has=shown.get_by_role("heading", name="Heads", exact=True)).locator("td.number")
    numbers = [float(cell) for cell in bars.all_inner_texts()]
    assert len(numbers) > 2 and numbers == sorted(numbers, reverse=True)


@browser_test
def test_places_have_the_tokens_of_a_single_pair_and_of_several_no_token_of_one(opened: Opener) -> None:
    swept = sample("patching")[0]
    row = [f"w{i}" for i in range(18)]
    for rows in ([row], [row, row[:17]]):
        reading = {"tokens": {"clean": rows, "corrupt": rows}}
        figure = (
            opened([swept], {**HEAD, "reading": reading}).locator("#result-1 .family").first.locator("figure").first
        )
        told = figure.locator(".told")
        assert re.search(r"position \d+.*: \S+ ± \d", told.inner_text())
        assert (re.search(r"position \d+ w\d+", told.inner_text()) is None) == (len(rows) > 1)
        assert figure.locator(".strip .token").all_inner_texts() == ([] if len(rows) > 1 else row)


@browser_test
def test_a_place_keeps_the_name_that_it_has_in_all_pairs(opened: Opener) -> None:
    found = Mystery(Labelled(torch.eye(3), ("layer", "pos"), {"pos": ["0:a", "1", "2:last"]}))
    rows = [["a", "x", "y"], ["a", "u", "v"]]
    shown = opened([found], {**HEAD, "reading": {"tokens": {"clean": rows, "corrupt": rows}}})
    assert "a" in shown.locator("figure .told").inner_text() and not shown.locator("figure .strip .token").count()


@browser_test
def test_what_was_asked_is_said_once(opened: Opener) -> None:
    tokens = ["a", "b", " c"]
    asked = {**HEAD, "given": {"answer": " c", "positions": [-1], "n": 2}, "reading": {"tokens": {"reads": [tokens]}}}
    shown = opened(sample("gradients")[:1], asked)
    told = shown.locator(".given dl > div").all_inner_texts()
    assert told == ["answer\n·c", "positions\n2 ·c", "number of examples\n2"]
    facts = shown.locator("#result-1 > dl.facts dt").all_inner_texts()
    assert "measured" in facts and not {"answers", "method", "metric name"} & set(facts)


@browser_test
def test_each_row_of_a_batch_is_drawn_with_its_own_tokens_and_without_its_padding(opened: Opener) -> None:
    tokens = [["0:a", "1:b", None], ["0:c", "1:d", "2:e"]]
    values = torch.arange(12.0).view(2, 2, 3)
    shown = opened([Mystery(Labelled(values, ("batch", "layer", "pos"), rows={"pos": tokens}))])
    for row, said in ((0, ["a", "b"]), (1, ["c", "d", "e"])):
        shown.select_option("select", str(row))
        drawn = shown.locator(".heatmap .strip .token")
        assert drawn.all_inner_texts() == said
        numbers = [str(title).split(": ")[1] for title in drawn.evaluate_all("all => all.map(token => token.title)")]
        assert [float(number) for number in numbers] == values[row, 1, : len(said)].tolist()


@browser_test
def test_the_lens_of_several_texts_has_a_table_for_each_with_its_own_tokens(opened: Opener) -> None:
    found = lens_grid(gpt(), ["def f(x):", "import"])
    shown = opened([found])
    for row, labels in enumerate(found.first.rows["pos"]):
        shown.select_option(".stack > .choices select", str(row))
        tokens = [str(label).split(":", 1)[1] for label in labels if label is not None]
        heads = shown.locator("table.lenses thead th").all_inner_texts()[1:]
        assert heads == [token.replace(" ", "·") for token in tokens]
        assert "–" not in shown.inner_text(".told")
    assert len(found.first.rows["pos"]) == 2


@browser_test
def test_a_lens_of_some_positions_has_its_line_between_them(opened: Opener) -> None:
    found = lens_grid(gpt(), "def f(x):", positions=[0, 3, 6])
    shown = opened([found], {**HEAD, "model": {**HEAD["model"], "trained_length": 5}})
    columns = shown.locator("table.lenses .beyond").evaluate_all("all => all.map(cell => cell.cellIndex - 1)")
    assert columns == [2] * shown.locator("table.lenses tr").count()
