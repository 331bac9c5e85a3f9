"""How a run's logged measures changed as it was trained, as charts, and where in-context learning set in."""

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.analysis.learning import Trajectory, phase_change
from glassformer.analysis.reports.circuits_document import Chart, Curve, TrainingFacts
from glassformer.errors import AnalysisUnavailable
from glassformer.words import sentence

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
        found = phase_change(Trajectory.logged(metrics))
        tokens = {line["step"]: line["tokens"] for line in metrics}
        return TrainingFacts(tuple(charts), int(tokens[found.step]))
    except AnalysisUnavailable:
        return TrainingFacts(tuple(charts), None)


def _curve(metrics: Sequence[Mapping[str, Any]], key: str, name: str) -> Curve:
    lines = [line for line in metrics if line.get(key) is not None]
    return Curve(name, tuple(float(line["tokens"]) for line in lines), tuple(float(line[key]) for line in lines))
