"""A small grammar that writes Chinese sentences with their English translation, and batches of them."""

from glassformer.data.grammar.sentences import SentencePair, sample, words
from glassformer.data.grammar.translation import ZhEnConfig, zh_en_tokenizer

__all__ = ["SentencePair", "ZhEnConfig", "sample", "words", "zh_en_tokenizer"]
