"""What heads do over a corpus, in sums that do not grow with it: shares by target, histograms and top passages.

    sums[part, head, from, target]                what the rows of queries have on keys, summed over queries
    histogram[part, head, from, target, percent]  passages by the share that they give, in whole percents, rounded down

`part` is 0 for what claims are made from and 1 for what is held out. A pattern is summed where it arises, all heads of
a layer at once, and not kept.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.heads._passages import Passage
from glassformer.analysis.heads._targets import FROM, Looks
from glassformer.analysis.heads.roles import Head, rows_of
from glassformer.models.evaluation import require_computed
from glassformer.numerics.precision import wide

PERCENTS = 101  # 0 to 100
ENOUGH = 4  # queries of a passage, from which on the share that they give counts as that passage's
TOP = 5  # passages kept for each head
PAIRS = 8  # pairs kept for each of these
EVENLY = "evenly"  # the target that stands for entropy, as a share of that of an even row
MEASURES = ("entropy_bits", "distance")


class Tally:
    """Sums over the passages read so far.

    Args:
        heads: Heads with a pattern, of one stack.
        targets: What shares are of.
        length: Tokens of the longest passage.
    """

    def __init__(self, heads: Sequence[Head], targets: Sequence[str], length: int) -> None:
        self.heads, self.targets = heads, (*targets, EVENLY)
        shape = (len(FROM), len(self.targets))
        self.sums = torch.zeros(2, len(heads), *shape, dtype=torch.float64)
        self.counts = torch.zeros(2, *shape, dtype=torch.float64)
        self.even = torch.zeros(2, *shape, dtype=torch.float64)
        self.measures = torch.zeros(2, len(heads), len(MEASURES), dtype=torch.float64)
        self.histogram = torch.zeros(2, len(heads), *shape, PERCENTS, dtype=torch.int32)
        self.top = TopPassages(len(heads), length)

    def tensors(self) -> dict[str, Tensor]:
        """Return it as it is saved."""
        return {name: getattr(self, name) for name in _SUMS} | self.top.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what was saved."""
        for name in _SUMS:
            getattr(self, name).copy_(tensors[name])
        self.top.restore(tensors)


_SUMS = ("sums", "counts", "even", "measures", "histogram")


