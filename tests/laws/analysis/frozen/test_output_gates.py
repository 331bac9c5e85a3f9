"""With gates on mixed values, and scales of norms on them, held as in a run, what a head moves is one matrix."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer import weights
from glassformer.analysis import Run, run
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.from_weights import (
    composition,
    copying,
    copying_rates,
    induction_circuits,
    matching_trace,
)
from glassformer.analysis.frozen import output_gates, with_gates
from glassformer.analysis.heads.roles import repeated_inputs
from glassformer.analysis.paths import virtual_copying
from glassformer.analysis.subspaces import erasers
from glassformer.analysis.vocabulary import crossed_cost, crossed_trigrams, skip_trigrams, token_circuits, token_pairs
from glassformer.attention import Lightning, Merge, Rope, Softmax
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import DecoderConfig, EncoderDecoderConfig, LayerNorm, Learned, NoNorm, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.analysis_laws import tensors_of
from glassformer.testing.models import Subject, drawn
from glassformer.trace import Add, At
from glassformer.weights import HeadWeights

EXACT = 1e-12
MERGES = {
    "sigmoid": Merge(gate="sigmoid"),
    "silu": Merge(gate="silu", bias=True),
    "norm": Merge(norm="head", factor=0.7),
    "normed, gated": Merge(norm="all", gate="silu"),
    "gated, normed": Merge(norm="all", groups=2, gate="silu", gate_bias=True, norm_before_gate=False),
}


def decoder(merge: Merge, n_layers: int = 2, **settings: Any) -> Subject:
    made: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "d_head": 6, "bias": True, "positions": Rope()}
    layers = (block(merge=merge, **(made | settings)),) * n_layers
    return drawn("decoder", DecoderConfig(11, 16, layers, max_len=24, final_norm=LayerNorm()))


def pair(merge: Merge) -> Subject:
    made: dict[str, Any] = {"n_heads": 4, "merge": merge}
    config = EncoderDecoderConfig(
        11, 16, encoder_layers=(block(**made),), decoder_layers=(block(cross=True, **made),),
        max_len=24, positions=Learned(), final_norm=RmsNorm(),
    )  # fmt: skip
    return drawn("pair", config)


def read_by(w: HeadWeights, done: Run, layer: Any) -> Tensor:
    """Return what values of a layer are made of, with the constant coordinate."""
    place, source = w.sub_layers[layer.path], w.model.stacks.get(w.model.source or "")
    x = done[source.final.at_out if place.crosses and source is not None else place.at_read].values
    return torch.cat((x, torch.ones_like(x[..., :1])), -1)


CASES: dict[str, Callable[[Merge], Subject]] = {
    "decoder": decoder,
    "lightning": lambda merge: decoder(merge, mixer=Lightning(), positions=None),
    "encoder and decoder": pair,
}


@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
@pytest.mark.parametrize("case", CASES)
def test_pattern_times_ov_summed_over_sources_is_what_a_head_writes(case: str, merge: Merge) -> None:
    found = CASES[case](merge)
    done = run(found.model, *found.inputs, read=["*"])
    gates, w = output_gates(done, row=1), weights.of(found.model, augment=True)
    for layer in w:
        x, pattern = read_by(w, done, layer)[1], done[f"{layer.path}.pattern"].values[1]
        for t in range(pattern.shape[1]):
            moved = torch.einsum("hs,sd,hde->he", pattern[:, t], x, layer.holding(gates.at(layer, t)).ov().dense())
            close(moved[:, :-1], done[f"{layer.path}.head_out"].values[1, :, t], EXACT)
        single = layer[1].holding(gates.at(layer[1], 3)).ov().dense()
        close(single[0], layer.holding(gates.at(layer, 3)).ov().dense()[1], EXACT)


@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
def test_what_heads_move_to_the_logits_is_their_direct_attribution_and_adds_up_to_the_logit(merge: Merge) -> None:
    found, answer, at = decoder(merge), 3, 5
    done = run(found.model, *found.inputs, read=["*"])
    gates, w = output_gates(done, row=1), weights.of(found.model, augment=True)
    attributed = direct_logit_attribution(done, answer=answer, position=at, row=1)
    said = dict(zip(attributed.contributions.labels("component"), attributed.contributions.values.tolist()))
    final, scale = w.final_norm(), done[w.final_norm().at_scale].values[1, at]
    for layer in w:
        x, pattern = read_by(w, done, layer)[1], done[f"{layer.path}.pattern"].values[1, :, at]
        moved = torch.einsum("hs,sd,hde->he", pattern, x, layer.holding(gates.at(layer, at)).ov().dense())
        logits = w.normed(moved, final, scale, bias=False) @ w.U[:, answer]
        for label, logit in zip(layer.labels, logits):
            close(torch.tensor(said[label], dtype=logit.dtype), logit, EXACT)
    assert done.logits is not None
    close(torch.tensor(sum(said.values()), dtype=torch.float64), done.logits[1, at, answer], EXACT)


@pytest.mark.parametrize("merge", [merge for merge in MERGES.values() if merge.norm is None])
def test_moving_a_value_moves_what_is_written_by_pattern_times_ov(merge: Merge) -> None:
    found, (head, source) = decoder(merge, n_layers=1), (1, 2)
    layer = weights.of(found.model)[0]
    done = run(found.model, *found.inputs, read=["*", output_gates])
    gates, change = output_gates(done), torch.linspace(-1, 1, 16, dtype=torch.float64)
    # the value that two heads share
    added = change @ layer[head].V[0]
    edited = run(
        found.model, *found.inputs, read=["*"], edit=[Add(f"{layer.path}.value", added, at=At(kv_head=0, key=source))]
    )
    moved = edited[f"{layer.path}.head_out"].values - done[f"{layer.path}.head_out"].values
    pattern = done[f"{layer.path}.pattern"].values[0, head]
    for t in range(pattern.shape[0]):
        expected = pattern[t, source] * (change @ layer[head].holding(gates.at(layer[head], t)).ov().dense()[0])
        close(moved[0, head, t], expected, EXACT)


def test_matrices_with_gates_held_at_a_position_give_the_model_s_log_probabilities_there() -> None:
    for name, merge in MERGES.items():
        found = decoder(merge, n_layers=1)
        for at in (0, 5):
            w = output_gates(found.model, *found.inputs).hold(found.model, position=at)
            made = weights.logits(w, found.inputs[0][:1])[0, at].log_softmax(-1)
            assert torch.allclose(made, found.model(found.inputs[0][:1])[0, at].log_softmax(-1), atol=EXACT), name


def without_gates(found: Subject, at: int) -> Subject:
    """Return the model whose output matrices hold what multiplied mixed values at a position, without norm and gate."""
    gates = output_gates(found.model, *found.inputs)
    plain = decoder(Merge(bias=found.model.config.layers[0].parts[0].merge.bias))
    state = {name: value for name, value in found.model.state_dict().items() if name in plain.model.state_dict()}
    plain.model.load_state_dict(state)
    with torch.no_grad():
        for layer, place in zip(weights.of(found.model), plain.model.sub_layers()):
            place.attention.merge.output.weight *= gates.at(layer, at).flatten()
    return plain


ANALYSES: dict[str, Callable[[Any], Any]] = {
    "composition": lambda m: composition(m, draws=0),
    "copying": copying,
    "copying_rates": copying_rates,
    "induction_circuits": lambda m: induction_circuits(m, draws=0, through="token"),
    "induction_circuits, stream": lambda m: induction_circuits(m, draws=0),
    "erasers": erasers,
    "virtual_copying": lambda m: virtual_copying(m, 0, 1),
    "token_pairs": lambda m: token_pairs(m, k=5),
    "token_circuits": lambda m: token_circuits(m, 5),
    "skip_trigrams": lambda m: skip_trigrams(m, k=5),
}


@pytest.mark.parametrize("merge", ["sigmoid", "normed, gated"])
@pytest.mark.parametrize("analysis", ANALYSES)
def test_an_analysis_says_of_held_gates_what_it_says_of_a_model_that_has_them_in_its_matrices(
    analysis: str, merge: str
) -> None:
    found = decoder(MERGES[merge])
    held = output_gates(found.model, *found.inputs).hold(found.model, position=4)
    with pytest.raises(AnalysisUnavailable, match=r"by a gate .*\n.*output_gates\(run\)\.hold\(model\)"):
        ANALYSES[analysis](found.model)
    said, expected = ANALYSES[analysis](held), ANALYSES[analysis](without_gates(found, 4).model)
    assert any("Gates on mixed values" in note.seen for note in said.notes)
    expected = tensors_of(expected)
    for name, values in tensors_of(said).items():
        assert torch.allclose(values, expected[name], rtol=1e-8, atol=1e-10, equal_nan=True), name


def test_by_default_gates_are_held_at_their_means_whose_ov_is_the_mean_of_all_positions() -> None:
    found = decoder(MERGES["normed, gated"])
    gates = output_gates(found.model, *found.inputs)
    for layer, held in zip(weights.of(found.model, fold=True), gates.hold(found.model)):
        each = [layer.holding(gates.at(layer, t)).ov().dense() for t in range(found.inputs[0].shape[1])]
        close(held.ov().dense(), torch.stack(each).mean(0), EXACT)


def test_a_foretelling_holds_gates_on_the_tokens_that_it_measures() -> None:
    found = decoder(MERGES["sigmoid"])
    w = with_gates(weights.of(found.model, fold=True), *repeated_inputs(found.model, seed=3))
    close(
        matching_trace(found.model, seed=3).trace.values.nan_to_num(),
        matching_trace(w, seed=3).trace.values.nan_to_num(),
    )


@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
def test_cells_taken_out_of_a_text_are_what_a_gated_head_added_there(merge: Merge) -> None:
    made: dict[str, Any] = {"n_heads": 1, "merge": merge.replace(groups=None), "norm": NoNorm()}
    found = drawn("one", DecoderConfig(5, 6, (block(**made),), max_len=8, final_norm=NoNorm()))
    model, ids = found.model, found.inputs[0]
    with torch.no_grad():
        # what is hardly anything does not count as fired
        model.sub_layers()[0].attention.merge.output.weight *= 100
    everything = list(range(5))
    crossed = crossed_trigrams(
        output_gates(model, ids).hold(model), [[0, 1]], everything, everything, everything, centred=False
    )
    ones = crossed.replace(wrong=dataclasses.replace(crossed.wrong, values=torch.ones_like(crossed.wrong.values)))
    done = run(model, ids, read=["*"])
    assert done.logits is not None
    bare = done.logits - done["blocks.0.attn.head_out"].values.sum(1) @ weights.of(model, fold=True).U
    losses = [-x[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean() for x in (done.logits, bare)]
    close(torch.tensor(crossed_cost(model, ones, ids).nats_per_token, dtype=torch.float64), losses[0] - losses[1], 1e-9)


def test_padding_of_a_batch_and_a_shorter_source_have_no_part() -> None:
    found = decoder(MERGES["sigmoid"])
    together, alone = output_gates(found.model, [[1, 2, 3, 4, 5], [6, 7]], row=1), output_gates(found.model, [[6, 7]])
    close(together.multiplier.values, alone.multiplier.values, EXACT)
    found = pair(MERGES["sigmoid"])
    gates, w = output_gates(found.model, *found.inputs), weights.of(found.model)
    for layer in w:
        assert gates.mean(layer).isfinite().all()


def test_what_is_not_there_is_refused() -> None:
    found = decoder(MERGES["sigmoid"])
    gates, layer = output_gates(found.model, *found.inputs), weights.of(found.model)[0]
    with pytest.raises(ShapeMismatch, match="position 7; the text has 7, 0 to 6"):
        gates.at(layer, 7)
    with pytest.raises(AnalysisUnavailable, match='none of "enc L0H0", so these are of another model'):
        gates.hold(pair(MERGES["sigmoid"]).model)
    plain = decoder(Merge(), mixer=Softmax())
    ones = output_gates(plain.model, *plain.inputs)
    assert (ones.multiplier.values == 1).all() and not any(layer.held for layer in ones.hold(plain.model))
    with pytest.raises(AnalysisUnavailable, match="takes folded weights"):
        virtual_copying(weights.of(plain.model), 0, 1)
