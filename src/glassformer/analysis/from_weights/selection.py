"""Which heads and tokens an analysis of weights covers, and how they are called in its result."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.errors import AnalysisUnavailable, TokenOutOfRange
from glassformer.labelled import Labelled
from glassformer.models.readable import readable, readable_outputs
from glassformer.numerics.indices import asked, entries, is_mask
from glassformer.weights import AttentionWeights, HeadWeights

LeftOut = dict[str, str]


def layers_for(
    w: HeadWeights, heads: Sequence[str] | None, check: Callable[[AttentionWeights], object], *, by_value: bool = False
) -> tuple[list[AttentionWeights], LeftOut]:
    """Return the layers to look at (single heads, if some are named), and for all other heads why not.

    Without names, heads for which the analysis is not defined are left out; a head that is named has to be defined.

    Args:
        w: The weights.
        heads: Labels, or None.
        check: Raises for a layer for which the analysis is not defined.
        by_value: Give a layer whose heads have several values once for each for which the analysis is defined: see
            `AttentionWeights.by_value`.

    Raises:
        AnalysisUnavailable: A named head, or every head, lacks what `check` asks for.
    """
    left_out, found = LeftOut(), list[AttentionWeights]()
    asked = w.attention if heads is None else [w[label] for label in heads]
    reason: AnalysisUnavailable | None = None
    for layer in asked:
        defined, without, error = _defined(layer.by_value() if by_value else [layer], check)
        if error is not None and not defined and heads is not None:
            raise error
        reason = error if error is not None else reason
        found += defined
        left_out |= without if defined else dict.fromkeys(layer.labels, next(iter(without.values())))
    if not found:
        raise reason or AnalysisUnavailable("this model has no attention heads.")
    return found, left_out


def _defined(
    layers: Iterable[AttentionWeights], check: Callable[[AttentionWeights], object]
) -> tuple[list[AttentionWeights], LeftOut, AnalysisUnavailable | None]:
    """Return those for which an analysis is defined, why not for the labels of others, and the last such error."""
    found, left_out, reason = list[AttentionWeights](), LeftOut(), None
    for layer in layers:
        try:
            check(layer)
            found.append(layer)
        except AnalysisUnavailable as error:
            reason = error
            left_out |= dict.fromkeys(layer.labels, str(error).partition("\n")[0])
    return found, left_out, reason


def labels_of(layers: Iterable[AttentionWeights]) -> list[str]:
    return [label for layer in layers for label in layer.labels]


def by_head(layers: Iterable[AttentionWeights], values: Iterable[Tensor], *axes: str, **coords: Any) -> Labelled:
    """Return one labelled tensor of each layer's `head …` values; shorter rows are filled with NaN."""
    rows = [row for value in values for row in value]
    width = max((row.shape[-1] for row in rows if row.ndim), default=0)
    rows = [filled(row, width) if row.ndim else row for row in rows]
    return Labelled(torch.stack(rows), ("head", *axes), {"head": labels_of(layers)} | coords)


def values_of(found: Labelled, labels: Sequence[str]) -> Tensor:
    """Return values by head in the order of some labels, NaN for heads that have none."""
    at = {label: i for i, label in enumerate(found.labels("head"))}
    missing = found.values.new_full((), torch.nan)
    return torch.stack([found.values[at[label]] if label in at else missing for label in labels])


def filled(values: Tensor, width: int) -> Tensor:
    """Return values with the last axis made this wide by NaN."""
    missing = width - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=torch.nan) if missing else values


def names_of(w: HeadWeights, *ids: Tensor, outputs: bool = False) -> dict[int, str]:
    """Return all tokens among some ids as text with their id, which tells tokens of one text apart: `12:cat`.

    `outputs` says that logits are of them; they are tokens that are read otherwise.
    """
    if not ids:
        return {}
    unique = torch.cat([part.flatten() for part in ids]).unique()
    found = (readable_outputs if outputs else readable)(w.model, unique[None].cpu())[0]
    return {i: f"{i}:{name}" for i, name in zip(unique.tolist(), found)}


def names_of_both(
    w: HeadWeights, read: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the names of ids that are read and of ids that logits are of; where these are one, each has all."""
    if w.model.one_vocabulary():
        every = names_of(w, *read, *outputs)
        return every, every
    return names_of(w, *read), names_of(w, *outputs, outputs=True)


def output_choice(w: HeadWeights, ids: Tensor | None) -> Tensor | None:
    """Return which outputs an analysis is restricted to that looks at some tokens; None for all of them."""
    return ids if w.model.one_vocabulary() else None


def token_choice(w: HeadWeights, tokens: Int[Tensor, " n"] | Sequence[int] | None) -> Int[Tensor, " n"]:
    """Return the ids an analysis is restricted to, all that are read by default; raises `TokenOutOfRange`."""
    w.require_vocabulary("what is asked of tokens")
    size = len(w.embeddings[w.stack])
    if tokens is None:
        return torch.arange(size, device=w.U.device)
    chosen = asked(tokens, "tokens")
    if is_mask(chosen):
        chosen = entries(chosen, size, "tokens")
    ids = torch.as_tensor(chosen, device=w.U.device, dtype=torch.long).reshape(-1)
    if ids.numel() == 0 or int(ids.min()) < 0 or int(ids.max()) >= size:
        raise TokenOutOfRange(f"tokens: expected ids from 0 to {size - 1}, at least one; found {ids.tolist()[:8]}.")
    return ids
