"""Singular directions of OV circuits and of MLP matrices, as lists of tokens.

    OV = sum over i of s_i u_i v_i'        what is read along u_i (of norm(E) u_i) is written along v_i (of v_i' U)

Of W_in and the gate there is the side that reads the stream alone, of W_out the side that writes to it. A pair of
directions has no sign of its own: it is given the one for which the longer tail of what it writes (or reads, if it
writes nothing here) is at the top. Directions whose singular values are equal may be turned among each other: `gap`
says how far each is from its neighbours. Singular values do not depend on how the stream or a head's inside is rotated.

Source: Millidge and Black 2022, "The Singular Value Decompositions of Transformer Weight Matrices are Highly
Interpretable".
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis.from_weights.selection import LeftOut, layers_for, names_of_both
from glassformer.analysis.question import question
from glassformer.analysis.vocabulary._neurons import NO_TOKEN, mlps_of, written_by_neurons
from glassformer.analysis.vocabulary._token_circuits import require_circuit
from glassformer.analysis.vocabulary.ends import Ends, both_ends
from glassformer.arguments import Count, Several
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models.norms import Norm
from glassformer.numerics import decompositions
from glassformer.numerics.precision import wide
from glassformer.weights import HeadWeights, WeightsLike

Of = Literal["OV", "mlp in", "mlp gate", "mlp out"]
ANALYSIS = "singular_tokens"


@dataclasses.dataclass(frozen=True, eq=False)
class SingularTokens(Result):
    """The first singular directions of some matrices, and the tokens at both ends of what they read and write.

    Args:
        singular_values: `matrix direction`, falling; NaN beyond the rank.
        energy: Share of the matrix's squared size that each direction has, `matrix direction`.
        gap: By what share of itself a singular value is from the nearest other one, `matrix direction`: near 0 the
            direction is arbitrary within a plane.
        written: Tokens at the positive end of what is written, `matrix direction rank`; -1 of matrices that do not
            write to the stream.
        unwritten: Tokens at its negative end, likewise.
        read: Tokens at the positive end of what is read, likewise; -1 of matrices that do not read the stream, and
            where no token has a vector of its own.
        unread: Tokens at its negative end, likewise.
        names: Tokens that are read as text, by id, for those that occur.
        output_names: Outputs likewise.
        of: Which matrices.
        folded: Whether norms were folded into the matrices.
        left_out: Heads and sub-layers without such a matrix, and why.
    """

    HEADLINE = ("singular_values", "energy")

    singular_values: Labelled
    energy: Labelled
    gap: Labelled
    written: Labelled
    unwritten: Labelled
    read: Labelled
    unread: Labelled
    names: dict[int, str]
    output_names: dict[int, str]
    of: Of
    folded: bool
    left_out: LeftOut

    def table(self, matrix: str, direction: int = 0, k: int = 10) -> dict[str, list[str]]:
        """One direction's tokens as text: `written`, `unwritten`, `read`, `unread`."""
        sides = {"written": self.output_names, "unwritten": self.output_names, "read": self.names, "unread": self.names}
        found = dict[str, list[str]]()
        for side, names in sides.items():
            ids = getattr(self, side).select(matrix=matrix).values[direction, :k].tolist()
            found[side] = [names[id] for id in ids if id != NO_TOKEN]
        return found


@question("Do singular directions read as topics?", of="weights", holds=("gates", "latent scales"))
def singular_tokens(
    model: WeightsLike, of: Of = "OV", matrices: Several[str] | None = None, *, n: Count = 5, k: Count = 10
) -> SingularTokens:
    """Read the first singular directions of OV circuits, or of an MLP's matrices, as tokens.

    Args:
        of: Which matrices: `OV` of heads, `mlp in`, `mlp gate` or `mlp out`.
        matrices: Labels of heads, `L1H6`, or of MLPs, `L3 mlp`; all by default.
        n: Directions per matrix.
        k: Tokens per end.

    Raises:
        AnalysisUnavailable: There is no such matrix; OV is not defined, or the stream it writes to ends in no logits;
            or as `neuron_tokens`.
    """
    w = weights.matrices(model)
    found, left_out = _decomposed(w, of, matrices)
    read_out = wide(w.read_out())
    mean = read_out.mean(-1) if w.shifts else None
    sides = list[tuple[Ends | None, Ends | None]]()
    for one in found:
        v, u = (None if side is None else side[:, :n].mT for side in (one.v, one.u))
        written = (
            None if v is None else both_ends(v, lambda some: read_out[:, some].mT, read_out.shape[1], k, mean=mean)
        )
        sides.append(_signed(written, None if u is None else _sought(w, u, one.norm, k)))
    return _result(w, of, found, sides, n, left_out)


class _Decomposed(NamedTuple):
    """A matrix of the model by its singular directions; None of a side that is not of the stream."""

    label: str
    u: Float[Tensor, "d_model rank"] | None
    s: Float[Tensor, " rank"]
    v: Float[Tensor, "d_model rank"] | None
    norm: Norm | None


