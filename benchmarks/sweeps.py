"""Sweeps, logit lens and direct effects against TransformerLens and nnsight: time by way of plain PyTorch, memory.

python sweeps.py --peers transformer_lens=ENV/bin/python nnsight=ENV2/bin/python [--tasks resid-16 …] [--json FILE]

Each peer lives in an environment of its own; nothing of it is needed here. Every side and task is a process of its own
(`sweep_side.py`), which takes turns with the same plain PyTorch forward pass on the same random weights: what is
compared are the two ratios to that. Finished processes leave their result in --work and are not run again. Shapes and
sizes for how our own time grows are in `sweeps_growth.py`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from run import machine
from sweep_side import TASKS

AIMS = {"resid": 6.0, "z": 6.0, "blocks": 6.0, "lens": 2.0, "dla": 20.0}
NNSIGHT_AIM = 3.0
# times less memory; one row at a time, as a peer may run them, needs no more than a clean run and a row (README)
MEMORY_AIM = 2.0
LEAN_PEERS = {
    ("transformer_lens 4", "resid"): 1.0, ("transformer_lens 4", "z"): 1.0, ("transformer_lens 4", "blocks"): 0.8,
    ("nnsight 0", "resid"): 1 / 0.6,
}  # fmt: skip
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", default=[], help="NAME=interpreter that has the peer")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--shape", default="gpt2-small")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60.0, help="per side, task and number of threads")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", type=Path, default=Path("/tmp/sweeps"))
    parser.add_argument("--kept", action="store_true", help="run nothing: set beside each other what --work holds")
    parser.add_argument("--growth", type=Path, help="result of sweeps_growth.py to add")
    parser.add_argument("--json", type=Path, help="where the numbers go; a table of the same name goes beside them")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for task in asked.tasks:
        peers = [pair.split("=") for pair in asked.peers]
        theirs = [side(asked, Path(python), name, task) for name, python in peers]
        ours = side(asked, Path(sys.executable), "glassformer", task)
        for peer in theirs:
            if peer is None or ours is None:
                continue
            both = [threads for threads in asked.threads if threads in ours["times"] and threads in peer["times"]]
            rows += [row(task, asked.shape, threads, ours, peer) for threads in both]
            print(*table(rows[-len(both) :])[2:] if both else [], sep="\n", flush=True)
    growth = None if asked.growth is None else json.loads(asked.growth.read_text())
    result = {"machine": machine(), "rows": rows, "growth": growth}
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
        lines = table(rows) + ([] if growth is None else ["", *growth_tables(growth)])
        asked.json.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(table(rows)))


def side(asked: Any, python: Path, name: str, task: str) -> dict[str, Any] | None:
    """Run one process, unless its result is there; None if the side does not do this task, or has not yet."""
    if name == "nnsight" and TASKS[task].kind != "resid":
        return None
    out = asked.work / f"{name}-{python.parent.parent.name}-{task}-{asked.shape}.pt"
    if not asked.kept and not (out.exists() and set(asked.threads) <= set(torch.load(out)["times"])):
        command = [str(python), str(HERE / "sweep_side.py"), name, task, asked.shape, str(out)]
        command += ["--rounds", str(asked.rounds), "--seconds", str(asked.seconds)]
        command += ["--threads", *map(str, asked.threads)]
        # a thread that spins while it waits takes the time of a core that someone else may have
        environment = os.environ | {"OMP_NUM_THREADS": str(max(asked.threads)), "OMP_WAIT_POLICY": "passive"}
        # how both sides are timed is this tree's; of the package a peer's environment needs nothing else
        environment |= {"PYTHONPATH": str(HERE.parent / "src")}
        subprocess.run(command, check=True, env=environment)
    return torch.load(out) if out.exists() else None


def row(task: str, shape: str, threads: int, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of one task and one peer."""
    spent = {who: found["times"][threads] for who, found in (("ours", ours), ("theirs", theirs))}
    faster = {clock: spent["theirs"][clock]["median"] / spent["ours"][clock]["median"] for clock in ("cpu", "wall")}
    # the quartiles of either ratio, put together the unfavourable and the favourable way
    low, high = (
        spent["theirs"]["cpu"][a] / spent["ours"]["cpu"][b]
        for a, b in (("first_quartile", "third_quartile"), ("third_quartile", "first_quartile"))
    )
    memory = {who: found["bytes"] for who, found in (("ours", ours), ("theirs", theirs))}
    memory_aim = LEAN_PEERS.get((theirs["version"].split(".")[0], TASKS[task].kind), MEMORY_AIM)
    return {
        "task": task, "shape": shape, "threads": threads, "peer": theirs["version"], "faster": faster,
        "faster_quartiles": [low, high], "bytes": memory, "memory_ratio": memory["theirs"] / max(memory["ours"], 1.0),
        "aim": NNSIGHT_AIM if theirs["version"].startswith("nnsight") else AIMS[TASKS[task].kind],
        "memory_aim": memory_aim, "difference": difference(task, ours, theirs),
        "forward_passes": {who: t["cpu"]["median"] for who, t in spent.items()},
        "seconds": {who: {"cpu": t["subject"][0], "wall": t["subject"][1]} for who, t in spent.items()},
        "rows": theirs["count"], "rows_of_peer_timed": len(theirs["rows"]), "notes": ours["notes"] | theirs["notes"],
        "rounds": {who: t["rounds"] for who, t in spent.items()},
        "load": {who: t["load"] for who, t in spent.items()},
    }  # fmt: skip


