"""Reformer's attention: queries meet the keys that a random hash puts into their bucket, in several rounds.

    k = q / |q|                                        queries and keys are one (`Tied(key="query")`)
    h_r(x) = argmax([x R_r; -x R_r])                   R_r random, one per round; half as many columns as buckets
    z_t = sum_s softmax_s(q_t . k_s) v_s               over s that share a bucket with t in a round, and lie near there

Near are keys of one's own chunk of the bucket, or of the chunk before: the members of a bucket are cut into chunks of
`chunk` in the order of the text. What is met in several rounds counts once. A token meets itself only if it meets
nothing else. The hash has no gradient.

`library` is the form of transformers and reformer-pytorch: all rounds are sorted end to end, by bucket and place, and
cut into chunks; a query meets all keys of its chunk and of the one before it, of whatever bucket, the first chunk of a
round those of the last chunk of the round before. What is met in several rounds counts as often. A text of up to
`chunk` tokens is not hashed. There, and in the paper, what a token meets depends on how many tokens each bucket has in
all: on the hash of later ones. That form goes on from no state, and its texts have to stand alone in unpadded rows.

Random are the rotations alone: a function of seed and layer, of head and round, the same in training and evaluation.

Pattern: exact given the hash, non-negative, rows sum to one.
State: keys and values of all positions, `paper` alone. A step hashes the keys anew.
Cost: O(pos n_rounds chunk + pos log pos) time and memory, besides products with the rotations. Where keys are no
queries, up to twice as many pairs are made. Positions that add to scores take the pattern.
Source: Kitaev et al. 2020, "Reformer: The Efficient Transformer", section 2. Differs from it in that chunks are those
of a bucket and not of the sorted text, which no later token can change, and in which no key of another bucket takes
room; as in transformers scores are not divided by sqrt(d).
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention.context import Context, Documents, Padding
from glassformer.attention.kernels.buckets import met_in_round, mixed_end_to_end, sorted_by_bucket
from glassformer.attention.kernels.union import alike, met_by_any, union_softmax
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits
from glassformer.attention.projections import Tied
from glassformer.attention.scores import masked_softmax, placed, products
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape, site

SMALLEST = 1e-6  # added to the mean square of a key in the form of the library


@dataclass(frozen=True)
class Lsh(MixerConfig, kind="lsh"):
    """Attention to keys of the same bucket of a random hash.

    Args:
        n_buckets: Buckets of a round, an even number. Several are multiplied: a hash for each, in the form `library`.
        chunk: How many members of a bucket stand together.
        n_rounds: How often texts are hashed.
        form: `paper`, what shares a bucket, once; or `library`, what stands near in the sorted text.
        seed: Of the rotations.
    """

    n_buckets: int | tuple[int, ...] = 64
    chunk: Count = 64
    n_rounds: Count = 4
    form: Literal["paper", "library"] = "paper"
    seed: int = 0

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, hashes=True)
    variants = ({"n_buckets": 2, "chunk": 2, "n_rounds": 2}, {"n_buckets": 4, "chunk": 1, "n_rounds": 3})

    def __post_init__(self) -> None:
        require(
            len(self.factors) > 0 and all(n >= 2 and n % 2 == 0 for n in self.factors),
            f"lsh: n_buckets must be an even number of 2 at least, found {self.n_buckets}.",
        )
        require(
            len(self.factors) == 1 or self.form == "library",
            f'lsh: several factors of n_buckets belong to form="library", found {self.n_buckets}.',
        )

    @property
    def factors(self) -> tuple[int, ...]:
        return self.n_buckets if isinstance(self.n_buckets, tuple) else (self.n_buckets,)

    @property
    def crosses(self) -> bool:
        return False

    @property
    def continues(self) -> bool:
        return self.form == "paper"

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        return {"mixer": self, "projection": Tied(key="query")}

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form: whether queries are the keys, which are hashed once then, is read from their numbers.

        Products with the rotations, and both products over all pairs that are handed to kernels where groups of
        queries are full.
        """
        rows = n_keys if n_queries == n_keys else n_queries + n_keys
        hashed = dims.n_heads * rows * self.n_rounds * sum(self.factors) * dims.d_head
        blocks = 2 if self.form == "library" else 3 if causal else 4
        pairs = self.n_rounds * -(-n_queries // self.chunk) * self.chunk * blocks * self.chunk
        return hashed + 2 * dims.n_heads * pairs * (dims.d_head + dims.d_value)


class LshMixer(Mixer, config=Lsh):
    config: Lsh
    mixes_continued = True

    @property
    def scale(self) -> float:
        return 1.0

    def rotations(self, like: Tensor) -> Float[Tensor, "head d_head round half"]:
        """Return the rotations of every head and round; those of all factors side by side."""
        config, dims = self.config, self.dims
        # theirs are the same for all layers, and drawn in the type that they are used in
        seed = config.seed if config.form == "library" else config.seed * 1009 + dims.layer
        generator, half = torch.Generator().manual_seed(seed), sum(config.factors) // 2
        drawn = torch.randn(dims.n_heads, dims.d_head, config.n_rounds, half, generator=generator, dtype=like.dtype)
        return drawn.to(like.device)

    def buckets(self, x: Float[Tensor, "batch head pos d_head"]) -> Int[Tensor, "batch head round pos"]:
        """Return the bucket of every query or key in each round."""
        # no rounding of a type decides on a bucket, but of theirs
        x = x.detach() if self.config.form == "library" else x.detach().double()
        turned = torch.einsum("bhnd,hdrf->bhrnf", x, self.rotations(x))
        found, places, first = torch.zeros(turned.shape[:-1], dtype=torch.long, device=x.device), 1, 0
        for factor in self.config.factors:
            part = turned[..., first : first + factor // 2]
            found = found + places * torch.cat((part, -part), -1).argmax(-1)
            places, first = places * factor, first + factor // 2
        return found

    def normed(self, k: Tensor) -> Tensor:
        """Return keys of length one."""
        if self.config.form == "library":
            return k * (k.square().mean(-1, keepdim=True) + SMALLEST).rsqrt() * self.dims.d_head**-0.5
        return k / k.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(k.dtype).tiny)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        n, m = q.shape[-2], k.shape[-2]
        scores = placed(products(q, self.normed(k), context), context)
        counts = self._counts_of_library(k, context) if self.config.form == "library" else self._counts(q, k, context)
        own = torch.arange(m - n, m, device=q.device)[:, None] == torch.arange(m, device=q.device)
        others = (scores + counts.log().to(scores.dtype)).masked_fill(own, -math.inf)
        alone = (others == -math.inf).all(-1, keepdim=True)
        # of queries that are no keys, one may fall elsewhere than its key
        return masked_softmax(site(tape, self.at.scores, torch.where(own & alone, scores, others)))

    def _counts(self, q: Tensor, k: Tensor, context: Context) -> Float[Tensor, "batch head query key"]:
        """Return 1 for pairs that meet in a round, 0 for others."""
        n, m = q.shape[-2], k.shape[-2]
        keys, queries = self.buckets(k), self.buckets(q)
        where = torch.arange(m, device=k.device)
        together = self._together(context, m, k.device)
        before = together & (where < where[m - n :, None])
        all_before = together if n == m else self._together(context, m, k.device, whole=True)
        all_before = all_before & (where < where[:, None])
        met = torch.zeros((), dtype=torch.bool, device=k.device)
        for key, query in zip(keys.unbind(2), queries.unbind(2), strict=True):
            of_keys = ((key[..., :, None] == key[..., None, :]) & all_before).sum(-1) // self.config.chunk
            same = query[..., :, None] == key[..., None, :]
            of_queries = (same & before).sum(-1) // self.config.chunk
            apart = of_queries[..., :, None] - of_keys[..., None, :]
            met = met | (same & ((apart == 0) | (apart == 1)) & together)
        return met.to(q.dtype)

    def _together(
        self, context: Context, n_keys: int, device: torch.device, *, whole: bool = False
    ) -> Bool[Tensor, "b 1 query key"]:
        """Return which keys a query may meet: real ones of its text; of the last queries, or of all."""
        n = n_keys if whole else context.positions.shape[-1]
        found = torch.ones(1, n, n_keys, dtype=torch.bool, device=device)
        if (real := context.real_keys(n_keys, "lsh")) is not None:
            # what is padding meets nothing, either
            found = found & real[:, None] & real[:, n_keys - n :, None]
        if (documents := context.documents) is not None:
            number = documents.number[:, -n_keys:]
            found = found & (number[:, n_keys - n :, None] == number[:, None])
        return found[:, None]

    def _counts_of_library(self, k: Tensor, context: Context) -> Float[Tensor, "batch head query key"]:
        """Return how often each pair meets in all rounds, laid end to end."""
        n = self._alone(context, k)
        if n <= self.config.chunk:
            return k.new_ones(1, 1, n, n)
        place = self._sorted(k)[1] // self.config.chunk
        chunks = int(place.max()) + 1
        counts = k.new_zeros(len(k), self.dims.n_heads, n, n)
        for of_query in range(self.config.n_rounds):
            for of_key in range(self.config.n_rounds):
                apart = (place[:, :, of_query, :n, None] - place[:, :, of_key, None, :n]) % chunks
                counts = counts + ((apart == 0) | (apart == 1)).to(counts.dtype)
        return counts

    def _alone(self, context: Context, k: Tensor) -> int:
        """Return the length of a text that is read in the form of the library, or raise that it cannot be."""
        n = k.shape[-2]
        whole = n == context.positions.shape[-1] and n == context.key_positions.shape[-1]
        if not whole or any(isinstance(term, (Padding, Documents)) for term in context.mask.terms):
            raise AnalysisUnavailable(
                f'layer {self.dims.layer} uses "lsh" in the form of the library, where what a token meets depends on '
                "all others of its row: rows may not be padded, packed or continued.\n"
                '    form="paper" has no such limit.'
            )
        return n

    def _sorted(self, k: Tensor) -> tuple[Int[Tensor, "batch head slot"], Int[Tensor, "batch head round place"]]:
        """Return which token stands in each slot of all rounds laid end to end, and where each token stands.

        What fills a text up to whole chunks counts as tokens behind it, with a bucket of their own.
        """
        bucket, n_rounds = self.buckets(k), self.config.n_rounds
        bucket = F.pad(bucket, (0, -k.shape[-2] % self.config.chunk), value=math.prod(self.config.factors))
        rounds = torch.arange(n_rounds, device=k.device)[:, None]
        order = (bucket + rounds * (math.prod(self.config.factors) + 1)).flatten(2).argsort(dim=-1, stable=True)
        return order, order.argsort(dim=-1).view_as(bucket)

    def mixes(self, context: Context, q: Tensor, k: Tensor) -> bool:
        if not super().mixes(context, q, k):
            return False
        if self.config.form == "library":
            return self._alone(context, k) > self.config.chunk
        # of rows that go on, texts are not mixed one by one
        return context.documents is None or q.shape[-2] == k.shape[-2]

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        chunk = self.config.chunk
        if self.config.form == "library":
            k = self.keys(k)
            return mixed_end_to_end(q, self.normed(k), v, *self._sorted(k), chunk, context)
        n, m, width, given = q.shape[-2], k.shape[-2], v.shape[-1], v.dtype
        queries, real = self.buckets(q), context.real_keys(m, "lsh")
        # what is the same is hashed once
        keys = queries if torch.equal(q, k) else self.buckets(self.keys(k))
        if real is not None:
            # padding has a bucket of its own
            padding = ~real[:, None, None]
            keys = keys.masked_fill(padding, self.config.factors[0])
            queries = queries.masked_fill(padding[..., m - n :], self.config.factors[0])
        places = sorted_by_bucket(queries, keys, chunk)
        q, k, v = alike(q, self.normed(k), v)
        sets = [met_in_round(i, places, k, v, chunk, context) for i in range(self.config.n_rounds)]
        mixed, alone = union_softmax(q, sets, self.scale), ~met_by_any(sets)
        if real is not None:
            alone = alone & real[:, None, m - n :, None]
        return torch.where(alone, v[..., m - n :, :], mixed)[..., :width].to(given)

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Tensor, Any]:
        if self.config.form == "library":
            self._alone(context, k)
        return super().scan(q, k, v, x, context, state, tape)
