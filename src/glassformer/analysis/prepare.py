"""From what a caller gives (text, ids, a batch, arguments of any module) to what a model reads."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.analysis.reading import check_known, mark_notes, marked, rows_note, specials_note
from glassformer.data import UNMARKED, Batch, Marks, Tokenizer
from glassformer.data.tokenizer import Reading
from glassformer.errors import ShapeMismatch, TextError, TokenOutOfRange
from glassformer.models import GREEDY, Decoder, Encoder, EncoderDecoder, Model, ModelLike, ModuleLike, generate
from glassformer.models.generate import padded
from glassformer.notes import Note, distinct, tell


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """Arguments of one forward pass, and what is known about the tokens in it; fields as in `Run`."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ids: Tensor | None = None
    token_rows: Sequence[Sequence[str]] = ()
    source_ids: Tensor | None = None
    source_rows: Sequence[Sequence[str]] = ()
    lengths: Tensor | None = None
    text: str | None = None
    generated: bool = False
    notes: tuple[Note, ...] = ()
    marks: Marks = UNMARKED
    source_marks: Marks = UNMARKED

    @property
    def shown(self) -> list[Any]:
        """What to say of the input: the text if it was one, else ids, else what the module took."""
        if self.text is not None:
            return [self.text] if self.source_ids is None or self.generated else [self.text, self.ids]
        ids = [value for value in (self.source_ids, None if self.generated else self.ids) if value is not None]
        return ids or [*self.args, *self.kwargs.values()]


def prepare(
    model: ModuleLike, inputs: Any, target: Any, specials: bool | None = None, allow_unknown: bool = False
) -> Inputs:
    """Return the arguments of a forward pass; see `run` for what is accepted and what is raised."""
    found = _prepared(model, inputs, target, specials, allow_unknown)
    marks = marked(model, found.ids, found.token_rows)
    source = marked(model, found.source_ids, found.source_rows)
    of = "text" if found.source_ids is None else "target"
    odd = *mark_notes(model, source, "source"), *mark_notes(model, marks, of)
    notes = distinct(found.notes, odd, rows_note(model, found.source_rows, found.token_rows))
    tell(notes)
    return dataclasses.replace(found, notes=notes, marks=marks, source_marks=source)


def _prepared(model: ModuleLike, inputs: Any, target: Any, specials: bool | None, allow_unknown: bool) -> Inputs:
    if isinstance(inputs, Batch):
        ours = isinstance(model, Decoder | Encoder | EncoderDecoder)
        return _batch(model, inputs) if ours else _foreign_batch(model, inputs)
    text = inputs if isinstance(inputs, str) else None
    if isinstance(model, EncoderDecoder):
        return _pair(model, inputs, target, text, specials, allow_unknown)
    if target is not None:
        raise ShapeMismatch("`target` is the decoder's text of an encoder-decoder; this model has no encoder.")
    if isinstance(model, Decoder | Encoder):
        ids = token_ids(model, inputs, specials=specials, allow_unknown=allow_unknown)
        notes = said(model, inputs, "prompt", specials)
        return Inputs((ids,), {}, ids, readable(model, ids), text=text, notes=notes)
    return _foreign(model, inputs, text, allow_unknown)


def token_ids(
    model: ModelLike,
    given: Any,
    reading: Reading = "prompt",
    specials: bool | None = None,
    allow_unknown: bool = False,
) -> Tensor:
    """Return `batch pos` ids of a text (with the specials of such a text) or of ids, checked against the model."""
    device = next(model.parameters()).device
    if isinstance(given, str):
        ids = torch.tensor([encode(model, given, reading, specials, allow_unknown)], device=device)
    else:
        try:
            ids = torch.as_tensor(given, device=device)
        except (TypeError, ValueError) as error:
            raise ShapeMismatch(f"expected a text, or token ids in rows of one length ({error}).") from error
    if ids.is_floating_point() or ids.is_complex() or ids.ndim not in (1, 2):
        kind = f"{str(ids.dtype).removeprefix('torch.')} with {ids.ndim} axes"
        raise ShapeMismatch(f"token ids are integers with axes `pos` or `batch pos`; found {kind}.")
    ids = torch.atleast_2d(ids).long()
    if ids.numel() == 0:
        raise TextError("there is no token to run on: give at least one.")
    vocab, length, limit = model.config.vocab_size, ids.shape[1], model.config.max_len
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab:
        raise TokenOutOfRange(f"token id {low if low < 0 else high} is outside the vocabulary: 0 to {vocab - 1}.")
    if length > limit:
        raise TextError(
            f"{length} tokens, but the context of this model is {limit}; shorten the text to {limit} tokens."
        )
    return ids


