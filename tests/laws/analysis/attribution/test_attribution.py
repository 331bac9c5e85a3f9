"""Direct logit attribution: nothing is left over, whatever the architecture."""

import math
from typing import Any

import pytest
import torch

from glassformer.analysis import Run, run
from glassformer.analysis.attribution import direct_logit_attribution, neuron_effects, source_effects
from glassformer.analysis.cards import card_of
from glassformer.attention import Merge
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, SiteNotRead, UnknownAxis
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, NoNorm, RmsNorm, block, repeat
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import DIRECTED, Subject, subject
from glassformer.trace import Add, At, Scale, Set
from one_pass import in_one_pass

every = pytest.mark.parametrize("name", DIRECTED)


def passed(found: Subject, *more: str) -> Run:
    inputs = [ids[:1] for ids in found.inputs]
    return run(found.model, inputs[0], *inputs[1:], read=[direct_logit_attribution, *more])


def raw_logits(done: Run) -> torch.Tensor:
    """Return the logits before the cap, if the model has one."""
    assert done.logits is not None
    return done["logits_raw"].values if "logits_raw" in done else done.logits


@every
def test_components_sum_to_the_logit(name: str) -> None:
    done = passed(subject(name))
    for answer, position in ((0, -1), (6, 2)):
        found = direct_logit_attribution(done, answer=answer, position=position)
        close(found.contributions.values.sum(), raw_logits(done)[0, position, answer])
        assert float(found.total) == pytest.approx(float(found.sum))


@every
def test_components_sum_to_the_difference_of_two_logits(name: str) -> None:
    done = passed(subject(name))
    found = direct_logit_attribution(done, answer=3, against=5)
    close(found.contributions.values.sum(), raw_logits(done)[0, -1, 3] - raw_logits(done)[0, -1, 5])


@pytest.mark.full
@in_one_pass
@pytest.mark.parametrize("wiring", ["pre", "post", "sandwich", "parallel"])
@pytest.mark.parametrize("norm", [LayerNorm(), LayerNorm(bias=False), RmsNorm(), NoNorm()], ids=lambda n: f"{n.kind}")
def test_components_sum_to_the_logit_in_every_wiring_with_every_norm(wiring: Any, norm: Any) -> None:
    merges = [Merge(bias=True), Merge(norm="all", gate="sigmoid"), Merge(norm="head", factor=0.3)]
    layers = [block(n_heads=2, mlp=Mlp(8), wiring=wiring, norm=norm, merge=merge) for merge in merges]
    config = DecoderConfig(
        11, 12, tuple(layers), positions=Learned(), final_norm=norm, tied=False, unembed_bias=True, max_len=8
    )
    model = randomise(config.build().double())
    done = run(model, [[1, 2, 3, 4]], read=[direct_logit_attribution, source_effects])
    found = direct_logit_attribution(done, answer=3)
    assert done.logits is not None
    close(found.contributions.values.sum(), done.logits[0, -1, 3])
    taken = source_effects(done, answer=3)
    for component in found.components:
        if component.head is not None:
            close(taken[component.label].values.sum(), found[component.label].values)


@every
def test_what_a_head_takes_from_each_token_sums_to_what_the_head_adds(name: str) -> None:
    model = subject(name)
    done = passed(model, *card_of(source_effects).reads(model.model))
    found = direct_logit_attribution(done, answer=3, against=5, position=4)
    heads = [c for c in found.components if c.head is not None]
    assert heads
    taken = source_effects(done, answer=3, against=5, position=4)
    for head in heads:
        split = taken[head.label]
        tokens = done.source_tokens if head.kind == "cross_head" else done.tokens
        assert split.size("key") == len(tokens)
        close(split.values.sum(), found[head.label].values, 1e-8)


@every
def test_a_contribution_is_the_direct_effect_of_removing_the_write(name: str) -> None:
    # path patching: all other sub-layers still write what they wrote, norms still divide by what they divided by
    found = subject(name)
    inputs = [ids[:1] for ids in found.inputs]
    clean = passed(found, "*.out")
    split = direct_logit_attribution(clean, answer=3)
    raw = [n for n in clean if n == "logits_raw"]
    stack = list(found.model.stacks.values())[-1]
    frozen = [n for n in clean if n.endswith(("write_scale", "sum_scale", "final.scale"))]
    for component in [c for c in split.components if c.kind in ("head", "cross_head", "mlp")]:
        path = f"{stack.blocks[component.layer].path}.{component.part}"
        others = [
            n for n in clean if n.endswith(".out") and not n.startswith(f"{path}.") and not n.startswith("encoder.")
        ]
        site = f"{path}.out" if component.head is None else f"{path}.head_out"
        removed = Scale(site, 0.0, at=At() if component.head is None else At(head=component.head))
        edits = [removed, *[Set(n, clean) for n in (*others, *frozen)]]
        without = run(found.model, inputs[0], *inputs[1:], read=raw, edit=edits)
        change = raw_logits(clean)[0, -1, 3] - raw_logits(without)[0, -1, 3]
        assert float(change) == pytest.approx(float(split[component.label]), abs=1e-10)


