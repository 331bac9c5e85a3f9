"""Neurons in the vocabulary: what streams through blocks is what the whole table says, and planted kinds are seen."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer import weights
from glassformer.analysis import run
from glassformer.analysis.vocabulary import activating_texts, ends, neuron_tokens
from glassformer.analysis.vocabulary.ends import both_ends
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import DecoderConfig, LayerNorm, Mlp, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject

IDS = torch.tensor([[5, 9, 3, 7, 2]])


def decoder(*, gated: bool = False, vocab: int = 40) -> Any:
    config = DecoderConfig(
        layers=(block(n_heads=2, mlp=Mlp(24, gated=gated), norm=LayerNorm()),) * 2, d_model=16, vocab_size=vocab,
        max_len=8, final_norm=LayerNorm(), tied=False,
    )  # fmt: skip
    return randomise(config.build().double().eval(), 0, std=0.4)


def table(model: Any) -> Tensor:
    """Return what each neuron of the first layer adds to each logit, as one product, means taken out."""
    w = weights.of(model, fold=True)
    found = w.mlps[0].W_out @ w.U
    return found - found.mean(-1, keepdim=True)


@pytest.mark.parametrize("gated", [False, True])
def test_blocks_give_what_the_whole_table_gives(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder(gated=gated)
    monkeypatch.setattr(ends, "BLOCK", 50)
    monkeypatch.setattr(ends, "VECTORS", 7)
    counts = torch.arange(40)
    found, whole = neuron_tokens(model, k=4, counts=counts), table(model)
    high, low = whole.topk(4), whole.topk(4, largest=False)
    close(found.promoted.values[0], high.values)
    assert torch.equal(found.promoted_tokens.values[0], high.indices)
    close(found.suppressed.values[0], low.values)
    assert torch.equal(found.suppressed_tokens.values[0], low.indices)

    def measure(name: str) -> Tensor:
        return found.measures.select(measure=name).values[0]

    standard = whole / whole.square().mean(-1, keepdim=True).sqrt()
    close(measure("variance"), whole.square().mean(-1))
    close(measure("skew"), (standard**3).mean(-1))
    close(measure("kurtosis"), (standard**4).mean(-1) - 3)
    logs = (counts + 1).double().log()
    close(measure("frequency"), torch.corrcoef(torch.cat((logs[None], whole)))[0, 1:])
    w = weights.of(model, fold=True)
    key = w.mlps[0].W_in if w.mlps[0].W_gate is None else w.mlps[0].W_gate
    close(measure("cosine"), torch.cosine_similarity(key.mT, w.mlps[0].W_out, dim=-1))
    read = w.normed(w.E, w.sub_layers["blocks.0.mlp"].before, bias=False) @ key
    assert torch.equal(found.sought_tokens.values[0], read.mT.topk(4).indices)
    assert found.table("L0 mlp", 3, 2)["promoted"] == [f"{i}:{i}" for i in high.indices[3, :2].tolist()]


def test_what_neurons_add_is_what_the_mlp_writes() -> None:
    """Sum over neurons of act_n times their logits, and the bias: the logits that the MLP's write adds."""
    model = decoder()
    done, w = run(model, IDS, read=["blocks.1.mlp.hidden", "blocks.1.mlp.out"]), weights.of(model)
    mlp = w.mlps[1]
    assert mlp.b_out is not None
    written = done["blocks.1.mlp.hidden"].values @ mlp.W_out + mlp.b_out
    close(written @ w.read_out(), done["blocks.1.mlp.out"].values @ w.read_out())
    close(written, done["blocks.1.mlp.out"].values)


