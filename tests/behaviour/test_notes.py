"""What a reader is warned of: lengths that training never saw, unknown words, characters spelled byte by byte."""

import copy
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

import glassformer as gf
from glassformer.analysis.heads import evaluate_heads
from glassformer.analysis.heads.roles import repeated_tokens
from glassformer.analysis.lens import logit_lens
from glassformer.checkpoints import LAYOUTS, convert
from glassformer.cli import arguments, main
from glassformer.cli.options import Opening
from glassformer.data import Tokenizer, bytes_tokenizer, marks, train_bpe, word_tokenizer
from glassformer.data.pairs import Pair, Pairs
from glassformer.data.tokenizer import symbol_tokenizer
from glassformer.errors import CheckpointError, DataError, TextError, WrongArgument
from glassformer.labelled import Labelled, Result
from glassformer.models import GREEDY, DecoderConfig, beam_search, block, generate, repeat, stream
from glassformer.provenance import Note, distinct, gathered, length_note, outgrown_note, tell
from glassformer.render.terminal import lines
from glassformer.render.terminal.tables import numbered
from glassformer.testing.models import subject
from glassformer.trace import Foreign
from pages import Opener
from results import HEAD, sample

browser_test = pytest.mark.browser
UNKNOWN = "我爱量子力学和哲学"
CHINESE = "我吃了一个苹果"


def said(found: Any) -> str:
    return "\n".join(str(note) for note in found.notes)


@pytest.fixture(scope="module")
def small() -> Any:
    model = DecoderConfig(257, 16, repeat(block(n_heads=2), 1), max_len=32).build()
    model.tokenizer, model.trained_length = bytes_tokenizer(), 8
    return model.eval()


def test_a_text_beyond_the_trained_length_is_noted_wherever_it_is_read(small: Any) -> None:
    note = str(length_note(9, 8)[0])
    assert "9 tokens, trained on 8." in note and "From position 8 on" in note
    for found in (gf.run(small, "abcdefgh"), logit_lens(small, "abcdefgh"), gf.explain(small, "abcdefgh")):
        assert note in said(found)
    found = gf.explain(small, "abcdefgh")
    assert note in " ".join(" ".join(n.values()) for n in found.to_dict()["notes"])
    assert f"Note: {note}" in "\n".join(lines(found, width=400))
    assert "trained" not in said(gf.run(small, "abcdefg"))


def test_random_tokens_that_heads_are_scored_on_fit_the_trained_length_or_say_that_it_is_theirs(small: Any) -> None:
    assert repeated_tokens(small, repeats=2).shape[1] == 7 and small.familiar_length == 8
    assert said(gf.explain(small, "abc")) == said(gf.run(small, "abc"))
    # no unit of two tokens fits
    short = copy.copy(small)
    short.trained_length = 3
    (note,) = evaluate_heads(short).notes
    assert note.seen.startswith("Repeated random tokens, on which heads are scored: ")
    assert note.seen.endswith("9 tokens, trained on 3.")


