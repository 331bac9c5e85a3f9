"""TransformerLens: HookedTransformer's config and state dict, one matrix per head.

A folder holds `config.json`, the fields of HookedTransformerConfig, and the state dict as safetensors. Matrices are
`head d_model d_head`, all with biases. What its loader folded or centred stays as it is: norms without parameters are
`LNPre` and `RMSPre`, and embedding and unembedding are two matrices. Grouped keys and values are stored per key head
(`_W_K`), or once for every query head where `ungroup_grouped_query_attention` is set. With
`attention_dir="bidirectional"` it is an encoder; BERT has a layout of its own (`hooked_encoder`).
"""

from collections.abc import Mapping
from typing import Any

from glassformer.attention import Alibi, Llama3Scaling, NoPositions, PositionsConfig, Rope, Softmax
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.errors import CheckpointError
from glassformer.models import (
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    LayerNorm,
    Learned,
    Mlp,
    NoNorm,
    NormConfig,
    RmsNorm,
    block,
)

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
}  # fmt: skip
PLAIN = "HookedTransformers are read with queries, keys and values of plain linear maps"


def _is(config: Mapping[str, Any]) -> bool:
    return "model_type" not in config and all(name in config for name in ("n_layers", "d_model", "d_head", "n_ctx"))


def _config(fields: Fields) -> DecoderConfig | EncoderConfig:
    check_plain(fields)
    both_ways = fields.choice("attention_dir", {"causal": False, "bidirectional": True}, "causal")
    sizes = (fields.whole("d_vocab"), fields.whole("d_model"), hooked_layers(fields))
    shared: dict[str, Any] = {
        "max_len": fields.whole("n_ctx"),
        "positions": Learned() if fields.get("positional_embedding_type", "standard") == "standard" else None,
        "final_norm": _norm(fields, last=True),
        "tied": False,
        "unembed_bias": True,
        "output_vocab_size": _outputs(fields),
        "embed_norm": LayerNorm(fields.number("eps", 1e-5)) if fields.flag("post_embedding_ln", False) else None,
    }
    cap = _cap(fields, "output_logits_soft_cap")
    if not both_ways:
        return DecoderConfig(*sizes, **shared, logit_cap=cap)
    if cap is not None:
        fields.only("output_logits_soft_cap", -1.0, "logits of encoders have no cap")
    return EncoderConfig(*sizes, **shared)


def check_plain(fields: Fields) -> None:
    """Raise `CheckpointError` if a setting says that the model is none of those read here."""
    for name, allowed, why in (
        ("num_experts", None, "experts are not read in this layout"),
        ("scale_attn_by_inverse_layer_idx", False, "scores are not scaled by layer"),
        ("use_qk_norm", False, PLAIN),
    ):
        fields.only(name, allowed, why)


def _outputs(fields: Fields) -> int | None:
    """Return how many tokens logits are of, None where they are those that are read."""
    size = fields.whole("d_vocab_out", -1)
    return None if size in (-1, fields.whole("d_vocab")) else size


def hooked_layers(fields: Fields) -> tuple[BlockConfig, ...]:
    """Return the blocks of a config."""
    kinds = fields.get("attn_types", None) if fields.flag("use_local_attn", False) else None
    n_layers, attn_only = fields.whole("n_layers"), fields.flag("attn_only", False)
    mlp = None if attn_only else Mlp(
        fields.whole("d_mlp", 4 * fields.whole("d_model")),
        fields.choice("act_fn", ACTIVATIONS),  # type: ignore[arg-type]
        fields.flag("gated_mlp", False),
    )  # fmt: skip
    wiring = "sandwich" if fields.flag("use_normalization_before_and_after", False) else "pre"
    wiring = "parallel" if fields.flag("parallel_attn_mlp", False) else wiring
    return tuple(
        block(
            Softmax(
                fields.whole("window_size") if kinds is not None and kinds[i] == "local" else None,
                _scale(fields),
                _cap(fields, "attn_scores_soft_cap"),
            ),
            n_heads=_heads(fields)[0],
            n_kv_heads=_heads(fields)[1],
            d_head=fields.whole("d_head"),
            positions=_positions(fields),
            bias=True,
            norm=_norm(fields),
            mlp=mlp,
            wiring=wiring,
        )
        for i in range(n_layers)
    )


