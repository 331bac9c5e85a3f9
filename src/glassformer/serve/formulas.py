"""Formulas of the model at hand, as lines of text: how its stream begins and grows, what heads mix, what logits are.

Those of mechanisms are the equations that their modules begin with.
"""

import inspect
import sys
from collections.abc import Iterable, Sequence

from glassformer.attention import Attention, AttentionLayer
from glassformer.models import Model
from glassformer.models.block import BlockConfig
from glassformer.models.mlp import Mlp
from glassformer.models.norms import LayerNorm, NoNorm, NormConfig, RmsNorm, UnitNorm

_NORMS: dict[type[NormConfig], str] = {
    LayerNorm: "N(x) = (x − mean(x)) / √(var(x) + ε) · g",
    RmsNorm: "N(x) = x / √(mean(x²) + ε) · g",
    UnitNorm: "N(x) = x / |x|",
    NoNorm: "N(x) = x",
}
# what positions do inside of attention, of a query and a key i and j
_POSITIONS = {
    "none": "score(i, j) = f(qᵢ, kⱼ)",
    "query_key_only": "q, k ← W (x + p)      v ← W x",
    "rope": "qᵢ · kⱼ ← (R(i) qᵢ) · (R(j) kⱼ)",
    "alibi": "score(i, j) = qᵢ · kⱼ − m · (i − j)",
    "relative_bias": "score(i, j) = qᵢ · kⱼ + b(i − j)",
}


def tokens(vocab: int, n: int) -> list[str]:
    """Return what a text becomes: so many ids of a vocabulary."""
    return [f"c₁ c₂ c₃ … → (t₁, …, tₙ)   n = {n}   tᵢ ∈ {{0, …, {vocab - 1}}}"]


def embedding(adds_positions: bool, layers: Iterable[AttentionLayer]) -> list[str]:
    """Return how a stream begins, and what tells attention of positions; other kinds by their names."""
    kinds = dict.fromkeys(layer.config.positions.kind or "" for layer in layers)
    begun = "xᵢ = E[tᵢ] + P[i]" if adds_positions else "xᵢ = E[tᵢ]"
    return [begun, *(_POSITIONS.get(kind, kind) for kind in kinds)]


def mixer(layer: AttentionLayer) -> list[str]:
    """Return the equation of a mechanism, which its module begins with."""
    about = inspect.getdoc(sys.modules[type(layer.config.mixer).__module__]) or ""
    equation = next((part for part in about.split("\n\n") if part.startswith("    ")), "")
    return inspect.cleandoc(equation).splitlines()


def heads(layer: AttentionLayer) -> list[str]:
    """Return what the heads of a layer write together."""
    own, merge = layer.dims, layer.config.merge
    mixed = "zₕ" if merge.norm is None else "N(zₕ)"
    mixed = mixed if merge.gate is None else f"({mixed} · {merge.gate}(x W_G))"
    written = f"out = Σₕ {mixed} W_Oʰ" if merge.output else f"out = {mixed.replace('zₕ', '[z₁ z₂ …]')}"
    return [written + (" + b" if merge.bias else ""), f"h = 1 … {own.n_heads}   zₕ ∈ R^{own.d_z}"]


def stream(blocks: Sequence[BlockConfig]) -> list[str]:
    """Return how blocks add to the stream, their norms, and what an MLP of them makes of a vector."""
    lines = [line for block in blocks for line in (block.equation, _norm(block.norm))]
    for config in (part for block in blocks for part in block.parts if not isinstance(part, Attention)):
        if isinstance(config, Mlp):
            act = config.activation
            lines.append(
                f"MLP(x) = ({act}(x W_gate) · x W_in) W_out" if config.gated else f"MLP(x) = {act}(x W_in) W_out"
            )
        else:
            lines.append(f"{config.role}: {config.described}")
    return list(dict.fromkeys(lines))


def _norm(config: NormConfig) -> str:
    return _NORMS.get(type(config), f"N = {config.described}")


def induction() -> list[str]:
    """Return where an induction head looks, and how strongly keys of a head read what an earlier one writes."""
    return ["A[i, j] ≫ 0  ⇐  t[j − 1] = t[i]", "K = |OV₁ QK₂ᵀ| / (|OV₁| |QK₂|)"]


def logits(model: Model) -> list[str]:
    """Return how logits are read off the stream, and a draw off them."""
    norm = model.output_stack.final.config
    read = "ℓ = x W_U" if isinstance(norm, NoNorm) else "ℓ = N(x) W_U"
    if (cap := model.unembed.cap) is not None:
        read = read.replace("ℓ = ", f"ℓ = {cap:g} tanh(") + f" / {cap:g})"
    return [read, "p(t) = exp(ℓ_t / T) / Σ exp(ℓ / T)"]


def ablation(head: str) -> list[str]:
    """Return what is changed where a head is switched off."""
    return [f"{head}.z ← 0", "Δℓ = ℓ(B) − ℓ(A)"]
