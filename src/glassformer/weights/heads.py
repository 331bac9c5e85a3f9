"""The matrices of one attention layer or MLP, as views on its parameters, and the products of one head.

What is computed from them is computed in float32 at least: of parameters in half precision they are wider copies.

Row-vector convention: query = x @ Q, out = pattern @ (x @ V) @ O, score = (x @ Q) . (y @ K) * scale. With grouped keys
K and V hold one entry per key head, and `group` says which one a query head uses.

Where norms stand behind Q and K, a score is (x @ Q') . (y @ K') * scale / (s_x s_y): Q' and K' have what the norms do
folded in (`looking`), all but what they divide by, one positive number for each query and each key. Held as they were
in a run (`HeadScales`), these numbers make the score exact. A cap on scores stands outside of all this: what is said is
said of raw scores, which it leaves in their order.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
"""
# torch does not type the parts of a module
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnnecessaryComparison=false

import dataclasses
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention import AttentionLayer, Context
from glassformer.attention.projections import HeadNorm, Of
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models.mlp import MlpLayer
from glassformer.models.norms import Norm
from glassformer.numerics.precision import wide
from glassformer.provenance import Note, tell
from glassformer.trace import head_label
from glassformer.weights.factored import Factored
from glassformer.words import sentence

Offset = int | Iterable[int] | None
Side = Literal["query", "key"]


