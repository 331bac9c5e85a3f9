"""Evaluators of heads: exact where the construction is known, one forward for all settings, bounded everywhere."""

import math

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.heads import evaluate_heads, find_pattern, head_roles, head_scores
from glassformer.analysis.heads._evaluate import prefix_mask, settings_of
from glassformer.analysis.heads.roles import ROLES, role_masks
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, Mlp
from glassformer.models.block import BlockConfig
from glassformer.testing import close
from glassformer.testing.models import DIRECTED, subject
from glassformer.trace import Tape
from one_pass import in_one_pass

DECODERS = [name for name in DIRECTED if not name.startswith("translator")]


def score(found, head: str, evaluator: str, setting: str = "repeated") -> float:
    return float(found.scores.select(setting=setting, head=head, evaluator=evaluator).values)


def test_the_heads_that_were_built_in_score_one() -> None:
    found = evaluate_heads(induction_model(vocab=60, max_len=101), n_sequences=3)
    assert score(found, "L0H0", "previous_token") == pytest.approx(1)
    assert score(found, "L1H0", "prefix_matching") == pytest.approx(1, abs=1e-4)
    assert score(found, "L1H0", "copying") == pytest.approx(1, abs=1e-4)
    # the other heads write nothing, and nothing has no share in anything
    assert [score(found, head, "copying") for head in ("L0H0", "L0H1", "L1H1")] == pytest.approx([-1] * 3)


def test_an_induction_head_finds_its_prefix_across_a_gap_and_in_noise() -> None:
    found = evaluate_heads(induction_model(vocab=60, max_len=101), n_sequences=3)
    for setting in ("shifted", "with_random"):
        assert score(found, "L1H0", "prefix_matching", setting) > 0.99
        assert score(found, "L1H1", "prefix_matching", setting) < 0.2


def test_the_papers_sentence_taken_literally_scores_a_perfect_induction_head_nothing() -> None:
    model, ids = induction_model(vocab=26, max_len=101), repeated(26, 4, batch=3)
    done = run(model, ids, read=[head_roles])
    again = ids.shape[1] - 75
    pattern = done["blocks.1.attn.pattern"].values[:, 0, again:]
    intended, literal = (prefix_mask(ids, offset)[:, again:] for offset in (1, -1))
    close((pattern * intended).sum(-1).mean(), torch.tensor(1.0, dtype=torch.float64), 1e-4)
    # what is left is the resting place, which happens to precede the unit
    assert (pattern * literal).sum(-1).mean() < 1e-7
    assert (pattern * literal)[..., 1:].sum(-1).mean() < 1e-12
    # and the mean over entries is not the score either: three, two, one key share each row
    assert float(pattern[intended].mean()) == pytest.approx(0.5, abs=1e-4)


def test_offset_one_is_the_induction_mask() -> None:
    ids = torch.tensor([[1, 2, 1, 2, 3, 1, 1]])
    past = torch.arange(7)[:, None] > 0
    assert torch.equal(prefix_mask(ids) & past, role_masks(ids)[ROLES.index("induction")])


def test_renaming_tokens_changes_no_score() -> None:
    model = subject("gpt2").model
    ids = settings_of(model, unit=4, repeats=3, n_sequences=4)["repeated"]
    before = find_pattern(run(model, ids, read=[head_roles]), mask=prefix_mask(ids)).values
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        # the same tokens under other names: rows of the embedding move along
        model.embed.matrix.copy_(model.embed.matrix[order.argsort()])
    renamed = order[ids]
    close(find_pattern(run(model, renamed, read=[head_roles]), mask=prefix_mask(renamed)).values, before)


@pytest.mark.parametrize("name", DECODERS)
def test_scores_agree_with_the_roles_and_stay_in_bounds(name: str) -> None:
    model = subject(name).model
    text = torch.randint(0, 11, (4, 13), generator=torch.Generator().manual_seed(0))
    found = evaluate_heads(model, text, unit=4, repeats=3, n_sequences=4)
    reference = head_scores(model, unit=4, repeats=3, n_sequences=4).scores.values
    close(found.scores.select(setting="repeated").values[:, :5], reference)
    assert found.scores.labels("setting") == ["repeated", "shifted", "with_random", "with_text", "text"]
    copying = found.scores.select(evaluator="copying").values
    if model.one_vocabulary():
        assert ((copying >= -1) & (copying <= 1)).all()
    else:
        assert copying.isnan().all()
    assert (found.spread.values[..., : 6 if model.one_vocabulary() else 5] >= 0).all()


