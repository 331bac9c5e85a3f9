"""What a command's arguments stand for: a model, a text, a token, many rows of text."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.options import Opening, Placement
from glassformer.config import require
from glassformer.errors import TextError, UnknownModel, nearest

if TYPE_CHECKING:
    from glassformer.models import ModelLike


MOST_READ = 2**24  # bytes of standard input


def model_of(name: str, opening: Opening, *, images: bool = False) -> Any:
    """Return a model with weights, and a tokenizer that reads as it was asked to.

    Args:
        name: A shipped model, or a folder.
        opening: How it is opened, and what it may read.
        images: Whether it may be one that reads images; what it would read is text otherwise.

    Raises:
        UnknownModel: A preset, which has no weights, or an unknown name.
        TextError: It reads images, and text is what this verb gives it.
        ConfigError: It has no tokenizer that could be told about specials; or as for `placed_model`.
    """
    model, specials = placed_model(name, opening, stream=opening.stream), opening.specials
    if not images:
        require_text(model)
    if specials != "default":
        require(
            model.tokenizer is not None,
            f"--specials {specials}: this model has no tokenizer, and ids are taken as they are.",
        )
        model.tokenizer = model.tokenizer.adding({"on": True, "off": False, "in-text": "in-text"}[specials])
    for name in ("tokenizer", "source_tokenizer") if opening.allow_unknown else ():
        tokenizer = getattr(model, name)
        if tokenizer is not None and not tokenizer.allows_unknown:
            setattr(model, name, tokenizer.allowing_unknown())
    return model


def require_text(model: "ModelLike") -> None:
    """Raise `TextError` if a model reads images, which one verb gives it."""
    if model.patches is not None:
        raise TextError(
            "this model reads images, which glassformer explain MODEL --image FILE takes; what other verbs ask of "
            "texts, functions of glassformer.analysis ask of gf.run(model, image)."
        )


def placed_model(name: str, placement: Placement, *, stream: bool = False) -> Any:
    """Return a model with weights.

    Args:
        name: A shipped model, or a folder.
        placement: Where its weights go, and as what.
        stream: Leave those of the blocks in their files.

    Raises:
        UnknownModel: A preset, which has no weights, or an unknown name.
        ConfigError: There is no such device, or no such type of weights.
    """
    from glassformer import checkpoints
    from glassformer.models import PRESETS

    if name in PRESETS:
        raise UnknownModel(
            f'"{name}" is a preset: a shape without trained weights, for the commands params and sites.\n'
            f"    Models with weights: {_names(checkpoints.shipped())}; or give a folder or a hub id."
        )
    check_known(name)
    return checkpoints.load(
        name, dtype=placement.dtype, device=placement.device, allow_nonfinite=placement.allow_nonfinite, stream=stream,
        adapter=placement.adapter,
    )  # fmt: skip


def check_known(name: str) -> None:
    """Raise `UnknownModel` if a name is no model's; the message lists the names there are."""
    from glassformer import checkpoints
    from glassformer.models import PRESETS

    known = [*checkpoints.shipped(), *PRESETS]
    # os.path, unlike Path, takes any text for a name that may not exist, however long
    if name in known or os.path.exists(name):
        return
    checkpoints.require_no_slip(name)
    if not checkpoints.is_id(name):
        hint = nearest(name, known) or " A text comes after the model."
        raise UnknownModel(
            f'no model "{name}".{hint} Shipped: {_names(checkpoints.shipped())}. Presets: {_names(PRESETS)}. '
            "Or give a folder, or a hub id (owner/model)."
        )


def text_of(given: str) -> str:
    """Return the text itself, or standard input for `-`; raises `TextError` if that is closed, no UTF-8, or endless."""
    if given != "-":
        return given
    try:
        read = sys.stdin.buffer.read(MOST_READ + 1)
    except OSError as error:
        raise TextError(
            f"standard input cannot be read: {error.strerror or error}. Give the text itself, or pipe it in."
        ) from error
    if len(read) > MOST_READ:
        raise TextError(f"standard input holds more than {MOST_READ:,} bytes, which no model reads at once.")
    try:
        return read.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(
            f"standard input is not UTF-8 (byte {error.start}: {error.reason}). "
            "Convert it first: iconv -f latin1 -t utf-8."
        ) from error


