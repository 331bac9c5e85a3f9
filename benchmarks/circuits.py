"""Composition and copying against TransformerLens: time by way of plain PyTorch, peak memory, and whether they agree.

python circuits.py --peer-python ENV/bin/python [ENV2/bin/python …] [--shapes 2-layer gpt2-small] [--json FILE]

Each peer lives in an environment of its own; nothing of it is needed here. Both sides run `circuit_side.py` in
processes of their own, where they take turns with the same plain PyTorch on the same random weights. What is compared
are the two ratios to that, so that it matters little how busy the machine was in either process. Finished processes
leave their result in --work and are not run again.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from circuit_side import NAIVE
from run import machine

# times faster and times less memory; of copying in a narrow model no more than the arithmetic allows (README)
# composition's memory is missed in the small shape, and its aim stays
AIMS = {
    ("composition", "gpt2-small"): (20.0, 20.0), ("copying", "gpt2-small"): (25.0, 20.0),
    ("composition", "2-layer"): (20.0, 20.0), ("copying", "2-layer"): (4.0, 1.5),
}  # fmt: skip
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", nargs="+", type=Path, default=[], help="interpreters that have the peer")
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=list(dict.fromkeys(shape for _, shape in AIMS)),
        default=["2-layer", "gpt2-small"],
    )
    parser.add_argument("--rounds", type=int, default=40, help="of the small shape; the large one takes an eighth")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--work", type=Path, default=Path("/tmp/circuits"))
    parser.add_argument("--large", type=Path, nargs="*", default=[], help="results of circuits_large.py to add")
    parser.add_argument("--json", type=Path, help="where the numbers go; a table of the same name goes beside them")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for shape in asked.shapes:
        for task in NAIVE:
            ours = {mode: side(asked, Path(sys.executable), "glassformer", task, shape, mode) for mode in MODES}
            for python in asked.peer_python:
                theirs = {mode: side(asked, python, "transformer_lens", task, shape, mode) for mode in MODES}
                rows.append(row(task, shape, ours, theirs))
                print(*table(rows[-1:])[2:], sep="\n", flush=True)
    large = [json.loads(path.read_text()) for path in asked.large]
    result = {"machine": machine(), "rows": rows, "large": large}
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
        asked.json.with_suffix(".md").write_text("\n".join(table(rows)) + "\n")
    print("\n".join(table(rows)))


MODES = ("memory", "time")


def side(asked: Any, python: Path, name: str, task: str, shape: str, mode: str) -> dict[str, Any]:
    """Run one process, unless its result is there."""
    out = asked.work / f"{name}-{python.parent.parent.name}-{task}-{shape}-{mode}.pt"
    if not out.exists():
        rounds = asked.rounds if shape != "gpt2-small" else max(3, asked.rounds // 8)
        command = [str(python), str(HERE / "circuit_side.py"), name, task, shape, mode, str(out)]
        command += ["--rounds", str(rounds), "--seconds", str(asked.seconds)]
        # how both sides are timed is this tree's; of the package a peer's environment needs nothing else
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent / "src")}
        subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
    return torch.load(out)


def row(task: str, shape: str, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of one task and one peer."""
    spent = {who: found["time"]["comparison"] for who, found in (("ours", ours), ("theirs", theirs))}
    faster = {clock: spent["theirs"][clock]["median"] / spent["ours"][clock]["median"] for clock in ("cpu", "wall")}
    # the quartiles of either ratio, put together the unfavourable and the favourable way
    low, high = (
        spent["theirs"]["cpu"][a] / spent["ours"]["cpu"][b]
        for a, b in (("first_quartile", "third_quartile"), ("third_quartile", "first_quartile"))
    )
    memory = {who: found["memory"]["bytes"] for who, found in (("ours", ours), ("theirs", theirs))}
    aim, memory_aim = AIMS[task, shape]
    return {
        "task": task, "shape": shape, "peer": theirs["time"]["version"], "faster": faster,
        "faster_quartiles": [low, high], "aim": aim, "bytes": memory,
        "memory_ratio": memory["theirs"] / max(memory["ours"], 1.0), "memory_aim": memory_aim,
        "difference": difference(task, ours["memory"]["values"], theirs["memory"]["values"]),
        "seconds": {who: {"cpu": t["subject"][0], "wall": t["subject"][1]} for who, t in spent.items()},
        "base_seconds": {who: {"cpu": t["baseline"][0], "wall": t["baseline"][1]} for who, t in spent.items()},
        "rounds": {who: t["rounds"] for who, t in spent.items()},
        "load": {"ours": ours["time"]["load"], "theirs": theirs["time"]["load"]},
    }  # fmt: skip


def difference(task: str, ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference, relative to the root mean square of the peer's; eigenvalues as sums of powers."""
    if task == "copying":
        scale = theirs.abs().amax()
        ours, theirs = (torch.stack([(u / scale) ** k for k in (1, 2, 3)]).sum(-1) for u in (ours, theirs))
    error, size = (ours - theirs).abs().max(), theirs.abs().square().mean().sqrt()
    assert error < 1e-4 * max(1.0, float(size)), f"{task}: results differ by {error:.3g}"
    return float(error / size)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    head = "task | shape | peer | faster (CPU) | quartiles | faster (wall) | aim | memory, peer / ours | aim | equal to"
    lines = [f"| {head} |", "|" + "---|" * len(head.split("|"))]
    for r in rows:
        memory = f"{r['bytes']['theirs'] / 2**20:.0f} / {r['bytes']['ours'] / 2**20:.1f} MiB = {r['memory_ratio']:.3g}"
        cells = (
            r["task"], r["shape"], r["peer"], f"{r['faster']['cpu']:.1f}",
            "-".join(f"{q:.1f}" for q in r["faster_quartiles"]), f"{r['faster']['wall']:.1f}", f"≥ {r['aim']:g}",
            memory, f"≥ {r['memory_aim']:g}", f"{r['difference']:.1g}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


if __name__ == "__main__":
    main()
