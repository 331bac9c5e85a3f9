"""Fill the table and lists of docs/families.md with what is measured here and now: `make families`, some minutes.

Every case of tests/families is built, saved, loaded and compared with its reference, in both precisions; the first case
of each family is given to every command.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs")]

from make_tables import fill  # noqa: E402

from families import Case, all_cases, reference_folder  # noqa: E402
from family_commands import in_words, outcomes, with_tokenizer  # noqa: E402
from glassformer.checkpoints.families import FAMILIES, Family  # noqa: E402

PAGE = ROOT / "docs" / "families.md"
HEADS = ("family", "`model_type`", "largest error, float64", "float32")


def measured() -> list[Sequence[str]]:
    """Return of each family, by name: its types, the models compared, both errors, what works on the first."""
    cases = all_cases()
    rows = []
    for family in sorted(FAMILIES, key=lambda family: family.name.lower()):
        own = {name: case for name, case in cases.items() if case.family == family.name}
        print(f"{family.name}: {len(own)} cases", file=sys.stderr, flush=True)
        rows.append(row(family, own))
    return rows


def laid_out(rows: Sequence[Sequence[str]]) -> str:
    """Return the table of errors, then what works on which families, then which models were compared."""
    table = [HEADS, ("---",) * len(HEADS), *((name, kinds, *errors) for name, kinds, _, *errors, _ in rows)]
    return "\n\n".join(
        [
            "\n".join("| " + " | ".join(cells) + " |" for cells in table),
            "## What works",
            what_works({name: commands for name, *_, commands in rows}),
            "## What was compared",
            "\n".join(f"- {name}: {compared}" for name, _, compared, *_ in rows),
        ]
    )


def what_works(of: Mapping[str, str]) -> str:
    """Return what works on which families, those of which the same is said together."""
    works: dict[str, list[str]] = {}
    for name, commands in of.items():
        works.setdefault(commands, []).append(name)
    return "\n".join(f"- {', '.join(names)}: {commands}" for commands, names in works.items())


def row(family: Family, cases: dict[str, Case]) -> tuple[str, ...]:
    """Return what is known of one family; layouts without a reference have nothing to be compared with."""
    kinds = ", ".join(f"`{kind}`" for kind in family.model_types) or "none: told by its other fields"
    if not cases:
        return (family.name, kinds, "converted to and from the layouts it stands for", "", "", "as for those layouts")
    named = "; ".join(name.replace("_", " ") for name in cases)
    errors = [f"{max(error(case, dtype) for case in cases.values()):.0e}" for dtype in (torch.float64, torch.float32)]
    return (family.name, kinds, named, *errors, commands(next(iter(cases.values()))))


def error(case: Case, dtype: torch.dtype) -> float:
    """Return the largest error of a case, relative to the reference's root mean square."""
    with tempfile.TemporaryDirectory() as folder:
        return max(case.check(*case.make(), Path(folder), dtype).values())


def commands(case: Case) -> str:
    """Return what does not work on a family's first case, in words."""
    with tempfile.TemporaryDirectory() as folder:
        reference_folder(*case.make(), Path(folder), torch.float32)
        return in_words(outcomes(with_tokenizer(Path(folder))))


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), {"families": laid_out(measured())}), encoding="utf-8")
