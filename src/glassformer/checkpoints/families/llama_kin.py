"""Families that are Llama's shape with a difference or two, and Llama's names: what is said of each is its difference.

Arcee            squared ReLU without a gate
CWM              a window in three layers of four
ERNIE 4.5        interleaved rotary positions, biases everywhere or nowhere
Helium           interleaved rotary positions
Jais 2           LayerNorm, squared ReLU without a gate, biases everywhere
Ministral        heads of a width of their own, and a window in the layers that are listed
Nemotron         LayerNorm stored around 0, squared ReLU without a gate, rotary positions on half of each head
Seed-OSS         biases on queries, keys and values, a choice of their own for that of the output
SmolLM3          no positions in every fourth layer
"""

from collections.abc import Callable, Mapping
from typing import Any

from glassformer.attention import Merge, NoPositions, Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import (
    LLAMA_FILES,
    gated_decoder,
    gated_mlp,
    layer_kinds,
    window_of,
)
from glassformer.checkpoints.families.rotary import rope, turned_share
from glassformer.models import DecoderConfig, LayerNorm, Mlp, RmsNorm


def _arcee(fields: Fields) -> DecoderConfig:
    layer = {"positions": rope(fields), "bias": fields.flag("attention_bias", False), "mlp": _plain_mlp(fields)}
    return gated_decoder(fields, _rms(fields, 1e-5), lambda i: layer, max_len=4096)


def _cwm(fields: Fields) -> DecoderConfig:
    kinds = layer_kinds(fields, lambda i: i % 4 != 0)
    if "rope_parameters" not in fields and "rope_scaling" not in fields:
        fields = fields.replaced(rope_parameters=_CWM_ROPE)
    positions = rope(fields, base=1_000_000.0)
    sized = fields.filled(head_dim=128, sliding_window=8192)

    def layer(i: int) -> dict[str, Any]:
        return {"mixer": Softmax(window_of(sized, kinds[i])), "positions": positions, "mlp": gated_mlp(fields)}

    return gated_decoder(sized, _rms(fields, 1e-5), layer, max_len=131_072, n_kv_heads=8)


