"""From what a caller gives (text, ids, a batch, arguments of any module) to what a model reads."""

import contextlib
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.analysis.reading import marked, rows_note, specials_note
from glassformer.arguments import shown
from glassformer.data import UNMARKED, Batch, Marks, Tokenizer
from glassformer.data.batch import next_token_batch
from glassformer.data.marks import mark_notes
from glassformer.data.tokenizer import Reading
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError, TokenOutOfRange
from glassformer.models import GREEDY, Decoder, Encoder, EncoderDecoder, Model, ModelLike, ModuleLike, generate
from glassformer.models.generate import padded
from glassformer.models.padding import WHOLE, AskedPadding, Padding, rows_of
from glassformer.models.readable import readable
from glassformer.numerics.placement import place_of
from glassformer.provenance import Note, distinct, tell
from glassformer.trace import Foreign


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
    start: Tensor | None = None
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
    model: ModuleLike,
    inputs: Any,
    target: Any,
    specials: bool | None = None,
    padding: AskedPadding | None = None,
    allow_unknown: bool = False,
) -> Inputs:
    """Return the arguments of a forward pass; see `run` for what is accepted and what is raised."""
    if inputs is None:
        raise ShapeMismatch("there is nothing to run on: expected a text, token ids or a Batch; found None.")
    found = _prepared(model, inputs, target, specials, padding, allow_unknown)
    marks = marked(model, found.ids, found.token_rows)
    source = marked(model, found.source_ids, found.source_rows, of_source=True)
    of = "text" if found.source_ids is None else "target"
    name = getattr(model, "name", "")
    odd = *mark_notes(source, "source", name), *mark_notes(marks, of, name)
    notes = distinct(found.notes, odd, rows_note(model, found.source_rows, found.token_rows))
    tell(notes)
    return dataclasses.replace(found, notes=notes, marks=marks, source_marks=source)


def _prepared(
    model: ModuleLike,
    inputs: Any,
    target: Any,
    specials: bool | None,
    padding: AskedPadding | None,
    allow_unknown: bool,
) -> Inputs:
    ours = isinstance(model, Decoder | Encoder | EncoderDecoder)
    if isinstance(inputs, Batch):
        if padding is not None:
            raise ShapeMismatch("a Batch says itself which of its tokens are real; leave lengths= and mask= out.")
        return _batch(model, inputs) if ours else _foreign_batch(model, inputs)
    text = inputs if isinstance(inputs, str) else None
    if isinstance(model, EncoderDecoder):
        return _pair(model, inputs, target, text, specials, padding, allow_unknown)
    if target is not None:
        raise ShapeMismatch("`target` is the decoder's text of an encoder-decoder; this model has no encoder.")
    if not isinstance(model, Decoder | Encoder):
        return _foreign(model, inputs, text, padding, allow_unknown)
    ids, padded = _rows(model, inputs, "prompt", specials, padding, allow_unknown)
    kwargs = {"lengths": padded.lengths} if padded.is_any else {}
    if padded.start is not None:
        # on the left, that is all there is to say
        kwargs = {"start": padded.start}
    notes, rows = said(model, inputs, "prompt", specials), readable(model, ids, padded)
    return Inputs((ids,), kwargs, ids, rows, lengths=padded.lengths, text=text, notes=notes, start=padded.start)


def real_lengths(given: Any, of_source: bool) -> Tensor | None:
    """Return how many tokens of each row of `Inputs` or a `Run` are real, an encoder's or a decoder's; None for all."""
    if not of_source or given.source_ids is None:
        return given.lengths
    counts = [len(row) for row in given.source_rows]
    whole = all(count == given.source_ids.shape[1] for count in counts)
    return None if whole else torch.tensor(counts, device=given.source_ids.device)


def _rows(
    model: Model,
    given: Any,
    reading: Reading,
    specials: bool | None,
    padding: AskedPadding | None,
    allow_unknown: bool = False,
) -> tuple[Tensor, Padding]:
    """Return `batch pos` ids and their padding: of several texts or rows of unequal length, on the right."""
    given = rows_of(given)
    if padding is None and is_ragged(given):
        rows = [
            encode(model, row, reading, specials, allow_unknown) if isinstance(row, str) else list(row) for row in given
        ]
        if not all(rows):
            raise TextError(f"row {[len(row) for row in rows].index(0)} holds no token: give at least one.")
        counts = torch.tensor([len(row) for row in rows], device=place_of(model))
        longest = int(counts.max())
        ids = token_ids(model, [row + row[:1] * (longest - len(row)) for row in rows], reading)
        return ids, Padding.of(ids, counts)
    ids = token_ids(model, given, reading, specials, allow_unknown)
    return ids, Padding() if padding is None else padding.on(ids)


