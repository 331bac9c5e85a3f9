"""Singular directions as tokens: the matrix is their sum, they turn with the stream, and a planted one is read."""

import pytest
import torch

from glassformer import weights
from glassformer.analysis.subspaces import rotate
from glassformer.analysis.vocabulary import singular_tokens
from glassformer.errors import AnalysisUnavailable
from glassformer.testing import close
from glassformer.testing.models import subject


def test_directions_make_up_the_matrix_and_are_ranked_by_their_share_of_it() -> None:
    w = weights.of(subject("llama").model, fold=True)
    for of in ("OV", "mlp in", "mlp gate", "mlp out"):
        found = singular_tokens(w, of, n=100, k=2)
        energy = found.energy.values.nansum(-1)
        close(energy, torch.ones_like(energy))
        first = w.mlps[0]
        matrix = {
            "OV": w["L0H0"].ov().dense()[0],
            "mlp in": first.W_in,
            "mlp gate": first.W_gate,
            "mlp out": first.W_out,
        }
        s = found.singular_values.values[0]
        close(s[~s.isnan()].square().sum(), matrix[of].square().sum())
        assert bool((found.gap.values.nan_to_num() >= 0).all())
    ov = weights.of(subject("llama").model, fold=True)["L1H1"].ov()
    u, s, v = ov.svd()
    close(u @ torch.diag_embed(s) @ v.mT, ov.dense())


def test_neither_values_nor_tokens_change_when_the_stream_is_rotated() -> None:
    w = weights.of(subject("gpt2").model, fold=True)
    turned = rotate(w, seed=1)
    one, other = singular_tokens(w, n=2, k=3), singular_tokens(turned, n=2, k=3)
    close(one.singular_values.values, other.singular_values.values)
    assert torch.equal(one.written.values, other.written.values)


def test_a_planted_direction_is_read_and_written_with_its_sign() -> None:
    found = subject("gpt2")
    w = weights.of(found.model, fold=True)
    u = w.U - w.U.mean(-1, keepdim=True)
    with torch.no_grad():
        rank_one = torch.zeros_like(w.mlps[0].W_out)
        rank_one[3] = -5 * u[:, 4]
        object.__setattr__(w.mlps[0], "W_out", rank_one)
    said = singular_tokens(w, "mlp out", ["L0 mlp"], n=2, k=3)
    logits = u[:, 4] @ u
    sign = 1.0 if float((logits**3).mean()) > 0 else -1.0
    assert torch.equal(said.written.values[0, 0], (sign * logits).topk(3).indices)
    assert torch.equal(said.unwritten.values[0, 0], (-sign * logits).topk(3).indices)
    close(said.energy.values[0, 0], torch.tensor(1.0, dtype=torch.float64))
    assert (said.read.values == -1).all() and said.table("L0 mlp")["read"] == []


def test_matrices_that_are_not_there_are_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match="has a gate"):
        singular_tokens(subject("gpt2").model, "mlp gate")
    with pytest.raises(AnalysisUnavailable, match='no MLP "L9 mlp"'):
        singular_tokens(subject("gpt2").model, "mlp in", ["L9 mlp"])
    with pytest.raises(AnalysisUnavailable, match="post-norm"):
        singular_tokens(subject("post").model, "mlp out")
    with pytest.raises(AnalysisUnavailable):
        singular_tokens(subject("memory").model, "OV", ["L1H0"])
