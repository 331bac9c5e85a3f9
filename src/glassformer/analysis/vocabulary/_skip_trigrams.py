"""Skip-trigrams: `source … destination -> output`, what one head does with one token it looks back at.

    contribution(s, d, o) = a(d, s) * c(s, o)
    a(d, s) = e^S_ds / (e^S_ds + sum over a context of e^S_dt)      S the full QK circuit: attention against a context
    c(s, o)                                                         the full OV circuit, rows centred

For one source the table over (d, o) has rank one: whoever wants `keep … in -> mind` and `keep … at -> bay` from one
head gets `keep … in -> bay` and `keep … at -> mind` as well. `crossed_trigrams` finds such cells with the help of a
text, and `crossed_cost` says what they cost. Cells are judged by the sum with the direct path, which may undo them.

Positions add the scores of `position_scores` (rotary ones enter S as their mean over offsets). Where scores are capped,
S is raw, and attention is that of scores behind the cap. Exact for the first
layer where no positions are in the stream; behind it, the direct path of token vectors. The final norm's scale is left
at one except in `crossed_cost`, which takes it from the text.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (skip-trigrams; "bugs"). How the cost is
counted is our own.
"""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer import figures, weights
from glassformer.analysis._run import run
from glassformer.analysis.from_weights.selection import (
    LeftOut,
    layers_for,
    names_of,
    names_of_both,
    output_choice,
    token_choice,
)
from glassformer.analysis.prepare import token_id
from glassformer.analysis.question import question
from glassformer.analysis.vocabulary._ranked import ranked_panels
from glassformer.analysis.vocabulary._token_circuits import (
    Offset,
    full_circuit,
    offsets_of,
    require_circuit,
)
from glassformer.arguments import Count, Several
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.numerics import decompositions
from glassformer.numerics.placement import place_of
from glassformer.numerics.precision import wide
from glassformer.weights import AttentionWeights, Factored, HeadWeights, WeightsLike

CONTEXT = 64  # tokens that a source competes with, unless a context is given


@dataclasses.dataclass(frozen=True, eq=False)
class SkipTrigrams(Result):
    """The strongest skip-trigrams of each head, over `head rule`.

    Args:
        contribution: Logits that the rule adds, attention times effect.
        attention: Weight of the source against the context, in [0, 1].
        preference: Score of the source for this destination, above the mean over keys.
        effect: Logits per unit of attention, above the mean over outputs.
        direct: What the direct path from the destination adds to the output's logit, above the mean over outputs.
        sources: Ids; destinations and outputs likewise.
        context: Ids of the tokens that sources compete with.
        offsets: As in `TokenPairs`.
        names: Sources and destinations as text, by id, for those that occur.
        output_names: Outputs likewise.
        folded: Whether norms were folded into the matrices.
        left_out: Heads the analysis is not defined for, and why.
    """

    HEADLINE = ("contribution", "attention", "effect")
    SIGNED = ("contribution", "preference", "effect", "direct")

    contribution: Labelled
    attention: Labelled
    preference: Labelled
    effect: Labelled
    direct: Labelled
    sources: Labelled
    destinations: Labelled
    outputs: Labelled
    context: tuple[int, ...]
    offsets: tuple[int, ...]
    names: dict[int, str]
    output_names: dict[int, str]
    folded: bool
    left_out: LeftOut

    def panels(self, *names: str) -> list[figures.Panel]:
        if names:
            return super().panels(*names)
        tokens = [(self.sources, self.names), (self.destinations, self.names), (self.outputs, self.output_names)]
        return ranked_panels("logits added", self.contribution, tokens)

    def table(self, head: str, k: int = 10) -> list[tuple[str, float]]:
        """A head's rules as text with what they add: `1:keep … 2:in -> 3:mind`, in logits."""
        fields = (self.sources, self.destinations, self.outputs, self.contribution)
        picked = [field.select(head=head).values[:k].tolist() for field in fields]
        return [(f"{self.names[s]} … {self.names[d]} -> {self.output_names[o]}", x) for s, d, o, x in zip(*picked)]


