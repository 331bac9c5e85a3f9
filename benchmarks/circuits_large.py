"""Composition scores of a model read from disk one layer at a time, and token pairs of whole vocabularies.

python circuits_large.py write FOLDER [--tiny]            a random checkpoint, bf16, attention of Llama 3 8B's shape
python circuits_large.py score FOLDER [--json FILE]       all composition scores: time, memory, a check of some
python circuits_large.py pairs [--heads N] [--json FILE]  the 100 largest entries of full QK and OV circuits
"""

import argparse
import json
import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from circuit_side import SHAPES, draw, memory_of, random_model
from glassformer import weights
from glassformer.analysis.from_weights import composition
from glassformer.attention import Rope
from glassformer.checkpoints import AttentionReader, save_shards
from glassformer.models import DecoderConfig, RmsNorm, block

BUDGET = 3 << 29  # bytes of Gram matrices


def config(tiny: bool) -> DecoderConfig:
    """Return attention of the shape of Llama 3 8B; MLPs and a large vocabulary play no part in composition."""
    sizes = (4, 8, 2, 16) if tiny else (32, 32, 8, 128)
    n_layers, n_heads, n_kv_heads, d_head = sizes
    part = block(n_heads=n_heads, n_kv_heads=n_kv_heads, positions=Rope(base=500000.0), norm=RmsNorm())
    return DecoderConfig(256, n_heads * d_head, (part,) * n_layers, max_len=8192, final_norm=RmsNorm())


class RandomShards(Sequence[dict[str, Tensor]]):
    """One file for each layer, drawn when it is asked for."""

    def __init__(self, of: DecoderConfig) -> None:
        with torch.device("meta"):
            self.shapes = {name: value.shape for name, value in of.build().state_dict().items()}
        self.n_layers = len(of.layers)

    def __len__(self) -> int:
        return self.n_layers + 1

    def __getitem__(self, i: int) -> dict[str, Tensor]:  # type: ignore[override]
        generator = torch.Generator().manual_seed(i)
        mine = [n for n in self.shapes if (f"stack.blocks.{i}." in n or (i == self.n_layers and "blocks" not in n))]
        drawn = {n: torch.randn(self.shapes[n], generator=generator) for n in mine}
        # gains about one, matrices of a usual size
        return {n: (1 + 0.1 * v if v.ndim == 1 else 0.02 * v).bfloat16() for n, v in drawn.items()}

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[i] for i in range(len(self)))


def score(folder: Path) -> dict[str, Any]:
    """Return time and memory of all composition scores, and the largest error of a sample against dense products."""
    reader = AttentionReader(folder)
    load = os.getloadavg()
    cpu, wall = time.process_time(), time.perf_counter()
    found, grown = memory_of(lambda: composition(reader, draws=0, budget=BUDGET))
    spent = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
    n = len(reader)
    errors = [abs(got - exact) / exact for got, exact in _sample(reader, found, [(0, n - 1), (n // 2, n // 2 + 1)])]
    return {
        "task": "scores", "shape": "Llama 3 8B" if n == 32 else "tiny", "heads": found.scores.size("earlier"),
        "scores": int(found.scores.values.isfinite().sum()), **spent,
        "peak_bytes_beyond_start": grown, "max_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "budget_bytes": BUDGET, "largest_relative_error_of_sample": max(errors), "sample": len(errors),
        "threads": torch.get_num_threads(), "load": load,
    }  # fmt: skip


def _sample(reader: AttentionReader, found: Any, layers: Sequence[tuple[int, int]]) -> Iterator[tuple[float, float]]:
    """Yield scores found, and the same in float64 from products of the matrices, offset by offset."""
    for i, j in layers:
        first, second = reader[i], reader[j]
        g, h = 1, len(second.Q) - 2
        kv = int(second.group[h])
        value, write = first.V[first.group[g]].double(), first.O[g].double()
        query, key, later, out = (u.double() for u in (second.Q[h], second.K[kv], second.V[kv], second.O[h]))
        turned = [second.module.positions.turned(query, offset) for offset in found.offsets]
        reads = {"Q": [(q, key) for q in turned], "K": [(key, q) for q in turned], "V": [(later, out.mT)]}
        for kind, pairs in reads.items():
            met = sum(_norm(value, (write @ a) @ b.mT) for a, b in pairs)
            exact = (met / (_norm(value, write) * sum(_norm(a, b.mT) for a, b in pairs))) ** 0.5
            at = {"kind": kind, "earlier": first.labels[g], "later": second.labels[h]}
            yield float(found.scores.select(**at).values), exact


def _norm(left: Tensor, right: Tensor) -> float:
    """Return the squared norm of a product of thin matrices."""
    return float(torch.einsum("ab,ab->", left.mT @ left, right @ right.mT))


def pairs(heads: int | None, shape: str) -> dict[str, Any]:
    """Return time and memory of the 100 largest entries of full QK and OV circuits over the whole vocabulary."""
    sizes = SHAPES[shape]
    own = weights.of(random_model(sizes, draw(sizes)))
    labels = own.labels[:heads]

    def all_pairs() -> int:
        n = 0
        for label in labels:
            for circuit in (own.full_qk(label), own.full_ov(label)):
                n += circuit.top(100).values.numel()
        return n

    load = os.getloadavg()
    cpu, wall = time.process_time(), time.perf_counter()
    n, grown = memory_of(all_pairs)
    return {
        "task": "pairs", "shape": shape, "heads": len(labels), "entries": n, "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall, "peak_bytes_beyond_start": grown,
        "bytes_of_one_dense_circuit": 4.0 * sizes.vocab**2, "threads": torch.get_num_threads(), "load": load,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "score", "pairs"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--heads", type=int)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2-small")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with torch.no_grad():
        if asked.what == "write":
            of = config(asked.tiny)
            save_shards(of, RandomShards(of), asked.folder)
            return
        found = score(asked.folder) if asked.what == "score" else pairs(asked.heads, asked.shape)
    print(json.dumps(found, indent=1))
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
