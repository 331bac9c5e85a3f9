"""In-context learning of unseen words: what a model makes of words that were withheld from its training.

A model that only counted its training text cannot know them, whatever its order; one that looks back in the row can.
Compared is the loss on all letters but the first, by how often the word has occurred in the row.

Source: the comparison of count models with transformers follows the argument of Olsson et al. 2022 that induction
works on arbitrary sequences, learned statistics or not.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis.losses import token_losses
from glassformer.data.tasks.unseen_words import UnseenWords
from glassformer.data.text.counts import BigramModel, NGramModel
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled, Result


@dataclasses.dataclass(frozen=True, eq=False)
class UnseenWordsStudy(Result):
    """How well words are continued.

    Args:
        loss: Nats per letter after the first, `model words occurrence`; `words` is `known` or `withheld`, `occurrence`
            counts from 1, its last entry takes all later ones. NaN where nothing of the kind occurs.
        spread: Standard error over rows, same axes.
        gain: How much less a letter costs from the second occurrence on than at the first, in nats, `model words`.
        chance: Loss of guessing any letter: ln of the alphabet.
        counted_tokens: Training tokens that the count models counted.
    """

    HEADLINE = ("loss", "gain")
    SIGNED = ("gain",)

    loss: Labelled
    spread: Labelled
    gain: Labelled
    chance: float
    counted_tokens: int


def unseen_words(
    models: Mapping[str, Any],
    data: UnseenWords,
    *,
    batches: int = 8,
    counted_batches: int = 200,
    occurrences: int = 4,
    orders: tuple[int, ...] = (2, 4),
) -> UnseenWordsStudy:
    """Compare models with count models on words that were withheld from training.

    Args:
        models: Decoders trained on `data`, by name.
        data: The task.
        batches: Held-out batches to measure on.
        counted_batches: Training batches that the count models count.
        occurrences: How many occurrences are told apart.
        orders: Orders of the count models: 2 is a bigram table, more are interpolated Kneser-Ney.

    Raises:
        ShapeMismatch: A model's vocabulary is not the task's.
    """
    built = data.build()
    for name, model in models.items():
        if model.config.vocab_size != built.vocab_size:
            raise ShapeMismatch(
                f'unseen_words: "{name}" has vocab_size={model.config.vocab_size}, the task {built.vocab_size}.'
            )
    rows = [built.batch(i, "heldout") for i in range(batches)]
    training = [built.batch(i) for i in range(1, counted_batches + 1)]
    documents = [_whole(batch, i) for batch in training for i in range(len(batch.tokens))]
    losses = {name: token_losses(model, *rows)[0].double() for name, model in models.items()}
    for order in orders:
        counts: Any = (
            BigramModel(documents, built.vocab_size) if order == 2 else NGramModel(documents, built.vocab_size, order)
        )
        name = "bigram counts" if order == 2 else f"{order}-gram counts"
        losses[name] = torch.stack([counts.loss(_whole(b, i))[1:] for b in rows for i in range(len(b.tokens))]).double()
    marks = data.marks(torch.cat([torch.cat((b.tokens, b.targets[:, -1:]), 1) for b in rows]))
    later = marks.letter > 0
    nth = marks.occurrence.clamp(max=occurrences)
    places = torch.stack(
        [torch.stack([later & (marks.withheld == new) & (nth == n + 1) for n in range(occurrences)]) for new in (0, 1)]
    )
    means, spreads = zip(*(_means(found, places) for found in losses.values()), strict=True)
    again = torch.stack([places[:, 0], places[:, 1:].any(1)], 1)
    both = torch.stack([_means(found, again)[0] for found in losses.values()])
    coords: dict[str, Any] = {"model": list(losses), "words": ("known", "withheld")}
    axes = ("model", "words", "occurrence")
    last = [*map(str, range(1, occurrences)), f"{occurrences}+"]
    return UnseenWordsStudy(
        Labelled(torch.stack(means), axes, coords | {"occurrence": last}),
        Labelled(torch.stack(spreads), axes, coords | {"occurrence": last}),
        Labelled(both[..., 0] - both[..., 1], axes[:2], coords),
        float(torch.tensor(float(data.alphabet)).log()),
        sum(map(len, documents)),
    )


def _whole(batch: Any, row: int) -> list[int]:
    return [*batch.tokens[row].tolist(), int(batch.targets[row, -1])]


def _means(losses: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard error over rows of the losses at some places, `… row pos`."""
    counted = places.to(losses.dtype)
    count = counted.sum((-1, -2))
    mean = (losses * counted).sum((-1, -2)) / count
    off = ((losses - mean[..., None, None]) * counted).sum(-1)
    return mean, off.square().sum(-1).sqrt() / count
