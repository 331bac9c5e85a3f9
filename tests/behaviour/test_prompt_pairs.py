"""Prompt pairs from files and against tokenizers: what is wrong is named, with the line and with what would work."""

import json
from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer.analysis.causal import answered
from glassformer.data import Pair, Pairs, induction, read_pairs, repeated_arguments, word_tokenizer, write_pairs
from glassformer.errors import AnalysisUnavailable, DataError, TextError
from glassformer.testing.models import subject
from one_pass import in_one_pass

HEADER = "clean,corrupt,answer,wrong\n"


def written(tmp_path: Path, content: str | bytes, name: str = "pairs.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_table_from_a_spreadsheet_is_read_with_its_extra_columns_and_blank_lines(tmp_path: Path) -> None:
    content = '\ufeffid,prompt,corrupt,answer,wrong\r\n1,"a, ""b""","c\nd", x, y\r\n\r\n2,e,f,g,h\r\n'
    found = read_pairs(written(tmp_path, content), columns={"clean": "prompt"})
    assert found == Pairs((Pair('a, "b"', "c\nd", " x", " y"), Pair("e", "f", "g", "h")), "pairs")


def test_roles_are_no_matter_of_tables(tmp_path: Path) -> None:
    assert read_pairs(written(tmp_path, "roles,clean,corrupt,answer,wrong\nx,a,b,c,d\n"))[0].roles == {}


BAD_TABLES = {
    "a missing column": (
        "clean,corupt,answer,wrong\n",
        r'has no column "corrupt". Nearest: "corupt". Columns: clean, co',
    ),
    "too few fields": (HEADER + 'a,b,c,d\n"x\ny",b\n', r"line 3 has 2 fields and the header 4 \(clean, corrupt"),
    "a bare comma": (HEADER + "Hello, you,b,c,d\n", r"line 2 has 5 fields .*\n?.*double quotes"),
    "an open quote": (HEADER + 'a,"b,c,d\n', "line 2 is broken"),
    "text behind a quote": (HEADER + '"a"b,b,c,d\n', "line 2 is broken"),
    "an empty answer": (HEADER + "a,b,c,d\na,b,,d\n", 'line 3: a pair needs "answer", which is empty'),
    "equal answers": (HEADER + "a,b,c,c\n", "line 2: answer and wrong answer are both 'c'"),
    "equal prompts": (HEADER + "a,a,c,d\n", "line 2: clean and corrupt prompt are the same: 'a'"),
    "nothing": ("", "holds no pairs"),
    "a header alone": (HEADER, "holds no pairs"),
}


@pytest.mark.parametrize("content, message", BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_bad_table_is_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_pairs(written(tmp_path, content))


GOOD = {"clean": "a", "corrupt": "b", "answer": "c", "wrong": "d"}
BAD_LINES = {
    "no JSON": ("{", "line 2 is not JSON"),
    "no object": ([1, 2], "line 2 is no object"),
    "a missing field": ({"clean": "a", "corrupt": "b", "answer": "c", "worng": "d"}, 'lacks "wrong". Nearest: "worng"'),
    "a number": (GOOD | {"clean": 5}, '"clean" is 5; expected text or a list of'),
    "a truth": (GOOD | {"answer": True}, '"answer" is true; expected text or a tok'),
    "a list of texts": (GOOD | {"clean": ["a"]}, r'"clean" is \["a"\]; expected'),
    "text and ids": (GOOD | {"clean": [1]}, "one prompt is text and the other"),
    "roles of words": (GOOD | {"roles": ["x"]}, '"roles" is'),
    "a role outside": (GOOD | {"roles": {"x": [0, 2]}}, 'role "x" is at 0 to 2, but'),
}


@pytest.mark.parametrize("line, message", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_of_json_is_refused_by_number(tmp_path: Path, line: object, message: str) -> None:
    lines = [json.dumps(GOOD), line if isinstance(line, str) else json.dumps(line)]
    with pytest.raises(DataError, match=message):
        read_pairs(written(tmp_path, "\n".join(lines), "pairs.jsonl"))


def test_files_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"read from .csv, .tsv or .jsonl, and .*pairs.txt"):
        read_pairs(written(tmp_path, HEADER, "pairs.txt"))
    with pytest.raises(DataError, match=r"cannot read .*nothing.csv"):
        read_pairs(tmp_path / "nothing.csv")
    with pytest.raises(TextError, match="byte 0xE9 at offset 27"):
        read_pairs(written(tmp_path, HEADER.encode() + b"\xe9,b,c,d"))
    with pytest.raises(DataError, match=r'no field "anser" of a pair. Nearest: "answer"'):
        read_pairs(written(tmp_path, HEADER), columns={"anser": "a"})
    with pytest.raises(DataError, match=r"has token ids: write a .jsonl instead"):
        write_pairs(tmp_path / "ids.csv", [Pair((1, 2), (1, 3), 4, 5)])
    with pytest.raises(DataError, match=r"written to .csv, .tsv or .jsonl"):
        write_pairs(tmp_path / "ids.json", [Pair("a", "b", "c", "d")])
    assert not (tmp_path / "ids.csv").exists()


def test_prompts_of_unequal_length_are_explained_with_how_each_was_split() -> None:
    model = gf.load("attn-only-2l")
    pairs = Pairs((Pair("def get(name):", "def get(zebra):", " name", " value"),))
    (misfit,) = pairs.misfits(model)
    assert misfit.pair == 0
    first, clean, corrupt = misfit.why.split("\n")
    assert first == (
        "clean has 6 tokens and corrupt 8; position by position they do not align. They part at position 4:"
    )
    assert (clean, corrupt) == ("    clean:   (|name", "    corrupt: (|ze|b|ra")
    with pytest.raises(DataError, match=r"pair 0: clean has 6 tokens(.|\n)*\.fitting\(model\) keeps the pairs"):
        pairs.encode(model)


MISFITS = {
    "an answer of several tokens": (("a b", "a c", " xylophone", " a"), r"the answer ' xylophone' is \d tokens \( x\|"),
    "a space at the end of the prompt": (
        ("def ", "class ", "self", "value"),
        "A space belongs to the answer, not to the",
    ),
    "one token twice": (((1, 2), (1, 3), 333, " self"), "are one token"),
    "an id outside": (((1, 2), (1, 5000), 3, 4), "token id 5000 is outside the vocabulary of 1024"),
    "an answer outside": (((1, 2), (1, 3), 3, -1), "the answer's id -1 is outside"),
    "a prompt too long": ((tuple(range(300)), (1,) * 300, 3, 4), "300 tokens, and the context of the model is 256"),
}


@in_one_pass
@pytest.mark.parametrize("fields, message", MISFITS.values(), ids=MISFITS)
def test_a_pair_that_does_not_fit_says_why(fields: tuple, message: str) -> None:
    model = gf.load("attn-only-2l")
    clean, corrupt, answer, wrong = fields
    if answer == 333:
        answer = model.require_tokenizer().encode(" self")[0]
    pairs = Pairs((Pair((1, 2), (1, 3), 4, 5), Pair(clean, corrupt, answer, wrong)))
    with pytest.raises(DataError, match=message):
        pairs.encode(model, pad="right")
    assert len(pairs.fitting(model)) == 1


def test_words_outside_the_vocabulary_do_not_pass_for_words() -> None:
    tokenizer = word_tokenizer(["the cat sat dog mat"])
    pairs = Pairs((Pair("the cat", "the cow", "sat", "mat"), Pair("the cat", "the dog", "sat", "lay")))
    assert [m.why for m in pairs.misfits(tokenizer)] == [
        "'the cow' holds what is not in the vocabulary: cow [2].",
        "the answer 'lay' is not in the vocabulary.",
    ]


def test_pairs_of_several_lengths_are_grouped_or_padded_never_mixed() -> None:
    model = gf.load("attn-only-2l")
    pairs = repeated_arguments(40, tokenizer=model.tokenizer)
    with pytest.raises(DataError, match=r'have different lengths: \d+ of \d+ tokens.*encode\(model, pad="right"\)'):
        pairs.encode(model)
    groups = pairs.groups(model)
    widths = [group.encode(model).clean.shape[1] for group in groups]
    assert widths == sorted(set(widths)) and sum(map(len, groups)) == 40
    for group in pairs.groups(model, by_role=True):
        encoded = group.encode(model)
        assert all(len(set(where)) == 1 for where in encoded.roles.values())
        assert encoded.labels is not None
        assert {"first", "second", "again"} == {label.split(":")[-1] for label in encoded.labels} & set(encoded.roles)
    padded = pairs.encode(model, pad="right")
    assert padded.padding == "right" and padded.lengths is not None
    assert torch.equal(padded.last, padded.lengths - 1) and set(padded.lengths.tolist()) == set(widths)
    left = pairs.encode(model, pad="left")
    assert (left.last == left.clean.shape[1] - 1).all()
    assert groups[0].encode(model, pad="right").padding == "none"


def test_positions_are_labelled_by_role_by_shared_token_or_by_number() -> None:
    model = gf.load("attn-only-2l")
    pairs = Pairs((Pair("self.name = name", "self.name = path", ",", ")", {"attribute": (5, 9)}),))
    assert pairs.encode(model).labels == ("0:<bos>", "1:self", "2:.", "3:attribute", "4: =", "5:last")
    many = induction(model.require_tokenizer(), 8, unit=4, again=2).encode(model)
    assert many.labels == ("0:<bos>", "1", "2:match", "3:source", "4", "5", "6:last")
    assert many.differs.nonzero()[:, 1].tolist() == [3] * 8 and many.roles["source"] == ((3,),) * 8


def test_two_layers_answer_repeated_arguments_and_one_layer_does_not() -> None:
    two, one = gf.load("attn-only-2l"), gf.load("attn-only-1l")
    for pairs in (repeated_arguments(60, tokenizer=two.require_tokenizer()), induction(two.require_tokenizer(), 60)):
        assert answered(two, pairs).share > 0.85 and answered(one, pairs).share < 0.4


def test_pairs_are_for_decoders() -> None:
    model, pairs = subject("translator_post").model, Pairs((Pair((1, 2), (1, 3), 4, 5),))
    with pytest.raises(DataError, match="this model reads a source and a target"):
        pairs.encode(model)
    with pytest.raises(AnalysisUnavailable, match="which decoders predict; this model is none"):
        answered(model, pairs)
    with pytest.raises(DataError, match='no pairs in "none" to encode'):
        Pairs((), "none").encode(subject("llama").model)
    with pytest.raises(DataError, match="it is text, and the model has no tokenizer"):
        Pairs((Pair("a", "b", "c", "d"),)).encode(subject("llama").model)
