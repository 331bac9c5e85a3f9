"""The contract every mechanism fills: queries, keys and values in, mixed values out.

    pattern   the dense reference, z = pattern @ v; the definition
    fast      the same z by whatever route is quickest
    scan      any number of new positions on top of a state; prefill and single steps alike

Write `pattern` or `fast`; the other follows. Axes are counted from the right: `batch [stream] head pos d_head`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.config import Config
from glassformer.errors import NoPattern
from glassformer.trace import Tape, full_names, site, wants


@dataclass(frozen=True)
class Dims:
    """Sizes a layer is built with."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    max_len: int
    layer: int = 0


@dataclass(frozen=True)
class Traits:
    """What an analysis may assume about a mechanism; each is checked by the law suite.

    Args:
        linear_in_value: With queries, keys and gates frozen, z is linear in the values: `exact`, `affine` (an initial
            state adds an offset), `scaled` (a norm on z, linear once its scale is frozen), `grouped` (several patterns
            per head), or `no`.
        rows_sum_to_one: Rows of the pattern are non-negative and sum to one wherever anything may be attended to.
        has_scores: Scores exist before a normaliser.
        bilinear_scores: Scores are bilinear in the query's and the key's input (per offset, with rotary positions).
        streams: Query/key maps per head.
        reads_input: It reads the layer's input besides queries, keys and values.
    """

    linear_in_value: Literal["exact", "affine", "scaled", "grouped", "no"] = "exact"
    rows_sum_to_one: bool = False
    has_scores: bool = False
    bilinear_scores: bool = False
    streams: int = 1
    reads_input: bool = False


class MixerConfig(Config, family=True):
    """Hyper-parameters of a mechanism: what a paper would list in its table."""

    traits: ClassVar[Traits] = Traits()

    @property
    def crosses(self) -> bool:
        """Whether keys may come from another sequence, where distance means nothing."""
        return True

    @property
    def described(self) -> str:
        """The kind, and what was set: `softmax(cap=50.0)`."""
        members = fields(cast(Any, self))
        changed = [f"{f.name}={getattr(self, f.name)}" for f in members if getattr(self, f.name) != f.default]
        return f"{self.kind}({', '.join(changed)})" if changed else str(self.kind)

    def build(self, dims: Dims, path: str) -> "Mixer":
        raise NotImplementedError(f"{type(self).__name__} does not say which mixer it builds")

    # whether the state is kept in float32 at least, whatever the model's dtype
    wide_state: ClassVar[bool] = False

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """Return the floating-point operations (2 per multiply-add) of the products that mix one sequence.

        Counted is the form that `fast` takes or, with fewer queries than keys, `scan`. Here: both products over all
        pairs, masked ones included, as dense and fused routes compute them. Element-wise work is not counted.
        """
        per_pair = self.traits.streams * 2 * dims.d_head + 2 * dims.d_value
        return dims.n_heads * n_queries * n_keys * per_pair

    def state_numbers(self, length: int, dims: Dims) -> int:
        """Return how many numbers the state of one sequence holds after `length` positions."""
        return length * dims.n_kv_heads * (self.traits.streams * dims.d_head + dims.d_value)

    def keeps(self, length: int) -> bool:
        """Whether the state after `length` positions still holds what it was after fewer; see `Mixer.cut`."""
        return False


class Mixer(nn.Module, ABC):
    """Turns queries, keys and values into mixed values. `forward` is final."""

    # axes of the sites it has of its own, and which of them are lazy; some depend on the config
    SITES: Mapping[str, str] = MappingProxyType({})
    LAZY: tuple[str, ...] = ()

    def __init__(self, config: MixerConfig, dims: Dims, path: str) -> None:
        super().__init__()
        self.config, self.dims = config, dims
        self.traits = config.traits
        self.at = full_names(path, ("pattern", "scores", *self.SITES))
        self.only_dense = (self.at.pattern, self.at.scores, *[getattr(self.at, name) for name in self.LAZY])

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Float[Tensor, "batch head pos d_value"], Any]:
        if state is not None:
            return self.scan(q, k, v, x, context, state, tape)
        if context.form == "scan":
            return self.scan(q, k, v, x, context, self.begin(v.shape[0], v), tape)[0], None
        return self.parallel(q, k, v, x, context, tape), None

    def parallel(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        """Return z of a whole sequence: fused, unless a site is wanted that only the dense route passes."""
        if not self.wants_dense(tape):
            return self.fast(q, k, v, x, context, tape)
        return self.dense(q, k, v, x, context, tape)

    def wants_dense(self, tape: Tape | None) -> bool:
        return wants(tape, *self.only_dense)

    def dense(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        """Return z by way of the pattern, which passes its site."""
        pattern = self.pattern(q, per_query_head(k, q), x, context, tape)
        return site(tape, self.at.pattern, pattern) @ per_query_head(v, q)

    def pattern(
        self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None
    ) -> Float[Tensor, "batch head query key"]:
        """Return the matrix that multiplies values; keys come expanded to query heads."""
        return self.probe(q, k, x, context)

    def probe(self, q: Tensor, k: Tensor, x: Tensor, context: Context) -> Float[Tensor, "batch head query key"]:
        """Return the pattern by feeding the identity as values: slow, independent, right whenever z is linear in v."""
        if self.traits.linear_in_value == "no":
            raise no_pattern(self)
        n_keys = k.shape[-2]
        identity = torch.eye(n_keys, dtype=q.dtype, device=q.device).expand(k.shape[0], k.shape[-3], -1, -1)
        return self.fast(q, k, identity, x, context, None)

    @abstractmethod
    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        """Return z by the quickest route; keys and values come grouped. `dense` is a valid body."""

    @abstractmethod
    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Tensor, Any]:
        """Return z of the new positions and the state after them."""

    @abstractmethod
    def begin(self, batch: int, like: Tensor) -> Any:
        """Return the empty state, a NamedTuple of tensors, on the device and in the dtype of `like`."""

    def cut(self, state: Any, length: int) -> Any:
        """Return the state as it was after its first `length` positions, if the config `keeps` that."""
        return type(state)(*(rows[..., :length, :] for rows in state))


def per_query_head(k: Tensor, q: Tensor) -> Tensor:
    """Expand grouped keys or values to query heads: head h uses group h // (n_heads / n_kv_heads)."""
    if k.shape[-3] == q.shape[-3]:
        return k
    return k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)


def no_pattern(mixer: Mixer) -> NoPattern:
    """Return the error for a pattern that is not defined here."""
    layer, kind = mixer.dims.layer, mixer.config.kind
    return NoPattern(
        f'layer {layer} uses "{kind}" (linear_in_value="{mixer.traits.linear_in_value}"), which has no pattern here.\n'
        f'    Read "{mixer.at.pattern.removesuffix("pattern")}z" instead.'
    )
