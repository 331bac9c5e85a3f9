"""Pages in cells of a notebook: messages are answered as requests are, and what is seen are the library's numbers."""

import base64
import gc
import io
import json
import queue
import re
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from matplotlib.image import imread

import glassformer as gf
from cells import Cells
from glassformer.analysis.lens import logit_lens
from glassformer.errors import AnalysisUnavailable, MissingExtra, TextError
from glassformer.figures.colours import LIGHT
from glassformer.serve import Channel
from glassformer.serve.questions import QUESTIONS
from glassformer.testing.models import subject
from pages import accessibility_report
from served import ROOT, TOKEN, Served

IDS = [3, 1, 4, 1, 5, 9]
TEXT = "class TokenBuffer:\n    pass\n\nbuffer = Token"


class Asking:
    """Whoever asks by messages: what a view of a widget is to a kernel."""

    def __init__(self, served: Served) -> None:
        self.parts: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
        self.channel = Channel(served.app, TOKEN, lambda part, content: self.parts.put((part, content)))

    def send(self, id: str, path: str, data: Any = None, **headers: str) -> None:
        said = {"content-type": "application/json"} if data is not None else {}
        body = None if data is None else json.dumps(data)
        method = "GET" if data is None else "POST"
        self.channel.receive({"id": id, "method": method, "path": path, "headers": said | headers, "body": body})

    def answered(self, path: str, data: Any = None) -> tuple[int, dict[str, str], bytes]:
        """Return the status, the headers and the whole of an answer."""
        self.send("1", path, data)
        first, content = self.parts.get(timeout=20)
        last = first
        while not last["isLast"]:
            last, more = self.parts.get(timeout=20)
            content += more
        return first["status"], first["headers"], content


@pytest.fixture(scope="module")
def served() -> Served:
    return Served({"tiny": subject("gpt2", batch=1, dtype=torch.float32).model})


@pytest.fixture(scope="module")
def anywidget() -> Any:
    return pytest.importorskip("anywidget", reason="anywidget is not installed")


# ------------------------------------------------------------------------------------------------------- messages


def test_a_message_is_answered_with_the_bytes_that_http_has(served: Served) -> None:
    asking, run = Asking(served), served.run("tiny", IDS)["id"]
    for address in (
        "schema.json", f"runs/{run}/pattern/L1H1?form=frame", f"runs/{run}/pattern/L0H0?form=frame&encoding=sqrt8",
        f"runs/{run}/lens?form=frame", f"runs/{run}/thumbs?form=json&size=4", f"runs/{run}/row/L0H1/3",
        "models/tiny/circuit/L0H0?form=frame", f"runs/{run}/export?form=csv&sites=L0H0.z", "nothing", "runs/none/lens",
        f"runs/{run}/pattern/L9H9",
    ):  # fmt: skip
        over_http = served.get(address)
        status, headers, content = asking.answered(f"{ROOT}/{address}")
        assert (status, content) == (over_http.status_code, over_http.content), address
        assert headers == dict(over_http.headers), address
    spec = {"model": "tiny", "text": "a b", "allow_unknown": True}
    for address, data in (("tokenize", {"model": "tiny", "text": 1}), ("runs", spec), ("generate", {"run": run})):
        over_http = served.post(address, json=data)
        status, _, content = asking.answered(f"{ROOT}/{address}", data)
        assert (status, content) == (over_http.status_code, over_http.content), address


def test_steps_of_a_sweep_come_in_parts_that_make_up_the_answer(served: Served) -> None:
    spec = {"run": served.run("tiny", IDS)["id"], "sweep": "ablate_heads"}
    status, headers, content = Asking(served).answered(f"{ROOT}/sweeps", spec)
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    answers = content, served.post("sweeps", json=spec).content
    ours, over_http = ([json.loads(line) for line in one.splitlines()] for one in answers)
    # how many cells are in one pass depends on how long the last took, and the last bits of a number on that
    values = [[step.pop("value", 0.0) for step in steps] for steps in (ours, over_http)]
    assert values[0] == pytest.approx(values[1], rel=1e-4) and ours == over_http


