"""Which blocks of a text the blocks of BigBird meet beside their neighbours and those that all meet.

    drawn       over the whole text, none twice, none that is met anyhow: a function of seed, head and number of blocks
    authors     the table that the authors' code trains with, number by number
    first       what `transformers` reads at inference in place of that table: the first block, again and again

The authors draw from the beginning of a text: of 1,024, 3,072 and 4,096 tokens from the first 1,024, of others from the
first 2 n + 5 blocks, n being how many are drawn; and some that they draw are met anyhow. Whatever is met twice counts
twice in the softmax.

Source: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", section 2; google-research/bigbird, whose
plan of blocks `authors` follows as `transformers` has it.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

Random = Literal["drawn", "authors", "first"]
NOTHING = -1
# lengths that the paper's models were trained on, and how far their random blocks reach
PUBLISHED, REACH = (1024, 3072, 4096), 1024


def drawn(n_blocks: int, n_heads: int, n_random: int, seed: int, ends: bool) -> Int[Tensor, "head block n_random"]:
    """Return blocks drawn without repetition; `NOTHING` where there are no more.

    Args:
        n_blocks: Blocks of the text.
        n_heads: Heads, which draw apart.
        n_random: How many each block draws.
        seed: Of the draw.
        ends: Whether the first and the last block are met by all.
    """
    own = torch.arange(n_blocks)
    met = torch.stack([own - 1, own, own + 1, *([0 * own, 0 * own + n_blocks - 1] if ends else [])], -1)
    met = met.masked_fill((met < 0) | (met >= n_blocks), n_blocks).sort(-1).values
    # each once: what comes again is put behind the end
    met[:, 1:][met[:, 1:] == met[:, :-1]] = n_blocks
    met = met.sort(-1).values
    left = n_blocks - (met < n_blocks).sum(-1)
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(n_heads, n_blocks, n_random, generator=generator, dtype=torch.float64)
    found = torch.full((n_heads, n_blocks, n_random), NOTHING)
    # Floyd's way to draw n of m that are left: the i-th is any of the first m - n + i + 1, or the last if it is taken
    wanted = left.clamp_max(n_random)
    for i in range(n_random):
        last = left - wanted + i
        one = (uniform[..., i] * (last + 1)).long().minimum(last)
        taken = (found[..., :i] == one[..., None]).any(-1)
        found[..., i] = torch.where(i < wanted, torch.where(taken, last, one), NOTHING)
    # counted among those left: each that is met anyhow moves it on by one
    at = found
    for column in met.mT:
        at = at + ((at >= column[:, None]) & (found != NOTHING))
    return at


def authors(
    n_blocks: int, n_heads: int, n_random: int, seed: int, block: int, longest: int
) -> Int[Tensor, "head block n_random"]:
    """Return the table that the authors' code draws in training; the first and the last block draw nothing.

    Args:
        n_blocks: Blocks of the text.
        n_heads: Heads.
        n_random: How many each block draws.
        seed: The number of the layer.
        block: Tokens of a block.
        longest: The longest text of the model.
    """
    random = np.random.RandomState(seed)
    if n_blocks * block in PUBLISHED:
        reach = REACH // block - 1 if 2 * block < REACH else longest // block - 1
        rows = [_published(random, longest // block, n_random, reach)[: n_blocks - 2] for _ in range(n_heads)]
    else:
        rows = _planned(random, n_blocks, n_heads, n_random)
    inner = torch.from_numpy(np.stack(rows)).long()
    return torch.nn.functional.pad(inner, (0, 0, 1, 1), value=NOTHING)


def _published(random: np.random.RandomState, n_blocks: int, n_random: int, reach: int) -> np.ndarray:
    inner, rows = np.arange(1, n_blocks - 1), []
    for i in range(1, n_blocks - 1):
        if i <= 2:
            pool = inner[i + 1 : reach]
        elif i >= n_blocks - 3 or i - 2 > reach:
            pool = inner[:reach]
        elif i + 1 == reach:
            pool = inner[: i - 2]
        else:
            pool = np.concatenate((inner[: i - 2], inner[i + 1 : reach]))
        rows.append(_so_many(random.permutation(pool), n_random))
    return np.stack(rows)


def _planned(random: np.random.RandomState, n_blocks: int, n_heads: int, n_random: int) -> list[np.ndarray]:
    """Return the table of a text in one or two parts, of each of which every block draws so many."""
    if 2 * n_random + 5 < n_blocks:
        ends, numbers = [2 * n_random + 5, n_blocks], [n_random, 0]
    elif n_random + 5 < n_blocks:
        ends, numbers = [n_random + 5, n_blocks], [n_random // 2, n_random - n_random // 2]
    else:
        ends, numbers = [n_blocks], [n_random]
    starts, tables = [0, *ends[:-1]], [np.zeros((n_blocks, n_random), dtype=np.int64) for _ in range(n_heads)]

    def fill(rows: range, part: int) -> None:
        columns = slice(sum(numbers[:part]), sum(numbers[: part + 1]))
        for row in rows:
            for table in tables:
                table[row, columns] = _of_part(random, row, starts[part], ends[part], numbers[part])

    for part, (start, end) in enumerate(zip(starts, ends)):
        if part > 0 and numbers[part] > 0:
            fill(range(1, start), part)
        for earlier in range(part):
            if numbers[earlier] > 0:
                fill(range(start, end), earlier)
        if numbers[part] > 0:
            fill(range(max(start, 1), end), part)
    return [table[1:-1] for table in tables]


def _of_part(random: np.random.RandomState, block: int, start: int, end: int, number: int) -> np.ndarray:
    met = {block - 1, block, block + 1, 0, end - 1}
    met |= {end - 2} if block == 1 else set()
    met |= {1} if block == end - 2 else set()
    order = random.permutation(np.arange(start, end))
    return _so_many(order[~np.isin(order, list(met))], number)


def _so_many(found: np.ndarray, number: int) -> np.ndarray:
    """Return the first of them, and `NOTHING` where there are no more: theirs ends in an error there."""
    return np.concatenate((found[:number], np.full(max(0, number - len(found)), NOTHING)))
