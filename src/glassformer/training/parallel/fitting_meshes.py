"""Meshes on which a model would fit, where it does not fit on the one that was planned, and by how much it does not.

Sought are the fewest ranks for each way to cut layers, rows shared among twice as many ranks until a rank has room.
"""

from collections.abc import Iterator
from typing import Any

from glassformer.errors import ConfigError
from glassformer.models import ModelConfig
from glassformer.provenance import Note
from glassformer.training.parallel.mesh import Mesh
from glassformer.training.parallel.plan import GIB, LEADERS, Plan, plan
from glassformer.training.parallel.wire import WIDE
from glassformer.training.sharing import Checkpoints
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
    ways = _said(_ways(config, found, found.checkpoints))
    if ways:
        return Note(seen, "", sentence("It would fit, at as many rows a rank, with {ways}.", ways=ways))
    least = _of_the_whole(found)
    if least > found.capacity:
        meaning = sentence(
            "No mesh changes that: {least:.1f} GiB are of the whole model, which each rank builds and rank 0 keeps.",
            least=least / GIB,
        )
        if found.checkpoints == "shards":
            meaning = sentence(
                "No mesh changes that: {least:.1f} GiB are of the whole model, which each rank builds.",
                least=least / GIB,
            )
        elif ways := _said(_ways(config, found, "shards")):
            way_out = sentence("It would fit where ranks keep shards (--checkpoints shards), with {ways}.", ways=ways)
            return Note(seen, meaning, way_out)
        return Note(seen, meaning, sentence("Ranks with more memory would, or a smaller model."))
    advice = sentence("A shorter text (--length), fewer rows in a part (--accumulate) or bfloat16 would keep less.")
    return Note(seen, sentence("No mesh of up to {most} ranks has room.", most=MOST_RANKS), advice)


def _said(ways: Iterator[Plan]) -> str:
    """Return meshes of the fewest ranks, and what a rank holds there."""
    fewest = sorted(ways, key=lambda way: way.ranks)[:MOST_WAYS]
    return "; ".join(f"{way.mesh} ({way.ranks} ranks, {way.peak / GIB:.1f} GiB)" for way in fewest)


def _of_the_whole(found: Plan) -> float:
    """Return the bytes of the whole model that a rank of any mesh holds at some time."""
    if found.checkpoints == "shards":
        return float(WIDE * found.parameters)
    parts = found.memory.labels("part")
    leaders = float(found.memory.values[parts.index(LEADERS)]) if LEADERS in parts else 0.0
    return float(max(found.beginning, found.resuming, leaders))


def _ways(config: ModelConfig, found: Plan, checkpoints: Checkpoints) -> Iterator[Plan]:
    """Yield plans that fit, one for each way to cut layers, at as many rows a rank and positions a row."""
    asked = Mesh.read(found.mesh)
    if checkpoints == found.checkpoints and _of_the_whole(found) > found.capacity:
        return
    rows = -(-found.batch // asked.dp)
    same: dict[str, Any] = {
        "length": found.length, "precision": found.precision, "memory": found.capacity / GIB,
        "checkpoints": checkpoints,
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
