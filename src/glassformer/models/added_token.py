"""One token more: what a state keeps of the text before it, and what that leaves to compute.

    before = state after t tokens        after = state after t + 1        step = operations between the two

What is kept is counted from the tensors of a state, what is computed by the conventions of `accounting`.
"""

import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable
from glassformer.models.encoder import Encoder
from glassformer.models.model import Model
from glassformer.models.stack import State
from glassformer.trace import Tape


class AddedToken(NamedTuple):
    """The states of a model around one token of a text.

    Args:
        before: Behind the tokens before it.
        after: Behind it.
        reread: Whether positions outgrew the state, so that the whole text was read again for this one.
    """

    before: State
    after: State
    reread: bool


class Kept(NamedTuple):
    """One tensor of a state.

    Args:
        axes: Its axes, as the class of the state names them; `axis_0` … where it does not.
        values: Its numbers.
    """

    axes: tuple[str, ...]
    values: Tensor


@torch.no_grad()
def added_token(
    model: Model,
    ids: Int[Tensor, "batch pos"],
    position: int,
    source: Int[Tensor, "batch key"] | None = None,
) -> AddedToken:
    """States around one token of a text: the tokens before it are read in one pass, it in another.

    Args:
        model: A decoder or an encoder-decoder.
        ids: Token ids of the text.
        position: Index of the token; what comes behind it is not read.
        source: Token ids that an encoder reads.

    Raises:
        AnalysisUnavailable: The model reads texts whole and carries no state.
    """
    if isinstance(model, Encoder) or not model.predicts:
        raise AnalysisUnavailable(
            "what is kept when a token is added: this model reads a text whole, so that a token more changes what all "
            "others see and nothing is carried.\n    Ask a decoder, or the decoder of an encoder-decoder."
        )
    given = () if source is None else (source,)
    empty = model.begin(*given) if given else model.begin(len(ids))
    before = _read_on(model, empty, ids[:, :position])
    reread = position > 0 and any(part.outgrows(position, position + 1) for part in model.output_stack.parts())
    after = _read_on(model, *((empty, ids[:, : position + 1]) if reread else (before, ids[:, position : position + 1])))
    return AddedToken(before, after, reread)


def _read_on(model: Model, state: State, ids: Int[Tensor, "batch pos"]) -> State:
    if ids.shape[1] == 0:
        return state
    inputs: tuple[Any, ...] = (ids,) if model.source is None else (None, ids)
    # the logits of every position of a long text would outweigh all that is kept
    _, after = model(*inputs, state=state, tape=Tape(model, logits=False))
    return after


def kept_tensors(state: Any) -> dict[str, Kept]:
    """Tensors of a state, or of a part of one, each by the path of attributes and places that leads to it."""
    return {path.removeprefix("."): Kept(axes, values) for path, axes, values in _tensors(state, "", "")}


def _tensors(state: Any, path: str, words: str) -> Iterator[tuple[str, tuple[str, ...], Tensor]]:
    if isinstance(state, Tensor):
        yield path, _axes(words, state.ndim), state
    elif hasattr(state, "_fields"):
        hints = typing.get_type_hints(type(state))
        for name in state._fields:
            yield from _tensors(getattr(state, name), f"{path}.{name}", _words(hints[name]))
    elif isinstance(state, tuple):
        for i, part in enumerate(state):
            yield from _tensors(part, f"{path}[{i}]", "")


def _words(hint: Any) -> str:
    """Return the axes that an annotation says; empty if it says none."""
    options = typing.get_args(hint) or (hint,)
    return next((one.dim_str for one in options if hasattr(one, "dim_str")), getattr(hint, "dim_str", ""))


def _axes(words: str, n: int) -> tuple[str, ...]:
    """Return names for so many axes: an axis of streams is there where there are several."""
    names = [word.removeprefix("*") for word in words.split() if n == len(words.split()) or not word.startswith("*")]
    if len(names) != n:
        names = [f"axis_{i}" for i in range(n)]
    return tuple(name if name.isidentifier() else f"axis_{i}" for i, name in enumerate(names))


def step_flops(layer: AttentionLayer, length: int, source_length: int = 0) -> dict[str, int]:
    """Floating-point operations of the last of `length` positions in an attention layer, over the state before it.

    Args:
        layer: The layer.
        length: Positions, that one included.
        source_length: Of another stack's output, if it reads one: its keys and values are in the state already.

    Returns:
        Operations by part, as `count_flops` names them.

    Raises:
        AnalysisUnavailable: The mechanism's operations depend on the numbers, or its state keeps what keys are made of.
    """
    config, dims, crosses = layer.config, layer.dims, layer.config.cross
    if layer.projection.stores_keys and not crosses:
        raise AnalysisUnavailable(
            f'operations of one position: projection "{config.projection.kind}" keeps what keys and values are made '
            "of, and either makes them anew or lets queries meet what is kept, whichever is less.\n"
            "    What a whole text takes: models.accounting.count_flops(config, length)."
        )
    keys = source_length if crosses else length
    try:
        mixing = config.mixer.flops(1, keys, dims, causal=not crosses)
        parts = layer.flops(1, 1, True)
    except NotImplementedError as error:
        raise AnalysisUnavailable(f"operations of one position: {error}") from error
    mixing += config.mixer.traits.streams * layer.positions.extra_flops(1, keys, dims, False)
    return parts | layer.projection.flops(1, 0 if crosses else 1) | {"mixing": mixing}
