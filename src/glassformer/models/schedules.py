"""Per-layer tuples built by plain functions: a model config stores the result, never the rule."""

from collections.abc import Sequence
from typing import Any, Literal

from glassformer.attention import (
    Attention,
    Differential,
    Lightning,
    Merge,
    MixerConfig,
    NoPositions,
    PositionsConfig,
    ProjectionConfig,
    QueryKeyNorm,
    Separate,
    Smeared,
    Softmax,
    SubLayerConfig,
    lambda_init_at,
)
from glassformer.config import require
from glassformer.models.block import BlockConfig
from glassformer.models.norms import LayerNorm, NormConfig


def repeat(pattern: BlockConfig | Sequence[BlockConfig], n_layers: int) -> tuple[BlockConfig, ...]:
    """Return `n_layers` blocks that cycle through the pattern: `repeat([lightning] * 7 + [softmax], 32)`."""
    blocks = [pattern] if isinstance(pattern, BlockConfig) else list(pattern)
    require(
        len(blocks) > 0 and n_layers >= 0,
        "repeat: needs at least one block and a number of layers that is not negative.",
    )
    return tuple(blocks[i % len(blocks)] for i in range(n_layers))


def every(n: int, special: BlockConfig, other: BlockConfig, n_layers: int) -> tuple[BlockConfig, ...]:
    """Return `n_layers` blocks of which every n-th (the n-th, 2n-th, …) is special."""
    require(n >= 1, f"every: n must be at least 1, found {n}.")
    return tuple(special if (i + 1) % n == 0 else other for i in range(n_layers))


def alternate(first: BlockConfig, second: BlockConfig, n_layers: int) -> tuple[BlockConfig, ...]:
    """Return first, second, first, …"""
    return repeat([first, second], n_layers)


def block(
    mixer: MixerConfig | None = None,
    *,
    n_heads: int,
    n_kv_heads: int | None = None,
    d_head: int | None = None,
    positions: PositionsConfig | None = None,
    mlp: SubLayerConfig | None = None,
    cross: bool = False,
    bias: bool = False,
    qk_norm: QueryKeyNorm | bool = False,
    clip: float | None = None,
    smeared: bool = False,
    merge: Merge | None = None,
    norm: NormConfig | None = None,
    wiring: Literal["pre", "post", "sandwich", "parallel"] = "pre",
    dropout: float = 0.0,
    norm_after: NormConfig | None = None,
    shared_norm: bool = False,
) -> BlockConfig:
    """Return the usual block: attention, then cross-attention if asked, then an MLP (or experts) if given."""
    separate = Separate(bias=bias, qk_norm=qk_norm, clip=clip)
    projection: ProjectionConfig = Smeared(bias=bias, qk_norm=qk_norm, clip=clip) if smeared else separate
    merge = merge or Merge(bias=bias)
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        mixer=mixer or Softmax(),
        projection=projection,
        positions=positions or NoPositions(),
        merge=merge,
    )
    across = attention.replace(cross=True, mixer=Softmax(), positions=NoPositions(), projection=separate)
    parts: list[Any] = [attention] + [across] * cross + ([mlp] if mlp is not None else [])
    return BlockConfig(tuple(parts), norm or LayerNorm(), wiring, dropout, norm_after, shared_norm)


def lightning_merge() -> Merge:
    """Return the merge step of the lightning models: z RMS-normed over all heads, then gated."""
    return Merge(norm="all", gate="sigmoid")


def differential(layer: int) -> dict[str, Any]:
    """Return mixer and merge of a differential layer at this depth, as keyword arguments of `block`."""
    start = lambda_init_at(layer)
    return {"mixer": Differential(lambda_init=start), "merge": Merge(norm="head", factor=1 - start)}


def hybrid(n_layers: int, *, n_heads: int, period: int = 8, **kwargs: Any) -> tuple[BlockConfig, ...]:
    """Return lightning blocks with softmax in every `period`-th layer (MiniMax-01 uses 8)."""
    gated: dict[str, Any] = kwargs | {"merge": lightning_merge()}
    lightning = block(Lightning(), n_heads=n_heads, **gated)
    return every(period, block(Softmax(), n_heads=n_heads, **kwargs), lightning, n_layers)
