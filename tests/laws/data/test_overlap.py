"""Training text apart from held-out text: no shared run is left, near copies go, packages are those that are pinned."""

import importlib.metadata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from glassformer.data import RepeatedText, TextConfig, TextData, bytes_tokenizer, read_source
from glassformer.data.text.overlap import RUN, Runs, hashed_runs, near_copies
from glassformer.data.text.sources import PACKAGE
from glassformer.errors import ConfigError, DataError
from glassformer.training.recipes import RECIPES

BOS = 256
# few different tokens, so that runs are shared
DOCUMENTS = st.lists(st.lists(st.integers(0, 1), max_size=40).map(np.array), min_size=1, max_size=4)


def windows(ids):
    return {tuple(ids[i : i + RUN]) for i in range(len(ids) - RUN + 1)}


def phrases(seed, count=6):
    random = np.random.default_rng(seed)
    return "".join(chr(97 + c) for c in random.integers(0, 26, 40 * count))


@pytest.fixture
def folder(tmp_path):
    shared = phrases(7, 1)
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"{phrases(100 + i)}{shared}{phrases(200 + i)}")
    return tmp_path


@given(ids=st.lists(st.integers(0, 3), max_size=60))
def test_runs_hash_alike_exactly_where_they_are_alike(ids):
    found = hashed_runs(np.array(ids, np.int32))
    assert len(found) == max(0, len(ids) - RUN + 1)
    assert len(set(found.tolist())) == len(windows(ids))


@given(known=DOCUMENTS, ids=st.lists(st.integers(0, 1), max_size=60))
def test_what_is_left_of_a_document_shares_no_run_and_lies_in_it(known, ids):
    ids = np.array(ids, np.int32)
    taken = set().union(*(windows(document.tolist()) for document in known))
    pieces = Runs(known).outside(ids)
    text = "".join(map(str, ids))
    assert not taken & set().union(*(windows(piece.tolist()) for piece in pieces))
    assert all("".join(map(str, piece)) in text for piece in pieces)
    # only what lies in a shared run goes, and what is too short to stand alone
    if not taken & windows(ids.tolist()):
        assert [piece.tolist() for piece in pieces] == [ids.tolist()]


def test_no_run_of_held_out_text_is_in_training_text(folder):
    plain = TextConfig(sources=(str(folder),), heldout=0.2, batch_size=8, length=100)
    data = plain.replace(apart_from=plain).build(bytes_tokenizer())
    unclean = plain.build(bytes_tokenizer())
    assert isinstance(data, TextData) and isinstance(unclean, TextData)
    taken = set().union(*map(windows, data.documents("heldout")))
    assert taken & set().union(*map(windows, unclean.documents("train")))
    assert not taken & set().union(*map(windows, data.documents("train")))
    assert list(data.documents("heldout")) == list(unclean.documents("heldout"))
    facts = data.describe()["overlap"]
    train = data.describe()["splits"]["train"]
    assert facts["documents"] == train["documents"] and facts["left"] == 0
    assert facts["tokens_cut"] == unclean.n_tokens["train"] - data.n_tokens["train"] >= 40 * facts["documents"]


def test_a_target_is_never_what_stood_behind_a_cut(folder):
    plain = TextConfig(sources=(str(folder),), heldout=0.2, batch_size=8, length=100)
    data = plain.replace(apart_from=plain).build(bytes_tokenizer())
    # every pair that counts is a pair of neighbours in a file
    texts = [path.read_bytes() for path in folder.iterdir()]
    cut = 0
    for step in range(4):
        batch = data.batch(step)
        for before, wanted, counts in zip(batch.tokens.flatten(), batch.targets.flatten(), batch.weight.flatten()):
            if counts and BOS not in (before, wanted):
                assert any(bytes([before, wanted]) in text for text in texts)
            cut += int(not counts)
    assert cut > 0


def test_the_same_text_gives_the_same_batches_and_facts(folder):
    plain = TextConfig(sources=(str(folder),), heldout=0.2, batch_size=3, length=50)
    config = plain.replace(apart_from=plain, distinct=True)
    one, two = config.build(bytes_tokenizer()), TextConfig.from_json(config.to_json()).build(bytes_tokenizer())
    assert one.describe() == two.describe()
    assert one.batch(5).tokens.equal(two.batch(5).tokens)


