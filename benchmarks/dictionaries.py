"""Training sparse autoencoders against sae-lens: time of a step, and peak memory, of each kind.

    python benchmarks/dictionaries.py --peer-python ENV/bin/python --json benchmarks/results/NAME.json

ENV has sae-lens, PyTorch and what this package depends on. Time is measured in one process with both libraries, by
turns (`dictionary_side.py`); memory in a process for each. The first losses of both are compared before any time is
shown, and the last ones stand beside it.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from dictionary_side import KINDS, SHAPES, SIDES
from glassformer.bench.paired import Spread, aim_met, interval_said
from run import machine

# how many times faster, at least, and what is aimed at; how much of their memory, at most, and what is aimed at
FLOORS = {"relu": 1.0, "topk": 1.2, "topk, sparse there": 1.2, "jumprelu": 1.0}
AIMS = {"topk": 1.5, "topk, sparse there": 1.5}
MEMORY_FLOOR, MEMORY_AIM = 0.85, 0.6
CLOSE = 1e-4  # of the first loss, in float32
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path, required=True, help="interpreter of an environment with sae-lens")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["gpt-4l", "gpt2-small"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=120.0, help="longest time of a row, beyond five rounds")
    parser.add_argument("--json", type=Path, help="where the numbers go; a table of the same name goes beside them")
    asked = parser.parse_args()
    rows = list[dict[str, Any]]()
    print(*table([])[:2], sep="\n")
    for shape in asked.shapes:
        for kind in asked.kinds:
            rows.append(row(asked.peer_python, kind, shape, ["--rounds", asked.rounds, "--seconds", asked.seconds]))
            print(*table(rows[-1:])[2:], sep="\n", flush=True)
            if asked.json is not None:
                asked.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
                asked.json.with_suffix(".md").write_text("\n".join(table(rows)) + "\n")


def measured(python: Path, *words: object) -> dict[str, Any]:
    """Return what a process of its own measures."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}
    environment |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    call = [str(python), str(HERE / "dictionary_side.py"), *map(str, words)]
    done = subprocess.run(call, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def row(python: Path, kind: str, shape: str, options: list[object]) -> dict[str, Any]:
    """Return what was measured of one kind at one shape."""
    found = measured(python, "time", kind, shape, *options)
    ours, theirs = found["first_loss"]
    assert abs(ours - theirs) <= CLOSE * abs(theirs), f"{kind}: first losses are {ours:.6g} here and {theirs:.6g} there"
    memory = {side: measured(python, "memory", kind, shape, "--side", side)["bytes"] for side in SIDES}
    # from ratios of time to ratios of speed
    faster = Spread(**found["comparison"]["cpu"]).inverse()
    held = memory["glassformer"] / memory["sae_lens"]
    found_low_high = faster.median, faster.low, faster.high
    speed = dict(zip(("found", "low", "high"), found_low_high, strict=True))
    compared = found["comparison"]
    return {
        "kind": kind, "shape": shape, "peer": found["peer"], "torch": found["torch"], "rounds": compared["rounds"],
        "faster": speed, "same": {name: compared["cpu_same"][name] for name in ("median", "low", "high")},
        # the first of both clocks is that of the CPU
        "seconds": {side: compared[f"{name}_seconds"][0]["median"]
                    for side, name in zip(SIDES, ("subject", "baseline"), strict=True)},
        "floor": FLOORS[kind], "floor_met": aim_met(*found_low_high, FLOORS[kind], at_least=True),
        "aim": AIMS.get(kind), "aim_met": kind in AIMS and aim_met(*found_low_high, AIMS[kind], at_least=True),
        "bytes": memory, "memory": held, "memory_floor": MEMORY_FLOOR, "memory_aim": MEMORY_AIM,
        "memory_floor_met": aim_met(held, held, held, MEMORY_FLOOR, at_least=False),
        "memory_aim_met": aim_met(held, held, held, MEMORY_AIM, at_least=False),
        "last_loss": dict(zip(SIDES, found["last_loss"], strict=True)), "load": found["load"],
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    head = "kind | shape | times faster (CPU) | A/A | floor | aim | memory, ours / theirs | floor | aim | last loss"
    lines = [f"| {head} |", "|" + "---|" * len(head.split("|"))]
    for r in rows:
        shape = SHAPES[r["shape"]]
        ours, theirs = (r["bytes"][side] / 2**20 for side in SIDES)
        cells = (
            r["kind"], f"{shape.d_in} x {shape.n_features}, {shape.batch_size} rows",
            interval_said(*r["faster"].values(), digits=2), interval_said(*r["same"].values(), digits=2),
            f"≥ {r['floor']:g}: {r['floor_met']}", f"≥ {r['aim']:g}: {r['aim_met']}" if r["aim"] else "",
            f"{ours:.0f} / {theirs:.0f} MiB = {r['memory']:.2f}", f"≤ {r['memory_floor']:g}: {r['memory_floor_met']}",
            f"≤ {r['memory_aim']:g}: {r['memory_aim_met']}",
            " / ".join(f"{loss:.4g}" for loss in r["last_loss"].values()),
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


if __name__ == "__main__":
    main()
