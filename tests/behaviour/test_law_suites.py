"""`glassformer.testing` as others use it: parts made elsewhere run the suites, and what is broken fails them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import find, settings

from glassformer.attention import Lightning, MixerConfig, Softmax
from glassformer.testing import MechanismLaws
from glassformer.testing.models import PATTERNED, SLOTS, attention_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "write-a-mechanism.md").read_text(encoding="utf-8")
MECHANISM = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
TEST = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]


def laws_of(folder: Path, *arguments: str, where: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, so that a kind is registered there only."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=where or folder, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])},
        capture_output=True, encoding="utf-8",
    )  # fmt: skip


def test_a_class_has_those_laws_that_its_mechanism_claims() -> None:
    both = type("TestBoth", (MechanismLaws,), {"mechanism": [Softmax, Lightning]})
    bare = type("TestBare", (MechanismLaws,), {"mechanism": Lightning})
    laws, fewer = ({name for name in dir(suite) if name.startswith("test_")} for suite in (both, bare))
    assert len(laws) > 30
    assert laws - fewer == {
        "test_cross_attention_sees_no_order_of_the_source",
        "test_cross_state_holds_the_source_and_gives_the_same_output",
        "test_rows_sum_to_one_where_claimed",
        "test_scores_are_bilinear_where_claimed",
        "test_capped_scores_are_a_rising_function_of_bilinear_ones",
        "test_only_products_of_queries_and_keys_are_seen_where_claimed",
        "test_a_state_that_is_kept_can_be_cut_to_any_earlier_length",
        "test_segments_of_scores_that_are_biased_equal_one_pass",
    }


@pytest.mark.parametrize("kind", PATTERNED)
def test_models_are_drawn_with_each_mechanism_of_the_package_that_has_a_pattern(kind: str) -> None:
    def drawn(found: tuple[str, dict[str, Any]]) -> bool:
        name, arguments = found
        return name not in SLOTS and arguments["mixer"].kind == kind

    find(attention_settings(), drawn, settings=settings(max_examples=2000, derandomize=True, database=None))
    assert MixerConfig.registry[kind].__module__.startswith("glassformer.")


def test_the_library_itself_needs_neither_pytest_nor_hypothesis() -> None:
    asked = "import glassformer, sys; sys.exit(bool({'pytest', 'hypothesis'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", asked]).returncode == 0


@pytest.fixture
def made_elsewhere(tmp_path: Path) -> Path:
    """Return a folder with what the page tells readers to save."""
    (tmp_path / "sigmoid_attention.py").write_text(MECHANISM, encoding="utf-8")
    (tmp_path / "test_sigmoid_attention.py").write_text(TEST, encoding="utf-8")
    return tmp_path


@pytest.mark.full
def test_the_mechanism_written_on_its_page_obeys_the_laws(made_elsewhere: Path) -> None:
    assert "python -m pytest test_sigmoid_attention.py" in PAGE
    done = laws_of(made_elsewhere, "test_sigmoid_attention.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert re.search(r"\b[3-9]\d passed", done.stdout)


BROKEN = {
    "sees-the-future": (".sigmoid()", ".nan_to_num(neginf=0.0).sigmoid()", "test_future_tokens_cannot_change"),
    "claims-too-much": ("Traits(", "Traits(rows_sum_to_one=True, ", "test_rows_sum_to_one_where_claimed"),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_mechanism_fails_the_law_it_breaks(fault: str, made_elsewhere: Path) -> None:
    right, wrong, law = BROKEN[fault]
    assert MECHANISM.count(right) == 1
    (made_elsewhere / "sigmoid_attention.py").write_text(MECHANISM.replace(right, wrong), encoding="utf-8")
    done = laws_of(made_elsewhere, "-k", law)
    assert re.search(rf"FAILED .*::{law}\w*\[sigmoid\]", done.stdout), done.stdout[-3000:]


SQUARED = '''
from dataclasses import dataclass
from typing import ClassVar

from glassformer.attention import Mixer, MixerConfig, Traits
from glassformer.testing import MechanismLaws


@dataclass(frozen=True)
class Squared(MixerConfig, kind="squared"):
    """Squared-ReLU weights: exact zeros, of a first position's weight on itself too."""

    traits: ClassVar[Traits] = Traits()


class SquaredMixer(Mixer, config=Squared):
    def pattern(self, q, k, x, context, tape):
        found, allowed = (q @ k.mT).relu().square(), context.allowed(q.shape[-2], k.shape[-2])
        return found if allowed is None else found.masked_fill(~allowed, 0.0)


class TestSquared(MechanismLaws):
    mechanism = Squared
'''


@pytest.mark.full
def test_a_mechanism_with_weights_that_are_exactly_zero_holds_the_laws_of_order(tmp_path: Path) -> None:
    (tmp_path / "test_squared.py").write_text(SQUARED, encoding="utf-8")
    done = laws_of(tmp_path, "-k", "future_tokens or first_position", "test_squared.py")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout
