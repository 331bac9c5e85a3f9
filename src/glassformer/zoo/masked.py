"""What the card of an encoder says: how well it tells hidden tokens of held-out text, beside counts.

Rows are windows within held-out files. Of their tokens, those aside that training text has in a run of 13, a share is
chosen and hidden as in training, by a seed of its own. All figures are of the same chosen tokens.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.data import Batch, BigramModel, Data, Masked, MaskedData, TextConfig, TextData
from glassformer.data.batch import generator
from glassformer.data.masked import choose, hide
from glassformer.models import ModelLike
from glassformer.training import TrainConfig
from glassformer.zoo.held_out import HeldOut
from glassformer.zoo.shares import said_of_interval

N_ROWS, N_SHOWN, N_SAMPLES, SAMPLE_TOKENS = 1024, 256, 3, 48


class MaskedFigures(NamedTuple):
    """Figures, notes on them, samples, and the held-out rows they are of."""

    figures: dict[str, Any]
    notes: list[str]
    samples: list[str]
    rows: list[Batch]


def masked_figures(model: ModelLike, config: TrainConfig, trained: Data) -> MaskedFigures:
    """Return what a card says of an encoder trained on masked tokens.

    Args:
        model: What a recipe trained.
        config: The recipe.
        trained: Its data.
    """
    asked = config.evaluate or config.data
    assert isinstance(asked, Masked) and isinstance(asked.text, TextConfig), "an encoder is evaluated on masked text"
    assert isinstance(trained, MaskedData), "an encoder is trained on masked text"
    text = asked.text.build(model.tokenizer)
    assert isinstance(text, TextData), "held-out text is kept in memory"
    train = list(trained.documents("train"))
    held_out = HeldOut.beside(text.documents("heldout"), train)
    # a row of `length` tokens, of which all but the first are predicted
    whole = held_out.rows(asked.length - 1, N_ROWS, asked.batch_size)
    rows = [*_hidden(whole, trained, asked)]
    losses, right = (torch.cat(values) for values in zip(*(_told(model, batch) for batch in rows), strict=True))
    bigram, counts = BigramModel(train, text.vocab_size), _unigram(train, text.vocab_size)
    chosen = torch.cat([batch.targets[batch.weight] for batch in rows])
    by_bigram = [bigram.loss(row)[told] for batch in rows for row, told in zip(batch.targets.tolist(), batch.weight)]
    n = len(losses)
    figures = {
        "masked_loss": float(losses.mean()),
        "masked_accuracy": float(right.float().mean()),
        "unigram_loss": float(counts[chosen].mean()),
        "bigram_loss": float(torch.cat(by_bigram).mean()),
        "commonest_token": float((chosen == counts.argmin()).float().mean()),
    }
    notes = [
        held_out.said(),
        f"masked_loss: nats per chosen token, {n:,} of them in {sum(len(batch.tokens) for batch in rows):,} windows of "
        f"{asked.length} tokens, each within one held-out file; {100 * asked.share:g} % of the other tokens are "
        f"chosen, of these {100 * asked.masked:g} % masked and {100 * asked.replaced:g} % replaced at random",
        "masked_accuracy: share of them whose token is the likeliest; " + said_of_interval(int(right.sum()), n),
        "unigram, bigram (Witten-Bell, from the left alone) and commonest_token, the share that always saying one "
        "token gets right: counted on the text trained on, of the same tokens",
    ]
    return MaskedFigures(figures, notes, [*_samples(model, rows[0])], rows[: N_SHOWN // asked.batch_size])


def _hidden(whole: Iterable[Batch], trained: MaskedData, asked: Masked) -> Iterator[Batch]:
    """Yield rows whose new tokens are hidden by share; a row is a window's inputs and its last target."""
    mask = trained.tokenizer.require("mask")
    for number, batch in enumerate(whole):
        tokens = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)
        among = torch.cat([torch.zeros_like(batch.weight[:, :1]), batch.weight], 1) & torch.isin(tokens, trained.free)
        random = generator("card", asked.seed, number)
        chosen = choose(among, asked.share, random)
        hidden = hide(tokens, chosen, mask, trained.free, (asked.masked, asked.replaced), random)
        yield dataclasses.replace(batch, tokens=hidden, targets=tokens, weight=chosen)


def _told(model: ModelLike, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of each chosen token in nats, and whether it is the likeliest."""
    with torch.no_grad():
        logits = model(batch.tokens)[batch.weight].float()
    targets = batch.targets[batch.weight]
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets


def _unigram(train: Iterable[list[int]], vocab_size: int) -> Tensor:
    """Return the loss of each token by its share of the text, one added to every count."""
    counts = torch.ones(vocab_size)
    for ids in train:
        counts += torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=vocab_size)
    return -(counts / counts.sum()).log()


def _samples(model: ModelLike, batch: Batch) -> Iterator[str]:
    """Yield beginnings of rows as the model reads them, and with what it says where tokens are hidden."""
    tokenizer = model.require_tokenizer()
    with torch.no_grad():
        likeliest = model(batch.tokens).argmax(-1)
    said = torch.where(batch.weight, likeliest, batch.tokens)
    for read, filled in list(zip(batch.tokens.tolist(), said.tolist()))[:N_SAMPLES]:
        yield " -> ".join("".join(tokenizer.tokens(row[:SAMPLE_TOKENS])) for row in (read, filled))
