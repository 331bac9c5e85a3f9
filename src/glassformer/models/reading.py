"""What a model reads: texts, ids, images, rows of them or a batch, checked once and kept as one value.

    inputs = model.read(["the cat sat", "a dog"])
    inputs.ids, inputs.token_rows, inputs.notes         # of what ends in the logits; `source_ids` … of an encoder
    model(*inputs.args, **inputs.kwargs)

A `Side` is what one stack reads; `Inputs` are the side that ends in the logits and, of a model that reads pairs, the
source. Whoever reads (a run, generation, serving, pairs of prompts, the command line) reads here, and is refused in the
same words.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.arguments import not_dense, shown
from glassformer.data.batch import Batch
from glassformer.data.marks import UNMARKED, Marks, marks
from glassformer.data.tokenizer import Reading, Specials, Tokenizer
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError
from glassformer.models.embedding import require_ids
from glassformer.models.padding import WHOLE, Padding
from glassformer.models.patches import Patches
from glassformer.numerics.placement import place_of
from glassformer.provenance import Note, distinct, length_note

if TYPE_CHECKING:
    from glassformer.models.model import Model


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """What one stack reads.

    Args:
        ids: Token ids, `batch pos`; None of images, whose patches are the tokens, and of a module that takes no ids.
        padding: Which of them are real.
        tokens: Each row's real tokens as people read them.
        text: The text that was given, if it was one.
        marks: Which tokens of a single row are unknown, or spell a character byte by byte.
        specials: What to know of special tokens that were put around texts.
        odd: What to know of tokens that are no words of the vocabulary.
        reader: What cut the text into tokens.
        before: How many tokens stand before those of the text.
    """

    ids: Int[Tensor, "batch pos"] | None = None
    padding: Padding = WHOLE
    tokens: Sequence[Sequence[str]] = ()
    text: str | None = None
    marks: Marks = UNMARKED
    specials: tuple[Note, ...] = ()
    odd: tuple[Note, ...] = ()
    reader: Tokenizer | None = None
    before: int = 0

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        ids: Int[Tensor, "batch pos"],
        padding: Padding = WHOLE,
        *,
        word: str = "text",
        model: str = "",
        text: str | None = None,
    ) -> "Side":
        """Return a side of ids, with their names; several rows are data, which nobody reads token by token.

        Args:
            tokenizer: Of what the stack reads, if there is one.
            ids: Token ids.
            padding: Which of them are real.
            word: What they are called in notes.
            model: The model's name, for notes.
            text: What a single row was read from, if it was a text.
        """
        side = cls(ids, padding, token_names(tokenizer, ids, padding))
        if len(side.tokens) != 1:
            return side
        found = marks_of(tokenizer, side.rows[0], side.tokens[0], text)
        odd = tokenizer.notes_on(found, word, model) if found is not UNMARKED else ()
        return dataclasses.replace(side, marks=found, odd=odd)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and positions of each with those of padding; none where nothing is known of them."""
        if self.ids is None:
            return len(self.tokens), len(self.tokens[0]) if self.tokens else 0
        return self.ids.shape[0], self.ids.shape[1]

    @property
    def rows(self) -> list[list[int]]:
        """Each row's real tokens."""
        assert self.ids is not None, "what has rows of ids has ids"
        return self.padding.real_rows(self.ids)

    @property
    def spans(self) -> list[tuple[int, int] | None]:
        """Where each token of a text stands in it, as (first character, character behind the last).

        Of a single row; None for tokens that were put around the text, and for all where ids were given.
        """
        if self.text is None or self.reader is None:
            return [None] * (self.counts[0] if self.counts else 0)
        own = self.reader.spans(self.text)
        behind = self.counts[0] - self.before - len(own)
        return [*[None] * self.before, *own, *[None] * behind]

    @property
    def spelled(self) -> list[str]:
        """Names of special tokens that the text holds and that were read as letters."""
        return [] if self.text is None or self.reader is None else self.reader.names_spelled([self.text])

    @property
    def counts(self) -> list[int]:
        """How many tokens of each row are real."""
        return [len(row) for row in self.tokens]

    @property
    def is_whole(self) -> bool:
        """Whether no row has padding, on either side."""
        return self.ids is None or all(count == self.ids.shape[1] for count in self.counts)

    def columns(self, row: int) -> slice:
        """Return where a row's real tokens stand."""
        first = 0 if self.padding.start is None else int(self.padding.start[row])
        return slice(first, first + len(self.tokens[row]))

    def row(self, row: int, tokenizer: Any) -> "Side":
        """Return one row by itself, without padding."""
        if self.ids is None:
            return dataclasses.replace(self, tokens=self.tokens[row : row + 1], text=None)
        ids, tokens = self.ids[row : row + 1, self.columns(row)], self.tokens[row : row + 1]
        found = marks_of(tokenizer, ids[0].tolist(), tokens[0])
        return dataclasses.replace(self, ids=ids, padding=WHOLE, tokens=tokens, text=None, marks=found)

    def aligned(self) -> "Side":
        """Return it with padding on the right, and no more of that than the longest row leaves."""
        if self.ids is None or self.is_whole:
            return self
        longest = max(self.counts)
        ids = self.padding.aligned(self.ids)[:, :longest]
        equal = min(self.counts) == longest
        return dataclasses.replace(self, ids=ids, padding=WHOLE if equal else Padding(self.padding.lengths))


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """What one forward pass reads, and what is known of the tokens in it.

    Args:
        output: The side that ends in the logits; without ids where a module takes none that we know of.
        source: What the encoder of a model that reads pairs reads; None for others.
        args: Arguments of the pass by place,
        kwargs: and by name.
        generated: What the decoder reads was generated, not given.
        in_columns: It was laid out as a `Batch`, whose columns are what positions are counted by.
        notes: What must be known to read numbers right: specials put around a text, unknown words, a length that
            training never saw.
    """

    output: Side
    source: Side | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    generated: bool = False
    in_columns: bool = False
    notes: tuple[Note, ...] = ()

    @property
    def ids(self) -> Tensor | None:
        """Token ids of the side that ends in the logits, `batch pos`; None for a model that takes no ids."""
        return self.output.ids

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows that side has, and how many positions each, padding among them; of ids, or of patches."""
        return self.output.shape

    @property
    def device(self) -> torch.device:
        """Where what is read lies."""
        read = (self.ids, *self.args)
        return next((value.device for value in read if isinstance(value, Tensor)), torch.device("cpu"))

    def require_ids(self, analysis: str) -> Int[Tensor, "batch pos"]:
        """Return token ids of that side; raises `AnalysisUnavailable` for what reads none, as images have none."""
        if self.ids is None:
            raise AnalysisUnavailable(
                f"{analysis} goes by token ids, and what this model reads has none: patches of an image are vectors.\n"
                "    Of any input: patterns, lenses, direct attribution, patching and ablation."
            )
        return self.ids

    @property
    def token_rows(self) -> Sequence[Sequence[str]]:
        """Readable tokens of that side, one list per row."""
        return self.output.tokens

    @property
    def lengths(self) -> Tensor | None:
        """Real tokens per row of that side, if rows are padded."""
        return self.output.padding.lengths

    @property
    def start(self) -> Tensor | None:
        """Where each row's real tokens begin, if padding is on the left."""
        return self.output.padding.start

    @property
    def marks(self) -> Marks:
        """Which tokens of a single row are unknown, or spell a character byte by byte."""
        return self.output.marks

    @property
    def source_ids(self) -> Tensor | None:
        """Token ids of the encoder."""
        return None if self.source is None else self.source.ids

    @property
    def source_rows(self) -> Sequence[Sequence[str]]:
        """Readable tokens of the encoder."""
        return () if self.source is None else self.source.tokens

    @property
    def source_marks(self) -> Marks:
        """As `marks`, of the encoder's tokens."""
        return UNMARKED if self.source is None else self.source.marks

    @property
    def text(self) -> str | None:
        """The text that was given, if it was one: of a model that reads pairs, its source."""
        return (self.output if self.source is None else self.source).text

    @property
    def sides(self) -> dict[bool, Side]:
        """The sides there are, by whether they are the source."""
        return {False: self.output} | ({} if self.source is None else {True: self.source})

    @property
    def is_whole(self) -> bool:
        """Whether no row of either side has padding."""
        return all(side.is_whole for side in self.sides.values())

    @property
    def warnings(self) -> tuple[Note, ...]:
        """Its notes but for those on special tokens, which whoever generates expects."""
        expected = {note for side in self.sides.values() for note in side.specials}
        return tuple(note for note in self.notes if note not in expected)

    @property
    def shown(self) -> list[Any]:
        """What to say of the input: the text if it was one, else ids, else what the module took."""
        if self.text is not None:
            return [self.text] if self.source is None or self.generated else [self.text, self.ids]
        ids = [value for value in (self.source_ids, None if self.generated else self.ids) if value is not None]
        return ids or [*self.args, *self.kwargs.values()]

    def is_whole_in(self, row: int) -> bool:
        """Whether a row has no padding in either side."""
        return all(side.ids is None or side.counts[row] == side.ids.shape[1] for side in self.sides.values())

    def row(self, row: int, model: Any) -> "Inputs":
        """Return one row by itself, without padding; the model, if it is at hand, says what is odd about its tokens.

        It is what was read, and nothing that a pass could be run on.
        """
        output = self.output.row(row, tokenizer_of(model))
        source = None if self.source is None else self.source.row(row, tokenizer_of(model, of_source=True))
        return dataclasses.replace(self, output=output, source=source, args=(), kwargs={})

    def reads_alike(self, other: "Inputs") -> int:
        """Return how many first positions another pass reads as this one does.

        Passes have to be as long, of as many rows (or the other of one), and differ in the ids of the side that ends in
        the logits alone; else they have no position in common.
        """
        if self.ids is None or other.ids is None or self.ids.shape[1] != other.ids.shape[1]:
            return 0
        if len(other.ids) not in (1, len(self.ids)) or not _equal(self._beside_ids(), other._beside_ids()):
            return 0
        apart = (self.ids != other.ids).any(0).nonzero()
        return int(apart[0]) if len(apart) else self.ids.shape[1]

    def _beside_ids(self) -> list[Any]:
        """Return what the pass takes beside the ids of the side that ends in the logits."""
        return [None if value is self.ids else value for value in (*self.args, self.kwargs)]

    def aligned(self) -> "Inputs":
        """Return it with padding on the right, and no more of that than the longest rows leave."""
        source = None if self.source is None else self.source.aligned()
        return dataclasses.replace(self, output=self.output.aligned(), source=source)

    def real_lengths(self, of_source: bool) -> Tensor | None:
        """Return how many tokens of each row of a side are real; None for all."""
        if not of_source or self.source is None or self.source.ids is None:
            return self.lengths
        return None if self.source.is_whole else torch.tensor(self.source.counts, device=self.source.ids.device)


