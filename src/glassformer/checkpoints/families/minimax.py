"""MiniMax-01: lightning attention and softmax by layers, DeepNorm, and a mixture of experts behind each.

The library adds alpha times what it has normed to beta times what a sub-layer writes, and norms the sum before the next
one reads it: post-norm, each norm stored with the layer behind it. Here the stream is alpha times theirs behind a norm.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from glassformer.attention import Activated, Lightning, Merge, Softmax, depth_slopes
from glassformer.checkpoints.families.experts import separate_experts
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama_shaped import FULL, LLAMA_FILES, gated_decoder
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, MixtureOfExperts, RmsNorm, ScaleOnly, deep_norm
from glassformer.models.norms import NoNorm

LINEAR = "linear_attention"
# what the class of norms has, whatever the config says of the others
_MIXED_EPS = 1e-6
_PARTS = ("linear_attn", "full_attn", "mlp")


def _config(fields: Fields) -> DecoderConfig:
    fields.only("hidden_act", "silu", "queries, keys and values of lightning pass it too")
    n_layers, n_heads = fields.whole("num_hidden_layers"), fields.whole("num_attention_heads")
    eps, alpha, kinds = fields.number("rms_norm_eps", 1e-5), _alpha(fields), _kinds(fields)
    window = fields.whole("sliding_window") if "sliding_window" in fields else None
    shared = deep_norm(alpha, eps) | {"mlp": _experts(fields, n_layers)}
    softmax = {"mixer": Softmax(window), "positions": rope(fields, base=1e6)}

    def layer(i: int) -> dict[str, Any]:
        if kinds[i] == FULL:
            return shared | softmax
        return shared | {
            "mixer": Lightning(depth_slopes(n_heads, i, n_layers, "minimax"), activation="none"),
            "projection": Activated(),
            "merge": Merge(norm="all", gate="sigmoid", eps=_MIXED_EPS),
            "n_kv_heads": None,
        }

    enlarged = alpha != 1
    return gated_decoder(
        fields, RmsNorm(eps), layer, max_len=4096 * 32, n_kv_heads=8,
        embed_norm=RmsNorm(eps, factor=alpha if enlarged else None),
        final_norm=ScaleOnly(1 / alpha) if enlarged else NoNorm(),
    )  # fmt: skip


def _experts(fields: Fields, n_layers: int) -> MixtureOfExperts:
    n, chosen = fields.whole("num_local_experts", 8), fields.whole("num_experts_per_tok", 2)
    # theirs is of all layers together, and of shares of choices that sum to as many as are chosen
    coefficient = fields.number("router_aux_loss_coef", 0.001) * chosen / n_layers
    return MixtureOfExperts(
        n, chosen, fields.whole("intermediate_size"), balance=coefficient if coefficient > 0 else None
    )


def _alpha(fields: Fields) -> float:
    """Return how much more the stream weighs than what is written, which is one number for all sub-layers."""
    for part in _PARTS:
        fields.only(f"{part}_beta_factor", 1, "what sub-layers write is added as it is")
    found = {fields.number(f"{part}_alpha_factor", 1) for part in _PARTS}
    if len(found) > 1 or min(found) <= 0:
        named = ", ".join(f"{part}_alpha_factor" for part in _PARTS)
        raise fields.wrong(named, sorted(found), "one positive number")
    return found.pop()


def _kinds(fields: Fields) -> list[str]:
    """Return for each layer whether it is lightning or softmax; every other one where the file does not say."""
    n = fields.whole("num_hidden_layers")
    found = fields.get("layer_types", [LINEAR if i % 2 else FULL for i in range(n)])
    if not isinstance(found, list) or len(found) != n or not {*found} <= {LINEAR, FULL}:
        raise fields.wrong("layer_types", found, f"a list of {n} names, each {LINEAR} or {FULL}")
    return found


def _table(fields: Fields, config: Any) -> Table:
    theirs, last = "model.layers.{i}", len(config.layers) - 1
    table: dict[str, Any] = {
        **separate_experts(config, f"{theirs}.block_sparse_moe.experts", {"gate": "w1", "input": "w3", "output": "w2"}),
        "embed.matrix": "model.embed_tokens.weight",
        "embed.norm": "model.layers.0.input_layernorm",
        "unembed.matrix": "lm_head.weight",
        "stack.blocks.{i}.mlp.router": f"{theirs}.block_sparse_moe.gate",
        "stack.blocks.{i}.attn_norm_after": f"{theirs}.post_attention_layernorm",
    }
    for i, layer in enumerate(config.layers):
        ours, their = f"stack.blocks.{i}", f"model.layers.{i}.self_attn"
        behind = "model.norm" if i == last else f"model.layers.{i + 1}.input_layernorm"
        table[f"{ours}.mlp_norm_after"] = behind
        attention: Any = layer.parts[0]
        dims = attention.dims(config.d_model, config.max_len)
        if isinstance(attention.mixer, Lightning):
            table |= _lightning(ours, their, config.d_model, dims.n_heads, dims.d_head)
            continue
        rows = (dims.n_heads * dims.d_head, *[dims.n_kv_heads * dims.d_head] * 2)
        table[f"{ours}.attn.projection.qkv"] = tuple(
            Piece(f"{their}.{name}_proj", size) for name, size in zip("qkv", rows)
        )
        table[f"{ours}.attn.merge.output"] = f"{their}.o_proj"
    return table


def _lightning(ours: str, theirs: str, d_model: int, n_heads: int, d_head: int) -> dict[str, Any]:
    def part(which: int) -> Callable[[Tensor], Tensor]:
        # query, key and value of a head lie side by side
        return lambda rows: rows.unflatten(0, (n_heads, 3, d_head))[:, which]

    shape = (3 * n_heads * d_head, d_model)
    pieces = tuple(Piece(f"{theirs}.qkv_proj", n_heads * d_head, view=part(i), shape=shape) for i in range(3))
    return {
        f"{ours}.attn.projection.qkv": pieces,
        f"{ours}.attn.merge.output": f"{theirs}.out_proj",
        f"{ours}.attn.merge.gate": f"{theirs}.output_gate",
        f"{ours}.attn.merge.gain": f"{theirs}.norm.weight",
    }


def _place(config: Any, site: str) -> str | None:
    """Return where ours has what the library records of a stream, a pattern or a norm.

    Their streams are sums that no norm has passed. Memories of lightning stand where patterns of softmax do.
    """
    stem, _, quantity = site.rpartition(".")
    if not stem.startswith("blocks."):
        return "blocks.0.attn.norm" if site == "embed.norm" and config.layers[0].norm_before is not None else site
    layer = int(stem.split(".")[1])
    if quantity == "resid_pre":
        return "embed.token" if layer == 0 else f"blocks.{layer - 1}.mlp.sum"
    if quantity == "pattern" and isinstance(config.layers[layer].parts[0].mixer, Lightning):
        return None
    if quantity == "sum_norm" and config.layers[layer].norm_before is not None:
        if stem.endswith("attn"):
            return f"blocks.{layer}.mlp.norm"
        return f"blocks.{layer + 1}.attn.norm" if layer + 1 < len(config.layers) else "final.norm"
    return site


MINIMAX = Family(
    "MiniMax",
    ("minimax",),
    _config,
    _table,
    prefixes=LLAMA_FILES["prefixes"],
    # what decay makes of places within a chunk
    ignored=tuple(f"*.self_attn.{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")),
    copies=LLAMA_FILES["copies"],
    no_lengths=("block_size",),
    place=_place,
)
