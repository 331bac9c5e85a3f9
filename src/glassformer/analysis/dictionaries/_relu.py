"""ReLU autoencoder: features are the positive part, and each activation costs its decoder row's norm.

    f = relu(u W_enc + b_enc)        loss = mean over rows of  |s x - s x'|^2 + l1 sum_j f_j |W_dec,j|

Rows of the decoder have any length: counting it in the penalty leaves nothing to gain by long rows and small f.

Source: Conerly et al. 2024, "Update on how we train SAEs" (Transformer Circuits, April); Bricken et al. 2023, of which
this differs by norm-weighted L1 in place of rows of norm one.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.dictionaries._autoencoder import AutoencoderConfig, Losses, SparseAutoencoder
from glassformer.arguments import FiniteAmount


@dataclass(frozen=True)
class Relu(AutoencoderConfig, kind="relu"):
    """A ReLU autoencoder.

    Args:
        l1: Weight of the penalty, for rows of mean norm sqrt(d_in).
    """

    l1: FiniteAmount = 5.0


class ReluAutoencoder(SparseAutoencoder, config=Relu):
    unit_rows = False

    def activations(self, pre: Float[Tensor, "*rows feature"]) -> Float[Tensor, "*rows feature"]:
        return pre.relu()

    def losses(self, rows: Float[Tensor, "row d_in"], dead: Bool[Tensor, " feature"], warm: float = 1.0) -> Losses:
        features = self.encode(rows)
        left = self.scaled_error(rows, features @ self.W_dec + self.b_dec)
        weighted = features.sum(0) @ self.W_dec.norm(dim=-1) / len(rows)
        found = features.detach()
        l0 = (found > 0).to(found.dtype).sum(-1).double().mean()
        return Losses(left.square().sum(-1).mean(), self.config.l1 * warm * weighted, found.amax(0) > 0, l0)
