"""A result as one HTML file that opens from disk and asks nobody for anything.

The file carries its style, its script and the JSON document of the result; the script draws the document in the
reader's browser. Both are built from ``web/`` and lie in ``built/``, ready to stand inside of a page. Its words are in
the language that is spoken where it is made (`glassformer.words`); an English page carries no others, and the document
is English on every page. A content security policy forbids every request and every script but this one, so that
neither a token nor a later edit of the file can load or run anything else.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from glassformer.files import json_text
from glassformer.labelled import Result, spaced
from glassformer.render.page.colours import colour_script, colour_style
from glassformer.render.page.results import results_document
from glassformer.words import Sentence, language, spoken, table

_DOCUMENT = """<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src '{digest}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body class="page">
<noscript><p>{noscript}</p></noscript>
<script type="application/json" id="{kind}">{data}</script>
<script>{script}</script>
</body>
</html>
"""

_EXPLORER = """<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>glassformer</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/explorer.css?lang={lang}&amp;digest={digest}">
</head>
<body class="page explorer">
<noscript><p>{noscript}</p></noscript>
<script src="/explorer.js?lang={lang}&amp;digest={digest}"></script>
</body>
</html>
"""


def explanation_page(payload: Mapping[str, Any]) -> str:
    """Page of an explanation: one self-contained HTML document.

    Args:
        payload: The explanation's JSON document (``docs/explain-json.md``), format version 2.

    Returns:
        The document, to be written as UTF-8; every value it shows is decoded from the payload in the browser.
    """
    return document_page("explanation", payload)


def attention_page(payload: Mapping[str, Any]) -> str:
    """Page of the patterns of a run: one self-contained HTML document.

    Args:
        payload: What `analysis.reports.attention.Attention` writes, format version 1.
    """
    return document_page("attention", payload)


def circuits_page(payload: Mapping[str, Any]) -> str:
    """Page of a circuits report: one self-contained HTML document.

    Args:
        payload: The report's JSON document (``docs/circuits-json.md``), format version 1.
    """
    return document_page("circuits", payload)


def study_page(payload: Mapping[str, Any]) -> str:
    """Page of a study's report: one self-contained HTML document.

    Args:
        payload: The report (``glassformer.study.report``), format version 2.
    """
    return document_page("study", payload)


def results_page(results: Result | Sequence[Any], head: Mapping[str, Any] | None = None) -> str:
    """Page of results of analyses: one self-contained HTML document.

    Args:
        results: What analyses returned, one or several.
        head: What the page says of them all: `model`, `command`, `given` and `reading`, as far as known.

    Raises:
        ConfigError: There is no result, or something else among them.
    """
    return document_page("results", results_document(results, head))


def document_page(kind: str, payload: Mapping[str, Any]) -> str:
    """Page of a document: one self-contained HTML document.

    Args:
        kind: Of page: `explanation`, `attention`, `circuits`, `results` or `study`.
        payload: The document.
    """
    script = _script(kind, payload)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _DOCUMENT.format(
        lang=language(),
        digest=f"sha256-{digest}",
        title=html.escape(title_of(kind, payload)),
        style=_style(kind),
        noscript=spoken(
            "The pictures on this page are drawn by its script from the numbers it carries. Please allow it to run; it "
            "loads nothing."
        ),
        kind=kind,
        data=_embedded(payload),
        script=script,
    )


def title_of(kind: str, payload: Mapping[str, Any]) -> str:
    """What a page is called, in the language that is spoken, by its kind and its document."""
    model = payload.get("model", {}).get("name")
    if kind == "explanation":
        return spoken("{model} explained", model=model)
    if kind == "attention":
        return spoken("What the heads of {model} look at", model=model)
    if kind == "circuits":
        return spoken("The circuits of {model}", model=model)
    if kind == "study":
        return payload["study"]
    names = spoken(", ").join(dict.fromkeys(spoken(spaced(entry["result"])) for entry in payload["results"]))
    return spoken("{names} of {model}", names=names, model=model) if model else names


def explorer_files() -> dict[str, str]:
    """Files of the explorer, by name: its page, script and style sheet, in the language that is spoken.

    The page asks for the two others beside it, and its script for numbers at ``/api/v1``: it is for a server. Where it
    asks for them it gives their digest, so that a browser may keep what it got, and what it made of it.
    """
    script = _script("explorer", {})
    style = _style("explorer")
    page = _EXPLORER.format(
        lang=language(),
        digest=hashlib.sha256((script + style).encode()).hexdigest()[:16],
        noscript=spoken("This page is drawn by its script. Please allow it to run."),
    )
    return {"index.html": page, "explorer.js": script, "explorer.css": style}


def cell_module(kind: str, payload: Mapping[str, Any] | None = None) -> str:
    """Module that draws a page in a cell of a notebook, as anywidget asks for one: it carries script and style sheet.

    Args:
        kind: Of page.
        payload: The document that will be drawn, whose words are said in the language that is spoken.
    """
    # each view runs the script anew, and so has what the script keeps to itself
    page = f"const script = () => {{\n{_built(f'{kind}.js')}return page;\n}};\n"
    known = colour_script() + _spoken([kind, "widget"], payload or {})
    return f"{known}{page}{_built('widget.js')}export default notebook.widget(script, {json_text(_style(kind))});\n"


def _script(kind: str, payload: Mapping[str, Any]) -> str:
    """Return the script of a page: it draws the page into the body."""
    known = colour_script() + _spoken([kind], payload)
    return f'"use strict";\n{{\n{known}{_built(f"{kind}.js")}page.open(document.body);\n}}\n'


def _style(kind: str) -> str:
    own = _built("explorer.css") if kind == "explorer" else ""
    return colour_style() + _built("page.css") + own


def _spoken(scripts: Sequence[str], payload: Mapping[str, Any]) -> str:
    """Return a script that holds what words of scripts and of a document are in the page's language, unless English."""
    known = table(language())
    texts = [english for name in scripts for english in _texts_of_scripts()[name]]
    said = {english: known[english] for english in texts if english in known}
    if language() != "en":
        for text in _texts(payload):
            # names of classes and fields are shown as words
            found = (name for name in (text, spaced(text), text.replace("_", " ")) if name in known)
            said |= {text: spoken(text)} if isinstance(text, Sentence) else {name: spoken(name) for name in found}
    return f"const DICTIONARY = new Map({_embedded(list(said.items()))});\n"


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a document, names of fields among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, held in value.items():
            yield name
            yield from _texts(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _texts(held)


@cache
def _texts_of_scripts() -> dict[str, list[str]]:
    """Return for each kind of page the English texts that its script says, as they were found when it was built."""
    return json.loads(_built("words.json"))


def _built(name: str) -> str:
    """Return a file of those that are built from ``web/``."""
    return files("glassformer.render.page").joinpath("built", name).read_text(encoding="utf-8")


def _embedded(payload: Any) -> str:
    """Return JSON in which no token can close the script element or open a comment in it."""
    return json_text(payload, tight=True, finite=True).replace("<", "\\u003c")
