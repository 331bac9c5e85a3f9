"""Small trained models that ship with the package, each a model folder with a card and its training metrics."""

from typing import TYPE_CHECKING

from glassformer.lazy import renames
from glassformer.zoo.card import ModelCard, card, cards, write_card
from glassformer.zoo.dictionary_card import DictionaryCard, dictionary_card, dictionary_cards, write_dictionary_card

__all__ = [
    "DictionaryCard", "ModelCard", "card", "cards", "dictionary_card", "dictionary_cards", "write_card",
    "write_dictionary_card",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
