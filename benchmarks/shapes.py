"""The models that are timed: ours, bare copies that share their matrices, and the same shape in `transformers`."""

import ast
import copy
import inspect
import textwrap
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.attention import LinearMap, linear
from glassformer.models import Decoder
from glassformer.models.presets import gpt2_small
from glassformer.training.recipes import recipe

Attend = Literal["fused", "eager"]
Recorded = Literal["stream and z", "patterns"]


def small() -> Decoder:
    """The shipped four-layer decoder, with fresh weights: RMSNorm, rotary positions, grouped heads, gated MLP."""
    return cast("Decoder", recipe("gpt-4l").model.build().eval())


def gpt2() -> Decoder:
    """The shape of GPT-2 small, with fresh weights."""
    return gpt2_small().build().eval()


def tokens(model: Decoder, batch: int, length: int) -> Tensor:
    return torch.randint(model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))


def transformers_twin(model: Decoder, attention: str | None = None) -> Any:
    """Return `transformers`' GPT-2 with the weights of our model of that shape; its default attention unless named."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config, first = model.config, cast(Any, model.stack.blocks[0])
    layers, heads = len(config.layers), first.part("attn").dims.n_heads
    settings: dict[str, Any] = {"attn_implementation": attention, "bos_token_id": 0, "eos_token_id": 0}
    settings |= {"vocab_size": config.vocab_size, "n_positions": config.max_len, "n_embd": config.d_model}
    kind = GPT2Config(n_layer=layers, n_head=heads, **settings)
    twin = GPT2LMHeadModel(kind).eval()
    names = {"attn.c_attn": "attn.projection.qkv", "attn.c_proj": "attn.merge.output", "ln_1": "attn_norm"}
    names |= {"mlp.c_fc": "mlp.input", "mlp.c_proj": "mlp.output", "ln_2": "mlp_norm"}
    ours, state = model.state_dict(), {}
    state["transformer.wte.weight"] = state["lm_head.weight"] = ours["embed.matrix"]
    state["transformer.wpe.weight"] = ours["embed.positions.weight"]
    for part in ("weight", "bias"):
        state[f"transformer.ln_f.{part}"] = ours[f"stack.final.{part}"]
        for i in range(layers):
            for theirs, name in names.items():
                value = ours[f"stack.blocks.{i}.{name}.{part}"]
                # its matrices are stored transposed
                state[f"transformer.h.{i}.{theirs}.{part}"] = value.mT if value.ndim == 2 else value
    missing, unexpected = twin.load_state_dict(state, strict=False)
    assert not unexpected and all(name.endswith((".attn.bias", ".attn.masked_bias")) for name in missing)
    return twin


def without_sites(model: Decoder) -> Decoder:
    """Return the model with every call of `site` and `wants` taken out of its code; it shares the weights."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    bare = copy.deepcopy(model, shared)
    for module in bare.modules():
        methods = {
            name: method
            for kind in reversed(type(module).__mro__)
            if kind.__module__.startswith("glassformer.")
            for name, method in vars(kind).items()
            if inspect.isfunction(method) and {"site", "wants"} & set(method.__code__.co_names)
        }
        if methods:
            stripped = {name: _without_sites(method) for name, method in methods.items()}
            module.__class__ = type(type(module).__name__, (type(module),), stripped)
    return bare


def _without_sites(method: Any) -> Any:
    tree = _TakeSitesOut().visit(ast.parse(textwrap.dedent(inspect.getsource(method))))
    names: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), "<without sites>", "exec"), method.__globals__, names)
    return names[method.__name__]


