"""Results say what they are of: model and weights, input, precision, seed, versions."""

import copy
import gc
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.causal import average_traces, causal_trace, patch
from glassformer.analysis.heads import head_scores
from glassformer.analysis.lens import logit_lens
from glassformer.checkpoints import save
from glassformer.data import Batch, Contrast, bytes_tokenizer
from glassformer.data.pairs import Pair
from glassformer.models import DecoderConfig, block, repeat
from glassformer.provenance import digest as digests
from glassformer.provenance.binding import Binding, given
from glassformer.render.page.results import results_document


def made(seed: int = 0) -> Any:
    model = DecoderConfig(257, 16, repeat(block(n_heads=2), 1), max_len=64).build(seed)
    model.tokenizer = bytes_tokenizer()
    return model.eval()


def test_a_result_says_model_digest_input_and_versions() -> None:
    model = made()
    model.trained_length = 9
    found = logit_lens(model, "abc")
    said = found.provenance
    assert said is not None and said.digest == model.digest() and said.torch == torch.__version__
    assert (said.analysis, said.dtype, said.device, said.version) == ("logit_lens", "float32", "cpu", gf.__version__)
    assert (said.model, said.trained_length) == ("decoder", 9)
    assert [(one.shown, one.sha256) for one in said.input] == [("abc", "")]
    assert json.loads(found.to_json())["provenance"]["digest"] == model.digest()
    assert "sha" not in repr(found) and "provenance" not in repr(found)
    assert found.replace(answer=1).provenance == said


def test_a_seed_is_said_where_an_analysis_takes_one() -> None:
    assert head_scores(made(), seed=7).provenance.seed == 7  # type: ignore[union-attr]


def test_what_is_made_of_a_result_says_its_own_analysis_further_inputs_and_its_seed() -> None:
    model = made()
    known = Binding("run", model, ["abc"], 1)
    for one in (known, known.said()):
        for seed in (7, None):
            found = one.of("rollout", ["abd"], seed).said()
            assert (found.analysis, found.seed, found.digest) == ("rollout", seed, model.digest())
            assert [given.shown for given in found.input] == ["abc", "abd"]
        assert (one.said().analysis, one.said().seed, len(one.said().input)) == ("run", 1, 1)


def test_a_result_of_a_saved_run_says_what_the_run_was_of(tmp_path: Path) -> None:
    model = made()
    model.trained_length = 2
    run = gf.run(model, "abc", read=[logit_lens])
    back = gf.Run.load(run.save(tmp_path / "run"), model=made(1))
    assert back.provenance == run.provenance and back.notes == run.notes != ()
    assert logit_lens(back).provenance.digest == model.digest()  # type: ignore[union-attr]


def test_the_digest_changes_with_every_parameter_and_buffer() -> None:
    model = made()
    seen = {model.digest()}
    for value in [*model.parameters(), *model.buffers()]:
        with torch.no_grad():
            value.view(-1)[:1] += 1
        seen.add(model.digest())
    assert len(seen) == 1 + len([*model.parameters(), *model.buffers()])
    assert made().digest() == made().digest() != made(1).digest()


def test_a_result_from_before_a_change_says_that_the_weights_were_changed() -> None:
    model = made()
    before = logit_lens(model, "abc")
    with torch.no_grad():
        model.embed.matrix += 1
    assert (before.provenance.digest, before.provenance.why) == ("", "the weights were changed since")  # type: ignore[union-attr]
    known = logit_lens(model, "abc")
    now = known.provenance.digest  # type: ignore[union-attr]
    with torch.no_grad():
        model.embed.matrix -= 1
    assert known.provenance.digest == now != model.digest()  # type: ignore[union-attr]


@pytest.mark.full
def test_a_result_keeps_no_model_alive_and_says_when_it_is_gone() -> None:
    model = made()
    found, asked = logit_lens(model, "abc"), logit_lens(model, "abd")
    known = model.digest()
    late = logit_lens(model, "abc").provenance
    del model
    gc.collect()
    assert late is not None and late.digest == known
    assert found.provenance.digest == "" and "gone" in found.provenance.why  # type: ignore[union-attr]
    assert asked.provenance.model == "decoder"  # type: ignore[union-attr]


