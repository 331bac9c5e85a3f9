"""Bad data: each mistake is named, with what would work."""

import io
import os
import sys
from pathlib import Path

import pytest

from glassformer.data import (
    Copy,
    LeftOut,
    MixtureConfig,
    ModularAddition,
    NGramModel,
    Planted,
    Recall,
    Repeat,
    RepeatedText,
    TextConfig,
    Tokenizer,
    ZhEnConfig,
    bytes_tokenizer,
    read_source,
    train_bpe,
    word_tokenizer,
)
from glassformer.data.batch import check_split
from glassformer.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MissingExtra,
    SaveError,
    TextError,
    TokenOutOfRange,
)
from glassformer.training import train
from one_pass import in_one_pass
from tiny_runs import recipe


def read(source, **options):
    return [document.text for document in read_source(str(source), **options)]


def test_files_folders_globs_and_jsonl_are_read_in_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "b.txt").write_text("bee")
    (tmp_path / "sub" / "a.md").write_text("ay")
    (tmp_path / "c.jsonl").write_text('{"body": "one"}\n\n{"body": "two"}\n')
    assert read(tmp_path / "b.txt") == ["bee"]
    assert read(tmp_path, text_field="body") == ["bee", "one", "two", "ay"]
    assert read(tmp_path / "**" / "*.md") == ["ay"]
    assert read(tmp_path / "c.jsonl", text_field="body") == ["one", "two"]


def test_standard_input_is_one_document(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("héllo\n".encode())))
    assert read("-") == ["héllo\n"]


def test_a_file_that_is_not_utf8_is_named_with_the_offset(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9 au lait")
    with pytest.raises(TextError, match=r'latin.txt" is not UTF-8: byte 0xE9 at offset 3. Convert it first \(iconv'):
        read(path)


def test_a_folder_is_read_past_what_is_no_text_and_what_was_left_out_is_counted(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "zero.txt").touch()
    (tmp_path / "lines.jsonl").write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n\n')
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "here").symlink_to(tmp_path)
    left_out = LeftOut()
    assert [document.text for document in read_source(str(tmp_path), left_out=left_out)] == ["good", "ok"]
    assert left_out == {"not UTF-8": 2, "not regular files": 2, "empty": 1}
    with pytest.warns(UserWarning, match=r"left out 1 not UTF-8 \(first: .*latin.txt.*1 empty"):
        assert read(tmp_path / "*.txt") == ["good"]
    with pytest.warns(UserWarning, match="left out"):
        data = TextConfig(sources=(str(tmp_path),)).build(bytes_tokenizer())
    assert data.describe()["left_out"] == {"not UTF-8": 2, "not regular files": 2, "empty": 1}


def test_an_unreadable_file_is_left_out_of_a_folder_and_said_where_it_is_named(tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "some"}')
    opened = Path.open

    def refused(path, *arguments, **options):
        if path.name.startswith("b"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    left_out = LeftOut()
    assert len(list(read_source(str(tmp_path), left_out=left_out))) == 1 and left_out == {"unreadable": 2}
    for name in ("b.txt", "b.jsonl"):
        with pytest.raises(DataError, match=f'cannot read ".*{name}": Permission denied'):
            read(tmp_path / name)


def test_a_folder_or_a_glob_without_any_text_says_what_there_is(tmp_path):
    with pytest.raises(DataError, match="holds no files"):
        read(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for source in (tmp_path, tmp_path / "*.txt"):
        with pytest.raises(DataError, match=r"no usable text in .*1 not UTF-8"):
            read(source)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is no regular file"):
        read(tmp_path / "pipe")


def test_the_offset_in_a_jsonl_file_counts_from_its_beginning(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n')
    with pytest.raises(TextError, match="byte 0xFF at offset 25"):
        read(path)


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    (tmp_path / "corpus.txt").write_text("x")
    with pytest.raises(DataError, match=r'no file ".*corpsu.txt". Nearest: "corpus.txt". A source is a file, a folder'):
        read(tmp_path / "corpsu.txt")
    with pytest.raises(DataError, match='Nearest: "python-stdlib"'):
        read("python-stdlb")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"txt": "a"}', 'line 1 has no text in field "text". Nearest: "txt". Fields: txt. Set text_field.'),
        ('{"text": 3}', 'line 1 has no text in field "text"'),
        ("[1]", "Fields: none"),
        ("{", "line 1 is not JSON"),
    ],
)
def test_a_bad_line_of_jsonl_is_named(tmp_path, line, message):
    path = tmp_path / "lines.jsonl"
    path.write_text(line)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_corpus_without_text_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(DataError, match="no usable text in"):
        TextConfig(sources=(str(tmp_path),)).build(bytes_tokenizer())


def test_a_single_document_has_no_held_out_split(tmp_path):
    (tmp_path / "one.txt").write_text("just one document")
    data = TextConfig(sources=(str(tmp_path),)).build(bytes_tokenizer())
    assert data.batch(0).tokens.shape == (16, 256)
    with pytest.raises(DataError, match=r'the "heldout" split of .* is empty: 1 documents in all'):
        data.batch(0, "heldout")


def test_an_unknown_split_suggests_the_nearest():
    with pytest.raises(DataError, match=r'no split "heldot". Nearest: "heldout"'):
        check_split("heldot")


def test_streaming_an_empty_split_says_so(tmp_path):
    (tmp_path / "one.txt").write_text("just one document")
    data = TextConfig(sources=(str(tmp_path),), heldout=0.0, streaming=True).build(bytes_tokenizer())
    with pytest.raises(DataError, match=r'the "heldout" split of .* is empty'):
        data.batch(0, "heldout")


