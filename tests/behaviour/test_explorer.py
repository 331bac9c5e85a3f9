"""The explorer in a browser: its numbers are the library's, its keys do everything, and nothing leaves the machine."""

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.heads import roles
from glassformer.figures.colours import LIGHT
from glassformer.models.presets import attention_only
from glassformer.testing.models import subject
from served import TOKEN, Listening

TEXT = "def add(first, second):\n    return first + second\n\ndef add("
TINY = ("lightning_hybrid", "linear", "masked_pre", "translator_pre", "differential", "gpt2")
IDS = "ids: 3 1 4 1 5 3 1"
Page = Any
STAGES = {"q · k": "products", "scores, masked": "scores", "weights": "weights"}
QUANTITIES = ("query", "key", "scores", "pattern")
browser_test = pytest.mark.browser


def _other() -> Any:
    """The same model but for one tensor: what makes queries, keys and values in its first layer reads backwards."""
    model = subject("gpt2", batch=1, dtype=torch.float32).model
    with torch.no_grad():
        weight = model.get_parameter("stack.blocks.0.attn.projection.qkv.weight")
        weight.copy_(weight.flip(-1))
    return model


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    tiny = {name: lambda name=name: subject(name, batch=1, dtype=torch.float32).model for name in TINY}
    folder = gf.save(subject("llama", batch=1, dtype=torch.float32).model, tmp_path_factory.mktemp("saved") / "folder")
    found = Listening(
        {"attn-only-2l": lambda: gf.load("attn-only-2l"), **tiny, "other": _other, "folder": lambda: gf.load(folder)}
    )
    yield found
    found.stop()


@pytest.fixture
def explore(browser: Any, serving: Listening) -> Iterator[Callable[..., Page]]:
    """Return a function that opens the page and runs a text, by keys alone.

    Afterwards no page may have complained, or asked anybody else for anything.
    """
    contexts: list[Any] = []
    complaints: list[str] = []
    asked: list[str] = []
    roots = [serving.root]

    def told(message: Any) -> None:
        # the browser tells of refusals, too: of what is not wanted any more, not defined, or was let go, or of a server
        codes = ("404", "409", "422", "ERR_CONNECTION_REFUSED")
        is_refusal = "/api/" in message.location["url"] and any(code in message.text for code in codes)
        if message.type == "error" and not is_refusal:
            complaints.append(message.text)

    def open_page(
        model: str = "attn-only-2l",
        text: str = TEXT,
        target: str = "",
        *,
        scheme: Any = "light",
        width: int = 1440,
        lang: str = "en",
        root: str = serving.root,
    ) -> Page:
        roots.append(root)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", told)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{root}/?token={TOKEN}&lang={lang}")
        page.locator("option", has_text=model).first.wait_for(state="attached")
        if model != "attn-only-2l":
            page.locator("header select").select_option(model)
            page.locator(".facts-line").wait_for()
        page.locator("textarea").first.focus()
        # in place of the text that the page begins with, which may come in the meantime
        while page.locator("textarea").first.input_value() != text:
            page.keyboard.press("Control+A")
            page.keyboard.insert_text(text)
        if target:
            page.keyboard.press("Tab")
            page.keyboard.insert_text(target)
        page.keyboard.press("Control+Enter")
        until(page, f"document.querySelector('.run .small')?.innerText.startsWith({json.dumps(text[:8])})")
        page.locator(".headmap").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith((*roots, "data:", "blob:"))] == []


