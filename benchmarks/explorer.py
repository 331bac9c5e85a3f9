"""The explorer, as a person waits for it: first paint, a key until its head is seen, an ablation until its logits, and
how long a frame takes while points are turned by a drag.

    python benchmarks/explorer.py --json benchmarks/results/NAME.json
    python benchmarks/explorer.py --models random --tokens 512 --rounds 5

A server in this process answers Chromium, which shows the page. Models are GPT-2 small's shape with random weights and,
where they lie in the cache of `real_models.py` or can be fetched, SmolLM2-135M-Instruct and Gemma 3 270M. Every figure
is a distribution over rounds and has a baseline of the same rounds: a plain forward pass beside an ablation, the bare
request of the same frame beside a key press. A wait is of the clock, from the key's own time until a frame has passed
behind the drawing; CPU time of the server and of the page's main thread says how much of it was work.
"""

import argparse
import json
import os
import random
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import glassformer as gf
from glassformer.analysis.heads import roles
from glassformer.bench.paired import Spread
from glassformer.serve import Limits, Store, application
from real_models import CACHE, converted, fetched
from run import machine
from sweep_models import Shape, draw, glassformer_model

TOKEN = "of-the-benchmark-0"
REAL = {"smollm2": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M"}
NAMES = {"random": "GPT-2 small's shape", **REAL}
TEXT = "The old clock in the hall struck nine, and nobody in the house looked up from what they were reading. "
MIB = 2**20
FRAMES = 60  # of a drag

# what waits for a key: from the key's own time until a frame has passed behind what it should lead to
WATCH = """(condition) => {
    const holds = new Function(`return ${condition}`);
    performance.clearResourceTimings();
    window.watched = new Promise(done => {
        let started = null;
        const seen = new MutationObserver(check);
        function check() {
            if (started === null || !holds()) return;
            seen.disconnect();
            requestAnimationFrame(() => {
                const channel = new MessageChannel();
                channel.port1.onmessage = () => done([started, performance.now()]);
                channel.port2.postMessage(null);
            });
        }
        addEventListener("keydown", event => { started ??= event.timeStamp; setTimeout(check); }, { capture: true });
        seen.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
    });
}"""
ASKED = """(part) => performance.getEntriesByType("resource").filter(one => one.name.includes(part))
    .map(one => [one.startTime, one.responseStart, one.responseEnd, one.encodedBodySize])"""
BARE = """async (address) => {
    const started = performance.now();
    const content = await (await fetch(address, { cache: "no-store" })).arrayBuffer();
    return [performance.now() - started, content.byteLength];
}"""
# a drag that goes on from frame to frame; without a canvas frames that show nothing new
DRAG = """async ([selector, frames]) => {
    const canvas = selector && document.querySelector(selector);
    const frame = () => new Promise(requestAnimationFrame);
    const drag = (kind, x) => canvas?.dispatchEvent(
        new PointerEvent(kind, { pointerId: 1, clientX: 300 + x, clientY: 300 + x / 2, bubbles: true }));
    if (canvas) canvas.setPointerCapture = () => {};
    drag("pointerdown", 0);
    await frame();
    const times = [performance.now()];
    for (let i = 1; i <= frames; i++) {
        drag("pointermove", 6 * i);
        await frame();
        times.push(performance.now());
    }
    drag("pointerup", 6 * frames);
    return times.slice(1).map((time, i) => time - times[i]);
}"""


@dataclass
class Figure:
    """One figure of one model, over rounds, in milliseconds unless it says otherwise.

    Args:
        name: What is measured.
        model: Of what.
        tokens: Of the text.
        aim: The most that its median may be; None where nothing is aimed at.
        unit: Of its numbers.
    """

    name: str
    model: str
    tokens: int
    aim: float | None = None
    unit: str = "ms"
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        """Add what one round gave: `wall`, and whatever is of the same round."""
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def record(self) -> dict[str, Any]:
        """The figure as JSON data."""
        spreads = {name: asdict(Spread.of(values)) for name, values in self.values.items()}
        aim = self.aim if self.aim is not None else spreads.get("limit", {}).get("median")
        met = None
        if aim is not None:
            wall = spreads["wall"]
            met = "yes" if wall["median"] <= aim else "in the quickest round" if wall["least"] <= aim else "no"
        told = {"figure": self.name, "model": self.model, "tokens": self.tokens, "unit": self.unit, "aim": aim}
        return told | {"met": met, "rounds": len(self.values["wall"])} | spreads

    def said(self) -> str:
        """The figure in one line."""
        found = self.record()
        wall = found["wall"]
        line = f"{self.name}, {self.model}, {self.tokens} tokens: {wall['median']:.1f} {self.unit}"
        line += f" ({wall['least']:.1f}-{wall['largest']:.1f})"
        line += "".join(f", {name} {found[name]['median']:.1f}" for name in self.values if name != "wall")
        return line + ("" if found["aim"] is None else f"; aim {found['aim']:.0f}: {found['met']}")


class Explored:
    """A model that is served, and the page on it in a browser.

    Args:
        browser: Chromium.
        root: Address of the server.
        model: The model.
        id: Its name on the page.
    """

    def __init__(self, browser: Any, root: str, model: Any, id: str) -> None:
        self.root, self.model, self.id, self.name = root, model, id, NAMES[id]
        self.context = browser.new_context(viewport={"width": 1440, "height": 900})
        self.page = self.context.new_page()
        self.told = self.context.new_cdp_session(self.page)
        self.told.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(f"{root}/?token={TOKEN}&lang=en")

    def until(self, expression: str, seconds: float = 300) -> None:
        """Wait until an expression holds."""
        ends = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            if time.monotonic() > ends:
                raise TimeoutError(f"never so: {expression}")
            self.page.wait_for_timeout(20)

    def settled(self) -> None:
        """Wait until nothing on the page is being computed."""
        self.until("!document.querySelector('.stale') && !/computing…|running…/.test(document.body.innerText)")
        self.page.wait_for_timeout(150)

    def read(self, text: str) -> None:
        """Run a text."""
        self.page.locator("option", has_text=self.id).first.wait_for(state="attached")
        self.page.locator("textarea").first.focus()
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Control+Enter")
        self.page.locator(".headmap").wait_for(timeout=300_000)
        self.settled()

    def go_to(self, name: str) -> None:
        self.page.locator("#view").focus()
        self.page.keyboard.press("g")
        self.page.keyboard.insert_text(name)
        self.page.keyboard.press("Enter")
        self.page.locator("#view").focus()
        self.settled()

    def main_thread(self) -> float:
        """CPU milliseconds of the page's main thread until now."""
        found = self.told.send("Performance.getMetrics")["metrics"]
        return 1000 * next(one["value"] for one in found if one["name"] == "TaskDuration")

    def heap(self) -> float:
        """MiB that the page holds: objects, and the memory of arrays."""
        self.told.send("HeapProfiler.collectGarbage")
        found = self.told.send("Runtime.getHeapUsage")
        return sum(found.get(name, 0) for name in ("usedSize", "embedderHeapUsedSize", "backingStorageSize")) / MIB

    def press(self, key: str, condition: str, asked: str = "") -> dict[str, float]:
        """Return how long a key takes until a condition holds and is seen, and what of it went where."""
        self.page.evaluate(WATCH, condition)
        server, page = time.process_time(), self.main_thread()
        self.page.keyboard.press(key)
        started, ended = self.page.evaluate("window.watched")
        found = {"wall": ended - started, "page_cpu": self.main_thread() - page}
        found["server_cpu"] = 1000 * (time.process_time() - server)
        requests = self.page.evaluate(ASKED, asked) if asked else []
        if requests:
            first, _, last, _ = requests[0]
            # what was asked ahead may have been under way
            found |= {"until_asked": max(0.0, first - started), "answered_in": last - first, "drawn_in": ended - last}
        return found


@contextmanager
def serving(models: Mapping[str, Callable[[], Any]], memory: int) -> Iterator[tuple[str, Store]]:
    """Serve models from a thread of this process, on a port of this machine."""
    import uvicorn

    store = Store(models, Limits(memory=memory))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        server = uvicorn.Server(uvicorn.Config(application(store, TOKEN), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", store
        server.should_exit = True
        thread.join(10)


def paints(explored: Explored, tokens: int, rounds: int) -> Iterator[Figure]:
    """Opening the page: the first paint of a browser that has the files, and of one that has nothing."""
    figure = Figure("first paint, warm", explored.name, tokens, aim=500)
    page = explored.page
    for _ in range(rounds + 1):
        page.goto("about:blank")
        page.goto(f"{explored.root}/?token={TOKEN}&lang=en", wait_until="load")
        explored.until("performance.getEntriesByName('first-contentful-paint').length")
        seen = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        bare, _ = page.evaluate(BARE, "/explorer.js")
        figure.add(wall=seen, baseline=bare, page_cpu=explored.main_thread())
    # the first round loads what later ones have
    figure.values = {name: values[1:] for name, values in figure.values.items()}
    yield figure


def heads(explored: Explored, tokens: int, rounds: int) -> Iterator[Figure]:
    """A key until a head is seen: new to all, had by the server alone, asked ahead by the page, had by it."""
    page, limit = explored.page, 100.0 if tokens <= 512 else 1000.0
    layers: dict[str, list[str]] = {}
    for head in roles.heads(explored.model):
        layers.setdefault(head.path, []).append(head.label)
    column = [labels[0] for labels in layers.values()]
    # layers that nobody looked at, far enough apart that none is asked ahead
    apart = [labels[-1] for labels in layers.values()][2::3][:rounds]
    few = column[: rounds + 1]
    new, known, ahead, kept = (
        Figure(f"key until the head is seen, {how}", explored.name, tokens, aim=aim)
        for how, aim in (
            ("new to all", limit),
            ("server has it", limit),
            ("page asked ahead", limit),
            ("page has it", 60.0 if tokens <= 512 else 90.0),
        )
    )

    def pressed(figure: Figure, key: str, label: str) -> None:
        seen = (
            f"document.querySelector('canvas.map')?.ariaLabel.includes('{label},') "
            "&& !document.querySelector('.patternpanel .stale')"
        )
        found = explored.press(key, seen, f"/pattern/{label}")
        names = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
        address = next((name for name in names if f"/pattern/{label}" in name), None)
        explored.settled()
        if address is not None and "until_asked" in found:
            found["baseline"], size = page.evaluate(BARE, address)
            found["frame_kb"] = size / 1000
        figure.add(**found)

    def jump(figure: Figure, label: str) -> None:
        page.locator("#view").focus()
        page.keyboard.press("g")
        page.keyboard.insert_text(label)
        pressed(figure, "Enter", label)

    explored.go_to(few[0])
    for label in apart:
        jump(new, label)
    yield new
    explored.go_to(few[0])
    page.locator("#view").focus()
    for label in few[1:]:
        # as long as somebody looks at a head
        page.wait_for_timeout(1500)
        explored.until("performance.getEntriesByType('resource').every(one => one.responseEnd)")
        pressed(ahead, "]", label)
    yield ahead
    for label in few[-2:-5:-1]:
        pressed(kept, "[", label)
    yield kept
    page.wait_for_timeout(600)
    # a page that has nothing: its address says what it shows
    page.reload()
    page.locator("#head-title").wait_for(timeout=300_000)
    explored.settled()
    for label in apart:
        jump(known, label)
    yield known
    # what redraws only: a cursor that moves, and a theme that changes
    cursor = Figure("arrow key in the picture", explored.name, tokens, aim=60.0 if tokens <= 512 else 90.0)
    page.locator("canvas.map").focus()
    for _ in range(rounds):
        before = json.dumps(page.locator("canvas.map").get_attribute("aria-label"))
        cursor.add(**explored.press("ArrowUp", f"document.querySelector('canvas.map').ariaLabel !== {before}"))
        explored.settled()
    yield cursor
    recolour = Figure("another theme, of the whole page: CPU of its main thread", explored.name, tokens)
    for i in range(rounds):
        before = explored.main_thread()
        page.emulate_media(color_scheme="light" if i % 2 else "dark")
        page.wait_for_timeout(200)
        recolour.add(wall=explored.main_thread() - before)
    page.emulate_media(color_scheme="light")
    yield recolour
    heap = Figure("heap of the page", explored.name, tokens, aim=250.0, unit="MiB")
    heap.add(wall=explored.heap())
    yield heap


def ablations(explored: Explored, ids: torch.Tensor, tokens: int, rounds: int) -> Iterator[Figure]:
    """A key that switches a head off until the page has the new logits, of heads drawn at random."""
    figure = Figure("ablation until the new logits are seen", explored.name, tokens)
    model, page, drawn = explored.model, explored.page, random.Random(0)
    labels = [head.label for head in roles.heads(model)]
    for label in drawn.sample(labels, min(rounds, len(labels))):
        explored.go_to(label)
        started = time.perf_counter()
        with torch.no_grad():
            model(ids)
        baseline = 1000 * (time.perf_counter() - started)
        found = explored.press("x", "document.querySelectorAll('.run').length === 2", "/runs")
        figure.add(**found, baseline=baseline, limit=1.5 * baseline + 200)
        explored.settled()
        page.locator("#view").focus()
        page.keyboard.press("Control+z")
        explored.until("document.querySelectorAll('.run').length === 1")
        explored.settled()
    yield figure


def turning(explored: Explored, tokens: int, rounds: int) -> Iterator[Figure]:
    """A drag that turns the points of all tokens: a frame at a time, beside frames in which nothing is drawn."""
    figure = Figure("frame while points are turned", explored.name, tokens, aim=1000 / 30)
    page = explored.page
    page.locator("#view").focus()
    page.keyboard.press("3")
    page.get_by_role("button", name="Geometry", exact=True).click()
    page.locator(".cloud canvas").wait_for(timeout=300_000)
    explored.settled()
    for _ in range(rounds):
        before = explored.main_thread()
        taken = page.evaluate(DRAG, [".cloud canvas", FRAMES])
        figure.add(
            wall=sum(taken) / FRAMES,
            longest=max(taken),
            page_cpu=(explored.main_thread() - before) / FRAMES,
            baseline=sum(page.evaluate(DRAG, [None, FRAMES])) / FRAMES,
        )
    degrees = page.locator(".cloud input[type=range]").first.input_value()
    if float(degrees) == 0:
        raise RuntimeError("the points were not turned: nothing was measured")
    yield figure


def random_model(length: int) -> Any:
    shape = Shape(12, 12, 768, 50257, context=length)
    return glassformer_model(shape, draw(shape))


def opened(name: str, cache: Path, length: int) -> Any:
    """Return a model; None of one that can be had nowhere."""
    if name == "random":
        return random_model(length)
    file = fetched(cache, name)
    return None if file is None else gf.load(converted(file))


def typed(model: Any, tokens: int) -> tuple[str, torch.Tensor]:
    """Return what is typed for a text of so many tokens, and its ids."""
    if model.tokenizer is None:
        ids = [(7919 * i) % (model.config.vocab_size - 1) for i in range(tokens)]
        return "ids: " + " ".join(map(str, ids)), torch.tensor([ids])
    words = (TEXT * (1 + tokens // 16)).split(" ")
    low, high = 1, len(words)
    # as many words as fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(model.tokenizer.encode(" ".join(words[:middle]))) < tokens else (low, middle)
    text = " ".join(words[:low])
    ids = gf.run(model, text).ids
    assert ids is not None, "a model with a tokenizer reads ids"
    return text, ids


def measured(browser: Any, name: str, model: Any, tokens: int, rounds: int) -> Iterator[Figure]:
    """Yield every figure of a model and a length."""
    text, ids = typed(model, tokens)
    with serving({name: lambda: model}, 2**30) as (root, store):
        _ = store.models[name].model
        explored = Explored(browser, root, model, name)
        yield from paints(explored, tokens, rounds)
        first = Figure("text until the map is seen", explored.name, tokens)
        started, cpu = time.perf_counter(), time.process_time()
        explored.read(text)
        first.add(wall=1000 * (time.perf_counter() - started), server_cpu=1000 * (time.process_time() - cpu))
        for part in ("tokenize", "thumbs", "lens"):
            # ids are not made of a text
            asked = explored.page.evaluate(ASKED, f"/{part}")
            if asked and part == "thumbs":
                # as many requests as keep others from waiting: the first rows of the map, and all of them
                first.add(first_thumbs=asked[0][2] - asked[0][0], thumbs=asked[-1][2] - asked[0][0])
            elif asked:
                first.add(**{part: asked[-1][2] - asked[-1][0]})
        yield first
        yield from heads(explored, tokens, rounds)
        yield from turning(explored, tokens, rounds)
        yield from ablations(explored, ids, tokens, max(2, rounds // 2))
        explored.context.close()


def kept(path: Path | None, measured: Collection[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return the figures that a record has of other models and lengths, if it was made on this machine."""
    if path is None or not path.exists():
        return []
    known = json.loads(path.read_text())
    same = known["machine"]["processor"] == machine()["processor"]
    return [one for one in known["figures"] if same and (one["model"], one["tokens"]) not in measured]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="of the server's arithmetic")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where real models lie, or are put")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    torch.set_num_threads(asked.threads)
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("There is no Chromium here: nothing was measured.")
        return 0
    figures = kept(asked.json, {(NAMES[name], tokens) for name in asked.models for tokens in asked.tokens})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name in asked.models:
            model = opened(name, asked.cache, max(asked.tokens))
            if model is None:
                print(f"{NAMES[name]} is not here, and no package index gives it: left out.")
                continue
            for tokens in asked.tokens:
                for figure in measured(browser, name, model, tokens, asked.rounds):
                    print(figure.said(), flush=True)
                    figures.append(figure.record() | {"threads": asked.threads, "load": os.getloadavg()})
                    if asked.json is not None:
                        asked.json.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=1) + "\n")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
