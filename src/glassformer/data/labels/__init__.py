"""Labels with answer keys, as data for probes: of Python, of the Chinese-English grammar, of copies and of meanings."""

from glassformer.data.labels.copies import copied_positions, copy_labels
from glassformer.data.labels.labelled import Column, LabelledDocument, LabelledText, Property
from glassformer.data.labels.meanings import pronoun_labels, sense_labels
from glassformer.data.labels.named import LABEL_SOURCES, labelled_text
from glassformer.data.labels.python_code import python_labels
from glassformer.data.labels.tree import Node, Phrase, Tree
from glassformer.data.labels.zh_en import zh_en_labels

__all__ = [
    "LABEL_SOURCES",
    "Column",
    "LabelledDocument",
    "LabelledText",
    "Node",
    "Phrase",
    "Property",
    "Tree",
    "copied_positions",
    "copy_labels",
    "labelled_text",
    "pronoun_labels",
    "python_labels",
    "sense_labels",
    "zh_en_labels",
]
