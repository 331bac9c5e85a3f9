"""Per-head linear algebra on a model's weights; no forward passes through the model.

w = weights.of(model)
w["L1H6"].ov().eigenvalues()
"""

from collections.abc import Sequence

from glassformer.arguments import checked
from glassformer.models import ModuleLike
from glassformer.trace import head_label
from glassformer.weights.factored import Entries, Factored, Svd
from glassformer.weights.fold import augment as _augment, fold as _fold
from glassformer.weights.folded_model import folded
from glassformer.weights.forward import logits
from glassformer.weights.heads import AttentionWeights, HeadScales, MlpWeights, attention_views
from glassformer.weights.stream import HeadWeights, WeightsLike, views

__all__ = [
    "AttentionWeights",
    "Entries",
    "Factored",
    "HeadScales",
    "HeadWeights",
    "MlpWeights",
    "Svd",
    "WeightsLike",
    "attention_views",
    "folded",
    "head_label",
    "logits",
    "matrices",
    "of",
]


@checked
def of(
    model: ModuleLike, fold: bool = False, augment: bool = False, *, layers: Sequence[int] | None = None
) -> HeadWeights:
    """Per-head matrices of a model: `HeadWeights`, as views on the live parameters.

    Args:
        model: A `Decoder`, an `Encoder`, an `EncoderDecoder`, or a module whose spec says what it is made of
            (`foreign`).
        fold: Absorb norms' gains and biases into what reads through them, take means out of what is written and out of
            the unembedding, and move value biases into the output's, all in a copy; see `weights.fold` for what stays.
            Without it everything is a view on the live parameters, or a float32 copy of those in half precision.
        augment: Append a coordinate of the stream that is always one and carries the biases, so that QK and OV are pure
            products.

    Raises:
        AnalysisUnavailable: The model is none of them, or is to be folded and holds numbers that are not finite.

    Example:
        >>> w = weights.of(model)
        >>> w.Q[0].data_ptr() == model.stack.blocks[0].attn.projection.qkv.weight.data_ptr()
        True
    """
    w = views(model, layers)
    w = _fold(w) if fold else w
    return _augment(w) if augment else w


@checked
def matrices(model: WeightsLike) -> HeadWeights:
    """Matrices that analyses of weights start from: those of a model, folded, or weights as they are given."""
    return model if isinstance(model, HeadWeights) else of(model, fold=True)
