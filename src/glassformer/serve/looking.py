"""What heads look at in a run, stage by stage: products, scores, weights, weighted values; masked cells have no number.

products          query . key                                        before scale, positions and mask
scores            what is normalised
weights           the pattern
value_weighted    size of pattern * value                               how large a vector comes from each key
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from glassformer.analysis import Run
from glassformer.analysis.components import require_pattern
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.serve.runs import ServedRun
from glassformer.trace import Site, sites_of_heads

Places = slice | list[int]
Stage = Literal["products", "scores", "weights", "value_weighted"]
STAGES: tuple[Stage, ...] = ("products", "scores", "weights", "value_weighted")
_MADE_OF: dict[Stage, tuple[str, ...]] = {
    "products": ("query", "key"),
    "scores": ("scores",),
    "weights": ("pattern",),
    "value_weighted": ("pattern", "value"),
}


@dataclass(frozen=True, eq=False)
class Looking:
    """One head of a run, or all heads of a layer.

    Args:
        run: The run.
        of: Label of the head, or path of the layer.

    Raises:
        UnknownSite: There is no such head; the message names the nearest.
    """

    run: ServedRun
    of: str

    def __post_init__(self) -> None:
        _ = self.site

    @cached_property
    def site(self) -> Site:
        """The site of its mixed values."""
        return sites_of_heads(self.run.model.sites(), self.of)["z"]

    @property
    def part(self) -> AttentionLayer:
        """The attention layer."""
        found = self.run.model.sub_layer(self.site.path).attention
        assert found is not None, "what has mixed values attends"
        return found

    def sites(self, stage: Stage) -> list[str]:
        """Return the sites that a stage is made of; raises `AnalysisUnavailable` where the mechanism has no such.

        A head with several values has a pattern for each: stages have an axis of them, `value_stream`.
        """
        traits, kind = self.part.traits, self.part.config.mixer.kind
        if stage in ("weights", "value_weighted") and not traits.shows_patterns:
            require_pattern(self.part, f"the pattern of {self.of}")
        if stage == "scores" and not traits.has_scores:
            raise AnalysisUnavailable(f'{self.of}: "{kind}" makes its pattern without scores. Look at its weights.')
        if stage == "products" and not traits.bilinear_raw_scores:
            raise AnalysisUnavailable(
                f'{self.of}: scores of "{kind}" are no products of queries and keys. Look at its scores or weights.'
            )
        return [f"{self.of}.{name}" for name in _MADE_OF[stage]]

    @cached_property
    def _every_site(self) -> list[str]:
        """What all stages are made of: one pass through the layer gives them together, for little more than one."""
        found = list[str]()
        for stage in STAGES:
            with contextlib.suppress(AnalysisUnavailable):
                found += self.sites(stage)
        return list(dict.fromkeys(found))

    def code(self, stage: Stage) -> str:
        """Return the expression that a stage is of a run."""
        query, key, value, pattern = (f'run["{self.of}.{name}"]' for name in ("query", "key", "value", "pattern"))
        return {
            "products": f'gf.Labelled({query}.values @ {key}.values.mT, (*{query}.axes[:-2], "query", "key"))',
            "scores": f'run["{self.of}.scores"]',
            "weights": pattern,
            "value_weighted": f"gf.Labelled({pattern}.values.abs() * {value}.values.norm(dim=-1)[..., None, :], "
            f"{pattern}.axes)",
        }[stage] + ".select(batch=0)"

    def stage(self, stage: Stage, **part: Places) -> Labelled:
        """Return a stage, or the part of it that is asked for along `query` and `key`; NaN where the mask hides."""
        names = self.sites(stage)
        masks = [f"{self.of}.scores"] if stage != "products" and self.part.traits.has_scores else []
        run = self.run.read(self._every_site)
        if stage == "products":
            query, key = (run[name] for name in names)
            keys = key.axes[-2]
            query, key = (
                _part(value, {own: part[axis]} if axis in part else {})
                for value, own, axis in ((query, "pos", "query"), (key, keys, "key"))
            )
            coords = {"query": query.labels("pos"), "key": key.labels(keys)}
            return Labelled(query.values @ key.values.mT, (*query.axes[:-2], "query", "key"), coords)
        value = _part(run[names[0]], part)
        if stage == "value_weighted":
            size = _part(run[names[1]], {axis: where for axis, where in part.items() if axis == "key"})
            value = dataclasses.replace(value, values=value.values.abs() * size.values.norm(dim=-1)[..., None, :])
        hidden = self._hidden(run, masks, part, value)
        return (
            value if hidden is None else dataclasses.replace(value, values=value.values.masked_fill(hidden, torch.nan))
        )

    def _hidden(self, run: Run, masks: list[str], part: Mapping[str, Places], value: Labelled) -> Tensor | None:
        """Return which pairs the mask hides: those without a score, or behind the query; None where nobody says."""
        if masks:
            scores = _part(run[masks[0]], part)
            seen = scores.values.isfinite()
            for axis in [axis for axis in scores.axes if axis not in value.axes]:
                seen = seen.any(scores.axes.index(axis))
            whole = value.values.shape
            # what hides a pair hides it for all values of a head
            return ~seen.expand(whole) if whole[-seen.ndim :] == seen.shape else None
        whole = run[f"{self.of}.pattern"]
        rows, keys = whole.size("query"), whole.size("key")
        if rows != keys or self.part.config.cross or self.run.model.reads_ahead(self.site.stack or None):
            return None
        places = torch.arange(rows, device=value.values.device)
        every = slice(None)
        return places[part.get("key", every)] > places[part.get("query", every)][:, None]


def _part(value: Labelled, part: Mapping[str, Places]) -> Labelled:
    return value.select(batch=0, **part)
