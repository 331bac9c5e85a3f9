"""Circuits of edges: CPU time and peak memory of path patching, edge attribution and ACDC.

python edges.py [--against OTHER/src] [--tasks edges-small …] [--json FILE]

Every task is a process of its own, which takes turns with plain PyTorch's forward pass on the same random weights and
the same prompts; the figure is how many such passes the task takes. With `--against` the same tasks run on another
source tree, in alternation, and the table says ours / theirs. Memory is what the resident set grew by at its peak.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from circuit_side import memory_of
from sweep_models import Shape, draw, forward, glassformer_model

HERE = Path(__file__).parent
RIGHT, WRONG = 17, 23  # the answers, as token ids
TIME_AIM, MEMORY_AIM = 1.15, 1.25

SHAPES = {"small": Shape(4, 8, 128, 1009), "wide": Shape(4, 12, 768, 5003), "deep": Shape(12, 12, 192, 1009)}


@dataclass(frozen=True)
class Task:
    """What is computed, on `batch` pairs of prompts of `length` tokens."""

    kind: str
    shape: str
    batch: int = 4
    length: int = 16


TASKS = {
    "edges-small": Task("edges", "small"), "edges-wide": Task("some-edges", "wide", 2),
    "edges-deep": Task("some-edges", "deep"),
    "paths-small": Task("paths", "small"), "paths-deep": Task("paths", "deep"),
    "recomputed-small": Task("recomputed", "small"),
    "attribution-small": Task("attribution", "small"), "attribution-wide": Task("attribution", "wide"),
    "attribution-deep": Task("attribution", "deep"), "integrated-small": Task("integrated", "small"),
    "acdc-small": Task("acdc", "small"), "acdc-deep": Task("candidates", "deep"),
}  # fmt: skip


def work(task: Task, shape: Shape) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return the task, whose numbers come back in one row, and the forward pass it is timed against."""
    from glassformer.analysis import circuits
    from glassformer.analysis.sweep import logit_difference

    weights = draw(shape)
    model = glassformer_model(shape, weights)
    generator = torch.Generator().manual_seed(1)
    clean, corrupt = torch.randint(shape.vocab, (2, task.batch, task.length), generator=generator)
    args = (model, (clean, corrupt), logit_difference(RIGHT, WRONG))
    last = shape.n_layers - 1

    def some() -> Any:
        # every 61st: of all layers and kinds of receivers
        return circuits.edge_effects(*args, edges=circuits.circuit_graph(model).edges[::61]).effect

    keys = [f"L{last}H{h}.k" for h in range(shape.n_heads)]
    kinds: dict[str, Callable[[], Any]] = {
        "edges": lambda: circuits.edge_effects(*args).effect,
        "some-edges": some,
        "paths": lambda: circuits.path_patching(*args, receivers=keys).effect,
        "recomputed": lambda: circuits.path_patching(*args, receivers=f"L{last}H1.v", mlps="recomputed").effect,
        "attribution": lambda: circuits.attribute_edges(*args).effect,
        "integrated": lambda: circuits.attribute_edges(*args, gradient_at="inputs", steps=3).effect,
        "acdc": lambda: circuits.acdc(*args, threshold=0.05).in_circuit,
        "candidates": lambda: circuits.acdc(*args, threshold=0.05, candidates=400).in_circuit,
    }
    found = kinds[task.kind]
    return lambda: found().values.double().flatten(), lambda: forward(weights, shape, clean)


def cpu(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def side(name: str, seconds: float) -> dict[str, Any]:
    """Measure one task in this process: memory in the first call, time against a forward pass afterwards."""
    task = TASKS[name]
    # what a first call loads is no part of what the computation needs
    work(task, Shape(2, 2, 32, 101))[0]()
    run, base = work(task, SHAPES[task.shape])
    with torch.no_grad():
        passes = max(1, round(0.3 / max(min(cpu(base) for _ in range(3)), 1e-9)))
    ctypes.CDLL(None).malloc_trim(0)
    values, grown = memory_of(run)
    started, ratios, taken = time.perf_counter(), list[float](), list[float]()
    while len(ratios) < 3 or time.perf_counter() - started < seconds:
        with torch.no_grad():
            one = cpu(lambda: [base() for _ in range(passes)]) / passes
        taken.append(cpu(run))
        ratios.append(taken[-1] / one)
    return {"values": values.nan_to_num().tolist(), "bytes": grown, "ratios": ratios, "seconds": taken}


def measured(source: Path, name: str, seconds: float) -> dict[str, Any]:
    """Return what a process of its own measures, with the package of a source tree."""
    paths = os.pathsep.join([str(source), str(HERE)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    call = [sys.executable, str(HERE / "edges.py"), "--side", name, "--seconds", str(seconds)]
    done = subprocess.run(call, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def row(ours: Path, theirs: Path | None, name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure a task on one source tree or on two, turn by turn."""
    if theirs is None:
        return {"task": name, **_joined([measured(ours, name, seconds)])}
    first, second = list[Any](), list[Any]()
    for i in range(rounds):
        for source, kept in ((ours, first), (theirs, second))[:: 1 - 2 * (i % 2)]:
            kept.append(measured(source, name, seconds))
    found, other = {"task": name, **_joined(first)}, _joined(second)
    values, expected = (torch.tensor(each[0]["values"], dtype=torch.float64) for each in (first, second))
    error = float((values - expected).abs().max() / expected.square().mean().sqrt().clamp_min(1e-30))
    ratios = {"time": found["passes"] / other["passes"], "memory": found["bytes"] / other["bytes"]}
    return found | ratios | {"against": other, "error": error}


def _joined(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "passes": median([ratio for run in runs for ratio in run["ratios"]]),
        "seconds": median([taken for run in runs for taken in run["seconds"]]),
        "bytes": median([run["bytes"] for run in runs]),
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| task | forward passes | CPU s | MB | time ours / theirs | memory | error |", "|" + "---|" * 7]
    for found in rows:
        compared = ["", "", ""]
        if "against" in found:
            compared = [f"{found['time']:.2f}", f"{found['memory']:.2f}", f"{found['error']:.0e}"]
        numbers = [f"{found['passes']:.0f}", f"{found['seconds']:.2f}", f"{found['bytes'] / 1e6:.0f}"]
        lines.append(f"| {' | '.join([found['task'], *numbers, *compared])} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="source folder of another version")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seconds", type=float, default=4.0, help="per process, beyond three calls")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side")
    parser.add_argument("--json", type=Path, help="where the numbers go; a table of the same name goes beside them")
    parser.add_argument("--side", choices=TASKS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side is not None:
        torch.set_num_threads(1)
        print(json.dumps(side(asked.side, asked.seconds)))
        return
    rows = list[dict[str, Any]]()
    for name in asked.tasks:
        rows.append(row(HERE.parent / "src", asked.against, name, asked.seconds, asked.rounds))
        print(*table(rows[-1:])[2:], sep="\n", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
        asked.json.with_suffix(".md").write_text("\n".join(table(rows)) + "\n")


if __name__ == "__main__":
    main()
