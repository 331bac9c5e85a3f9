"""Small trained models that ship with the package, each a model folder with a card and its training metrics."""

from typing import TYPE_CHECKING

from glassformer.lazy import renames
from glassformer.zoo.card import ModelCard, card, cards, write_card

__all__ = ["ModelCard", "card", "cards", "write_card"]

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
