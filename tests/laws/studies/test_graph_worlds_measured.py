"""What the study of graph worlds measures is right where the answer is known: by construction, and of guesses."""

from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer.data import Walks
from glassformer.data.batch import generator
from glassformer.dynamics import lattice_decoder, rate_maps
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Decoder
from glassformer.studies import graph_worlds
from glassformer.studies.graph_worlds import CELLS, LEARNED, NONE, RECURRENT, WORLDS
from glassformer.study import Case


def case(positions: str) -> Case:
    return Case({"positions": positions}, {"steps": 1, "pool": 256}, 0, trains=lambda config: Path())


def test_a_model_that_is_right_by_construction_foretells_all_and_its_memory_units_are_place_cells(monkeypatch) -> None:
    model = lattice_decoder(WORLDS)
    monkeypatch.setattr(gf, "load", lambda folder: model)
    monkeypatch.setattr(graph_worlds, "BATCHES", 1)
    found = {name: measured for name, measured in graph_worlds.run(case(RECURRENT)).items() if not callable(measured)}
    assert found["accuracy"] == found["accuracy_new_edges"] == found["place_cells"] == 1
    assert found["lost"] == pytest.approx(0, abs=0.02) and found["accuracy_shuffled_moves"] < 0.35
    assert found["same_place"] == pytest.approx(1) and found["other_place"] == pytest.approx(0, abs=1e-9)
    assert found["place_information"] > 3 > 1.5 > found["shuffled_information"]
    # its code units are the waves of the lattice
    assert found["waves"] > 0.7


@pytest.mark.parametrize("positions", [LEARNED, NONE])
def test_an_ordinary_decoder_has_no_codes_that_moves_carry_along(positions: str, monkeypatch) -> None:
    model = graph_worlds.decoder(positions, WORLDS).build()
    monkeypatch.setattr(gf, "load", lambda folder: model)
    monkeypatch.setattr(graph_worlds, "BATCHES", 1)
    found = graph_worlds.run(case(positions))
    baseline = found["baseline"]
    assert isinstance(found["accuracy"], float) and isinstance(baseline, float) and 0.2 < baseline < 0.6
    for name in CELLS:
        undefined = found[name]
        assert callable(undefined)
        with pytest.raises(AnalysisUnavailable, match="carry along"):
            undefined()


def test_guesses_are_what_was_seen_last_before_that_and_most_often() -> None:
    worlds, places = torch.tensor([[3, 5, 5, 7]]), torch.tensor([[0, 1, 2, 1, 0, 1]])
    never = torch.zeros(1, 6, dtype=torch.bool)
    walks = Walks(worlds, places, torch.zeros(1, 5, dtype=torch.long), never, never)
    assert walks.observations.tolist() == [[3, 5, 5, 5, 3, 5]]
    assert graph_worlds.last_seen(WORLDS, walks).tolist() == [[False, True, True, False, False]]
    assert graph_worlds.turned_back(WORLDS, walks).tolist() == [[False, False, True, False, True]]
    # one of each is a draw, which the lower symbol wins
    assert graph_worlds.most_seen(WORLDS, walks).tolist() == [[False, False, True, False, True]]


def test_shuffled_moves_are_those_of_the_walk_and_what_is_seen_stays() -> None:
    walks = WORLDS.replace(batch_size=4).walks("heldout", generator("walks"))
    told = graph_worlds.with_moves_shuffled(walks, 0)
    assert torch.equal(told.observations, walks.observations) and not torch.equal(told.actions, walks.actions)
    assert torch.equal(told.actions.sort(1).values, walks.actions.sort(1).values)


def test_a_memory_unit_of_the_construction_is_active_where_it_was_made() -> None:
    model = lattice_decoder(WORLDS)
    assert isinstance(model, Decoder)
    pool = WORLDS.replace(batch_size=256).walks("heldout", generator("pool"))
    activity, places = graph_worlds.memory_cells(model, WORLDS, pool)
    made = pool.places[0, : activity.shape[1]]
    known = torch.isin(places, made)
    # of a place that the walk had been at, all activity is of memories made there
    here = places[:, None] == made
    own = (activity * here).sum(1)[known]
    others = (activity * ~here).sum(1)[known]
    assert others.max() < 1e-9 and own.min() > 0
    rates = rate_maps(activity, places, WORLDS.n_places).rates
    assert rates[torch.arange(len(made)), made].min() > 0
