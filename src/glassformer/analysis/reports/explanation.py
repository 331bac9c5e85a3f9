"""What `explain` returns. Field names are those of the JSON document, which `docs/explain-json.md` describes."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.reports.model_facts import ModelFacts
from glassformer.labelled import Labelled, Result
from glassformer.trace import role_of

FORMAT, VERSION = "glassformer.explanation", 3
# in how many steps the largest weight of a pattern is counted
STEPS = 65_535


@dataclasses.dataclass(frozen=True)
class Token:
    """A token; where a character takes several, each is a `part` of it, from 0."""

    index: int
    id: int
    text: str
    unknown: bool = False
    character: str | None = None
    part: int | None = None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer: a token or a class."""

    id: int
    text: str
    logit: float
    probability: float


@dataclasses.dataclass(frozen=True)
class Outcome(Candidate):
    """A token whose fate is followed; rank 1 is the likeliest."""

    rank: int


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step on the way from text to probabilities; norms are taken at the explained position."""

    stage: Literal["text", "tokens", "ids", "embed", "encoder", "block", "final", "readout", "logits", "probabilities"]
    name: str
    shape: Mapping[str, int]
    numbers: Mapping[str, int | float]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Distribution:
    entropy_bits: float
    candidates: tuple[Candidate, ...]


@dataclasses.dataclass(frozen=True)
class SamplingStep:
    """The distribution after one step of sampling; `kept` tokens can still be drawn."""

    name: str
    setting: int | float | None
    kept: int
    entropy_bits: float
    candidates: tuple[Candidate, ...]


@dataclasses.dataclass(frozen=True)
class SamplingTrace:
    settings: Mapping[str, int | float | None]
    steps: tuple[SamplingStep, ...]
    uniform: float | None
    draw: Candidate


@dataclasses.dataclass(frozen=True)
class LensRow:
    label: str
    layer: int | None
    candidates: tuple[Candidate, ...]
    answer: Outcome
    against: Outcome | None
    entropy_bits: float
    kl_bits: float


@dataclasses.dataclass(frozen=True, eq=False)
class LensMap(Result):
    """What the model would say after each layer at every position; as JSON, rounded to what a picture shows."""

    labels: tuple[str, ...]
    positions: tuple[int, ...]
    top: Int[Tensor, "row pos k"]
    probability: Float[Tensor, "row pos k"]
    entropy_bits: Float[Tensor, "row pos"]
    kl_bits: Float[Tensor, "row pos"]
    words: Mapping[int, str]

    HEADLINE = ("likeliest", "entropy")

    @property
    def likeliest(self) -> Labelled:
        """Probability of the likeliest token, `depth pos`."""
        return self._by_place(self.probability[..., 0])

    @property
    def entropy(self) -> Labelled:
        """Of each distribution in bits, `depth pos`."""
        return self._by_place(self.entropy_bits)

    def _by_place(self, values: Tensor) -> Labelled:
        return Labelled(values, ("depth", "pos"), {"depth": self.labels, "pos": self.positions})

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        if packed:
            return super().to_dict(packed)
        numbers = {"probability": self.probability, "entropy_bits": self.entropy_bits, "kl_bits": self.kl_bits}
        return {
            "labels": list(self.labels),
            "positions": list(self.positions),
            "top": self.top.tolist(),
            **{name: _to_four_digits(values.double().tolist()) for name, values in numbers.items()},
            "words": {str(id): text for id, text in self.words.items()},
        }


def _to_four_digits(values: Any) -> Any:
    """Round numbers in nested lists: small ones keep as many digits as large ones, and none prints all its own."""
    return [_to_four_digits(one) for one in values] if isinstance(values, list) else float(f"{values:.4g}")


@dataclasses.dataclass(frozen=True)
class Contribution:
    label: str
    kind: str
    layer: int | None
    part: str
    head: int | None
    contribution: float


@dataclasses.dataclass(frozen=True)
class Contributions:
    target: Literal["logit", "difference", "raw logit", "raw difference", "slope"]
    total: float
    sum: float
    components: tuple[Contribution, ...]


@dataclasses.dataclass(frozen=True)
class InputAttribution:
    """What each token's vector does for the answer: x . dm/dx, in logits; local slopes, which sum to nothing."""

    method: Literal["gradient_x_input"]
    target: Literal["logit", "difference"]
    values: tuple[float, ...]
    source_values: tuple[float, ...] | None


@dataclasses.dataclass(frozen=True)
class Sink:
    """How far a head rests on the first token: the mass it puts there, and the share of what it moves from there."""

    mass: float
    moved: float


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """What a layer with a memory drew on at the explained position; None for what it does not have.

    Args:
        label: The layer, `L0 mac`.
        window: Share of a row of attention that is of tokens in the window or segment, mean over heads.
        persistent: Share that is of persistent tokens.
        memory: Share that is of what is remembered.
        gate: What a memory opens of what attention writes, mean over the stream; all is 1.
        surprise: Length of the gradient by which a memory learns there, mean over heads.
        mean_surprise: The same, mean over the positions up to there.
    """

    label: str
    window: float | None
    persistent: float | None
    memory: float | None
    gate: float | None
    surprise: float | None
    mean_surprise: float | None


@dataclasses.dataclass(frozen=True)
class RoleScore:
    """How far a head plays a role on this text, and in general: on repeated random tokens.

    Few positions of a text, and what is predictable in it, let heads look like what they are not: a head is `named` by
    a role if it plays it in general, and only resembles one otherwise. Both are None where that was not measured.
    """

    role: str
    score: float | None
    positions: int
    model_wide: float | None
    named: bool | None


