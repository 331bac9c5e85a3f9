"""Features of a dictionary: where they fire, which tokens they promote, what the model loses without them."""

from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer import weights
from glassformer.analysis.dictionaries import (
    Relu,
    SparseAutoencoder,
    attach,
    feature_effects,
    feature_examples,
    feature_tokens,
    splice_loss,
)
from glassformer.data.batch import next_token_batch
from glassformer.errors import AnalysisUnavailable, CheckpointError, ShapeMismatch
from glassformer.testing import close
from glassformer.testing.models import subject

SITE = "blocks.0.resid_post"


def drawn(n: int = 20) -> SparseAutoencoder:
    made = Relu(16, n).build(1).double()
    with torch.no_grad():
        made.b_enc += torch.linspace(-0.6, 0.2, n)
    return made


def exact() -> SparseAutoencoder:
    """Return a dictionary of both signs of each coordinate, which misses nothing."""
    made, one = Relu(16, 32).build().double(), torch.eye(16, dtype=torch.float64)
    with torch.no_grad():
        made.W_dec.copy_(torch.cat((one, -one)))
        made.W_enc.copy_(made.W_dec.mT)
    return made


def nothing() -> SparseAutoencoder:
    made = Relu(16, 4).build().double()
    with torch.no_grad():
        made.W_enc.zero_()
    return made


def losses(model: Any, ids: Tensor, edits: Any = ()) -> Tensor:
    logits: Any = gf.run(model, ids, edit=edits).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")


def test_what_a_splice_costs_is_between_nothing_and_the_ablation() -> None:
    case = subject("gpt2")
    (ids,) = case.inputs
    batches = [next_token_batch(ids), next_token_batch(ids.flip(0)[:1])]
    perfect = splice_loss(case.model, exact(), batches, site=SITE, ablation="zero")
    close(perfect.loss.values[1], perfect.loss.values[0])
    assert float(perfect.kl.values[:2].abs().max()) < 1e-12 and perfect.tokens == 18
    worthless = splice_loss(case.model, nothing(), batches, site=SITE, ablation="zero")
    close(worthless.loss.values[1], worthless.loss.values[2])
    close(worthless.kl.values[1], worthless.kl.values[2])
    # one by one, of both rows
    found = drawn()
    whole = splice_loss(case.model, found, batches[:1], site=SITE, ablation="mean")
    stream = gf.run(case.model, ids, read=[SITE])[SITE].values
    # the last token of a row has no next one, and does not count
    edits = [[], [gf.Set(SITE, found(stream))], [gf.Set(SITE, stream[:, :-1].mean((0, 1)))]]
    each = torch.stack([losses(case.model, ids, edit).mean() for edit in edits])
    close(whole.loss.values, each)
    costs, wins = each[2] - each[0], each[2] - each[1]
    share = torch.tensor(whole.recovered, dtype=torch.float64)
    assert share.isnan() if costs <= 2 * whole.spread.values[-1] else torch.isclose(share, wins / costs)


def test_the_share_that_is_recovered_is_one_zero_or_not_said() -> None:
    model = gf.load("attn-only-1l")
    width, site = model.config.d_model, "blocks.0.resid_post"
    config = Relu(width, 2 * width)
    whole, none, one = config.build(), config.build(), torch.eye(width)
    with torch.no_grad():
        whole.W_dec.copy_(torch.cat((one, -one)))
        whole.W_enc.copy_(whole.W_dec.mT)
        none.W_enc.zero_()
    # tokens of the model's own choice, so that the stream matters
    ids = gf.generate(model, [[5, 9, 20, 31]], gf.models.GREEDY, max_new_tokens=20).ids
    batch = next_token_batch(torch.tensor(ids))
    assert abs(splice_loss(model, whole, [batch], site=site, ablation="zero").recovered - 1) < 1e-4
    assert abs(splice_loss(model, none, [batch], site=site, ablation="zero").recovered) < 1e-4
    # tokens at random: what the stream says of them is worth nothing
    chance = next_token_batch(torch.randint(4, 300, (4, 30), generator=torch.Generator().manual_seed(0)))
    found = splice_loss(model, none, [chance], site=site, ablation="zero")
    assert found.recovered != found.recovered or found.loss.values[2] > found.loss.values[0]


def test_examples_are_the_largest_activations_of_all_texts_with_the_tokens_around() -> None:
    case, found = subject("gpt2", batch=3), drawn()
    (ids,) = case.inputs
    batches = [ids[:2], ids[2:, :5], ids[:, :2]]
    shown = feature_examples(case.model, found, batches, [3, 19, 0], site=SITE, k=4, around=1)
    split = attach(case.model, found, site=SITE)
    every = [gf.run(split, batch, read=[f"{SITE}.features"])[f"{SITE}.features"].values for batch in batches]
    rows = [row for batch in every for row in batch]
    for i, feature in enumerate((3, 19, 0)):
        values = torch.cat([row[:, feature] for row in rows])
        expected = values.sort(descending=True).values[:4]
        there = expected > 0
        close(shown.activations.values[i, there], expected[there])
        assert bool(shown.activations.values[i, ~there].isnan().all())
        assert len(shown.texts[feature]) == len(shown.places[feature]) == int(there.sum())
        close(shown.density.values[i], (values > 0).double().mean())
        for value, (row, position), text in zip(expected, shown.places[feature], shown.texts[feature]):
            close(rows[row][position, feature], value)
            assert text.count("«") == 1 and text.endswith("»") == (position == len(rows[row]) - 1)