def test_what_is_not_wanted_any_more_is_not_worked_for() -> None:
    served = Served({"attn-only-2l": gf.load("attn-only-2l")})
    asking, run = Asking(served), served.run("attn-only-2l", "import")["id"]
    asking.send("long", f"{ROOT}/generate", {"run": run, "max_new_tokens": 200, "temperature": 0})
    assert not asking.parts.get(timeout=20)[0]["isLast"]
    asking.channel.receive({"id": "long", "isDropped": True})
    # whatever was on its way, the model answers another question at once, and the text does not go on to its end
    asking.send("short", f"{ROOT}/runs/{run}")
    seen = [asking.parts.get(timeout=20)[0]["id"]]
    while seen[-1] != "short":
        seen.append(asking.parts.get(timeout=20)[0]["id"])
    assert len(seen) < 100
    with pytest.raises(queue.Empty):
        asking.parts.get(timeout=0.3)


def test_a_later_question_of_a_lane_takes_over(served: Served) -> None:
    asking, run = Asking(served), served.run("tiny", IDS)["id"]
    release = queue.Queue[None]()
    busy = served.store.models["tiny"].worker.submit(release.get)
    for id in ("first", "second"):
        asking.send(id, f"{ROOT}/runs/{run}/lens?form=frame", **{"glassformer-lane": "page/lane"})
    superseded, content = asking.parts.get(timeout=20)
    release.put(None)
    busy.result()
    assert superseded["id"] == "first" and json.loads(content)["fault"]["code"] == "Superseded"
    assert asking.parts.get(timeout=20)[0]["status"] == 200


def test_nothing_but_the_api_is_asked_by_messages(served: Served) -> None:
    asking = Asking(served)
    for path in ("/", "/explorer.js", "http://elsewhere/api/v1/models", ""):
        asking.send("1", path)
    asking.send("2", f"{ROOT}/models", authorization="Bearer of-nobody")
    found = asking.parts.get(timeout=20)[0]
    assert (found["id"], found["status"]) == ("2", 200)
    assert asking.parts.empty()


# ------------------------------------------------------------------------------------------------------- widgets


