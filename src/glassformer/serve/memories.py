"""What came from memory: of each layer that has one, what it drew on at a position, tokens in sight or what it kept."""

import torch

from glassformer.analysis.places import text_positions
from glassformer.analysis.reports import memory_sites, memory_use
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.serve import api
from glassformer.serve.answers import Answer
from glassformer.serve.runs import ServedRun

QUANTITIES = ("window", "persistent", "memory", "gate", "surprise", "mean_surprise")


def memories(run: ServedRun, view: api.Rows) -> Answer:
    """Return shares of attention, gates and surprise, layer by layer; NaN where a layer has no such number."""
    (position,) = text_positions([view.position], run.inputs.output.counts[0])
    sites = memory_sites(run.model)
    if not sites:
        raise AnalysisUnavailable(
            "what came from memory: no layer of this model has one, and its heads look at the tokens of the text.\n"
            "    Those that do: persistent, segment_recurrence, nearest_memory, linear_memory, neural_memory."
        )
    found = memory_use(run.read(sites), position)
    coords = {"layer": [one.label for one in found]}
    arrays = {
        name: Labelled(torch.tensor([_number(getattr(one, name)) for one in found]), ("layer",), coords)
        for name in QUANTITIES
    }
    lines = [
        *run.code.lines("run", [repr(site) for site in sites]),
        f"used = gf.analysis.reports.memory_use(run, {position})",
        f"names = {QUANTITIES}",
        "numbers = {name: [getattr(one, name) for one in used] for name in names}",
        "found = {",
        "    name: gf.Labelled(torch.tensor([float('nan') if x is None else x for x in numbers[name]]), ('layer',))",
        "    for name in names",
        "}",
    ]
    return Answer("memories", arrays, {"position": position}, "\n".join(["import torch", *lines]))


def _number(value: float | None) -> float:
    return torch.nan if value is None else value
