"""Named sites and the tape: how a forward pass is recorded and edited.

    value = site(tape, "blocks.3.attn.query", value)      # in a forward pass; the identity unless a tape cares
    if wants(tape, "blocks.3.attn.pattern"): ...          # ask before building something expensive

A tape serves one forward pass. Edits at a site run first, in the order given; what is read is what downstream code
sees. What an edit reads of earlier sites is held until the pass is over.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from glassformer.arguments import checked
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, SiteNotRead, UnknownAxis, UnknownSite, nearest
from glassformer.labelled import Labelled
from glassformer.trace.edits import Apply, At, Edit, Set
from glassformer.trace.heads import HeadAddress, Located
from glassformer.trace.shares import Shares
from glassformer.trace.sites import Site, by_short_name, of_stack, short_names
from glassformer.trace.splits import Split, split_table


class SiteTable(dict[str, Site]):
    """Sites by name, in the order the forward pass visits them; a table does not change once it is made.

    Args:
        sites: Those of the forward pass.
        splits: What tells the value of a site as parts, by the site's name; their sites come behind it.
        shares: What makes whole values of those that a process has a part of; None where it has all.
        absent: Why there is no site of a name, for names that parts of the same kind have.
    """

    def __init__(
        self,
        sites: Mapping[str, Site] | None = None,
        splits: Mapping[str, Any] | None = None,
        shares: Shares | None = None,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sites or {} if not splits else {one.name: one for one in split_table(sites or {}, splits)})
        self.splits: Mapping[str, Any] = splits or {}
        self.shares = shares
        self.absent: Mapping[str, str] = absent or {}
        self.parts = {name: [one.name for one in self.values() if one.whole == name] for name in self.splits}
        # every tape of a model asks for much the same
        self._matched: dict[str, list[str]] = {}

    def match(self, glob: str) -> list[str]:
        """The names of the sites that are asked for, in order.

        Args:
            glob: A name; a glob, `blocks.*.z`; a short name, of all layers that have it, `pattern` or `attn.out`; or a
                head's label and a quantity, `L1H6.pattern`, `L1H6.*`.

        Raises:
            UnknownSite: There are none, or a short name is that of several sites of a layer.
        """
        if glob in self:
            return [glob]
        if (head := HeadAddress.parse(glob)) is not None:
            return [found.site.name for found in self._of_head(head, At())]
        if glob not in self._matched:
            named = fnmatch.filter(self, glob)
            self._matched[glob] = named or [site.name for site in by_short_name(self, glob).values()]
        names = self._matched[glob]
        if not names:
            family = ".".join(glob.split(".")[:2]) + ".*" if "." in glob else "*"
            hint = f'\n    List them with model.sites("{family}").' if fnmatch.filter(self, family) else ""
            told = self._why_absent(glob) or f".{nearest(glob, [*self, *short_names(self)])}{hint}"
            raise UnknownSite(f'no site "{glob}" in this model{told}')
        return list(names)

    def in_layers(self, short: str) -> dict[int, Site]:
        """The sites of blocks that go by a short name, by layer; raises `UnknownSite` if there are none."""
        found = by_short_name(self, short)
        if not found:
            words, inside = of_stack(self, short)
            known = ", ".join(dict.fromkeys(site.behind_block for site in inside))
            nowhere = "Sites of this model lie in no blocks that we know; they go by their whole names."
            there = f"What stands behind blocks.0. in the name of a site: {known}." if known else nowhere
            told = self._why_absent(short) or f".{nearest(words, short_names(self, short))}\n    {there}"
            raise UnknownSite(f'no site "{short}" in any layer{told}')
        return found

    def locate(self, name: str, at: At | None = None) -> list[Located]:
        """The sites and parts that a name, a glob, a short name, or a head's label and a quantity stand for.

        Raises:
            UnknownSite: There is none.
            UnknownAxis: A head is asked for twice, by its label and by `at`.
        """
        at = At() if at is None else at
        if name not in self and (head := HeadAddress.parse(name)) is not None:
            return self._of_head(head, at)
        return [Located(found, self[found], at) for found in self.match(name)]

    def place(self, edit: "EditLike") -> list[tuple[Site, Edit]]:
        """An edit once per site it is of, addressed by the site's name and a part; raises as `locate`."""
        edit = _edit(edit)
        edit.require_entries()
        found: list[tuple[Site, Edit]] = []
        for name, site, at, of in self.locate(edit.site, edit.at):
            placed = edit.lent_by(name, site) if of else edit
            found.append((site, dataclasses.replace(placed, site=site.name, at=at)))
        return found

    def _of_head(self, head: HeadAddress, at: At) -> list[Located]:
        try:
            return head.locate(self, at)
        except UnknownSite as error:
            whole = f"blocks.{head.layer}.{head.part}.{head.quantity}"
            told = self._why_absent(f"{head.stack}.{whole}" if head.stack else whole)
            if not told:
                raise
            raise UnknownSite(f'no site "{head.label}.{head.quantity}" in this model{told}') from error

    def _why_absent(self, asked: str) -> str:
        """Why no site goes by a name, a glob or a short name, behind a colon; empty where that is not known."""
        names = (name for name in self.absent if fnmatch.fnmatchcase(name, asked) or name.endswith(f".{asked}"))
        first = next(names, None)
        return "" if first is None else f": {self.absent[first]}"