def test_without_anywidget_an_error_says_what_to_install(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("anywidget", "glassformer.explorer._cell", "glassformer.render.widget"):
        monkeypatch.setitem(sys.modules, name, None)
    model = served.models["tiny"]
    found = gf.run(model, IDS, read="*.pattern")
    for ask in (lambda: gf.explorer.widget(model, IDS), lambda: found.widget()):
        with pytest.raises(MissingExtra, match=re.escape("pip install 'glassformer[notebook]'")):
            ask()


def test_what_is_no_text_of_the_model_is_refused_in_the_cell(anywidget: Any, served: Served) -> None:
    with pytest.raises(TextError, match="empty"):
        gf.explorer.widget(served.models["tiny"], [])
    with pytest.raises(AnalysisUnavailable):
        gf.explorer.widget(torch.nn.Linear(2, 2), IDS)


def test_where_widgets_are_off_a_picture_has_every_pattern(anywidget: Any, served: Served) -> None:
    model = served.models["tiny"]
    bundle, _ = gf.explorer.widget(model, IDS)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle and bundle["text/plain"].startswith("<")
    assert "<script" not in bundle["text/html"] and "http" not in bundle["text/html"]
    (data,) = re.findall('src="data:image/png;base64,([^"]+)"', bundle["text/html"])
    image = (torch.tensor(imread(io.BytesIO(base64.b64decode(data)), format="png")) * 255).round()
    run, ramp = gf.run(model, IDS, read="*.pattern"), LIGHT.ramp("sequential")
    layers = [site for site in run if site.endswith("pattern")]
    # twelve pixels for a cell, and six of white behind each head
    for row, site in enumerate(reversed(layers)):
        for head, query, key in ((0, 3, 1), (1, 5, 5), (0, 2, 0)):
            weight = float(run[site].values[0, head, query, key])
            colour = ramp[round(weight**0.5 * (len(ramp) - 1))]
            pixel = image[row * 78 + 12 * query + 5, head * 78 + 12 * key + 5]
            assert (pixel - torch.tensor(list(bytes.fromhex(colour[1:])))).abs().max() <= 2, (site, head, query, key)


def test_widgets_of_a_model_share_its_runs_until_the_last_is_gone(anywidget: Any) -> None:
    model = subject("gpt2", batch=1, dtype=torch.float32).model
    widgets = [gf.explorer.widget(model, ids) for ids in (IDS, IDS, IDS[:3])]
    assert len({id(widget.store) for widget in widgets}) == 1 and len(widgets[0].store.runs) == 2
    store, worker = weakref.ref(widgets[0].store), next(iter(widgets[0].store.models.values())).worker
    while widgets:
        widgets.pop().close()
    gc.collect()
    assert store() is None
    # its thread has no more to do
    with pytest.raises(TimeoutError):
        worker.submit(lambda: None).result(timeout=0.2)


def test_code_to_copy_takes_the_model_that_the_notebook_has(anywidget: Any, served: Served) -> None:
    model = served.models["tiny"]
    store = gf.explorer.widget(model, IDS).store
    (run,) = store.runs.values()
    names = {"model": model}
    exec(run.card.python, names)
    assert "gf.load" not in run.card.python and names["run"].ids.tolist() == [IDS]
    # of its weights alone, too
    (own,) = store.models.values()
    for name in ("circuit", "value-matrices"):
        names = {"model": model}
        exec(QUESTIONS[name].answer(own, "L1H1", QUESTIONS[name].view()).python, names)
        assert names["found"] is not None


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture
def page(browser: Any, anywidget: Any) -> Iterator[Any]:
    """A tab; afterwards nothing on it may have failed, or have been asked of anybody."""
    context, complaints = browser.new_context(viewport={"width": 1440, "height": 900}), list[str]()
    tab = context.new_page()
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: request.url.startswith("blob:") or complaints.append(request.url))
    yield tab
    context.close()
    assert complaints == []


@pytest.mark.browser
def test_an_arrow_key_changes_the_head_of_its_cell_alone_and_its_numbers_are_the_librarys(page: Any) -> None:
    model, cells = gf.load("attn-only-2l"), Cells(page)
    for _ in range(2):
        cells.draw(gf.explorer.widget(model, TEXT, height=500))
    for at in range(2):
        cells.settled(at)
    head = page.locator(".headmap").first.locator("button[tabindex='0']")
    head.focus()
    page.keyboard.press("ArrowLeft")
    cells.until("cells[0].traits.state.head === 'L1H6'")
    page.keyboard.press("2")
    cells.until("cells[0].cell.shadowRoot.querySelector('.exact:not(.stale)')")
    cells.until("cells[0].traits.state.level === 2")
    shown = page.locator(".exact").first.locator("tr", has_text="weights").first.locator("td").first.inner_text()
    state = page.evaluate("cells[0].traits.state")
    weight = gf.run(model, TEXT, read="*.pattern")["L1H6.pattern"].values[0, state["query"], state["key"]]
    assert float(shown.replace("−", "-")) == pytest.approx(float(weight), rel=1e-5)
    assert page.evaluate("cells[1].traits.state.head") in ("L1H7", None) and page.title() == "a notebook"
    # keys elsewhere are the notebook's
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("1")
    page.wait_for_timeout(400)
    assert page.evaluate("cells[0].traits.state.level") == 2


