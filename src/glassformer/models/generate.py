"""Generation over explicit state: the prompt in one pass, then one position per step.

Rows of unequal length are padded on the left, so that all of them end at the same column; each row's result is the one
it would have alone. Nothing is remembered in the model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.arguments import checked
from glassformer.config import require
from glassformer.errors import TextError
from glassformer.labelled import Labelled
from glassformer.models.model import Model, ModelLike, require_model
from glassformer.models.passes import Edits, Passes, Reads
from glassformer.models.readable import decoded
from glassformer.models.reading import Inputs, read_opening
from glassformer.models.sampling import Draw, Sampling, row_generators, sampling_steps
from glassformer.provenance import Note, distinct, outgrown_note

DRAW = Sampling()  # from the model's own distribution
NEW_TOKENS = 64
Ids = Sequence[Sequence[int]] | Tensor
# or texts, one or several, or a row of ids alone, or rows that are tensors
Prompts = str | Sequence[str] | Sequence[int] | Sequence[Tensor] | Ids


class GenerationStep(NamedTuple):
    """One new token per row, with its log-probability; None for a row that has stopped.

    `notes` say what must be known of it and of the steps behind it: each comes once, with the first step it is true of.
    `sites` is what was recorded of the tokens that were read for it: the prompt, then one token at a time. `draw`
    is how the tokens came to be chosen, of `stream`: what each step from logits to token left.
    """

    tokens: tuple[int | None, ...]
    log_probs: tuple[float | None, ...]
    notes: tuple[Note, ...] = ()
    sites: Mapping[str, Labelled] = MappingProxyType({})
    draw: Draw | None = None


@dataclass(frozen=True)
class Generation:
    """What was generated.

    Args:
        tokens: New ids per row, the stop token included if it was reached.
        log_probs: Log-probability of each under the model's own distribution (before any sampling step), in nats.
        stopped: Whether the row ended with a stop token.
        notes: What must be known of it: that a row, or its source, is longer than those the model was trained on.
        ids: The whole rows, prompt and new ids.
        texts: What is new per row as text, without the stop token; empty for a model without a tokenizer.
        sites: What was recorded, by name, as `gf.run` labels it: of all tokens but each row's last, which nothing read.
    """

    tokens: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...]
    stopped: tuple[bool, ...]
    notes: tuple[Note, ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()
    texts: tuple[str, ...] = ()
    sites: Mapping[str, Labelled] = field(default_factory=dict[str, Labelled], compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data: the class under `result`, and its fields."""
        fields = {name: getattr(self, name) for name in ("tokens", "log_probs", "stopped", "ids", "texts")}
        sites = {"sites": {name: value.to_dict() for name, value in self.sites.items()}}
        notes = {"notes": [note.to_dict() for note in self.notes]} if self.notes else {}
        return {"result": "Generation"} | fields | sites | notes

    @property
    def trimmed(self) -> tuple[tuple[int, ...], ...]:
        """New ids per row without the stop token."""
        return tuple(row[:-1] if stopped else row for row, stopped in zip(self.tokens, self.stopped))


