"""Dimensions and overlaps of what components read and write; erasers that were planted are found."""

from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import analysis, handmade, weights
from glassformer.analysis.from_weights.ports import ports
from glassformer.analysis.subspaces import _subspaces as subspaces
from glassformer.errors import AnalysisUnavailable
from glassformer.numerics.decompositions import dimensions
from glassformer.testing import close
from glassformer.testing.models import subject


def test_the_participation_ratio_of_a_product_is_that_of_the_matrix():
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((9, 3), (3, 9)))
    found = dimensions(weights.Factored(left, right).singular_values())
    squares = torch.linalg.svdvals(left @ right).square()
    close(found[2], squares.sum().square() / squares.square().sum())
    assert 1 <= float(found[2]) <= 3 and float(found[0]) == 3
    close(dimensions(7.0 * weights.Factored(left, right).singular_values()), found)


@pytest.mark.parametrize("name", ["gpt2", "llama", "parallel", "sandwich", "differential", "translator_pre"])
def test_every_component_uses_at_most_its_width(name):
    model = subject(name).model
    found = analysis.subspaces.bandwidth(model)
    values = found.dimensions.values
    assert (values[:, 2] >= 1 - 1e-9).all() and (values[:, 2] <= values[:, 0] + 1e-9).all()
    assert (values[:, 1] <= values[:, 0]).all() and (values[:, 0] <= found.d_model).all()
    assert float(found.dimensions.select(component="L0H0 V", measure="rank").values) <= 16


def test_the_heads_of_the_induction_model_use_the_blocks_they_were_given():
    model = handmade.induction_model()
    found = analysis.subspaces.bandwidth(model).dimensions
    assert float(found.select(component="L0H0", measure="rank").values) == 21
    assert float(found.select(component="L0H0", measure="participation_ratio").values) == pytest.approx(21)
    assert float(found.select(component="L0H0 K", measure="rank").values) == 41
    turned = analysis.subspaces.bandwidth(handmade.rotated(model)).dimensions
    close(turned.values[:, 2], found.values[:, 2], 1e-7)
    shared = analysis.subspaces.overlaps(model, ["token", "L0H0", "L1H0", "L1H0 K", "unembed"]).overlap
    assert float(shared.select(component="L0H0", component_2="L1H0").values) == 0
    # the key of the first token also reads its half match, which takes one direction a little out of the block
    assert float(shared.select(component="L0H0", component_2="L1H0 K").values) > 0.95
    assert float(shared.select(component="L1H0", component_2="unembed").values) == pytest.approx(1)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_overlaps_are_symmetric_shares_and_whole_with_oneself(name):
    found = analysis.subspaces.overlaps(subject(name).model)
    values = found.overlap.values
    close(values, values.mT)
    close(values.diagonal(), torch.ones(len(values), dtype=torch.float64))
    assert (values >= -1e-12).all() and (values <= 1 + 1e-9).all()


@pytest.mark.parametrize("budget", [1, 5_000, subspaces.BUDGET])
@pytest.mark.parametrize("name", ["gpt2", "llama", "differential", "translator_pre"])
def test_components_taken_together_give_what_each_gives_alone(name, budget, monkeypatch):
    monkeypatch.setattr(subspaces, "BUDGET", budget)
    w = weights.of(subject(name).model, fold=True)
    found = {port.label: port.matrix for port in ports(w, "write") + ports(w, "read")}
    alone = torch.stack([dimensions(torch.linalg.svdvals(matrix)) for matrix in found.values()])
    close(analysis.subspaces.bandwidth(w).dimensions.values, alone)
    labels = list(found)[::3]
    projections = [torch.linalg.pinv(found[label]) @ found[label] for label in labels]
    shared = torch.stack([torch.stack([(a * b).sum() for b in projections]) for a in projections])
    ranks = shared.diagonal().round()
    together = analysis.subspaces.overlaps(w, labels)
    close(together.overlap.values, shared / torch.minimum(ranks[:, None], ranks), 1e-7)
    close(together.chance.values, torch.maximum(ranks[:, None], ranks) / 16)


def test_a_matrix_of_zeros_uses_no_direction():
    close(dimensions(torch.tensor([[0.0, 0.0], [2.0, 0.0]])), torch.tensor([[0.0, 0, 0], [1, 1, 1]]))
    assert subspaces._bases(torch.zeros(1, 3, 5)).abs().sum() == 0