def test_a_capped_model_has_its_raw_logit_split_and_says_so() -> None:
    done = passed(subject("capped"))
    assert done.logits is not None
    split = direct_logit_attribution(done, answer=3)
    assert split.cap == 0.3 == done.model.config.logit_cap
    assert float(done.logits[0, -1, 3]) == pytest.approx(0.3 * math.tanh(float(split.total) / 0.3))
    assert abs(float(split.total) - float(done.logits[0, -1, 3])) > 0.01
    assert direct_logit_attribution(passed(subject("llama")), answer=3).cap is None


def test_in_the_induction_model_the_induction_head_adds_the_whole_logit() -> None:
    model, ids = induction_model(), repeated()
    done = run(model, ids[:, :-1], read=[direct_logit_attribution, source_effects])
    found = direct_logit_attribution(done, answer=int(ids[0, -1]))
    assert float(found["L1H0"]) == pytest.approx(float(found.total)) == pytest.approx(50.0, rel=1e-4)
    assert float(found["L0H0"]) == float(found["L0H1"]) == float(found["L1H1"]) == 0
    # it takes it from the one place where the answer stood before
    split = source_effects(done, answer=int(ids[0, -1]))["L1H0"]
    place = (ids[0, :-1] == ids[0, -1]).nonzero()[0, 0]
    assert split.values[place] == pytest.approx(50.0, rel=1e-4)


def test_a_model_without_layers_splits_into_token_position_and_constants() -> None:
    config = DecoderConfig(7, 6, (), positions=Learned(), max_len=4, unembed_bias=True)
    model = randomise(config.build().double())
    found = direct_logit_attribution(run(model, [1, 2], read=[direct_logit_attribution]), answer=3)
    assert [c.label for c in found.components] == ["token", "position", "final norm bias", "unembed bias"]
    assert float(found.sum) == pytest.approx(float(found.total))


def test_an_edited_stream_leaves_a_difference_between_sum_and_total() -> None:
    model = subject("gpt2").model
    push = Add("blocks.0.resid_post", torch.full((16,), 3.0).double().sin(), at=At(pos=-1))
    clean, edited = (run(model, [1, 2, 3], read=[direct_logit_attribution], edit=edit) for edit in ([], [push]))
    found = direct_logit_attribution(clean, answer=3)
    assert float(found.sum) == pytest.approx(float(found.total))
    edited = run(
        model, [1, 2, 3], read=[direct_logit_attribution], edit=[Add("blocks.1.resid_pre", torch.arange(16.0).double())]
    )
    found = direct_logit_attribution(edited, answer=3)
    assert abs(float(found.sum) - float(found.total)) > 1e-3


def test_components_are_named_in_the_order_of_the_forward_pass() -> None:
    model = subject("translator_post").model
    done = run(model, [1, 2, 3], [4, 5], read=[direct_logit_attribution])
    labels = [c.label for c in direct_logit_attribution(done, answer=3).components]
    layers = []
    for i in range(2):
        for part, letter in (("attn", "H"), ("cross", "X")):
            layers += [f"L{i}{letter}{h}" for h in range(4)]
            layers += [f"L{i} {part} bias", f"L{i} {part} norm bias"]
        layers += [f"L{i} mlp", f"L{i} mlp norm bias"]
    assert labels == ["token", "position", *layers]


def test_a_run_that_lacks_sites_is_refused_with_what_to_read() -> None:
    model = subject("gpt2").model
    with pytest.raises(SiteNotRead, match=r"attribution needs sites .* Add to read=:\n.*blocks\.0\.attn\.z"):
        direct_logit_attribution(run(model, [1, 2]), answer=3)


def test_models_that_are_not_ours_are_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match="Linear is none of them"):
        card_of(direct_logit_attribution).reads(torch.nn.Linear(2, 2))


def test_sources_of_an_unknown_head_names_the_heads_there_are() -> None:
    model = subject("attention_only").model
    done = run(model, [1, 2], read=[direct_logit_attribution, source_effects])
    with pytest.raises(UnknownAxis, match=r'"L9H9" is no head of this attribution. Heads: L0H0, L0H1, L1H0, L1H1'):
        source_effects(done, answer=3)["L9H9"]


