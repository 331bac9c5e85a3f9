"""Run the notebooks in `examples/` and store what they put out, so that it is seen where nothing runs them.

Of each output the form is stored that shows most where a notebook is only shown: a picture, else HTML, else text. What
is left out there by every host stays out: pages in a frame, what goes to standard error, and bars that are widgets.
With the outputs a digest of the code is stored, so that a test can tell outputs of other code. `python
docs/make_notebooks.py`
"""

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.ipynb"))
FORMS = ("image/png", "text/html", "text/plain")
BAR = "application/vnd.jupyter.widget-view+json"
PIECE = re.compile(r"[<>,\n] *|largest +")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# two machines round differently: numbers of one text may differ by so much, of themselves or in all
RELATIVE, ABSOLUTE = 0.02, 1e-4

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """Return a notebook as it is stored."""
    return json.loads(path.read_text(encoding="utf-8"))


def digest(notebook: Mapping[str, Any]) -> str:
    """Return a digest of the code of a notebook, cell by cell."""
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


def executed(notebook: Mapping[str, Any], folder: Path) -> Notebook:
    """Return a notebook with its outputs as they are stored, its cells run in order in a kernel of this Python.

    Args:
        notebook: To run.
        folder: Where it runs; the traceback of the first cell that fails is raised.
    """
    import nbformat
    from nbclient import NotebookClient

    # histories and connection files stay out of the home folder; small models are fastest on one thread
    os.environ |= {"IPYTHONDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    run = nbformat.reads(json.dumps(notebook), as_version=4)
    NotebookClient(
        run, timeout=300, kernel_name="python3", record_timing=False, resources={"metadata": {"path": str(folder)}}
    ).execute()
    code = {cell["id"]: cell for cell in run["cells"] if cell["cell_type"] == "code"}
    cells = [
        cell | {"execution_count": code[cell["id"]]["execution_count"], "outputs": stored(code[cell["id"]]["outputs"])}
        if cell["id"] in code
        else cell
        for cell in notebook["cells"]
    ]
    return dict(notebook) | {
        "cells": cells, "metadata": notebook["metadata"] | {"outputs_of": digest(notebook)}
    }  # fmt: skip


def stored(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is stored of the outputs of a cell; of what is stored already, the same."""
    found: list[dict[str, Any]] = []
    for output in outputs:
        if "data" not in output:
            text = "".join(output["text"])
            if output.get("name") == "stderr":
                continue
            # what one cell prints may come in pieces, anywhere
            if found and found[-1].get("name") == output["name"]:
                text = "".join(found.pop()["text"]) + text
            found.append({**output, "text": text.splitlines(keepends=True)})
            continue
        if BAR in output["data"] and "text/html" not in output["data"]:
            continue
        form = next(form for form in FORMS if form in output["data"])
        shown = "".join(output["data"][form])
        if "<iframe" not in shown:
            kept = shown.strip() if form == "image/png" else shown.splitlines(keepends=True)
            found.append({**output, "data": {form: kept}})
    return found


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs between the outputs of two notebooks of the same code, by cell; of pictures, that there are
    as many.
    """
    found: list[str] = []
    for first, second in zip(one["cells"], other["cells"], strict=True):
        a, b = "\n".join(map(_text, first.get("outputs", []))), "\n".join(map(_text, second.get("outputs", [])))
        # of values that are alike but for rounding, any may come first
        if not (_alike(a, b) or _alike(*("\n".join(sorted(PIECE.split(text))) for text in (a, b)))):
            found.append(f"cell {first['id']}:\n{a}\n--- is now\n{b}")
    return found


def _text(output: Mapping[str, Any]) -> str:
    form, shown = next(iter(output["data"].items())) if "data" in output else ("text/plain", output["text"])
    return "(a picture)" if form == "image/png" else "".join(shown)


def _alike(one: str, other: str) -> bool:
    """Return whether two texts are equal but for the last digits of their numbers."""
    pairs = zip(map(float, NUMBER.findall(one)), map(float, NUMBER.findall(other)))
    return NUMBER.sub("0", one) == NUMBER.sub("0", other) and all(
        math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE) for a, b in pairs
    )


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            made = executed(read(path), Path(folder))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.stat().st_size / 1e3:4.0f} kB  {path.name}")