def test_nothing_is_hashed_before_a_result_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Any] = []
    monkeypatch.setattr(digests, "_computed", lambda model: hashed.append(model) or "weights:0")
    found = logit_lens(made(), "abc")
    gf.run(made(), "abc")
    assert hashed == []
    monkeypatch.setattr(digests, "MOST_BYTES", 10)
    big = made()
    assert "large" in logit_lens(big, "abc").provenance.why and hashed == []  # type: ignore[union-attr]
    assert found.provenance is not None


def test_weights_that_lie_in_their_files_are_not_read_for_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = gf.load(save(made(), tmp_path), stream=True)
    digests.forget(streamed)
    monkeypatch.setattr(digests, "_computed", lambda model: pytest.fail("hashed"))
    assert "lie in their files" in logit_lens(streamed, "abc").provenance.why  # type: ignore[union-attr]


def test_a_digest_is_computed_once_until_a_weight_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, computed, hashed = made(), digests._computed, list[Any]()
    monkeypatch.setattr(digests, "_computed", lambda model: hashed.append(model) or computed(model))
    assert model.digest() == model.digest() == logit_lens(model, "abc").provenance.digest  # type: ignore[union-attr]
    assert len(hashed) == 1
    # another matrix in its place, which was written to as often
    first, model.embed.matrix = model.digest(), made(1).embed.matrix
    assert model.digest() != first and len(hashed) == 2


def test_the_digest_is_of_buffers_and_of_the_config_too() -> None:
    model, same, other = made(), made(), made()
    for one, value in ((model, 1.0), (same, 1.0), (other, 2.0)):
        one.register_buffer("offset", torch.full((3,), value))
    assert model.digest() == same.digest() != other.digest()
    before = model.digest()
    model.offset[0] = 5.0
    assert model.digest() != before
    # the same numbers in another shape, and one tensor under another name besides
    before = same.digest()
    other.register_buffer("offset", same.offset[None].clone())
    assert other.digest() != before
    same.register_buffer("again", same.offset)
    assert same.digest() != before
    # as many weights of the same names and values, which another config computes something else with
    config, weights = made().config, made().state_dict()
    twin = config.replace(max_len=32).build()
    twin.load_state_dict(weights)
    assert twin.digest() != made().digest()


def test_a_model_made_in_inference_mode_has_a_digest() -> None:
    with torch.inference_mode():
        model = made()
    assert model.digest() == made().digest()


def test_a_folder_of_ours_knows_the_digest_of_its_weights_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(made(), tmp_path)
    monkeypatch.setattr(digests, "_computed", lambda model: pytest.fail("hashed"))
    whole, streamed = gf.load(tmp_path), gf.load(tmp_path, stream=True)
    assert whole.digest() == streamed.digest() and whole.digest().startswith("files:")


def test_long_inputs_are_shortened_with_a_digest_of_the_whole() -> None:
    model = made()
    found = [gf.run(model, list(range(40)) + [40 + i] * 24).provenance for i in (0, 0)]
    assert found[0] == found[1]
    assert all(not one.input[0].sha256 for one in found if one)
    ids = torch.zeros(2, 64, dtype=torch.long)
    first = gf.run(model, ids).provenance
    ids = ids.clone()
    ids[1, -1] = 1
    second = gf.run(model, ids).provenance
    assert first is not None and second is not None
    assert first.input[0].shown == second.input[0].shown and len(first.input[0].shown) < 200
    assert first.input[0].sha256 != second.input[0].sha256


def test_a_long_text_is_shortened_with_a_digest_of_the_whole() -> None:
    model = DecoderConfig(257, 16, repeat(block(n_heads=2), 1), max_len=400).build().eval()
    model.tokenizer = bytes_tokenizer()
    texts = ["a" * 240, "a" * 299 + "b", "a" * 299 + "c"]
    short, first, second = (gf.run(model, text).provenance.input[0] for text in texts)  # type: ignore[union-attr]
    assert (short.shown, short.sha256) == (texts[0], "")
    assert first.shown == second.shown == "a" * 240 + "…" and first.size == "300 characters"
    assert "" != first.sha256 != second.sha256 != ""


def test_further_inputs_than_a_few_are_counted_with_a_digest_of_them_all() -> None:
    texts = [f"text {i}" for i in range(11)]
    first, second = given([texts]), given([[*texts[:10], "another"]])
    assert [one.shown for one in first] == [*texts[:8], "… and 3 more"]
    assert first[:8] == second[:8] and first[8].size == "3 inputs" and first[8].sha256 != second[8].sha256


