"""Heads with several values at each position: what looks at patterns looks at that of each value by itself."""

import copy
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import analysis, weights
from glassformer.analysis.cards import card_of
from glassformer.analysis.heads.roles import heads, patterned
from glassformer.analysis.paths._steps import steps_of
from glassformer.attention import Gaussian, Longformer, Merge, MixerConfig, RefinedWasserstein, Rope, Wasserstein
from glassformer.data.batch import next_token_batch
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.models import Decoder, DecoderConfig, Mlp, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.trace import At, Set

IDS = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 5], [6, 7, 6, 7, 8, 1, 8, 1]])


def decoder(mixer: MixerConfig, **settings: Any) -> Decoder:
    layer = block(mixer, n_heads=2, positions=Rope(), mlp=Mlp(12), **settings)
    return randomise(DecoderConfig(11, 16, (layer, layer), max_len=64).build().double().eval(), std=0.4)


@pytest.fixture(scope="module")
def both() -> tuple[Decoder, Decoder]:
    """A model whose tokens might be global and none is, and one that has the local half of its matrices."""
    two, one = decoder(Longformer(3)), decoder(Longformer(3, n_global=None))
    state = dict(two.state_dict())
    for name, rows in two.state_dict().items():
        if name.endswith("qkv.weight"):
            state[name] = rows.unflatten(0, (3, 2, 2, -1))[:, :, 0].flatten(0, 2)
    one.load_state_dict(state)
    close(one(IDS), two(IDS))
    return two, one


def test_every_pattern_has_a_name_and_a_row(both: tuple[Decoder, Decoder]) -> None:
    two, one = both
    assert [(h.label, h.row, h.reading) for h in patterned(two)][:3] == [
        ("L0H0/0", 0, "signed"), ("L0H0/1", 1, "signed"), ("L0H1/0", 2, "signed"),
    ]  # fmt: skip
    assert all(h.reading is None for h in heads(two)) and patterned(one) == heads(one)
    assert [(h.label, h.row, h.reading) for h in heads(one)][:2] == [("L0H0", 0, "mass"), ("L0H1", 1, "mass")]


@pytest.mark.full
def test_scores_of_the_first_value_are_those_of_the_only_one_and_an_empty_pattern_plays_no_role(both) -> None:
    def halves(found: Any, axis: str = "head") -> tuple[torch.Tensor, torch.Tensor]:
        at = found.axes.index(axis)
        assert [str(label)[-2:] for label in found.labels(axis)] == ["/0", "/1"] * 4
        values = found.values.movedim(at, 0)
        return values[::2].movedim(0, at), values[1::2].movedim(0, at)

    runs = [gf.run(model, IDS, read="*") for model in both]
    roles = [analysis.heads.head_roles(run).scores for run in runs]
    first, second = halves(roles[0])
    close(first, roles[1].values)
    assert (second == 0).all()
    drawn = [analysis.heads.head_scores(model, n_sequences=2, unit=4).scores for model in both]
    close(halves(drawn[0])[0], drawn[1].values)
    evaluated = [analysis.heads.evaluate_heads(model, n_sequences=2, unit=4).scores for model in both]
    close(halves(evaluated[0])[0], evaluated[1].values)
    mask = torch.ones(8, 8).tril().bool() & (torch.arange(8)[:, None] - torch.arange(8) < 2)
    for measure in ("mass", "closeness"):
        found = [analysis.heads.find_pattern(run, mask=mask, measure=measure) for run in runs]
        close(halves(found[0])[0], found[1].values)
    offsets = [analysis.from_weights.offset_scores(run, offsets=3) for run in runs]
    for name in ("scores", "without_first"):
        close(halves(getattr(offsets[0], name))[0], getattr(offsets[1], name).values)
    long = [analysis.behaviour.long_context(model, IDS, sink=1, recent=2) for model in both]
    close(halves(long[0].measures)[0], long[1].measures.values)
    assert set(long[0].readings.values()) == {"signed"} and set(long[1].readings.values()) == {"mass"}
    sinks = [analysis.behaviour.attention_sinks(model, IDS, window=4, first=2, neutral=9) for model in both]
    names = [name for name in sinks[1].measures.labels("measure") if name != "key_size_ratio"]
    for name in names:
        close(halves(sinks[0].measures.select(measure=name))[0], sinks[1].measures.select(measure=name).values)
    close(sinks[0].loss_change.values, sinks[1].loss_change.values)


