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
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.dictionaries._autoencoder import AutoencoderConfig, Losses, SparseAutoencoder
from glassformer.analysis.dictionaries._sparse import largest, sparse_decode
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
    def activations(self, pre: Float[Tensor, "*rows feature"]) -> Float[Tensor, "*rows feature"]:
        found = pre.topk(self.config.k, -1, sorted=False)
        return torch.zeros_like(pre).scatter(-1, found.indices, found.values.relu())

    def losses(self, rows: Float[Tensor, "row d_in"], dead: Bool[Tensor, " feature"], warm: float = 1.0) -> Losses:
        centred = self.centred(rows)
        found, indices = largest(centred, self.W_enc, self.b_enc, self.config.k)
        values = found.relu()
        left = self.scaled_error(rows, sparse_decode(values, indices, self.W_dec) + self.b_dec)
        fired = values.detach() > 0
        active = torch.zeros_like(dead).index_fill(0, indices[fired], True)
        penalty = self._dead_latents(centred, left.detach(), dead)
        return Losses(left.square().sum(-1).mean(), penalty, active, fired.sum(-1).to(torch.float64).mean())

    def _dead_latents(
        self, centred: Float[Tensor, "row d_in"], left: Float[Tensor, "row d_in"], dead: Bool[Tensor, " feature"]
    ) -> Float[Tensor, ""]:
        """Return what dead features lack of what the others leave."""
        count = int(dead.sum())
        if not count or not self.config.aux:
            return centred.new_zeros(())
        most = self.config.k_aux or max(self.config.d_in // 2, 1)
        names = dead.nonzero()[:, 0]
        found, places = largest(centred, self.W_enc[:, names], self.b_enc[names], min(most, count))
        made = sparse_decode(found.relu(), names[places], self.W_dec)
        return self.config.aux * min(count / most, 1.0) * (left - made).square().sum(-1).mean()
