"""At which layer a property is told: planted layers are found, and the number is what its definition adds up to."""

from functools import cache

import pytest
import torch
from torch import Tensor

from glassformer.analysis.probes import Probes, probe
from glassformer.analysis.probes._layers import MEASURES, layers_of
from glassformer.analysis.probes._probe import MAJORITY, SITE, UNTRAINED
from glassformer.analysis.uncertainty import interval, interval_of
from glassformer.handmade import induction_model
from glassformer.labelled import Labelled
from glassformer.render.terminal import lines
from glassformer.testing import close

EXPECTED, CENTRE = MEASURES


def layer(told: list[float], majority: float = 0.0) -> tuple[float, float]:
    scores = torch.tensor(told, dtype=torch.float64)
    expected, centre = layers_of(scores, torch.full_like(scores, majority))
    return float(expected), float(centre)


def test_what_is_told_from_a_layer_on_is_expected_there() -> None:
    for first in range(1, 5):
        told = [0.2] * first + [0.9] * (5 - first)
        expected, centre = layer(told, 0.2)
        assert expected == pytest.approx(first) and centre == pytest.approx((first + 4) / 2)
    # half at the second layer, half at the last; a layer that forgets takes nothing back
    assert layer([0.2, 0.2, 0.5, 0.3, 0.8])[0] == pytest.approx((2 + 4) / 2)
    assert layer([0.0, 0.0, 1.0, 0.0, 0.0]) == (2.0, 2.0)
    expected, centre = layer([0.6, 0.6, 0.5, 0.6, 0.6], 0.7)
    assert expected != expected and centre != centre, "nothing is gained, and nothing is above the majority"


def test_layers_are_what_their_definition_adds_up_to_and_do_not_depend_on_the_unit() -> None:
    told = torch.rand(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    told[0] *= 0.1
    majority = torch.full_like(told, 0.3)
    found = layers_of(told, majority)
    for column in range(3):
        scores = told[:, column].tolist()
        gains = [max(0.0, scores[i] - max(scores[:i])) for i in range(1, 6)]
        above = [max(0.0, score - 0.3) for score in scores]
        expected = sum(i * gain for i, gain in enumerate(gains, 1)) / sum(gains)
        centre = sum(i * one for i, one in enumerate(above)) / sum(above)
        close(found[:, column], torch.tensor([expected, centre], dtype=torch.float64))
        assert 1 <= expected <= 5 and 0 <= centre <= 5
    close(layers_of(told / 2, majority / 2), found)
    close(layers_of(told + 0.1, majority)[0], found[0])


def test_the_interval_of_means_themselves_is_that_of_the_mean() -> None:
    values = torch.rand(3, 2, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    per_document = Labelled(values, ("site", "told_by", "batch"), {})
    close(interval_of(per_document, lambda means: means, seed=4), interval(per_document, seed=4).values)
    alike = Labelled(values[..., :1].expand(-1, -1, 11), ("site", "told_by", "batch"), {})

    def expected(means: Tensor) -> Tensor:
        return layers_of(means, torch.zeros_like(means))

    low, high = interval_of(alike, expected)
    close(low, high)
    close(low, expected(values[..., 0]))


ROWS = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(seed)) + 1 for seed in range(24)])
TEXTS = torch.cat((torch.zeros(24, 1, dtype=torch.long), ROWS, ROWS), 1)
PREVIOUS = torch.cat((torch.full((24, 2), -1), TEXTS[:, 1:-1] - 1), 1)


@cache
def found(sites: tuple[str, ...]) -> Probes:
    model = induction_model(vocab=9, max_len=17)
    return probe(model, TEXTS, list(PREVIOUS), sites=sites, untrained=model.config.build(1))


def test_the_previous_token_is_expected_behind_the_layer_that_fetches_it() -> None:
    one = found(("blocks.0.resid_pre", "blocks.0.resid_post", "blocks.1.resid_post"))
    assert one.layers.axes == ("measure", "told_by") and one.layers.coords["told_by"] == [SITE, UNTRAINED]
    assert float(one.layers.select(measure=EXPECTED, told_by=SITE).values) == 1.0
    close(one.layer_bounds.select(measure=EXPECTED, told_by=SITE).values, torch.ones(2).double())
    told = one.accuracy.select(told_by=SITE).values
    above = (told - one.accuracy.select(told_by=MAJORITY).values).clamp_min(0)
    centre = one.layers.select(measure=CENTRE, told_by=SITE).values
    close(centre, (above[1] + 2 * above[2]) / above.sum())
    low, high = one.layer_bounds.select(measure=CENTRE, told_by=SITE).values
    assert low <= centre <= high


def test_of_one_site_there_is_no_expected_layer() -> None:
    one = found(("blocks.0.resid_post",))
    assert bool(one.layers.select(measure=EXPECTED).values.isnan().all())
    assert float(one.layers.select(measure=CENTRE, told_by=SITE).values) == 0.0


def test_layers_are_said_on_the_terminal_where_there_are_several() -> None:
    def said(*sites: str) -> str:
        return " ".join(line.strip() for line in lines(found(sites)))

    assert "comes at 1.0 (1.0 to 1.0); the centre" in said("blocks.0.resid_pre", "blocks.0.resid_post")
    assert "No site tells more than the first." in said("blocks.0.resid_post", "blocks.0.resid_pre")
    assert "site" in said("blocks.0.resid_post") and "counted from 0" not in said("blocks.0.resid_post")