def difference(task: str, ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Return the largest difference, as a share of the root mean square of the peer's; of tokens, how many differ."""
    mine, other = ours["values"], theirs["values"]
    if TASKS[task].kind == "lens":
        # near ties may change places
        share = float((mine != other).float().mean())
        assert share < 1e-3, f"{task}: {share:.2%} of the likeliest tokens differ"
        return share
    if theirs["count"] > 1:
        mine = mine[theirs["first"]]
    error, size = (mine - other).abs().max(), other.square().mean().sqrt()
    assert error < 1e-4 * size, f"{task}: results differ by {error:.3g} of {size:.3g}"
    return float(error / size)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    head = "task | threads | peer | faster (CPU) | quartiles | faster (wall) | aim | forward passes, peer / ours | "
    head += "memory, peer / ours | aim | equal to | rounds, peer / ours"
    lines = [f"| {head} |", "|" + "---|" * len(head.split("|"))]
    for r in rows:
        theirs, ours = (r["bytes"][who] / 2**20 for who in ("theirs", "ours"))
        cells = (
            r["task"], r["threads"], r["peer"], f"{r['faster']['cpu']:.3g}",
            "-".join(f"{q:.3g}" for q in r["faster_quartiles"]), f"{r['faster']['wall']:.3g}", f"≥ {r['aim']:g}",
            f"{r['forward_passes']['theirs']:.3g} / {r['forward_passes']['ours']:.3g}",
            f"{theirs:.0f} / {ours:.0f} MiB = {r['memory_ratio']:.3g}", f"≥ {r['memory_aim']:g}",
            f"{r['difference']:.1g}", f"{r['rounds']['theirs']} / {r['rounds']['ours']}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def growth_tables(growth: dict[str, Any]) -> list[str]:
    """Return the lines of two tables: what sweeps multiply, and how their time grows."""
    lines = ["| sweep | FLOPs of the plain loop | share that ours takes | passes |", "|---|---|---|---|"]
    lines += [
        f"| {row['task']} | {row['plain_loop']:.3g} | {row['share']:.3f} | {row['passes']} |" for row in growth["work"]
    ]
    lines += ["", "| by | value | rows | forward passes | quartiles | per row |", "|---|---|---|---|---|---|"]
    for row in growth["growth"]:
        low, high = row["quartiles"]
        cells = (row["by"], row["value"], row["rows"], f"{row['forward_passes']:.1f}", f"{low:.1f}-{high:.1f}")
        lines.append("| " + " | ".join(map(str, (*cells, f"{row['per_row']:.3f}"))) + " |")
    return lines


if __name__ == "__main__":
    main()
