"""Addressing a forward pass: named sites, the tape, edits as data."""

from glassformer.trace.edits import Add, Apply, At, Edit, Project, Scale, Set, Take
from glassformer.trace.foreign import Foreign, is_named, parts_of
from glassformer.trace.heads import HeadAddress, Located, head_label, head_labels, key_head_label
from glassformer.trace.places import Place
from glassformer.trace.sites import Site, declare, full_names, in_layers, role_of
from glassformer.trace.tape import HasSites, Read, Request, SiteTable, Tape, changes, site, wants

__all__ = [
    "Add",
    "Apply",
    "At",
    "Edit",
    "Foreign",
    "HasSites",
    "HeadAddress",
    "Located",
    "Place",
    "Project",
    "Read",
    "Request",
    "Scale",
    "Set",
    "Site",
    "SiteTable",
    "Take",
    "Tape",
    "changes",
    "declare",
    "full_names",
    "head_label",
    "head_labels",
    "in_layers",
    "is_named",
    "key_head_label",
    "parts_of",
    "role_of",
    "site",
    "wants",
]
