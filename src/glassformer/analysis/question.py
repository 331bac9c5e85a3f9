"""What an analysis answers, what it reads and what it assumes: its card.

    @question("What would the model say if it stopped here?", reads=_sites)
    def logit_lens(run, text=None, target=None, *, answer=None, position=-1, row=0): ...

    logit_lens(run), logit_lens(model, "the cat sat on the")      # of a run, or of a model and what it reads
    gf.run(model, text, read=[logit_lens, "L1H6.pattern"])        # an analysis stands for what it reads
    card_of(logit_lens).reads(model)

The decorator writes the card into a table. Called from outside, an analysis binds its result to what it is of and to
what must be known of it; called by another one, it is the function itself. It computes in the types of the
weights: autocast does not reach into it, for decompositions know no bfloat16, and parts of a sum would be of two types.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from torch import nn

from glassformer.analysis._run import Run, run
from glassformer.analysis.cards import CARDS, Card, Held, Of, Reads
from glassformer.analysis.origin import bound
from glassformer.analysis.parameters import parameters_of
from glassformer.arguments import check
from glassformer.docstrings import docstring_of
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Result
from glassformer.numerics.precision import without_autocast
from glassformer.provenance import Note, gathered, is_gathering
from glassformer.trace import parts_of

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
Function = TypeVar("Function", bound=Callable[..., Any])


class OfOnePass(Protocol[P, R_co]):
    """How an analysis of one pass is called: with a run, or with a model and what it is to read."""

    __name__: str

    @overload
    def __call__(self, run: Run, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(
        self, model: nn.Module, text: Any, target: Any = None, /, *args: P.args, **kwargs: P.kwargs
    ) -> R_co: ...


@overload
def question(
    text: str,
    *,
    reads: Reads,
    traits: tuple[str, ...] = (),
    holds: tuple[Held, ...] = (),
    judge: str = "",
    padded: bool = False,
) -> Callable[[Callable[Concatenate[Any, Any, Any, P], R_co]], OfOnePass[P, R_co]]: ...
@overload
def question(
    text: str,
    *,
    of: Of,
    reads: Reads | None = None,
    traits: tuple[str, ...] = (),
    holds: tuple[Held, ...] = (),
    judge: str = "",
) -> Callable[[Function], Function]: ...
def question(
    text: str,
    *,
    of: Of = "one pass",
    reads: Reads | None = None,
    traits: tuple[str, ...] = (),
    holds: tuple[Held, ...] = (),
    judge: str = "",
    padded: bool = False,
) -> Any:
    """Register the card of an analysis, and let its results say what they are of.

    That goes for every `Result`; an analysis that returns a bare `Labelled` or `Factored` has no place for notes and
    provenance, and its run has them.

    Args:
        text: The question it answers.
        of: What it is asked of; `Card` has the choices.
        reads: From a model to the sites it reads with its default arguments; of one pass, parameters that have the name
            of an option are given it.
        traits: What it assumes of mechanisms.
        holds: What it holds as it was in the run; `Card` has the choices.
        judge: What it is compared with, in words.
        padded: Of one pass: it takes a run as it is, padding in its place.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        card = Card(
            name=function.__name__,
            module=function.__module__,
            question=text,
            of=of,
            traits=traits,
            holds=holds,
            judge=judge,
            sites=reads,
        )
        CARDS[function.__module__, function.__name__] = card
        answer = _of_one_pass(function, card, padded) if of == "one pass" else function

        @functools.wraps(function)
        def analysis(*args: Any, **kwargs: Any) -> Any:
            # what an analysis asks others on the way is part of its own answer
            if is_gathering():
                return answer(*args, **kwargs)
            check(function, args, kwargs)
            with gathered() as notes, without_autocast():
                found = answer(*args, **kwargs)
                if card.of == "pairs of prompts":
                    notes = (*_guarded(function, args, kwargs), *notes)
            return bound(found, function, args, kwargs, notes) if isinstance(found, Result) else found

        analysis.__doc__ = docstring_of(function, parameters_of(card))
        return analysis

    return register


def _guarded(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Note, ...]:
    """Return why nothing can be called found on the pairs of prompts that an analysis was asked about."""
    # it asks for passes, which are asked for by analyses
    from glassformer.analysis.guard import guard

    given = inspect.signature(function).bind(*args, **kwargs).arguments
    return guard(given["model"], given["pairs"], given.get("metric"))


def _of_one_pass(function: Callable[..., Any], card: Card, padded: bool) -> Callable[..., Any]:
    """Return an analysis of one pass as a function that is given the run that it is asked of."""
    signature = inspect.signature(function)
    assert card.sites is not None, "an analysis of one pass reads sites"
    reads, named = card.sites, list(inspect.signature(card.sites).parameters)[1:]

    def answer(*args: Any, **kwargs: Any) -> Any:
        asked = signature.bind(*args, **kwargs)
        asked.apply_defaults()
        options = asked.arguments
        chosen = {name: options[name] for name in named if name in options}
        of_options = functools.partial(reads, **chosen) if chosen else None
        given, text, target = (options[name] for name in ("run", "text", "target"))
        found = run_for(card, given, text, target, of_options, row=options.get("row"), padded=padded)
        options |= {"run": found, "text": None, "target": None}
        return function(*asked.args, **asked.kwargs)

    return answer


def run_for(
    card: Card,
    given: Any,
    text: Any = None,
    target: Any = None,
    reads: Reads | None = None,
    *,
    row: int | None = None,
    padded: bool = False,
) -> Run:
    """Return the run that an analysis is asked of: the one given, or a pass over the text.

    Padding, if there is any, is on the right.

    Args:
        card: Of the analysis, which says what it reads by default.
        given: A run, or a model.
        text: What the model reads; None with a run.
        target: Text or ids of the decoder, for an encoder-decoder.
        reads: What it reads with the options at hand, if these change it.
        row: For an analysis of one prompt: which of the batch. The run is then that prompt's, without padding.
        padded: Leave padding where it is.

    Raises:
        ShapeMismatch: There is no such row.
        AnalysisUnavailable: What is given is neither, or a text is missing or too many.
    """
    name = card.name
    if isinstance(given, Run):
        if text is not None or target is not None:
            raise AnalysisUnavailable(
                f"{name}: a run has its text already, so {name}(run, …) takes all else by name.\n"
                f"    Of another text: {name}(model, text), or gf.run(model, text, read=[{name}])."
            )
        found = given if padded else given.aligned() if row is None else given.prompt(row)
        found.require_computed()
        return found
    if not isinstance(given, nn.Module):
        found = f"given a model's name, {given!r}" if isinstance(given, str) else f"given a {type(given).__name__}"
        raise AnalysisUnavailable(
            f"{name} is asked of a run, {name}(run), or of a model and a text, {name}(model, text); it was {found}."
        )
    if text is None:
        raise AnalysisUnavailable(
            f"{name}: a model alone says nothing of a text. Give the text too: {name}(model, text);\n"
            f"    or a run: {name}(gf.run(model, text, read=[{name}]))."
        )
    found = run(given, text, target, read=(reads or card.reads)(parts_of(given)))
    return found if row is None else found.prompt(row)
