"""Dots, value matrices, a token more, lanes and mixtures in a real browser, beside the library's numbers."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect

import glassformer as gf
from glassformer.models.accounting import count_parameters
from glassformer.models.added_token import added_token, kept_tensors, step_flops
from served import TOKEN, Listening

pytestmark = pytest.mark.browser

TEXT = "def add(a, b):\n    return a"
Opener = Callable[..., Page]


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    server = Listening({name: lambda name=name: gf.load(name) for name in ("gpt-4l", "hybrid-4l")})
    _ = server.model("gpt-4l")
    yield server
    server.stop()


@pytest.fixture
def explorer(browser: Any, listening: Listening) -> Iterator[Opener]:
    """Return a function that opens the page with a text and goes to a head; it may not have complained."""
    contexts, complaints = list[Any](), list[str]()

    def opened(head: str, model: str = "gpt-4l") -> Page:
        contexts.append(browser.new_context(viewport={"width": 1440, "height": 900}))
        shown = contexts[-1].new_page()
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.goto(f"{listening.root}/?token={TOKEN}")
        shown.locator("#view .levels").wait_for()
        if model != "gpt-4l":
            shown.locator(".run").first.wait_for(state="attached")
            shown.locator("header select").first.select_option(model)
            expect(shown.locator(".run h2").first).to_contain_text(model, use_inner_text=False)
        shown.locator("textarea").first.fill(TEXT)
        shown.keyboard.press("Control+Enter")
        expect(shown.locator(".run .small").first).to_contain_text(TEXT[:8], use_inner_text=False)
        shown.locator(f"[data-label={head}]").click()
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def at_level(shown: Page, level: int, tab: str | None = None) -> None:
    shown.locator("#view").focus()
    shown.keyboard.press(str(level))
    if tab is not None:
        shown.get_by_role("button", name=tab, exact=True).click()


def table(shown: Page, label: str) -> list[list[str]]:
    """Return the texts of the rows of a table, by the beginning of what its region is called."""
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    rows = shown.locator(f"[role=region][aria-label^='{label}'] tbody > tr")
    rows.first.wait_for()
    return rows.evaluate_all(script)


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").replace("%", "").strip())


def test_lanes_have_the_sizes_of_writes_and_links_the_weights_of_heads(explorer: Opener, listening: Listening) -> None:
    shown, model = explorer("L1H2"), listening.model("gpt-4l")
    at_level(shown, 1, "Lanes")
    run = gf.run(model, TEXT, read="*")
    sizes = {
        f"L{layer.layer} {layer.name}": [
            float(run[site].values[0, -1].norm()) for site in (layer.at_write, layer.at_behind)
        ]
        for layer in model.sub_layers()
    }
    rows = table(shown, "writes at position")
    assert [row[0] for row in rows] == [*reversed(sizes)]
    for name, share, stream in rows:
        write, behind = sizes[name]
        assert [number(share), number(stream)] == pytest.approx([write / behind, behind], rel=0.01, abs=6e-4)
    links = table(shown, "links into position")
    for head, key, weight, _ in links:
        found = run[f"{head}.pattern"].values[0, -1, int(key.split()[0])]
        assert number(weight) == pytest.approx(float(found), rel=0.01, abs=6e-4) and float(found) >= 0.2
    most = max(float(run[f"blocks.{i}.attn.pattern"].values[0, :, -1].max()) for i in range(4))
    assert number(links[0][2]) == pytest.approx(most, abs=6e-4)
    # by keys alone: another lane, another write, and where its number comes from
    lanes = shown.locator(".lanes")
    told = lanes.get_attribute("aria-label")
    lanes.press("ArrowLeft")
    lanes.press("ArrowUp")
    expect(lanes).to_have_attribute("aria-label", re.compile(rf"L0 mlp at position {len(run.tokens) - 2} "))
    assert lanes.get_attribute("aria-label") != told
    lanes.press("i")
    expect(shown.locator(".source")).to_contain_text("blocks.0.mlp.out")


@pytest.mark.full
def test_a_pattern_is_drawn_as_dots_and_turned_and_says_which_triangle_is_masked(
    explorer: Opener, listening: Listening
) -> None:
    shown = explorer("L1H2")
    at_level(shown, 2)
    panel = shown.locator(".patternpanel")
    canvas = panel.locator("canvas.map")
    canvas.wait_for()
    pictures = [canvas.evaluate("one => one.toDataURL()")]
    expect(panel).to_contain_text("The upper right triangle is masked")
    panel.get_by_label("drawn as").select_option("dots")
    pictures.append(canvas.evaluate("one => one.toDataURL()"))
    panel.get_by_label("rows are").select_option("keys")
    pictures.append(canvas.evaluate("one => one.toDataURL()"))
    expect(panel).to_contain_text("The lower left triangle is masked")
    assert len({*pictures}) == 3
    # rows are keys now: down is the next key, left the query before
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        canvas.press(key)
    pattern = gf.run(listening.model("gpt-4l"), TEXT, read=["L1H2.pattern"])["L1H2.pattern"].values[0]
    query = len(pattern) - 2
    expect(canvas).to_have_attribute("aria-label", re.compile(rf"query {query}, key 2, "))
    canvas.press("i")
    value = shown.locator(".source").inner_text()
    assert any(
        float(x) == pytest.approx(float(pattern[query, 2]), rel=1e-4)
        for x in re.findall(r"\d+\.\d+(?:e-\d+)?", value.replace("−", "-"))
    )


@pytest.mark.full
def test_value_matrices_are_counted_and_drawn(explorer: Opener, listening: Listening) -> None:
    shown, model = explorer("L1H2"), listening.model("gpt-4l")
    at_level(shown, 2, "Value matrices")
    one, held = gf.weights.of(model)["L1H2"], count_parameters(model.config)
    rows = table(shown, "how many numbers")
    assert [number(x) for x in rows[0][1:4]] == [one.V[0].numel(), one.O[0].numel(), 256**2]
    assert [number(x) for x in rows[2][1:3]] == [held["value"], held["output"]]
    ranks = [int(torch.linalg.matrix_rank(x)) for x in (one.V[0], one.O[0], one.ov().dense()[0])]
    assert [number(x) for x in table(shown, "dimensions of the matrices")[0][1:]] == ranks
    expect(shown.locator(".side")).to_contain_text("8 heads share 2 matrices W_V")
    shown.get_by_role("group", name="matrix").get_by_role("button").nth(2).click()
    canvas = shown.locator(".side canvas.map")
    canvas.press("ArrowDown")
    canvas.press("ArrowRight")
    canvas.press("i")
    expect(shown.locator(".source")).to_contain_text("one.ov().dense()")
    told = shown.locator(".side [role=status]").inner_text().splitlines()[0].split(":")[1]
    assert number(told) == pytest.approx(float(one.ov().dense()[0, 1, 1]), rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(("model", "head"), [("gpt-4l", "L1H2"), ("hybrid-4l", "L0H1")])
def test_a_token_more_adds_the_bytes_and_operations_that_it_does(
    explorer: Opener, listening: Listening, model: str, head: str
) -> None:
    shown = explorer(head, model)
    at_level(shown, 2, "A token more")
    own, layer = listening.model(model), int(head[1])
    ids = gf.run(own, TEXT).ids
    assert ids is not None
    rows = table(shown, "tensors of the state")
    states = added_token(own, ids, ids.shape[1] - 1)
    before, after = (kept_tensors(state.layers[layer][0]) for state in states[:2])
    assert [row[0] for row in rows[:-1]] == [*after]
    for name, _, was, shape, now in rows[:-1]:
        assert number(was) == before[name].values.nbytes and number(now) == after[name].values.nbytes
        assert [int(n) for n in shape.split(" × ")] == list(after[name].values.shape)
    attention = own.sub_layers()[2 * layer].attention
    assert attention is not None
    told = table(shown, "floating-point operations")[-1]
    whole = sum(attention.flops(ids.shape[1], 0, True).values())
    assert [number(x) for x in told[1:]] == [sum(step_flops(attention, ids.shape[1]).values()), whole]
    keeps = model == "gpt-4l"
    expect(shown.locator(".side")).to_contain_text("one row of the pattern" if keeps else "a state of one size")
    expect(shown.locator(".side")).to_contain_text("This token adds no bytes" if not keeps else "This token adds")


@pytest.mark.full
@pytest.mark.parametrize(("model", "head"), [("gpt-4l", "L3H2"), ("hybrid-4l", "L0H1")])
def test_a_position_is_a_mixture_whose_sum_is_that_of_the_row(
    explorer: Opener, listening: Listening, model: str, head: str
) -> None:
    shown = explorer(head, model)
    at_level(shown, 3, "Mixture")
    shown.locator(".mixture").first.wait_for()
    pattern = gf.run(listening.model(model), TEXT, read=[f"{head}.pattern"])[f"{head}.pattern"].values[0, -1]
    sums = shown.locator(".mixtures .number").all_inner_texts()
    assert number(sums[int(head[3])]) == pytest.approx(float(pattern.sum()), abs=6e-5 * max(1, float(pattern.sum())))
    rows = table(shown, f"tokens that {head} mixes")
    assert len(rows) == len(pattern)
    for name, weight, _ in rows:
        assert number(weight) == pytest.approx(float(pattern[int(name.split()[0])]), rel=0.01, abs=6e-4)
    if model == "gpt-4l":
        assert {*sums} == {"1.0000"}
        expect(shown.locator("#view")).to_contain_text("sum to one: what a head mixes is an average")
    else:
        expect(shown.locator("#view")).to_contain_text("Rows of this mechanism need not sum to one")
