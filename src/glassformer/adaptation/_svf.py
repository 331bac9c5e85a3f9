"""Singular value fine-tuning: one number for each singular direction of a matrix.

    W = U diag(s) V'
    paper     W' = U diag(s z) V'                                      z = 1 is W
    code      W' = U diag(s y) V' (sum of s) / (sum of s y)            y = max_mult sigmoid(p); any constant p is W

The published code rescales, so that the nuclear norm stays and only ratios of the y count. W' is computed as W plus
U diag(s (z - 1)) V', so that what changes nothing changes no bit.

Source: Sun, Cetin, Tang 2025, "Transformer-Squared: Self-adaptive LLMs", section 3.1, and its code (`policy/base.py`).
Differs from both: z begins at 1 and p at 0.1 exactly, without noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.adaptation._adapter import AdapterConfig
from glassformer.adaptation._change import Change
from glassformer.adaptation._decompositions import decomposed
from glassformer.arguments import Positive
from glassformer.errors import ConfigError
from glassformer.models import Matrix
from glassformer.numerics.precision import wide
from glassformer.weights import Factored, Svd

# where training of the code's form begins
_BEGIN = 0.1


@dataclass(frozen=True)
class Svf(AdapterConfig, kind="svf"):
    """Singular value fine-tuning: a number for each singular direction.

    Args:
        form: `paper`, where the numbers themselves are trained, or `code`, where their logits are and W' is rescaled.
        max_mult: Largest number of the code's form.
    """

    form: Literal["paper", "code"] = "paper"
    max_mult: Positive = 1.0

    trains: ClassVar[str] = "scales of singular directions"

    def begin(self, one: Matrix, generator: torch.Generator, moments: Tensor | None = None) -> "SingularScales":
        return SingularScales(self, decomposed(one))


class SingularScales(Change):
    """Scales of a matrix's singular directions.

    Args:
        config: The form.
        matrix: Decomposition of the matrix, which several may share.
    """

    u: Tensor
    s: Tensor
    vh: Tensor

    def __init__(self, config: Svf, matrix: Svd) -> None:
        super().__init__()
        self.config = config
        # made of the matrix again when it is loaded
        for name, value in {"u": matrix.u, "s": matrix.s, "vh": matrix.v.mT}.items():
            self.register_buffer(name, value, persistent=False)
        begin = 1.0 if config.form == "paper" else _BEGIN
        self.z = nn.Parameter(torch.full_like(self.s, begin))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.u), self.vh.shape[1]

    @property
    def multipliers(self) -> Float[Tensor, " direction"]:
        """What trained numbers stand for, before any rescaling: z of the paper, max_mult sigmoid(p) of the code."""
        return self.z if self.config.form == "paper" else self.config.max_mult * self.z.sigmoid()

    @property
    def scales(self) -> Float[Tensor, " direction"]:
        """What each singular value is multiplied by in the end, falling singular values first."""
        found = self.multipliers
        return found if self.config.form == "paper" else found * (self.s.sum() / (self.s * found).sum())

    def composed(self, base: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        return (wide(base) + self.factors().dense()).to(base.dtype)

    def factors(self) -> Factored:
        return Factored(self.u * (self.s * (self.scales - 1)), self.vh)

    def sum_of(self, others: Mapping[Change, float]) -> "SingularScales":
        made = SingularScales(self.config, Svd(self.u, self.s, self.vh.mT))
        with torch.no_grad():
            total = torch.zeros_like(self.s)
            for other, weight in others.items():
                assert isinstance(other, SingularScales), "changes of one kind are summed"
                total += weight * other.multipliers
            if self.config.form == "paper":
                made.z.copy_(total + (1 - sum(others.values())))
                return made
            if not any(others.values()):
                # any constant is the matrix as it is
                return made
            share = total / self.config.max_mult
            if not bool((share > 0).all()):
                raise ConfigError(
                    "mixed: of the code's form multipliers are mixed before they are rescaled, and must stay above 0; "
                    f"found {float(total.min()):.3g} to {float(total.max()):.3g}.\n    Give weights above zero."
                )
            # only ratios count: what is too large for any logit stands for the same change at half its size
            made.z.copy_((share if bool((share < 1).all()) else share / (2 * share.max())).logit())
        return made
