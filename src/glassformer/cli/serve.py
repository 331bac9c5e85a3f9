"""`glassformer serve`: open a page on models of one's own, on this machine."""

from typing import Annotated, Any, Literal

import tyro

from glassformer.cli.arguments import check_known, placed_model
from glassformer.cli.console import say
from glassformer.cli.images import served_images
from glassformer.cli.options import Placement
from glassformer.config import require
from glassformer.errors import TextError

_PRESET = "gpt-4l"  # served where no model is named


def serve(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL ...]")] = (),
    /,
    text: str | None = None,
    text_b: str | None = None,
    image: tuple[str, ...] = (),
    head: str | None = None,
    query: int | None = None,
    key: int | None = None,
    look: Literal["model", "head", "position"] | None = None,
    learn: int | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    memory: float = 1.0,
    no_browser: bool = False,
    *,
    placement: Placement,
) -> None:
    """Serve a page, and an API, on which every number is a real tensor: of a text of yours, in models of yours.

    The server answers requests of this machine that bring the token of the address that is printed, and no others. It
    opens the models that are named here, the first at once, each other when it is asked about. Ctrl-C ends it.

    Examples:
        glassformer serve
        glassformer serve gpt-4l attn-only-2l
        glassformer serve attn-only-2l --text "import os, sys, os" --head L1H6
        glassformer serve checkpoints/my-model --dtype bfloat16
        glassformer serve runs/shapes --image shapes:3 --image drawing.png
        glassformer serve gpt-4l --port 8000 --no-browser
        glassformer serve gpt-4l --host 0.0.0.0 --token "$(openssl rand -hex 16)"

    Args:
        models: Shipped models, folders, or hub ids; gpt-4l by default.
        text: Open the page with this text; by default with one that suits the first model.
        text_b: Beside it, as run B, this text.
        image: Images that runs of a model of images may read: a file, .npy or a picture such as .png, or a held-out
            image of a set by its number, shapes:3, digits:0. By default the first six of what a run trained on.
        head: Open it at this head.
        query: At this token that asks, counted from 0; the last by default.
        key: And at this one that is asked; the first by default.
        look: Open it at the whole model, at a head, or at a position.
        learn: Open this chapter of the tour, 1 to 8.
        host: Address to listen on; another than this machine's own demands --token.
        port: Port to listen on; any free one by default.
        token: What requests have to bring; drawn at random by default.
        memory: Gigabytes that runs may keep.
        no_browser: Open no browser.
    """
    require(0 <= port < 2**16, f"--port is 0 to 65535, 0 for any that is free; found {port}.")
    require(0.01 <= memory <= 2**20, f"--memory takes gigabytes, 0.01 and more; found {memory}.")
    from glassformer.serve.permalink import Opened

    opened = Opened(
        text=text, text_b=text_b, head=head, query=query, key=key, level=look, chapter=learn,
        image=image[0] if image else None,
    )  # fmt: skip
    named = list(dict.fromkeys(models or (_PRESET,)))
    for name in named:
        check_known(name)
    from glassformer.serve import Limits, serve as serving

    def opener(name: str) -> Any:
        def opened() -> Any:
            model = placed_model(name, placement)
            if image and model.patches is None and len(named) == 1:
                raise TextError(f"--image: {name} reads text: give it with --text.")
            return model

        return opened

    limits = Limits(memory=int(memory * 2**30))
    serving(
        {name: opener(name) for name in named}, host=host, port=port, token=token, limits=limits,
        opened=opened, images=lambda model, source: served_images(model, source, image),
        browser=not no_browser, say=say,
    )  # fmt: skip
