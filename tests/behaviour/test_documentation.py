"""What the documentation promises about the package as a whole."""

import inspect
import re
from pathlib import Path

import pytest

from glassformer import errors

PAGES = Path(__file__).parents[2] / "docs" / "errors"
PUBLIC = [
    name
    for name, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, errors.GlassformerError) and error is not errors.GlassformerError
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_error_has_a_page_with_symptom_cause_and_fix(name: str) -> None:
    slug = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
    page = (PAGES / f"{slug}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == ["Symptom", "Cause", "Fix"]


def test_every_error_page_describes_an_error_that_exists() -> None:
    titles = {page.read_text(encoding="utf-8").split("\n")[0].removeprefix("# ") for page in PAGES.glob("*.md")}
    assert titles - {"Errors"} == set(PUBLIC)
