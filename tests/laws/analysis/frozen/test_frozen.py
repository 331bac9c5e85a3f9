"""Frozen patterns and scales: the run's own change nothing, and what is left of attention is affine."""

import pytest
import torch
from hypothesis import assume, given

from glassformer.analysis import run
from glassformer.analysis.frozen import frozen_edits, linearity
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, SiteNotRead
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, Subject, attention_decoders, subject
from glassformer.trace import At, Scale, Set

every = pytest.mark.parametrize("name", ARCHITECTURES)


@every
@pytest.mark.parametrize("kept", [{}, {"patterns": False}, {"scales": False}], ids=str)
def test_a_run_frozen_to_itself_gives_the_same_logits(name: str, kept: dict[str, bool]) -> None:
    found = subject(name)
    clean = run(found.model, *found.inputs, read=[frozen_edits])
    again = run(found.model, *found.inputs, edit=frozen_edits(clean, **kept))
    assert clean.logits is not None and again.logits is not None
    close(again.logits, clean.logits)


def test_a_run_frozen_to_another_text_does_not() -> None:
    found = subject("attention_only")
    clean = run(found.model, [[1, 2, 3]], read=[frozen_edits])
    free, frozen = (run(found.model, [[4, 2, 5]], edit=edit).logits for edit in ([], frozen_edits(clean)))
    assert free is not None and frozen is not None
    assert float((free - frozen).detach().abs().max()) > 1e-3


@given(attention_decoders())
def test_attention_is_affine_once_frozen(found: Subject) -> None:
    gated = [b for b in found.model.stack.blocks if b.part("attn").merge.gate is not None]
    assume(not gated)
    assert linearity(found.model, found.inputs[0][:1]).deviation < 1e-10


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_mlps_are_not_affine_frozen_or_not(name: str) -> None:
    assert linearity(subject(name).model, [1, 2, 3]).deviation > 1e-2


def test_ablating_a_head_changes_no_other_head_of_its_layer() -> None:
    found = subject("gpt2")
    site = "blocks.0.attn.head_out"
    clean, without = (
        run(found.model, *found.inputs, read=[site], edit=edit)[site].values
        for edit in ([], [Scale("blocks.0.attn.z", 0.0, at=At(head=2))])
    )
    kept = [0, 1, 3]
    close(without[:, kept], clean[:, kept])
    assert not without[:, 2].any() and clean[:, 2].any()


@every
def test_heads_and_bias_sum_to_what_attention_writes(name: str) -> None:
    found = subject(name)
    part = list(found.model.stacks.values())[-1].blocks[1].part("attn")
    # two runs: reading per-head writes changes how the whole is computed
    heads = run(found.model, *found.inputs, read=[part.at.head_out])[part.at.head_out].values
    whole = run(found.model, *found.inputs, read=[part.at.out])[part.at.out].values
    bias = part.merge.output.bias
    close(heads.sum(1) + (0 if bias is None else bias), whole)


def test_freezing_keeps_a_pattern_that_an_ablation_below_would_change() -> None:
    model = subject("attention_only").model
    clean = run(model, [1, 2, 3, 4], read=[frozen_edits])
    without = Scale("blocks.0.attn.z", 0.0, at=At(head=0))
    site = "blocks.1.attn.pattern"
    live, frozen = (run(model, [1, 2, 3, 4], read=[site], edit=edit)[site].values for edit in (
        [without], [*frozen_edits(clean), without]
    ))  # fmt: skip
    close(frozen, clean[site].values)
    assert float((live - clean[site].values).abs().max()) > 1e-4


def test_gradients_of_a_frozen_run_are_those_of_the_linear_map() -> None:
    model = subject("attention_only").model
    clean = run(model, [[1, 2, 3]], read=[frozen_edits, "embed.token"])
    edits = frozen_edits(clean)

    def logit(scale: float) -> torch.Tensor:
        x = (clean["embed.token"].values * scale).requires_grad_()
        logits = run(model, [[1, 2, 3]], edit=[*edits, Set("embed.token", x)], grad=True).logits
        assert logits is not None
        return torch.autograd.grad(logits[0, -1, 2], x)[0]

    close(logit(1.0), logit(-2.0))
    assert logit(1.0).any()


def test_freezing_needs_its_sites() -> None:
    model = subject("gpt2").model
    with pytest.raises(SiteNotRead, match=r"frozen_edits needs sites .*\n.*blocks.0.attn.pattern"):
        frozen_edits(run(model, [1, 2]))


def test_linearity_is_for_one_row_of_a_decoder() -> None:
    with pytest.raises(ShapeMismatch, match="one prompt at a time, and was given 2"):
        linearity(subject("gpt2").model, [[1, 2], [3, 4]])
    with pytest.raises(AnalysisUnavailable, match="EncoderDecoder is none"):
        linearity(subject("translator_pre").model, [1, 2])
