"""Values of many fields are built by keywords, so that no field can take another's place unnoticed."""

import ast
from pathlib import Path

import glassformer

SOURCE = Path(glassformer.__file__).parent
MOST = 6
# rows of a table under one heading; classes of another library
APART = {"models/complexity.py LayerCost", "cli/train.py Progress", "render/terminal/lens.py Group"}


def crowded(text: str) -> set[str]:
    """Return the classes that a module calls with more positional arguments than can be told apart."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and len(node.args) > MOST]
    names = {ast.unparse(call.func) for call in calls}
    return {name for name in names if name == "cls" or name.split(".")[-1].lstrip("_")[:1].isupper()}


def test_no_class_is_called_with_many_positional_arguments() -> None:
    text = "Dims(1, 2, 3, 4, 5, 6, 7); x._Setting(*a, 2, 3, 4, 5, 6, 7); make(1, 2, 3, 4, 5, 6, 7); Dims(*b)"
    assert crowded(text) == {"Dims", "x._Setting"}
    found = {
        f"{path.relative_to(SOURCE)} {name}"
        for path in SOURCE.rglob("*.py")
        for name in crowded(path.read_text(encoding="utf-8"))
    }
    assert found == APART
