"""Causal traces of several prompts, by what a token is to the subject.

    before | first subject, middle subject, last subject | next, further | last

A subject of one token is all `last subject`.

Source: Meng et al. 2022, "Locating and Editing Factual Associations in GPT", section 2 (averages by token).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import figures
from glassformer.analysis.causal._tracing import CausalTrace
from glassformer.analysis.uncertainty import mean, standard_error
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled, Result

ROLES = ("before", "first subject", "middle subject", "last subject", "next", "further", "last")


@dataclasses.dataclass(frozen=True, eq=False)
class TracesByRole(Result):
    """Indirect effects of many prompts by what a token is to the subject.

    Args:
        values: Indirect effect, mean over the tokens of a role, `metric kind role layer prompt`; NaN where a prompt has
            no such token. A subject of one token is all `last subject`.
        total: Total effect, `metric prompt`.
    """

    values: Labelled
    total: Labelled

    def plot(self, *fields: str) -> Any:
        """Return maps of the average indirect effect, one for each metric and kind; of other properties, if named."""
        return figures.draw([(name, getattr(self, name)) for name in fields or ("mean",)], "average indirect effect")

    @property
    def mean(self) -> Labelled:
        """Average indirect effect, `metric kind role layer`."""
        return mean(self.values)

    @property
    def error(self) -> Labelled:
        """Its standard error over prompts."""
        return standard_error(self.values)

    @property
    def average_total(self) -> Labelled:
        """Average total effect, `metric`."""
        return mean(self.total)


def average_traces(traces: Sequence[CausalTrace]) -> TracesByRole:
    """Average the traces of several prompts by role: before, first, middle and last subject token, next, further, last.

    Raises:
        ShapeMismatch: There are none, or they differ in kinds, layers or window.
    """
    if not traces:
        raise ShapeMismatch("average_traces: give at least one trace.")
    first = traces[0]
    for trace in traces:
        same = trace.values.labels("kind") == first.values.labels("kind") and trace.window == first.window
        if not same or trace.values.size("layer") != first.values.size("layer"):
            raise ShapeMismatch("average_traces: the traces differ in kinds, window or layers; trace them alike.")
    found = [_by_role(trace) for trace in traces]
    coords = {"metric": first.values.labels("metric"), "kind": first.values.labels("kind"), "role": list(ROLES)}
    return TracesByRole(
        Labelled(torch.stack(found, -1), ("metric", "kind", "role", "layer", "prompt"), coords),
        Labelled(
            torch.stack([trace.total_effect.values for trace in traces], -1), ("metric", "prompt"),
            {"metric": first.values.labels("metric")},
        ),
    )  # fmt: skip


def token_roles(subject: Sequence[int], length: int) -> list[str]:
    """Return what each position is to the subject."""
    first, last = min(subject), max(subject)

    def role(pos: int) -> str:
        if pos in subject:
            return "last subject" if pos == last else "first subject" if pos == first else "middle subject"
        if pos < first:
            return "before"
        if pos == length - 1:
            return "last"
        return "next" if pos == last + 1 else "further"

    return [role(pos) for pos in range(length)]


def _by_role(trace: CausalTrace) -> Float[Tensor, "metric kind role layer"]:
    effect = trace.indirect_effect.values
    roles = token_roles(trace.subject, effect.shape[2])
    found = []
    for role in ROLES:
        members = [i for i, other in enumerate(roles) if other == role]
        found.append(effect[:, :, members].mean(2))
    return torch.stack(found, 2)
