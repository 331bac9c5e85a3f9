"""What an adapter did to heads: how far OV and QK moved, along which directions, and in which tokens that reads.

    change    |C' - C| / |C|, Frobenius, of C = OV or QK of a head, C' with the adapter
    moved     1 - |Q' Q''|^2 / k: what the first k directions that a circuit reads (or writes) no longer have in common
              with those it had, mean squared sine of principal angles
    tokens    of the first singular directions of C' - C, of rank 2 d_head at most: what tokens have along what is read,
              what is written says of tokens

Norms are folded into both, so that tokens are read as the model reads them. No matrix of d_model by d_model is built.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (OV and QK circuits); Sun, Cetin, Tang
2025, "Transformer-Squared" (scales of singular directions).
"""

import dataclasses
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer import weights
from glassformer.adaptation._adapter import Adapter, require_bare
from glassformer.adaptation._compare import overlap
from glassformer.adaptation._svf import SingularScales
from glassformer.analysis.from_weights.selection import names_of_both
from glassformer.analysis.vocabulary import SingularTokens, singular_tokens
from glassformer.analysis.vocabulary.ends import both_ends
from glassformer.arguments import Count, Natural, checked
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.models.norms import Norm
from glassformer.numerics.precision import wide
from glassformer.provenance.binding import Binding
from glassformer.weights import AttentionWeights, Factored, HeadWeights

CIRCUITS, SIDES = ("OV", "QK"), ("OV read", "OV written", "QK query", "QK key")


@dataclasses.dataclass(frozen=True, eq=False)
class AdapterEffect(Result):
    """What an adapter changed, head by head; NaN of circuits that are not defined (see `left_out`).

    Args:
        change: Size of a circuit's change over the circuit's own, `head circuit`; 0 where nothing changed.
        moved: Share of the directions on a side of a circuit that the adapter turned away, `head side`, in [0, 1]: of
            what OV reads and writes, and of what QK takes from queries and keys.
        spectrum: Singular values of the change of each circuit, `head circuit direction`, falling.
        tokens: What the first directions of each change of OV read and write, as tokens; None where none is defined.
        query: Tokens that have most along the first directions of each change of QK as queries, as token ids, `head
            direction rank`: with those of `key` at the same direction they have higher scores than before. None where
            none is defined.
        key: The same as keys.
        names: Those tokens as text, by id.
        scales: What each singular value of a matrix is multiplied by, `matrix direction`, the largest first; NaN beyond
            its rank. None of adapters that scale none.
        offset: How far the key lies before the query, where positions are rotary.
        left_out: Circuits that are not defined, by head and circuit, and why.
    """

    HEADLINE = ("change", "moved")

    change: Labelled
    moved: Labelled
    spectrum: Labelled
    tokens: SingularTokens | None
    query: Labelled | None
    key: Labelled | None
    names: dict[int, str]
    scales: Labelled | None
    offset: int
    left_out: dict[str, str]

    def scaled(self, by: float = 0.1) -> list[tuple[str, int, float]]:
        """Singular directions whose scale is further from one than this, the furthest first: matrix, direction, scale.

        Args:
            by: How far.
        """
        if self.scales is None:
            return []
        values, names = self.scales.values, self.scales.labels("matrix")
        found = [(str(names[m]), d, float(values[m, d])) for m, d in ((values - 1).abs() > by).nonzero().tolist()]
        return sorted(found, key=lambda one: -abs(one[2] - 1))


@checked
def adapter_effect(
    model: ModelLike, adapter: Adapter, *, directions: Count = 4, k: Count = 10, offset: Natural = 0
) -> AdapterEffect:
    """Compare each head's OV and QK circuits with an adapter and without.

    Args:
        model: The model it was made for, with no adapter attached.
        adapter: Of any kind.
        directions: How many of the first singular directions are shown, and stand for a circuit in `moved`.
        k: Tokens per end of a direction.
        offset: How far the key lies before the query; without effect unless positions are rotary.

    Raises:
        ConfigError: An adapter is attached to the model.
        AnalysisUnavailable: The model has no attention heads, or holds numbers that are not finite.
        UnknownSite: The model lacks a matrix of the adapter.
        ShapeMismatch: A matrix has another shape.
    """
    model = require_model(model, "adapter_effect")
    require_bare(model)
    before = _split(weights.of(model, fold=True))
    with adapter.attached(model), torch.no_grad():
        after = _split(weights.of(model, fold=True))
    heads = [label for layer in before.attention for label in layer.labels]
    if not heads:
        raise AnalysisUnavailable("adapter_effect: this model has no attention heads.\n    What changed: compare.")
    parts, left_out = [], dict[str, str]()
    for old, new in zip(before.attention, after.attention):
        found = [_of_circuit(name, old, new, offset, directions, left_out) for name in CIRCUITS]
        parts.append([torch.stack(each, 1) for each in zip(*found)])
    change, moved, spectrum = (torch.cat(each) for each in zip(*parts))
    rows, columns = {"head": heads}, ("head", "circuit", "direction")
    query, key, names = _score_tokens(before, after, offset, directions, k)
    return AdapterEffect(
        change=Labelled(change, columns[:2], rows | {"circuit": list(CIRCUITS)}),
        moved=Labelled(moved.flatten(1), ("head", "side"), rows | {"side": list(SIDES)}),
        spectrum=Labelled(spectrum, columns, rows | {"circuit": list(CIRCUITS)}),
        tokens=_tokens(before, after, directions, k),
        query=query,
        key=key,
        names=names,
        scales=_scales(adapter),
        offset=offset,
        left_out=left_out,
    ).bound(Binding("adapter_effect", model))