@pytest.mark.parametrize("layers", [1, 3])
def test_two_attention_parts_of_one_block_keep_their_names_apart(layers: int) -> None:
    twice = block(n_heads=2)
    config = DecoderConfig(7, 8, repeat(twice.replace(parts=twice.parts * 2), layers), max_len=8)
    model = randomise(config.build().double())
    found = direct_logit_attribution(run(model, [1, 2, 3], read=[direct_logit_attribution]), answer=1)
    labels = [c.label for c in found.components]
    assert len(set(labels)) == len(labels)
    assert "L0H1#2" in labels
    assert float(found.sum) == pytest.approx(float(found.total))


def test_axes_are_those_that_were_not_asked_for_by_one_index() -> None:
    found = subject("gpt2")
    done = run(found.model, *found.inputs, read=[direct_logit_attribution, source_effects, neuron_effects])
    whole = direct_logit_attribution(done, position=None, row=None, answer=3)
    asked: list[tuple[Any, int | None, tuple[str, ...], Any]] = [
        (2, 1, (), (1, 2)),
        (torch.tensor(2), -1, (), (1, 2)),
        (2, None, ("batch",), (slice(None), 2)),
        ([2], 1, ("pos",), (1, [2])),
        ((2, -1), None, ("batch", "pos"), (slice(None), [2, 6])),
        (None, 0, ("pos",), (0,)),
        (torch.tensor([[1], [5]]), None, ("batch", "pos"), ([[0], [1]], [[1], [5]])),
    ]
    for position, row, axes, index in asked:
        split = direct_logit_attribution(done, position=position, row=row, answer=3)
        assert split.contributions.axes == (*axes, "component")
        close(split.contributions.values, whole.contributions.values[index])
        assert split.answer is not None
        for one in (split.answer, split.position, split.total, split.sum, split["L1H2"]):
            assert one.axes == axes
        assert torch.equal(split.position.values, whole.position.values[index])
        assert source_effects(done, position=position, row=row).contributions.axes == (*axes, "head", "key")
        neurons = neuron_effects(done, position=position, row=row)
        assert (neurons.contributions.axes, neurons.bias.axes) == ((*axes, "neuron"), (*axes, "mlp"))


def test_answers_and_directions_have_the_axes_of_the_places_asked_for() -> None:
    found = subject("gpt2")
    done = run(found.model, *found.inputs, read=[direct_logit_attribution])
    ids = torch.arange(14).reshape(2, 7) % 11
    assert done.logits is not None
    wanted = done.logits.gather(-1, ids[..., None])[..., 0]
    close(direct_logit_attribution(done, answer=ids[:, 2], position=2, row=None).sum.values, wanted[:, 2])
    close(direct_logit_attribution(done, answer=ids[:, 2:3], position=2, row=None).sum.values, wanted[:, 2])
    close(direct_logit_attribution(done, answer=ids[1], position=None, row=1).sum.values, wanted[1])
    close(direct_logit_attribution(done, answer=ids[1:, [0, 3]], position=[0, 3], row=1).sum.values, wanted[1, [0, 3]])
    close(direct_logit_attribution(done, answer=ids[1, 4], position=4, row=1).sum.values, wanted[1, 4])
    directions = found.model.unembed.direction(ids).detach()
    along = direct_logit_attribution(done, direction=directions[1], position=None, row=1)
    close(along.contributions.values[:, :-1], direct_logit_attribution(
        done, answer=ids[1], position=None, row=1).contributions.values[:, : len(along.components) - 1])  # fmt: skip
    assert along.answer is None


def test_answers_of_other_rows_and_places_are_refused_with_what_fits() -> None:
    found = subject("gpt2")
    done = run(found.model, *found.inputs, read=[direct_logit_attribution])
    several = torch.tensor([1, 2])
    with pytest.raises(ShapeMismatch, match="shape 2; give one, as for one place; row=None takes all rows"):
        direct_logit_attribution(done, answer=several)
    with pytest.raises(ShapeMismatch, match=r"shape 2; give one, or one per position \(pos=7\); row=None"):
        direct_logit_attribution(done, answer=several, position=None)
    with pytest.raises(ShapeMismatch, match=r"shape 2x7; give one, or one per row \(batch=2\); position=None"):
        direct_logit_attribution(done, answer=done.ids, row=None)
    with pytest.raises(ShapeMismatch, match="row 2: the run has 2 rows, 0 to 1"):
        direct_logit_attribution(done, row=2)
    with pytest.raises(ShapeMismatch, match="positions for 2 rows were given; row=… asks for one; row=None takes"):
        direct_logit_attribution(done, position=several[:, None])


def test_one_place_is_written_as_plain_numbers() -> None:
    found = subject("gpt2")
    data = direct_logit_attribution(found.model, found.inputs[0], answer=3, against=5).to_dict()
    assert (data["answer"], data["against"], data["position"], data["norm"]) == (3, 5, 6, "frozen")
    assert data["total"] == pytest.approx(sum(data["contributions"]["values"]))
