"""Small trained models that ship with the package, each a model folder with a card and its training metrics."""

from glassformer.zoo.build import build
from glassformer.zoo.card import ModelCard, card, cards, write_card

__all__ = ["ModelCard", "build", "card", "cards", "write_card"]
