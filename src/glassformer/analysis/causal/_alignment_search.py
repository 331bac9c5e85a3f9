"""Distributed alignment search: the subspace of a place whose exchange gives the counterfactual answers.

    minimise over Q:   - mean log p(counterfactual answer),   x -> base + (source - base) Q Q'

Q has orthonormal columns: the first k of a rotation of the place, of which the others need not be known. It is fitted
by gradient to some pairs; interchange accuracy is of others, no prompt of which is among those.

A search finds what moves the answer, whether or not the model works by it: see `Interchanged.illusion`. Where what
decides the answer is also stored in directions that nothing reads, the best fit mixes some of them in.

Source: Geiger et al. 2023, "Finding Alignments Between Interpretable Causal Variables and Distributed Neural
Representations" (2303.02536), section 3.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.causal._interchange import Interchanged, interchanged, notes_on
from glassformer.analysis.causal._swapped_place import SwappedPlace, swapped_place
from glassformer.analysis.contrasts import PromptPairs, Prompts
from glassformer.analysis.question import question
from glassformer.analysis.sweep import log_probability, sweep
from glassformer.arguments import Count, Positive, Rate
from glassformer.data import Counterfactuals
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.fitting import Descent
from glassformer.labelled import Labelled, Result
from glassformer.models import ModuleLike, require_module
from glassformer.models.evaluation import require_gradients
from glassformer.numerics import decompositions
from glassformer.numerics.precision import wide
from glassformer.provenance import tell
from glassformer.trace import At


@dataclasses.dataclass(frozen=True, eq=False)
class AlignmentSearch(Result):
    """A subspace that was searched for, and what exchanging it does to prompts it was not fitted to.

    Args:
        directions: Its orthonormal basis, `direction` and the last axis of the site.
        losses: Mean of - log p(counterfactual answer) before each step, in nats, `step`.
        held_out: What an exchange does to the held-out pairs.
        fitted_accuracy: Interchange accuracy on the pairs it was fitted to.
        fitted: How many pairs it was fitted to.
        unused: How many pairs have a prompt on either side, and were not used.
    """

    HEADLINE = ("accuracy", "losses")

    directions: Labelled
    losses: Labelled
    held_out: Interchanged
    fitted_accuracy: float
    fitted: int
    unused: int

    @property
    def accuracy(self) -> Labelled:
        """Interchange accuracy on held-out pairs, `exchanged`."""
        return self.held_out.accuracy

    @property
    def bounds(self) -> Labelled:
        """The 95 % interval of `accuracy` over prompts, `bound exchanged`."""
        return self.held_out.bounds

    @property
    def illusion(self) -> float:
        """Share of the effect that neither what is read nor what is not read has by itself; see `Interchanged`."""
        return self.held_out.illusion

    def cosines(self, directions: Float[Tensor, "direction_2 width"]) -> Float[Tensor, " least"]:
        """Cosines of the principal angles to another subspace, given by orthonormal rows; 1 where they share one."""
        own = wide(self.directions.values)
        return decompositions.singular_values(own @ directions.to(own).mT)


@question("Which subspace of a place stands for a variable of the task?", of="pairs of prompts", holds=("gradients",))
def alignment_search(
    model: ModuleLike,
    pairs: PromptPairs | Counterfactuals,
    site: str,
    k: Count = 1,
    *,
    at: At | None = None,
    steps: Count = 100,
    lr: Positive = 0.05,
    held_out: Rate = 0.3,
    draws: Count = 8,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> AlignmentSearch:
    """Search for a subspace that gives the counterfactual answers when it is exchanged, and try it on other prompts.

    Args:
        model: One of ours, or any module.
        pairs: As for `interchange`.
        site: One site, or a head's label and quantity.
        k: Dimensions of the subspace.
        at: The part, `At(pos=-1)`.
        steps: Gradient steps (Adam), each over all pairs.
        lr: Learning rate; it falls linearly to zero.
        held_out: Share of the pairs that the subspace is tried on.
        draws: Random subspaces beside it.
        seed: Source of the split, the start and the draws.
        report: Called with (done, total) steps.

    Raises:
        DataError: There are no pairs, or some do not fit the model.
        AnalysisUnavailable: An answer is missing, no gradient can be taken, or prompts are shared by so many pairs that
            none is left for one of the sides.
        ShapeMismatch: Prompts do not align, the part is not there, or it has fewer dimensions than asked for.
        UnknownSite: There is no such site, or several.
        TrainingDiverged: A loss or its gradient is not finite.
    """
    require_module(model, "alignment_search")
    place = swapped_place(model, pairs, site, At() if at is None else at, "alignment_search")
    require_gradients(model, "alignment_search")
    if place.coordinates or k > place.width:
        raise ShapeMismatch(
            f'alignment_search: "{place.axis}" of "{place.site.name}" has {place.width} entries; a subspace of up to '
            f"as many dimensions is searched for in all of them, found k={k}, at={at}."
        )
    generator = torch.Generator().manual_seed(seed)
    fitted, held = _split(place, held_out, generator)
    basis, losses = _searched(place, k, fitted, steps, lr, generator, report)
    found = interchanged(place, basis, draws, seed, held)
    own = interchanged(place, basis, 1, seed, fitted)
    tell(notes_on(found))
    return AlignmentSearch(
        directions=Labelled(basis.to(place.before.dtype), ("direction", place.axis)),
        losses=Labelled(torch.tensor(losses, dtype=torch.float64, device=basis.device), ("step",)),
        held_out=found,
        fitted_accuracy=float(own.accuracy.select(exchanged="subspace").values),
        fitted=len(fitted),
        unused=place.base.rows - len(fitted) - len(held),
    )


def _searched(
    place: SwappedPlace,
    k: int,
    rows: Sequence[int],
    steps: int,
    lr: float,
    generator: torch.Generator,
    report: Callable[[int, int], None] | None,
) -> tuple[Float[Tensor, "direction width"], list[float]]:
    """Return an orthonormal basis, as rows, and the loss before each step."""
    drawn = torch.randn(place.width, k, generator=generator, dtype=torch.float64)
    columns = wide(decompositions.qr(drawn)[0].to(place.before)).requires_grad_()
    metric = log_probability(place.asked.answer, pos=place.asked.pos)
    own = torch.tensor(rows, device=place.before.device)

    def loss(step: int) -> list[Tensor]:
        # columns of any length: what is fitted is what they span
        edit = place.along(decompositions.qr(columns)[0].mT)
        found = sweep(place.model, place.base.inputs, [[edit]], metric, target=place.base.target, grad=True).values
        return [-found.values[0, 0, own].mean()]

    descent = Descent(
        [columns], torch.optim.Adam([columns], lr), loss, rate=lambda step: lr * (1 - (step - 1) / steps), steps=steps,
        name="alignment_search", way_on=lambda: f"Search with a smaller lr (now {lr:g}).",
    )  # fmt: skip
    losses = list[float]()
    for update in descent:
        losses.append(update.loss)
        if report is not None:
            report(update.step, steps)
    return decompositions.qr(columns.detach())[0].mT.contiguous(), losses


def _split(place: SwappedPlace, share: float, generator: torch.Generator) -> tuple[list[int], list[int]]:
    """Return pairs to fit to and held-out ones, which have no prompt in common; those in between are in neither."""
    rows = place.base.rows
    prompts = [(_key(place.base, row), _key(place.source, row)) for row in range(rows)]
    apart, held = set[Any](), list[int]()
    for row in torch.randperm(rows, generator=generator).tolist():
        if len(held) >= share * rows:
            break
        apart |= {*prompts[row]}
        held = [i for i, (base, source) in enumerate(prompts) if base in apart and source in apart]
    fitted = [i for i, (base, source) in enumerate(prompts) if base not in apart and source not in apart]
    if not held or not fitted:
        raise AnalysisUnavailable(
            f"alignment_search: {rows} pairs leave {len(fitted)} to fit to and {len(held)} held-out ones that share no "
            "prompt with them.\n    Give more pairs, pairs of different prompts, or another held_out=."
        )
    return fitted, held


def _key(side: Prompts, row: int) -> Any:
    """Return what tells a prompt from others; of what has no ids, which row it is."""
    if side.given.ids is None:
        return id(side), row
    source = side.given.source_ids
    return tuple(side.given.ids[row].tolist()), None if source is None else tuple(source[row].tolist())