def test_datasets_without_the_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r'pip install "glassformer\[datasets\]"'):
        read("datasets:wikitext:wikitext-2-raw-v1")


MISSING = {
    "python-package:no-such-package==1": (DataError, "no-such-package is not installed"),
    "prose:python-package:tyro==0.0.1": (DataError, "which is other text"),
    "no/such/file.txt": (DataError, 'no file "no/such/file.txt"'),
    "datasets:wikitext": (MissingExtra, "needs the datasets library"),
}


@pytest.fixture(params=MISSING)
def missing(request, monkeypatch):
    """A source that is not there, and how it is refused."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    return request.param, *MISSING[request.param]


def test_a_source_that_is_not_there_is_refused_before_it_is_read(missing):
    source, error, message = missing
    with pytest.raises(error, match=message):
        read_source(source)


@pytest.mark.parametrize(
    "around",
    [
        lambda first, then: MixtureConfig((first, then), (0.5, 0.5)),
        lambda first, then: MixtureConfig((first, then), (0.5, 0.5), vocab_size=300),
        lambda first, then: MixtureConfig((first, RepeatedText(text=then)), (1.0, 0.0)),
        lambda first, then: MixtureConfig((first, Planted(text=then, counts=(0, 1))), (0.5, 0.5)),
        lambda first, then: MixtureConfig((first, MixtureConfig((first, then), (0.5, 0.5))), (0.5, 0.5)),
        lambda first, then: first.replace(sources=(*first.sources, *then.sources)),
        lambda first, then: first.replace(sources=(*first.sources, *then.sources), streaming=True),
        lambda first, then: first.replace(apart_from=then),
    ],
)
def test_what_is_not_there_is_refused_before_what_comes_first_is_read(around, missing, tmp_path):
    source, error, message = missing
    # what reads it would say so
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    first = TextConfig(sources=(str(tmp_path / "latin.txt"),))
    with pytest.raises(error, match=message):
        around(first, TextConfig(sources=(source,))).build()


@pytest.mark.filterwarnings("ignore:training is on")
def test_what_a_recipe_is_measured_on_is_there_before_its_training_text_is_read(missing, tmp_path):
    source, error, message = missing
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    data = TextConfig(sources=(str(tmp_path / "latin.txt"),))
    with pytest.raises(error, match=message):
        train(recipe(data=data, evaluate=TextConfig(sources=(source,))), tmp_path / "run")


NO_JSON = bytes_tokenizer().to_json().replace('":"1.0"', 'NaN1.0"', 1).encode()  # the library reads it


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"model": {"type": "BPE"}', b"\xff\xfe", NO_JSON])
def test_a_broken_tokenizer_file_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r'cannot read the tokenizer ".*tokenizer.json"'):
        Tokenizer.load(tmp_path)


def test_a_missing_tokenizer_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_that_cannot_be_saved_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaveError):
        bytes_tokenizer().save(tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_text_and_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(TextError, match="lone surrogate"):
        bytes_tokenizer().encode("\ud800")
    with pytest.raises(TextError, match="no <unk>"):
        word_tokenizer(["a b"], specials=()).encode("c")
    with pytest.raises(TokenOutOfRange, match="token id 257 is outside the vocabulary: 0 to 256"):
        bytes_tokenizer().token(257)
    with pytest.raises(TokenOutOfRange, match="token id 9 is outside"):
        NGramModel([[1, 9]], 5)
    with pytest.raises(DataError, match="nothing to count"):
        NGramModel([[]], 5)
    with pytest.raises(ConfigError, match="256 bytes and 1 specials need at least 257"):
        train_bpe(["a"], 100)


@in_one_pass
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TextConfig(heldout=1.0), "heldout=1.0 is not in"),
        (lambda: TextConfig(sources=()), "sources is empty"),
        (lambda: TextConfig(sources=("-",), streaming=True), "can be read once"),
        (lambda: Repeat(unit_min=5, unit_max=4), "unit_min=5 exceeds unit_max=4"),
        (lambda: Recall(length=10, n_pairs=8), "must be even and at least 2 n_pairs"),
        (lambda: ModularAddition(length=6), "not a multiple of 5"),
        (lambda: MixtureConfig(parts=(Copy(),), shares=(0.5,)), "sum to 0.5, not to 1"),
        (lambda: MixtureConfig(parts=(Copy(),), shares=(0.5, 0.5)), "1 parts but 2 shares"),
    ],
)
def test_configs_whose_fields_exclude_each_other_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_tasks_say_which_vocabulary_they_need():
    with pytest.raises(DataError, match='"repeat" needs vocab_size or a tokenizer'):
        Repeat().build()
    with pytest.raises(DataError, match=r"60 different tokens per row, but the vocabulary has 19. Use a larger"):
        Repeat(vocab_size=20).build().batch(0)
    with pytest.raises(DataError, match='"copy" brings its own 19 symbols'):
        Copy().build(bytes_tokenizer())
    with pytest.raises(ConfigError, match=r"the tokenizer has no <bos>. Set bos=False"):
        Repeat().build(bytes_tokenizer(specials=())).batch(0)
    with pytest.raises(DataError, match="needs a tokenizer with <pad>, <bos> and <eos>"):
        ZhEnConfig().build(bytes_tokenizer())


def test_decoder_and_encoder_decoder_data_do_not_mix():
    parts = (Repeat(unit_min=2, unit_max=4), ZhEnConfig())
    data = MixtureConfig(parts=(parts[1], parts[0]), shares=(0.5, 0.5), length=24).build()
    with pytest.raises(DataError, match="cannot hold both"):
        data.batch(0)
