"""Where an interchange takes place: a part of a site, what lies there in both prompts, and edits that exchange it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.contrasts import PromptPairs, Prompts, aligned, contrast
from glassformer.analysis.sweep.plan import Donor
from glassformer.data import Contrast
from glassformer.data.pairs import Counterfactuals
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, UnknownSite
from glassformer.labelled import Labelled
from glassformer.models import ModuleLike
from glassformer.numerics import decompositions
from glassformer.numerics.indices import entries
from glassformer.numerics.precision import wide
from glassformer.trace import At, Foreign, Interchange, Set, Site, SiteTable

_ROUNDING = 1e-3  # of a direction of length one: what is shorter is none


@dataclass(frozen=True, eq=False)
class SwappedPlace:
    """A part of a site in base prompts, which takes values from source prompts.

    Args:
        model: Whose site it is.
        asked: The prompts, source as clean and base as corrupt, and their answers.
        base: What the base run reads,
        source: and the source run.
        donor: The source run, of which values are taken.
        site: The site.
        at: The part, whole along the last axis.
        coordinates: Entries of the last axis that were asked for; none for all.
        before: What lies there in the base run,
        after: and in the source run.
    """

    model: ModuleLike
    asked: Contrast
    base: Prompts
    source: Prompts
    donor: Donor
    site: Site
    at: At
    coordinates: tuple[int, ...]
    before: Float[Tensor, "*part width"]
    after: Float[Tensor, "*part width"]

    @property
    def width(self) -> int:
        return self.before.shape[-1]

    @property
    def axis(self) -> str:
        """Name of the last axis, along which directions lie."""
        return self.site.axes[-1]

    def whole(self) -> Set:
        """The edit that takes all that lies there."""
        return Set(self.site.name, self.donor, at=self.at)

    def along(self, directions: Float[Tensor, "direction width"]) -> Interchange:
        """The edit that takes what lies along some directions."""
        return Interchange(self.site.name, self.donor, directions, at=self.at)

    def moved(self, basis: Float[Tensor, "direction width"] | None = None) -> float:
        """Mean square of what is exchanged, as a share of all that the two runs differ by there."""
        apart = wide(self.after - self.before).flatten(0, -2)
        along = apart if basis is None else apart @ basis.mT.to(apart)
        return float(along.square().sum() / apart.square().sum())

    def chosen(self, directions: Tensor | Labelled | None) -> Float[Tensor, "direction width"] | None:
        """An orthonormal basis of the subspace that is asked about; None for the whole part.

        Raises:
            ShapeMismatch: Directions are not of the site's last axis, span nothing, or come beside coordinates.
        """
        if directions is None:
            return self.unit_rows(self.coordinates) if self.coordinates else None
        rows = torch.atleast_2d(directions.values if isinstance(directions, Labelled) else directions)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            shape = "x".join(map(str, rows.shape))
            raise ShapeMismatch(f'directions are {shape}; "{self.axis}" of "{self.site.name}" has {self.width}.')
        if self.coordinates:
            raise ShapeMismatch(f"directions are of all of {self.axis}; leave it out of at=, or leave directions out.")
        found = orthonormal(wide(rows.detach().to(self.before.device)))
        if not len(found):
            raise ShapeMismatch("directions are zero, and span nothing; give one that is not.")
        return found

    def at_random(self, dimensions: int, draws: int, seed: int) -> list[Float[Tensor, "direction width"]]:
        """Subspaces of as many dimensions; where coordinates are asked about, others, as far as there are any."""
        generator = torch.Generator().manual_seed(seed)
        if not self.coordinates:
            drawn = torch.randn(draws, dimensions, self.width, generator=generator, dtype=torch.float64)
            return [orthonormal(wide(rows.to(self.before))) for rows in drawn]
        others = torch.tensor([i for i in range(self.width) if i not in self.coordinates] or range(self.width))
        orders = [torch.randperm(len(others), generator=generator)[:dimensions] for _ in range(draws)]
        return [self.unit_rows(others[order].tolist()) for order in orders]

    def unit_rows(self, coordinates: Sequence[int]) -> Float[Tensor, "direction width"]:
        rows = wide(self.before).new_zeros(len(coordinates), self.width)
        rows[range(len(coordinates)), list(coordinates)] = 1
        return rows


def swapped_place(
    model: ModuleLike, pairs: PromptPairs | Counterfactuals, site: str, at: At, name: str
) -> SwappedPlace:
    """Return a part of a site with what lies there in base and source prompts.

    Raises:
        DataError: There are no pairs.
        AnalysisUnavailable: They lack an answer, or the answers are the same in all.
        ShapeMismatch: Prompts do not align, or the part is not there.
        UnknownSite: There is no such site, or several.
    """
    asked = pairs.contrast() if isinstance(pairs, Counterfactuals) else contrast(model, pairs, name)
    if asked.answer is None or asked.wrong is None:
        raise AnalysisUnavailable(
            f"{name} compares the answer that an exchanged value must give with the base prompt's own: give both, "
            "Counterfactuals(base, source, answer=…, before=…), or a Contrast with answer= and wrong=."
        )
    source, base = aligned(model, asked, name)
    view: Any = model if hasattr(model, "sites") else Foreign(model)
    table: SiteTable = view.sites()
    located = table.locate(site, at)
    if len(located) != 1 or not located[0].site.axes:
        found = f"{len(located)} sites" if located else "none"
        said = found if len(located) != 1 else "a site without named axes"
        raise UnknownSite(
            f'{name} exchanges values at one site with named axes; "{site}" is {said}. Sites: model.sites().'
        )
    place, part = located[0].site, located[0].at
    part.check(place)
    axis = place.axes[-1]
    within = At(**{one: where for one, where in part.where.items() if one != axis})
    runs = [run(model, side.inputs, side.target, read=[place.name]) for side in (base, source)]
    before, after = (within.borrow(one, place) for one in runs)
    # columns of a batch are what positions are counted by; else each row counts its own
    known = runs[1][place.name]
    donor = Donor(source.inputs, source.target, found={place.name: known.values if source.given.in_columns else known})
    where = part.where.get(axis)
    coordinates = () if where is None else tuple(entries(where, before.shape[-1], f"{name}: at: {axis}"))
    return SwappedPlace(
        model=model, asked=asked, base=base, source=source, donor=donor, site=place, at=within,
        coordinates=coordinates, before=before, after=after,
    )  # fmt: skip


def orthonormal(rows: Float[Tensor, "n width"], longest: float | None = None) -> Float[Tensor, "direction width"]:
    """Return an orthonormal basis of what rows span, without what is shorter than a thousandth of the longest.

    Args:
        rows: They need not be independent.
        longest: Length that is meant, if not that of the longest there is.
    """
    if not len(rows):
        return rows
    _, size, basis = decompositions.svd(rows)
    return basis[(size > _ROUNDING * (size[0] if longest is None else longest)) & (size > 0)]
