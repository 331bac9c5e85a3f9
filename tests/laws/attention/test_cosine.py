"""Norms without gains: scores that go by angles, of keys, of queries or of both; identities and parity."""

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer import analysis, weights
from glassformer.attention import Attention, NoPositions, PositionsConfig, QueryKeyNorm, Rope, Separate, Softmax
from glassformer.errors import ConfigError
from glassformer.models import Decoder, DecoderConfig, block
from glassformer.models.accounting import account
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, seeds, stream
from glassformer.trace import Set
from one_pass import in_one_pass

D_HEAD = 4
Side = Literal["both", "queries", "keys"]


def layer(of: Side | None, seed: int = 0, positions: PositionsConfig | None = None, **mixer: Any) -> Layer:
    norm = False if of is None else QueryKeyNorm(gains="none", of=of)
    config = Attention(
        3,
        d_head=D_HEAD,
        mixer=Softmax(**mixer),
        projection=Separate(qk_norm=norm),
        positions=positions or NoPositions(),
    )
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval(), seed))


def scores(queries: Tensor, keys: Tensor, of: Side, factor: float) -> Tensor:
    """Return scores pair by pair, by what they are called."""
    found = torch.full((*queries.shape[:-1], keys.shape[-2]), -math.inf, dtype=queries.dtype)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, queries.shape[:-1])).tolist():
        for j in range(i + 1):
            q, k = queries[b, h, i], keys[b, h, j]
            sizes = (1.0 if of == "keys" else q.norm()) * (1.0 if of == "queries" else k.norm())
            found[b, h, i, j] = factor * (q @ k) / sizes
    return found


def seen(found: Tensor) -> Tensor:
    """Return scores with zeros where there is nothing to see."""
    return found.masked_fill(found == -math.inf, 0.0)


@pytest.mark.parametrize(("of", "factor"), [("keys", 1.0), ("queries", 1.0), ("both", 5.0)])
@given(seed=seeds)
def test_scores_are_products_over_lengths_written_out(of: Side, factor: float, seed: int) -> None:
    scale: dict[str, Any] = {"scale": factor / D_HEAD} if of == "both" else {}
    normed = layer(of, seed, **scale)
    bare, x = layer(None, seed), stream(2, 4, seed)
    raw = bare.read(x, "query", "key")
    close(seen(normed.read(x, "scores")["scores"]), seen(scores(raw["query"], raw["key"], of, factor)))


@pytest.mark.parametrize("of", ["keys", "queries", "both"])
@given(seed=seeds, power=st.integers(-12, 12))
def test_lengths_of_what_is_normed_do_not_matter_however_small(of: Side, seed: int, power: int) -> None:
    """In float32 too, where the usual constant under the root is felt by keys of length 1e-3."""
    attention, x = layer(of, seed), stream(1, 5, seed).float()
    attention.module.float()
    q, k, _ = attention.module.projection.heads(x, x, x)
    sizes = 10.0 ** (power * torch.rand(k.shape[:-1], generator=torch.Generator().manual_seed(seed)))[..., None]
    normed, turned = attention.module.projection.normed(q, k)
    if of != "queries":
        close(attention.module.projection.normed(q, k * sizes)[1], turned, 1e-5)
    if of != "keys":
        close(attention.module.projection.normed(q * sizes, k)[0], normed, 1e-5)


def test_a_key_of_zeros_stays_one_and_so_do_its_gradients() -> None:
    for centred in (False, True):
        norm = QueryKeyNorm(gains="none", centred=centred).build(1, 1, D_HEAD)[1]
        x = torch.zeros(1, 1, 2, D_HEAD, dtype=torch.float64)
        x[..., 1, :] = torch.arange(4.0)
        x.requires_grad_()
        made = norm(x)
        made.pow(3).sum().backward()
        assert x.grad is not None and bool(made.isfinite().all()) and bool(x.grad.isfinite().all())
        assert not bool(made[..., 0, :].any()) and not bool(x.grad[..., 0, :].any())
        close(made[..., 1, :].norm(), torch.tensor(math.sqrt(D_HEAD), dtype=torch.float64))


@given(seeds, st.floats(0.1, 6.0), st.integers(1, 9))
def test_no_weight_exceeds_the_bound_and_opposite_keys_reach_it(seed: int, strength: float, n: int) -> None:
    attention = layer("both", seed, scale=strength / D_HEAD)
    bound = math.exp(2 * strength) / (math.exp(2 * strength) + n - 1)
    pattern = attention.read(stream(2, n, seed), "pattern")["pattern"][..., -1, :]
    assert float(pattern.max()) <= bound + 1e-12
    # one key along the query, all others against it
    query = torch.ones(1, 3, n, D_HEAD, dtype=torch.float64)
    key = -query.clone()
    key[..., 0, :] *= -1
    sizes = math.sqrt(D_HEAD) / query.norm(dim=-1, keepdim=True)
    edits = [Set("query", query * sizes), Set("key", key * sizes)]
    tape = attention.tape("pattern", edit=edits)
    attention(stream(1, n), tape=tape)
    close(tape.values["pattern"][0, 0, -1, 0], torch.tensor(bound, dtype=torch.float64))


