"""`glassformer bench`: what is measured, what is left out and why; growth and memory where the answer is known."""

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.attention import MixerConfig, Softmax
from glassformer.bench import (
    AttentionCosts,
    attention,
    attention_costs,
    costs as measured_costs,
    growth_exponent,
    paired,
    peak_bytes,
)
from glassformer.bench.costs import CALLS, FUSED, PACKED, PACKED_BACKWARD, STEP
from glassformer.cli import main
from glassformer.errors import ConfigError, UnknownKind, WrongArgument
from glassformer.labelled import Labelled
from glassformer.words import speaking

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"n_heads": 2, "d_head": 4, "device": "cpu", "seconds": 60.0}


def tiny(**other: Any) -> dict[str, Any]:
    return {**TINY, **other}


LINE = ["bench", "attention", "softmax", "--heads", "1", "--d-head", "4", "--device", "cpu"]


@pytest.fixture(scope="module", autouse=True)
def few_calls() -> Iterator[None]:
    """Call little, and read the clock each time: nothing here is asked about time but that it is there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paired, "LEAST_SECONDS", 0.0)
        patched.setattr(attention, "STEPS", 2)
        patched.setattr(attention, "ROUNDS", 3)
        yield


@pytest.fixture(scope="module")
def costs(few_calls: None) -> AttentionCosts:
    return attention_costs([Softmax(window=3), "linear"], lengths=[16, 8], batch=3, **TINY)


# ---- growth


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5, 2.0])
def test_a_power_law_has_its_exponent_everywhere(exponent: float) -> None:
    lengths = [256, 512, 2048, 4096]
    found = growth_exponent(lengths, [3e-6 * n**exponent for n in lengths])
    assert found == pytest.approx((exponent, exponent, exponent))


def test_a_fixed_cost_shows_in_the_least_exponent_between_neighbouring_lengths() -> None:
    lengths = [2**i for i in range(8, 15)]
    found = growth_exponent(lengths, [1.0 + (n / 1024) ** 2 for n in lengths])
    assert found.low == pytest.approx(math.log2(1.25 / 1.0625))
    assert found.high == pytest.approx(math.log2(257 / 65))
    assert found.low < found.exponent < found.high


def test_what_was_not_measured_is_no_part_of_a_growth_and_one_length_has_none() -> None:
    assert growth_exponent([1, 2, 4, 8], [1.0, math.nan, 16.0, 0.0]) == pytest.approx((2.0, 2.0, 2.0))
    assert all(map(math.isnan, growth_exponent([1, 2], [1.0, math.nan])))


# ---- memory


def test_peak_memory_is_what_is_held_at_once_and_not_what_was_there_or_came_later() -> None:
    before = torch.ones(1000, 1000)

    def run() -> torch.Tensor:
        first = before + 1  # 4 MB
        second = torch.ones(500_000)  # 2 MB
        del first
        third = torch.ones(250_000)  # 1 MB, where the first has gone
        return second[:1] + third[:1]

    assert peak_bytes(run, CPU) == pytest.approx(6e6, rel=1e-3)
    assert peak_bytes(lambda: before, CPU) == 0


def test_peak_memory_sees_what_a_kernel_takes_within() -> None:
    q = torch.randn(1, 2, 256, 8)
    mask = torch.ones(256, 256, dtype=torch.bool)
    run = torch.nn.functional.scaled_dot_product_attention
    # the kernel makes numbers of the booleans it is given
    taken = peak_bytes(lambda: run(q, q, q, attn_mask=mask), CPU)
    assert taken is not None and taken >= 4 * 256 * 256


def test_a_device_that_does_not_say_what_is_taken_has_no_peak() -> None:
    assert peak_bytes(lambda: None, torch.device("meta")) is None


# ---- attention


def test_every_call_of_every_mechanism_is_measured_beside_the_fused_baseline(costs: AttentionCosts) -> None:
    names = ["softmax(window=3)", "linear"]
    assert costs.seconds.labels("mechanism") == [FUSED, *names] and costs.ratio.labels("mechanism") == names
    assert costs.seconds.labels("call") == list(CALLS) and costs.seconds.labels("length") == [8, 16]
    assert costs.left_out == {}
    for value in (costs.seconds, costs.peak_bytes, costs.state_bytes, costs.ratio, costs.rounds, costs.memory_ratio):
        assert bool(value.values.isfinite().all()) and bool((value.values > 0).all())
    assert bool((costs.ratio_low.values <= costs.ratio.values).all())
    assert bool((costs.ratio.values <= costs.ratio_high.values).all())
    assert bool((costs.same_low.values <= costs.same_high.values).all())
    assert bool((costs.growth_low.values <= costs.growth_high.values).all())
    assert costs.growth.shape == (2, len(CALLS), 3)
    assert costs.provenance is not None and costs.provenance.seed == 0


def test_state_bytes_are_keys_and_values_of_what_is_kept_and_sums_that_do_not_grow(costs: AttentionCosts) -> None:
    keys_and_values = 3 * 2 * 2 * 4 * 4  # rows, heads, a key and a value, width, bytes
    fused, window, linear = costs.state_bytes.values.tolist()
    assert fused == [8 * keys_and_values, 16 * keys_and_values]
    assert window == [2 * keys_and_values] * 2
    assert linear == [3 * 2 * 4 * (4 + 1) * 4] * 2


@pytest.mark.full
def test_by_default_every_registered_mechanism_is_measured() -> None:
    found = attention_costs(lengths=[4], **TINY)
    assert found.ratio.labels("mechanism") == sorted(MixerConfig.registry)
    assert bool(found.growth.values.isnan().all())


def test_layers_are_of_equal_width_whatever_streams_a_mechanism_has() -> None:
    found = attention_costs(["differential"], lengths=[8], **TINY)
    assert found.state_bytes.values[0] == found.state_bytes.values[1]


def test_a_length_without_time_is_left_out_with_all_longer_ones_and_said() -> None:
    found = attention_costs(["softmax"], lengths=[8, 16, 32], **tiny(seconds=0.0))
    # a step has its state from a forward pass, which has no time either
    assert bool(found.seconds.values[:-1, :, 0].isfinite().all()) and bool(found.seconds.values[..., 1:].isnan().all())
    assert set(found.left_out) == {f"softmax: {call}" for call in CALLS}
    assert found.left_out["softmax: forward"].startswith("from 16 tokens on: 5 rounds would take up to ")
    assert "the forward pass that makes the state" in found.left_out[f"softmax: {STEP}"]


def test_a_length_without_memory_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "free_memory", lambda device: 40_000)
    found = attention_costs(["softmax"], lengths=[8, 64], **tiny(seconds=10.0))
    assert "GiB would be held at once, and" in found.left_out["softmax: forward, packed"]
    assert bool(found.seconds.select(call="forward, packed", length=1).values.isnan().all())


def test_shorter_texts_foretell_what_a_long_one_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SMALL", 4)
    monkeypatch.setattr(attention, "free_memory", lambda device: 1)
    tried: list[int] = []
    measure = attention._Mechanism._measure

    def noted(self: Any, call: str, length: int, table: Any) -> None:
        tried.append(length)
        measure(self, call, length, table)

    monkeypatch.setattr(attention._Mechanism, "_measure", noted)
    found = attention_costs(["softmax"], lengths=[1000], **TINY)
    assert set(tried) == {4} and "from 1,000 tokens on" in found.left_out["softmax: forward"]
    assert found.seconds.labels("length") == [1000]


def test_what_a_mechanism_cannot_do_is_left_out_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.errors import AnalysisUnavailable

    def refused(*_: Any) -> None:
        raise AnalysisUnavailable("not packed")

    monkeypatch.setattr(attention._Mechanism, "_measure", refused)
    found = attention_costs(["softmax"], lengths=[8], **TINY)
    assert found.left_out["softmax: forward, packed"] == "from 8 tokens on: not packed"


@pytest.mark.full
def test_the_number_of_threads_is_set_while_it_is_measured_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before, within = torch.get_num_threads(), []
    report = lambda done, total, now: within.append(torch.get_num_threads())  # noqa: E731
    attention_costs(["softmax"], lengths=[4], **TINY, threads=before + 1, report=report)
    assert set(within) == {before + 1} and torch.get_num_threads() == before


def test_progress_is_told_in_tokens_up_to_all_of_them() -> None:
    told: list[tuple[int, int, str]] = []
    attention_costs(["softmax"], lengths=[4, 8], **TINY, report=lambda *now: told.append(now))
    assert told[0] == (0, 12 * len(CALLS), "softmax, forward, 4") and len(told) == 2 * len(CALLS)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"mechanisms": ["sofmax"]}, UnknownKind, 'Nearest: "softmax"'),
        ({"mechanisms": ["linear", "linear"]}, ConfigError, "each may be named once"),
        ({"lengths": []}, WrongArgument, "one entry or more"),
        ({"lengths": [0]}, WrongArgument, "a whole number, 1 to"),
        ({"seconds": -1.0}, WrongArgument, "0 or more"),
        ({"device": "nowhere"}, ConfigError, "Devices here: cpu"),
        ({"dtype": "int8"}, ConfigError, "Types: float16"),
        ({"mechanisms": ["differential"], "n_heads": 1, "d_head": 3}, ConfigError, "of 2 streams"),
    ],
)
def test_bad_input_says_what_would_work(asked: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        attention_costs(**{"mechanisms": ["softmax"], "lengths": [4], **tiny(**asked)})


def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_costs, "WIDE", -1.0)
    found = attention_costs(["softmax"], lengths=[4], **TINY)
    assert "5 of 5 comparisons" in str(found.notes[0])


# ---- looking at it


def test_costs_survive_json(costs: AttentionCosts, tmp_path: Path) -> None:
    document = json.loads(costs.save(tmp_path / "costs.json").read_text())
    assert document["result"] == "AttentionCosts" and document["provenance"]["analysis"] == "attention_costs"
    for name in ("seconds", "ratio", "growth"):
        stored, value = Labelled.from_dict(document[name]), getattr(costs, name)
        assert stored.axes == value.axes and stored.coords == dict(value.coords)
        torch.testing.assert_close(stored.values.double(), value.values, rtol=1e-6, atol=0.0)


def test_the_terminal_shows_every_call_with_interval_and_growth_in_both_languages(costs: AttentionCosts) -> None:
    from glassformer.render.terminal import lines

    told = list(lines(costs, width=80))
    assert all(call in told for call in CALLS) and not any(line.rstrip().endswith("…") for line in told)
    with speaking("zh"):
        assert "解码一步" in list(lines(costs))


def test_what_the_baseline_does_otherwise_is_said_above_the_tables_it_holds_for(costs: AttentionCosts) -> None:
    from glassformer.render.terminal import lines

    assert set(costs.measured_by) & set(CALLS) == {PACKED, PACKED_BACKWARD, STEP}
    assert "dense mask" in costs.measured_by[PACKED] and "writes none" in costs.measured_by[STEP]
    told = list(lines(costs, width=1000))
    for call in CALLS:
        assert (told[told.index(call) + 1].strip() == costs.measured_by.get(call)) == (call in costs.measured_by)
    with speaking("zh"):
        chinese = "\n".join(lines(costs, width=1000))
    assert "稠密掩码" in chinese and "不写入任何键值" in chinese


def test_all_rounds_stand_beside_the_interval_of_their_median(costs: AttentionCosts) -> None:
    from glassformer.render.terminal import lines

    inner = [costs.ratio_least, costs.ratio_low, costs.ratio, costs.ratio_high, costs.ratio_largest]
    for a, b in pairwise(inner):
        assert bool((a.values <= b.values).all())
    told = " ".join(" ".join(lines(costs, width=80)).split())
    assert "below them the least and the largest of a round" in told


def test_costs_are_drawn_as_lines_on_logarithmic_axes(costs: AttentionCosts) -> None:
    pytest.importorskip("matplotlib")
    axes = costs.plot("state_bytes").axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log") and len(axes.lines) == 3
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16"]


def test_times_are_drawn_within_the_band_of_their_intervals(costs: AttentionCosts) -> None:
    pytest.importorskip("matplotlib")
    for call in (CALLS[0], STEP):
        at = costs.seconds.coords["call"].index(call)
        axes = costs.plot("seconds").axes[at]
        assert len(axes.collections) == len(axes.lines) == 3 and "band" in axes.get_title()
        for i, (band, line) in enumerate(zip(axes.collections, axes.lines)):
            heights = band.get_paths()[0].vertices[:, 1]
            low, high = (x.values[at, i] for x in (costs.seconds_low, costs.seconds_high))
            assert (heights.min(), heights.max()) == pytest.approx((float(low.min()), float(high.max())))
            shown = torch.as_tensor(line.get_ydata())
            assert bool((low <= shown).all() and (shown <= high).all())
    # what is measured once has none
    assert all(not axes.collections for axes in costs.plot("peak_bytes").axes)


# ---- the command


@pytest.mark.full
def test_the_command_prints_and_writes_all_that_was_asked_for(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    files = ["--html", "costs.html", "--json", "costs.json", "--plot", "costs.svg"]
    assert main([*LINE, "--lengths", "8", "16", "--seconds", "60", *files]) == 0
    told = capsys.readouterr().out
    assert "Attention costs" in told and "picture: " in told and "decode step" in told
    document = json.loads(Path("costs.json").read_text())
    assert document["command"] == "bench attention" and document["given"]["lengths"] == [8, 16]
    assert document["results"][0]["threads"] == 1 and "model" not in document
    assert "</html>" in Path("costs.html").read_text() and Path("costs.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lengths", "0"], "--lengths must be at least 1, found 0"),
        (["--heads", "0"], "--heads must be at least 1, found 0"),
        (["--plot", "costs.abc"], "Use .png, .svg or .pdf"),
        (["--plot", "a.svg", "--html", "a.svg"], "would both write"),
        (["--dtype", "int8"], "Types: float16"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(
    options: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attention._Mechanism, "measure", lambda *_: pytest.fail("measured"))
    assert main([*LINE, *options]) == 2
    assert said in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_another_subject_is_answered_with_those_there_are(capsys: Any) -> None:
    assert main(["bench", "attentoin"]) == 2
    assert 'takes no "attentoin". Nearest: "attention"' in capsys.readouterr().err


def test_ctrl_c_leaves_no_file_and_the_threads_there_were(tmp_path: Path, monkeypatch: Any) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attention._Mechanism, "measure", interrupted)
    assert main([*LINE, "--threads", str(before + 1), "--html", "costs.html", "--json", "costs.json"]) == 130
    assert list(tmp_path.iterdir()) == [] and torch.get_num_threads() == before


@pytest.mark.gpu
def test_on_a_gpu_time_is_by_the_clock_and_memory_by_the_allocator(cuda: torch.device) -> None:
    assert peak_bytes(lambda: torch.empty(2**20, dtype=torch.uint8, device=cuda), cuda) == 2**20
    found = attention_costs(["softmax", "linear"], lengths=[64, 128], **tiny(device=cuda))
    assert found.left_out == {} and bool(found.peak_bytes.values.isfinite().all())
    assert "max_memory_allocated" in found.measured_by["memory"] and "device" in found.measured_by["time"]
