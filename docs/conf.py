"""Sphinx settings: MyST pages, the Furo theme, API pages from docstrings, and nothing fetched from another host."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "glassformer"
author = "the Glassformer contributors"
project_copyright = author
version = release = installed_version("glassformer")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "chinese",
    "equations",
    "executed",
    "offline",
    "sidebar",
    "studies",
]
exclude_patterns = ["_build", "_templates", "_extensions"]
templates_path = ["_templates"]

# docstrings write `name` for code, as Markdown does
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
myst_heading_anchors = 3

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = "glassformer"
html_show_sphinx = False
