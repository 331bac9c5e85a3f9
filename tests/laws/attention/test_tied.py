"""Queries and keys of one matrix or of none: symmetric scores, what they equal, and what they cost."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer import analysis, weights
from glassformer.attention import Attention, Differential, QueryKeyNorm, Rope, Separate, Softmax, Tied
from glassformer.errors import ConfigError
from glassformer.models import BlockConfig, Decoder, DecoderConfig, Mlp
from glassformer.models.accounting import account
from glassformer.models.stack import make_context, with_source
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream

# each in a layout that it fits: heads, key heads, and the width of each
LAYOUTS: dict[str, tuple[Tied, tuple[int, int, int]]] = {
    "tied": (Tied(bias=True), (3, 3, 5)),
    "identity": (Tied(query="identity", bias=True), (3, 3, 4)),
    "general": (Tied(key="identity", bias=True), (4, 1, 12)),
    "general of heads": (Tied(key="identity"), (6, 3, 4)),
    "keys alone": (Tied(query="identity", key="own", bias=True), (4, 2, 3)),
}
every = pytest.mark.parametrize("name", LAYOUTS)


def built(name: str, seed: int = 0, cross: bool = False, **fields: Any) -> Layer:
    projection, (heads, kv_heads, width) = LAYOUTS[name]
    config = Attention(
        heads, kv_heads, width, 3, projection=projection.replace(**fields), cross=cross, positions=Rope()
    )
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval(), seed))


def separately(layer: Layer) -> Layer:
    """Return the layer with a matrix and a bias each, of the same values."""
    config = layer.config.replace(projection=layer.config.projection.free())
    plain = config.build(D_MODEL, 16, 0, "").double().eval()
    theirs = layer.module.projection.qkv
    with torch.no_grad():
        plain.projection.qkv.weight.copy_(theirs.weight)
        plain.projection.qkv.bias.copy_(torch.zeros(1) if theirs.bias is None else theirs.bias)
    plain.merge.load_state_dict(layer.module.merge.state_dict())
    return Layer(plain)


@every
@pytest.mark.parametrize("cross", [False, True])
@given(seed=seeds)
def test_it_is_the_separate_projection_whose_matrices_agree_and_gradients_add_up(
    name: str, cross: bool, seed: int
) -> None:
    layer = built(name, seed, cross)
    plain, x, source = separately(layer), stream(2, 4, seed), stream(2, 5, seed + 1)
    given: dict[str, Any] = {"context": with_source(causal_context(x), 5), "source": source} if cross else {}
    outs = [one(x, **given) for one in (layer, plain)]
    close(outs[0], outs[1])
    for out in outs:
        out.square().sum().backward()
    of_layer, own = layer.module.projection.qkv, plain.module.projection
    query, key, value = own.qkv.weight.grad.split(own.widths)
    tied = LAYOUTS[name][0].key == "query"
    for found, expected in ((of_layer.query, query + key if tied else query), (of_layer.key, key)):
        if found is not None:
            close(found.weight.grad, expected)
    close(of_layer.value.weight.grad, value)


def scores(projection: Tied, x: Tensor, **mixer: Any) -> Tensor:
    config = Attention(3, d_head=4, mixer=Softmax(**mixer), projection=projection)
    layer = Layer(randomise(config.build(D_MODEL, 16, 0, "").double()))
    return layer.read(x, "scores", context=make_context(len(x), x.shape[1], x.device, is_causal=False))["scores"]


@given(seeds, st.sampled_from([Tied(), Tied(bias=True), Tied(query="identity"), Tied(clip=0.7)]))
def test_without_positions_and_masks_tied_scores_are_symmetric_and_self_scores_lead(seed: int, tied: Tied) -> None:
    found = scores(tied, stream(2, 6, seed))
    close(found, found.mT)
    own = found.diagonal(dim1=-2, dim2=-1)
    assert bool((own >= 0).all())
    assert bool((found <= torch.maximum(own[..., None], own[..., None, :]) + 1e-12).all())


@given(seeds)
def test_shared_queries_and_keys_of_unit_length_rank_angles_to_themselves_first(seed: int) -> None:
    """As in Reformer, without its mask: of all keys, none is closer to a query than its own."""
    shared = Tied(qk_norm=QueryKeyNorm(gains="none", of="keys"))
    x = stream(2, 6, seed)
    found = scores(shared, x)
    assert bool((found.argmax(-1) == torch.arange(6)).all())
    # each row is what tied scores are, over the lengths of keys: the root of what they score themselves
    bare = scores(Tied(), x, scale=1.0)
    close(found, bare / bare.diagonal(dim1=-2, dim2=-1).sqrt()[..., None, :])


@given(seeds)
def test_raw_streams_score_by_the_products_of_their_parts(seed: int) -> None:
    x = stream(2, 5, seed)
    parts = x.unflatten(-1, (3, 4)).transpose(1, 2)
    close(scores(Tied(query="identity"), x, scale=1.0), parts @ parts.mT)


@given(seeds)
def test_general_scores_are_those_of_separate_matrices_that_it_is_the_product_of(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    w_q, w_k = torch.randn(2, 4, D_MODEL, 3, generator=generator, dtype=torch.float64)
    config = Attention(4, 1, D_MODEL, 3, mixer=Softmax(scale=3**-0.5), projection=Tied(key="identity"))
    general = Layer(randomise(config.build(D_MODEL, 16, 0, "").double(), seed))
    with torch.no_grad():
        general.module.projection.qkv.query.weight.copy_((w_q @ w_k.mT).mT.flatten(0, 1))
    separate = Layer(Attention(4, d_head=3).build(D_MODEL, 16, 0, "").double())
    with torch.no_grad():
        separate.module.projection.qkv.weight[:24].copy_(torch.cat((w_q, w_k)).mT.flatten(0, 1))
    x = stream(2, 5, seed)
    found = [layer.read(x, "pattern")["pattern"] for layer in (general, separate)]
    close(found[0], found[1])


def test_two_streams_of_each_head_take_their_share_of_the_raw_stream() -> None:
    config = Attention(3, d_head=2, mixer=Differential(), projection=Tied(query="identity"))
    layer, x = Layer(randomise(config.build(D_MODEL, 16, 0, "").double())), stream(2, 5)
    found = layer.read(x, "query", "key")
    parts = x.unflatten(-1, (3, 2, 2)).permute(0, 3, 2, 1, 4)
    close(found["query"], parts)
    close(found["key"], parts)


def decoder(name: str, mlp: bool = True) -> Decoder:
    projection, (heads, kv_heads, width) = LAYOUTS[name]
    part = Attention(heads, kv_heads, width, 3, projection=projection, positions=Rope(fraction=0.9))
    layers = (BlockConfig((part, Mlp(6)) if mlp else (part,)),) * 2
    return randomise(DecoderConfig(7, D_MODEL, layers, max_len=12).build().double().eval(), std=0.4)


@every
def test_parameters_are_counted_once_and_products_where_there_are_some(name: str) -> None:
    model = decoder(name)
    counted = account(model.config, 5)
    assert counted.total == sum(parameter.numel() for parameter in model.parameters())
    projection, (heads, kv_heads, width) = LAYOUTS[name]
    both = {"query": heads * width * D_MODEL, "key": kv_heads * width * D_MODEL}
    made = [side for side in both if getattr(projection, side) == "own"]
    assert {side: counted.parameters.get(side, 0) for side in both} == {
        side: 2 * both[side] * (side in made) for side in both
    }
    assert {side: counted.flops.get(side, 0) for side in both} == {
        side: 2 * 2 * 5 * both[side] * (side in made) for side in both
    }


def test_tied_keys_of_another_stack_take_a_product_of_their_own() -> None:
    across = built("tied", cross=True).module.flops(4, 5, causal=False)
    assert across["key"] == 2 * 5 * 15 * D_MODEL and across["query"] == 2 * 4 * 15 * D_MODEL
    assert built("tied").module.flops(4, 5, causal=True)["key"] == 0


@every
def test_weights_say_what_the_model_says_and_folded_ones_are_separate(name: str) -> None:
    model, ids = decoder(name), torch.tensor([[1, 2, 3, 1, 5]])
    expected = model(ids).log_softmax(-1)
    for fold, augment in ((False, False), (True, False), (True, True)):
        found = weights.logits(weights.of(model, fold=fold, augment=augment), ids)
        close(found.log_softmax(-1), expected)
    folded = weights.folded(model)
    close(folded(ids).log_softmax(-1), expected)
    assert {part.config.projection.kind for part in folded.stack.parts() if hasattr(part, "projection")} == {"separate"}
    run = analysis.run(model, ids, read=[analysis.paths.score_paths, "blocks.1.attn.scores"])
    paths, scores = analysis.paths.score_paths(run, head="L1H1"), run["blocks.1.attn.scores"].values[0, 1]
    close(paths.total.values.tril(), scores.masked_fill(scores.isinf(), 0.0))


def test_the_form_of_tied_scores_is_symmetric_and_has_no_negative_eigenvalue() -> None:
    model = decoder("tied")
    form = weights.of(model)["L0H0"].qk(0).dense()[0]
    close(form, form.mT)
    assert float(torch.linalg.eigvalsh(form).min()) > -1e-9


@pytest.mark.parametrize(
    ("projection", "sizes", "message"),
    [
        (Tied(), (4, 2, 3), "n_heads=4, n_kv_heads=2"),
        (Tied(query="identity"), (3, 3, 5), "queries that are the stream .* n_heads=3 of 5 numbers each, d_model=12"),
        (Tied(key="identity"), (6, 2, 4), "keys that are the stream .* n_kv_heads=2 of 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(projection: Tied, sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Attention(*sizes, projection=projection).build(D_MODEL, 16, 0, "")


def test_a_projection_has_one_config_however_it_is_asked_for() -> None:
    assert Tied(query="identity") == Tied(query="identity", key="identity")
    with pytest.raises(ConfigError, match='use "separate"'):
        Tied(key="own")
    for projection, _ in LAYOUTS.values():
        assert type(projection).from_dict(projection.to_dict()) == projection
    assert Tied(qk_norm=True, clip=0.5).free() == Separate(bias=True, qk_norm=True, clip=0.5)
