"""What a published checkpoint says of generating: where texts end, which tokens are forced and which never come.

Rules hold for every token that is drawn. Settings of sampling are suggestions, which a note tells and nobody follows
unasked; what is not done here is told too.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from glassformer.config import Config
from glassformer.models.sampling import Sampling
from glassformer.provenance import Note
from glassformer.words import sentence


@dataclass(frozen=True)
class GenerationRules(Config):
    """What a checkpoint says of generating, as ids; a model of ours has none.

    Args:
        stops: Tokens that end a text.
        first: The token that comes behind a text of one token: the language of a translation, for one.
        last: The token that comes last where a text is cut for its length.
        never: Tokens that are never drawn.
        never_first: Tokens that are not drawn first, or not behind `first` where that is forced.
        never_words: Rows of tokens of which the last is not drawn behind the others.
        sampling: Suggested settings; None if there are none.
        n_beams: Suggested width of a beam search.
        not_done: What else is asked for, and not done here: `name=value` each.
    """

    stops: tuple[int, ...] = ()
    first: int | None = None
    last: int | None = None
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    never_words: tuple[tuple[int, ...], ...] = ()
    sampling: Sampling | None = None
    n_beams: int = 1
    not_done: tuple[str, ...] = ()

    @property
    def rule_out(self) -> bool:
        """Whether there is a text behind which some token is never drawn."""
        forced = self.first is not None or self.last is not None
        return forced or bool(self.never or self.never_first or self.never_words)

    def ruled_out(
        self, texts: Sequence[Sequence[int]], made: Sequence[int], left: Sequence[int], vocab_size: int
    ) -> Bool[Tensor, "batch vocab"]:
        """Which tokens are not drawn behind texts, one row each; a forced token leaves no other.

        Args:
            texts: Ids so far, the prompt's first.
            made: How many of them were drawn.
            left: How many more may be drawn, the next one included.
            vocab_size: Tokens there are.
        """
        found = torch.zeros(len(texts), vocab_size, dtype=torch.bool)
        for out, text, drawn, room in zip(found, texts, made, left):
            forced = self.first if len(text) == 1 else self.last if room == 1 else None
            if forced is not None:
                out[:] = True
                out[forced] = False
                continue
            # a forced first token does not count as the first that is drawn
            begun = len(text) - drawn + (self.first is not None and len(text) - drawn == 1)
            first = self.never_first if len(text) == begun else ()
            words = [row[-1] for row in self.never_words if _begins(row, text)]
            out[[*self.never, *first, *words]] = True
        return found

    def notes(self, sampling: Sampling | None = None, n_beams: int | None = None) -> tuple[Note, ...]:
        """Notes on what is suggested and not used, and on what is not done.

        Args:
            sampling: How tokens are drawn; None in a search.
            n_beams: Width of the search, if it is one.
        """
        found: list[Note] = []
        if (
            self.sampling is not None
            and sampling is not None
            and dataclasses.replace(sampling, seed=0) != self.sampling
        ):
            found.append(_suggested(self.sampling))
        if self.n_beams > 1 and n_beams != self.n_beams:
            seen = sentence("The checkpoint suggests a search with {n} beams.", n=self.n_beams)
            found.append(
                Note(seen, "", sentence("To do it: beam_search(…, n_beams={n}); --beams {n}.", n=self.n_beams))
            )
        if self.not_done:
            listed = ", ".join(self.not_done)
            seen = sentence("The checkpoint asks for what is not done here: {settings}.", settings=listed)
            found.append(Note(seen, sentence("Where a library does it, texts may differ from these.")))
        return tuple(found)


def _begins(row: Sequence[int], text: Sequence[int]) -> bool:
    """Whether a text ends with the tokens of a row before the last; it has one more at least, as in transformers."""
    before = len(row) - 1
    return len(text) > before and tuple(text[len(text) - before :]) == tuple(row[:-1])


def _suggested(sampling: Sampling) -> Note:
    """Return a note on settings that are suggested, and how to use them."""
    fields = {field.name: field.default for field in dataclasses.fields(Sampling)}
    said = {name: value for name in fields if (value := getattr(sampling, name)) != fields[name]}
    # the defaults themselves, where nothing else is said
    said = said or {"temperature": sampling.temperature}
    settings = ", ".join(f"{name}={value}" for name, value in said.items())
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in said.items())
    return Note(
        sentence("The checkpoint suggests to draw with {settings}.", settings=settings),
        sentence("Other settings were asked for, and used."),
        sentence("To do it: Sampling({settings}); {flags}.", settings=settings, flags=flags),
    )


NO_RULES = GenerationRules()
