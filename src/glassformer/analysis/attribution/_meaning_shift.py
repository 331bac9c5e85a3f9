"""Meaning from context: one word in two contexts, and what moves its stream from one to the other.

    x_second - x_first = sum over components of (what it wrote in the second context - what it wrote in the first)

The split is exact at every place of the stream. A head's share is split further by the tokens it took it from, with
patterns, norms and gates as they were in each context. In post-norm stacks, components are carried through the norms
with the scales of their own context.

Axes: `site`, places of the stream in the order of the forward pass; `component`, as in direct logit attribution; `key`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run, run, text_position
from glassformer.analysis.attribution.parts_of_effects import by_key, direct_source_sites
from glassformer.analysis.components import Component, stream_sites
from glassformer.analysis.frozen.addends import each_write, residual_sites
from glassformer.analysis.frozen.directions import Directions, pull_back, scale_sites
from glassformer.analysis.places import Places
from glassformer.analysis.prepare import prepare
from glassformer.analysis.question import question
from glassformer.errors import ShapeMismatch, TextError, UnknownSite, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.trace import At, Read

# a word may be this many tokens long
_LONGEST = 16


@dataclasses.dataclass(frozen=True, eq=False)
class MeaningShift(Result):
    """How a word's stream differs between two contexts, and by whose doing.

    Args:
        distance: Length of the difference, `site`.
        relative: The same over the mean length of the two streams, `site`.
        cosine: Between the two streams, `site`.
        along: What each component adds along the direction, `site component`; it sums to `distance` along the
            difference itself, and to the difference's extent along a direction that was given. Components that have
            not written yet add 0, and so does everything where the streams do not differ.
        size: Length of each component's own difference, `site component`; writes can cancel, so it can exceed the
            whole.
        first_tokens: What each head took along the direction from each token of the first context, `head key`, at
            the place that `site` names.
        second_tokens: The same for the second; the sum over its keys less that over the first's is the head's `along`.
        first_cross: As `first_tokens`, for cross-attention, whose keys are the encoder's tokens; None without any.
        second_cross: The same for the second context.
        components: What each of them is.
        word: The tokens that were followed, in the first context and in the second.
        positions: Where they stand.
        site: Place that the split by tokens belongs to.
        norm: Always `frozen`: nothing downstream of a write takes part but norms, each with the scale it had.
    """

    HEADLINE = ("relative", "along", "first_tokens", "second_tokens")
    SIGNED = ("cosine", "along", "first_tokens", "second_tokens", "first_cross", "second_cross")

    distance: Labelled
    relative: Labelled
    cosine: Labelled
    along: Labelled
    size: Labelled
    first_tokens: Labelled
    second_tokens: Labelled
    first_cross: Labelled | None
    second_cross: Labelled | None
    components: tuple[Component, ...]
    word: tuple[str, str]
    positions: tuple[int, int]
    site: str
    norm: str = "frozen"

    def by_token(self) -> tuple[Labelled, Labelled]:
        """Share of each token, of either context, in what all heads together moved: `key`."""
        first, second = (
            Labelled(tokens.values.sum(0), ("key",), {"key": tokens.labels("key")})
            for tokens in (self.first_tokens, self.second_tokens)
        )
        return first, second


@question(
    "What moves a word's meaning between two contexts?",
    of="texts",
    holds=("patterns", "norm scales", "gates", "readout"),
    judge="derivatives of passes in which writes reach a place directly or not at all, in both contexts",
)
def meaning_shift(
    model: ModelLike,
    first: Any,
    second: Any,
    word: str | int | tuple[int, int],
    *,
    site: str | None = None,
    direction: Float[Tensor, " d_model"] | None = None,
) -> MeaningShift:
    """Follow a word through depth in two contexts and split what moves it.

    Args:
        model: One of ours.
        first: Text or ids of one context; for an encoder-decoder, a `Batch` of one row.
        second: The other.
        word: The word, found at its last occurrence in each text (of several tokens the last is followed); or a
            position, or one for each context, negative ones counted from the end.
        site: Place in the stream whose difference is split by tokens; what the final norm reads by default.
        direction: Direction of the stream to measure along at every place; its length does not count. By default the
            difference at each place itself.

    Raises:
        TextError: A text lacks the word.
        AnalysisUnavailable: The model is not one of ours, or has no attention.
        NoPattern: A mechanism has no pattern that multiplies values, so heads have no shares by token.
        UnknownSite: There is no such place.
        ShapeMismatch: A context has more than one row, or the direction is no vector of the stream.

    Example:
        >>> shift = meaning_shift(model, "a fashion model", "a language model", "model")
        >>> shift.along.select(site=shift.site).top(3)
    """
    sites = stream_sites(model)
    site = sites[-1] if site is None else site
    if site not in sites:
        raise UnknownSite(
            f'meaning_shift: "{site}" is no place in the stream.{nearest(site, sites)}\n    Places: {", ".join(sites)}.'
        )
    contexts = [_pass(model, given, word, i) for i, given in enumerate((first, second))]
    streams = [torch.stack([done[name].values[0, 0] for name in sites]) for done, _ in contexts]
    difference = (streams[1] - streams[0]).double()
    units = _units(difference, direction)
    components, along, size = _components([done for done, _ in contexts], sites, units)
    tokens = [_tokens(done, site, units[sites.index(site)]) for done, _ in contexts]
    names = {"site": sites, "component": [c.label for c in components]}
    distance, lengths = difference.norm(dim=-1), [x.double().norm(dim=-1) for x in streams]
    dots = (streams[0].double() * streams[1].double()).sum(-1)

    def by_site(values: Tensor) -> Labelled:
        return Labelled(values, ("site",), {"site": sites})

    return MeaningShift(
        distance=by_site(distance),
        relative=by_site(2 * distance / (lengths[0] + lengths[1])),
        cosine=by_site(dots / (lengths[0] * lengths[1])),
        along=Labelled(along, ("site", "component"), names),
        size=Labelled(size, ("site", "component"), names),
        first_tokens=tokens[0][0],
        second_tokens=tokens[1][0],
        first_cross=tokens[0][1],
        second_cross=tokens[1][1],
        components=tuple(components),
        word=(contexts[0][0].tokens[contexts[0][1]], contexts[1][0].tokens[contexts[1][1]]),
        positions=(contexts[0][1], contexts[1][1]),
        site=site,
    )


def find_word(tokens: Sequence[str], word: str) -> int:
    """Return the position of a word's last token at the word's last occurrence; raises `TextError`.

    A word is one token or several in a row that together spell it, spaces around it aside.
    """
    for end in range(len(tokens), 0, -1):
        for start in range(end - 1, max(end - 1 - _LONGEST, -1), -1):
            if "".join(tokens[start:end]).strip() == word.strip():
                return end - 1
    shown = " ".join(repr(token) for token in tokens[:24]) + (" …" if len(tokens) > 24 else "")
    raise TextError(
        f'meaning_shift: no "{word}" among the tokens {shown}.\n    Give positions instead, one for each context.'
    )


def _pass(model: ModelLike, given: Any, word: str | int | tuple[int, int], which: int) -> tuple[Run, int]:
    """Run a model on one context, keeping what its heads read everywhere and all else at the word alone."""
    prepared = prepare(model, given, None)
    prepared.require_ids("meaning_shift")
    if len(prepared.token_rows) != 1:
        raise ShapeMismatch(
            f"meaning_shift: a context is one row of text; found {len(prepared.token_rows)}.\n"
            "    Of several: [meaning_shift(model, one, other, word) for one, other in contexts]."
        )
    tokens = prepared.token_rows[0]
    if isinstance(word, str):
        position = find_word(tokens, word)
    else:
        position = text_position(word if isinstance(word, int) else word[which], len(tokens))
    table = model.sites()
    here = slice(position, position + 1)
    reads = []
    for name in dict.fromkeys((*residual_sites(model), *direct_source_sites(model), *scale_sites(model))):
        axes = table[name].axes
        at = {axis: here for axis in ("pos", "query") if axis in axes}
        reads.append(Read(name, at=At(**at)))
    return run(model, given, read=reads), position


def _units(
    difference: Float[Tensor, "site d_model"], direction: Float[Tensor, " n"] | None
) -> Float[Tensor, "site d_model"]:
    """Return the unit vector to measure along at each place: along the direction, or along the difference there."""
    if direction is None:
        distance = difference.norm(dim=-1, keepdim=True)
        return difference / distance.clamp_min(torch.finfo(distance.dtype).tiny)
    if direction.shape != difference.shape[-1:]:
        raise ShapeMismatch(
            f"meaning_shift: the direction has shape {tuple(direction.shape)}; the stream has "
            f"d_model={difference.shape[-1]}."
        )
    return (direction.double() / direction.double().norm()).expand_as(difference)


def _components(
    contexts: Sequence[Run], sites: Sequence[str], units: Float[Tensor, "site d_model"]
) -> tuple[list[Component], Float[Tensor, "site component"], Float[Tensor, "site component"]]:
    """Return the components at the last site, and what each adds along a unit vector and in all, by site."""
    found: list[tuple[list[Component], Tensor]] = []
    for name in sites:
        labels: list[Component] = []
        vectors: list[Tensor] = []
        for (components, before), (_, after) in zip(*(each_write(done, name) for done in contexts)):
            labels += components
            vectors.append((after - before)[:, 0].double())
        found.append((labels, torch.cat(vectors)))
    every = found[-1][0]
    along, size = (units.new_zeros(len(sites), len(every)) for _ in range(2))
    for i, (labels, difference) in enumerate(found):
        # components are in the order of the forward pass, so those of an earlier place come first
        assert labels == every[: len(labels)]
        along[i, : len(labels)], size[i, : len(labels)] = difference @ units[i], difference.norm(dim=-1)
    return every, along, size


def _tokens(done: Run, site: str, unit: Tensor) -> tuple[Labelled, Labelled | None]:
    """Return what each head took from each token, along a direction at a place."""
    device = done[site].values.device
    zero = torch.zeros(1, 1, dtype=torch.long, device=device)
    # the run keeps the word's position alone, as if the text were one token long
    at = Places(zero[0], zero, whole=True)
    path = pull_back(done, Directions.of(unit.to(done[site].values), at), at, site)
    found = by_key(done, path, at, [write.layer for write in path.writes])
    return _named(found.contributions, done.token_rows), _named(found.cross, done.source_rows)


def _named(taken: Labelled | None, rows: Sequence[Sequence[str]]) -> Any:
    if taken is None:
        return None
    values = taken.values[0, 0]
    keys = [f"{i}:{token}" for i, token in enumerate(rows[0])]
    coords = {"head": taken.labels("head")} | ({"key": keys} if len(keys) == values.shape[1] else {})
    return Labelled(values, ("head", "key"), coords)
