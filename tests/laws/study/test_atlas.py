"""The atlas holds every claim of every report where it belongs, and says of the rest whether anything can be asked."""

import csv
import functools
import io
import json
import re
from collections import Counter

import pytest

from glassformer.applicability import applied
from glassformer.attention import MixerConfig, Softmax, Streaming
from glassformer.cli import main
from glassformer.errors import ConfigError, UnknownKind
from glassformer.study import Case, Claim, Measure, Scale, Study, above, find, kinds_of, names, shipped, value
from glassformer.study.atlas import NONE, atlas, tally

KINDS = {kind for kind, config in MixerConfig.registry.items() if config.__module__.startswith("glassformer.")}


@functools.cache
def reports():
    return {name: report for name in names() if (report := shipped(name)) is not None}


def study(**more) -> Study:
    claims = tuple(
        Claim(name, f"{name} is so", value("loss", kept=name), above(0)) for name in ("all", "some", "streaming")
    )
    more = {"mechanisms": ("softmax", "streaming"), "grid": {"kept": ("all", "some", "streaming")}} | more
    return Study("made-up", "a paper", "a question", lambda case: {}, claims, {"small": Scale()}, **more)


def test_every_claim_of_every_report_is_there_once_for_each_mechanism_it_is_about():
    expected = Counter(
        (name, told["name"], told["verdict"], mechanism)
        for name, report in reports().items()
        for told in report["claims"]
        for mechanism in find(name).about(next(one for one in find(name).claims if one.name == told["name"])) or (NONE,)
    )
    found = atlas()
    assert Counter((one.study, one.name, one.verdict, one.mechanism) for one in found.claims) == expected
    assert set(expected.values()) == {1}
    # none is lost between studies and reports
    assert {key[:2] for key in expected} == {
        (name, one["name"]) for name in reports() for one in reports()[name]["claims"]
    }
    assert set(found.unreported) == set(names()) - set(reports())


def test_numbers_and_verdicts_are_those_of_the_reports():
    told = {(name, one["name"]): one for name, report in reports().items() for one in report["claims"]}
    for one in atlas().claims:
        claim = told[one.study, one.name]
        assert (one.claim, one.quantity, one.expected) == (claim["text"], claim["quantity"], claim["expected"])
        assert (one.mean, one.low, one.high, one.why) == tuple(claim[part] for part in ("mean", "low", "high", "why"))
        assert one.seeds == len(claim["values"]) and one.link.endswith(f"claims.md#{one.study}")


def test_cells_are_not_testable_here_exactly_where_the_analysis_is_refused_and_nothing_is_claimed_there():
    outcomes = {
        (name, analysis): outcome
        for row in applied().groups["mechanism"]
        for name in (row.name, *row.also)
        if name in KINDS
        for analysis, outcome in row.outcomes.items()
    }
    cells = {(cell.mechanism, cell.analysis): cell for cell in atlas().cells}
    assert len(cells) == len(atlas().cells)
    refused = {at for at, outcome in outcomes.items() if outcome.status == "refused"}
    assert {at for at, cell in cells.items() if cell.state == "not testable here"} == refused != set()
    assert {at for at in cells if at not in outcomes} == {
        (one.mechanism, one.analysis) for one in atlas().claims if NONE in (one.mechanism, one.analysis)
    }
    assert {mechanism for mechanism, _ in cells} == {*KINDS, NONE}
    assert [cell for cell in cells.values() if cell.claims and cell.state != "claimed"] == []


def test_counts_of_cells_mechanisms_and_rows_add_up():
    found = atlas()
    by_mechanism = [tally(one for cell in cells for one in cell.claims) for cells in found.mechanisms.values()]
    for verdict, n in tally(found.claims).items():
        assert sum(counts[verdict] for counts in by_mechanism) == n
    assert sum(tally(found.claims).values()) == len(found.claims)
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert sum(bool(row["claim"]) for row in rows) == len(found.claims)
    assert len(rows) == len(found.claims) + sum(not cell.claims for cell in found.cells)
    told = json.loads(found.to_json())
    assert len(told["claims"]) == len(found.claims)
    for one, (mechanism, cells) in zip(told["mechanisms"], found.mechanisms.items(), strict=True):
        states = Counter(cell.state for cell in cells)
        assert one["mechanism"] == mechanism
        assert (len(one["open"]), len(one["not testable here"])) == (states["open"], states["not testable here"])