def _heads(fields: Fields) -> tuple[int, int]:
    """Return how many query heads there are, and how many key heads are stored."""
    n_heads = fields.whole("n_heads", fields.whole("d_model") // fields.whole("d_head"))
    return n_heads, fields.whole("n_key_value_heads", n_heads) if _grouped(fields) else n_heads


def _grouped(fields: Fields) -> bool:
    return "n_key_value_heads" in fields and not fields.flag("ungroup_grouped_query_attention", False)


def _scale(fields: Fields) -> float | None:
    if not fields.flag("use_attn_scale", True):
        return 1.0
    divisor = fields.number("attn_scale", -1.0)
    return None if divisor <= 0 or divisor == fields.whole("d_head") ** 0.5 else 1 / divisor


def _cap(fields: Fields, name: str) -> float | None:
    return cap if (cap := fields.number(name, -1.0)) > 0 else None


def _positions(fields: Fields) -> PositionsConfig:
    kind = fields.get("positional_embedding_type", "standard")
    if kind == "standard":
        return NoPositions()
    if kind == "alibi":
        return Alibi()
    if kind == "rotary":
        d_head = fields.whole("d_head")
        pairing = "interleaved" if fields.flag("rotary_adjacent_pairs", False) else "half"
        scaling = None
        if fields.flag("use_NTK_by_parts_rope", False):
            factor, low, high = (fields.number(f"NTK_by_parts_{name}", value) for name, value in _SCALING.items())
            scaling = Llama3Scaling(factor, low, high, fields.whole("NTK_original_context_len", 8192))
        turned = fields.whole("rotary_dim", d_head) / d_head
        return Rope(fields.number("rotary_base", 10000.0), pairing, turned, scaling)
    raise CheckpointError(
        f'"{fields.where}": positional_embedding_type="{kind}" is not known; standard, rotary and alibi are.'
    )


def _norm(fields: Fields, last: bool = False) -> NormConfig:
    kind, eps = fields.get("normalization_type", None), fields.number("eps", 1e-5)
    if kind is None:
        return NoNorm()
    if kind not in ("LN", "LNPre", "RMS", "RMSPre"):
        raise fields.wrong("normalization_type", kind, "one of LN, LNPre, RMS, RMSPre or null")
    bare = kind.endswith("Pre")
    if kind.startswith("RMS") or (last and fields.flag("final_rms", False)):
        return RmsNorm(eps, gain=not bare)
    return LayerNorm(eps, bias=not bare, gain=not bare)


def _table(fields: Fields, config: Any) -> Table:
    found: dict[str, Any] = {
        "embed.matrix": "embed.W_E",
        "embed.positions.weight": "pos_embed.W_pos",
        "embed.norm.weight": "embed.ln.w",
        "embed.norm.bias": "embed.ln.b",
        "unembed.matrix": Piece("unembed.W_U", transposed=True),
        "unembed.bias": "unembed.b_U",
        "stack.final.weight": "ln_final.w",
        "stack.final.bias": "ln_final.b",
    }
    ours, theirs = "stack.blocks.{i}", "blocks.{i}"
    for part, number in (("attn", 1), ("mlp", 2)):
        for name, norm in ((f"{part}_norm", f"ln{number}"), (f"{part}_norm_after", f"ln{number}_post")):
            found |= {f"{ours}.{name}.weight": f"{theirs}.{norm}.w", f"{ours}.{name}.bias": f"{theirs}.{norm}.b"}
    return found | dict(hooked_attention(fields, config)) | dict(hooked_mlp(fields))


def hooked_mlp(fields: Fields) -> Table:
    """Return rows of a table for MLPs."""
    ours, theirs, found = "stack.blocks.{i}", "blocks.{i}", dict[str, Any]()
    for matrix, name in (("gate", "gate"), ("input", "in"), ("output", "out")):
        found[f"{ours}.mlp.{matrix}.weight"] = Piece(f"{theirs}.mlp.W_{name}", transposed=True)
        # gates have no bias, and where there are gates, b_in is added behind them
        gated = matrix == "input" and fields.flag("gated_mlp", False)
        found[f"{ours}.mlp.{matrix}.bias"] = () if matrix == "gate" else Piece(f"{theirs}.mlp.b_{name}", zero=gated)
    return found


def hooked_attention(fields: Fields, config: Any) -> Table:
    """Return rows of a table for attention, if there is any."""
    if not config.layers:
        return {}
    mark = "_" if _grouped(fields) else ""
    ours, theirs = "stack.blocks.{i}.attn", "blocks.{i}.attn"
    dims = config.layers[0].parts[0].dims(config.d_model, config.max_len)
    width, d_model = dims.d_head, config.d_model
    kinds = (("", "Q", dims.n_heads), (mark, "K", dims.n_kv_heads), (mark, "V", dims.n_kv_heads))
    return {
        # head d_model d_head -> head d_head d_model
        f"{ours}.projection.qkv.weight": tuple(
            Piece(f"{theirs}.{mark}W_{kind}", n * width, view=lambda w: w.mT, shape=(n, d_model, width))
            for mark, kind, n in kinds
        ),
        f"{ours}.projection.qkv.bias": tuple(
            Piece(f"{theirs}.{mark}b_{kind}", n * width, view=lambda b: b.flatten(), shape=(n, width))
            for mark, kind, n in kinds
        ),
        # head d_head d_model -> d_model head d_head
        f"{ours}.merge.output.weight": Piece(
            f"{theirs}.W_O", view=lambda w: w.permute(2, 0, 1), shape=(dims.n_heads, width, d_model)
        ),
        f"{ours}.merge.output.bias": f"{theirs}.b_O",
    }


def _express(config: DecoderConfig) -> dict[str, Any]:
    """Return the fields of HookedTransformerConfig that tell such models apart; the first block speaks for all."""
    first: Any = config.layers[0]
    attention: Any = first.parts[0]
    mlp: Any = first.parts[1] if len(first.parts) > 1 else None
    dims, positions, norm = attention.dims(config.d_model, config.max_len), attention.positions, first.norm
    kind = {"layer_norm": "LN", "rms_norm": "RMS"}.get(norm.kind or "")
    bare = "" if getattr(norm, "gain", True) else "Pre"
    return _express_rotation(positions, dims.d_head) | {
        "n_layers": len(config.layers),
        "d_model": config.d_model,
        "n_ctx": config.max_len,
        "d_head": dims.d_head,
        "n_heads": dims.n_heads,
        "n_key_value_heads": None if dims.n_kv_heads == dims.n_heads else dims.n_kv_heads,
        "d_mlp": None if mlp is None else getattr(mlp, "d_mlp", None) or 4 * config.d_model,
        "act_fn": None if mlp is None else _THEIRS.get(getattr(mlp, "activation", "")),
        "gated_mlp": getattr(mlp, "gated", False),
        "attn_only": mlp is None,
        "d_vocab": config.vocab_size,
        "d_vocab_out": config.n_outputs,
        "eps": getattr(norm, "eps", 1e-5),
        "normalization_type": None if kind is None else kind + bare,
        "final_rms": config.final_norm.kind == "rms_norm",
        "positional_embedding_type": _KINDS.get(positions.kind or "", "standard"),
        "parallel_attn_mlp": first.wiring == "parallel",
        "use_normalization_before_and_after": first.wiring == "sandwich",
        "post_embedding_ln": config.embed_norm is not None,
        **_express_scores(config, dims.d_head),
        "output_logits_soft_cap": config.logit_cap or -1.0,
    }


def _express_rotation(positions: PositionsConfig, d_head: int) -> dict[str, Any]:
    if not isinstance(positions, Rope):
        return {}
    rotation: dict[str, Any] = {
        "rotary_dim": round(positions.fraction * d_head),
        "rotary_base": positions.base,
        "rotary_adjacent_pairs": positions.pairing == "interleaved",
    }
    if isinstance(scaling := positions.scaling, Llama3Scaling):
        factors = zip(_SCALING, (scaling.factor, scaling.low, scaling.high))
        rotation |= {f"NTK_by_parts_{name}": value for name, value in factors}
        rotation |= {"use_NTK_by_parts_rope": True, "NTK_original_context_len": scaling.original_length}
    return rotation


def _express_scores(config: Any, d_head: int) -> dict[str, Any]:
    mixers = [layer.parts[0].mixer for layer in config.layers]
    windows, scale = [getattr(mixer, "window", None) for mixer in mixers], getattr(mixers[0], "scale", None)
    return {
        "use_attn_scale": True,
        "attn_scale": d_head**0.5 if scale is None else 1 / scale,
        "use_local_attn": any(windows),
        "window_size": next((window for window in windows if window), None),
        "attn_types": ["local" if window else "global" for window in windows] if any(windows) else None,
        "attn_scores_soft_cap": getattr(mixers[0], "cap", None) or -1.0,
    }


# factors of Llama 3's scaling, by their names and with their defaults
_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_KINDS = {"rope": "rotary", "alibi": "alibi"}
_THEIRS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}

TRANSFORMER_LENS = Family(
    "TransformerLens",
    (),
    _config,
    _table,
    ignored=("*.mask", "*.IGNORE", "*.rotary_sin", "*.rotary_cos", "*.alibi"),
    recognise=_is,
    express=_express,
    bare=True,
)
