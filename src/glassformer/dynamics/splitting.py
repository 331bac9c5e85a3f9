"""The multi-particle view: tokens as particles that move together and by themselves, and a block as a split step.

    dx_i/dt = F(x_i, [x_1 … x_n]) + G(x_i)       F: diffusion, how particles act on each other: attention
                                                  G: convection, where each goes by itself: the MLP
    lie        F for h, then G for h                              error of first order
    strang     G for h/2, F for h, G for h/2 (Marchuk, too)       error of second order
    around     F for h/2, G for h, F for h/2                      likewise
    parallel   F + G for h                                        of the order of the step

Orders are those of splittings whose parts are solved well enough, say by a step of fourth order each. A block is one
step of length 1 in which each part takes a single step of Euler's, and that is of first order whatever the splitting:
lie is the usual block, strang the Macaron block, parallel the one whose sub-layers read the same stream. Norms are
inside F and G, as each sub-layer reads through its own.

Source: Lu et al. 2019, "Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of View",
arXiv 1906.02762, sections 3 and 4.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from glassformer.arguments import Count, checked
from glassformer.config import require
from glassformer.dynamics.steps import STEPS, Field, Method, integrate
from glassformer.labelled import Labelled
from glassformer.models import Block
from glassformer.models.stack import make_context

Scheme = Literal["lie", "strang", "around", "parallel"]
# which field, and for which part of the step
SCHEMES: dict[str, tuple[tuple[str, float], ...]] = {
    "lie": (("diffusion", 1.0), ("convection", 1.0)),
    "strang": (("convection", 0.5), ("diffusion", 1.0), ("convection", 0.5)),
    "around": (("diffusion", 0.5), ("convection", 1.0), ("diffusion", 0.5)),
    "parallel": (("both", 1.0),),
}

_MANNER = {True: "alone", False: "mixes"}


class ParticleTerms(NamedTuple):
    """The two terms of the equation, each a field f(t, x) of streams `batch pos d_model`."""

    diffusion: Field
    convection: Field

    def both(self, t: Any, x: Tensor) -> Tensor:
        """Their sum, the right side of the equation."""
        return self.diffusion(t, x) + self.convection(t, x)


def particle_terms(block: Block, *, causal: bool = True) -> ParticleTerms:
    """Return the terms of a block: what its sub-layers write, by whether they write at each position by itself.

    Args:
        block: One whose writes are added as they are, such as a block of pre-norm attention and MLP.
        causal: Whether positions see only those before them.

    Raises:
        ConfigError: Writes pass a norm or are scaled, so that a sub-layer is no field of the stream; there are not two
            sub-layers, one that mixes positions and one that does not; or the block is in training mode.
    """
    require(not block.training, "fields are the same at each call: call block.eval() before.")
    normed = [name for name in block.names if block.norm_after(name) is not None]
    require(
        not normed,
        'the terms of a block are what is added to the stream as it is, in wiring "pre" or "parallel"; sums or writes '
        f"of this one pass a norm (behind {', '.join(normed)}).",
    )
    alone = {name: block.part(name).by_position for name in block.names}
    require(
        sorted(alone.values()) == [False, True],
        "a block of one sub-layer that mixes positions and one that does not has a diffusion and a convection; found "
        f"{', '.join(f'{name} ({_MANNER[by_itself]})' for name, by_itself in alone.items())}.",
    )

    def written(name: str) -> Field:
        def field(t: Any, x: Tensor) -> Tensor:
            context = make_context(len(x), x.shape[1], x.device, is_causal=causal)
            return block.part(name)(block.norm(name)(x), context)[0]

        return field

    mixing, by_itself = sorted(alone, key=lambda name: alone[name])
    return ParticleTerms(written(mixing), written(by_itself))


@checked
def split(
    terms: ParticleTerms,
    x: Tensor,
    steps: Count,
    scheme: Scheme = "lie",
    method: Method = "rk4",
    *,
    end: float = 1.0,
) -> Tensor:
    """Return x(end) from x(0) by equal split steps.

    Args:
        terms: From `particle_terms`, or any two fields.
        x: The state at time 0.
        steps: How many.
        scheme: From `SCHEMES`.
        method: The step that each part takes, from `STEPS`.
        end: Time; below 0, it goes backwards.
    """
    h = end / steps
    for k in range(steps):
        for which, share in SCHEMES[scheme]:
            x = STEPS[method](getattr(terms, which), k * h, x, share * h)
    return x


def splitting_gaps(
    terms: ParticleTerms,
    x: Tensor,
    counts: Sequence[int],
    schemes: Sequence[Scheme] = ("lie", "strang", "around"),
    method: Method = "rk4",
    *,
    reference_steps: Count = 128,
) -> Labelled:
    """Distances, `scheme steps`, of what split steps reach at time 1 from what the equation does, in its norm.

    Args:
        terms: From `particle_terms`, or any two fields.
        x: The state at time 0.
        counts: Numbers of steps.
        schemes: From `SCHEMES`.
        method: The step that each part takes.
        reference_steps: Unsplit steps of fourth order that stand for the equation itself.
    """
    with torch.no_grad():
        exact = integrate(terms.both, x, reference_steps, "rk4")
        gaps = [
            [(split(terms, x, n, scheme, method) - exact).norm() / exact.norm() for n in counts] for scheme in schemes
        ]
    values = torch.stack([torch.stack(row) for row in gaps])
    return Labelled(values, ("scheme", "steps"), {"scheme": [*schemes], "steps": [*counts]})
