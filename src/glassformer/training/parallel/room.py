"""Whether a model has room on a mesh: by how much it has not, and which meshes would do.

Sought are the fewest ranks for each way to cut layers, rows shared among twice as many ranks until a rank has room.
"""

from collections.abc import Iterator
from typing import Any

from glassformer.errors import ConfigError
from glassformer.models import ModelConfig
from glassformer.provenance import Note
from glassformer.training.parallel.mesh import Mesh
from glassformer.training.parallel.plan import GIB, LEADERS, Plan, plan
from glassformer.words import sentence

# ranks that share a layer exchange in the midst of it, and stand close together
CLOSE = (1, 2, 4, 8)
MOST_RANKS, MOST_WAYS = 4096, 3


def note_of_room(config: ModelConfig, found: Plan) -> Note | None:
    """What a plan that does not fit lacks, and what would fit; None for one that does.

    Args:
        config: The model.
        found: Its plan.
    """
    if found.fits:
        return None
    seen = sentence(
        "A rank would hold {peak:.1f} GiB, which is {over:.1f} GiB more than it has.",
        peak=found.peak / GIB, over=(found.peak - found.capacity) / GIB,
    )  # fmt: skip
    ways = sorted(_ways(config, found), key=lambda way: way.ranks)[:MOST_WAYS]
    if ways:
        said = "; ".join(f"{way.mesh} ({way.ranks} ranks, {way.peak / GIB:.1f} GiB)" for way in ways)
        return Note(seen, "", sentence("It would fit, at as many rows a rank, with {ways}.", ways=said))
    least = max(found.beginning, found.resuming, _leaders(found))
    if least > found.capacity:
        return Note(
            seen,
            sentence(
                "No mesh changes that: {least:.1f} GiB are of the whole model, which each rank builds and rank 0 "
                "keeps.",
                least=least / GIB,
            ),
            sentence("Ranks with more memory would, or a smaller model."),
        )
    advice = sentence("A shorter text (--length), fewer rows in a part (--accumulate) or bfloat16 would keep less.")
    return Note(seen, sentence("No mesh of up to {most} ranks has room.", most=MOST_RANKS), advice)


def _leaders(found: Plan) -> float:
    parts = found.memory.labels("part")
    return float(found.memory.values[parts.index(LEADERS)]) if LEADERS in parts else 0.0


def _ways(config: ModelConfig, found: Plan) -> Iterator[Plan]:
    """Yield plans that fit, one for each way to cut layers, at as many rows a rank and positions a row."""
    asked = Mesh.read(found.mesh)
    if max(found.beginning, found.resuming, _leaders(found)) > found.capacity:
        return
    rows = -(-found.batch // asked.dp)
    same: dict[str, Any] = {
        "length": found.length, "precision": found.precision, "memory": found.capacity / GIB,
    }  # fmt: skip
    for tp in CLOSE:
        dp = 1
        while dp * tp * asked.cp <= MOST_RANKS:
            try:
                way = plan(config, Mesh(dp=dp, cp=asked.cp, tp=tp), batch=dp * rows, **same)
            except ConfigError:
                break
            if way.fits:
                yield way
                break
            dp *= 2
