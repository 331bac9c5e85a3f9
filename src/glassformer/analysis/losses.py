"""Losses by position, with what the context saves of them, and on whole documents."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.components import require_next_tokens
from glassformer.analysis.prepare import next_tokens
from glassformer.arguments import Count, checked
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, WrongArgument
from glassformer.labelled import Labelled
from glassformer.models import Decoder, Model, ModelLike, require_model
from glassformer.models.embedding import require_ids
from glassformer.models.evaluation import evaluating
from glassformer.numerics.placement import place_of

TokenPlace = int | range


@checked
def loss_by_position(model: ModelLike, *batches: Any) -> Labelled:
    """Return the mean loss of each position's token over the rows of some batches, in nats.

    Coordinate i is the loss on token i of a row, predicted from the tokens before it; so coordinates start at 1.
    Positions that count in no row are NaN.

    Args:
        model: A decoder or an encoder-decoder.
        batches: Rows, whose `weight` says what counts; or for a decoder texts or ids, one or several at a time and of
            any lengths.
    """
    losses, weight = token_losses(model, *batches)
    means = (losses * weight).sum(0) / weight.sum(0)
    return Labelled(means, ("pos",), {"pos": range(1, len(means) + 1)})


@checked
def token_losses(model: ModelLike, *batches: Any) -> tuple[Float[Tensor, "row pos"], Bool[Tensor, "row pos"]]:
    """Return every row's loss on every token in nats, and which of them count; shorter batches are filled up."""
    model = require_model(model, "losses")
    found = [next_tokens(model, given, "losses") for given in batches]
    with evaluating(model), torch.no_grad():
        losses = joined([_losses(model, batch) for batch in found])
    return losses, joined([batch.weight for batch in found])


@checked
def document_losses(
    model: ModelLike, documents: Iterable[list[int]], length: Count, *, rows: int = 16
) -> Float[Tensor, " token"]:
    """Return the loss of every token of every document in nats, one document after the other.

    Count models and compressors are measured on the same text. Documents are read in windows of `length` that overlap
    by half, so that every token is predicted from at least `length / 2` tokens before it, or from all there are. The
    first token is predicted from `<bos>`; without one it has no loss.

    Args:
        model: A decoder.
        documents: Token ids without specials.
        length: Tokens per window, at most the model's context.
        rows: Windows per forward pass.

    Raises:
        AnalysisUnavailable: The model is no decoder, or its logits are not of the tokens it reads.
        TokenOutOfRange: An id is outside the vocabulary.
    """
    require_next_tokens(model, "document_losses")
    if not model.continues:
        raise AnalysisUnavailable(
            f"document_losses reads documents without a source, as a decoder does; this model ({type(model).__name__}) "
            "needs sources too.\n"
            "    Its losses on rows with sources: analysis.losses.loss_by_position(model, batch)."
        )
    model.require_one_vocabulary("document_losses")
    bos = None if model.tokenizer is None else model.tokenizer.bos
    losses: list[Tensor] = []
    waiting: list[tuple[list[int], int]] = []
    with evaluating(model), torch.no_grad():
        for window in _windows(documents, bos, length):
            waiting.append(window)
            if len(waiting) == rows:
                losses += _window_losses(model, waiting)
                waiting = []
        losses += _window_losses(model, waiting)
    return torch.cat(losses) if losses else torch.zeros(0)


@checked
def bits_per_byte(losses: Float[Tensor, " token"], n_bytes: Count) -> float:
    """Return what the losses cost per byte of the text they were measured on."""
    return float(losses.double().sum()) / math.log(2) / n_bytes


def joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors whose last axis, positions, may differ in length; what is missing is zero, or False."""
    longest = max(part.shape[-1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, longest - part.shape[-1])) for part in parts], dim)


def icl_places(length: int) -> tuple[range, range]:
    """Return the early and the late tokens compared by default, for rows with this many losses."""
    return range(math.ceil(0.08 * length) + 1, math.ceil(0.12 * length) + 1), range(
        math.ceil(0.9 * length) + 1, length + 1
    )


@checked
def icl_score(losses: Labelled, early: TokenPlace | None = None, late: TokenPlace | None = None) -> float:
    """Return the in-context-learning score in nats: loss at late tokens minus loss at early ones; negative is good.

    The paper compares tokens 500 and 50 of 512. By default windows around the same shares of the length are compared,
    which takes out most of the noise that a few hundred rows leave at single tokens.

    Args:
        losses: What `loss_by_position` returned.
        early: Index of a token, or a range of them.
        late: The same.

    Raises:
        AnalysisUnavailable: The rows are too short, or nothing counts at one of the two places.

    Source: Olsson et al. 2022, section "The phase change".
    """
    length = losses.size("pos")
    places = [p if given is None else given for p, given in zip(icl_places(length), (early, late))]
    first, last = (range(p, p + 1) if isinstance(p, int) else p for p in places)
    if not (len(first) and len(last) and first.start >= 1 and first.stop <= last.start and last.stop <= length + 1):
        raise AnalysisUnavailable(
            f"icl_score compares late tokens with early ones; {first} and {last} are not two such places among the "
            f"losses of tokens 1 to {length}."
        )
    score = float(
        losses.values[last.start - 1 : last.stop - 1].mean() - losses.values[first.start - 1 : first.stop - 1].mean()
    )
    if math.isnan(score):
        raise AnalysisUnavailable(f"icl_score: no row of the batch counts all tokens of {first} and {last}.")
    return score


def icl_or_nan(losses: Labelled) -> float:
    """Return the score by its default places, or NaN where they do not exist."""
    try:
        return icl_score(losses)
    except AnalysisUnavailable:
        return float("nan")


def losses_of(logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> Float[Tensor, "batch pos"]:
    """Return the loss of every target, those that do not count included, in nats."""
    return -logits.log_softmax(-1).gather(-1, batch.targets[..., None]).squeeze(-1)


def _losses(model: ModelLike, batch: Batch) -> Float[Tensor, "batch pos"]:
    require_next_tokens(model, "a loss by position")
    batch.check_targets(model.config.n_outputs)
    if isinstance(model, Decoder):
        x = model.stream(batch.tokens, lengths=batch.lengths, documents=batch.documents)
        return -model.unembed.log_prob(x, batch.targets)
    logits = model(batch.source, batch.tokens, lengths=batch.lengths, source_lengths=batch.source_lengths)
    return losses_of(logits, batch)


def _windows(documents: Iterable[list[int]], bos: int | None, length: int) -> Iterator[tuple[list[int], int]]:
    """Yield (tokens, how many of the first targets were counted before)."""
    half = max(length // 2, 1)
    for ids in documents:
        if not isinstance(ids, list | tuple):
            raise WrongArgument(f"document_losses: documents= takes lists of token ids; found a {type(ids).__name__}.")
        tokens = list(ids) if bos is None else [bos, *ids]
        yield tokens[: length + 1], 0
        for start in range(half, len(tokens) - 1 - (length - half), half):
            yield tokens[start : start + length + 1], length - half


def _window_losses(model: Model, windows: list[tuple[list[int], int]]) -> list[Tensor]:
    windows = [(tokens, skip) for tokens, skip in windows if len(tokens) > 1]
    if not windows:
        return []
    lengths = torch.tensor([len(tokens) - 1 for tokens, _ in windows])
    ids = torch.zeros(len(windows), int(lengths.max()) + 1, dtype=torch.long)
    for i, (tokens, _) in enumerate(windows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
    require_ids(ids, model.config.vocab_size)
    ids, lengths = ids.to(place_of(model)), lengths.to(place_of(model))
    x = model.stream(ids[:, :-1], lengths=None if bool((lengths == lengths[0]).all()) else lengths)
    losses = -model.unembed.log_prob(x, ids[:, 1:])
    return [row[skip:n] for row, (_, skip), n in zip(losses, windows, lengths.tolist())]
