"""What one chapter of the tour found, as it is put together: numbers for its sentences, and their Python."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from glassformer.analysis.heads import roles
from glassformer.labelled import Labelled
from glassformer.numerics.precision import wide
from glassformer.serve.answers import Answer
from glassformer.serve.programs import RunCode, program
from glassformer.serve.runs import ServedRun


@dataclass
class Lesson:
    """What a chapter found, as it is put together.

    Args:
        run: Of which run.
        head: Where one looks: a head by its label; None where no head is meant.
        query: The position that looks.
        key: The one that is looked at; None where no head is meant.
        numbers: By the names that sentences have for them.
        tokens: Answers, by the same.
        heads: Labels of heads, likewise.
        words: Other names, likewise.
        claims: Which of two wordings holds.
        formula: Lines.
        arrays: What numbers are taken from.
        code: The expression of each array.
        reads: What the run has to read for that, as code.
        lines: Code between the run and `found`.
        runs: Further runs that the code makes: their names, and what makes them.
    """

    run: ServedRun
    head: str | None = None
    query: int = 0
    key: int | None = None
    numbers: dict[str, float] = field(default_factory=dict[str, float])
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    heads: dict[str, str] = field(default_factory=dict[str, str])
    words: dict[str, Any] = field(default_factory=dict[str, Any])
    claims: dict[str, bool] = field(default_factory=dict[str, bool])
    formula: list[str] = field(default_factory=list[str])
    arrays: dict[str, Labelled] = field(default_factory=dict[str, Labelled])
    code: dict[str, str] = field(default_factory=dict[str, str])
    reads: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])
    runs: list[tuple[str, RunCode]] = field(default_factory=list[tuple[str, RunCode]])

    def add(self, name: str, value: Labelled, code: str) -> Tensor:
        """Keep an array with its code, and return its values."""
        self.arrays[name], self.code[name] = value, code
        return wide(value.values)

    def site(self, name: str, site: str, **at: int) -> Tensor:
        """Keep a site of the run at an index, and return its values."""
        where = "".join(f", {axis}={i}" for axis, i in at.items())
        if repr(site) not in self.reads:
            self.reads.append(repr(site))
        value = self.run.read([site])[site].select(batch=0, **at)
        return self.add(name, value, f"run[{site!r}].select(batch=0{where})")

    def answer(self, chapter: int) -> Answer:
        where = {"head": self.head, "query": self.query, "key": self.key}
        told = {"numbers": self.numbers, "tokens": self.tokens, "heads": self.heads, "words": self.words}
        facts = {"chapter": chapter, "where": where, **told, "claims": self.claims, "formula": self.formula}
        lines = program(("run", self.run.code, self.reads), *((name, code, []) for name, code in self.runs))
        body = [f"    {name!r}: {expression}," for name, expression in self.code.items()]
        return Answer("lesson", self.arrays, facts, "\n".join([*lines, *self.lines, "found = {", *body, "}"]))


def own_heads(run: ServedRun) -> list[roles.Head]:
    """Return the heads that look at the text they stand in and show it, of the stack that ends in the logits."""
    model = run.model
    known = [head for head in roles.heads(model) if head.path.startswith(model.prefix) and not head.crosses]
    return [head for head in known if roles.layer_of(model, head).traits.shows_patterns]


def any_head(run: ServedRun) -> str | None:
    """Return a head whose queries are the text that a chapter is about; None where all heads' are, and any will do."""
    return None if len(run.model.stacks) == 1 else next((head.label for head in own_heads(run)), None)
