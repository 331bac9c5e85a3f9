"""Tokenizers, text, synthetic tasks with answer keys, translation pairs and count models."""

from glassformer.data.batch import Batch, Data, DataConfig, Split
from glassformer.data.chains import Markov, SkipTrigram
from glassformer.data.contrast import Contrast
from glassformer.data.counts import BigramModel, NGramModel
from glassformer.data.in_context import DirichletMarkov, dirichlet_predictive
from glassformer.data.mixture import MixtureConfig
from glassformer.data.pair_files import read_pairs, write_pairs
from glassformer.data.pairs import Misfit, Pair, Pairs
from glassformer.data.planted import Planted, PlantedData, PlantedRows
from glassformer.data.published import lack_of_tokenizer, published
from glassformer.data.puzzles import Brackets, Copy, ModularAddition, Needle, Recall, Reverse
from glassformer.data.senses import Phrase, Senses, phrases
from glassformer.data.sources import Document, python_stdlib, read_source
from glassformer.data.tasks import Induction, Repeat
from glassformer.data.templates import (
    TemplateFit,
    greater_than,
    indirect_objects,
    induction,
    repeated_arguments,
    subject_verb_agreement,
    templates_for,
)
from glassformer.data.text import TextConfig, TextData
from glassformer.data.tokenizer import Roles, Tokenizer, bytes_tokenizer, train_bpe, word_tokenizer
from glassformer.data.translation import ZhEnConfig
from glassformer.data.words import UnseenWords

__all__ = [
    "Batch",
    "BigramModel",
    "Brackets",
    "Contrast",
    "Copy",
    "Data",
    "DataConfig",
    "DirichletMarkov",
    "Document",
    "Induction",
    "Markov",
    "Misfit",
    "MixtureConfig",
    "ModularAddition",
    "NGramModel",
    "Needle",
    "Pair",
    "Pairs",
    "Phrase",
    "Planted",
    "PlantedData",
    "PlantedRows",
    "Recall",
    "Repeat",
    "Reverse",
    "Roles",
    "Senses",
    "SkipTrigram",
    "Split",
    "TemplateFit",
    "TextConfig",
    "TextData",
    "Tokenizer",
    "UnseenWords",
    "ZhEnConfig",
    "bytes_tokenizer",
    "dirichlet_predictive",
    "greater_than",
    "indirect_objects",
    "induction",
    "lack_of_tokenizer",
    "phrases",
    "published",
    "python_stdlib",
    "read_pairs",
    "read_source",
    "repeated_arguments",
    "subject_verb_agreement",
    "templates_for",
    "train_bpe",
    "word_tokenizer",
    "write_pairs",
]