@dataclasses.dataclass(frozen=True, eq=False)
class CrossedTrigrams(Result):
    """What heads add to outputs that do not follow: `head source destination output`.

    Args:
        contribution: Logits that each cell adds, attention times effect.
        wrong: 1 where a positive cell makes an output likelier that the text does not put there: it never follows the
            destination after the source, or no oftener than after the destination at large.
        bug_mass: Share of the positive contributions that is wrong, `head source`, in [0, 1]; NaN without any.
        direct: What the direct path adds, above the mean over outputs, `destination output`.
        sources: Ids; destinations and outputs likewise.
        context: As in `SkipTrigrams`.
        offsets: As in `TokenPairs`.
        folded: Whether norms were folded into the matrices.
        centred: Whether effects are above the mean over outputs, or as the matrices have them.
        left_out: Heads the analysis is not defined for, and why.
    """

    HEADLINE = ("bug_mass", "contribution")
    SIGNED = ("contribution", "direct")

    contribution: Labelled
    wrong: Labelled
    bug_mass: Labelled
    direct: Labelled
    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    outputs: tuple[int, ...]
    context: tuple[int, ...]
    offsets: tuple[int, ...]
    folded: bool
    centred: bool
    left_out: LeftOut


@dataclasses.dataclass(frozen=True)
class CrossedCost(Result):
    """What crossed cells cost on a text.

    Args:
        nats: Mean loss of the model less the mean loss without those cells, on the positions where one fires; positive
            if they hurt. NaN if none fires.
        nats_per_token: The same total over all predicted positions.
        fired: Positions where one fires.
        positions: Predicted positions.
    """

    HEADLINE = ("nats", "nats_per_token")

    nats: float
    nats_per_token: float
    fired: int
    positions: int


@question("Which skip-trigrams does each head hold?", of="weights", holds=("gates", "latent scales"))
def skip_trigrams(
    model: WeightsLike,
    heads: Several[str] | None = None,
    *,
    k: Count = 20,
    n_sources: Count | None = 256,
    tokens: Int[Tensor, " n"] | Sequence[int] | None = None,
    context: Sequence[int] | None = None,
    offset: Offset = None,
) -> SkipTrigrams:
    """Find the strongest skip-trigrams of each head.

    Args:
        heads: Labels; all heads with both circuits by default.
        k: Rules per head.
        n_sources: How many sources to try, those with the largest effects; None tries all, and is then exact.
        tokens: Ids that count, as sources, destinations and outputs; all by default (see `frequent_tokens`). Outputs
            of a vocabulary of their own count all.
        context: Ids of the tokens a source competes with; by default `<bos>` and 63 of `tokens`, evenly spread.
        offset: How far the source lies back, for rotary positions; by default the mean of 1 to 64.

    Raises:
        AnalysisUnavailable: A named head, or every head, lacks a full QK or OV circuit.
    """
    w = weights.matrices(model)
    layers, left_out = layers_for(w, heads, lambda layer: _require(w, layer))
    ids, offsets = token_choice(w, tokens), offsets_of(layers, offset)
    rivals = _context(w, ids, context)
    outputs, named = output_choice(w, ids), None if tokens is None else ids
    rows: list[tuple[Tensor, ...]] = []
    # what one head makes of a vocabulary is much; what all heads of a layer make, most of what is held
    for head in (layer[h] for layer in layers for h in range(len(layer.Q))):
        ov = full_circuit(w, head, "OV", ids=named).centred(rows=w.shifts)[0]
        look = _Looking(w, head, ids, rivals, offsets)
        # only the length of a row is needed to choose sources, and the triangular part of the right factor gives it
        length = (wide(ov.left) @ decompositions.triangular(ov.right.mT).mT).norm(dim=-1)
        chosen = length.topk(len(ids) if n_sources is None else min(n_sources, len(ids))).indices
        preference, attention = look.columns(0, chosen)
        rows.append(_best(attention, preference, ov.rows(chosen), chosen, ids, outputs, k))
    width = min(len(row[0]) for row in rows)
    parts = [torch.stack([row[i][:width] for row in rows]) for i in range(7)]
    contribution, attention, preference, effect, source, destination, output = parts
    coords = {"head": [label for layer in layers for label in layer.labels]}

    def field(values: Tensor) -> Labelled:
        return Labelled(values, ("head", "rule"), coords)

    beside = _beside(w, destination, output)
    names, output_names = names_of_both(w, [source, destination], [output])
    return SkipTrigrams(
        contribution=field(contribution),
        attention=field(attention),
        preference=field(preference),
        effect=field(effect),
        direct=field(beside),
        sources=field(source),
        destinations=field(destination),
        outputs=field(output),
        context=tuple(rivals.tolist()),
        offsets=offsets,
        names=names,
        output_names=output_names,
        folded=w.folded,
        left_out=left_out,
    )


