"""What is watched while a model trains: loss by position, the in-context-learning score, the best head per role.

Each measure is a function of (model, held-out data) that returns numbers by name; it leaves out what is not defined for
the model's mechanisms. Head scores lie in [0, 1].
Source: Olsson et al. 2022, "In-context Learning and Induction Heads", and its appendix on head evaluators.
"""

from typing import Any

from glassformer.analysis.heads import head_scores, heads
from glassformer.analysis.losses import icl_score, loss_by_position
from glassformer.data import Data
from glassformer.models import Decoder

# name in a metrics file -> role; the induction role is measured as prefix matching, as the paper calls it
HEAD_MEASURES = {
    "prefix_matching": "induction",
    "duplicate_token": "duplicate_token",
    "previous_token": "previous_token",
}


def text_measures(model: Decoder, data: Data, batches: int = 8) -> dict[str, Any]:
    """Measure loss by position and the in-context-learning score on held-out text."""
    losses = loss_by_position(model, *[data.batch(i, "heldout") for i in range(batches)])
    return {"icl_score": icl_score(losses), "loss_by_position": [round(float(x), 4) for x in losses.values]}


def head_measures(model: Decoder, data: Data) -> dict[str, Any]:
    """Measure every head's score per role, and the best of each; nothing if a mechanism's rows do not sum to one."""
    found = heads(model)
    if not found or any(head.reading != "mass" for head in found):
        return {}
    scores = head_scores(model)
    best = {name: scores.best(role)[1] for name, role in HEAD_MEASURES.items()}
    tables: dict[str, list[list[float]]] = {}
    for name, role in HEAD_MEASURES.items():
        by_layer: dict[int, list[float]] = {}
        for head, score in zip(found, scores.scores.select(role=role).values.tolist()):
            by_layer.setdefault(head.layer, []).append(round(score, 4))
        tables[f"{name}_by_head"] = list(by_layer.values())
    return best | tables
