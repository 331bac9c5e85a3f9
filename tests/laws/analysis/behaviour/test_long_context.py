"""Where heads look over a long context: masses add up, blocks change nothing, known heads land in their classes."""

import functools
import math
from typing import Any

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.behaviour import LongContext, effective_memory, long_context
from glassformer.analysis.drawn_anew import drawn_anew
from glassformer.attention import Lightning, Rope, Softmax
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.models import DecoderConfig, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, Subject, drawn, subject

SCORED = ["gpt2", "llama", "attention_only", "alibi_window", "parallel", "sandwich", "post", "bare", "capped"]
TRANSLATORS = [name for name in ARCHITECTURES if name.startswith("translator")]


# results are frozen: tests may share them
@functools.cache
def measured(name: str, **kwargs: Any) -> LongContext:
    found = subject(name, length=12)
    ids, *more = found.inputs
    rows: dict[str, Any] = {"target": more[0]} if more else {}
    return long_context(found.model, ids, **(rows | dict[str, Any](sink=2, recent=3) | kwargs))


@pytest.mark.parametrize("name", [*SCORED, "smeared", "lightning_hybrid", "translator_pre", "translator_post"])
def test_masses_and_histograms_sum_to_one(name: str) -> None:
    found = measured(name)
    total = torch.stack([found.measures.select(measure=m).values for m in ("sink", "recent", "middle")]).sum(0)
    close(total, torch.ones_like(total))
    close(found.distances.values.sum(-1), torch.ones_like(total))
    close(found.by_layer.values.sum(-1), torch.ones(found.by_layer.shape[0], dtype=torch.float64))
    assert (found.spread.values >= 0).all()


@pytest.mark.parametrize("name", [*SCORED, "lightning_hybrid", "translator_pre"])
def test_blocks_of_any_size_give_the_same_numbers(name: str) -> None:
    whole = measured(name, block=100)
    for block_size in (1, 5):
        parts = measured(name, block=block_size)
        close(parts.measures.values, whole.measures.values)
        close(parts.spread.values, whole.spread.values, 1e-6)
        close(parts.distances.values, whole.distances.values)


@pytest.mark.parametrize("name", SCORED)
def test_measures_are_those_of_the_whole_pattern(name: str) -> None:
    found = measured(name)
    model = subject(name, length=12)
    pattern = run(model.model, *model.inputs, read=["blocks.1.attn.pattern"])["blocks.1.attn.pattern"].values[:, :, 4:]
    q, k = torch.arange(4, 12)[:, None], torch.arange(12)
    at = {
        str(m): found.measures.select(measure=str(m)).values[-pattern.shape[1] :]
        for m in found.measures.labels("measure")
    }
    close(at["sink"], pattern[..., :2].sum(-1).mean((0, 2)))
    close(at["recent"], (pattern * (k > q - 3)).sum(-1).mean((0, 2)))
    close(at["first"], pattern[..., 0].mean((0, 2)))
    entropy = -(pattern * pattern.clamp_min(1e-300).log()).sum(-1)
    close(at["entropy_nats"], entropy.mean((0, 2)))
    close(at["effective_count"], entropy.exp().mean((0, 2)))
    close(at["top_3"], pattern.topk(3).values.sum(-1).mean((0, 2)))
    close(at["distance"], (pattern * (q - k)).sum(-1).mean((0, 2)))
    near = found.distances.values[-pattern.shape[1] :]
    close(near[:, 1], (pattern * (q - k == 1)).sum(-1).mean((0, 2)))
    close(near[:, 3], (pattern * ((q - k >= 4) & (q - k < 8))).sum(-1).mean((0, 2)))


def test_a_head_without_preferences_is_uniform_with_entropy_ln_of_its_keys() -> None:
    model, ids = induction_model(), repeated()
    found = long_context(model, ids, last=1)
    blank = found.measures.select(head="L0H1")
    close(blank.select(measure="entropy_nats").values, torch.tensor(math.log(41), dtype=torch.float64))
    assert found.classes["L0H1"] == found.classes["L1H1"] == "uniform"