@checked
def generate(
    model: ModelLike,
    prompts: Prompts | Inputs | None = None,
    sampling: Sampling = DRAW,
    *,
    max_new_tokens: int | None = None,
    stop_ids: Sequence[int] | None = None,
    source: Prompts | None = None,
    source_lengths: Int[Tensor, " batch"] | None = None,
    beyond_context: bool = False,
    allow_unknown: bool = False,
    edit: Edits = (),
    read: Reads = (),
) -> Generation:
    """Continue each prompt, under edits and recording sites if asked.

    The model is used in the mode it is in; call `model.eval()` before if it has dropout.

    An edit holds for the prompt and for every token behind it; one at positions, `At(pos=…)`, holds where the whole
    text has them, counted from 0 in each row, also where generation gets there later. Every token is drawn from
    what `gf.run` says of the text so far under the same edits. `Set`, `Add`, `Scale`, `Project`, `Interchange` and
    `AddWhere` are carried by the state. With other edits, such as functions, with edits of scores and patterns, and
    where patterns are asked of a mechanism whose state has no keys, the whole text is read again for every token.

    Args:
        model: A decoder or an encoder-decoder.
        prompts: Texts, or token ids, one list or tensor per row, of any lengths, or a row by itself; for an
            encoder-decoder ids, or nothing, and then each target starts from what the model starts its targets from
            (`model.start`, usually `[bos]`). Or what `model.read` made of all that is read.
        sampling: How tokens are chosen; `GREEDY` takes the likeliest.
        max_new_tokens: Stop after this many; by default 64, as far as the context has room.
        stop_ids: Stop a row when it draws one of these; by default at the model's `stops`.
        source: Sources of an encoder-decoder, likewise.
        source_lengths: Real tokens per source row, when `source` is a tensor padded on the right.
        beyond_context: Go on beyond the context that the model is meant for, its `max_len`, where nothing in it ends
            there: what it says then is seldom of use.
        allow_unknown: Read a text of which more than half is outside the vocabulary, or is single bytes of characters
            that it learnt no token for.
        edit: An edit or several, or pairs of a site and a plain function, as `gf.run` takes them. Those at the
            encoder's sites are made once, when it reads the source.
        read: Names of sites, globs, short names, heads (`L1H6.pattern`), or `Read` for some heads or coordinates.

    Raises:
        ConfigError: `max_new_tokens` is below 1.
        TextError: An empty prompt, more tokens than the model's context has room for, or a text mostly unknown.
        TokenOutOfRange: An id outside the vocabulary.
        UnknownSite, UnknownAxis: A read or an edit names what the model does not have.
        ShapeMismatch: An edit fits nothing there, or has no place in a text that grows: one at positions counted from
            the end, or with values for a fixed number of positions that it does not name. A read or an edit of a head,
            a coordinate or a row that is not there; ids that are no integers; or lengths that no source has.
        AnalysisUnavailable: A read of a part of the positions, or of an analysis.

    Example:
        generate(model, [[5, 3, 8], [1, 2]], Sampling(temperature=0.8, top_p=0.95, seed=1), max_new_tokens=20).tokens
        generate(model, ["def f(x):", "import"], GREEDY)
        generate(translator, source=["我喜欢猫"], sampling=GREEDY, stop_ids=translator.tokenizer.roles.stops)
        found = generate(model, "def f(x):", GREEDY, edit=Add("blocks.1.resid_post", v), read="L1H6.pattern")
        found.texts, found.sites["L1H6.pattern"]
    """
    stops = stops_of(model, stop_ids)
    yielded, passes = _begun(
        model, prompts, sampling, max_new_tokens, stops, source, source_lengths, beyond_context,
        allow_unknown, edit, read,
    )  # fmt: skip
    given = [row[before:].tolist() for row, before in zip(passes.text, passes.padding)]
    steps, rows = list(yielded), range(len(given))
    tokens = tuple(tuple(t for step in steps if (t := step.tokens[row]) is not None) for row in rows)
    log_probs = tuple(tuple(p for step in steps if (p := step.log_probs[row]) is not None) for row in rows)
    stopped = tuple(len(row) > 0 and row[-1] in stops for row in tokens)
    ids = tuple((*prompt, *row) for prompt, row in zip(given, tokens))
    notes = distinct(*(step.notes for step in steps))
    found = Generation(tokens, log_probs, stopped, notes, ids, sites=passes.recorded())
    tokenizer = passes.model.tokenizer
    return found if tokenizer is None else replace(found, texts=tuple(decoded(tokenizer, r) for r in found.trimmed))


@checked
def stream(
    model: ModelLike,
    prompts: Prompts | Inputs | None = None,
    sampling: Sampling = DRAW,
    *,
    max_new_tokens: int | None = None,
    stop_ids: Sequence[int] | None = None,
    source: Prompts | None = None,
    source_lengths: Int[Tensor, " batch"] | None = None,
    beyond_context: bool = False,
    allow_unknown: bool = False,
    edit: Edits = (),
    read: Reads = (),
) -> Iterator[GenerationStep]:
    """Like `generate`, yielding each step as it is made; bad input raises at the call, not at the first step.

    What is recorded comes with the step that it was read for, and is kept no longer.
    """
    steps, _ = _begun(
        model, prompts, sampling, max_new_tokens, stops_of(model, stop_ids), source, source_lengths, beyond_context,
        allow_unknown, edit, read, at_each_step=True,
    )  # fmt: skip
    return steps


def _begun(
    model: ModelLike,
    prompts: Prompts | Inputs | None,
    sampling: Sampling,
    max_new_tokens: int | None,
    stops: frozenset[int],
    source: Prompts | None,
    source_lengths: Tensor | None,
    beyond_context: bool,
    allow_unknown: bool,
    edit: Edits,
    read: Reads,
    *,
    at_each_step: bool = False,
) -> tuple[Iterator[GenerationStep], Passes]:
    """Return the steps to come, and the passes they are made by; bad input raises here."""
    require_model(model, "generating text")
    inputs = read_opening(
        model, prompts, source=source, source_lengths=source_lengths, beyond_context=beyond_context,
        allow_unknown=allow_unknown,
    )  # fmt: skip
    assert inputs.ids is not None, "a model of ours reads ids"
    new = room_for(model, inputs.ids.shape[1], max_new_tokens, beyond_context)
    passes = Passes(model, inputs, edit, read)
    seen = _seen(model, inputs.ids, inputs.lengths) if sampling.repetition_penalty != 1 else None
    steps = _steps(passes, seen, sampling, new, stops, at_each_step)
    notes = distinct(inputs.warnings, model.generation.notes(sampling))
    return _noted(model, steps, inputs.output.counts, notes), passes


