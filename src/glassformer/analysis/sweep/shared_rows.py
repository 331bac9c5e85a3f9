"""Rows of a sweep shared among ranks: which each runs, and how all come to have what all found.

    a rank runs the units whose middle lies in [rank / ranks, (rank + 1) / ranks) of what all cost, in their order

A unit is what runs together: rows that read each other, or a single one. Neighbours in the order start at one position,
so that ranks seldom repeat what goes before. Who has more rows than others has cheaper ones, and a rank may have none.
What was found is gathered as it is: all ranks have the same numbers, to the last bit.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.sweep._closeness import difference, rounding
from glassformer.analysis.sweep._resolve import said
from glassformer.analysis.sweep.metrics import Metric
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import ModuleLike
from glassformer.models.row_ranks import ONE_RANK, RowRanks, row_ranks
from glassformer.trace import Edit, Site


def sharing(model: ModuleLike, grad: bool) -> RowRanks:
    """The ranks that share a sweep: those that are here, or this process alone.

    Args:
        model: What is run.
        grad: The sweep keeps its graph, which does not reach into another process.

    Raises:
        AnalysisUnavailable: Ranks hold parts of the model, so that all of them take part in every pass.
    """
    ranks = ONE_RANK if grad else row_ranks()
    if ranks.size > 1 and any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise AnalysisUnavailable(
            "sweep: ranks hold parts of this model, and run each pass together, so none can run rows of its own.\n"
            "    Give every rank the whole model, or ask outside of the block in which rows are shared."
        )
    return ranks


class SharedRows:
    """The rows of one sweep, as one of the ranks that share them sees them.

    Args:
        ranks: Who shares.
        units: Rows that run together, those first that neighbours share most with.
        costs: What each unit costs, in any one measure.
    """

    def __init__(self, ranks: RowRanks, units: Sequence[Sequence[int]], costs: Sequence[int]) -> None:
        self.ranks = ranks
        self.owners = owners(costs, ranks.size)
        self.rows = [row for unit in units for row in unit]
        self.counts = [
            sum(len(unit) for unit, owner in zip(units, self.owners, strict=True) if owner == rank)
            for rank in range(ranks.size)
        ]

    @property
    def start(self) -> int:
        """Where this rank's rows begin among all, in the order of units."""
        return sum(self.counts[: self.ranks.rank])

    @property
    def own(self) -> list[int]:
        """The rows that this rank runs, in the order of units."""
        return self.rows[self.start : self.start + self.counts[self.ranks.rank]]

    def owns(self, unit: int) -> bool:
        """Whether this rank runs a unit, by its number."""
        return self.owners[unit] == self.ranks.rank

    def reached(self, done: int) -> int:
        """How many of all rows are done if others have come as far as this rank, which has done so many of its own."""
        return done * len(self.rows) // len(self.own)

    def gathered(self, values: Float[Tensor, "metric own batch *axes"]) -> Float[Tensor, "metric row batch *axes"]:
        """Return the values of all rows, in the order of units, given those of this rank's own."""
        most = max(self.counts)
        if self.ranks.size == 1 or not most:
            return values
        message = values.new_zeros(most, len(values), *values.shape[2:])
        message[: values.shape[1]] = values.transpose(0, 1)
        found = zip(self.ranks.gather(message), self.counts, strict=True)
        return torch.cat([of_rank[:n] for of_rank, n in found]).transpose(0, 1)

    def totals(self, *numbers: int) -> list[int]:
        """Return sums over ranks of numbers that each has; none returns before all have asked."""
        return torch.stack(self.ranks.gather(torch.tensor(numbers))).sum(0).tolist()


def owners(costs: Sequence[int], ranks: int) -> list[int]:
    """The rank of each unit, never falling: that in whose share of all costs the unit's middle lies."""
    total, before, found = sum(costs), 0, list[int]()
    for cost in costs:
        found.append((2 * before + cost) * ranks // (2 * total))
        before += cost
    return found


def agreed(
    ranks: RowRanks,
    rows: Sequence[Sequence[tuple[Site, Edit]]],
    metrics: Mapping[str, Metric],
    base: Float[Tensor, "metric batch *axes"],
) -> Float[Tensor, "metric batch *axes"]:
    """Return the first rank's numbers of the base run, which then are everybody's.

    Args:
        ranks: Who shares the sweep.
        rows: Edits of every row of the plan.
        metrics: What is measured.
        base: This rank's numbers of it without any row's edits.

    Raises:
        ConfigError: A rank has another plan, other metrics, or a base with other numbers.
    """
    if ranks.size == 1:
        return base
    about = [said(rows), *metrics, str(base.shape), str(base.dtype)]
    require_same(ranks, lambda: "\n".join(about).encode(), "another plan, or other metrics or prompts,")
    # threads may put sums in another order, and another model's numbers lie further apart
    bases = ranks.gather(base)
    alike = [not difference(one, bases[0]) > rounding(base) for one in bases]
    _require(alike, "other numbers of the base run (of another model or text)")
    return bases[0]


def require_same(ranks: RowRanks, told: Callable[[], bytes], what: str) -> None:
    """Raise `ConfigError` unless all ranks tell the same.

    Args:
        ranks: Who shares rows.
        told: Gives what this rank asks.
        what: What others have then, for the error.
    """
    if ranks.size > 1:
        digest = int.from_bytes(hashlib.sha256(told()).digest()[:8], "big", signed=True)
        asked = ranks.gather(torch.tensor([digest]))
        _require([torch.equal(one, asked[0]) for one in asked], what)


def _require(alike: Sequence[bool], what: str) -> None:
    others = [str(rank) for rank, same in enumerate(alike) if not same]
    if others:
        raise ConfigError(
            f"rank {', '.join(others)} has {what} than rank 0, and ranks share the rows of one sweep.\n"
            "    Let every rank ask the same of the same model; what is drawn at random takes a seed."
        )