@runtime_checkable
class HasSites(Protocol):
    def sites(self, glob: str = "*") -> SiteTable: ...


@dataclass(frozen=True)
class Read:
    """Record a site, or a part of it.

    Args:
        site: Name, glob, short name (`pattern`, of all layers), or a head's label and a quantity.
        at: Part to keep; the whole by default.
        reduce: Function applied to the part before it is kept, for values too large to store.
    """

    site: str
    at: At = field(default_factory=At)
    reduce: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        # by hand: a tape makes one for each site it records
        site: Any = self.site
        at: Any = self.at
        if not isinstance(site, str):
            raise UnknownSite(f"Read: the first argument is the name of a site; found a {type(site).__name__}.")
        if not isinstance(at, At):
            raise UnknownAxis(f'Read of "{site}": at= takes a part, At(pos=-1); found a {type(at).__name__}.')
        if self.reduce is not None and not callable(self.reduce):
            raise ShapeMismatch(f'Read of "{site}": reduce= takes a function; found a {type(self.reduce).__name__}.')

    def keep(self, value: Tensor, site: Site, grad: bool) -> Tensor:
        if self.at:
            # a slice would keep the whole tensor alive
            value = self.at.take(value, site).clone()
        if self.reduce is not None:
            found: Any = self.reduce(value)
            if not isinstance(found, Tensor):
                raise ShapeMismatch(
                    f'Read of "{self.site}": reduce= takes a function that returns a tensor; this one returned a '
                    f"{type(found).__name__}."
                )
            value = found
        return value if grad else value.detach()


@dataclass(frozen=True)
class Request:
    """One read of a site, as a tape keeps it.

    Args:
        name: What its value is called.
        read: The site, its part, and what is made of it.
        asked: The name, glob or short name it came from.
        of: Label of the head it is of, if it was asked for by one.
    """

    name: str
    read: Read
    asked: str
    of: str = ""

    def described(self, extra: At) -> str:
        """A name that says which part it is, and by what function it is reduced."""
        reduce = self.read.reduce
        parts = [f"{axis}={where}" for axis, where in extra.where.items()]
        parts += [] if reduce is None else [getattr(reduce, "__name__", type(reduce).__name__)]
        return f"{self.name}[{' '.join(parts)}]" if parts else self.name


ReadLike = str | Read
EditLike = Edit | tuple[str, Callable[[Tensor], Tensor]]