def next_tokens(model: ModelLike, given: Any, analysis: str) -> Batch:
    """Return texts or ids as a batch whose targets are their next tokens; a `Batch` as it is; where the model is.

    Args:
        model: What reads them.
        given: A `Batch`; or, for a decoder, a text, ids, or several of either, of any lengths.
        analysis: Named in errors.

    Raises:
        AnalysisUnavailable: An encoder-decoder, which reads pairs, or a model whose logits are of other tokens.
    """
    if isinstance(given, Batch):
        return given.to(place_of(model))
    if not isinstance(model, Decoder):
        raise AnalysisUnavailable(f"{analysis}: an encoder-decoder reads pairs; give a Batch with source and tokens.")
    model.require_one_vocabulary(f"{analysis}, on texts whose next tokens are the targets,")
    ids, padding = _rows(model, given, "prompt", None, None)
    if padding.lengths is None:
        return next_token_batch(ids)
    counts = padding.lengths - 1
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
    if isinstance(given, Batch):
        batch = given.to(place_of(model))
        ids = token_ids(model, batch.tokens)
        padding = Padding.of(ids, batch.lengths)
        documents = batch.documents
        if documents is not None and bool(((documents != documents[:, :1]) & padding.real(ids)).any()):
            raise ShapeMismatch(
                f"{analysis} takes each row for one text, and rows of this Batch hold several documents.\n"
                "    Give the documents by themselves: texts, or rows of ids, of any lengths."
            )
    else:
        ids, padding = _rows(model, given, "prompt", None, None)
    if padding.lengths is None:
        return [ids]
    lengths = padding.lengths.unique().flip(0).tolist()
    return [ids[padding.lengths == length, :length] for length in lengths]


def require_one_prompt(found: int, analysis: str) -> None:
    """Raise `ShapeMismatch`, which says how to ask of several, unless there is one prompt."""
    if found != 1:
        raise ShapeMismatch(
            f"{analysis} is of one prompt at a time, and was given {found}.\n"
            f"    Of several: [{analysis}(model, one, …) for one in prompts]."
        )


def is_ragged(given: Any) -> bool:
    """Whether what was given is several texts, or several rows of ids that differ in length."""
    if not isinstance(given, list | tuple) or not given:
        return False
    if all(isinstance(row, str) for row in given):
        return True
    lists = all(isinstance(row, list | tuple) and all(isinstance(i, Integral) for i in row) for row in given)
    return lists and len({len(row) for row in given}) > 1


def token_ids(
    model: ModelLike,
    given: Any,
    reading: Reading = "prompt",
    specials: bool | None = None,
    allow_unknown: bool = False,
) -> Tensor:
    """Return `batch pos` ids of a text (with the specials of such a text) or of ids, checked against the model.

    What is read as a source is checked against what the encoder of an encoder-decoder reads.
    """
    device = place_of(model)
    if isinstance(given, str):
        ids = torch.tensor([encode(model, given, reading, specials, allow_unknown)], device=device)
    else:
        try:
            ids = torch.as_tensor(given, device=device)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ShapeMismatch(
                f"expected a text or token ids, or a list of several of one of these; found {shown(given)}."
            ) from error
    # a list of nothing has a type by chance
    if ids.numel() == 0:
        raise TextError("there is no token to run on: give at least one.")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.ndim not in (1, 2):
        kind = f"{str(ids.dtype).removeprefix('torch.')} with {ids.ndim} axes"
        raise ShapeMismatch(f"token ids are integers with axes `pos` or `batch pos`; found {kind}.")
    ids = torch.atleast_2d(ids).long()
    stack = model.source if reading == "source" and model.source is not None else model.output
    vocab, length, limit = model.embeddings[stack].vocab_size, ids.shape[1], model.config.max_len
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
        allow_unknown: Take a text of which more than half is outside the vocabulary, or unlearnt bytes.

    Raises:
        TextError: The text is empty, or more than half of it is unknown or unlearnt bytes, or the model has no
            tokenizer.
    """
    tokenizer = _tokenizer(model, specials, reading)
    if isinstance(model, Encoder):
        tokenizer = tokenizer.naming(tokenizer.roles.mask, text)
    ids = tokenizer.read(text, allow_unknown=allow_unknown, model=getattr(model, "name", ""))
    if not ids:
        raise TextError("the text is empty: give at least one token.")
    begin, end = tokenizer.around(reading)
    return [*begin, *ids, *end]


def said(
    model: ModuleLike, given: Any, reading: Reading, specials: bool | None = None, first: tuple[int, ...] = ()
) -> tuple[Note, ...]:
    """Return which specials, `first` and the tokenizer's, were put around what was given: no note around ids."""
    texts = isinstance(given, str) or (is_ragged(given) and isinstance(given[0], str))
    return specials_note(_tokenizer(model, specials, reading).said(reading, first)) if texts else ()