@question("Which skip-trigrams does a head hold that no text asks for?", of="weights", holds=("gates", "latent scales"))
def crossed_trigrams(
    model: WeightsLike,
    documents: Sequence[Sequence[int]],
    sources: Several[str | int],
    destinations: Several[str | int],
    outputs: Several[str | int],
    heads: Several[str] | None = None,
    *,
    context: Sequence[int] | None = None,
    offset: Offset = None,
    centred: bool = True,
) -> CrossedTrigrams:
    """Find the cells of heads' skip-trigram tables that add to outputs which the text does not put there.

    Args:
        documents: Token ids of the text that says what follows what.
        sources: Tokens, as text or ids; those of `skip_trigrams` are a good choice, as for the next two.
        destinations: Tokens.
        outputs: Tokens.
        heads: As for `skip_trigrams`.
        context: As for `skip_trigrams`.
        offset: As for `skip_trigrams`.
        centred: Take effects above the mean over outputs. Without it they are what the matrices say, which folding
            centres too: give `weights.of(model)` to see them as the model adds them.

    Raises:
        AnalysisUnavailable: As for `skip_trigrams`.
    """
    w = weights.matrices(model)
    w.model.require_one_vocabulary("crossed_trigrams")
    layers, left_out = layers_for(w, heads, lambda layer: _require(w, layer))
    every, offsets = token_choice(w, None), offsets_of(layers, offset)
    s, d, o = (torch.tensor([token_id(w.model, t) for t in group]) for group in (sources, destinations, outputs))
    rivals = _context(w, every, context)
    found = []
    for layer in layers:
        effect = full_circuit(w, layer, "OV").centred(rows=centred and w.shifts).rows(s)[..., o]
        look = _Looking(w, layer, every, rivals, offsets)
        for h in range(len(effect)):
            attention = look.columns(h, s)[1][d]
            found.append(attention.mT[:, :, None] * effect[h][:, None])
    cells = torch.stack(found)
    unwanted = ~follows_more(documents, s, d, o).to(cells.device)
    wrong = (cells > 0) & unwanted
    positive = cells.clamp_min(0).sum((2, 3))
    mass = (cells * wrong).sum((2, 3)) / positive
    # by id, whatever the order they were given in
    names = [[names_of(w, group)[i] for i in group.tolist()] for group in (s, d, o)]
    labels = [label for layer in layers for label in layer.labels]
    axes = ("head", "source", "destination", "output")
    coords: dict[str, list[str]] = dict(zip(axes, [labels, *names]))
    direct = _direct(w)
    return CrossedTrigrams(
        contribution=Labelled(cells, axes, coords),
        wrong=Labelled(wrong.to(cells.dtype), axes, coords),
        bug_mass=Labelled(mass, axes[:2], {a: coords[a] for a in axes[:2]}),
        direct=Labelled(direct.rows(d)[:, o], axes[2:], {a: coords[a] for a in axes[2:]}),
        sources=tuple(s.tolist()),
        destinations=tuple(d.tolist()),
        outputs=tuple(o.tolist()),
        context=tuple(rivals.tolist()),
        offsets=offsets,
        folded=w.folded,
        centred=centred,
        left_out=left_out,
    )


