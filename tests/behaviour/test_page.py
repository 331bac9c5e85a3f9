"""The HTML page of an explanation, opened from disk in a real browser."""

import copy
import gzip
import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page

from explanations import predicting, sample, weights
from glassformer.analysis.reports import explain
from glassformer.attention import NeuralMemory
from glassformer.data import bytes_tokenizer
from glassformer.models import DecoderConfig, Mlp, block, titans
from glassformer.models.model import LogitsOf
from glassformer.render import page
from glassformer.render.page import explanation_page
from glassformer.testing.layers import randomise
from pages import NASTY, Opener, accessibility_report, open_everything, wait_for_frame

browser_test = pytest.mark.browser


@cache
def document(name: str) -> dict[str, Any]:
    return sample(name).to_dict()


def pixels(shown: Page, label: str) -> list[list[list[int]]]:
    """Return the colours of a small picture: rows of [red, green, blue, alpha]."""
    wait_for_frame(shown)  # a change of scheme reaches the page with the next one
    # the copy keeps the picture itself on its fast path
    script = """label => {
        const canvas = document.querySelector(`.thumbs [data-label="${label}"] canvas`);
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
        copy.drawImage(canvas, 0, 0);
        const data = [...copy.getImageData(0, 0, canvas.width, canvas.height).data];
        return Array.from({length: canvas.height}, (_, y) => Array.from({length: canvas.width},
            (_, x) => data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 4)));
    }"""
    return shown.evaluate(script, label)


def open_head(shown: Page, label: str) -> None:
    shown.click(f'.thumbs [data-label="{label}"]')


@browser_test
def test_the_page_is_accessible(opened: Opener) -> None:
    assert accessibility_report(opened(document("short"))) == ""


@browser_test
@pytest.mark.full
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("name", ["short", "long", "signed", "translation", "image"])
def test_every_sample_is_accessible_with_everything_open(opened: Opener, name: str, scheme: str, width: int) -> None:
    shown = opened(document(name), scheme=scheme, width=width)
    open_everything(shown)
    assert accessibility_report(shown) == ""
    open_head(shown, document(name)["patterns"][0]["label"])
    assert accessibility_report(shown, "dialog") == ""


@browser_test
@pytest.mark.parametrize(
    ("of", "name", "why", "explained"),
    [
        pytest.param("next_token", "Next token", "next", "what follows token 3", marks=pytest.mark.full),
        pytest.param("token", "Token there", "there", "what is token 3", marks=pytest.mark.full),
        ("text_class", "Class of the text", "Why tiny calls the text", "the class of the text, read at token 0"),
        ("token_class", "Class of this token", "Why tiny calls this token", "the class of token 3"),
    ],
)
def test_the_page_calls_an_answer_what_the_logits_are_of(
    opened: Opener, of: LogitsOf, name: str, why: str, explained: str
) -> None:
    payload = explain(predicting(of), [70, 71, 72, 73]).to_dict()
    shown = opened(payload)
    told = shown.inner_text("body")
    assert name in shown.inner_text("nav") and why in shown.inner_text("h1") and f"Explained: {explained}" in told
    assert ("Sampling, step by step" in told) == (not of.endswith("_class"))
    assert ("next token" in told.lower()) == (of == "next_token")
    # documents were once without it
    if not of.endswith("_class"):
        payload["model"].pop("logits_of")
        assert opened(payload).inner_text("body") == told


@browser_test
@pytest.mark.parametrize("name", ["short", "signed", "translation", "image"])
def test_a_narrow_window_scrolls_only_downwards(opened: Opener, name: str) -> None:
    shown = opened(document(name), width=360)
    assert shown.evaluate("document.documentElement.scrollWidth") == 360


@browser_test
@pytest.mark.parametrize("name", ["short", "signed", "translation", "image"])
def test_every_pixel_of_every_pattern_is_a_weight_of_the_document(opened: Opener, name: str) -> None:
    payload = document(name)
    shown = opened(payload)
    for pattern in payload["patterns"]:
        decoded, drawn = weights(pattern), pixels(shown, pattern["label"])
        assert len(drawn) == pattern["rows"]
        colours: dict[float, tuple[int, ...]] = {}
        for row, line in zip(decoded, drawn, strict=True):
            for weight, colour in zip(row, line, strict=True):
                assert colour[3] == (0 if weight is None else 255)
                if weight is not None:
                    assert colours.setdefault(weight, tuple(colour)) == tuple(colour)
        # on light paper a larger weight is never brighter, on either side of zero
        for sign in (1, -1):
            sizes = sorted((abs(w), colour) for w, colour in colours.items() if w * sign >= 0)
            brightness = [0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2] for _, c in sizes]
            assert all(b >= a - 1 for a, b in zip(brightness[1:], brightness))


