"""Run make targets beside each other, and hold those that have a budget of CPU time to it.

    .venv/bin/python .ci/budget.py test check

A budget is CPU time in units of a calibration loop, so that it means the same on a faster machine and on a busy one; it
grows with the mechanisms, analyses and families that there are. The files whose tests cost most are printed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def calibration(at_once: int) -> float:
    """Return the CPU seconds that a fixed piece of work takes a process, where so many run at once."""
    with ProcessPoolExecutor(at_once) as processes:
        return sum(processes.map(_work, range(at_once))) / at_once


def _work(_: int) -> float:
    import torch

    torch.set_num_threads(1)
    matrix = torch.ones(64, 64, dtype=torch.float64) / 64
    started = time.process_time()
    for _ in range(4):
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
        before = calibration(len(targets))
        ended = run(targets, os.environ | {"CPU_BY_FILE": folder})
        unit = (before + calibration(len(targets))) / 2
        for path, seconds in dearest(Path(folder)):
            print(f"{seconds:7.1f} CPU s  {path}")
    good = True
    for target, (code, spent, wall) in ended.items():
        said = f"make {target}: exit {code}, {spent:.0f} CPU s = {spent / unit:.0f} units, {wall:.0f} s"
        if target in budgets["seconds"]:
            may = budgets["varies"] * allowed(budgets, target, there) / budgets["calibration"]
            within = spent / unit <= may
            said += f"; budget {may:.0f} units" + ("" if within else ": EXCEEDED")
            good &= within
        good &= code == 0
        print(said, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
