"""Patching: nothing where nothing differs, everything where everything is copied, and the wiring of known circuits."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given as drawn, strategies as st
from torch import Tensor, nn

from glassformer.analysis import run
from glassformer.analysis.causal import SiteGrid, patch
from glassformer.analysis.causal._patching import Direction
from glassformer.analysis.sweep import Donor, Metric, answer_rank, logit_difference, probability, sweep, token_loss
from glassformer.attention import AttentionLayer
from glassformer.data import Contrast, Pair, Pairs, induction
from glassformer.data.tokenizer import word_tokenizer
from glassformer.errors import (
    AnalysisUnavailable,
    DataError,
    NoPattern,
    ShapeMismatch,
    TextError,
    UnknownAxis,
    UnknownSite,
)
from glassformer.handmade import induction_model, pointer_model
from glassformer.render.terminal import lines
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, ENCODERS, Subject, attention_decoders, subject
from glassformer.trace import At, Set

METRIC = logit_difference(1, 2)
HYBRIDS = ["gpt2", "llama", "smeared", "lightning_hybrid", "differential", "parallel", "sandwich", "translator_linear"]


def pair(name: str, length: int = 4, at: int = 1, batch: int = 2) -> tuple[Subject, Contrast]:
    """Return a model, and prompts that differ at one position (an encoder-decoder's in the source)."""
    found = subject(name, batch=batch, length=length)
    first = found.inputs[0]
    other = first.clone()
    other[:, at] = (other[:, at] + 1) % 11
    return found, Contrast(first, other, target=found.inputs[1] if len(found.inputs) > 1 else None)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_value_put_in_its_own_place_changes_nothing(name: str) -> None:
    found, pairs = pair(name, length=3)
    pairs = dataclasses.replace(pairs, corrupt=pairs.clean)
    for table in patch(found.model, pairs, METRIC, sites=["everything", "resid_post", "head"]).values():
        assert (table.change.values.abs() < 1e-12).all()
        assert table.undefined.values.all() and table.fraction.values.isnan().all()


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_whole_layer_of_the_stream_is_the_whole_difference(name: str, direction: Any) -> None:
    found, pairs = pair(name)
    grids = [SiteGrid("resid_pre", ("layer",)), SiteGrid("resid_post", ("layer",))]
    for table, values in patch(found.model, pairs, METRIC, sites=grids, direction=direction).items():
        # the target is the same in both runs: what the decoder's own stream lacks comes from the source
        if not table.startswith("decoder"):
            arrived = values.clean if direction == "denoising" else values.corrupt
            close(values.values.values, arrived.values[:, None].expand_as(values.values.values))


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if not name.startswith("translator")])
def test_positions_before_the_first_difference_do_nothing(name: str) -> None:
    found, pairs = pair(name, length=5, at=2)
    tables = patch(found.model, pairs, METRIC, sites=["stream", SiteGrid("z", ("layer", "pos"))])
    for values in tables.values():
        change = values.change.values[:, :, :2]
        assert change.numel() and (change.abs() < 1e-12).all()
        assert values.change.values[:, 0, 2].abs().max() > 1e-6


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_patterns_and_values_of_a_group_of_heads_are_its_z(name: str) -> None:
    found, pairs = pair(name)
    donor = Donor(pairs.clean, pairs.target)
    for stack in found.model.stacks.values():
        layer = next(stack.blocks[-1].part(n) for n in stack.blocks[-1].names if n.startswith("attn"))
        assert isinstance(layer, AttentionLayer)
        size = layer.dims.n_heads // layer.dims.n_kv_heads
        for kv_head in range(layer.dims.n_kv_heads):
            heads = list(range(kv_head * size, (kv_head + 1) * size))
            parts = [
                Set(layer.at.pattern, donor, at=At(head=heads)),
                Set(layer.at.value, donor, at=At(kv_head=kv_head)),
            ]
            plan = [parts, [Set(layer.at.z, donor, at=At(head=heads))]]
            both, whole = sweep(found.model, pairs.corrupt, plan, METRIC, target=pairs.target).values.values[0]
            close(both, whole)


