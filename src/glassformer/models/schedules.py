"""Per-layer tuples built by plain functions: a model config stores the result, never the rule."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from glassformer.arguments import checked
from glassformer.attention import (
    Activated,
    Attention,
    Lightning,
    Linear,
    LocalChunks,
    Lrpe,
    Merge,
    MixerConfig,
    NeuralMemory,
    NoPositions,
    Persistent,
    PositionsConfig,
    ProjectionConfig,
    QueryKeyNorm,
    Rope,
    Separate,
    Smeared,
    Softmax,
    SubLayerConfig,
    depth_slopes,
)
from glassformer.config import require
from glassformer.models.block import BlockConfig, Wiring
from glassformer.models.experts import MixtureOfExperts
from glassformer.models.memory_context import MemoryContext
from glassformer.models.memory_gate import MemoryGate
from glassformer.models.mix_mlp import MixMlp
from glassformer.models.mlp import Mlp
from glassformer.models.norms import LayerNorm, NormConfig, RmsNorm, ScaleOnly


def repeat(pattern: BlockConfig | Sequence[BlockConfig], n_layers: int) -> tuple[BlockConfig, ...]:
    """`n_layers` blocks that cycle through the pattern: `repeat([lightning] * 7 + [softmax], 32)`."""
    blocks = [pattern] if isinstance(pattern, BlockConfig) else list(pattern)
    require(
        len(blocks) > 0 and n_layers >= 0,
        "repeat: needs at least one block and a number of layers that is not negative.",
    )
    return tuple(blocks[i % len(blocks)] for i in range(n_layers))


def every(n: int, special: BlockConfig, other: BlockConfig, n_layers: int) -> tuple[BlockConfig, ...]:
    """`n_layers` blocks of which every n-th (the n-th, 2n-th, …) is special."""
    require(n >= 1, f"every: n must be at least 1, found {n}.")
    return tuple(special if (i + 1) % n == 0 else other for i in range(n_layers))


def alternate(first: BlockConfig, second: BlockConfig, n_layers: int) -> tuple[BlockConfig, ...]:
    """Blocks of two kinds in turn: first, second, first, …"""
    return repeat([first, second], n_layers)


def block(
    mixer: MixerConfig | None = None,
    *,
    n_heads: int,
    n_kv_heads: int | None = None,
    d_head: int | None = None,
    d_value: int | None = None,
    positions: PositionsConfig | None = None,
    mlp: SubLayerConfig | None = None,
    cross: bool = False,
    bias: bool = False,
    qk_norm: QueryKeyNorm | bool = False,
    clip: float | None = None,
    smeared: bool = False,
    projection: ProjectionConfig | None = None,
    merge: Merge | None = None,
    norm: NormConfig | None = None,
    wiring: Wiring = "pre",
    dropout: float = 0.0,
    attn_dropout: float = 0.0,
    norm_after: NormConfig | tuple[NormConfig, ...] | None = None,
    shared_norm: bool = False,
    norm_before: ScaleOnly | None = None,
    grid: tuple[int, int] | None = None,
) -> BlockConfig:
    """The usual block: attention, then cross-attention if asked, then an MLP (or experts) if given.

    `dropout` is on what each sub-layer writes, `attn_dropout` on the weights of each pattern; an MLP has its own. A
    `projection` says by itself what it has of biases, norms and clipping. `grid` is of attention; an MLP that mixes
    places has its own.
    """
    require(
        projection is None or not (qk_norm or clip is not None or smeared),
        "block: a projection says by itself whether it has norms, clips or smears; give it alone, or without it "
        "qk_norm, clip and smeared.",
    )
    separate = Separate(bias=bias, qk_norm=qk_norm, clip=clip)
    if projection is None:
        projection = Smeared(bias=bias, qk_norm=qk_norm, clip=clip) if smeared else separate
    merge = merge or Merge(bias=bias)
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        d_value=d_value,
        mixer=mixer or Softmax(),
        projection=projection,
        positions=positions or NoPositions(),
        merge=merge,
        grid=grid,
        dropout=attn_dropout,
    )
    across = attention.replace(cross=True, mixer=Softmax(), positions=NoPositions(), projection=separate, grid=None)
    parts: list[Any] = [attention] + [across] * cross + ([mlp] if mlp is not None else [])
    return BlockConfig(
        tuple(parts),
        norm or LayerNorm(),
        wiring,
        dropout,
        norm_after=norm_after,
        shared_norm=shared_norm,
        norm_before=norm_before,
    )


def published_block(mixer: MixerConfig, layer: int = 0, **kwargs: Any) -> BlockConfig:
    """The block with the layer that a mechanism's paper builds around it.

    `block(Differential(), …)` builds the mechanism alone; the paper also norms each head and grows lambda with depth.

    Args:
        mixer: The mechanism.
        layer: Depth of the block, counted from 0.
        kwargs: As for `block`; what is said here goes before what the paper says.

    Example:
        >>> layers = tuple(published_block(Differential(), i, n_heads=4) for i in range(6))
    """
    return block(**(mixer.as_published(layer) | kwargs))


def hybrid(n_layers: int, *, n_heads: int, period: int = 8, **kwargs: Any) -> tuple[BlockConfig, ...]:
    """Lightning blocks as published, with softmax in every `period`-th layer.

    Source: MiniMax 2025, "MiniMax-01", section 2.2, where the period is 8.
    """
    softmax = block(Softmax(), n_heads=n_heads, **kwargs)
    return every(period, softmax, published_block(Lightning(), n_heads=n_heads, **kwargs), n_layers)


@checked
def titans(
    n_layers: int,
    *,
    n_heads: int,
    memory: MixerConfig | None = None,
    used: Literal["context", "gate", "layer", "alone"] = "gate",
    window: int = 256,
    tokens: int = 4,
    mlp: SubLayerConfig | None = None,
    norm: NormConfig | None = None,
) -> tuple[BlockConfig, ...]:
    """Blocks of Titans: a memory that learns while it reads, beside attention within a window and to learned tokens.

    Args:
        n_layers: How many blocks.
        n_heads: Heads of the memory, and of attention.
        memory: `NeuralMemory()` by default.
        used: The memory opens what attention writes (`gate`); what it knows stands before the tokens besides
            (`context`); or it is a sub-layer before attention (`layer`), or in its place (`alone`), where windows and
            learned tokens are not asked for.
        window: Each query sees keys less than this many positions away; as `context` those of its segment, which is a
            chunk of the memory, and `window` is not asked for.
        tokens: Learned tokens that every query sees.
        mlp: What follows in each block.
        norm: Of sub-layers; `RmsNorm()` by default.

    Source: Behrouz, Zhong, Mirrokni 2025, "Titans" (2501.00663), section 4.
    """
    long = Attention(n_heads, **(memory or NeuralMemory()).as_published())
    near = Attention(n_heads, mixer=Persistent(tokens, window), positions=Rope())
    parts: tuple[SubLayerConfig, ...]
    if used == "context":
        parts = (MemoryContext(long, near.replace(mixer=Persistent(tokens))),)
    elif used == "gate":
        parts = (MemoryGate(long, near),)
    else:
        parts = (long, near) if used == "layer" else (long,)
    end = () if mlp is None else (mlp,)
    return repeat(BlockConfig((*parts, *end), norm or RmsNorm()), n_layers)


def minimax(
    n_layers: int,
    *,
    n_heads: int,
    n_kv_heads: int | None = None,
    d_head: int | None = None,
    experts: SubLayerConfig | None = None,
    period: int = 8,
    alpha: float | None = None,
    rotated: Literal["half", "whole"] = "half",
    base: float = 10_000.0,
) -> tuple[BlockConfig, ...]:
    """Blocks of MiniMax-01: lightning, with softmax in every `period`-th layer, each followed by a mixture of experts.

    Lightning's queries, keys and values pass silu, its slopes fall with depth, and its output is normed over all heads
    and gated; softmax has grouped keys and rotary positions. Norms are DeepNorm's, so a decoder of these blocks has
    `embed_norm=RmsNorm(factor=alpha)` and `final_norm=ScaleOnly(1 / alpha)`.

    Args:
        n_layers: How many.
        n_heads: Of each layer.
        n_kv_heads: Key heads of softmax layers; lightning has as many as heads.
        d_head: Width of a head.
        experts: What follows attention; a `MixtureOfExperts` by default.
        period: Layers to one of softmax.
        alpha: Of DeepNorm; (2 n_layers)^(1/4) by default.
        rotated: How much of a head turns in softmax layers: half, as the report states, or the whole, as the
            implementation in the library transformers has it.
        base: Of the rotation.

    Source: MiniMax 2025, "MiniMax-01" (2501.08313), section 2.
    """
    slots: dict[str, Any] = deep_norm((2 * n_layers) ** 0.25 if alpha is None else alpha)
    slots |= {"n_heads": n_heads, "d_head": d_head, "mlp": experts or MixtureOfExperts(n_experts=32, n_chosen=2)}
    turned = Rope(base, fraction=0.5 if rotated == "half" else 1.0)
    softmax = block(n_kv_heads=n_kv_heads, positions=turned, **slots)

    def lightning(layer: int) -> BlockConfig:
        mixer = Lightning(depth_slopes(n_heads, layer, n_layers, "minimax"), activation="none")
        return published_block(mixer, projection=Activated(), **slots)

    return tuple(softmax if (i + 1) % period == 0 else lightning(i) for i in range(n_layers))


def deep_norm(alpha: float, eps: float = 1e-5) -> dict[str, Any]:
    """DeepNorm as arguments of `block`: post-norm with the stream alpha times what sub-layers write.

        u <- norm(alpha u + f(u));      with  x = alpha u,   x <- alpha norm(x + f(x / alpha))

    The stream of these blocks is x: what enters the first is alpha times a vector of standard size, and what leaves the
    last is read through `ScaleOnly(1 / alpha)`.

    Args:
        alpha: How much more the stream weighs; (2 n)^(1/4) for n layers of attention and MLP in the paper. 1 leaves
            post-norm as it is.
        eps: Of the norms.

    Source: Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers" (2203.00555), section 3, with RMS norms.
    """
    if alpha == 1:
        return {"wiring": "post", "norm": RmsNorm(eps)}
    return {"wiring": "post", "norm": RmsNorm(eps, factor=alpha), "norm_before": ScaleOnly(1 / alpha)}


def transnormer(n_layers: int, *, n_heads: int, chunk: int = 64, **kwargs: Any) -> tuple[BlockConfig, ...]:
    """TransNormer: softmax within chunks (DiagAttention) in the lower half, NormAttention in the upper half.

    DiagAttention is `LocalChunks(chunk, before=0)`, NormAttention `Linear(denominator=False)` with a norm of z. The
    features are elu(x) + 1, those of the authors' second variant.

    Source: Qin et al. 2022, "The Devil in Linear Transformer" (2210.10340), section 4.
    """
    near = block(LocalChunks(chunk=chunk, before=0), n_heads=n_heads, **kwargs)
    far = published_block(Linear(denominator=False), n_heads=n_heads, **kwargs)
    return (near,) * (n_layers // 2) + (far,) * (n_layers - n_layers // 2)


def transnormer_llm(n_layers: int, *, n_heads: int, d_mlp: int | None = None, **kwargs: Any) -> tuple[BlockConfig, ...]:
    """Blocks of TransNormerLLM: lightning whose decay falls with depth, z normed and gated linearly, a bilinear MLP.

    Norms have no gain. The first layer alone has positions beside the decay: `Lrpe`, a learned rotation.

    Source: Qin et al. 2023, "TransNormerLLM" (2307.14995), section 3, with the slopes of the released code.
    """

    def at(layer: int) -> BlockConfig:
        slots: dict[str, Any] = {
            "positions": Lrpe() if layer == 0 else NoPositions(),
            "merge": Merge(norm="all", gain=False, gate="linear"),
            "norm": RmsNorm(gain=False),
            "mlp": Mlp(d_mlp, activation="none", gated=True, bias=False),
        }
        return block(Lightning(slopes=depth_slopes(n_heads, layer, n_layers)), n_heads=n_heads, **(slots | kwargs))

    return tuple(map(at, range(n_layers)))


def sana(
    n_layers: int,
    *,
    n_heads: int,
    grid: tuple[int, int] | None = None,
    d_mlp: int | None = None,
    **kwargs: Any,
) -> tuple[BlockConfig, ...]:
    """Blocks of SANA: linear attention with features relu, no positions, and a Mix-FFN, which says where places are.

    The paper's heads are 32 wide. Some of its models norm queries and keys: `qk_norm=QueryKeyNorm(over="all")`. Its
    attention to a prompt and what a time step makes of norms are a generator's, and not here.

    Args:
        n_layers: How many.
        n_heads: Heads.
        grid: Rows and columns of the input; None for a text.
        d_mlp: Neurons of the Mix-FFN.
        kwargs: As for `block`; what is said here goes before what the paper says.

    Source: Xie et al. 2024, "SANA" (2410.10629), section 2.2, with eps and biases of the released code.
    """
    slots: dict[str, Any] = {"merge": Merge(bias=True), "mlp": MixMlp(d_mlp, grid=grid)}
    return (block(Linear("relu", eps=1e-15), n_heads=n_heads, grid=grid, **(slots | kwargs)),) * n_layers


def retention(
    n_layers: int, *, n_heads: int, d_head: int, d_mlp: int | None = None, eps: float = 1e-6, **kwargs: Any
) -> tuple[BlockConfig, ...]:
    """Blocks of RetNet: lightning with decays 1 - 2^(-5-h), rotated, values twice as wide, each head normed and gated.

    Pair m of d_head / 2 turns by 10000^(-m / (d_head / 2 - 1)) per position, the last by 1 / 10000, as with a larger
    base in `Rope`. The norm of a head stands for a denominator. What the released code divides by besides (a root of
    the summed decays, a sum of weights, a root that grows with the state) is one positive number per row and head; the
    norm divides it out, but for eps. Here eps is added to the square of what is not divided, that of equation 5.

    Args:
        n_layers: How many blocks.
        n_heads: Heads.
        d_head: Width of queries and keys; values are twice as wide.
        d_mlp: Width of the gated MLP.
        eps: Added to the mean square of each head's values, and to those of the stream's norms.
        kwargs: As for `block`; what is said here goes before what the paper says.

    Source: Sun et al. 2023, "Retentive Network" (2307.08621), section 2, with rotation and norm of the released code.
    """
    require(
        d_head > 2 and d_head % 2 == 0, f"retention: d_head={d_head} has no pairs of several angles; use an even one."
    )
    slots: dict[str, Any] = {
        "mixer": Lightning(tuple(-math.log1p(-(2.0 ** (-5 - h))) for h in range(n_heads)), activation="none"),
        "positions": Rope(10_000.0 ** (d_head / (d_head - 2)), pairing="interleaved"),
        # queries and keys here meet without 1 / sqrt(d_head), so the square of z is d_head times as large
        "merge": Merge(norm="head", gain=False, eps=eps * d_head, gate="silu"),
        "norm": RmsNorm(eps=eps),
        "mlp": Mlp(d_mlp, activation="gelu", gated=True, bias=False),
    }
    layer = block(n_heads=n_heads, d_head=d_head, **(slots | kwargs))
    wide = (part.replace(d_value=2 * d_head) if isinstance(part, Attention) else part for part in layer.parts)
    return (layer.replace(parts=tuple(wide)),) * n_layers
