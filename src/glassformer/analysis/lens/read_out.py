"""From streams to logits, wherever they come from: the final norm and the unembedding, which every lens reads by."""

from jaxtyping import Float
from torch import Tensor

from glassformer.models import ModelLike, require_model


def read_logits(model: ModelLike, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n vocab"]:
    """Return the logits of streams, each by itself: what the model would say if it stopped there."""
    model = require_model(model)
    # a norm takes streams by row and position: these stand for positions of one row
    return model.unembed.logits(model.output_stack.final(x.unsqueeze(0))[0])