@pytest.mark.parametrize("name", HYBRIDS)
def test_each_entry_is_one_run_with_one_edit(name: str) -> None:
    found, pairs = pair(name)
    grids = [
        "z",
        "query",
        "value",
        SiteGrid("key", ("layer", "head", "pos")),
        SiteGrid("pattern_entries", only={"layer": [1]}),
    ]
    tables = patch(found.model, pairs, METRIC, sites=grids)
    clean = run(found.model, pairs.clean, pairs.target, read=["*.z", "*.query", "*.value", "*.key", "*.pattern"])
    for path, table, at in (
        ("attn.z", "z", {"head": 1}),
        ("attn.query", "query", {"head": 1}),
        ("attn.value", "value", {"kv_head": 0}),
        ("attn.key", "key", {"kv_head": 0, "key": 1}),
        ("attn.pattern", "pattern_entries", {"head": 0, "query": 3, "key": 1}),
    ):
        for stack in found.model.stacks:
            prefix = f"{stack}." if stack else ""
            edit = Set(f"{prefix}blocks.1.{path}", clean, at=At(**at))
            logits = run(found.model, pairs.corrupt, pairs.target, edit=[edit]).logits
            assert logits is not None
            values = tables[f"{stack} {table}".strip()].values
            place = {axis: i for axis, i in at.items() if axis in values.axes}
            layer = values.labels("layer").index(1)
            close(values.select(layer=layer, **place).values[0], logits[:, -1, 1] - logits[:, -1, 2])


@pytest.mark.parametrize("name", ENCODERS)
def test_every_entry_of_an_encoders_pattern_is_one_run_with_one_edit(name: str) -> None:
    found, pairs = pair(name, length=3)
    values = patch(found.model, pairs, METRIC, sites="pattern_entries")["pattern_entries"].values
    clean = run(found.model, pairs.clean, read=["*.pattern"])
    for layer, head, query, key in itertools.product(*map(range, values.values.shape[1:-1])):
        edit = Set(f"blocks.{layer}.attn.pattern", clean, at=At(head=head, query=query, key=key))
        logits = run(found.model, pairs.corrupt, edit=[edit]).logits
        assert logits is not None
        expected = logits[:, -1, 1] - logits[:, -1, 2]
        close(values.select(layer=layer, head=head, query=query, key=key).values[0], expected)


@pytest.mark.parametrize("name", ["gpt2", "masked_pre", "translator_pre"])
def test_entries_are_left_out_where_no_query_sees_the_key_and_nowhere_else(name: str) -> None:
    found, pairs = pair(name, length=4)
    tables = patch(found.model, pairs, METRIC, sites="pattern_entries")
    for table, patched in tables.items():
        causal = "cross" not in table and not table.startswith("encoder") and not name.startswith("masked")
        n_query, n_key = patched.values.size("query"), patched.values.size("key")
        seen = torch.ones(n_query, n_key, dtype=torch.bool)
        there = ~patched.values.values.isnan()
        assert torch.equal(there, (seen.tril() if causal else seen)[..., None].expand_as(there))


@pytest.mark.full
@drawn(attention_decoders(mlps=True), st.data())
def test_any_entry_of_any_decoder_is_one_run_with_one_edit(found: Subject, data: st.DataObject) -> None:
    clean = found.inputs[0]
    corrupt = (clean + data.draw(st.integers(1, 10))) % 11
    direction: Direction = data.draw(st.sampled_from(["denoising", "noising"]))
    tables = patch(found.model, (clean, corrupt), METRIC, "everything", direction=direction)
    name = data.draw(st.sampled_from(list(tables)))
    values = tables[name].values
    axes = values.axes[1:-1]
    place = {axis: data.draw(st.integers(0, values.size(axis) - 1)) for axis in axes}
    *part, family = name.split()
    layer = values.labels("layer")[place["layer"]]
    quantity = {"attn_out": "out", "mlp_out": "out"}.get(family, family)
    inside = "" if family.startswith("resid") else f"{part[0]}." if part else f"{'mlp' if 'mlp' in family else 'attn'}."
    site = f"blocks.{layer}.{inside}{quantity}"
    into, out_of = (corrupt, clean) if direction == "denoising" else (clean, corrupt)
    donor = run(found.model, out_of, read=[site])
    edit = Set(site, donor, at=At(**{axis: i for axis, i in place.items() if axis != "layer"}))
    sizes = found.model.sites()[site].sizes
    if any(index >= sizes.get(axis, index + 1) for axis, index in place.items()):  # another layer has more heads
        assert values.select(**place).values[0].isnan().all()
        with pytest.raises(ShapeMismatch):
            run(found.model, into, edit=[edit])
        return
    logits = run(found.model, into, edit=[edit]).logits
    assert logits is not None
    close(values.select(**place).values[0], logits[:, -1, 1] - logits[:, -1, 2])


