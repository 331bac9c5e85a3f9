"""GPT-OSS: attention sinks, a window in every other layer, and experts with limited, shifted gates."""

from typing import Any

from torch import Tensor

from glassformer.attention import Softmax
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import gated_decoder, layer_kinds, window_of
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, MixtureOfExperts, RmsNorm

# of files that give none
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def _config(fields: Fields) -> DecoderConfig:
    fields.only("swiglu_alpha", 1.702, "gates are u sigmoid(1.702 u)")
    if "rope_parameters" not in fields and "rope_scaling" not in fields:
        fields = fields.replaced(rope_parameters=_YARN)
    kinds = layer_kinds(fields, lambda i: i % 2 == 0)
    positions, bias = rope(fields, base=150_000.0), fields.flag("attention_bias", True)
    experts = MixtureOfExperts(
        fields.whole("num_local_experts", fields.whole("num_experts", 128)),
        fields.whole("num_experts_per_tok", 4),
        fields.whole("intermediate_size"),
        "gelu_sigmoid",
        bias=True,
        router_bias=True,
        shift=1.0,
        limit=fields.number("swiglu_limit", 7.0),
    )

    def layer(i: int) -> dict[str, Any]:
        mixer = Softmax(window_of(fields, kinds[i]), sinks=True)
        return {"mixer": mixer, "positions": positions, "bias": bias, "mlp": experts}

    # the width of a head is no share of the model's
    sized = fields.filled(head_dim=64)
    return gated_decoder(sized, RmsNorm(fields.number("rms_norm_eps", 1e-5)), layer, max_len=131_072, n_kv_heads=8)


def _table(fields: Fields, config: Any) -> Table:
    experts = config.layers[0].parts[1]
    n, d_model, d_mlp = experts.n_experts, config.d_model, experts.d_mlp
    ours, theirs = "stack.blocks.{i}", "model.layers.{i}"
    fused, out = f"{theirs}.mlp.experts.gate_up_proj", f"{theirs}.mlp.experts.down_proj"
    alike = {left: right for left, right in LLAMA_NAMES.items() if ".mlp." not in left}
    return alike | {
        f"{ours}.attn.projection.qkv": separate_qkv(config),
        f"{ours}.attn.mixer.sinks": f"{theirs}.self_attn.sinks",
        f"{ours}.mlp.router": f"{theirs}.mlp.router",
        f"{ours}.mlp.gate.weight": Piece(fused, view=_even_columns, shape=(n, d_model, 2 * d_mlp)),
        f"{ours}.mlp.input.weight": Piece(fused, view=_odd_columns, shape=(n, d_model, 2 * d_mlp)),
        f"{ours}.mlp.output.weight": Piece(out, transposed=True),
        f"{ours}.mlp.gate.bias": Piece(f"{fused}_bias", view=_even, shape=(n, 2 * d_mlp)),
        f"{ours}.mlp.input.bias": Piece(f"{fused}_bias", view=_odd, shape=(n, 2 * d_mlp)),
        f"{ours}.mlp.output.bias": f"{out}_bias",
    }


def _even(theirs: Tensor) -> Tensor:
    return theirs[..., ::2]


def _odd(theirs: Tensor) -> Tensor:
    return theirs[..., 1::2]


def _even_columns(theirs: Tensor) -> Tensor:
    return _even(theirs).mT


def _odd_columns(theirs: Tensor) -> Tensor:
    return _odd(theirs).mT


GPT_OSS = Family(
    "GPT-OSS",
    ("gpt_oss",),
    _config,
    _table,
    prefixes=("model.",),
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    trained_with_scaling=True,
)
