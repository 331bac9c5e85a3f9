"""Labelled tensors survive export, and draw themselves."""

import dataclasses
import json

import pytest
import torch

from glassformer.errors import ShapeMismatch, UnknownAxis
from glassformer.labelled import Labelled, Result


@dataclasses.dataclass(frozen=True, eq=False)
class Found(Result):
    table: Labelled
    spectrum: Labelled
    best: float


def _found():
    values = torch.tensor([[1.0, float("nan")], [-2.0, float("inf")]], dtype=torch.float64)
    spectrum = torch.tensor([[1 + 2j, -3j], [0.5 + 0j, 1 - 1j]])
    heads = ["L0H0", "L0H1"]
    return Found(
        Labelled(values, ("head", "offset"), {"head": heads}),
        Labelled(spectrum, ("head", "rank"), {"head": heads}),
        float("nan"),
    )


def test_what_is_not_finite_is_null_in_json_and_nan_again_when_read():
    data = json.loads(_found().to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["table"]["values"] == [[1.0, None], [-2.0, None]]
    assert data["best"] is None
    again = Labelled.from_dict(data["table"])
    assert torch.isnan(again.values).tolist() == [[False, True], [False, True]]


def test_a_result_prints_in_brief_whatever_it_holds():
    @dataclasses.dataclass(frozen=True, eq=False)
    class Long(Result):
        names: tuple[str, ...]
        table: Labelled

    shown = repr(Long(tuple(f"L{i}H{i}" for i in range(500)), Labelled(torch.zeros(500), ("head",))))
    assert shown.startswith("Long(names=('L0H0'") and len(shown) < 200


def test_complex_values_survive_json_and_frames():
    found = _found().spectrum
    again = Labelled.from_dict(json.loads(json.dumps(found.to_dict())))
    assert torch.equal(again.values, found.values) and again.coords == found.coords
    frame = found.to_frame()
    assert list(frame.columns) == ["head", "rank", "value"] and complex(frame["value"][0]) == 1 + 2j


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_numbers_of_any_type_export(dtype):
    found = Labelled(torch.tensor([1, 2], dtype=dtype), ("x",))
    assert found.to_dict()["values"] == [1, 2] and found.to_frame()["value"].tolist() == [1, 2]


def test_a_figure_has_one_panel_per_map():
    assert len(Labelled(torch.randn(3, 4, 5), ("a", "b", "c")).plot().axes) == 3 * 2  # each with its colour bar
    figure = _found().plot()
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["table", "spectrum"]
    assert len(_found().plot("spectrum").axes) == 1


def test_signed_maps_are_white_at_zero():
    figure = Labelled(torch.tensor([[1.0, -4.0]]), ("a", "b")).plot()
    assert figure.axes[0].images[0].get_clim() == (-4.0, 4.0)


def test_what_cannot_be_drawn_says_what_can():
    with pytest.raises(ShapeMismatch, match=r"select\(layer="):
        Labelled(torch.zeros(99, 2, 2), ("layer", "b", "c")).plot()
    with pytest.raises(UnknownAxis, match=r'"tabel".*Nearest: "table"'):
        _found().plot("tabel")
    with pytest.raises(ShapeMismatch, match="no labelled tensor"):
        Labelled(torch.zeros(()), ()).plot()


def test_an_entry_without_axes_is_a_number_and_plain_in_json():
    entry = Labelled(torch.tensor([1.5, float("nan")]), ("row",)).select(row=0)
    assert (float(entry), int(entry)) == (1.5, 1)
    assert repr(entry) == "Labelled(1.5, float32)"
    counts = Labelled(torch.arange(3), ("row",))
    assert [int(counts.select(row=i)) for i in range(3)] == [0, 1, 2]
    for packed in (False, True):
        data = dataclasses.replace(_found(), table=entry).to_dict(packed)
        assert data["table"] == 1.5 and type(data["table"]) is float
        data = dataclasses.replace(_found(), table=counts.select(row=2)).to_dict(packed)
        assert data["table"] == 2 and type(data["table"]) is int
        assert (
            dataclasses.replace(_found(), table=_found().table.select(head=0, offset=1)).to_dict(packed)["table"]
            is None
        )


def test_several_entries_are_no_number_and_say_how_to_select_one():
    found = Labelled(torch.zeros(1, 1), ("batch", "pos"))
    for number in (float, int):
        with pytest.raises(ShapeMismatch, match=r"has axes batch pos; select one entry, \.select\(batch=…, pos=…\)"):
            number(found)
