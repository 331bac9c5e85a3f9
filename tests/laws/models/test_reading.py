"""What a model reads is one value, however it is given; and what is wrong is said in the same words, whoever reads."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import glassformer as gf
from glassformer.data import Batch, word_tokenizer
from glassformer.errors import GlassformerError, ShapeMismatch, TextError, TokenOutOfRange, WrongArgument
from glassformer.models import GREEDY, Model, Serving, beam_search, generate
from glassformer.models.decoder import DecoderConfig
from glassformer.models.reading import Inputs, read_opening
from glassformer.testing.models import ARCHITECTURES, subject

WORDS = word_tokenizer(["a b c d e f g"])
LAST = WORDS.vocab_size - 1


def reader(name: str = "llama", max_len: int = 8) -> Model:
    model = ARCHITECTURES[name].replace(vocab_size=WORDS.vocab_size, max_len=max_len).build()
    model.tokenizer = WORDS
    return model.eval()


def rows_alike(inputs: Inputs, rows: list[list[int]]) -> None:
    assert inputs.output.padding.real_rows(inputs.args[-1]) == rows
    assert inputs.output.counts == [len(row) for row in rows] == [len(row) for row in inputs.token_rows]


def test_rows_are_the_same_however_they_are_given() -> None:
    model, rows = reader(), [[4, 5, 6], [7]]
    texts = ["".join(WORDS.decode(row)) for row in rows]
    padded = torch.tensor([[4, 5, 6], [7, 0, 0]])
    given: Any
    said: dict[str, Any]
    for given, said in (
        (rows, {}),
        ([torch.tensor(row) for row in rows], {}),
        ([numpy.array(row) for row in rows], {}),
        (padded, {"lengths": [3, 1]}),
        (padded.tolist(), {"mask": [[1, 1, 1], [1, 0, 0]]}),
        (padded, {"lengths": torch.tensor([3, 1])}),
        (Batch(padded, padded, torch.ones_like(padded).bool(), lengths=torch.tensor([3, 1])), {}),
        (texts, {"specials": False}),
    ):
        rows_alike(model.read(given, **said), rows)
    one = model.read([3, 4])
    rows_alike(one, [[3, 4]])
    assert torch.equal(one.args[0], model.read(torch.tensor([3, 4])).args[0])


def test_padding_on_the_left_is_laid_out_on_the_right_and_leaves_the_tokens_alone() -> None:
    inputs = reader().read([[0, 0, 3], [4, 5, 6]], mask=[[0, 0, 1], [1, 1, 1]])
    rows_alike(inputs, [[3], [4, 5, 6]])
    assert inputs.start is not None and inputs.start.tolist() == [2, 0]
    aligned = inputs.aligned()
    assert aligned.start is None and aligned.args == inputs.args and aligned.ids is not None
    assert aligned.ids[0, 0] == 3 and aligned.lengths is not None and aligned.lengths.tolist() == [1, 3]
    alone = inputs.row(0, None)
    assert alone.ids is not None and alone.ids.tolist() == [[3]] and alone.is_whole and not inputs.is_whole


def test_pairs_are_read_side_by_side_and_begin_with_the_token_that_targets_begin_with() -> None:
    model = reader("translator_post")
    inputs = model.read("b c", source="a")
    bos = WORDS.require("bos")
    assert inputs.ids is not None and inputs.ids.tolist() == [[bos, *WORDS.encode("b c")]]
    assert inputs.source_ids is not None and inputs.source_ids.tolist() == [WORDS.encode("a")]
    assert inputs.text == "a" and not inputs.generated
    assert [model.reads_pairs, model.generates, model.start] == [True, True, (bos,)]


READERS: dict[str, Callable[[Model, Any], Any]] = {
    "read": lambda model, given: model.read(given),
    "run": gf.run,
    "generate": generate,
    "beams": lambda model, given: beam_search(model, given, n_beams=2),
    "served": lambda model, given: Serving(model).submit(given),
    "explained": lambda model, given: gf.explain(model, given),
}
WRONG: dict[str, tuple[Any, type[GlassformerError], str]] = {
    "nothing": ([], TextError, "there is no token to read: give at least one."),
    "an empty row": ([[3], []], TextError, "row 1 holds no tokens: give at least one."),
    "an unknown id": ([3, 999], TokenOutOfRange, f"token id 999 is outside the vocabulary: 0 to {LAST}."),
    "a negative id": ([-1], TokenOutOfRange, f"token id -1 is outside the vocabulary: 0 to {LAST}."),
    "fractions": (
        torch.tensor([0.5]), ShapeMismatch,
        "token ids are integers with axes `pos` or `batch pos`; found float32 with 1 axes.",
    ),
    "three axes": (
        torch.ones(1, 1, 1).long(), ShapeMismatch,
        "token ids are integers with axes `pos` or `batch pos`; found int64 with 3 axes.",
    ),
    "no ids": ([object()], ShapeMismatch, "expected a text or token ids, or a list of several of one of these; found"),
    "a text of unknown words": ("x y z", TextError, "3 of 3 tokens are unknown to this model: x [1], y [2], z [3]."),
}  # fmt: skip


# what fits the types of no argument is refused before it is read
BY_TYPE = {"an empty row": {"served"}, "no ids": {"generate", "beams", "served", "explained"}}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_in_the_same_words_whoever_reads(wrong: str) -> None:
    given, error, words = WRONG[wrong]
    model = reader()
    for name in READERS.keys() - BY_TYPE.get(wrong, set()):
        with pytest.raises(error) as told:
            READERS[name](model, given)
        assert str(told.value).startswith(words), name


def test_what_only_some_readers_may_be_given_is_refused_by_them() -> None:
    model, pair = reader(), reader("translator_post")
    batch = Batch(torch.tensor([[3, 4]]), torch.tensor([[4, 5]]), torch.ones(1, 2).bool())
    refused: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: model.read(list(range(3, 9)) * 2),
            "12 tokens, but the context of this model is 8; shorten the text to 8",
        ),
        (lambda: pair.read([3], source=[3] * 9), "a source of 9 tokens, but the context of this model is 8"),
        (lambda: model.read([3], source=[3]), "this model has no encoder, so it reads no source"),
        (lambda: pair.read([3]), "reads a source too, and there is none"),
        (lambda: pair.read(batch), "reads a source too, and there is none"),
        (lambda: generate(pair, [[3]]), "reads a source too, and there is none"),
        (lambda: generate(model, [[3]], source=[[3]]), "this model has no encoder, so it reads no source"),
        (lambda: generate(pair, [[3], [4]], source=[[3]]), "source has batch=1, target has batch=2"),
        (lambda: gf.run(model, [3], target=[3]), "this model has no encoder"),
        (lambda: model.read(None), "expected a text or token ids"),
        (lambda: gf.run(model, None), "expected a text or token ids"),
        (lambda: pair.read([[3], [4]], source=[3]), "source has batch=1, target has batch=2"),
        (lambda: pair.read(batch, source=[3]), "a Batch brings its source"),
        (lambda: generate(model, model.read(batch)), "it takes no Batch"),
        (lambda: generate(pair, pair.read([3], source=[3]), source=[[4]]), "no source beside what was read"),
        (lambda: model.read(batch, lengths=[1]), "a Batch says itself which of its tokens are real"),
        (
            lambda: model.read([[3], [4, 5]], lengths=[1, 2]),
            "rows of unequal lengths, say themselves how long they are",
        ),
        (lambda: model.read("a b", mask=[[1, 1]]), "texts, and rows of unequal lengths, say themselves"),
        (lambda: model.read([[3, 4]], lengths=[2], mask=[[1, 1]]), "lengths= and mask= say the same"),
        (lambda: model.read([[3, 4]], mask=[[0, 0]]), "stand together, and there is one at least"),
        (lambda: model.read(""), "the text is empty: give at least one token"),
    ]
    for read, words in refused:
        with pytest.raises(GlassformerError) as told:
            read()
        assert words in str(told.value)
    model.tokenizer, model.no_tokenizer = None, "It was saved without one."
    with pytest.raises(TextError, match=r"set model\.tokenizer first\.\n    It was saved without one"):
        model.read("a")


def test_a_prompt_that_was_read_is_generated_from_as_it_is() -> None:
    model = reader(max_len=16)
    assert isinstance(model.config, DecoderConfig)
    inputs = read_opening(model, ["a b", "c"])
    assert generate(model, inputs, max_new_tokens=3) == generate(model, ["a b", "c"], max_new_tokens=3)
    # what a run would read is padded on the right
    run_of = model.read(["a b", "c"])
    assert run_of.start is None and run_of.lengths is not None
    assert generate(model, run_of, max_new_tokens=3) == generate(model, inputs, max_new_tokens=3)
    assert inputs.start is not None and inputs.output.counts == [3, 2]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ids_that_are_no_dense_integers_are_refused_by_what_they_are() -> None:
    model, ids = subject("gpt2").model, torch.tensor([[1, 2, 3]])
    kinds = {
        "sparse": ids.to_sparse(),
        "without numbers": ids.to("meta"),
        "quantised": torch.quantize_per_tensor(ids.float(), 1.0, 0, torch.qint8),
    }
    for said, given in kinds.items():
        for read in (lambda x: generate(model, x, GREEDY, max_new_tokens=1), lambda x: gf.run(model, x)):
            with pytest.raises((ShapeMismatch, WrongArgument), match=f"tensor .*that is {said}"):
                read(given)
