"""Addressing a forward pass: named sites, the tape, edits as data."""

from glassformer.trace.edits import Add, Apply, At, Edit, Project, Scale, Set, Take
from glassformer.trace.foreign import Foreign, is_named, parts_of
from glassformer.trace.places import Place
from glassformer.trace.tape import (
    Read,
    Site,
    SiteTable,
    Tape,
    changes,
    declare,
    full_names,
    role_of,
    site,
    wants,
)

__all__ = [
    "Add",
    "Apply",
    "At",
    "Edit",
    "Foreign",
    "Place",
    "Project",
    "Read",
    "Scale",
    "Set",
    "Site",
    "SiteTable",
    "Take",
    "Tape",
    "changes",
    "declare",
    "full_names",
    "is_named",
    "parts_of",
    "role_of",
    "site",
    "wants",
]
