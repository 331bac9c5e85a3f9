"""DiffLlama: Llama with differential attention.

Its heads come in two halves: head h of the first and head h of the second are the two streams of one head here, and
their values lie side by side in both.
"""

from typing import Any

from torch import Tensor

from glassformer.attention import Differential, Merge, Softmax, lambda_init_at
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES
from glassformer.checkpoints.families.llama_shaped import express_shaped, gated_decoder
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, RmsNorm


def _config(fields: Fields) -> DecoderConfig:
    eps, bias = fields.number("rms_norm_eps", 1e-5), fields.flag("attention_bias", False)
    n_heads = fields.whole("num_attention_heads")
    n_kv_heads = fields.whole("num_key_value_heads", n_heads)
    for name, heads in (("num_attention_heads", n_heads), ("num_key_value_heads", n_kv_heads)):
        if heads % 2:
            raise fields.wrong(name, heads, "an even number, two for each differential head")
    positions = rope(fields)

    def layer(i: int) -> dict[str, Any]:
        start = lambda_init_at(i)
        return {
            "mixer": Differential(start),
            "n_heads": n_heads // 2,
            "n_kv_heads": n_kv_heads // 2,
            "positions": positions,
            "bias": bias,
            "merge": Merge(bias=bias, norm="head", gain=False, eps=eps, factor=1 - start),
        }

    return gated_decoder(fields, RmsNorm(eps), layer)


def _express(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    n_heads, n_kv_heads = 2 * attention.n_heads, 2 * attention.n_kv_heads
    # the reference counts streams as heads of their own
    halves = attention.replace(n_heads=n_heads, n_kv_heads=n_kv_heads, mixer=Softmax())
    single = tuple(layer.replace(parts=(halves, *layer.parts[1:])) for layer in config.layers)
    found = express_shaped(config.replace(layers=single), "diffllama", "DiffLlamaForCausalLM")
    del found["layer_types"], found["sliding_window"]
    return found


def _table(fields: Fields, config: Any) -> Table:
    dims = config.layers[0].parts[0].dims(config.d_model, config.max_len)
    widths = (dims.n_heads * 2 * dims.d_head, dims.n_kv_heads * 2 * dims.d_head, dims.n_kv_heads * dims.d_value)

    def paired(theirs: Tensor) -> Tensor:
        # (half, head, d_head) -> (head, half, d_head): the halves of a head become its streams
        return theirs.unflatten(0, (2, -1, dims.d_head)).transpose(0, 1)

    ours, theirs = "stack.blocks.{i}.attn", "model.layers.{i}.self_attn"
    return LLAMA_NAMES | {
        f"{ours}.projection.qkv": tuple(
            Piece(f"{theirs}.{name}_proj", rows, view=paired) for name, rows in zip("qkv", widths)
        ),
        f"{ours}.mixer.lambdas": tuple(
            Piece(f"{theirs}.lambda_{name}", 1, shape=(dims.d_head,)) for name in ("q1", "k1", "q2", "k2")
        ),
    }


DIFFLLAMA = Family(
    "DiffLlama",
    ("diffllama",),
    _config,
    _table,
    prefixes=("model.",),
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    express=_express,
)