@pytest.mark.browser
@pytest.mark.parametrize(("width", "ground"), [("390px", "white"), ("1100px", "#111111")])
def test_everybody_can_read_a_cell_that_is_light_or_dark_as_its_notebook(page: Any, width: str, ground: str) -> None:
    cells = Cells(page, ground)
    cells.draw(gf.explorer.widget(gf.load("attn-only-2l"), TEXT), width)
    cells.settled()
    style = "getComputedStyle(cells[0].cell.shadowRoot.querySelector('.page'))"
    assert page.evaluate(f"{style}.getPropertyValue('--theme').trim()") == ("light" if ground == "white" else "dark")
    assert page.evaluate("cells[0].cell.scrollWidth <= cells[0].cell.clientWidth")
    # a narrow cell of a wide window shows one thing at a time
    beside = page.locator("aside.ledger").is_visible()
    assert beside == (width == "1100px")
    page.evaluate("document.body.style.background = 'rgb(17 17 17)'")
    cells.until(f"{style}.getPropertyValue('--theme').trim() === 'dark'")
    cells.settled()
    assert accessibility_report(page) == ""


@pytest.mark.browser
def test_a_tip_stands_beside_the_pointer_wherever_a_notebook_moves_a_cell(page: Any, served: Served) -> None:
    cells = Cells(page)
    moved = "padding: 150px 90px; transform: translate(40px, 30px)"
    page.evaluate("moved => { document.querySelector('main').style.cssText = moved; }", moved)
    cells.draw(gf.explorer.widget(served.models["tiny"], IDS), "1100px")
    cells.settled()
    page.locator("#view").focus()
    page.keyboard.press("2")
    cells.until("cells[0].cell.shadowRoot.querySelector('.pipeline canvas')")
    cells.until("!cells[0].cell.shadowRoot.querySelector('.stale')")
    canvas = page.locator(".pipeline canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + 5, box["y"] + 5
    page.mouse.move(x, y)
    cells.until("cells[0].cell.shadowRoot.querySelector('.tip').innerText")
    tip = page.locator(".tip").bounding_box()
    assert tip["x"] == pytest.approx(min(x + 14, 1440 - tip["width"] - 8), abs=1.5)
    assert tip["y"] == pytest.approx(max(8, y - tip["height"] - 10), abs=1.5)
    assert page.locator(".tip").inner_text() and page.locator(".tip").is_visible()


@pytest.mark.browser
def test_a_file_of_the_kernel_is_saved_and_a_closed_cell_hears_nothing(page: Any, served: Served) -> None:
    cells = Cells(page)
    cells.draw(gf.explorer.widget(served.models["tiny"], IDS), "1100px")
    cells.settled()
    with page.expect_download() as saved:
        page.locator("a[href*='form=html']").first.click()
        cells.until("(window.waited = (window.waited ?? 0) + 1) > 20")
    name = saved.value.suggested_filename
    (run,) = cells.widgets[0].store.runs.values()
    assert name.endswith(f"-{run.id[:8]}.html") and "<!doctype html>" in saved.value.path().read_text()
    page.evaluate("cells[0].end()")
    assert page.evaluate("Object.values(cells[0].heard).every(one => one.size === 0)")
    assert page.evaluate("cells[0].cell.shadowRoot.querySelector('.page').childElementCount") == 0


@pytest.mark.browser
def test_a_result_and_a_run_are_drawn_in_cells(page: Any) -> None:
    model, cells = gf.load("attn-only-2l"), Cells(page)
    explained, lens = gf.explain(model, TEXT), logit_lens(model, TEXT)
    cells.draw(explained.widget(height=400))
    cells.until("cells[0].cell.shadowRoot.querySelector('h1')")
    assert accessibility_report(page) == ""
    for found in (gf.run(model, TEXT, read="*.pattern"), lens):
        cells.draw(found.widget(height=400))
    cells.until("cells.every(({ cell }) => cell.shadowRoot.querySelector('h1'))")
    assert "B" in page.locator("h1", has_text="attn-only-2l").first.inner_text()
    # a link to a section scrolls to it, and is none of the notebook's
    page.locator("nav a").nth(3).click()
    page.wait_for_timeout(100)
    assert page.url == "about:blank"
    assert page.evaluate("cells[0].cell.shadowRoot.querySelector('.page').scrollTop") > 100
    for found in (explained, lens):
        html = found.widget()._repr_mimebundle_()[0]["text/html"]
        assert html == found._repr_html_() and "<script" not in html