# of files that give none
_CWM_ROPE = {
    "rope_type": "llama3", "rope_theta": 1_000_000.0, "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def _ernie(fields: Fields) -> DecoderConfig:
    bias = fields.flag("use_bias", False)
    positions = rope(fields, base=500_000.0, pairing="interleaved")
    layer = {"positions": positions, "bias": bias, "mlp": gated_mlp(fields, "use_bias")}
    sized = fields.filled(head_dim=128)
    return gated_decoder(sized, _rms(fields, 1e-5), lambda i: layer, tied=True, max_len=131_072, n_kv_heads=2)


def _helium(fields: Fields) -> DecoderConfig:
    layer = {
        "positions": rope(fields, base=100_000.0, pairing="interleaved"),
        "bias": fields.flag("attention_bias", False),
        "merge": Merge(),
        "mlp": gated_mlp(fields),
    }
    sized = fields.filled(head_dim=128)
    return gated_decoder(sized, _rms(fields, 1e-8), lambda i: layer, max_len=4096)


def _jais(fields: Fields) -> DecoderConfig:
    layer = {"positions": rope(fields), "bias": fields.flag("attention_bias", True), "mlp": _plain_mlp(fields, True)}
    return gated_decoder(fields, LayerNorm(fields.number("layer_norm_eps", 1e-5)), lambda i: layer, max_len=8192)


def _ministral(fields: Fields) -> DecoderConfig:
    windowed = "sliding_window" in fields or not fields.says("sliding_window")
    sized = fields.filled(sliding_window=4096)
    kinds, positions = layer_kinds(sized, lambda i: windowed), rope(fields)

    def layer(i: int) -> dict[str, Any]:
        return {"mixer": Softmax(window_of(sized, kinds[i])), "positions": positions}

    return gated_decoder(fields, _rms(fields, 1e-6), layer, max_len=4096 * 32, n_kv_heads=8)


def _nemotron(fields: Fields) -> DecoderConfig:
    layer = {
        "positions": rope(fields, fraction=turned_share(fields, 0.5)),
        "bias": fields.flag("attention_bias", False),
        "mlp": _plain_mlp(fields),
    }
    norm = LayerNorm(fields.number("norm_eps", 1e-5), offset=1.0)
    return gated_decoder(fields, norm, lambda i: layer, max_len=4096)


def _seed(fields: Fields) -> DecoderConfig:
    layer = {
        "positions": rope(fields),
        "bias": fields.flag("attention_bias", True),
        "merge": Merge(bias=fields.flag("attention_out_bias", False)),
        "mlp": gated_mlp(fields),
    }
    sized = fields.filled(head_dim=128)
    return gated_decoder(sized, _rms(fields, 1e-6), lambda i: layer, max_len=524_288, n_kv_heads=8)


def _smollm(fields: Fields) -> DecoderConfig:
    turned = _turned_layers(fields)
    windowed = all([fields.flag("use_sliding_window", False), "sliding_window" in fields])
    kinds = layer_kinds(fields, lambda i: windowed and not turned[i])
    positions, shared = rope(fields, base=2_000_000.0), {"bias": fields.flag("attention_bias", False)}

    def layer(i: int) -> dict[str, Any]:
        return shared | {
            "mixer": Softmax(window_of(fields, kinds[i]) if windowed else None),
            "positions": positions if turned[i] else NoPositions(),
            "mlp": gated_mlp(fields),
        }

    return gated_decoder(fields, _rms(fields, 1e-6), layer, tied=True, max_len=32_768, n_kv_heads=4)


def _turned_layers(fields: Fields) -> list[bool]:
    """Return for each layer whether it has rotary positions."""
    n, period = fields.whole("num_hidden_layers"), fields.whole("no_rope_layer_interval", 4)
    # named for what the zeros in it mean
    found = fields.get("no_rope_layers", [int((i + 1) % max(period, 1) != 0) for i in range(n)])
    if not isinstance(found, list) or len(found) < n or any(turned not in (0, 1) for turned in found):
        raise fields.wrong("no_rope_layers", found, f"a list of {n} zeros and ones, one per layer")
    return [bool(turned) for turned in found]


def _rms(fields: Fields, eps: float) -> RmsNorm:
    return RmsNorm(fields.number("rms_norm_eps", eps))


def _plain_mlp(fields: Fields, bias: bool = False) -> Mlp:
    act = fields.activation("hidden_act", "relu2")
    return Mlp(fields.whole("intermediate_size"), act, bias=fields.flag("mlp_bias", bias))


def _table(fields: Fields, config: Any) -> Table:
    return LLAMA_NAMES | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


def _family(name: str, kind: str, config: Callable[[Fields], DecoderConfig], **more: Any) -> Family:
    return Family(name, (kind,), config, _table, **LLAMA_FILES, **more)


def _is_ministral(config: Mapping[str, Any]) -> bool:
    # Mistral's files that list kinds of layers are read as Ministral's by transformers
    return config.get("model_type") == "mistral" and "layer_types" in config


ARCEE = _family("Arcee", "arcee", _arcee)
CWM = _family("CWM", "cwm", _cwm)
ERNIE45 = _family("ERNIE 4.5", "ernie4_5", _ernie)
HELIUM = _family("Helium", "helium", _helium)
JAIS2 = _family("Jais 2", "jais2", _jais)
MINISTRAL = _family("Ministral", "ministral", _ministral, recognise=_is_ministral)
NEMOTRON = _family("Nemotron", "nemotron", _nemotron)
SEED_OSS = _family("Seed-OSS", "seed_oss", _seed)
SMOLLM3 = _family("SmolLM3", "smollm3", _smollm)
