"""Model cards: measured figures as JSON, and the same for people."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glassformer import checkpoints, files
from glassformer.errors import UnknownModel, nearest
from glassformer.files import json_text
from glassformer.files.packaged import shipped_folder
from glassformer.words import spoken

CARD = "card.json"


@dataclass(frozen=True)
class ModelCard:
    """What is known of a shipped model; every number was measured on the weights as stored.

    Args:
        name: Under which it loads.
        about: One sentence.
        recipe: The command that redoes it.
        parameters: Trainable numbers, tied ones once.
        max_len: Longest text it takes, in tokens.
        trained_length: Longest row of its training, in tokens.
        steps: Updates.
        tokens: Target tokens seen.
        seconds: Wall-clock time of training, with `threads` CPU threads.
        threads: CPU threads.
        device: Where it was trained: `cpu`, or an accelerator by its name.
        dtype: Of the stored weights.
        data: What `Data.describe()` says of what it was trained on.
        synthetic: What of each training batch was made up: its share of the rows, by what it is.
        figures: Measured numbers by name; units in the name or in `notes`.
        notes: What the figures mean and how they were taken.
        findings: What `glassformer circuits` finds in the model, in sentences.
        samples: A few outputs.
        beside: Figures of another shipped model, by its name, that the card compares this one with.
        licence: Of weights and card.
    """

    name: str
    about: str
    recipe: str
    parameters: int
    max_len: int
    trained_length: int
    steps: int
    tokens: int
    seconds: float
    threads: int
    dtype: str
    data: dict[str, Any]
    figures: dict[str, float]
    notes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    synthetic: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"
    beside: dict[str, dict[str, float]] = field(default_factory=dict)
    licence: str = "Apache-2.0"
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json_text(asdict(self), indent=1, ascii_only=False)

    def to_markdown(self) -> str:
        """The card as a page."""
        minutes = self.seconds / 60
        fence = "````"
        told = [
            spoken("recipe: `{recipe}`", recipe=self.recipe),
            spoken("parameters: {n:,}", n=self.parameters),
            spoken("context: {n:,} tokens, trained on {trained:,}", n=self.max_len, trained=self.trained_length),
            spoken(
                "training: {steps:,} steps, {tokens:,} target tokens, {minutes:.0f} minutes on {threads} CPU thread(s) "
                "of a shared machine",
                steps=self.steps, tokens=self.tokens, minutes=minutes, threads=self.threads,
            )
            if self.device == "cpu"
            else spoken(
                "training: {steps:,} steps, {tokens:,} target tokens, {minutes:.0f} minutes on {device}",
                steps=self.steps, tokens=self.tokens, minutes=minutes, device=self.device,
            ),
            spoken("made up: {what}", what=said_of_synthetic(self.synthetic)),
            spoken("weights: {dtype} safetensors; licence {licence}", dtype=self.dtype, licence=self.licence),
            spoken("versions: {versions}", versions=", ".join(f"{k} {v}" for k, v in self.versions.items())),
        ]  # fmt: skip
        parts = [
            f"# {self.name}\n\n{spoken(self.about)}",
            "\n".join(f"- {line}" for line in told),
            f"## {spoken('Figures')}\n\n{self._table()}",
            *(["\n".join(f"- {note}" for note in self.notes)] if self.notes else []),
            *(
                [f"## {spoken('Circuits')}\n\n" + "\n".join(f"- {line}" for line in self.findings)]
                if self.findings
                else []
            ),
            f"## {spoken('Data')}\n\n{fence}json\n{json_text(self.data, indent=1, ascii_only=False)}\n{fence}",
        ]
        if self.samples:
            parts.append(
                f"## {spoken('Samples')}\n\n" + "\n\n".join(f"{fence}\n{sample}\n{fence}" for sample in self.samples)
            )
        return "\n\n".join(parts) + "\n"

    def _table(self) -> str:
        """The figures, those of the model beside which they stand in a column of their own."""
        heading, line = spoken("| figure | value |"), "|---|---|"
        lines = [heading + "".join(f" {name} |" for name in self.beside), line + "---|" * len(self.beside)]
        for name, value in self.figures.items():
            others = (figures.get(name) for figures in self.beside.values())
            told = "".join(f" {'' if other is None else figure_said(other)} |" for other in others)
            lines.append(f"| {name.replace('_', ' ')} | {figure_said(value)} |{told}")
        return "\n".join(lines)


def said_of_synthetic(shares: Mapping[str, float]) -> str:
    """Return in words what of a training batch was made up."""
    said = [
        spoken("{share:.3g} % of the rows of every training batch: {about}", share=100 * share, about=spoken(about))
        for about, share in shares.items()
    ]
    return "; ".join(said) or spoken("nothing, every row is text that somebody wrote")


def write_card(card: ModelCard, folder: Path) -> None:
    """Write card.json and card.md beside the weights."""
    files.write(folder / CARD, card.to_json())
    files.write(folder / "card.md", card.to_markdown())


def cards() -> dict[str, ModelCard]:
    """Cards of all shipped models by name."""
    return {name: card(name) for name in checkpoints.shipped()}


def card(name: str) -> ModelCard:
    """Card of a shipped model; raises `UnknownModel` with the nearest name."""
    known = checkpoints.shipped()
    if name not in known:
        raise UnknownModel(f'no shipped model "{name}".{nearest(name, known)} Shipped: {", ".join(known) or "none"}.')
    return card_in(shipped_folder(name))


def card_in(folder: Path) -> ModelCard:
    """Card that lies in the folder of a shipped model, or in a copy of it."""
    data = json.loads((folder / CARD).read_text(encoding="utf-8"))
    return ModelCard(**(data | {name: tuple(data.get(name, ())) for name in ("notes", "findings", "samples")}))


def figure_said(value: float | int) -> str:
    """Return a figure as a card tells it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
