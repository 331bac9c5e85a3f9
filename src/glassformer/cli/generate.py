"""`glassformer generate`: continue a text, or translate one."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from glassformer.cli.arguments import model_of, prompt_of, require_text
from glassformer.cli.edits import edits_of, steered
from glassformer.cli.made_images import make_images
from glassformer.cli.options import ModelName, Output, Reading
from glassformer.cli.output import check, deliver
from glassformer.cli.tokens_read import TokensRead, tell
from glassformer.config import require
from glassformer.errors import ConfigError, printable

if TYPE_CHECKING:
    from glassformer.models import ModelLike, Sampling
    from glassformer.models.reading import Inputs
    from glassformer.provenance import Note

    Drawn = Iterable[tuple[int | None, tuple[Note, ...]]]

NEW_TOKENS = 128  # as far as the context has room
_READ = "--read records what the model does while it draws, into a document: give --json FILE, and leave out --beams."


def generate(
    model: ModelName,
    text: Annotated[str, tyro.conf.Positional],
    /,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    beyond_context: bool = False,
    beams: int | None = None,
    ablate: tuple[str, ...] = (),
    steer: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[SITE=FILE:NAME*FACTOR ...]")] = (),
    dictionary: Path | None = None,
    features: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[FEATURE=X|FEATURE*X ...]")] = (),
    steer_from: int | None = None,
    read: tuple[str, ...] = (),
    json: Path | None = None,
    out: Path | None = None,
    *,
    opening: Reading,
) -> None:
    """Continue a text token by token, as it is drawn; an encoder-decoder writes the target of a source.

    What --ablate, --steer and --features change, they change in the text and in every token behind it, or from
    --steer-from on; the command sites lists where they can. With --chat the answer alone is printed.

    Examples:
        glassformer generate gpt-4l "def main(" --temperature 0.8 --top-p 0.95 --seed 1
        glassformer generate zh-en 我吃了一个苹果 --beams 4
        head -c 300 script.py | glassformer generate gpt-4l - --temperature 0
        glassformer generate attn-only-2l "def f(x, y):" --ablate L1H6 L1H3 --read L0H1.pattern --json found.json
        glassformer generate attn-only-2l "def f(x, y):" --steer "blocks.0.resid_post=vectors.safetensors:joy*4"
        glassformer generate attn-only-2l "def f():" --steer blocks.0.resid_post=vectors.safetensors:joy --steer-from 4
        glassformer generate attn-only-2l "def f(x, y):" --dictionary my-dictionary --features "17=5" "3*0"
        glassformer generate runs/digits-generator "0 1 2 3 4 5 6 7 8 9" --out digits.png

    Args:
        text: What to continue or to translate; - reads standard input; token ids for a model without a tokenizer. For a
            model that makes images the number of a class for each of them.
        max_new_tokens: Stop after this many tokens, or at the model's end token; by default 128, as far as the context
            has room.
        temperature: Divides the logits; 0 takes the likeliest token each time. By default 1, and 0 for a translation.
        top_k: Keep the k likeliest tokens.
        top_p: Keep the smallest set of tokens with this much probability.
        min_p: Drop tokens less likely than this share of the likeliest.
        repetition_penalty: Above 1, tokens that occurred already become less likely.
        seed: Of the draws.
        beyond_context: Go on beyond the context that the model is meant for.
        beams: Search for the most probable text with so many beams instead of drawing.
        ablate: Heads, or sites of the forward pass, that are set to zero.
        steer: Vectors, from safetensors files, that are added at a site; a factor of 1 and the name of a file's only
            tensor may be left out.
        dictionary: Folder of a dictionary of the model, as the command features trains it; or one that ships,
            MODEL/SITE.
        features: Features of the dictionary that are set to an activation (17=5) or scaled (3*0).
        steer_from: Position from which --steer and --features hold, as the text that was read counts them.
        read: Sites, or heads' (L1H6.pattern), that are recorded in --json.
        json: Write ids, texts and what was recorded as JSON, as docs/results-json.md describes it; the text is then
            printed when it is whole.
        out: Of a model that makes images: picture to write (.png, .svg, .pdf); images.png by default.
    """
    from glassformer.models import Sampling

    drawing = {"temperature": temperature or None, "top-k": top_k, "top-p": top_p, "min-p": min_p}
    drawing["repetition-penalty"] = None if repetition_penalty == 1.0 else repetition_penalty
    if beams is not None and (asked := [f"--{name}" for name, value in drawing.items() if value is not None]):
        raise ConfigError(
            f"--beams looks for the most probable text, and draws nothing: {', '.join(asked)} would do nothing. Leave "
            "out one or the other."
        )
    require(not read or (json is not None and beams is None), _READ)
    output = Output(json=json)
    check(output)
    loaded = model_of(model, opening, images=True)
    if loaded.config.denoises is not None:
        said = drawing | {"temperature": temperature, "max-new-tokens": max_new_tokens, "beams": beams, "json": json}
        said |= {"ablate": ablate, "steer": steer, "read": read, "beyond-context": beyond_context}
        said |= {"dictionary": dictionary, "features": features, "steer-from": steer_from}
        asked = [f"--{name}" for name, one in said.items() if one not in (None, (), False)]
        return make_images(loaded, text, seed, out, asked)
    require_text(loaded)
    require(out is None, "--out is of a model that makes images; this one writes text. Give --json FILE.")
    require(
        steer_from is None or bool(steer or features), "--steer-from says where --steer or --features begin: give one."
    )
    require(
        steer_from is None or steer_from >= 0, "--steer-from counts from the begin of the text, since its end moves."
    )
    loaded, set_features = steered(loaded, dictionary, features, steer_from)
    given, tokenizer = prompt_of(loaded, text, opening.chat), loaded.tokenizer
    if temperature is None:
        temperature = 0.0 if loaded.reads_pairs else 1.0
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    inputs = _inputs(loaded, given, beyond_context)
    stops = loaded.stops
    left = loaded.config.max_len - len(inputs.token_rows[0]) + 1
    room = NEW_TOKENS if beyond_context else max(1, min(NEW_TOKENS, left))
    options: dict[str, Any] = {
        "max_new_tokens": room if max_new_tokens is None else max_new_tokens, "stop_ids": stops,
        "beyond_context": beyond_context, "edit": [*edits_of(ablate, steer, steer_from), *set_features],
    }  # fmt: skip
    # refuses what cannot be generated before anything is printed
    drawn, found = _drawn(loaded, inputs, sampling, beams, read, options, whole=json is not None)
    reading = _shown(inputs)
    # first, since who reads the text may have seen enough before its end
    told = {"text": given if isinstance(given, str) else None, "seed": seed, "beams": beams} | drawing
    told |= {"temperature": None if beams is not None else temperature}
    told |= {"ablate": list(ablate) or None, "steer": list(steer) or None, "read": list(read) or None}
    told |= {"dictionary": None if dictionary is None else str(dictionary), "features": list(features) or None}
    told |= {"steer_from": steer_from, "chat": opening.chat or None}
    with contextlib.redirect_stdout(sys.stderr):
        deliver("generate", loaded, told, [found], output, reading, shown=())
    # on standard error: the text itself goes on into other programs
    tell(reading)
    if not loaded.reads_pairs and not opening.chat:
        _show(given if isinstance(given, str) else " ".join(map(str, given)))
    later: dict[Note, None] = {}
    new = (id for id in _noting(drawn, later) if id not in stops)
    try:
        if tokenizer is None:
            print("", *new)
        else:
            _print(tokenizer, new)
    finally:
        # behind the text, which notes would break in two on a terminal; also of one that was interrupted
        tell(TokensRead({}, tuple(note for note in later if note not in reading.notes)))


def _inputs(model: "ModelLike", given: str | list[int], beyond_context: bool) -> "Inputs":
    """Return what is read before anything is generated: the prompt, or a source and what its target starts from."""
    from glassformer.models.reading import read_opening

    if not model.reads_pairs:
        return read_opening(model, given)
    return read_opening(model, None, source=given, beyond_context=beyond_context)


def _shown(inputs: "Inputs") -> TokensRead:
    """Return the text that was given as tokens, and what must be known of it."""
    side = inputs.output if inputs.source is None else inputs.source
    return TokensRead({"reads": side.tokens}, inputs.notes, {"reads": side.marks})


def _drawn(
    model: "ModelLike",
    inputs: "Inputs",
    sampling: "Sampling",
    beams: int | None,
    read: tuple[str, ...],
    options: dict[str, Any],
    *,
    whole: bool,
) -> "tuple[Drawn, Any]":
    """Return tokens as they are drawn, or those of the best beam; each with what must be known from there on.

    With them stands the result, if it is wanted whole.
    """
    from glassformer.models import beam_search, generate, stream

    if beams is not None:
        found = beam_search(model, inputs, n_beams=beams, **options)
        return ((id, found.notes) for id in found.best[0].tokens), found
    if whole:
        made = generate(model, inputs, sampling, read=read, **options)
        return ((id, made.notes) for id in made.tokens[0]), made
    return ((step.tokens[0], step.notes) for step in stream(model, inputs, sampling, **options)), None


def _noting(drawn: "Drawn", notes: "dict[Note, None]") -> Iterator[int]:
    """Yield the tokens, and collect what must be known of them."""
    for id, told in drawn:
        notes.update(dict.fromkeys(told))
        if id is not None:
            yield id


def _show(text: str) -> None:
    """Print a part of the text: to other programs as it is, to a terminal without what would steer it."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def _print(tokenizer: Any, ids: Iterable[int]) -> None:
    """Print tokens as they come; a character spread over several tokens appears when it is whole.

    A model may have more ids than its tokenizer has tokens, and those appear as `<id>`.
    """
    seen: list[int] = []
    shown = ""
    for id in ids:
        if id >= tokenizer.vocab_size:
            _show(f"{tokenizer.decode(seen)[len(shown) :]}<{id}>")
            seen, shown = [], ""
            continue
        seen.append(id)
        text = tokenizer.decode(seen)
        # a replacement character at the end may become something else with the next byte
        whole = text.rstrip("\ufffd")
        if whole.startswith(shown):
            _show(whole[len(shown) :])
            shown = whole
    _show(tokenizer.decode(seen)[len(shown) :] + "\n")
