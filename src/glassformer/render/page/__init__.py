"""Results as HTML pages that open from disk."""

from glassformer.render.page.page import attention_page, circuits_page, explanation_page, results_page, study_page
from glassformer.render.page.results import results_document

__all__ = ["attention_page", "circuits_page", "explanation_page", "results_document", "results_page", "study_page"]
