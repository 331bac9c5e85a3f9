"""The contract every mechanism fills: queries, keys and values in, mixed values out.

    pattern   the dense reference, z = pattern @ v; the definition
    fast      the same z by whatever route is quickest
    mixed     what `fast` asks of each text, where no pattern is needed
    scan      any number of new positions on top of a state; prefill and single steps alike

Write `pattern` or `fast`; the other follows. Beside `pattern`, `mixed` is enough: packed texts, positions that add to
scores and compiled graphs are seen to here. The state is the keys and values of earlier positions, unless a mechanism
replaces `begin` and `scan`. Axes are counted from the right: `batch [stream] head pos d_head`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention.context import Context, Mask, Run, Spread, causal as looking_back
from glassformer.attention.kernels.growing import append
from glassformer.attention.packed import by_document, documents_of
from glassformer.attention.scores import masked_softmax
from glassformer.config import Config
from glassformer.errors import ConfigError, NoPattern
from glassformer.trace import Tape, full_names, site, wants


@dataclass(frozen=True)
class Dims:
    """Sizes a layer is built with.

    Args:
        d_model: Width of the stream.
        n_heads: Query heads.
        n_kv_heads: Key/value heads.
        d_head: Width of a query and key.
        d_value: Width of a value; of each, if a head has several.
        max_len: Longest context the model is meant for.
        layer: Index of the block.
        grid: Rows and columns of an input with two dimensions, read row by row; None for a text.
        outside: Positions before the first of the grid, which stand in none of its rows.
        n_joined: Mixed values that lie side by side in z.
        turned: How many numbers of a query and key, the last ones, positions may turn; None for all.
        doubled: Whether positions make two of each number that a mechanism makes of a query or key.
    """

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    max_len: int
    layer: int = 0
    grid: tuple[int, int] | None = None
    outside: int = 0
    n_joined: int = 1
    turned: int | None = None
    doubled: bool = False

    @property
    def d_z(self) -> int:
        """Width of what a head mixes."""
        return self.d_value * self.n_joined

    @property
    def d_turned(self) -> int:
        """Width of the part of a query and key that positions may turn."""
        return self.d_head if self.turned is None else self.turned

    @property
    def d_feature(self) -> int:
        """Width of a query and key as they meet, where a mechanism has their products alone."""
        return 2 * self.d_head if self.doubled else self.d_head


@dataclass(frozen=True)
class Traits:
    """What an analysis may assume about a mechanism; each is checked by the law suite.

    Args:
        linear_in_value: With queries, keys and gates frozen, z is linear in the values: `exact`, `affine` (an initial
            state adds an offset), `scaled` (a norm on z, linear once its scale is frozen), `grouped` (several patterns
            per head), `convolved` (patterns, and beside them a convolution of the values with a kernel for each
            channel, which is the site and the method `local` of the mixer), or `no`.
        rows_sum_to_one: Rows of the pattern are non-negative and sum to one wherever anything may be attended to.
        has_scores: Scores exist before a normaliser.
        rows_lack_mass: Rows are non-negative and sum to less than one: what they lack goes to a sink without a value.
        bilinear_scores: Scores are bilinear in the query's and the key's input (per offset, with rotary positions).
        capped_scores: Scores are a rising function of raw ones (site `scores_raw`), which are bilinear so; what
            positions add comes behind it.
        streams: Query/key maps per head.
        share_width: Whether the streams of a head share its width, where none is given.
        value_streams: Values per head and position, each with a pattern of its own: z_s = P_s v_s.
        value_merge: What z is made of several: their `sum`, or all side by side (`concat`).
        reads_input: It reads the layer's input besides queries, keys and values.
        hashes: Which keys a query meets goes by a hash of queries and keys themselves, beside their scores.
        searches: Which keys a query meets goes by how its scores compare, so that rounding may exchange one for
            another.
        by_products: It knows queries and keys by their products q . k alone, so that others with the same products, of
            whatever width, do as well.
    """

    linear_in_value: Literal["exact", "affine", "scaled", "grouped", "convolved", "no"] = "exact"
    rows_sum_to_one: bool = False
    rows_lack_mass: bool = False
    has_scores: bool = False
    bilinear_scores: bool = False
    capped_scores: bool = False
    streams: int = 1
    share_width: bool = True
    value_streams: int = 1
    value_merge: Literal["sum", "concat"] = "sum"
    reads_input: bool = False
    hashes: bool = False
    searches: bool = False
    by_products: bool = False

    @property
    def one_pattern(self) -> bool:
        """Whether each head has one pattern, which multiplies its values."""
        return self.linear_in_value not in ("no", "grouped", "convolved")

    @property
    def bilinear_raw_scores(self) -> bool:
        """Whether scores, or what is capped to make them, are bilinear in what query and key read."""
        return self.bilinear_scores or self.capped_scores

    @property
    def has_patterns(self) -> bool:
        """Whether patterns multiply the values of each head: one, or one for each value."""
        return self.linear_in_value in ("exact", "scaled", "grouped")

    @property
    def shows_patterns(self) -> bool:
        """Whether there are patterns to look at, whatever else z is made of."""
        return self.linear_in_value != "no"

    @property
    def n_joined(self) -> int:
        """How many mixed values lie side by side in z."""
        return self.value_streams if self.value_merge == "concat" else 1


class MixerConfig(Config, family=True):
    """Hyper-parameters of a mechanism: what a paper would list in its table."""

    traits: ClassVar[Traits] = Traits()
    # settings worth testing beside the default, as fields; the law suite draws from all of them
    variants: ClassVar[tuple[dict[str, Any], ...]] = ()
    # set by the mixer's class statement: `class SoftmaxMixer(Mixer, config=Softmax)`
    mixer: ClassVar[type["Mixer"] | None] = None
    # whether the state is the keys and values of earlier positions
    stores_keys: ClassVar[bool] = True
    # whether it needs a text whole: what a position sees depends on those behind it, so that there is no state
    bidirectional: ClassVar[bool] = False
    # whether it goes by the order of keys, without positions and across to another sequence too
    by_order: ClassVar[bool] = False
    # whether training decides how many positions the state has; `state_numbers` is the most there may be then
    learns_reach: ClassVar[bool] = False
    # whether every position has to be a place of the layer's grid, if it has one: it mixes along rows and columns
    fills_grid: ClassVar[bool] = False
    # whether queries also meet keys that stand at no position
    has_own_keys: ClassVar[bool] = False
    # whether the state is kept in float32 at least, whatever the model's dtype
    wide_state: ClassVar[bool] = False

    @property
    def reach(self) -> int | None:
        """How many earlier positions a query sees at most; None for all. Keys beyond that leave the state."""
        return None

    @property
    def continues(self) -> bool:
        """Whether a text may be continued from a state, and rows of several be padded to one length."""
        return not self.bidirectional

    @property
    def crosses(self) -> bool:
        """Whether keys may come from another sequence, where distance means nothing."""
        return self.reach is None

    @property
    def takes_marks(self) -> bool:
        """Whether a pass may mark tokens that it treats otherwise: global ones."""
        return False

    @property
    def mixes_grid(self) -> bool:
        """Whether it mixes places of a grid with those around them, where its layer has one."""
        return False

    @property
    def turns_features(self) -> bool:
        """Whether positions may turn, and double, what it makes of queries and keys: weights are products of that."""
        return False

    @property
    def spreads(self) -> bool:
        """Whether processes may share the positions of a text: `Mixer.spread` is written, and holds as it is set."""
        return False

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the slots of `Attention` as the mechanism's paper fills them in a layer of this depth, from 0.

        What the paper says nothing of is not in it. Here: the mechanism as it is set, all else free.
        """
        return {"mixer": self}

    def of_heads(self, heads: range, n_heads: int) -> "MixerConfig | None":
        """Return the mechanism such that some heads alone do what they do among all; None if it holds them together.

        Args:
            heads: Which, neighbours.
            n_heads: How many the layer has.
        """
        return None

    def build(self, dims: Dims, path: str) -> "Mixer":
        if self.mixer is None:
            name = type(self).__name__
            raise NotImplementedError(
                f"{name} has no mixer; say whose it is in its class: class …(Mixer, config={name})."
            )
        return self.mixer(self, dims, path)

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """Return the floating-point operations (2 per multiply-add) of the products that mix one sequence.

        Counted is the form that `fast` takes or, with fewer queries than keys that are their own, `scan`. Here: by
        torch, in a pass that has shapes and no numbers. What reads a number on its way, or walks a long text piece by
        piece, has a formula of its own instead. Element-wise work is not counted.

        Raises:
            NotImplementedError: The pass reads a number, and the mechanism has no formula.
        """
        return _counted(self, n_queries, n_keys, replace(dims, layer=0), causal)

    def all_pairs_flops(self, n_queries: int, n_keys: int, dims: Dims) -> int:
        """Return the operations of both products over all pairs, masked ones included, as the dense route has them."""
        per_pair = self.traits.streams * 2 * dims.d_head + self.traits.value_streams * 2 * dims.d_value
        return dims.n_heads * n_queries * self.keys_met(n_queries, n_keys) * per_pair

    def keys_met(self, n_queries: int, n_keys: int) -> int:
        """Return how many of the keys of a text are still there when so many of its last positions are mixed."""
        return n_keys if self.reach is None or n_queries == n_keys else min(n_keys, self.reach + n_queries)

    def state_numbers(self, length: int, dims: Dims) -> int:
        """Return how many numbers the state of one sequence holds after `length` positions."""
        if self.bidirectional:
            return 0
        kept = length if self.reach is None else min(length, self.reach)
        return kept * dims.n_kv_heads * (self.traits.streams * dims.d_head + self.traits.value_streams * dims.d_value)

    def keeps(self, length: int) -> bool:
        """Whether the state after `length` positions still holds what it was after fewer; see `Mixer.cut`."""
        return self.stores_keys and not self.bidirectional and (self.reach is None or length <= self.reach)


