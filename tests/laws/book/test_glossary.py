"""The glossary of the course: its words stand in the chapters that it names, in both languages."""

import re
from pathlib import Path

import pytest

from glassformer.book import GLOSSARY, glossary
from glassformer.errors import WrongArgument
from glassformer.words import Language, speaking, spoken

BOOK = {"en": Path(__file__).parents[3] / "docs" / "book", "zh": Path(__file__).parents[3] / "docs" / "zh" / "book"}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_word_stands_in_its_chapter_and_on_the_page_of_the_glossary(lang: Language) -> None:
    page = (BOOK[lang] / "glossary.md").read_text(encoding="utf-8")
    with speaking(lang):
        words = {term.name: (spoken(term.name), spoken(term.meaning)) for term in GLOSSARY}
    assert len(words) == len(GLOSSARY)
    for term in GLOSSARY:
        chapter = (BOOK[lang] / "course" / f"{term.chapter}.md").read_text(encoding="utf-8")
        prose = re.sub("^```.*?^```", "", chapter, flags=re.MULTILINE | re.DOTALL)
        name, meaning = words[term.name]
        # in English chapters also of another number
        assert name.removesuffix("s").lower() in prose.lower(), name
        assert f'glossary("{term.chapter}"' in page
        assert f"**{name}**" in glossary(term.chapter, lang=lang) and meaning in glossary(term.chapter, lang=lang)


def test_both_languages_have_the_same_words_in_the_same_order() -> None:
    for chapter in {term.chapter for term in GLOSSARY}:
        english, chinese = (glossary(chapter, lang=lang).splitlines() for lang in ("en", "zh"))
        names = [str(term.name) for term in GLOSSARY if term.chapter == chapter]
        assert [re.findall(r"\*\*(.*)\*\*", line)[0] for line in english] == names
        # the English word stands beside the Chinese one, unless it is the same
        beside = [re.findall(r"^- \*\*(.*)\*\* ?(.*?)：", line)[0] for line in chinese]
        assert [english or said for said, english in beside] == names


def test_a_chapter_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(WrongArgument, match=r'no chapter "circuit"\. Nearest: "circuits"'):
        glossary("circuit")