def test_random_subspaces_overlap_as_chance_has_it():
    bases = [torch.linalg.qr(torch.randn(16, 64, n, dtype=torch.float64))[0].mT for n in (8, 20)]
    shared = subspaces._met(bases)
    assert abs(float(shared[0, 1:16].mean()) / 8 - 8 / 64) < 0.03
    assert abs(float(shared[0, 16:].mean()) / 8 - 20 / 64) < 0.05


def test_planted_erasers_are_found_by_weights_and_by_what_they_do():
    model = subject("gpt2").model
    with torch.no_grad():
        mlp = model.stack.blocks[1].mlp
        mlp.output.weight[:, 3] = -mlp.input.weight[3]
    w = weights.of(model)
    found = analysis.subspaces.erasers(w)
    assert int(found.neuron_ids.select(mlp="L1 mlp").values[0]) == 3
    assert float(found.neurons.select(mlp="L1 mlp").values[0]) == pytest.approx(-1)
    for label in w.labels:
        big = torch.linalg.eigvals(w[label].ov().dense()[0])
        close(found.head_ratio.select(head=label).values, big.real.sum() / big.abs().sum(), 1e-6)


def test_a_head_that_takes_out_what_it_reads_has_a_cosine_of_minus_one():
    eye = torch.eye(6, dtype=torch.float64)[None]
    model: Any = handmade.skip_trigram_model(handmade.keep_in_mind()._replace(attention=100 * eye, effect=eye))
    layer = model.stack.blocks[0].attn
    with torch.no_grad():
        layer.merge.matrix()[0].copy_(-layer.projection.matrix("value")[0].mT)
    ids = torch.tensor([[0, 1, 2, 3]])
    found = analysis.subspaces.erasure(gf.run(model, ids, read=[analysis.subspaces.erasure]))
    close(found.cosine.values, -torch.ones(1, dtype=torch.float64))
    close(analysis.subspaces.erasers(model).head_ratio.values, -torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("name", ["gpt2", "llama", "parallel", "sandwich", "post", "differential", "translator_pre"])
def test_erasure_is_defined_on_every_wiring(name):
    model = subject(name)
    run = gf.run(model.model, *model.inputs, read=[analysis.subspaces.erasure])
    found = analysis.subspaces.erasure(run)
    assert (found.cosine.values.abs() <= 1 + 1e-9).all()
    assert all("X" in label for label in found.left_out)


def test_the_stream_uses_as_many_directions_as_its_covariance_says():
    model = subject("llama").model
    ids = torch.randint(0, 11, (30, 20), generator=torch.Generator().manual_seed(0))
    run = gf.run(model, ids, read=["blocks.*.resid_pre", "blocks.1.attn.head_out"])
    found = analysis.subspaces.stream_dimensions(run)
    x = run["blocks.1.resid_pre"].values[:, 1:].flatten(0, 1)
    spectrum = torch.linalg.eigvalsh(torch.cov(x.mT))
    close(
        found.participation_ratio.select(site="blocks.1.resid_pre").values,
        spectrum.sum().square() / spectrum.square().sum(),
    )
    assert found.positions == 30 * 19
    heads = [label for label in found.participation_ratio.labels("site") if "head_out" in str(label)]
    assert len(heads) == 4
    with pytest.raises(AnalysisUnavailable, match="no site of the stream"):
        analysis.subspaces.stream_dimensions(gf.run(model, ids, read=["blocks.*.attn.pattern"]))


def test_embedding_and_unembedding_share_all_directions_or_none():
    # one block of coordinates for tokens, another one for outputs
    apart = analysis.subspaces.joint_pca(handmade.skip_trigram_model())
    known = apart.embed_share.values[~apart.embed_share.values.isnan()]
    assert ((known < 1e-9) | (known > 1 - 1e-9)).sum() >= 10
    close(apart.variance.values.sum(), torch.tensor(1.0, dtype=torch.float64))
    tied = analysis.subspaces.joint_pca(weights.of(subject("bare").model))
    share = tied.embed_share.values[~tied.embed_share.values.isnan()]
    close(share, torch.full_like(share, 0.5))
