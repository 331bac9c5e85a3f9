"""Small trained models that ship with the package, each a model folder with a card and its training metrics."""

from glassformer.zoo.card import ModelCard, card, cards, write_card

__all__ = ["ModelCard", "card", "cards", "write_card"]
