"""Models whose weights are set by hand, so that what an analysis must find is known; for tests and for teaching.

All are decoders in float64 without norms, MLPs and biases, and their attention scores are not divided by anything
(`Softmax(scale=1.0)`). The residual stream is laid out in named blocks of coordinates, one purpose each; `rotated`
hides the layout without changing what the model does. Every docstring says what the blocks hold, what each head does,
and what is known in closed form.

Notation: W_Q W_K W_V act on rows from the left of the stream (`query = x @ W_Q`); OV = W_V W_O, QK = W_Q W_K'; I is an
identity between two blocks, S the shift whose row i has its one in column i - 1 (row 0: in column 0); ||.|| is
Frobenius.
"""

from typing import TYPE_CHECKING

from glassformer.handmade.assemble import HeadMatrices, MlpMatrices, assemble, layout, plant, rotated
from glassformer.handmade.decoys import random_head, resting_copier
from glassformer.handmade.induction import induction_model, pointer_model, repeated, smeared_induction_model
from glassformer.handmade.positional import rope_model, virtual_head_model
from glassformer.handmade.senses import senses_model
from glassformer.handmade.tables import SkipTrigramTables, bigram_model, keep_in_mind, markov_model, skip_trigram_model
from glassformer.handmade.variables import variable_counterfactuals, variable_directions, variables_model
from glassformer.lazy import renames

__all__ = [
    "HeadMatrices",
    "MlpMatrices",
    "SkipTrigramTables",
    "assemble",
    "bigram_model",
    "induction_model",
    "keep_in_mind",
    "layout",
    "markov_model",
    "plant",
    "pointer_model",
    "random_head",
    "repeated",
    "resting_copier",
    "rope_model",
    "rotated",
    "senses_model",
    "skip_trigram_model",
    "smeared_induction_model",
    "variable_counterfactuals",
    "variable_directions",
    "variables_model",
    "virtual_head_model",
]

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