class HeadScales(NamedTuple):
    """What the norms of queries and keys divide by at one position each: ones where there is no norm.

    Args:
        query: Of the query of each head.
        key: Of the key that each query head uses.
    """

    query: Float[Tensor, " head *stream"]
    key: Float[Tensor, " head *stream"]


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionWeights:
    """The matrices of one attention layer, or (`head` given) of one of its heads.

    Args:
        Q: What turns what is read into queries; `head d_model d_head`, with two streams `head stream d_model d_head`.
        K: Into keys, one per key head.
        V: Into values, one per key head; several values of a head lie side by side.
        O: Mixed values into what is written.
        bQ: Bias of the queries, `head d_head`, or None; bK, bV alike.
        bO: Bias of what is written, `d_model`.
        gain: What multiplies mixed values, `head d_value`: a constant, up to the norm's scale, where the layer norms
            them; where scale and gate are `held`, all of it.
        after: Gain of the norm behind the layer, `d_model`, in sandwich blocks; `ov` includes it.
        Q_position: What position vectors are read through; Q itself, except where a norm's gain was folded into Q but
            positions enter behind that norm (query-key-only positions).
        K_position: The same for keys.
        gate: What the gate on mixed values reads through, `d_model d_z`, and its bias.
        module: The layer they belong to: its mechanism, positions and sizes.
        stack: Empty for a decoder, else `encoder` or `decoder`.
        part: `attn` or `cross`.
        after_centred: Whether the norm behind the layer subtracts the mean.
        augmented: Whether d_model ends with the constant coordinate that carries the biases.
        head: Index of the head, if it is only one: then Q, K, V, O still have a head axis, of size one.
        whole: The layer it is a head of, then.
        bare: Whether the norms of queries and keys are left out of account.
        held: Whether norm and gate on mixed values stand as they did at a place of a run: see `holding`.
        value: Which of several values of its heads it is of; None for all: see `by_value`.
        scaled: Whether norms that lie between its matrices, those of latents, divide as they did at a place of a run:
            see `scaled_by`.
    """

    Q: Float[Tensor, "head *stream d_model d_head"]
    K: Float[Tensor, "kv_head *stream d_model d_head"]
    V: Float[Tensor, "kv_head d_model d_values"]
    O: Float[Tensor, "head d_value d_model"]  # noqa: E741  # as the papers call it
    bQ: Tensor | None
    bK: Tensor | None
    bV: Tensor | None
    bO: Tensor | None
    gain: Float[Tensor, "head d_value"] | None
    after: Float[Tensor, " d_model"] | None
    Q_position: Tensor
    K_position: Tensor
    gate: tuple[Tensor, Tensor | None] | None
    module: AttentionLayer
    stack: str
    part: str
    after_centred: bool = False
    augmented: bool = False
    head: int | None = None
    whole: "AttentionWeights | None" = None
    bare: bool = False
    held: bool = False
    value: int | None = None
    scaled: bool = False

    @property
    def layer(self) -> int:
        return self.module.dims.layer

    @property
    def path(self) -> str:
        return self.module.path

    @property
    def crosses(self) -> bool:
        """Whether its keys and values are those of another stack."""
        return self.module.config.cross

    @property
    def labels(self) -> list[str]:
        """Names of the heads."""
        heads = range(self.module.dims.n_heads) if self.head is None else [self.head]
        found = [head_label(self.stack, self.part, self.layer, h) for h in heads]
        return found if self.value is None else [f"{label}/{self.value}" for label in found]

    @property
    def group(self) -> Int[Tensor, " head"]:
        """For each head, the entry of K and V that it uses."""
        return torch.arange(len(self.Q), device=self.Q.device) // (len(self.Q) // len(self.K))

    @property
    def scale(self) -> float:
        """What q . k is multiplied by; raises `AnalysisUnavailable` where scores are no such product."""
        self.require_bilinear("the scale of scores")
        return self.module.mixer.scale

    @property
    def which(self) -> slice:
        """Which of the layer's heads these are."""
        return slice(None) if self.head is None else slice(self.head, self.head + 1)

    def __getitem__(self, head: int) -> "AttentionWeights":
        """Return one head (its tensors keep a head axis of size one)."""
        n = len(self.Q)
        if not -n <= head < n:
            raise ShapeMismatch(f"head {head}: layer {self.layer} has {n} heads.")
        h = head % n
        kv = h // (n // len(self.K))
        one, shared = slice(h, h + 1), slice(kv, kv + 1)
        width = self.module.dims.d_z
        gate = self.gate
        if gate is not None:
            columns = slice(h * width, (h + 1) * width)
            gate = (gate[0][:, columns], None if gate[1] is None else gate[1][columns])
        return dataclasses.replace(
            self, Q=self.Q[one], K=self.K[shared], V=self.V[shared], O=self.O[one],
            bQ=_pick(self.bQ, one), bK=_pick(self.bK, shared), bV=_pick(self.bV, shared), gain=_pick(self.gain, one),
            Q_position=self.Q_position[one], K_position=self.K_position[shared], gate=gate,
            head=h if self.head is None else self.head, whole=self if self.whole is None else self.whole,
        )  # fmt: skip

    def by_value(self) -> list["AttentionWeights"]:
        """The layer once for each value of its heads, with what makes it and what becomes of it; itself for one value.

        Labels have the number of the value behind the head, `L0H1/0`. Queries and keys are those of the layer.
        """
        traits, width = self.module.mixer.traits, self.module.dims.d_value
        if traits.value_streams == 1 or self.value is not None:
            return [self]
        joined, found = traits.value_merge == "concat", list["AttentionWeights"]()
        for i in range(traits.value_streams):
            own = slice(i * width, (i + 1) * width)
            found.append(
                dataclasses.replace(
                    self, V=self.V[..., own], bV=None if self.bV is None else self.bV[:, own], value=i,
                    O=self.O[:, own] if joined else self.O,
                    gain=self.gain[:, own] if joined and self.gain is not None else self.gain,
                )
            )  # fmt: skip
        return found

    def moving(self, analysis: str) -> list["AttentionWeights"]:
        """The layer once for each value of its heads that has an OV circuit: `by_value` without those that have none.

        Raises:
            AnalysisUnavailable: None has.
        """
        found, reason = list["AttentionWeights"](), None
        for one in self.by_value():
            try:
                one.require_ov(analysis)
                found.append(one)
            except AnalysisUnavailable as error:
                reason = error
        if reason is not None and not found:
            raise reason
        return found

    def holding(self, multiplier: Float[Tensor, "head d_value"]) -> "AttentionWeights":
        """Return the layer with what multiplies its mixed values held: a norm's gain over its scale, times a gate.

        Its OV circuits are then those of the place that the numbers are of, or of many if they are a mean over these:
        OV is linear in them.

        Args:
            multiplier: Of every head, `output_gates(run).at(layer, position)`.
        """
        return dataclasses.replace(self, gain=multiplier.to(self.O), gate=None, held=True)

    def scaled_by(self, scales: HeadScales) -> "AttentionWeights":
        """Return the layer with the scales of norms between its matrices held: those of latents.

        Q, K and V are then in units of the run: K and V over what the norm of a key's latent divides by, which is that
        of the value too; the part of a key that passes no norm as it is. Layers without such norms are as they are.

        Args:
            scales: Of a query and of a key, `query_key_scales(run).at(layer, query, key)`.
        """
        projection = self.module.projection
        if not projection.norms_within or self.scaled:
            return self
        query, key = scales.query.to(self.Q), scales.key[:: len(self.Q) // len(self.K)].to(self.K)
        # one number for all streams of a head
        value = key if key.ndim == 1 else key[:, 0]

        def over(rows: Tensor | None, scale: Tensor, part: slice, axes: int) -> Tensor | None:
            if rows is None:
                return None
            divisor = torch.ones_like(rows)
            divisor[..., part] = scale[(..., *[None] * axes)]
            return rows / divisor

        made = {}
        for name, scale, which in (("Q", query, "query"), ("K", key, "key"), ("V", value, "value")):
            part = projection.normed_part(which)
            made[name] = over(getattr(self, name), scale, part, 2)
            made[f"b{name}"] = over(getattr(self, f"b{name}"), scale, part, 1)
        return dataclasses.replace(self, **made, Q_position=made["Q"], K_position=made["K"], scaled=True)

    def ov(self) -> Factored:
        """OV circuit of each head, what it moves: out = pattern @ x @ OV. Batch axes: `head`.

        Where latents, mixed values, or what is written, pass a norm, this is the map up to that norm's scale, gain
        included; with what multiplies mixed values held (`holding`), or latents' scales (`scaled_by`), in units of the
        run.

        Raises:
            AnalysisUnavailable: The mechanism's output is not linear in its values, or a gate multiplies it.
        """
        self.require_ov("OV circuits")
        value = self.V[self.group] if len(self.V) != len(self.Q) else self.V
        return Factored(value if self.gain is None else value * self.gain[:, None], self.written())

    def written(self) -> Float[Tensor, "head d_value d_model"]:
        """O as the stream sees it: behind the norm of a sandwich block (up to its scale), else O itself."""
        if self.after is None:
            return self.O
        return self._centre(self.O) * self.after

    def _centre(self, write: Tensor) -> Tensor:
        # the constant coordinate, if there is one, takes no part
        body = write[..., :-1] if self.augmented else write
        if not self.after_centred:
            return write
        body = body - body.mean(-1, keepdim=True)
        return torch.cat((body, write[..., -1:]), -1) if self.augmented else body

    def qk(self, offset: Offset = None, scales: HeadScales | None = None) -> Factored:
        """QK circuit of each head: score = x @ QK @ y * scale. Batch axes: `head`, `head stream` for two.

        Where queries and keys are normed this is up to what the norms divide by, a positive number for each query and
        each key; with these numbers it is the score. Where scores are capped it is the raw score, before the cap.

        What the mechanism does to queries is in QK, and a head's temperature. One that goes by the number of keys a
        query sees is at one here: such scores are those of a query that sees as many as it was set for (`LogN.length`).

        Args:
            offset: How far the key lies before the query. Needed with rotary positions, whose QK depends on it
                (several: their mean); without effect otherwise.
            scales: What the norms divided by in a run, `query_key_scales(run).at(layer, query, key)`.

        Raises:
            AnalysisUnavailable: Scores are not bilinear, even with norms' scales held and before a cap; rotary
                positions and no offset; or norms with biases, which no scale divides, in augmented matrices without
                scales.
        """
        if scales is not None and self.module.projection.norms_within:
            return self.scaled_by(scales).qk(offset)
        return Factored(
            self.rotated(self._per_query_head("query", scales), offset), self._per_query_head("key", scales).mT
        )

    def norm(self, side: Side) -> HeadNorm | None:
        """The norm that queries or keys pass, or None."""
        return None if self.bare else self.module.projection.norm_of(side)

    @property
    def normalises(self) -> bool:
        """Whether queries or keys pass a norm."""
        return self.norm("query") is not None or self.norm("key") is not None

    def across(self, side: Side) -> "AttentionWeights":
        """The whole layer where the norm of one head's queries or keys is one of all heads; else itself."""
        norm = self.norm(side)
        return self if self.whole is None or norm is None or not norm.couples_heads else self.whole

    def looking(self, side: Side) -> Float[Tensor, "head *stream d_model d_head"]:
        """Q or K with what the norm behind it does folded in, all but its scale: itself without a norm."""
        every = self.across(side)
        return self.of_across(side, every.unscaled(side, every.Q if side == "query" else every.K))

    def unscaled(self, side: Side, rows: Float[Tensor, "head *stream n d_head"]) -> Tensor:
        """Queries or keys behind their norm, up to its scale and without its bias; rows of Q or K likewise.

        Of one head whose norm is one of all, ask the whole layer: see `across`.
        """
        norm = self.norm(side)
        if norm is None:
            return rows
        which = None if self.head is None or norm.couples_heads else self._index(side)
        return _as_weights(norm.unscaled(_as_values(rows), which).detach())

    def divisor(self, side: Side, rows: Float[Tensor, "head *stream n d_head"]) -> Float[Tensor, "head *stream n"]:
        """Divisor of queries or keys: what their norm divides by, of rows as they are projected; ones without a norm.

        Of one head whose norm is one of all, ask the whole layer: see `across`.
        """
        norm = self.norm(side)
        if norm is None:
            return rows.new_ones(rows.shape[:-1])
        return _as_weights(norm.scale(_as_values(rows))[..., None]).detach()[..., 0]

    def shift(self, side: Side) -> Float[Tensor, "head *stream d_head"] | None:
        """The bias of the norm of queries or keys, which nothing divides; None without one."""
        norm = self.norm(side)
        if norm is None or norm.bias is None:
            return None
        every = self if self.whole is None else self.whole
        rows = torch.zeros_like((every.Q if side == "query" else every.K)[..., :1, :])
        found = _as_weights(norm.shift(_as_values(rows)).detach())[..., 0, :]
        return found if every is self else found[self._index(side)]

    def of_across(self, side: Side, rows: Float[Tensor, " head *n"]) -> Float[Tensor, " _ *n"]:
        """Return of what was made by `across` the part that is this layer's."""
        return rows if self.across(side) is self else rows[self._index(side)]

    def expanded(self, side: Side, rows: Float[Tensor, " head *n"]) -> Float[Tensor, " _ *n"]:
        """Rows by query head: keys once for each query head that uses them."""
        if side == "query":
            return rows
        rows = rows[self.group] if len(self.K) != len(self.Q) else rows
        which = self.module.mixer.key_streams
        if which is None:
            return rows
        head = torch.arange(len(rows), device=rows.device)[:, None]
        return rows[head, which.to(rows.device)[self.which]]

    def _index(self, side: Side) -> Int[Tensor, " one"]:
        """Return the place of this one head, or of its key, in the whole layer."""
        assert self.whole is not None and self.head is not None, "asked of one head"
        at = torch.tensor([self.head], device=self.Q.device)
        return at if side == "query" else self.whole.group[at]

    def _per_query_head(self, side: Side, scales: HeadScales | None) -> Float[Tensor, "head *stream d_model d_head"]:
        matrix, shift = self.expanded(side, self.looking(side)), self.shift(side)
        if scales is not None:
            matrix = matrix / (scales.query if side == "query" else scales.key)[..., None, None]
        if shift is None or not self.augmented:
            return matrix
        if scales is None:
            raise AnalysisUnavailable(
                f"QK circuits: the norms of queries and keys in layer {self.layer} have biases, which their scales do "
                "not divide, so that without scales the constant coordinate cannot carry them.\n"
                "    Give scales of a run, w[…].qk(scales=query_key_scales(run).at(…)), or weights.of(model), which "
                "leaves biases out."
            )
        constant = matrix[..., -1:, :] + self.expanded(side, shift)[..., None, :]
        return torch.cat((matrix[..., :-1, :], constant), -2)

    def rotated(self, q: Float[Tensor, "*n d_head"], offset: Offset) -> Float[Tensor, "*n d_head"]:
        """Queries, or the rows of Q, as they meet a key at an offset (or the mean over several)."""
        self.require_bilinear("QK circuits")
        positions = self.module.positions
        if not positions.rotates:
            return self.asked(q)
        if offset is None:
            raise AnalysisUnavailable(
                f"QK circuits: layer {self.layer} has rotary positions, so QK depends on how far the key lies "
                "before the query.\n    Give offset=0, 1, … or several, as in offset=range(1, 65), for their mean."
            )
        offsets = [offset] if isinstance(offset, int) else list(offset)
        if not offsets:
            raise ShapeMismatch("offset: an empty range has no mean; give at least one offset.")
        return self.asked(positions.turned(q, torch.tensor(offsets)))

    @torch.no_grad()
    def asked(
        self, q: Float[Tensor, "*lead head pos d_head"], context: Context | None = None
    ) -> Float[Tensor, "*lead head pos d_head"]:
        """Return turned queries, or rows of Q, as the mechanism lets them meet keys; see `Mixer.queries`."""
        # rows of one text, or of none in particular
        return self.module.mixer.queries(q[None], context, self.which)[0]

    def require_ov(self, analysis: str) -> None:
        """Raise `AnalysisUnavailable` unless what is written is linear in what values read, given the pattern."""
        kind, traits = self.module.mixer.config.kind, self.module.mixer.traits
        linear = traits.linear_in_value
        if not traits.one_pattern and not (traits.has_patterns and self.value is not None):
            raise AnalysisUnavailable(
                f'{analysis}: layer {self.layer} uses "{kind}" (linear_in_value="{linear}"), so no single matrix '
                "says what a head moves.\n"
                "    Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run)."
                + (" Of several values each has one: w[…].by_value()." if traits.has_patterns else "")
            )
        if self.gate is not None:
            raise AnalysisUnavailable(
                f"{analysis}: layer {self.layer} multiplies mixed values by a gate of the query's input, so what a "
                "head moves differs by position.\n"
                "    Give weights with the gates of a text in place of the model: "
                "analysis.frozen.output_gates(run).hold(model). Whatever a gate does, V says what is read, and rows of "
                "O span what is written: analysis.subspaces.overlaps(model)."
            )
        self._require_matrices(analysis, "values")
        if self.held:
            tell([HELD])

    def require_bilinear(self, analysis: str) -> None:
        """Raise `AnalysisUnavailable` unless raw scores are bilinear in what query and key read, norms' scales held.

        Of a cap, which raw scores are before, the analysis at work is told.
        """
        mixer = self.module.mixer
        if not mixer.traits.bilinear_raw_scores:
            raise AnalysisUnavailable(
                f'{analysis}: layer {self.layer} uses "{mixer.config.described}", whose scores are not bilinear in '
                "what query and key read (bilinear_scores=False).\n"
                "    Read patterns instead: analysis.heads.head_scores(model)."
            )
        if self.module.positions.rotates and not mixer.by_offset:
            raise AnalysisUnavailable(
                f'{analysis}: layer {self.layer} uses "{mixer.config.described}" on queries that rotary positions have '
                "turned, so its scores depend on both positions and not on their distance alone.\n"
                "    analysis.paths.score_paths(run, head=…) splits them at the positions of a text."
            )
        self._require_matrices(analysis, "scores")
        if mixer.traits.capped_scores:
            tell([CAPPED])

    def _require_matrices(self, analysis: str, of: Of) -> None:
        departs = self.module.projection.departs(of, self.value)
        if departs is None:
            return
        if self.scaled and departs.once_frozen:
            tell([SCALED])
        elif departs.up_to_scale:
            tell([UP_TO_LATENT_SCALES])
        else:
            raise AnalysisUnavailable(
                f"{analysis}: layer {self.layer} {departs.how}, so {departs.so}.\n    {departs.instead}"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class MlpWeights:
    """The matrices of one MLP: what its neurons read and write.

    Args:
        W_in: `d_model neuron`; the linear branch if the MLP is gated.
        W_gate: `d_model neuron`, or None.
        W_out: `neuron d_model`.
        b_in: Bias of the neurons, or None; b_gate, b_out alike.
        module: The layer they belong to.
        stack: Empty for a decoder, else `encoder` or `decoder`.
        part: `mlp`.
    """

    W_in: Float[Tensor, "d_model neuron"]
    W_gate: Float[Tensor, "d_model neuron"] | None
    W_out: Float[Tensor, "neuron d_model"]
    b_in: Tensor | None
    b_gate: Tensor | None
    b_out: Tensor | None
    module: MlpLayer
    stack: str
    part: str

    @property
    def layer(self) -> int:
        return self.module.layer

    @property
    def path(self) -> str:
        return self.module.path

    @property
    def label(self) -> str:
        return f"{'enc ' if self.stack == 'encoder' else ''}L{self.layer} {self.part}"


CAPPED = Note(
    sentence("Scores of this model are capped."),
    sentence("What is said of scores is said of raw ones, before the cap, which leaves them in their order."),
)
HELD = Note(
    sentence("Gates on mixed values differ by position."),
    sentence("What is said of what heads move holds with gates, and scales of norms, as they were on the text given."),
)
SCALED = Note(
    sentence("Latents of this model, of which keys and values are made, are normed."),
    sentence("What is said of heads holds with the scales of those norms as they were on the text given."),
)
UP_TO_LATENT_SCALES = Note(
    sentence("Latents of this model, of which keys and values are made, are normed."),
    sentence(
        "What heads move is given up to what that norm divides by, one positive number per token read; tables of "
        "tokens take it to be the same for all."
    ),
    sentence("Give weights with the scales of a text, query_key_scales(run).hold(model), for circuits in its units."),
)
UP_TO_SCALES = Note(
    sentence("Queries and keys of this model are normed."),
    sentence("Circuits between them are given up to what the norms divide by, one positive number per query and key."),
    sentence("Give scales of a run, query_key_scales(run), for circuits in units of its scores."),
)


def attention_views(
    layer: AttentionLayer, stack: str = "", part: str = "attn", after: Norm | None = None
) -> AttentionWeights:
    """The matrices of one attention layer as views on its parameters.

    Args:
        layer: The layer.
        stack: As in `AttentionWeights`.
        part: As in `AttentionWeights`.
        after: The norm behind it, in a sandwich block.
    """
    projection, merge, dims, streams = layer.projection, layer.merge, layer.dims, layer.mixer.traits.streams
    q, k, v = (detached(projection.matrix(which)) for which in ("query", "key", "value"))
    if streams > 1:
        # head d_model (stream d_head) -> head stream d_model d_head
        q, k = (u.unflatten(-1, (streams, dims.d_head)).movedim(-2, -3) for u in (q, k))
    b_q = b_k = b_v = None
    if projection.qkv.bias is not None:
        b_q, b_k, b_v = (detached(projection.bias(which)) for which in ("query", "key", "value"))
        if streams > 1:
            b_q, b_k = (b.unflatten(-1, (streams, dims.d_head)) for b in (b_q, b_k))
    gain = None
    if not merge.linear:
        ones = q.new_ones(dims.n_heads, dims.d_z)
        own = None if merge.gain is None else detached(merge.gain)
        own = own if own is None or merge.config.norm == "head" else own.unflatten(0, (-1, dims.d_z))
        gain = ones * merge.config.factor * (1.0 if own is None else own)
    gate = None
    if merge.gate is not None:
        gate = detached(merge.gate.weight).mT, None if merge.gate.bias is None else detached(merge.gate.bias)
    after_gain = None
    if after is not None and not after.identity:
        found = gain_of(after, q.dtype)
        after_gain = q.new_ones(dims.d_model) if found is None else found
    out_bias = merge.output.bias
    return AttentionWeights(
        Q=q,
        K=k,
        V=v,
        O=detached(merge.matrix()),
        bQ=b_q,
        bK=b_k,
        bV=b_v,
        bO=None if out_bias is None else detached(out_bias),
        gain=gain,
        after=after_gain,
        Q_position=q,
        K_position=k,
        gate=gate,
        module=layer,
        stack=stack,
        part=part,
        after_centred=after is not None and after.centred,
    )


def gain_of(norm: Norm, dtype: torch.dtype) -> Float[Tensor, " d_model"] | None:
    """Return what a norm multiplies by, in the precision of a model's matrices; None for ones."""
    return None if norm.gain is None else norm.gain.detach().to(dtype)


def mlp_views(layer: MlpLayer, stack: str, part: str) -> MlpWeights:
    gate = layer.gate
    return MlpWeights(
        detached(layer.input.weight).mT,
        None if gate is None else detached(gate.weight).mT,
        detached(layer.output.weight).mT,
        *(None if m is None or m.bias is None else detached(m.bias) for m in (layer.input, gate, layer.output)),
        module=layer, stack=stack, part=part,
    )  # fmt: skip


def detached(parameter: Tensor) -> Tensor:
    """Return the values of a parameter without its graph, in float32 at least."""
    return wide(parameter.detach())


def _as_values(rows: Float[Tensor, "head *stream n d"]) -> Float[Tensor, "one *stream head n d"]:
    """Return rows by head as a pass has them, a batch of one."""
    return (rows if rows.ndim == 3 else rows.movedim(1, 0))[None]


def _as_weights(rows: Float[Tensor, "one *stream head n d"]) -> Float[Tensor, "head *stream n d"]:
    return rows[0] if rows.ndim == 4 else rows[0].movedim(0, 1)


def _pick(tensor: Tensor | None, index: slice) -> Tensor | None:
    return None if tensor is None else tensor[index]