def test_what_is_named_is_what_mechanisms_analyses_and_studies_have_in_common():
    found = atlas()
    left = found.named("softmax", "patch", "induction-by-mechanism")
    assert left.claims == tuple(
        one for one in found.claims
        if (one.mechanism, one.analysis, one.study) == ("softmax", "patch", "induction-by-mechanism")
    ) != ()  # fmt: skip
    assert found.named() == found
    assert [cell.state for cell in found.named("neural_memory", "head_scores").cells] == ["not testable here"]
    with pytest.raises(UnknownKind, match=r'nothing in the atlas is called "sofmax".*softmax'):
        found.named("sofmax")
    with pytest.raises(UnknownKind, match='no cell of "softmax" and "pach"'):
        found.cell("softmax", "pach")


def test_a_claim_is_about_the_mechanisms_of_its_cases_and_else_about_all():
    made = study(kinds={"all": ("softmax",), "some": ()})
    assert [made.about(claim) for claim in made.claims] == [("softmax",), (), ("streaming",)]
    assert [study().about(claim) for claim in made.claims[:2]] == [("softmax", "streaming")] * 2
    assert kinds_of({"all": Softmax(), "first": Streaming()}) == {"all": ("softmax",), "first": ("streaming",)}


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"al": ("softmax",)}, 'no case has "al", which has kinds.*"all"'),
        ({"all": ("linear",)}, '"all" is of "linear"'),
    ],
)
def test_kinds_of_no_case_or_of_no_mechanism_of_the_study_are_refused(kinds, said):
    with pytest.raises(ConfigError, match=said):
        study(kinds=kinds)


def test_an_analysis_is_that_of_the_first_measure_that_has_one(monkeypatch):
    def lens(run):
        raise NotImplementedError

    made = study(measures={"loss": Measure("a loss", analysis=lens)})
    monkeypatch.setattr("glassformer.study.atlas.find", lambda name: made)
    report = shipped("rank-collapse")
    assert report is not None
    told = [report["claims"][0] | {"name": claim.name, "text": claim.text} for claim in made.claims]
    found = atlas({"made-up": report | {"study": "made-up", "claims": told}})
    assert {(one.mechanism, one.analysis, one.name) for one in found.claims} == {
        ("softmax", "lens", "all"), ("streaming", "lens", "all"), ("softmax", "lens", "some"),
        ("streaming", "lens", "some"), ("streaming", "lens", "streaming"),
    }  # fmt: skip
    assert isinstance(made.cases("small")[0], Case)


def test_the_command_shows_counts_of_all_and_claims_of_what_is_named(capsys, tmp_path):
    assert main(["study", "atlas"]) == 0
    told = capsys.readouterr().out
    counts = tally(one for cell in atlas().mechanisms["differential"] for one in cell.claims)
    row = next(line for line in told.splitlines() if "differential" in line)
    assert [int(n) for n in re.findall(r"\d+", row)][:4] == list(counts.values())[:4]
    assert main(["study", "atlas", "differential", "head_scores"]) == 0
    shown = capsys.readouterr().out
    assert "not testable here" in shown and "induction-by-me" in shown and "linear-patterns" not in shown
    assert main(["study", "atlas", "neural_memory", "head_scores"]) == 0
    assert "not testable here:" in capsys.readouterr().out
    table = tmp_path / "atlas.csv"
    assert main(["study", "atlas", "linear", "--csv", str(table), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"] == json.loads(atlas().named("linear").to_json())["claims"]
    assert table.read_text(encoding="utf-8") == atlas().named("linear").to_csv()


@pytest.mark.parametrize(
    ("asked", "said"),
    [(["atlas", "linaer"], 'called "linaer"'), (["list", "--csv", "a.csv"], "glassformer study atlas --csv FILE")],
)
def test_the_command_refuses_what_the_atlas_does_not_have(asked, said, capsys):
    assert main(["study", *asked]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