@question("What do wrong skip-trigrams cost?", of="texts", holds=("patterns", "norm scales", "gates"))
def crossed_cost(model: ModelLike, crossed: CrossedTrigrams, ids: Int[Tensor, "batch pos"]) -> CrossedCost:
    """Measure what wrong cells cost: the loss, less the loss when they are taken out of the logits.

    Attention, gates and norms' scales are those of the text, effects those of the full OV circuit; so what is taken
    out is what the heads did add, exactly in the first layer where no positions are in the stream.

    Args:
        model: The model that `crossed` was made from, or whose weights it was.
        crossed: What `crossed_trigrams` returned.
        ids: Rows of a text.

    Raises:
        AnalysisUnavailable: Logits are soft-capped: cells are addends of the raw logits; or the model is no decoder,
            whose next tokens are those of the text.
    """
    require_model(model, "crossed_cost").require_one_vocabulary("crossed_cost")
    if not model.continues:
        raise AnalysisUnavailable(
            "crossed_cost asks what cells cost where a decoder predicts the next token of one text; "
            f"{type(model).__name__} is none.\n    The cells themselves are in crossed_trigrams(model, …)."
        )
    if model.config.logit_cap is not None:
        raise AnalysisUnavailable(
            "crossed_cost takes cells out of the logits, and this model's logits are soft-capped (logit_cap), so that "
            "they are no sum.\n    The cells themselves are in crossed_trigrams(model, …), in raw logits."
        )
    w = weights.of(model, fold=crossed.folded)
    layers = [w[str(label)] for label in crossed.contribution.labels("head")]
    final = model.output_stack.final
    sites = {f"{layer.path}.pattern" for layer in layers} | ({final.at_scale} if not final.identity else set())
    sites |= {site for layer in layers for site in w.sub_layers[layer.path].multiplier_sites}
    ids = ids.to(place_of(model))
    found = run(model, ids, read=sorted(sites))
    assert found.logits is not None, "a decoder has logits"
    s, d, o = (
        torch.tensor(group, device=ids.device) for group in (crossed.sources, crossed.destinations, crossed.outputs)
    )
    is_source = (ids[..., None] == s).to(found.logits.dtype)
    is_destination = (ids[..., None] == d).to(found.logits.dtype)
    removed = found.logits.new_zeros(*ids.shape, len(o))
    for h, layer in enumerate(layers):
        assert layer.head is not None
        multiplier = w.sub_layers[layer.path].multiplier(lambda site: found[site].values)
        # what multiplies mixed values does so at each position by itself
        layer = layer if multiplier is None else layer.holding(torch.ones_like(layer.O[..., 0]))
        moved = full_circuit(w, layer, "OV").centred(rows=crossed.centred and w.shifts)
        mass = found[f"{layer.path}.pattern"].values[:, layer.head, :, -ids.shape[1] :] @ is_source
        wrong = crossed.wrong.values[h].to(mass)
        mixed = torch.einsum("bqs,bqd,sdo,se->bqoe", mass, is_destination, wrong, moved.left[0, s])
        mixed = mixed if multiplier is None else mixed * multiplier[:, layer.head, :, None]
        removed += torch.einsum("bqoe,eo->bqo", mixed, moved.right[0][:, o])
    if not final.identity:
        removed = removed / found[final.at_scale].values[..., None]
    without = found.logits.clone()
    without[..., o] -= removed
    targets = ids[:, 1:, None]
    losses = [-x[:, :-1].log_softmax(-1).gather(-1, targets)[..., 0] for x in (found.logits, without)]
    # softmax leaves a little attention everywhere
    fires = removed[:, :-1].abs().amax(-1) > 1e-3
    saved = ((losses[0] - losses[1]) * fires).sum()
    n = int(fires.sum())
    return CrossedCost(float(saved) / n if n else float("nan"), float(saved) / fires.numel(), n, fires.numel())


def follows_more(
    documents: Sequence[Sequence[int]], sources: Tensor, destinations: Tensor, outputs: Tensor
) -> Bool[Tensor, "source destination output"]:
    """Return where P(output | destination, source before it) > P(output | destination), by the counts of a text."""
    s, d, o = len(sources), len(destinations), len(outputs)
    with_source, at_source = torch.zeros(s, d, o, dtype=torch.double), torch.zeros(s, d, 1, dtype=torch.double)
    anywhere, at_all = torch.zeros(d, o, dtype=torch.double), torch.zeros(d, 1, dtype=torch.double)
    for document in documents:
        ids = torch.as_tensor(document)
        here, after = ids[:-1], ids[1:]
        before = (here[:, None] == sources).cumsum(0).clamp_max(1).double()
        at, out = (here[:, None] == destinations).double(), (after[:, None] == outputs).double()
        with_source += torch.einsum("ps,pd,po->sdo", before, at, out)
        at_source += torch.einsum("ps,pd->sd", before, at)[..., None]
        anywhere += torch.einsum("pd,po->do", at, out)
        at_all += at.sum(0)[:, None]
    # P(o | s, d) > P(o | d) without dividing by counts of zero
    more = with_source * at_all > anywhere * at_source
    # where the destination never stands without the source, to follow at all is to follow because of it
    always = (at_source == at_all) & (with_source > 0)
    return more | always