def until(page: Page, expression: str) -> None:
    """Wait until an expression holds; what Playwright has for this is forbidden by the page's security policy."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never so: {expression}")


def settled(page: Page) -> None:
    """Wait until nothing on the page is being computed."""
    until(page, "!document.querySelector('.stale') && !/computing…|running…/.test(document.body.innerText)")


def go_to(page: Page, *names: str) -> None:
    """Go to heads and positions, as the key g does."""
    page.locator("#view").focus()
    for name in names:
        page.keyboard.press("g")
        page.keyboard.insert_text(name)
        page.keyboard.press("Enter")
        page.locator("#view").focus()


def exact(page: Page) -> dict[str, float | None]:
    """The numbers of the pair under the cursor, stage by stage."""
    until(page, "document.querySelector('.exact:not(.stale)')")
    rows = page.locator(".exact tr").evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.innerText))")
    return {
        STAGES[name]: None if value == "masked" else float(value.replace("−", "-"))
        for name, value, *_ in rows
        if name in STAGES
    }


def library(run: Any, head: str, query: int, key: int) -> dict[str, float | None]:
    """The same of a run, as far as its mechanism has it."""
    has = {name: run[f"{head}.{name}"].select(batch=0).values for name in QUANTITIES if f"{head}.{name}" in run}
    stages = {"products": has["query"] @ has["key"].mT, "scores": has.get("scores"), "weights": has["pattern"]}
    found = {name: float(value[query, key]) for name, value in stages.items() if value is not None}
    hidden = key > query
    return {name: None if hidden and name != "products" else value for name, value in found.items()}


def sites_of(model: Any) -> list[str]:
    return [name for name, site in model.sites().items() if site.quantity in QUANTITIES]


def compare(page: Page, run: Any, heads: list[str], n: int, rows: int) -> int:
    """Compare rows of heads, drawn at random, with a run, key by key and stage by stage; return how many numbers."""
    draw, compared = random.Random(0), 0
    for _ in range(rows):
        head, query = draw.choice(heads), draw.randrange(n)
        go_to(page, head, str(query))
        until(page, f"/^{head}\\b/.test(document.querySelector('#head-title')?.innerText)")
        until(page, f"/\\bquery {query}\\b/.test(document.querySelector('.pipeline')?.innerText)")
        settled(page)
        if (every := page.get_by_role("button", name=re.compile("all .* keys"))).count():
            every.click()
        names = page.locator(".rowtable thead th").all_inner_texts()[1:]
        told = page.locator(".rowtable tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
        )
        assert len(told) == n
        rows_of = [library(run, head, query, int(key.split()[0])) for key, *_ in told]
        for i, name in enumerate(names):
            if (stage := STAGES.get(name)) is None:
                continue
            wanted = [row[stage] for row in rows_of]
            # sums of many products cancel: an error is small beside the row
            near = 1e-5 * max(abs(value) for value in wanted if value is not None)
            for (key, *values), real in zip(told, wanted):
                found = None if values[i] == "–" else float(values[i].replace("−", "-"))
                assert found == (None if real is None else pytest.approx(real, rel=2e-5, abs=near)), (head, query, key)
                compared += 1
    return compared


@browser_test
def test_keys_alone_lead_to_every_number_and_the_numbers_are_those_of_the_library(
    explore: Any, serving: Listening
) -> None:
    model, page = serving.model("attn-only-2l"), explore()
    run = gf.run(model, TEXT, read=sites_of(model))
    n = run["L0H0.pattern"].size("query")
    # the map: pictures are the patterns, pixel by pixel
    settled(page)
    until(page, "document.querySelectorAll('.mini').length >= 16")
    weights = run["L1H6.pattern"].select(batch=0).values
    ramp = [tuple(bytes.fromhex(colour[1:])) for colour in LIGHT.ramp("sequential")]
    drawn = page.locator("[data-label=L1H6] canvas").evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    for query in range(n):
        for key in range(n):
            red, green, blue, opacity = drawn[4 * (query * n + key) :][:4]
            if key > query:
                assert opacity == 0, "masked, and no zero"
                continue
            # eight bits of the square root: one step of the ramp to either side
            near = round(256 * float(weights[query, key]) ** 0.5)
            assert (red, green, blue) in ramp[max(0, near - 2) : near + 3]
    # from the text into the view, to a head, to a cell of it
    page.locator("#view").focus()
    go_to(page, "L1H6", "5")
    assert "L1H6" in page.locator("#head-title").inner_text()
    page.locator("canvas.map").focus()
    for key in ("ArrowUp", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    found = exact(page)
    assert found == {name: pytest.approx(value, rel=2e-5) for name, value in library(run, "L1H6", 4, 2).items()}
    # where it comes from
    page.keyboard.press("i")
    page.locator(".source").wait_for()
    assert "gf.run(model" in page.locator(".python").inner_text()
    # ablate, look at B and at the difference, undo
    page.locator("#view").focus()
    for key in ("x", "1", "b"):
        page.keyboard.press(key)
    page.locator(".changes").wait_for()
    ablated = gf.run(model, TEXT, edit=[gf.Scale("L1H6.z", 0.0)])
    likeliest = page.locator(".run .number").nth(1).inner_text()
    assert ablated.logits is not None
    share = float(ablated.logits[0, -1].softmax(-1).max())
    assert float(likeliest.rstrip(" %")) == pytest.approx(100 * share, abs=0.06)
    page.locator("#view").focus()
    page.keyboard.press("Control+z")
    until(page, "document.querySelectorAll('.run').length === 1")


@browser_test
@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("attn-only-2l", None),
        ("attn-only-2l", "L0H3"),
        ("lightning_hybrid", None),
        ("lightning_hybrid", "L0H1"),
        ("folder", None),
        ("folder", "L0H1"),
    ],
)
def test_five_hundred_numbers_drawn_at_random_are_those_of_the_library(
    explore: Any, serving: Listening, model: str, change: str | None
) -> None:
    served, text = serving.model(model), IDS if model != "attn-only-2l" else TEXT
    page = explore(model, text)
    edits = [] if change is None else [gf.Scale(f"{change}.z", 0.0)]
    if change is not None:
        go_to(page, change)
        page.keyboard.press("x")
        page.locator(".changes").wait_for()
    given = [int(one) for one in text[4:].split()] if text == IDS else text
    run = gf.run(served, given, read=sites_of(served), edit=edits)
    labels = [head.label for head in roles.heads(served) if f"{head.label}.key" in run]
    n, compared = run[f"{labels[0]}.pattern"].size("query"), 0
    compared = compare(page, run, labels, n, 1 + 500 // (2 * n))
    assert compared >= 500


def drawn(page: Page, pictures: str) -> list[str]:
    """What is drawn, picture by picture."""
    script = "all => all.map(one => one instanceof HTMLCanvasElement ? one.toDataURL() : one.outerHTML)"
    return page.locator(pictures).evaluate_all(script)


@browser_test
def test_a_server_that_ended_is_told_of_and_one_started_in_its_place_goes_on(explore: Any) -> None:
    own = Listening({"attn-only-2l": lambda: gf.load("attn-only-2l")})
    page = explore(root=own.root)
    go_to(page, "L0H3", "4")
    before = exact(page)
    own.stop()
    go_to(page, "L1H5", "6")
    page.locator(".refused", has_text="does not answer").first.wait_for()
    # it has none of the runs, and makes those that it is asked about
    other = Listening({"attn-only-2l": lambda: gf.load("attn-only-2l")}, int(own.root.rpartition(":")[2]))
    until(page, "!document.querySelector('.refused')")
    after = exact(page)
    assert after != before and len(other.store.runs) == 1
    run = gf.run(other.model("attn-only-2l"), TEXT, read=["L1H5.*"])
    assert after == {name: pytest.approx(value, rel=2e-5) for name, value in library(run, "L1H5", 6, 0).items()}
    other.stop()


@browser_test
def test_one_changed_tensor_changes_every_picture_of_it(explore: Any) -> None:
    def pictures(model: str) -> dict[str, Any]:
        page = explore(model, IDS)
        settled(page)
        until(page, "document.querySelectorAll('.mini').length >= 4")
        found = {"map": page.locator("[data-label=L0H0] canvas").evaluate("canvas => canvas.toDataURL()")}
        for stage in ("q · k", "scores, masked", "weights", "weights × |v|"):
            go_to(page, "L0H0", "6")
            page.get_by_role("button", name=stage, exact=True).click()
            settled(page)
            page.wait_for_timeout(200)
            found[stage] = page.locator("canvas.map").evaluate("canvas => canvas.toDataURL()")
        found["steps"] = page.locator(".pipeline").inner_text()
        found["inspector"] = page.locator(".inspector").inner_text()
        found["chips"] = page.locator(".chips button").evaluate_all("chips => chips.map(chip => chip.style.cssText)")
        for tab in page.locator(".side .tabs button").all()[1:]:
            name = tab.inner_text()
            if name == "What studies found":  # of mechanisms, whatever the tensors
                continue
            tab.click()
            settled(page)
            page.wait_for_timeout(200)
            found[name] = page.locator(".side").inner_text()
            found[f"{name}, drawn"] = drawn(page, ".side canvas, .side svg")
        for level, tab in (("3", "Position"), ("3", "Geometry"), ("1", "Composition")):
            page.locator("#view").focus()
            page.keyboard.press(level)
            if tab != "Position":
                page.get_by_role("button", name=tab, exact=True).click()
            settled(page)
            page.wait_for_timeout(300)
            found[tab] = page.locator("#view").inner_text() + str(drawn(page, "#view canvas, #view svg"))
        return {name: picture for name, picture in found.items() if picture}

    one, other = pictures("gpt2"), pictures("other")
    assert [name for name, picture in one.items() if picture == other[name]] == []


@browser_test
@pytest.mark.parametrize("model", TINY)
def test_every_kind_of_model_is_shown_and_what_is_not_defined_says_so(explore: Any, model: str) -> None:
    page = explore(model, IDS, "ids: 1 4 7 2" if model == "translator_pre" else "")
    settled(page)
    labels = page.locator("[data-label]").evaluate_all("cells => cells.map(cell => cell.dataset.label)")
    assert labels
    for label in labels[:: max(1, len(labels) // 4)]:
        go_to(page, label)
        for stage in page.get_by_role("group", name="stage").get_by_role("button").all()[:4]:
            stage.click()
            page.locator(".patternpanel canvas.map, .patternpanel .refused").first.wait_for()
            settled(page)
        for tab in page.locator(".side .tabs button").all():
            tab.click()
            settled(page)


@browser_test
def test_texts_full_of_markup_stay_texts(explore: Any) -> None:
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e</textarea>&lt;b&gt;"
    page = explore("attn-only-2l", text)
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    settled(page)
    for level in "1", "2", "3":
        page.locator("#view").focus()
        page.keyboard.press(level)
        settled(page)
        assert page.locator("body script").count() == 1 and page.locator("img").count() == 0
    joined = "".join(page.locator(".tokens .chips button").all_inner_texts())
    assert "<script>" in joined and "&lt;b&gt;" in joined and "\u202e" not in joined


@browser_test
def test_runs_that_the_server_let_go_are_made_again(explore: Any, serving: Listening) -> None:
    page = explore()
    go_to(page, "L0H3", "4")
    before = exact(page)
    # as the server lets runs go: not while it looks for one
    with serving.store._lock:
        serving.store.runs.clear()
    go_to(page, "L1H3", "3")
    assert exact(page) != before
    assert page.locator(".refused").count() == 0 and len(serving.store.runs) == 1


@browser_test
def test_the_address_holds_what_is_seen(explore: Any) -> None:
    page = explore()
    go_to(page, "L0H3", "4")
    page.keyboard.press("x")
    page.locator(".changes").wait_for()
    until(page, "location.hash.startsWith('#1.')")
    page.wait_for_timeout(600)
    before = page.locator(".pair").inner_text(), page.locator(".changes").inner_text()
    page.reload()
    page.locator(".changes").wait_for()
    page.locator("#head-title").wait_for()
    assert (page.locator(".pair").inner_text(), page.locator(".changes").inner_text()) == before
    assert page.locator("textarea").first.input_value() == TEXT


@pytest.mark.full
@browser_test
def test_each_map_of_a_head_of_several_has_its_name_and_its_numbers(explore: Any, serving: Listening) -> None:
    model, page = serving.model("differential"), explore("differential", IDS)
    run = gf.run(model, [3, 1, 4, 1, 5, 3, 1], read=["L1H0.query", "L1H0.key", "L1H0.scores"])
    query, key = (run[f"L1H0.{name}"].select(batch=0).values for name in ("query", "key"))
    maps = {"q · k": query @ key.mT, "scores, masked": run["L1H0.scores"].select(batch=0).values}
    go_to(page, "L1H0", "5")
    settled(page)
    rows = page.locator(".exact tr").evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.innerText))")
    told = {name: value for name, value, *_ in rows}
    for stage, values in maps.items():
        assert len(values) == 2
        for i, of_map in enumerate(values):
            found = float(told[f"{stage}, map {i}"].replace("−", "-"))
            assert found == pytest.approx(float(of_map[5, 0]), rel=1e-5)
    page.keyboard.press("2")
    page.get_by_role("button", name="scores, masked", exact=True).click()
    choices = page.get_by_role("group", name="map of the head").locator("button")
    choices.first.wait_for()
    assert choices.all_inner_texts() == ["map 0", "map 1"]


@browser_test
@pytest.mark.full
def test_a_map_of_a_long_text_fills_in_layer_by_layer(explore: Any) -> None:
    torch.manual_seed(0)
    model = attention_only(3).replace(vocab_size=50, max_len=700).build()
    server, held = Listening({"long": lambda: model}), list[Any]()
    try:
        page = explore("long", "ids: 1", root=server.root)
        page.route("**/thumbs*", lambda route: held.append(route))

        def drawn(asked: int) -> list[str]:
            """The heads of the map that have a picture, once so many requests were made."""
            for _ in range(200):
                if len(held) == asked:
                    break
                page.wait_for_timeout(50)
            assert len(held) == asked
            cells = "[...document.querySelectorAll('.headmap button:has(canvas)')]"
            return sorted(page.evaluate(f"{cells}.map(cell => cell.closest('[data-label]').dataset.label)"))

        page.locator("textarea").first.fill("ids: " + " ".join(str(i % 50) for i in range(700)))
        page.keyboard.press("Control+Enter")
        until(page, "document.querySelector('.status')?.innerText.startsWith('700')")
        heads = [[f"L{layer}H{head}" for head in range(8)] for layer in range(3)]
        _ = drawn(1)
        held[0].continue_()
        # the first layer is there while the others are not asked for yet
        assert drawn(2) == heads[0]
        held[1].continue_()
        assert drawn(3) == [*heads[0], *heads[1]]
        held[2].continue_()
        until(page, "!document.querySelector('#view').innerText.includes('computing')")
        assert drawn(3) == [*heads[0], *heads[1], *heads[2]]
    finally:
        server.stop()
