"""A query among its keys: the plane holds scores whole, and beside it stand lengths and angles of the vectors."""

import math

import pytest
import torch

import glassformer as gf
from glassformer.analysis.behaviour import query_key_plane
from glassformer.attention import QueryKeyNorm, Rope
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import DecoderConfig, EncoderConfig, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject
from glassformer.trace import Set

IDS = [3, 1, 4, 1, 5, 2]


def test_a_query_of_known_length_finds_keys_at_known_angles() -> None:
    model = EncoderConfig(vocab_size=5, d_model=4, layers=(block(n_heads=1, d_head=2),), max_len=16).build().double()
    path = next(iter(model.sites("*.query"))).removesuffix(".query")
    keys = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    queries = torch.tensor([[3.0, 0.0]], dtype=torch.float64).expand(4, 2)
    edits = [Set(f"{path}.query", queries[None, None]), Set(f"{path}.key", keys[None, None])]
    run = gf.run(model.eval(), torch.zeros(1, 4, dtype=torch.int64), read=[query_key_plane], edit=edits)
    found = query_key_plane(run, head="L0H0", position=1)
    close(found.angles.values, torch.tensor([0.0, 90.0, 180.0, 45.0], dtype=torch.float64))
    close(found.lengths.values, keys.norm(dim=-1))
    close(found.products.values, keys[:, 0] * 3 / math.sqrt(2))
    # two dimensions: the plane is all there is, and the last key lies on its positive side
    close(found.keys.values, keys)
    close(found.query.values, torch.tensor([3.0, 0.0], dtype=torch.float64))
    close(found.explained.values, torch.tensor([6.0, 10.0], dtype=torch.float64) / 16)
    assert found.length == 3.0 and found.streams == 1


@pytest.mark.parametrize(
    ("name", "head"),
    [("gpt2", "L1H1"), ("llama", "L0H1"), ("differential", "L1H0"), ("translator_pre", "L1X1"), ("masked_pre", "L0H0")],
)
def test_products_lie_in_the_plane_whole_and_all_axes_keep_lengths_and_angles(name: str, head: str) -> None:
    tested = subject(name, batch=1)
    run = gf.run(tested.model, *tested.inputs, read=[query_key_plane])
    scores = run[f"{head}.scores"].select(batch=0).values
    scores = scores if scores.ndim == 3 else scores[None]
    for stream, of_map in enumerate(scores):
        found = query_key_plane(run, head=head, position=2, stream=stream, axes=64)
        seen = found.products.values.isfinite()
        products, keys = found.products.values[seen], found.keys.values[seen]
        assert bool((seen == of_map[2].isfinite()).all())
        close(found.scores.values[seen], of_map[2][seen])
        # relative positions of this encoder add to its scores: they are no part of the product
        if name != "masked_pre":
            close(products, of_map[2][seen])
        close(found.scale * keys @ found.query.values, products)
        close(found.scale * keys[:, 0] * found.length, products)
        close(keys.norm(dim=-1), found.lengths.values[seen], 1e-7)
        cosines = found.angles.values[seen].deg2rad().cos()
        close(found.scale * found.length * found.lengths.values[seen] * cosines, products, 1e-7)
        close(found.explained.values.sum(), torch.tensor(1.0, dtype=torch.float64))
        # fewer axes are the first of these, and no key looks longer in them than it is
        less = query_key_plane(run, head=head, position=2, stream=stream, axes=2)
        close(less.keys.values[seen], keys[:, :2], 1e-7)
        assert bool((less.keys.values[seen].norm(dim=-1) <= found.lengths.values[seen] + 1e-9).all())


def test_grouped_normed_and_rotated_keys_are_those_that_meet() -> None:
    layer = block(n_heads=4, n_kv_heads=2, positions=Rope(at_read=True), qk_norm=QueryKeyNorm(gains="none"))
    model = randomise(DecoderConfig(11, 8, (layer,), max_len=16).build().double().eval(), 1, std=0.6)
    run = gf.run(model, IDS, read=[query_key_plane])
    for head in range(4):
        found = query_key_plane(run, head=f"L0H{head}")
        close(found.products.values, run["blocks.0.attn.scores"].values[0, head, -1])


def test_what_has_no_query_and_key_is_refused_with_why() -> None:
    with pytest.raises(AnalysisUnavailable, match='of L1H1, "linear" has no scores'):
        query_key_plane(subject("linear").model, IDS, head="L1H1")
    model = subject("gpt2").model
    with pytest.raises(AnalysisUnavailable, match='no head "L1H9"'):
        query_key_plane(model, IDS, head="L1H9")
    with pytest.raises(ShapeMismatch, match="1 map, and no map 1"):
        query_key_plane(model, IDS, head="L1H1", stream=1)
    zero = gf.run(model, IDS, read=[query_key_plane], edit=[Set("L1H1.query", 0.0)])
    with pytest.raises(AnalysisUnavailable, match="is zero"):
        query_key_plane(zero, head="L1H1")
