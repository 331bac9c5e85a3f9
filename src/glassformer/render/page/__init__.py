"""Results as HTML pages that open from disk, the page of a server, and both in a cell of a notebook."""

from glassformer.render.page.page import (
    attention_page,
    cell_module,
    circuits_page,
    document_page,
    explanation_page,
    explorer_files,
    results_page,
    study_page,
    title_of,
)
from glassformer.render.page.results import results_document

__all__ = [
    "attention_page",
    "cell_module",
    "circuits_page",
    "document_page",
    "explanation_page",
    "explorer_files",
    "results_document",
    "results_page",
    "study_page",
    "title_of",
]