def test_generation_notes_the_trained_length_at_the_step_that_passes_it(small: Any) -> None:
    steps = list(stream(small, [[1, 2, 3]], GREEDY, max_new_tokens=9))
    # the sixth token is the first that is drawn from more than 8
    assert [len(step.notes) for step in steps] == [0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert str(steps[6].notes[0]) == str(outgrown_note(8))
    assert generate(small, [[1, 2, 3]], GREEDY, max_new_tokens=9).notes == (outgrown_note(8),)
    assert generate(small, [[1, 2, 3]], GREEDY, max_new_tokens=6).notes == ()
    assert generate(small, [list(range(9))], GREEDY, max_new_tokens=3).notes == length_note(9, 8)


def test_rows_that_stop_before_the_trained_length_are_not_noted(small: Any) -> None:
    first = generate(small, [[1, 2, 3]], GREEDY, max_new_tokens=1).tokens[0][0]
    assert generate(small, [[1, 2, 3]], GREEDY, max_new_tokens=20, stop_ids=[first]).notes == ()
    # of rows of unequal length, each counts its own tokens
    rows = [[1, 2, 3], [4, 5, 6, 7, 8]]
    assert generate(small, rows, GREEDY, max_new_tokens=4).notes == ()
    assert generate(small, rows, GREEDY, max_new_tokens=5).notes == (outgrown_note(8),)
    assert beam_search(small, rows, max_new_tokens=4).notes == ()
    assert beam_search(small, rows, max_new_tokens=5).notes == (outgrown_note(8),)
    assert beam_search(small, [list(range(9))], max_new_tokens=1).notes == length_note(9, 8)


def test_sources_beyond_the_trained_length_are_noted_with_what_is_generated() -> None:
    model = gf.load("zh-en")
    long = [[5] * 27]
    for found in (generate, beam_search):
        assert found(model, [[1]], max_new_tokens=1, source=long).notes == length_note(27, 26)
        assert found(model, [[1]], max_new_tokens=1, source=[[5] * 26]).notes == ()


@pytest.mark.full
def test_the_command_prints_a_text_once_and_notes_it_when_it_outgrows(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> tuple[str, str]:
        assert main(["generate", *arguments, "--temperature", "0"]) == 0
        told = capsys.readouterr()
        return told.out, " ".join(told.err.split())

    out, err = printed("zh-en", CHINESE)
    assert out == "I ate an apple\n" and "trained" not in err and err.count("reads") == 1
    out, err = printed("gpt-4l", "def f(", "--max-new-tokens", "3")
    assert out.count("def f(") == 1 and "trained" not in err and err.count("Note:") == 1
    out, err = printed("gpt-4l", "x" + " y" * 254, "--max-new-tokens", "3")
    assert err.count(str(outgrown_note(256))) == 1
    out, err = printed("gpt-4l", "x" + " y" * 260, "--max-new-tokens", "3")
    assert err.count("trained on") == 1 and "262 tokens, trained on 256" in err


def test_a_result_of_a_run_has_the_notes_of_the_run(small: Any) -> None:
    found = logit_lens(gf.run(small, "abcdefgh", read=[logit_lens]))
    assert found.notes == gf.run(small, "abcdefgh").notes != ()
    assert found.replace(answer=1).notes == found.notes


def test_the_trained_length_is_saved_and_converted_with_the_model(small: Any, tmp_path: Path) -> None:
    gf.save(small, tmp_path / "ours")
    assert gf.load(tmp_path / "ours").trained_length == 8
    for to in LAYOUTS:
        try:
            there = convert(tmp_path / "ours", tmp_path / to, to)
        except CheckpointError:  # no layout has a place for everything
            continue
        assert gf.load(there).trained_length == 8, to
        assert gf.load(convert(there, tmp_path / f"{to}-back", "glassformer")).trained_length == 8, to


def test_folders_without_a_trained_length_load_and_damaged_ones_are_refused(small: Any, tmp_path: Path) -> None:
    path = gf.save(small, tmp_path) / "config.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in whole.items() if name != "trained_length"}))
    assert gf.load(tmp_path).trained_length is None
    for wrong in (0, -3, "8", True, None, 1.5):
        path.write_text(json.dumps(whole | {"trained_length": wrong}))
        with pytest.raises(CheckpointError, match="trained_length"):
            gf.load(tmp_path)


def test_shipped_models_know_the_rows_of_their_recipes() -> None:
    from glassformer.training.recipes import recipe

    for name in gf.checkpoints.shipped():
        assert gf.load(name).trained_length == recipe(name).data.length


def test_a_mostly_unknown_text_is_refused_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = gf.load("zh-en")
    with pytest.raises(
        TextError, match=r"5 of 9 tokens are unknown.*: 爱 \[1\], 量 \[2\], 力 \[4\], 和 \[6\], 哲 \[7\]\."
    ):
        gf.run(model, UNKNOWN)
    assert "5 of 9 tokens of the source are unknown" in said(gf.run(model, UNKNOWN, allow_unknown=True))
    assert main(["generate", "zh-en", UNKNOWN]) == 2
    assert "--allow-unknown" in capsys.readouterr().err
    assert main(["generate", "zh-en", UNKNOWN, "--allow-unknown"]) == 0
    assert "5 of 9 tokens of the source are unknown" in " ".join(capsys.readouterr().err.split())


def test_a_text_of_which_one_half_is_unknown_is_read_with_the_unknown_words_marked() -> None:
    model = gf.load("zh-en")
    half = gf.run(model, "我吃爱量")
    assert half.source_marks.to_list() == [{"index": i, "unknown": True} for i in half.source_marks.unknown]
    assert (len(half.source_marks.unknown), half.source_marks.words) == (2, 4)
    with pytest.raises(TextError, match="3 of 5 tokens are unknown"):
        gf.run(model, "我吃爱量力")


def test_the_shipped_model_that_knows_a_text_is_named() -> None:
    with pytest.raises(TextError, match="fits: gpt-4l"):
        gf.run(gf.load("zh-en"), "for x in range ( 3 )")
    python = gf.load("gpt-4l")
    assert "fits: zh-en" in said(gf.run(python, "我吃了一个苹果", allow_unknown=True))
    # the one that knows the character, and nothing else of the text, does not fit
    mixed = said(gf.run(python, "for x in range ( 3 ) : print ( x ) # 我"))
    assert "fits" not in mixed and "Use characters that it has tokens for." in mixed


def test_bytes_are_shown_as_the_character_they_make() -> None:
    found = gf.explain(gf.load("gpt-4l"), "x = é我", allow_unknown=True)
    assert [(t.character, t.part) for t in found.tokens][-5:] == [("é", 0), ("é", 1), ("我", 0), ("我", 1), ("我", 2)]
    assert "5 of 8 tokens of the text are single bytes of characters: é 我." in said(found)
    assert "4-5:é 6-8:我" in "\n".join(lines(found))


def test_a_tokenizer_of_bytes_alone_is_not_warned_of_bytes() -> None:
    tokenizer = bytes_tokenizer()
    ids = tokenizer.encode("我é")
    odd = marks(tokenizer, ids, tokenizer.tokens(ids))
    assert [(one.first, one.end, one.character) for one in odd.spelled] == [(0, 3, "我"), (3, 5, "é")]
    assert odd.by_bytes == ()


@pytest.mark.full
def test_a_text_of_mostly_unlearnt_bytes_is_refused_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = gf.load("gpt-4l")
    with pytest.raises(TextError, match=r"21 of 21 tokens of the text are single bytes[^:]*: 我 吃(.|\n)*fits: zh-en"):
        gf.run(model, CHINESE)
    for reads in (gf.explain, logit_lens):
        with pytest.raises(TextError, match="single bytes"):
            reads(model, CHINESE)
    assert "21 of 21 tokens" in said(gf.run(model, CHINESE, allow_unknown=True))
    for words in (["generate", "gpt-4l", CHINESE], ["explain", "gpt-4l", CHINESE], ["lens", "gpt-4l", CHINESE]):
        assert main(words) == 2
        told = capsys.readouterr()
        assert "single bytes" in told.err and "--allow-unknown" in told.err and told.out == ""
        more = ["--max-new-tokens", "1"] if words[0] == "generate" else []
        assert main([*words, *more, "--allow-unknown"]) == 0
        assert "21 of 21 tokens" in " ".join("".join(capsys.readouterr()).split())


def test_half_of_a_text_may_be_unlearnt_bytes() -> None:
    model = gf.load("gpt-4l")
    tokenizer = model.require_tokenizer()
    half = "x = é"
    found = marks(tokenizer, tokenizer.encode(half), tokenizer.tokens(tokenizer.encode(half)))
    assert (found.byte_tokens, found.words) == (2, 5)
    gf.run(model, half)
    with pytest.raises(TextError, match="2 of 3 tokens of the text are single bytes"):
        gf.run(model, "xé")


def test_pairs_of_mostly_unlearnt_bytes_are_refused_unless_the_tokenizer_allows_it() -> None:
    model = gf.load("gpt-4l")
    pairs = Pairs((Pair("我吃", "你吃", " x", " y"),))
    with pytest.raises(DataError, match="6 of 6 tokens of '我吃' are single bytes of characters"):
        pairs.encode(model)
    model.tokenizer = model.require_tokenizer().allowing_unknown()
    assert pairs.encode(model).clean.shape == (1, 7)


def test_a_tokenizer_of_bytes_is_one_whatever_tokens_were_added_by_hand(small: Any) -> None:
    inner = tokenizers.Tokenizer.from_str(bytes_tokenizer().to_json())
    inner.add_tokens(["<extra_id_0>", "<extra_id_1>"])
    assert Tokenizer(inner).is_bytes and not gf.load("gpt-4l").require_tokenizer().is_bytes
    assert not train_bpe(["ab ab ab ab"], 258).is_bytes
    ids = Tokenizer(inner).encode("我")
    assert marks(Tokenizer(inner), ids, Tokenizer(inner).tokens(ids)).by_bytes == ()
    assert not gf.run(small, "我").notes[1:]


def test_sources_with_a_vocabulary_of_their_own_are_marked_by_its_tokenizer() -> None:
    model = subject("translator_apart").model
    model.tokenizer = symbol_tokenizer([f"to{i}" for i in range(11)])
    model.source_tokenizer = word_tokenizer(["the cat sat on"])
    assert "1 of 3 tokens of the source is unknown" in said(gf.run(model, "the cat ran", [[1, 2]]))


def test_targets_and_several_texts_are_refused_and_allowed_alike() -> None:
    words = DecoderConfig(257, 16, repeat(block(n_heads=2), 1), max_len=32).build().eval()
    words.tokenizer = word_tokenizer(["the cat sat on"])
    asked: list[tuple[Any, ...]] = [(gf.load("zh-en"), CHINESE, UNKNOWN), (words, ["dogs ran far", "the cat"])]
    for given in asked:
        with pytest.raises(TextError, match="are unknown"):
            gf.run(*given)
        assert gf.run(*given, allow_unknown=True).logits is not None


def test_ids_beyond_the_tokenizer_stand_beside_unknown_words() -> None:
    tokenizer = word_tokenizer(["the cat sat on"])
    ids = [*tokenizer.encode("the dogs"), tokenizer.vocab_size + 3]
    found = marks(tokenizer, ids, ["the", "<unk>", "<12>"])
    assert found.unknown == (1,) and found.text.startswith("the")


def test_a_foreign_module_reads_a_mostly_unknown_text_only_where_that_is_asked_for() -> None:
    model = Foreign(torch.nn.Embedding(16, 4), tokenizer=word_tokenizer(["the cat sat on"]))
    with pytest.raises(TextError, match=r"2 of 3 tokens are unknown to this model: dogs \[2\], ran \[3\]\."):
        gf.run(model, "the dogs ran")
    found = gf.run(model, "the dogs ran", allow_unknown=True)
    assert found.ids is not None and found.ids.shape == (1, len(found.tokens))
    assert "2 of 3 tokens of the text are unknown" in said(found)


def continuations(*given: Any, **options: Any) -> list[Any]:
    return [make(*given, **options, max_new_tokens=2) for make in (generate, beam_search)]


def test_generation_refuses_mostly_unknown_texts_as_a_run_does_and_notes_those_that_are_less() -> None:
    model = DecoderConfig(257, 16, repeat(block(n_heads=2), 1), max_len=32).build().eval()
    model.tokenizer = word_tokenizer(["the cat sat on"])
    texts = ["the cat sat", "the dogs ran"]
    with pytest.raises(TextError) as of_run:
        gf.run(model, texts)
    for make in (generate, stream, beam_search):
        with pytest.raises(TextError) as refusal:
            make(model, texts)
        assert str(refusal.value) == str(of_run.value)
    allowed = continuations(model, texts, allow_unknown=True)
    model.tokenizer = model.tokenizer.allowing_unknown()
    for found in [*allowed, *continuations(model, texts)]:
        assert "2 of 6 tokens of the texts are unknown to this model: dogs [1, 2], ran [1, 3]." in said(found)
    for found in continuations(model, "the cat ran"):
        assert said(found) == said(gf.run(model, "the cat ran")).split("\n")[-1]
        assert "1 of 3 tokens of the text is unknown" in said(found)
    for found in continuations(model, ["the cat", "sat on the cat"]):
        assert found.notes == ()


def test_generation_reads_sources_by_their_own_tokenizer_and_names_a_model_that_fits() -> None:
    model = gf.load("zh-en")
    start = [[model.require_tokenizer().require("bos")]]
    for make in (generate, beam_search):
        with pytest.raises(TextError, match=r"5 of 9 tokens are unknown"):
            make(model, start, source=UNKNOWN)
        with pytest.raises(TextError, match="fits: gpt-4l"):
            make(model, start, source="for x in range ( 3 )")
    for found in continuations(model, start, source=["我吃爱量"]):
        assert "2 of 4 tokens of the source are unknown to this model: 爱 [2], 量 [3]." in said(found)


def test_each_unknown_character_is_named_with_its_places(capsys: pytest.CaptureFixture[str]) -> None:
    model = gf.load("zh-en")
    one = "3 of 8 tokens of the source are unknown to this model: 鲸 [0] [5], 鲨 [7]."
    assert one in said(gf.run(model, "鲸吃了一头鲸鱼鲨"))
    # where only ids are known, what stands for the words is
    ids = model.require_tokenizer().encode("鲸吃鱼")
    assert "1 of 3 tokens of the source is unknown to this model: <unk> [0]." in said(gf.run(model, ids))
    (several,) = (note for note in generate(model, source=["鲸吃鱼", "我吃鲸鱼"]).notes if "unknown" in str(note))
    assert "2 of 7 tokens of the sources are unknown to this model: 鲸 [0, 0] [1, 2]." in str(several)
    for verb in ("generate", "explain"):
        assert main([verb, "zh-en", "鲸吃了一头鲸鱼鲨"]) == 0
        assert one in " ".join("".join(capsys.readouterr()).split())


def test_a_source_with_a_vocabulary_of_its_own_may_be_unknown_too(tmp_path: Path) -> None:
    model = subject("translator_apart").model
    model.tokenizer = symbol_tokenizer([f"to{i}" for i in range(11)])
    model.source_tokenizer = word_tokenizer(["the cat sat on"])
    folder = str(gf.save(model, tmp_path))
    with pytest.raises(TextError, match="3 of 3 tokens are unknown"):
        gf.run(arguments.model_of(folder, Opening()), "dogs ran far", [[1, 2]])
    allowed = arguments.model_of(folder, Opening(allow_unknown=True))
    assert "3 of 3 tokens" in said(gf.run(allowed, "dogs ran far", [[1, 2]]))


def test_a_character_of_which_a_merge_holds_a_part_is_joined_and_not_said_to_be_bytes() -> None:
    # pieces of bytes: 0 to 255 by themselves, 256 the first two of 我
    tokenizer: Any = bytes_tokenizer()
    tokenizer.__dict__ |= {"specials": {}, "is_bytes": False}
    tokenizer.bytes_of = lambda id: "我".encode()[:2] if id == 256 else bytes([id])
    merged = marks(tokenizer, [256, 0x91], ["<0xE6><0x88>", "<0x91>"])
    assert [(one.first, one.end, one.character) for one in merged.spelled] == [(0, 2, "我")]
    assert merged.by_bytes == ()
    single = marks(tokenizer, [0xE6, 0x88, 0x91], ["<0xE6>", "<0x88>", "<0x91>"])
    assert [one.character for one in single.by_bytes] == ["我"]


def test_what_analyses_within_an_analysis_are_told_is_told_once_and_not_more_than_a_few() -> None:
    with gathered() as outer:
        tell([Note("a."), Note("b.")])
        with gathered() as inner:
            tell([Note("b."), Note("c.")])
    assert list(outer) == list(inner) == [Note("a."), Note("b."), Note("c.")]
    with gathered() as many:
        tell([Note(f"{i}.") for i in range(20)])
    assert list(many) == [Note(f"{i}.") for i in range(6)]


def test_notes_of_several_groups_are_said_once_and_in_their_order() -> None:
    first, second = Note("a."), Note("b.")
    assert distinct([first], [second, first], [second]) == (first, second)


def test_bytes_that_make_no_character_stand_alone() -> None:
    tokenizer = bytes_tokenizer()
    for ids in ([0xE6], [0xE6, 0x88, 256], [0x88, 0xE6, 65], [0xFF, 0xFE]):
        assert marks(tokenizer, ids, tokenizer.tokens(ids)).spelled == ()


def test_a_note_comes_back_from_json() -> None:
    note = Note("a.", "b.", "c.")
    assert Note.from_dict(json.loads(json.dumps(note.to_dict()))) == note
    assert str(note) == "a. b. c." and str(Note("a.")) == "a."


@pytest.mark.parametrize(
    ("trained", "words"), [(8, "context of 32 tokens, trained on 8"), (None, "context of 32 tokens")]
)
def test_the_head_of_a_report_says_the_context_and_what_was_trained_on(trained: int | None, words: str) -> None:
    model = DecoderConfig(257, 16, repeat(block(n_heads=2), 1), max_len=32).build().eval()
    model.tokenizer, model.trained_length = bytes_tokenizer(), trained
    assert lines_of(model)[0].endswith(words)


def lines_of(model: Any) -> list[str]:
    return list(lines(gf.explain(model, "abc"), width=400))


def test_each_note_stands_on_a_line_of_its_own_below_a_result(small: Any) -> None:
    found = logit_lens(small, "abc")
    told = list(lines(found.noted(Note("One thing."), Note("Another thing."))))
    assert told[-2:] == ["Note: One thing.", "Note: Another thing."]


def test_a_long_text_is_printed_from_both_ends() -> None:
    shown = numbered("reads", [f"w{i}" for i in range(448)]).plain
    assert "59:w59 … 328 more … 388:w388" in shown and shown.endswith("447:w447")
    assert "more" not in numbered("reads", ["w"] * 120).plain


# ---- on pages


def read_by(head: dict[str, Any], opened: Opener) -> Any:
    return opened(sample("flow"), HEAD | head).locator("header .strip")


def explained_by(head: dict[str, Any], opened: Opener) -> Any:
    document = explained().to_dict()
    for mark in head["reading"]["marks"]["reads"]:
        document["tokens"][mark["index"]] |= mark
    return opened(document).locator("header .strip")


@functools.cache
def explained() -> Any:
    model = DecoderConfig(257, 16, (block(n_heads=2),), max_len=32).build().eval()
    model.tokenizer = bytes_tokenizer()
    return gf.explain(model, "a我b")


@pytest.mark.full
@browser_test
@pytest.mark.parametrize("page", [read_by, explained_by])
def test_a_page_marks_unknown_words_and_puts_the_bytes_of_a_character_under_it(page: Any, opened: Opener) -> None:
    odd = [{"index": 1, "unknown": True}, *({"index": 2 + i, "character": "我", "part": i} for i in range(3))]
    tokens = ["<bos>", "a", "<0xE6>", "<0x88>", "<0x91>", "b"]
    strip = page({"reading": {"tokens": {"reads": [tokens]}, "marks": {"reads": odd}}}, opened)
    assert strip.locator(".token").count() == 6
    assert strip.locator(".unknown").all_inner_texts() == ["a"]
    assert str(strip.locator(".unknown").get_attribute("title")).endswith(", unknown to the model")
    assert strip.locator(".spelled .character").all_inner_texts() == ["我"]
    assert strip.locator(".spelled .bytes > .token").count() == 3


@dataclasses.dataclass(frozen=True, eq=False)
class Reading(Result):
    """A result over two axes of tokens."""

    weights: Labelled


def model_of(trained: int | None) -> dict[str, Any]:
    return {**HEAD, "model": {**HEAD["model"], "trained_length": trained}}


@browser_test
def test_a_map_over_tokens_has_lines_where_training_ended(opened: Opener) -> None:
    labels = [f"{i}:a" for i in range(6)]
    found = [Reading(Labelled(torch.eye(6), ("query", "key"), {"query": labels, "key": labels}))]

    def last(trained: int | None) -> list[torch.Tensor]:
        """Return the colours down the last column of cells, and along the last row."""
        canvas = opened(found, model_of(trained)).locator("canvas.map")
        # the copy keeps the picture itself on its fast path
        data = """c => {
            const copy = new OffscreenCanvas(c.width, c.height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(c, 0, 0);
            return [[c.width - 8, 0, 1, c.height], [0, c.height - 8, c.width, 1]].map(
                place => [...copy.getImageData(...place).data]);
        }"""
        return [torch.tensor(line).view(-1, 4) for line in canvas.evaluate(data)]

    without = last(None)
    differs = [[(now != line).any(-1).nonzero() for now, line in zip(last(n), without)] for n in (2, 3, 4)]
    for places in zip(*differs):
        second, third, fourth = (int(place[0]) for place in places)
        assert third - second == fourth - third > 3, "a cell further for each token"


@browser_test
@pytest.mark.parametrize(("trained", "said"), [(None, 0), (2, 1), (4, 0)])
def test_a_page_says_what_the_line_is_where_there_is_one(trained: int | None, said: int, opened: Opener) -> None:
    head = {**model_of(trained), "reading": {"tokens": {"reads": [["a", "b", "c", "d"]]}}}
    assert opened(sample("lens"), head).get_by_text("longer than any in training").count() == said


@browser_test
@pytest.mark.parametrize("trained", [None, 5])
def test_a_lens_has_a_line_where_training_ended(trained: int | None, opened: Opener) -> None:
    table = opened(sample("lens"), model_of(trained)).locator("table.lenses")
    columns = table.locator(".beyond").evaluate_all("all => all.map(cell => cell.cellIndex - 1)")
    assert columns == ([] if trained is None else [trained] * table.locator("tr").count())


def test_a_name_of_a_special_token_that_is_read_as_letters_is_told_with_the_way_to_mean_it() -> None:
    model = DecoderConfig(vocab_size=259, d_model=8, layers=(), max_len=64).build()
    model.tokenizer = bytes_tokenizer(["<bos>", "<|user|>"])
    told = [str(note) for note in gf.run(model, "<|user|>hi").notes if "as letters" in str(note)]
    assert told == [
        "The text holds the name of a special token, <|user|>, which was read as letters. "
        'To mean the tokens: specials="in-text"; --specials in-text.'
    ]
    several = said(gf.run(model, ["a <bos>", "<|user|>", "b"]))
    assert "The text holds names of special tokens, <bos> <|user|>, which were read as letters." in several
    meant = gf.run(model, "<bos><|user|>hi", specials="in-text")
    assert meant.ids is not None and meant.ids.tolist() == [[256, 257, *b"hi"]] and not meant.notes
    assert not [note for note in gf.run(model, "hi < |user|>").notes if "as letters" in note.seen]
    with pytest.raises(WrongArgument, match="specials"):
        gf.run(model, "hi", specials="in text")  # type: ignore[arg-type]
