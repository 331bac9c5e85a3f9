"""The passes of a model over a text that grows: the prompt in one, then one position each, under edits and recorded.

    logits of the next token = f(new tokens, state)         where an edit does at each position what it does by itself
    logits of the next token = f(all tokens)                for other edits, and patterns of mechanisms without keys

Either way a row's logits are those of the whole text read in one pass under the same edits. Rows are padded on the left
and end at the same column; positions are each row's own.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.model import Model
from glassformer.models.padding import Padding
from glassformer.models.readable import readable
from glassformer.models.reading import Inputs
from glassformer.models.recording import Recording
from glassformer.models.stack import State
from glassformer.trace import Columns, Edit, Read, Tape, by_position, in_pass, settled

Function = Callable[[Tensor], Tensor]
Edits = Iterable[Edit | tuple[str, Function]] | Edit | Mapping[str, Function]
Reads = Iterable[str | Read | Callable[..., Any]] | str | Read | Callable[..., Any]


class SourceIds(NamedTuple):
    """What the encoder of an encoder-decoder reads, and how much of each row, if not all of it."""

    ids: Int[Tensor, "batch key"]
    lengths: Int[Tensor, " batch"] | None


class Passes:
    """Reads a text to which tokens are appended.

    Args:
        model: A decoder or an encoder-decoder.
        inputs: What is read first: the prompt, rows padded on the left, and the source of an encoder-decoder.
        edit: Edits that hold in every pass.
        read: What is recorded.

    Raises:
        UnknownSite, UnknownAxis, ShapeMismatch, AnalysisUnavailable: An edit or a read has no place in this model, or
            in a text that grows.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Model,
        inputs: Inputs,
        edit: Edits = (),
        read: Reads = (),
    ) -> None:
        assert inputs.ids is not None, "a model of ours reads ids"
        tokens, self.padded, source = inputs.ids, inputs.start, inputs.source
        self.model, self.text = model, tokens
        self.source = None
        if source is not None and source.ids is not None:
            self.source = SourceIds(source.ids, source.padding.lengths)
        self.padding = (0,) * len(tokens) if self.padded is None else tuple(self.padded.tolist())
        asked = Tape(model, _sites(read), edit)
        self.table = asked.table
        self.edits = {
            name: tuple(settled(one, self.table[name], len(tokens)) for one in edits)
            for name, edits in asked.edits.items()
        }
        self.recording = Recording(asked, model.coordinate_names, len(tokens)) if asked.requests else None
        # readable tokens of each row, as far as they were read and the row had not ended
        self.rows = [list(row) for row in inputs.token_rows] if self.recording else []
        # what earlier columns left behind; None if the whole text is read every time
        self.state = self._begin() if self.is_plain or _is_carried(model, asked) else None

    @property
    def is_plain(self) -> bool:
        """Whether nothing is edited or recorded."""
        return not self.edits and self.recording is None

    def append(self, tokens: Int[Tensor, " batch"], going_on: Iterable[bool] = ()) -> None:
        """Let each row go on by a token; what is read of a row that does not is recorded no more."""
        self.text = torch.cat((self.text, tokens[:, None]), 1)
        if self.recording is not None:
            for row, names, goes_on in zip(self.rows, readable(self.model, tokens[:, None]), going_on):
                row += names if goes_on else []

    def select(self, rows: Int[Tensor, " n"]) -> None:
        """Go on with these rows, in this order; repeats are allowed."""
        self.text, self.state = self.text[rows], select_rows(self.state, rows)
        self.padding = tuple(self.padding[row] for row in rows.tolist())
        self.padded, self.source = select_rows(self.padded, rows), select_rows(self.source, rows)

    @torch.no_grad()
    def logits(self) -> Float[Tensor, "batch vocab"]:
        """Return the logits after the last token of each row, having read what is new; see `generable`."""
        last = self._of_new() if self.state is not None else self._of_all()
        return generable(self.model, last)

    def recorded(self) -> dict[str, Labelled]:
        """Return what was recorded of the text so far, or since it was forgotten."""
        if self.recording is None:
            return {}
        sources: list[list[str]] = []
        if self.source is not None:
            real = Padding(self.source.lengths)
            sources = readable(self.model, self.source.ids, real, self.model.source)
        return self.recording.labelled(self.rows, sources)

    def forget(self) -> None:
        """Let go of what was recorded so far."""
        if self.recording is not None:
            self.recording.forget()

    def _of_new(self) -> Float[Tensor, "batch vocab"]:
        """Read the columns behind the state."""
        assert self.state is not None, "asked for where passes are carried"
        state, model, last = self.state, self.model, self.text.shape[1]
        if state.length and any(part.outgrows(state.length, last) for part in model.output_stack.parts()):
            # from the start again, in a state made for texts of this length
            layers = model.output_stack.begin(len(self.text), model.unembed.stored)
            state = state._replace(length=0, layers=layers, start=None)
        columns = Columns(state.length, last, self.padding)
        new = self.text[:, state.length :]
        tape = self._tape(columns, new.shape[1])
        inputs: tuple[Any, ...] = (new,) if model.source is None else (None, new)
        lengths = None if state.length or self.padded is None else last - self.padded
        out, self.state = model(*inputs, state=state, lengths=lengths, tape=tape)
        self._keep(tape, columns)
        return out[:, -1] if tape is None or tape.logits else model.unembed.logits(out[:, -1])

    def _of_all(self) -> Float[Tensor, "batch vocab"]:
        """Read the whole text, with padding behind each row."""
        model, (batch, last) = self.model, self.text.shape
        lengths = None if self.padded is None else last - self.padded
        ids = Padding(lengths, self.padded).aligned(self.text)
        columns = Columns(0, last, (0,) * batch)
        tape = self._tape(columns, last, whole=True)
        if self.source is None:
            out = model(ids, lengths=lengths, tape=tape)
        else:
            out = model(self.source.ids, ids, source_lengths=self.source.lengths, lengths=lengths, tape=tape)
        self._keep(tape, columns)
        ends = torch.full((batch,), last, device=ids.device) if lengths is None else lengths
        end = out[torch.arange(batch, device=ids.device), ends - 1]
        assert tape is not None, "without edits and reads, passes are carried"
        return end if tape.logits else model.unembed.logits(end)

    def _begin(self) -> State:
        """Return the empty state; an encoder reads the source here, once, under the edits at its sites."""
        if self.source is None:
            return self.model.begin(len(self.text))
        tape = None if self.is_plain else Tape(self.model, *self._asked(of_source=True))
        state = self.model.begin(*self.source, tape=tape)
        self._keep(tape, Columns(0, 0, self.padding))
        return state

    def _tape(self, columns: Columns, n: int, whole: bool = False) -> Tape | None:
        """Return the tape of a pass over `n` columns; None if nothing is edited, recorded or spared."""
        if self.is_plain:
            # the logits of every position of a long prompt would outweigh all else, so the stack's output is asked for
            return None if n == 1 else Tape(self.model, logits=False)
        reads, edits = self._asked(of_source=False, columns=columns)
        if whole and self.model.source is not None:
            of_source = self._asked(of_source=True)
            reads, edits = [*of_source[0], *reads], [*of_source[1], *edits]
        tape = Tape(self.model, reads, edits, logits=False)
        tape.logits = any(tape.wants(found.name) for found in self.model.unembed.sites())
        if not tape.logits:
            # the stack would stop after the last site that it is asked for
            tape.hold(list(self.table)[-1])
        return tape

    def _asked(self, *, of_source: bool, columns: Columns | None = None) -> tuple[list[Read], list[Edit]]:
        """Return reads and edits of the encoder, or of everything else in a pass over some columns."""
        edits: list[Edit] = []
        for name, several in self.edits.items():
            if (self.table[name].stack == "encoder") == of_source:
                for edit in several:
                    edits += [edit] if columns is None else in_pass(edit, self.table[name], columns)
        return [] if self.recording is None else self.recording.of_pass(of_source), edits

    def _keep(self, tape: Tape | None, columns: Columns) -> None:
        if tape is not None and self.recording is not None:
            self.recording.keep(tape, columns)


