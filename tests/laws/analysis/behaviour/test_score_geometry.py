"""What makes scores: shares that sum to one, known designs, and a loop over pairs as the judge."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer.analysis.behaviour import ScoreGeometry, score_geometry
from glassformer.attention import DualChunk, Linear, QueryKeyNorm, Rope, Softmax
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Decoder, DecoderConfig, EncoderConfig, block
from glassformer.testing import close
from glassformer.testing.layers import randomise, seeds
from glassformer.testing.models import subject
from glassformer.trace import Set

QUERY, KEY, ANGLE = range(3)


def decoder(*blocks: Any, seed: int = 0, max_len: int = 16) -> Decoder:
    config = DecoderConfig(11, 8, blocks, max_len=max_len)
    return randomise(config.build().double().eval(), seed, std=0.6)


def one_head(queries: Tensor, keys: Tensor, *, both_ways: bool = True, length: int | None = None) -> ScoreGeometry:
    """Return the geometry of given queries and keys, `pos d_head` each."""
    family: Any = EncoderConfig if both_ways else DecoderConfig
    model = family(layers=(block(n_heads=1, d_head=2),), vocab_size=5, d_model=4, max_len=16).build().double().eval()
    path = next(iter(model.sites("*.query"))).removesuffix(".query")
    edits = [Set(f"{path}.query", queries[None, None]), Set(f"{path}.key", keys[None, None])]
    ids = torch.zeros(1, len(queries), dtype=torch.int64)
    return score_geometry(gf.run(model, ids, read=[score_geometry], edit=edits), length=length)


def polar(sizes: Tensor, degrees: Tensor) -> Tensor:
    angle = degrees.double().deg2rad()
    return sizes.double()[:, None] * torch.stack((angle.cos(), angle.sin()), -1)


def test_lengths_and_angles_of_a_balanced_design_have_the_shares_on_paper() -> None:
    """Keys of lengths 1 and 3 at angles 0 and 60 from every query, in all four combinations."""
    sizes, degrees = (torch.tensor(x) for x in zip(*itertools.product((1.0, 3.0), (0.0, 60.0))))
    found = one_head(polar(torch.full((4,), 2.0), torch.zeros(4)), polar(sizes, degrees))
    # independent factors: Var(rc) = c^2 Var r + r^2 Var c + Var r Var c, of which the last is shared
    size, cosine, of_size, of_cosine = 2.0, 0.75, 1.0, 0.0625
    both = of_size * of_cosine
    parts = [0.0, cosine**2 * of_size + both / 2, size**2 * of_cosine + both / 2]
    expected = torch.tensor(parts, dtype=torch.float64) / sum(parts)
    close(found.shares.values[0], expected)
    close(found.shares_within.values[0], expected)
    # times the square of the query's length, and of 1 / sqrt(d_head)
    close(found.variance.values[0], torch.full((2,), sum(parts) * 4 / 2, dtype=torch.float64))


def test_a_query_s_length_is_a_temperature_within_its_keys_and_nothing_else() -> None:
    """Queries of lengths 1 and 3, of which every key is seen: within a query only the other two rank keys."""
    sizes = torch.tensor([1.0, 3.0])
    alike = one_head(polar(sizes, torch.zeros(2)), polar(torch.ones(2), torch.zeros(2)))
    close(alike.shares.values[0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    assert bool(alike.shares_within.values.isnan().all()) and float(alike.variance.values[0, 1]) < 1e-20
    found = one_head(polar(sizes, torch.zeros(2)), polar(torch.ones(2), torch.tensor([0.0, 60.0])))
    # v(angle) = 2^2 w, v(query, angle) = 5 w, where w is the variance of cosines and 5 the mean of squared lengths
    close(found.shares_within.values[0], torch.tensor([0.1, 0.0, 0.9], dtype=torch.float64))


@given(seeds, st.sampled_from([QUERY, KEY, ANGLE]))
def test_what_does_not_vary_has_no_share(seed: int, held: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.rand(2, 6, generator=generator) + 0.5
    degrees = torch.rand(2, 6, generator=generator) * 360
    if held == ANGLE:
        degrees = torch.tensor([10.0, 55.0])[:, None].expand(2, 6)
    else:
        sizes[held] = 1.5
    found = one_head(polar(sizes[0], degrees[0]), polar(sizes[1], degrees[1]), both_ways=bool(seed % 2))
    for shares in (found.shares, found.shares_within):
        assert abs(float(shares.values[0, held])) < 1e-12
        close(shares.values.sum(-1), torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "bare", "smeared", "bounded", "differential", "translator_relative", "masked_pre"]
)
def test_shares_sum_to_one_and_variances_are_those_of_the_scores(name: str) -> None:
    tested = subject(name)
    found = score_geometry(tested.model, *tested.inputs[:1], *tested.inputs[1:])
    for shares in (found.shares, found.shares_within):
        some = ~shares.values.isnan().any(-1)
        assert bool(some.any())
        close(shares.values.sum(-1)[some], torch.ones(int(some.sum()), dtype=torch.float64))
    whole, within = found.variance.values.unbind(-1)
    assert bool((within <= whole + 1e-12).all())
    if name == "differential":
        assert [str(label) for label in found.shares.labels("head")][:4] == [
            f"L0H{h} stream {s}" for s in range(2) for h in range(2)
        ]


@pytest.mark.parametrize("at_read", [False, True])
@given(seed=seeds)
def test_it_is_what_a_loop_over_pairs_and_orders_finds(at_read: bool, seed: int) -> None:
    """Grouped keys, rotary positions and rows of unequal length."""
    model = decoder(block(n_heads=4, n_kv_heads=2, positions=Rope(at_read=at_read)), seed=seed)
    rows = [[1, 2, 3, 4, 5], [6, 7, 8]]
    found = score_geometry(model, rows, length=3)
    scores, pairs, lengths = list[float](), list[tuple[float, float, float]](), list[tuple[int, int, int]]()
    for r, row in enumerate(rows):
        run = gf.run(
            decoder(block(n_heads=4, n_kv_heads=2, positions=Rope()), seed=seed), torch.tensor([row]), read="*"
        )
        q, k = (run[f"blocks.0.attn.{what}"].values[0] for what in ("query", "key"))
        for i, j in itertools.product(range(len(row)), repeat=2):
            if j <= i:
                a, b = q[3, i], k[1, j]
                pairs.append((float(a.norm()), float(b.norm()), float(a @ b / a.norm() / b.norm())))
                scores.append(float(run["blocks.0.attn.scores"].values[0, 3, i, j]))
                lengths.append((r, i, j))
    factors = torch.tensor(pairs, dtype=torch.float64)
    close(found.variance.values[3, 0], torch.tensor(scores, dtype=torch.float64).var(correction=0))
    parts = torch.zeros(3, dtype=torch.float64)
    for order in itertools.permutations(range(3)):
        varying, before = factors.mean(0).repeat(len(pairs), 1), torch.zeros((), dtype=torch.float64)
        for i in order:
            varying[:, i] = factors[:, i]
            now = varying.prod(-1).var(correction=0)
            parts[i] += (now - before) / 6
            before = now
    close(found.shares.values[3], parts / parts.sum())
    known = torch.tensor([i < 3 for _, i, _ in lengths])
    sizes, degrees = factors[:, 1], factors[:, 2].acos().rad2deg()
    for m, measure in enumerate((degrees, sizes)):
        inside, beyond = measure[known], measure[~known]
        expected = torch.tensor([[x.min(), x.max()] for x in (inside, beyond)], dtype=torch.float64)
        close(found.ranges.values[3, m], expected)
        out = (beyond < inside.min()) | (beyond > inside.max())
        close(found.outside.values[3, m], out.double().mean())
    assert found.pairs.values[3].tolist() == [int(known.sum()), int((~known).sum())]


@given(seeds, st.floats(0.1, 9.0))
def test_one_factor_on_all_lengths_and_turning_everything_change_no_share(seed: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 6, 2, generator=generator, dtype=torch.float64)
    turn = polar(torch.ones(2), torch.tensor([40.0, 130.0]))
    plain, other = one_head(q, k, length=4), one_head(q @ turn * factor, k @ turn, length=4)
    for name in ("shares", "shares_within", "outside"):
        close(getattr(other, name).values, getattr(plain, name).values, 1e-7)
    close(other.variance.values, plain.variance.values * factor**2)


def test_normed_keys_have_no_share_and_no_new_lengths_beyond_the_trained_ones() -> None:
    norms = (False, QueryKeyNorm(gains="none", of="keys"))
    model, ids = decoder(*[block(n_heads=2, positions=Rope(), qk_norm=norm) for norm in norms]), torch.arange(9)[None]
    # in float32, where lengths differ by rounding
    model.float().trained_length = 4
    found = score_geometry(model, ids)
    bare, normed = slice(0, 2), slice(2, 4)
    assert found.length == 4
    assert bool((found.shares_within.values[bare, KEY].abs() > 1e-3).all())
    assert float(found.shares_within.values[normed, KEY].abs().max()) < 1e-6
    assert bool((found.outside.values[bare, 1] > 0).any()) and not bool(found.outside.values[normed, 1].any())
    close(found.ranges.values[normed, 1], torch.full((2, 2, 2), 2.0, dtype=torch.float64), 1e-5)


def test_a_cap_and_a_bias_come_behind_the_geometry() -> None:
    ids = torch.arange(6)[None]
    plain, capped = (
        score_geometry(decoder(block(Softmax(cap=cap), n_heads=2, positions=Rope()), seed=3), ids)
        for cap in (None, 0.5)
    )
    close(capped.shares.values, plain.shares.values)
    close(capped.variance.values, plain.variance.values)


def test_of_a_text_within_the_trained_length_nothing_lies_beyond() -> None:
    found = score_geometry(decoder(block(n_heads=2)), torch.arange(5)[None])
    assert bool(found.outside.values.isnan().all()) and bool(found.ranges.values[:, :, 1].isnan().all())
    assert found.pairs.values.tolist() == [[15.0, 0.0]] * 2
    alone = score_geometry(decoder(block(n_heads=2)), torch.tensor([[3]]))
    assert bool(alone.shares.values.isnan().all()) and not bool(alone.variance.values.any())


def test_heads_without_such_scores_are_left_out_by_name_and_refused_where_there_are_no_others() -> None:
    linear, chunks = block(Linear(), n_heads=2), block(n_heads=2, positions=DualChunk(chunk=3, length=5))
    found = score_geometry(decoder(linear, chunks, block(n_heads=2)), torch.arange(5)[None])
    assert found.shares.labels("head") == ["L2H0", "L2H1"]
    assert "has_scores=False" in found.left_out["L0H1"] and "several directions" in found.left_out["L1H0"]
    with pytest.raises(AnalysisUnavailable, match=r"products of one query and one key; found .*has_scores=False"):
        score_geometry(decoder(linear), torch.arange(5)[None])