def _equal(one: Any, other: Any) -> bool:
    """Whether two arguments of a pass are the same: tensors with the same entries, or equal values."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        return both and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one is other or bool(one == other)


def read(
    model: "Model",
    given: Any,
    *,
    source: Any = None,
    specials: Specials = None,
    lengths: Any = None,
    mask: Any = None,
    allow_unknown: bool = False,
) -> Inputs:
    """Return what a forward pass of a model of ours reads; see `Model.read`."""
    if isinstance(given, Batch):
        require_unsaid(lengths, mask, source)
    if model.patches is not None:
        require_source(model, source is not None)
        return _images(model, model.patches, given, lengths is None and mask is None)
    if isinstance(given, Batch):
        return _of_batch(model, given)
    said = {"specials": specials, "allow_unknown": allow_unknown}
    padded = {"lengths": lengths, "mask": mask}
    require_source(model, source is not None)
    if not model.reads_pairs:
        return joined(model, read_side(model, given, "prompt", **said, **padded))
    of_source = source if isinstance(source, Side) else read_side(model, source, "source", **said, **padded)
    return joined(model, read_side(model, given, "target", **said), of_source)


def _images(model: "Model", patches: Patches, given: Any, whole: bool) -> Inputs:
    """Return images as the arguments of a pass, with the places of their patches in place of tokens."""
    if isinstance(given, str | Inputs):
        raise ShapeMismatch(
            f"this model reads images, {' x '.join(map(str, patches.shape))} numbers (channel, row, column); "
            f"found {shown(given)}."
        )
    if not whole:
        raise ShapeMismatch("this model reads images, which have no padding; leave lengths= and mask= out.")
    batch = given if isinstance(given, Batch) else None
    if batch is not None:
        batch.check_targets(model.config.n_outputs)
        given = batch.tokens
    like = next(model.parameters())
    images, told = patches.images(given, like), dict[str, Any]()
    if (denoises := model.config.denoises) is not None:
        said = (None, None) if batch is None else (batch.times, batch.classes)
        told["times"], told["classes"] = denoises.told(len(images), *said, like)
    side = Side(tokens=[patches.names] * len(images))
    return Inputs(side, None, (images,), told, in_columns=batch is not None, notes=notes_of(model, side))


def read_opening(
    model: "Model",
    prompts: Any,
    *,
    source: Any = None,
    source_lengths: Tensor | None = None,
    beyond_context: bool = False,
    allow_unknown: bool = False,
) -> Inputs:
    """Return what is read before anything is generated, rows of unequal length padded on the left; see `generate`.

    Without prompts a target starts from what the model starts its targets from. Raises `TextError` if it has nothing.
    """
    if isinstance(prompts, Inputs):
        return _as_opening(model, prompts, source, source_lengths)
    model.require_generates()
    require_source(model, source is not None or (source_lengths is not None and not model.reads_pairs))
    of_source = None
    if model.reads_pairs:
        of_source = read_side(
            model, source, "source", lengths=source_lengths, allow_unknown=allow_unknown,
            within_context=not beyond_context,
        )  # fmt: skip
    if prompts is None:
        prompts = _starts(model, of_source)
    # where the context ends decides how many new tokens there may be
    opening = read_side(model, prompts, "opening", allow_unknown=allow_unknown, left=True, within_context=False)
    return joined(model, opening, of_source)


def _starts(model: "Model", source: Side | None) -> list[list[int]]:
    """Return what each target starts from if nothing is said."""
    if source is None or source.ids is None:
        raise TextError("generate: there is nothing to go on from; give a text or ids, generate(model, prompts).")
    if not model.start:
        raise TextError("this model's tokenizer has no beginning token, so there is nothing to start the target from.")
    return [list(model.start) for _ in source.ids]


def _as_opening(model: "Model", inputs: Inputs, source: Any, source_lengths: Any) -> Inputs:
    """Return what was read with its rows padded on the left, as what goes on is."""
    if inputs.in_columns or source is not None or source_lengths is not None:
        raise ShapeMismatch(
            "generation goes on from texts or ids, or from what was read of them with its source: it takes no Batch, "
            "and no source beside what was read."
        )
    output = inputs.output
    assert output.ids is not None, "a model of ours reads ids"
    if output.padding.is_any and output.padding.start is None:
        ids, padding = _tensor(output.rows, place_of(model), left=True)
        output = dataclasses.replace(output, ids=ids, padding=padding)
    return joined(model, output, inputs.source)


def joined(model: "Model", output: Side, source: Side | None = None, *, generated: bool = False) -> Inputs:
    """Return sides as the arguments of a pass.

    Raises:
        ShapeMismatch: They have different numbers of rows.
    """
    assert output.ids is not None, "a model of ours reads ids"
    if source is None:
        names = ("lengths", "start")
        kwargs = {name: value for name, value in zip(names, output.padding.told) if value is not None}
        return Inputs(output, None, (output.ids,), kwargs, notes=notes_of(model, output))
    assert source.ids is not None, "a model of ours reads ids"
    if len(output.ids) != len(source.ids):
        raise ShapeMismatch(
            f"source has batch={len(source.ids)}, target has batch={len(output.ids)}: give one target, or one prompt "
            "to start from, for each source."
        )
    # nothing looks at a source from its end
    source = dataclasses.replace(
        source, ids=source.padding.aligned(source.ids), padding=Padding(source.padding.lengths)
    )
    kwargs = {"lengths": output.padding.lengths}
    if source.padding.is_any:
        kwargs["source_lengths"] = source.padding.lengths
    args, notes = (source.ids, output.ids), notes_of(model, output, source)
    return Inputs(output, source, args, kwargs, generated=generated, notes=notes)


def notes_of(model: Any, output: Side, source: Side | None = None) -> tuple[Note, ...]:
    """Return what must be known of what a model reads."""
    before = (source,) if source is not None else ()
    sides = (*before, output)
    longest = max((count for side in sides for count in side.counts), default=0)
    of_length = length_note(longest, getattr(model, "trained_length", None))
    of_weights = getattr(model, "checkpoint_notes", ())
    return distinct(*(side.specials for side in sides), *(side.odd for side in sides), of_length, of_weights)


def read_side(
    model: "Model",
    given: Any,
    reading: Reading,
    *,
    specials: Specials = None,
    lengths: Any = None,
    mask: Any = None,
    allow_unknown: bool = False,
    left: bool = False,
    within_context: bool = True,
) -> Side:
    """Return what one stack reads: texts with the specials of such texts, ids as they are.

    Args:
        model: Whose stack.
        given: A text, ids, or several of either, of any lengths.
        reading: What it is, which decides on the stack and on the specials around texts.
        specials: In place of the tokenizer's own way: always (True), never (False), or "in-text".
        lengths: Real tokens in each row of ids that are padded on the right.
        mask: 1 for each real id, in place of lengths.
        allow_unknown: Read a text of which more than half is unknown.
        left: Pad rows of unequal length on the left.
        within_context: Refuse more tokens than the context has.

    Raises:
        AnalysisUnavailable: The model reads images.
        TextError: A text is empty or mostly unknown, there is no tokenizer for it, a row holds no token, or more than
            the context has room for.
        TokenOutOfRange: An id is outside the vocabulary.
        ShapeMismatch: It is neither text nor ids, or the padding that is said does not fit.
    """
    if model.patches is not None:
        raise AnalysisUnavailable(
            "this takes token ids, and the model reads images, whose patches are vectors.\n"
            "    Of images: gf.run(model, images, read=[…]), and what is asked of a run, of patterns and of edits."
        )
    stack = model.source if reading == "source" and model.source is not None else model.output
    tokenizer = model.tokenizer_of(stack)
    first = model.start if reading == "target" else ()
    texts: dict[int, str] = {}
    word = "text" if not model.reads_pairs else "source" if reading == "source" else "target"
    # texts whose names of specials are letters
    spelled: list[str] = []
    # what the last text was cut by
    cut: Tokenizer | None = None

    def read(i: int, row: str | list[int]) -> list[int]:
        nonlocal cut
        if not isinstance(row, str):
            return row
        if reading == "opening" and model.reads_pairs:
            raise TextError(
                "the decoder of an encoder-decoder starts from a token of its own: give prompts as ids, [[start]] for "
                "each row, and texts as source."
            )
        reader = tokenizer_for(model, tokenizer, specials, reading)
        cut = reader if model.predicts_next else reader.naming(reader.roles.mask, row)
        texts[i] = row
        spelled.extend([row] if cut is reader else [])
        return encode(cut, row, reading, allow_unknown, model.name, first)

    rows = rows_of(given)
    if not isinstance(rows, Tensor):
        rows = [read(i, row) for i, row in enumerate(rows)]
    ids, padding = _tensor(rows, place_of(model), left)
    ids = require_ids(ids, model.embeddings[stack].vocab_size)
    if lengths is not None or mask is not None:
        if padding.is_any or texts:
            raise ShapeMismatch(
                "lengths= and mask= are of ids in rows of one length; texts, and rows of unequal lengths, say "
                "themselves how long they are."
            )
        padding = Padding.said(ids, lengths, mask)
    limit = model.config.max_len
    if within_context and ids.shape[1] > limit:
        found, what = f"{ids.shape[1]} tokens", "text"
        if reading == "source":
            found, what = f"a source of {found}", "source"
        raise TextError(f"{found}, but the context of this model is {limit}; shorten the {what} to {limit} tokens.")
    side = Side.of(tokenizer if cut is None else cut, ids, padding, word=word, model=model.name, text=texts.get(0))
    if not texts:
        return side
    reader = tokenizer_for(model, tokenizer, specials, reading)
    around = reader.said(reading, first)
    odd = side.odd if len(side.tokens) == 1 else reader.notes(side.rows, f"{word}s", model.name, texts)
    text = given if isinstance(given, str) else None
    return dataclasses.replace(
        side, text=text, reader=cut, before=len(first) + len(reader.around(reading)[0]),
        specials=(Note(around),) if around else (), odd=(*odd, *reader.notes_on_names(spelled, word)),
    )  # fmt: skip


def rows_of(given: Any) -> Tensor | list[str | list[int]]:
    """Return what was given as rows, texts or ids each; a tensor of ids as it is, `batch pos`.

    Raises:
        ShapeMismatch: It is neither text nor ids.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, Sequence) and not isinstance(given, Tensor) and given:
        if all(isinstance(one, Integral) and not isinstance(one, bool) for one in given):
            return [[int(one) for one in given]]
        if all(isinstance(row, str) or _is_row(row) for row in given):
            return [row if isinstance(row, str) else [int(one) for one in row] for row in given]
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ShapeMismatch(
            f"expected a text or token ids, or a list of several of one of these; found {shown(given)}."
        ) from error
    single = found.ndim == 1 and found.numel() and not found.is_floating_point() and found.dtype != torch.bool
    return found[None] if single else found


