"""Some of a layer's heads: what ranks that share a layer by heads ask of it.

    z_h = mixer(q_h, k_g(h), v_g(h)),      h in a part of the heads, whose keys g(h) no other part reads

A part has neighbouring key heads and the query heads that read them. It is a layer of fewer heads, if no slot does
anything with heads together: no norm over all of them, no parameter that they share or have one of each.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.attention.positions import Positions
from glassformer.attention.projections import Separate
from glassformer.attention.sub_layer import Parallel
from glassformer.config import require


def take_heads(layer: Any, part: int, parts: int) -> Mapping[str, Parallel]:
    """Let an attention layer make and mix one of several equal parts of its heads, see `SubLayerModule.take_part`.

    The rows of the joined W_Q, W_K and W_V have to lie as `rows_by_part` of its projection says, before they are cut.

    Args:
        layer: Of all heads until now.
        part: Which, from 0.
        parts: How many.

    Raises:
        ConfigError: Heads do not divide, or a slot holds them together.
    """
    config, dims = layer.config, layer.dims
    require(
        dims.n_kv_heads % parts == 0,
        f'"{layer.path}" has {dims.n_heads} heads that read {dims.n_kv_heads} keys (n_kv_heads), and {parts} ranks '
        "take as many keys each. Change one of both.",
    )
    n = dims.n_heads // parts
    mixer = config.mixer.of_heads(range(part * n, part * n + n), dims.n_heads)
    together = [name for name, apart in _slots(layer).items() if not apart]
    together += [] if mixer is not None else [f'mixer "{config.mixer.kind}"']
    require(
        not together,
        f'"{layer.path}": {" and ".join(together)}, as set here, holds heads together, which ranks cannot share. '
        "Softmax(), Linear() and Lightning() with Rope() keep them apart; or let ranks share rows (dp).",
    )
    local = replace(dims, n_heads=n, n_kv_heads=dims.n_kv_heads // parts)
    layer.projection.set_sizes(local, layer.mixer.traits)
    layer.projection.qkv.widths = layer.projection.widths
    assert mixer is not None, "required above"
    layer.mixer, layer.merge.dims = mixer.build(local, layer.path).train(layer.training), local
    gate: dict[str, Parallel] = {} if layer.merge.gate is None else {"merge.gate": "column"}
    return {"projection.qkv": "column", "merge.output": "row", **gate}


def _slots(layer: Any) -> dict[str, bool]:
    """Return the slots beside the mixer by how an error names them, and whether each knows heads apart."""
    config, positions = layer.config, layer.positions
    merge, projection = config.merge, config.projection
    plain = type(projection) is Separate and projection.groups is None and not projection.qk_norm
    by_scores = positions.has_bias or positions.has_scores or any(True for _ in positions.parameters())
    return {
        "cross-attention": not config.cross,
        f'projection "{projection.kind}"': plain,
        f'positions "{config.positions.kind}"': not by_scores and type(positions).inputs is Positions.inputs,
        "merge": merge.norm is None and merge.gate_rank is None and merge.output,
    }
