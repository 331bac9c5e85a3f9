"""Generation over explicit state: the prompt in one pass, then one position per step.

Rows of unequal length are padded on the left, so that all of them end at the same column; each row's result is the one
it would have alone. Nothing is remembered in the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import TextError, TokenOutOfRange
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.model import Model, ModelLike, require_model
from glassformer.models.sampling import Sampling, row_generators, sampling_steps
from glassformer.models.stack import State
from glassformer.trace import Tape

DRAW = Sampling()  # from the model's own distribution
Ids = Sequence[Sequence[int]] | Tensor


class GenerationStep(NamedTuple):
    """One new token per row, with its log-probability; None for a row that has stopped."""

    tokens: tuple[int | None, ...]
    log_probs: tuple[float | None, ...]


@dataclass(frozen=True)
class Generation:
    """What was generated.

    Args:
        tokens: New ids per row, the stop token included if it was reached.
        log_probs: Log-probability of each under the model's own distribution (before any sampling step), in nats.
        stopped: Whether the row ended with a stop token.
    """

    tokens: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...]
    stopped: tuple[bool, ...]

    @property
    def trimmed(self) -> tuple[tuple[int, ...], ...]:
        """New ids per row without the stop token."""
        return tuple(row[:-1] if stopped else row for row, stopped in zip(self.tokens, self.stopped))


def generate(
    model: ModelLike,
    prompts: Ids,
    sampling: Sampling = DRAW,
    *,
    max_new_tokens: int = 64,
    stop_ids: Sequence[int] = (),
    source: Ids | None = None,
    source_lengths: Int[Tensor, " batch"] | None = None,
) -> Generation:
    """Continue each prompt.

    The model is used in the mode it is in; call `model.eval()` before if it has dropout.

    Args:
        model: A decoder or an encoder-decoder.
        prompts: Token ids, one list per row, of any lengths; for an encoder-decoder usually `[[bos]]` for each row.
        sampling: How tokens are chosen; `GREEDY` takes the likeliest.
        max_new_tokens: Stop after this many.
        stop_ids: Stop a row when it draws one of these.
        source: Source ids of an encoder-decoder, one list per row.
        source_lengths: Real tokens per source row, when `source` is a tensor padded on the right.

    Raises:
        TextError: An empty prompt, or more tokens than the model has positions for.
        TokenOutOfRange: An id outside the vocabulary.

    Example:
        generate(model, [[5, 3, 8], [1, 2]], Sampling(temperature=0.8, top_p=0.95, seed=1), max_new_tokens=20).tokens
    """
    stops = frozenset(stop_ids)
    steps = list(
        stream(
            model, prompts, sampling, max_new_tokens=max_new_tokens, stop_ids=stop_ids, source=source,
            source_lengths=source_lengths,
        )
    )  # fmt: skip
    rows = range(len(prompts))
    tokens = tuple(tuple(t for step in steps if (t := step.tokens[row]) is not None) for row in rows)
    log_probs = tuple(tuple(p for step in steps if (p := step.log_probs[row]) is not None) for row in rows)
    return Generation(tokens, log_probs, tuple(len(row) > 0 and row[-1] in stops for row in tokens))


def stream(
    model: ModelLike,
    prompts: Ids,
    sampling: Sampling = DRAW,
    *,
    max_new_tokens: int = 64,
    stop_ids: Sequence[int] = (),
    source: Ids | None = None,
    source_lengths: Int[Tensor, " batch"] | None = None,
) -> Iterator[GenerationStep]:
    """Like `generate`, yielding each step as it is made; bad input raises at the call, not at the first step."""
    require_model(model, "generating text")
    tokens, lengths = padded(model, prompts, left=True)
    check_room(model, tokens.shape[1], max_new_tokens)
    state = begin(model, tokens.shape[0], source, source_lengths)
    return _steps(model, tokens, lengths, state, sampling, max_new_tokens, frozenset(stop_ids))


# a decorated generator leaves the caller's gradient mode alone between steps
@torch.no_grad()
def _steps(
    model: Model,
    tokens: Tensor,
    lengths: Tensor | None,
    state: State,
    sampling: Sampling,
    max_new_tokens: int,
    stops: frozenset[int],
) -> Iterator[GenerationStep]:
    batch = tokens.shape[0]
    generators = row_generators(sampling, batch)
    seen = _seen(model, tokens, lengths) if sampling.repetition_penalty != 1 else None
    alive = [True] * batch
    reread = _Reread(model, tokens, lengths)
    for _ in range(max_new_tokens):
        tokens, state, lengths = reread(tokens, state, lengths)
        logits, state = next_logits(model, tokens, state, lengths)
        drawn = sampling_steps(logits, sampling, seen=seen, generators=generators).tokens
        chosen = logits.gather(-1, drawn[:, None]).squeeze(-1) - logits.logsumexp(-1)
        ids, log_probs = drawn.tolist(), chosen.tolist()
        yield GenerationStep(
            tuple(id if on else None for id, on in zip(ids, alive)),
            tuple(log_prob if on else None for log_prob, on in zip(log_probs, alive)),
        )
        alive = [on and id not in stops for id, on in zip(ids, alive)]
        if not any(alive):
            return
        tokens, lengths = drawn[:, None], None
        if seen is not None:
            seen = seen.scatter(-1, tokens, True)


@torch.no_grad()
def begin(model: Model, batch: int, source: Ids | None, source_lengths: Tensor | None) -> State:
    """Return the empty state; an encoder-decoder reads its source here."""
    if isinstance(model, Decoder):
        if source is not None:
            raise TextError("a source was given, but a decoder reads its prompt only; put the text into the prompt.")
        return model.begin(batch)
    if isinstance(model, Encoder):
        model.begin(batch)
    assert isinstance(model, EncoderDecoder), "there is no other kind"
    if source is None:
        raise TextError("an encoder-decoder needs a source to translate; give source=[ids, ...].")
    if len(source) != batch:
        raise TextError(f"{len(source)} sources for {batch} prompts; give one prompt, usually [bos], per source.")
    ids, lengths = padded(model, source, left=False, stack=model.source)
    return model.begin(ids, lengths if source_lengths is None else source_lengths)


def next_logits(
    model: Model, tokens: Int[Tensor, "batch pos"], state: State, lengths: Int[Tensor, " batch"] | None = None
) -> tuple[Float[Tensor, "batch vocab"], State]:
    """Return the logits after the last of `tokens` (minus infinity for `never_ids`), and the state behind it."""
    # the logits of every position of a long prompt would outweigh all else, so the stack's output is asked for instead
    tape = None if tokens.shape[1] == 1 else Tape(model, logits=False)
    inputs: tuple[Any, ...] = (tokens,) if model.source is None else (None, tokens)
    out, state = model(*inputs, state=state, lengths=lengths, tape=tape)
    return generable(model, out[:, -1] if tape is None else model.unembed.logits(out[:, -1])), state


def generable(model: Model, logits: Float[Tensor, "*n vocab"]) -> Float[Tensor, "*n vocab"]:
    """Return logits with minus infinity for tokens that the model's config says are never generated."""
    never = model.config.never_ids if isinstance(model, EncoderDecoder) else ()
    return logits.index_fill(-1, torch.tensor(never, device=logits.device), float("-inf")) if never else logits


