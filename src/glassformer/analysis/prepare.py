"""From what a caller gives to what a module reads: a generated target, and arguments of modules we did not write.

All else a model of ours reads itself: see `models.reading`.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.data.tokenizer import Specials, Tokenizer
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError, nearest, outside_vocabulary
from glassformer.models import GREEDY, Model, ModelLike, ModuleLike, generate
from glassformer.models.padding import WHOLE, Padding
from glassformer.models.reading import (
    Inputs,
    Side,
    encode,
    joined,
    notes_of,
    read_side,
    require_unsaid,
    tokenizer_for,
    tokenizer_of,
)
from glassformer.numerics.placement import place_of
from glassformer.provenance import Note, tell
from glassformer.trace import Foreign


def prepare(
    model: ModuleLike,
    inputs: Any,
    target: Any = None,
    *,
    specials: Specials = None,
    lengths: Any = None,
    mask: Any = None,
    allow_unknown: bool = False,
) -> Inputs:
    """Return what a forward pass reads; see `run` for what is accepted and what is raised."""
    pairs = isinstance(model, Model) and model.reads_pairs
    if target is not None and (not pairs or isinstance(inputs, Batch)):
        why = "a Batch brings its own" if pairs else "this model has no encoder"
        raise ShapeMismatch(f"`target` is the decoder's text of an encoder-decoder; {why}.")
    said: dict[str, Any] = {
        "specials": specials, "lengths": lengths, "mask": mask, "allow_unknown": allow_unknown,
    }  # fmt: skip
    if not isinstance(model, Model):
        found = _foreign(model, inputs, **said)
    elif isinstance(inputs, Batch) or not pairs:
        found = model.read(inputs, **said)
    elif target is None:
        found = _translated(model, read_side(model, inputs, "source", **said))
    else:
        found = model.read(target, source=inputs, **said)
    tell(found.notes)
    return found


def _translated(model: Model, source: Side) -> Inputs:
    """Return a source with what the decoder says to it, greedily: the token that it begins with, up to `<eos>`."""
    if not model.start:
        raise TextError("generating a target needs a tokenizer with a beginning token; give target=… instead.")
    assert source.ids is not None, "a model of ours reads ids"
    starts = read_side(model, [model.start] * len(source.tokens), "opening")
    longest = min(model.config.max_len - 1, 2 * source.ids.shape[1] + 16)
    made = generate(model, joined(model, starts, source), GREEDY, max_new_tokens=longest)
    rows = [[*model.start, *row] for row in made.trimmed]
    return joined(model, read_side(model, rows, "opening"), source, generated=True)


def next_tokens(model: ModelLike, given: Any, analysis: str) -> Batch:
    """Return texts or ids as a batch whose targets are their next tokens; a `Batch` as it is; where the model is.

    Args:
        model: What reads them.
        given: A `Batch`; or, for a decoder, a text, ids, or several of either, of any lengths.
        analysis: Named in errors.

    Raises:
        AnalysisUnavailable: An encoder-decoder, which reads pairs, or a model whose logits are of other tokens.
    """
    if model.patches is not None:
        raise AnalysisUnavailable(f"{analysis} asks how next tokens are predicted, and this model reads images.")
    if isinstance(given, Batch):
        return given.to(place_of(model))
    if model.reads_pairs or not model.generates:
        raise AnalysisUnavailable(f"{analysis}: an encoder-decoder reads pairs; give a Batch with source and tokens.")
    model.require_one_vocabulary(f"{analysis}, on texts whose next tokens are the targets,")
    read = model.read(given)
    ids = read.require_ids(analysis)
    if read.lengths is None:
        return next_token_batch(ids)
    counts = read.lengths - 1
    weight = torch.arange(ids.shape[1] - 1, device=ids.device) < counts[:, None]
    # a text of one token has no next one, and its row still reads something
    return next_token_batch(ids, weight, lengths=counts.clamp_min(1))


def rows_by_length(model: Model, given: Any, analysis: str) -> list[Int[Tensor, "batch pos"]]:
    """Return texts or ids, one or several, as rows of ids: those of one length together, the longest first.

    Args:
        model: What reads them.
        given: A text, ids, several of either, of any lengths, or a `Batch`, of which each row is one text.
        analysis: Named in errors.

    Raises:
        ShapeMismatch: A row of a `Batch` holds several documents.
    """
    read = model.read(given)
    ids, counts, documents = read.require_ids(analysis), read.lengths, read.kwargs.get("documents")
    if documents is not None and bool(((documents != documents[:, :1]) & read.output.padding.real(ids)).any()):
        raise ShapeMismatch(
            f"{analysis} takes each row for one text, and rows of this Batch hold several documents.\n"
            "    Give the documents by themselves: texts, or rows of ids, of any lengths."
        )
    if counts is None:
        return [ids]
    return [ids[counts == length, :length] for length in counts.unique().flip(0).tolist()]


def require_one_prompt(found: int, analysis: str) -> None:
    """Raise `ShapeMismatch`, which says how to ask of several, unless there is one prompt."""
    if found != 1:
        raise ShapeMismatch(
            f"{analysis} is of one prompt at a time, and was given {found}.\n"
            f"    Of several: [{analysis}(model, one, …) for one in prompts]."
        )


def token_id(model: ModuleLike, token: str | int) -> int:
    """Return the id of a token that the model reads, given as text or id.

    Raises:
        AnalysisUnavailable: The model reads images.
        TextError: The text is several tokens, or unknown to the vocabulary.
        TokenOutOfRange: There is no such id.
    """
    if isinstance(model, Model) and model.patches is not None:
        raise AnalysisUnavailable("a token is meant, and this model reads images, whose patches are vectors.")
    # a module we did not write need not say how many tokens it knows
    known = getattr(getattr(model, "config", None), "vocab_size", None)
    return _id(model, token, tokenizer_of(model), known)


def answer_id(model: ModuleLike, answer: str | int) -> int:
    """Return the id of a token that logits are of, given as text or id; raises as `token_id`."""
    if not isinstance(model, Model) or model.one_vocabulary():
        return token_id(model, answer)
    return _id(model, answer, model.output_tokenizer, model.config.n_outputs)


def _id(model: ModuleLike, token: str | int, tokenizer: Any, known: int | None) -> int:
    if isinstance(token, int):
        if token < 0 or (known is not None and token >= known):
            raise outside_vocabulary(token, known)
        return token
    special = {name: id for id, name in getattr(tokenizer, "specials", {}).items()}
    if token in special:
        return special[token]
    if tokenizer is None and tokenizer_of(model) is not None:
        raise TextError("this model's outputs have no names: give the answer's id, or set model.output_tokenizer.")
    tokenizer = tokenizer_for(model, tokenizer)
    ids = tokenizer.continuing(token)
    if not ids:
        raise TextError("the text is empty: give at least one token.")
    if len(ids) > 1:
        parts = " ".join(repr(tokenizer.token(i)) for i in ids)
        raise TextError(
            f"{token!r} is {len(ids)} tokens ({parts}), and one next token is explained: give the first."
            + _nearest_token(tokenizer, token)
        )
    if ids[0] == tokenizer.unk:
        raise TextError(f"{token!r} is not in the vocabulary.{_nearest_token(tokenizer, token)}")
    return ids[0]


def _nearest_token(tokenizer: Tokenizer, text: str) -> str:
    """Return which token is spelled most like a text, as errors say it."""
    tokens = (tokenizer.token(id) for id in range(tokenizer.vocab_size))
    return nearest(text, (token for token in tokens if token.isprintable()))


def asked_position(model: ModuleLike, ids: Int[Tensor, " pos"] | None) -> int:
    """Return the position that a text asks about: the last (-1), or where an encoder stands for a text or has a mask.

    Classes of a text or an image are told at its first position by an encoder, which otherwise is asked at its first
    mask.
    """
    if not isinstance(model, Model) or model.predicts_next:
        return -1
    if model.logits_of in ("text_class", "image_class"):
        return 0
    if model.tokenizer is None or ids is None:
        return -1
    if (mask := model.tokenizer.roles.mask) is None:
        return -1
    found = (ids == mask).nonzero().flatten().tolist()
    return found[0] if found else -1


def _foreign(
    model: ModuleLike,
    inputs: Any,
    *,
    specials: Specials,
    lengths: Any,
    mask: Any,
    allow_unknown: bool,
) -> Inputs:
    """Return arguments for a module we know nothing about."""
    if inputs is None:
        raise ShapeMismatch("expected a text, token ids or the arguments that the module takes; found None.")
    tokenizer, text = tokenizer_of(model), inputs if isinstance(inputs, str) else None
    named: tuple[Note, ...] = ()
    if isinstance(inputs, Batch):
        require_unsaid(lengths, mask)
        inputs = _rows_of_batch(model, inputs)
    if lengths is not None or mask is not None:
        inputs = _told_of_padding(model, inputs, lengths, mask)
    if text is not None:
        if tokenizer is None:
            raise TextError("this model has no tokenizer that we know of: give it the tensors it takes.")
        reader = tokenizer_for(model, tokenizer, specials)
        ids = encode(reader, text, allow_unknown=allow_unknown, model=getattr(model, "name", ""))
        named = reader.notes_on_names([text])
        inputs = torch.tensor([ids], device=place_of(model))
    args, kwargs, real = (), dict[str, Any](), None
    if isinstance(inputs, Mapping):
        ids, real, kwargs = inputs.get("input_ids"), inputs.get("attention_mask"), dict(inputs)
    else:
        args = inputs if isinstance(inputs, tuple) else (_integers(inputs) if isinstance(inputs, list) else inputs,)
        ids = args[0] if args else None
    if not (isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point()):
        return Inputs(Side(), None, args, kwargs)
    padded = WHOLE
    if isinstance(real, Tensor) and real.shape == ids.shape:
        # what the module makes of a mask with holes is its own affair
        with contextlib.suppress(ShapeMismatch):
            padded = Padding.masked(ids, real)
    side = Side.of(tokenizer, ids, padded, model=getattr(model, "name", ""), text=text)
    side = dataclasses.replace(side, text=text, odd=(*side.odd, *named))
    return Inputs(side, None, args, kwargs, notes=notes_of(model, side))


def _rows_of_batch(model: ModuleLike, batch: Batch) -> Tensor:
    """Return the ids of a batch that has nothing else to say.

    Raises:
        ShapeMismatch: It has padding, documents or a source, of which the module cannot be told.
    """
    whole = batch.lengths is None or bool((batch.lengths == batch.tokens.shape[1]).all())
    if batch.source is not None or batch.documents is not None or not whole:
        raise ShapeMismatch(
            f"{type(model).__name__} is no model of ours, so how it is told of padding, documents or a source is not "
            "known.\n    Give the arguments it takes: {'input_ids': …, 'attention_mask': …}, or rows of one length."
        )
    return batch.tokens


def _told_of_padding(model: ModuleLike, inputs: Any, lengths: Any, mask: Any) -> dict[str, Tensor]:
    """Return ids and their padding as keyword arguments, if the module takes them by the names most modules have.

    Raises:
        ShapeMismatch: It does not, or what was given is no ids.
    """
    module = model.module if isinstance(model, Foreign) else model
    known = inspect.signature(module.forward).parameters
    if not {"input_ids", "attention_mask"} <= set(known):
        raise ShapeMismatch(
            f"how {type(module).__name__} is told of padding is not known: it takes {', '.join(known)}.\n"
            "    Give the arguments it takes, as a mapping: {'name': …}, or rows of one length."
        )
    ids = _integers(inputs).to(place_of(model))
    padded = Padding.said(ids, lengths, mask)
    real = padded.real(ids)
    told = {"input_ids": ids, "attention_mask": real.long()}
    if padded.start is not None and "position_ids" in known:
        told["position_ids"] = (real.long().cumsum(-1) - 1).clamp_min(0)
    return told


def _integers(given: Any) -> Int[Tensor, "batch pos"]:
    try:
        return torch.atleast_2d(torch.as_tensor(given))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ShapeMismatch(f"expected token ids in rows of one length ({error}).") from error
