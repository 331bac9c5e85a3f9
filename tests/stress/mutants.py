"""Make small wrong edits of the source, one at a time, and see which test notices: the tests of the tests.

    python tests/stress/mutants.py                             # draw them, or go on where it stopped
    python tests/stress/mutants.py --kill-list                 # the recorded ones again: do they still die?
    python tests/stress/mutants.py --kill-list tests/laws      # against these tests alone

Tests are collected once. A first pass runs each with probes where the edits would be, and so learns which tests reach
which edit and what they cost. Then, for each edit, a fork of the process swaps the code of one function and runs the
tests that reach it, cheapest first, until one fails. What came of each is written as it goes. A test that takes ten
times as long as it did is stopped, and the mutant counts as killed by it. Compiled models are left out.
"""

import argparse
import builtins
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# the sources beside these tests, whatever is installed
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from mutations import PROBE, CannotPlace, Mutant, Place, code_of, draw, mutated, placed, probed, quotas  # noqa: E402

RECORD = ROOT / "tests" / "golden" / "mutants.json"
PACKAGES = ("attention", "models", "trace", "weights", "analysis/sweep", "analysis/circuits")
OURS = {"mutants.py", "mutations.py"}
EVERYWHERE = "not gpu and not network"


class Swaps:
    """The functions that mutants are of, as they lie in this process, ready to have their code swapped."""

    def __init__(self, places: Iterable[Place]) -> None:
        modules = {place.file: _module_of(place.file) for place in places}
        self.modules = {file: sys.modules[name] for file, name in modules.items()}
        live: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        files = {str(file) for file in modules}
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename in files:
                code = each.__code__
                live[code.co_filename, code.co_qualname, code.co_firstlineno].append(each)
        self.live = live

    def ready(self, place: Place, tree: Any) -> Callable[[], None]:
        """Return what swaps the code of a function for what a tree of its module makes of it."""
        loader: Any = self.modules[place.file].__spec__.loader  # type: ignore[union-attr]
        code = code_of(place, loader.source_to_code(tree, str(place.file)))
        functions = self.live[str(place.file), place.name, place.first_line]
        if not functions:
            raise CannotPlace(f"no function of this process has the code of {place.name} in {place.file}")

        def swap() -> None:
            for function in functions:
                function.__code__ = code

        return swap


