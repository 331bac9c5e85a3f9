"""Tokenizers, text, synthetic tasks with answer keys, translation pairs and count models.

Five rooms: `text` (natural text), `tasks` (made up, with known answers), `images` (with a class each), `pairs` (of
prompts), `grammar` (Chinese and English). Beside them stand what all of them give, a batch, and what reads and mixes
them.
"""

from typing import TYPE_CHECKING

from glassformer.data.batch import Batch, Data, DataConfig, Split
from glassformer.data.grammar import ZhEnConfig
from glassformer.data.images import Digits, Shape, Shapes
from glassformer.data.marks import UNMARKED, Marks, Spelled, marks
from glassformer.data.mixture import MixtureConfig
from glassformer.data.pairs import (
    Contrast,
    Misfit,
    Pair,
    Pairs,
    TemplateFit,
    colours_of_things,
    greater_than,
    indirect_objects,
    induction,
    read_pairs,
    repeated_arguments,
    subject_verb_agreement,
    templates_for,
    word_senses,
    write_pairs,
)
from glassformer.data.published_tokenizers import lack_of_tokenizer, published
from glassformer.data.tasks import (
    Brackets,
    Copy,
    DirichletMarkov,
    Induction,
    Markov,
    ModularAddition,
    ModularSum,
    Needle,
    Phrase,
    Recall,
    Repeat,
    Reverse,
    Senses,
    Sessions,
    SkipTrigram,
    UnseenWords,
    ZipfMarkov,
    dirichlet_predictive,
    phrases,
)
from glassformer.data.text import (
    BigramModel,
    Document,
    LeftOut,
    NGramModel,
    Planted,
    PlantedData,
    PlantedRows,
    RepeatedText,
    RepeatedTextData,
    TemplateText,
    TemplateTextData,
    TextConfig,
    TextData,
    python_stdlib,
    read_source,
)
from glassformer.data.tokenizer import Roles, Tokenizer, bytes_tokenizer, train_bpe, word_tokenizer
from glassformer.lazy import renames

__all__ = [
    "UNMARKED",
    "Batch",
    "BigramModel",
    "Brackets",
    "Contrast",
    "Copy",
    "Data",
    "DataConfig",
    "Digits",
    "DirichletMarkov",
    "Document",
    "Induction",
    "LeftOut",
    "Markov",
    "Marks",
    "Misfit",
    "MixtureConfig",
    "ModularAddition",
    "ModularSum",
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
    "RepeatedText",
    "RepeatedTextData",
    "Reverse",
    "Roles",
    "Senses",
    "Sessions",
    "Shape",
    "Shapes",
    "SkipTrigram",
    "Spelled",
    "Split",
    "TemplateFit",
    "TemplateText",
    "TemplateTextData",
    "TextConfig",
    "TextData",
    "Tokenizer",
    "UnseenWords",
    "ZhEnConfig",
    "ZipfMarkov",
    "bytes_tokenizer",
    "colours_of_things",
    "dirichlet_predictive",
    "greater_than",
    "indirect_objects",
    "induction",
    "lack_of_tokenizer",
    "marks",
    "phrases",
    "published",
    "python_stdlib",
    "read_pairs",
    "read_source",
    "repeated_arguments",
    "subject_verb_agreement",
    "templates_for",
    "train_bpe",
    "word_senses",
    "word_tokenizer",
    "write_pairs",
]

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
