"""The cost table of MiniMax-01: models built of its layers are counted to cost what its formulas state, exactly."""

import json

import pytest
from hypothesis import given, strategies as st

from glassformer.cli import main
from glassformer.errors import ConfigError, UnknownModel
from glassformer.models.cost_table import FORMULAS, Cost, Sizes, compared


@pytest.mark.parametrize("name", FORMULAS)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([4, 8]), st.sampled_from([1, 3, 8]))
def test_what_is_counted_is_what_the_formulas_state(name: str, heads: int, d_head: int, chunks: int) -> None:
    found = compared(name, Sizes(width=heads * d_head, layers=8, heads=heads, length=chunks * d_head))
    assert found.counted == found.stated
    assert set(found.ratios().values()) == {1.0}


def test_the_table_of_the_report_by_hand() -> None:
    sizes = Sizes(width=16, layers=8, heads=2, length=8)
    assert {name: formula(sizes) for name, formula in FORMULAS.items()} == {
        "softmax": Cost(12 * 8 * 256, 72 * 8 * 8 * 256 * 13 // 12, 4 * 8 * 2 * 8 * 16),
        "lightning": Cost(12 * 8 * 256 + 8 * 256, 72 * 8 * 8 * 256 * 5 // 4, 4 * 8 * 128),
        "hybrid-lightning": Cost(12 * 8 * 256 + 7 * 256, 72 * 8 * 8 * 256 * 118 // 96, 4 * (2 * 8 * 16 + 7 * 128)),
    }
    # 5 / (18 d) of 72 n l d^2
    assert compared("softmax", sizes).uncounted_flops == 20 * 8 * 8 * 16


def test_the_sizes_of_minimax_01_need_no_memory_and_cross_where_the_report_says() -> None:
    soft, linear, mixed = (compared(name, Sizes()) for name in FORMULAS)
    assert soft.counted.parameters == 12 * 80 * 6144**2 == soft.stated.parameters  # type: ignore[union-attr]
    # a last chunk of 32 rows costs less than one of 96
    assert 0.9999 < linear.ratios()["flops"] < 1.0 and mixed.ratios()["state_bytes"] == 1.0
    at = Sizes(width=64, layers=8, heads=4, length=3 * 64 // 4)
    assert compared("softmax", at).counted.flops == compared("lightning", at).counted.flops


def test_other_mechanisms_are_counted_without_a_formula() -> None:
    found = compared("linear", Sizes(width=16, layers=2, heads=2, length=8))
    assert found.stated is None and found.ratios() == {} and found.counted.parameters > 0
    with pytest.raises(UnknownModel, match='no mechanism "lightnin"'):
        compared("lightnin", Sizes())
    with pytest.raises(ConfigError, match="width=10 does not divide into heads=4"):
        Sizes(width=10, heads=4)


def test_the_command_prints_the_table_and_writes_it(tmp_path, capsys) -> None:
    file = tmp_path / "costs.json"
    sizes = ["--width", "64", "--layers", "8", "--heads", "4", "--length", "64"]
    assert main(["params", "--compare", "softmax", "lightning", "hybrid-lightning", *sizes, "--json", str(file)]) == 0
    data, shown = json.loads(file.read_text()), capsys.readouterr().out
    assert [row["name"] for row in data["compared"]] == list(FORMULAS) and data["sizes"]["width"] == 64
    assert all(ratio == 1 for row in data["compared"] for ratio in row["ratios"].values())
    assert "hybrid-lightning" in shown and "5/(18d)" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a model, or --compare"),
        (["gpt2-small", "--compare", "softmax"], "--compare builds its models itself"),
        (["gpt2-small", "--heads", "4"], "--heads is for --compare"),
        (["--compare", "softmax", "--complexity"], "--complexity and --dtype are for a model"),
    ],
)
def test_the_command_says_what_goes_together(arguments: list[str], said: str, capsys) -> None:
    assert main(["params", *arguments]) != 0
    assert said in " ".join(capsys.readouterr().err.split())
