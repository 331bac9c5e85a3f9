"""Cards of analyses: what each answers, what it reads and what it assumes, in one table that their decorator writes.

card_of(logit_lens).reads(model)          # its sites, for its default arguments
[card.name for card in cards() if card.of == "weights"]
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.trace import Site, parts_of

Of = Literal["one pass", "weights", "texts", "pairs of prompts", "training runs"]
Reads = Callable[..., Sequence[str]]
Held = Literal[
    "patterns", "norm scales", "query-key scales", "latent scales", "gates", "value slopes", "readout", "gradients"
]
# at which sites a model has what is held; scales of queries and keys have none, gradients are of any model
_HELD_AT: dict[Held, Callable[[Site], bool]] = {
    "patterns": lambda site: site.quantity == "pattern",
    "norm scales": lambda site: site.quantity in ("scale", "z_scale", "out_scale", "write_scale", "sum_scale"),
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
            `query-key scales`, what norms of queries and keys divide by (of weights alone: set to one), `latent
            scales`, what norms of latents divide by (likewise), `gates` on mixed values, `value slopes`, where values
            are bent, the activation of a `readout`, or `gradients`, which stand for the model near what it read.
        judge: What its numbers are compared with on every mechanism, in words: another way to them, written out in
            `glassformer.testing.judges`; empty if there is none.
        sites: Returns what it reads of a pass, for its default arguments; None if it looks at no one pass.
    """

    name: str
    module: str
    question: str
    of: Of
    traits: tuple[str, ...] = ()
    holds: tuple[Held, ...] = ()
    judge: str = ""
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

    def reads(self, model: Any, **options: Any) -> list[str]:
        """Return the sites it reads of a model, for its default arguments, or for options that change them.

        Raises:
            AnalysisUnavailable: It is not asked of one pass, or not defined for this model.
        """
        if self.sites is None:
            raise AnalysisUnavailable(
                f"{self.name} reads no sites of one pass: it is asked of {self.of}.\n    Call {self.name} itself."
            )
        return list(dict.fromkeys(self.sites(model, **options)))

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
        has["latent scales"] = any(layer.projection.norms_within for layer in _attentions(model))
        has["value slopes"] = _bends_values(model)
        return tuple(kind for kind in self.holds if has.get(kind, True))


def _norms_queries_or_keys(model: Any) -> bool:
    return any(layer.projection.normalises for layer in _attentions(model))


def _bends_values(model: Any) -> bool:
    of_values = [
        layer.projection.departs("values") for layer in _attentions(model) if not layer.projection.norms_within
    ]
    return any(departs is not None and departs.once_frozen for departs in of_values)


def _attentions(model: Any) -> list[AttentionLayer]:
    layers = [layer.attention for stack in getattr(model, "stacks", ()) for layer in model.sub_layers(stack)]
    return [layer for layer in layers if layer is not None]


CARDS: dict[tuple[str, str], Card] = {}


def card_of(analysis: Callable[..., Any]) -> Card:
    """Return the card of an analysis; raises `AnalysisUnavailable` for a function that has none."""
    key = getattr(analysis, "__module__", ""), getattr(analysis, "__name__", "")
    if key not in CARDS:
        name = key[1] or type(analysis).__name__
        known = [card.name for card in cards()]
        raise AnalysisUnavailable(
            f'"{name}" is no analysis with a card.{nearest(name, known)}\n'
            "    read= takes names of sites, globs, heads (L1H6.pattern), Read(…) and analyses of one pass."
        )
    return CARDS[key]


def cards() -> list[Card]:
    """Return the cards of all public analyses, room by room."""
    from glassformer.analysis import ROOMS

    found: list[Card] = []
    for room in ROOMS:
        public = vars(importlib.import_module(f"glassformer.analysis.{room}"))
        keys = [(getattr(value, "__module__", ""), getattr(value, "__name__", "")) for value in public.values()]
        found += [CARDS[key] for key in dict.fromkeys(keys) if key in CARDS]
    return found