def induction_prompts() -> tuple[Tensor, Tensor]:
    """Return prompts whose earlier copy of the last token is there, and is another token."""
    clean = torch.tensor([[0, 1, 2, 3, 4, 5, 1], [0, 6, 7, 8, 1, 2, 6]])
    corrupt = clean.clone()
    corrupt[:, 1] = torch.tensor([9, 9])
    return clean, corrupt


WIRING = {
    # the previous-token head writes what the induction head's key reads
    "induction": ({"L0": {"z", "value"}, "L1": {"z", "key", "pattern"}}, 2, 1),
    # the duplicate-token head writes what its query reads
    "pointer": ({"L0": {"z", "key", "pattern"}, "L1": {"z", "query", "pattern"}}, -1, 1),
}


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize("kind", WIRING)
def test_patching_finds_the_wiring_and_nothing_else(kind: str, direction: Any) -> None:
    model = induction_model() if kind == "induction" else pointer_model()
    wiring, writes_at, _ = WIRING[kind]
    clean, corrupt = induction_prompts()
    metric = logit_difference([2, 7], [3, 8])
    found = patch(
        model, (clean, corrupt), metric, ["everything", SiteGrid("z", ("layer", "head", "pos"))], direction=direction
    )
    arrived = 1.0 if direction == "denoising" else 0.0
    for family in ("query", "key", "value", "pattern"):
        for layer in range(2):
            share = found[family].recovered.values[0, layer]
            expected = torch.full_like(share, 1 - arrived)
            if family in wiring[f"L{layer}"]:
                expected[0] = arrived
            close(share, expected, 1e-6)
    by_position = found["z by layer head pos"].recovered.values[0]
    expected = torch.full_like(by_position, 1 - arrived)
    expected[0, 0, writes_at] = expected[1, 0, -1] = arrived
    close(by_position, expected, 1e-6)
    # what enters the stack differs where the token does
    stream = found["resid_pre"].recovered.values[0, 0]
    assert stream.sub(1 - arrived).abs().gt(1e-6).nonzero().flatten().tolist() == [1]


def test_what_the_head_copies_is_in_its_value_alone() -> None:
    clean = torch.tensor([[0, 1, 2, 3, 4, 5, 1]])
    corrupt = clean.clone()
    corrupt[0, 2] = 7
    found = patch(induction_model(), Contrast(clean, corrupt, 2, 7), None, ["z", "query", "key", "value", "pattern"])
    named = {
        name: set(zip(*table.fraction.values[0, ..., 0].gt(0.5).nonzero().T.tolist())) for name, table in found.items()
    }
    assert named == {"z": {(1, 0)}, "value": {(1, 0)}, "query": set(), "key": set(), "pattern": set()}


def test_two_heads_that_do_the_same_hide_from_noising_and_not_from_denoising() -> None:
    model, (clean, corrupt) = induction_model(redundant=True), induction_prompts()
    metric = probability([2, 7])
    directions: list[Direction] = ["denoising", "noising"]
    found = {d: patch(model, (clean, corrupt), metric, "z", direction=d)["z"] for d in directions}
    close(found["denoising"].recovered.values[0, 1], torch.ones(2).double(), 0.02)
    close(found["noising"].recovered.values[0, 1], torch.ones(2).double(), 0.02)


def _pairs_of_unequal_length() -> Pairs:
    first = Pair((1, 2, 3, 4, 5), (1, 9, 3, 4, 5), 6, 7, {"subject": (1, 2), "verb": (3, 4)})
    longer = Pair((1, 8, 8, 2, 3, 5, 4, 5), (1, 8, 8, 9, 3, 5, 4, 5), 6, 7, {"subject": (3, 4), "verb": (6, 7)})
    return Pairs((first, longer, Pair((1, 3, 2, 5), (1, 3, 9, 5), 6, 7, {"subject": (2, 3)})))


