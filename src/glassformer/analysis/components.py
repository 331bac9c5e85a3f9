"""What writes to the stream that ends in the logits: embeddings, heads, MLPs, biases."""

import dataclasses
from typing import Literal

from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.models import ModelLike, SubLayer, require_model
from glassformer.models.embedding import Embedding
from glassformer.models.mlp import MlpLayer
from glassformer.weights import head_label

Kind = Literal[
    "token",
    "position",
    "head",
    "cross_head",
    "attn_bias",
    "mlp",
    "part",
    "norm_bias",
    "final_bias",
    "readout_bias",
    "unembed_bias",
]


@dataclasses.dataclass(frozen=True)
class Component:
    """One thing that writes to the stream, or one constant.

    Args:
        label: Its name in results, `L3H5`, `L3 mlp`, ….
        kind: What it is; `part` is a sub-layer that is neither attention nor an MLP.
        layer: Block it lies in; None outside the blocks.
        part: Sub-layer it belongs to (`attn`, `cross`, `mlp`); empty outside the blocks.
        head: Index of the head; None unless it is one.
    """

    label: str
    kind: Kind
    layer: int | None = None
    part: str = ""
    head: int | None = None


def head_labels(layer: SubLayer) -> list[str]:
    """The names of a sub-layer's heads; none where it is no attention."""
    n = 0 if layer.attention is None else layer.attention.dims.n_heads
    return [head_label(layer.stack, layer.name, layer.layer, h) for h in range(n)]


def written_by(layer: SubLayer) -> list[Component]:
    """Return what a sub-layer writes by: its heads, or itself as a whole."""
    if layer.attention is None:
        return [Component(layer.label, "mlp" if layer.role == "mlp" else "part", layer.layer, layer.name)]
    kind: Kind = "cross_head" if layer.crosses else "head"
    return [Component(label, kind, layer.layer, layer.name, h) for h, label in enumerate(head_labels(layer))]


def bias_of(layer: SubLayer, kind: Literal["attn_bias", "norm_bias"]) -> Component:
    """Return what an attention layer's output bias adds, or that of the norm behind a sub-layer."""
    norm = " norm" if kind == "norm_bias" else ""
    return Component(f"{layer.label}{norm} bias", kind, layer.layer, layer.name)


def stream_sites(model: ModelLike) -> list[str]:
    """Return every place of the stream that ends in the logits: what enters, and what each sub-layer leaves behind.

    What enters a later block is what the one before it leaves, and is not listed again. A model without blocks has
    its embedding, which `lens_grid` adds up.
    """
    blocks = require_model(model).output_stack.blocks
    if not blocks:
        return entry_sites(model.output_embed)
    return [blocks[0].at_resid[0], *(site for block in blocks for site in block.at_resid[1:])]


def entry_sites(embed: Embedding) -> list[str]:
    """Return the sites whose sum enters the first block."""
    if embed.norm is not None:
        return [embed.norm.at_out]
    return [embed.at_token] + ([embed.at_position] if embed.positions is not None else [])


def vector_sites(embed: Embedding) -> list[str]:
    """Return the sites that the parts of what enters the first block are made of: vectors, and the scale of a norm."""
    found = [embed.at_token] + ([embed.at_position] if embed.positions is not None else [])
    return found + ([embed.norm.at_scale] if embed.norm is not None else [])


def mlp_of(model: ModelLike, layer: int, part: str, analysis: str) -> MlpLayer:
    """The MLP of a layer of the stack that ends in the logits.

    Args:
        model: One of ours.
        layer: Index of the block.
        part: Name of the sub-layer, where a block has several.
        analysis: Named in errors.

    Raises:
        AnalysisUnavailable: There is no such MLP.
    """
    sub_layers = require_model(model, analysis).sub_layers()
    there = {(one.layer, one.name): one.part for one in sub_layers if isinstance(one.part, MlpLayer)}
    found = there.get((layer, part))
    if found is None:
        known = ", ".join(f'layer {at} "{name}"' for at, name in there) or "none"
        raise AnalysisUnavailable(f'{analysis}: no MLP "{part}" in layer {layer}. MLPs: {known}.')
    return found


def require_one_pattern(part: AttentionLayer, analysis: str, instead: str | None = None) -> None:
    """Raise `NoPattern` unless each head has one pattern, which multiplies its values, up to a scale.

    Args:
        part: The layer.
        analysis: Named in the error.
        instead: What still works, a sentence.
    """
    require_pattern(part, analysis)
    if not part.traits.one_pattern:
        raise NoPattern(
            f'{analysis}: heads of layer {part.dims.layer} ("{part.config.mixer.kind}") have '
            f"{part.mixer.traits.value_streams} values with a pattern each, so no one pattern says where they look.\n"
            f"    {instead or 'What they write on behalf of each token: analysis.attribution.source_effects(run).'}"
        )


def require_pattern(part: AttentionLayer, analysis: str, instead: str | None = None) -> None:
    """Raise `NoPattern` unless mixed values are patterns times values, up to a scale."""
    linear = part.traits.linear_in_value
    if not part.traits.has_patterns:
        shows = part.traits.shows_patterns
        why = "also mixes in what no pattern weighs" if shows else "has no pattern that multiplies values"
        raise NoPattern(
            f'{analysis}: layer {part.dims.layer} uses "{part.config.mixer.kind}" (linear_in_value="{linear}"), which '
            f"{why}.\n    "
            + (instead or "Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run).")
        )


def require_next_tokens(model: ModelLike, analysis: str) -> None:
    """Raise `AnalysisUnavailable` if the model's logits are not of the token that comes next."""
    if not require_model(model, analysis).predicts_next:
        raise AnalysisUnavailable(
            f"{analysis} asks how well next tokens are predicted; an encoder reads both ways, so it sees them.\n"
            "    What it makes of a masked position: analysis.attribution.direct_logit_attribution(run), "
            "analysis.lens.logit_lens(run)."
        )
