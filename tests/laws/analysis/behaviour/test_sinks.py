"""The first token as a resting place: measured as defined, masked where it counts, refused where nothing rests."""

import functools
import math

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.behaviour import AttentionSinks, attention_sinks
from glassformer.analysis.token_flow import rollout, value_norms
from glassformer.attention import Differential, Rope, Softmax
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, block
from glassformer.testing import close
from glassformer.testing.models import drawn, subject

SCORED = ["gpt2", "llama", "attention_only", "alibi_window", "parallel", "post", "bare", "capped", "lightning_hybrid"]


# results are frozen: tests may share them
@functools.cache
def measured(name: str, length: int = 9) -> AttentionSinks:
    found = subject(name, batch=3, length=length)
    return attention_sinks(found.model, *found.inputs, window=4, first=2)


@pytest.mark.parametrize("name", ["gpt2", "llama", "attention_only", "bare"])
def test_measures_are_means_of_weights_and_of_written_sizes(name: str) -> None:
    found, model = measured(name), subject(name, batch=3, length=9)
    done = run(model.model, *model.inputs, read=[rollout, "blocks.*.attn.scores"])
    masses, firsts, others, scores = [], [], [], []
    for row in range(3):
        written = value_norms(done, row=row).written.values[:, 1:]
        patterns = torch.cat([done[f"blocks.{i}.attn.pattern"].values[row, :, 1:] for i in range(2)])
        score = torch.cat([done[f"blocks.{i}.attn.scores"].values[row, :, 1:] for i in range(2)])
        masses.append(patterns[..., 0].mean(-1))
        firsts.append(written[..., 0].mean(-1))
        others.append(written[..., 1:].sum(-1).mean(-1))
        mean = torch.stack([score[:, q, 1 : q + 2].mean(-1) for q in range(8)], -1)
        scores.append((score[..., 0] - mean).mean(-1))
    for measure, expected in zip(("mass", "written_first", "written_others", "score_above_others"),
                                 (masses, firsts, others, scores)):  # fmt: skip
        close(found.measures.select(measure=measure).values, torch.stack(expected).mean(0))


@pytest.mark.parametrize("name", SCORED)
def test_losses_are_those_of_the_changed_model_on_the_same_tokens(name: str) -> None:
    found, model = measured(name), subject(name, batch=3, length=9)
    ids = model.inputs[0]

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.mT, ids[:, 2:])

    close(found.loss.select(condition="as it is").values, loss(model()[:, 1:-1]))
    close(found.loss.select(condition="first token dropped").values, loss(model.model(ids[:, 1:])[:, :-1]))
    front = torch.cat((torch.full((3, 2), int(found.neutral)), ids), 1)
    close(found.loss.select(condition="neutral tokens in front").values, loss(model.model(front)[:, 3:-1]))
    assert found.loss_change.values[0] == 0 and (found.loss_change.values[1:].abs() > 1e-9).all()
    assert found.spread.values[1:].isfinite().all()


def test_a_window_is_that_of_a_model_built_with_one() -> None:
    from dataclasses import replace

    from glassformer.attention import Softmax

    model = subject("llama", batch=3, length=9)
    layers = tuple(
        replace(layer, parts=(replace(layer.parts[0], mixer=Softmax(window=4)), *layer.parts[1:]))  # type: ignore[type-var]
        for layer in model.model.config.layers
    )
    windowed = model.model.config.replace(layers=layers).build().double().eval()
    windowed.load_state_dict(model.model.state_dict())
    ids = model.inputs[0]
    expected = torch.nn.functional.cross_entropy(windowed(ids)[:, 1:-1].mT, ids[:, 2:])
    found = attention_sinks(model.model, ids, window=4, first=2)
    close(found.loss.select(condition="window").values, expected)


def test_with_rotary_positions_masking_the_first_key_is_dropping_the_first_token() -> None:
    changes = measured("llama").loss_change
    masked, dropped = (changes.select(condition=f"first {what}").values for what in ("key masked", "token dropped"))
    close(masked, dropped)


def test_the_induction_model_rests_on_a_token_that_carries_nothing() -> None:
    model, ids = induction_model(), repeated()[:, :21]
    found = attention_sinks(model, ids)
    rests = found.measures.select(head="L1H0")
    assert float(rests.select(measure="mass").values) > 0.99999
    assert float(rests.select(measure="written_first").values) == 0
    close(rests.select(measure="score_above_others").values, torch.tensor(15.0, dtype=torch.float64), 1e-6)
    assert found.sink_rate == 0.25


def test_without_the_resting_place_an_unmatched_query_spreads_over_what_is_left() -> None:
    model, ids = induction_model(), repeated()[:, :21]
    found = attention_sinks(model, ids)
    # the tokens seen so far get c/q more than the others, and the next one is none of them
    q = torch.arange(1, 20, dtype=torch.float64)
    expected = (q * torch.exp(50 / q) + 21 - q).log().mean()
    close(found.loss.select(condition="first key masked").values, expected, 1e-4)
    close(found.loss.select(condition="as it is").values, torch.tensor(math.log(21), dtype=torch.float64), 1e-4)


