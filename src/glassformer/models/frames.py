"""Blocks whose frame is what a paper is about: half steps around attention, and any mixer of tokens in one frame."""

from typing import Any, Literal

from glassformer.arguments import checked
from glassformer.attention import (
    Merge,
    MixerConfig,
    Pooling,
    SubLayerConfig,
    Synthesizer,
    Tied,
    TokenMixing,
    TokenMlp,
)
from glassformer.config import require
from glassformer.models.block import BlockConfig
from glassformer.models.mlp import Mlp
from glassformer.models.norms import ScaleOnly
from glassformer.models.schedules import block

# mixers that look at no token, by the names they have where they are compared
TOKEN_MIXERS: dict[str, MixerConfig] = {
    "identity": Pooling(window=1, less_itself=False),
    "pooling": Pooling(),
    "random": Synthesizer(parts=("fixed",)),
    "linear": TokenMixing(),
    "mlp": TokenMlp(),
}


@checked
def macaron(
    mixer: MixerConfig | None = None,
    *,
    n_heads: int,
    mlp: SubLayerConfig | None = None,
    halved: Literal["mlp", "attention"] = "mlp",
    **kwargs: Any,
) -> BlockConfig:
    """The Macaron block: half a step of an MLP, one of attention, half a step of another MLP.

        x <- x + f1(norm(x)) / 2;   x <- x + attention(norm(x));   x <- x + f2(norm(x)) / 2

    A block of attention and MLP is a step of an ODE whose right side is the sum of both, each taken by itself: Lie's
    splitting. Halving one of the two around the other is Strang's, whose error is of second order where the halves are
    solved exactly. As built here, and published, each sub-layer is one step of Euler's, and the whole is of first
    order as before, with a smaller constant (`tests/laws/models/test_block_frames.py` measures both).

    Args:
        mixer: The mechanism; softmax by default.
        n_heads: Of the attention.
        mlp: Either half; with half the neurons of the usual block there are as many parameters. An MLP of 2 d_model
            neurons needs to be said: `Mlp(2 * d_model)`.
        halved: What takes half steps: the MLP around attention or, the other of Strang's two, attention around the MLP.
        kwargs: As for `block`, of pre-norm wiring.

    Differs from the paper in that norms come before sub-layers, as in Gulati et al. 2020, "Conformer" (2005.08100).
    Post-norm, as published, is `BlockConfig((mlp, attention, mlp), wiring="post")` with the second matrices of both
    MLPs halved, which is the same function.

    Source: Lu et al. 2019, "Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of View"
    (1906.02762), section 4.
    """
    refused = {"wiring", "norm_after", "cross"} & kwargs.keys()
    require(not refused, f"macaron: {', '.join(sorted(refused))} is what makes this block; leave it out.")
    usual = block(mixer, n_heads=n_heads, mlp=mlp or Mlp(), **kwargs)
    attention, half = usual.parts
    around, between = (half, attention) if halved == "mlp" else (attention, half)
    steps = (ScaleOnly(0.5), ScaleOnly(1.0), ScaleOnly(0.5))
    return usual.replace(parts=(around, between, around), wiring="sandwich", norm_after=steps)


@checked
def metaformer(
    mixer: MixerConfig | Literal["identity", "pooling", "random", "linear", "mlp"] = "pooling",
    *,
    n_heads: int = 1,
    mlp: SubLayerConfig | None = None,
    **kwargs: Any,
) -> BlockConfig:
    """The MetaFormer block: any mixer of tokens, and an MLP.

        x <- x + mixer(norm(x));   x <- x + mlp(norm(x))

    Named mixers know nothing of tokens and have no matrices around them: what is mixed is the stream itself. A
    mechanism has its projections and output matrix, as everywhere.

    Args:
        mixer: `identity`; `pooling`, the mean of near positions less oneself; `random`, a fixed matrix drawn once, its
            rows passed by softmax; `linear` and `mlp`, a matrix or an MLP over places; or any mechanism.
        n_heads: Heads that have a matrix each; one, as published, shares it over all channels.
        mlp: What follows; four times as wide as the stream by default.
        kwargs: As for `block`.

    Differs from the released code in that a norm is of one position, where theirs is of all tokens and channels
    together and lets no text be causal, and in that no learned scale stands behind sub-layers.

    Source: Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision" (2111.11418), section 3; Yu et al. 2022,
    "MetaFormer Baselines for Vision" (2210.13452), for identity and random matrices.
    """
    usual = {"n_heads": n_heads, "mlp": mlp or Mlp()}
    if isinstance(mixer, MixerConfig):
        return block(mixer, **(usual | kwargs))
    bare = {"projection": Tied(query="identity", value="identity"), "merge": Merge(output=False)}
    return block(TOKEN_MIXERS[mixer], **(usual | bare | kwargs))
