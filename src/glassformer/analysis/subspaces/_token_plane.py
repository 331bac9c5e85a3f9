"""Tokens of a text as points: their vectors on the axes along which these vary most.

    point = (x - centre) A'        A: the first principal axes of the x of all positions, orthonormal rows

The vectors are what the tokens enter the stream as, what the unembedding compares the stream with, or the stream at one
place. The same axes place whatever else is a vector of the stream: what was written to it gives the arrows of a token's
path, `frozen.write_projections(run, directions=plane.axes.values)`, which begin at the place of the zero vector and,
summed, end at the stream's own point. A plane shows the share of the variance that `explained` says, and no more.

Source: Pearson 1901, "On Lines and Planes of Closest Fit to Systems of Points in Space".
"""

import dataclasses
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.places import position_labels
from glassformer.analysis.question import question
from glassformer.arguments import Count, Natural
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, UnknownSite, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.numerics import decompositions
from glassformer.numerics.precision import ROUNDING

PlaneOf = Literal["embedding", "unembedding", "stream"]


@dataclasses.dataclass(frozen=True, eq=False)
class TokenPlane(Result):
    """Tokens of a text on the first principal axes of their vectors.

    Args:
        points: Coordinates of every position, `pos axis`; of those that count, the mean is zero.
        explained: Share of the vectors' variance along each axis, `axis`, falling.
        axes: Orthonormal directions of the stream, `axis d_model`.
        centre: Mean of the vectors, `d_model`.
        zero: Where the zero vector lies, `axis`: paths of what is written begin there.
        skip: How many positions at the beginning do not count.
        of: Whose vectors.
        site: Where they were read; empty for the unembedding, whose vectors are weights.
    """

    HEADLINE = ("explained", "points")
    SIGNED = ("points", "axes", "centre", "zero")

    points: Labelled
    explained: Labelled
    axes: Labelled
    centre: Labelled
    zero: Labelled
    skip: int
    of: PlaneOf
    site: str

    def placed(self, vectors: Float[Tensor, "*rest d_model"]) -> Float[Tensor, "*rest axis"]:
        """Return the coordinates of other vectors of the stream on the same axes."""
        axes = self.axes.values
        return (vectors.to(axes) - self.centre.values) @ axes.mT


def _read_at(model: ModelLike, of: PlaneOf = "stream", site: str | None = None) -> str:
    """Return where the vectors are read; empty if they are weights."""
    model = require_model(model, "token_plane")
    if site is not None and of != "stream":
        raise ShapeMismatch(f'token_plane: site="{site}" is a place of the stream; leave it out, or give of="stream".')
    if of == "unembedding":
        return ""
    if of == "embedding":
        return model.output_embed.at_token
    places = [place for stack in model.stacks.values() for block in stack.blocks for place in block.at_resid]
    if site is None:
        own = model.output_stack.blocks
        # without blocks the stream is what enters it
        return own[-1].at_resid[-1] if own else model.output_embed.at_token
    if site not in places:
        raise UnknownSite(f'token_plane: "{site}" is no place in a residual stream.{nearest(site, places)}')
    return site


def _plane_sites(model: ModelLike, of: PlaneOf = "stream", site: str | None = None) -> list[str]:
    where = _read_at(model, of, site)
    return [where] if where else []


@question("Where do the tokens of a text lie, seen along the axes on which they differ most?", reads=_plane_sites)
@torch.no_grad()
def token_plane(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    of: PlaneOf = "stream",
    site: str | None = None,
    skip: Natural = 0,
    axes: Count = 3,
    row: int = 0,
) -> TokenPlane:
    """Place the tokens of a text on the principal axes of their vectors.

    A token that a text has twice counts twice. What enters the stream is taken before positions are added; rows of the
    unembedding as they are, before the final norm's gain.

    Args:
        of: `embedding`, what each token enters the stream as; `unembedding`, what the stream is compared with where the
            token is predicted; `stream`, what there is at one place.
        site: That place, `blocks.2.resid_pre`; by default what the last block leaves.
        skip: Positions at the beginning that do not count for the axes, and are placed on them as all else is. What
            gathers at the first one of many models would take an axis for itself.
        axes: How many, at most: a text has no more than its vectors span.

    Raises:
        SiteNotRead: The run lacks the site.
        UnknownSite: No such place in a residual stream.
        ShapeMismatch: A place is given for vectors that are not of the stream.
        AnalysisUnavailable: The vectors do not differ, or tokens have none, as logits are of no tokens.
    """
    where = _read_at(run.model, of, site)
    vectors = _of_unembedding(run) if not where else _read(run, where)
    counted = vectors[skip:]
    # of vectors that are alike rounding is left, which has axes too
    if float((counted - vectors[-1]).norm()) <= ROUNDING * float(counted.norm()):
        raise AnalysisUnavailable(
            f"token_plane: the vectors that count ({len(counted)}) do not differ, so nothing spans a plane.\n"
            "    Give a text of several tokens; of the stream, at a place where positions tell them apart."
        )
    centre, found, explained = decompositions.principal_axes(counted, axes)
    some = explained > ROUNDING**2
    found, explained = found[some], explained[some]
    tokens = run.source_tokens if where and run.model.sites()[where].stack == "encoder" else run.tokens
    labels = position_labels(tokens) if len(tokens) == len(vectors) else []
    return TokenPlane(
        points=Labelled((vectors - centre) @ found.mT, ("pos", "axis"), {"pos": labels} if labels else {}),
        explained=Labelled(explained, ("axis",)),
        axes=Labelled(found, ("axis", "d_model")),
        centre=Labelled(centre, ("d_model",)),
        zero=Labelled(-centre @ found.mT, ("axis",)),
        skip=skip,
        of=of,
        site=where,
    )


def _read(run: Run, site: str) -> Float[Tensor, "pos d_model"]:
    run.require([site], "token_plane")
    return run[site].values[0].detach().double()


def _of_unembedding(run: Run) -> Float[Tensor, "pos d_model"]:
    model: Model = run.model
    if run.ids is None or model.logits_of not in ("next_token", "token"):
        raise AnalysisUnavailable(
            "token_plane: logits of this model are of no tokens of a text, so these have no rows in the unembedding.\n"
            '    What the stream holds of them: token_plane(run, of="stream").'
        )
    return model.unembed.direction(run.ids[0]).detach().double()
