"""One side of the benchmark of sweeps of a real model: `python real_sweep_side.py SIDE FOLDER`.

SIDE is `glassformer` or `transformer_lens`; the file runs in the environment of either and imports nothing of the
other. A line on standard input asks for a sweep, a line on standard output answers, both JSON:

    {"kind": "heads", "base": [ids], "donor": [ids], "answer": id, "wrong": id}
    {"values": [number per row], "cpu": seconds, "wall": seconds, "version": "…"}
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

Sweep = Callable[[dict[str, Any]], list[float]]


def glassformer_side(folder: str) -> Sweep:
    import glassformer as gf
    from glassformer.analysis.sweep import Donor, grid, logit_difference, sweep
    from glassformer.trace import At, Set

    model: Any = gf.load(folder, dtype=torch.float32)
    config = model.config
    layers, heads = range(len(config.layers)), range(config.layers[0].parts[0].n_heads)

    def run(asked: dict[str, Any]) -> list[float]:
        base, donor = torch.tensor([asked["base"]]), Donor(torch.tensor([asked["donor"]]))
        if asked["kind"] == "heads":
            plan = grid(
                lambda layer, head: [Set(f"blocks.{layer}.attn.z", donor, at=At(head=head))], layer=layers, head=heads
            )
        else:
            plan = grid(
                lambda layer, pos: [Set(f"blocks.{layer}.resid_pre", donor, at=At(pos=pos))],
                layer=layers, pos=range(base.shape[1]),
            )  # fmt: skip
        found = sweep(model, base, plan, logit_difference(asked["answer"], asked["wrong"]))
        return found.values.values.flatten().tolist()

    return run


def transformer_lens_side(folder: str) -> Sweep:
    from transformer_lens import patching  # pyright: ignore[reportMissingImports]
    from transformer_lens.model_bridge.sources import (  # pyright: ignore[reportMissingImports]
        build_bridge_from_module,
    )
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]

    patching.tqdm = lambda items: items
    inner: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model: Any = build_bridge_from_module(inner, inner.config.architectures[0], hf_config=inner.config).eval()

    def run(asked: dict[str, Any]) -> list[float]:
        base, donor = torch.tensor([asked["base"]]), torch.tensor([asked["donor"]])

        def metric(logits: torch.Tensor) -> torch.Tensor:
            return logits[0, -1, asked["answer"]] - logits[0, -1, asked["wrong"]]

        cache = model.run_with_cache(donor)[1]
        sweeps = {"heads": patching.get_act_patch_attn_head_out_all_pos, "stream": patching.get_act_patch_resid_pre}
        return sweeps[asked["kind"]](model, base, cache, metric).flatten().tolist()

    return run


SIDES = {"glassformer": glassformer_side, "transformer_lens": transformer_lens_side}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("folder", help="the model, in the layout of Hugging Face")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    # what a package prints is no answer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run, of = SIDES[asked.side](asked.folder), f"{asked.side} {version(asked.side.replace('_', '-'))}"
    with torch.no_grad():
        for line in sys.stdin:
            cpu, wall = time.process_time(), time.perf_counter()
            values = run(json.loads(line))
            taken = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
            print(json.dumps({"values": values, **taken, "version": of}), file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main())
