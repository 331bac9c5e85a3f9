"""`glassformer explain`: one next token of a text, explained."""

from typing import Annotated, Any

import tyro

from glassformer.cli.arguments import model_of, prompt_of
from glassformer.cli.images import image_of
from glassformer.cli.options import Output, Reading, Target, Text
from glassformer.cli.output import check, finish
from glassformer.config import require

DEFAULT_MODEL = "gpt-4l"


def explain(
    model: Annotated[str, tyro.conf.Positional] = DEFAULT_MODEL,
    text: Text = None,
    /,
    answer: str | None = None,
    against: str | None = None,
    target: Target = None,
    image: str | None = None,
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
    is explained. Of a model that reads images it is the class of an image, and its tokens are patches.

    Examples:
        glassformer explain
        glassformer explain gpt-4l "for i in range(" --html page.html
        glassformer explain zh-en 我吃了一个苹果 --all
        glassformer explain runs/shapes --image shapes:3 --html page.html
        head -c 600 setup.py | glassformer explain gpt-4l - --answer " self" --against " cls"

    Args:
        model: A shipped model, or a folder.
        answer: Explain this next token instead of the likeliest. It is one token, often with a leading space.
        against: Explain the difference to this token.
        position: Explain the token after this position; the last by default. Negative counts from the end.
        image: What a model of images reads: a file, .npy or a picture such as .png, whose pixels go from 0 to 1; or a
            held-out image of a set by its number, shapes:3, digits:0. By default the first of what a run trained on.
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
    loaded = model_of(model, opening, images=True)
    given: Any = example_of(loaded.name)
    if image is not None or loaded.patches is not None:
        require(
            text is None and not opening.chat, "give a text, or an image with --image: what the model reads is one."
        )
        given = image_of(loaded, model, image)
    elif text is not None or opening.chat:
        given = prompt_of(loaded, given if text is None else text, opening.chat)
    found = analysis.reports.explain(
        loaded, given, target=target, answer=answer, against=against, position=position, sampling=sampling
    )
    rest = spoken(
        "--all shows the rest: the logit lens, the way from text to answer, sampling."
        if found.grid is None
        else "--all shows the rest: the logit lens, the way from image to class."
    )
    shown = [tables(found)] if all else [largest(found, N_COMPONENTS), rest]
    finish(
        [*shown, *noted(found.notes)], JSON=(output.json, found.to_json),
        page=(output.html, lambda: explanation_page(found.to_dict())),
    )  # fmt: skip
