"""Means over prompts and how sure they are; a prompt without a value (NaN) does not count.

The last axis is `batch`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled


def mean(per_prompt: Labelled) -> Labelled:
    """Return the mean over the prompts that have a value; NaN where none has."""
    return _over_batch(per_prompt, per_prompt.values.nanmean(-1))


def standard_error(per_prompt: Labelled) -> Labelled:
    """Return the standard error of the mean; NaN for fewer than two prompts."""
    values = per_prompt.values
    count = (~values.isnan()).sum(-1)
    off = (values - values.nanmean(-1, keepdim=True)).square().nansum(-1)
    error = (off / (count - 1) / count).sqrt()
    return _over_batch(per_prompt, error.masked_fill(count < 2, torch.nan))


def deviation(values: Tensor) -> Tensor:
    """Return the standard deviation along the last axis; NaN for fewer than two values, of which torch warns."""
    return values.std(-1) if values.shape[-1] > 1 else values.new_full(values.shape[:-1], torch.nan)


def interval(per_prompt: Labelled, *, level: float = 0.95, seed: int = 0, draws: int = 1000) -> Labelled:
    """The confidence interval of the mean, an axis `bound` in front: prompts drawn again, with replacement.

    Args:
        per_prompt: Numbers whose last axis is `batch`.
        level: Share of draws inside.
        seed: Source of the draws.
        draws: How many.

    Source: Efron 1979, "Bootstrap Methods" (the percentile method).
    """
    if not 0 < level < 1:
        raise ShapeMismatch(f"interval: level is between 0 and 1, found {level}.")
    values = per_prompt.values
    counts = _drawn_again(values.shape[-1], draws, seed)
    flat = values.detach().double().cpu().flatten(0, -2)
    found = [_quantiles(_means(part, counts), level) for part in flat.split(4096)]
    low_high = torch.cat(found, 1).to(values).unflatten(1, values.shape[:-1])
    single = ((~values.isnan()).sum(-1) < 2).expand_as(low_high)
    coords = {axis: labels for axis, labels in per_prompt.coords.items() if axis != "batch"}
    return Labelled(
        low_high.masked_fill(single, torch.nan), ("bound", *per_prompt.axes[:-1]), {"bound": ["low", "high"]} | coords
    )


def interval_of(
    per_prompt: Labelled,
    of_means: Callable[[Float[Tensor, "... draw"]], Float[Tensor, "... draw"]],
    *,
    level: float = 0.95,
    seed: int = 0,
    draws: int = 1000,
) -> Float[Tensor, "bound ..."]:
    """The confidence interval of what follows from means over prompts, which are drawn again, with replacement.

    Args:
        per_prompt: Numbers whose last axis is `batch`.
        of_means: From means to what follows from them; the last axis of both are draws.
        level: Share of draws inside.
        seed: Source of the draws.
        draws: How many.

    Returns:
        Both bounds; NaN where no draw has a number.
    """
    values = per_prompt.values.detach().double().cpu()
    return _quantiles(of_means(_means(values, _drawn_again(values.shape[-1], draws, seed))), level)


def share_interval(per_prompt: Labelled, *, level: float = 0.95) -> Labelled:
    """The confidence interval of a share of prompts, an axis `bound` in front, which has a width at 0 and 1 too.

    Args:
        per_prompt: Numbers from 0 to 1, as whether a prompt counts; the last axis is `batch`.
        level: How often the share of all prompts there are lies inside.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    values = per_prompt.values.double()
    n = (~values.isnan()).sum(-1)
    share, z = values.nanmean(-1), torch.special.ndtri(values.new_tensor((1 + level) / 2))
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)).sqrt()
    bounds = torch.stack([(middle - half).clamp_min(0), (middle + half).clamp_max(1)])
    coords = {axis: labels for axis, labels in per_prompt.coords.items() if axis != "batch"}
    return Labelled(bounds, ("bound", *per_prompt.axes[:-1]), {"bound": ["low", "high"]} | coords)


def jackknife(of_all: Labelled, without: Tensor, *, level: float = 0.95) -> Labelled:
    """The confidence interval of a number that is no mean over prompts, an axis `bound` in front.

    Prompts are left out one at a time, and how far the number then moves says how far it would with other prompts; of a
    mean that is its standard error.

    Args:
        of_all: The number, of all prompts.
        without: The same without each of them, which is the last axis.
        level: How often the number of all prompts there are lies inside.

    Source: Efron and Stein 1981, "The Jackknife Estimate of Variance".
    """
    n, z = without.shape[-1], torch.special.ndtri(without.new_tensor((1 + level) / 2))
    off = (without - without.mean(-1, keepdim=True)).square().sum(-1)
    half = z * ((n - 1) / n * off).sqrt()
    bounds = torch.stack([of_all.values - half, of_all.values + half])
    return Labelled(bounds, ("bound", *of_all.axes), {"bound": ["low", "high"], **of_all.coords})


def _drawn_again(n: int, draws: int, seed: int) -> Float[Tensor, "draw prompt"]:
    """Return how often each of so many prompts is drawn."""
    drawn = torch.randint(0, n, (draws, n), generator=torch.Generator().manual_seed(seed))
    ones = torch.ones(draws, n, dtype=torch.float64)
    return torch.zeros_like(ones).scatter_add_(1, drawn, ones)


def _means(values: Float[Tensor, "*axes prompt"], counts: Float[Tensor, "draw prompt"]) -> Float[Tensor, "*axes draw"]:
    has = (~values.isnan()).double()
    return (values.nan_to_num(0.0) @ counts.T) / (has @ counts.T)


def _quantiles(drawn: Float[Tensor, "*axes draw"], level: float) -> Float[Tensor, "bound ..."]:
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    return drawn.nanquantile(ends, dim=-1)


def _over_batch(per_prompt: Labelled, values: Tensor) -> Labelled:
    coords = {axis: labels for axis, labels in per_prompt.coords.items() if axis != "batch"}
    return Labelled(values, per_prompt.axes[:-1], coords)