def test_rollout_sums_the_patterns_of_a_head_where_it_takes_sizes(both) -> None:
    flows = [analysis.token_flow.rollout(gf.run(model, IDS[0], read="*"), signed="absolute").final for model in both]
    close(flows[0].values, flows[1].values)
    with pytest.raises(AnalysisUnavailable, match="whose weights are no shares"):
        analysis.token_flow.rollout(gf.run(both[0], IDS[0], read="*"))


@pytest.mark.parametrize("mixer", [Wasserstein(), RefinedWasserstein(rank=2)], ids=lambda mixer: mixer.kind)
def test_a_token_that_looks_at_itself_alone_takes_both_of_its_own_values(mixer: MixerConfig) -> None:
    model = decoder(mixer)
    edits = analysis.behaviour.short_circuit_edits(model, [1])
    itself = Set("blocks.1.attn.pattern", torch.eye(8, dtype=torch.float64).expand(2, 2, 2, 8, 8))
    found, expected = (gf.run(model, IDS, edit=edit).predictions() for edit in (edits, [itself]))
    close(found, expected)
    begun = analysis.behaviour.regenerate(model, IDS[:, :4], 3, edits)
    assert begun.shape == (2, 3)


def test_a_sum_of_values_has_no_own_value_of_a_token(both) -> None:
    with pytest.raises(NoPattern, match="several whose values are added up, of which each token has one"):
        analysis.behaviour.short_circuit_edits(both[0], [0])


@pytest.mark.parametrize("mixer", [Wasserstein(), Longformer(3, n_global=1)], ids=lambda mixer: mixer.kind)
def test_held_patterns_are_those_of_all_values(mixer: MixerConfig) -> None:
    model, batch = decoder(mixer), next_token_batch(IDS)
    run = gf.run(model, batch.tokens, read="blocks.*.attn.pattern")
    edits = [Set(name, run[name].values) for name in run.sites]
    without = gf.run(model, batch.tokens, edit=[*edits, Set("blocks.0.attn.z", 0.0, at=At(head=1))]).predictions()
    losses = [
        -logits.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0][batch.weight]
        for logits in (without, model(batch.tokens))
    ]
    found = analysis.causal.ablate(model, "L0H1", batch, kind="pattern_preserving")
    close(found.loss_change.values[0], (losses[0] - losses[1]).mean())


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("mixer", [Wasserstein(), Longformer(3, n_global=1)], ids=lambda mixer: mixer.kind)
def test_matrices_of_several_values_give_the_logits_of_the_model(mixer: MixerConfig, folded: bool) -> None:
    model = decoder(mixer, bias=True, merge=Merge(bias=True))
    close(weights.logits(weights.of(model, fold=folded, augment=folded), IDS).softmax(-1), model(IDS).softmax(-1))
    if mixer.kind == "wasserstein":
        published = decoder(mixer, projection=Gaussian())
        close(weights.logits(weights.of(published, fold=folded), IDS).softmax(-1), published(IDS).softmax(-1))


@pytest.fixture(scope="module", params=[Wasserstein(), RefinedWasserstein(rank=2)], ids=lambda mixer: mixer.kind)
def published(request: pytest.FixtureRequest) -> Decoder:
    """Attention alone, its covariances made by ELU + 1, with biases wherever they may be."""
    layer = block(request.param, n_heads=2, projection=Gaussian(bias=True), merge=Merge(bias=True))
    return randomise(DecoderConfig(11, 16, (layer, layer), max_len=64).build().double().eval(), std=0.6)