def _module_of(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(name)
    return name


class Tries:
    """What pytest runs in place of its loop: the collected tests, as often as mutants ask for them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.record: Path = arguments.record
        self.failed = False
        self.survivors = 0

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        # that a test fails is enough: its example is not made smaller
        profile = settings.get_profile("fast")
        settings.register_profile("fast", profile, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("fast")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # what was collected is kept from the collector of garbage, and the functions to swap are looked for there
        gc.unfreeze()
        self.items = {item.nodeid: item for item in session.items}
        self.order = {name: number for number, name in enumerate(self.items)}
        self.terminal = session.config.pluginmanager
        self.tests = str(session.config.rootpath), session.config.args
        recorded = json.loads(self.record.read_text(encoding="utf-8")) if self.record.exists() else {}
        (self.kill_list if self.arguments.kill_list else self.go_on)(recorded)
        return True

    # what the command does

    def go_on(self, recorded: dict[str, Any]) -> None:
        """Draw the mutants, unless that is done, and try those without an outcome."""
        if not recorded:
            recorded = self.drawn()
            self.write(recorded)
        entries = recorded["mutants"]
        mutants = [_mutant(entry) for entry in entries]
        reach = self.reach(mutants)
        for mutant, entry in zip(mutants, entries):
            if entry.get("outcome", "given up") == "given up":
                entry |= self.tried(mutant, reach.order(mutant))
                self.write(recorded)
                print(_line(entry), flush=True)
        print(_summary(entries))

    def drawn(self) -> dict[str, Any]:
        """Return the record before anything is tried: of the candidates of each package the first that tests reach."""
        number, seed = self.arguments.number, self.arguments.seed
        packages = [f"src/glassformer/{name}" for name in PACKAGES]
        candidates = draw(ROOT, packages, number, seed)
        reach = self.reach([mutant for each in candidates.values() for mutant in each])
        chosen, unreached = list[Mutant](), list[Mutant]()
        for package, quota in quotas(ROOT, packages, number).items():
            reached = [mutant for mutant in candidates[package] if reach.order(mutant)][:quota]
            until = candidates[package].index(reached[-1]) if len(reached) == quota else None
            unreached += [mutant for mutant in candidates[package][:until] if not reach.order(mutant)]
            chosen += reached
        return {
            "seed": seed,
            "mutants": [asdict(mutant) for mutant in chosen],
            "reached by no default test": [asdict(mutant) for mutant in unreached],
        }

    def kill_list(self, recorded: dict[str, Any]) -> None:
        """Try the recorded mutants again, the test that killed each first; say which no longer die."""
        again, lost = list[dict[str, Any]](), list[dict[str, Any]]()
        for entry in recorded["mutants"]:
            mutant, killer = _mutant(entry), entry.get("by")
            if "equivalent" in entry:
                again.append({**asdict(mutant), "outcome": "equivalent"})
                continue
            try:
                placed(mutant, ROOT)
            except CannotPlace as error:
                again.append({**asdict(mutant), "outcome": "not placed", "why": str(error)})
                continue
            first = self.tried(mutant, [killer]) if killer in self.items else {"outcome": "survived"}
            (again if first["outcome"] == "killed" else lost).append({**asdict(mutant), **first})
        if lost:
            reach = self.reach([_mutant(entry) for entry in lost])
            for entry in lost:
                entry |= self.tried(_mutant(entry), reach.order(_mutant(entry)))
        self.survivors = sum(entry["outcome"] in ("survived", "given up") for entry in lost)
        for entry in [*again, *lost]:
            print(_line(entry))
        print(_summary([*again, *lost]))

    def write(self, recorded: dict[str, Any]) -> None:
        part = self.record.with_suffix(".part")
        part.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(part, self.record)

    # what is done in forks

    def reach(self, mutants: Sequence[Mutant]) -> "Reach":
        """Run every test with probes, unless an earlier pass over the same files had probes at all of these."""
        key = hashlib.sha256(repr(self.tests).encode())
        for path in sorted(path for top in ("src", "tests") for path in (ROOT / top).rglob("*.py")):
            key.update(b"" if path.name in OURS else path.read_bytes())
        passes = ROOT / ".pytest_cache" / "mutants" / key.hexdigest()[:16]
        passes.mkdir(parents=True, exist_ok=True)
        for told in sorted(passes.glob("*.jsonl")):
            header, *rows = _rows(told)
            probes = [Mutant(**each) for each in header["probes"]]
            if set(mutants) <= set(probes):
                break
        else:
            told, probes, rows = passes / f"{len(list(passes.iterdir()))}.jsonl", mutants, []
            told.write_text(json.dumps({"probes": [asdict(mutant) for mutant in mutants]}) + "\n", encoding="utf-8")
        left = sorted(self.items.keys() - {row["test"] for row in rows}, key=self.order.__getitem__)
        if left:
            found = [placed(mutant, ROOT) for mutant in probes]
            swaps = Swaps(place for _, place in found)
            ready = [swaps.ready(place, probed(mutant, place, number)) for number, (mutant, place) in enumerate(found)]
            if not self.forked(ready, left, told, stop=False, limit=None):
                raise RuntimeError(
                    f"the pass with probes ended after {len(_rows(told)) - 1} of {len(self.items)} tests"
                )
        return Reach(probes, _rows(told)[1:])

    def tried(self, mutant: Mutant, tests: Sequence[str] | dict[str, float]) -> dict[str, Any]:
        """Return what came of a mutant under tests, in their order."""
        mutant, place = placed(mutant, ROOT)
        swap = Swaps([place]).ready(place, mutated(mutant, place))
        usual = tests if isinstance(tests, dict) else {}
        limits = {name: max(20.0, 10 * usual.get(name, 6.0)) for name in tests}
        began, left, said = _cpu(resource.RUSAGE_CHILDREN), list(tests), {"outcome": "survived"}
        while left:
            passed, failed = self.until_one_fails([swap], left, limits)
            left = left[passed + (failed is not None) :]
            if failed is None:
                said = {"outcome": "given up" if left else "survived"}
                break
            # who fails without the mutant too, alone in a fork, has not noticed it
            if self.until_one_fails([], [failed], limits)[1] is None:
                said = {"outcome": "killed", "by": failed}
                break
        seconds = round(_cpu(resource.RUSAGE_CHILDREN) - began, 1)
        return {**said, "tests": len(tests) - len(left), "of": len(tests), "seconds": seconds}

    def until_one_fails(
        self, swaps: Sequence[Callable[[], None]], tests: list[str], limits: dict[str, float]
    ) -> tuple[int, str | None]:
        """Return how many tests passed in a fork, and which failed, was stopped by the clock or took the fork down."""
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "told.jsonl")
            ended = self.forked(swaps, tests, told, stop=True, limit=limits)
            rows = _rows(told)
        passed = sum(not row["failed"] for row in rows)
        return passed, tests[passed] if passed < len(rows) or not ended else None

    def forked(
        self,
        swaps: Sequence[Callable[[], None]],
        tests: list[str],
        told: Path,
        *,
        stop: bool,
        limit: dict[str, float] | None,
    ) -> bool:
        """Run tests in a fork, telling of each as it ends; return whether the fork came to its own end."""
        sys.stdout.flush()
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1] == 0
        code = 1
        try:
            with open(os.devnull, "w") as nowhere, told.open("a", encoding="utf-8") as out:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
                self.terminal.unregister(name="terminalreporter")
                for swap in swaps:
                    swap()
                self._run(tests, out, stop, limit)
            code = 0
        finally:
            os._exit(code)

    def _run(self, tests: list[str], out: Any, stop: bool, limit: dict[str, float] | None) -> None:
        reached = set[int]()
        setattr(builtins, PROBE, reached.add)
        items = [self.items[name] for name in tests]
        whole = time.process_time()
        for item, following in zip(items, [*items[1:], None]):
            reached.clear()
            self.failed = False
            if limit is not None:
                # both end the process: one for what computes without end, one for what waits
                signal.setitimer(signal.ITIMER_PROF, limit[item.nodeid])
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, 15 * limit[item.nodeid])
            began = time.process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            row = {
                "test": item.nodeid,
                "seconds": round(time.process_time() - began, 4),
                "failed": self.failed,
                "reached": sorted(reached),
            }
            out.write(json.dumps(row) + "\n")
            out.flush()
            if stop and (self.failed or time.process_time() - whole > self.arguments.patience):
                return


class Reach:
    """Which tests reach which mutants, and what each costs; tests that fail without a mutant are none."""

    def __init__(self, mutants: Sequence[Mutant], rows: Sequence[dict[str, Any]]) -> None:
        self.cost = {row["test"]: row["seconds"] for row in rows}
        self.tests: dict[Mutant, list[str]] = defaultdict(list)
        for row in rows:
            for number in row["reached"] if not row["failed"] else ():
                self.tests[mutants[number]].append(row["test"])

    def order(self, mutant: Mutant) -> dict[str, float]:
        """Return the tests that reach a mutant with their CPU seconds, cheapest first."""
        return {name: self.cost[name] for name in sorted(self.tests[mutant], key=lambda name: self.cost[name])}


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _rows(told: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()] if told.exists() else []


def _mutant(entry: dict[str, Any]) -> Mutant:
    return Mutant(**{name: entry[name] for name in Mutant.__dataclass_fields__})


def _line(entry: dict[str, Any]) -> str:
    place = f"{entry['file'].removeprefix('src/glassformer/')}:{entry['line']} {entry['function']}"
    edit = f"{entry['before']} -> {entry['after']}".replace("\n", " ")
    by = entry.get("by") or f"{entry.get('tests', 0)} of {entry.get('of', 0)} tests"
    return f"{entry['outcome']:9} {place}  [{edit[:100]}]  {by}  {entry.get('seconds', 0)} s"


def _summary(entries: Sequence[dict[str, Any]]) -> str:
    counts = Counter(entry["outcome"] for entry in entries)
    seconds = sum(entry.get("seconds", 0) for entry in entries)
    said = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    return f"{len(entries)} mutants: {said}; {seconds:.0f} CPU s"


def main() -> int:
    """Return 0 if every recorded mutant dies; of drawing, if it was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="files, folders or names of tests; all by default")
    parser.add_argument("--kill-list", action="store_true", help="try those of the record again, each killer first")
    parser.add_argument("--record", type=Path, default=RECORD, help="JSON file of the mutants and what came of them")
    parser.add_argument("--number", type=int, default=80, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn follows from it")
    parser.add_argument("--patience", type=float, default=120, help="CPU seconds after which one is given up")
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    tries = Tries(arguments)
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "-p", "no:xdist", "-m", EVERYWHERE, "--annotations", "all"]
        options += ["--basetemp", str(Path(folder, "tests"))]
        code = pytest.main([*options, *arguments.tests], plugins=[tries])
    return int(code) or int(tries.survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