class BatchMeter:
    """Adds a batch of passages to a tally, layer by layer.

    Args:
        tally: What is added to.
        passages: The batch.
        looks: Their masks.
    """

    def __init__(self, tally: Tally, passages: Sequence[Passage], looks: Looks) -> None:
        self.tally, self.passages, self.looks = tally, passages, looks
        self.part = torch.tensor([int(one.held_out) for one in passages])
        present = looks.visible > 1
        defined = torch.cat((looks.defined, present[..., None]), -1).float()
        even = torch.cat((looks.even, present[..., None].float()), -1)
        # `from` stays short where tokens have no classes
        self.count = torch.einsum("cbq,bqt->bct", looks.queries, defined)
        self._add(tally.counts, self.count)
        self._add(tally.even, torch.einsum("cbq,bqt->bct", looks.queries, even))

    def _add(self, sums: Tensor, found: Float[Tensor, "batch from target"]) -> None:
        sums[:, : found.shape[1]].index_add_(0, self.part, found.cpu().double())

    def add(self, path: str, pattern: Float[Tensor, "batch *value_stream head query key"]) -> Tensor:
        """Add the pattern of a layer; nothing of it is kept. Raises `AnalysisUnavailable` where it is NaN."""
        require_computed(pattern, "pattern")
        own = [i for i, head in enumerate(self.tally.heads) if head.path == path]
        pattern = wide(rows_of(pattern))
        assert pattern.shape[1] == len(own), "a layer has a pattern of each of its heads, or of none"
        if self.tally.heads[own[0]].reading != "mass":
            pattern = pattern / pattern.abs().sum(-1, keepdim=True).clamp_min(torch.finfo(pattern.dtype).tiny)
        weight = self.looks.weight.to(pattern.dtype)
        # keys beyond the text (sinks, persistent memory) take part in the total, and in no target
        keys = pattern[..., -weight.shape[-1] :]
        # query head look: of one row of the batch at a time, whose strides need no copy
        mass = torch.stack([torch.bmm(a.transpose(0, 1), w.mT) for a, w in zip(keys, weight)])
        entropy, counted = self._entropy(pattern), (self.looks.visible > 0)[..., None]
        seen = self.looks.visible.clamp_min(2).to(mass.dtype).log2()[..., None]
        shares = torch.cat((mass[..., :-1], (entropy / seen * counted)[..., None]), -1)
        by_class = torch.einsum("cbq,bqht->bhct", self.looks.queries.to(mass.dtype), shares).cpu().double()
        self._add_shares(own, by_class)
        measured = torch.stack(((entropy * counted).sum(1), (mass[..., -1] * counted).sum(1)), -1).cpu().double()
        self.tally.measures.index_put_((self.part[:, None], torch.tensor(own)[None]), measured, accumulate=True)
        self._rank(own, keys)
        return pattern.new_zeros(())

    def _entropy(self, pattern: Float[Tensor, "batch row query key"]) -> Float[Tensor, "batch query row"]:
        """Return the entropy of each row in bits; of rows with signs, that of the sizes."""
        sizes = pattern.abs()
        return -torch.xlogy(sizes, sizes).sum(-1).transpose(1, 2) / math.log(2)

    def _add_shares(self, own: Sequence[int], sums: Float[Tensor, "batch row from target"]) -> None:
        tally, at = self.tally, torch.tensor(own)
        n_from = sums.shape[2]
        for part in (0, 1):
            tally.sums[part, at, :n_from] += sums[self.part == part].sum(0)
        count = self.count.cpu().double()[:, None]
        enough = (count >= ENOUGH).expand_as(sums)
        # a share of one, summed in single precision, may fall short of it
        percent = (100 * sums / count.clamp_min(1) + 1e-3).floor().clamp(0, PERCENTS - 1).long()
        size = tally.histogram[0].numel() // PERCENTS
        place = torch.arange(size).view(tally.histogram.shape[1:-1])[at, :n_from]
        cells = ((place + self.part[:, None, None, None] * size) * PERCENTS + percent)[enough]
        tally.histogram.view(-1).index_add_(0, cells, torch.ones(len(cells), dtype=torch.int32))

    def _rank(self, own: Sequence[int], keys: Float[Tensor, "batch row query key"]) -> None:
        """Offer each head's passages to those that are kept."""
        away = keys[..., 1:].abs() * (self.looks.visible > 0)[:, None, :, None]
        away.diagonal(offset=-1, dim1=-2, dim2=-1).zero_()
        queries = (self.looks.visible > 0).sum(-1).clamp_min(1)[:, None]
        scores = (away.amax(-1).sum(-1) / queries).cpu().double()
        top, width = self.tally.top, away.shape[-1]
        better = scores > top.scores[list(own)].amin(1)
        for b, r in better.nonzero().tolist():
            head, score, passage = own[r], float(scores[b, r]), self.passages[b]
            if top.takes(head, score, passage.document):
                found = away[b, r].flatten().topk(min(PAIRS, away[b, r].numel()))
                at = found.indices.cpu()
                pairs = torch.stack((at // width, at % width + 1), -1)
                top.put(head, score, passage, pairs, found.values.cpu())


class TopPassages:
    """The passages in which each head looks most sharply, one of each document, with their strongest pairs.

    The score of a passage is the mean over its queries of the largest weight on a key that is neither the passage's
    first token nor the query itself: where heads that find nothing rest.
    """

    def __init__(self, heads: int, length: int) -> None:
        self.scores = torch.full((heads, TOP), -torch.inf, dtype=torch.float64)
        self.places = torch.full((heads, TOP, 3), -1, dtype=torch.int64)  # document, start, tokens
        self.ids = torch.zeros(heads, TOP, length, dtype=torch.int32)
        self.pairs = torch.zeros(heads, TOP, PAIRS, 2, dtype=torch.int32)
        self.weights = torch.zeros(heads, TOP, PAIRS, dtype=torch.float32)

    def takes(self, head: int, score: float, document: int) -> bool:
        """Whether a passage is among them; one that is no better than what is there is not."""
        return score > float(self.scores[head, self._place(head, document)])

    def put(
        self,
        head: int,
        score: float,
        passage: Passage,
        pairs: Int[Tensor, "pair end"],
        weights: Float[Tensor, " pair"],
    ) -> None:
        """Keep a passage in the place of the worst, or of that of its document."""
        at, size = self._place(head, passage.document), len(passage.ids)
        self.scores[head, at] = score
        self.places[head, at] = torch.tensor((passage.document, passage.start, size))
        self.ids[head, at, :size] = torch.tensor(passage.ids, dtype=torch.int32)
        self.pairs[head, at], self.weights[head, at] = 0, 0
        self.pairs[head, at, : len(pairs)] = pairs.int()
        self.weights[head, at, : len(weights)] = weights.float()

    def _place(self, head: int, document: int) -> int:
        same = (self.places[head, :, 0] == document).nonzero()
        return int(same[0]) if len(same) else int(self.scores[head].argmin())

    def tensors(self) -> dict[str, Tensor]:
        """Return them as they are saved."""
        return {f"top {name}": value for name, value in vars(self).items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what was saved."""
        for name, value in vars(self).items():
            value.copy_(tensors[f"top {name}"])