class _Looking:
    """The attention of one layer's heads against a context."""

    def __init__(
        self, w: HeadWeights, layer: AttentionWeights, ids: Tensor, rivals: Tensor, offsets: Sequence[int]
    ) -> None:
        qk = full_circuit(w, layer, "QK", offsets)
        self.table = Factored(qk.left[..., ids, :], qk.right[..., ids])
        self.capped = layer.module.mixer.capped
        self.rest = self.capped(self.table.left @ qk.right[..., rivals]).logsumexp(-1)
        self.mean = qk.right[..., ids].mean(-1)

    def columns(self, h: int, chosen: Tensor) -> tuple[Float[Tensor, "dst src"], Float[Tensor, "dst src"]]:
        """Return preferences (above the mean over keys) and attention weights for some sources."""
        table = self.table[h]
        scores = table.columns(chosen)
        preference = scores - (table.left @ self.mean[h])[:, None]
        return preference, (self.capped(scores) - self.rest[h][:, None]).sigmoid()


def _best(
    attention: Tensor, preference: Tensor, effect: Tensor, chosen: Tensor, ids: Tensor, outputs: Tensor | None, k: int
) -> tuple[Tensor, ...]:
    """Return a head's k best rules: contribution, attention, preference, effect, source, destination, output."""
    # attention is positive: the best of a product lie among the best of both sides
    a, where = attention.topk(min(k, len(attention)), 0)
    c, out = effect.topk(min(k, effect.shape[-1]), -1)
    cells = a.mT[:, :, None] * c[:, None]
    value, flat = cells.flatten().topk(min(k, cells.numel()))
    s, i, j = torch.unravel_index(flat, cells.shape)
    d, said = where[i, s], out[s, j]
    said = said if outputs is None else outputs[said]
    return value, a[i, s], preference[d, s], c[s, j], ids[chosen[s]], ids[d], said


def _beside(
    w: HeadWeights, destination: Int[Tensor, "head rule"], output: Int[Tensor, "head rule"]
) -> Float[Tensor, "head rule"]:
    """Return entries of `_direct`, without rows of other tokens."""
    direct = w.direct(destination.flatten())
    columns = direct.right[:, output].movedim(0, -1)
    columns = columns - direct.right.mean(-1) if w.shifts else columns
    return (direct.left.view_as(columns) * columns).sum(-1)


def _direct(w: HeadWeights) -> Factored:
    """Return the direct path as the heads' effects are given: rows centred, the final norm's own scale on each row."""
    return w.direct().centred(rows=w.shifts)


def _require(w: HeadWeights, layer: AttentionWeights) -> None:
    require_circuit(w, layer, "OV")
    require_circuit(w, layer, "QK")
    if layer.Q.ndim == 4:
        raise AnalysisUnavailable(
            f'skip-trigrams: layer {layer.layer} uses "{layer.module.mixer.config.kind}", whose pattern is the '
            "difference of two softmaxes.\n    The scores of each are token_pairs(model, 'QK')."
        )


def _context(w: HeadWeights, ids: Tensor, context: Sequence[int] | None) -> Int[Tensor, " n"]:
    if context is not None:
        return token_choice(w, context)
    picked = ids[torch.linspace(0, len(ids) - 1, min(CONTEXT, len(ids)), device=ids.device).long()]
    bos = None if w.model.tokenizer is None else w.model.tokenizer.bos
    if bos is None:
        return picked
    rest = picked[picked != bos]
    return torch.cat((rest.new_tensor([bos]), rest[: CONTEXT - 1]))
