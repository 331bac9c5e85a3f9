"""Rooms have doors: what begins with `_` is for the folder it lies in and for those below it, and for nobody else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import glassformer

ROOT = Path(glassformer.__file__).parents[1]
# an import that takes what is private, or looks like one: only files with one are worth taking apart
SUSPECT = re.compile(r"^\s*(?:from|import)\b[^\n(]*(?:\([^)]*?)?\b_[a-zA-Z]", re.MULTILINE)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """The line of each import of a file, and all that it takes, as `package.module.name`."""
    package, text = path.relative_to(root).parent.parts, path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if SUSPECT.search(text) else ():
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            home = ".".join((*above, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{home}.{alias.name}") for alias in node.names)


def room_of(name: str, root: Path) -> str:
    """The folder that a package is, or that a module lies in."""
    return name if root.joinpath(*name.split(".")).is_dir() else name.rpartition(".")[0]


def trespasses(root: Path, package: str) -> list[str]:
    """Each import in a package of what another of its rooms keeps to itself."""
    found = []
    for path in sorted((root / package).rglob("*.py")):
        own = ".".join(path.relative_to(root).parent.parts)
        for line, taken in imports(path, root):
            parts = taken.split(".")
            private = next((i for i, part in enumerate(parts) if is_private(part)), None)
            # what other distributions keep to themselves is not for us to say
            if private is None or parts[0] != package:
                continue
            room = room_of(".".join(parts[:private]), root)
            if not f"{own}.".startswith(f"{room}."):
                found.append(f"{path.relative_to(root)}:{line} takes {taken}, which is for {room} alone")
    return found


def test_no_room_takes_what_another_keeps_to_itself() -> None:
    found = trespasses(ROOT, glassformer.__name__)
    assert not found, (
        "\n    ".join(["", *found])
        + "\n    Give it a public name in the room that owns it, ask the thing itself, or move the file into that room."
    )


@pytest.mark.parametrize(
    ("line", "let"),
    [
        ("from house.kitchen._oven import bake", False),
        ("from house.kitchen import _oven", False),
        ("from house.kitchen.table import _legs", False),
        ("from house.kitchen.table import (\n        Top,\n        _legs,\n    )", False),
        ("import house.kitchen._oven", False),
        ("from ..kitchen import _oven", False),
        ("from house.kitchen import bake", True),
        ("from house.hall._coats import hang", True),
        ("from house._keys import lock", True),
        ("from . import _coats", True),
        ("from numpy._core import umath", True),
    ],
)
def test_a_private_module_or_name_is_for_its_folder_and_those_below(line: str, let: bool, tmp_path: Path) -> None:
    for folder in ("house", "house/hall", "house/kitchen"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "house" / "hall" / "door.py").write_text(f"def opened():\n    {line}\n")
    found = trespasses(tmp_path, "house")
    assert (not found) == let
    assert let or found[0].startswith(f"{Path('house', 'hall', 'door.py')}:2 takes house.kitchen")
