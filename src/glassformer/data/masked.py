"""Masked tokens: rows in which some tokens are chosen to be said, most of them hidden; what an encoder learns from.

    of the tokens that count, `share` are chosen; of those `masked` become the mask token, `replaced` a random one, and
    the rest stay as they are. The target of a chosen position is what stood there, and no other position counts.

Which are chosen is a function of seed, split and step, so the held-out loss is always of the same masks.

Source: Devlin et al. 2018, "BERT", section 3.1, task 1: 15 % of the tokens of each sequence; 80 %, 10 %, 10 %.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.arguments import Count, PositiveShare, Share
from glassformer.config import require
from glassformer.data.batch import Batch, Data, DataConfig, Split, generator, vocabularies_of
from glassformer.data.images.image_data import ImageConfig
from glassformer.data.text import TextConfig
from glassformer.data.tokenizer import Tokenizer, with_mask
from glassformer.errors import DataError


@dataclasses.dataclass(frozen=True)
class Masked(DataConfig, kind="masked"):
    """Rows of which some tokens are hidden, and are to be said.

    What may be chosen are the tokens that count as targets in the rows themselves: none of the special tokens, none
    that fills a row up, of a task only what can be known, and never the first of a row.

    Args:
        batch_size: Rows per batch.
        length: Tokens per row.
        seed: Of what is chosen, and of the tokens that stand in for others.
        text: The rows. Their batch size and length give way to those here.
        share: Of the tokens of each row, how many are chosen; at least one is.
        masked: Of the chosen, the share that becomes the mask token.
        replaced: Of the chosen, the share that becomes a token drawn evenly from all that are not special.
    """

    batch_size: Count = 16
    length: Count = 256
    seed: int = 0
    text: DataConfig = dataclasses.field(default_factory=TextConfig)
    share: PositiveShare = 0.15
    masked: Share = 0.8
    replaced: Share = 0.1

    def __post_init__(self) -> None:
        require(
            self.masked + self.replaced <= 1 + 1e-9,
            f"masked={self.masked} and replaced={self.replaced} are shares of the chosen tokens; they exceed 1.",
        )
        require(not isinstance(self.text, ImageConfig), f"masked: data of kind {self.text.kind} are images, no text.")
        require(not isinstance(self.text, Masked), "masked: these rows are hidden already; give them as they are.")

    def build(self, tokenizer: Tokenizer | None = None) -> "MaskedData":
        return MaskedData(self, tokenizer)

    def check(self) -> None:
        self.text.check()

    def origins(self) -> tuple[str, ...]:
        return self.text.origins()

    def synthetic(self) -> dict[str, float]:
        return self.text.synthetic()

    def on_text(self, sources: tuple[str, ...]) -> Self:
        return self.replace(text=self.text.on_text(sources))

    def texts(self) -> Iterator[str]:
        return self.text.texts()


class MaskedData:
    """Rows of a config with tokens hidden. A tokenizer learned for them gets a mask token, behind all others.

    Raises:
        DataError: The tokenizer given has no mask token, or the rows have targets of another vocabulary.
    """

    def __init__(self, config: Masked, tokenizer: Tokenizer | None = None) -> None:
        self.config = config
        if tokenizer is not None and tokenizer.roles.mask is None:
            raise DataError(
                f"masked: {tokenizer} has no mask token to hide tokens behind. Give with_mask(tokenizer), or build "
                "without a tokenizer. Rows of a mixture are hidden around it: Masked(text=MixtureConfig(…))."
            )
        self.rows: Data = config.text.replace(batch_size=config.batch_size, length=config.length).build(tokenizer)
        own = self.rows.tokenizer
        if own is None or vocabularies_of(self.rows)["output"] is not own:
            raise DataError(f'masked: targets of kind "{config.text.kind}" are no tokens of its rows to hide there.')
        self.tokenizer = with_mask(own)
        self.vocab_size = self.tokenizer.vocab_size
        self.free = torch.tensor([id for id in range(self.vocab_size) if id not in self.tokenizer.specials])

    def batch(self, step: int, split: Split = "train") -> Batch:
        rows, config = self.rows.batch(step, split), self.config
        if rows.source is not None:
            raise DataError(f'masked: data of kind "{config.text.kind}" has sources; an encoder reads one text.')
        mask = self.tokenizer.require("mask")
        random = generator(config.seed, "masked", split, step)
        chosen = choose(self._may_be_chosen(rows), config.share, random)
        if not bool(chosen.any()):
            raise DataError(
                f'masked: no token of the rows of kind "{config.text.kind}" counts but special ones and the first of '
                "a row, so none can be hidden. Give longer rows."
            )
        hidden = hide(rows.tokens, chosen, mask, self.free, (config.masked, config.replaced), random)
        return dataclasses.replace(rows, tokens=hidden, targets=rows.tokens, weight=chosen)

    def documents(self, split: Split) -> Iterator[list[int]]:
        yield from self.rows.documents(split)

    def describe(self) -> dict[str, Any]:
        config = self.config
        shares = {"share": config.share, "masked": config.masked, "replaced": config.replaced}
        return {"hidden": shares} | self.rows.describe() | {"vocab_size": self.vocab_size}

    def _may_be_chosen(self, rows: Batch) -> Bool[Tensor, "batch pos"]:
        """Return which tokens count as targets where they stand, specials aside."""
        counts = torch.zeros_like(rows.weight)
        counts[:, 1:] = rows.weight[:, :-1]
        if rows.lengths is not None:
            counts &= torch.arange(counts.shape[1]) < rows.lengths[:, None]
        return counts & torch.isin(rows.tokens, self.free)


def choose(
    among: Bool[Tensor, "batch pos"], share: float, random: torch.Generator | None = None
) -> Bool[Tensor, "batch pos"]:
    """Choose a share of each row's positions at random, rounded; one at least of a row that has any.

    Args:
        among: What may be chosen.
        share: How many of them, from 0 to 1.
        random: Of the choice; torch's own by default.
    """
    n = among.sum(-1)
    wanted = (n * share).round().clamp(min=1).minimum(n)
    # ranks of random numbers are a random order; what may not be chosen comes last
    drawn = torch.rand(among.shape, generator=random).masked_fill(~among, 2.0)
    return (drawn.argsort(-1).argsort(-1) < wanted[:, None]) & among


def hide(
    tokens: Int[Tensor, "batch pos"],
    chosen: Bool[Tensor, "batch pos"],
    mask: int,
    free: Int[Tensor, " token"],
    shares: tuple[float, float] = (0.8, 0.1),
    random: torch.Generator | None = None,
) -> Int[Tensor, "batch pos"]:
    """Return tokens with those that are chosen masked, replaced by others, or left as they are.

    Args:
        tokens: Token ids.
        chosen: Which to hide.
        mask: Id of the mask token.
        free: Ids that replacements are drawn from, evenly: the token itself may come.
        shares: Of the chosen, how many are masked and how many replaced; each is drawn by itself.
        random: Of the draws; torch's own by default.
    """
    masked, replaced = shares
    drawn = torch.rand(tokens.shape, generator=random)
    others = free[torch.randint(len(free), tokens.shape, generator=random)]
    hidden = torch.where(chosen & (drawn < masked), mask, tokens)
    return torch.where(chosen & (drawn >= masked) & (drawn < masked + replaced), others, hidden)