def _is_row(row: Any) -> bool:
    """Whether something is a row of ids: a list of whole numbers, or an array of them with one axis."""
    if isinstance(row, list | tuple):
        return all(isinstance(one, Integral) and not isinstance(one, bool) for one in row)
    if getattr(row, "ndim", None) != 1:
        return False
    dtype = torch.as_tensor(row).dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _tensor(rows: Tensor | Sequence[Sequence[int]], device: torch.device, left: bool) -> tuple[Tensor, Padding]:
    """Return rows of ids as one tensor; shorter ones are filled up with their own first token."""
    if isinstance(rows, Tensor):
        if kind := not_dense(rows):
            raise ShapeMismatch(f"token ids are a dense tensor of integers; found one that is {kind}.")
        if rows.ndim <= 2 and rows.numel() == 0:
            raise TextError("there is no token to read: give at least one.")
        return rows.to(device), WHOLE
    counts = [len(row) for row in rows]
    if 0 in counts:
        which = f"row {counts.index(0)} holds no tokens" if len(counts) > 1 else "there is no token to read"
        raise TextError(f"{which}: give at least one.")
    longest = max(counts)
    fill = [[row[0]] * (longest - len(row)) for row in rows]
    whole = [[*pad, *row] if left else [*row, *pad] for pad, row in zip(fill, rows)]
    try:
        ids = torch.tensor(whole, device=device)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise ShapeMismatch(
            f"expected a text or token ids, or a list of several of one of these; found {shown(rows)}."
        ) from error
    if min(counts) == longest:
        return ids, WHOLE
    real = torch.tensor(counts, device=device)
    return ids, Padding(real, longest - real if left else None)