def generable(model: Model, logits: Float[Tensor, "*n vocab"]) -> Float[Tensor, "*n vocab"]:
    """Return logits with minus infinity for tokens that the model's config says are never generated."""
    never = model.config.never_ids if isinstance(model, EncoderDecoder) else ()
    return logits.index_fill(-1, torch.tensor(never, device=logits.device), float("-inf")) if never else logits


def select_rows(state: Any, rows: Int[Tensor, " n"]) -> Any:
    """Return a state whose batch rows are those given, in that order; repeats are allowed."""
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, tuple):
        parts = [select_rows(part, rows) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def _is_carried(model: Model, asked: Tape) -> bool:
    """Whether passes over new positions alone do what one over the whole text would."""
    if not all(by_position(edit, asked.table[name]) for name, edits in asked.edits.items() for edit in edits):
        return False
    for layer in model.output_stack.parts():
        if not isinstance(layer, AttentionLayer) or layer.config.cross:
            continue
        if not layer.config.mixer.stores_keys and layer.mixer.wants_dense(asked):
            # its state has no keys, which rows of a pattern would be over
            return False
        if layer.projection.stores_keys:
            # keys of all positions are made anew in every pass, of what no head has for itself
            made = [edit for name in (layer.at.key, layer.at.value) for edit in asked.edits.get(name, ())]
            of_some_keys = any("key" in edit.at.where for edit in made)
            if of_some_keys or not asked.edits.keys().isdisjoint(layer.at_inputs.values()):
                return False
    return True


def _sites(read: Reads) -> list[str | Read]:
    """Return what to read; an analysis reads one pass over a whole text."""
    found: list[str | Read] = []
    for asked in [read] if isinstance(read, str | Read) or not isinstance(read, Iterable) else read:
        if not isinstance(asked, str | Read):
            name = getattr(asked, "__name__", type(asked).__name__)
            raise AnalysisUnavailable(
                "read= of generated text takes names of sites, globs, heads (L1H6.pattern) and Read(…); found "
                f"{name}.\n    An analysis reads one pass: gf.run(model, found.ids[0], read=[{name}], edit=…)."
            )
        found.append(asked)
    return found
