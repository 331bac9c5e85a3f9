"""Encoders alone: both ways, with a readout behind the stack; what analyses make of them."""

from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import weights
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.from_weights import position_scores, positional_heads
from glassformer.analysis.frozen import writes
from glassformer.analysis.lens import logit_lens
from glassformer.analysis.losses import loss_by_position
from glassformer.analysis.paths import expand_paths, virtual_heads
from glassformer.analysis.sweep import grid, logit_difference, one_by_one, sweep
from glassformer.attention import RelativeBias
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import EncoderConfig, Learned, ModelConfig, Readout, Sinusoidal, block, generate
from glassformer.models.accounting import account
from glassformer.models.embedding import PositionEmbedding
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ENCODERS, subject
from glassformer.trace import At, Scale, Set, Tape

every = pytest.mark.parametrize("name", ENCODERS)
plain = block(n_heads=2)


@every
def test_every_position_reads_the_tokens_after_it(name: str) -> None:
    found = subject(name)
    (tokens,) = found.inputs
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 11
    assert ((found.model(other) - found())[:, 0].abs().amax(-1) > 0).all()


@every
def test_padding_on_either_side_and_packing_change_nothing(name: str) -> None:
    found = subject(name)
    (tokens,) = found.inputs
    lengths = torch.tensor([7, 4])
    alone = found.model(tokens[1:, :4])
    close(found.model(tokens, lengths=lengths)[1:, :4], alone)
    close(found.model(tokens.roll(3, 1), start=torch.tensor([0, 3]))[1:, 3:], alone)
    packed = torch.cat((tokens[1:, :4], tokens[:1, :3]), 1)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    close(found.model(packed, documents=documents)[:, :4], alone)


@pytest.mark.parametrize("positions", [Learned(offset=1, counts_padding=True), Sinusoidal(counts_padding=True)])
def test_positions_that_count_padding_are_those_of_the_columns(positions: PositionEmbedding) -> None:
    model: Any = randomise(EncoderConfig(11, 8, (plain,) * 2, max_len=9, positions=positions).build())
    tokens, start = torch.tensor([[3, 4, 5, 6, 7], [0, 0, 5, 6, 7]]), torch.tensor([0, 2])
    tape = Tape(model, ["embed.position", "blocks.*.attn.pattern"])
    logits = model(tokens, start=start, tape=tape)
    columns = model.embed.positions(torch.arange(5)[None], logits)[0]
    close(tape.values["embed.position"][0], columns)
    close(tape.values["embed.position"][1, 2:], columns[2:])
    # and padding is hidden all the same
    assert not tape.values["blocks.0.attn.pattern"][1, :, :, :2].any()
    changed = tokens.clone()
    changed[1, :2] = 9
    close(model(changed, start=start)[1, 2:], logits[1, 2:])


@every
def test_patterns_come_by_another_route_and_change_no_logits(name: str) -> None:
    found = subject(name)
    tape = found.tape("*")
    close(found(tape), found())
    for site in found.model.sites("*.pattern"):
        close(tape.values[site].sum(-1), torch.ones_like(tape.values[site][..., 0]))


@every
def test_a_pass_resumed_at_any_layer_ends_in_the_same_logits(name: str) -> None:
    found = subject(name)
    streams = found.values("blocks.*.resid_pre", "blocks.1.resid_post")
    lengths = torch.tensor([7, 7])
    for layer, site in enumerate(("blocks.0.resid_pre", "blocks.1.resid_pre", "blocks.1.resid_post")):
        close(found.model.resume(layer, streams[site], lengths=lengths), found())
    at = torch.tensor([[2], [5]])
    expected = found().gather(1, at[..., None].expand(-1, -1, 11))
    close(found.model.resume(1, streams["blocks.1.resid_pre"], at=at), expected)


def test_token_types_add_a_vector_each_and_the_first_is_the_default() -> None:
    found = subject("masked_post")
    (tokens,) = found.inputs
    zeros = torch.zeros_like(tokens)
    close(found.model(tokens, types=zeros), found())
    tape = found.tape("embed.*")
    found.model(tokens, types=1 - zeros, tape=tape)
    embed = found.model.embed
    close(tape.values["embed.type"], embed.types[1].expand(2, 7, -1))
    close(tape.values["embed.token"], embed.weight[tokens] + embed.types[1])
    close(tape.values["embed.norm"], found.values("blocks.0.resid_pre")["blocks.0.resid_pre"], 1e9)


@every
def test_contributions_sum_to_the_logit_of_a_masked_position(name: str) -> None:
    found = subject(name)
    run = gf.run(
        found.model,
        *found.inputs,
        read=[direct_logit_attribution],
    )
    split = direct_logit_attribution(run, answer=3, position=2, row=1)
    close(split.sum.values, split.total.values)
    close(split.total.values, found()[1, 2, 3], 1e-6)
    every_place = direct_logit_attribution(run, answer=3, against=5, position=None, row=None)
    close(every_place.sum.values, every_place.total.values)
    direction = torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    along = direct_logit_attribution(run, direction=direction, position=None, row=None)
    close(along.sum.values, along.total.values)
    close(along.total.values, found.values("readout.norm")["readout.norm"] @ direction)


