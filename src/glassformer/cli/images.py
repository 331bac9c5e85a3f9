"""The image that a command reads: one of a data set, numbers in a file, or a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.config import require
from glassformer.errors import ConfigError, DataError, MissingExtra, RunFolderError, TextError

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.models import ModelLike
    from glassformer.serve.images import ServedImage

SETS = ("shapes", "digits")
# held-out images of one set that may be asked for: each is drawn behind those before it
MOST_DRAWN = 10_000
# of them, what a server has where none is named
N_SERVED = 6
FORMS = "a file (.npy, or a picture such as .png), or a held-out image of a set by its number from 0: " + ", ".join(
    f"{name}:0" for name in SETS
)
# how Pillow is asked for an image of so many channels
MODES = {1: "L", 3: "RGB"}


def image_of(model: "ModelLike", name: str, given: str | None) -> "Tensor":
    """Return the image that is read, `batch channel row column`, of one row.

    Args:
        model: It reads images.
        name: What it was opened from: a run folder says which data it is trained on.
        given: A file, or `shapes:3`; None for the first held-out image of what it is trained on.

    Raises:
        TextError: The model reads text.
        ConfigError: Nothing was given, and what the model was trained on is not known.
        DataError: There is no such image, or what is in the file is none.
        ShapeMismatch: It is not of the size that the model reads, or is several images.
        MissingExtra: A picture, and Pillow is not installed.
    """
    if model.patches is None:
        raise TextError(f"--image: this model reads text: give it behind the model, glassformer explain {name} TEXT.")
    found = model.patches.images(_numbers(model, name, given), next(model.parameters()))
    if len(found) != 1:
        raise model.patches.refused(found, one=True)
    return found


def served_images(model: "ModelLike", name: str, given: Sequence[str]) -> "dict[str, ServedImage]":
    """Return the images that a server has for a model, by what they are called on its page, with the Python of each.

    Args:
        model: It reads images.
        name: What it was opened from: a run folder says which data it is trained on.
        given: Files, or held-out images such as `shapes:3`; if none are, the first of what it is trained on.

    Raises:
        ConfigError: None was given, and what the model was trained on is not known; or it makes images out of noise.
        DataError, ShapeMismatch, MissingExtra: As `image_of`.
    """
    from glassformer.serve.images import ServedImage

    require(
        model.config.denoises is None,
        f"this model makes images out of noise, and is not served: glassformer generate {name} CLASSES --out FILE.",
    )
    if not given:
        data = _trained_on(name)
        require(data is not None, f"this model reads images: start the server with some, each behind --image: {FORMS}.")
        given = [f"{data.kind}:{number}" for number in range(N_SERVED)]
    return {one: ServedImage(image_of(model, name, one), *_code(model, name, one)) for one in given}


def _code(model: "ModelLike", name: str, given: str) -> tuple[str, tuple[str, ...]]:
    """Return the expression of an image that was read, and the lines that import what it names."""
    kind, colon, number = given.partition(":")
    if colon and kind in SETS:
        data = _set_of(model, name, kind)
        step, row = divmod(int(number), data.batch_size)
        drawn = f'{data!r}.build().batch({step}, "heldout").tokens[{row}]'
        return drawn, (f"from glassformer.data import {type(data).__name__}",)
    if Path(given).suffix == ".npy":
        return f"numpy.load({given!r})", ("import numpy",)
    assert model.patches is not None, "what reads images cuts them"
    mode = MODES[model.patches.channels]
    pixels = f"numpy.array(PIL.Image.open({given!r}).convert({mode!r}), float)"
    pixels = f"{pixels}[None]" if mode == "L" else f"numpy.moveaxis({pixels}, -1, 0)"
    return f"{pixels} / 255", ("import numpy", "import PIL.Image")


def _numbers(model: "ModelLike", name: str, given: str | None) -> Any:
    if given is None:
        data = _trained_on(name)
        require(data is not None, f"this model reads images: give one with --image, {FORMS}.")
        return _drawn(data, 0)
    kind, colon, number = given.partition(":")
    if colon and kind in SETS:
        if not number.isdecimal() or int(number) >= MOST_DRAWN:
            raise DataError(f'"{given}": behind {kind}: stands which held-out image, from 0 to {MOST_DRAWN - 1:,}.')
        return _drawn(_set_of(model, name, kind), int(number))
    path = Path(given)
    if not path.is_file():
        raise DataError(f'there is no image "{given}". Give {FORMS}.')
    return _of_npy(path) if path.suffix == ".npy" else _of_picture(path, model)


def _trained_on(name: str) -> Any:
    """Return the config of the images that a run folder says its model is trained on; None of others."""
    from glassformer.analysis.learning import read_history
    from glassformer.data import DataConfig
    from glassformer.data.images import ImageConfig

    try:
        found = DataConfig.from_dict(read_history(name).config["data"])
    except RunFolderError:
        return None
    return found if isinstance(found, ImageConfig) else None


def _set_of(model: "ModelLike", name: str, kind: str) -> Any:
    """Return a set of images as the model's run has it, else as it is by default, in the size that the model reads."""
    from glassformer.data import Digits, Shapes

    data = _trained_on(name)
    if data is not None and data.kind == kind:
        return data
    assert model.patches is not None, "what reads images cuts them"
    return Shapes(size=model.patches.image[0]) if kind == "shapes" else Digits(packaged=True)


def _drawn(data: Any, number: int) -> "Tensor":
    """Return a held-out image by its number among those that are drawn."""
    step, row = divmod(number, data.batch_size)
    return data.build().batch(step, "heldout").tokens[row]


def _of_npy(path: Path) -> Any:
    """Return the numbers of a file that NumPy wrote; nothing in it is run."""
    import numpy as np

    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f'"{path}" is no array of numbers that NumPy wrote ({error}).') from error
    if found.dtype.kind not in "biuf":
        raise DataError(f'"{path}" holds {found.dtype}, and an image is of real numbers.')
    return np.array(found, dtype=np.float64)


def _of_picture(path: Path, model: "ModelLike") -> Any:
    """Return a picture's pixels from 0 to 1, `channel row column`, in as many channels as the model reads."""
    import numpy as np

    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtra(
            "pictures are read by Pillow, which comes with pip install 'glassformer[plot]'; an array of numbers in a "
            ".npy file is read without."
        ) from error
    assert model.patches is not None, "what reads images cuts them"
    mode = MODES.get(model.patches.channels)
    if mode is None:
        raise ConfigError(
            f"this model reads {model.patches.channels} channels, and a picture is grey or of three: give the numbers "
            "as a .npy file."
        )
    try:
        with Image.open(path) as opened:
            kind, drawn = opened.mode, opened.convert("RGBA")
            pixels = np.array(opened.convert(mode), dtype=np.float64)
    except UnidentifiedImageError as error:
        raise DataError(f'"{path}" is no picture that Pillow reads, and no .npy file.') from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f'"{path}" cannot be read as a picture: {error}.') from error
    if kind not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise DataError(f'"{path}" has pixels of another kind ("{kind}"): give their numbers as a .npy file.')
    if np.array(drawn)[..., 3].min() < 255:
        raise DataError(f'"{path}" is transparent in places, where it has no colour: lay it on a ground.')
    return pixels[None] / 255 if mode == "L" else np.moveaxis(pixels, -1, 0) / 255
