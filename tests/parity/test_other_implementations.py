"""Ours against what others wrote, x-transformers, Keras and linformer, with copied weights: outputs and gradients.

The first two make softmax weights in float32 whatever the inputs are, which is what the tolerance allows for.
"""

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.attention import Additive, Attention, Concat, Linformer, Lsh, QueryKeyNorm, Separate, Softmax, Tied
from glassformer.attention.kernels.random_blocks import PUBLISHED, authors
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import Layer, causal_context, randomise, stream

WIDTH, HEADS, D_HEAD = 12, 4, 5

# what theirs is told, and what ours is; x-transformers divides queries and keys by their lengths, ours by lengths over
# sqrt(d_head), and their window counts keys before the query's own
SETTINGS: dict[str, tuple[dict[str, Any], Softmax, QueryKeyNorm | bool]] = {
    "scaled dot product": ({}, Softmax(), False),
    "cosine": ({"qk_norm": True, "qk_norm_scale": 10}, Softmax(scale=10 / D_HEAD), QueryKeyNorm(gains="none", eps=0.0)),
    "soft cap": ({"softclamp_logits": True, "logit_softclamp_value": 0.7}, Softmax(cap=0.7), False),
    "sinks": ({"head_learned_sink": True}, Softmax(sinks=True), False),
    "window": ({"max_attend_past": 2}, Softmax(window=3), False),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_equals_that_of_x_transformers(name: str, kv_heads: int) -> None:
    library = pytest.importorskip("x_transformers.x_transformers")
    told, mixer, norm = SETTINGS[name]
    theirs = library.Attention(WIDTH, dim_head=D_HEAD, heads=HEADS, kv_heads=kv_heads, causal=True, **told).double()
    randomise(theirs)
    config = Attention(HEADS, kv_heads, D_HEAD, mixer=mixer, projection=Separate(qk_norm=norm))
    ours = Layer(config.build(WIDTH, 16, 0, "").double())
    # heads that share keys lie side by side in ours, and as far apart as there are keys in theirs
    order = torch.arange(HEADS).view(-1, kv_heads).T.flatten()
    queries = theirs.to_q.weight.unflatten(0, (HEADS, -1))[order].flatten(0, 1)
    rows = torch.cat((queries, theirs.to_k.weight, theirs.to_v.weight)).detach()
    with torch.no_grad():
        ours.module.projection.qkv.load_state_dict({"weight": rows})
        written = theirs.to_out.weight.unflatten(1, (HEADS, -1))[:, order]
        ours.module.merge.output.weight.copy_(written.flatten(1))
        if mixer.sinks:
            ours.mixer.sinks.copy_(theirs.attend.head_attn_sink[order])
    x = stream(2, 7, d_model=WIDTH).requires_grad_()
    compare(ours(x, causal_context(x)), theirs(x)[0] if isinstance(theirs(x), tuple) else theirs(x), x)


def compare(found: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    close(found, expected, 1e-5)
    weights = torch.sin(torch.arange(found.numel(), dtype=found.dtype)).view_as(found)
    both = (torch.autograd.grad((z * weights).sum(), inputs) for z in (found, expected))
    for one, other in zip(*both, strict=True):
        close(one, other, 1e-5)


@pytest.mark.parametrize("length", [5, 8])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_linformer_equals_that_of_its_package(kv_heads: int, shared: bool, length: int) -> None:
    library = pytest.importorskip("linformer.linformer")
    told = {"k": 3, "heads": HEADS, "dim_head": D_HEAD, "one_kv_head": kv_heads == 1, "share_kv": shared}
    theirs = randomise(library.LinformerSelfAttention(WIDTH, 8, **told).double())
    mixer = Linformer(3, "key_value" if shared else "headwise")
    ours = Layer(Attention(HEADS, kv_heads, D_HEAD, mixer=mixer).build(WIDTH, 8, 0, "").double())
    # they share the matrix of keys and values with their maps
    maps = [theirs.proj_k] if shared else [theirs.proj_k, theirs.proj_v]
    with torch.no_grad():
        rows = [theirs.to_q.weight, theirs.to_k.weight, (theirs.to_k if shared else theirs.to_v).weight]
        ours.module.projection.qkv.load_state_dict({"weight": torch.cat(rows)})
        ours.module.merge.output.weight.copy_(theirs.to_out.weight)
        ours.mixer.maps.columns.copy_(torch.stack(maps)[:, None])
        theirs.to_out.bias.zero_()
    x = stream(2, length, d_model=WIDTH).requires_grad_()
    compare(ours(x), theirs(x), x)


@pytest.mark.parametrize("n", [832, 1024, 1536, 2048, 3072, 4096])
@pytest.mark.parametrize("layer", [0, 3])
def test_the_table_of_random_blocks_is_that_of_transformers(n: int, layer: int) -> None:
    library = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    config = library.BigBirdConfig(num_attention_heads=3, hidden_size=12)
    theirs, block, n_random = library.BigBirdBlockSparseAttention(config, seed=layer).train(), 64, 3
    np.random.seed(layer)
    if n in PUBLISHED:
        made = [theirs._bigbird_block_rand_mask(4096, 4096, block, block, n_random, last_idx=1024) for _ in range(3)]
        made = [table[: n // block - 2] for table in made]
    else:
        plan = theirs._get_rand_attn_plan(n, block, n_random)
        made = theirs._bigbird_block_rand_mask_with_head(n, n, block, block, 3, *plan)
    assert authors(n // block, 3, n_random, layer, block, 4096)[:, 1:-1].tolist() == np.stack(made).tolist()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_buckets", [4, (2, 4)])
@pytest.mark.parametrize("n", [5, 20])
def test_lsh_attention_equals_that_of_transformers(n: int, n_buckets: int | tuple[int, int], causal: bool) -> None:
    library = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    told = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_head_size": D_HEAD, "hash_seed": 3}
    told |= {"num_buckets": n_buckets if isinstance(n_buckets, int) else list(n_buckets), "num_hashes": 3}
    config = library.ReformerConfig(**told, lsh_attn_chunk_length=5, is_decoder=causal, attn_layers=["lsh"])
    theirs = randomise(library.LSHSelfAttention(config).double().eval())
    mixer = Lsh(n_buckets, 5, 3, "library", seed=3)
    attention = Attention(HEADS, d_head=D_HEAD, mixer=mixer, projection=Tied(key="query"))
    ours = Layer(attention.build(WIDTH, 32, 0, "").double())
    with torch.no_grad():
        ours.module.projection.qkv.query.weight.copy_(theirs.query_key.weight)
        ours.module.projection.qkv.value.weight.copy_(theirs.value.weight)
        ours.module.merge.output.weight.copy_(torch.eye(WIDTH, HEADS * D_HEAD))
    x = stream(2, n, d_model=WIDTH).requires_grad_()
    context = make_context(2, n, x.device, is_causal=causal)
    compare(ours(x, context), theirs(x).hidden_states[..., :WIDTH], x)


@pytest.mark.parametrize("n_rounds", [1, 4])
def test_lsh_attention_equals_the_paper_form_of_reformer_pytorch(
    n_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two buckets every chunk meets all earlier members of its own, there too."""
    library = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    theirs = library.LSHAttention(
        bucket_size=8, n_hashes=n_rounds, causal=True, dropout=0.0, allow_duplicate_attention=False,
        attend_across_buckets=False,
    )  # fmt: skip
    q, v = (stream(2, 16, seed, D_HEAD).requires_grad_() for seed in (0, 1))
    torch.manual_seed(0)
    expected = theirs(q, v)[0]
    torch.manual_seed(0)
    rotations = torch.randn(1, D_HEAD, n_rounds, 1, dtype=q.dtype)
    ours: Any = Attention(1, mixer=Lsh(2, 16, n_rounds)).build(D_HEAD, 16, 0, "").double().mixer
    monkeypatch.setattr(ours, "rotations", lambda like: rotations)
    scaled = q[:, None] * D_HEAD**-0.5
    found = ours(scaled, scaled, v[:, None], q, make_context(2, 16, q.device, is_causal=True), None, None)[0]
    compare(found[:, 0], expected, q, v)


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keras on torch, computing in float64."""
    if "KERAS_BACKEND" not in os.environ:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    library = pytest.importorskip("keras")
    if library.backend.backend() != "torch":
        pytest.skip("Keras is imported with another backend")
    return library


def one_head(mixer: Additive | Concat | Softmax) -> tuple[Any, Tensor, Tensor, Tensor]:
    module = randomise(Attention(1, 1, D_HEAD, mixer=mixer).build(WIDTH, 16, 0, "").double())
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, 1, 6, D_HEAD, generator=generator, dtype=torch.float64).unbind()
    return module.mixer, q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def by(layer: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return layer([q[:, 0], v[:, 0], k[:, 0]], use_causal_mask=causal)[:, None]


@pytest.mark.parametrize("causal", [True, False])
def test_additive_attention_equals_that_of_keras(causal: bool, keras: Any) -> None:
    mixer, q, k, v = one_head(Additive())
    theirs = keras.layers.AdditiveAttention(dtype="float64")
    theirs.build([(2, 6, D_HEAD)] * 3)
    theirs.scale.assign(mixer.read[0].detach())
    context = make_context(2, 6, q.device, is_causal=causal)
    found, _ = mixer(q, k, v, q[:, 0], context, None, None)
    shifted = k @ mixer.of_key + (0 if mixer.bias is None else mixer.bias[:, None])
    compare(found, by(theirs, q @ mixer.of_query, shifted, v, causal), q, k, v)


@pytest.mark.parametrize("causal", [True, False])
def test_concat_attention_equals_that_of_keras(causal: bool, keras: Any) -> None:
    """Theirs reads all hidden units alike; ours reads each by a number of its own, the same for all here."""
    mixer, q, k, v = one_head(Concat())
    theirs = keras.layers.Attention(score_mode="concat", dtype="float64")
    theirs.build([(2, 6, D_HEAD)] * 3)
    with torch.no_grad():
        mixer.read.fill_(0.7)
    theirs.concat_score_weight.assign(0.7)
    context = make_context(2, 6, q.device, is_causal=causal)
    found, _ = mixer(q, k, v, q[:, 0], context, None, None)
    of_query, of_key = mixer.joint.chunk(2, 1)
    compare(found, by(theirs, q @ of_query, k @ of_key, v, causal), q, k, v)


@pytest.mark.parametrize("causal", [True, False])
def test_the_unscaled_product_equals_that_of_keras(causal: bool, keras: Any) -> None:
    mixer, q, k, v = one_head(Softmax(scale=1.0))
    context = make_context(2, 6, q.device, is_causal=causal)
    found, _ = mixer(q, k, v, q[:, 0], context, None, None)
    compare(found, by(keras.layers.Attention(dtype="float64"), q, k, v, causal), q, k, v)