def test_with_their_slopes_held_covariances_are_what_they_were(published: Decoder) -> None:
    run = gf.run(published, IDS, read="*")
    steps = steps_of(run, "these laws")
    for step, stream in zip(steps, steps.streams()):
        assert step.attention is not None
        for live in (False, True):
            close(step.mix(stream, bias=True, live=live), run[step.attention.at.z].values)
        # affine: what two addends give by themselves, and what is there without them, is what both give
        half = torch.randn(stream.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        close(step.mix(half) + step.mix(stream - half, bias=True), run[step.attention.at.z].values)
    below = run["blocks.0.attn.value"].values[:, 1]
    assert (below < 0.9).any() and (below > 1.1).any()


def test_paths_through_covariances_sum_to_the_logit(published: Decoder) -> None:
    run = gf.run(published, IDS[0], read="*")
    found = analysis.paths.expand_paths(run, answer=3)
    logit = run.predictions()[0, -1, 3]
    close(torch.tensor(sum(path.value for path in found.paths), dtype=torch.float64), logit)
    split = analysis.attribution.direct_logit_attribution(run, answer=3).contributions
    by_key = analysis.paths.source_map(run, answer=3)
    whole = torch.stack([split.select(component=label).values for label in by_key.labels("head")])
    close(by_key.values.sum(-1), whole)
    worth = analysis.paths.importance(published, next_token_batch(IDS))
    losses = -published(IDS[:, :-1]).log_softmax(-1).gather(-1, IDS[:, 1:, None]).mean()
    close(torch.tensor(worth.full, dtype=torch.float64), losses)
    assert {"value slopes", "patterns"} <= set(card_of(analysis.paths.source_map).held(published))


def test_pairs_of_values_add_up_to_paths_through_two_heads(published: Decoder) -> None:
    run = gf.run(published, IDS, read="*")
    found = analysis.paths.virtual_heads(run, centred=False)
    assert len(found.pairs) == 16 and ("L0H1/0", "L1H0/1") in found.pairs
    whole = dict[tuple[str, str], float]()
    for pair, mean in zip(found.pairs, found.mean.values.tolist()):
        heads = (pair[0][:-2], pair[1][:-2])
        whole[heads] = whole.get(heads, 0.0) + mean * found.positions
    expected = dict.fromkeys(whole, 0.0)
    for row in range(2):
        alone = gf.run(published, IDS[row], read="*")
        for t in range(7):
            for path in analysis.paths.expand_paths(alone, answer=int(IDS[row, t + 1]), position=t).paths:
                if len(path.heads) == 2:
                    expected[path.heads] += path.value
    close(torch.tensor(list(whole.values())), torch.tensor(list(expected.values())), 1e-6)


def test_of_a_mean_and_a_covariance_the_mean_has_a_circuit(published: Decoder) -> None:
    w = weights.of(published, fold=True)
    assert [one.labels for one in w[0].moving("these laws")] == [["L0H0/0", "L0H1/0"]]
    found = analysis.from_weights.copying(published)
    assert found.ratio.labels("head") == ["L0H0/0", "L0H1/0", "L1H0/0", "L1H1/0"]
    assert set(found.left_out) == {"L0H0/1", "L0H1/1", "L1H0/1", "L1H1/1"}
    with pytest.raises(AnalysisUnavailable, match="makes covariances by ELU"):
        w["L0H1"].by_value()[1].ov()
    # covariances have no part in what is said of composition, however large they are
    scores = analysis.from_weights.composition(published, draws=0).scores.values.nan_to_num()
    assert (scores > 0).any()
    other = copy.deepcopy(published)
    with torch.no_grad():
        for name, rows in other.named_parameters():
            if name.endswith("qkv.weight"):
                rows.unflatten(0, (3, 2, 2, -1))[2, :, 1] *= 7
    close(analysis.from_weights.composition(other, draws=0).scores.values.nan_to_num(), scores)
