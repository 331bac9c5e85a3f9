"""Sites: the named places of a forward pass, and how modules declare theirs.

Site.named("decoder.blocks.3.attn.query", ("batch", "head", "pos", "d_head"))      stack, layer, part, quantity
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

from glassformer.errors import UnknownSite


@dataclass(frozen=True)
class Site:
    """One named place in a forward pass.

    Args:
        name: Full name, `blocks.3.attn.query`.
        axes: Axis names in order; empty when they are only known at run time (models we did not write) or the value is
            a single number.
        sizes: Lengths of the axes that the config fixes (`head`, `d_head`, …).
        layer: Index of the block the site lies in; None outside the blocks.
        lazy: Computed only when asked for; asking may change the route, never the result.
        read_only: Why the value cannot be edited there; empty where it can.
        stack: Stack it lies in: `encoder`, `decoder`, or empty where a model has only one.
        part: What it belongs to: a sub-layer (`attn`, `cross`, `mlp`, `attn_1`), `embed`, `final`, `readout`; empty for
            the stream between sub-layers and for logits.
        quantity: What it is of that: `query`, `norm`, `out`, `resid_pre`, `logits`.
        crosses: Whether it belongs to cross-attention, whose keys and values are those of another stack.
        whole: Name of the site of whose value it is a part, where a model's sites are split (`with_splits`).
    """

    name: str
    axes: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    layer: int | None = None
    lazy: bool = False
    read_only: str = ""
    stack: str = ""
    part: str = ""
    quantity: str = ""
    crosses: bool = False
    whole: str = ""

    @classmethod
    def named(
        cls,
        name: str,
        axes: tuple[str, ...] = (),
        sizes: Mapping[str, int] = MappingProxyType({}),
        layer: int | None = None,
        **more: Any,
    ) -> "Site":
        """A site whose name says where it lies: the only place that takes names apart."""
        *path, quantity = name.split(".")
        inside = path.index("blocks") if "blocks" in path else None
        # before the blocks, or before the last word, stands the stack; behind the block's number the sub-layer
        stack = path[:inside] if inside is not None else path[:-1]
        part = path[inside + 2 :] if inside is not None else path[-1:]
        if layer is None and inside is not None and "".join(path[inside + 1 : inside + 2]).isdigit():
            layer = int(path[inside + 1])
        found = cls(name, axes, sizes, layer, stack=".".join(stack), part=".".join(part), quantity=quantity, **more)
        return replace(found, crosses=found.role == "cross")

    @property
    def path(self) -> str:
        """Name of the module it belongs to, `decoder.blocks.3.attn`: its own without the quantity."""
        return self.name.removesuffix(self.quantity).removesuffix(".")

    @property
    def behind_block(self) -> str:
        """What stands behind the block's number in its name: `attn.pattern`, `resid_post`."""
        return f"{self.part}.{self.quantity}".removeprefix(".")

    @property
    def role(self) -> str:
        """What its part does, whichever of its kind it is: `attn` for `attn_1`."""
        return role_of(self.part)

    def reads_source(self, axis: str) -> bool:
        """Whether a position axis counts tokens of the encoder, in a model that has one."""
        return self.stack == "encoder" or (axis == "key" and self.crosses)

    def shape(self) -> str:
        """The shape as text: fixed lengths as numbers, the others by axis name."""
        return " ".join(f"{axis}={self.sizes[axis]}" if axis in self.sizes else axis for axis in self.axes)


def role_of(part: str) -> str:
    """Role of a part of a block, by its name: the role it was named after, numbered from the second on."""
    return part.partition("_")[0]


def full_names(path: str, quantities: Iterable[str]) -> SimpleNamespace:
    """Build a module's site names once: `full_names("blocks.3.attn", SITES).query == "blocks.3.attn.query"`."""
    return SimpleNamespace(**{q: f"{path}.{q}" if path else q for q in quantities})


def declare(
    path: str,
    axes: Mapping[str, str],
    sizes: Mapping[str, int],
    *,
    layer: int | None = None,
    lazy: Sequence[str] = (),
) -> Iterator[Site]:
    """Yield the sites of one module from its `SITES` (quantity -> axes in words), in the order they are visited."""
    for quantity, words in axes.items():
        names = tuple(words.split())
        fixed = {axis: sizes[axis] for axis in names if axis in sizes}
        name = f"{path}.{quantity}" if path else quantity
        yield Site.named(name, names, fixed, layer, lazy=quantity in lazy)


def by_short_name(table: Mapping[str, Site], short: str) -> dict[int, Site]:
    """Return the sites of blocks that go by a short name, by layer: what stands behind `blocks.3.` in their own.

    `resid_post`, `attn.pattern`, or `pattern` where a block has no other; of the stack that ends in the logits, or
    `encoder.resid_post`. Nothing if no block has such a site.

    Raises:
        UnknownSite: A block has several.
    """
    words, inside = of_stack(table, short)
    chosen = [site for site in inside if site.behind_block == words] or [s for s in inside if s.quantity == words]
    found: dict[int, Site] = {}
    for site in chosen:
        assert site.layer is not None, "sites of blocks have a layer"
        if site.layer in found:
            several = (f'"{short.removesuffix(words)}{one.behind_block}"' for one in (found[site.layer], site))
            raise UnknownSite(f'"{short}" is the name of several sites of layer {site.layer}: {" or ".join(several)}.')
        found[site.layer] = site
    return found


def short_names(table: Mapping[str, Site], like: str = "") -> list[str]:
    """Return short names of sites of blocks, in the stack that ends in the logits, or that `like` begins with."""
    _, inside = of_stack(table, like)
    return list(dict.fromkeys(name for site in inside for name in (site.behind_block, site.quantity)))


def of_stack(table: Mapping[str, Site], short: str) -> tuple[str, list[Site]]:
    """Return a short name without the stack it may begin with, and the sites of that stack's blocks."""
    stacks = {site.stack for site in table.values()}
    first, _, rest = short.partition(".")
    stack, words = (first, rest) if first in stacks else ("decoder" if "decoder" in stacks else "", short)
    return words, [site for site in table.values() if site.stack == stack and site.layer is not None]
