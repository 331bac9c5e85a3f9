"""Run make targets beside each other, and hold those that have a budget of CPU time to it.

    .venv/bin/python .ci/budget.py test check

A budget is CPU time in units of a calibration loop, so that it means the same on a slower machine and on a busy one;
who spends no more seconds than the budget names has held it on any machine. It grows with the mechanisms, analyses and
families that there are. The files whose tests cost most are printed.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Calibration:
    """The CPU seconds of a fixed piece of work, done again every few seconds beside what is measured.

    What a second of CPU time does depends on what runs on the other half of the core, and on how warm the machine is:
    the same tests took 469 and 532 units where the work was done before and after them only.
    """

    def __init__(self, every: float) -> None:
        self._every, self._spent, self._ended = every, list[float](), threading.Event()
        self._processes = ProcessPoolExecutor(1)
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Calibration":
        self._processes.submit(_work).result()  # the first loads what it needs
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()
        self._processes.shutdown()

    def _sample(self) -> None:
        while not self._spent or not self._ended.wait(self._every):
            self._spent.append(self._processes.submit(_work).result())

    @property
    def unit(self) -> float:
        """Mean CPU seconds of the piece of work."""
        return sum(self._spent) / len(self._spent)


def _work() -> float:
    import torch

    torch.set_num_threads(1)
    matrix = torch.ones(64, 64, dtype=torch.float64) / 64
    started = time.process_time()
    total = sum(i * i for i in range(1_000_000))
    for _ in range(5_000):
        matrix = (matrix @ matrix).relu() + 1e-9
    assert total > 0
    return time.process_time() - started


def registered() -> dict[str, int]:
    """Return how many there are of each part for which a budget grows."""
    from glassformer.analysis.cards import cards
    from glassformer.attention import MixerConfig
    from glassformer.checkpoints.families import FAMILIES

    return {"mechanism": len(MixerConfig.registry), "analysis": len(cards()), "family": len(FAMILIES)}


def allowed(budgets: dict[str, Any], target: str, there: dict[str, int]) -> float:
    """Return the CPU seconds that a target may take where the calibration loop takes what it did."""
    more = {part: max(0, number - budgets["counted"][part]) for part, number in there.items()}
    return budgets["seconds"][target] + sum(budgets["adds"][part] * number for part, number in more.items())


def run(targets: list[str], environment: dict[str, str]) -> dict[str, tuple[int, float, float]]:
    """Run targets of make at once; return of each the exit code, the CPU and the wall seconds."""
    started, ended = time.monotonic(), dict[str, tuple[int, float, float]]()
    running = {subprocess.Popen(["make", target], cwd=ROOT, env=environment).pid: target for target in targets}
    while running:
        pid, status, used = os.wait4(-1, 0)
        if pid in running:
            spent = used.ru_utime + used.ru_stime
            ended[running.pop(pid)] = os.waitstatus_to_exitcode(status), spent, time.monotonic() - started
    return ended


def dearest(folder: Path, most: int = 10) -> list[tuple[str, float]]:
    """Return the test files of most CPU seconds, from what each process of pytest has written."""
    files: Counter[str] = Counter()
    for path in folder.glob("*.json"):
        files.update(json.loads(path.read_text(encoding="utf-8")))
    return files.most_common(most)


def main(targets: list[str]) -> int:
    """Return 0 if every target ends well, within its budget."""
    budgets = json.loads(Path(__file__).with_name("budgets.json").read_text(encoding="utf-8"))
    there = registered()
    with tempfile.TemporaryDirectory() as folder:
        with Calibration(every=5) as calibration:
            ended = run(targets, os.environ | {"CPU_BY_FILE": folder})
        unit = calibration.unit
        for path, seconds in dearest(Path(folder)):
            print(f"{seconds:7.1f} CPU s  {path}")
    good = True
    for target, (code, spent, wall) in ended.items():
        said = f"make {target}: exit {code}, {spent:.0f} CPU s = {spent / unit:.0f} units, {wall:.0f} s"
        if target in budgets["seconds"]:
            seconds = allowed(budgets, target, there)
            units = budgets["varies"] * seconds / budgets["calibration"]
            within = spent <= seconds or spent / unit <= units
            said += f"; budget {seconds:.0f} CPU s or {units:.0f} units" + ("" if within else ": EXCEEDED")
            good &= within
        good &= code == 0
        print(said, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
