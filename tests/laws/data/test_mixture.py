"""One tokenizer for several kinds of data: learned from all of them, as much from each as of each is trained on."""

from pathlib import Path

from hypothesis import given, strategies as st

from glassformer.data import MixtureConfig, Repeat, TemplateText, TextConfig


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
