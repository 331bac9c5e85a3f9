"""A fact written by a forward pass: its logit rises as it should, the model is given back bit for bit, and facts that
were planted are rewritten."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.analysis import run
from glassformer.analysis.gradients import WeightEdit, edit_fact, linear_gradients
from glassformer.errors import AnalysisUnavailable, TokenOutOfRange
from glassformer.models import DecoderConfig, LayerNorm, Mlp, NoNorm, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject

IDS = torch.tensor([[5, 9, 3, 7, 2]])


def decoder(norm: Any, *, gated: bool = False) -> Any:
    config = DecoderConfig(
        layers=(block(n_heads=2, mlp=Mlp(12, gated=gated), norm=norm),) * 2, d_model=8, vocab_size=11, max_len=8,
        final_norm=norm, tied=False,
    )  # fmt: skip
    return randomise(config.build().double().eval(), 0, std=0.4)


def bits(model: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def remembering() -> Any:
    """Build a model that is a memory: MLP neuron i is active after token i alone, and writes the token i + 1."""
    config = DecoderConfig(
        layers=(block(n_heads=1, mlp=Mlp(8, activation="relu", bias=False), norm=NoNorm()),), d_model=16, vocab_size=8,
        max_len=8, final_norm=NoNorm(), tied=False,
    )  # fmt: skip
    model: Any = config.build().double().eval()
    eye = torch.eye(8, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        mlp = model.stack.blocks[0].mlp
        model.embed.stored[:, :8] = eye
        mlp.input.weight[:, :8] = eye
        mlp.output.weight[8:] = 3 * eye.roll(1, 0)
        model.unembed.stored[:, 8:] = eye
    return model


@pytest.mark.parametrize("gated", [False, True])
def test_in_the_last_layer_without_norms_the_logit_rises_by_size_and_both_squared_lengths(gated: bool) -> None:
    model, answer, size = decoder(NoNorm(), gated=gated), 3, 0.07
    found = edit_fact(model, IDS, answer, layer=1, size=size)
    x = run(model, IDS, read="blocks.1.mlp.hidden")["blocks.1.mlp.hidden"].values[0, -1]
    u = model.unembed.weight[answer]
    risen = found.logit.values[1, 0] - found.logit.values[0, 0]
    close(risen, size * x.square().sum() * u.square().sum())
    close(torch.tensor(found.norm), (size * x.norm() * u.norm()).float(), 1e-6)
    assert found.step.norm == pytest.approx(found.edit.norm)


def test_a_change_is_applied_while_it_lasts_and_taken_back_bit_for_bit() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        found = subject("llama", batch=1, dtype=torch.float64)
        model, ids = found.model.to(dtype), found.inputs[0]
        before, change = bits(model), edit_fact(found.model, ids, 3, layer=0, size=0.3).edit
        assert all(torch.equal(one, other) for one, other in zip(before, bits(model)))
        with pytest.raises(RuntimeError, match="on the way"), change.applied(model):
            changed = [not torch.equal(one, other) for one, other in zip(before, bits(model))]
            assert sum(changed) == 1
            raise RuntimeError("on the way")
        assert all(torch.equal(one, other) for one, other in zip(before, bits(model)))


def test_as_an_edit_of_a_site_it_does_what_the_change_of_weights_does() -> None:
    model = decoder(LayerNorm(), gated=True)
    change = edit_fact(model, IDS, 3, layer=0, size=0.5).edit
    by_site = run(model, IDS, edit=change.edit(model)).predictions()
    with change.applied(model):
        by_weights = run(model, IDS).predictions()
    close(by_site, by_weights)
    assert (by_weights - run(model, IDS).predictions()).abs().max() > 1e-3


def test_the_gradient_step_is_the_gradient_at_the_size_of_the_edit() -> None:
    model = decoder(LayerNorm())
    found = edit_fact(model, IDS, 3, layer=0, size=0.2)
    gradient = linear_gradients(model, IDS, 3).gradient("L0 mlp out").dense()
    dense = found.step.left.mT @ found.step.right
    close(dense, -gradient * (found.edit.norm / gradient.norm()))
    close(dense.norm(), torch.tensor(found.step.norm, dtype=torch.float64))
    assert found.log_probability.values[2, 0] > found.log_probability.values[0, 0] - 1


def test_a_planted_fact_is_rewritten_for_every_way_to_ask_and_for_nothing_else() -> None:
    """One neuron holds the fact: whatever ends in token 2 is the same question, all else is another."""
    model = remembering()
    asked: dict[str, Any] = {"paraphrases": [[4, 2], [1, 1, 2]], "neighbours": [[1], [2, 5], [6, 3]]}
    found = edit_fact(model, [2], 6, layer=0, size=9.0, **asked)
    assert found.likeliest.values[0].tolist() == [3, 3, 3, 2, 6, 4]
    assert found.scores.values.tolist() == [[0, 0, 1], [1, 1, 1], [1, 1, 1]]
    assert found.likeliest.values[1].tolist() == [6, 6, 6, 2, 6, 4]
    # too small to matter
    weak = edit_fact(model, [2], 6, layer=0, size=0.1, **asked)
    assert weak.scores.values[1].tolist() == [0, 0, 1]
    assert edit_fact(model, [2], 6, layer=0, size=9.0).scores.values[1, 1:].isnan().all()


def test_what_cannot_be_edited_is_refused() -> None:
    model = decoder(LayerNorm())
    with pytest.raises(TokenOutOfRange):
        edit_fact(model, IDS, 11, layer=0, size=0.1)
    with pytest.raises(AnalysisUnavailable, match=r'no MLP "mlp" in layer 2\. MLPs: layer 0 "mlp", layer 1 "mlp"'):
        edit_fact(model, IDS, 3, layer=2, size=0.1)
    for name in ("masked_pre", "translator_relative"):
        with pytest.raises(AnalysisUnavailable, match="what a decoder says next"):
            edit_fact(subject(name).model, IDS, 3, layer=0, size=0.1)
    with pytest.raises(AnalysisUnavailable, match="factored output layer"):
        edit_fact(subject("adaptive").model, IDS, 3, layer=0, size=0.1)
    change = WeightEdit("L0 attn Q", torch.zeros(1, 8), torch.zeros(1, 8))
    with pytest.raises(AnalysisUnavailable, match="between no two sites"):
        change.edit(model)
    with (
        pytest.raises(AnalysisUnavailable, match=r'no linear map "L7 mlp out"'),
        WeightEdit("L7 mlp out", change.left, change.right).applied(model),
    ):
        pass
