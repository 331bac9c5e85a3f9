"""Where each position's content comes from: steps add up to the stream, shares to one, on every architecture."""

import dataclasses

import pytest
import torch
from hypothesis import given

from glassformer.analysis import Run, run
from glassformer.analysis.cards import card_of
from glassformer.analysis.token_flow import alti, information_flow_routes, rollout, value_norms
from glassformer.analysis.token_flow._mixing import Unit, flow_sites, units
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, NoPattern, SiteNotRead
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, Subject, attention_decoders, subject
from glassformer.trace import At, Set

every = pytest.mark.parametrize("name", ARCHITECTURES)
TRANSLATORS = [name for name in ARCHITECTURES if name.startswith("translator")]
SHARES = [name for name in ARCHITECTURES if "lightning" not in name and name not in ("differential", "bounded")]


def passed(found: Subject, *more: str, stack: str | None = None) -> Run:
    return run(found.model, *found.inputs, read=[*flow_sites(found.model, stack), *more])


def steps(done: Run, stack: str | None = None) -> list[Unit]:
    """Return the steps of a stack, one for all sub-layers that begin at one place."""
    found, name = list(units(done, "test", stack=stack)), done.model.stack_name(stack)
    assert len(found) == len({layer.entry for layer in done.model.sub_layers(name)}) > 0
    return found


@every
def test_kept_stream_moved_vectors_writes_and_biases_are_the_stream_behind_each_step(name: str) -> None:
    done = passed(subject(name)).prompt(1)
    for stack in (None, "encoder") if name in TRANSLATORS else (None,):
        for unit in steps(done, stack):
            n = unit.kept.shape[0]
            for moves in unit.moves:
                summed = moves.summed(slice(0, n))
                close(moves.per_head(slice(0, n)).sum(1), summed)
                close(summed.sum(1), moves.total())
            split_without_remainder(unit)


def split_without_remainder(unit: Unit) -> None:
    moved = sum(moves.total() for moves in unit.moves) + sum(write for _, write in unit.writes)
    close(unit.kept + moved + unit.bias, unit.result)


@pytest.mark.full
@given(attention_decoders(mlps=True))
def test_every_small_model_is_split_without_remainder(found: Subject) -> None:
    for unit in steps(passed(found)):
        split_without_remainder(unit)


@every
def test_alti_rows_are_shares_and_the_future_has_none(name: str) -> None:
    found = alti(passed(subject(name)), row=1)
    for shares in (found.layers.values, found.rolled.values):
        assert (shares >= 0).all()
        close(shares.sum(-1), torch.ones(shares.shape[:-1], dtype=torch.float64))
        assert (shares[..., -7:].triu(1) == 0).all()
    assert found.norms == "frozen"


