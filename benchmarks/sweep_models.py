"""GPT-2 with the same random weights in plain PyTorch and in every package that the sweeps benchmark runs.

Each function imports its package when it is called: none of the others has to be there.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    n_layers: int
    n_heads: int
    d_model: int
    vocab: int
    context: int = 128


SHAPES = {"gpt2-small": Shape(12, 12, 768, 50257), "tiny": Shape(3, 2, 32, 101)}
Weights = dict[str, Tensor]


def draw(shape: Shape) -> Weights:
    """Return random weights under the names of GPT-2, each drawn from a seed of its own; `c_…` as `in out`."""
    d = shape.d_model
    sizes: dict[str, tuple[int, ...]] = {"wte": (shape.vocab, d), "wpe": (shape.context, d)}
    for i in range(shape.n_layers):
        inside = {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "mlp.c_fc": (d, 4 * d), "mlp.c_proj": (4 * d, d)}
        sizes |= {f"h.{i}.{name}": size for name, size in inside.items()}
        sizes |= {f"h.{i}.ln_1": (d,), f"h.{i}.ln_2": (d,)}
    sizes["ln_f"] = (d,)
    found: Weights = {}
    for name, size in sizes.items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        value = torch.randn(size, generator=generator)
        if name in ("wte", "wpe"):
            found[name] = 0.3 * value
            continue
        # gains about one, matrices that keep the size of what they read
        found[f"{name}.weight"] = 1 + 0.1 * value if len(size) == 1 else value / size[0] ** 0.5
        found[f"{name}.bias"] = 0.1 * torch.randn(size[-1], generator=generator)
    return found


def forward(w: Weights, shape: Shape, ids: Tensor) -> Tensor:
    """Return GPT-2's logits, in plain PyTorch: what everything is timed against."""
    d, heads = shape.d_model, shape.n_heads

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (d,), w[f"{name}.weight"], w[f"{name}.bias"])

    def times(x: Tensor, name: str) -> Tensor:
        return torch.addmm(w[f"{name}.bias"], x.flatten(0, 1), w[f"{name}.weight"]).unflatten(0, x.shape[:2])

    x = w["wte"][ids] + w["wpe"][: ids.shape[1]]
    for i in range(shape.n_layers):
        qkv = times(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(d, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + times(z, f"h.{i}.attn.c_proj")
        hidden = F.gelu(times(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        x = x + times(hidden, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte"].T


def glassformer_model(shape: Shape, w: Weights) -> Any:
    """Return our decoder with these weights."""
    from glassformer.models import DecoderConfig, Learned, Mlp, block

    layer = block(n_heads=shape.n_heads, mlp=Mlp(activation="gelu_tanh"), bias=True)
    config = DecoderConfig(
        shape.vocab, shape.d_model, (layer,) * shape.n_layers, max_len=shape.context, positions=Learned()
    )  # fmt: skip
    model: Any = config.build()
    names = {"attn.c_attn": "attn.projection.qkv", "attn.c_proj": "attn.merge.output", "mlp.c_fc": "mlp.input"}
    names |= {"mlp.c_proj": "mlp.output", "ln_1": "attn_norm", "ln_2": "mlp_norm"}
    state = {"embed.matrix": w["wte"], "embed.positions.weight": w["wpe"]}
    for part in ("weight", "bias"):
        state[f"stack.final.{part}"] = w[f"ln_f.{part}"]
        for i in range(shape.n_layers):
            for theirs, ours in names.items():
                value = w[f"h.{i}.{theirs}.{part}"]
                state[f"stack.blocks.{i}.{ours}.{part}"] = value.mT if value.ndim == 2 else value
    model.load_state_dict(state)
    return model.eval()


def huggingface_model(shape: Shape, w: Weights, *, folded: bool = False) -> Any:
    """Return `transformers`' GPT-2 with these weights; with `folded`, the final gain is in the unembedding."""
    from transformers import GPT2Config, GPT2LMHeadModel  # pyright: ignore[reportMissingImports]

    config = GPT2Config(
        n_layer=shape.n_layers, n_head=shape.n_heads, n_embd=shape.d_model, vocab_size=shape.vocab,
        n_positions=shape.context, bos_token_id=0, eos_token_id=0, tie_word_embeddings=not folded,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config).eval()
    state = {f"transformer.{name}": value for name, value in w.items() if name not in ("wte", "wpe")}
    state |= {"transformer.wte.weight": w["wte"], "transformer.wpe.weight": w["wpe"], "lm_head.weight": w["wte"]}
    if folded:
        state["lm_head.weight"] = w["wte"] * w["ln_f.weight"]
        state |= {"transformer.ln_f.weight": torch.ones_like(w["ln_f.weight"])}
        state |= {"transformer.ln_f.bias": torch.zeros_like(w["ln_f.bias"])}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(name.endswith((".attn.bias", ".masked_bias")) for name in missing)
    return model


def hooked_model(shape: Shape, w: Weights, *, folded: bool = False) -> Any:
    """Return TransformerLens' own model of version 3 with these weights."""
    import transformer_lens  # pyright: ignore[reportMissingImports]

    config = transformer_lens.HookedTransformerConfig(
        n_layers=shape.n_layers, n_heads=shape.n_heads, d_model=shape.d_model, d_head=shape.d_model // shape.n_heads,
        d_mlp=4 * shape.d_model, n_ctx=shape.context, d_vocab=shape.vocab, act_fn="gelu_new", normalization_type="LN",
        device="cpu",
    )  # fmt: skip
    model: Any = transformer_lens.HookedTransformer(config)
    gain, bias = w["ln_f.weight"], w["ln_f.bias"]
    state = {"embed.W_E": w["wte"], "pos_embed.W_pos": w["wpe"], "unembed.b_U": torch.zeros(shape.vocab)}
    state["unembed.W_U"] = (w["wte"] * gain if folded else w["wte"]).mT.contiguous()
    state["ln_final.w"] = torch.ones_like(gain) if folded else gain
    state["ln_final.b"] = torch.zeros_like(bias) if folded else bias
    for i in range(shape.n_layers):
        ours, theirs = f"h.{i}", f"blocks.{i}"
        for name in ("ln_1", "ln_2"):
            short = f"{theirs}.{name.replace('_', '')}"
            state |= {f"{short}.w": w[f"{ours}.{name}.weight"], f"{short}.b": w[f"{ours}.{name}.bias"]}
        matrices, biases = (w[f"{ours}.attn.c_attn.{part}"].chunk(3, -1) for part in ("weight", "bias"))
        for name, matrix, vector in zip("QKV", matrices, biases):
            state[f"{theirs}.attn.W_{name}"] = matrix.unflatten(1, (shape.n_heads, -1)).transpose(0, 1)
            state[f"{theirs}.attn.b_{name}"] = vector.unflatten(0, (shape.n_heads, -1))
        state[f"{theirs}.attn.W_O"] = w[f"{ours}.attn.c_proj.weight"].unflatten(0, (shape.n_heads, -1))
        state[f"{theirs}.attn.b_O"] = w[f"{ours}.attn.c_proj.bias"]
        for end, name in (("in", "c_fc"), ("out", "c_proj")):
            state[f"{theirs}.mlp.W_{end}"] = w[f"{ours}.mlp.{name}.weight"]
            state[f"{theirs}.mlp.b_{end}"] = w[f"{ours}.mlp.{name}.bias"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(name.endswith((".mask", ".IGNORE")) for name in missing), (missing, unexpected)
    return model.eval()
