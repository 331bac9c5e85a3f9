"""Ours against Hugging Face transformers, on tiny random configs: logits, two intermediate sites and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.attention import Alibi, Differential, Dims, Llama3Scaling, Rope
from glassformer.models import DecoderConfig, Learned, Mlp, RmsNorm, block
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.trace import Tape
from one_pass import in_one_pass

TOKENS = torch.tensor([[1, 5, 2, 9, 0, 3, 7], [4, 4, 8, 1, 6, 2, 10]])
EAGER: dict[str, Any] = {"attn_implementation": "eager"}


# their norms, softmax and angles run in float32 whatever the model's precision
FLOAT32 = 1e-5


def compare(
    theirs: nn.Module,
    ours: nn.Module,
    norm: nn.Module,
    pairs: list[tuple[nn.Parameter, nn.Parameter, bool]],
    tolerance: float = 1e-9,
) -> None:
    """Compare logits, patterns, the stream entering each block, the final norm, and gradients of parameters."""
    expected = theirs(TOKENS, output_hidden_states=True, output_attentions=True)
    kept: list[Tensor] = []
    norm.register_forward_hook(lambda *call: kept.append(call[-1]))
    theirs(TOKENS)
    tape = Tape(ours, ["blocks.*.resid_pre", "*.pattern", "final.norm"])  # type: ignore[arg-type]
    logits = ours(TOKENS, tape=tape)
    for layer, pattern in enumerate(expected.attentions):
        close(tape.values[f"blocks.{layer}.resid_pre"], expected.hidden_states[layer], tolerance)
        close(tape.values[f"blocks.{layer}.attn.pattern"], pattern, tolerance)
    close(tape.values["final.norm"], kept[-1], tolerance)
    close(logits, expected.logits, tolerance)
    for model, found in ((theirs, expected.logits), (ours, ours(TOKENS))):
        model.zero_grad()
        nn.functional.cross_entropy(found.flatten(0, 1), TOKENS.roll(-1, 1).flatten()).backward()
    for mine, reference, transposed in pairs:
        assert mine.grad is not None and reference.grad is not None
        close(mine.grad, reference.grad.T if transposed else reference.grad, 10 * tolerance)


def test_gpt2_is_learned_positions_biases_tanh_gelu_and_norms_before() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=3, **EAGER)
    theirs: Any = randomise(GPT2LMHeadModel(config).double().eval(), std=0.3)
    layers = (block(n_heads=3, bias=True, mlp=Mlp(activation="gelu_tanh")),) * 2
    ours: Any = DecoderConfig(11, 12, layers, max_len=8, positions=Learned()).build().double().eval()

    state = {
        "embed.matrix": theirs.transformer.wte.weight,
        "embed.positions.weight": theirs.transformer.wpe.weight,
        "stack.final.weight": theirs.transformer.ln_f.weight,
        "stack.final.bias": theirs.transformer.ln_f.bias,
    }
    names = {
        "attn_norm": "ln_1",
        "attn.projection.qkv": "attn.c_attn",
        "attn.merge.output": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp.input": "mlp.c_fc",
        "mlp.output": "mlp.c_proj",
    }
    for i, layer in enumerate(theirs.transformer.h):
        for mine, name in names.items():
            part = layer.get_submodule(name)
            # their linear maps are stored transposed
            weight = part.weight.T if part.weight.ndim == 2 else part.weight
            state |= {f"stack.blocks.{i}.{mine}.weight": weight, f"stack.blocks.{i}.{mine}.bias": part.bias}
    ours.load_state_dict(state)
    mine, reference = ours.stack.blocks[0], theirs.transformer.h[0]
    pairs = [
        (mine.attn.projection.qkv.weight, reference.attn.c_attn.weight, True),
        (mine.mlp.output.bias, reference.mlp.c_proj.bias, False),
        (ours.embed.matrix, theirs.transformer.wte.weight, False),
        (ours.embed.positions.weight, theirs.transformer.wpe.weight, False),
    ]
    compare(theirs, ours, theirs.transformer.ln_f, pairs)


SCALING = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@in_one_pass
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_llama_is_rms_norm_rotary_positions_grouped_keys_and_swiglu(n_kv_heads: int, scaled: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 100.0}
    if scaled:
        rope |= SCALING | {"original_max_position_embeddings": 16}
    config = LlamaConfig(
        vocab_size=11, hidden_size=32, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=n_kv_heads, max_position_embeddings=64, rms_norm_eps=1e-5, rope_parameters=rope,
        **EAGER,
    )  # fmt: skip
    theirs: Any = randomise(LlamaForCausalLM(config).double().eval(), std=0.3)
    positions = Rope(100.0, scaling=Llama3Scaling(4.0, 1.0, 4.0, 16) if scaled else None)
    close(theirs.model.rotary_emb.inv_freq.double(), positions.frequencies(8), 1e-6)
    layers = (
        block(n_heads=4, n_kv_heads=n_kv_heads, positions=positions, norm=RmsNorm(), mlp=Mlp(20, "silu", True, False)),
    ) * 2
    ours: Any = DecoderConfig(11, 32, layers, final_norm=RmsNorm(), tied=False).build().double().eval()

    state = {
        "embed.matrix": theirs.model.embed_tokens.weight,
        "stack.final.weight": theirs.model.norm.weight,
        "unembed.matrix": theirs.lm_head.weight,
    }
    names = {
        "attn_norm": "input_layernorm",
        "attn.merge.output": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.input": "mlp.up_proj",
        "mlp.output": "mlp.down_proj",
    }
    for i, layer in enumerate(theirs.model.layers):
        state |= {f"stack.blocks.{i}.{mine}.weight": layer.get_submodule(name).weight for mine, name in names.items()}
        qkv = [layer.self_attn.get_submodule(f"{n}_proj").weight for n in "qkv"]
        state[f"stack.blocks.{i}.attn.projection.qkv.weight"] = torch.cat(qkv)
    ours.load_state_dict(state)
    mine, reference = ours.stack.blocks[0], theirs.model.layers[0]
    pairs = [
        (mine.mlp.gate.weight, reference.mlp.gate_proj.weight, False),
        (mine.attn.merge.output.weight, reference.self_attn.o_proj.weight, False),
        (mine.attn_norm.weight, reference.input_layernorm.weight, False),
        (ours.unembed.matrix, theirs.lm_head.weight, False),
    ]
    compare(theirs, ours, theirs.model.norm, pairs, FLOAT32)


@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_diffllama_is_differential_attention_with_other_head_numbers(n_kv_heads: int) -> None:
    """Their heads i and i + H/2 are the two streams of our head i; the same holds for key and value heads."""
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    config = DiffLlamaConfig(
        vocab_size=11, hidden_size=32, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=n_kv_heads, max_position_embeddings=64, rms_norm_eps=1e-5, **EAGER,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0}, lambda_std_dev=0.3,
    )  # fmt: skip
    theirs: Any = randomise(DiffLlamaForCausalLM(config).double().eval(), std=0.3)
    shared: dict[str, Any] = {"n_heads": 2, "n_kv_heads": n_kv_heads // 2, "d_head": 8, "positions": Rope(100.0)}
    shared |= {"norm": RmsNorm(), "mlp": Mlp(20, "silu", gated=True, bias=False)}
    layers = []
    for i in range(2):
        parts = Differential().as_published(i)
        layers.append(block(**shared, mixer=parts["mixer"], merge=parts["merge"].replace(gain=False)))
    ours: Any = DecoderConfig(11, 32, tuple(layers), final_norm=RmsNorm(), tied=False).build().double().eval()

    def paired(weight: Tensor, heads: int) -> Tensor:
        return weight.unflatten(0, (2, heads // 2, 8)).transpose(0, 1).flatten(0, 2)

    state = {
        "embed.matrix": theirs.model.embed_tokens.weight,
        "stack.final.weight": theirs.model.norm.weight,
        "unembed.matrix": theirs.lm_head.weight,
    }
    for i, layer in enumerate(theirs.model.layers):
        at, attention = f"stack.blocks.{i}", layer.self_attn
        rows = ((attention.q_proj, 4), (attention.k_proj, n_kv_heads), (attention.v_proj, n_kv_heads))
        vectors = [getattr(attention, f"lambda_{n}") for n in ("q1", "k1", "q2", "k2")]
        state |= {
            f"{at}.attn.projection.qkv.weight": torch.cat([paired(p.weight, n) for p, n in rows]),
            f"{at}.attn.mixer.lambdas": torch.stack(vectors),
            f"{at}.attn.merge.output.weight": attention.o_proj.weight,
            f"{at}.attn_norm.weight": layer.input_layernorm.weight,
            f"{at}.mlp_norm.weight": layer.post_attention_layernorm.weight,
            f"{at}.mlp.gate.weight": layer.mlp.gate_proj.weight,
            f"{at}.mlp.input.weight": layer.mlp.up_proj.weight,
            f"{at}.mlp.output.weight": layer.mlp.down_proj.weight,
        }
    ours.load_state_dict(state)
    expected = theirs(TOKENS, output_hidden_states=True, output_attentions=True)
    tape = Tape(ours, ["blocks.*.resid_pre", "*.patterns"])
    close(ours(TOKENS, tape=tape), expected.logits, FLOAT32)
    for layer in range(2):
        close(tape.values[f"blocks.{layer}.resid_pre"], expected.hidden_states[layer], FLOAT32)
        close(tape.values[f"blocks.{layer}.attn.patterns"].flatten(1, 2), expected.attentions[layer], FLOAT32)
    for found in (expected.logits, ours(TOKENS)):
        nn.functional.cross_entropy(found.flatten(0, 1), TOKENS.roll(-1, 1).flatten()).backward()
    attention = theirs.model.layers[0].self_attn
    reference = torch.stack([getattr(attention, f"lambda_{n}").grad for n in ("q1", "k1", "q2", "k2")])
    close(ours.stack.blocks[0].attn.mixer.lambdas.grad, reference, 10 * FLOAT32)
    close(ours.stack.blocks[0].attn.merge.output.weight.grad, attention.o_proj.weight.grad, 10 * FLOAT32)


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_equals_blooms_up_to_what_softmax_ignores(heads: int) -> None:
    """Their bias grows with the key, ours falls with distance: they differ by a constant per row."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 5), heads, torch.float64).view(heads, 5)
    positions = Alibi().build(Dims(8, heads, heads, 2, 2, 16))
    ours = positions.bias(make_context(1, 5, torch.device("cpu"), is_causal=True))[0, :, -1]
    close(ours - ours[:, :1], theirs - theirs[:, :1], 1e-6)


@pytest.mark.parametrize("heads", [4, 6, 32])
def test_rounded_alibi_equals_falcons(heads: int) -> None:
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 700, dtype=torch.long), heads, torch.float64).view(heads, 700) / 2
    positions = Alibi(factor=0.5, rounded="bfloat16").build(Dims(8, heads, heads, 2, 2, 16))
    ours = positions.bias(make_context(1, 700, torch.device("cpu"), is_causal=True))[0, :, -1]
    close(ours, theirs, 0.0)