def test_a_near_copy_is_the_later_of_two():
    random = np.random.default_rng(0)
    first, other = random.integers(0, 250, (2, 2000))
    touched = first.copy()
    touched[::200] = 255
    half = np.concatenate([first[:500], random.integers(0, 250, 1500)])
    assert near_copies([first, other, touched, half, first, first[:5]]) == [False, False, True, False, True, False]
    assert near_copies([]) == []


def test_near_copies_are_left_out_of_training_alone(folder):
    for i in range(5):
        (folder / f"copy{i}.txt").write_text((folder / f"{i:02}.txt").read_text() + "x")
    plain = TextConfig(sources=(str(folder),), heldout=0.0)
    kept, found = plain.build(bytes_tokenizer()), plain.replace(distinct=True).build(bytes_tokenizer())
    assert found.describe()["near_copies"]["documents"] == 5
    assert len(list(kept.documents("train"))) - len(list(found.documents("train"))) == 5


def test_other_text_takes_its_own_held_out_documents_along(folder):
    config = TextConfig(apart_from=TextConfig()).on_text((str(folder),))
    assert config.apart_from == TextConfig(sources=(str(folder),))


def test_streamed_text_is_not_compared():
    with pytest.raises(ConfigError, match="not streaming"):
        TextConfig(streaming=True, distinct=True)


def test_a_package_is_its_python_files_by_name():
    version = importlib.metadata.version("tyro")
    documents = list(read_source(f"python-package:tyro=={version}"))
    names = [document.name for document in documents]
    assert names == sorted(names) and "tyro/__init__.py" in names
    assert all(name.startswith("tyro/") and name.endswith(".py") for name in names)
    assert documents == list(read_source(f"python-package:tyro=={version}"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tyro", 'does not say which version. A package is named as "python-package:NAME==VERSION"'),
        ("tyro==0.0.1", r'tyro [\d.]+ is installed, which is other text. Run: pip install "tyro==0.0.1"'),
        ("no-such-package==1", 'no-such-package is not installed. Run: pip install "no-such-package==1"'),
    ],
)
def test_another_package_than_the_one_named_is_refused(source, message):
    with pytest.raises(DataError, match=message):
        list(read_source(f"python-package:{source}"))


def test_packages_that_recipes_read_are_pinned_for_development():
    pinned = set((Path(__file__).parents[3] / "constraints.txt").read_text().splitlines())
    for recipe in RECIPES.values():
        config = recipe()
        named = [name.partition(PACKAGE)[2] for name in config.data.origins() if PACKAGE in name]
        assert pinned.issuperset(named)


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_row_of_repeated_text_is_one_span_of_one_document_over_and_over(folder, split):
    text = TextConfig(sources=(str(folder),), heldout=0.2)
    config = RepeatedText(batch_size=6, length=50, text=text, unit_min=4, unit_max=11)
    data = config.build(bytes_tokenizer())
    documents = [bytes(ids) for ids in data.text.documents(split)]
    for step in range(5):
        batch = data.batch(step, split)
        assert batch.tokens.equal(config.build(data.tokenizer).batch(step, split).tokens)
        for tokens, targets, weight in zip(batch.tokens, batch.targets, batch.weight):
            row = [*tokens.tolist(), int(targets[-1])]
            size = next(n for n in range(4, 12) if row[n:] == row[:-n])
            assert BOS not in row and weight.all() and targets.tolist() == row[1:]
            assert any(bytes(row[:size]) in document for document in documents)


def test_a_row_of_repeated_text_may_begin_as_a_text_does(folder):
    config = RepeatedText(batch_size=6, length=50, text=TextConfig(sources=(str(folder),)), unit_min=4, unit_max=11)
    plain, begun = (config.replace(bos=bos).build(bytes_tokenizer()).batch(3) for bos in (False, True))
    assert begun.tokens[:, 0].eq(BOS).all() and begun.tokens[:, 1:].equal(plain.tokens[:, :-1])
    assert begun.targets.equal(plain.tokens) and begun.weight.all()
    with pytest.raises(DataError, match="no token that begins a text"):
        config.replace(bos=True).build(bytes_tokenizer(()))


def test_text_without_documents_as_long_as_a_span_is_refused(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text(f"ab{i}")
    data = RepeatedText(text=TextConfig(sources=(str(tmp_path),)), unit_min=12).build(bytes_tokenizer())
    with pytest.raises(DataError, match="12 tokens in a row"):
        data.batch(0)
