"""A tiny transformer in plain PyTorch, and the spec through which it is seen under our names."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from glassformer.checkpoints import Spec, foreign
from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.models import DecoderConfig, Learned, Mlp, block, repeat
from glassformer.testing.layers import randomise
from glassformer.testing.models import Subject

VOCAB, WIDTH, HEADS, LENGTH = 11, 16, 4, 24


class PlainLayer(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(z.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class PlainTransformer(nn.Module):
    """Ids in, next-token logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(PlainLayer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)[None])
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def spec() -> Spec:
    """Return where the module keeps what we have names for, and what it is made of."""
    layer = block(n_heads=HEADS, bias=True, mlp=Mlp(24))
    ours, theirs = "stack.blocks.{i}", "layers.{i}"
    return Spec(
        sites={
            "embed.token": "tokens.out",
            "embed.position": "places.out",
            "blocks.{i}.resid_pre": f"{theirs}.in",
            "blocks.{i}.attn.z": f"{theirs}.proj.in",
            "blocks.{i}.attn.out": f"{theirs}.proj.out",
            "blocks.{i}.resid_mid": f"{theirs}.norm_2.in",
            "blocks.{i}.mlp.hidden": f"{theirs}.down.in",
            "blocks.{i}.mlp.out": f"{theirs}.down.out",
            "blocks.{i}.resid_post": f"{theirs}.out",
            "logits": "head.out",
        },
        sizes={"head": HEADS},
        config=DecoderConfig(VOCAB, WIDTH, repeat(layer, 2), max_len=LENGTH, positions=Learned(), tied=False),
        weights={
            "embed.matrix": "tokens.weight",
            "embed.positions.weight": "places.weight",
            f"{ours}.attn_norm": f"{theirs}.norm_1",
            f"{ours}.attn.projection.qkv": f"{theirs}.qkv",
            f"{ours}.attn.merge.output": f"{theirs}.proj",
            f"{ours}.mlp_norm": f"{theirs}.norm_2",
            f"{ours}.mlp.input": f"{theirs}.up",
            f"{ours}.mlp.output": f"{theirs}.down",
            "stack.final": "norm",
            "unembed.matrix": "head.weight",
        },
    )


class PlainSubject(Subject):
    """The module seen through the spec, with a batch to run it on."""

    def others(self, generator: torch.Generator, shapes: Sequence[Sequence[int]] | None = None) -> tuple[Tensor, ...]:
        wanted = shapes or [ids.shape for ids in self.inputs]
        return tuple(torch.randint(0, VOCAB, tuple(shape), generator=generator) for shape in wanted)

    def batch(self) -> Batch:
        return next_token_batch(self.inputs[0])


def plain() -> PlainSubject:
    """Return the module with random weights."""
    module = randomise(PlainTransformer().double().eval(), std=0.2)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (2, 7), generator=generator)
    return PlainSubject("module with a spec", foreign(module, spec()), (ids,))
