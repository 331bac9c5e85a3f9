"""How the time and work of our sweeps grow with layers, positions and rows: `python sweeps_growth.py OUT`.

Work is counted in FLOPs of matrix products, by torch's counter, and set beside the plain loop of one forward pass per
row. Time is CPU time of one thread, as a ratio to one forward pass of plain PyTorch in the same process.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from glassformer.bench.paired import Timing, compare_timed
from sweep_models import SHAPES, Shape, draw, forward
from sweep_side import Job, Task, glassformer_side, prompts, timed

SMALL = Shape(4, 4, 256, 4096)


def flops(run: Any) -> int:
    """Return the FLOPs of matrix products in a call; those of attention between positions are left out."""

    def product(x_shape: Any, weight_shape: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return 2 * x_shape.numel() * weight_shape[0]

    with FlopCounterMode(display=False, custom_mapping={torch.ops.mkldnn._linear_pointwise: product}) as counter:
        run()
    counts: dict[Any, int] = counter.get_flop_counts()["Global"]
    return sum(count for kind, count in counts.items() if "attention" not in str(kind))


def work(name: str, task: Task, shape: Shape) -> dict[str, Any]:
    """Return what a sweep multiplies, as a share of the plain loop."""
    w = draw(shape)
    job, (_, corrupt) = glassformer_side(task, shape, w), prompts(task, shape)
    plain = flops(lambda: forward(w, shape, corrupt)) * task.rows(shape)
    ours = flops(lambda: job.run(job.prepare(), ()))
    return {"task": name, "flops": ours, "plain_loop": plain, "share": ours / plain, **job.notes}


def growth(by: str, value: int, task: Task, shape: Shape, seconds: float) -> dict[str, Any]:
    """Return the time of one sweep beside that of one forward pass."""
    w = draw(shape)
    job: Job = glassformer_side(task, shape, w)
    _, corrupt = prompts(task, shape)
    passes = max(1, round(0.2 / timed(lambda: forward(w, shape, corrupt)).cpu))
    job.run(job.prepare(), ())

    def base() -> Timing:
        return Timing(*(t / passes for t in timed(lambda: [forward(w, shape, corrupt) for _ in range(passes)])))

    found = compare_timed(lambda: timed(lambda: job.run(job.prepare(), ())), base, rounds=9, seconds=seconds)
    rows = task.rows(shape)
    return {
        "by": by, "value": value, "rows": rows, "cpu_seconds": found.subject.cpu, "forward_passes": found.cpu.median,
        "quartiles": [found.cpu.first_quartile, found.cpu.third_quartile], "per_row": found.cpu.median / rows,
        "rounds": found.rounds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="longest time of a case, beyond five rounds")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    large = SHAPES["gpt2-small"]
    with torch.no_grad():
        counted = [
            work(f"{kind}-{length}", Task(kind, length), large)
            for kind, length in (("resid", 16), ("resid", 64), ("z", 16), ("z", 64), ("blocks", 16))
        ]
        cases = [("layers", n, Task("resid", 32), replace(SMALL, n_layers=n)) for n in (2, 4, 8, 16)]
        cases += [("positions", n, Task("resid", n), SMALL) for n in (8, 16, 32, 64, 128)]
        # as many rows as heads, at one depth and length; more heads are narrower, so that the work of a row is the same
        cases += [("rows", 4 * n, Task("z", 32), replace(SMALL, n_heads=n)) for n in (2, 4, 8, 16, 32)]
        grown = [growth(*case, asked.seconds) for case in cases]
    asked.out.write_text(json.dumps({"shape": vars(SMALL), "work": counted, "growth": grown}, indent=1) + "\n")
    for row in (*counted, *grown):
        print(row)


if __name__ == "__main__":
    sys.exit(main())
