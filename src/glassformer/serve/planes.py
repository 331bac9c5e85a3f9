"""Planes: tokens as points with the path of one of them, and a query among its keys."""

from collections.abc import Mapping
from typing import Any

from glassformer.analysis.behaviour import query_key_plane as plane_of_query
from glassformer.analysis.cards import card_of
from glassformer.analysis.components import stream_sites
from glassformer.analysis.frozen import write_projections
from glassformer.analysis.places import text_positions
from glassformer.analysis.subspaces import token_plane
from glassformer.errors import AnalysisUnavailable
from glassformer.serve import api
from glassformer.serve.answers import Answer, taken_apart
from glassformer.serve.runs import ServedRun

_PLANE, _WRITES = "gf.analysis.subspaces.token_plane", "gf.analysis.frozen.write_projections"
_QUERY = "gf.analysis.behaviour.query_key_plane"


def plane(run: ServedRun, view: api.PlaneView) -> Answer:
    """Return the points of all tokens, where zero lies, and on the same axes what was written at one position."""
    (position,) = text_positions([view.position], run.inputs.output.counts[0])
    place: dict[str, Any] = {} if view.site is None else {"site": view.site}
    of: dict[str, Any] = {"of": view.of} | (place if view.of == "stream" else {})
    reads, left_out = card_of(token_plane).reads(run.model, **of), dict[str, str]()
    found = token_plane(run.read(reads), **of, skip=view.skip)
    arrays = {name: getattr(found, name) for name in ("points", "explained", "zero")}
    lines = [f"plane = {_PLANE}(run{_said(of | {'skip': view.skip})})"]
    code = {name: f"plane.{name}" for name in arrays}
    try:
        more = card_of(write_projections).reads(run.model, **place)
        writes = write_projections(run.read([*reads, *more]), directions=found.axes.values, **place)
    except AnalysisUnavailable as error:
        left_out["writes"] = str(error)
    else:
        reads += more
        arrays["writes"] = writes.values.select(pos=position)
        lines.append(f"writes = {_WRITES}(run, directions=plane.axes.values{_said(place)})")
        code["writes"] = f"writes.values.select(pos={position})"
        place = {"site": writes.site}
    body = [f"    {name!r}: {expression}," for name, expression in code.items()]
    read = run.code.lines("run", [repr(name) for name in dict.fromkeys(reads)])
    places = stream_sites(run.model) if run.model.output_stack.blocks else []
    facts = {"of": found.of, "skip": found.skip, "position": position, "places": places, "left_out": left_out} | place
    return Answer("plane", arrays, facts, "\n".join([*read, *lines, "found = {", *body, "}"]))


def query_key_plane(run: ServedRun, head: str, index: int, view: api.QueryKeyView) -> Answer:
    reads = card_of(plane_of_query).reads(run.model, head=head)
    options = {"head": head, "position": index, "stream": view.stream}
    found = plane_of_query(run.read(reads), **options)
    code = [*run.code.lines("run", [repr(name) for name in reads]), f"found = {_QUERY}(run{_said(options)})"]
    return Answer("query-key-plane", *taken_apart(found), "\n".join(code))


def _said(options: Mapping[str, Any]) -> str:
    return "".join(f", {name}={value!r}" for name, value in options.items())
