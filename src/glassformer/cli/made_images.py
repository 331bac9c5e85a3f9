"""Images that a model makes, as a picture: what `glassformer generate` does for such a model."""

from pathlib import Path
from typing import Any

from glassformer.cli.arguments import text_of
from glassformer.cli.console import say
from glassformer.errors import ConfigError

PICTURE = Path("images.png")


def make_images(model: Any, given: str, seed: int, out: Path | None, asked: list[str]) -> None:
    """Make an image of each class that is listed, and draw all into one picture.

    Args:
        model: One that makes images.
        given: Classes by number.
        seed: Of the first image; each further one has the next.
        out: Picture to write.
        asked: Options of texts that were given.

    Raises:
        ConfigError: An option is of texts, or these are no classes.
        TokenOutOfRange: There is no such class.
    """
    from glassformer.figures import draw_images
    from glassformer.models import sample_images
    from glassformer.render import curves

    if asked:
        raise ConfigError(f"this model makes images, and {', '.join(asked)} is of texts. Leave it out.")
    words = text_of(given).replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        last = model.config.denoises.n_classes - 1
        raise ConfigError(f"this model makes images of classes 0 to {last}: give numbers, like 3 3 7; found {given!r}.")
    images = sample_images(model, [int(word) for word in words], seed=seed)
    out = out or PICTURE
    curves.save(draw_images(images, words), out)
    say(out)
