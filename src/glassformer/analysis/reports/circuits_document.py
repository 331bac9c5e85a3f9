"""What `circuits` returns. Field names are those of the JSON document, which `docs/circuits-json.md` describes."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from glassformer.analysis.learning import InContextLearning
from glassformer.analysis.reports.model_facts import ModelFacts
from glassformer.labelled import Labelled, Result

FORMAT, VERSION = "glassformer.circuits", 1


@dataclasses.dataclass(frozen=True)
class HeadCircuits:
    """One head, evidence side by side; None where an analysis is not defined for it.

    Args:
        label: `L1H6`.
        stack: Empty for a decoder, else `encoder` or `decoder`.
        part: `attn` or `cross`.
        layer: Index of the block.
        reading: `mass` if the scores below are shares of attention, `signed` if signed over absolute; None without a
            pattern.
        roles: Scores on repeated random tokens by evaluator, measured.
        copying_measured: On the same tokens: how many times as much its write raises the attended token's logit as
            the average token's of the row; 1 by chance.
        copying: Eigenvalue ratio of the full OV circuit, in [-1, 1], from weights.
        copying_through: The same for tokens as they reach the head: with what MLPs, and heads that by position attend
            to their own token, wrote there.
        offset: Offset with the most attention if only position counted, from weights.
        offset_score: That attention, in [0, 1].
        read_dimensions: Effective dimensions (participation ratio) of what values read.
        write_dimensions: Of what is written.
        ablation_loss: Loss without the head less the whole model's, nats.
        ablation_loss_spread: Its standard error over rows.
        ablation_icl: In-context-learning score without the head less the whole model's, nats; positive where it
            carries in-context learning.
        verdict: What it was seen to do, in words, with the evidence.
        doubts: What its weights would let it do, and what it was not seen to do.
    """

    label: str
    stack: str
    part: str
    layer: int
    reading: str | None
    roles: Mapping[str, float]
    copying_measured: float | None
    copying: float | None
    copying_through: float | None
    offset: int | None
    offset_score: float | None
    read_dimensions: float | None
    write_dimensions: float | None
    ablation_loss: float | None
    ablation_loss_spread: float | None
    ablation_icl: float | None
    verdict: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class EdgeFacts:
    """A later head that reads what an earlier one writes: `kind` Q, K or V; random matrices score `baseline`, give or
    take `spread`; `excess` is the score less the baseline."""

    kind: str
    earlier: str
    later: str
    score: float
    baseline: float
    spread: float
    excess: float


@dataclasses.dataclass(frozen=True)
class JointFacts:
    """What removing several heads at once changes, in nats: loss and in-context-learning score, as for one head."""

    heads: tuple[str, ...]
    ablation_loss: float
    ablation_icl: float | None


@dataclasses.dataclass(frozen=True)
class InductionFacts:
    """An earlier head and a later one that are wired for induction by their weights, and what they were seen to do.

    Args:
        kind: `K`: the later head's keys read a previous-token head; `Q`: its queries read a duplicate-token head.
        previous: The earlier head.
        induction: The later head.
        role: How much the earlier head attends one back by position alone (`Q`: to copies, an eigenvalue ratio).
        match: Eigenvalue ratio of the composed QK circuit, in [-1, 1].
        copy: Eigenvalue ratio of the later head's OV circuit, in [-1, 1], for tokens as they reach it.
        composition: The composition score of that kind.
        role_seen: The earlier head's attention to the previous token (`Q`: to copies) on repeated random tokens.
        prefix_matching: The later head's attention there to what followed earlier copies.
    """

    kind: str
    previous: str
    induction: str
    role: float
    match: float
    copy: float
    composition: float
    role_seen: float | None
    prefix_matching: float | None


@dataclasses.dataclass(frozen=True)
class TrigramFacts:
    """A rule `source … destination -> out` of one head: attention on the source, logit it raises, their product."""

    head: str
    source: str
    destination: str
    out: str
    attention: float
    effect: float
    score: float


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a head's OV circuit as (real, imaginary), largest first; their ratio, None if only rounding."""

    label: str
    values: tuple[tuple[float, float], ...]
    ratio: float | None


@dataclasses.dataclass(frozen=True)
class PairEntry:
    """Two tokens and the entry of the circuit: logits (OV) or score (QK), rows centred."""

    first: str
    second: str
    value: float


@dataclasses.dataclass(frozen=True)
class StrongestPairs:
    """The strongest pairs of one head; a circuit that is not defined is empty, and the caption says why."""

    label: str
    ov: tuple[PairEntry, ...]
    ov_caption: str
    qk: tuple[PairEntry, ...]
    qk_caption: str


@dataclasses.dataclass(frozen=True)
class OrderFacts:
    """Paths through up to so many heads: loss with them, gain over one order less, both in nats; number of paths."""

    name: str
    loss: float
    marginal: float
    terms: int


