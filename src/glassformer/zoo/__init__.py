"""Small trained models that ship with the package, each a model folder with a card and its training metrics."""

from glassformer.zoo.build import build
from glassformer.zoo.card import Card, card, cards, write_card

__all__ = ["Card", "build", "card", "cards", "write_card"]