def _tokenizer(model: ModuleLike, specials: bool | None, reading: Reading = "prompt") -> Tokenizer:
    tokenizer: Tokenizer | None = getattr(model, "tokenizer", None)
    if reading == "source" and isinstance(model, Model):
        tokenizer = model.source_tokenizer
    if tokenizer is None:
        missing = getattr(model, "no_tokenizer", "")
        why = f"\n    {missing}" if missing else ""
        of = "source_tokenizer" if getattr(model, "tokenizer", None) is not None else "tokenizer"
        raise TextError(f"this model has no {of}: give token ids, or set model.{of} first.{why}")
    return tokenizer if specials is None else tokenizer.adding(specials)


def token_id(model: ModuleLike, token: str | int) -> int:
    """Return the id of a token that the model reads, given as text or id.

    Raises:
        TextError: The text is several tokens, or unknown to the vocabulary.
        TokenOutOfRange: There is no such id.
    """
    # a module we did not write need not say how many tokens it knows
    known = getattr(getattr(model, "config", None), "vocab_size", None)
    return _id(model, token, getattr(model, "tokenizer", None), known)


def answer_id(model: ModuleLike, answer: str | int) -> int:
    """Return the id of a token that logits are of, given as text or id; raises as `token_id`."""
    if not isinstance(model, Model) or model.one_vocabulary():
        return token_id(model, answer)
    return _id(model, answer, model.output_tokenizer, model.config.n_outputs)


def _id(model: ModuleLike, token: str | int, tokenizer: Any, known: int | None) -> int:
    if isinstance(token, int):
        if token < 0 or (known is not None and token >= known):
            raise TokenOutOfRange(f"token id {token} is outside the vocabulary: 0 to {(known or 0) - 1}.")
        return token
    special = {name: id for id, name in getattr(tokenizer, "specials", {}).items()}
    if token in special:
        return special[token]
    if tokenizer is None and getattr(model, "tokenizer", None) is not None:
        raise TextError("this model's outputs have no names: give the answer's id, or set model.output_tokenizer.")
    tokenizer = _tokenizer(model, None) if tokenizer is None else tokenizer
    ids = tokenizer.continuing(token)
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


