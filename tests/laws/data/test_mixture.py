"""One tokenizer for several kinds of data: learned from all of them, as much from each as of each is trained on."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from glassformer.data import MixtureConfig, Needle, Recall, Repeat, TemplateText, TextConfig
from glassformer.errors import DataError
from one_pass import in_one_pass


def text(folder: Path, name: str, content: str) -> TextConfig:
    (folder / f"{name}.txt").write_text(content)
    return TextConfig(sources=(str(folder / f"{name}.txt"),), heldout=0.0, vocab_size=300)


def test_a_mixture_learns_its_tokenizer_from_every_part_that_holds_text(tmp_path: Path):
    one, other = text(tmp_path, "a", "abacus " * 3000), text(tmp_path, "b", "cedilla " * 3000)
    config = MixtureConfig((Repeat(), one, other), (0.2, 0.5, 0.3), batch_size=4, length=32, vocab_size=300)
    learned = config.build()
    assert {part.vocab_size for part in learned.parts} == {learned.vocab_size}
    assert [len(learned.tokenizer.encode(word)) for word in (" abacus", " cedilla")] == [1, 1]
    first = MixtureConfig((one, other), (0.5, 0.5), batch_size=4, length=32).build()
    assert len(first.tokenizer.encode(" abacus")) == 1 < len(first.tokenizer.encode(" cedilla"))
    assert config.build(first.tokenizer).tokenizer is first.tokenizer


@given(share=st.floats(0.05, 0.95))
def test_texts_of_parts_come_by_turns_as_their_shares_say(share: float):
    parts = [TemplateText(templates=(name,)) for name in ("greater_than", "word_senses")]
    texts = MixtureConfig((*parts,), (share, 1 - share)).texts()
    taken = [0.0, 0.0]
    for _ in range(200):
        sentence = next(texts)
        taken["year" not in sentence] += len(sentence)
    # no part is further ahead than its own last sentence, none of which has 100 characters
    assert abs(taken[0] / share - taken[1] / (1 - share)) <= 100 / min(share, 1 - share)


def test_they_end_with_the_first_part_that_has_no_more(tmp_path: Path):
    one = text(tmp_path, "a", "abacus " * 30)
    found = list(MixtureConfig((one, TemplateText()), (0.5, 0.5)).texts())
    assert found[0] == "abacus " * 30
    assert 210 <= sum(map(len, found[1:])) <= 310


@in_one_pass
@pytest.mark.parametrize("numbered", [False, True])
def test_tasks_of_a_mixture_write_what_they_write_alone_in_one_vocabulary(numbered: bool) -> None:
    tasks = (
        Repeat(batch_size=4, length=16, unit_min=3, unit_max=5, vocab_size=25),
        Recall(batch_size=4, length=16, n_pairs=4, n_keys=12, n_values=12, numbered=numbered),
        Needle(batch_size=4, length=16, n_needles=2, n_names=4, n_values=8, n_noise=12, numbered=numbered),
    )
    mixed = MixtureConfig(tasks, shares=(0.5, 0.25, 0.25), batch_size=4, length=16).build()
    symbols = mixed.tokenizer.tokens(range(mixed.vocab_size))
    assert len(symbols) == len(set(symbols)) == (25 if numbered else 25 + 24 + 4 + 12)
    for task in tasks:
        alone, among = task.build(), task.build(mixed.tokenizer)
        for one, other in zip(alone.batch(1).tensors().items(), among.batch(1).tensors().items(), strict=True):
            if one[0] in ("tokens", "targets"):
                written = [[alone.tokenizer.token(i) for i in row] for row in one[1].tolist()]
                assert written == [[mixed.tokenizer.token(i) for i in row] for row in other[1].tolist()]
            else:
                assert one[1].equal(other[1])
    # a vocabulary that lacks symbols is refused
    with pytest.raises(DataError, match="brings its own"):
        Recall(length=16, n_pairs=4).build(tasks[0].build().tokenizer)
