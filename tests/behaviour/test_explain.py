"""`explain`: its numbers agree with each other and with the model, on the terminal, as JSON, on the command line."""

import dataclasses
import io
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from explanations import SAMPLES, TEXT, gpt, predicting, sample, signed, translator
from glassformer import checkpoints
from glassformer.analysis import run
from glassformer.analysis.attribution import direct_logit_attribution, input_gradients
from glassformer.analysis.heads import head_roles, head_scores
from glassformer.analysis.heads.roles import ROLES
from glassformer.analysis.lens import logit_lens
from glassformer.analysis.reports import explain
from glassformer.cli import main
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError
from glassformer.handmade import induction_model
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.models.model import LogitsOf
from glassformer.render.terminal import lines
from glassformer.render.terminal.tables import visible
from glassformer.testing import close
from glassformer.testing.models import DIRECTED, subject
from glassformer.words import speaking
from one_pass import in_one_pass

every_sample = pytest.mark.parametrize("name", SAMPLES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folders called `decoder` and `translator`."""
    root = tmp_path_factory.mktemp("models")
    checkpoints.save(gpt(), root / "decoder")
    checkpoints.save(translator(), root / "translator")
    return root


@every_sample
def test_every_number_belongs_to_one_distribution_and_one_logit(name: str) -> None:
    found = sample(name)
    assert sum(c.contribution for c in found.attribution.components) == pytest.approx(found.attribution.total, abs=1e-4)
    against = 0.0 if found.against is None else found.against.logit
    assert found.attribution.total == pytest.approx(found.answer.logit - against, abs=1e-5)
    last = found.lens[-1]
    assert last.kl_bits == pytest.approx(0, abs=1e-9)
    assert last.answer.probability == pytest.approx(found.answer.probability, rel=1e-4)
    assert last.answer.rank == found.answer.rank
    assert last.entropy_bits == pytest.approx(found.next_token.entropy_bits, abs=1e-4)
    assert [c.probability for c in found.next_token.candidates] == sorted(
        (c.probability for c in found.next_token.candidates), reverse=True
    )
    assert found.sampling.steps[0].candidates == found.next_token.candidates


@every_sample
def test_where_a_top_head_looks_is_a_mixture_and_what_it_takes_is_what_it_adds(name: str) -> None:
    found = sample(name)
    assert found.top_heads
    facts = {head.label: head for head in found.heads}
    for top in found.top_heads:
        texts = found.source_tokens if top.key == "source_tokens" else found.tokens
        assert texts is not None
        assert len(top.weights) == len(top.sources) == len(texts)
        assert min(top.weights) >= 0
        assert sum(top.weights) == pytest.approx(1, abs=1e-5)
        assert sum(top.sources) == pytest.approx(top.contribution, abs=1e-4)
        assert top.contribution == facts[top.label].contribution
        assert top.basis == ("pattern" if facts[top.label].reading == "mass" else "norm")


def test_the_parts_are_what_the_analyses_give_one_by_one() -> None:
    model = gpt()
    found = explain(model, TEXT[:80], answer="\n", against=" ")
    done = run(model, TEXT[:80], read=[explain])
    split = direct_logit_attribution(done, answer="\n", against=" ")
    assert [c.contribution for c in found.attribution.components] == split.contributions.values.tolist()
    assert [row.kl_bits for row in found.lens] == logit_lens(done, answer="\n").kl_bits.values.tolist()
    scores = head_roles(done).scores
    for head in found.heads:
        for role in head.roles:
            value = float(scores.select(head=head.label, role=role.role).values)
            assert role.score == value or (role.score is None and math.isnan(value))


def test_the_induction_head_and_its_partner_are_told_with_their_roles() -> None:
    found = explain(induction_model(), "t1 t2 t3 t4 t5 t1 t2 t3")
    assert found.answer.text == "t4"
    assert found.answer.probability == pytest.approx(1, abs=1e-6)
    tops = {top.label: top for top in found.top_heads}
    assert tops["L1H0"].because == "contribution"
    assert tops["L1H0"].weights[4] == pytest.approx(1, abs=1e-4)
    # the partner adds nothing itself; it is listed for its role
    assert tops["L0H0"].contribution == 0
    roles = {h.label: {r.role: r.score for r in h.roles} for h in found.heads}
    assert roles["L1H0"]["induction"] == pytest.approx(1, abs=1e-4)
    assert roles["L0H0"]["previous_token"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", DIRECTED)
def test_every_architecture_can_be_explained(name: str) -> None:
    found = subject(name)
    target = None if len(found.inputs) == 1 else [1, 2, 3]
    explained = explain(found.model, [1, 2, 3, 1, 2], target=target)
    assert explained.attribution.sum == pytest.approx(explained.attribution.total)
    assert len(explained.patterns) == len(explained.heads)
    assert "NaN" not in explained.to_json() and "Infinity" not in explained.to_json()
    assert list(lines(explained, 80))


def test_one_forward_pass_of_the_text_answers_everything_but_what_heads_do_on_random_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, calls = gpt(), []
    forward = model.stack.forward
    monkeypatch.setattr(
        model.stack, "forward", lambda x, *args, **kwargs: (calls.append(x.shape), forward(x, *args, **kwargs))[1]
    )
    explain(model, "def f")
    length = len(run(model, "def f").tokens)
    assert [shape[:2] == (1, length) for shape in calls[:2]] == [True, False]
    assert len(calls) == 3  # the third is this test's own


def test_a_head_is_named_by_the_roles_it_plays_on_random_tokens_and_else_resembles_them() -> None:
    model = gf.load("attn-only-2l")
    found = explain(model, "class TokenBuffer:\n    pass\n\nbuffer = Token")
    scores = head_scores(model, n_sequences=4).scores
    for head in found.heads:
        for role in head.roles:
            assert role.model_wide == float(scores.select(head=head.label, role=role.role).values)
            assert role.model_wide is not None
            assert role.named == (role.model_wide >= 0.4)
    named = {h.label for h in found.heads for r in h.roles if r.role == "induction" and r.named}
    assert named == {"L1H3", "L1H6"}
    assert any("L1H6" in line and "induction" in line and "resembles induction" not in line for line in lines(found))
    (role,) = (r for h in found.heads for r in h.roles if h.label == "L1H6" and r.role == "induction")
    both = f"induction {role.score:.2f} ({role.positions}; {role.model_wide:.2f})"
    assert any("L1H6" in line and both in line for line in lines(found, 200))


def test_no_head_of_a_model_without_induction_heads_is_called_one() -> None:
    found = explain(gf.load("attn-only-1l"), "import os\nimport sys\nimport")
    induction = [r for h in found.heads for r in h.roles if r.role == "induction"]
    assert any(r.score is not None and r.score >= 0.3 for r in induction)
    assert not any(r.named for r in induction)
    telling = " ".join(lines(found, 200)).partition("Telling heads")[2].partition("previous-token:")[0]
    assert telling.count("induction") == telling.count("resembles induction") > 0
    assert not any(top.because == "induction" for top in found.top_heads)


def test_where_random_tokens_cannot_be_repeated_roles_are_those_on_the_text() -> None:
    # a context of three tokens has no room for a unit twice
    model = DecoderConfig(11, 16, (block(n_heads=2, mlp=Mlp()),) * 2, max_len=3).build(seed=0).eval()
    found = explain(model, [1, 2, 1])
    assert all(r.model_wide is None and r.named is None for h in found.heads for r in h.roles)
    assert not any("resembles" in line for line in lines(found))


def test_heads_that_read_both_ways_have_no_induction_score_on_random_tokens() -> None:
    found = explain(gf.load("zh-en"), "我吃了一个苹果")
    induction = {h.label: r.model_wide for h in found.heads for r in h.roles if r.role == "induction"}
    assert {label for label, score in induction.items() if score is None} == {
        label for label in induction if label.startswith("enc")
    }


@pytest.mark.parametrize("name", ["long", "generated"])
def test_what_tokens_do_for_the_answer_is_the_gradient_times_their_vectors(name: str) -> None:
    found = sample(name)
    source = found.source_tokens is not None
    model = translator() if source else gpt()
    text = [token.id for token in (found.source_tokens if source else found.tokens) or ()]
    target = [token.id for token in found.tokens] if source else None
    alone = input_gradients(
        model, text, found.answer.id, None if found.against is None else found.against.id, target=target,
        positions=[found.position], method="gradient_x_input",
    )  # fmt: skip
    ours = torch.tensor([*(found.inputs.source_values or ()), *found.inputs.values])
    close(ours, alone.values.values[0], tolerance=1e-4)
    assert found.inputs.target == ("logit" if found.against is None else "difference")


def test_the_lens_over_positions_agrees_with_the_lens_at_one() -> None:
    found = sample("short")
    assert found.lens_map is not None and found.lens_map.positions == tuple(range(len(found.tokens)))
    at = found.lens_map.positions.index(found.position)
    for i, row in enumerate(found.lens):
        assert [c.id for c in row.candidates[:3]] == found.lens_map.top[i, at].tolist()
        assert row.entropy_bits == pytest.approx(float(found.lens_map.entropy_bits[i, at]), rel=1e-4, abs=1e-5)
        assert row.kl_bits == pytest.approx(float(found.lens_map.kl_bits[i, at]), rel=1e-3, abs=1e-5)


def test_small_probabilities_of_the_lens_keep_their_digits_in_its_document() -> None:
    found = sample("short").lens_map
    assert found is not None
    small = dataclasses.replace(found, probability=found.probability * 1e-4)
    told = torch.tensor(small.to_dict()["probability"])
    assert float(told.max()) > 0
    close(told, small.probability, tolerance=1e-3)


def test_a_large_model_shows_the_lens_at_as_many_positions_as_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt()
    monkeypatch.setattr("glassformer.analysis.reports._explain.MAP_WORK", 3 * 5 * 300 * 64)
    found = explain(model, [1, 2, 3, 4, 5, 6], position=3)
    assert found.lens_map is not None and found.lens_map.positions == (1, 2, 3)
    assert "3 of 6" in str(found.notes[-1])


def test_a_sink_is_the_mean_weight_on_the_first_token() -> None:
    found = sample("short")
    for head, pattern in zip(found.heads, found.patterns):
        assert head.sink is not None
        assert head.sink.mass == pytest.approx(float(pattern.weights[1:, 0].mean()), rel=1e-5)
        assert 0 <= head.sink.moved <= 1
    assert all(head.sink is None for head in sample("signed").heads if head.reading != "mass")


def test_a_finished_translation_is_explained_at_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    model, target = translator(), "I ate an apple"
    assert explain(model, "我吃了", target=target).position == 4
    last = explain(model, "我吃了", target=target).answer.id
    # with the token written last as the end token, the translation is over and the word before it is of interest
    monkeypatch.setattr(model.tokenizer, "roles", model.require_tokenizer().roles.replace(stops=(last,)))
    assert explain(model, "我吃了", target=target).position == 3
    assert explain(model, "我吃了", target=target, position=-1).position == 4


def test_the_steps_of_a_translation_feed_each_other() -> None:
    steps = sample("generated").translation
    assert steps is not None and steps.generated
    assert [step.output for step in steps.steps[:-1]] == [step.input for step in steps.steps[1:]]
    given = sample("translation").translation
    assert given is not None and given.text == "I ate an apple"
    assert [step.input for step in given.steps] == ["<bos>", "I", "ate", "an", "apple"]


def test_sampling_narrows_step_by_step_and_the_draw_is_among_what_is_left() -> None:
    found = sample("short").sampling
    assert [step.name for step in found.steps][:2] == ["logits", "temperature"]
    kept = [step.kept for step in found.steps]
    assert kept == sorted(kept, reverse=True)
    assert found.draw.probability > 0
    assert found == sample.__wrapped__("short").sampling


def test_an_answer_is_one_known_token() -> None:
    with pytest.raises(
        TextError, match=r"'area\(' is \d tokens \('.*'\), and one next token is explained: give the first"
    ):
        explain(gpt(), "def", answer="area(")
    with pytest.raises(TextError, match="'zebra' is not in the vocabulary"):
        explain(translator(), "我", target="I", answer="zebra")
    assert explain(translator(), "我", target="I", answer="<eos>").answer.text == "<eos>"


def test_what_cannot_be_explained_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="position 9: the text has 2 tokens"):
        explain(gpt(), "a", position=9)
    with pytest.raises(ShapeMismatch, match="one prompt at a time"):
        explain(gpt(), [[1, 2], [3, 4]])
    with pytest.raises(AnalysisUnavailable, match="Linear is none of them"):
        explain(torch.nn.Linear(2, 2), "a")  # pyright: ignore[reportArgumentType]


def test_signed_patterns_are_named_as_such() -> None:
    found = sample("signed")
    assert {head.reading for head in found.heads} == {"signed"}
    assert any("do not sum to one" in str(note) for note in found.notes)
    assert any(role.score is not None and role.score < 0 for head in found.heads for role in head.roles)
    assert any("≈" in line for line in lines(found))


@every_sample
@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_view_fits_its_width(name: str, width: int) -> None:
    from rich.cells import cell_len

    shown = list(lines(sample(name), width))
    assert max(map(cell_len, shown)) <= width
    text = "\n".join(shown)
    of_text = ("From text to next token", "Next token", "Sampling")
    asked = ("From image to its class",) if name == "image" else of_text
    for heading in (*asked, "Logit lens", "What adds to", "Telling heads"):
        assert heading in text


@pytest.mark.parametrize(
    ("of", "asked", "title", "way", "answered"),
    [
        ("next_token", "next", "Next token (entropy", "From text to next token (norms", "after position 3"),
        ("token", "there", "The token there (entropy", "From text to the token there (norms", "at position 3"),
        ("text_class", "class", "Class of the text (entropy", "From text to its class (norms", "at position 0"),
        ("token_class", "class", "Class of this token (entropy", "From text to the class of a token", "at position 3"),
    ],
)
def test_an_answer_is_called_what_the_logits_are_of(
    of: LogitsOf, asked: str, title: str, way: str, answered: str
) -> None:
    model = predicting(of)
    found = explain(model, [70, 71, 72, 73])
    assert model.logits_of == found.model.logits_of == found.to_dict()["model"]["logits_of"] == of
    told = "\n".join(lines(found))
    assert all(words in told for words in (f"\n{asked} ", title, way)) and answered in repr(found._title())
    classes = of.endswith("_class")
    assert ("Sampling" in told, "next token" in told.lower(), found.answer.text in ("very good", "bad", "neither")) == (
        not classes, of == "next_token", classes,
    )  # fmt: skip
    with speaking("zh"):
        assert ("类别" in "\n".join(lines(found))) == classes


def test_single_results_print_as_tables() -> None:
    model = gpt()
    done = run(model, "def f", read=[explain])
    assert any("L0H1" in line for line in lines(head_roles(done)))
    assert any("block 3" in line for line in lines(logit_lens(done)))
    assert any("sum" in line for line in lines(direct_logit_attribution(done)))


@in_one_pass
@pytest.mark.parametrize(
    ("text", "shown"), [(" a\n", "·a⏎"), ("\x1b[31m", "\\u001b[31m"), ("x" * 40, "x" * 15 + "…"), ("[red]", "[red]")]
)
def test_tokens_are_shown_without_moving_the_cursor(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_the_command_prints_and_writes_what_python_gives(folder: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.json"
    arguments = ["explain", str(folder / "decoder"), "def area", "--json", str(out), "--answer", "("]
    assert main([*arguments, "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "Telling heads" in printed and str(out) in printed
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["answer"]["text"] == "("
    assert document["sampling"]["settings"]["top_k"] == 5
    model = gf.load(folder / "decoder")
    assert (
        document["attribution"]["components"]
        == explain(model, "def area", answer="(").to_dict()["attribution"]["components"]
    )


def test_the_command_prints_the_answer_its_parts_and_heads_and_the_rest_when_asked(folder: Path, capsys: Any) -> None:
    rest = ("Logit lens: what", "From text to next token", "Sampling, step by step")
    arguments = ["explain", str(folder / "decoder"), "def area"]
    assert main(arguments) == 0
    brief = capsys.readouterr().out
    assert main([*arguments, "--all"]) == 0
    whole = capsys.readouterr().out
    first, notes = brief.split("--all shows the rest")
    assert all(title in whole and title not in brief for title in rest)
    # nothing in the brief view is worded differently, and notes stay
    assert whole.startswith(first) and whole.count("Note: ") == notes.count("Note: ")


def test_the_command_gives_each_note_a_line_of_its_own(capsys: Any) -> None:
    assert main(["explain", "gpt-4l", 'print("é")']) == 0
    printed = capsys.readouterr().out
    assert printed.count("Note: ") == printed.count("\nNote: ") == 2


def test_without_a_text_the_command_explains_an_example(folder: Path, capsys: Any) -> None:
    assert main(["explain", str(folder / "decoder")]) == 0
    # every token stands behind its index
    assert "self.y·=" in re.sub(r"\d+:|\s", "", capsys.readouterr().out)


def test_a_dash_reads_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    arguments = ["explain", str(folder / "decoder"), "-"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("area é".encode())))
    assert main(arguments) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    assert main(arguments) == 2
    assert "standard input is not UTF-8 (byte 3" in capsys.readouterr().err


def test_the_command_translates(folder: Path, capsys: Any) -> None:
    arguments = ["explain", str(folder / "translator"), "我吃了一个苹果", "--target", "I ate an apple"]
    assert main(arguments) == 0
    assert "Translation (given): I ate an apple" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "the text is empty"),
        (["a" * 5000], "the context of this model is 1024"),
        (["a", "--answer", "two words"], "one next token is explained"),
        (["a", "--target", "b"], "no encoder"),
        (["a", "--position", "40"], "the text has 2 tokens"),
    ],
)
def test_bad_input_ends_with_a_message_and_code_two(
    arguments: list[str], message: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out.json"
    assert main(["explain", str(folder / "decoder"), *arguments, "--json", str(out)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not out.exists()


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(checkpoints, "load", lambda name: pytest.fail("the model was loaded"))
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file" / "out", tmp_path):
        assert main(["explain", "gpt-4l", "a", option, str(path)]) == 2
        assert "cannot write" in capsys.readouterr().err


@pytest.mark.full
def test_a_text_of_256_tokens_takes_less_than_ten_seconds() -> None:
    model = gpt()
    ids = torch.randint(1, 300, (256,), generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    found = explain(model, ids)
    found.to_json()
    assert time.perf_counter() - start < 10


def test_roles_are_in_the_order_of_the_documentation() -> None:
    for head in explain(signed(), "def").heads:
        assert tuple(role.role for role in head.roles) == ROLES
