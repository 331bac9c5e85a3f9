"""Run every example: files and notebooks in `examples/`, and `python` blocks of READMEs and of the pages in `docs/`.

The blocks of one page share a namespace and run in order, as a reader would type them. Sketches not meant to run are
fenced as `py`; pages of the book run while they are built (`_extensions/executed.py`). Each page runs in a process and
a folder of its own, so files it writes go nowhere; processes are forks of one that has imported the slow libraries
once, two at a time; a notebook also gets a kernel, and must put out what is stored in it. A comment that says which
labelled tensor is printed, `# Labelled(batch=1 pos=…)`, must be right. Arguments choose pages: `docs/run_examples.py
README.md`.
"""

import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import make_notebooks  # noqa: E402

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMISED = re.compile(r"# (Labelled\(.*\))$", re.MULTILINE)


def sources() -> dict[str, str]:
    """Return what to run, by path relative to the repository; lines keep their numbers."""
    pages = [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]
    pages = [page for page in pages if not {"_build", "book"} & set(page.relative_to(ROOT).parts)]
    blocks = {page: runnable(page.read_text(encoding="utf-8")) for page in pages}
    examples = [path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")]
    files = {path: path.read_text(encoding="utf-8") for path in examples}
    return {str(path.relative_to(ROOT)): text for path, text in sorted((blocks | files).items()) if text.strip()}


def runnable(page: str) -> str:
    """Blank everything outside the blocks, so that a traceback names the line of the page."""
    kept, end = "", 0
    for block in BLOCK.finditer(page):
        kept += "\n" * page.count("\n", end, block.start(1)) + block.group(1)
        end = block.end(1)
    return kept


def run(name: str, source: str) -> bool:
    """Run one source in a process of its own; print its output only if it fails."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        # named like the page, so that tracebacks point into it
        program = Path(folder, Path(name).name)
        program.write_text(source, encoding="utf-8")
        process = multiprocessing.get_context("fork").Process(target=_execute, args=(program, output.fileno()))
        process.start()
        process.join()
        output.seek(0)
        printed = output.read().decode("utf-8", "replace")
    untrue = [words for words in PROMISED.findall(source) if not _holds(printed, words)]
    passed = process.exitcode == 0 and not untrue
    print(f"{'ok    ' if passed else 'FAILED'}  {time.perf_counter() - started:4.1f} s  {name}", flush=True)
    if not passed:
        print(printed, *(f"not printed: {words}" for words in untrue), sep="\n")
    return passed


def run_all(wanted: dict[str, str], at_once: int = 2) -> bool:
    """Run sources, a few at once; each of so many processes takes the next that none has taken."""
    fork = multiprocessing.get_context("fork")
    taken = fork.Value("i", 0)
    workers = [fork.Process(target=_take_and_run, args=(list(wanted.items()), taken)) for _ in range(at_once)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return all(worker.exitcode == 0 for worker in workers)


def _take_and_run(wanted: list[tuple[str, str]], taken: Any) -> None:
    passed = True
    while True:
        with taken.get_lock():
            mine, taken.value = taken.value, taken.value + 1
        if mine >= len(wanted):
            sys.exit(0 if passed else 1)
        passed &= run(*wanted[mine])


def _holds(printed: str, words: str) -> bool:
    """Return whether a text holds words in which `…` stands for any number."""
    return re.search(re.escape(words).replace("…", r"\d+"), printed) is not None


def _execute(program: Path, output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(program.parent)
    if program.suffix == ".ipynb":
        _execute_notebook(program)
    else:
        runpy.run_path(str(program), run_name="__main__")


def _execute_notebook(program: Path) -> None:
    """Run the cells in order, and compare what they put out with what is stored."""
    notebook = make_notebooks.read(program)
    found = make_notebooks.differences(notebook, make_notebooks.executed(notebook, program.parent))
    if found:
        sys.exit("\n".join(("the stored outputs are of other code: run `make notebooks`", *found)))


if __name__ == "__main__":
    # two pages at once have a core each; threads beyond that wait for each other, and waiting is CPU time too
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch  # noqa: F401

    wanted = sources()
    if sys.argv[1:]:
        wanted = {name: wanted[name] for name in sys.argv[1:]}
    sys.exit(0 if run_all(wanted) else 1)
