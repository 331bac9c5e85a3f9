"""Learning in context as spins that interact in pairs: the weights of a linear head are spins, prompts their couplings.

A prompt has P pairs of x and y = w . x, with a w of its own, and a last x*. A head of linear attention whose queries
meet keys through W predicts

    y* = sum_mu (x* W x_mu') y_mu / P = sum_i sigma_i s_i,     sigma = entries of W,  s = entries of x*' a,
                                                               a = sum_mu y_mu x_mu / P

so the squared loss over prompts, with weight decay, is the energy of real spins that interact in pairs:

    E(sigma) = sum (y - sigma . s)^2 / 2 + decay sigma . sigma / 2
             = const - sum_i h_i sigma_i - sum_ij J_ij sigma_i sigma_j / 2,   h = sum y s,  J = - sum s s' - decay 1

At any temperature the mean of a spin is the same, m = -J^-1 h. With few tasks it is that of what was seen; with many it
comes to W = 1 / (1 + (d + 1) / P), the one matrix for all tasks, if x is normal.
Axes: `task pair d` of x, `task pair` of y; the query is a pair of its own.
Source: Li, Bai and Huang 2024, "Spin glass model of in-context learning" (2408.02288), sections 2 and 3: there for the
joint token of x and y; here for the entries that carry x, all others being zero at the optimum.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Positive, checked
from glassformer.errors import ShapeMismatch
from glassformer.numerics.decompositions import solve


@checked
@dataclass(frozen=True, eq=False)
class Prompts:
    """Tasks of linear regression as prompts.

    Args:
        x: Of the pairs.
        y: What belongs to each.
        query: The x that is asked for.
        answer: What belongs to it.
    """

    x: Float[Tensor, "task pair d_model"]
    y: Float[Tensor, "task pair"]
    query: Float[Tensor, "task d_model"]
    answer: Float[Tensor, " task"]

    def predicted(self, weights: Float[Tensor, "d_model d_model"]) -> Float[Tensor, " task"]:
        """What a head of linear attention with such a product of query and key matrices answers."""
        return torch.einsum("td,de,te->t", self.query, weights, self._recalled())

    def spin_inputs(self) -> Float[Tensor, "task spin"]:
        """The s of each prompt: what its answer adds up from spins."""
        return torch.einsum("td,te->tde", self.query, self._recalled()).flatten(1)

    def _recalled(self) -> Tensor:
        return torch.einsum("tp,tpd->td", self.y, self.x) / self.x.shape[1]


@checked
@dataclass(frozen=True, eq=False)
class PairSpins:
    """Real spins that interact in pairs.

    Args:
        couplings: The J, negative definite.
        fields: The h.
    """

    couplings: Float[Tensor, "spin spin"]
    fields: Float[Tensor, " spin"]

    def energy(self, spins: Float[Tensor, "*batch spin"]) -> Float[Tensor, "*batch"]:
        """The energy of spins, without the constant."""
        return -(spins @ self.couplings * spins).sum(-1) / 2 - spins @ self.fields

    def magnetisations(self) -> Float[Tensor, " spin"]:
        """The mean of each spin, at any temperature."""
        return -solve(self.couplings, self.fields)


@checked
def draw_prompts(n_tasks: Count, n_pairs: Count, width: Count, *, n_prompts: Count, seed: int = 0) -> Prompts:
    """Prompts of normal x, about tasks w that are drawn first and then taken in turn.

    Args:
        n_tasks: How many different w there are.
        n_pairs: Of a prompt.
        width: Of x.
        n_prompts: How many prompts there are.
        seed: Of tasks and prompts.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tasks = drawn(n_tasks, width) / width**0.5
    asked = tasks[torch.arange(n_prompts) % n_tasks]
    x, query = drawn(n_prompts, n_pairs, width), drawn(n_prompts, width)
    return Prompts(x, torch.einsum("tpd,td->tp", x, asked), query, (query * asked).sum(-1))


@checked
def spins_of(prompts: Prompts, decay: Positive = 1e-3) -> PairSpins:
    """The spins whose energy is the loss of a linear head on prompts.

    Args:
        prompts: What it is trained on.
        decay: Weight decay.

    Raises:
        ShapeMismatch: Prompts are not of one number of tasks.
    """
    sizes = {len(part) for part in (prompts.x, prompts.y, prompts.query, prompts.answer)}
    if len(sizes) != 1:
        raise ShapeMismatch(f"prompts of {sorted(sizes)} tasks: x, y, query and answer must have one number of them.")
    inputs = prompts.spin_inputs()
    own = decay * torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    return PairSpins(-inputs.mT @ inputs - own, prompts.answer @ inputs)