def prompt_of(model: "ModelLike", given: str, chat: bool = False) -> str | list[int]:
    """Return what a model reads: the text, or ids for a model without a tokenizer; `-` reads standard input.

    Args:
        model: The model.
        given: What was typed.
        chat: It is what a user says; the ids are those of the conversation, up to where an answer begins.

    Raises:
        TextError: The model has no tokenizer and this is no list of ids, or it has no chat template.
    """
    text = text_of(given)
    if chat:
        from glassformer.models import chat as conversation

        return conversation(model, [{"role": "user", "content": text}])
    if model.tokenizer is not None:
        return text
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise TextError(
            f"this model has no tokenizer, so it takes token ids like 5 17 3; found {text[:40]!r}."
            + (f"\n    {model.no_tokenizer}" if model.no_tokenizer else "")
        ) from error


def token_of(model: "ModelLike", given: str) -> int:
    """Return the id of a token that logits are of, given as text, or as an id where the model has no names for them.

    Raises:
        TextError: It is several tokens or unknown, or no id.
        TokenOutOfRange: There is no such id.
    """
    from glassformer.analysis.prepare import answer_id

    if model.output_tokenizer is not None:
        return answer_id(model, given)
    if not given.strip().isdecimal():
        raise TextError(f"this model has no names for its outputs, so a token is an id; found {given!r}.")
    return answer_id(model, int(given))


def source_of(loaded: "ModelLike", model: str | None, run: Path | None, data: tuple[str, ...]) -> Any:
    """Return where many rows of text come from: what was named, else the run's or the recipe's, else Python's own."""
    from glassformer.analysis.learning import read_history
    from glassformer.data import DataConfig, TextConfig
    from glassformer.training.recipes import RECIPES, recipe

    length = min(256, loaded.config.max_len)
    if data:
        # in consecutive cuts: no more rows than there is text for
        return TextConfig(length=length, sources=data, heldout=0.0, crop="cut")
    if run is not None:
        history = read_history(run).config
        return DataConfig.from_dict(history.get("evaluate") or history["data"])
    if model in RECIPES:
        known = recipe(model)
        return known.evaluate or known.data
    return TextConfig(length=length)


def batches_of(
    loaded: "ModelLike", model: str, data: tuple[str, ...], fitted: int, measured: int
) -> tuple[list[Any], list[Any]]:
    """Return batches of text to fit something to, and others to measure it on.

    Args:
        loaded: What reads them.
        model: Its name, of whose recipe the text is by default.
        data: Files, folders, globs, `python-stdlib`.
        fitted: Batches to fit to, at most.
        measured: Batches to measure on, at most.

    Raises:
        ConfigError: The text is no more than one row.
    """
    from glassformer.data import TextConfig
    from glassformer.data.text.corpus import TextData

    if not data:
        built = source_of(loaded, model, None, ()).build(loaded.tokenizer)
        return [built.batch(i, "train") for i in range(fitted)], [built.batch(i, "heldout") for i in range(measured)]
    # one file is one document, which is held out as a whole or not at all: rows are set apart instead
    source = TextConfig(length=min(256, loaded.config.max_len), sources=data, heldout=0.0, crop="cut")
    built = source.build(loaded.tokenizer)
    assert isinstance(built, TextData), "only a corpus that is streamed is of another class"
    rows = built.stream("train").cuts(source.length)
    require(rows >= 2, f"--data holds {rows} rows of {source.length} tokens; training and measuring take 2 or more.")
    if rows < 5 * source.batch_size:
        built = source.replace(batch_size=max(1, rows // 5)).build(loaded.tokenizer)
    whole = rows // built.config.batch_size
    last = max(1, min(measured, whole // 5))
    batches = [built.batch(i, "train") for i in range(min(whole, fitted + last))]
    return batches[:-last], batches[-last:]


def _names(names: Any) -> str:
    return ", ".join(names) or "none"
