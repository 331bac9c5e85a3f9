"""Run the pages of the book while they are built, so that every number and picture on them is of the code as it is.

A page is a program. Its `python` blocks run in order and share names, as those of all pages do under
`run_examples.py`; what a block prints stands below it. `{{ expression }}` in a sentence is its value, and formatted
`{{ expression:.2f }}`; of a figure it is the picture, `![What is seen]({{ figure }})`. A block in an HTML comment runs
unseen. An error, or an `assert` that fails, fails the build and names the line of the page.

A page in `zh/` translates the page of the same name outside it, and an empty `python` block is that page's block of the
same number: both show and run the same code. Blocks that print Chinese, or are explained in it, are written out.
"""

import ast
import base64
import contextlib
import io
import itertools
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import SphinxError

FOLDERS = ("book/", "zh/book/")
# a fenced block, of whatever language, or a value in a sentence
PART = re.compile(r"^```(\w*)[^\n]*\n(?P<code>.*?)^```$|\{\{(?P<value>.+?)\}\}", re.MULTILINE | re.DOTALL)
# what a block printed, which the style sheet tells from what was typed
PRINTED = "```{{code-block}} text\n:class: printed\n\n{}\n```"
# pictures are drawn smaller than in a notebook and at more dots, so that words in them can be read on a phone
SMALLER, DPI = 0.75, 120


def executed(source: str, page: str, original: str = "") -> str:
    """Return a page with what its blocks print, and with values in place of expressions.

    Args:
        source: The page, in Markdown.
        page: Its name, which tracebacks show.
        original: The page that it translates, from which empty blocks are taken.
    """
    names: dict[str, Any] = {"__name__": page}
    codes = iter(programs(source, original))

    def filled(part: re.Match[str]) -> str:
        line = source.count("\n", 0, part.start("value" if part["value"] else "code"))
        if part["value"] is not None:
            return _value(part["value"].strip(), names, page, line)
        if part[1] != "python":
            return part[0]
        block = f"```python\n{(code := next(codes))}```"
        printed = _printed(code, names, page, line)
        return f"{block}\n\n{PRINTED.format(printed.rstrip())}" if printed.strip() else block

    return PART.sub(filled, source)


def programs(source: str, original: str = "") -> list[str]:
    """Return what each `python` block of a page runs: its own code or, if it is empty, that of the original."""
    own, others = ([part["code"] for part in PART.finditer(page) if part[1] == "python"] for page in (source, original))
    return [code or other for code, other in itertools.zip_longest(own, others[: len(own)], fillvalue="")]


def _printed(code: str, names: dict[str, Any], page: str, line: int) -> str:
    """Run a block, and return what it printed."""
    output = io.StringIO()
    with _failing(page, line), contextlib.redirect_stdout(output):
        # empty lines before it, so that a traceback names the line of the page
        exec(compile("\n" * line + code, page, "exec"), names)
    return output.getvalue()


def _value(words: str, names: dict[str, Any], page: str, line: int) -> str:
    """Return the value of `expression` or `expression:format`, as in an f-string; of a figure its address."""
    with _failing(page, line):
        [part] = ast.parse(f'f"""{{ {words}}}"""', mode="eval").body.values
        value, form = (
            node and eval(compile(ast.fix_missing_locations(ast.Expression(node)), page, "eval"), names)
            for node in (part.value, part.format_spec)
        )
        return _picture(value) if hasattr(value, "savefig") else format(value, form or "")


def _picture(figure: Any) -> str:
    """Return a figure as an address that holds it; few colours are a third of the bytes."""
    drawn, stored = io.BytesIO(), io.BytesIO()
    size = figure.get_size_inches()
    figure.set_size_inches(size * SMALLER)
    figure.savefig(drawn, dpi=DPI)
    figure.set_size_inches(size)
    Image.open(drawn).convert("RGB").quantize(256).save(stored, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stored.getvalue()).decode()}"


@contextlib.contextmanager
def _failing(page: str, line: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in {page}, in what begins at line {line + 1}")
        raise


def is_executed(page: str) -> bool:
    """Whether a page, by its name without ending, is a program."""
    return page.startswith(FOLDERS)


def read(app: Sphinx, page: str, content: list[str]) -> None:
    if is_executed(page):
        try:
            original = Path(app.srcdir, f"{page.removeprefix('zh/')}.md") if page.startswith("zh/") else None
            content[0] = executed(content[0], f"{page}.md", original.read_text(encoding="utf-8") if original else "")
        except Exception as error:
            # of a handler's own error the build shows neither traceback nor notes
            raise SphinxError("".join(traceback.format_exception(error))) from error


def always(app: Sphinx, environment: BuildEnvironment, added: set[str], changed: set[str], gone: set[str]) -> list[str]:
    """Return the pages that are read anew though their sources are as they were: what they run may have changed."""
    return [page for page in environment.found_docs if is_executed(page)]


def setup(app: Sphinx) -> dict[str, bool]:
    # readers are forked, and threads of the process they come from would be waited for without end
    torch.set_num_threads(1)
    app.connect("source-read", read)
    app.connect("env-get-outdated", always)
    return {"parallel_read_safe": True}
