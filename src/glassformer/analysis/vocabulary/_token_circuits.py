"""What heads look for and what they then say, as tables of token pairs: the full QK and OV circuits.

    OV = E V O U        [source, output]    how attending to the source changes each logit, per unit of attention
    QK = E Q K' E'      [query, key]        the score a query gives to a key, scale included

Neither is built. Softmax does not see what a query gives to all keys alike, nor what is added to all logits: rows are
centred, and only what is left is ranked. QK values are comparable within a row, OV values within a row and between
heads. E is what a layer reads of each token by itself. `through="token"`: its vector, through the layer's norm as if
the stream held nothing else; exact for queries, keys and values of the first layer of a model without position vectors
in the stream, the direct path elsewhere. `through="stream"`: also what MLPs, and heads that by position alone attend to
the token itself, wrote where it stands (see `token_reads`); each token divided by its own scale. The final norm's scale
is left at one. Norms of queries and keys divide each token's by its own scale too, its biases included (see
`HeadWeights.projected`); where scores are capped, QK is the raw score, before the cap.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (one-layer models).
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer import figures, weights
from glassformer.analysis.from_weights.selection import (
    LeftOut,
    labels_of,
    layers_for,
    names_of_both,
    output_choice,
    token_choice,
)
from glassformer.analysis.from_weights.token_reads import Through, TokenReads, by_position
from glassformer.analysis.prepare import token_id
from glassformer.analysis.question import question
from glassformer.analysis.vocabulary._ranked import ranked_panels
from glassformer.arguments import Count, Several, checked
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.weights import AttentionWeights, Factored, HeadWeights, WeightsLike

Circuit = Literal["OV", "QK"]
Offset = int | Iterable[int] | None
SIDES: dict[str, tuple[str, str]] = {"OV": ("source", "output"), "QK": ("query", "key")}
# how far back rotary circuits are averaged unless said otherwise
REACH = 64


@dataclasses.dataclass(frozen=True, eq=False)
class TokenPairs(Result):
    """The strongest pairs of tokens of each head's full circuit.

    Args:
        values: `head rank`, strongest first: logits per unit of attention (OV) or scores (QK), rows centred.
        rows: Ids of sources (OV) or queries (QK), `head rank`.
        columns: Ids of outputs (OV) or keys (QK), `head rank`.
        circuit: `OV` or `QK`.
        offsets: Distances that rotary scores are a mean over; empty where they do not matter.
        names: Tokens that are read as text, by id, for those that occur.
        output_names: Outputs likewise.
        folded: Whether norms were folded into the matrices.
        through: What E is, `token` or `stream`.
        n_tokens: Size of the vocabulary that was looked at.
        left_out: Heads the analysis is not defined for, and why.
    """

    HEADLINE = ("values",)
    SIGNED = ("values",)

    values: Labelled
    rows: Labelled
    columns: Labelled
    circuit: Circuit
    offsets: tuple[int, ...]
    names: dict[int, str]
    output_names: dict[int, str]
    folded: bool
    through: Through
    n_tokens: int
    left_out: LeftOut

    def panels(self, *names: str) -> list[figures.Panel]:
        if names:
            return super().panels(*names)
        columns = self.output_names if self.circuit == "OV" else self.names
        what = "logits per unit of attention" if self.circuit == "OV" else "scores"
        return ranked_panels(what, self.values, [(self.rows, self.names), (self.columns, columns)])

    def table(self, head: str, k: int = 10) -> list[tuple[str, str, float]]:
        """A head's pairs as text: (source, output, logits) or (query, key, score)."""
        picked = [field.select(head=head).values[:k].tolist() for field in (self.rows, self.columns, self.values)]
        columns = self.output_names if self.circuit == "OV" else self.names
        return [(self.names[row], columns[column], value) for row, column, value in zip(*picked)]