def test_places_of_pairs_of_unequal_length_are_of_one_role() -> None:
    model, pairs = subject("gpt2").model, _pairs_of_unequal_length()
    together = patch(model, pairs, sites=["resid_pre", "pattern_entries", "z"])
    table = together["resid_pre"]
    roles = {"before": [[0], [0, 1, 2], [0, 1]], "subject": [[1], [3], [2]], "behind-subject": [[2], [4, 5], []],
             "verb": [[3], [6], []], "last": [[4], [7], [3]]}  # fmt: skip
    assert table.values.labels("pos") == list(roles) == together["pattern_entries"].values.labels("key")
    assert table.n.values[0, 0].tolist() == [3, 3, 2, 2, 3]
    for i, one in enumerate(pairs):
        alone = one.clean, one.corrupt
        ids = [torch.tensor([row]) for row in alone]
        clean = run(model, ids[0], read=["*.resid_pre", "*.pattern"])
        for j, places in enumerate(roles.values()):
            edit = Set("blocks.1.resid_pre", clean, at=At(pos=places[i]))
            entry = Set("blocks.1.attn.pattern", clean, at=At(head=1, query=[len(alone[0]) - 1], key=places[i]))
            for found, change in ((table, edit), (together["pattern_entries"], entry)):
                of_pair = found.values.values[0, 1, j, i] if found is table else found.values.values[0, 1, 1, 4, j, i]
                if not places[i]:
                    assert of_pair.isnan()
                    continue
                logits = run(model, ids[1], edit=[change]).logits
                assert logits is not None
                close(of_pair, logits[0, -1, 6] - logits[0, -1, 7])
        close(together["z"].values.values[..., i], patch(model, one, sites="z")["z"].values.values[..., 0])
    # one word of the last: of a single prompt, and so neither sure nor ranked
    single = patch(model, pairs[1:], sites="resid_pre")["resid_pre"]
    assert single.n.values[0, 0].tolist() == [2, 2, 1, 1, 2] and bool(single.error().values[0, 0, 3].isnan())
    # without the notes: a model at random does no task, and nothing of it is ranked at all
    shown = "\n".join(lines(dataclasses.replace(single)))
    ranked = shown[shown.index("largest") :]
    assert "verb(1)" in shown and "verb" not in ranked and "subject" in ranked


def test_places_that_play_different_parts_are_not_told_apart_by_number() -> None:
    model = subject("gpt2").model
    pairs = _pairs_of_unequal_length()
    alike = Pairs((pairs[0], Pair((1, 2, 3, 4, 5), (1, 2, 9, 4, 5), 6, 7, {"subject": (2, 3), "verb": (3, 4)})))
    assert patch(model, alike, sites="resid_pre")["resid_pre"].values.labels("pos")[0] == "before"
    unnamed = Pairs(tuple(dataclasses.replace(pair, roles={}) for pair in pairs))
    names = patch(model, unnamed, sites="resid_pre")["resid_pre"].values.labels("pos")
    assert names == ["before", "changed", "behind-changed", "last"]
    with pytest.raises(ShapeMismatch, match="groups"):
        patch(model, pairs, sites=SiteGrid("z", only={"pos": [1]}))
    encoded = pairs.encode(model, pad="right")
    by_hand = Contrast(encoded.side("clean"), encoded.side("corrupt"))
    with pytest.raises(ShapeMismatch, match="4 to 8 tokens play different parts"):
        patch(model, by_hand, METRIC, "resid_pre")
    assert patch(model, by_hand, METRIC, "z")["z"].values.size("batch") == 3


def test_the_mean_the_error_and_the_interval_are_over_prompts() -> None:
    found, pairs = pair("gpt2", batch=6)
    table = patch(found.model, pairs, [METRIC, answer_rank(1)], sites="z")["z"]
    close(table.mean("change").values, table.change.values.mean(-1))
    close(table.error("values").values, table.values.values.std(-1) / 6**0.5)
    low, high = table.interval("values").values
    mean = table.mean("values").values
    assert (low <= mean).all() and (mean <= high).all()
    other = patch(found.model, pairs, METRIC, sites="z", direction="noising")["z"]
    close(other.carried.values[0], 1 - other.recovered.values[0])
    close(table.carried.values[0], table.recovered.values[0])
    narrow = table.interval("values", level=0.5).values
    assert (narrow[1] - narrow[0] <= high - low).all()
    assert (low == table.interval("values").values[0]).all()


