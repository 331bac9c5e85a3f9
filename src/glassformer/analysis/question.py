"""What an analysis answers, what it reads and what it assumes: its card.

    @question("What would the model say if it stopped here?", reads=_sites)
    def logit_lens(run, text=None, target=None, *, answer=None, position=-1, row=0): ...

    logit_lens(run), logit_lens(model, "the cat sat on the")      # of a run, or of a model and what it reads
    gf.run(model, text, read=[logit_lens, "L1H6.pattern"])        # an analysis stands for what it reads
    card_of(logit_lens).reads(model)

The decorator writes the card into a table. Called from outside, an analysis binds its result to what it is of and to
what must be known of it; called by another one, it is the function itself.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from torch import nn

from glassformer.analysis.origin import bound
from glassformer.arguments import check
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.labelled import Labelled, Result
from glassformer.provenance import gathered, is_gathering
from glassformer.trace import Site, parts_of

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
Function = TypeVar("Function", bound=Callable[..., Any])
Of = Literal["one pass", "weights", "texts", "pairs of prompts", "training runs"]
Reads = Callable[[Any], Sequence[str]]
Held = Literal["patterns", "norm scales", "query-key scales", "gates", "readout", "gradients"]
# at which sites a model has what is held; scales of queries and keys have none, gradients are of any model
_HELD_AT: dict[Held, Callable[[Site], bool]] = {
    "patterns": lambda site: site.quantity == "pattern",
    "norm scales": lambda site: site.quantity in ("scale", "z_scale", "write_scale", "sum_scale"),
    "gates": lambda site: site.quantity == "gate_in",
    "readout": lambda site: site.part == "readout" and site.quantity == "pre",
}


@dataclass(frozen=True)
class Card:
    """One analysis: its question, and what it takes to answer it.

    Args:
        name: Of the function.
        module: It is written in.
        question: What it answers.
        of: What it is asked of: `one pass` over a text, `weights` alone, `texts` or `pairs of prompts` that it runs
            itself, `training runs`.
        traits: What it assumes of the mechanisms, as `Traits` names it.
        holds: What it takes as it was in the pass, so that its answer is of that run alone: `patterns`, `norm scales`,
            `query-key scales`, what norms of queries and keys divide by (of weights alone: set to one),
            `gates` on mixed values, the activation of a `readout`, or `gradients`, which stand for the model near what
            it read.
        sites: Returns what it reads of a pass, for its default arguments; None if it looks at no one pass.
    """

    name: str
    module: str
    question: str
    of: Of
    traits: tuple[str, ...] = ()
    holds: tuple[Held, ...] = ()
    sites: Reads | None = None

    @property
    def room(self) -> str:
        """Name of the package that offers it, `lens`."""
        return self.module.removeprefix("glassformer.analysis.").partition(".")[0]

    @property
    def summary(self) -> str:
        """First line of its docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def source(self) -> str:
        """The paper it is from, as its docstring or its file's says; empty for one of our own."""
        for text in (inspect.getdoc(self.function), sys.modules[self.module].__doc__):
            _, found, source = (text or "").partition("Source: ")
            if found:
                return " ".join(source.partition("\n\n")[0].split())
        return ""

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(sys.modules[self.module], self.name)

    def reads(self, model: Any) -> list[str]:
        """Return the sites it reads of a model, for its default arguments.

        Raises:
            AnalysisUnavailable: It is not asked of one pass, or not defined for this model.
        """
        if self.sites is None:
            raise AnalysisUnavailable(
                f"{self.name} reads no sites of one pass: it is asked of {self.of}.\n    Call {self.name} itself."
            )
        return list(dict.fromkeys(self.sites(model)))

    def held(self, model: Any) -> tuple[Held, ...]:
        """Return what it holds of a run of this model with its default arguments; a model without norms has no scales.

        Raises:
            AnalysisUnavailable: It is not defined for this model.
        """
        if not self.holds:
            return ()
        model = parts_of(model)
        there = list(model.sites("*").values())
        # what is held of a pass is read, but for gates, which are made of what is
        read = there if self.sites is None else [s for name in self.reads(model) for s in model.sites(name).values()]
        has = {kind: any(map(at, there if kind == "gates" else read)) for kind, at in _HELD_AT.items()}
        has["query-key scales"] = _norms_queries_or_keys(model)
        return tuple(kind for kind in self.holds if has.get(kind, True))


