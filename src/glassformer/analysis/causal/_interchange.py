"""Interchange interventions: does what lies at a place stand for a variable of the task?

    base + (source - base) P          P onto a subspace of the place, onto some of its coordinates, or all of it
    interchange accuracy              share of prompts whose likeliest next token is then the counterfactual answer

Beside it stand what no exchange gives, the whole place, subspaces of as many dimensions at random, and the two parts
of the subspace (what is read by what comes behind, and what is not), each exchanged alone: where neither does what both
do together, the subspace works through values that the model never has.

Source: Geiger et al. 2021, "Causal Abstractions of Neural Networks" (2106.02997); Geiger et al. 2023, "Finding
Alignments Between Interpretable Causal Variables and Distributed Neural Representations" (2303.02536); Makelov et al.
2023, "Is This the Subspace You Are Looking for?" (2311.17030).
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.causal._read_part import read_part
from glassformer.analysis.causal._swapped_place import SwappedPlace, swapped_place
from glassformer.analysis.contrasts import PromptPairs
from glassformer.analysis.guard import beyond_spread
from glassformer.analysis.question import question
from glassformer.analysis.sweep import accuracy, logit_difference, sweep
from glassformer.analysis.uncertainty import interval, mean, share_interval
from glassformer.arguments import Count
from glassformer.data import Counterfactuals
from glassformer.labelled import Labelled, Result
from glassformer.models import ModuleLike, require_module
from glassformer.provenance import Note, tell
from glassformer.trace import At, Edit
from glassformer.words import sentence

NOTHING, WHOLE, SUBSPACE = sentence("nothing"), sentence("whole place"), sentence("subspace")
RANDOM, READ, UNREAD = sentence("random subspace"), sentence("read part"), sentence("unread part")
# an effect of which neither part has this share by itself is none of the model's
_ILLUSORY = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Interchanged(Result):
    """What exchanging values does to the answer, by what is exchanged; `random subspace` is a mean over draws.

    Args:
        right: Whether the likeliest next token is the counterfactual answer, `exchanged batch`, 1 or 0.
        difference: Logit of the counterfactual answer less that of the base's own, `exchanged batch`; NaN where the two
            are the same token.
        moved: Of the square of what base and source differ by at the place, the share that is exchanged, `exchanged`.
        read_share: How much of the subspace lies in what is read, from 0 to 1; NaN for a whole place.
    """

    HEADLINE = ("accuracy", "effect")
    SIGNED = ("difference", "effect")

    right: Labelled
    difference: Labelled
    moved: Labelled
    read_share: float

    @property
    def accuracy(self) -> Labelled:
        """Interchange accuracy: share of prompts that get the counterfactual answer, `exchanged`."""
        return mean(self.right)

    @property
    def bounds(self) -> Labelled:
        """The 95 % interval of `accuracy` over prompts, `bound exchanged`."""
        return share_interval(self.right)

    @property
    def change(self) -> Labelled:
        """What the exchange adds to `difference`, `exchanged batch`."""
        values = self.difference.values
        return dataclasses.replace(self.difference, values=values - values[:1])

    @property
    def effect(self) -> Labelled:
        """Mean of `change` over prompts, in logits, `exchanged`."""
        return mean(self.change)

    @property
    def effect_bounds(self) -> Labelled:
        """The 95 % interval of `effect` over prompts drawn again, `bound exchanged`."""
        return interval(self.change)

    @property
    def illusion(self) -> float:
        """Share of the subspace's effect that neither of its parts has by itself: about 0, or 1 for an illusion.

        NaN for a whole place, and where the subspace has no effect.
        """
        names = list(map(str, self.right.labels("exchanged")))
        if SUBSPACE not in names:
            return float("nan")
        effect = dict(zip(names, self.effect.values.tolist()))
        if not bool(beyond_spread(self.change.values[names.index(SUBSPACE)])):
            return float("nan")
        return 1 - (effect[READ] + effect[UNREAD]) / effect[SUBSPACE]

    def _title(self) -> str:
        return "Interchange interventions"


@question("Does what lies at a place stand for a variable of the task?", of="pairs of prompts")
def interchange(
    model: ModuleLike,
    pairs: PromptPairs | Counterfactuals,
    site: str,
    directions: Tensor | Labelled | None = None,
    *,
    at: At | None = None,
    draws: Count = 8,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> Interchanged:
    """Exchange what lies at a place, or in a subspace of it, between prompts, and return what it does to the answer.

    Args:
        model: One of ours, or any module.
        pairs: `Counterfactuals`; or pairs as for `patch`, of which the corrupt prompt is the base, the clean one the
            source, and the clean one's answer the counterfactual one.
        site: One site, or a head's label and quantity (`L1H6.z`); features of a dictionary that is attached are one.
        directions: The subspace: one direction of the site's last axis, or one per row; they need not be orthogonal.
        at: The part, `At(pos=-1)`; coordinates of the last axis, `At(feature=[7])`, are a subspace, too.
        draws: Random subspaces; of coordinates, random other ones.
        seed: Of the draws.
        report: Called with (done, total) rows.

    Raises:
        DataError: There are no pairs, or some do not fit the model.
        AnalysisUnavailable: An answer is missing, or no gradient can be taken, where there is a subspace.
        ShapeMismatch: Prompts do not align, the part is not there, or directions do not fit it.
        UnknownSite: There is no such site, or several.
    """
    require_module(model, "interchange")
    place = swapped_place(model, pairs, site, At() if at is None else at, "interchange")
    found = interchanged(place, place.chosen(directions), draws, seed, report=report)
    tell(notes_on(found))
    return found


def interchanged(
    place: SwappedPlace,
    subspace: Float[Tensor, "direction width"] | None,
    draws: int,
    seed: int,
    rows: Sequence[int] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Interchanged:
    """Return what an exchange does on some of the pairs; all by default."""
    answer, before, pos = place.asked.answer, place.asked.wrong, place.asked.pos
    difference = logit_difference(answer, before, pos=pos)
    plan: dict[str, list[list[Edit]]] = {NOTHING: [[]], WHOLE: [[place.whole()]]}
    moved, share = {NOTHING: 0.0, WHOLE: place.moved()}, float("nan")
    if subspace is not None:
        parts = read_part(place, subspace, difference)
        bases = {SUBSPACE: [subspace], RANDOM: place.at_random(len(subspace), draws, seed)}
        bases |= {READ: [parts.read], UNREAD: [parts.unread]}
        plan |= {name: [[place.along(basis)] for basis in several] for name, several in bases.items()}
        moved |= {name: sum(map(place.moved, several)) / len(several) for name, several in bases.items()}
        share = parts.share
    swept = sweep(
        place.model, place.base.inputs, [row for several in plan.values() for row in several],
        [accuracy(answer, pos=pos), difference], target=place.base.target, report=report,
    ).values.values.double()  # fmt: skip
    split = swept.split([len(several) for several in plan.values()], 1)
    right, apart = torch.stack([several.mean(1) for several in split], 1)
    # a token less itself is nothing that an exchange could move
    first, second = (ids.to(apart.device) for ids in difference.ids(place.model, apart.shape[1], apart.device))
    apart = apart.masked_fill(first == second, torch.nan)
    some = slice(None) if rows is None else list(rows)
    coords = {"exchanged": list(plan)}
    axes = ("exchanged", "batch")
    return Interchanged(
        right=Labelled(right[:, some], axes, coords), difference=Labelled(apart[:, some], axes, coords),
        moved=Labelled(right.new_tensor(list(moved.values())), ("exchanged",), coords),
        read_share=share,
    )  # fmt: skip


def notes_on(found: Interchanged) -> tuple[Note, ...]:
    """Return why an exchange shows no variable, as notes that deny; none if it does."""
    names = list(map(str, found.right.labels("exchanged")))
    which = SUBSPACE if SUBSPACE in names else WHOLE
    shares = dict(zip(names, found.accuracy.values.tolist()))
    low = float(found.bounds.values[0, names.index(which)])
    others = [name for name in (NOTHING, RANDOM) if name in names and low <= shares[name]]
    if others:
        seen = sentence(
            "{n} pairs: the counterfactual answer comes in {share} with the {which} exchanged, in {other} with {what}.",
            n=found.right.size("batch"), share=f"{shares[which]:.0%}", which=which, other=f"{shares[others[0]]:.0%}",
            what=others[0],
        )  # fmt: skip
        return (
            Note(
                seen,
                sentence("That the variable lies there cannot be told from that it does not."),
                sentence("Try another place, or give more pairs."),
                denies=True,
            ),
        )
    return _illusion_notes(found, names)


def _illusion_notes(found: Interchanged, names: Sequence[str]) -> tuple[Note, ...]:
    if not found.illusion > _ILLUSORY:
        return ()
    effect = dict(zip(names, found.effect.values.tolist()))
    seen = sentence(
        "The subspace moves the answer by {both} logits, its part that is read by {read} alone, and its part that is "
        "not read by {unread} alone.",
        both=f"{effect[SUBSPACE]:+.2f}", read=f"{effect[READ]:+.2f}", unread=f"{effect[UNREAD]:+.2f}",
    )  # fmt: skip
    return (
        Note(
            seen,
            sentence(
                "It is an illusion: directions that nothing reads push others, which differ little from prompt to "
                "prompt; no run of the model does that by itself."
            ),
            sentence("Look at another site, or ask about fewer directions."),
            denies=True,
        ),
    )
