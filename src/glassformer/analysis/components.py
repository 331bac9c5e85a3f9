"""What writes to the stream that ends in the logits: embeddings, heads, MLPs, biases; and the stack they lie in."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Block, Decoder, Encoder, EncoderDecoder, Stack
from glassformer.models.embedding import Embedding
from glassformer.trace import Foreign

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


def decoder_side(model: Any) -> tuple[Stack, Embedding]:
    """Return the stack and embedding that end in the logits; raises `AnalysisUnavailable` for other modules."""
    if isinstance(model, Decoder | Encoder):
        return model.stack, model.embed
    if isinstance(model, EncoderDecoder):
        return model.decoder, model.decoder_embed
    if model is None:
        raise AnalysisUnavailable("this analysis looks at weights: give the model, Run.load(path, model=…).")
    if isinstance(model, Foreign) and model.has_parts:
        raise AnalysisUnavailable(
            "this analysis looks at the parts of a model, which a module seen through a spec has apart from it.\n"
            "    Give it model.parts(): a model of ours with the module's weights."
        )
    raise AnalysisUnavailable(
        "this analysis needs the parts of a Decoder, an Encoder or an EncoderDecoder; "
        f"{type(model).__name__} is none of them.\n    Of a run, give the model that ran: run.model.\n"
        "    What any module offers is gf.run(model, inputs, read=[…]) at its module boundaries; a spec says what it\n"
        "    is made of: gf.foreign(module, gf.Spec(…, config=…, weights=…))."
    )


def entry_sites(embed: Embedding) -> list[str]:
    """Return the sites whose sum enters the first block."""
    if embed.norm is not None:
        return [embed.norm.at_out]
    return [embed.at_token] + ([embed.at_position] if embed.positions is not None else [])


def vector_sites(embed: Embedding) -> list[str]:
    """Return the sites that the parts of what enters the first block are made of: vectors, and the scale of a norm."""
    found = [embed.at_token] + ([embed.at_position] if embed.positions is not None else [])
    return found + ([embed.norm.at_scale] if embed.norm is not None else [])


def require_next_tokens(model: Any, analysis: str) -> None:
    """Raise `AnalysisUnavailable` if the model's logits are not of the token that comes next."""
    if isinstance(model, Encoder):
        raise AnalysisUnavailable(
            f"{analysis} asks how well next tokens are predicted; an encoder reads both ways, so it sees them.\n"
            "    What it makes of a masked position: analysis.attribution.direct_effects(run), "
            "analysis.lens.logit_lens(run)."
        )


def blocks_of(stack: Stack) -> list[Block]:
    return [block for block in stack.blocks if isinstance(block, Block)]


def sub_layers(stack: Stack) -> list[tuple[Block, str]]:
    """Return every sub-layer with its block, in the order of the forward pass."""
    return [(block, name) for block in blocks_of(stack) for name in block.names]


def written_before(blocks: Sequence[Block], site: str) -> list[tuple[Block, str]]:
    """Return the sub-layers that have written to the stream at a place of it."""
    earlier: list[tuple[Block, str]] = []
    for block in blocks:
        if site in block.at_resid:
            place = block.at_resid.index(site)
            whole = block.wiring == "parallel" and place > 0
            return earlier + [(block, name) for name in block.names[: None if whole else place]]
        earlier += [(block, name) for name in block.names]
    return earlier


def attention_of(block: Block, name: str) -> AttentionLayer | None:
    part = block.part(name)
    return part if isinstance(part, AttentionLayer) else None


def read_through(block: Block, name: str) -> str:
    """Return the site of what a sub-layer reads: its norm's output, or (post-norm) the stream itself."""
    return block.at_resid[block.names.index(name)] if block.wiring == "post" else block.norm(name).at_out
