"""What a model loses when a site holds what a dictionary makes of it, and nothing else.

    recovered = (loss ablated - loss spliced) / (loss ablated - loss of the model as it is)

Spliced is the site with its error set to zero; ablated the site set to zero, or to its mean over the counted positions.
1 is a dictionary that costs nothing, 0 one that is worth no more than the ablation. Where the ablation itself costs no
more than chance, there is nothing to recover, and the share is NaN.

Source: Bricken et al. 2023, "Towards Monosemanticity"; the KL: Gao et al. 2024, section 4.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownMemberType=false

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.dictionaries._attached import attach, site_of
from glassformer.analysis.dictionaries._autoencoder import SparseAutoencoder
from glassformer.analysis.prepare import next_tokens, prepare
from glassformer.analysis.question import question
from glassformer.arguments import Several
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.models.evaluation import evaluating
from glassformer.trace import Edit, Scale, Set, Tape, without_splits

PASSES = ("as it is", "spliced", "ablated")


@dataclasses.dataclass(frozen=True, eq=False)
class SpliceLoss(Result):
    """What a model loses by a dictionary in place of a site.

    Args:
        loss: Mean cross-entropy of counted tokens in nats, `pass`: as it is, spliced, ablated.
        spread: Standard error over tokens of what each pass adds to the loss, `pass`; 0 as it is, NaN of one token.
        kl: Mean KL(as it is || pass) of next-token distributions in nats, `pass`.
        ablation: What the site is ablated by, `zero` or `mean`.
        tokens: How many were counted.
    """

    HEADLINE = ("loss", "kl")

    loss: Labelled
    spread: Labelled
    kl: Labelled
    ablation: Literal["zero", "mean"]
    tokens: int

    @property
    def recovered(self) -> float:
        """Share of what the ablation costs that the dictionary keeps; NaN where it costs no more than two errors."""
        whole, spliced, ablated = self.loss.values.tolist()
        costs = ablated - whole > 2 * float(self.spread.values[-1])
        return (ablated - spliced) / (ablated - whole) if costs else math.nan


@question("What does the model lose if a site holds what a dictionary makes of it?", of="texts")
@torch.no_grad()
def splice_loss(
    model: ModelLike,
    dictionary: SparseAutoencoder,
    batches: Several[Any],
    *,
    site: str | None = None,
    ablation: Literal["zero", "mean"] = "mean",
    report: Callable[[int, int], None] | None = None,
) -> SpliceLoss:
    """Measure what is lost when a dictionary's reconstruction takes the place of its site.

    Args:
        dictionary: Of a site of the stack that ends in the logits.
        batches: Held-out texts, each a text, ids or a `Batch`.
        site: Full name of the site, for a dictionary that does not say.
        ablation: What the loss is compared with: the site at zero, or at its mean over these batches.

    Raises:
        CheckpointError: The dictionary is of another model or site.
        ShapeMismatch: The site has rows of another width.
        AnalysisUnavailable: The model is not one of ours or gives no logits of tokens, or no token counts.
    """
    model = require_model(model, "splice_loss")
    name = site_of(dictionary, site)
    split = attach(without_splits(model), dictionary, site=name)
    read = [next_tokens(model, batch, "splice_loss") for batch in batches]
    if not any(bool(batch.weight.any()) for batch in read):
        raise AnalysisUnavailable("splice_loss: no token counts, so there is no loss.")
    put = torch.zeros(()) if ablation == "zero" else _mean(split, name, read)
    edits: list[list[Edit]] = [[], [Scale(f"{name}.error", 0.0)], [Set(name, put.to(dictionary.W_dec.device))]]
    losses, divergences = list[Tensor](), list[Tensor]()
    with evaluating(model):
        for i, batch in enumerate(read):
            found = [_log_probs(split, batch, change) for change in edits]
            targets = batch.targets[batch.weight][:, None]
            losses.append(torch.stack([-each.gather(-1, targets)[:, 0] for each in found]).cpu())
            kl = [(found[0].exp() * (found[0] - each)).nan_to_num(0.0).sum(-1) for each in found]
            divergences.append(torch.stack(kl).cpu())
            if report is not None:
                report(i + 1, len(read))
    return _result(torch.cat(losses, 1), torch.cat(divergences, 1), ablation)


def _result(
    losses: Float[Tensor, "pass token"], divergences: Float[Tensor, "pass token"], ablation: Literal["zero", "mean"]
) -> SpliceLoss:
    coords = {"pass": list(PASSES)}
    added = losses - losses[:1]
    n = losses.shape[1]
    error = added.std(-1) / n**0.5 if n > 1 else torch.full((len(losses),), torch.nan, dtype=losses.dtype)
    values = (losses.mean(-1), error, divergences.mean(-1))
    loss, spread, kl = (Labelled(value, ("pass",), coords) for value in values)
    return SpliceLoss(loss=loss, spread=spread, kl=kl, ablation=ablation, tokens=n)


def _log_probs(model: Model, batch: Batch, edits: Sequence[Edit]) -> Float[Tensor, "token vocab"]:
    """Return log-probabilities at the positions that count, in float64."""
    given = prepare(model, batch, None)
    logits: Tensor = model(*given.args, **given.kwargs, tape=Tape(model, edit=edits))
    return logits[batch.weight].double().log_softmax(-1)


def _mean(model: Model, name: str, batches: Sequence[Batch]) -> Tensor:
    """Return the mean of a site over the positions that count, or over all where it counts others, to be broadcast."""
    site = model.sites()[name]
    axis = next(i for i, axis in enumerate(site.axes) if axis in ("pos", "query", "key"))
    total, count, dtype = torch.zeros((), dtype=torch.float64), 0, torch.float64
    for batch in batches:
        tape = Tape(model, [name], logits=False)
        given = prepare(model, batch, None)
        with evaluating(model):
            model(*given.args, **given.kwargs, tape=tape)
        value = tape.values[name].movedim((0, axis), (0, 1))
        rows = value[batch.weight] if value.shape[:2] == batch.weight.shape else value.flatten(0, 1)
        total, count, dtype = total + rows.double().sum(0).cpu(), count + len(rows), rows.dtype
    # where the positions were stands an axis of one
    mean = (total / max(count, 1)).to(dtype)
    return mean if axis == 1 else mean.unsqueeze(axis - 1)