# the colour in the middle of each cell of the large picture, but for those of the cursor
CELLS = """canvas => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    const n = 13, [left, size] = [96, (canvas.width - 98) / n];
    return Array.from({length: n - 1}, (_, q) => Array.from({length: n}, (_, k) =>
        [...copy.getImageData(left + (k + 0.5) * size, left + (q + 0.5) * size, 1, 1).data]));
}"""


@browser_test
def test_the_line_where_training_ended_hides_no_weight_of_a_pattern(opened: Opener) -> None:
    def drawn(trained: int | None) -> tuple[Any, Any, int]:
        payload = document("short")
        shown = opened({**payload, "model": {**payload["model"], "trained_length": trained}})
        label = payload["patterns"][2]["label"]
        small, lines = pixels(shown, label), shown.locator(f'.thumbs [data-label="{label}"] .trained').count()
        open_head(shown, label)
        return small, shown.locator("dialog canvas.map").evaluate(CELLS), lines

    small, large, lines = drawn(None)
    assert len(small) == 13 and lines == 0
    assert drawn(4) == (small, large, 2)


@browser_test
def test_a_click_on_a_head_shows_it_large_and_escape_returns_to_it(opened: Opener) -> None:
    shown = opened(document("short"))
    small = shown.locator('.thumbs [data-label="L1H2"] canvas').bounding_box()
    open_head(shown, "L1H2")
    assert shown.inner_text("dialog h2") == "L1H2"
    large = shown.locator("dialog canvas.map").bounding_box()
    assert small and large and large["width"] > 4 * small["width"]
    shown.keyboard.press("Escape")
    assert not shown.locator("dialog").is_visible()
    assert shown.evaluate("document.activeElement.dataset.label") == "L1H2"


@browser_test
def test_the_dialog_tells_masked_cells_from_weights_of_zero_and_its_buttons_stand_in_a_row(opened: Opener) -> None:
    payload = document("short")
    shown = opened(payload, width=390)
    open_head(shown, payload["patterns"][0]["label"])
    boxes = [button.bounding_box() for button in shown.locator("dialog .bar-top button").all()]
    assert len(boxes) == 3 and len({round(box["y"]) for box in boxes if box}) == 1
    # how much of the corner that no query may look at is painted, and of the cells across from it
    painted = """canvas => {
        const n = COUNT, room = 96, cell = (parseFloat(canvas.style.width) - room - 2) / n, sharp = devicePixelRatio;
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const share = (x, y) => {
            const [left, top] = [x, y].map(at => Math.ceil((room + at * cell) * sharp) + 1);
            const side = Array.from({length: Math.floor(1.8 * cell * sharp)}, (_, i) => i);
            const alpha = side.flatMap(i => side.map(j => data[4 * ((top + i) * canvas.width + left + j) + 3]));
            return alpha.filter(value => value > 0).length / alpha.length;
        };
        return [share(n - 2, 0), share(0, n - 4)];
    }""".replace("COUNT", str(payload["patterns"][0]["rows"]))
    masked, looked_at = shown.locator("dialog canvas.map").evaluate(painted)
    assert 0.05 < masked < 0.7 and looked_at == 1.0
    assert shown.locator("dialog .hatched").is_visible()


@browser_test
def test_a_rare_draw_is_called_one(opened: Opener) -> None:
    payload = document("short")
    draw = payload["sampling"]["draw"]
    for probability, rare in ((0.00016, True), (0.2, False)):
        sampling = payload["sampling"] | {"draw": draw | {"probability": probability}}
        text = opened(payload | {"sampling": sampling}).text_content("#pipeline p.drawn")
        assert text and ("about once in 6,250" in text) is rare


