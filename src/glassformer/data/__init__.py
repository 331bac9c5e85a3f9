"""Tokenizers, text, synthetic tasks with answer keys, translation pairs and count models."""

from glassformer.data.batch import Batch, Data, DataConfig, Split
from glassformer.data.mixture import MixtureConfig
from glassformer.data.sources import Document, python_stdlib, read_source
from glassformer.data.tasks import Induction, Repeat
from glassformer.data.text import TextConfig, TextData
from glassformer.data.tokenizer import Tokenizer, bytes_tokenizer, train_bpe, word_tokenizer
from glassformer.data.translation import ZhEnConfig

__all__ = [
    "Batch",
    "Data",
    "DataConfig",
    "Document",
    "Induction",
    "MixtureConfig",
    "Repeat",
    "Split",
    "TextConfig",
    "TextData",
    "Tokenizer",
    "ZhEnConfig",
    "bytes_tokenizer",
    "python_stdlib",
    "read_source",
    "train_bpe",
    "word_tokenizer",
]
