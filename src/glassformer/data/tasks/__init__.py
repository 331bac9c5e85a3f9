"""Synthetic tasks with answer keys, and languages whose best loss is known."""

from glassformer.data.tasks.chains import Markov, SkipTrigram, ZipfMarkov
from glassformer.data.tasks.in_context import DirichletMarkov, dirichlet_predictive
from glassformer.data.tasks.puzzles import Brackets, Copy, ModularAddition, ModularSum, Needle, Recall, Reverse
from glassformer.data.tasks.repeats import Induction, Repeat
from glassformer.data.tasks.senses import Phrase, Senses, phrases
from glassformer.data.tasks.sessions import Sessions
from glassformer.data.tasks.unseen_words import UnseenWords

__all__ = [
    "Brackets",
    "Copy",
    "DirichletMarkov",
    "Induction",
    "Markov",
    "ModularAddition",
    "ModularSum",
    "Needle",
    "Phrase",
    "Recall",
    "Repeat",
    "Reverse",
    "Senses",
    "Sessions",
    "SkipTrigram",
    "UnseenWords",
    "ZipfMarkov",
    "dirichlet_predictive",
    "phrases",
]
