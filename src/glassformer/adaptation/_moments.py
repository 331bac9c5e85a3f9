"""What matrices read on a sample: second moments E[x x'] of their inputs, summed text by text."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.gradients.linear_maps import Products, maps_of
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Matrix, Model
from glassformer.models.evaluation import evaluating


def second_moments(model: Model, matrices: Sequence[Matrix], sample: Any) -> dict[str, Float[Tensor, "d_in d_in"]]:
    """Return E[x x'] of what each matrix reads, over the positions of a sample, by the matrix's name.

    Args:
        model: Whose matrices they are.
        matrices: Some of them.
        sample: Texts, or rows of token ids; what a pass reads, one after another.

    Raises:
        AnalysisUnavailable: Nothing of the sample comes to a matrix.
    """
    wanted = {one.name for one in matrices}
    maps = {one.label: known.name for one, known in zip(maps_of(model), model.matrices()) if known.name in wanted}
    watched = [one for one in maps_of(model) if one.label in maps]
    sums, counts = dict[str, Tensor](), dict.fromkeys(maps.values(), 0)
    for text in [sample] if isinstance(sample, str) else sample:
        given = model.read(text)
        with evaluating(model), torch.no_grad(), Products(watched) as seen:
            model(*given.args, **given.kwargs)
        for label, products in seen.found.items():
            name = maps[label]
            for one in products:
                x = one.read.double()
                sums[name] = sums.get(name, 0) + x.mT @ x
                counts[name] += len(x)
    if missing := [name for name, count in counts.items() if not count]:
        raise AnalysisUnavailable(
            f'no row of the sample comes to "{missing[0]}"'
            + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else "")
            + ".\n    Give a larger sample, or fewer matrices."
        )
    return {name: total / counts[name] for name, total in sums.items()}
