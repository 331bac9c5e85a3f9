"""What probes tell of documents they did not see, on models in which it is known what lies where."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.analysis.activations import record_activations
from glassformer.analysis.probes import Probes, erasure_effects, fit_eraser, probe
from glassformer.analysis.probes._probe import CONTROL, MAJORITY, SHUFFLED, SITE, TOKENS, UNTRAINED
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, CheckpointError, ShapeMismatch, UnknownSite
from glassformer.handmade import induction_model
from glassformer.models import Decoder
from glassformer.testing import close
from glassformer.testing.models import subject

# a row of <bos> and tokens without repeats, twice over
ROWS = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(seed)) + 1 for seed in range(40)])
TEXTS = torch.cat((torch.zeros(40, 1, dtype=torch.long), ROWS, ROWS), 1)
PREVIOUS = torch.cat((torch.full((40, 2), -1), TEXTS[:, 1:-1] - 1), 1)
SITES = ("blocks.0.resid_pre", "blocks.0.resid_post")


@cache
def model() -> Decoder:
    return induction_model(vocab=9, max_len=17)


@cache
def found() -> Probes:
    return probe(model(), TEXTS, list(PREVIOUS), sites=SITES, untrained=model().config.build(1))


def told(site: str, by: str) -> float:
    return float(found().accuracy.select(site=site, told_by=by).values)


def test_the_previous_token_is_told_behind_the_head_that_fetches_it_and_not_before() -> None:
    before, behind = SITES
    assert told(behind, SITE) == 1.0
    # of rows without repeats the token itself is what the one before is not
    assert told(before, SITE) < 0.3 and told(before, TOKENS) < 0.3 and told(behind, MAJORITY) < 0.2
    assert told(behind, SHUFFLED) < 0.3 and told(behind, UNTRAINED) < told(behind, SITE)
    close(found().selectivity.values[1], found().accuracy.values[1, 0] - told(behind, CONTROL))
    low, high = found().bounds.select(site=before, told_by=SITE).values
    assert low < told(before, SITE) < high
    assert found().rows == int((PREVIOUS >= 0).sum()) and found().documents == 40


def test_what_a_token_is_is_no_more_than_what_tokens_tell() -> None:
    kinds = (TEXTS % 2).masked_fill(TEXTS == 0, -1)
    of_tokens = probe(model(), TEXTS, list(kinds), sites="blocks.0.resid_pre", classes=("even", "odd"))
    own, by_token, control = (float(of_tokens.accuracy.select(told_by=by).values) for by in (SITE, TOKENS, CONTROL))
    assert own == by_token == control == 1.0
    assert of_tokens.classes == ("even", "odd")


def test_a_store_and_labels_by_row_say_the_same_as_texts(tmp_path: Path) -> None:
    store = record_activations(model(), TEXTS, SITES, tmp_path / "store", dtype="float32")
    again = probe(model(), store, PREVIOUS.flatten(), sites=SITES[1])
    close(again.accuracy.select(told_by=SITE).values[0], torch.tensor(told(SITES[1], SITE)))
    eraser = fit_eraser(model(), store, PREVIOUS.flatten(), SITES[1])
    assert eraser.rank == 7
    with pytest.raises(CheckpointError, match="holds activations of"):
        probe(induction_model(vocab=9, max_len=17, gamma=6.0), store, PREVIOUS.flatten())


def test_what_is_used_costs_the_model_and_what_is_told_and_not_used_does_not() -> None:
    used = erasure_effects(model(), TEXTS, list(PREVIOUS), sites=SITES[1])
    before, left, majority = used.told.values[0]
    assert before == 1.0 and left < 0.35 and majority < 0.2
    # induction reads the previous token: without it nothing of the second copy is known, and ln 8 is lost on half a row
    assert float(used.cost.values[0, 0]) == pytest.approx(math.log(8) / 2, rel=0.15)
    # seven directions of thirty hurt a small model anyway, and not as much
    assert used.cost_bounds.values[0, 0, 0] > used.cost_bounds.values[1, 0, 1]
    # a decoy: which half of the row it is stands in the stream, and nothing behind the first layer reads it
    half = (torch.arange(17) >= 8).long().expand(40, -1)
    decoy = erasure_effects(model(), TEXTS, list(half), sites=SITES[1])
    assert decoy.told.values[0, 0] == 1.0 and decoy.told.values[0, 1] == decoy.told.values[0, 2]
    assert abs(float(decoy.cost.values[0, 0])) < 0.02


@pytest.mark.parametrize(
    ("labels", "options", "error", "said"),
    [
        (torch.zeros(40, 17), {}, AnalysisUnavailable, "these labels have 1"),
        (PREVIOUS, {"folds": 1}, AnalysisUnavailable, "folds is 2 or more"),
        (PREVIOUS, {"folds": 50}, AnalysisUnavailable, "folds=40 at most"),
        (PREVIOUS[:3], {}, ShapeMismatch, "40 documents, and there are labels of 3"),
        (PREVIOUS[:, :5], {}, ShapeMismatch, "and 5 labels"),
        (PREVIOUS, {"classes": ("a", "b")}, ShapeMismatch, "2 classes have names"),
        (PREVIOUS, {"sites": "resid_past"}, UnknownSite, "resid_p"),
    ],
)
def test_what_cannot_be_probed_is_refused(labels: Any, options: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        probe(model(), TEXTS, list(labels), **options)


def test_logistic_probes_tell_as_much() -> None:
    pytest.importorskip("sklearn")
    logistic = probe(model(), TEXTS, list(PREVIOUS), sites=SITES[1], kind="logistic")
    assert float(logistic.accuracy.select(told_by=SITE).values[0]) == 1.0


def test_sites_of_both_sides_have_the_documents_of_their_own_rows() -> None:
    translator = subject("translator_pre")
    source, target = (ids[:1] for ids in translator.inputs)
    # as many rows on either side, in documents of other lengths
    targets = [target[:, :n] for n in (3, 4, 5)]
    both = [Batch(read, read, read > -1, source=source[:, :n]) for n, read in zip((5, 4, 3), targets)]
    labels = [torch.arange(8) % 2] * 3
    sites = [name for name in translator.model.sites("*") if name.endswith("blocks.0.resid_post")]
    assert len(sites) == 2
    together = probe(translator.model, both, labels, sites=sites, folds=3)
    for i, site in enumerate(sites):
        alone = probe(translator.model, both, labels, sites=[site], folds=3)
        close(together.accuracy.values[i], alone.accuracy.values[0])