def test_prompts_with_next_to_no_difference_have_no_fraction() -> None:
    found, pairs = pair("gpt2", batch=3)
    pairs.corrupt[1] = pairs.clean[1]
    table = patch(found.model, pairs, METRIC, sites="resid_pre")["resid_pre"]
    assert table.undefined.values.tolist() == [[False, True, False]]
    assert table.fraction.values[..., 1].isnan().all()
    others = table.fraction.values[..., [0, 2]]
    close(table.mean().values, others.mean(-1))
    gap = (table.clean.values - table.corrupt.values).mean(-1)
    close(table.recovered.values, (table.values.values - table.corrupt.values[:, None, None]).mean(-1) / gap)


def test_one_sweep_serves_all_families_and_names_what_it_cut() -> None:
    found, pairs = pair("llama", batch=1)
    seen: list[tuple[int, ...]] = []
    grids = ["everything", SiteGrid("z", ("layer", "head", "pos")), SiteGrid("blocks.*.attn.norm", ("site", "pos"))]
    tables = patch(found.model, pairs, METRIC, sites=grids, report=lambda *at: seen.append(at))
    assert list(tables) == [
        "resid_pre", "attn_out", "mlp_out", "z by layer head", "query", "key", "value", "pattern",
        "z by layer head pos", "blocks.*.attn.norm",
    ]  # fmt: skip
    assert tables["key"].values.axes == ("metric", "layer", "kv_head", "batch")
    assert tables["key"].values.size("kv_head") == 2
    ids, other = pairs.clean[0].tolist(), pairs.corrupt[0].tolist()
    assert tables["resid_pre"].values.labels("pos")[:2] == [f"0:{ids[0]}", f"1:{ids[1]}/{other[1]}"]
    assert seen[-1] == (tables.rows, tables.rows)
    assert len(tables.plot("z by layer head", "key").axes) == 4  # each with its colour bar
    assert len(tables["resid_pre"].plot("recovered").axes) == 2
    words = ["start", "subject", "verb", "end"]
    named = patch(found.model, dataclasses.replace(pairs, labels=words), METRIC, ["resid_pre", "pattern_entries"])
    assert named["resid_pre"].values.labels("pos") == named["pattern_entries"].values.labels("key") == words
    with pytest.raises(ShapeMismatch, match="labels name 1 different positions, and the prompts have 4"):
        patch(found.model, dataclasses.replace(pairs, labels=["a"] * 4), METRIC)
    frame = tables.to_frame()
    assert len(frame) == sum(t.values.values.numel() for t in tables.values())


def test_prompt_pairs_are_patched_as_they_come() -> None:
    model = induction_model(max_len=24)
    drawn_pairs = induction(range(1, 21), 3, unit=8, again=4)
    pairs = drawn_pairs.encode(model)
    found = patch(model, drawn_pairs, sites="resid_pre")
    entering = found["resid_pre"].values.select(layer=0, metric=0)
    assert pairs.labels is not None and entering.labels("pos") == list(pairs.labels)
    by_hand = patch(model, (pairs.clean, pairs.corrupt), logit_difference(pairs.answer, pairs.wrong), "resid_pre")
    assert torch.equal(by_hand["resid_pre"].values.values, found["resid_pre"].values.values)
    # all that differs is what followed the first copy
    carried = found["resid_pre"].carried.values[0, 0]
    assert carried.nonzero().flatten().tolist() == pairs.differs[0].nonzero().flatten().tolist()
    close(carried.sum(), torch.tensor(1.0).double())


def test_only_some_neurons_at_one_position_are_patched() -> None:
    found, pairs = pair("gpt2")
    grid = SiteGrid("neurons", only={"layer": [0], "neuron": [3, -1], "pos": [1]})
    table = patch(found.model, pairs, METRIC, sites=grid)["neurons"]
    assert table.values.coords["neuron"] == [3, 63] and table.values.coords["layer"] == [0]
    clean = run(found.model, pairs.clean, read=["blocks.0.mlp.hidden"])
    edit = Set("blocks.0.mlp.hidden", clean, at=At(pos=1, neuron=3))
    logits = run(found.model, pairs.corrupt, edit=[edit]).logits
    assert logits is not None
    close(table.values.values[0, 0, 0], logits[:, -1, 1] - logits[:, -1, 2])


