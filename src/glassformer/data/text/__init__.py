"""Natural text: where it comes from, how it is cut into rows, sequences planted in it, and models that count it."""

from glassformer.data.text.corpus import TextConfig, TextData
from glassformer.data.text.counts import BigramModel, NGramModel
from glassformer.data.text.planted import Planted, PlantedData, PlantedRows
from glassformer.data.text.repeated import RepeatedText, RepeatedTextData
from glassformer.data.text.sources import Document, LeftOut, python_stdlib, read_source
from glassformer.data.text.template_text import TemplateText, TemplateTextData

__all__ = [
    "BigramModel",
    "Document",
    "LeftOut",
    "NGramModel",
    "Planted",
    "PlantedData",
    "PlantedRows",
    "RepeatedText",
    "RepeatedTextData",
    "TemplateText",
    "TemplateTextData",
    "TextConfig",
    "TextData",
    "python_stdlib",
    "read_source",
]