class Tape:
    """Carries reads and edits through one forward pass.

    Args:
        model: Anything with a static site table.
        read: Site names, globs, short names (`pattern`, of all layers), heads (`L1H6.pattern`) or `Read` objects. What
            is asked for by a head is called by its label. Of several reads of one site all are kept: the whole under
            the site's name, parts under names that say which, `blocks.0.attn.z[pos=-1]`; a part that is the only one
            goes by the site's name.
        edit: Edits, or pairs (site, function).
        grad: Keep values attached to the graph, so that gradients at sites come from autograd.
        logits: Whether the caller wants the model's output too; if not, the stack stops after the deepest site needed.

    Raises:
        UnknownSite: A name that no site has, or a short one that several sites of a layer have.
        UnknownAxis: An edit or read addresses an axis its site does not have.
        AnalysisUnavailable: An edit at a site that can only be read, or one that reads a site the pass comes by later.
    """

    @checked
    def __init__(
        self,
        model: HasSites,
        read: Iterable[ReadLike] | str = (),
        edit: Iterable[EditLike] | EditLike | Mapping[str, Callable[[Tensor], Tensor]] = (),
        *,
        grad: bool = False,
        logits: bool = True,
    ) -> None:
        found: Any = model
        if not callable(getattr(found, "sites", None)):
            raise UnknownSite(
                f"a tape is of a model with a table of sites; found a {type(found).__name__}.\n"
                "    For any module: Foreign(module)."
            )
        self.table = model.sites()
        self.grad = grad
        self.logits = logits
        self.edits: dict[str, tuple[Edit, ...]] = {}
        self.values: dict[str, Tensor] = {}
        self.requests = self._requests([read] if isinstance(read, str | Read) else read)
        self.reads: dict[str, list[Request]] = {}
        for request in self.requests.values():
            self.reads.setdefault(request.read.site, []).append(request)
        # values that something later in the pass needs, besides what the caller reads
        self.held: dict[str, Tensor] = {}
        self._holds: set[str] = set()
        for asked in _edits(edit):
            for found, change in self.table.place(asked):
                change.check(found)
                if found.read_only:
                    raise AnalysisUnavailable(f'edit at "{found.name}": {found.read_only}')
                self._check_order(change, found.name)
                self.edits[found.name] = (*self.edits.get(found.name, ()), change)
        self.wanted = {*self.reads, *self.edits, *self._holds}
        self.wanted |= {self.table[name].whole for name in self.wanted if self.table[name].whole}

    def _requests(self, reads: Iterable[ReadLike]) -> dict[str, Request]:
        """Return what is read, by what it is called: a whole site by its name, several parts by what they are."""
        parts: dict[str, list[tuple[Request, At]]] = {}
        for asked in reads:
            asked = Read(asked) if isinstance(asked, str) else asked
            for name, found, at, of in self.table.locate(asked.site, asked.at):
                at.check(found)
                request = Request(name, Read(found.name, at, asked.reduce), asked.site, of)
                same = parts.setdefault(name, [])
                if all(request.read != other.read for other, _ in same):
                    same.append((request, asked.at))
        requests: dict[str, Request] = {}
        for same in parts.values():
            for request, extra in same:
                name = request.name if len(same) == 1 else request.described(extra)
                if name in requests:
                    name = f"{name} ({2 + sum(other.startswith(f'{name} (') for other in requests)})"
                requests[name] = request if name == request.name else dataclasses.replace(request, name=name)
        return requests

    def wants(self, name: str) -> bool:
        return name in self.wanted

    def hold(self, name: str) -> None:
        """Keep a site's value in `held` as the pass comes by."""
        self._holds.add(name)
        self.wanted.add(name)

    def differentiates(self, name: str) -> bool:
        """Whether a site or a part of it is read with its gradient."""
        return self.grad and any(one in self.reads for one in (name, *self.table.parts.get(name, ())))

    def edited(self, name: str) -> bool:
        """Whether an edit is of a site, or of a part of it."""
        return any(one in self.edits for one in (name, *self.table.parts.get(name, ())))

    def replaces(self, name: str) -> bool:
        """Whether the first edit at a site puts another value in place of all of it."""
        return name in self.edits and isinstance(self.edits[name][0], Set) and not self.edits[name][0].at

    def entries(self, name: str, axis: str) -> list[int]:
        """Entries of an axis of fixed length that the edits at a site may change, in order."""
        size = self.table[name].sizes[axis]
        return sorted({entry for edit in self.edits.get(name, ()) for entry in edit.entries(axis, size)})

    def visit(self, name: str, value: Tensor) -> Tensor:
        if self.table.shares is None or not self.wants(name):
            return self._visited(name, value)
        return self.table.shares.visited(value, self.table[name], partial(self._visited, name))

    def _visited(self, name: str, value: Tensor) -> Tensor:
        for edit in self.edits.get(name, ()):
            value = (
                edit(value, self.table[name], self._earlier(edit, name))
                if edit.reads
                else edit(value, self.table[name])
            )
        if name in self.table.splits:
            value = self._split(name, value, self.table.splits[name])
        if name in self.reads:
            if self.grad:
                # a node of its own: where a norm is the identity two sites are one tensor, but not one gradient
                value = value.view_as(value) if value.requires_grad else _counted_from_here(value)
            for request in self.reads[name]:
                self.values[request.name] = request.read.keep(value, self.table[name], self.grad)
        if name in self._holds:
            self.held[name] = value
        return value

    def _split(self, name: str, value: Tensor, split: Split) -> Tensor:
        """Visit the parts of a value, and return it as their edits leave it."""
        if self.wanted.isdisjoint(self.table.parts[name]):
            return value
        whole, changes = self.table[name], dict[str, Tensor]()
        if name in self._holds:
            # edits of parts may read the whole as it came
            self.held[name] = value
        for quantity, part in split.parts(value, whole).items():
            seen = self.visit(f"{name}.{quantity}", part)
            if seen is not part:
                changes[quantity] = seen - part
        return split.changed(value, whole, changes) if changes else value

    def refuse_state(self) -> None:
        """Raise `AnalysisUnavailable` if an edit reads earlier sites: a carried state has other positions there."""
        reading = next((name for name, edits in self.edits.items() if any(edit.reads for edit in edits)), None)
        if reading is not None:
            raise AnalysisUnavailable(
                f'edit at "{reading}" reads earlier sites, and the pass continues from a carried state: what it reads '
                "would lack the positions before this pass.\n    Run the whole text in one pass, without a state."
            )

    def _earlier(self, edit: Edit, name: str) -> dict[str, Tensor]:
        missing = [read for read in edit.reads if read not in self.held]
        if missing:
            raise SiteNotRead(
                f'edit at "{name}" reads {_quoted(missing)}, which this pass has not come by: it began behind there, '
                "or the module runs in another order.\n    Run the model from the beginning."
            )
        return {read: self.held[read] for read in edit.reads}

    def _check_order(self, edit: Edit, name: str) -> None:
        """Check that what an edit reads comes before it, and let it be held."""
        if not edit.reads:
            return
        order = {site: place for place, site in enumerate(self.table)}
        for read in edit.reads:
            if read not in order:
                # raises, with the nearest name
                self.table.match(read)
                raise UnknownSite(f'edit at "{name}" reads "{read}"; name one site there, no glob.')
            if order[read] >= order[name]:
                raise AnalysisUnavailable(
                    f'edit at "{name}" reads "{read}", which the pass comes by later.\n'
                    "    Read an earlier site, or edit at a later one."
                )
            self._holds.add(read)

    @property
    def last(self) -> str | None:
        """Name of the deepest site that is read or edited, in the order of the forward pass; of a part, the whole."""
        return next((self.table[name].whole or name for name in reversed(self.table) if self.wants(name)), None)

    def check_visited(self) -> None:
        """Raise `SiteNotRead` if a site was asked for and the forward pass never came by.

        A glob over a model we did not write may cover modules that this pass does not run; those are left out, as long
        as it reached one.
        """
        missing = {name: request for name, request in self.requests.items() if name not in self.values}
        reached = {request.asked for name, request in self.requests.items() if name in self.values}
        for name, request in list(missing.items()):
            site = request.read.site
            if request.asked != site and request.asked in reached and not self.table[site].axes:
                del missing[name]
        if missing:
            raise SiteNotRead(f"the forward pass did not reach {_quoted(missing)}.")

    def __getitem__(self, name: str) -> Labelled:
        if name in self.values:
            request = self.requests.get(name)
            return label(self.values[name], None if request is None else self.table[request.read.site], request)
        if HeadAddress.parse(name) is not None:
            for key, site, at, of in self.table.locate(name):
                # a head of a site that was read whole
                if key == name and site.name in self.values and self.requests[site.name].read == Read(site.name):
                    part = Request(name, Read(site.name, at), name, of)
                    return label(part.read.keep(self.values[site.name], site, self.grad), site, part)
        raise SiteNotRead(f'"{name}" was not read.{nearest(name, self.values)} Read: {_quoted(self.values)}.')

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)


