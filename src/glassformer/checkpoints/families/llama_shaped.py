"""Decoders of Llama's shape: what many families have in common, details up to the family or even the layer."""

from collections.abc import Callable
from typing import Any

from glassformer.attention import DynamicScaling, LinearScaling, QueryKeyNorm, Separate
from glassformer.checkpoints.families.family import Piece
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.rotary import longest, rope_parameters
from glassformer.errors import CheckpointError
from glassformer.models import DecoderConfig, Mlp, NormConfig, block

# how files of decoders named like Llama differ from their table
LLAMA_FILES: dict[str, Any] = {
    "prefixes": ("model.",),
    "ignored": ("*.rotary_emb.inv_freq",),
    "copies": {"lm_head.weight": "model.embed_tokens.weight"},
}
FULL, SLIDING = "full_attention", "sliding_attention"


def gated_decoder(
    fields: Fields,
    norm: NormConfig,
    layer: Callable[[int], dict[str, Any]],
    *,
    activation: str | None = None,
    tied: bool = False,
    max_len: int = 2048,
    n_kv_heads: int | None = None,
    **whole: Any,
) -> DecoderConfig:
    """Return a decoder of grouped heads and gated MLPs without biases.

    Args:
        fields: The config.
        norm: The norm everything reads through.
        layer: What a layer has beside, or instead, as arguments of `block`.
        activation: Of the MLPs, as we call it; by default what `hidden_act` says.
        tied: Whether the output matrix is the embedding, where the file does not say.
        max_len: Longest context, where the file does not say.
        n_kv_heads: Key heads, likewise; as many as query heads by default.
        whole: Further fields of the decoder.
    """
    d_model, n_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    act: Any = fields.activation("hidden_act", "silu") if activation is None else activation
    shared: dict[str, Any] = {
        "n_heads": n_heads,
        "n_kv_heads": fields.whole("num_key_value_heads", n_kv_heads or n_heads),
        "d_head": fields.whole("head_dim", d_model // n_heads),
        "norm": norm,
        "mlp": Mlp(fields.whole("intermediate_size"), act, gated=True, bias=False),
    }
    more: dict[str, Any] = {"final_norm": norm} | whole
    layers = tuple(block(**(shared | layer(i))) for i in range(fields.whole("num_hidden_layers")))
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        layers,
        max_len=longest(fields, layer(0).get("positions"), max_len),
        tied=fields.flag("tie_word_embeddings", tied),
        **more,
    )


def gated_mlp(fields: Fields, bias: str = "mlp_bias") -> Mlp:
    """Return a gated MLP of which the field `bias` says whether it has biases."""
    act = fields.activation("hidden_act", "silu")
    return Mlp(fields.whole("intermediate_size"), act, gated=True, bias=fields.flag(bias, False))


def layer_kinds(fields: Fields, slides: Callable[[int], bool]) -> list[str]:
    """Return for each layer whether it sees everything or a window: `layer_types`, or a rule where there are none.

    Args:
        fields: The config.
        slides: The rule: whether a layer, counted from 0, sees a window.

    Raises:
        CheckpointError: There are not as many as layers, or one is of neither kind.
    """
    n = fields.whole("num_hidden_layers")
    # files in which no layer has a window may say one all the same
    fields.says("sliding_window")
    found = fields.get("layer_types", [SLIDING if slides(i) else FULL for i in range(n)])
    if not isinstance(found, list) or len(found) != n:
        raise fields.wrong("layer_types", found, f"a list of {n} names, one per layer")
    for kind in found:
        if kind not in (FULL, SLIDING):
            raise CheckpointError(f'"{fields.where}": layer_types has "{kind}"; {FULL} and {SLIDING} are known.')
    return found