@dataclasses.dataclass(frozen=True, eq=False)
class TokenCircuits(Result):
    """What each head makes of one token.

    Args:
        raised: Logits that attending to the token raises most, `head rank`, rows centred; per unit of attention.
        lowered: Logits that it lowers most, `head rank`.
        sought: By how much the score of queries for this token is above their mean, `head rank`, highest first; empty
            if no head has a QK circuit.
        raised_tokens: Ids of the outputs, `head rank`.
        lowered_tokens: Likewise.
        sought_tokens: Ids of the queries.
        token: Its id.
        offsets: As in `TokenPairs`.
        names: Tokens that are read as text, by id, for those that occur.
        output_names: Outputs likewise.
        folded: Whether norms were folded into the matrices.
        through: As in `TokenPairs`.
        left_out: Heads without a full OV or QK circuit, and why.
    """

    HEADLINE = ("raised", "lowered", "sought")
    SIGNED = ("raised", "lowered", "sought")

    raised: Labelled
    lowered: Labelled
    sought: Labelled
    raised_tokens: Labelled
    lowered_tokens: Labelled
    sought_tokens: Labelled
    token: int
    offsets: tuple[int, ...]
    names: dict[int, str]
    output_names: dict[int, str]
    folded: bool
    through: Through
    left_out: LeftOut

    def panels(self, *names: str) -> list[figures.Panel]:
        if names:
            return super().panels(*names)
        said = [("raises", self.raised, self.raised_tokens, self.output_names)]
        said += [("lowers", self.lowered, self.lowered_tokens, self.output_names)]
        said += [("is sought by", self.sought, self.sought_tokens, self.names)]
        return [panel for name, values, ids, words in said for panel in ranked_panels(name, values, [(ids, words)])]


@question("Which token pairs does each head join most strongly?", of="weights", holds=("gates", "latent scales"))
def token_pairs(
    model: WeightsLike,
    circuit: Circuit = "OV",
    heads: Several[str] | None = None,
    *,
    k: Count = 100,
    largest: bool = True,
    tokens: Int[Tensor, " n"] | Sequence[int] | None = None,
    offset: Offset = None,
    through: Through = "token",
) -> TokenPairs:
    """Find the strongest token pairs of each head's full OV or QK circuit, without building any.

    The vectors of rare tokens are large and little trained: give `tokens` (see `frequent_tokens`) to leave them out.

    Args:
        circuit: Which one.
        k: Pairs per head.
        largest: The highest entries, or the lowest.
        tokens: Ids that count, on both sides; all by default. Outputs of a vocabulary of their own count all.
        offset: How far before the query the key lies, for rotary positions; several: their mean. By default the mean of
            1 to 64. ALiBi's bias is no matter of tokens: see `position_bias`.
        through: What layers read of a token: its vector (`token`), or what the stream holds of it by then (`stream`).

    Raises:
        AnalysisUnavailable: A named head, or every head, has no such circuit; or through the stream of post-norm blocks
            or of augmented weights.
    """
    w = weights.matrices(model)
    layers, left_out = layers_for(w, heads, lambda layer: require_circuit(w, layer, circuit), by_value=circuit == "OV")
    ids = token_choice(w, tokens)
    offsets = () if circuit == "OV" else offsets_of(layers, offset)
    labels: list[str] = []
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    chosen = None if tokens is None else ids
    for layer, reads in _layers_reading(w, layers, through, ids):
        table = full_circuit(w, layer, circuit, offsets, chosen, reads)
        table = table.centred(rows=circuit == "QK" or w.shifts)
        # maps of several streams come one after the other
        best = table.top(k, largest=largest)
        found.append(tuple(part.flatten(0, -2) for part in best))  # type: ignore[arg-type]
        labels += map_labels(layer, table)
    values, rows, columns = (torch.cat(parts) for parts in zip(*found))
    outputs = output_choice(w, ids) if circuit == "OV" else ids
    rows, columns = ids[rows], columns if outputs is None else outputs[columns]
    read, written = ([rows], [columns]) if circuit == "OV" else ([rows, columns], [])
    names, output_names = names_of_both(w, read, written)
    coords = {"head": labels}
    return TokenPairs(
        values=Labelled(values, ("head", "rank"), coords),
        rows=Labelled(rows, ("head", "rank"), coords),
        columns=Labelled(columns, ("head", "rank"), coords),
        circuit=circuit,
        offsets=offsets,
        names=names,
        output_names=output_names,
        folded=w.folded,
        through=through,
        n_tokens=len(ids),
        left_out=left_out,
    )


