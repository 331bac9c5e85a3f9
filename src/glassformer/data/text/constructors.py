"""The constructors of Python files: how things take over what they are made of, as the file has it.

    self.x = x
    self.y = y

    class Point:
        def __init__(self, x, y):
            self.x = x
            self.y = y

They are a small part of any program, and what they do with names takes many examples to learn. The lines stand by
themselves first: there nothing before says what a name is called.
"""

import ast
import warnings

LEAST = 2  # arguments taken over, from which on a constructor counts
SHARE = 1 / 3  # of its statements


def constructors(code: str) -> str:
    """Return the classes of a Python file that take over their arguments: those lines, then its head and `__init__`.

    Those are meant in which at least two statements, and a third of all, are of the form `self.x = x`.

    Args:
        code: The file's text; one that is no Python has none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the code that is read: its escapes, its comparisons
            tree = ast.parse(code)
    # nested too deeply, which Python before 3.12 calls a lack of memory
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    lines = code.split("\n")
    found = [
        "\n".join(
            [
                *(lines[statement.lineno - 1].strip() for statement in part.body if _keeps_name(statement)),
                "",
                *lines[node.lineno - 1 : _first(node.body[0]) - 1],
                *lines[_first(part) - 1 : part.end_lineno],
                "",
            ]
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == "__init__" and _takes_over(part)
    ]
    return "\n".join(found)


def _takes_over(function: ast.FunctionDef) -> bool:
    """Whether a constructor mostly keeps its arguments under their names."""
    taken = sum(map(_keeps_name, function.body))
    size = sum(1 for node in ast.walk(function) if isinstance(node, ast.stmt)) - 1
    return taken >= LEAST and taken >= SHARE * size


def _keeps_name(node: ast.stmt) -> bool:
    """Whether a statement is of the form `self.x = x`, with an annotation or without."""
    if isinstance(node, ast.AnnAssign):
        targets, value = [node.target], node.value
    elif isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    else:
        return False
    target = targets[0]
    return (
        len(targets) == 1
        and isinstance(target, ast.Attribute)
        and isinstance(value, ast.Name)
        and (target.attr == value.id)
    )


def _first(node: ast.stmt) -> int:
    """Return the line a statement begins on, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