def periodic_kinds(fields: Fields, period: int) -> list[str]:
    """Return the kinds of layers where the last of every few sees everything, unless `layer_types` says otherwise.

    Args:
        fields: The config, with `sliding_window_pattern` where it has a period of its own.
        period: Layers to one that sees everything, where the file does not say.

    Raises:
        CheckpointError: As for `layer_kinds`, or the period has only the name that the reference keeps it under, which
            it does not read back.
    """
    if "layer_types" not in fields and "sliding_window_pattern" not in fields:
        fields.only(
            "_sliding_window_pattern",
            period,
            f"by itself it is not read by transformers, which takes {period}; give layer_types, or "
            "sliding_window_pattern",
        )
    step = max(fields.whole("sliding_window_pattern", period), 1)
    return layer_kinds(fields, lambda i: (i + 1) % step != 0)


def window_of(fields: Fields, kind: str) -> int | None:
    """Return the window of a kind of layer; raises `CheckpointError` if the file does not give it."""
    return fields.whole("sliding_window") if kind == SLIDING else None


def express_llama(config: DecoderConfig) -> dict[str, Any]:
    """Return a config as fields by the names that Llama gave them, MLP aside; the first block speaks for all."""
    attention: Any = config.layers[0].parts[0]
    dims = attention.dims(config.d_model, config.max_len)
    scaling = attention.positions.scaling
    norm: Any = config.layers[0].norm
    from_there = isinstance(scaling, LinearScaling | DynamicScaling)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": dims.n_heads,
        "num_key_value_heads": dims.n_kv_heads,
        "head_dim": dims.d_head,
        # in files with these scalings, the length trained on
        "max_position_embeddings": round(config.max_len / scaling.factor) if from_there else config.max_len,
        "rms_norm_eps": norm.eps,
        "rope_parameters": rope_parameters(attention.positions),
        "tie_word_embeddings": config.tied,
    }


def express_mlp(config: DecoderConfig) -> dict[str, Any]:
    """Return the sizes of the first block's MLP."""
    mlp: Any = config.layers[0].parts[1]
    return {"intermediate_size": mlp.d_mlp or 4 * config.d_model, "hidden_act": mlp.activation}


def express_shaped(config: DecoderConfig, model_type: str, architecture: str, **more: Any) -> dict[str, Any]:
    """Return a decoder of Llama's shape as fields.

    Args:
        config: Ours.
        model_type: As their config calls the family.
        architecture: As their code calls the class.
        more: Fields of the family's own, or in the place of others.
    """
    attention: list[Any] = [layer.parts[0] for layer in config.layers]
    windows = [part.mixer.window for part in attention]
    mlp = express_mlp(config)
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "attention_bias": attention[0].projection.bias,
        "layer_types": [SLIDING if window else FULL for window in windows],
        # one for all layers that have any
        "sliding_window": next((window for window in windows if window), None),
        **express_llama(config),
        **mlp,
        "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh"}.get(mlp["hidden_act"], mlp["hidden_act"]),
        **more,
    }


def fused_gates(config: Any) -> dict[str, Piece]:
    """Return rows of a table for gated MLPs whose two branches are stored as one, the gate first."""
    neurons, both = config.layers[0].parts[1].d_mlp, "model.layers.{i}.mlp.gate_up_proj"
    return {
        "stack.blocks.{i}.mlp.gate": Piece(both, 2 * neurons, view=lambda theirs: theirs[:neurons]),
        "stack.blocks.{i}.mlp.input": Piece(both, 2 * neurons, view=lambda theirs: theirs[neurons:]),
    }


def query_key_names(config: Any, theirs: tuple[str, str]) -> dict[str, str]:
    """Return rows of a table for the norms on queries and keys, if there are any.

    Args:
        config: Our config.
        theirs: Their names for the norm of the queries and that of the keys.
    """
    projection = config.layers[0].parts[0].projection
    if not (isinstance(projection, Separate) and isinstance(projection.qk_norm, QueryKeyNorm)):
        return {}
    return {
        f"stack.blocks.{{i}}.attn.projection.norms.{n}": f"model.layers.{{i}}.self_attn.{name}"
        for n, name in enumerate(theirs)
    }
