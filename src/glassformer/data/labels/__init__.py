"""Labels with answer keys, as data for probes: of Python, of the Chinese-English grammar, of what comes again."""

from glassformer.data.labels.labelled import Column, LabelledDocument, LabelledText, Property
from glassformer.data.labels.python_code import python_labels
from glassformer.data.labels.tree import Node, Phrase, Tree

__all__ = ["Column", "LabelledDocument", "LabelledText", "Node", "Phrase", "Property", "Tree", "python_labels"]