def encode(
    model: ModuleLike,
    text: str,
    reading: Reading = "prompt",
    specials: bool | None = None,
    allow_unknown: bool = False,
) -> list[int]:
    """Return the ids of a text; in that of an encoder, the mask token's name is the mask token.

    Args:
        model: One of ours with a tokenizer.
        text: The text.
        reading: What it is, which decides on the specials around it.
        specials: In place of the tokenizer's own way: always (True) or never (False).
        allow_unknown: Take a text of which more than half is outside the vocabulary.

    Raises:
        TextError: The text is empty, or more than half of it is unknown, or the model has no tokenizer.
    """
    tokenizer = _tokenizer(model, specials)
    if isinstance(model, Encoder):
        tokenizer = tokenizer.naming(tokenizer.roles.mask, text)
    ids = tokenizer.encode(text)
    if not ids:
        raise TextError("the text is empty: give at least one token.")
    if not allow_unknown:
        check_known(model, tokenizer, text, ids)
    begin, end = tokenizer.around(reading)
    return [*begin, *ids, *end]


def said(
    model: ModuleLike, given: Any, reading: Reading, specials: bool | None = None, first: tuple[int, ...] = ()
) -> tuple[Note, ...]:
    """Return which specials, `first` and the tokenizer's, were put around what was given: no note around ids."""
    return specials_note(_tokenizer(model, specials).said(reading, first)) if isinstance(given, str) else ()


def _tokenizer(model: ModuleLike, specials: bool | None) -> Tokenizer:
    tokenizer: Tokenizer | None = getattr(model, "tokenizer", None)
    if tokenizer is None:
        missing = getattr(model, "no_tokenizer", "")
        why = f"\n    {missing}" if missing else ""
        raise TextError(f"this model has no tokenizer: give token ids, or set model.tokenizer first.{why}")
    return tokenizer if specials is None else tokenizer.adding(specials)


def token_id(model: ModuleLike, token: str | int) -> int:
    """Return the id of a token given as text or id.

    Raises:
        TextError: The text is several tokens, or unknown to the vocabulary.
        TokenOutOfRange: There is no such id.
    """
    if isinstance(token, int):
        # a module we did not write need not say how many tokens it knows
        known = getattr(getattr(model, "config", None), "vocab_size", None)
        if token < 0 or (known is not None and token >= known):
            raise TokenOutOfRange(f"token id {token} is outside the vocabulary: 0 to {(known or 0) - 1}.")
        return token
    tokenizer: Any = getattr(model, "tokenizer", None)
    special = {name: id for id, name in getattr(tokenizer, "specials", {}).items()}
    if token in special:
        return special[token]
    ids = _tokenizer(model, None).continuing(token)
    if not ids:
        raise TextError("the text is empty: give at least one token.")
    if len(ids) > 1:
        parts = " ".join(repr(tokenizer.token(i)) for i in ids)
        raise TextError(f"{token!r} is {len(ids)} tokens ({parts}), and one next token is explained: give the first.")
    if ids[0] == tokenizer.unk:
        raise TextError(f"{token!r} is not in the vocabulary.")
    return ids[0]


def asked_position(model: ModuleLike, ids: Int[Tensor, " pos"]) -> int:
    """Return the position that a text asks about: the first masked one of an encoder's, otherwise the last (-1)."""
    if not isinstance(model, Encoder) or model.tokenizer is None or (mask := model.tokenizer.roles.mask) is None:
        return -1
    found = (ids == mask).nonzero().flatten().tolist()
    return found[0] if found else -1


def readable(model: ModuleLike, ids: Tensor, lengths: Tensor | None = None) -> list[list[str]]:
    """Return each row's tokens as text, or as numbers if the model has no tokenizer."""
    rows: list[list[int]] = ids.tolist()
    if lengths is not None:
        rows = [row[:n] for row, n in zip(rows, lengths.tolist())]
    tokenizer: Any = getattr(model, "tokenizer", None)
    if not hasattr(tokenizer, "tokens"):
        return [[str(i) for i in row] for row in rows]
    # a model may have more rows in its embedding than its tokenizer has tokens
    known = tokenizer.vocab_size
    return [[tokenizer.token(i) if i < known else f"<{i}>" for i in row] for row in rows]


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of ids; those that a model has beyond its tokenizer's tokens appear as `<id>`."""
    known, parts = tokenizer.vocab_size, []
    for beyond, some in itertools.groupby(ids, lambda id: id >= known):
        run = list(some)
        parts += [f"<{id}>" for id in run] if beyond else [tokenizer.decode(run)]
    return "".join(parts)


