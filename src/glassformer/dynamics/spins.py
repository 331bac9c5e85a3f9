"""Vector spins: fields are inputs, magnetisations outputs, and mean-field equations look like a transformer's block.

    E(s) = - sum_ij J_ij s_i . s_j - sum_i h_i . s_i,     N spins of length sqrt(D) in R^D, J symmetric, J_ii = 0
    m_i = <s_i> = d log Z / d(beta h_i)

For many dimensions the integral over spins is one of steepest descent. With V = diag(t) - J and t where

    phi(t) = beta sum_i t_i - logdet V / 2 + beta / (4D) sum_ij h_i . V^-1_ij h_j

is least, log Z = D phi(t) + const and m = V^-1 h / 2. A spin alone in a field f has the magnetisation

    n(f) = beta f / (1/2 + sqrt(1/4 + beta^2 f . f / D))

which is beta f where beta is small and f sqrt(D / f . f) where it is large: a norm with a soft start, RMSNorm in the
cold. Steepest descent solves the equations of Thouless, Anderson and Palmer

    m_i = n(h_i + 2 sum_j J_ij m_j - o_i m_i),     o_i = 2 (t_i - 1 / (V^-1)_ii)

which read as a block: a residual h_i, tokens mixed by J, what a token says to itself taken out, a norm. Without o it is
naive mean field. J is symmetric here, which weights of softmax are not: where J is a pattern, there is no energy, and
the likeness is of form.

Axes: `spin` are tokens, `d_model` the D of the equations. Everything is one system; no batch.
Source: mcbal 2021, "Transformers Are Secretly Collectives of Spin Systems", "Deep Implicit Attention" and "Approximate
free energy minimization" (mcbal.github.io); Opper and Winther 2001 (cond-mat/0103405) for adaptive TAP. The post's
second derivative of phi lacks a term, which stands here.
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Positive, checked
from glassformer.dynamics.implicit import fixed_point
from glassformer.errors import NotConverged, ShapeMismatch, WrongArgument
from glassformer.numerics.decompositions import eigh, solve


@checked
def spin_norm(fields: Float[Tensor, "*batch d_model"], beta: Positive = 1.0) -> Float[Tensor, "*batch d_model"]:
    """Magnetisations of spins alone in their fields, for many dimensions: RMSNorm where beta is large.

    Args:
        fields: What acts on each spin.
        beta: Inverse temperature.
    """
    strength = beta**2 * fields.square().mean(-1, keepdim=True)
    return beta * fields / (0.5 + (0.25 + strength).sqrt())


@checked
def mean_field_step(
    magnetisations: Float[Tensor, "spin d_model"],
    fields: Float[Tensor, "spin d_model"],
    couplings: Float[Tensor, "spin spin"],
    beta: Positive = 1.0,
    reaction: Float[Tensor, " spin"] | None = None,
) -> Float[Tensor, "spin d_model"]:
    """One update of the mean-field equations: a residual, tokens mixed, a norm.

    Args:
        magnetisations: Of all spins, before.
        fields: What acts on each from outside, the residual.
        couplings: How strongly spins act on each other; twice that is what mixes them. Any matrix will do.
        beta: Inverse temperature.
        reaction: The o of the equations, what each spin's own effect on the others throws back; None for naive mean
            field.
    """
    acting = fields + 2 * couplings @ magnetisations
    return spin_norm(acting if reaction is None else acting - reaction[:, None] * magnetisations, beta)


@checked
def mean_field(
    fields: Float[Tensor, "spin d_model"],
    couplings: Float[Tensor, "spin spin"],
    beta: Positive = 1.0,
    reaction: Float[Tensor, " spin"] | None = None,
    *,
    start: Float[Tensor, "spin d_model"] | None = None,
    tolerance: Positive = 1e-12,
    most: Count = 2000,
) -> Float[Tensor, "spin d_model"]:
    """Magnetisations that the mean-field equations leave as they are: an implicit layer, with its gradient.

    Args:
        fields: As in `mean_field_step`, as are the next three.
        couplings: How strongly spins act on each other.
        beta: Inverse temperature.
        reaction: What each spin's own effect throws back.
        start: Where to begin: below the transition the equations have several answers. By default spins alone.
        tolerance: As in `fixed_point`.
        most: Steps after which it is given up.

    Raises:
        NotConverged: The equations do not come to rest, which they need not for strong couplings.
    """
    step = partial(mean_field_step, fields=fields, couplings=couplings, beta=beta, reaction=reaction)
    begin = spin_norm(fields, beta) if start is None else start
    return fixed_point(lambda m: step(m), begin, tolerance=tolerance, most=most)


@checked
def spontaneous_order(coupling: Positive, n_spins: Count, beta: Positive) -> float:
    """Share of their length that spins have on average when each acts on each alike and nothing acts from outside.

        m . m / D = 1 - beta_c / beta,     beta_c = N / (2 j (N - 1))     (0 above the critical temperature)

    Args:
        coupling: The j of couplings j / N between any two.
        n_spins: How many spins, the N.
        beta: Inverse temperature.
    """
    if n_spins == 1:
        return 0.0
    return max(0.0, 1 - n_spins / (2 * coupling * (n_spins - 1)) / beta)


@checked
def binary_magnetisations(
    fields: Float[Tensor, " spin"],
    couplings: Float[Tensor, "spin spin"],
    *,
    reaction: bool = True,
    tolerance: Positive = 1e-12,
    most: Count = 2000,
) -> Float[Tensor, " spin"]:
    """Magnetisations of spins that are 1 or -1 with probability as exp(sum_{i<j} J_ij s_i s_j + sum_i h_i s_i).

        m_i = tanh(h_i + sum_j J_ij m_j - m_i sum_j J_ij^2 (1 - m_j^2))

    Args:
        fields: The h.
        couplings: The J, symmetric and without a diagonal.
        reaction: Whether the last term is there (TAP), or not (naive mean field).
        tolerance: As in `fixed_point`.
        most: Steps after which it is given up.

    Raises:
        WrongArgument: Couplings are not symmetric, or have a diagonal.
        NotConverged: The equations do not come to rest.

    Source: Thouless, Anderson and Palmer 1977.
    """
    _symmetric(couplings)

    def step(m: Tensor) -> Tensor:
        acting = fields + couplings @ m
        return (acting - m * (couplings.square() @ (1 - m.square())) if reaction else acting).tanh()

    return fixed_point(step, fields.tanh(), tolerance=tolerance, most=most)


@checked
@dataclass(frozen=True, eq=False)
class VectorSpins:
    """A system of vector spins, solved by steepest descent: exact for many dimensions.

    Args:
        couplings: How strongly spins act on each other, symmetric and without a diagonal.
        beta: Inverse temperature.

    Raises:
        WrongArgument: Couplings are not symmetric, or have a diagonal: there is no such energy.
    """

    couplings: Float[Tensor, "spin spin"]
    beta: Positive = 1.0

    def __post_init__(self) -> None:
        _symmetric(self.couplings)

    def potential(self, t: Float[Tensor, " spin"], fields: Float[Tensor, "spin d_model"]) -> Float[Tensor, ""]:
        """The phi of the equations, which is convex where V is positive definite and infinite elsewhere."""
        matrix = t.diag() - self.couplings
        if float(eigh(matrix.detach())[0][0]) <= 0:
            return t.new_tensor(torch.inf)
        of_fields = (fields * solve(matrix, fields)).sum() * self.beta / (4 * fields.shape[-1])
        return self.beta * t.sum() - torch.logdet(matrix) / 2 + of_fields

    def saddle(
        self, fields: Float[Tensor, "spin d_model"], *, tolerance: Positive = 1e-10, most: Count = 200
    ) -> Float[Tensor, " spin"]:
        """The t where phi is least, by Newton's steps; its gradient is that of the implicit function theorem.

        Args:
            fields: What acts on each spin from outside.
            tolerance: Largest slope of phi that is left, relative to beta.
            most: Steps after which it is given up.

        Raises:
            ShapeMismatch: There is not one field for each spin.
            NotConverged: The slope is still larger then.
        """
        if len(fields) != len(self.couplings):
            raise ShapeMismatch(f"{len(fields)} fields for {len(self.couplings)} spins: give one for each.")
        with torch.no_grad():
            t = self._least(fields, tolerance, most)
            curvature = self._slope(t, fields)[1]
            inverse = solve(curvature, torch.eye(len(t), dtype=t.dtype, device=t.device))
        # a last step of Newton's, of which the slope alone is recorded: dt = - curvature^-1 d slope
        return t - inverse @ self._slope(t, fields)[0]

    def magnetisations(self, fields: Float[Tensor, "spin d_model"]) -> Float[Tensor, "spin d_model"]:
        """The mean of each spin, `V^-1 h / 2`; differentiable in fields and couplings."""
        return solve(self.saddle(fields).diag() - self.couplings, fields) / 2

    def log_partition(self, fields: Float[Tensor, "spin d_model"]) -> Float[Tensor, ""]:
        """log Z but for what does not depend on the fields; its slope in `beta h` is the magnetisation."""
        return fields.shape[-1] * self.potential(self.saddle(fields), fields)

    def reaction(self, fields: Float[Tensor, "spin d_model"]) -> Float[Tensor, " spin"]:
        """The o of the mean-field equations that `magnetisations` solves."""
        t = self.saddle(fields)
        return 2 * (t - 1 / self._inverse(t).diagonal())

    def _inverse(self, t: Tensor) -> Tensor:
        return solve(t.diag() - self.couplings, torch.eye(len(t), dtype=t.dtype, device=t.device))

    def _slope(self, t: Tensor, fields: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivatives of phi."""
        inverse = self._inverse(t)
        moved = inverse @ fields
        outer = moved @ moved.mT / fields.shape[-1]
        slope = self.beta - inverse.diagonal() / 2 - self.beta / 4 * outer.diagonal()
        return slope, inverse * inverse / 2 + self.beta / 2 * inverse * outer

    def _least(self, fields: Tensor, tolerance: float, most: int) -> Tensor:
        t = torch.full_like(fields[:, 0], float(eigh(self.couplings)[0][-1]) + 1 / self.beta)
        value, size = self.potential(t, fields), torch.inf
        for _ in range(most):
            slope, curvature = self._slope(t, fields)
            size = float(slope.abs().max())
            if size <= tolerance * self.beta:
                return t
            direction, length = -solve(curvature, slope), 1.0
            gain = float(slope @ direction)
            # at the bottom phi differs by its rounding alone
            rounding = 8 * torch.finfo(t.dtype).eps * float(value.abs())
            # shorter until V stays positive definite and phi falls
            while (after := self.potential(t + length * direction, fields)) > value + 1e-4 * length * gain + rounding:
                length /= 2
            t, value = t + length * direction, after
        raise NotConverged(
            f"saddle: after {most} steps phi still has a slope of {size:.2g}. Take float64, a larger most=, or a "
            "larger tolerance=."
        )


def _symmetric(couplings: Tensor) -> None:
    scale = max(float(couplings.detach().abs().max()), torch.finfo(couplings.dtype).tiny)
    uneven = float((couplings - couplings.mT).detach().abs().max()) / scale
    own = float(couplings.detach().diagonal().abs().max()) / scale
    if uneven > 1e-6 or own > 0:
        found = f"differ from their transpose by {uneven:.2g} of the largest" if uneven > 1e-6 else "have a diagonal"
        raise WrongArgument(
            f"couplings of spins must be symmetric, without a diagonal; these {found}. (J + J.mT) / 2 with its "
            "diagonal set to zero is; mean_field takes any matrix, for which there is no energy."
        )
