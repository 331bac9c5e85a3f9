"""BigBird's attention: blocks of a text meet their neighbours, a few blocks or tokens that all meet, and random ones.

    z_t = sum_s softmax_s(q_t . k_s / sqrt(d)) v_s

over s in the block of t and those beside it, in global blocks, and in random ones. Queries of global blocks, or global
tokens, look at the whole text. `itc` (internal): the first and the last block are global. `etc` (extended): the first
`n_global` tokens are, which the caller puts before the text, and blocks are counted behind them.

Random blocks are drawn for every head and layer over the whole text, none twice and none that is met anyhow, the same
in training and evaluation. Two other tables are there for weights that were trained with them
(`kernels.random_blocks`): what these name twice counts twice, as log of the count on its scores.

What a block meets depends on how long the text is: there is no causal form, nor a state. Blocks are those of a text:
padding is none, each document of a packed row has its own, and a last block may be short.

Pattern: exact, non-negative, rows sum to one.
State: none.
Cost: O(pos block (5 + n_random)) time and memory; global queries O(block pos). Positions that add to scores take the
pattern.
Source: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", sections 2 and 3.2 and appendix D. Differs
from the code of both google-research/bigbird and transformers in what is drawn, and in that texts are not filled up to
whole blocks.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.arguments import Count, Natural
from glassformer.attention.context import Context, Documents, Padding, Run
from glassformer.attention.kernels.blocked import neighbours
from glassformer.attention.kernels.fused import attend_masked
from glassformer.attention.kernels.random_blocks import NOTHING, Random, authors, drawn
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.scores import masked_softmax, placed, products
from glassformer.config import require
from glassformer.trace import Tape, site


@dataclass(frozen=True)
class BigBird(MixerConfig, kind="big_bird"):
    """Attention of blocks to neighbours, global blocks or tokens, and random blocks.

    Args:
        block: Tokens of a block.
        n_random: Random blocks that each block meets.
        form: `itc`, the first and the last block are global; `etc`, the first `n_global` tokens are.
        n_global: Tokens at the beginning of a text that are global, in the form `etc`.
        random: Which random blocks: `drawn`, the `authors`' table, or the `first` block again and again.
        seed: Of what is drawn, together with the layer.
        full_up_to: Texts of so many tokens or fewer are read by full attention.
    """

    block: Count = 64
    n_random: Natural = 3
    form: Literal["itc", "etc"] = "itc"
    n_global: Natural = 0
    random: Random = "drawn"
    seed: int = 0
    full_up_to: Natural = 0

    bidirectional: ClassVar[bool] = True
    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)
    variants = (
        {"block": 1, "n_random": 1},
        {"block": 2, "n_random": 0},
        {"block": 1, "n_random": 2, "form": "etc", "n_global": 2},
        {"block": 2, "n_random": 1, "form": "etc"},
        {"block": 1, "n_random": 2, "random": "first", "full_up_to": 5},
    )

    def __post_init__(self) -> None:
        require(
            self.form == "etc" or self.n_global == 0,
            f'big_bird: n_global={self.n_global} belongs to form="etc"; in "itc" the first and last block are global.',
        )
        require(
            self.form == "itc" or self.random == "drawn",
            f'big_bird: random="{self.random}" is of form="itc", which the authors\' code has.',
        )

    @property
    def crosses(self) -> bool:
        return False

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form: where each text begins is read from its numbers.

        Both products over all pairs that are handed to kernels, masked ones included.
        """
        n, block = n_keys, self.block
        if n <= self.full_up_to:
            pairs = n * n
        elif self.form == "etc":
            tokens = min(self.n_global, n)
            blocks = -(-(n - tokens) // block)
            pairs = tokens * n + blocks * block * ((3 + self.n_random) * block + tokens)
        else:
            blocks = max(0, -(-n // block) - 2)
            pairs = (n - blocks * block) * n + blocks * block * (5 + self.n_random) * block
        return 2 * dims.n_heads * pairs * (dims.d_head + dims.d_value)


class BigBirdMixer(Mixer, config=BigBird):
    config: BigBird
    mixes_continued = mixes_compiled = True

    def __init__(self, config: BigBird, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.traits = replace(config.traits, bilinear_scores=config.random == "drawn")

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = placed(products(q * self.scale, k, context), context)
        counts = self._met(context, q.shape[-2], len(q)).to(scores)
        return masked_softmax(site(tape, self.at.scores, scores + counts.log()))

    def visible(self, context: Context, n_queries: int, n_keys: int) -> Bool[Tensor, "b head query key"]:
        return self._met(context, n_keys, context.mask.batch)[..., -n_queries:, :] > 0

    def _met(self, context: Context, n: int, batch: int) -> Float[Tensor, "batch head query key"]:
        """Return how often each query of a row meets each key."""
        counts = torch.zeros(batch, self.dims.n_heads, n, n, dtype=torch.float64)
        for run in self.texts(context, n, n, batch):
            if not context.excerpt(run).mask.terms:
                at = slice(run.start, run.stop)
                counts[run.row : run.row + run.n_rows, :, at, at] = self._counts(run.length).double()
        return counts

    def texts(self, context: Context, n_queries: int, n_keys: int, batch: int) -> list[Run]:
        """Return the texts of all rows and, between them, what is padding."""
        n = n_keys
        terms = context.mask.only(Padding, Documents, mechanism="big_bird")
        if not terms[Padding] and not terms[Documents]:
            return [Run(0, batch, 0, n)]
        number = torch.zeros(1, n, dtype=torch.long) if context.documents is None else context.documents.number.cpu()
        real = context.real_keys(n, "big_bird")
        number = number if real is None else 2 * number + real.cpu()
        found = []
        for row, ids in enumerate(number.expand(batch, -1)):
            edges = (ids.diff().nonzero().flatten() + 1).tolist()
            found += [Run(row, 1, start, stop) for start, stop in pairwise([0, *edges, n])]
        return found

    def _counts(self, n: int) -> Float[Tensor, "head query key"]:
        """Return how often each query of a text meets each key."""
        config, heads = self.config, self.dims.n_heads
        if n <= config.full_up_to:
            return torch.ones(heads, n, n)
        first = min(config.n_global, n) if config.form == "etc" else 0
        block = torch.arange(n - first) // config.block
        n_blocks = -(-(n - first) // config.block)
        met = (torch.arange(n_blocks)[:, None] - torch.arange(n_blocks)).abs() < 2
        if config.form == "itc":
            met[[0, -1]] = met[:, [0, -1]] = True
        met = met.expand(heads, -1, -1).double()
        table = self._table(n_blocks)
        drawn = torch.zeros(heads, n_blocks, n_blocks + 1, dtype=torch.float64)
        # what is nothing is counted behind the end
        drawn.scatter_add_(-1, table.masked_fill(table == NOTHING, n_blocks), torch.ones_like(table, dtype=drawn.dtype))
        if config.form == "itc":
            drawn[:, [0, -1]] = 0
        counts = (met + drawn[..., :n_blocks])[:, block[:, None], block]
        return F.pad(counts, (first, 0, first, 0), value=1.0)

    def _table(self, n_blocks: int) -> Int[Tensor, "head block n_random"]:
        """Return the random blocks that each block of a text meets."""
        config, heads = self.config, self.dims.n_heads
        if config.random == "first":
            return torch.zeros(heads, n_blocks, config.n_random, dtype=torch.long)
        if config.random == "authors" and n_blocks > 2:
            return authors(n_blocks, heads, config.n_random, self.dims.layer, config.block, self.dims.max_len)
        # a layer's draw is no other layer's of a model that is seeded one higher
        seed = config.seed * 1009 + self.dims.layer
        return drawn(n_blocks, heads, config.n_random, seed, config.form == "itc")

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        """Return what one text makes of itself; zeros of what is padding, which its own mask hides."""
        config, n = self.config, q.shape[-2]
        if context.mask.terms:
            return v.new_zeros(*q.shape[:-1], v.shape[-1])
        everywhere = torch.ones(1, 1, 1, n, dtype=torch.bool, device=q.device)
        if n <= config.full_up_to:
            return attend_masked(q, k, v, everywhere, self.scale)
        if config.form == "etc":
            first, last = min(config.n_global, n), n
        else:
            # behind the first block and before the last one
            first = min(config.block, n)
            last = max(first, (n - 1) // config.block * config.block)
        ends = torch.cat((q[..., :first, :], q[..., last:, :]), -2)
        if ends.shape[-2]:
            ends = attend_masked(ends, k, v, everywhere, self.scale)
        else:
            ends = v.new_zeros(*q.shape[:2], 0, v.shape[-1])
        between = self._between(q, per_query_head(k, q), per_query_head(v, q), first, last)
        return torch.cat((ends[..., :first, :], between, ends[..., first:, :]), -2)

    def _between(self, q: Tensor, k: Tensor, v: Tensor, first: int, last: int) -> Tensor:
        """Return what queries from `first` up to `last` mix, block by block."""
        config, block, (batch, heads, n) = self.config, self.config.block, q.shape[:3]
        itc = config.form == "itc"
        if first == last:
            return v[..., :0, :]
        own = neighbours(q[..., first:last, :], block, 0, 0)
        n_own, device = len(own), q.device
        # keys of blocks: in `itc` those met by all are blocks too
        of_blocks = slice(0 if itc else first, n)
        n_blocks, skipped = -(-(n - of_blocks.start) // block), 1 if itc else 0
        blocks = torch.arange(skipped, skipped + n_own, device=device)
        beside = blocks[:, None] + torch.arange(-1, 2, device=device)
        there = (beside >= skipped) & (beside < n_blocks - skipped)
        table = self._table(n_blocks)[:, skipped : skipped + n_own].to(device)
        token = torch.arange(block, device=device)
        length = n - of_blocks.start
        near = (there[..., None] & (beside[..., None] * block + token < length)).flatten(1)[:, None]
        random = ((table != NOTHING)[..., None] & (table[..., None] * block + token < length)).flatten(2).movedim(0, 1)
        met = [near.expand(-1, heads, -1), random]
        n_all = (block + n - last) if itc else first
        met.append(torch.ones(1, 1, n_all, dtype=torch.bool, device=device).expand(n_own, heads, -1))
        at = table.clamp_min(0) + torch.arange(heads, device=device)[:, None, None] * n_blocks

        def keys(x: Tensor) -> Tensor:
            padded = neighbours(x[..., of_blocks, :], block, 0, 0)
            close = neighbours(x[..., of_blocks, :], block, 1, 1)[skipped : skipped + n_own]
            apart = padded.permute(1, 2, 0, 3, 4).flatten(1, 2).index_select(1, at.flatten())
            apart = apart.view(batch, heads, n_own, -1, x.shape[-1]).movedim(2, 0)
            alike = torch.cat((x[..., :first, :], x[..., last:, :]), -2) if itc else x[..., :first, :]
            return torch.cat((close, apart, alike.expand(n_own, *alike.shape)), -2).flatten(0, 1)

        mask = torch.cat(met, -1)[:, None, :, None].expand(-1, batch, -1, -1, -1).flatten(0, 1)
        z = attend_masked(own.flatten(0, 1), keys(k), keys(v), mask, self.scale)
        return z.unflatten(0, (n_own, batch)).movedim(0, 2).flatten(2, 3)[..., : last - first, :]