@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "sandwich", "post", "lightning_hybrid"])
def test_copying_is_what_the_definition_says(name: str) -> None:
    """The slow form: scales frozen at what they are, all logits, one query at a time."""
    model = subject(name).model
    ids = settings_of(model, unit=4, repeats=2, n_sequences=1)["repeated"]
    block = model.stack.blocks[1]
    tape = Tape(model, read=["*scale", "blocks.1.attn.pattern", "blocks.1.attn.head_out"])
    with torch.no_grad():
        model(ids, tape=tape)
    pattern, written = (tape.values[f"blocks.1.attn.{site}"][0] for site in ("pattern", "head_out"))
    push = [(block.norm_after("attn"))] if block.norm_after("attn") is not None else []
    push += [block.norm_after("mlp")] if block.wiring == "post" else []
    for norm in [*push, model.stack.final]:
        if norm.weight is not None:
            written = norm.linear(written, tape.values[norm.at_scale][0])
    effect = model.unembed.logits(written).detach()
    effect = (effect - effect.mean(-1, keepdim=True)).clamp_min(0)
    mask = role_masks(ids)[ROLES.index("induction"), 0].any(-1)
    sample = ids[0].unique()
    expected = []
    for head in range(len(written)):
        ratios = []
        for q in mask.nonzero()[:, 0]:
            weight = pattern[head, q].abs() / pattern[head, q].abs().sum()
            a = (weight * effect[head, q, ids[0]]).sum()
            total = a + effect[head, q, sample].sum()
            ratios.append(float(4 * a / total - 1) if total > 0 else -1.0)
        expected.append(sum(ratios) / len(ratios))
    found = evaluate_heads(model, unit=4, repeats=2, n_sequences=1)
    values = found.scores.select(setting="repeated", evaluator="copying").values[-len(expected) :]
    close(values, torch.tensor(expected, dtype=torch.float64))


def test_any_mask_can_be_looked_for() -> None:
    model, ids = induction_model(), repeated(batch=2)
    done = run(model, ids, read=[head_roles])
    previous = torch.diag(torch.ones(40), -1).bool()
    previous[0, 0] = True
    for measure in ("mass", "closeness"):
        assert float(find_pattern(done, mask=previous, measure=measure).select(head="L0H0").values) == pytest.approx(1)
    assert float(find_pattern(done, mask=previous, measure="closeness").select(head="L1H1").values) < -0.5
    with pytest.raises(ShapeMismatch, match=r"mask has query=3 key=3, the pattern of blocks\.0\.attn query=41"):
        find_pattern(done, mask=torch.ones(3, 3, dtype=torch.bool))


def test_a_model_without_patterns_is_refused() -> None:
    with pytest.raises(NoPattern, match="no attention"):
        evaluate_heads(DecoderConfig(7, 8, (BlockConfig((Mlp(8),)),), max_len=32).build())
    with pytest.raises(AnalysisUnavailable, match="defined for decoders"):
        evaluate_heads(subject("translator_pre").model)
    with pytest.raises(ShapeMismatch, match="rows of 5 tokens, and 3 copies of anything need 6"):
        evaluate_heads(subject("gpt2").model, torch.ones(2, 5, dtype=torch.long), unit=4, repeats=3)


def test_the_copying_score_is_zero_raise_at_minus_one_and_all_raise_at_one() -> None:
    found = evaluate_heads(induction_model(vocab=60, max_len=101, gamma=6.0), n_sequences=2)
    copying = score(found, "L1H0", "copying")
    # unsaturated attention spreads what is copied over all tokens, and only its own share counts
    assert -1 < copying < 0.999
    assert math.isfinite(copying)