class _TakeSitesOut(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "site":
            return node.args[2]
        if isinstance(node.func, ast.Name) and node.func.id == "wants":
            return ast.Constant(False)
        return node


class BareDecoder(nn.Module):
    """The forward pass of one of our decoders (pre-norm, softmax) as one would write it with nothing to see through.

    It shares the matrices, and the way they are multiplied, with the model it copies, so only what lies around them
    differs. Pass a deep copy to get parameters of its own; those it can multiply by torch's own route (`plain`). It can
    hold on to some values until its end (`record`), as one would who appends them to a list.
    """

    def __init__(
        self, model: Decoder, attend: Attend = "fused", *, plain: bool = False, record: Recorded | None = None
    ) -> None:
        super().__init__()
        self.recorded = Recording(record)
        self.product = F.linear if plain else linear
        self.embed, self.unembed = model.embed.weight, model.unembed.weight
        self.positions = None if model.embed.positions is None else model.embed.positions.weight
        max_len = model.config.max_len
        self.blocks = nn.ModuleList(BareBlock(part, max_len, attend, self.recorded) for part in model.stack.blocks)
        self.norm = BareNorm(model.stack.final)
        for module in self.modules():
            if plain and isinstance(module, LinearMap):
                module.__class__ = nn.Linear  # type: ignore[assignment]  # the same parameters, torch's own forward

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embed)
        if self.positions is not None:
            x = x + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.product(self.norm(x), self.unembed)
        self.recorded.values.clear()
        return logits


class Recording:
    """What a bare copy holds on to; nothing of what is not asked for."""

    def __init__(self, kind: Recorded | None) -> None:
        self.stream, self.patterns = kind == "stream and z", kind == "patterns"
        self.values: list[Tensor] = []


class BareBlock(nn.Module):
    def __init__(self, block: Any, max_len: int, attend: Attend, recorded: Recording) -> None:
        super().__init__()
        self.recorded = recorded
        self.attention = BareAttention(block.part("attn"), max_len, attend, recorded)
        self.mlp = BareMlp(block.part("mlp"))
        self.norm_1, self.norm_2 = BareNorm(block.norm("attn")), BareNorm(block.norm("mlp"))

    def forward(self, x: Tensor) -> Tensor:
        middle = x + self.attention(self.norm_1(x))
        end = middle + self.mlp(self.norm_2(middle))
        if self.recorded.stream:
            self.recorded.values += [x, middle, end]
        return end


class BareNorm(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.centred = norm.weight, norm.bias, norm.eps, norm.centred

    def forward(self, x: Tensor) -> Tensor:
        if self.centred:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class BareAttention(nn.Module):
    cos: Tensor
    sin: Tensor
    future: Tensor

    def __init__(self, layer: Any, max_len: int, attend: Attend, recorded: Recording) -> None:
        super().__init__()
        self.recorded = recorded
        self.qkv, self.output = layer.projection.qkv, layer.merge.output
        self.heads, self.groups, self.d_head = layer.dims.n_heads, layer.dims.n_kv_heads, layer.dims.d_head
        self.eager = attend == "eager"
        self.rotary = layer.config.positions.kind == "rope"
        if self.rotary:
            omega = layer.config.positions.frequencies(self.d_head)
            angle = torch.arange(max_len)[:, None] * omega
            self.register_buffer("cos", angle.cos().float(), persistent=False)
            self.register_buffer("sin", angle.sin().float(), persistent=False)
        self.register_buffer("future", torch.ones(max_len, max_len, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n, width = x.shape[1], self.d_head
        q, k, v = self.qkv(x).split((self.heads * width, self.groups * width, self.groups * width), -1)
        q = q.unflatten(-1, (self.heads, width)).transpose(1, 2)
        k, v = (u.unflatten(-1, (self.groups, width)).transpose(1, 2) for u in (k, v))
        if self.rotary:
            q, k = self._turn(q), self._turn(k)
        if self.eager:
            if self.groups != self.heads:
                k, v = (u.repeat_interleave(self.heads // self.groups, 1) for u in (k, v))
            scores = (q @ k.mT) * width**-0.5
            pattern = scores.masked_fill(self.future[:n, :n], float("-inf")).softmax(-1)
            if self.recorded.patterns:
                self.recorded.values.append(pattern)
            z = pattern @ v
        else:
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups != self.heads)
        if self.recorded.stream:
            self.recorded.values.append(z)
        return self.output(z.transpose(1, 2).flatten(-2))

    def _turn(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class BareMlp(nn.Module):
    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate, self.input, self.output = mlp.gate, mlp.input, mlp.output

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.output(F.gelu(self.input(x), approximate="tanh"))
        return self.output(F.silu(self.gate(x)) * self.input(x))
