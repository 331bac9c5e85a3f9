"""Run every example: the files in `examples/`, and the `python` blocks of the README and the pages in `docs/`.

The blocks of one page share a namespace and run in order, as a reader would type them. Sketches that are not meant to
run are fenced as `py`. Each page runs in a process and a folder of its own, so files it writes go nowhere.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sources() -> dict[str, str]:
    """Return what to run, by path relative to the repository; lines keep their numbers."""
    pages = [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]
    blocks = {page: _runnable(page.read_text(encoding="utf-8")) for page in pages if "_build" not in page.parts}
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}
    return {str(path.relative_to(ROOT)): text for path, text in sorted((blocks | files).items()) if text.strip()}


def _runnable(page: str) -> str:
    """Blank everything outside the blocks, so that a traceback names the line of the page."""
    kept, end = "", 0
    for block in BLOCK.finditer(page):
        kept += "\n" * page.count("\n", end, block.start(1)) + block.group(1)
        end = block.end(1)
    return kept


def run(name: str, source: str) -> bool:
    """Run one source in a fresh process; print its output only if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        # named like the page, so that tracebacks point into it
        program = Path(folder, Path(name).name)
        program.write_text(source, encoding="utf-8")
        done = subprocess.run([sys.executable, program], cwd=folder, capture_output=True, encoding="utf-8")
    print(f"{'ok    ' if done.returncode == 0 else 'FAILED'}  {name}")
    if done.returncode != 0:
        print(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(not all([run(name, source) for name, source in sources().items()]))
