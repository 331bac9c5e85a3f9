"""Clusters of vectors, and how far they agree with classes: k-means, and normalised mutual information.

    NMI = 2 I / (H(cluster) + H(class)),      I = H(cluster) + H(class) - H(cluster and class)

It is 0 where clusters say nothing of classes and 1 where each tells the other, whatever they are called. Of a sample it
is a little above 0 by chance, the more so the fewer rows there are to a pair of cluster and class.

Source: Lloyd 1982, "Least Squares Quantization in PCM"; Arthur and Vassilvitskii 2007, "k-means++: The Advantages of
Careful Seeding".
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROUNDS = 100  # of Lloyd's algorithm, at most


def k_means(rows: Float[Tensor, "row width"], k: int, *, restarts: int, seed: int) -> Int[Tensor, " row"]:
    """Return the cluster of each row: of several beginnings the one that ends with rows nearest to their centres.

    Args:
        rows: What is clustered, by squared distance.
        k: Clusters, at most; there are no more than different rows.
        restarts: Beginnings.
        seed: Of where they are drawn.
    """
    # distances are differences of squared lengths, which are short around the mean
    rows, random = rows - rows.mean(0), torch.Generator().manual_seed(seed)
    ends = [_settled(rows, _begun(rows, k, random)) for _ in range(restarts)]
    return min(ends, key=lambda end: end[0])[1]


def _begun(rows: Float[Tensor, "row width"], k: int, random: torch.Generator) -> Float[Tensor, "cluster width"]:
    """Return rows to begin with, each drawn in proportion to its squared distance from the nearest before."""
    chosen = [int(torch.randint(len(rows), (), generator=random))]
    far = (rows - rows[chosen[0]]).square().sum(-1)
    while len(chosen) < k and bool((far > 0).any()):
        chosen.append(int(torch.multinomial(far, 1, generator=random)))
        far = torch.minimum(far, (rows - rows[chosen[-1]]).square().sum(-1))
    return rows[chosen]


def _settled(
    rows: Float[Tensor, "row width"], centres: Float[Tensor, "cluster width"]
) -> tuple[float, Int[Tensor, " row"]]:
    """Return the squared distances of rows from their centres, added up, and their clusters, by Lloyd's algorithm."""
    nearest = _nearest(rows, centres)
    for _ in range(ROUNDS):
        counts = torch.bincount(nearest, minlength=len(centres))[:, None]
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        # a centre that no row is near to stays where it is
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
        before, nearest = nearest, _nearest(rows, centres)
        if torch.equal(before, nearest):
            break
    return float((rows - centres[nearest]).square().sum()), nearest


def _nearest(rows: Float[Tensor, "row width"], centres: Float[Tensor, "cluster width"]) -> Int[Tensor, " row"]:
    return (centres.square().sum(-1) / 2 - rows @ centres.mT).argmin(-1)


def counted(
    clusters: Int[Tensor, " row"], classes: Int[Tensor, " row"], documents: Int[Tensor, " row"], sizes: tuple[int, int]
) -> Float[Tensor, "document cluster cls"]:
    """Return how many rows of each document have each cluster and class.

    Args:
        clusters: Of each row.
        classes: The same.
        documents: The same, counted from 0.
        sizes: How many clusters and classes there are.
    """
    table = torch.zeros(int(documents.max()) + 1, *sizes, dtype=torch.float64)
    return table.index_put_((documents, clusters, classes), torch.ones(len(clusters)).double(), accumulate=True)


def agreement(counts: Float[Tensor, "*batch cluster cls"]) -> Float[Tensor, "*batch"]:
    """Return the normalised mutual information of clusters and classes that occur together so often.

    The mean of both entropies is what normalises it; 0 where there is one cluster and one class.
    """
    shares = counts / counts.sum((-2, -1), keepdim=True)
    apart = _entropy(shares.sum(-1)) + _entropy(shares.sum(-2))
    together = _entropy(shares.flatten(-2))
    # what is rounded may be below zero or above one
    return torch.where(apart > 0, 2 * (apart - together) / apart, 0.0).clamp(0, 1)


def _entropy(shares: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    return torch.special.entr(shares).sum(-1)