@browser_test
@pytest.mark.parametrize("name", ["short", "signed"])
def test_the_keyboard_reaches_every_weight(opened: Opener, name: str) -> None:
    payload = document(name)
    shown, pattern = opened(payload), payload["patterns"][2]
    shown.locator(f'.thumbs [data-label="{pattern["label"]}"]').focus()
    shown.keyboard.press("Enter")
    for _ in range(pattern["rows"] // 10 + 1):
        shown.keyboard.press("Shift+ArrowUp")
        shown.keyboard.press("Shift+ArrowLeft")
    row = [weight or 0.0 for weight in weights(pattern)[4]]
    weight = max(row, key=abs)
    for key in ["ArrowDown"] * 4 + ["ArrowRight"] * row.index(weight):
        shown.keyboard.press(key)
    expected = f"{weight:+.3f}".replace("-", "−") if pattern["signed"] else f"{weight:.3f}"
    assert shown.inner_text("dialog .weight") == expected
    words = shown.inner_text("dialog .readout")
    assert words.startswith("query 4 ") and f"→ key {row.index(weight)} " in words
    shown.keyboard.press("PageDown")
    assert shown.inner_text("dialog h2") == payload["patterns"][3]["label"]


@browser_test
def test_hovering_a_picture_names_query_key_and_weight(opened: Opener) -> None:
    payload = document("short")
    shown, pattern = opened(payload), payload["patterns"][1]
    canvas = shown.locator(f'.thumbs [data-label="{pattern["label"]}"] canvas')
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box
    cell = box["width"] / pattern["columns"]
    shown.mouse.move(box["x"] + 4.5 * cell, box["y"] + 6.5 * cell)
    weight = weights(pattern)[6][4]
    words = shown.inner_text(".tip")
    assert words.startswith(f"{pattern['label']}: 6 ") and "→ 4 " in words and words.endswith(f"{weight:.3f}")


@browser_test
def test_a_head_is_named_by_a_role_it_plays_in_general_and_else_resembles_it(opened: Opener) -> None:
    payload = copy.deepcopy(document("short"))
    for general in (0.1, 0.7):
        for head in payload["heads"]:
            for role in head["roles"]:
                role |= {"score": 0.9, "model_wide": general, "named": general >= 0.4}
        seen = opened(payload).inner_text("main")
        told = re.findall(rf"(resembles )?induction 0\.90 \({general:.2f}\)", seen)
        assert told and all(bool(word) == (general < 0.4) for word in told)


@browser_test
def test_no_token_becomes_markup_and_all_are_visible(opened: Opener) -> None:
    payload = copy.deepcopy(document("short"))
    for token, text in zip(payload["tokens"], NASTY):
        token["text"] = text
    payload["answer"]["text"] = payload["model"]["name"] = NASTY[2]
    for i, candidate in enumerate(payload["next_token"]["candidates"][: len(NASTY)]):
        candidate["text"] = NASTY[i]
    shown = opened(payload)
    assert shown.evaluate("window.ran") is None
    assert shown.locator("main > section").count() >= 6
    assert shown.locator("img").count() == 0
    seen = shown.locator("header .strip .token").all_inner_texts()[: len(NASTY)]
    assert seen == [*[text.replace(" ", "·") for text in NASTY[:5]], "∅", "⏎\n⇥·", "⟨2028⟩", "⟨202E⟩"]


@browser_test
def test_the_page_states_the_documents_numbers(opened: Opener) -> None:
    payload = document("short")
    shown = opened(payload)
    assert f"{payload['attribution']['total']:.3f}" in shown.inner_text("#attribution .result")
    shares = [c["contribution"] for c in payload["attribution"]["components"]]
    shown.click("#attribution summary")
    cells = shown.locator("#attribution details td.number").all_inner_texts()
    assert [float(c.replace("−", "-")) for c in cells] == pytest.approx(shares, abs=6e-4)
    best = payload["next_token"]["candidates"][0]
    assert f"{100 * best['probability']:.1f} %" in shown.inner_text("#next tbody tr:first-child")
    for top in payload["top_heads"]:
        values = [re.search(r": ([<\d.]+) %$", str(t.get_attribute("title"))) for t in _strip(shown, top["label"])]
        assert all(values) and len(values) == len(top["weights"])


def _strip(shown: Page, label: str) -> list[Any]:
    return shown.locator(f'[aria-label="head {label}"] .strip').first.locator(".token").all()


@browser_test
def test_of_a_long_text_stands_what_tells_and_behind_a_heading_the_whole(opened: Opener) -> None:
    model = DecoderConfig(257, 16, (block(n_heads=2),), max_len=140).build().eval()
    model.tokenizer = bytes_tokenizer()
    payload = explain(model, "a" * 129).to_dict()
    n, telling = len(payload["tokens"]), [*range(20, 24), *range(70, 74)]
    payload["inputs"]["values"] = [1.0 if i in telling else 1e-3 for i in range(n)]
    # a window that would begin inside of a character begins with it
    for part, token in enumerate(payload["tokens"][14:17]):
        token |= {"character": "我", "part": part}
    shown = opened(payload).locator("#inputs .card")
    windows = [*range(14, 28), *range(66, 78), *range(n - 5, n)]
    assert _places(shown.locator(":scope > .strip")) == windows
    assert shown.locator(":scope > .strip .gap").all_inner_texts() == ["… 14", "… 66", f"… {n - 5}"]
    shown.get_by_text(f"All {n} tokens").click()
    shown.locator("details .strip").wait_for()
    assert _places(shown.locator("details .strip")) == list(range(n))


def _places(strip: Locator) -> list[int]:
    return [
        int(str(title).split()[0]) for title in strip.locator(".token").evaluate_all("all => all.map(t => t.title)")
    ]


@browser_test
def test_a_translation_shows_three_kinds_of_patterns_and_every_step(opened: Opener) -> None:
    payload = document("translation")
    shown = opened(payload)
    headings = shown.locator("#patterns h3").all_inner_texts()
    assert [h.split(":")[0] for h in headings] == ["Encoder", "Decoder", "Cross-attention"]
    rows = shown.locator("#translation tbody tr").all_inner_texts()
    assert len(rows) == len(payload["translation"]["steps"])
    assert shown.locator(".thumbs .thumb").count() == len(payload["patterns"])
    script = "all => all.map(cell => getComputedStyle(cell).textAlign.replace('start', 'left'))"
    sides = [
        shown.locator(f"#translation {cells}").evaluate_all(script)
        for cells in ("thead th", "tbody tr:first-child > *")
    ]
    assert sides[0] == sides[1]


@browser_test
def test_colours_follow_the_scheme_and_print_is_light(opened: Opener) -> None:
    shown = opened(document("short"), scheme="dark")
    dark, dark_paper = pixels(shown, "L0H0"), _paper(shown)
    shown.emulate_media(color_scheme="light")
    light, light_paper = pixels(shown, "L0H0"), _paper(shown)
    assert sum(dark_paper) < 200 < 600 < sum(light_paper)
    assert dark != light
    shown.emulate_media(color_scheme="dark", media="print")
    assert sum(_paper(shown)) == 3 * 255
    assert pixels(shown, "L0H0") == light


def _paper(shown: Page) -> list[int]:
    return [int(x) for x in re.findall(r"\d+", shown.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]]


def test_scripts_and_style_of_pages_are_small_and_end_no_element_that_holds_them() -> None:
    built = {path.name: path.read_bytes() for path in Path(str(files(page))).joinpath("built").iterdir()}
    kinds = json.loads(built["words.json"])
    assert {f"{kind}.js" for kind in kinds} == {name for name in built if name.endswith(".js")}
    for kind, said in kinds.items():
        script = built[f"{kind}.js"]
        # the page of a server is sent around by nobody
        style, most = (b"", 60_000) if kind != "explorer" else (built["explorer.css"], 150_000)
        assert len(gzip.compress(script + built["page.css"] + style)) < most
        assert not re.search(rb"<!--|</?script", script, re.IGNORECASE)
        assert not re.search(rb"</style|url\(|@import", built["page.css"])
        # what draws pages in cells of notebooks says little itself
        assert len(said) > (20 if kind != "widget" else 1)


@pytest.mark.full
def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        explanation_page({"model": {"name": "m"}, "answer": float("nan")})


# the words that a reader meets first, by the sample that uses them
@browser_test
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("short", "attn write, mlp write, stream, scale, effective choices, unembedding, rope, mlp, gated, silu, "
         "pre norm, rms_norm, Temperature, Top-k, Token embedding"),
        ("translation", "<bos>, Encoder position embedding, post norm, cross write"),
    ],
)  # fmt: skip
def test_words_of_the_model_are_explained_where_they_are_used(opened: Opener, name: str, words: str) -> None:
    shown = opened(document(name))
    terms = {a.inner_text(): a for a in shown.locator("header a.term, #pipeline a.term").all()}
    for word in words.split(", "):
        term = terms[word.removeprefix("Encoder ")]
        entry = shown.locator(str(term.get_attribute("href")))
        assert entry.locator("dd").inner_text() == term.get_attribute("title")
    linked = {a.get_attribute("href") for a in shown.locator("a.term").all()}
    # what explains parts of a model stands there only where it has them
    assert ("RoPE" in shown.inner_text("#words")) == (name == "short")
    assert len(linked) < shown.locator("#words dl > div").count()


@browser_test
@pytest.mark.full
def test_shares_of_window_and_memory_are_drawn_as_long_as_they_are(opened: Opener) -> None:
    layers = titans(2, used="context", n_heads=2, memory=NeuralMemory(chunk=4), window=3, tokens=2, mlp=Mlp(8))
    model = randomise(DecoderConfig(11, 12, layers, max_len=32).build(0).double().eval(), 0, std=0.3)
    found = explain(model, torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]]), position=6)
    shown = opened(found.to_dict())
    assert shown.locator("#memories tbody th").all_inner_texts() == [use.label for use in found.memories]
    for row, use in zip(shown.locator("#memories tbody tr").all(), found.memories):
        assert row.locator("td.number").count() == 6
        whole, *parts = (
            row.locator(f".parts{part}").bounding_box()
            for part in ("", " .part-window", " .part-persistent", " .part-memory")
        )
        assert whole is not None
        for box, share in zip(parts, (use.window, use.persistent, use.memory)):
            assert box is not None and share is not None
            assert box["width"] == pytest.approx(share * whole["width"], abs=1)
    assert accessibility_report(shown) == ""
