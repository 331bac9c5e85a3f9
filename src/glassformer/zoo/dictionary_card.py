"""Cards of shipped dictionaries: measured figures as JSON, and the same for people."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.errors import UnknownModel, nearest
from glassformer.files import json_text
from glassformer.files.packaged import shipped_dictionaries, shipped_dictionary
from glassformer.words import spoken
from glassformer.zoo.card import CARD, figure_said


@dataclass(frozen=True)
class DictionaryCard:
    """What is known of a shipped dictionary; every number was measured on the weights as stored.

    Args:
        name: Under which it loads, `MODEL/SITE`.
        about: One sentence.
        recipe: The command that trains it anew.
        config: Its kind and sizes.
        training: Steps, rows in each, rows and texts that they were drawn from, learning rate, seed.
        dtype: Of the stored encoder and decoder.
        digest: Of the weights of the model that it is of.
        figures: Measured numbers by name; what they mean stands in `notes`.
        as_trained: The same of the weights before they were stored in that type.
        density: How many features fire in which share of positions: never, and by powers of ten.
        notes: What the figures mean and how they were taken, and what they do not show.
        licence: Of weights and card.
    """

    name: str
    about: str
    recipe: str
    config: dict[str, Any]
    training: dict[str, Any]
    dtype: str
    digest: str
    figures: dict[str, float]
    as_trained: dict[str, float]
    density: dict[str, int]
    notes: tuple[str, ...]
    licence: str = "Apache-2.0"
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json_text(asdict(self), indent=1, ascii_only=False)

    def to_markdown(self) -> str:
        """The card as a page."""
        told = [
            spoken("recipe: `{recipe}`", recipe=self.recipe),
            spoken(
                "dictionary: {kind}, {n:,} features of rows of {d_in:,} numbers",
                kind=self.config["kind"], n=self.config["n_features"], d_in=self.config["d_in"],
            ),
            spoken(
                "training: {steps:,} steps of {batch:,} rows, of {rows:,} that the model holds over {texts:,} texts",
                steps=self.training["steps"], batch=self.training["batch_size"], rows=self.training["rows"],
                texts=self.training["texts"],
            ),
            spoken("weights: {dtype} safetensors; licence {licence}", dtype=self.dtype, licence=self.licence),
            spoken("versions: {versions}", versions=", ".join(f"{k} {v}" for k, v in self.versions.items())),
        ]  # fmt: skip
        parts = [
            f"# {self.name}\n\n{spoken(self.about)}",
            "\n".join(f"- {line}" for line in told),
            f"## {spoken('Figures')}\n\n{self._table()}",
            "\n".join(f"- {note}" for note in self.notes),
        ]
        return "\n\n".join(parts) + "\n"

    def _table(self) -> str:
        lines = [spoken("| figure | value | as trained, float32 |"), "|---|---|---|"]
        for name, value in self.figures.items():
            before = self.as_trained.get(name)
            said = "" if before is None else figure_said(before)
            lines.append(f"| {name.replace('_', ' ')} | {figure_said(value)} | {said} |")
        return "\n".join(lines)


def write_dictionary_card(card: DictionaryCard, folder: Path) -> None:
    """Write card.json and card.md beside the weights."""
    files.write(folder / CARD, card.to_json())
    files.write(folder / "card.md", card.to_markdown())


def dictionary_cards() -> dict[str, DictionaryCard]:
    """Cards of all shipped dictionaries by name."""
    return {name: dictionary_card(name) for name in shipped_dictionaries()}


def dictionary_card(name: str) -> DictionaryCard:
    """Card of a shipped dictionary; raises `UnknownModel` with the nearest name."""
    known = shipped_dictionaries()
    if name not in known:
        said = f"{nearest(name, known)} Shipped: {', '.join(known) or 'none'}."
        raise UnknownModel(f'no shipped dictionary "{name}".{said}')
    return dictionary_card_in(shipped_dictionary(name))


def dictionary_card_in(folder: Path) -> DictionaryCard:
    """Card that lies in the folder of a shipped dictionary, or in a copy of it."""
    data = files.read_object(folder / CARD)
    data["notes"] = tuple(data["notes"])
    return DictionaryCard(**data)
