"""A result as one HTML file that opens from disk and asks nobody for anything.

The file carries its style, its script and the JSON document of the result; the script draws the document in the
reader's browser. A content security policy forbids every request and every script but this one, so that neither a
token nor a later edit of the file can load or run anything else.
"""

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from glassformer.files import json_text
from glassformer.labelled import Result
from glassformer.render.page.colours import colour_script, colour_style
from glassformer.render.page.results import results_document

# in the order they run: drawing, pictures, sections
EXPLANATION = ("draw.js", "tensors.js", "lens.js", "patterns.js", "explanation.js")
CIRCUITS = ("draw.js", "charts.js", "circuits.js")
RESULTS = (
    "draw.js", "charts.js", "tensors.js", "maps.js", "figures.js", "lens.js", "graphs.js", "results_views.js",
    "results.js",
)  # fmt: skip

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src '{digest}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<noscript><p>The pictures on this page are drawn by its script from the numbers it carries. Please allow it to run; it
loads nothing.</p></noscript>
<script type="application/json" id="{name}">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def explanation_page(payload: Mapping[str, Any]) -> str:
    """Return an explanation as one self-contained HTML document.

    Args:
        payload: The explanation's JSON document (``docs/explain-json.md``), format version 2.

    Returns:
        The document, to be written as UTF-8; every value it shows is decoded from the payload in the browser.
    """
    return _page(payload, "explanation", f"{payload['model']['name']} explained", EXPLANATION)


def circuits_page(payload: Mapping[str, Any]) -> str:
    """Return a circuits report as one self-contained HTML document.

    Args:
        payload: The report's JSON document (``docs/circuits-json.md``), format version 1.
    """
    return _page(payload, "report", f"The circuits of {payload['model']['name']}", CIRCUITS)


def results_page(results: Result | Sequence[Any], head: Mapping[str, Any] | None = None) -> str:
    """Return results of analyses as one self-contained HTML document.

    Args:
        results: What analyses returned, one or several.
        head: What the page says of them all: `model`, `command`, `given` and `reading`, as far as known.

    Raises:
        ConfigError: There is no result, or something else among them.
    """
    document = results_document(results, head)
    kinds = list(dict.fromkeys(entry["result"] for entry in document["results"]))
    name = document.get("model", {}).get("name")
    return _page(document, "results", ", ".join(kinds) + (f" of {name}" if name else ""), RESULTS)


def _page(payload: Mapping[str, Any], name: str, title: str, scripts: tuple[str, ...]) -> str:
    script = '"use strict";\n{\n' + colour_script() + "\n".join(_read(part) for part in scripts) + "}\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _DOCUMENT.format(
        digest=f"sha256-{digest}",
        title=html.escape(title),
        style=colour_style() + _read("page.css"),
        name=name,
        data=_embedded(payload),
        script=script,
    )


def _read(name: str) -> str:
    return files("glassformer.render.page").joinpath(name).read_text(encoding="utf-8")


def _embedded(payload: Mapping[str, Any]) -> str:
    """Return JSON in which no token can close the script element or open a comment in it."""
    return json_text(payload, tight=True, finite=True).replace("<", "\\u003c")