def translated(
    model: EncoderDecoder, source: Tensor, source_lengths: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return what the decoder reads if it continues itself greedily: `<bos>` and tokens up to `<eos>`; and lengths.

    Args:
        model: The model.
        source: Ids of its encoder, padding on the right.
        source_lengths: Real tokens per row.
    """
    start, tokenizer = start_of(model), model.tokenizer
    if start is None:
        raise TextError("generating a target needs a tokenizer with a beginning token; give target=… instead.")
    stops = () if tokenizer is None else tokenizer.roles.stops
    room = min(model.config.max_len - 1, 2 * source.shape[1] + 16)
    made = generate(
        model,
        [[start]] * len(source),
        GREEDY,
        max_new_tokens=room,
        stop_ids=stops,
        source=source,
        source_lengths=source_lengths,
    )
    return padded(model, [[start, *row] for row in made.trimmed], left=False)


def start_of(model: EncoderDecoder) -> int | None:
    """Return the token that the decoder's text starts with; None if neither config nor tokenizer say."""
    if model.config.start_id is not None:
        return model.config.start_id
    return None if model.tokenizer is None else model.tokenizer.bos


def _pair(
    model: EncoderDecoder,
    source: Any,
    target: Any,
    text: str | None,
    specials: bool | None,
    padding: AskedPadding | None,
    allow_unknown: bool,
) -> Inputs:
    source_ids, padded = _rows(model, source, "source", specials, padding, allow_unknown)
    # nothing looks at a source from its end
    source_ids, padded = padded.aligned(source_ids), Padding(padded.lengths)
    generated = target is None
    if generated:
        ids, lengths = translated(model, source_ids, padded.lengths)
        of_target = Padding.of(ids, lengths)
    else:
        ids, of_target = _target_ids(model, target, specials, allow_unknown)
    start = () if (first := start_of(model)) is None else (first,)
    notes = (*said(model, source, "source", specials), *said(model, target, "target", specials, start))
    if len(ids) != len(source_ids):
        raise ShapeMismatch(f"source has batch={len(source_ids)}, target has batch={len(ids)}.")
    rows, source_rows = readable(model, ids, of_target), readable(model, source_ids, padded, model.source)
    kwargs = {"lengths": of_target.lengths}
    if padded.is_any:
        kwargs["source_lengths"] = padded.lengths
    return Inputs(
        (source_ids, ids), kwargs, ids, rows, source_ids, source_rows, of_target.lengths, text, generated, notes
    )


def _target_ids(
    model: EncoderDecoder, target: Any, specials: bool | None, allow_unknown: bool
) -> tuple[Tensor, Padding]:
    """Return the ids of the decoder's text, which begins as the model is used to; ids are taken as they are."""
    several = is_ragged(target)
    if not isinstance(target, str) and not (several and isinstance(target[0], str)):
        return _rows(model, target, "target", specials, None)
    start, texts = start_of(model), list(target) if several else [target]
    rows = [encode(model, one, "target", specials, allow_unknown) for one in texts]
    return _rows(model, [row if start is None else [start, *row] for row in rows], "target", specials, None)


def _batch(model: Model, batch: Batch) -> Inputs:
    batch = batch.to(place_of(model))
    ids = token_ids(model, batch.tokens)
    batch.check_targets(model.config.n_outputs)
    rows = readable(model, ids, Padding.of(ids, batch.lengths))
    if batch.source is None:
        if isinstance(model, EncoderDecoder):
            raise ShapeMismatch(
                "an encoder-decoder reads a source too, and this Batch has none.\n"
                "    Give Batch(…, source=…), or run(model, source, target=…)."
            )
        kwargs = {"lengths": batch.lengths, "documents": batch.documents}
        return Inputs((ids,), kwargs, ids, rows, lengths=batch.lengths)
    source = token_ids(model, batch.source, "source")
    kwargs = {"lengths": batch.lengths, "source_lengths": batch.source_lengths}
    source_rows = readable(model, source, Padding.of(source, batch.source_lengths), model.source)
    return Inputs((source, ids), kwargs, ids, rows, source, source_rows, batch.lengths)


def _foreign_batch(model: ModuleLike, batch: Batch) -> Inputs:
    whole = batch.lengths is None or bool((batch.lengths == batch.tokens.shape[1]).all())
    if batch.source is not None or batch.documents is not None or not whole:
        raise ShapeMismatch(
            f"{type(model).__name__} is no model of ours, so how it is told of padding, documents or a source is not "
            "known.\n    Give the arguments it takes: {'input_ids': …, 'attention_mask': …}, or rows of one length."
        )
    return _foreign(model, batch.tokens, None, None)


def _foreign(
    model: ModuleLike, inputs: Any, text: str | None, padding: AskedPadding | None, allow_unknown: bool = False
) -> Inputs:
    """Return arguments for a module we know nothing about."""
    if padding is not None:
        inputs = _told_of_padding(model, inputs, padding)
    if text is not None:
        if getattr(model, "tokenizer", None) is None:
            raise TextError("this model has no tokenizer that we know of: give it the tensors it takes.")
        ids = encode(model, text, allow_unknown=allow_unknown)
        inputs = torch.tensor([ids], device=place_of(model))
    if isinstance(inputs, Mapping):
        ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        args, kwargs = (), dict(inputs)
    else:
        args, kwargs, mask = inputs if isinstance(inputs, tuple) else (inputs,), {}, None
        if isinstance(inputs, list):
            args = (_integers(inputs),)
        ids = args[0] if args else None
    if not (isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point()):
        return Inputs(args, kwargs)
    padded = WHOLE
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        # what the module makes of a mask with holes is its own affair
        with contextlib.suppress(ShapeMismatch):
            padded = Padding.masked(ids, mask)
    rows = readable(model, ids, padded)
    return Inputs(args, kwargs, ids, rows, lengths=padded.lengths, text=text, start=padded.start)


def _told_of_padding(model: ModuleLike, inputs: Any, padding: AskedPadding) -> dict[str, Tensor]:
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
    padded = padding.on(ids)
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