def encode(
    tokenizer: Tokenizer,
    text: str,
    reading: Reading = "prompt",
    allow_unknown: bool = False,
    model: str = "",
    first: tuple[int, ...] = (),
) -> list[int]:
    """Return the ids of a text with the specials of such a text around it.

    Args:
        tokenizer: That of the model.
        text: The text.
        reading: What it is, which decides on the specials.
        allow_unknown: Take a text of which more than half is outside the vocabulary, or unlearnt bytes.
        model: The model's name, for errors.
        first: What the model starts such a text from, before all else.

    Raises:
        TextError: The text is empty, or more than half of it is unknown or unlearnt bytes.
    """
    begin, end = tokenizer.around(reading)
    begin = (*first, *begin)
    ids = tokenizer.read(text, allow_unknown=allow_unknown, model=model, behind=len(begin))
    # what goes on may go on from nothing but the token that texts begin with
    if not ids and not (reading == "opening" and begin):
        raise TextError("the text is empty: give at least one token.")
    return [*begin, *ids, *end]


def tokenizer_for(
    model: Any, tokenizer: Tokenizer | None, specials: Specials = None, reading: Reading = "prompt"
) -> Tokenizer:
    """Return the tokenizer that reads texts for a model, told about specials.

    Raises:
        TextError: There is none; the message says why, if that is known.
    """
    if tokenizer is None:
        missing = getattr(model, "no_tokenizer", "")
        own = reading == "source" and getattr(model, "tokenizer", None) is not None
        of = "source_tokenizer" if own else "tokenizer"
        why = f"\n    {missing}" if missing else ""
        raise TextError(f"this model has no {of}: give token ids, or set model.{of} first.{why}")
    return tokenizer if specials is None else tokenizer.adding(specials)


