"""Short-circuited attention: in chosen layers every token attends to itself alone. What does the model still recite?

    pattern := identity, which is z := v        values, output matrix, norms and MLPs stay

This is no ablation: each token's own value is still added. z := v needs no pattern and no earlier position, so it is
the same for a whole text as for one token on top of a cache, and is defined for every mechanism whose z is linear in v,
be the rows of its pattern non-negative and sum to one or not. Where they do, a text of one token is left as it was.

Source: Menta, Agrawal and Agarwal 2025 (arXiv 2501.05078); planted sequences of known counts are our choice.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.losses import joined, losses_of
from glassformer.analysis.question import question
from glassformer.analysis.uncertainty import deviation
from glassformer.arguments import Count, checked
from glassformer.attention import AttentionLayer
from glassformer.attention.mixer import per_query_head
from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.data.text.planted import PlantedRows
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.models.embedding import require_ids
from glassformer.models.evaluation import evaluating
from glassformer.numerics.placement import place_of
from glassformer.trace import Apply, Columns, Edit, Tape, in_pass, settled

Report = Callable[[int, int], None]
WHOLE = "none"


@dataclasses.dataclass(frozen=True, eq=False)
class ShortCircuit(Result):
    """What a model recites and how well it reads new text, with attention short-circuited in some layers.

    Coordinates of `layers` are `none` (the whole model), one layer each, and the last two, three, … up to all.

    Args:
        exact_match: Share of sequences whose suffix is regenerated from its prefix without a mistake, `layers count`.
        exact_match_spread: Standard error over sequences, `layers count`; NaN with one sequence of a count.
        token_accuracy: Share of suffix tokens that are right in their place, the model going on from its own tokens,
            greedily; `layers count`.
        token_accuracy_spread: Standard error over sequences, `layers count`.
        suffix_loss: Nats per suffix token, each predicted from the true ones before it, `layers count`.
        novel_loss: Nats per token of new text, `layers`.
        novel_loss_change: Less the whole model's, `layers`.
        novel_loss_change_spread: Standard error over rows, `layers`; NaN with one row.
        sequences: How many sequences there are of each count, `count`.
        prefix: Tokens given, `<bos>` included.
        suffix: Tokens regenerated.
        novel_tokens: How many the loss is a mean of.
    """

    HEADLINE = ("exact_match", "token_accuracy", "novel_loss_change")
    SIGNED = ("novel_loss_change",)

    exact_match: Labelled
    exact_match_spread: Labelled
    token_accuracy: Labelled
    token_accuracy_spread: Labelled
    suffix_loss: Labelled
    novel_loss: Labelled
    novel_loss_change: Labelled
    novel_loss_change_spread: Labelled
    sequences: Labelled
    prefix: int
    suffix: int
    novel_tokens: int


@question("Which layers does recited text need, and which new text?", of="texts")
def short_circuit(
    model: ModelLike,
    planted: PlantedRows,
    *novel: Batch,
    sets: Mapping[str, Sequence[int]] | None = None,
    rows: Count = 256,
    report: Report | None = None,
) -> ShortCircuit:
    """Short-circuit attention layer by layer; measure regeneration by repeat count against the loss on new text.

    Args:
        model: A decoder.
        planted: Sequences and how often the model was shown each.
        novel: Rows of text the model was not trained on.
        sets: Layers to short-circuit together, by name; each layer alone and the last ones by default.
        rows: Sequences regenerated at a time.

    Raises:
        AnalysisUnavailable: The model is no decoder, or a layer named has no attention.
        NoPattern: A mechanism has no pattern that the identity could replace.
        ShapeMismatch: There is no novel text, or a prefix with nothing after it.

    Source: Menta, Agrawal and Agarwal 2025.
    """
    if not (isinstance(model, Model) and model.continues):
        raise AnalysisUnavailable(
            "short_circuit lets a decoder go on from a prefix, and this model is none. For one pass of any model, give "
            "run(..., edit=short_circuit_edits(model, layers, stack=...))."
        )
    model.require_one_vocabulary("short_circuit")
    length = planted.ids.shape[1]
    if not novel or not 1 <= planted.prefix < length:
        raise ShapeMismatch(
            f"short_circuit needs batches of new text (found {len(novel)}), and a prefix shorter than the {length} "
            f"tokens of a sequence (found {planted.prefix})."
        )
    sets = {WHOLE: ()} | dict(_default_sets(len(model.output_stack.blocks)) if sets is None else sets)
    device = place_of(model)
    planted = planted._replace(ids=planted.ids.to(device), counts=planted.counts.to(device))
    batches = [batch.to(device) for batch in novel]
    # all of them first: a layer that cannot be short-circuited should not show after minutes
    edits = {name: short_circuit_edits(model, layers) for name, layers in sets.items()}
    right, suffix_losses, novel_losses = [], [], []
    with evaluating(model), torch.no_grad():
        for done, change in enumerate(edits.values(), 1):
            found = [_recited(model, ids, planted.prefix, change) for ids in planted.ids.split(rows)]
            right.append(torch.cat([correct for correct, _ in found]))
            suffix_losses.append(torch.cat([losses for _, losses in found]))
            novel_losses.append(joined([_losses(model, batch, change) for batch in batches]))
            if report is not None:
                report(done, len(edits))
    weight = joined([batch.weight for batch in batches])
    return _summary(
        planted, list(sets), torch.stack(right), torch.stack(suffix_losses), torch.stack(novel_losses), weight
    )


@checked
def short_circuit_edits(model: ModelLike, layers: Iterable[int], *, stack: str = "") -> list[Edit]:
    """The edits that replace the pattern of self-attention by the identity in these layers.

    They hold for whole texts and for single tokens on top of a state. Cross-attention looks at another sequence, where
    no position is a token's own; it is left as it is.

    Args:
        model: A decoder or an encoder-decoder.
        layers: Indices from 0; negative ones count from the last.
        stack: `encoder` or `decoder`, in an encoder-decoder.

    Raises:
        AnalysisUnavailable: No such stack or layer, or the layer has no self-attention.
        NoPattern: Its mechanism has no pattern that the identity could replace.

    Example:
        run(model, text, edit=short_circuit_edits(model, [-1, -2]))
    """
    if stack not in require_model(model, "short_circuit_edits").stacks:
        known = ", ".join(f'"{name}"' for name in model.stacks)
        raise AnalysisUnavailable(f'short_circuit_edits: no stack "{stack}" in this model. Stacks: {known}.')
    blocks, edits = list(model.stacks[stack].blocks), []
    for layer in dict.fromkeys(layers):
        if not -len(blocks) <= layer < len(blocks):
            raise AnalysisUnavailable(
                f"short_circuit_edits: no layer {layer}; there are {len(blocks)}, counted from 0."
            )
        parts = [blocks[layer].part(name) for name in blocks[layer].names]
        found = [part for part in parts if isinstance(part, AttentionLayer) and not part.config.cross]
        if not found:
            raise AnalysisUnavailable(f"short_circuit_edits: layer {layer} has no self-attention to short-circuit.")
        for part in found:
            edits += _own_value(part)
    return edits


@checked
def regenerate(
    model: ModelLike, prefixes: Int[Tensor, "sequence pos"], new: Count, edit: Sequence[Edit] = ()
) -> Int[Tensor, "sequence new"]:
    """The `new` tokens the model goes on with, greedily, under edits that hold at every step.

    Positions of edits are those of the whole text. Functions are handed the tokens that a step reads: the prefix, then
    one after the other.

    Args:
        model: A decoder.
        prefixes: Ids to go on from, all of one length.
        new: How many tokens.
        edit: Edits, made at every step.

    Raises:
        AnalysisUnavailable: The model is no decoder.
        TokenOutOfRange: An id outside the vocabulary.
        ShapeMismatch: An edit has no place in a text that grows, as in `models.generate`.
    """
    if not (isinstance(model, Model) and model.continues):
        raise AnalysisUnavailable(
            f"regenerate lets a decoder go on from a prefix; {type(model).__name__} is none.\n"
            "    Text of any model of ours: glassformer.models.generate(model, prompts)."
        )
    tokens = require_ids(prefixes, model.config.vocab_size).to(place_of(model))
    state, made = model.begin(len(prefixes)), list[Tensor]()
    placed = [(site, settled(one, site, len(prefixes))) for asked in edit for site, one in model.sites().place(asked)]
    with evaluating(model), torch.no_grad():
        for _ in range(new):
            columns = Columns(state.length, state.length + tokens.shape[1], (0,) * len(prefixes))
            here = [change for site, one in placed for change in in_pass(one, site, columns)]
            logits, state = model(tokens, state=state, tape=Tape(model, edit=here))
            tokens = logits[:, -1:].argmax(-1)
            made.append(tokens)
    return torch.cat(made, 1)


def _own_value(part: AttentionLayer) -> list[Edit]:
    traits = part.mixer.traits
    if not traits.one_pattern and not (traits.has_patterns and traits.value_merge == "concat"):
        raise NoPattern(
            f'short_circuit: layer {part.dims.layer} uses "{part.mixer.config.kind}" '
            f'(linear_in_value="{traits.linear_in_value}"), which has no pattern to replace by the identity, or '
            "several whose values are added up, of which each token has one of its own.\n"
            f'    Zero what it moves instead: Set("{part.path}.z", 0.0).'
        )
    # of this pass only: the value is said before z, every time anew
    passing: dict[str, Tensor] = {}

    def keep(value: Tensor) -> Tensor:
        passing["value"] = value
        return value

    return [
        Apply(part.at.value, keep),
        # a projection that makes values of earlier positions anew says them too; a token's own is among the last
        Apply(part.at.z, lambda z: part.mixer.merged(per_query_head(passing.pop("value")[..., -z.shape[-2] :, :], z))),
    ]


def _default_sets(n_layers: int) -> dict[str, Sequence[int]]:
    alone: dict[str, Sequence[int]] = {f"layer {i}": (i,) for i in range(n_layers)}
    last: dict[str, Sequence[int]] = {f"last {k}": range(n_layers - k, n_layers) for k in range(2, n_layers)}
    return alone | last | ({"all": range(n_layers)} if n_layers > 1 else {})


def _losses(model: Model, batch: Batch, edits: Sequence[Edit]) -> Float[Tensor, "row pos"]:
    tape = Tape(model, edit=edits)
    return losses_of(model(batch.tokens, lengths=batch.lengths, documents=batch.documents, tape=tape), batch)


def _recited(
    model: Model, ids: Int[Tensor, "sequence pos"], prefix: int, edits: Sequence[Edit]
) -> tuple[Bool[Tensor, "sequence suffix"], Float[Tensor, " sequence"]]:
    """Return which regenerated tokens are right, and each sequence's mean loss on its suffix."""
    right = regenerate(model, ids[:, :prefix], ids.shape[1] - prefix, edits) == ids[:, prefix:]
    losses = _losses(model, next_token_batch(ids), edits)
    return right, losses[:, prefix - 1 :].mean(-1)


