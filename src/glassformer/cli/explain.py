"""`glassformer explain`: one next token of a text, explained."""

from typing import Annotated

import tyro

from glassformer.cli.arguments import model_of, prompt_of
from glassformer.cli.options import Output, Reading, Target, Text
from glassformer.cli.output import check, finish

DEFAULT_MODEL = "gpt-4l"


def explain(
    model: Annotated[str, tyro.conf.Positional] = DEFAULT_MODEL,
    text: Text = None,
    /,
    answer: str | None = None,
    against: str | None = None,
    target: Target = None,
    position: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    all: bool = False,
    *,
    opening: Reading,
    output: Output,
) -> None:
    """Explain the next token of a text: what the model computes on the way, which parts add to it, and where they look.

    On the terminal come the answer, what adds to it and the telling heads; --all prints the logit lens, the way from
    text to answer and the steps of sampling too. Files hold everything. Without a text, an example that suits the model
    is explained.

    Examples:
        glassformer explain
        glassformer explain gpt-4l "for i in range(" --html page.html
        glassformer explain zh-en 我吃了一个苹果 --all
        head -c 600 setup.py | glassformer explain gpt-4l - --answer " self" --against " cls"

    Args:
        model: A shipped model, or a folder.
        answer: Explain this next token instead of the likeliest. It is one token, often with a leading space.
        against: Explain the difference to this token.
        position: Explain the token after this position; the last by default. Negative counts from the end.
        temperature: Sampling: divides the logits; 0 takes the likeliest.
        top_k: Sampling: keep this many tokens.
        top_p: Sampling: keep the likeliest tokens that reach this probability together.
        seed: Sampling: seed of the draw.
        all: Print everything that was found.
    """
    from glassformer import analysis
    from glassformer.models import Sampling
    from glassformer.render.page import explanation_page
    from glassformer.render.terminal import largest
    from glassformer.render.terminal.explanation import N_COMPONENTS
    from glassformer.render.terminal.tables import noted, tables
    from glassformer.words import spoken
    from glassformer.zoo.examples import example_of

    check(output)
    sampling = Sampling(temperature, top_k, top_p, seed=seed)
    loaded = model_of(model, opening)
    given: str | list[int] = example_of(loaded.name)
    if text is not None or opening.chat:
        given = prompt_of(loaded, given if text is None else text, opening.chat)
    found = analysis.reports.explain(
        loaded, given, target=target, answer=answer, against=against, position=position, sampling=sampling
    )
    rest = spoken("--all shows the rest: the logit lens, the way from text to answer, sampling.")
    shown = [tables(found)] if all else [largest(found, N_COMPONENTS), rest]
    finish(
        [*shown, *noted(found.notes)], JSON=(output.json, found.to_json),
        page=(output.html, lambda: explanation_page(found.to_dict())),
    )  # fmt: skip