def test_effects_are_those_of_runs_without_the_feature() -> None:
    case, found = subject("llama"), drawn()
    (ids,) = case.inputs
    split, name = attach(case.model, found, site=SITE), f"{SITE}.features"
    features = gf.run(split, ids, read=[name])[name].values
    quiet = [j for j in range(20) if not bool((features[..., j] > 0).any())]
    loud = int(features.sum((0, 1)).argmax())
    with torch.no_grad():
        found.b_enc[0] = -100.0
    chosen = [loud, 0, *quiet[:1]]
    effects = feature_effects(
        case.model, found, [next_token_batch(ids[:1]), next_token_batch(ids[1:])], chosen, site=SITE
    )
    without = losses(split, ids, [gf.Set(name, 0.0, at=gf.At(feature=loud))])
    close(effects.loss.values[0], (without - losses(split, ids)).mean())
    assert not effects.loss.values[1:].any(), "what never fires does nothing"
    assert float(effects.kl.values[1:].abs().max()) < 1e-15
    assert float(effects.kl.values[0]) > 0 and effects.tokens == 12
    added = (without - losses(split, ids)).sum(-1) / 12
    close(effects.error.values[0], (added - added.mean()).square().sum().mul(2).sqrt())
    close(torch.tensor(effects.base, dtype=torch.float64), losses(case.model, ids).mean())


def test_a_feature_that_fires_everywhere_along_what_norms_take_away_has_no_effect() -> None:
    case, found = subject("gpt2"), drawn()
    (ids,) = case.inputs
    with torch.no_grad():
        found.b_enc[0] = 100.0
        found.W_dec[0] = found.W_dec.shape[1] ** -0.5
    name = f"{SITE}.features"
    fires = gf.run(attach(case.model, found, site=SITE), ids, read=[name])[name].values[..., 0]
    assert float(fires.min()) > 9
    effects = feature_effects(case.model, found, [next_token_batch(ids)], [0, 19], site=SITE)
    assert float(effects.loss.values[0].abs()) < 1e-12 and float(effects.kl.values[0].abs()) < 1e-12
    assert float(effects.kl.values[1]) > 1e-6


def test_a_row_that_is_a_tokens_direction_promotes_it_and_directions_at_random_promote_nothing() -> None:
    model = gf.load("gpt-4l")
    site, w = "blocks.3.resid_post", weights.of(model, fold=True)
    made = Relu(model.config.d_model, 40).build(5)
    read_out = w.read_out()
    with torch.no_grad():
        made.W_dec[7] = 40 * read_out[:, 300] / read_out[:, 300].square().sum()
        made.W_dec[8] = -made.W_dec[7]
        made.scale.fill_(2.0)
    found = feature_tokens(model, made, site=site, k=5)
    assert int(found.raised_tokens.values[7, 0]) == int(found.lowered_tokens.values[8, 0]) == 300
    close(found.raised.values[7, 0], torch.tensor(20.0))
    name = found.names[300]
    assert found.promoted(7)[0][0] == found.suppressed(8)[0][0] == name
    rest = [feature for feature in range(40) if feature not in (7, 8)]
    assert sum(len(found.promoted(feature)) + len(found.suppressed(feature)) for feature in rest) <= 4


def test_what_cannot_be_asked_of_features_is_refused() -> None:
    case, found = subject("gpt2"), drawn()
    (ids,) = case.inputs
    with pytest.raises(ShapeMismatch, match="features are 0 to 19"):
        feature_examples(case.model, found, [ids], [20], site=SITE)
    with pytest.raises(ShapeMismatch, match="features are 0 to 19"):
        feature_effects(case.model, found, [ids], [-1], site=SITE)
    with pytest.raises(AnalysisUnavailable, match="added to the stream"):
        feature_tokens(case.model, found, site="blocks.0.attn.z")
    with pytest.raises(AnalysisUnavailable, match="no token counts"):
        batch = next_token_batch(ids, torch.zeros(2, 6, dtype=torch.bool))
        splice_loss(case.model, found, [batch], site=SITE)
    found.facts = {"site": SITE, "digest": "weights:0", "model": "other"}
    for ask in (feature_examples, feature_effects, splice_loss):
        with pytest.raises(CheckpointError, match="another model"):
            ask(case.model, found, [ids])
    with pytest.raises(CheckpointError, match="another model"):
        feature_tokens(case.model, found)
