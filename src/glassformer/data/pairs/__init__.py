"""Pairs of prompts: clean and corrupt, made by templates or read from files, and checked against a tokenizer."""

from typing import TYPE_CHECKING

from glassformer.data.pairs.contrast import Contrast
from glassformer.data.pairs.counterfactuals import Counterfactuals
from glassformer.data.pairs.files import read_pairs, write_pairs
from glassformer.data.pairs.prompt_pairs import Misfit, Pair, Pairs
from glassformer.data.pairs.templates import (
    TemplateFit,
    colours_of_things,
    greater_than,
    indirect_objects,
    induction,
    repeated_arguments,
    subject_verb_agreement,
    templates_for,
    word_senses,
)
from glassformer.lazy import renames

__all__ = [
    "Contrast",
    "Counterfactuals",
    "Misfit",
    "Pair",
    "Pairs",
    "TemplateFit",
    "colours_of_things",
    "greater_than",
    "indirect_objects",
    "induction",
    "read_pairs",
    "repeated_arguments",
    "subject_verb_agreement",
    "templates_for",
    "word_senses",
    "write_pairs",
]

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
