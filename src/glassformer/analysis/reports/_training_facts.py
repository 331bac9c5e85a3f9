"""How a run's logged measures changed as it was trained, as charts, and where in-context learning set in."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from glassformer.analysis.learning._phase_change import MEASURES, PhaseChange, Trajectory, phase_change
from glassformer.analysis.reports._circuits_document import Chart, Curve, TrainingFacts
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.words import sentence

LOGGED = {"loss": "heldout_loss", "icl_score": "icl_score", "prefix_matching": "prefix_matching"}
CHARTS = {
    sentence("Held-out loss, nats"): {"heldout_loss": ""},
    sentence("In-context-learning score, nats (negative is good)"): {"icl_score": ""},
    sentence("Best head by role, share of attention"): {
        "prefix_matching": sentence("prefix matching"),
        "previous_token": sentence("previous token"),
        "duplicate_token": sentence("duplicate token"),
    },
}


def training_facts(metrics: Sequence[Mapping[str, Any]]) -> TrainingFacts:
    """Return the charts of a run's metrics, and where its in-context-learning score fell fastest.

    Args:
        metrics: The lines of `metrics.jsonl`.

    Raises:
        AnalysisUnavailable: None of the measures was logged.
    """
    charts = []
    for title, names in CHARTS.items():
        series = [_curve(metrics, key, name) for key, name in names.items() if any(key in line for line in metrics)]
        charts += [Chart(title, tuple(series))] if series else []
    if not charts:
        raise AnalysisUnavailable("training: the metrics hold no held-out loss, score or head measures.")
    try:
        found = logged_phase_change(metrics)
        tokens = {line["step"]: line["tokens"] for line in metrics}
        return TrainingFacts(tuple(charts), int(tokens[found.step]))
    except AnalysisUnavailable:
        return TrainingFacts(tuple(charts), None)


def logged_phase_change(metrics: Sequence[Mapping[str, Any]], name: str = "run") -> PhaseChange:
    """Locate the phase change from what was logged, without any checkpoint.

    Raises:
        AnalysisUnavailable: The in-context-learning score was logged at fewer than three steps.
    """
    lines = [line for line in metrics if line.get("icl_score") is not None]
    steps = [int(line["step"]) for line in lines]
    values = [[float(line.get(LOGGED.get(m, m), math.nan)) for m in MEASURES] for line in lines]
    table = torch.tensor(values, dtype=torch.float64).reshape(len(lines), len(MEASURES))
    nothing = torch.full((len(lines), 1), math.nan)
    return phase_change(
        Trajectory(
            Labelled(nothing, ("step", "pos"), {"step": steps}),
            Labelled(table, ("step", "measure"), {"step": steps, "measure": MEASURES}),
            Labelled(nothing.expand(-1, 2), ("step", "end"), {"step": steps, "end": ("low", "high")}),
            ("",) * len(lines),
            Labelled(torch.tensor([int(line["tokens"]) for line in lines]), ("step",), {"step": steps}),
            name,
            0,
        )
    )


def _curve(metrics: Sequence[Mapping[str, Any]], key: str, name: str) -> Curve:
    lines = [line for line in metrics if line.get(key) is not None]
    return Curve(name, tuple(float(line["tokens"]) for line in lines), tuple(float(line[key]) for line in lines))
