"""Addressing a forward pass: named sites, the tape, edits as data."""

from glassformer.trace.directed_edits import AddWhere, Interchange
from glassformer.trace.edits import Add, Apply, At, Edit, Project, Scale, Set, Take
from glassformer.trace.foreign import Foreign, is_named, parts_of
from glassformer.trace.heads import HeadAddress, Located, head_label, head_labels, key_head_label, sites_of_heads
from glassformer.trace.passes import Columns, by_position, growing_axes, in_pass, of_single_rows, require_there, settled
from glassformer.trace.places import Place
from glassformer.trace.shares import Shares
from glassformer.trace.sites import Site, declare, full_names, role_of
from glassformer.trace.splits import PartAxes, Split, splits_of, unsplit, with_splits, without_splits
from glassformer.trace.tape import HasSites, Read, Request, SiteTable, Tape, changes, site, wants

__all__ = [
    "Add",
    "AddWhere",
    "Apply",
    "At",
    "Columns",
    "Edit",
    "Foreign",
    "HasSites",
    "HeadAddress",
    "Interchange",
    "Located",
    "PartAxes",
    "Place",
    "Project",
    "Read",
    "Request",
    "Scale",
    "Set",
    "Shares",
    "Site",
    "SiteTable",
    "Split",
    "Take",
    "Tape",
    "by_position",
    "changes",
    "declare",
    "full_names",
    "growing_axes",
    "head_label",
    "head_labels",
    "in_pass",
    "is_named",
    "key_head_label",
    "of_single_rows",
    "parts_of",
    "require_there",
    "role_of",
    "settled",
    "site",
    "sites_of_heads",
    "splits_of",
    "unsplit",
    "wants",
    "with_splits",
    "without_splits",
]