@question("What does each head make of one token?", of="weights", holds=("gates", "latent scales"))
def token_circuits(
    model: WeightsLike,
    token: str | int,
    heads: Several[str] | None = None,
    *,
    k: Count = 10,
    offset: Offset = None,
    through: Through = "token",
) -> TokenCircuits:
    """Say what each head makes of one token: what attending to it does, and which queries look for it.

    Args:
        token: Text of a single token, or its id.
        heads: As for `token_pairs`.
        k: Tokens per head and list.
        offset: As for `token_pairs`.
        through: As for `token_pairs`.

    Raises:
        AnalysisUnavailable: No head has a full OV circuit, or a named one has not; or as for `token_pairs`.
        TextError: The text is several tokens, or none that is known.
    """
    w = weights.matrices(model)
    at = token_id(w.model, token)
    layers, left_out = layers_for(w, heads, lambda layer: require_circuit(w, layer, "OV"), by_value=True)
    place = torch.tensor([at], device=w.U.device)
    effects: list[Tensor] = []
    labels: list[str] = []
    for layer, reads in _layers_reading(w, layers, through, place):
        row = (w.source_rows(layer, "value", "token", place) if reads is None else reads) @ layer.ov() @ w.read_out()
        effects.append(row.centred(rows=w.shifts).dense()[:, 0])
        labels += layer.labels
    effect = torch.cat(effects)
    k, most = min(k, effect.shape[-1]), k
    raised, lowered = effect.topk(k), effect.topk(k, largest=False)

    # queries and keys are those of all values of a head
    look, without = _looking(w, [dataclasses.replace(layer, value=None) for layer in layers if not layer.value])
    offsets = offsets_of(look, offset)
    looks, look_labels = [], []
    for layer, reads in _layers_reading(w, look, through, token_choice(w, None)):
        table = full_circuit(w, layer, "QK", offsets, reads=reads).centred(rows=True)
        looks.append(table.columns(at).flatten(0, -2))
        look_labels += map_labels(layer, table)
    scores = torch.cat(looks) if looks else effect[:0]
    sought = scores.topk(min(most, scores.shape[-1]))

    def field(values: Tensor, names: list[str]) -> Labelled:
        return Labelled(values, ("head", "rank"), {"head": names})

    names, output_names = names_of_both(w, [sought.indices], [raised.indices, lowered.indices])
    return TokenCircuits(
        raised=field(raised.values, labels),
        lowered=field(lowered.values, labels),
        sought=field(sought.values, look_labels),
        raised_tokens=field(raised.indices, labels),
        lowered_tokens=field(lowered.indices, labels),
        sought_tokens=field(sought.indices, look_labels),
        token=at,
        offsets=offsets,
        names=names,
        output_names=output_names,
        folded=w.folded,
        through=through,
        left_out=left_out | without,
    )


@checked
def frequent_tokens(documents: Iterable[Sequence[int]], least: int = 10) -> Int[Tensor, " n"]:
    """The ids that occur at least so often in some documents, in rising order.

    Args:
        documents: Texts as ids.
        least: How often.
    """
    found = [torch.as_tensor(ids, dtype=torch.long).flatten() for ids in documents]
    ids, counts = torch.cat(found or [torch.empty(0, dtype=torch.long)]).unique(return_counts=True)
    return ids[counts >= least]


def require_circuit(w: HeadWeights, layer: AttentionWeights, circuit: Circuit) -> None:
    """Raise `AnalysisUnavailable` unless a layer's full circuit between tokens is defined."""
    if circuit == "OV":
        w.require_logits(layer, "full OV circuits")
        layer.require_ov("full OV circuits")
    else:
        layer.require_bilinear("full QK circuits")
        if layer.stack != w.stack and w.model.config.source_vocab_size is not None:
            raise AnalysisUnavailable(
                f"full QK circuits: {layer.labels[0]} reads sources, a vocabulary of their own; a table is of one.\n"
                "    Its circuit by ids of sources, without names: weights.of(model).full_qk(head)."
            )
    if layer.crosses:
        raise AnalysisUnavailable(
            f"full {circuit} circuits: keys and values of cross-attention layer {layer.layer} read the encoder's "
            "output, which no token's vector stands for.\n"
            "    QK and OV of the layer itself are w[…].qk() and w[…].ov()."
        )