def tokenizer_of(module: Any, of_source: bool = False) -> Any:
    """Return the tokenizer of what a module reads, or what its encoder does; None if it has none, or is None."""
    return getattr(module, "source_tokenizer" if of_source else "tokenizer", None)


def require_source(model: "Model", there_is_one: bool) -> None:
    """Raise `ShapeMismatch` if a source is missing, or given to a model that reads none."""
    if model.reads_pairs and not there_is_one:
        raise ShapeMismatch(
            "an encoder-decoder reads a source too, and there is none.\n"
            "    Give source=… beside the target or prompt, run(model, source, target=…), or Batch(…, source=…)."
        )
    if there_is_one and not model.reads_pairs:
        raise ShapeMismatch("this model has no encoder, so it reads no source: put the text into what it reads.")


def require_unsaid(lengths: Any, mask: Any, source: Any = None) -> None:
    """Raise `ShapeMismatch` if padding, or a source, is said beside a batch."""
    if lengths is not None or mask is not None:
        raise ShapeMismatch("a Batch says itself which of its tokens are real; leave lengths= and mask= out.")
    if source is not None:
        raise ShapeMismatch("a Batch brings its source: give Batch(…, source=…), and leave source= out.")


def _of_batch(model: "Model", batch: Batch) -> Inputs:
    batch = batch.to(place_of(model))
    batch.check_targets(model.config.n_outputs)
    output = read_side(model, batch.tokens, "prompt", lengths=batch.lengths)
    require_source(model, batch.source is not None)
    if batch.source is None:
        kwargs = {"lengths": batch.lengths, "documents": batch.documents}
        notes = notes_of(model, output)
        return Inputs(output, None, (output.ids,), kwargs, in_columns=True, notes=notes)
    source = read_side(model, batch.source, "source", lengths=batch.source_lengths)
    kwargs = {"lengths": batch.lengths, "source_lengths": batch.source_lengths}
    args, notes = (source.ids, output.ids), notes_of(model, output, source)
    return Inputs(output, source, args, kwargs, in_columns=True, notes=notes)


def token_names(tokenizer: Any, ids: Int[Tensor, "batch pos"], padding: Padding = WHOLE) -> list[list[str]]:
    """Return each row's real tokens as people read them, or as numbers without a tokenizer."""
    rows = padding.real_rows(ids)
    if not hasattr(tokenizer, "tokens"):
        return [[str(i) for i in row] for row in rows]
    # a model may have more rows in its embedding than its tokenizer has tokens
    known = tokenizer.vocab_size
    return [[tokenizer.token(i) if i < known else f"<{i}>" for i in row] for row in rows]


def marks_of(tokenizer: Any, ids: Sequence[int], tokens: Sequence[str], text: str | None = None) -> Marks:
    """Return what is odd about the tokens of one row; nothing is known without a tokenizer of ours."""
    return marks(tokenizer, ids, tokens, text) if isinstance(tokenizer, Tokenizer) else UNMARKED
