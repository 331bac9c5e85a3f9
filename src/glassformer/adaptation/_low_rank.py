"""Low-rank adaptation: what is added to a matrix is a product of two thin ones.

    LoRA      W' = W + (alpha / r) B A                   B = 0, A random; so W' begins as W
    MiLoRA    W' = (W - B0 A0) + B A                     B0 = U sqrt(s), A0 = sqrt(s) V' of the last r singular values
    CorDA     the same, of W C = U diag(s) V':           B0 = U sqrt(s), A0 = sqrt(s) V' C^-1
              C = E[x x'] of what the matrix reads on a sample; of the last r where knowledge is kept, of the first r
              where the sample is of what is to be learned

W - B0 A0 is frozen, and B A begins as B0 A0: the change is B A - B0 A0, a product of rank 2r on the matrix as it is.

Sources: Hu et al. 2021, "LoRA", section 4.1; Wang et al. 2024, "MiLoRA", section 3; Yang et al. 2024, "CorDA", section
3. Of CorDA's code C has 0.01 of the mean of its diagonal added to the diagonal, and that doubled until it is inverted
well; so here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.adaptation._adapter import AdapterConfig
from glassformer.adaptation._change import Change
from glassformer.adaptation._decompositions import decomposed
from glassformer.arguments import Count, Positive
from glassformer.config import require
from glassformer.errors import CheckpointError
from glassformer.models import Matrix
from glassformer.numerics.decompositions import solve, svd
from glassformer.numerics.precision import wide
from glassformer.weights import Factored

_DAMPING, _ENOUGH = 0.01, 0.05


class LowRankConfig(AdapterConfig):
    """What kinds have in common whose changes are products: they are restored from their factors alone."""

    def restored(self, one: Matrix, tensors: Mapping[str, Tensor]) -> "LowRank":
        blank = {name: torch.zeros_like(value, device=one.values.device) for name, value in tensors.items()}
        if not {"a", "b"} <= blank.keys():
            raise CheckpointError(
                f"a change of this kind has factors a and b; found {', '.join(tensors) or 'nothing'}."
            )
        a0, b0 = blank.get("a0"), blank.get("b0")
        made = LowRank(blank["b"], blank["a"], 1.0, None if a0 is None or b0 is None else (b0, a0))
        made.restore(tensors)
        return made


@dataclass(frozen=True)
class Lora(LowRankConfig, kind="lora"):
    """LoRA: a product of rank r, added.

    Args:
        rank: Rows of A, columns of B.
        alpha: The product is multiplied by alpha / rank; alpha is the rank by default.
    """

    rank: Count = 8
    alpha: Positive | None = None

    trains: ClassVar[str] = "two thin factors"

    def begin(self, one: Matrix, generator: torch.Generator, moments: Tensor | None = None) -> "LowRank":
        d_out, d_in = one.shape
        # as `torch.nn.Linear` draws its weight
        drawn = torch.rand(self.rank, d_in, generator=generator, dtype=torch.float32) * 2 - 1
        a = (drawn / math.sqrt(d_in)).to(wide(one.values))
        scale = 1.0 if self.alpha is None else self.alpha / self.rank
        return LowRank(a.new_zeros(d_out, self.rank), a, scale)


@dataclass(frozen=True)
class MiLora(LowRankConfig, kind="milora"):
    """MiLoRA: the last singular directions of a matrix are trained, the others are frozen.

    Args:
        rank: How many.
    """

    rank: Count = 8

    trains: ClassVar[str] = "the last singular directions"

    def begin(self, one: Matrix, generator: torch.Generator, moments: Tensor | None = None) -> "LowRank":
        require_rank(self.rank, one)
        u, s, v = decomposed(one)
        root = s[-self.rank :].sqrt()
        return LowRank.replacing(u[:, -self.rank :] * root, root[:, None] * v.mT[-self.rank :])


@dataclass(frozen=True)
class CorDA(LowRankConfig, kind="corda"):
    """CorDA: directions of a matrix are trained by how much they do on a sample.

    Args:
        rank: How many.
        keep: `knowledge`: the sample is of what is to be kept, and the directions that do least on it are trained;
            `instruction`: it is of what is to be learned, and those that do most are.
    """

    rank: Count = 8
    keep: Literal["knowledge", "instruction"] = "knowledge"

    trains: ClassVar[str] = "directions by a sample"
    reads_sample: ClassVar[bool] = True

    def begin(self, one: Matrix, generator: torch.Generator, moments: Tensor | None = None) -> "LowRank":
        assert moments is not None, "build records a sample"
        require_rank(self.rank, one)
        base, (damped, inverse) = one.values.detach(), _inverted(moments)
        u, s, vh = svd(base.to(moments) @ damped)
        which = slice(-self.rank, None) if self.keep == "knowledge" else slice(self.rank)
        root, like = s[which].sqrt(), wide(base)
        return LowRank.replacing((u[:, which] * root).to(like), (root[:, None] * (vh[which] @ inverse)).to(like))


def require_rank(rank: int, one: Matrix) -> None:
    """Raise `ConfigError` if a matrix has not so many singular directions."""
    require(
        rank <= min(one.shape),
        f'rank={rank} directions are to be trained of "{one.name}", a matrix of {one.shape[0]} x {one.shape[1]}, which '
        f"has {min(one.shape)}. Give a smaller rank, or fewer matrices.",
    )


def _inverted(moments: Float[Tensor, "d_in d_in"]) -> tuple[Tensor, Tensor]:
    """Return second moments that can be inverted, and their inverse."""
    one = torch.eye(len(moments), dtype=moments.dtype, device=moments.device)
    damping = _DAMPING
    while True:
        damped = moments + damping * moments.diagonal().mean() * one
        inverse = solve(damped, one)
        if float(torch.dist(damped @ inverse, one)) < _ENOUGH:
            return damped, inverse
        damping *= 2


class LowRank(Change):
    """A product of two thin matrices, added; or put in the place of the one that it began as.

    Args:
        b: The left factor, as it begins.
        a: The right factor.
        scale: What the product is multiplied by.
        replaces: The factors whose product is taken out of the matrix; None for none.
    """

    scale: Tensor
    b0: Tensor | None
    a0: Tensor | None

    def __init__(
        self,
        b: Float[Tensor, "d_out rank"],
        a: Float[Tensor, "rank d_in"],
        scale: float = 1.0,
        replaces: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.b, self.a = nn.Parameter(b.contiguous()), nn.Parameter(a.contiguous())
        self.register_buffer("scale", b.new_tensor(scale))
        b0, a0 = (None, None) if replaces is None else replaces
        self.register_buffer("b0", b0)
        self.register_buffer("a0", a0)

    @classmethod
    def replacing(cls, b: Float[Tensor, "d_out rank"], a: Float[Tensor, "rank d_in"]) -> "LowRank":
        """Return the change that trains a product which the matrix holds already."""
        return cls(b.clone(), a.clone(), 1.0, (b.contiguous(), a.contiguous()))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.b), self.a.shape[1]

    def composed(self, base: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        product = self.b @ self.a
        if self.b0 is not None and self.a0 is not None:
            # the same product when training begins, so that nothing is left of the difference
            product = product - self.b0 @ self.a0
        return (wide(base) + self.scale * product).to(base.dtype)

    def factors(self) -> Factored:
        b, a = self.unscaled()
        return Factored(self.scale * b, a)

    def unscaled(self) -> tuple[Float[Tensor, "d_out rank"], Float[Tensor, "rank d_in"]]:
        """The factors of what is added, before `scale`: of twice the rank where a product was taken out."""
        if self.b0 is None or self.a0 is None:
            return self.b, self.a
        return torch.cat((self.b, self.b0), 1), torch.cat((self.a, -self.a0))

    def sum_of(self, others: Mapping[Change, float]) -> "LowRank":
        lefts, rights = list[Tensor](), list[Tensor]()
        for other, weight in others.items():
            assert isinstance(other, LowRank), "changes of one kind are summed"
            b, a = other.unscaled()
            lefts.append(weight * other.scale * b)
            rights.append(a)
        return LowRank(torch.cat(lefts, 1).detach(), torch.cat(rights).detach())