def full_circuit(
    w: HeadWeights,
    layer: AttentionWeights,
    circuit: Circuit,
    offsets: Sequence[int] = (),
    ids: Tensor | None = None,
    reads: Tensor | None = None,
) -> Factored:
    """Return a full circuit of a layer's heads (or of the one head it is), factored, for some tokens (and outputs).

    `reads`: what the layer reads of each of these tokens; by default their vectors through its norm.
    """
    if circuit == "OV":
        out, outputs, ov = w.read_out(), output_choice(w, ids), layer.ov()
        parts = w.source_parts(layer, "value", "token", ids) if reads is None else [reads]
        left = torch.cat([rows @ ov.left for rows in parts], -2)
        return Factored(left, ov.right) @ (out if outputs is None else out[:, outputs])
    if reads is None:
        query, key = (w.projected(layer, side, "token") for side in ("query", "key"))
        if ids is not None:
            query, key = query[..., ids, :], key[..., ids, :]
    else:
        query, key = w.looked(layer, "query", reads), w.looked(layer, "key", reads)
    turned = layer.rotated(query, tuple(offsets) or None)
    return Factored(turned, key.mT) * layer.scale


def map_labels(layer: AttentionWeights, table: Factored) -> list[str]:
    """Return one label per map: the heads', numbered where a head has several maps (`L0H1/0`, `L0H1/1`)."""
    if len(table.batch) == 1:
        return layer.labels
    return [f"{label}/{i}" for label in layer.labels for i in range(table.batch[1])]


def offsets_of(layers: Sequence[AttentionWeights], offset: Offset) -> tuple[int, ...]:
    """Return the offsets that rotary circuits are averaged over; none, if no layer rotates."""
    turning = [layer for layer in layers if layer.module.positions.rotates]
    if not turning:
        return ()
    if offset is None:
        longest = min(layer.module.dims.max_len for layer in turning)
        return tuple(range(1, max(2, min(REACH + 1, longest))))
    return (offset,) if isinstance(offset, int) else tuple(offset)


def _looking(w: HeadWeights, layers: Sequence[AttentionWeights]) -> tuple[list[AttentionWeights], LeftOut]:
    found: list[AttentionWeights] = []
    without: LeftOut = {}
    for layer in layers:
        try:
            require_circuit(w, layer, "QK")
            found.append(layer)
        except AnalysisUnavailable as error:
            without |= dict.fromkeys(layer.labels, str(error).partition("\n")[0])
    return found, without


def _layers_reading(
    w: HeadWeights, layers: Sequence[AttentionWeights], through: Through, ids: Tensor
) -> Iterator[tuple[AttentionWeights, Tensor | None]]:
    """Yield layers and what they read of some tokens, a layer's at a time; None for their vectors alone."""
    if through == "token":
        yield from ((layer, None) for layer in layers)
        return
    for stack in dict.fromkeys(layer.stack for layer in layers):
        every = w.of_stack(stack)
        current = by_position(w, labels_of(every))[0].nan_to_num().split([len(layer.Q) for layer in every])
        # where OV is no matrix, what heads move of the token itself is not known
        known = [c if _moves(layer) else torch.zeros_like(c) for layer, c in zip(every, current)]
        instead = 'Token vectors alone: through="token".'
        reads = TokenReads(w, every, through, known, analysis='full circuits through="stream"', instead=instead)
        with torch.no_grad():
            for path, rows in reads(ids):
                yield from ((layer, rows) for layer in layers if layer.path == path)


def _moves(layer: AttentionWeights) -> bool:
    try:
        layer.require_ov("full circuits")
    except AnalysisUnavailable:
        return False
    return True
