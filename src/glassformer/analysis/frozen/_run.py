"""Run a model with its attention patterns and norm scales held at what they were in another run.

    attn(x) = sum over heads of  A_h  norm(x)  W_V W_O  + biases

With every A and every norm's scale fixed this is affine in x, and so is a whole model of attention layers.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (attention heads as independent and
additive; freezing attention patterns).
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.components import require_pattern
from glassformer.analysis.prepare import require_one_prompt
from glassformer.analysis.question import question
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.trace import Set


@dataclasses.dataclass(frozen=True, eq=False)
class Linearity(Result):
    """How far a model with frozen patterns and norm scales is from an affine map of the token vectors.

    Args:
        deviation: RMS of f(ax + by) - a f(x) - b f(y) + (a + b - 1) f(0), over the RMS of f(ax + by) - f(0), where f
            gives raw logits (before a soft cap); 0 up to rounding for attention without MLPs, gates and norms
            of the latents that values are made of.
        by_position: The same for each position.
    """

    HEADLINE = ("by_position",)

    deviation: float
    by_position: Labelled


def frozen_sites(model: ModelLike) -> list[str]:
    """Return the sites that `frozen_edits` holds fixed: patterns and norm scales of every stack.

    Raises:
        NoPattern: A mechanism has no pattern that multiplies values.
    """
    scales, patterns = _frozen_sites(model)
    return [*scales, *patterns]


def _frozen_sites(model: ModelLike) -> tuple[list[str], list[str]]:
    """Return the sites of norm scales, and of patterns."""
    scales, patterns = list[str](), list[str]()
    for side, stack in require_model(model, "a frozen run").stacks.items():
        norms = [model.embeddings[side].norm, stack.final]
        for layer in stack.sub_layers():
            norms += layer.norms
            if (part := layer.attention) is not None:
                require_pattern(part, "a frozen run")
                patterns.append(part.at.pattern)
                scales += [] if part.merge.linear else [part.at.z_scale]
        scales += [norm.at_scale for norm in norms if norm is not None and not norm.identity]
    return scales, patterns


@question(
    "Which edits hold patterns and norm scales at what they were?",
    reads=frozen_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales"),
    # edits go where the values stood, padding in its place
    padded=True,
)
def frozen_edits(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    patterns: bool = True,
    scales: bool = True,
) -> list[Set]:
    """Edits that hold a model's patterns, norm scales, or both at what they were in a run.

    With both, the run's own text gives the same logits again, and all but MLPs, clipped values, values made of normed
    latents, gates on mixed values and a soft cap on logits is affine in what enters the stream. Ablating a head then
    takes away what it wrote and what later heads made of it, and leaves every pattern as it was (a pattern-preserving
    ablation).

    Args:
        run: A forward pass that read `[frozen_edits]`, or a model; with one row it serves runs of any number of rows.
        patterns: Freeze patterns.
        scales: Freeze what norms divide by, those on mixed values included.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern.

    Example:
        >>> clean = gf.run(model, text, read=frozen_sites(model))
        >>> gf.run(model, text, edit=[*frozen_edits(clean), Scale("blocks.0.attn.z", 0.0, at=At(head=3))])
    """
    of_norms, of_heads = _frozen_sites(run.model)
    names = [*(of_norms if scales else ()), *(of_heads if patterns else ())]
    run.require(names, "frozen_edits")
    return [Set(name, run[name].values) for name in names]


@question("How linear is the model with patterns and scales frozen?", of="texts", holds=("patterns", "norm scales"))
def linearity(model: ModelLike, text: Any, *, a: float = 0.7, b: float = -1.3, seed: int = 0) -> Linearity:
    """Test f(ax + by) = a f(x) + b f(y), up to constants, on a decoder with patterns and norm scales frozen.

    Patterns and scales come from the text; x and y are random vectors of the size of its token vectors. One pass
    records them, a second one with four rows measures.

    Args:
        model: A decoder.
        text: Text or ids, one row.
        a: Weight of x.
        b: Weight of y.

    Raises:
        NoPattern: A mechanism has no pattern.
        AnalysisUnavailable: The model is no decoder.
    """
    if not (isinstance(model, Model) and model.continues):
        raise AnalysisUnavailable(
            "linearity puts random vectors in place of a decoder's tokens; "
            f"{type(model).__name__} is none.\n    frozen_edits(run) freezes an encoder-decoder too."
        )
    clean = run(model, text, read=[model.output_embed.at_token, *frozen_sites(model)])
    assert clean.ids is not None, "a decoder's run has ids"
    require_one_prompt(len(clean.ids), "linearity")
    token = clean[model.output_embed.at_token].values
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, *token.shape[1:], generator=generator, dtype=torch.float64).to(token)
    x, y = drawn * token.square().mean().sqrt()
    rows = torch.stack((a * x + b * y, x, y, torch.zeros_like(x)))
    site = model.unembed.at_linear
    edits = [*frozen_edits(clean), Set(model.output_embed.at_token, rows)]
    both, first, second, none = run(model, clean.ids.expand(4, -1), read=[site], edit=edits)[site].values.double()
    error = both - a * first - b * second + (a + b - 1) * none
    unit = _rms(both - none).clamp_min(torch.finfo(torch.float64).tiny)
    by_position = error.square().mean(-1).sqrt() / unit
    labels = [f"{i}:{token}" for i, token in enumerate(clean.tokens)]
    return Linearity(float(_rms(error) / unit), Labelled(by_position, ("pos",), {"pos": labels}))


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()