def test_linear_attention_in_which_nothing_has_to_rest_is_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match=r"linear_in_value\); found linear, .*\n.*head_roles"):
        measured("linear")


def test_signed_weights_count_by_size() -> None:
    layers = (block(Differential(lambda_init=2.5), n_heads=2, positions=Rope()),) * 2
    model = drawn("differential", DecoderConfig(11, 16, layers, max_len=24), batch=3, length=9)
    found = attention_sinks(model.model, *model.inputs, window=4, first=2)
    done = run(model.model, *model.inputs, read=["blocks.0.attn.pattern", "blocks.0.attn.scores"])
    sizes = done["blocks.0.attn.pattern"].values[:, :, 1:].abs()
    assert (done["blocks.0.attn.pattern"].values < 0).any()
    share = sizes / sizes.sum(-1, keepdim=True)
    close(found.measures.select(measure="mass").values[:2], share[..., 0].mean((0, 2)))
    written = (
        model.values("blocks.0.attn.value")["blocks.0.attn.value"]
        @ model.model.sub_layer("blocks.0.attn").attention.merge.matrix()
    )
    close(
        found.measures.select(measure="written_first").values[:2],
        (sizes[..., 0] * written[..., :1, :].norm(dim=-1)).mean((0, 2)),
    )
    scores = done["blocks.0.attn.scores"].values[..., 1:, :]
    above = torch.stack([scores[..., q, 0] - scores[..., q, 1 : q + 2].mean(-1) for q in range(8)], -1)
    close(found.measures.select(measure="score_above_others").values[:2], above.mean((0, 1, 3)))
    assert (found.missing.values == 0).all() and "of either sign" in found.notes[0].seen
    assert (found.loss_change.values[1:].abs() > 1e-9).all()


def test_what_rows_lack_is_the_share_of_a_sink_of_its_own() -> None:
    layers = (block(Softmax(sinks=True), n_heads=2, positions=Rope()), block(n_heads=2, positions=Rope()))
    model = drawn("sinks", DecoderConfig(11, 16, layers, max_len=24), batch=3, length=9)
    with torch.no_grad():
        model.model.sub_layer("blocks.0.attn").attention.mixer.sinks.copy_(torch.tensor([-50.0, 4.0]))
    found = attention_sinks(model.model, *model.inputs, window=4, first=2)
    pattern = model.values("blocks.0.attn.pattern")["blocks.0.attn.pattern"][:, :, 1:]
    close(found.measures.select(measure="mass").values[:2], pattern[..., 0].mean((0, 2)))
    close(found.missing.values[:2], 1 - pattern.sum(-1).mean((0, 2)))
    # the first head has none to speak of; the second rests there
    assert found.missing.values[0] < 1e-12 and found.missing.values[1] > 0.5
    assert (found.missing.values[2:] == 0).all() and found.sink_rate >= 0.25
    assert "learned sink" in found.notes[0].seen


def test_an_encoder_decoder_and_short_texts_are_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match="EncoderDecoder is no decoder"):
        attention_sinks(subject("translator_pre").model, [1, 2, 3])
    with pytest.raises(ShapeMismatch, match="three tokens at least"):
        attention_sinks(subject("gpt2").model, [1, 2])


def test_conditions_that_do_not_fit_are_left_out_with_the_reason() -> None:
    found = subject("gpt2", length=23)
    result = attention_sinks(found.model, *found.inputs, window=30)
    assert "do not fit in max_len=24" in result.left_out["neutral tokens in front"]
    assert "smaller window" in result.left_out["window"]


def test_a_batch_gives_what_its_rows_give() -> None:
    model, lengths = subject("gpt2").model, torch.tensor([9, 5])
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    rows = [row[:length].tolist() for row, length in zip(ids, lengths)]
    every = torch.ones_like(ids, dtype=torch.bool)
    # one document in each row, and behind it what fills the row
    one_each = (torch.arange(9) >= lengths[:, None]).long()
    for given, same in (
        (Batch(ids, ids, every), ids),
        (Batch(ids, ids, every, lengths=lengths, documents=one_each), rows),
    ):
        found, expected = (attention_sinks(model, text, window=3, first=2) for text in (given, same))
        assert torch.equal(found.loss.values, expected.loss.values)
        assert torch.equal(found.measures.values, expected.measures.values)


def test_a_batch_whose_rows_hold_several_documents_is_refused() -> None:
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    packed = Batch(
        ids, ids, torch.ones_like(ids, dtype=torch.bool), documents=(torch.arange(9) > 4).long().expand(2, 9)
    )
    with pytest.raises(ShapeMismatch, match="each row for one text, and rows of this Batch hold several documents"):
        attention_sinks(subject("gpt2").model, packed)