def test_the_induction_model_rests_on_its_first_token_until_something_matches() -> None:
    model, ids = induction_model(), repeated()
    early = long_context(model, ids[:, :21], sink=1, recent=2)
    assert float(early.measures.select(head="L1H0", measure="first").values) > 0.99999
    assert early.classes["L1H0"] == "sink only"
    assert early.classes["L0H0"] == "recent only"
    assert early.sink_rate == 0.25
    late = long_context(model, ids, sink=1, recent=2, last=15)
    assert late.classes["L1H0"] == "concentrated middle"
    close(late.measures.select(head="L1H0", measure="distance").values, torch.tensor(19.0, dtype=torch.float64), 1e-4)


def test_a_sink_is_what_is_more_than_heads_with_weights_drawn_anew_have() -> None:
    # so few keys are seen that every head has a third of its weight on the first
    found = subject("llama", length=5)
    short = long_context(found.model, *found.inputs, sink=1, recent=1)
    first = short.measures.select(measure="first").values
    assert (first > 0.3).all() and (first < short.chance).all() and short.sink_rate == 0
    seen, counted = str(short.notes[0].seen), str(short.notes[0].meaning)
    assert f"{short.chance:.2f}" in seen and "0 of 8" in counted
    # the baseline is that of the model's own shuffles
    drawn = [long_context(drawn_anew(found.model, s), *found.inputs, sink=1, recent=1) for s in range(4)]
    masses = torch.cat([one.measures.select(measure="first").values for one in drawn])
    close(torch.tensor(short.chance, dtype=torch.float64), masses.max() + 2 * masses.std())


def test_no_class_speaks_of_a_sink_that_chance_gives_too() -> None:
    # sharp heads that see few keys besides: shuffled, they have as much on the first
    model, ids = induction_model(), repeated()
    found = long_context(model, ids[:, :5], sink=4, recent=1)
    at_first = found.measures.select(measure="sink").values > 0.1
    assert (found.measures.select(measure="sink").values[at_first] <= found.chance_of_sink).all()
    assert {"V", "sink only"} & set(found.classes.values()) == set()


def test_only_so_many_last_queries_are_measured_when_asked() -> None:
    found = measured("gpt2", last=3)
    assert found.queries == (9, 11)
    assert measured("gpt2").queries == (4, 11)


@pytest.mark.parametrize("name", ["linear", "translator_linear"])
def test_linear_attention_is_offered_the_decay_of_its_memory_instead(name: str) -> None:
    if name == "linear":
        with pytest.raises(AnalysisUnavailable, match=r'"linear" \(has_scores=False\).*\n.*effective_memory'):
            measured(name)
    memory = effective_memory(subject(name).model).measures
    assert (memory.select(measure="half_life").values == math.inf).all()


def test_of_signed_weights_shares_are_of_their_sizes() -> None:
    found, model = measured("differential"), subject("differential", length=12)
    sizes = model.values("blocks.1.attn.pattern")["blocks.1.attn.pattern"][:, :, 4:].abs()
    share = sizes / sizes.sum(-1, keepdim=True)
    close(found.measures.select(measure="sink").values[2:], share[..., :2].sum(-1).mean((0, 2)))
    entropy = -(share * share.clamp_min(1e-300).log()).sum(-1)
    close(found.measures.select(measure="entropy_nats").values[2:], entropy.mean((0, 2)))
    assert set(found.readings.values()) == {"signed"} and (found.missing.values == 0).all()
    assert "by size" in found.notes[0].meaning


def with_sinks(*logits: float) -> Subject:
    layers = (block(Softmax(sinks=True), n_heads=2, positions=Rope()),) * 2
    found = drawn("sinks", DecoderConfig(11, 16, layers, max_len=24), length=12)
    with torch.no_grad():
        for i in (0, 1):
            found.model.sub_layer(f"blocks.{i}.attn").attention.mixer.sinks.copy_(torch.tensor(logits))
    return found


