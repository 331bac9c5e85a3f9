"""Tokenizers, text, synthetic tasks with answer keys, translation pairs and count models."""

from glassformer.data.batch import Batch, Data, DataConfig, Split
from glassformer.data.chains import Markov, SkipTrigram
from glassformer.data.counts import BigramModel, NGramModel
from glassformer.data.in_context import DirichletMarkov, dirichlet_predictive
from glassformer.data.mixture import MixtureConfig
from glassformer.data.puzzles import Brackets, Copy, ModularAddition, Needle, Recall, Reverse
from glassformer.data.senses import Phrase, Senses, phrases
from glassformer.data.sources import Document, python_stdlib, read_source
from glassformer.data.tasks import Induction, Repeat
from glassformer.data.text import TextConfig, TextData
from glassformer.data.tokenizer import Tokenizer, bytes_tokenizer, train_bpe, word_tokenizer
from glassformer.data.translation import ZhEnConfig
from glassformer.data.words import UnseenWords

__all__ = [
    "Batch",
    "BigramModel",
    "Brackets",
    "Copy",
    "Data",
    "DataConfig",
    "DirichletMarkov",
    "Document",
    "Induction",
    "Markov",
    "MixtureConfig",
    "ModularAddition",
    "NGramModel",
    "Needle",
    "Phrase",
    "Recall",
    "Repeat",
    "Reverse",
    "Senses",
    "SkipTrigram",
    "Split",
    "TextConfig",
    "TextData",
    "Tokenizer",
    "UnseenWords",
    "ZhEnConfig",
    "bytes_tokenizer",
    "dirichlet_predictive",
    "phrases",
    "python_stdlib",
    "read_source",
    "train_bpe",
    "word_tokenizer",
]
