"""Models larger than memory: each block's weights are read when the forward pass comes to them, and dropped after it.

    model = load("a-large-model", stream=True)

The model is the one that `load` gives, and whatever walks over it works the same: code, sites, states and, to the last
bit where both are mapped, results. Its embeddings, vectors (gains, biases) and unembedding are in memory or mapped; the
matrices of its blocks are not. Looking at one of those reads it, and lets go of the block that was looked at before. A
graph for gradients keeps the names of weights, not the weights.

Memory: what lies outside the blocks, one block, and activations. Cost: a pass reads every block once, so does each
token of a generation, and a backward pass once more; a tensor that lies in its file as it is wanted is mapped, the
others (queries, keys and values that are stored one by one, matrices stored transposed, another type) are put together
each time. What is read comes from the system's cache of files as far as that has room, else from the disk: then a pass
takes at least the size of the blocks over the speed of the disk.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.checkpoints.checkpoint import Checkpoint, place
from glassformer.errors import CheckpointError
from glassformer.numerics.placement import Device, NumberType, device_of, number_type


def streamed(
    checkpoint: Checkpoint,
    dtype: NumberType | None = None,
    device: Device | None = None,
    *,
    allow_nonfinite: bool = False,
) -> Any:
    """Return the model of a checkpoint with the weights of its blocks left in their files.

    Args:
        checkpoint: The folder.
        dtype: Of the weights; the checkpoint's by default.
        device: Where they are brought to; the CPU by default.
        allow_nonfinite: Do not look whether weights are finite; otherwise each is looked at when it is first read.

    Raises:
        CheckpointError: A tensor outside the blocks holds NaN or infinity; one of a block says so when it is read.
    """
    # what has no memory has a type all the same
    kind, there = number_type(dtype), device_of(device)
    model = checkpoint.model.to(kind or checkpoint.dtype).requires_grad_(False)
    reader = BlockReader(checkpoint, kind, there, allow_nonfinite=allow_nonfinite)
    own: dict[str, dict[str, str]] = {}
    for name in checkpoint.parts:
        if name in reader.blocks:
            path, _, last = name.rpartition(".")
            own.setdefault(path, {})[last] = name
        else:
            value = checkpoint.read([name], kind)[name]
            value = value if there is None else value.to(there)
            if not allow_nonfinite:
                checkpoint.require_finite(name, value)
            place(model, name, value)
    for path, names in own.items():
        _leave(model.get_submodule(path), Parameters, reader, names)
    for block in reader.stored:
        _leave(model.get_submodule(block), Forgetting, reader, {})
    # at the top too, so that a change of type is refused before any of it is made
    _leave(model, Parameters, reader, {})
    checkpoint.tell(model)
    return model.eval()


class BlockReader:
    """Reads matrices of blocks, and keeps those of the block that was asked for last.

    Args:
        checkpoint: Where they lie.
        dtype: Wanted type; the checkpoint's by default.
        device: Where to.
        allow_nonfinite: Do not look whether they are finite.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: NumberType | None = None,
        device: Device | None = None,
        *,
        allow_nonfinite: bool = False,
    ) -> None:
        self.checkpoint, self.dtype, self.device = checkpoint, number_type(dtype), device_of(device)
        # once is enough: a block is read again for each token
        self.unseen = set() if allow_nonfinite else set(checkpoint.parts)
        # a table that all blocks of a stack share is no block's
        shared = ".positions.table"
        matrices = [n for n, part in checkpoint.parts.items() if len(part.shape) > 1 and not n.endswith(shared)]
        matches = {name: re.match(r"(?:.+\.)?blocks\.\d+(?=\.)", name) for name in matrices}
        self.blocks = {name: match.group() for name, match in matches.items() if match}
        # what the files call each block's
        self.stored: dict[str, list[str]] = {}
        for name, block in self.blocks.items():
            self.stored.setdefault(block, []).extend(checkpoint.stored_as(name))
        self.at: str | None = None
        self.held: dict[str, Tensor] = {}

    def __call__(self, name: str) -> Tensor:
        """Return a matrix of a block."""
        if self.blocks[name] != self.at:
            self._let_go()
            self.at = self.blocks[name]
        value = self.held.get(name)
        if value is None:
            value = self.checkpoint.read([name], self.dtype)[name]
            value = value if self.device is None else value.to(self.device)
            if name in self.unseen:
                self.checkpoint.require_finite(name, value)
                self.unseen.remove(name)
            self.held[name] = value
        return value

    def _let_go(self) -> None:
        """Drop the block read before, and its pages of mapped files."""
        self.held.clear()
        if self.at is not None:
            self.checkpoint.files.release(self.stored[self.at])

    def forgetting(self) -> AbstractContextManager[Any]:
        """Return a context in which a graph keeps names of weights in place of weights."""
        if not torch.is_grad_enabled():
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._forget, self._recall)

    def _forget(self, value: Tensor) -> "Tensor | View":
        memory = value.untyped_storage().data_ptr()
        for name, held in self.held.items():
            if held.untyped_storage().data_ptr() == memory and held.dtype == value.dtype:
                return View(name, tuple(value.shape), value.stride(), int(value.storage_offset()))
        return value.detach()

    def _recall(self, kept: "Tensor | View") -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return self(kept.name).as_strided(kept.shape, kept.stride, kept.offset)


class View(NamedTuple):
    """A view on a tensor that can be read again."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Parameters(nn.Module):
    """A module whose parameters are read when they are looked at; those it has registered give names and shapes."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        raise CheckpointError(
            "the weights of a streamed model stay in their files as they are; "
            "load it anew with the dtype and device it should have."
        )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination |= {prefix + last: getattr(self, last) for last in self.__dict__["stored"]}


class Forgetting(nn.Module):
    """A block whose graph holds no weights."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self.__dict__["reader"].forgetting():
            return super().forward(*args, **kwargs)


def _leave(module: nn.Module, kind: type[nn.Module], reader: BlockReader, names: dict[str, str]) -> None:
    """Make a module one whose tensors are left on the disk."""
    module.__dict__ |= {"reader": reader, "stored": names}
    module.__class__ = _left(type(module), kind, tuple(names))


@cache
def _left(base: type[nn.Module], kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """Return a class that differs from a module's in how its parameters come about."""

    def reading(last: str) -> property:
        return property(lambda self: self.__dict__["reader"](self.__dict__["stored"][last]))

    return type(base.__name__, (kind, base), {last: reading(last) for last in names})