@given(seeds)
def test_normed_keys_are_cosine_at_a_temperature_of_the_query_s_length(seed: int) -> None:
    x, raw = stream(2, 5, seed), layer(None, seed).read(stream(2, 5, seed), "query")["query"]
    keys = layer("keys", seed).read(x, "scores")["scores"]
    cosine = layer("both", seed, scale=1 / D_HEAD).read(x, "scores")["scores"]
    close(seen(keys), seen(cosine * raw.norm(dim=-1, keepdim=True)))


@pytest.mark.parametrize("of", ["keys", "queries", "both"])
@given(seed=seeds)
def test_it_is_plain_attention_where_every_length_is_the_root_of_the_width(of: Side, seed: int) -> None:
    bare, normed, x = layer(None, seed), layer(of, seed), stream(2, 5, seed)
    raw = bare.read(x, "query", "key")
    edits = [Set(name, v * math.sqrt(D_HEAD) / v.norm(dim=-1, keepdim=True)) for name, v in raw.items()]
    tape = bare.tape("pattern", edit=edits)
    bare(x, tape=tape)
    # what is normed has that length; the rest is given it
    left = {"keys": edits[:1], "queries": edits[1:], "both": []}[of]
    own = normed.tape("pattern", edit=left)
    normed(x, tape=own)
    close(own.values["pattern"], tape.values["pattern"])


@pytest.mark.parametrize("of", ["keys", "queries", "both"])
@given(seed=seeds, pairing=st.sampled_from(["half", "interleaved"]), fraction=st.sampled_from([0.5, 1.0]))
def test_norms_without_gains_commute_with_rotation(of: Side, seed: int, pairing: Any, fraction: float) -> None:
    place = Rope(pairing=pairing, fraction=fraction)
    before, bare, x = layer(of, seed, place), layer(None, seed, place), stream(2, 6, seed)
    turned = bare.read(x, "query", "key")
    found = before.read(x, "query", "key")
    for name, norm in zip(("query", "key"), before.module.projection.norms):
        close(found[name], norm(turned[name]))


@given(seeds)
def test_it_is_a_norm_with_gains_of_one(seed: int) -> None:
    x = torch.randn(2, 3, 5, D_HEAD, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cases: tuple[dict[str, Any], ...] = ({}, {"centred": True}, {"over": "all"})
    for fields in cases:
        plain: Any = QueryKeyNorm(gains="none", eps=1e-6, **fields).build(3, 3, D_HEAD)[0]
        ones: Any = QueryKeyNorm(eps=1e-6, **fields).build(3, 3, D_HEAD)[0].double()
        close(plain(x), ones(x))
        close(plain.linear(x, x[:1]), ones.linear(x, x[:1]))
        assert plain.gain is None and not list(plain.parameters())


def decoder(**settings: Any) -> Decoder:
    parts = block(n_heads=2, positions=Rope(), **settings)
    return DecoderConfig(7, 8, (parts,), max_len=8).build().double().eval()


def test_norms_of_one_side_have_parameters_on_that_side_and_those_without_gains_none() -> None:
    bare = account(decoder().config).parameters
    cases: tuple[tuple[Any, Any, int], ...] = (
        ("both", "shared", 8), ("keys", "shared", 4), ("queries", "own", 8), ("keys", "none", 0),
    )  # fmt: skip
    for of, gains, more in cases:
        model = decoder(qk_norm=QueryKeyNorm(of=of, gains=gains))
        counts = account(model.config).parameters
        assert counts["norms"] - bare["norms"] == more
        assert sum(counts.values()) == sum(p.numel() for p in model.parameters())


@in_one_pass
@pytest.mark.parametrize(
    "norm",
    [
        QueryKeyNorm(gains="none"),
        QueryKeyNorm(gains="none", of="keys"),
        QueryKeyNorm(over="all", gains="none", centred=True),
        QueryKeyNorm(of="queries", bias=True),
        QueryKeyNorm(of="keys", bias=True, centred=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", [False, True])
def test_paths_of_scores_sum_to_them_and_folded_weights_to_the_logits(norm: QueryKeyNorm, bias: bool) -> None:
    model = randomise(decoder(qk_norm=norm, bias=bias), std=0.4)
    ids = torch.tensor([[1, 2, 3, 1, 5]])
    run = analysis.run(model, ids, read=[analysis.paths.score_paths, "blocks.0.attn.scores"])
    paths = analysis.paths.score_paths(run, head="L0H1")
    close(paths.total.values.tril(), seen(run["blocks.0.attn.scores"].values)[0, 1])
    close(paths.terms.values.sum((0, 1)).tril(), seen(run["blocks.0.attn.scores"].values)[0, 1])
    for fold in (False, True):
        found = weights.logits(weights.of(model, fold=fold), ids)
        close(found.log_softmax(-1), model(ids).log_softmax(-1))
    close(weights.folded(model)(ids).log_softmax(-1), model(ids).log_softmax(-1))


def test_what_has_no_parameters_cannot_have_some() -> None:
    assert QueryKeyNorm(gains="none").eps == 0.0 and QueryKeyNorm(gains="none", eps=1e-6).eps == 1e-6
    cases: tuple[dict[str, Any], ...] = ({"bias": True}, {"offset": 1.0})
    for fields in cases:
        with pytest.raises(ConfigError, match="has no parameters"):
            QueryKeyNorm(gains="none", **fields)
    with pytest.raises(ConfigError, match="must not be negative"):
        QueryKeyNorm(eps=-1e-6)
    norm = QueryKeyNorm(gains="none", of="keys")
    assert QueryKeyNorm.from_dict(norm.to_dict()) == norm
