"""What analyses of edges measure on small random models of every wiring, as numbers that can be stored.

`python tests/edge_recordings.py` writes them to `tests/golden/edges.json`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from circuit_pairs import Compared
from glassformer.analysis.circuits import acdc, attribute_edges, edge_effects, path_patching
from glassformer.attention import Differential, Merge, QueryKeyNorm, QueryKeyOnly, Rope
from glassformer.models import (
    DecoderConfig,
    EncoderDecoderConfig,
    LayerNorm,
    Learned,
    Mlp,
    ModelConfig,
    NoNorm,
    RmsNorm,
    block,
)
from glassformer.testing.models import drawn

STORED = Path(__file__).parent / "golden" / "edges.json"

_SIZES: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "max_len": 24}
_MLP = Mlp(10, "gelu_tanh")


def _decoder(*layers: Any, **kwargs: Any) -> DecoderConfig:
    return DecoderConfig(layers=layers, **(_SIZES | kwargs))


def _translator(wiring: Any, **kwargs: Any) -> EncoderDecoderConfig:
    shared: dict[str, Any] = {"n_heads": 2, "mlp": _MLP, "bias": True, "wiring": wiring}
    layers = {"encoder_layers": (block(**shared),), "decoder_layers": (block(cross=True, **shared),) * 2}
    return EncoderDecoderConfig(**layers, **(_SIZES | kwargs))


RECORDED: dict[str, ModelConfig] = {
    "grouped": _decoder(
        *[block(n_heads=4, n_kv_heads=2, positions=Rope(), norm=RmsNorm(), mlp=_MLP)] * 2, d_model=16,
        final_norm=RmsNorm(),
    ),
    "norms_over_all_heads": _decoder(
        *[block(n_heads=4, n_kv_heads=2, qk_norm=QueryKeyNorm(over="all", bias=True), bias=True, mlp=_MLP)] * 2,
        d_model=16, positions=Learned(),
    ),
    "gated": _decoder(
        block(n_heads=2, merge=Merge(norm="all", gate="sigmoid"), mlp=_MLP),
        block(Differential(), n_heads=2, merge=Merge(gate="silu", bias=True), positions=QueryKeyOnly(), mlp=_MLP),
        positions=Learned(),
    ),
    "parallel": _decoder(
        *[block(n_heads=2, positions=Rope(), mlp=_MLP, wiring="parallel", shared_norm=True)] * 3, embed_norm=LayerNorm()
    ),
    "sandwich": _decoder(
        *[block(n_heads=2, positions=Rope(), mlp=_MLP, wiring="sandwich", norm=RmsNorm())] * 2, final_norm=RmsNorm()
    ),
    "post": _decoder(
        *[block(n_heads=2, mlp=_MLP, wiring="post", bias=True)] * 2, positions=Learned(), final_norm=NoNorm()
    ),
    "translator_pre": _translator("pre", final_norm=LayerNorm()),
    "translator_post": _translator("post"),
}  # fmt: skip
# a head's keys alone; two receivers of one layer; receivers of two layers
RECEIVERS: dict[str, list[str]] = {
    "logits": ["logits"],
    "keys": ["L1H1.k"],
    "one layer": ["L1H0.q", "L1H1.v", "L1 mlp.in"],
    "two layers": ["L0H1.v", "L1H0.k", "L1H1.q", "logits"],
}


def recorded_pair(name: str) -> Compared:
    """Return one of the models, random, with two random prompts."""
    return Compared(drawn(name, RECORDED[name], batch=2, length=5, seed=3), seed=12)


def recording(name: str) -> dict[str, list[float]]:
    """Return what every analysis of edges measures, mean over prompts."""
    found = recorded_pair(name)
    kept: dict[str, Tensor] = {}
    every = edge_effects(*found.args)
    kept["edges, live"] = every.effect.values.mean(-1)
    # each by itself: what others do in the same pass is no concern of an edge
    alone = [edge_effects(*found.args, edges=[edge], norm="frozen") for edge in every.edges[::4]]
    kept["edges, frozen"] = torch.cat([one.effect.values for one in alone]).mean(-1)
    for norm in ("live", "frozen"):
        for what, receivers in RECEIVERS.items():
            for mlps in ("frozen", "recomputed"):
                effect = path_patching(
                    *found.args, receivers=receivers, mlps=mlps, norm=norm
                ).effect  # fmt: skip
                kept[f"paths to {what}, norms {norm}, mlps {mlps}"] = effect.values.mean(-1)
    for at in ("clean", "corrupt", "inputs"):
        scores = attribute_edges(*found.args, gradient_at=at, steps=3).effect.values
        kept[f"attribution, {at}"] = scores[~scores.isnan()]
    # more digits than a comparison to 1e-9 of their size can see are not kept
    listed = {what: [float(f"{value:.12g}") for value in values.tolist()] for what, values in kept.items()}
    pruned = acdc(*found.args, threshold=0.002)
    listed["acdc, changes"] = [float(f"{step.change:.12g}") for step in pruned.log]
    listed["acdc, removed"] = [float(step.removed) for step in pruned.log]
    return listed


if __name__ == "__main__":
    texts = [f"{json.dumps(name)}: {json.dumps(recording(name))}" for name in RECORDED]
    STORED.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")
