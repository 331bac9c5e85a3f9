"""Mechanisms with several values per head: each has a pattern of its own, and z is their sum or holds them all.

The mechanism of these tests looks with softmax for what is like the query and for what is unlike it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch.utils.flop_counter import FlopCounterMode

import glassformer as gf
from glassformer import analysis, weights
from glassformer.analysis.cards import cards
from glassformer.attention import (
    Attention,
    Convolved,
    Merge,
    Mixer,
    MixerConfig,
    Rope,
    Separate,
    Smeared,
    Traits,
    per_query_head,
)
from glassformer.attention.scores import masked_softmax, scaled_scores
from glassformer.errors import AnalysisUnavailable, ConfigError, NoPattern
from glassformer.models import BlockConfig, DecoderConfig
from glassformer.models.stack import make_context, tensors, with_source
from glassformer.testing import close
from glassformer.testing.applies import built as built_model, outcome
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from glassformer.trace import site


@dataclass(frozen=True)
class LikeAndUnlike(MixerConfig):
    traits: ClassVar[Traits] = Traits("grouped", has_scores=True, value_streams=2, value_merge="concat")


@dataclass(frozen=True)
class LikeAndUnlikeSummed(MixerConfig):
    traits: ClassVar[Traits] = Traits("grouped", has_scores=True, value_streams=2)


class LikeAndUnlikeMixer(Mixer, config=LikeAndUnlike):
    def pattern(self, q, k, x, context, tape):
        scores = site(tape, self.at.scores, scaled_scores(q, k, self.dims.d_head**-0.5, context))
        # what is hidden from one is hidden from both
        unlike = (-scores).masked_fill(scores.isinf(), float("-inf"))
        return torch.stack((masked_softmax(scores), masked_softmax(unlike)), 1)

    def fast(self, q, k, v, x, context, tape):
        allowed = context.allowed(q.shape[-2], k.shape[-2])
        grouped = k.shape[-3] != q.shape[-3]
        mixed = [
            F.scaled_dot_product_attention(sign * q, k, v[:, i], attn_mask=allowed, enable_gqa=grouped)
            for i, sign in enumerate((1, -1))
        ]
        z = torch.stack(mixed, 1)
        return self.merged(z if allowed is None else z.masked_fill(~allowed.any(-1, keepdim=True)[:, None], 0.0))


LikeAndUnlikeSummed.mixer = LikeAndUnlikeMixer
every = pytest.mark.parametrize("mixer", [LikeAndUnlike(), LikeAndUnlikeSummed()], ids=["concat", "sum"])


def built(mixer: MixerConfig, seed: int = 0, **kwargs) -> Layer:
    fields: dict[str, Any] = {"positions": Rope(fraction=0.7)} | kwargs
    config = Attention(4, 2, 3, 5, mixer=mixer, **fields)
    return Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval(), seed))


@every
@given(seeds, st.integers(1, 6))
def test_each_pattern_multiplies_its_value_and_z_is_made_of_both(mixer: MixerConfig, seed: int, n: int) -> None:
    layer, x = built(mixer, seed), stream(2, n, seed)
    # two runs: asking for the pattern changes the route
    fused, dense = layer.read(x, "query", "value", "z"), layer.read(x, "pattern", "z")
    values = per_query_head(fused["value"], fused["query"])
    parts = [dense["pattern"][:, i] @ values[:, i] for i in range(2)]
    close(fused["z"], torch.cat(parts, -1) if mixer.traits.value_merge == "concat" else parts[0] + parts[1])
    close(dense["z"], fused["z"])


@every
@given(seeds)
def test_values_and_patterns_of_every_head_are_those_of_a_plain_loop(mixer: MixerConfig, seed: int) -> None:
    layer, x = built(mixer, seed, positions=Rope(fraction=0.7)), stream(1, 4, seed)
    found = layer.read(x, "query", "key", "value", "z")
    weight = layer.module.projection.matrix("value")
    for head in range(4):
        group = head // 2
        q, k = found["query"][0, head], found["key"][0, group]
        scores = (q @ k.T * 3**-0.5).masked_fill(~torch.ones(4, 4).tril().bool(), float("-inf"))
        like, unlike = scores.softmax(-1), torch.where(scores.isinf(), scores, -scores).softmax(-1)
        values = [x[0] @ weight[group][:, :5], x[0] @ weight[group][:, 5:]]
        for i in range(2):
            close(found["value"][0, i, group], values[i])
        parts = [like @ values[0], unlike @ values[1]]
        expected = torch.cat(parts, -1) if mixer.traits.value_merge == "concat" else parts[0] + parts[1]
        close(found["z"][0, head], expected)


@every
@given(seeds)
def test_the_written_patterns_are_what_the_probe_finds(mixer: MixerConfig, seed: int) -> None:
    layer, x = built(mixer, seed), stream(2, 5, seed)
    found = layer.read(x, "query", "key", "pattern")
    keys = per_query_head(found["key"], found["query"])
    close(layer.mixer.probe(found["query"], keys, x, causal_context(x)), found["pattern"])


@every
@pytest.mark.parametrize("projection", [Separate(bias=True), Smeared(), Convolved(width=3)], ids=lambda p: p.kind)
@given(seed=seeds, cuts=st.sets(st.integers(1, 6)))
def test_segments_equal_one_pass_and_the_state_has_the_stated_size(
    mixer, projection, seed: int, cuts: set[int]
) -> None:
    layer, x = built(mixer, seed, projection=projection), stream(2, 7, seed)
    state, pieces = layer.module.begin(2, x), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 7]):
        context = make_context(2, stop - start, x.device, is_causal=True, past=start)
        out, state = layer.module(x[:, start:stop], context, state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), layer(x))
    assert sum(part[0].numel() for part in tensors(state)) * 8 == layer.module.state_bytes(7, 0, torch.float64)


@every
def test_cross_attention_keeps_both_values_of_the_source(mixer: MixerConfig) -> None:
    layer, x, source = built(mixer, cross=True), stream(2, 3), stream(2, 5, 7)
    whole = layer(x, with_source(causal_context(x), 5), source=source)
    state, pieces = layer.module.begin(2, x), []
    for t in range(3):
        step = with_source(make_context(2, 1, x.device, is_causal=True, past=t), 5)
        out, state = layer.module(x[:, t : t + 1], step, source=source, state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), whole)
    assert state.projection.value.shape == (2, 2, 2, 5, 5)


@every
def test_sites_have_their_declared_sizes_and_heads_sum_to_the_output(mixer: MixerConfig) -> None:
    layer, x = built(mixer, merge=Merge(norm="head", gate="silu")), stream(2, 5)
    values, table = layer.read(x, "*"), layer.sites()
    assert list(values) == list(table)
    lengths = {"batch": 2, "pos": 5, "query": 5, "key": 5}
    for name, found in table.items():
        assert tuple(values[name].shape) == tuple((lengths | dict(found.sizes))[axis] for axis in found.axes), name
    assert table["z"].axes[-1] == ("d_z" if mixer.traits.value_merge == "concat" else "d_value")
    close(values["head_out"].sum(1), values["out"])


@every
def test_gradients_equal_finite_differences(mixer: MixerConfig) -> None:
    assert torch.autograd.gradcheck(built(mixer), (stream(1, 3).requires_grad_(),), fast_mode=True)


@every
def test_it_costs_what_torch_counts(mixer: MixerConfig) -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        layer = Attention(4, 2, 3, 5, mixer=mixer).build(D_MODEL, 32, 0, "")
        x = torch.zeros(1, 6, D_MODEL)
        layer(x, causal_context(x))
    flops = layer.flops(6, 6, True)
    assert counter.get_total_flops() == sum(flops.values()) > 0


def test_by_default_a_heads_values_are_together_as_wide_as_its_queries() -> None:
    beside = Attention(3, mixer=LikeAndUnlike()).dims(12, 8)
    assert (beside.d_value, beside.d_z) == (2, 4)
    assert Attention(3, mixer=LikeAndUnlikeSummed()).dims(12, 8).d_value == 4


def model_of(mixer: MixerConfig) -> Any:
    fields: dict[str, Any] = {"projection": Separate(bias=True), "merge": Merge(bias=True), "positions": Rope()}
    layer = BlockConfig((Attention(4, 2, 3, 5, mixer=mixer, **fields),))
    return randomise(DecoderConfig(11, 16, (layer, layer), max_len=8).build().double().eval(), std=0.4)


IDS = torch.tensor([[1, 2, 3, 1, 2, 7]])


@every
def test_patterns_times_the_circuits_of_all_values_are_what_a_head_writes(mixer: MixerConfig) -> None:
    model = model_of(mixer)
    run = gf.run(model, IDS, read="*")
    w = weights.of(model, augment=True)
    for layer in w:
        x, patterns = run[w.sub_layers[layer.path].at_read].values[0], run[f"{layer.path}.pattern"].values[0]
        x = torch.cat((x, torch.ones_like(x[:, :1])), -1)
        moved = [p @ x @ one.ov().dense() for p, one in zip(patterns, layer.by_value())]
        close(torch.stack(moved).sum(0)[..., :-1], run[f"{layer.path}.head_out"].values[0])
        assert [one.labels[1] for one in layer.by_value()] == [f"L{layer.layer}H1/0", f"L{layer.layer}H1/1"]
        close(layer.by_value()[1][2].ov().dense()[0], layer[2].by_value()[1].ov().dense()[0])


@every
def test_what_heads_bring_from_each_source_adds_up_over_their_values(mixer: MixerConfig) -> None:
    model = model_of(mixer)
    run = gf.run(model, IDS, read="*")
    split = analysis.attribution.direct_logit_attribution(run, answer=3)
    heads = [label for label in split.contributions.labels("component") if "H" in str(label)]
    whole = torch.stack([split.contributions.select(component=label).values for label in heads])
    own = analysis.attribution.source_effects(run, answer=3).contributions
    close(own.values.sum(-1).flatten(), whole)
    by_key = analysis.paths.source_map(run, answer=3)
    close(by_key.values.sum(-1).double(), whole)
    close(by_key.values.double(), own.values.reshape(by_key.values.shape))
    paths = analysis.paths.expand_paths(run, answer=3).paths
    close(torch.tensor(sum(path.value for path in paths), dtype=torch.float64), split.total.values.reshape(()))
    through = [path.value for path in paths if path.heads == ("L0H1", "L1H2")]
    found = analysis.paths.path_sources(run, heads=["L0H1", "L1H2"], answer=3)
    constants = [path.value for path in paths if path.heads == ("L0H1", "L1H2") and path.source == "values bias"]
    close(found.values.sum().double(), torch.tensor(sum(through) - sum(constants), dtype=torch.float64))
    wrote = analysis.frozen.write_sources(run, label="L1H2", position=4)
    close(wrote.values.sum(0), run["blocks.1.attn.head_out"].values[0, 2, 4])
    edits = analysis.frozen.frozen_edits(run)
    again = gf.run(model, IDS, edit=edits)
    assert again.logits is not None and run.logits is not None
    close(again.logits, run.logits)
    norms = analysis.token_flow.value_norms(run)
    brought = torch.stack(
        [analysis.frozen.write_sources(run, label=str(label), position=5).values.norm(dim=-1) for label in heads]
    )
    close(norms.written.values[:, 5], brought)


@every
@pytest.mark.parametrize("analysis", ["acdc", "composition", "copying", "head_roles", "source_effects"])
def test_judges_come_to_the_same_numbers(analysis: str, mixer: MixerConfig) -> None:
    card = next(card for card in cards() if card.name == analysis)
    assert outcome(card, built_model(mixer=mixer)).compared


def test_analyses_that_need_one_pattern_per_head_refuse() -> None:
    model = model_of(LikeAndUnlike())
    run = gf.run(model, IDS, read="*")
    with pytest.raises(NoPattern, match=r'2 values with a pattern each, so no one .*\n.*: "L0H0/0"'):
        analysis.paths.composed_pattern(run, first="L0H0", second="L1H0")
    both = [run[f"blocks.{i}.attn.pattern"].values[0, :, 0] for i in (0, 1)]
    close(analysis.paths.composed_pattern(run, first="L0H0/1", second="L1H0/0").values, both[1][0] @ both[0][1])
    with pytest.raises(AnalysisUnavailable, match=r"no single matrix .*\n.*by_value\(\)"):
        weights.of(model)["L0H1"].ov()


def test_the_grid_of_an_input_reaches_the_mechanism() -> None:
    assert Attention(2, grid=(3, 4)).build(8, 12, 0, "").mixer.dims.grid == (3, 4)
    assert Attention.from_json(Attention(2, grid=(3, 4)).to_json()).grid == (3, 4)
    with pytest.raises(ConfigError, match="grid must be at least 1"):
        Attention(2, grid=(0, 4))
