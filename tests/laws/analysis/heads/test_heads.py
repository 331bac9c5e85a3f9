"""Head roles: recovered where they were built in, bounded elsewhere, refused where undefined."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.analysis import run
from glassformer.analysis.heads import head_roles, head_scores
from glassformer.analysis.heads.roles import ROLES, heads, repeated_inputs, repeated_tokens, role_masks
from glassformer.data.batch import next_token_batch
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, Mlp
from glassformer.models.block import BlockConfig
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject

DECODERS = [name for name in ARCHITECTURES if not name.startswith("translator")]


def test_roles_built_into_the_weights_are_recovered() -> None:
    model = induction_model(vocab=26, max_len=101)
    scores = head_roles(run(model, repeated(26, 4, batch=3), read=[head_roles])).scores
    assert float(scores.select(head="L0H0", role="previous_token").values) == pytest.approx(1.0)
    assert float(scores.select(head="L1H0", role="induction").values) == pytest.approx(1.0)
    # the same head under the paper's sentence, one position off, would score nothing
    assert float(scores.select(head="L1H0", role="duplicate_token").values) < 1e-6
    others = [
        float(scores.select(head=head, role=role).values)
        for head in ("L0H1", "L1H1")
        for role in ("previous_token", "induction")
    ]
    assert max(others) < 0.15


def test_head_scores_find_the_same_heads_on_random_tokens() -> None:
    scores = head_scores(induction_model(vocab=40, max_len=100), n_sequences=2)
    assert scores.best("previous_token") == ("L0H0", pytest.approx(1.0))
    assert scores.best("induction")[0] == "L1H0"
    assert scores.best("induction")[1] == pytest.approx(1.0, abs=1e-4)


def test_an_unsaturated_induction_head_scores_what_the_formula_says() -> None:
    gamma = 6.0
    model, ids = induction_model(gamma=gamma), repeated()
    pattern = run(model, ids, read=["blocks.1.attn.pattern"])["blocks.1.attn.pattern"].values[0, 0]
    mask = role_masks(ids)[ROLES.index("induction"), 0]
    found = (pattern * mask).sum(-1)[21:]
    q = torch.arange(21, 41, dtype=torch.float64)
    close(found, math.exp(gamma) / (math.exp(gamma) + math.exp(gamma / 2) + q - 1))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_role_masks_agree_with_their_definition(tokens: list[int]) -> None:
    masks = role_masks(torch.tensor([tokens]))[:, 0]
    for q in range(len(tokens)):
        for k in range(len(tokens)):
            past = q > 0
            expected = {
                "previous_token": past and k == q - 1,
                "induction": past and 0 <= k - 1 < q and tokens[k - 1] == tokens[q],
                "duplicate_token": past and k < q and tokens[k] == tokens[q],
                "first_token": past and k == 0,
                "current_token": past and k == q,
            }
            assert {role: bool(masks[i, q, k]) for i, role in enumerate(ROLES)} == expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_scores_stay_in_the_bounds_of_their_reading(name: str) -> None:
    found = subject(name)
    ids = [torch.tensor([[1, 2, 3, 1, 2, 3, 1]])] * len(found.inputs)
    done = run(found.model, ids[0], *ids[1:], read=[head_roles])
    for stack in found.model.stacks:
        result = head_roles(done, stack=stack)
        assert not result.scores.values.isnan().any()
        for reading, scores in zip(result.readings, result.scores.values):
            low = 0.0 if reading == "mass" else -1.0
            assert ((scores >= low - 1e-9) & (scores <= 1 + 1e-9)).all()


@pytest.mark.parametrize("name", DECODERS)
def test_readings_follow_the_traits(name: str) -> None:
    model = subject(name).model
    signed = {"lightning", "differential"}
    for head in heads(model):
        with_sinks = (name, head.layer) == ("bounded", 0)
        assert head.reading == ("signed" if head.mechanism in signed or with_sinks else "mass")


def test_a_role_that_occurs_nowhere_in_the_text_is_nan_with_zero_positions() -> None:
    model = subject("gpt2").model
    result = head_roles(run(model, [1, 2, 3], read=[head_roles]))
    assert result.positions.values.tolist() == [2, 0, 0, 2, 2]
    assert result.scores.select(role="induction").values.isnan().all()


def test_scores_of_padded_rows_are_those_of_the_rows_alone() -> None:
    model = subject("gpt2").model
    batch = next_token_batch(torch.tensor([[1, 2, 1, 2, 9, 9], [1, 2, 3, 1, 2, 3]]), lengths=torch.tensor([3, 5]))
    together = head_roles(run(model, batch, read=[head_roles]))
    alone = [head_roles(run(model, ids, read=[head_roles])) for ids in ([1, 2, 1], [1, 2, 3, 1, 2])]
    counts = torch.stack([result.positions.values for result in alone]).double()
    # the mean over all positions is the mean of the rows, weighted by how many positions each has
    expected = sum(result.scores.values.nan_to_num() * n for result, n in zip(alone, counts)) / counts.sum(0)
    close(together.scores.values, torch.as_tensor(expected))


def test_random_tokens_are_the_same_for_a_seed_and_never_special() -> None:
    model = subject("gpt2").model
    first, second, other = (repeated_tokens(model, seed=seed, unit=4, repeats=3) for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(first[:, :4], first[:, 4:8])
    assert all(len(set(row.tolist())) == 4 for row in first[:, :4])


@pytest.mark.parametrize("name", ["masked_pre", "translator_pre", "translator_apart"])
def test_scores_of_stacks_that_read_both_ways_are_those_of_their_patterns_but_for_induction(name: str) -> None:
    model = subject(name).model
    found = head_scores(model, n_sequences=2)
    inputs = repeated_inputs(model, n_sequences=2)
    done = run(model, *inputs, read=[head_roles])
    for stack in model.stacks:
        expected = head_roles(done, stack=stack or None).scores
        for head in expected.labels("head"):
            ours, theirs = (one.select(head=head).values.clone() for one in (found.scores, expected))
            ahead = model.reads_ahead(stack)
            assert bool(ours[ROLES.index("induction")].isnan()) == ahead
            close(ours.nan_to_num(), theirs.where(~ours.isnan(), 0.0))
    if model.source is not None:
        assert int(inputs[0].max()) < model.embeddings[model.source].vocab_size


def test_head_scores_refuse_a_context_without_room() -> None:
    with pytest.raises(AnalysisUnavailable, match="max_len=24 and vocab_size=11 leave 1"):
        head_scores(subject("gpt2").model, repeats=20)


def test_a_model_without_attention_has_no_roles() -> None:
    model = DecoderConfig(7, 8, (BlockConfig((Mlp(8),)),), max_len=32).build()
    with pytest.raises(NoPattern, match="no attention"):
        head_scores(model)