def _decomposed(w: HeadWeights, of: Of, labels: Sequence[str] | None) -> tuple[list[_Decomposed], LeftOut]:
    if of == "OV":
        layers, left_out = layers_for(w, labels, lambda layer: require_circuit(w, layer, "OV"), by_value=True)
        found = list[_Decomposed]()
        for layer in layers:
            split = layer.ov().svd()
            # keys of cross-attention are of another stream, whose tokens are those of the source
            norm = w.norm_before(layer)
            found += [_Decomposed(*of_head, norm) for of_head in zip(layer.labels, split.u, split.s, split.v)]
        return found, left_out
    mlps, left_out = mlps_of(w, labels, ANALYSIS)
    if of == "mlp gate":
        left_out = left_out | {mlp.label: "it has no gate" for mlp in mlps if mlp.W_gate is None}
        mlps = [mlp for mlp in mlps if mlp.W_gate is not None]
        if not mlps:
            raise AnalysisUnavailable(f'{ANALYSIS}: no MLP asked for has a gate.\n    Of the others: of="mlp in".')
    return [_of_mlp(w, mlp, of) for mlp in mlps], left_out


def _of_mlp(w: HeadWeights, mlp: weights.MlpWeights, of: Of) -> _Decomposed:
    norm = w.sub_layers[mlp.path].before
    if of == "mlp out":
        _, s, vh = decompositions.svd(written_by_neurons(w, mlp))
        return _Decomposed(mlp.label, None, s, vh.mT, norm)
    matrix = mlp.W_in if of == "mlp in" else mlp.W_gate
    assert matrix is not None, "MLPs without a gate are left out"
    u, s, _ = decompositions.svd(matrix)
    return _Decomposed(mlp.label, u, s, None, norm)


def _sought(w: HeadWeights, u: Float[Tensor, "direction d_model"], norm: Norm | None, k: int) -> Ends | None:
    """Return what tokens by themselves have along directions that are read; None where none has a vector of its own."""
    try:
        w.require_entry(w.stack, ANALYSIS)
    except AnalysisUnavailable:
        return None
    tokens = w.embeddings[w.stack]
    return both_ends(u, lambda some: wide(w.normed(tokens[some], norm, bias=False)), len(tokens), k)


def _signed(written: Ends | None, read: Ends | None) -> tuple[Ends | None, Ends | None]:
    """Turn each pair of directions so that the longer tail is at the top."""
    judged = written or read
    if judged is None:
        return written, read
    turn = (judged.skew < 0)[:, None]

    def turned(side: Ends | None) -> Ends | None:
        if side is None:
            return None
        return side._replace(
            high=torch.where(turn, -side.low, side.high), low=torch.where(turn, -side.high, side.low),
            high_ids=torch.where(turn, side.low_ids, side.high_ids),
            low_ids=torch.where(turn, side.high_ids, side.low_ids),
        )  # fmt: skip

    return turned(written), turned(read)


def _result(
    w: HeadWeights, of: Of, found: Sequence[_Decomposed], sides: Sequence[tuple[Ends | None, Ends | None]], n: int,
    left_out: LeftOut,
) -> SingularTokens:  # fmt: skip
    n = min(n, max(len(one.s) for one in found))
    labels = {"matrix": [one.label for one in found]}

    def numbers(values: Iterator[Tensor]) -> Labelled:
        rows = [torch.nn.functional.pad(row[:n], (0, n - len(row[:n])), value=torch.nan) for row in values]
        return Labelled(torch.stack(rows), ("matrix", "direction"), labels)

    def tokens(at: int, high: bool) -> Labelled:
        there = [side[at] for side in sides]
        ids = [None if one is None else one.high_ids if high else one.low_ids for one in there]
        width = max((one.shape[1] for one in ids if one is not None), default=0)
        rows = [torch.full((n, width), NO_TOKEN, device=w.U.device) for _ in ids]
        for row, one in zip(rows, ids):
            if one is not None:
                row[: len(one)] = one
        return Labelled(torch.stack(rows), ("matrix", "direction", "rank"), labels)

    written, unwritten, read, unread = (tokens(at, high) for at in (0, 1) for high in (True, False))
    outputs, inputs = (
        [field.values[field.values != NO_TOKEN] for field in pair] for pair in ((written, unwritten), (read, unread))
    )
    names, output_names = names_of_both(w, inputs, outputs)
    return SingularTokens(
        singular_values=numbers(one.s for one in found),
        energy=numbers(one.s.square() / one.s.square().sum() for one in found),
        gap=numbers(_gap(one.s) for one in found),
        written=written,
        unwritten=unwritten,
        read=read,
        unread=unread,
        names=names,
        output_names=output_names,
        of=of,
        folded=w.folded,
        left_out=left_out,
    )


def _gap(s: Float[Tensor, " rank"]) -> Float[Tensor, " rank"]:
    """Return how far each singular value is from the nearest other one, as a share of itself."""
    steps = s[:-1] - s[1:]
    far = s.new_full((1,), torch.inf)
    return torch.minimum(torch.cat((far, steps)), torch.cat((steps, far))) / s