def translated(model: EncoderDecoder, source: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return what the decoder reads if it continues itself greedily: `<bos>` and tokens up to `<eos>`; and lengths."""
    start, tokenizer = start_of(model), model.tokenizer
    if start is None:
        raise TextError("generating a target needs a tokenizer with a beginning token; give target=… instead.")
    stops = () if tokenizer is None else tokenizer.roles.stops
    room = min(model.config.max_len - 1, 2 * source.shape[1] + 16)
    made = generate(model, [[start]] * len(source), GREEDY, max_new_tokens=room, stop_ids=stops, source=source)
    return padded(model, [[start, *row] for row in made.trimmed], left=False)


def start_of(model: EncoderDecoder) -> int | None:
    """Return the token that the decoder's text starts with; None if neither config nor tokenizer say."""
    if model.config.start_id is not None:
        return model.config.start_id
    return None if model.tokenizer is None else model.tokenizer.bos


def _pair(
    model: EncoderDecoder, source: Any, target: Any, text: str | None, specials: bool | None, allow_unknown: bool
) -> Inputs:
    source_ids = token_ids(model, source, "source", specials, allow_unknown)
    if generated := target is None:
        ids, lengths = translated(model, source_ids)
    else:
        ids, lengths = _target_ids(model, target, specials, allow_unknown), None
    start = () if (first := start_of(model)) is None else (first,)
    notes = (*said(model, source, "source", specials), *said(model, target, "target", specials, start))
    if len(ids) != len(source_ids):
        raise ShapeMismatch(f"source has batch={len(source_ids)}, target has batch={len(ids)}.")
    rows, source_rows = readable(model, ids, lengths), readable(model, source_ids)
    kwargs = {"lengths": lengths}
    return Inputs((source_ids, ids), kwargs, ids, rows, source_ids, source_rows, lengths, text, generated, notes)


def _target_ids(model: EncoderDecoder, target: Any, specials: bool | None, allow_unknown: bool) -> Tensor:
    """Return the ids of the decoder's text, which begins as the model is used to; ids are taken as they are."""
    if not isinstance(target, str):
        return token_ids(model, target)
    start, ids = start_of(model), encode(model, target, "target", specials, allow_unknown)
    return token_ids(model, ids if start is None else [start, *ids])


def _batch(model: Model, batch: Batch) -> Inputs:
    ids = token_ids(model, batch.tokens)
    if batch.source is None:
        kwargs = {"lengths": batch.lengths, "documents": batch.documents}
        return Inputs((ids,), kwargs, ids, readable(model, ids, batch.lengths), lengths=batch.lengths)
    source = token_ids(model, batch.source)
    kwargs = {"lengths": batch.lengths, "source_lengths": batch.source_lengths}
    rows, source_rows = readable(model, ids, batch.lengths), readable(model, source, batch.source_lengths)
    return Inputs((source, ids), kwargs, ids, rows, source, source_rows, batch.lengths)


def _foreign_batch(model: ModuleLike, batch: Batch) -> Inputs:
    whole = batch.lengths is None or bool((batch.lengths == batch.tokens.shape[1]).all())
    if batch.source is not None or batch.documents is not None or not whole:
        raise ShapeMismatch(
            f"{type(model).__name__} is no model of ours, so how it is told of padding, documents or a source is not "
            "known.\n    Give the arguments it takes: {'input_ids': …, 'attention_mask': …}, or rows of one length."
        )
    return _foreign(model, batch.tokens, None)


def _foreign(model: ModuleLike, inputs: Any, text: str | None, allow_unknown: bool = False) -> Inputs:
    """Return arguments for a module we know nothing about."""
    if text is not None:
        if getattr(model, "tokenizer", None) is None:
            raise TextError("this model has no tokenizer that we know of: give it the tensors it takes.")
        ids = encode(model, text, allow_unknown=allow_unknown)
        inputs = torch.tensor([ids], device=next((p.device for p in model.parameters()), None))
    if isinstance(inputs, Mapping):
        ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        args, kwargs = (), dict(inputs)
    else:
        args, kwargs, mask = inputs if isinstance(inputs, tuple) else (inputs,), {}, None
        if isinstance(inputs, list):
            args = (torch.atleast_2d(torch.as_tensor(inputs)),)
        ids = args[0] if args else None
    if not (isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point()):
        return Inputs(args, kwargs)
    lengths = _lengths(ids, mask)
    return Inputs(args, kwargs, ids, readable(model, ids, lengths), lengths=lengths, text=text)


def _lengths(ids: Tensor, mask: Any) -> Tensor | None:
    """Return the real tokens per row, if a mask of zeros and ones says that rows are padded on the right."""
    if not isinstance(mask, Tensor) or mask.shape != ids.shape or bool(mask.bool().all()):
        return None
    lengths = mask.bool().sum(1)
    right = torch.arange(ids.shape[1], device=ids.device) < lengths.to(ids.device)[:, None]
    return lengths if bool((right == mask.bool().to(ids.device)).all()) else None
