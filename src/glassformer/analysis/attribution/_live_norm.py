"""What removing one component does to a logit when the final norm divides by the scale of what is left.

    effect(c) = x.g / s(x)  -  (x - c).g / s(x - c),      s(x - c)^2 = s(x)^2 - (2 x~.c~ - c~.c~) / d_model

g is the direction through the norm's gain, ~ takes the mean out (LayerNorm only). For heads both products are taken
among mixed values: `x.(y W) = y.(W x')` and `|y W|^2 = y (W W') y'`, so that no head's write is built.
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.frozen.directions import PulledDirections
from glassformer.analysis.places import Places
from glassformer.errors import AnalysisUnavailable
from glassformer.models import require_model
from glassformer.models.norms import Norm


@dataclasses.dataclass(frozen=True, eq=False)
class FinalNorm:
    """The final norm at some places.

    Args:
        norm: The norm.
        x: What it reads, its mean taken out if the norm does.
        scale: What it divided by.
        total: x.g / scale.
    """

    norm: Norm
    x: Float[Tensor, "row place d_model"]
    scale: Float[Tensor, "row place"]
    total: Float[Tensor, "row place"]

    @classmethod
    def of(cls, run: Run, path: PulledDirections, at: Places) -> "FinalNorm | None":
        """Return the norm of a run; None if it is the identity, where live and frozen are the same.

        Raises:
            AnalysisUnavailable: Writes pass other norms before the final one.
            SiteNotRead: The run lacks the stream.
        """
        model = require_model(run.model)
        embed, layers = model.output_embed, model.sub_layers()
        crossed = [layer for layer in layers if layer.behind]
        if crossed:
            raise AnalysisUnavailable(
                f'norm="live" recomputes the final norm alone; in layer {crossed[0].layer} writes pass norms before '
                'it.\n    norm="frozen" splits this model exactly.'
            )
        if embed.norm is not None:
            raise AnalysisUnavailable(
                'norm="live" recomputes the final norm alone; what enters the first block passes a norm of its own '
                '(embed_norm).\n    norm="frozen" splits this model exactly.'
            )
        if run.model.unembed.readout is not None:
            raise AnalysisUnavailable(
                'norm="live" recomputes the final norm alone; behind it stands a readout, with a norm of its own.\n'
                '    norm="frozen" splits this model exactly.'
            )
        norm = model.output_stack.final
        if norm.identity:
            return None
        if layers:
            last = layers[-1].at_behind
            run.require([last], "direct_logit_attribution")
            x = at.of_stream(run[last].values)
        else:
            x = at.of_stream(run[embed.at_token].values)
            x = x if embed.positions is None else x + at.of_stream(run[embed.at_position].values)
        total = path.final.dot(x)
        return cls(norm, _centred(norm, x), at.of_stream(run[norm.at_scale].values), total)

    def of_vectors(
        self, written: Float[Tensor, "row place component d_model"], frozen: Float[Tensor, "row place component"]
    ) -> Float[Tensor, "row place component"]:
        """Return live effects of writes whose frozen effects are known."""
        written = _centred(self.norm, written)
        return self._removed((written * self.x[..., None, :]).sum(-1), written.square().sum(-1), frozen)

    def of_mixed(
        self,
        mixed: Float[Tensor, "row place head d_value"],
        matrix: Float[Tensor, "head d_value d_model"],
        frozen: Float[Tensor, "row place head"],
    ) -> Float[Tensor, "row place head"]:
        """Return live effects of heads from what their output matrices read."""
        matrix = _centred(self.norm, matrix)
        along = (mixed * torch.einsum("rpd,hed->rphe", self.x, matrix)).sum(-1)
        square = (mixed * torch.einsum("rphe,hef->rphf", mixed, matrix @ matrix.mT)).sum(-1)
        return self._removed(along, square, frozen)

    def _removed(self, along: Tensor, square: Tensor, frozen: Tensor) -> Tensor:
        total, scale = self.total[..., None], self.scale[..., None]
        # the mean square of what is left cannot be negative; rounding can make it so where hardly anything is left
        left = (scale.square() - self.norm.eps - (2 * along - square) / self.norm.over).clamp_min(0) + self.norm.eps
        return total - (total - frozen) * scale / left.sqrt()


def _centred(norm: Norm, x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True) if norm.centred else x