def _summary(
    planted: PlantedRows,
    names: list[str],
    right: Bool[Tensor, "layers sequence suffix"],
    suffix_losses: Float[Tensor, "layers sequence"],
    novel: Float[Tensor, "layers row pos"],
    weight: Bool[Tensor, "row pos"],
) -> ShortCircuit:
    dtype = novel.dtype
    counts = sorted(set(planted.counts.tolist()))
    exact, accuracy = right.all(-1).to(dtype), right.to(dtype).mean(-1)

    def by_count(values: Float[Tensor, "layers sequence"], *, spread: bool = False) -> Labelled:
        groups = [values[:, planted.counts == count] for count in counts]
        found = [deviation(group) / group.shape[1] ** 0.5 if spread else group.mean(-1) for group in groups]
        return Labelled(torch.stack(found, -1), ("layers", "count"), {"layers": names, "count": counts})

    counted, rows = weight.to(dtype), len(weight)
    losses = (novel * counted).sum((1, 2)) / counted.sum()
    change = losses - losses[0]
    # each row pulls by how many tokens it has: the error of a ratio of sums
    off = ((novel - novel[0]) * counted).sum(2) - change[:, None] * counted.sum(1)
    spread = off.square().sum(1).sqrt() / counted.sum() * (rows / (rows - 1)) ** 0.5 if rows > 1 else change * torch.nan
    over = (("layers",), {"layers": names})
    return ShortCircuit(
        exact_match=by_count(exact),
        exact_match_spread=by_count(exact, spread=True),
        token_accuracy=by_count(accuracy),
        token_accuracy_spread=by_count(accuracy, spread=True),
        suffix_loss=by_count(suffix_losses),
        novel_loss=Labelled(losses, *over),
        novel_loss_change=Labelled(change, *over),
        novel_loss_change_spread=Labelled(spread, *over),
        sequences=Labelled(
            torch.stack([(planted.counts == count).sum() for count in counts]), ("count",), {"count": counts}
        ),
        prefix=planted.prefix,
        suffix=right.shape[-1],
        novel_tokens=int(weight.sum()),
    )
