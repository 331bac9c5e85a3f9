"""Synthetic tasks with answer keys, and languages whose best loss is known."""

from glassformer.data.tasks.arithmetic import Arithmetic, SortedSums, Sorting
from glassformer.data.tasks.chains import Markov, SkipTrigram, ZipfMarkov
from glassformer.data.tasks.circuit_value import CircuitValue
from glassformer.data.tasks.closing_brackets import ClosingBrackets
from glassformer.data.tasks.graph_worlds import GraphWorlds, Walks
from glassformer.data.tasks.in_context import DirichletMarkov, dirichlet_predictive
from glassformer.data.tasks.puzzles import Brackets, Copy, ModularAddition, ModularSum, Needle, Recall, Reverse
from glassformer.data.tasks.question import Question, QuestionConfig, QuestionSplit
from glassformer.data.tasks.repeats import Induction, Repeat
from glassformer.data.tasks.senses import Phrase, Senses, phrases
from glassformer.data.tasks.serial import IteratedSquaring, PermutationProduct, RunningSum, SerialQuestion
from glassformer.data.tasks.sessions import Sessions
from glassformer.data.tasks.unseen_words import UnseenWords
from glassformer.data.tasks.which_task import WhichTask

__all__ = [
    "Arithmetic",
    "Brackets",
    "CircuitValue",
    "ClosingBrackets",
    "Copy",
    "DirichletMarkov",
    "GraphWorlds",
    "Induction",
    "IteratedSquaring",
    "Markov",
    "ModularAddition",
    "ModularSum",
    "Needle",
    "PermutationProduct",
    "Phrase",
    "Question",
    "QuestionConfig",
    "QuestionSplit",
    "Recall",
    "Repeat",
    "Reverse",
    "RunningSum",
    "Senses",
    "SerialQuestion",
    "Sessions",
    "SkipTrigram",
    "SortedSums",
    "Sorting",
    "UnseenWords",
    "Walks",
    "WhichTask",
    "ZipfMarkov",
    "dirichlet_predictive",
    "phrases",
]
