"""Tiny random models in the layouts of other libraries: nanoGPT, params.json, TransformerLens, per-head tensors.

Each is made from a reference of transformers, whose tensors are arranged here as those libraries arrange them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glassformer.checkpoints.comparison.reference import wide
from glassformer.testing.layers import randomise

TOKENS = torch.tensor([[1, 5, 2, 9, 0, 3, 7], [4, 4, 8, 1, 6, 2, 10]])
Layout = tuple[Any, dict[str, Any], dict[str, Tensor], str]


def gpt2(**changes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"vocab_size": 11, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3}
    sizes |= {"attn_implementation": "eager"} | changes
    config: Any = GPT2Config(**sizes)
    return randomise(GPT2LMHeadModel(config).double().eval(), std=0.3)


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 11, "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    sizes |= {"attn_implementation": "eager"} | changes
    config = LlamaConfig(**sizes)
    with wide(torch.float64):
        return randomise(LlamaForCausalLM(config).double().eval(), std=0.3)


def nanogpt() -> Layout:
    model = gpt2(activation_function="gelu")
    maps = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    tensors = {name: value.T if name.endswith(maps) else value for name, value in model.state_dict().items()}
    args = {"n_layer": 2, "n_head": 3, "n_embd": 12, "block_size": 16, "bias": True, "vocab_size": 11, "dropout": 0.0}
    return model, args, tensors, "nanoGPT"


def nanogpt_compiled() -> Layout:
    model, args, tensors, family = nanogpt()
    return model, {"model_args": args}, {f"_orig_mod.{name}": value for name, value in tensors.items()}, family


def interleaved(weight: Tensor, n_heads: int) -> Tensor:
    """Return rows of a query or key matrix as Meta's code orders them: the members of a rotary pair side by side."""
    heads = weight.unflatten(0, (n_heads, 2, -1))
    return heads.transpose(1, 2).flatten(0, 2)


def params() -> Layout:
    rope = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = llama(rope_parameters=rope | {"original_max_position_embeddings": 8192})
    theirs = model.model
    tensors = {
        "tok_embeddings.weight": theirs.embed_tokens.weight,
        "norm.weight": theirs.norm.weight,
        "output.weight": model.lm_head.weight,
        "rope.freqs": torch.ones(4),
    }
    for i, layer in enumerate(theirs.layers):
        attention, mlp = layer.self_attn, layer.mlp
        tensors |= {
            f"layers.{i}.attention.wq.weight": interleaved(attention.q_proj.weight, 4),
            f"layers.{i}.attention.wk.weight": interleaved(attention.k_proj.weight, 2),
            f"layers.{i}.attention.wv.weight": attention.v_proj.weight,
            f"layers.{i}.attention.wo.weight": attention.o_proj.weight,
            f"layers.{i}.feed_forward.w1.weight": mlp.gate_proj.weight,
            f"layers.{i}.feed_forward.w2.weight": mlp.down_proj.weight,
            f"layers.{i}.feed_forward.w3.weight": mlp.up_proj.weight,
            f"layers.{i}.attention_norm.weight": layer.input_layernorm.weight,
            f"layers.{i}.ffn_norm.weight": layer.post_attention_layernorm.weight,
        }
    # two thirds of 4 * 32 are 85, a quarter of that is 21, and the next multiple of 4 is 24
    args = {
        "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 11, "multiple_of": 20,
        "ffn_dim_multiplier": 0.15, "norm_eps": 1e-5, "rope_theta": 100.0, "use_scaled_rope": True,
    }  # fmt: skip
    return model, args, tensors, "Llama (params.json)"


def llama2c() -> Layout:
    model, args, tensors, family = params()
    model = llama(tie_word_embeddings=True)
    plain = {key: args[key] for key in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "norm_eps")}
    tensors = {name: _params_tensor(model, name) for name in tensors if name != "rope.freqs"}
    return model, {"model_args": plain | {"hidden_dim": 20, "max_seq_len": 64, "dropout": 0.0}}, tensors, family