def site(tape: Tape | None, name: str, value: Tensor) -> Tensor:
    """Say the name of a value; the identity unless the tape reads or edits it."""
    return value if tape is None or name not in tape.wanted else tape.visit(name, value)


def wants(tape: Tape | None, *names: str) -> bool:
    """Whether the tape reads or edits any of these sites: ask before building something expensive."""
    return tape is not None and not tape.wanted.isdisjoint(names)


def changes(tape: Tape | None, name: str) -> bool:
    """Whether the tape changes this site."""
    return tape is not None and tape.edited(name)


def label(value: Tensor, site: Site | None, request: Request | None = None) -> Labelled:
    """Attach axis names; a part or a reduced value keeps the names it still has."""
    axes: Sequence[str] = site.axes if site is not None else ()
    if request is not None and request.read.at:
        axes = request.read.at.remaining(axes)
    if len(axes) != value.ndim:
        axes = [f"axis{i}" for i in range(value.ndim)]
    return Labelled(value, tuple(axes), of="" if request is None else request.of)


def _counted_from_here(value: Tensor) -> Tensor:
    """Return a value that nothing has a derivative by (a choice made of numbers) as one that later values have."""
    return value.detach().requires_grad_() if torch.is_grad_enabled() and value.is_floating_point() else value


def _edit(asked: Any) -> Edit:
    """Return an edit, of a pair of a site and a function too."""
    if isinstance(asked, Edit):
        return asked
    if isinstance(asked, tuple | list) and len(asked) == 2 and isinstance(asked[0], str):
        return Apply(asked[0], asked[1])
    raise UnknownSite(
        f"an edit is Set, Add, Scale, Project, Take, Apply, or a pair of a site and a function; found {asked!r:.80}."
    )


def _edits(edit: Any) -> Iterable[EditLike]:
    """Return what was given as edits one by one: several, one alone, or functions by site."""
    if isinstance(edit, Mapping):
        return list(edit.items())
    if isinstance(edit, Edit) or not isinstance(edit, Iterable):
        return [_edit(edit)]
    return edit


def _quoted(names: Iterable[Any]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "nothing"