def _split(w: HeadWeights) -> HeadWeights:
    """Return weights in which a layer whose heads have several values stands once for each."""
    return dataclasses.replace(w, attention=tuple(one for layer in w.attention for one in layer.by_value()))


def _of_circuit(
    name: str, old: AttentionWeights, new: AttentionWeights, offset: int, n: int, left_out: dict[str, str]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each head of a layer: relative change, how far both sides moved, and the first singular values."""
    try:
        was, now = (layer.ov() if name == "OV" else _scores(layer, offset) for layer in (old, new))
    except AnalysisUnavailable as error:
        left_out |= {f"{label} {name}": str(error).partition("\n")[0] for label in old.labels}
        blank = old.Q.new_full((len(old.labels), n), torch.nan)
        return blank[:, 0], blank[:, :1].expand(-1, 2), blank
    # exactly nothing, where rounding would leave something
    same = _same(was, now)[:, None]
    if bool(same.all()):
        none = old.Q.new_zeros((len(same), n))
        return none[:, 0], none[:, :1].expand(-1, 2), none
    difference, (u, _, v), (new_u, _, new_v) = now - was, was.svd(), now.svd()
    values = difference.singular_values()[:, :n]
    values = torch.nn.functional.pad(values, (0, n - values.shape[1]), value=torch.nan)
    moved = torch.stack([_turned(u, new_u, n), _turned(v, new_v, n)], 1)
    change = difference.norm() / was.norm()
    return change.masked_fill(same[:, 0], 0), moved.masked_fill(same, 0), values.masked_fill(same, 0)


def _same(was: Factored, now: Factored) -> Bool[Tensor, " head"]:
    """Return of which heads a circuit is the same in every bit."""
    return (was.left == now.left).flatten(1).all(1) & (was.right == now.right).flatten(1).all(1)


def _scores(layer: AttentionWeights, offset: int) -> Factored:
    if layer.module.mixer.traits.streams > 1:
        raise AnalysisUnavailable(f"layer {layer.layer} has several queries and keys in a head, and no one circuit")
    return layer.qk(offset)


def _turned(was: Float[Tensor, "head d_model rank"], now: Float[Tensor, "head d_model rank"], n: int) -> Tensor:
    shares = [overlap(one[:, :n].mT, other[:, :n].mT) for one, other in zip(was, now)]
    # rounding may leave a little less than nothing
    return (1 - was.new_tensor(shares)).clamp(min=0)


def _tokens(before: HeadWeights, after: HeadWeights, n: int, k: int) -> SingularTokens | None:
    """Return tokens of the change of OV: V' O' - V O is one product, its factors side by side."""
    changed = [
        dataclasses.replace(
            new,
            V=torch.cat((new.V, old.V), -1),
            O=torch.cat((new.O, -old.O), -2),
            gain=None if new.gain is None else torch.cat((new.gain, new.gain), -1),
            bV=None,
        )
        for old, new in zip(before.attention, after.attention)
        if not (torch.equal(new.V, old.V) and torch.equal(new.O, old.O))
    ]
    if not changed:
        return None
    try:
        return singular_tokens(dataclasses.replace(before, attention=tuple(changed)), n=n, k=k)
    except AnalysisUnavailable:
        return None


def _score_tokens(
    before: HeadWeights, after: HeadWeights, offset: int, n: int, k: int
) -> tuple[Labelled | None, Labelled | None, dict[int, str]]:
    """Return tokens along the directions in which each change of QK reads queries and keys, and their names."""
    found: tuple[list[Tensor], list[Tensor]] = [], []
    heads = list[str]()
    for old, new in zip(before.attention, after.attention):
        try:
            # keys of cross-attention are of another stack, whose tokens are no rows of this one's
            if old.crosses or old.stack != before.stack:
                continue
            before.require_entry(old.stack, "adapter_effect")
            was, now = _scores(old, offset), _scores(new, offset)
        except AnalysisUnavailable:
            continue
        if bool(_same(was, now).all()):
            continue
        norm, rows = before.norm_before(old), before.embeddings[old.stack]

        def of_tokens(some: slice, norm: Norm | None = norm, rows: Tensor = rows) -> Tensor:
            return wide(before.normed(rows[some], norm, bias=False))

        split = (now - was).svd()
        for u, v in zip(split.u, split.v):
            ends = [both_ends(side[:, :n].mT, of_tokens, len(rows), k) for side in (u, v)]
            # a pair of directions has no sign of its own: the longer tail of queries is at the top
            turn = (ends[0].skew < 0)[:, None]
            for side, one in zip(found, ends):
                side.append(torch.where(turn, one.low_ids, one.high_ids))
        heads += old.labels
    if not heads:
        return None, None, {}
    query, key = (Labelled(torch.stack(side), ("head", "direction", "rank"), {"head": heads}) for side in found)
    names, _ = names_of_both(before, [query.values, key.values], [])
    return query, key, names


def _scales(adapter: Adapter) -> Labelled | None:
    known = dict(_scaled(adapter))
    if not known:
        return None
    width = max(len(one) for one in known.values())
    rows = [torch.nn.functional.pad(one, (0, width - len(one)), value=torch.nan) for one in known.values()]
    return Labelled(torch.stack(rows), ("matrix", "direction"), {"matrix": list(known)})


def _scaled(adapter: Adapter) -> Iterator[tuple[str, Tensor]]:
    for name, change in adapter.changes.items():
        if isinstance(change, SingularScales):
            yield name, change.scales.detach()
