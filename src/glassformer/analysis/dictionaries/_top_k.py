"""TopK autoencoder: the k largest pre-activations are kept, so that no penalty pulls at activations.

    f = relu(pre) where pre is among the k largest of its row, else 0
    loss = mean over rows of  |e|^2 + aux min(dead / k_aux, 1) |e - e'|^2,        e = s x - s x'

e' is made by the k_aux features with the largest pre-activations among those that are dead, which so get a gradient
again (AuxK); e is no variable there. Decoder rows keep norm one: what of a gradient lies along its row is taken away,
and rows are brought back after each step.

Source: Gao et al. 2024, "Scaling and evaluating sparse autoencoders", sections 2.3 and A.2; aux = 1/32 and k_aux near
d_in / 2 are theirs, and the share of dead features is sae-lens's. Differs: errors are not divided by a baseline's.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.dictionaries._autoencoder import AutoencoderConfig, Losses, SparseAutoencoder
from glassformer.analysis.dictionaries._sparse import sparse_decode
from glassformer.arguments import Count, FiniteAmount
from glassformer.config import require


@dataclass(frozen=True)
class TopK(AutoencoderConfig, kind="topk"):
    """A TopK autoencoder.

    Args:
        k: Features that fire in a row, at most.
        aux: Weight of the loss that dead features get.
        k_aux: Dead features that make up a row of what is missing; half of `d_in` by default.
    """

    k: Count = 32
    aux: FiniteAmount = 1 / 32
    k_aux: Count | None = None

    def __post_init__(self) -> None:
        require(self.k <= self.n_features, f"topk: k={self.k} of {self.n_features} features; k must be no more.")


class TopKAutoencoder(SparseAutoencoder, config=TopK):
    def largest(self, pre: Float[Tensor, "*rows feature"]) -> tuple[Float[Tensor, "*rows k"], Int[Tensor, "*rows k"]]:
        """Activations of the features that are kept in each row, and which they are."""
        found = pre.topk(self.config.k, -1, sorted=False)
        return found.values.relu(), found.indices

    def activations(self, pre: Float[Tensor, "*rows feature"]) -> Float[Tensor, "*rows feature"]:
        values, indices = self.largest(pre)
        return torch.zeros_like(pre).scatter(-1, indices, values)

    def losses(self, rows: Float[Tensor, "row d_in"], dead: Bool[Tensor, " feature"], warm: float = 1.0) -> Losses:
        pre = self.pre_activations(rows)
        values, indices = self.largest(pre)
        left = self.scaled_error(rows, sparse_decode(values, indices, self.W_dec) + self.b_dec)
        fired = values.detach() > 0
        active = torch.zeros_like(dead).index_fill(0, indices[fired], True)
        penalty = self._dead_latents(pre, left.detach(), dead)
        return Losses(left.square().sum(-1).mean(), penalty, active, fired.sum(-1).to(torch.float64).mean())

    def _dead_latents(
        self, pre: Float[Tensor, "row feature"], left: Float[Tensor, "row d_in"], dead: Bool[Tensor, " feature"]
    ) -> Float[Tensor, ""]:
        """Return what dead features lack of what the others leave."""
        count = int(dead.sum())
        if not count or not self.config.aux:
            return pre.new_zeros(())
        most = self.config.k_aux or max(self.config.d_in // 2, 1)
        # dead features alone stand for the whole: their columns are cut out
        names = dead.nonzero()[:, 0]
        found = pre[:, names].topk(min(most, count), -1, sorted=False)
        made = sparse_decode(found.values.relu(), names[found.indices], self.W_dec)
        return self.config.aux * min(count / most, 1.0) * (left - made).square().sum(-1).mean()