def padded(
    model: Model, rows: Ids, *, left: bool, stack: str | None = None
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, " batch"] | None]:
    """Return ids of what a stack reads as one tensor on the model's device, and lengths if they differ.

    Raises:
        TextError: No rows, or an empty one.
        TokenOutOfRange: An id outside the vocabulary.
    """
    device = next(model.parameters()).device
    if isinstance(rows, Tensor):
        tokens, lengths = rows.to(device), None
    else:
        lists = [list(row) for row in rows]
        longest = max([len(row) for row in lists], default=0)
        if any(len(row) < longest for row in lists) and all(lists):
            lengths = torch.tensor([len(row) for row in lists], device=device)
        else:
            lengths = None
        if not all(lists):
            raise TextError(f"row {[len(row) for row in lists].index(0)} holds no tokens; start it with at least one.")
        fill = [[lists[0][0]] * (longest - len(row)) for row in lists]
        whole = [pad + row if left else row + pad for pad, row in zip(fill, lists)]
        tokens = torch.tensor(whole, dtype=torch.int64, device=device)
    if tokens.numel() == 0:
        raise TextError("no tokens to start from; give at least one row with at least one token.")
    low, high = int(tokens.min()), int(tokens.max())
    size = model.embeddings[model.output if stack is None else stack].vocab_size
    if low < 0 or high >= size:
        raise TokenOutOfRange(
            f"token id {low if low < 0 else high} is outside the vocabulary of {size} (0 to {size - 1})."
        )
    return tokens, lengths


def check_room(model: Model, prompt: int, new: int) -> None:
    """Raise `TextError` if prompt and new tokens exceed a position table.

    Raise `AnalysisUnavailable` for an encoder, and for a model that cannot read what it writes.
    """
    if isinstance(model, Encoder):
        model.begin(0)
    model.require_one_vocabulary("generating text")
    table = model.output_embed.positions
    # the last token drawn is never read
    if table is None or table.weight is None or prompt + new - 1 <= table.max_len:
        return
    raise TextError(
        f"{prompt} tokens and {new} new ones, but the model has learned positions for max_len={table.max_len} only; "
        f"ask for at most {max(table.max_len - prompt + 1, 0)} new ones."
    )


class _Reread:
    """Feeds a text to a model again, from the start, when it outgrows what its state was made for."""

    def __init__(self, model: Model, tokens: Tensor, lengths: Tensor | None) -> None:
        self.stack, self.like = model.output_stack, model.unembed.weight
        self.read, self.lengths, self.prompt = [tokens], lengths, tokens.shape[1]

    def __call__(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State, Tensor | None]:
        """Return what to feed next: the new tokens, or all of them and the state before them."""
        if not state.length:
            return tokens, state, lengths
        self.read.append(tokens)
        before, after = state.length, state.length + tokens.shape[1]
        if not any(part.outgrows(before, after) for part in self.stack.parts()):
            return tokens, state, lengths
        layers = self.stack.begin(len(tokens), self.like)
        real = None if self.lengths is None else self.lengths + (after - self.prompt)
        return torch.cat(self.read, -1), state._replace(length=0, layers=layers, start=None), real


def _seen(model: Model, tokens: Tensor, lengths: Tensor | None) -> Tensor:
    seen = torch.zeros(tokens.shape[0], model.config.vocab_size, dtype=torch.bool, device=tokens.device)
    if lengths is None:
        return seen.scatter(-1, tokens, True)
    # padding is filled up with the row's own last token
    column = torch.arange(tokens.shape[1], device=tokens.device)
    real = column >= (tokens.shape[1] - lengths)[:, None]
    return seen.scatter(-1, torch.where(real, tokens, tokens[:, -1:]), True)
