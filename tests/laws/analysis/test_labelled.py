"""Labelled tensors survive export, and draw themselves."""

import dataclasses
import json

import pytest
import torch

from glassformer.errors import ShapeMismatch, UnknownAxis
from glassformer.labelled import Labelled, Result
from one_pass import in_one_pass


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


@in_one_pass
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


ROWS = {"pos": [["0:a", "1:b", "2:c"], ["0:d", None, None], [None, "0:e", "1:f"]]}


def ragged() -> Labelled:
    return Labelled(torch.arange(18.0).reshape(3, 2, 3), ("batch", "head", "pos"), {"head": ["x", "y"]}, rows=ROWS)


@pytest.mark.parametrize(("row", "values", "labels"), [(0, [0, 1, 2], "abc"), (1, [6], "d"), (-1, [13, 14], "ef")])
def test_one_row_of_several_brings_its_own_positions(row: int, values: list[float], labels: str) -> None:
    one = ragged().select(batch=row, head=0)
    assert one.values.tolist() == values
    assert one.labels("pos") == [f"{i}:{token}" for i, token in enumerate(labels)]
    assert one.to_dict() == ragged().select(batch=[row]).select(head="x", batch=0).to_dict()


def test_a_position_of_several_rows_is_each_rows_own() -> None:
    whole = ragged()
    assert whole.select(pos=-1, head=0).values.tolist() == [2, 6, 14]
    assert whole.select(pos=0, head=1).values.tolist() == [3, 9, 16]
    last = whole.select(pos=slice(-2, None), head=0)
    assert last.rows["pos"] == [["1:b", "2:c"], ["0:d", None], ["0:e", "1:f"]]
    assert last.select(batch=1).values.tolist() == [6]
    assert whole.select(pos=[False, True, True], head=0).select(batch=2).values.tolist() == [13, 14]
    with pytest.raises(ShapeMismatch, match="row 1 of the batch, pos=1: the axis has 1 entries"):
        whole.select(pos=1)
    with pytest.raises(UnknownAxis, match='row 1 of the batch has no "1:b"'):
        whole.select(pos="1:b")


def test_rows_that_are_left_are_cut_to_the_longest_of_them() -> None:
    two = ragged().select(batch=[1, 0], pos=[0])
    assert two.shape == (2, 2, 1) and two.values[:, 0, 0].tolist() == [6, 0]
    assert ragged().select(batch=[1, 2]).shape == (2, 2, 3)
    assert ragged().select(batch=slice(1, 2)).shape == (1, 2, 1)


def test_padding_is_neither_ranked_nor_exported() -> None:
    whole = ragged()
    assert whole.top(1) == [((2, "y", "1:f"), 17.0)] and whole.top(1, largest=False) == [((0, "x", "0:a"), 0.0)]
    assert len(whole.top(100)) == 12
    frame = whole.to_frame()
    assert len(frame) == 12 and list(frame["pos"][frame["batch"] == 2].unique()) == ["0:e", "1:f"]
    data = json.loads(json.dumps(whole.to_dict()))
    assert data["values"][1][0] == [6.0, None, None] and data["rows"] == ROWS
    again = Labelled.from_dict(data)
    assert torch.equal(again.blanked().values.nan_to_num(), whole.blanked().values.nan_to_num())
    assert again.rows == whole.rows


def test_labels_by_row_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="one list for each of 2 rows"):
        Labelled(torch.zeros(2, 3), ("batch", "pos"), rows={"pos": [["a", "b", "c"]]})
    with pytest.raises(UnknownAxis):
        Labelled(torch.zeros(3), ("pos",), rows={"pos": [["a", "b", "c"]]})