@every
def test_writes_sum_to_the_stream_and_the_lens_ends_in_the_logits(name: str) -> None:
    found = subject(name)
    run = gf.run(found.model, *found.inputs, read=[writes, logit_lens])
    split = writes(run, position=3)
    close(split.vectors.values.sum(0), run["blocks.1.resid_post"].values[0, 3])
    close(logit_lens(run, position=3).logits.values[-1], found()[0, 3])


@every
@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("folded", [False, True])
def test_matrices_give_the_models_log_probabilities(name: str, folded: bool, augmented: bool) -> None:
    found = subject(name)
    w = weights.of(found.model, fold=folded, augment=augmented)
    close(weights.logits(w, *found.inputs).log_softmax(-1), found().log_softmax(-1))


@every
def test_a_sweep_is_one_pass_per_row(name: str) -> None:
    found = subject(name)
    plan = grid(lambda layer, pos: [Scale(f"blocks.{layer}.attn.z", 0.0, at=At(pos=pos))], layer=[0, 1], pos=[0, 3, 6])
    metric = logit_difference(3, 5, pos=2)
    judged = one_by_one(found.model, found.inputs[0], plan, metric)
    close(sweep(found.model, found.inputs[0], plan, metric).values.values, judged.values.values)


def test_an_edit_of_the_readout_reaches_the_logits() -> None:
    found = subject("masked_post")
    hidden = found.values("readout.hidden")["readout.hidden"]
    tape = Tape(found.model, edit=[Set("readout.hidden", hidden * 0)])
    changed = found(tape)
    expected = found.model.unembed.readout.norm.bias @ found.model.unembed.weight.mT + found.model.unembed.bias
    close(changed, expected.expand_as(changed))


def test_what_asks_for_next_tokens_says_why_it_cannot() -> None:
    found = subject("masked_pre")
    with pytest.raises(AnalysisUnavailable, match="it generates no text"):
        generate(found.model, [[1, 2]])
    batch = gf.data.Batch(found.inputs[0], found.inputs[0], torch.ones(2, 7, dtype=torch.bool))
    with pytest.raises(AnalysisUnavailable, match="reads both ways"):
        loss_by_position(found.model, batch)
    with pytest.raises(AnalysisUnavailable, match=r"\(readout\), so no matrix"):
        weights.of(found.model).full_ov("L0H0")
    with pytest.raises(AnalysisUnavailable, match="readout"):
        virtual_heads(gf.run(found.model, *found.inputs, read=[expand_paths]))


def test_an_encoder_that_predicts_nothing_gives_its_stream() -> None:
    config = EncoderConfig(11, 8, (plain,), 16, predicts=False)
    model = config.build().eval()
    tokens = torch.tensor([[1, 2, 3]])
    found = gf.run(model, tokens, read=["final.norm"])
    assert found.logits is None
    close(found.output, found["final.norm"].values)
    with pytest.raises(AnalysisUnavailable, match="no unembedding"):
        gf.explain(model, tokens)
    assert "unembedding" not in account(config).parameters
    with pytest.raises(ConfigError, match="leaves nothing for readout"):
        config.replace(readout=Readout())


@every
def test_the_config_survives_json_and_every_parameter_is_counted(name: str) -> None:
    config = ENCODERS[name]
    assert ModelConfig.from_json(config.to_json()) == config
    assert account(config).total == sum(p.numel() for p in config.build().parameters())
    assert account(config).state_bytes == 0


# relative position bias -----------------------------------------------------------------------------------------------


def test_one_table_serves_all_layers_of_a_stack_unless_each_has_its_own() -> None:
    model = subject("masked_pre").model
    first, second = (block.attn.positions for block in model.stack.blocks)
    assert second.weight is first.table
    assert [name for name in model.state_dict() if "positions" in name] == ["stack.blocks.0.attn.positions.table"]
    own = block(n_heads=2, positions=RelativeBias(8, 6, shared=False))
    names = EncoderConfig(11, 8, (own,) * 2).build().state_dict()
    assert len([name for name in names if name.endswith("positions.table")]) == 2


def test_scores_hold_the_number_of_their_distances_bucket() -> None:
    found = subject("masked_pre")
    names = [f"blocks.1.attn.{which}" for which in ("query", "key", "scores")]
    query, key, scores = (found.values(*names)[name] for name in names)
    table = found.model.stack.blocks[0].attn.positions.table
    offset = torch.arange(7)[None] - torch.arange(7)[:, None]
    # four buckets each way: 0, 1, 2 to 4 (on a scale of logarithms), 5 and more
    near = torch.tensor([0, 1, 2, 2, 3, 3, 3])
    bucket = near[offset.abs()] + 4 * (offset > 0)
    close(scores - query @ key.mT * query.shape[-1] ** -0.5, table[bucket].permute(2, 0, 1).expand_as(scores))


def test_an_encoders_heads_go_by_position_both_ways() -> None:
    model = subject("masked_pre").model
    found = positional_heads(model, length=5)
    assert set(found.kinds) == {"relative_bias"}
    scores = position_scores(weights.of(model, fold=True), weights.of(model, fold=True)[1], 5)
    close(found.patterns.values[2:], scores.softmax(-1))


@pytest.mark.parametrize("kwargs", [{"buckets": 3}, {"buckets": 6, "bidirectional": True}, {"max_distance": 16}])
def test_buckets_that_do_not_divide_are_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="relative_bias"):
        RelativeBias(**kwargs)