def test_what_rows_lack_is_one_more_place() -> None:
    model = with_sinks(-1.0, 1.5)
    found = long_context(model.model, *model.inputs, sink=2, recent=3)
    pattern = model.values("blocks.1.attn.pattern")["blocks.1.attn.pattern"][:, :, 4:]
    lacking = 1 - pattern.sum(-1)
    close(found.missing.values[2:], lacking.mean((0, 2)))
    every = torch.cat((pattern, lacking[..., None]), -1)
    entropy = -(every * every.clamp_min(1e-300).log()).sum(-1)
    close(found.measures.select(measure="entropy_nats").values[2:], entropy.mean((0, 2)))
    q, k = torch.arange(4, 12)[:, None], torch.arange(12)
    far = (pattern * (q - k)).sum(-1) / pattern.sum(-1)
    close(found.measures.select(measure="distance").values[2:], far.mean((0, 2)))
    places = [found.measures.select(measure=m).values for m in ("sink", "recent", "middle")]
    close(sum(places) + found.missing.values, torch.ones(4, dtype=torch.float64))
    assert set(found.readings.values()) == {"sink"} and "learned sink" in found.notes[0].seen


def test_a_head_that_gives_all_to_its_sink_rests_and_one_that_gives_nothing_is_plain_softmax() -> None:
    resting, plain = with_sinks(60.0, 60.0), with_sinks(-500.0, -500.0)
    found = long_context(resting.model, *resting.inputs, sink=2, recent=3)
    assert found.sink_rate == 1 and set(found.classes.values()) == {"sink only"}
    layers = (block(n_heads=2, positions=Rope()),) * 2
    without = DecoderConfig(11, 16, layers, max_len=24).build().double().eval()
    without.load_state_dict(plain.model.state_dict(), strict=False)
    ours, theirs = (long_context(m, *plain.inputs, sink=2, recent=3).measures.values for m in (plain.model, without))
    kept = [i for i, name in enumerate(found.measures.labels("measure")) if name != "effective_share"]
    close(ours[:, kept], theirs[:, kept], 1e-9)


def test_layers_without_weights_are_left_out_by_name() -> None:
    found = measured("lightning_hybrid")
    assert list(found.left_out) == ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert list(found.classes) == ["L1H0", "L1H1", "L1H2", "L1H3"]


def test_effective_memory_is_what_the_decay_makes_of_equal_keys() -> None:
    layer = block(Lightning(slopes=(math.log(2), 0.1, 0.0)), n_heads=3)
    model = DecoderConfig(vocab_size=5, d_model=12, layers=(layer,)).build()
    found = effective_memory(model).measures
    close(found.select(head="L0H0").values, torch.tensor([0.5, 1.0, 1.0], dtype=torch.float64))
    ages = torch.arange(2000, dtype=torch.float64)
    weight = torch.exp(-0.1 * ages)
    close(found.select(head="L0H1", measure="reach").values, (ages * weight).sum() / weight.sum())
    assert float(found.select(head="L0H2", measure="reach").values) == math.inf


def test_models_without_a_decaying_memory_are_sent_to_long_context() -> None:
    with pytest.raises(AnalysisUnavailable, match=r"no layer keeps a decaying memory \(softmax\).*\n.*long_context"):
        effective_memory(subject("gpt2").model)


def test_a_text_too_short_for_the_windows_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="12 tokens leave no query with 4 sink and 16 recent keys"):
        measured("gpt2", sink=4, recent=16)


def test_padded_and_packed_batches_are_refused() -> None:
    ids = torch.randint(0, 11, (2, 12))
    every = torch.ones_like(ids, dtype=torch.bool)
    for more in ({"lengths": torch.tensor([12, 9])}, {"documents": torch.zeros_like(ids)}):
        with pytest.raises(ShapeMismatch, match="of one length, with one text in each"):
            long_context(subject("gpt2").model, Batch(ids, ids, every, **more), sink=2, recent=3)


def test_a_context_longer_than_any_block_needs_no_square_of_it() -> None:
    layer = block(Softmax(), n_heads=2, positions=Rope())
    model = randomise(DecoderConfig(vocab_size=5, d_model=8, layers=(layer,), max_len=4096).build())
    ids = torch.randint(0, 5, (1, 1500))
    seen: list[int] = []

    def watch(done: int, total: int) -> None:
        seen.append(done)
        # the text is read once, and with weights drawn anew
        assert total == 5 * 1500

    found = long_context(model, ids, last=100, block=400, report=watch)
    assert seen[-1] == 5 * 1500 and found.queries == (1400, 1499)
    assert found.distances.labels("distance")[-1] == "1024-2047"
