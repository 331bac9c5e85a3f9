"""What comes again in rows of tokens: the position that each token is a copy of, as a model that repeats must know.

t3 t1 t7 t3 t1 t7       is a copy of       -  -  -  0  1  2
"""

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.data.labels.labelled import LabelledDocument, LabelledText


def copied_positions(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """Position of the last earlier occurrence of each token in its row; -1 where it is new.

    In rows of `Repeat` that is the position copied: a unit's tokens are all different, so it lies one unit back.
    """
    place = torch.arange(tokens.shape[1], device=tokens.device)
    earlier = (tokens[:, :, None] == tokens[:, None, :]) & (place[None] < place[:, None])
    return torch.where(earlier, place, -1).amax(-1)


def copy_labels(tokens: Int[Tensor, "batch pos"]) -> LabelledText:
    """Rows of tokens with classes: `seen`, whether a token is new or came before, and `back`, how far.

    Args:
        tokens: Rows, as `Repeat` writes them; each is a document, which has ids and no text.
    """
    copied = copied_positions(tokens).tolist()
    found = []
    for row, places in zip(tokens.tolist(), copied):
        seen = tuple("new" if place < 0 else "again" for place in places)
        back = tuple(None if place < 0 else str(i - place) for i, place in enumerate(places))
        none = (False,) * len(row)
        found.append(LabelledDocument("", tuple(row), (), {"seen": seen, "back": back}, {"seen": none, "back": none}))
    return LabelledText(found)
