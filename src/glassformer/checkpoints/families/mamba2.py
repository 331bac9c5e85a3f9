"""Mamba-2: a selective state space in every block, behind short convolutions, its gate before its norm; no MLP.

One map makes gate, input x, keys B, queries C and steps, in this order; one convolution mixes x, B and C.
"""

import math
from typing import Any

from torch import Tensor

from glassformer.attention import Convolved, Merge, StateSpace
from glassformer.checkpoints.families.family import Family, Piece, Right, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.models import DecoderConfig, RmsNorm, block, repeat

# tokens: configs say nothing of a longest text, and nothing in these models ends
LONGEST = 2**20


def _config(fields: Fields) -> DecoderConfig:
    fields.only("hidden_act", "silu", "what is convolved passes silu, which the gate does anyway")
    d_model, eps = fields.whole("hidden_size"), fields.number("layer_norm_epsilon", 1e-5)
    n_heads, width = fields.whole("num_heads"), fields.whole("head_dim", 64)
    if n_heads * width != fields.number("expand", 2) * d_model:
        raise fields.wrong(
            "expand", fields.get("expand", 2), f"num_heads * head_dim / hidden_size, {n_heads * width / d_model:g}"
        )
    groups, bias = fields.whole("n_groups", 8), fields.flag("use_bias", False)
    if groups < 1 or n_heads % groups:
        raise fields.wrong("n_groups", groups, f"a divisor of num_heads, {n_heads}")
    shortest, longest = _limits(fields)
    layer = block(
        StateSpace(shortest=shortest, longest=longest, bias=bias),
        n_heads=n_heads,
        d_head=fields.whole("state_size", 128),
        d_value=width,
        projection=Convolved(
            bias=bias,
            groups=groups,
            width=fields.whole("conv_kernel", 4),
            activation="silu",
            tap_bias=fields.flag("use_conv_bias", True),
        ),
        merge=Merge(bias, norm="all", groups=groups, eps=eps, gate="silu", gate_bias=bias, norm_before_gate=False),
        norm=RmsNorm(eps),
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, fields.whole("num_hidden_layers")),
        max_len=fields.whole("max_position_embeddings", LONGEST),
        final_norm=RmsNorm(eps),
        tied=fields.flag("tie_word_embeddings", False),
    )


def _limits(fields: Fields) -> tuple[float, float | None]:
    """Return the shortest and the longest step; None for no longest."""
    found: list[Any] = fields.get("time_step_limit", [0.0, math.inf])
    # JSON knows no infinity, and files say it in a word
    numbers = [float(x.get("__float__", "nan")) if isinstance(x, dict) else float(x) for x in found]
    if len(numbers) != 2 or not 0 <= numbers[0] < numbers[1]:
        raise fields.wrong("time_step_limit", found, "two rising numbers that are not negative")
    return numbers[0], None if numbers[1] == math.inf else numbers[1]


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}.attn", "backbone.layers.{i}.mixer"
    attention: Any = config.layers[0].parts[0]
    dims, projection = attention.dims(config.d_model, config.max_len), attention.projection
    groups = projection.groups
    inner, keys = dims.n_heads * dims.d_value, groups * dims.d_head
    made = 2 * inner + 2 * keys + dims.n_heads

    def rows(start: int, n: int) -> Piece:
        return Piece(f"{theirs}.in_proj", made, view=lambda joined: joined[start : start + n])

    def convolution(which: int, start: int, heads: int, width: int) -> dict[str, Right]:
        def tap(i: int) -> Piece:
            # theirs are in the order of positions, ours count backwards from one's own
            def view(taps: Tensor) -> Tensor:
                return taps[start : start + heads * width, 0, projection.width - 1 - i].unflatten(0, (1, heads, width))

            return Piece(f"{theirs}.conv1d.weight", view=view, shape=(inner + 2 * keys, 1, projection.width))

        own = f"{ours}.projection.convolutions.{which}"
        bias = Piece(
            f"{theirs}.conv1d.bias",
            view=lambda rows: rows[start : start + heads * width].unflatten(0, (heads, width)),
            shape=(inner + 2 * keys,),
        )
        return {f"{own}.taps": tuple(map(tap, range(projection.width))), f"{own}.bias": bias}

    return {
        "embed.matrix": "backbone.embeddings.weight",
        "stack.final": "backbone.norm_f",
        "unembed.matrix": "lm_head.weight",
        "stack.blocks.{i}.attn_norm": "backbone.layers.{i}.norm",
        f"{ours}.projection.qkv": (rows(2 * inner + keys, keys), rows(2 * inner, keys), rows(inner, inner)),
        **convolution(0, inner + keys, groups, dims.d_head),
        **convolution(1, inner, groups, dims.d_head),
        **convolution(2, 0, dims.n_heads, dims.d_value),
        f"{ours}.mixer.step": rows(2 * inner + 2 * keys, dims.n_heads),
        f"{ours}.mixer.step_bias": f"{theirs}.dt_bias",
        f"{ours}.mixer.log_rate": f"{theirs}.A_log",
        f"{ours}.mixer.skip": f"{theirs}.D",
        f"{ours}.merge.gate": rows(0, inner),
        f"{ours}.merge.gain": f"{theirs}.norm.weight",
        f"{ours}.merge.output": f"{theirs}.out_proj",
    }


def _express(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    mixer, projection = attention.mixer, attention.projection
    dims = attention.dims(config.d_model, config.max_len)
    longest = {"__float__": "Infinity"} if mixer.longest is None else mixer.longest
    return {
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": len(config.layers),
        "num_heads": dims.n_heads,
        "head_dim": dims.d_value,
        "expand": dims.n_heads * dims.d_value // config.d_model,
        "state_size": dims.d_head,
        "n_groups": projection.groups,
        "conv_kernel": projection.width,
        "use_bias": projection.bias,
        "use_conv_bias": projection.tap_bias,
        "time_step_limit": [mixer.shortest, longest],
        "layer_norm_epsilon": attention.merge.eps,
        "tie_word_embeddings": config.tied,
        # theirs adds in the type of its weights otherwise, as ours does
        "residual_in_fp32": False,
    }


MAMBA2 = Family(
    "Mamba-2",
    ("mamba2",),
    _config,
    _table,
    prefixes=("backbone.",),
    endings={"embeddings.weight": "embedding.weight"},
    copies={"lm_head.weight": "backbone.embeddings.weight"},
    express=_express,
    bare=True,
    without_effect={
        "residual_in_fp32": "the stream is added up in the type that the model runs in",
    },
)