def _norms_queries_or_keys(model: Any) -> bool:
    layers = [layer.attention for stack in getattr(model, "stacks", ()) for layer in model.sub_layers(stack)]
    return any(layer is not None and layer.projection.normalises for layer in layers)


class OfOnePass(Protocol[P, R_co]):
    """How an analysis of one pass is called: with a run, or with a model and what it is to read."""

    __name__: str

    @overload
    def __call__(self, run: Mapping[str, Labelled], /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(
        self, model: nn.Module, text: Any, target: Any = None, /, *args: P.args, **kwargs: P.kwargs
    ) -> R_co: ...


_CARDS: dict[tuple[str, str], Card] = {}


@overload
def question(
    text: str, *, reads: Reads, traits: tuple[str, ...] = (), holds: tuple[Held, ...] = ()
) -> Callable[[Callable[Concatenate[Any, Any, Any, P], R_co]], OfOnePass[P, R_co]]: ...
@overload
def question(
    text: str, *, of: Of, reads: Reads | None = None, traits: tuple[str, ...] = (), holds: tuple[Held, ...] = ()
) -> Callable[[Function], Function]: ...
def question(
    text: str,
    *,
    of: Of = "one pass",
    reads: Reads | None = None,
    traits: tuple[str, ...] = (),
    holds: tuple[Held, ...] = (),
) -> Any:
    """Register the card of an analysis, and let its results say what they are of.

    That goes for every `Result`; an analysis that returns a bare `Labelled` or `Factored` has no place for notes and
    provenance, and its run has them.

    Args:
        text: The question it answers.
        of: What it is asked of; `Card` has the choices.
        reads: From a model to the sites it reads with its default arguments.
        traits: What it assumes of mechanisms.
        holds: What it holds as it was in the run; `Card` has the choices.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        key = function.__module__, function.__name__
        _CARDS[key] = Card(function.__name__, function.__module__, text, of, traits, holds, reads)

        @functools.wraps(function)
        def analysis(*args: Any, **kwargs: Any) -> Any:
            # what an analysis asks others on the way is part of its own answer
            if is_gathering():
                return function(*args, **kwargs)
            check(function, args, kwargs)
            with gathered() as notes:
                found = function(*args, **kwargs)
            return bound(found, function, args, kwargs, notes) if isinstance(found, Result) else found

        return analysis

    return register


def card_of(analysis: Callable[..., Any]) -> Card:
    """Return the card of an analysis; raises `AnalysisUnavailable` for a function that has none."""
    key = getattr(analysis, "__module__", ""), getattr(analysis, "__name__", "")
    if key not in _CARDS:
        name = key[1] or type(analysis).__name__
        known = [card.name for card in cards()]
        raise AnalysisUnavailable(
            f'"{name}" is no analysis with a card.{nearest(name, known)}\n'
            "    read= takes names of sites, globs, heads (L1H6.pattern), Read(…) and analyses of one pass."
        )
    return _CARDS[key]


def cards() -> list[Card]:
    """Return the cards of all public analyses, room by room."""
    from glassformer.analysis import ROOMS

    found: list[Card] = []
    for room in ROOMS:
        public = vars(importlib.import_module(f"glassformer.analysis.{room}"))
        keys = [(getattr(value, "__module__", ""), getattr(value, "__name__", "")) for value in public.values()]
        found += [_CARDS[key] for key in dict.fromkeys(keys) if key in _CARDS]
    return found
