"""The normalised transformer (nGPT): stream, matrices, queries and keys are on unit spheres; each sub-layer is a step.

    h <- norm(h + rate (norm(f(h)) - h))                norm(x) = x / |x|,  rate one for each coordinate
    score = sqrt(d_head) (s norm(q)) . (s norm(k))      s behind the rotation, one for each coordinate of a head
    mlp(h) = (silu(sqrt(d_model) s_v (h W_v)) * s_u (h W_u)) W_o
    logits = s_z (h W_U)

No weight has a length to learn (`OptimConfig(unit_vectors=True)` keeps all of them at 1), so that products are cosines,
and what sizes there are stand in the learned scales. There is no other norm, no bias and no weight decay.
Source: Loshchilov et al. 2024, "nGPT: Normalized Transformer with Representation Learning on the Hypersphere"
(2410.01131), section 2. The released code multiplies s_u by sqrt(d_model), too, which the norm behind divides out.
"""

from typing import Any

from glassformer.arguments import Count, Positive, checked
from glassformer.attention import CoordinateScales, LearnedScale, QueryKeyNorm, Rope, Softmax
from glassformer.models.block import BlockConfig
from glassformer.models.decoder import DecoderConfig
from glassformer.models.mlp import Mlp
from glassformer.models.norms import NoNorm, UnitNorm
from glassformer.models.schedules import block, repeat

RATE = 0.05  # the published one, for 24 and 36 layers


@checked
def normalised_block(
    d_model: Count, *, n_heads: Count, d_mlp: Count | None = None, rate: Positive = RATE, **kwargs: Any
) -> BlockConfig:
    """The block of the normalised transformer.

    Args:
        d_model: Width of the stream: scales are stored at the size of its coordinates, 1 / sqrt(d_model).
        n_heads: Heads.
        d_mlp: Neurons of the gated MLP; 4 d_model by default.
        rate: What each rate begins with; of the order of one over the number of layers in the paper.
        kwargs: As for `block`; what is said here goes before what the paper says.

    Raises:
        ConfigError: A keyword asks for another wiring or norm.
        WrongArgument: A size or the rate is out of range.

    Example:
        >>> layers = repeat(normalised_block(256, n_heads=8), 4)
    """
    size = d_model**-0.5
    slots: dict[str, Any] = {
        "mixer": Softmax(temperature=CoordinateScales(LearnedScale(1.0, size))),
        "qk_norm": QueryKeyNorm(gains="none"),
        "positions": Rope(),
        "mlp": Mlp(d_mlp, activation="silu", gated=True, bias=False, scale=LearnedScale()),
        "norm": UnitNorm(),
        "wiring": "spherical",
        "norm_after": UnitNorm(gain=LearnedScale(rate, size)),
    }
    return block(n_heads=n_heads, **(slots | kwargs))


@checked
def normalised_decoder(
    vocab_size: Count,
    d_model: Count,
    n_layers: Count,
    *,
    n_heads: Count,
    max_len: Count = 1024,
    d_mlp: Count | None = None,
    rate: Positive | None = None,
) -> DecoderConfig:
    """The decoder of the normalised transformer, its matrices drawn on the sphere.

    Train it with `OptimConfig(unit_vectors=True, weight_decay=0.0, warmup=0)`, as in the paper.

    Args:
        vocab_size: Number of token ids.
        d_model: Width of the stream.
        n_layers: How many blocks.
        n_heads: Heads of each.
        max_len: Longest context it is meant for.
        d_mlp: Neurons of each gated MLP; 4 d_model by default.
        rate: What each rate begins with; 1 / n_layers by default, and 0.05 in the paper, whose models have 24 layers
            and more.

    Raises:
        WrongArgument: A size or the rate is out of range.
    """
    layer = normalised_block(d_model, n_heads=n_heads, d_mlp=d_mlp, rate=1 / n_layers if rate is None else rate)
    return DecoderConfig(
        vocab_size,
        d_model,
        repeat(layer, n_layers),
        max_len=max_len,
        final_norm=NoNorm(),
        tied=False,
        init="unit",
        token_scale=LearnedScale(1.0, d_model**-0.5),
    )
