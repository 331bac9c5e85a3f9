"""Virtual heads: all of them together are the paths of order two, and the hand-built one is found."""

import sys

import pytest
import torch
from hypothesis import given

from glassformer import weights
from glassformer.analysis import run
from glassformer.analysis.paths import composed_pattern, expand_paths, virtual_copying, virtual_heads
from glassformer.analysis.paths._importance import order_worlds, sweep
from glassformer.analysis.paths._steps import step_sites, steps_of
from glassformer.analysis.paths._virtual_heads import pair_contributions
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.handmade import repeated, virtual_head_model
from glassformer.models import DecoderConfig, block, repeat
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, DIRECTED, Subject, attention_decoders, subject
from one_pass import in_one_pass


def check_sum(found: Subject, centred: bool) -> None:
    done = run(found.model, *found.inputs, read=[expand_paths])
    steps = steps_of(done, "the test")
    if steps.depth < 2:
        with pytest.raises(AnalysisUnavailable, match="no head follows another here"):
            virtual_heads(done)
        return
    streams = sweep(steps, order_worlds(2))
    logits = steps.unembed.raw(steps.final(streams, bias=True))
    order_two = logits[2] - logits[1]
    order_two = order_two - order_two.mean(-1, keepdim=True) if centred else order_two
    assert done.ids is not None
    wanted = order_two[:, :-1].gather(-1, done.ids[:, 1:, None]).mean()
    close(torch.tensor(virtual_heads(done, centred=centred).sum, dtype=torch.float64), wanted, 1e-8)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("name", [n for n in DIRECTED if ARCHITECTURES[n].output_vocab_size is None])
def test_all_pairs_together_are_the_paths_of_order_two(name: str, centred: bool) -> None:
    check_sum(subject(name), centred)


@given(attention_decoders(mlps=True))
def test_all_pairs_together_are_the_paths_of_order_two_in_any_small_model(found: Subject) -> None:
    check_sum(found, True)


@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "post", "differential", "sandwich"])
def test_a_pair_contributes_what_the_paths_through_it_do(name: str) -> None:
    found = subject(name)
    done = run(found.model, *found.inputs, read=[expand_paths])
    steps = steps_of(done, "the test")
    u = steps.final.adjoint(steps.unembed.weight[3].expand_as(steps.token))
    ((pairs, values),) = pair_contributions(steps, u)
    split = expand_paths(done, answer=3, position=5, row=1)
    for pair, value in zip(pairs, values.flatten(0, 1)[:, 1, 5].tolist()):
        assert value == pytest.approx(sum(p.value for p in split.paths if p.heads == pair), abs=1e-12)


def test_pieces_of_first_heads_give_what_all_at_once_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = subject("gpt2")
    done = run(found.model, *found.inputs, read=[expand_paths])
    whole = virtual_heads(done)
    monkeypatch.setattr(sys.modules[pair_contributions.__module__], "BUDGET", 1)
    close(virtual_heads(done).size.values, whole.size.values)


def test_the_hand_built_virtual_head_is_found() -> None:
    model, ids = virtual_head_model(), repeated(10, batch=2)
    done = run(model, ids, read=[expand_paths])
    pattern = composed_pattern(done, first="L0H0", second="L1H0").values
    close(pattern.diagonal(-2), torch.ones(ids.shape[1] - 2, dtype=torch.float64))
    found = virtual_heads(done, n_offsets=4, centred=False)
    assert found.pairs[0] == ("L0H0", "L1H0")
    assert float(found.offsets.select(pair="L0H0 > L1H0", offset=2).values) == pytest.approx(1.0)
    # offset 1 is there for the second position alone, which has no one two back
    assert float(found.offsets.select(pair="L0H0 > L1H0", offset=3).values) == pytest.approx(0.0, abs=1e-9)
    copying = virtual_copying(model, 0, 1)
    assert float(copying.score.select(first="L0H0", second="L1H0").values) == pytest.approx(1.0)
    assert float(copying.positive.select(first="L0H0", second="L1H0").values) == 1
    eigenvalues = copying.eigenvalues.select(first="L0H0", second="L1H0").values
    # c for every direction of the ten tokens but the one that raises all logits alike
    close(eigenvalues.real.sort().values[-10:], torch.tensor([0.0] + [30.0] * 9, dtype=torch.float64))


def test_rows_of_a_composed_pattern_sum_to_one_and_see_nothing_later() -> None:
    done = run(subject("gpt2").model, [1, 2, 3, 4, 5], read=step_sites(subject("gpt2").model))
    pattern = composed_pattern(done, first="L0H1", second="L1H3").values
    close(pattern.sum(-1), torch.ones(5, dtype=torch.float64))
    assert not pattern.triu(1).any()


@pytest.mark.parametrize("name", ["gpt2", "llama", "attention_only", "parallel", "sandwich", "bare", "differential"])
def test_copying_eigenvalues_are_those_of_the_circuit_over_the_vocabulary(name: str) -> None:
    model = subject(name).model
    found = virtual_copying(model, 0, 1)
    w = weights.of(model, fold=True)
    first, second = w[0], w[1]
    d = w.E.shape[1]
    centre = torch.eye(d, dtype=torch.float64) - 1 / d

    def read(norm: object) -> torch.Tensor:
        return centre if norm.centred else torch.eye(d, dtype=torch.float64)  # type: ignore[attr-defined]

    between = read(model.stack.blocks[1].attn_norm)
    embed = w.read(w.E, first)
    for i, j in ((0, 0), (1, 0)):
        ov = first.ov()[i].dense() @ between @ second.ov()[j].dense()
        dense = torch.linalg.eigvals(embed @ ov @ read(model.stack.final) @ w.U)
        rank = found.eigenvalues.size("rank")
        largest = dense[dense.abs().argsort(descending=True)[:rank]]
        close(found.eigenvalues.values[i, j].sum().real, dense.sum().real, 1e-7)
        close(found.eigenvalues.values[i, j].abs().sort(descending=True).values, _padded(largest.abs(), rank), 1e-6)


def _padded(values: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat((values, values.new_zeros(size - len(values))))


def test_post_norm_blocks_have_no_virtual_copying_from_weights() -> None:
    with pytest.raises(AnalysisUnavailable, match=r"layer 0 is post-norm.*\n.*virtual_heads\(run\) freezes"):
        virtual_copying(subject("post").model, 0, 1)


def test_layers_that_do_not_follow_each_other_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="layers 1 and 0 of 2 do not follow each other"):
        virtual_copying(subject("gpt2").model, 1, 0)
    done = run(subject("gpt2").model, [1, 2], read=step_sites(subject("gpt2").model))
    with pytest.raises(AnalysisUnavailable, match='"L0H1" does not read what "L1H1" writes'):
        composed_pattern(done, first="L1H1", second="L0H1")


def test_two_attention_parts_of_a_parallel_block_make_no_virtual_head() -> None:
    layer = block(n_heads=2, wiring="parallel")
    config = DecoderConfig(7, 8, repeat(layer.replace(parts=layer.parts * 2), 1), max_len=8)
    model = randomise(config.build().double())
    with pytest.raises(AnalysisUnavailable, match="no head follows another"):
        virtual_heads(run(model, [1, 2, 3], read=[expand_paths]))
    with pytest.raises(AnalysisUnavailable, match="parallel block 0"):
        virtual_copying(model, 0, 1)


def test_a_text_of_one_token_is_refused() -> None:
    model = subject("gpt2").model
    with pytest.raises(AnalysisUnavailable, match="one token and so no next one"):
        virtual_heads(run(model, [1], read=[expand_paths]))