def test_planted_neurons_are_told_what_they_are() -> None:
    model = decoder(vocab=12)
    w = weights.of(model, fold=True)
    u = w.U - w.U.mean(-1, keepdim=True)
    frequency = torch.arange(1.0, 13.0, dtype=torch.float64)
    logs = (frequency + 1).log()
    null = torch.linalg.svd(u @ u.mT)[0][:, 12:15]
    with torch.no_grad():
        out = model.stack.blocks[0].mlp.output.weight
        out[:, 0] = torch.linalg.pinv(u.mT) @ (logs - logs.mean())
        out[:, 1] = null[:, 1]
        out[:, 2] = torch.linalg.pinv(u.mT) @ (torch.eye(12, dtype=torch.float64)[7] - 1 / 12)
        out[:, 3] = model.stack.blocks[0].mlp.input.weight[3]
    found = neuron_tokens(model, counts=frequency, null=0.3)
    first = found.measures.values[0]
    named = {name: i for i, name in enumerate(found.measures.labels("measure"))}
    assert found.null_directions == math.ceil(0.3 * 16)
    close(first[0, named["frequency"]], torch.tensor(1.0, dtype=torch.float64), 1e-6)
    close(first[1, named["null share"]], torch.tensor(1.0, dtype=torch.float64), 1e-6)
    assert float(first[1, named["gain"]]) < 1e-6
    assert int(found.promoted_tokens.values[0, 2, 0]) == 7 and float(first[2, named["skew"]]) > 2.5
    # the others are neither
    assert float(first[3:, named["null share"]].max()) < 0.9 and float(first[3:, named["frequency"]].abs().max()) < 0.95


def test_shares_of_an_orthonormal_basis_add_up_to_the_directions() -> None:
    """Over a basis null shares add up to how many directions count, and squared gains to how many there are."""
    model = decoder()
    with torch.no_grad():
        basis = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64))[0]
        model.stack.blocks[0].mlp.output.weight[:, :16] = basis
    w = weights.of(model)
    found = neuron_tokens(w, null=0.2).measures
    close(found.select(measure="null share").values[0, :16].sum(), torch.tensor(4.0, dtype=torch.float64))
    close(found.select(measure="gain").values[0, :16].square().sum(), torch.tensor(16.0, dtype=torch.float64))


def test_a_sum_over_tokens_is_zero_once_means_are_taken_out() -> None:
    rows = torch.randn(30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    vectors = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = both_ends(vectors, lambda some: rows[some], 30, 30, mean=rows.mean(0))
    assert found.high.sum(-1).abs().max() < 1e-12 and torch.equal(found.high.flip(-1), found.low)
    assert found.correlation.isnan().all()


def test_what_neurons_are_not_defined_for_is_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match=r'no MLP "L2 mlp"\. Nearest: "L0 mlp"|no MLP "L2 mlp"'):
        neuron_tokens(decoder(), ["L2 mlp"])
    with pytest.raises(AnalysisUnavailable, match="post-norm"):
        neuron_tokens(subject("post").model)
    with pytest.raises(AnalysisUnavailable, match="not one set of matrices"):
        neuron_tokens(subject("experts").model)
    with pytest.raises(AnalysisUnavailable, match="no MLP of this model"):
        neuron_tokens(subject("attention_only").model)
    with pytest.raises(ShapeMismatch, match="give one for each of 40 outputs"):
        neuron_tokens(decoder(), counts=[1, 2])


def test_the_places_that_excite_neurons_are_the_highest_of_all_texts() -> None:
    model = decoder()
    rows = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 1, 2], [3, 3, 3]]
    found = activating_texts(model, rows, layer=1, neurons=[4, 0], k=3, context=2, rows_at_once=2)
    every = []
    for i, row in enumerate(rows):
        hidden = run(model, torch.tensor([row]), read="blocks.1.mlp.hidden")["blocks.1.mlp.hidden"].values[0]
        every += [(float(hidden[p, 4]), i, p) for p in range(len(row))]
    best = sorted(every, reverse=True)[:3]
    close(found.activations.values[0], torch.tensor([value for value, *_ in best], dtype=torch.float64))
    there = zip(found.texts.values[0].tolist(), found.positions.values[0].tolist())
    assert list(there) == [(i, p) for _, i, p in best]
    assert found.n_positions == 14 and len(found.contexts["4"]) == 3
    with pytest.raises(AnalysisUnavailable, match='no MLP "mlp" in layer 5'):
        activating_texts(model, rows, layer=5)
    with pytest.raises(ShapeMismatch, match="neurons"):
        activating_texts(model, rows, layer=1, neurons=[24])