def _params_tensor(model: Any, name: str) -> Tensor:
    """Return a tensor of params.json's layout by the names of the two libraries."""
    whole = {"tok_embeddings.weight": "model.embed_tokens", "norm.weight": "model.norm", "output.weight": "lm_head"}
    if name in whole:
        return model.get_submodule(whole[name]).weight
    _, i, *rest = name.removesuffix(".weight").split(".")
    inner = {
        "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
        "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
        "feed_forward.w3": "mlp.up_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    weight = model.get_submodule(f"model.layers.{i}.{inner['.'.join(rest)]}").weight
    return interleaved(weight, 4 if rest[-1] == "wq" else 2) if rest[-1] in ("wq", "wk") else weight


def hooked_gpt2() -> Layout:
    """As TransformerLens arranges GPT-2: `head d_model d_head`, and masks among the tensors."""
    model = gpt2()
    body = model.transformer
    tensors = {
        "embed.W_E": body.wte.weight, "pos_embed.W_pos": body.wpe.weight, "ln_final.w": body.ln_f.weight,
        "ln_final.b": body.ln_f.bias, "unembed.W_U": body.wte.weight.T, "unembed.b_U": torch.zeros(11).double(),
    }  # fmt: skip
    for i, layer in enumerate(body.h):
        q, k, v = layer.attn.c_attn.weight.split(12, 1)
        biases = layer.attn.c_attn.bias.split(12)
        for kind, weight, bias in zip("QKV", (q, k, v), biases):
            tensors[f"blocks.{i}.attn.W_{kind}"] = weight.unflatten(1, (3, 4)).transpose(0, 1)
            tensors[f"blocks.{i}.attn.b_{kind}"] = bias.unflatten(0, (3, 4))
        tensors |= {
            f"blocks.{i}.attn.W_O": layer.attn.c_proj.weight.unflatten(0, (3, 4)),
            f"blocks.{i}.attn.b_O": layer.attn.c_proj.bias,
            f"blocks.{i}.attn.mask": torch.ones(16, 16, dtype=torch.bool).tril(),
            f"blocks.{i}.attn.IGNORE": torch.tensor(-torch.inf),
            f"blocks.{i}.ln1.w": layer.ln_1.weight, f"blocks.{i}.ln1.b": layer.ln_1.bias,
            f"blocks.{i}.ln2.w": layer.ln_2.weight, f"blocks.{i}.ln2.b": layer.ln_2.bias,
            f"blocks.{i}.mlp.W_in": layer.mlp.c_fc.weight, f"blocks.{i}.mlp.b_in": layer.mlp.c_fc.bias,
            f"blocks.{i}.mlp.W_out": layer.mlp.c_proj.weight, f"blocks.{i}.mlp.b_out": layer.mlp.c_proj.bias,
        }  # fmt: skip
    config = {
        "n_layers": 2, "d_model": 12, "n_ctx": 16, "d_head": 4, "n_heads": 3, "d_mlp": 48, "act_fn": "gelu_new",
        "d_vocab": 11, "d_vocab_out": 11, "eps": 1e-5, "normalization_type": "LN", "attention_dir": "causal",
        "positional_embedding_type": "standard", "attn_only": False, "attn_scale": 2.0, "use_attn_scale": True,
        "original_architecture": "GPT2LMHeadModel", "final_rms": False, "gated_mlp": False, "n_key_value_heads": None,
        "attn_types": None, "use_local_attn": False, "window_size": None, "output_logits_soft_cap": -1.0,
    }  # fmt: skip
    return model, config, tensors, "TransformerLens"


def hooked_gpt2_folded() -> Layout:
    """As its loader leaves it: gains and biases of norms absorbed, norms without parameters."""
    model, config, tensors, family = hooked_gpt2()
    found = dict(tensors)
    for i in range(2):
        gain, shift = found.pop(f"blocks.{i}.ln1.w"), found.pop(f"blocks.{i}.ln1.b")
        for kind in "QKV":
            weight = found[f"blocks.{i}.attn.W_{kind}"]
            found[f"blocks.{i}.attn.b_{kind}"] = found[f"blocks.{i}.attn.b_{kind}"] + shift @ weight
            found[f"blocks.{i}.attn.W_{kind}"] = gain[:, None] * weight
        gain, shift, weight = (
            found.pop(f"blocks.{i}.ln2.w"),
            found.pop(f"blocks.{i}.ln2.b"),
            found[f"blocks.{i}.mlp.W_in"],
        )
        found[f"blocks.{i}.mlp.b_in"] = found[f"blocks.{i}.mlp.b_in"] + shift @ weight
        found[f"blocks.{i}.mlp.W_in"] = gain[:, None] * weight
    gain, shift = found.pop("ln_final.w"), found.pop("ln_final.b")
    found["unembed.b_U"] = shift @ found["unembed.W_U"]
    found["unembed.W_U"] = gain[:, None] * found["unembed.W_U"]
    return model, config | {"normalization_type": "LNPre"}, found, family


def hooked_bert() -> Layout:
    """As TransformerLens arranges BERT: norms behind the sum, and a pooling layer among the tensors."""
    from transformers import BertConfig, BertForMaskedLM

    sizes: dict[str, Any] = {
        "vocab_size": 11, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
        "max_position_embeddings": 16, "attn_implementation": "eager",
    }  # fmt: skip
    model: Any = randomise(BertForMaskedLM(BertConfig(**sizes)).double().eval(), std=0.3)
    embeddings, head = model.bert.embeddings, model.cls.predictions
    tensors = {
        "embed.embed.W_E": embeddings.word_embeddings.weight,
        "embed.pos_embed.W_pos": embeddings.position_embeddings.weight,
        "embed.token_type_embed.W_token_type": embeddings.token_type_embeddings.weight,
        "embed.ln.w": embeddings.LayerNorm.weight, "embed.ln.b": embeddings.LayerNorm.bias,
        "mlm_head.W": head.transform.dense.weight.T, "mlm_head.b": head.transform.dense.bias,
        "mlm_head.ln.w": head.transform.LayerNorm.weight, "mlm_head.ln.b": head.transform.LayerNorm.bias,
        "unembed.W_U": head.decoder.weight.T, "unembed.b_U": head.decoder.bias,
        "pooler.W": torch.zeros(12, 12).double(), "nsp_head.b": torch.zeros(2).double(),
    }  # fmt: skip
    for i, layer in enumerate(model.bert.encoder.layer):
        own, out = layer.attention.self, layer.attention.output
        for kind, part in zip("QKV", (own.query, own.key, own.value)):
            tensors[f"blocks.{i}.attn.W_{kind}"] = part.weight.unflatten(0, (3, 4)).mT
            tensors[f"blocks.{i}.attn.b_{kind}"] = part.bias.unflatten(0, (3, 4))
        tensors |= {
            f"blocks.{i}.attn.W_O": out.dense.weight.unflatten(1, (3, 4)).permute(1, 2, 0),
            f"blocks.{i}.attn.b_O": out.dense.bias, f"blocks.{i}.attn.IGNORE": torch.tensor(-torch.inf),
            f"blocks.{i}.ln1.w": out.LayerNorm.weight, f"blocks.{i}.ln1.b": out.LayerNorm.bias,
            f"blocks.{i}.ln2.w": layer.output.LayerNorm.weight, f"blocks.{i}.ln2.b": layer.output.LayerNorm.bias,
            f"blocks.{i}.mlp.W_in": layer.intermediate.dense.weight.T,
            f"blocks.{i}.mlp.b_in": layer.intermediate.dense.bias,
            f"blocks.{i}.mlp.W_out": layer.output.dense.weight.T, f"blocks.{i}.mlp.b_out": layer.output.dense.bias,
        }  # fmt: skip
    config = {
        "n_layers": 2, "d_model": 12, "n_ctx": 16, "d_head": 4, "n_heads": 3, "d_mlp": 20, "act_fn": "gelu",
        "d_vocab": 11, "d_vocab_out": 11, "eps": 1e-12, "normalization_type": "LN", "attention_dir": "bidirectional",
        "positional_embedding_type": "standard", "attn_only": False, "attn_scale": 2.0, "use_attn_scale": True,
        "original_architecture": "BertForMaskedLM", "gated_mlp": False, "n_key_value_heads": None,
    }  # fmt: skip
    return model, config, tensors, "TransformerLens encoder"


def hooked_llama() -> Layout:
    """Grouped keys under names of their own, no biases but zeros, and a gate that has none."""
    model = llama(rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    zeros = torch.zeros(32).double()
    tensors = {
        "embed.W_E": model.model.embed_tokens.weight, "ln_final.w": model.model.norm.weight,
        "unembed.W_U": model.lm_head.weight.T, "unembed.b_U": zeros[:11],
    }  # fmt: skip
    for i, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for name, n, part in (("W_Q", 4, "q_proj"), ("_W_K", 2, "k_proj"), ("_W_V", 2, "v_proj")):
            tensors[f"blocks.{i}.attn.{name}"] = getattr(attention, part).weight.unflatten(0, (n, 8)).mT
            tensors[f"blocks.{i}.attn.{name.replace('W', 'b')}"] = zeros.new_zeros(n, 8)
        tensors |= {
            f"blocks.{i}.attn.W_O": attention.o_proj.weight.T.unflatten(0, (4, 8)), f"blocks.{i}.attn.b_O": zeros,
            f"blocks.{i}.ln1.w": layer.input_layernorm.weight,
            f"blocks.{i}.ln2.w": layer.post_attention_layernorm.weight,
            f"blocks.{i}.mlp.W_gate": mlp.gate_proj.weight.T, f"blocks.{i}.mlp.W_in": mlp.up_proj.weight.T,
            f"blocks.{i}.mlp.W_out": mlp.down_proj.weight.T, f"blocks.{i}.mlp.b_in": zeros[:20],
            f"blocks.{i}.mlp.b_out": zeros, f"blocks.{i}.attn.rotary_sin": zeros, f"blocks.{i}.attn.rotary_cos": zeros,
        }  # fmt: skip
    config = {
        "n_layers": 2, "d_model": 32, "n_ctx": 64, "d_head": 8, "n_heads": 4, "d_mlp": 20, "act_fn": "silu",
        "d_vocab": 11, "eps": 1e-5, "normalization_type": "RMS", "positional_embedding_type": "rotary",
        "rotary_dim": 8, "rotary_base": 100, "rotary_adjacent_pairs": False, "final_rms": True, "gated_mlp": True,
        "n_key_value_heads": 2,
    }  # fmt: skip
    return model, config, tensors, "TransformerLens"


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict's tensors as `model.W_Q` and its like give them: those of both layers in one."""
    dropped = ("attn", "mlp", "embed", "pos_embed", "unembed", "blocks", "0", "1")
    found: dict[str, list[Tensor]] = {}
    for name, value in tensors.items():
        if not name.endswith((".mask", ".IGNORE", ".rotary_sin", ".rotary_cos")):
            *place, last = name.split(".")
            kept = [part for part in place if part not in dropped]
            found.setdefault(".".join([*kept, last.removeprefix("_")]), []).append(value)
    return {name: torch.stack(values) if len(values) > 1 else values[0] for name, values in found.items()}


def per_head_gpt2() -> Layout:
    model, config, tensors, _ = hooked_gpt2()
    return model, config, stacked(tensors), "Per-head tensors"


def per_head_gpt2_folded() -> Layout:
    model, config, tensors, _ = hooked_gpt2_folded()
    return model, config, stacked(tensors), "Per-head tensors"


def per_head_llama() -> Layout:
    model, config, tensors, _ = hooked_llama()
    return model, config, stacked(tensors), "Per-head tensors"


LAYOUTS: list[Callable[[], Layout]] = [
    nanogpt, nanogpt_compiled, params, llama2c, hooked_gpt2, hooked_gpt2_folded, hooked_llama, hooked_bert,
    per_head_gpt2, per_head_gpt2_folded, per_head_llama,
]  # fmt: skip


def written(layout: Callable[[], Layout], folder: Path) -> tuple[Any, dict[str, Tensor], str]:
    """Write a layout's files; return the reference, the tensors and the family."""
    model, config, tensors, family = layout()
    name = "params.json" if layout is params else "config.json"
    (folder / name).write_text(json.dumps(config))
    tensors = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    return model, tensors, family


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {
        name: value for path in sorted(folder.glob("model*.safetensors")) for name, value in load_file(path).items()
    }


def same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert torch.equal(found[name], value)
