"""A model's matrices head by head: everything that reads or writes the residual stream, and circuits between tokens.

    w = weights.of(model)
    w.Q[1], w.K[1], w.V[1], w.O[1]             layer 1, `head d_model d_head` (O: `head d_value d_model`)
    w["L1H6"].ov(), w["L1H6"].qk()             factored products of one head; w[1].ov() those of a whole layer
    w.full_ov("L1H6")                          token to logit, vocab x vocab, still factored

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
"""
# torch does not type the parts of a module
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnnecessaryComparison=false

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention import AttentionLayer
from glassformer.attention.positions import QueryKeyOnlyPositions
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.models import Model, ModuleLike, SubLayer, require_model
from glassformer.models.embedding import Embedding
from glassformer.models.mlp import MlpLayer
from glassformer.models.norms import Norm
from glassformer.trace import parts_of
from glassformer.weights.factored import Factored
from glassformer.weights.heads import (
    AttentionWeights,
    MlpWeights,
    Offset,
    Side,
    attention_views,
    detached,
    gain_of,
    mlp_views,
)

CHUNK = 4096  # tokens whose vectors are normed at a time

Source = Literal["token", "position", "bias"]


@dataclasses.dataclass(frozen=True, eq=False)
class HeadWeights:
    """Everything that reads or writes the residual stream, head by head.

    Args:
        attention: Attention layers of all stacks, in the order of the forward pass.
        mlps: MLPs, likewise.
        embeddings: Token vectors as they enter each stack, a row per token that it reads; before the norm on what
            enters, where it norms them together with positions (`entry_norm`).
        tables: Position vectors added to each stack, `pos d_model`, or None.
        U: The unembedding, `d_model vocab`; of a factored output layer what makes its inner logits.
        bU: Its bias, or None.
        norms: Gain and bias of every norm (None where folded away), by the path of its output site.
        model: The model they belong to.
        folded: Whether norms, value biases and means were absorbed: see `of`.
        augmented: Whether a constant coordinate carries the biases.
        layers: Blocks that attention and MLPs are of; None for all.
    """

    attention: tuple[AttentionWeights, ...]
    mlps: tuple[MlpWeights, ...]
    embeddings: dict[str, Float[Tensor, "_ d_model"]]
    tables: dict[str, Float[Tensor, "pos d_model"] | None]
    U: Float[Tensor, "d_model vocab"]
    bU: Tensor | None
    norms: dict[str, tuple[Tensor | None, Tensor | None]]
    model: Model
    folded: bool = False
    augmented: bool = False
    layers: tuple[int, ...] | None = None

    @property
    def stack(self) -> str:
        """Name of the stack that ends in the logits."""
        return self.model.output

    @property
    def E(self) -> Float[Tensor, "vocab d_model"]:
        """Token vectors as they enter the stack that ends in the logits; raises as `require_entry`."""
        self.require_entry(self.stack, "token vectors")
        return self.embeddings[self.stack]

    @property
    def P(self) -> Float[Tensor, "pos d_model"] | None:
        """Position vectors added to that stack, or None; raises as `require_entry`."""
        self.require_entry(self.stack, "position vectors")
        return self.tables[self.stack]

    @property
    def Q(self) -> tuple[Tensor, ...]:
        """By attention layer, as K, V and O are."""
        return tuple(a.Q for a in self.attention)

    @property
    def K(self) -> tuple[Tensor, ...]:
        return tuple(a.K for a in self.attention)

    @property
    def V(self) -> tuple[Tensor, ...]:
        return tuple(a.V for a in self.attention)

    @property
    def O(self) -> tuple[Tensor, ...]:  # noqa: E743
        return tuple(a.O for a in self.attention)

    @property
    def labels(self) -> list[str]:
        """Names of all heads."""
        return [label for a in self.attention for label in a.labels]

    @functools.cached_property
    def sub_layers(self) -> dict[str, SubLayer]:
        """Where the layers lie, by path."""
        return {layer.path: layer for stack in self.model.stacks for layer in self.model.sub_layers(stack)}

    @property
    def opaque(self) -> list[SubLayer]:
        """Sub-layers whose matrices are not among these. Mixtures of experts are such."""
        return [one for one in self.sub_layers.values() if not isinstance(one.part, AttentionLayer | MlpLayer)]

    def require_all_layers(self, analysis: str, instead: str) -> None:
        """Raise `AnalysisUnavailable` if these are the matrices of some blocks only."""
        if self.layers is not None:
            raise AnalysisUnavailable(
                f"{analysis} needs what every layer writes, and these weights are of layers {list(self.layers)}.\n"
                f"    Leave out layers= in weights.of. {instead}"
            )

    def require_matrices(self, analysis: str, instead: str) -> None:
        """Raise `AnalysisUnavailable` unless all sub-layers are attention or MLPs, told by their matrices."""
        for layer in self.opaque:
            kind = layer.block.config.parts[layer.place].kind
            raise AnalysisUnavailable(
                f'{analysis}: layer {layer.layer} has a sub-layer "{layer.name}" of kind "{kind}", which is not one '
                f"set of matrices: which of them count differs by position.\n    {instead}"
            )

    def __getitem__(self, which: int | str) -> AttentionWeights:
        """Return an attention layer by its place among them, or one head by its label (`L1H6`)."""
        if isinstance(which, int):
            return self.attention[which]
        for layer in self.attention:
            if which in layer.labels:
                return layer[layer.labels.index(which)]
        raise AnalysisUnavailable(f'no head "{which}".{nearest(which, self.labels)} Heads: {_brief(self.labels)}.')

    def __iter__(self) -> Iterator[AttentionWeights]:
        return iter(self.attention)

    def __len__(self) -> int:
        return len(self.attention)

    def of_stack(self, stack: str | None = None) -> tuple[AttentionWeights, ...]:
        """The self-attention layers of a stack; that of the logits by default."""
        stack = self.stack if stack is None else stack
        return tuple(a for a in self.attention if a.stack == stack and not a.crosses)

    def read(self, rows: Float[Tensor, "n d_model"], layer: AttentionWeights) -> Float[Tensor, "n d_model"]:
        """Rows of the stream as a layer's queries see them: through the norm before it."""
        return self.normed(rows, self.norm_before(layer))

    def normed(
        self, rows: Float[Tensor, "*n d_model"], norm: Norm | None, scale: Tensor | None = None, *, bias: bool = True
    ) -> Float[Tensor, "*n d_model"]:
        """Rows of the stream through a norm, less what was folded away.

        Args:
            rows: Rows, or addends of rows if their common scale is given.
            norm: A norm of the model; None is the identity.
            scale: What to divide by; each row's own by default.
            bias: Add the norm's bias (for the whole row, not for an addend).
        """
        if norm is None or norm.identity:
            return rows
        body, one = (rows[..., :-1], rows[..., -1:]) if self.augmented else (rows, None)
        gain, shift = self.norms[norm.at_out]
        scale = norm.scale(body)[..., None] if scale is None else scale
        body = (body - norm.mean(body) if norm.centred else body) / scale
        body = body if gain is None else body * gain
        body = body + shift if bias and shift is not None else body
        return body if one is None else torch.cat((body, one), -1)

    def sources(self, layer: AttentionWeights) -> tuple[Source, ...]:
        """Sources that a layer's queries and keys can be made of, as far as weights alone tell."""
        biased = any(self._has_bias(layer, side) for side in ("query", "key"))
        there: dict[Source, bool] = {"token": True, "position": self._positions(layer) is not None, "bias": biased}
        return tuple(source for source, found in there.items() if found)

    def projected(
        self, layer: AttentionWeights, side: Side, source: Source = "token"
    ) -> Float[Tensor, "head *stream n d_head"]:
        """The queries or keys that tokens, positions or the bias contribute, one row each, by query head.

        Tokens are read through the layer's norm as if the stream held only them: exact for the first layer. Where
        positions are added to the stream, both are divided by one scale, the mean over tokens (and positions), so that
        token and position parts add up. Behind the first layer the stream holds more; this is then the direct path.

        A norm of queries or keys is dealt with in the same way: it divides each token by its own scale, and then the
        bias, divided with it, is the token's; where positions reach queries and keys as an addend, all are divided by
        one scale of each head, the harmonic mean over tokens at positions taken in turn.

        Raises:
            AnalysisUnavailable: The layer has no such source.
        """
        if source == "bias" and not self._has_bias(layer, side):
            raise self._no_source(layer, source)
        if layer.norm(side) is not None and self._positions(layer) is None:
            return torch.cat([self.looked(layer, side, rows) for rows in self.source_parts(layer, side, source)], -2)
        every = layer.across(side)
        found = every.unscaled(side, self._made(every, side, source))
        if every.norm(side) is not None:
            found = found / self._common_divisor(every, side)
            shift = every.shift(side)
            found = found if source != "bias" or shift is None else found + shift[..., None, :]
        return layer.expanded(side, layer.of_across(side, found))

    def looked(
        self, layer: AttentionWeights, side: Side, rows: Float[Tensor, "n d_model"]
    ) -> Float[Tensor, "head *stream n d_head"]:
        """The queries or keys that a layer makes of rows it reads, by query head.

        Behind a norm of their own they are whole, biases included; without one biases are left out.
        """
        every = layer.across(side)
        made = rows @ (every.Q if side == "query" else every.K)
        if every.norm(side) is not None:
            bias, shift = self._bias(every, side), every.shift(side)
            made = made if bias is None else made + bias[..., None, :]
            made = every.unscaled(side, made) / every.divisor(side, made)[..., None]
            made = made if shift is None else made + shift[..., None, :]
        return layer.expanded(side, layer.of_across(side, made))

    def _made(
        self,
        layer: AttentionWeights,
        side: Side,
        source: Source,
        ids: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> Float[Tensor, "head *stream n d_head"]:
        """Return what queries or keys are made of, before any norm of theirs, by their own heads."""
        if source == "bias":
            bias = self._bias(layer, side)
            return (
                torch.zeros_like(layer.Q if side == "query" else layer.K)[..., :1, :]
                if bias is None
                else bias[..., None, :]
            )
        matrix = layer.Q if side == "query" else layer.K
        if source == "position" and isinstance(layer.module.positions, QueryKeyOnlyPositions):
            matrix = layer.Q_position if side == "query" else layer.K_position
        return torch.cat([rows @ matrix for rows in self.source_parts(layer, side, source, ids, scale)], -2)

    def _common_divisor(self, layer: AttentionWeights, side: Side) -> Float[Tensor, "head *stream 1 1"]:
        """Return what the norm of queries or keys divides by on average, over tokens at positions taken in turn."""
        scale, table, n = self.source_scale(layer), self._positions(layer), len(self.embeddings[layer.stack])
        assert table is not None, "asked where positions are an addend"
        placed, bias, total = self._made(layer, side, "position", None, scale), self._made(layer, side, "bias"), 0.0
        for start in range(0, n, CHUNK):
            ids = torch.arange(start, min(start + CHUNK, n), device=table.device)
            whole = self._made(layer, side, "token", ids, scale) + placed[..., ids % len(table), :] + bias
            total = total + layer.divisor(side, whole).reciprocal().sum(-1)
        return (n / torch.as_tensor(total))[..., None, None]

    def full_qk(
        self,
        head: str | int,
        query: Source = "token",
        key: Source = "token",
        *,
        offset: Offset = None,
    ) -> Factored:
        """Full QK circuit: the score each query token (or position, or the bias) gives to each key.

        The score's scale is included. Only differences within a row mean anything: softmax ignores what a query gives
        to all keys. See `projected` for what is exact.

        Args:
            head: A head (`L1H6`), or the index of an attention layer for all its heads.
            query: What the query is made of.
            key: What the key is made of.
            offset: As in `AttentionWeights.qk`.

        Source: Elhage et al. 2021, "Splitting attention head terms into query-key and output-value circuits".
        """
        layer = self[head]
        q = layer.rotated(self.projected(layer, "query", query), offset)
        return Factored(q, self.projected(layer, "key", key).mT) * layer.scale

    def full_ov(self, head: str | int, source: Literal["token", "position"] = "token") -> Factored:
        """Full OV circuit: how much attending to a source raises each logit, per unit of attention.

        The final norm's scale is left at one, so what can be compared is one row with itself and one head with another.

        Args:
            head: A head (`L1H6`), or the index of an attention layer for all its heads.
            source: Tokens, or positions where they are in the stream.

        Raises:
            AnalysisUnavailable: OV is not defined here, the layer has no such source, or the stack it writes to does
                not end in the logits.
        """
        layer = self[head]
        self.require_logits(layer, "full OV circuits")
        layer.require_ov("full OV circuits")
        ov = layer.ov()
        left = torch.cat([rows @ ov.left for rows in self.source_parts(layer, "value", source)], -2)
        return Factored(left, ov.right) @ self.read_out()

    @property
    def shifts(self) -> bool:
        """Whether a shift of all logits changes nothing: a softmax is taken over more than one of them."""
        return self.U.shape[-1] > 1

    def direct(self, ids: Int[Tensor, " n"] | None = None) -> Factored:
        """Direct path: the logits each token's vector gives by itself, final norm applied, biases aside.

        Exact, biases added, for a model without layers; position vectors are left out.

        Args:
            ids: Tokens, a row each; all by default.
        """
        self.model.unembed.require_linear("the direct path")
        tokens = self._without_constant(self.E if ids is None else self.E[ids])
        return Factored(self.normed(tokens, self.final_norm(), bias=False), self.U)

    def read_out(self) -> Float[Tensor, "d_model vocab"]:
        """The unembedding with the final norm's gain and centring, if they are not in there yet."""
        self.model.unembed.require_linear("reading logits off the stream")
        final = self.final_norm()
        if self.folded or final.identity:
            return self.U
        gain = self.norms[final.at_out][0]
        body = self.U[: final.d_model]
        body = body if gain is None else body * gain[:, None]
        body = body - body.mean(0) if final.centred else body
        return torch.cat((body, self.U[final.d_model :])) if self.augmented else body

    def require_logits(self, layer: AttentionWeights, analysis: str) -> None:
        """Raise `AnalysisUnavailable` unless the stream that a layer writes to ends in the logits, and by a matrix."""
        if layer.stack != self.stack:
            raise AnalysisUnavailable(
                f"{analysis}: {layer.labels[0]} writes to the {layer.stack}'s stream, which no unembedding reads.\n"
                "    QK and OV of the layer itself are w[…].qk() and w[…].ov()."
            )
        self.model.unembed.require_linear(analysis)

    def reads_ahead(self, stack: str) -> bool:
        """Whether positions of a stack see those after them."""
        return self.model.reads_ahead(stack)

    def entry_norm(self, stack: str) -> Norm | None:
        """The norm that token and position vectors pass together on their way into a stack, or None.

        Where no positions are added, such a norm acts on each token's vector by itself, and `embeddings` are behind it.
        """
        return None if self.tables[stack] is None else self.model.embeddings[stack].norm

    def require_entry(self, stack: str, analysis: str) -> None:
        """Raise `AnalysisUnavailable` where no token has a vector of its own that enters the stack."""
        self.require_vocabulary(analysis)
        if self.entry_norm(stack) is not None:
            raise AnalysisUnavailable(
                f"{analysis}: in this model a norm divides the sum of a token's and a position's vector (embed_norm), "
                "so that neither enters the stream by itself.\n"
                "    Frozen at one text they do: analysis.frozen.writes(run), "
                "analysis.attribution.direct_logit_attribution(run)."
            )

    def require_vocabulary(self, analysis: str) -> None:
        """Raise `AnalysisUnavailable` where images are read, whose patches are no tokens of a vocabulary."""
        if self.model.patches is not None:
            raise AnalysisUnavailable(
                f"{analysis}: this model reads images, and goes by no vocabulary whose tokens have vectors.\n"
                "    At one image: analysis.frozen.writes(run), analysis.attribution.direct_logit_attribution(run)."
            )

    def final_norm(self) -> Norm:
        """The norm before the unembedding."""
        return self.model.output_stack.final

    def norm_before(self, layer: AttentionWeights) -> Norm | None:
        """The norm a layer reads the stream through; None in post-norm blocks."""
        return self.sub_layers[layer.path].before

    def _positions(self, layer: AttentionWeights) -> Tensor | None:
        """Return the position vectors that reach a layer's queries and keys as an addend."""
        positions = layer.module.positions
        if not isinstance(positions, QueryKeyOnlyPositions):
            return self.tables[layer.stack]
        ids = torch.arange(layer.module.dims.max_len, device=layer.Q.device)[None]
        rows = positions.config.rows(ids, layer.Q.shape[-2] - self.augmented, layer.Q.dtype)[0][0]
        return torch.cat((rows, rows.new_zeros(len(rows), 1)), -1) if self.augmented else rows

    def _bias(self, layer: AttentionWeights, side: Side) -> Float[Tensor, "head *stream d_head"] | None:
        """Return what queries or keys hold whatever is read: their bias, and the norm's through their matrix."""
        own, matrix = (layer.bQ, layer.Q) if side == "query" else (layer.bK, layer.K)
        if self.augmented:
            own, matrix = matrix[..., -1, :], matrix[..., :-1, :]
        norm = None if side == "key" and layer.crosses else self.norm_before(layer)
        shift = None if norm is None else self.norms.get(norm.at_out, (None, None))[1]
        if shift is None:
            return own
        return shift @ matrix if own is None else own + shift @ matrix

    def _has_bias(self, layer: AttentionWeights, side: Side) -> bool:
        """Whether queries or keys hold something whatever is read, as a part by itself."""
        if layer.norm(side) is not None and self._positions(layer) is None:
            return False
        return self._bias(layer, side) is not None or layer.shift(side) is not None

    def source_rows(
        self,
        layer: AttentionWeights,
        side: Literal["query", "key", "value"],
        source: Source,
        ids: Int[Tensor, " n"] | None = None,
        scale: Tensor | None = None,
    ) -> Float[Tensor, "n d_model"]:
        """Return what a layer reads of tokens or positions by themselves, a row each; see `projected` for the scale.

        Args:
            layer: The layer that reads.
            side: What for.
            source: Of what.
            ids: Which tokens or positions; all of them by default.
            scale: What `source_scale` returned, if it is known already.

        Raises:
            AnalysisUnavailable: The layer has no such source.
        """
        self._require_read(layer, side)
        norm, tokens = self.norm_before(layer), self.embeddings[layer.stack]
        tokens = self._without_constant(tokens if ids is None else tokens[ids])
        table, in_stream = self._positions(layer), self.in_stream(layer)
        if source == "position":
            if table is None or (side == "value" and not in_stream):
                raise self._no_source(layer, source)
            table = table if ids is None else table[ids]
            scale = self.source_scale(layer) if scale is None else scale
            return self.normed(table, norm, scale, bias=False) if in_stream else table
        scale = self.source_scale(layer) if scale is None else scale
        return self.normed(tokens, norm, scale, bias=False)

    def source_parts(
        self,
        layer: AttentionWeights,
        side: Literal["query", "key", "value"],
        source: Source,
        ids: Int[Tensor, " n"] | None = None,
        scale: Tensor | None = None,
    ) -> Iterator[Float[Tensor, "some d_model"]]:
        """`source_rows` a few at a time: for what is made of them, which is narrower than they are."""
        self._require_read(layer, side)
        if source != "token":
            yield self.source_rows(layer, side, source, ids, scale)
            return
        tokens = self.embeddings[layer.stack]
        ids = torch.arange(len(tokens), device=tokens.device) if ids is None else ids
        scale = self.source_scale(layer) if scale is None else scale
        yield from (self.source_rows(layer, side, source, some, scale) for some in ids.split(CHUNK))

    def _require_read(self, layer: AttentionWeights, side: Literal["query", "key", "value"]) -> None:
        """Raise `AnalysisUnavailable` unless a layer reads vectors that stand for tokens."""
        if layer.crosses and side != "query":
            raise AnalysisUnavailable(
                f"full circuits: keys and values of cross-attention layer {layer.layer} read the encoder's output, "
                "which no token's vector stands for.\n    QK and OV of the layer itself are w[…].qk() and w[…].ov()."
            )
        self.require_entry(layer.stack, "full circuits")

    def _without_constant(self, rows: Tensor) -> Tensor:
        return torch.cat((rows[..., :-1], torch.zeros_like(rows[..., -1:])), -1) if self.augmented else rows

    def in_stream(self, layer: AttentionWeights) -> bool:
        """Return whether position vectors reach a layer through the stream, and so its values too."""
        return self.tables[layer.stack] is not None and not isinstance(layer.module.positions, QueryKeyOnlyPositions)

    def source_scale(self, layer: AttentionWeights) -> Tensor | None:
        """Scale that token and position vectors are divided by: None for each its own.

        Where positions are in the stream it is the mean, over tokens at positions taken in turn, of what the layer's
        norm divides by.
        """
        self.require_entry(layer.stack, "full circuits")
        norm, tokens, table = self.norm_before(layer), self.embeddings[layer.stack], self.tables[layer.stack]
        if table is None or not self.in_stream(layer):
            return None
        if norm is None or norm.identity:
            return tokens.new_ones(())
        # a few tokens at a time: a vocabulary's vectors twice over are most of what an analysis would need room for
        width = tokens.shape[-1] - self.augmented
        total = tokens.new_zeros(())
        for start in range(0, len(tokens), CHUNK):
            rows = tokens[start : start + CHUNK, :width]
            places = torch.arange(start, start + len(rows), device=tokens.device) % len(table)
            total = total + norm.scale(rows + table[places, :width]).sum()
        return total / len(tokens)

    def but_for_gain(self, layer: AttentionWeights) -> tuple[Hashable, "HeadWeights", Float[Tensor, " d_model"] | None]:
        """What layers that read tokens alike but for a gain have in common: a key; weights without it; and the gain.

        The constant coordinate, if there is one, passes no norm: its gain is one. None stands for ones.
        """
        norm = self.norm_before(layer)
        if norm is None or norm.identity:
            return (layer.stack, None), self, None
        key, gain = (layer.stack, norm.config, self.in_stream(layer)), self.norms[norm.at_out][0]
        if gain is None:
            return key, self, None
        bare = dataclasses.replace(self, norms={**self.norms, norm.at_out: (None, self.norms[norm.at_out][1])})
        return key, bare, torch.cat((gain, gain.new_ones(1))) if self.augmented else gain

    def _no_source(self, layer: AttentionWeights, source: str) -> AnalysisUnavailable:
        return AnalysisUnavailable(
            f'full circuits: layer {layer.layer} has no source "{source}" here. '
            f"It has: {', '.join(self.sources(layer))}."
        )


# a model whose weights are meant, or weights
WeightsLike = ModuleLike | HeadWeights


def views(model: ModuleLike, layers: Sequence[int] | None = None) -> HeadWeights:
    """The matrices of a model, or of some of its blocks, as views on its parameters where these are wide."""
    model = require_model(parts_of(model), "weights.of")
    n = max(len(stack.blocks) for stack in model.stacks.values())
    unknown = [i for i in layers or () if not 0 <= i < n]
    if unknown:
        raise AnalysisUnavailable(f"weights.of: no layer {unknown[0]}; this model has layers 0 to {n - 1}.")
    attention: list[AttentionWeights] = []
    mlps: list[MlpWeights] = []
    norms: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    dtype = torch.promote_types(model.unembed.stored.dtype, torch.float32)
    for name, stack in model.stacks.items():
        for layer in stack.sub_layers():
            if layers is not None and layer.layer not in layers:
                pass
            elif isinstance(layer.part, AttentionLayer):
                attention.append(attention_views(layer.part, name, layer.name, layer.write_norm))
            elif isinstance(layer.part, MlpLayer):
                mlps.append(mlp_views(layer.part, name, layer.name))
            for norm in layer.norms:
                norms |= _norm_views(norm, dtype)
        norms |= _norm_views(stack.final, dtype)
    sides = model.embeddings
    embeddings = {name: _vectors(embed) for name, embed in sides.items()}
    tables = {name: _table(e, embeddings[name]) for name, e in sides.items()}
    for embed in sides.values():
        norms |= _norm_views(embed.norm, dtype) if embed.positions is not None else {}
    bias = model.unembed.bias
    return HeadWeights(
        attention=tuple(attention),
        mlps=tuple(mlps),
        embeddings=embeddings,
        tables=tables,
        U=detached(model.unembed.inner).mT,
        bU=None if bias is None else detached(bias),
        norms=norms,
        model=model,
        layers=None if layers is None else tuple(layers),
    )


def _norm_views(norm: Norm | None, dtype: torch.dtype) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    if norm is None or norm.identity:
        return {}
    return {norm.at_out: (gain_of(norm, dtype), None if norm.shift is None else detached(norm.shift))}


def _vectors(embed: Embedding) -> Tensor:
    """Return token vectors behind all that acts on each of them by itself."""
    found = detached(embed.weight)
    found = found if embed.factor == 1.0 else found * embed.factor
    # no type is the first one, as in the forward pass
    found = found if embed.types is None else found + embed.types[0].detach()
    return found if embed.norm is None or embed.positions is not None else embed.norm(found[None])[0].detach()


def _table(embed: Any, like: Tensor) -> Tensor | None:
    if embed.positions is None:
        return None
    ids = torch.arange(embed.positions.max_len, device=like.device)[None]
    return detached(embed.positions(ids, like)[0])


def _brief(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= 16 else f"{', '.join(labels[:12])}, … ({len(labels)} in all)"
