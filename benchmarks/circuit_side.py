"""One process of the circuits benchmark: `python circuit_side.py SIDE TASK SHAPE MODE OUT [--seconds S]`.

SIDE is `glassformer` or `transformer_lens`; the file runs in the environment of either and imports nothing of the
other. Weights are random and the same everywhere. MODE `time` compares with plain PyTorch in this process, `memory`
makes one call and keeps what it returned (its time too). OUT gets a dictionary, saved by torch.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.bench.paired import compare


@dataclass(frozen=True)
class Shape:
    n_layers: int
    n_heads: int
    d_model: int
    vocab: int

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


SHAPES = {
    "gpt2-small": Shape(12, 12, 768, 50257),
    "2-layer": Shape(2, 8, 256, 4096),
    "tiny": Shape(3, 2, 16, 50),
}
Weights = dict[str, Tensor]


def draw(shape: Shape) -> Weights:
    """Return random matrices: Q, K, V `layer head d_model d_head`, O `layer head d_head d_model`, E and U."""
    generator = torch.Generator().manual_seed(0)
    per_head = (shape.n_layers, shape.n_heads, shape.d_model, shape.d_head)
    sizes = dict.fromkeys("QKV", per_head) | {"O": (*per_head[:2], shape.d_head, shape.d_model)}
    sizes |= {"E": (shape.vocab, shape.d_model), "U": (shape.d_model, shape.vocab)}
    return {name: torch.randn(size, generator=generator) / shape.d_model**0.5 for name, size in sizes.items()}


# ---- plain PyTorch, the same in every process


def naive_composition(w: Weights) -> list[Tensor]:
    """Return all three scores of all pairs of heads of the first two layers, matrix by matrix."""
    found = []
    for first in range(w["Q"].shape[1]):
        ov = w["V"][0, first] @ w["O"][0, first]
        for second in range(w["Q"].shape[1]):
            qk = w["Q"][1, second] @ w["K"][1, second].T
            later = w["V"][1, second] @ w["O"][1, second]
            for read in (qk, qk.T, later):
                found.append((ov @ read).norm() / (ov.norm() * read.norm()))
    return found


def naive_copying(w: Weights) -> list[Tensor]:
    """Return eigenvalues of the full OV circuit of two heads, through the vocabulary."""
    return [torch.linalg.eigvals((w["O"][0, h] @ w["U"]) @ (w["E"] @ w["V"][0, h])) for h in range(2)]


NAIVE: dict[str, Callable[[Weights], Any]] = {"composition": naive_composition, "copying": naive_copying}


# ---- the two sides: each task returns a function of no arguments and what turns its result into common numbers


def random_model(shape: Shape, w: Weights) -> Any:
    """Return an attention-only model without norms that has these matrices."""
    from glassformer.models import DecoderConfig, NoNorm, block

    part = block(n_heads=shape.n_heads, norm=NoNorm())
    layers = (part,) * shape.n_layers
    model: Any = DecoderConfig(
        shape.vocab, shape.d_model, layers, max_len=64, final_norm=NoNorm(), tied=False
    ).build()  # fmt: skip
    with torch.no_grad():
        model.embed.weight.copy_(w["E"])
        model.unembed.weight.copy_(w["U"].T)
        for i, layer in enumerate(model.stack.blocks):
            layer.attn.projection.qkv.weight.copy_(torch.cat([w[name][i].mT.flatten(0, 1) for name in "QKV"]))
            layer.attn.merge.output.weight.copy_(w["O"][i].flatten(0, 1).T)
    return model.eval()


def glassformer_side(task: str, shape: Shape, w: Weights) -> tuple[Callable[[], Any], Callable[[Any], Tensor]]:
    from glassformer import weights
    from glassformer.analysis.from_weights import composition, copying

    own = weights.of(random_model(shape, w))
    if task == "composition":
        n = shape.n_layers, shape.n_heads
        # the peers draw no random matrices
        return lambda: composition(own, draws=0), lambda r: r.scores.values.nan_to_num().view(3, *n, *n)
    return lambda: copying(own), lambda r: r.eigenvalues.values.view(shape.n_layers, shape.n_heads, -1)


def transformer_lens_side(task: str, shape: Shape, w: Weights) -> tuple[Callable[[], Any], Callable[[Any], Tensor]]:
    # lives in an environment of its own
    import transformer_lens  # pyright: ignore[reportMissingImports]

    settings: dict[str, Any] = {
        "n_layers": shape.n_layers, "n_heads": shape.n_heads, "d_model": shape.d_model, "d_head": shape.d_head,
        "n_ctx": 64, "d_vocab": shape.vocab, "attn_only": True, "normalization_type": None, "act_fn": "gelu",
        "device": "cpu",
    }  # fmt: skip
    model: Any
    if version("transformer_lens").split()[1] < "4":
        model = transformer_lens.HookedTransformer(transformer_lens.HookedTransformerConfig(**settings))
    else:
        from transformer_lens.config import TransformerBridgeConfig  # pyright: ignore[reportMissingImports]
        from transformer_lens.model_bridge.sources import boot_native  # pyright: ignore[reportMissingImports]

        model = boot_native(TransformerBridgeConfig(**settings))
    with torch.no_grad():
        model.embed.W_E.copy_(w["E"])
        model.unembed.W_U.copy_(w["U"])
        for i, layer in enumerate(model.blocks):
            for name in "QKVO":
                getattr(layer.attn, f"W_{name}").copy_(w[name][i])
    for name in "QKVO":
        assert torch.equal(getattr(model, f"W_{name}"), w[name]), f"the peer's W_{name} is not what was drawn"
    if task == "composition":
        scores = lambda kind: getattr(found := model.all_composition_scores(kind), "scores", found)  # noqa: E731
        return lambda: [scores(kind) for kind in "QKV"], lambda r: torch.stack(r)
    return lambda: (model.W_E @ model.OV @ model.W_U).eigenvalues, lambda r: r


SIDES = {"glassformer": glassformer_side, "transformer_lens": transformer_lens_side}


def memory_of(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and by how many bytes it raised the memory of this process at its peak."""
    # so that what was loaded and freed before does not count
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    result = run()
    return result, _status("VmHWM") - before


def _status(key: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return 1024.0 * float(line.split()[1])


def version(side: str) -> str:
    from importlib.metadata import version as installed

    return f"{side} {installed('glassformer' if side == 'glassformer' else 'transformer-lens')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("task", choices=NAIVE)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("mode", choices=["time", "memory"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time, beyond five rounds")
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    shape = SHAPES[asked.shape]
    w = draw(shape)
    with torch.no_grad():
        run, common = SIDES[asked.side](asked.task, shape, w)
        found: dict[str, Any] = {"version": version(asked.side), "torch": str(torch.__version__)}
        found["load"] = os.getloadavg()
        if asked.mode == "memory":
            # what a first call loads is no part of what the computation needs
            SIDES[asked.side](asked.task, SHAPES["tiny"], draw(SHAPES["tiny"]))[0]()
            cpu, wall = time.process_time(), time.perf_counter()
            result, found["bytes"] = memory_of(run)
            found |= {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
            found["values"] = common(result)
        else:
            started = time.perf_counter()
            base = lambda: NAIVE[asked.task](w)  # noqa: E731
            measured = compare(run, base, rounds=asked.rounds, seconds=asked.seconds, warmup=int(asked.rounds > 5))
            found |= {"comparison": json.loads(json.dumps(asdict(measured))), "took": time.perf_counter() - started}
            found["maxrss"] = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.save(found, asked.out)


if __name__ == "__main__":
    sys.exit(main())