def test_any_module_is_patched_at_its_boundaries() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 5)).double()
    clean, corrupt = torch.tensor([[1, 2]]), torch.tensor([[1, 3]])
    metric = Metric("sum", lambda logits: logits.sum((-1, -2)), (), None)
    table = patch(module, (clean, corrupt), metric, "*.out")["*.out"]
    close(table.values.values[0, :, 0], table.clean.values[0].expand(4))


def test_prompts_that_do_not_align_are_explained() -> None:
    model = subject("gpt2").model
    model.tokenizer = word_tokenizer(["the cat sat on mats"], specials=("<bos>",))
    with pytest.raises(ShapeMismatch, match=r"(?s)prompt 0 has 4 tokens clean and 5 corrupt.*part at position 2"):
        patch(model, ("the cat sat", "the mats on cat"), METRIC)
    with pytest.raises(ShapeMismatch, match="2 clean prompts and 1 corrupt"):
        patch(model, (["the cat", "the mats"], "the cat"), METRIC)
    two = patch(model, (["the cat", "the mats sat"], ["the mats", "the cat sat"]), METRIC, "z")
    one = patch(model, ("the cat", "the mats"), METRIC, "z")
    close(two["z"].values.values[..., :1], one["z"].values.values)


def test_pairs_say_what_is_measured_and_which_run_they_stand_for() -> None:
    model = subject("gpt2").model
    model.tokenizer = word_tokenizer(["the cat sat on mats"], specials=("<bos>",))
    asked = Contrast("the cat", "the mats", answer=" sat", wrong=" on")
    expected = patch(model, ("the cat", "the mats"), logit_difference(" sat", " on"), "z")["z"].values.values
    for pairs in (asked, Pair("the cat", "the mats", " sat", " on"), [Pair("the cat", "the mats", " sat", " on")]):
        found = patch(model, pairs, sites="z")["z"]
        assert found.values.labels("metric") == ["logit difference"]
        assert torch.equal(found.values.values, expected)
    alone = patch(model, dataclasses.replace(asked, wrong=None), sites="z")["z"]
    assert alone.values.labels("metric") == ["logit"]
    with pytest.raises(AnalysisUnavailable, match="nothing says what to measure"):
        patch(model, ("the cat", "the mats"))
    with pytest.raises(DataError, match=r"patch compares pairs of prompts, and was given str"):
        patch(model, "the cat")
    with pytest.raises(ShapeMismatch, match='"token loss" keeps pos'):
        patch(model, asked, token_loss(torch.tensor([[1, 2]])))


def test_what_cannot_be_patched_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found, pairs = pair("attention_only")
    with pytest.raises(UnknownSite, match=r'(?s)"zz".*Families: resid_pre'):
        patch(found.model, pairs, METRIC, sites="zz")
    with pytest.raises(AnalysisUnavailable, match="no MLP"):
        patch(found.model, pairs, METRIC, sites="neurons")
    with pytest.raises(UnknownAxis, match=r'no axis "neuron".*Axes: batch head pos d_value'):
        patch(found.model, pairs, METRIC, sites=SiteGrid("z", ("neuron",)))
    with pytest.raises(ShapeMismatch, match="the axis has 2 entries"):
        patch(found.model, pairs, METRIC, sites=SiteGrid("z", only={"head": [2]}))
    with pytest.raises(ShapeMismatch, match="the axis has 2 entries"):
        patch(found.model, pairs, METRIC, sites=SiteGrid("z", only={"layer": [5]}))
    linear, pairs = pair("linear")
    with pytest.raises(AnalysisUnavailable, match=r'"linear" \(has_scores=False\).*no scores'):
        patch(linear.model, pairs, METRIC, sites="scores")
    with pytest.raises(TextError, match="target="):
        patch(subject("translator_pre").model, (pairs.clean, pairs.corrupt), METRIC)
    without = subject("gpt2", seed=5)
    mixer = without.model.stack.blocks[0].attn.mixer
    monkeypatch.setattr(mixer, "traits", dataclasses.replace(mixer.traits, linear_in_value="no"))
    with pytest.raises(NoPattern, match=r'"blocks.0.attn" uses "softmax".*no pattern'):
        patch(without.model, (pairs.clean, pairs.corrupt), METRIC, "pattern")
    only = SiteGrid("pattern", only={"layer": [1]})
    assert "pattern" in patch(without.model, (pairs.clean, pairs.corrupt), METRIC, only)
    assert "pattern" not in patch(without.model, (pairs.clean, pairs.corrupt), METRIC, "everything")