class KeyValue(NamedTuple):
    """Keys (as they were written) and values of earlier positions."""

    key: Float[Tensor, "batch *stream kv_head key d_head"]
    value: Float[Tensor, "batch *value_stream kv_head key d_value"]


class Mixer(nn.Module):
    """Turns queries, keys and values into mixed values. `forward` is final; `pattern` or `fast` has to be written."""

    # axes of the sites it has of its own, and which of them are lazy; some depend on the config
    SITES: Mapping[str, str] = MappingProxyType({})
    LAZY: tuple[str, ...] = ()
    # why some of them cannot be edited: what is measured there decides nothing
    READ_ONLY: Mapping[str, str] = MappingProxyType({})
    # whether a score of turned queries and keys depends on how far apart they are, and not on where
    by_offset: ClassVar[bool] = True
    # whether `mixed` knows what positions add to scores, queries that are fewer than keys, and masks of all pairs that
    # a compiled graph has in place of documents; where it does not, the pattern is taken
    mixes_biased: ClassVar[bool] = False
    mixes_continued: ClassVar[bool] = False
    mixes_compiled: ClassVar[bool] = False

    def __init_subclass__(cls, *, config: type[MixerConfig] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.pattern is Mixer.pattern and cls.fast is Mixer.fast:
            raise TypeError(
                f"{cls.__name__} has neither `pattern` nor `fast`; write one, and the other follows from it."
            )
        if config is not None:
            config.mixer = cls

    def __init__(self, config: MixerConfig, dims: Dims, path: str) -> None:
        super().__init__()
        self.config, self.dims = config, dims
        self.traits = config.traits
        self.at = full_names(path, ("pattern", "scores", "z", *self.SITES))
        self.at_own = [getattr(self.at, name) for name in ("pattern", "scores", *self.SITES)]
        self.only_dense = (self.at.pattern, self.at.scores, *[getattr(self.at, name) for name in self.LAZY])

    @property
    def takes_parts(self) -> bool:
        """Whether `fast` leaves mixing to positions that make scores, where those are products all the same."""
        return False

    @property
    def scale(self) -> float:
        """What products of `queries` and keys are multiplied by; bilinear scores are such products."""
        return self.dims.d_head**-0.5

    def queries(
        self, q: Float[Tensor, "*lead head pos d_head"], context: Context | None = None, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head pos d_head"]:
        """Return queries as they meet keys: their products, times `scale`, are the scores that positions add to.

        Args:
            q: Queries, turned by rotary positions if there are any, or rows of W_Q.
            context: Facts of the pass they are of. Without one, what a query is multiplied by for the number of keys
                that it sees is left out.
            heads: Which heads they are of.
        """
        return q

    def visible(self, context: Context, n_queries: int, n_keys: int) -> Bool[Tensor, "b *stream h query key"] | None:
        """Return which of the last keys each query may look at, by mask and mechanism; None for all.

        Streams have an axis only where they differ.
        """
        return context.allowed(n_queries, n_keys)

    @property
    def key_streams(self) -> Int[Tensor, "head stream"] | None:
        """Which key stream of its group each stream of a head meets; None for the one of its own number."""
        return None

    def keys(self, k: Float[Tensor, "*lead kv_head key d_head"]) -> Float[Tensor, "*lead head key d_head"]:
        """Return grouped keys by query head, as each head meets them."""
        return k.repeat_interleave(self.dims.n_heads // k.shape[-3], -3)

    def normalised(
        self, scores: Float[Tensor, "*lead head query key"], *, empty_rows: bool = True, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head query key"]:
        """Return the pattern of scores, of some heads if `heads` says which; see `masked_softmax`."""
        return masked_softmax(scores, empty_rows=empty_rows)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Float[Tensor, "batch head pos d_z"], Any]:
        if self.config.bidirectional and (state is not None or context.form == "scan" or context.looks_back):
            raise needs_whole_texts(f"layer {self.dims.layer}", self.config)
        if context.dropout > 0 and not self.config.stores_keys and (state is not None or context.form == "scan"):
            raise no_pattern(self)
        if state is not None:
            return self.scan(q, k, v, x, context, state, tape)
        if context.form == "scan":
            return self.scan(q, k, v, x, context, self.begin(v.shape[0], v), tape)[0], None
        return self.parallel(q, k, v, x, context, tape), None

    def parallel(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        """Return z of a whole sequence: fused, unless scores or a site are wanted that only the dense route has."""
        if context.spread is not None:
            return self.spread(q, k, v, context, context.spread)
        k = context.read(k)
        parts = context.makes_scores_in_parts and self.takes_parts and q.shape[-2] == k.shape[-2]
        if (parts or not context.makes_scores) and context.dropout == 0 and not self.wants_dense(tape):
            return self.fast(q, k, v, x, context, tape)
        return self.dense(q, k, v, x, context, tape)

    def spread(self, q: Tensor, k: Tensor, v: Tensor, context: Context, spread: Spread) -> Tensor:
        """Return z of the positions that this process has; see `MixerConfig.spreads`."""
        raise AssertionError("the config's `spreads` says whether this is defined")

    def wants_dense(self, tape: Tape | None) -> bool:
        return wants(tape, *self.only_dense)

    def dense(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        """Return z by way of the pattern, which passes its site; by document, if it is neither wanted nor dropped from.

        What is dropped is drawn of whole rows, so that it does not depend on what they are packed of.
        """
        whole = wants(tape, *self.at_own) or context.dropout > 0
        runs = None if whole else documents_of(context, q.shape[-2], k.shape[-2], len(q))
        if runs is not None:

            def alone(context: Context, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
                return self.dense(q, k, v, x, context, None)

            return by_document(alone, context, runs, q, k, v, x)
        return self.weighed(self.pattern(q, self.keys(k), x, context, tape), v, q, context, tape)

    def weighed(
        self,
        pattern: Float[Tensor, "batch *value_stream head query key"],
        v: Tensor,
        q: Tensor,
        context: Context,
        tape: Tape | None,
    ) -> Float[Tensor, "batch head pos d_z"]:
        """Return z of a pattern that is yet to pass its site, and of grouped values."""
        pattern = site(tape, self.at.pattern, pattern)
        pattern = F.dropout(pattern, context.dropout) if context.dropout > 0 else pattern
        return self.merged(pattern @ per_query_head(v, q))

    def capped(self, scores: Float[Tensor, "*n query key"]) -> Float[Tensor, "*n query key"]:
        """Return what becomes of raw scores before positions add to them: the same, unless the mechanism caps them."""
        return scores

    def merged(
        self, mixed: Float[Tensor, "batch *value_stream head pos d_value"]
    ) -> Float[Tensor, "batch head pos d_z"]:
        """Return z: mixed values as they are or, of several per head, their sum or all of them side by side."""
        if self.traits.value_streams == 1:
            return mixed
        return mixed.sum(1) if self.traits.value_merge == "sum" else mixed.permute(0, 2, 3, 1, 4).flatten(-2)

    def addends(
        self, v: Float[Tensor, "*value_stream head key d_value"]
    ) -> Float[Tensor, "*lead value_stream head key d_z"]:
        """Return values as addends of z, with an axis of streams, of size one where heads have one value.

        z is the sum over streams and keys of patterns times these: of values that are joined, each stands in its place.
        """
        n, width = self.traits.value_streams, v.shape[-1]
        if n == 1:
            return v.unsqueeze(-4)
        if self.traits.value_merge == "sum":
            return v
        return torch.stack([F.pad(one, (i * width, (n - 1 - i) * width)) for i, one in enumerate(v.unbind(-4))], -4)

    def pattern(
        self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None
    ) -> Float[Tensor, "batch *value_stream head query key"]:
        """Return the matrix that multiplies values, one for each value; keys come expanded to query heads."""
        return self.probe(q, k, x, context)

    def probe(
        self, q: Tensor, k: Tensor, x: Tensor, context: Context
    ) -> Float[Tensor, "batch *value_stream head query key"]:
        """Return the pattern by feeding the identity as values: slow, independent, right whenever z is linear in v."""
        if self.traits.linear_in_value == "no":
            raise no_pattern(self)
        n_keys = k.shape[-2]
        identity = torch.eye(n_keys, dtype=q.dtype, device=q.device).expand(k.shape[0], k.shape[-3], -1, -1)
        n = self.traits.value_streams
        if n == 1:
            return self.fast(q, k, identity, x, context, None)
        # one value at a time, the others zero
        rows = []
        for i in range(n):
            v = torch.stack([identity if i == j else torch.zeros_like(identity) for j in range(n)], 1)
            rows.append(self.fast(q, k, v, x, context, None))
        return torch.stack([z.unflatten(-1, (-1, n_keys)).sum(-2) for z in rows], 1)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        """Return z by the quickest route: `mixed` text by text, or the pattern; keys and values come grouped."""
        if not self.mixes(context, q, k):
            return self.dense(q, k, v, x, context, tape)
        return self.text_by_text(context, self.queries(q, context), k, v)

    def mixes(self, context: Context, q: Tensor, k: Tensor) -> bool:
        """Whether `mixed` is written, and can be used here."""
        return (
            type(self).mixed is not Mixer.mixed
            and (self.mixes_biased or not context.biased)
            and (self.mixes_continued or q.shape[-2] == k.shape[-2])
            and (self.mixes_compiled or not torch.compiler.is_compiling())
        )

    def text_by_text(
        self, context: Context, q: Tensor, k: Tensor, v: Tensor
    ) -> Float[Tensor, "batch head query d_value"]:
        """Return what is `mixed` of each text of a packed row, or of whole rows where there is one text in each."""
        runs = self.texts(context, q.shape[-2], k.shape[-2], len(q))
        return self.mixed(context, q, k, v) if runs is None else by_document(self.mixed, context, runs, q, k, v)

    def texts(self, context: Context, n_queries: int, n_keys: int, batch: int) -> list[Run] | None:
        """Return the texts that are mixed one by one; None if rows are mixed whole."""
        return documents_of(context, n_queries, n_keys, batch)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        """Return z of one text in each row, without the pattern.

        Args:
            context: Facts of the pass.
            q: Queries as they meet keys, see `queries`.
            k: Keys, grouped.
            v: Values, grouped.
        """
        raise NotImplementedError(f"{type(self).__name__} has no route but the pattern")

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Tensor, Any]:
        """Return z of the new positions and the state after them."""
        reach = self.config.reach
        (k, keys), (v, values) = append(state.key, k, reach), append(state.value, v, reach)
        # the pattern's rows are those of the new positions, over all keys that are still in the state
        return self.parallel(q, k, v, x, context, tape), KeyValue(keys, values)

    def begin(self, batch: int, like: Tensor) -> Any:
        """Return the empty state, a NamedTuple of tensors, on the device and in the dtype of `like`."""
        dims, traits = self.dims, self.traits
        return KeyValue(
            like.new_zeros(batch, *several(traits.streams), dims.n_kv_heads, 0, dims.d_head),
            like.new_zeros(batch, *several(traits.value_streams), dims.n_kv_heads, 0, dims.d_value),
        )

    def decay(self, like: Tensor) -> Float[Tensor, " head"] | None:
        """Return what each head keeps of its memory from one position to the next, in float32 at least.

        None for a mechanism without such a memory, or if what is kept depends on the text.
        """
        return None

    def penalty(self) -> Float[Tensor, ""] | None:
        """Return what training adds to the loss for what the mechanism has come to spend, in nats; None for nothing."""
        return None

    def cut(self, state: Any, length: int) -> Any:
        """Return the state as it was after its first `length` positions, if the config `keeps` that."""
        return type(state)(*(rows[..., :length, :] for rows in state))


@lru_cache(maxsize=4096)
@torch.no_grad()
def _counted(config: MixerConfig, n_queries: int, n_keys: int, dims: Dims, causal: bool) -> int:
    """Return the operations that torch counts where queries, the last positions if causal, meet so many keys."""
    traits, past = config.traits, n_keys - n_queries if causal else 0

    def mix(start: int, stop: int, state: Any, stop_key: int) -> Any:
        n, m = stop - start, stop_key - start
        q = torch.zeros(1, *several(traits.streams), dims.n_heads, n, dims.d_head)
        k = torch.zeros(1, *several(traits.streams), dims.n_kv_heads, m, dims.d_head)
        v = torch.zeros(1, *several(traits.value_streams), dims.n_kv_heads, m, dims.d_value)
        at, crossed = torch.arange(stop_key)[None], not causal and n != m
        context = Context(looking_back() if causal else Mask(), at[:, start:stop], at, first=start, crossed=crossed)
        state = mixer.begin(1, v) if state is None and past > 0 else state
        return mixer(q, k, v, torch.zeros(1, n, dims.d_model), context, state, None)[1]

    with torch.device("meta"):
        mixer = config.build(dims, "").eval()
        try:
            state = mix(0, past, None, past) if past > 0 else None
            with FlopCounterMode(display=False) as counter:
                mix(past, past + n_queries, state, n_keys)
        except (NotImplementedError, RuntimeError) as error:
            if not isinstance(error, NotImplementedError) and "meta" not in str(error):
                raise
            raise NotImplementedError(
                f'"{config.kind}" reads a number where it mixes, and its operations are counted without numbers '
                f"({str(error).splitlines()[0]}).\n"
                f"    Write `flops` in {type(config).__name__}: `all_pairs_flops` has both products over all pairs."
            ) from error
    return counter.get_total_flops()


def several(streams: int) -> tuple[int, ...]:
    """Return the axis of streams in a shape: there is none where there is one stream."""
    return (streams,) if streams > 1 else ()


def per_query_head(k: Tensor, q: Tensor) -> Tensor:
    """Expand grouped keys or values to query heads: head h uses group h // (n_heads / n_kv_heads)."""
    if k.shape[-3] == q.shape[-3]:
        return k
    return k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)


def needs_whole_texts(where: str, config: MixerConfig) -> ConfigError:
    """Return the error for a mechanism that is asked to look back only, or to go on from a state."""
    return ConfigError(
        f'{where} uses "{config.kind}", which needs a text whole: it cannot be causal, and has no state.\n'
        "    It works in an encoder (EncoderConfig), and in the encoder of an encoder-decoder."
    )


def no_pattern(mixer: Mixer) -> NoPattern:
    """Return the error for a pattern that is not defined here."""
    layer, kind = mixer.dims.layer, mixer.config.kind
    return NoPattern(
        f'layer {layer} uses "{kind}" (linear_in_value="{mixer.traits.linear_in_value}"), which has no pattern here.\n'
        f'    Read "{mixer.at.z}" instead.'
    )
