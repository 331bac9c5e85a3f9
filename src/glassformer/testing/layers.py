"""Attention layers to draw from: any mechanism in any layout of heads, with any positions, projection and merge step.

A mechanism is covered the moment it registers: its default config is always drawn, and the `variants` it names beside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from hypothesis import assume, strategies as st
from torch import Tensor, nn

from glassformer.attention import (
    Alibi,
    Attention,
    AttentionLayer,
    Context,
    Convolved,
    DualChunk,
    Merge,
    MixerConfig,
    PositionsConfig,
    ProjectionConfig,
    QueryKeyNorm,
    QueryKeyOnly,
    RelativeBias,
    RelativeSinusoids,
    Rope,
    Separate,
    Shifted,
    Smeared,
    Tied,
    YarnScaling,
)
from glassformer.models.stack import make_context
from glassformer.trace import SiteTable, Tape

M = TypeVar("M", bound=nn.Module)

D_MODEL = 12

# of texts: what goes by rows and columns is laid out otherwise
POSITIONS: list[PositionsConfig] = [cls() for cls in PositionsConfig.registry.values() if not cls.of_grid] + [  # type: ignore[misc,attr-defined]
    Rope(pairing="interleaved"),
    Rope(fraction=0.5),
    Rope(scaling=YarnScaling(4.0, original_length=16, fast=2.0)),
    Rope(at_read=True),
    DualChunk(chunk=3, length=5),
    QueryKeyOnly(amplitude=2.0),
    RelativeBias(4, 6, bidirectional=True),
    RelativeSinusoids(furthest=2),
]
QUERY_KEY_NORMS: list[QueryKeyNorm | bool] = [
    False,
    True,
    QueryKeyNorm(gains="own", centred=True, bias=True, eps=1e-5),
    QueryKeyNorm(over="all", offset=1.0, eps=1e-6),
    QueryKeyNorm(gains="none", of="keys"),
    QueryKeyNorm(over="all", gains="none", eps=1e-6),
    QueryKeyNorm(of="queries", bias=True),
]
MERGES = [
    Merge(),
    Merge(bias=True),
    Merge(norm="head"),
    Merge(norm="all", gate="sigmoid", bias=True),
    Merge(gate="silu"),
    Merge(gate="sigmoid", gate_rank=2),
    Merge(norm="all", gain=False, gate="linear"),
    Merge(norm="all", gate="silu", gate_bias=True, norm_before_gate=False),
]


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of one attention layer."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int | None = None


LAYER_SIZES = [
    LayerSizes(1, 1, 4),
    LayerSizes(2, 2, 4, 3),
    LayerSizes(4, 2, 4),
    LayerSizes(4, 1, 4, 6),
    LayerSizes(6, 3, 4, 5),
    LayerSizes(3, 3, 5),
    LayerSizes(3, 3, 4),
]


def mixers(kind: str) -> st.SearchStrategy[MixerConfig]:
    """Draw the default config of a kind, or one of its variants."""
    cls = cast(Any, MixerConfig.registry[kind])
    return st.sampled_from([cls(**fields) for fields in ({}, *cls.variants)])


layer_sizes = st.sampled_from(LAYER_SIZES)
positions = st.sampled_from(POSITIONS)
merges = st.sampled_from(MERGES)
seeds = st.integers(0, 2**16)
lengths = st.integers(1, 9)


@dataclass
class Layer:
    """One attention layer with random weights, and what the laws need to run it."""

    module: AttentionLayer

    @property
    def config(self) -> Attention:
        return self.module.config

    @property
    def mixer(self) -> Any:
        return self.module.mixer

    def sites(self, glob: str = "*") -> SiteTable:
        table = SiteTable({site.name: site for site in self.module.sites()})
        return table if glob == "*" else SiteTable({name: table[name] for name in table.match(glob)})

    def tape(self, *read: str, edit: Any = (), grad: bool = False) -> Tape:
        return Tape(self, read, edit, grad=grad)

    def context(self, x: Tensor, **kwargs: Any) -> Context:
        """Return the context of self-attention over x, causal if the mechanism can be; see `make_context`."""
        causal = not self.config.mixer.bidirectional
        return make_context(x.shape[0], x.shape[1], x.device, is_causal=causal, **kwargs)

    def __call__(self, x: Tensor, context: Context | None = None, **kwargs: Any) -> Tensor:
        return self.module(x, self.context(x) if context is None else context, **kwargs)[0]

    def mix_read(self, x: Tensor) -> Tensor:
        """Return what the mechanism itself is given of the layer's input."""
        return self.module.projection.shifted("mix", x, self.context(x))

    def read(self, x: Tensor, *names: str, context: Context | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Return the values at some sites, from one pass."""
        tape = self.tape(*names)
        self(x, context, tape=tape, **kwargs)
        return tape.values


def ties(sizes: LayerSizes, streams: int) -> list[dict[str, Any]]:
    """Return the ways in which queries and keys of these sizes can do with fewer than two matrices."""
    fits = [n * streams * sizes.d_head == D_MODEL for n in (sizes.n_heads, sizes.n_kv_heads)]
    found = [{"query": "identity", "key": "own"}, {"key": "identity"}, {"query": "identity"}]
    found = [way for way, there in zip(found, (fits[0], fits[1], all(fits))) if there]
    return found + [{"key": "query"}] * (sizes.n_heads == sizes.n_kv_heads)


@st.composite
def projections(draw: Callable[..., Any], sizes: LayerSizes, *, streams: int = 1, mixing: bool) -> ProjectionConfig:
    """Draw how queries, keys and values are made; in one of four, positions are mixed if they may be.

    In another one of four, queries and keys are tied in a way that the sizes allow; of the rest, all heads may share
    them.
    """
    chance, kind, more = draw(st.integers(0, 3)), Separate, {}
    if chance == 3 and mixing:
        kind = draw(st.sampled_from([Smeared, Convolved, Shifted]))
        more = {"rank": draw(st.sampled_from([None, 2])), "centred": draw(st.booleans())} if kind is Shifted else {}
    elif chance == 2 and (ways := ties(sizes, streams)):
        kind, more = Tied, draw(st.sampled_from(ways))
    elif sizes.n_heads == sizes.n_kv_heads:
        more = {"groups": draw(st.sampled_from([None, 1]))}
    return kind(
        bias=draw(st.booleans()),
        qk_norm=draw(st.sampled_from(QUERY_KEY_NORMS)),
        clip=draw(st.sampled_from([None, None, 0.7])),
        **more,
    )


@st.composite
def layers(
    draw: Callable[..., Any],
    kind: str,
    *,
    placed: st.SearchStrategy[PositionsConfig] = positions,
    merged: st.SearchStrategy[Merge] = merges,
    shaped: st.SearchStrategy[LayerSizes] = layer_sizes,
    projected: st.SearchStrategy[ProjectionConfig] | None = None,
    cross: bool = False,
) -> Layer:
    """Draw a float64 layer of one mechanism in any layout, with any positions and merge step."""
    mixer, layout, place = draw(mixers(kind)), draw(shaped), draw(placed)
    assume(mixer.traits.has_scores or not isinstance(place, (Alibi, DualChunk, RelativeBias, RelativeSinusoids)))
    assume(mixer.stores_keys or not getattr(place, "at_read", False))
    assume(mixer.turns_features or not place.doubles)
    assume(not (mixer.has_own_keys and place.turns_for_each))
    assume((mixer.crosses and place.crosses) or not cross)
    # dual chunks and relative sinusoids are of causal texts
    assume(not (mixer.bidirectional and isinstance(place, (DualChunk, RelativeSinusoids))))
    drawn = projections(layout, streams=mixer.traits.streams, mixing=not cross) if projected is None else projected
    projection = draw(drawn)
    assume(not isinstance(projection, Shifted) or not isinstance(place, QueryKeyOnly))
    config = Attention(
        layout.n_heads,
        layout.n_kv_heads,
        layout.d_head,
        layout.d_value,
        mixer=mixer,
        positions=place,
        projection=projection,
        merge=draw(merged),
        cross=cross,
    )
    return Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval(), draw(seeds)))


def randomise(module: M, seed: int = 0, std: float = 0.4) -> M:
    """Draw every parameter anew, biases and gains too: zeros and ones would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)
    return module


def stream(batch: int, length: int, seed: int = 0, d_model: int = D_MODEL) -> Tensor:
    """A random residual stream in float64."""
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(batch, length, d_model, generator=generator, dtype=torch.float64)


def causal_context(x: Tensor, **kwargs: Any) -> Context:
    """Return the context of causal self-attention over x; arguments as in `make_context`."""
    return make_context(x.shape[0], x.shape[1], x.device, is_causal=True, **kwargs)