@dataclasses.dataclass(frozen=True)
class LossFacts:
    """Mean loss by position in nats, and the in-context-learning score with its bootstrap interval."""

    name: str
    positions: tuple[int, ...]
    loss: tuple[float | None, ...]
    icl: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, found: InContextLearning) -> "LossFacts":
        places = tuple(int(i) for i in found.loss.labels("pos"))
        values = tuple(None if math.isnan(x) else x for x in found.loss.values.tolist())
        return cls(name, places, values, found.score, found.low, found.high)


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a chart; None where nothing was measured."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True)
class Chart:
    """Lines over tokens seen in training; `y` says what is drawn, and in which unit."""

    y: str
    series: tuple[Curve, ...]


@dataclasses.dataclass(frozen=True)
class TrainingFacts:
    """What changed in training; `change` is the number of tokens at which the in-context-learning score fell fastest,
    None if it was not located."""

    charts: tuple[Chart, ...]
    change: int | None


@dataclasses.dataclass(frozen=True)
class Unavailable:
    """An analysis that could not be made, and why."""

    analysis: str
    why: str


@dataclasses.dataclass(frozen=True, eq=False)
class Circuits(Result):
    """The circuits of a model.

    Args:
        model: What was looked at.
        findings: The main results in sentences.
        heads: Every head.
        edges: Strongest compositions above what random matrices give.
        induction: Induction circuits from weights alone, best first.
        trigrams: Strongest skip-trigrams of the first layer's heads.
        eigenvalues: Of every head's full OV circuit.
        pairs: Token pairs of some heads.
        importance: Loss by order of paths; empty where undefined.
        losses: Loss by position of the texts that were given.
        ablated_loss: Loss of the whole model on the rows of the ablations, nats.
        ablated_icl: Its in-context-learning score there.
        together: All induction heads removed at once, if there are several and text was given.
        training: What changed in training, if a run was given.
        unavailable: What could not be said.
    """

    model: ModelFacts
    findings: tuple[str, ...]
    heads: tuple[HeadCircuits, ...]
    edges: tuple[EdgeFacts, ...]
    induction: tuple[InductionFacts, ...]
    trigrams: tuple[TrigramFacts, ...]
    eigenvalues: tuple[Spectrum, ...]
    pairs: tuple[StrongestPairs, ...]
    importance: tuple[OrderFacts, ...]
    losses: tuple[LossFacts, ...]
    ablated_loss: float | None
    ablated_icl: float | None
    together: JointFacts | None
    unavailable: tuple[Unavailable, ...]
    training: TrainingFacts | None = None

    HEADLINE = ("roles", "copying", "composition", "ablation_loss")
    SIGNED = ("copying", "composition", "ablation_loss")

    @property
    def roles(self) -> Labelled:
        """How much each head plays each role on repeated random tokens, `head role`; NaN where it has no score."""
        names = list(dict.fromkeys(role for head in self.heads for role in head.roles))
        numbers = [[head.roles.get(role, math.nan) for role in names] for head in self.heads]
        labels = [head.label for head in self.heads]
        return Labelled(
            torch.tensor(numbers).reshape(len(labels), len(names)), ("head", "role"), {"head": labels, "role": names}
        )

    @property
    def copying(self) -> Labelled:
        """Eigenvalue ratio of each head's full OV circuit, `head`, in [-1, 1]; NaN where undefined."""
        return self._of_heads([head.copying for head in self.heads])

    @property
    def composition(self) -> Labelled:
        """The strongest composition scores less what random matrices give, `edge`."""
        labels = [f"{edge.earlier} → {edge.later} ({edge.kind})" for edge in self.edges]
        return Labelled(torch.tensor([edge.excess for edge in self.edges]), ("edge",), {"edge": labels})

    @property
    def ablation_loss(self) -> Labelled:
        """Loss without each head less the whole model's in nats, `head`; NaN where no text was given."""
        return self._of_heads([head.ablation_loss for head in self.heads])

    def _of_heads(self, numbers: Sequence[float | None]) -> Labelled:
        values = torch.tensor([math.nan if x is None else x for x in numbers])
        return Labelled(values, ("head",), {"head": [head.label for head in self.heads]})

    def _title(self) -> str:
        return f"The circuits of {self.model.name}"

    def __getitem__(self, label: str) -> HeadCircuits:
        """Return what is known of one head."""
        return next(head for head in self.heads if head.label == label)

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        """The JSON document."""
        fields = super().to_dict(packed)
        if packed:
            return fields
        del fields["result"]
        return {"format": FORMAT, "version": VERSION} | fields

    def to_frame(self) -> Any:
        """The heads as a pandas DataFrame, one row each."""
        import pandas as pd

        rows = [dataclasses.asdict(head) for head in self.heads]
        return pd.DataFrame([{**row.pop("roles"), **row} for row in rows]).set_index("label")
