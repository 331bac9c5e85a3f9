"""The loss on whole documents, so that a model compares with count models and compressors on the same text."""

import math
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.components import require_next_tokens
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Decoder, ModelLike


def document_losses(
    model: ModelLike, documents: Iterable[list[int]], length: int, *, rows: int = 16
) -> Float[Tensor, " token"]:
    """Return the loss of every token of every document, in nats, one document after the other.

    Documents are read in windows of `length` that overlap by half, so that every token is predicted from at least
    `length / 2` tokens before it, or from all there are. The first token is predicted from `<bos>`; without one it has
    no loss.

    Args:
        model: A decoder in evaluation mode.
        documents: Token ids without specials.
        length: Tokens per window, at most the model's context.
        rows: Windows per forward pass.
    """
    require_next_tokens(model, "document_losses")
    if not isinstance(model, Decoder):
        raise AnalysisUnavailable(
            f"document_losses reads plain documents, which a decoder does; a {type(model).__name__} needs sources too."
        )
    bos = None if model.tokenizer is None else model.tokenizer.bos
    losses: list[Tensor] = []
    waiting: list[tuple[list[int], int]] = []
    with torch.no_grad():
        for window in _windows(documents, bos, length):
            waiting.append(window)
            if len(waiting) == rows:
                losses += _score(model, waiting)
                waiting = []
        losses += _score(model, waiting) if waiting else []
    return torch.cat(losses) if losses else torch.zeros(0)


def bits_per_byte(losses: Float[Tensor, " token"], n_bytes: int) -> float:
    """Return what the losses cost per byte of the text they were measured on."""
    return float(losses.double().sum()) / math.log(2) / n_bytes


def _windows(documents: Iterable[list[int]], bos: int | None, length: int) -> Iterator[tuple[list[int], int]]:
    """Yield (tokens, how many of the first targets were counted before)."""
    half = max(length // 2, 1)
    for ids in documents:
        tokens = ids if bos is None else [bos, *ids]
        yield tokens[: length + 1], 0
        for start in range(half, len(tokens) - 1 - (length - half), half):
            yield tokens[start : start + length + 1], length - half


def _score(model: Decoder, windows: list[tuple[list[int], int]]) -> list[Tensor]:
    windows = [(tokens, skip) for tokens, skip in windows if len(tokens) > 1]
    if not windows:
        return []
    lengths = torch.tensor([len(tokens) - 1 for tokens, _ in windows])
    ids = torch.zeros(len(windows), int(lengths.max()) + 1, dtype=torch.long)
    for i, (tokens, _) in enumerate(windows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
    x = model.stream(ids[:, :-1], lengths=None if bool((lengths == lengths[0]).all()) else lengths)
    losses = -model.unembed.log_prob(x, ids[:, 1:])
    return [row[skip:n] for row, (_, skip), n in zip(losses, windows, lengths.tolist())]
