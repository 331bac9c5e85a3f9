"""What a single attention head can make of skip-trigrams `source … destination -> answer`, and what that costs.

A head that finds the source adds a(destination, source) M(source, answer) to the logits: for each source, a product of
an attention weight, never negative, and one row. All destinations share that row, so they rank the answers alike. The
loss that no choice of a and M gets below is what the shared row costs: the price of the skip-trigram bug.

Only what comes from the source is counted here. A model may go lower by what the destination sees of itself.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (the bug; its price is worked out here).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.config import require


def ranked_loss(answers: Int[Tensor, "source destination"], n_answers: int) -> float:
    """Return the least loss of one head on a table with one answer per source and destination, in nats; exact.

    Whatever the weight, the answer that M ranks k-th has a probability of at most 1/k, and all of them come as close to
    that as one likes: rows of M falling ever more steeply, attention that reaches down to the answer wanted. So the
    best head ranks each source's answers by how often they are right, and pays the mean of ln(rank).

    Sources and destinations are uniform. One source with K destinations of different answers costs ln(K!) / K; guessing
    evenly among them would cost ln K.

    Args:
        answers: The right answer's number.
        n_answers: How many answers there are.
    """
    share = F.one_hot(answers, n_answers).double().mean(1).sort(-1, descending=True).values
    return float((share * torch.arange(1.0, n_answers + 1, dtype=torch.float64).log()).sum(-1).mean())


def fitted_loss(
    probabilities: Float[Tensor, "source destination answer"],
    *,
    n_heads: int = 1,
    direct: bool = True,
    steps: int = 300,
    restarts: int = 4,
    seed: int = 0,
) -> float:
    """Return the least loss found for heads whose contributions add up, in nats: an upper bound on what they can reach.

        logits(s, d) = B(d) + sum_h a_h(d, s) M_h(s),   a_h >= 0

    The search is L-BFGS in float64 from random starts. Where the optimum lies at infinity, as for tables without noise,
    it stops short of it. With as many heads as destinations nothing is lost; without noise, see `ranked_loss`.

    Args:
        probabilities: The answer's distribution for each source and destination, which are uniform.
        n_heads: How many heads add their products.
        direct: Let the destination speak for itself through B, as the direct path of a one-layer model does.
        steps: Of each search.
        restarts: Searches; the best counts.
        seed: Of their starts.
    """
    sums = probabilities.double().sum(-1)
    require(
        bool((probabilities >= 0).all()) and bool((sums - 1).abs().max() < 1e-6),
        f"fitted_loss: answers need probabilities, not negative and of sum one; sums are {sums.min():.6g} to "
        f"{sums.max():.6g}.",
    )
    generator = torch.Generator().manual_seed(seed)
    table = probabilities.detach().double()
    return min(_search(table, n_heads, direct, steps, generator) for _ in range(restarts))


def entropy(probabilities: Float[Tensor, "source destination answer"]) -> float:
    """Return the least loss of all: the mean entropy of the answer given source and destination, in nats."""
    return float(-torch.special.xlogy(probabilities.double(), probabilities.double()).sum(-1).mean())


def _search(table: Tensor, n_heads: int, direct: bool, steps: int, generator: torch.Generator) -> float:
    n_sources, n_destinations, n_answers = table.shape
    shapes = [(n_destinations, n_answers), (n_heads, n_destinations, n_sources), (n_heads, n_sources, n_answers)]
    starts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    own, weight, row = (start.requires_grad_() for start in starts)

    def loss() -> Tensor:
        # a softplus keeps attention weights from turning negative
        logits = torch.einsum("hds,hso->sdo", F.softplus(weight), row)
        logits = logits + own if direct else logits
        return -(table * logits.log_softmax(-1)).sum(-1).mean()

    parameters = [own, weight, row] if direct else [weight, row]
    search = torch.optim.LBFGS(
        parameters, max_iter=steps, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        search.zero_grad()
        value = loss()
        value.backward()
        return value

    with torch.enable_grad():
        search.step(closure)  # type: ignore[arg-type]
    return float(loss().detach())
