"""Ablation: exact on constructions and on paths written out, one by one as batched, refused where undefined."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.analysis.causal import ablate, ablate_each, before_after
from glassformer.analysis.heads.roles import heads
from glassformer.analysis.losses import losses_of
from glassformer.attention import QueryKeyOnly
from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.errors import AnalysisUnavailable, CheckpointError, NoPattern, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, NoNorm, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import At, Scale, Tape


def batch_for(name: str, length: int = 9, rows: int = 3) -> tuple[Any, Batch]:
    found = subject(name, batch=rows, length=length)
    return found.model, found.batch()


def test_without_the_previous_token_head_the_second_copy_costs_as_much_as_the_first() -> None:
    model, ids = induction_model(), repeated(batch=3)
    full = ablate(model, "L0H0", ids)
    second = full.loss_by_position.values[0, 21:]
    close(second, torch.full_like(second, math.log(21)), 0.05)
    kept = ablate(model, "L0H0", ids, kind="pattern_preserving")
    assert kept.loss_by_position.values[0, 21:].max() < 1e-6


def test_the_induction_head_carries_all_in_context_learning() -> None:
    found = ablate_each(induction_model(), repeated(batch=4))
    share = found.icl_share
    assert float(share.select(heads="L1H0").values) == pytest.approx(1, abs=1e-3)
    assert float(share.select(heads="L0H0").values) == pytest.approx(1, abs=0.05)
    for idle in ("L0H1", "L1H1"):
        assert float(found.loss_change.select(heads=idle).values) == pytest.approx(0, abs=1e-12)


def test_ablations_that_were_interrupted_go_on_and_those_of_other_rows_are_refused(tmp_path: Path) -> None:
    model, given = induction_model(), [repeated(batch=2), repeated(batch=3)]

    def stop(done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ablate_each(model, *given, report=stop, save_to=tmp_path)
    assert (tmp_path / "batch-0.safetensors").exists()
    found, whole = ablate_each(model, *given, save_to=tmp_path), ablate_each(model, *given)
    assert torch.equal(found.loss_change.values, whole.loss_change.values)
    with pytest.raises(CheckpointError, match="another sweep"):
        ablate_each(model, *given[::-1], save_to=tmp_path)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_head_at_once_is_each_head_alone(name: str) -> None:
    model, batch = batch_for(name)
    together = ablate_each(model, batch)
    labels = [head.label for head in heads(model)]
    assert together.loss_change.labels("heads") == labels
    for label in labels[:: max(1, len(labels) // 3)]:
        alone = ablate(model, label, batch)
        close(alone.loss_by_position.values[0], together.loss_by_position.select(heads=label).values)


@pytest.mark.parametrize("name", ["gpt2", "llama", "post", "sandwich", "parallel", "smeared", "linear"])
def test_full_ablation_is_one_pass_without_the_heads_write(name: str) -> None:
    model, batch = batch_for(name)
    tape = Tape(model, edit=[Scale("blocks.0.attn.head_out", 0.0, at=At(head=1))])
    expected = losses_of(model(batch.tokens, tape=tape), batch)
    found = ablate(model, "L0H1", batch)
    close(found.loss_by_position.values[0], expected.mean(0))
    base = losses_of(model(batch.tokens), batch).detach()
    assert found.loss == pytest.approx(float(base.mean()))
    rows = (expected.detach() - base).mean(1)
    assert float(found.loss_change.values) == pytest.approx(float(rows.mean()))
    assert float(found.loss_change_spread.values) == pytest.approx(float(rows.std() / 3**0.5))


@pytest.mark.parametrize("kind", ["full", "pattern_preserving"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "differential", "bare"])
def test_the_last_layer_has_no_later_pattern_to_keep(name: str, kind: Any) -> None:
    model, batch = batch_for(name)
    last = [head.label for head in heads(model) if head.layer == 1]
    close(
        ablate_each(model, batch, chosen=last, kind=kind).loss_by_position.values,
        ablate_each(model, batch, chosen=last).loss_by_position.values,
    )


def test_pattern_preserving_ablation_takes_away_the_paths_through_the_head() -> None:
    """The paths of two layers written out: none, one, the other, both."""
    layers = [block(n_heads=3, positions=QueryKeyOnly(2.0), norm=NoNorm())] * 2
    config = DecoderConfig(11, 12, tuple(layers), max_len=24, final_norm=NoNorm(), tied=False)
    model = randomise(config.build().double().eval(), 3)
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    batch = next_token_batch(ids)
    tape = Tape(model, ["blocks.*.attn.pattern", "embed.token"])
    model(batch.tokens, tape=tape)
    x = tape.values["embed.token"]

    def through(layer: int, head: int, stream: Tensor) -> Tensor:
        attn: Any = model.stack.blocks[layer].attn
        value, out = attn.projection.matrix("value")[head], attn.merge.matrix()[head]
        return tape.values[f"blocks.{layer}.attn.pattern"][:, head] @ (stream @ value) @ out

    for layer, gone in ((0, 1), (1, 2)):
        kept = [[h for h in range(3) if (level, h) != (layer, gone)] for level in range(2)]
        total = x + sum(through(0, h, x) for h in kept[0]) + sum(through(1, h, x) for h in kept[1])
        total = total + sum(through(1, h2, through(0, h1, x)) for h1 in kept[0] for h2 in kept[1])
        expected = losses_of(model.unembed.logits(total), batch).detach().mean(0)
        found = ablate(model, f"L{layer}H{gone}", batch, kind="pattern_preserving")
        close(found.loss_by_position.values[0], expected)


def test_with_norms_frozen_ablating_two_heads_of_the_last_layer_adds_up_in_the_logits() -> None:
    model, batch = batch_for("attention_only")
    kwargs: dict[str, Any] = {"kind": "pattern_preserving", "norms": "frozen"}
    both = ablate(model, ["L1H0", "L1H1"], batch, **kwargs)
    tape = Tape(model, ["blocks.1.attn.head_out", "final.scale", "final.norm"])
    model(batch.tokens, tape=tape)
    lost = model.stack.final.linear(tape.values["blocks.1.attn.head_out"].sum(1), tape.values["final.scale"])
    logits = model.unembed.logits(tape.values["final.norm"] - lost)
    close(both.loss_by_position.values[0], losses_of(logits, batch).detach().mean(0))
    assert both.norms == "frozen"


@pytest.mark.parametrize("name", ["gpt2", "lightning_hybrid", "translator_pre"])
def test_the_mean_takes_the_place_of_what_a_head_writes(name: str) -> None:
    model, batch = batch_for(name)
    label = heads(model)[-1].label
    path = heads(model)[-1].path
    tape = Tape(model, [f"{path}.head_out"])
    inputs = (batch.tokens,) if batch.source is None else (batch.source, batch.tokens)
    model(*inputs, tape=tape)
    mean = tape.values[f"{path}.head_out"][:, -1].mean((0, 1))
    index = heads(model)[-1].head
    edit = [(f"{path}.head_out", lambda w: torch.cat((w[:, :index], mean.expand_as(w[:, index:])), 1))]
    expected = losses_of(model(*inputs, tape=Tape(model, edit=edit)), batch).detach().mean(0)
    close(ablate(model, label, batch, value="mean").loss_by_position.values[0], expected)


def test_ablation_undoes_what_the_head_alone_was_made_of() -> None:
    after, before = induction_model(gamma=6.0), induction_model(gamma=6.0)
    layer: Any = before.stack.blocks[1].attn
    with torch.no_grad():
        layer.merge.matrix()[0].zero_()
    found = before_after(before, after, "L1H0", repeated(batch=2))
    assert (found.cosine, found.projection) == (pytest.approx(1), pytest.approx(1))
    assert found.rise_by_ablation == pytest.approx(found.rise_by_going_back)
    idle = before_after(before, after, "L0H1", repeated(batch=2))
    assert idle.projection == pytest.approx(0, abs=1e-12)


def test_packed_and_padded_rows_count_what_they_hold() -> None:
    model = subject("gpt2").model
    ids = torch.tensor([[1, 2, 1, 2, 9, 9], [1, 2, 3, 1, 2, 3]])
    lengths = torch.tensor([3, 5])
    batch = next_token_batch(ids, torch.arange(5) < lengths[:, None], lengths=lengths)
    found = ablate(model, "L0H1", batch)
    alone = [ablate(model, "L0H1", row) for row in ([1, 2, 1, 2], [1, 2, 3, 1, 2, 3])]
    expected = (3 * float(alone[0].loss_change.values) + 5 * float(alone[1].loss_change.values)) / 8
    assert float(found.loss_change.values) == pytest.approx(expected)
    # batches of different lengths are one set of rows, as padded ones are
    apart = ablate(model, "L0H1", [1, 2, 1, 2], [1, 2, 3, 1, 2, 3])
    assert float(apart.loss_change.values) == pytest.approx(expected)
    close(apart.loss_by_position.values, found.loss_by_position.values)


def test_what_cannot_be_ablated_is_said() -> None:
    model, batch = batch_for("gpt2")
    with pytest.raises(AnalysisUnavailable, match=r'no head "L9H9".*Heads: L0H0'):
        ablate(model, "L9H9", batch)
    with pytest.raises(ShapeMismatch, match="at least one batch"):
        ablate(model, "L0H0")
    with pytest.raises(AnalysisUnavailable, match="give a Batch"):
        ablate(subject("translator_pre").model, "L0H0", [1, 2, 3])


@pytest.mark.parametrize("name", ["masked_pre", "masked_post"])
def test_an_encoder_loses_masked_tokens_and_has_no_context_to_learn_in(name: str) -> None:
    found = subject(name)
    batch = found.batch()
    assert (batch.tokens[batch.weight] == 0).all() and torch.equal(batch.targets, found.inputs[0])
    ours = ablate_each(found.model, batch)
    for head in heads(found.model)[::3]:
        edit = [Scale(f"{head.path}.head_out", 0.0, at=At(head=head.head))]
        logits = found.model(batch.tokens, tape=Tape(found.model, edit=edit))
        nll = -logits.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
        close(ours.loss_change.select(heads=head.label).values + ours.loss, nll[batch.weight].mean())
    assert math.isnan(ours.icl) and ours.icl_change.values.isnan().all()
    with pytest.raises(AnalysisUnavailable, match=r"targets of this Batch are next tokens(.|\n)*tokens with masks"):
        ablate(found.model, "L0H0", next_token_batch(found.inputs[0]))
    with pytest.raises(AnalysisUnavailable, match="a text says of none that it is masked"):
        ablate(found.model, "L0H0", [1, 2, 3])


def test_patterns_that_do_not_exist_cannot_be_preserved(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = batch_for("gpt2")
    mixer = model.stack.blocks[0].attn.mixer
    monkeypatch.setattr(mixer, "traits", dataclasses.replace(mixer.traits, linear_in_value="no"))
    with pytest.raises(NoPattern, match=r'L0H0 \("softmax"\) has none'):
        ablate(model, "L1H0", batch, kind="pattern_preserving")