@dataclasses.dataclass(frozen=True)
class HeadFacts:
    label: str
    stack: str
    part: str
    layer: int
    head: int
    mechanism: str
    contribution: float | None
    reading: str | None
    roles: tuple[RoleScore, ...]
    sink: Sink | None = None

    @property
    def crosses(self) -> bool:
        """Whether its keys are those of another stack."""
        return role_of(self.part) == "cross"


@dataclasses.dataclass(frozen=True)
class TopHead:
    """A head worth a look: where it looks from the explained position, and what it takes from each token."""

    label: str
    because: str
    contribution: float
    basis: Literal["pattern", "norm"]
    weights: tuple[float, ...]
    sources: tuple[float, ...]
    key: Literal["tokens", "source_tokens"]


@dataclasses.dataclass(frozen=True, eq=False)
class Pattern(Result):
    """One head's pattern; as JSON, whole numbers of steps that sum to what each row does, small ones in one byte."""

    label: str
    stack: str
    part: str
    layer: int
    head: int
    query: Literal["tokens", "source_tokens"]
    key: Literal["tokens", "source_tokens"]
    weights: Float[Tensor, "query key"]

    HEADLINE = ("pattern",)

    @property
    def pattern(self) -> Labelled:
        """How much each query takes from each key, `query key`."""
        return Labelled(self.weights, ("query", "key"), of=self.label)

    def _title(self) -> str:
        return self.label

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        if packed:
            return super().to_dict(packed)
        rows, columns = self.weights.shape
        signed = bool((self.weights < 0).any())
        scale = float(self.weights.abs().max()) if self.weights.numel() else 0.0
        # what rounding leaves goes to the next entry, so that many small weights do not all round one way
        sums = (self.weights.double() * (STEPS / (scale or 1.0))).cumsum(-1).round().long()
        data = sums.diff(dim=-1, prepend=torch.zeros_like(sums[:, :1]))
        lower = torch.ones(rows, columns, dtype=torch.bool).tril()
        causal = rows == columns and not bool(self.weights[~lower].any())
        entries = data[lower] if causal else data.flatten()
        entries = torch.where(entries < 0, -2 * entries - 1, 2 * entries) if signed else entries
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "weights"}
        return fields | {
            "rows": rows,
            "columns": columns,
            "signed": signed,
            "scale": scale,
            "layout": "lower" if causal else "full",
            "steps": STEPS,
            "data": base64.b64encode(_in_sevens(entries.cpu())).decode("ascii"),
        }


def _in_sevens(numbers: Int[Tensor, " entry"]) -> bytes:
    """Return whole numbers of up to 21 bits in bytes of seven each, lowest first, the eighth where another follows."""
    more = torch.stack((numbers >= 1 << 7, numbers >= 1 << 14, numbers < 0), -1)
    parts = torch.stack((numbers & 127, numbers >> 7 & 127, numbers >> 14), -1) + 128 * more
    there = torch.cat((torch.ones_like(more[:, :1]), more[:, :2]), -1)
    return parts[there].to(torch.uint8).numpy().tobytes()


@dataclasses.dataclass(frozen=True)
class TranslationStep:
    index: int
    input: str
    output: str
    probability: float


@dataclasses.dataclass(frozen=True)
class Translation:
    text: str
    generated: bool
    steps: tuple[TranslationStep, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation(Result):
    """One next token, explained; see `explain`. `to_dict` and `to_json` give the documented document."""

    model: ModelFacts
    text: str | None
    tokens: tuple[Token, ...]
    source_tokens: tuple[Token, ...] | None
    position: int
    answer: Outcome
    against: Outcome | None
    pipeline: tuple[Stage, ...]
    next_token: Distribution
    sampling: SamplingTrace
    lens: tuple[LensRow, ...]
    lens_map: LensMap | None
    attribution: Contributions
    inputs: InputAttribution
    heads: tuple[HeadFacts, ...]
    top_heads: tuple[TopHead, ...]
    patterns: tuple[Pattern, ...]
    translation: Translation | None
    # of an image: rows and columns of patches, and how many tokens stand before them; None of a text
    grid: tuple[int, int, int] | None = None
    # of layers with a memory
    memories: tuple[MemoryUse, ...] = ()

    HEADLINE = ("likely_next", "answer_by_depth", "contributions", "token_attribution")
    SIGNED = ("contributions", "token_attribution")

    @property
    def likely_next(self) -> Labelled:
        """Probability of the likeliest tokens or classes, `token`."""
        shown = self.next_token.candidates[:12]
        return _by("token", [found.text for found in shown], [found.probability for found in shown])

    @property
    def answer_by_depth(self) -> Labelled:
        """Probability of the answer if the model stopped there, `depth`."""
        return _by("depth", [row.label for row in self.lens], [row.answer.probability for row in self.lens])

    @property
    def contributions(self) -> Labelled:
        """What each component adds to the answer's logit, or to its difference to the other, `component`."""
        parts = self.attribution.components
        return _by("component", [part.label for part in parts], [part.contribution for part in parts])

    @property
    def token_attribution(self) -> Labelled:
        """What each token's vector does for the answer, `pos`: local slopes, which sum to nothing."""
        return _by("pos", [f"{token.index}:{token.text}" for token in self.tokens], self.inputs.values)

    def _title(self) -> str:
        place = "after" if self.model.logits_of == "next_token" else "at"
        return f"{self.answer.text!r} {place} position {self.position}, explained"

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        fields = super().to_dict(packed)
        if packed:
            return fields
        if self.grid is None:
            del fields["grid"]
        if not self.memories:
            del fields["memories"]
        del fields["result"]
        return {"format": FORMAT, "version": VERSION, "notes": []} | fields


def _by(axis: str, labels: Sequence[str], numbers: Sequence[float]) -> Labelled:
    return Labelled(torch.tensor(numbers), (axis,), {axis: labels})
