"""What the studies of sparse probing and of induction's variable measure is right where the answer is known."""

from random import Random

import pytest
import torch

from glassformer.data import bytes_tokenizer
from glassformer.data.labels import python_labels
from glassformer.data.text.sources import Document
from glassformer.handmade import induction_model
from glassformer.studies import induction_variable
from glassformer.studies.sparse_probing import averaged, few_tell
from glassformer.studies.sparse_probing_texts import (
    Row,
    balanced,
    contexts,
    pairs_of,
    rights_of,
    row_of,
    stretches,
)
from glassformer.studies.sparse_probing_toys import ALIKE, DENSITY, FEATURES, ITSELF, Toy, even, probed
from glassformer.study import Case
from glassformer.testing import close

LEGAL = "# Copyright of nobody.\n# All rights given.\n"
CODE = f'"""Say so."""\n\n{LEGAL}\nx = 1  # one\n# two\ny = 2\n'


def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_comments_that_speak_of_rights_are_found_and_no_others():
    assert [CODE[first:end] for first, end in rights_of(CODE)] == [LEGAL]
    row = row_of(Document("asyncio/a.py", CODE), python_labels([CODE], bytes_tokenizer())[0], Random(0))
    assert row is not None and {"docstring", "comment"} & {*row.kinds}
    told = {name: "".join(CODE[i] if one == 1 else "" for i, one in enumerate(found[0])) for name, found in of(CODE)}
    assert told["docstring"].startswith('"""Say so."""') and "x" not in told["docstring"]
    said = {name: "".join(one.split()) for name, one in told.items()}
    assert said["licence"] == "".join(LEGAL.split()) and said["comment"] == said["licence"] + "#one#two"
    assert told["package"] == CODE
    others = dict(of(CODE, "email/a.py"))["package"][0], dict(of(CODE, "abc.py"))["package"][0]
    assert [set(found) for found in others] == [{0}, {-1}]


def of(code: str, name: str = "asyncio/a.py") -> list[tuple[str, list[list[int]]]]:
    """Return the contexts of each character of a file."""
    (document,) = python_labels([code], bytes_tokenizer())
    spans = list(rights_of(code))
    rights = tuple(any(first <= word[0] < end for first, end in spans) for word in document.words)
    return list(contexts([Row(name, document.ids, document.classes["text"], rights)]))


def test_a_pair_is_asked_about_among_tokens_like_its_last_one_alone():
    tokenizer = bytes_tokenizer()
    rows = [Row(str(i), tuple(tokenizer.encode("abcbxbab")), (None,) * 8, (False,) * 8) for i in range(8)]
    (name, labels), *_ = pairs_of(rows, 1, tokenizer)
    assert name == "pair 0" and labels[0] == [-1, 1, -1, 0, -1, 0, -1, 1]


def test_examples_are_stretches_of_one_label_and_as_many_of_either():
    found = stretches([[1, 1, 0, 0, 0, 0, -1, 1], [0, 0, 1, 1]], 2)
    assert [column.tolist() for column in found[:3]] == [[0, 0, 0, 1, 1], [0, 2, 4, 8, 10], [1, 0, 0, 0, 1]]
    for within in (False, True):
        even_ones = balanced(found, within, random())
        assert even_ones.labels.sum() == 2 and len(even_ones.labels) == 4
        assert not within or even_ones.rows.tolist() == [0, 0, 1, 1]
    close(averaged(torch.arange(12.0)[:, None], found)[:, 0], torch.tensor([0.5, 2.5, 4.5, 8.5, 10.5]))


def test_a_planted_neuron_tells_alone_and_for_shuffled_labels_nothing_does():
    labels = torch.arange(400) % 2
    neurons = torch.randn(400, 6, generator=random())
    neurons[:, 4] += 8.0 * labels
    documents = torch.arange(400) // 10
    found = few_tell(neurons, documents, labels, (1,), ("grown", "random"), 0)
    assert float(found.f1.select(select="grown").values) > 0.99
    assert found.neurons.select(select="grown").values.flatten().tolist() == [4]
    shuffled = few_tell(neurons, documents, labels[torch.randperm(400, generator=random())], (1,), ("grown",), 0)
    assert 0.3 < float(shuffled.f1.values) < 0.7


def test_of_a_toy_wired_by_hand_one_neuron_tells_a_feature_of_its_own_and_two_tell_one_that_is_shared():
    own = Toy(torch.eye(FEATURES), torch.zeros(FEATURES))
    # feature 0 lies in neurons 0 and 1, which each another feature has too
    shared = torch.eye(FEATURES, ALIKE)
    shared[0, :2], shared[1, 0], shared[1, 1], shared[2, 1], shared[2, 2] = 1.0, 1.0, 0.0, 1.0, 0.0
    (alone,), (chance,) = probed(own, [0], random(), 0)
    assert (
        float(alone.f1.values[0, 0]) == pytest.approx(ITSELF, abs=0.03)
        and float(alone.pruned.values[0] - alone.pruned.values[1]) > 0.2
    )
    assert chance.dense < 0.8
    (spread,), _ = probed(Toy(shared, torch.zeros(FEATURES)), [0], random(), 0)
    one, few = spread.f1.values[0].tolist()
    assert one < few and sorted(spread.neurons.values[0, 1, :2].tolist()) == [0, 1]
    x = torch.rand(50, FEATURES, generator=random()) < DENSITY
    rows = even(x[:, 0], random())
    assert int(x[rows, 0].sum()) * 2 == len(rows)


@pytest.mark.parametrize("place", induction_variable.PLACES)
def test_in_a_model_wired_for_induction_the_token_before_lies_where_the_first_head_writes_it(place):
    model = induction_model(21, 41)
    pairs = induction_variable.pairs_of_prompts(model, 8, 0)
    case = Case({"place": place}, {"steps": 1, "draws": 1}, 0)
    found = dict(induction_variable.measured(model, pairs, case))
    assert found["done"] == 1.0
    expected = place in (induction_variable.COPIED, induction_variable.ANSWER)
    assert found["whole"] == float(expected)
    if place == induction_variable.COPIED:
        assert found["head"] == 1.0
