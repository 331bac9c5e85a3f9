"""A model of ours over the parameters of a module we did not write: what analyses of weights and parts look at.

Wherever a tensor of theirs, or a view on it, is one of ours, the memory is shared; tensors that ours puts together
(separate W_Q, W_K and W_V, below each other) are copies, made again when the module's weights have changed.
"""
# torch does not type the parts of a module
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import dataclasses
import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.checkpoints.families import Source, Table, assembled, sources
from glassformer.errors import ConfigError, nearest
from glassformer.models import ModelConfig
from glassformer.models.norms import Norm
from glassformer.trace import Site
from glassformer.trace.foreign import Derived


class SharedParts:
    """Returns a model of ours that holds a module's weights as they are now.

    Args:
        module: Whose weights.
        config: What it is made of.
        table: From our tensors to the module's.
        ignored: Patterns of the module's parameters that the table leaves out on purpose.
        tokenizer: Handed on to the model.

    Raises:
        ConfigError: The table lacks one of our tensors, names one the module does not have, or leaves a parameter out.
        CheckpointError: A tensor is not of the shape that the config asks for.
    """

    def __init__(
        self, module: nn.Module, config: ModelConfig, table: Table, ignored: Sequence[str], tokenizer: Any
    ) -> None:
        self.module, self.config, self.tokenizer = module, config, tokenizer
        with torch.device("meta"):
            self.model: Any = config.build()
        shapes = {name: tuple(tensor.shape) for name, tensor in self.model.state_dict().items()}
        self.sources = sources(shapes, table)
        self._check(ignored)
        self.seen: list[tuple[int, int]] = []
        self()

    def __call__(self) -> Any:
        theirs = _tensors(self.module)
        # a tensor counts its changes; one that was replaced is another object
        used = {piece.name for source in self.sources.values() for piece in source.pieces}
        seen = [(id(theirs[name]), theirs[name]._version) for name in sorted(used)]
        if seen != self.seen:
            state = {name: _ours(name, source, theirs) for name, source in self.sources.items()}
            self.model.load_state_dict(state, assign=True)
            self.model.requires_grad_(False).eval()
            self.model.tokenizer = self.tokenizer
            self.seen = seen
        return self.model

    def _check(self, ignored: Sequence[str]) -> None:
        theirs = _tensors(self.module)
        used: set[int] = set()
        for name, source in self.sources.items():
            for piece in source.pieces:
                if piece.name not in theirs:
                    raise ConfigError(
                        f'spec: our "{name}" is "{piece.name}" there, and the module has no such tensor.'
                        f"{nearest(piece.name, theirs)}"
                    )
                used.add(id(theirs[piece.name]))
        left = [name for name, tensor in self.module.named_parameters() if id(tensor) not in used]
        left = [name for name in left if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]
        if left:
            raise ConfigError(
                f'spec: the table leaves out {len(left)} parameters of the module, "{left[0]}" first: what it '
                "describes is not what the module computes.\n"
                "    Name them in weights, or in ignored if they play no part."
            )


def derived_sites(shape: Any, parts: SharedParts) -> Iterator[Derived]:
    """Yield the sites that follow from others by weights alone: norms' scales, and what each head writes.

    Args:
        shape: A model of the config; its weights are not looked at.
        parts: Gives the weights when a value is there.
    """
    table = shape.sites()
    paths = {module: path for path, module in shape.named_modules()}

    def scale(norm: Norm | None, source: str) -> Iterator[Derived]:
        if norm is not None and norm.at_scale in table:
            yield _derived(table[norm.at_scale], source, paths[norm], "scale", parts)

    for stack in shape.stacks.values():
        for layer in stack.sub_layers():
            yield from scale(layer.before, layer.at_stream)
            yield from scale(layer.write_norm, layer.at_out)
            yield from scale(layer.stream_norm, layer.at_sum or layer.at_out)
            part = layer.attention
            if part is not None and not part.merge.multiplies:
                yield _derived(table[part.at.head_out], part.at.z, paths[part.merge], "per_head", parts)
        if len(stack.blocks):
            yield from scale(stack.final, stack.blocks[-1].at_resid[-1])


def _derived(site: Site, source: str, path: str, method: str, parts: SharedParts) -> Derived:
    def value(of: Tensor) -> Tensor:
        part: Any = parts().get_submodule(path)
        return part.per_head(of, of, None) if method == "per_head" else part.scale(of)

    reason = f'it is computed from "{source}" by weights alone; edit that site.'
    return Derived(dataclasses.replace(site, read_only=reason), source, value)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return dict(named)


def _ours(name: str, source: Source, theirs: Mapping[str, Tensor]) -> Tensor:
    first = theirs[source.pieces[0].name].detach()
    if len(source.pieces) == 1:
        try:
            part = source.pieces[0].part(first)
            if part.numel() == math.prod(source.shape):
                return part.view(source.shape)
        except (RuntimeError, IndexError):
            # no view of that shape: it is put together below, or refused there
            pass
    return assembled(name, source, lambda n: theirs[n].detach(), first.dtype).to(first.device)