def test_of_batches_and_pairs_both_sides_are_said() -> None:
    tokens, source = torch.tensor([[1, 2]]), torch.tensor([[7, 8, 9]])
    batch = Batch(tokens, tokens, torch.ones(1, 2, dtype=torch.bool), source=source)
    assert [one.shown for one in given([batch, Pair("abc", "abd", "e", "f")])] == ["7 8 9", "1 2", "abc", "abd"]


def test_results_are_copied_and_pickled_with_what_they_are_of() -> None:
    model = made()
    found = logit_lens(model, "abc")
    assert copy.deepcopy(found).provenance == found.provenance == pickle.loads(pickle.dumps(found)).provenance


def test_traces_of_several_prompts_say_all_that_was_read() -> None:
    model = made()
    model.trained_length = 2
    traces = [causal_trace(model, text, [1], samples=2, seed=3) for text in ("abc", "abd")]
    found = average_traces(traces)
    said = found.provenance
    assert said is not None and (said.analysis, said.digest, said.seed) == ("average_traces", model.digest(), 3)
    assert [one.shown for one in said.input] == ["abc", "abd"]
    assert any("trained on 2" in note.seen for note in found.notes)
    kept = [trace.bound(trace.provenance) for trace in traces]
    assert average_traces(kept).provenance == said
    assert average_traces([traces[0], traces[1].bound(None)]).provenance is None


@pytest.mark.parametrize("kept", [False, True])
def test_traces_of_several_models_or_seeds_are_not_said_to_be_of_the_first(kept: bool) -> None:
    model, other = made(), made(1)

    def traced(model: Any, seed: int = 3) -> Any:
        found = causal_trace(model, [1, 2, 3], [1], 4, samples=2, seed=seed)
        return found.bound(found.provenance) if kept else found

    assert average_traces([traced(model), traced(other)]).provenance is None
    said = average_traces([traced(model), traced(model, seed=4)]).provenance
    assert said is not None and said.digest == model.digest() and said.seed is None
    before = traced(model)
    with torch.no_grad():
        model.unembed.weight.add_(1)
    assert average_traces([before, traced(model)]).provenance is None


def test_a_table_of_a_sweep_says_what_the_sweep_is_of_and_the_sweep_says_it_once() -> None:
    model = made()
    model.trained_length = 2
    found = patch(model, Contrast("abc", "abd", answer="e", wrong="f"), sites=["z", "resid_pre"])
    for table in found.values():
        assert table.provenance == found.provenance is not None and table.notes == found.notes != ()
    document = json.loads(found.to_json())
    assert document["provenance"]["digest"] == model.digest() and document["notes"]
    assert all("provenance" not in table and "notes" not in table for table in document["tables"].values())
    assert json.loads(found["z"].to_json())["provenance"]["digest"] == model.digest()


def test_a_document_of_several_results_says_once_what_they_share() -> None:
    model = made()
    run = gf.run(model, "abc", read=[logit_lens])
    document = results_document([logit_lens(run), logit_lens(run, position=0), head_scores(model)])
    assert document["provenance"]["digest"] == model.digest()
    assert [one["provenance"]["analysis"] for one in document["results"]] == ["logit_lens", "logit_lens", "head_scores"]
    assert all(name not in one["provenance"] for one in document["results"] for name in document["provenance"])


def test_a_command_says_what_its_results_are_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from glassformer.cli import main

    assert main(["attribute", "attn-only-1l", "import os", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["provenance"]["digest"] == gf.load("attn-only-1l").digest()
    assert "model" not in found["provenance"] and [n["seen"] for n in found["notes"]] == [
        "The tokenizer added <bos> in front of the text."
    ]
    assert all("notes" not in one for one in found["results"])


def test_saved_rows_and_tables_say_what_they_are_of(tmp_path: Path) -> None:
    from safetensors import safe_open

    from glassformer.analysis.sweep import logit, sweep

    model, path = made(), tmp_path / "rows"
    rows = [[gf.Scale("blocks.0.attn.z", 0.0)]]
    sweep(model, "abc", rows, logit(5), save_to=path)
    with safe_open(str(path), framework="pt") as file:  # type: ignore[no-untyped-call]
        assert json.loads(file.metadata()["provenance"])["digest"] == model.digest()
    assert logit_lens(model, "abc").to_frame().attrs["provenance"]["digest"] == model.digest()
