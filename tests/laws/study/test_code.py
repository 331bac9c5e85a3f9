"""Which code a run depends on: what ran, and no more; what cannot change a number does not change a digest."""

import importlib
import sys
from pathlib import Path

import pytest

from glassformer.study.code import Recorder, changed, digest

SOURCE = '''"""A module."""

WIDTH = 3
OTHER = 4


def inner(x):
    """Double."""
    return x * WIDTH


def outer(x):
    return [inner(y) for y in range(x)]


def unused(x):
    return x


class Thing:
    """A thing."""

    size = 2

    def grow(self):
        return self.size * WIDTH

    def shrink(self):
        return 0
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Yield a function that writes the module's source and imports it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "dependency_of_a_run.py"
    times = iter(range(1, 100))

    def load(source: str):
        path.write_text(source, encoding="utf-8")
        # a file system may keep time in seconds
        stamp = Path(path).stat().st_mtime_ns + next(times) * 10**9
        import os

        os.utime(path, ns=(stamp, stamp))
        sys.modules.pop("dependency_of_a_run", None)
        importlib.invalidate_caches()
        return importlib.import_module("dependency_of_a_run")

    yield load
    sys.modules.pop("dependency_of_a_run", None)


def ran(found) -> dict[str, str]:
    with Recorder(["dependency_of_a_run"]) as recorder:
        found.outer(2)
        found.Thing().grow()
    return {name.partition(":")[2]: then for name, then in recorder.digests().items() if name.startswith("dependency")}


def test_what_ran_is_known_and_nothing_else(module):
    assert set(ran(module(SOURCE))) == {"outer", "inner", "Thing.grow"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Double."""', '"""Triple, rather."""'),
        ("return x * WIDTH", "return x * WIDTH  # by the width"),
        ("return x * WIDTH", "return (x *\n        WIDTH)"),
        ('"""A thing."""\n', ""),
        ("def unused(x):\n    return x", "def unused(x):\n    return x + 1"),
        ("OTHER = 4", "OTHER = 5"),
        ("        return 0\n", "        return 1\n"),
        ("def outer", "def new(x):\n    return 0\n\n\ndef outer"),
    ],
)
def test_words_layout_and_code_that_did_not_run_change_nothing(module, before, after):
    assert before in SOURCE
    assert ran(module(SOURCE)) == ran(module(SOURCE.replace(before, after)))


@pytest.mark.parametrize(
    ("before", "after", "which"),
    [
        ("return x * WIDTH", "return WIDTH * x", {"inner"}),
        ("WIDTH = 3", "WIDTH = 5", {"inner", "Thing.grow"}),
        ("range(x)", "range(x + 1)", {"outer"}),
        ("    size = 2", "    size = 7", {"Thing.grow"}),
        ("    def shrink", "    def __getattr__(self, name):\n        return 1\n\n    def shrink", {"Thing.grow"}),
        ("class Thing:", "class Thing(dict):", {"Thing.grow"}),
    ],
)
def test_what_may_change_a_number_changes_the_digest_of_what_it_concerns(module, before, after, which):
    assert before in SOURCE
    first = ran(module(SOURCE))
    known = {f"dependency_of_a_run:{name}": then for name, then in first.items()}
    second = ran(module(SOURCE.replace(before, after)))
    assert {name for name in first if first[name] != second[name]} == which
    assert set(changed(known)) == {f"dependency_of_a_run:{name}" for name in which}


def test_a_function_that_is_gone_is_changed(module):
    known = {f"dependency_of_a_run:{name}": then for name, then in ran(module(SOURCE)).items()}
    module(SOURCE.replace("def inner", "def other"))
    assert "dependency_of_a_run:inner" in changed(known)
    assert digest("no_such_module:f") == "" and changed({"no_such_module:f": "x"}) == ["no_such_module:f"]


def test_what_ends_in_an_error_and_what_is_left_half_way_ran_too(module):
    found = module(SOURCE + "\n\ndef fails():\n    raise KeyError\n\n\ndef some():\n    yield 1\n    yield 2\n")
    with pytest.raises(KeyError), Recorder(["dependency_of_a_run"]) as recorder:
        begun = found.some()
        next(begun)
        found.fails()
    found.inner(1)
    names = {name.partition(":")[2] for name in recorder.digests() if name.startswith("dependency")}
    assert names == {"some", "fails"} and sys.getprofile() is None


def test_recorders_nest_and_take_what_ran_at_another_time(module):
    found = module(SOURCE)
    with Recorder(["dependency_of_a_run"]) as whole:
        found.inner(1)
        with Recorder(["dependency_of_a_run"]) as part:
            found.outer(1)
        found.Thing().grow()
        whole.add({"elsewhere:f": "1234"})
    names = [name.partition(":")[2] for name in whole.digests()]
    assert {"inner", "outer", "Thing.grow", "f"} <= set(names)
    assert "dependency_of_a_run:outer" in part.digests() and "dependency_of_a_run:Thing.grow" not in part.digests()
    assert "elsewhere:f" not in part.digests()
    assert sys.getprofile() is None
