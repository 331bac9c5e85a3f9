"""Tokens of a text as particles: how close they come to each other as a model's layers go on.

    cos(x_i, x_j),     x_i the stream at position i, before the first layer and behind each

The picture of `particles` for a real model, which has MLPs, many heads, a mask and positions besides. Directions are
those that a norm without gain would see.
Source: Geshkovski et al. 2023 (2312.10794), figure 1, there for ALBERT.
"""

from typing import Any

import torch
from torch.nn.functional import normalize

from glassformer.analysis import run
from glassformer.arguments import checked
from glassformer.labelled import Labelled
from glassformer.models import Model


@checked
def token_cosines(model: Model, text: Any, *, centred: bool = False) -> Labelled:
    """Cosines of a text's tokens with each other, by depth: axes `depth query key`, 0 before the first layer.

    Args:
        model: A decoder or an encoder; an encoder-decoder reads the text with its encoder.
        text: Text or token ids, one row.
        centred: Whether the mean of all tokens is taken out first, which hides what they have in common.
    """
    passed = run(model, text, read=["resid_pre", "resid_post"])
    stream = torch.cat((passed.layers("resid_pre").values[:1], passed.layers("resid_post").values))[:, 0].double()
    if centred:
        stream = stream - stream.mean(-2, keepdim=True)
    directions = normalize(stream, dim=-1)
    return Labelled(directions @ directions.mT, ("depth", "query", "key"))
