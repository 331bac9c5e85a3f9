"""Direct logit attribution of a batch: nothing is left over anywhere, and live norms are what removal costs."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given

from glassformer.analysis import Run, run
from glassformer.analysis.attribution import (
    direct_logit_attribution,
    neuron_effects,
    source_effects,
)
from glassformer.analysis.cards import card_of
from glassformer.attention import Merge
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch, SiteNotRead
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, NoNorm, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import DIRECTED, Subject, attention_decoders, subject
from glassformer.trace import Set
from one_pass import in_one_pass

every = pytest.mark.parametrize("name", DIRECTED)
# every row and position
attribution_of_all = partial(direct_logit_attribution, position=None, row=None)
sources_of_all = partial(source_effects, position=None, row=None)
neurons_of_all = partial(neuron_effects, position=None, row=None)
with_live_norm = pytest.mark.parametrize("name", ["gpt2", "llama", "parallel", "differential", "translator_pre"])


def passed(found: Subject, *more: Any, edit: Any = ()) -> Run:
    return run(
        found.model,
        found.inputs[0],
        *found.inputs[1:],
        read=[direct_logit_attribution, *more],
        edit=edit,
    )


def raw_logits(done: Run) -> torch.Tensor:
    assert done.logits is not None
    return done["logits_raw"].values if "logits_raw" in done else done.logits


def random_ids(done: Run, seed: int = 3) -> torch.Tensor:
    assert done.ids is not None
    return torch.randint(0, done.model.config.n_outputs, done.ids.shape, generator=torch.Generator().manual_seed(seed))


@every
def test_components_sum_to_the_logit_at_every_row_and_position(name: str) -> None:
    done = passed(subject(name))
    ids = random_ids(done)
    found = attribution_of_all(done, answer=ids)
    wanted = raw_logits(done).gather(-1, ids[..., None])[..., 0]
    close(found.contributions.values.sum(-1), wanted)
    close(found.total.values, wanted)
    close(found.sum.values, wanted)


@every
def test_components_sum_to_differences_with_one_answer_per_row(name: str) -> None:
    done = passed(subject(name))
    found = attribution_of_all(done, answer=[3, 4], against=torch.tensor([5, 6]))
    wanted = torch.stack([raw_logits(done)[i, :, 3 + i] - raw_logits(done)[i, :, 5 + i] for i in range(2)])
    close(found.contributions.values.sum(-1), wanted)


@every
def test_components_and_the_norms_bias_sum_to_any_direction_of_what_the_unembedding_reads(name: str) -> None:
    done = passed(subject(name))
    x = done[next(n for n in done if n.endswith("final.norm"))].values
    generator = torch.Generator().manual_seed(1)
    for shape in ((16,), (2, 16), (2, 7, 16)):
        direction = torch.randn(shape, generator=generator, dtype=torch.float64)
        found = attribution_of_all(done, direction=direction)
        by_place = direction if len(shape) != 2 else direction[:, None]
        close(found.contributions.values.sum(-1), (x * by_place).sum(-1))


@every
def test_one_row_and_position_is_a_case_of_the_batch(name: str) -> None:
    found = subject(name)
    done = passed(found, *card_of(direct_logit_attribution).reads(found.model))
    batch = attribution_of_all(passed(found), answer=3, against=5)
    for row, position in ((0, -1), (1, 2)):
        single = direct_logit_attribution(done, answer=3, against=5, row=row, position=position)
        assert single.components == batch.components
        close(single.contributions.values, batch.contributions.values[row, position])


@every
def test_chosen_positions_are_those_of_the_whole(name: str) -> None:
    done = passed(subject(name))
    whole = attribution_of_all(done, answer=3).contributions.values

    def at(position: Any) -> torch.Tensor:
        return direct_logit_attribution(done, answer=3, position=position, row=None).contributions.values

    close(at([-1, 2]), whole[:, [-1, 2]])
    close(at(4), whole[:, 4])
    close(at(torch.tensor([[1], [5]]))[:, 0], torch.stack((whole[0, 1], whole[1, 5])))


@every
def test_keys_sum_to_their_head(name: str) -> None:
    found = subject(name)
    done = passed(found, *card_of(source_effects).reads(found.model))
    ids = random_ids(done)
    whole, split = attribution_of_all(done, answer=ids, against=5), sources_of_all(done, answer=ids, against=5)
    for part in [p for p in (split.contributions, split.cross) if p is not None]:
        for label in part.labels("head"):
            close(part.select(head=str(label)).values.sum(-1), whole[str(label)].values, 1e-8)
    heads = {c.label for c in whole.components if c.head is not None}
    listed = [*split.contributions.labels("head"), *(split.cross.labels("head") if split.cross is not None else [])]
    assert heads == set(listed)


@every
def test_neurons_and_their_bias_sum_to_their_mlp(name: str) -> None:
    found = subject(name)
    mlps = [n for n in found.model.sites() if n.endswith("mlp.hidden") and not n.startswith("encoder")]
    if not mlps:
        with pytest.raises(AnalysisUnavailable, match="this model has no MLP"):
            card_of(neuron_effects).reads(found.model)
        return
    done = passed(found, *card_of(neuron_effects).reads(found.model))
    whole, split = attribution_of_all(done, answer=random_ids(done)), neurons_of_all(done, answer=random_ids(done))
    for label in split.bias.labels("mlp"):
        layer = str(label).split()[0]
        mine = [i for i, n in enumerate(split.contributions.labels("neuron")) if str(n).startswith(f"{layer}N")]
        total = split.contributions.values[..., mine].sum(-1) + split.bias.select(mlp=str(label)).values
        close(total, whole[str(label)].values, 1e-8)


@in_one_pass
@pytest.mark.parametrize("wiring", ["pre", "post", "sandwich", "parallel"])
@pytest.mark.parametrize("norm", [LayerNorm(), LayerNorm(bias=False), RmsNorm(), NoNorm()], ids=lambda n: f"{n.kind}")
def test_heads_behind_norms_and_gates_are_split_in_every_wiring(wiring: Any, norm: Any) -> None:
    merges = [Merge(bias=True), Merge(norm="all", gate="sigmoid"), Merge(norm="head", factor=0.3)]
    layers = [block(n_heads=2, mlp=Mlp(8), wiring=wiring, norm=norm, merge=merge) for merge in merges]
    config = DecoderConfig(
        11, 12, tuple(layers), positions=Learned(), final_norm=norm, tied=False, unembed_bias=True, max_len=8
    )
    model = randomise(config.build().double())
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    done = run(model, ids, read=[direct_logit_attribution, source_effects])
    whole, split = attribution_of_all(done, answer=ids), sources_of_all(done, answer=ids)
    assert done.logits is not None
    close(whole.sum.values, done.logits.gather(-1, ids[..., None])[..., 0])
    for label in split.contributions.labels("head"):
        close(split.contributions.select(head=str(label)).values.sum(-1), whole[str(label)].values, 1e-8)


@with_live_norm
def test_live_norms_give_what_is_lost_when_the_write_alone_is_taken_away(name: str) -> None:
    found = subject(name)
    done = passed(found, "*.head_out")
    stack = list(found.model.stacks.values())[-1]
    last = stack.blocks[-1].at_resid[-1]
    ids = random_ids(done)
    for read in (done, passed(found)):
        live = attribution_of_all(read, answer=ids, norm="live")
        assert live.norm == "live"
        for component in live.components:
            if component.kind in ("final_bias", "unembed_bias"):
                continue
            if component.kind in ("token", "position"):
                written = done[next(n for n in done if n.endswith(f"embed.{component.kind}"))].values
            elif component.kind == "attn_bias":
                part = stack.blocks[component.layer].part(component.part)
                written = part.merge.output.bias
            else:
                path = f"{stack.blocks[component.layer].path}.{component.part}"
                written = done[f"{path}.out"].values if component.head is None else done[f"{path}.head_out"].values
                written = written if component.head is None else written[:, component.head]
            without = passed(found, edit=[Set(last, done[last].values - written)])
            lost = (raw_logits(done) - raw_logits(without)).gather(-1, ids[..., None])[..., 0]
            close(live[component.label].values, lost, 1e-7)


@given(attention_decoders(mlps=True))
def test_any_stack_of_any_mechanisms_is_split_without_remainder(found: Subject) -> None:
    done = passed(found, *card_of(source_effects).reads(found.model))
    ids = random_ids(done)
    whole, split = attribution_of_all(done, answer=ids, against=3), sources_of_all(done, answer=ids, against=3)
    # measured on the logits' own size: between a token and itself there is nothing but rounding
    close(whole.sum.values + raw_logits(done)[..., 3], raw_logits(done).gather(-1, ids[..., None])[..., 0], 1e-8)
    heads = [i for i, c in enumerate(whole.components) if c.head is not None]
    assert split.contributions.labels("head") == [whole.components[i].label for i in heads]
    close(split.contributions.values.sum(-1), whole.contributions.values[..., heads], 1e-8)


def test_live_and_frozen_agree_without_a_final_norm() -> None:
    done = passed(subject("bare"))
    live, frozen = (attribution_of_all(done, answer=3, norm=norm) for norm in ("live", "frozen"))
    close(live.contributions.values, frozen.contributions.values)


@pytest.mark.parametrize("name", ["post", "sandwich", "translator_post"])
def test_live_norms_are_refused_where_writes_pass_others(name: str) -> None:
    done = passed(subject(name))
    with pytest.raises(AnalysisUnavailable, match=r'recomputes the final norm alone; in layer 0 .*\n.*norm="frozen"'):
        attribution_of_all(done, answer=3, norm="live")


def test_a_model_without_layers_has_live_effects_of_token_and_position() -> None:
    config = DecoderConfig(7, 6, (), positions=Learned(), max_len=4, unembed_bias=True)
    model = randomise(config.build().double())
    done = run(model, [1, 2], read=[direct_logit_attribution])
    found = attribution_of_all(done, answer=3, norm="live")
    without = run(model, [1, 2], edit=[("embed.token", torch.zeros_like)])
    assert done.logits is not None and without.logits is not None
    close(found["token"].values, done.logits[..., 3] - without.logits[..., 3])


def test_sources_of_one_position_are_a_case_of_the_batch() -> None:
    found = subject("translator_pre")
    done = passed(found, source_effects)
    one, batch = source_effects(done, answer=3, row=1, position=4), sources_of_all(done, answer=3)
    assert one.contributions.axes == ("head", "key")
    for label in ("L1H2", "L0X1"):
        close(one[label].values, batch[label].values[1, 4])


def test_in_the_induction_model_only_the_induction_head_adds_and_only_from_the_answers_place() -> None:
    model, ids = induction_model(), repeated()
    done = run(model, ids[:, :-1], read=[direct_logit_attribution, source_effects])
    found, split = attribution_of_all(done, answer=ids[:, 1:]), sources_of_all(done, answer=ids[:, 1:])
    second = slice(ids.shape[1] // 2 + 1, None)
    close(found["L1H0"].values[:, second], found.total.values[:, second])
    by_key = split.contributions.select(head="L1H0").values[0, -1]
    assert int(by_key.argmax()) == int((ids[0, :-1] == ids[0, -1]).nonzero()[0, 0])
    close(by_key.sum(), found.total.values[0, -1])


def test_the_likeliest_tokens_are_followed_by_default() -> None:
    done = passed(subject("llama"))
    assert done.logits is not None
    found = attribution_of_all(done)
    assert found.answer is not None and torch.equal(found.answer.values, done.logits.argmax(-1))
    close(found.sum.values, done.logits.max(-1).values)


def test_rows_of_unequal_length_count_negative_positions_from_their_own_end() -> None:
    from glassformer.data import Batch

    model = subject("gpt2").model
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    batch = Batch(ids, ids, ids > 0, lengths=torch.tensor([4, 2]))
    found = direct_logit_attribution(run(model, batch, read=[direct_logit_attribution]), answer=3, row=None)
    alone = direct_logit_attribution(run(model, [[5, 6]], read=[direct_logit_attribution]), answer=3, row=None)
    close(found.contributions.values[1], alone.contributions.values[0])


def test_effects_of_edited_heads_are_taken_from_their_writes() -> None:
    found = subject("gpt2")
    done = passed(found, "*.head_out", edit=[("blocks.0.attn.head_out", lambda x: 2 * x)])
    result = attribution_of_all(done, answer=3)
    close(result.sum.values, result.total.values)
    done = passed(found, edit=[("blocks.0.attn.head_out", lambda x: 2 * x)])
    with pytest.raises(SiteNotRead, match=r"Add to read=:\n *\['blocks.0.attn.head_out'\]"):
        attribution_of_all(done, answer=3)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    found = subject("gpt2")
    done = passed(found)
    with pytest.raises(ShapeMismatch, match=r"answers have shape 3; .*batch=2 pos=7"):
        attribution_of_all(done, answer=torch.tensor([1, 2, 3]))
    with pytest.raises(ShapeMismatch, match=r"directions have shape 5x16"):
        attribution_of_all(done, direction=torch.zeros(5, 16))
    with pytest.raises(ShapeMismatch, match="give tokens or a direction, not both"):
        attribution_of_all(done, answer=3, direction=torch.zeros(16))
    with pytest.raises(ShapeMismatch, match="position 9: the text has 7 tokens"):
        direct_logit_attribution(done, answer=3, position=9, row=None)
    with pytest.raises(
        SiteNotRead,
        match=r"attribution needs sites (.|\n)*embed.token.*blocks.0.attn.z'.*blocks.1.mlp.out",
    ):
        attribution_of_all(run(found.model, found.inputs[0]), answer=3)


def test_keys_of_a_mechanism_without_a_pattern_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.attention.mixer import Traits

    found = subject("gpt2")
    monkeypatch.setattr(found.model.stack.blocks[1].attn.mixer, "traits", Traits(linear_in_value="no"))
    with pytest.raises(NoPattern, match=r'source_effects: layer 1 uses "softmax" \(linear_in_value="no"\)'):
        card_of(source_effects).reads(found.model)
    assert source_effects(found.model, found.inputs[0], layers=[0]).contributions.size("head") == 4
