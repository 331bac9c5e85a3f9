"""Sites that are parts of another site: a value told as several, which are read and edited like any other.

    split = with_splits(model, {"blocks.2.resid_post": dictionary})
    gf.run(split, text, read=["blocks.2.resid_post.features"], edit=[gf.Scale("blocks.2.resid_post.error", 0.0)])

As a pass comes by the whole, its own edits come first; the parts are made of what they leave, visited one by one, and
what edits change of them goes back into the whole, which is read last. Nothing is made while no one asks for a part; a
pass that only reads parts goes on with the value it came with. No forward pass knows of it: it is the tape that
splits, so it holds of any module and of whatever sends tapes through one.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownMemberType=false

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from glassformer.errors import AnalysisUnavailable, UnknownSite
from glassformer.trace.sites import Site

M = TypeVar("M", bound=nn.Module)
# the child of a model that holds its splits
SPLITS = "splits"


@runtime_checkable
class Split(Protocol):
    """What tells a site's value as several: a module, of a dictionary of features for one."""

    def part_axes(self, whole: Site) -> Mapping[str, "PartAxes"]:
        """Axes of each part, by what it is called behind the whole's name; raises a typed error if it fits no such."""
        ...

    def parts(self, value: Tensor, whole: Site) -> Mapping[str, Tensor]:
        """The parts of a value, by name, each made of the value and of no other part's tensor."""
        ...

    def changed(self, value: Tensor, whole: Site, changes: Mapping[str, Tensor]) -> Tensor:
        """The value after parts were changed by so much: that of the pass, plus what it comes to in the whole."""
        ...


@dataclass(frozen=True)
class PartAxes:
    """Axes of one part.

    Args:
        axes: Their names, in order.
        sizes: Lengths of those that are fixed.
    """

    axes: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])


class Splits(nn.Module):
    """The splits of a model, by the site each is of; a model that is saved leaves them out.

    Args:
        by_site: Modules that meet `Split`.
        model: What was split, as it was given.
    """

    def __init__(self, by_site: Mapping[str, Any], model: nn.Module) -> None:
        super().__init__()
        self.names = tuple(by_site)
        # in a tuple: as a child it would hold the parts of the model a second time
        self.split = (model,)
        self.of = nn.ModuleList(by_site.values())

    def by_site(self) -> dict[str, Any]:
        return dict(zip(self.names, self.of))

    def state_dict(self, *args: Any, destination: Any = None, **kwargs: Any) -> Any:
        # a model's folder holds what its config builds
        return {} if destination is None else destination


def with_splits(model: M, by_site: Mapping[str, nn.Module]) -> M:
    """The same model with more sites; it shares every module with the one given, which stays without them.

    Args:
        model: A model of ours, or a module seen through a spec.
        by_site: What splits a site, by its full name; they join the splits that the model has.

    Raises:
        UnknownSite: The model has no such site.
        AnalysisUnavailable: A site is split already, or is a part itself.
        ShapeMismatch: A split does not fit its site.
    """
    found: Any = model
    table: Mapping[str, Site] = found.sites()
    for name, split in by_site.items():
        if name not in table:
            # raises, with the nearest name
            found.sites(name)
            raise UnknownSite(f'"{name}" stands for several sites, and a split is of one; give its full name.')
        if table[name].whole or any(site.whole == name for site in table.values()):
            what = f'a part of "{table[name].whole}"' if table[name].whole else "split already"
            raise AnalysisUnavailable(
                f'"{name}" is {what}.\n    Split the model without splits: glassformer.trace.without_splits(model).'
            )
        sites_of_parts(split, table[name])
    return _with_parts(model, {**_parts(model), SPLITS: Splits({**splits_of(model), **by_site}, unsplit(model))})


def without_splits(model: M) -> M:
    """The same model with its own sites alone."""
    if SPLITS not in _parts(model):
        return model
    return _with_parts(model, {name: part for name, part in _parts(model).items() if name != SPLITS})


def unsplit(model: nn.Module) -> nn.Module:
    """The very model that splits were added to, whose digest and name are known; a model without is its own."""
    held = _parts(model).get(SPLITS)
    return held.split[0] if isinstance(held, Splits) else model


def splits_of(model: nn.Module) -> dict[str, Any]:
    """What splits sites of a model, by their names; nothing for most."""
    held = _parts(model).get(SPLITS)
    return held.by_site() if isinstance(held, Splits) else {}


def _parts(model: nn.Module) -> dict[str, nn.Module | None]:
    return model.__dict__["_modules"]


def _with_parts(model: M, parts: dict[str, nn.Module | None]) -> M:
    """Return a copy of a model that has other parts, and shares its own."""
    made = copy.copy(model)
    made.__dict__["_modules"] = parts
    return made


def sites_of_parts(split: Any, whole: Site) -> list[Site]:
    """The sites of the parts of a site, in the order they are visited."""
    found: list[Site] = []
    for name, part in split.part_axes(whole).items():
        found.append(
            Site(
                f"{whole.name}.{name}", part.axes, part.sizes, whole.layer, lazy=True, read_only=whole.read_only,
                stack=whole.stack, part=whole.part, quantity=f"{whole.quantity}.{name}", crosses=whole.crosses,
                whole=whole.name,
            )
        )  # fmt: skip
    return found


def split_table(table: Mapping[str, Site], splits: Mapping[str, Any]) -> Iterable[Site]:
    """Yield the sites of a table, the parts of each that is split behind it."""
    for name, site in table.items():
        yield site
        if name in splits:
            yield from sites_of_parts(splits[name], site)