def _noted(
    model: Model, steps: Iterator[GenerationStep], prompts: Sequence[int], notes: tuple[Note, ...]
) -> Iterator[GenerationStep]:
    """Yield the steps, each with the notes that it is the first to deserve: `notes` are on what was given."""
    outgrown = False
    for made, step in enumerate(steps):
        grown = [(prompt, made) for prompt, token in zip(prompts, step.tokens) if token is not None]
        if not outgrown and (found := outgrown_notes(model, grown)):
            notes, outgrown = (*notes, *found), True
        yield step._replace(notes=notes)
        notes = ()


# a decorated generator leaves the caller's gradient mode alone between steps
@torch.no_grad()
def _steps(
    passes: Passes,
    seen: Tensor | None,
    sampling: Sampling,
    max_new_tokens: int,
    stops: frozenset[int],
    at_each_step: bool,
) -> Iterator[GenerationStep]:
    batch = len(passes.text)
    generators, alive, drawn = row_generators(sampling, batch), [True] * batch, None
    for made in range(max_new_tokens):
        if drawn is not None:
            passes.append(drawn, alive)
            seen = None if seen is None else seen.scatter(-1, drawn[:, None], True)
        logits = passes.logits()
        out = ruled_out(passes, logits, made, max_new_tokens - made)
        choice = sampling_steps(logits, sampling, seen=seen, ruled_out=out, generators=generators)
        drawn = choice.tokens
        chosen = logits.gather(-1, drawn[:, None]).squeeze(-1) - logits.logsumexp(-1)
        ids, log_probs = drawn.tolist(), chosen.tolist()
        step = GenerationStep(
            tuple(id if on else None for id, on in zip(ids, alive)),
            tuple(log_prob if on else None for log_prob, on in zip(log_probs, alive)),
        )
        if at_each_step:
            step = step._replace(sites=passes.recorded(), draw=choice)
            passes.forget()
        yield step
        alive = [on and id not in stops for id, on in zip(ids, alive)]
        if not any(alive):
            return


def stops_of(model: Model, asked: Sequence[int] | None) -> frozenset[int]:
    """Return where generation ends: at the tokens that were asked for, else at the model's own."""
    return frozenset(require_model(model, "generating text").stops if asked is None else asked)


def ruled_out(passes: Passes, logits: Tensor, made: int, left: int) -> Tensor | None:
    """Return which tokens the model's rules rule out behind each row; None where there are no rules.

    Args:
        passes: Of the rows so far.
        logits: Those of the next token.
        made: Tokens drawn so far.
        left: Tokens that may still be drawn.
    """
    rules = passes.model.generation
    if not rules.rule_out:
        return None
    texts = [row[before:].tolist() for row, before in zip(passes.text, passes.padding)]
    found = rules.ruled_out(texts, [made] * len(texts), [left] * len(texts), logits.shape[-1])
    return found.to(logits.device)


def outgrown_notes(model: Model, rows: Iterable[tuple[int, int]]) -> tuple[Note, ...]:
    """Return what must be known of the tokens drawn behind rows of so many tokens: given ones and generated ones."""
    trained = model.trained_length
    if trained is None or not any(given <= trained < given + made for given, made in rows):
        return ()
    return (outgrown_note(trained),)


def room_for(model: Model, prompt: int, asked: int | None, beyond_context: bool = False) -> int:
    """Return how many new tokens may follow a prompt: as many as were asked for, or by default what fits.

    Raises:
        ConfigError: Fewer than one is asked for.
        TextError: Together they exceed the model's context, or with `beyond_context` its learned positions.
        AnalysisUnavailable: An encoder, which does not generate, or a model that cannot read what it writes.
    """
    model.require_generates()
    model.require_one_vocabulary("generating text")
    limit = model.config.max_len
    table = model.output_embed.positions
    learned = table is not None and table.weight is not None
    # the last token drawn is never read
    room = limit - prompt + 1
    bound = learned or not beyond_context
    new = asked if asked is not None else max(1, min(NEW_TOKENS, room)) if bound else NEW_TOKENS
    require(new >= 1, f"max_new_tokens must be at least 1, found {new}.")
    if new <= room or not bound:
        return new
    advice = f"ask for at most {room} new ones" if room > 0 else f"shorten the text to {limit} tokens"
    beyond = "" if learned else ", or go on beyond it with beyond_context (--beyond-context)"
    raise TextError(f"{prompt} tokens and {new} new ones, but {_context(limit, learned)}; {advice}{beyond}.")


def _context(limit: int, learned: bool) -> str:
    return (
        f"the model has learned positions for max_len={limit} only"
        if learned
        else f"the context of this model is {limit}"
    )


def _seen(model: Model, tokens: Tensor, lengths: Tensor | None) -> Tensor:
    seen = torch.zeros(tokens.shape[0], model.config.vocab_size, dtype=torch.bool, device=tokens.device)
    if lengths is None:
        return seen.scatter(-1, tokens, True)
    # padding is filled up with the row's own last token
    column = torch.arange(tokens.shape[1], device=tokens.device)
    real = column >= (tokens.shape[1] - lengths)[:, None]
    return seen.scatter(-1, torch.where(real, tokens, tokens[:, -1:]), True)