@given(attention_decoders(mlps=True))
def test_in_every_small_model_alti_and_routes_account_for_the_whole_stream(found: Subject) -> None:
    done = passed(found)
    shares = alti(done).final.values
    close(shares.sum(-1), torch.ones(5, dtype=torch.float64))
    routes = information_flow_routes(done, threshold=0.0)
    close(routes.inputs.values.sum() + routes.constants, torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("name", SHARES)
def test_rollout_rows_are_shares_and_the_future_has_none(name: str) -> None:
    found = rollout(passed(subject(name)))
    for shares in (found.layers.values, found.rolled.values):
        close(shares.sum(-1), torch.ones(shares.shape[:-1], dtype=torch.float64))
        assert (shares[..., -7:].triu(1) == 0).all()


@pytest.mark.parametrize("name", ["lightning_hybrid", "differential", "bounded"])
def test_rollout_refuses_weights_that_are_no_shares_and_says_what_it_takes_instead_when_asked(name: str) -> None:
    done = passed(subject(name))
    with pytest.raises(AnalysisUnavailable, match=r"rollout: layer 0 .*rows_sum_to_one=False.*\n.*alti\(run\)"):
        rollout(done)
    found = rollout(done, signed="absolute")
    assert found.method == "rollout of absolute weights"
    close(found.final.values.sum(-1), torch.ones(7, dtype=torch.float64))


def test_rollout_is_the_product_of_half_patterns_and_half_identities() -> None:
    done = passed(subject("gpt2"))
    expected = torch.eye(7, dtype=torch.float64)
    for layer in range(2):
        pattern = done[f"blocks.{layer}.attn.pattern"].values[0].mean(0)
        expected = (pattern / 2 + torch.eye(7, dtype=torch.float64) / 2) @ expected
    close(rollout(done).final.values, expected)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_decoder_is_rolled_down_to_the_source_tokens_through_the_encoder(name: str) -> None:
    done = passed(subject(name))
    encoder, whole = alti(done, stack="encoder"), alti(done)
    assert encoder.final.shape == (9, 9)
    assert whole.final.labels("key") == [f"source {i}" for i in encoder.final.labels("key")] + whole.final.labels(
        "query"
    )
    source = encoder.final.values
    expected = torch.cat((torch.zeros(7, 9, dtype=torch.float64), torch.eye(7, dtype=torch.float64)), 1)
    for layer in whole.layers.values:
        expected = torch.cat((layer[:, :9] @ source, torch.zeros(7, 7)), 1) + layer[:, 9:] @ expected
    close(whole.final.values, expected)


def test_alti_is_the_l1_nearness_of_each_positions_vector_to_the_result() -> None:
    found = subject("gpt2")
    done = passed(found, "blocks.0.attn.head_out")
    layer = found.model.stack.blocks[0].attn
    z = done["blocks.0.attn.pattern"].values[0][..., None] * done["blocks.0.attn.value"].values[0][:, None]
    vectors = torch.einsum("hqke,hed->qkd", z, layer.merge.matrix())
    x, y = done["blocks.0.resid_pre"].values[0], done["blocks.0.resid_mid"].values[0]
    vectors[range(7), range(7)] += x
    near = (y.norm(p=1, dim=-1)[:, None] - (y[:, None] - vectors).norm(p=1, dim=-1)).clamp_min(0)
    close(alti(done).layers.values[0], near / near.sum(-1, keepdim=True))


def known() -> tuple[Run, int, int]:
    """Return a run of the induction model, a query in the second copy, and the place after the first copy."""
    model = induction_model()
    ids = repeated()
    done = run(model, ids, read=[rollout])
    return done, 30, 30 - 20 + 1


def test_on_the_induction_model_rollout_gives_a_quarter_to_each_of_four_tokens() -> None:
    done, q, j = known()
    row = rollout(done).final.values[q]
    # each layer has a blank head beside the one that does something, whose pattern is uniform: leave it out
    weights = done["blocks.0.attn.pattern"].values[0, 0], done["blocks.1.attn.pattern"].values[0, 0]
    eye = torch.eye(len(row), dtype=torch.float64)
    clean = (weights[1] + eye) / 2 @ ((weights[0] + eye) / 2)
    close(clean[q, [q, q - 1, j, j - 1]], torch.full((4,), 0.25, dtype=torch.float64), 1e-5)
    blank = torch.ones_like(eye).tril() / torch.arange(1, len(row) + 1)[:, None]
    layers = [(eye + (w + blank) / 2) / 2 for w in weights]
    close(row, (layers[1] @ layers[0])[q])


def test_on_the_induction_model_alti_is_known_in_closed_form() -> None:
    done, q, j = known()
    found = alti(done)
    layers = found.layers.values
    close(layers[0, q, [q, q - 1]], torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))
    close(layers[1, q, [q, j]], torch.tensor([3 / 4, 1 / 4], dtype=torch.float64), 1e-5)
    expected = torch.tensor([1 / 2, 1 / 4, 1 / 6, 1 / 12], dtype=torch.float64)
    close(found.final.values[q, [q, q - 1, j, j - 1]], expected, 1e-5)
    assert not found.unexplained.values.any()


def test_a_run_without_the_sites_is_told_what_to_read() -> None:
    with pytest.raises(SiteNotRead, match=r"alti needs sites .*Add to read=:\n.*blocks.0.attn.value"):
        alti(run(subject("gpt2").model, [1, 2], read=["blocks.*.attn.pattern"]))


def test_a_mechanism_without_a_pattern_is_refused_by_name() -> None:
    model = subject("attention_only").model
    done = run(model, [1, 2], read=[rollout])
    mixer = model.stack.blocks[1].attn.mixer
    mixer.traits = dataclasses.replace(mixer.traits, linear_in_value="no")
    assert not any(site.startswith("blocks.1.attn.pattern") for site in card_of(rollout).reads(model))
    for analysis in (alti, rollout, value_norms, information_flow_routes):
        name = card_of(analysis).name
        with pytest.raises(NoPattern, match=rf'{name}: layer 1 uses "softmax" \(linear_in_value="no"\).*\n.*gradients'):
            analysis(done)


def test_a_query_that_an_edit_left_nothing_to_attend_to_is_no_row_of_shares() -> None:
    found = subject("gpt2")
    silent = Set("blocks.1.attn.pattern", 0.0, at=At(head=2, query=3))
    done = run(found.model, *found.inputs, read=[rollout], edit=[silent])
    with pytest.raises(AnalysisUnavailable, match="the layer of L1H0 has a query that attends to nothing"):
        rollout(done)
    close(alti(done).final.values.sum(-1), torch.ones(7, dtype=torch.float64))


def test_stacks_that_attend_to_nothing_are_refused() -> None:
    layer = block(n_heads=2, mlp=Mlp(8))
    model = DecoderConfig(vocab_size=5, d_model=8, layers=(layer.replace(parts=layer.parts[1:]),)).build()
    with pytest.raises(AnalysisUnavailable, match="no layer attends to anything"):
        alti(run(model, [1, 2], read=[rollout]))


def test_padding_has_no_part_in_anything() -> None:
    found = subject("gpt2")
    ids = found.inputs[0]
    batch = Batch(ids, ids, torch.ones_like(ids, dtype=torch.bool), lengths=torch.tensor([7, 4]))
    padded = run(found.model, batch, read=[rollout])
    alone = run(found.model, ids[1:, :4], read=[rollout])
    close(alti(padded, row=1).final.values, alti(alone).final.values)
    close(rollout(padded, row=1).final.values, rollout(alone).final.values)
