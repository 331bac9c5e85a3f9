"""The Chinese-English grammar: translations that a person checked, and a split that holds."""

from itertools import pairwise
from random import Random

import pytest

from glassformer.data import ZhEnConfig
from glassformer.data.grammar import sentences
from glassformer.data.grammar.lexicon import PEOPLE, PRONOUNS, TRANSITIVE
from glassformer.data.grammar.sentences import Mood, _clause, objects
from one_pass import in_one_pass

DATA = ZhEnConfig(batch_size=64).build()

# written by hand; every one must come out of the grammar, word for word
BY_HAND = """
我吃了一个苹果 | I ate an apple
她喝了两杯茶 | She drank two cups of tea
他们买了三本书 | They bought three books
我妈妈写了一封信 | My mother wrote a letter
他没看这部电影 | He did not watch this movie
你吃了一个苹果吗 | Did you eat an apple
谁吃了一个苹果 | Who ate an apple
他正在看一本书 | He is reading a book
我正在听一首歌 | I am listening to a song
他们正在洗一辆车 | They are washing a car
我没在吃苹果 | I am not eating apples
她会画两只羊 | She will draw two sheep
她会买一把雨伞 | She will buy an umbrella
我们不会买这座房子 | We will not buy this house
他想喝一杯咖啡 | He wants to drink a cup of coffee
我不想吃面条 | I do not want to eat noodles
你能修这台电脑吗 | Can you fix this computer
我不能开那辆车 | I cannot drive that car
她吃橘子 | She eats oranges
他不吃鸡蛋 | He does not eat eggs
她经常唱歌 | She often sings songs
我们喜欢看书 | We like to read books
他喜欢画猫 | He likes to draw cats
我看过这本书 | I have read this book
她没看过那部电影 | She has never watched that movie
你们喝过牛奶吗 | Have you ever drunk milk
他买了十把刀 | He bought ten knives
她丢了一把旧雨伞 | She lost an old umbrella
我写了一个有趣的故事 | I wrote an interesting story
他画了几只大老鼠 | He drew several big mice
她做了很多面条 | She made a lot of noodles
猫吃鱼 | The cat eats fish
狗不喝水 | The dog does not drink water
我的猫喝牛奶吗 | Does my cat drink milk
小狗正在吃面包 | The small dog is eating bread
这些老鼠喜欢吃米饭 | These mice like to eat rice
大象看见了一只猫 | The elephant saw a cat
学生看书 | The student reads books
司机会买一辆车 | The driver will buy a car
"""
CHECKED = [tuple(part.strip() for part in line.split("|")) for line in BY_HAND.strip().splitlines()]


def translations(zh):
    """Return every English the grammar gives a plain clause (no time, no place), by trying all derivations."""
    found = set()
    for verb in (verb for verb in TRANSITIVE if verb.zh in zh):
        things = [thing for thing in objects(verb.tags) if zh.removesuffix("吗").endswith(thing.zh)]
        subjects = (*PRONOUNS, *PEOPLE, sentences._WHO, *(sentences._animals() if verb.animals else ()))
        for subject in (who for who in subjects if zh.startswith(who.zh)):
            for aspect in sentences._aspects(verb):
                for negative, question in ((False, False), (True, False), (False, True)):
                    for thing in things:
                        mood = Mood(aspect, negative, question, subject)
                        chinese, english, _ = _clause(_Plain(), verb, mood, thing.zh, thing.en)
                        if chinese == zh:
                            found.add(english[0].upper() + english[1:])
    return found


class _Plain(Random):
    """Draws what adds nothing: no time (the first choice), and no place (only below 0.3)."""

    def __init__(self):
        super().__init__()
        self.turn = 0

    def random(self):
        self.turn += 1
        return 0.0 if self.turn == 1 else 0.99


@in_one_pass
@pytest.mark.parametrize(("zh", "en"), CHECKED)
def test_translations_checked_by_hand_are_the_only_ones(zh, en):
    assert translations(zh) == {en}


@pytest.mark.full
def test_training_never_sees_a_held_out_sentence():
    seen = {split: {pair.key for pair in DATA.pairs(split, 1000)} for split in ("train", "heldout")}
    assert len(seen["train"]) == len(seen["heldout"]) == 1000
    assert seen["train"].isdisjoint(seen["heldout"])
    for step in range(5):
        batch = DATA.batch(step)
        assert batch.lengths is not None
        rows = zip(batch.targets.tolist(), batch.lengths.tolist())
        assert seen["heldout"].isdisjoint(DATA.tokenizer.decode(ids[: n - 1]).rstrip(".?") for ids, n in rows)


def test_one_chinese_sentence_has_one_translation():
    random, english = Random(7), {}
    for _ in range(5_000):
        pair = sentences.sample(random)
        assert english.setdefault(pair.zh.rstrip("。？"), pair.key) == pair.key


@pytest.mark.full
def test_every_sentence_is_spelled_by_the_tokenizer_and_fits():
    tokenizer, random = DATA.tokenizer, Random(8)
    for _ in range(3000):
        pair = sentences.sample(random)
        zh, en = tokenizer.encode(pair.zh), tokenizer.encode(pair.en)
        assert tokenizer.unk not in zh + en
        assert (tokenizer.decode(zh), tokenizer.decode(en)) == (pair.zh, pair.en)
        assert max(len(zh), len(en) + 1) <= DATA.config.length


def test_articles_agree_with_the_next_word_and_numerals_with_plurals():
    random = Random(9)
    for _ in range(5_000):
        words = sentences.sample(random).en.rstrip(".?").split()
        for article, following in pairwise(words):
            if article.lower() in ("a", "an") and following != "lot":
                assert (article.lower() == "an") == (following[0] in "aeiou")
            if following.lower() == "are":
                assert article.lower() not in ("i", "he", "she", "it", "who")


def test_batches_end_in_eos_and_count_exactly_the_real_positions():
    batch, tokenizer = DATA.batch(0), DATA.tokenizer
    assert batch.lengths is not None and batch.source is not None and batch.source_lengths is not None
    for tokens, targets, weight, n in zip(batch.tokens, batch.targets, batch.weight, batch.lengths.tolist()):
        assert tokens[0] == tokenizer.bos and targets[n - 1] == tokenizer.eos
        assert tokens[1:n].tolist() == targets[: n - 1].tolist()
        assert weight.tolist() == [True] * n + [False] * (len(weight) - n)
        assert (tokens[n:] == tokenizer.pad).all()
    assert (batch.source_lengths >= 2).all() and batch.source.shape[1] == int(batch.source_lengths.max())


def test_sources_are_measured_by_length_although_padding_is_a_token():
    # the shorter sentence ends in padding; only its length says where
    batch = DATA.batch(1)
    assert batch.source is not None and batch.source_lengths is not None
    for ids, n in zip(batch.source.tolist(), batch.source_lengths.tolist()):
        assert DATA.tokenizer.pad not in ids[:n]
        assert set(ids[n:]) <= {DATA.tokenizer.pad}
