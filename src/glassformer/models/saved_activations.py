"""What a training step keeps of its forward pass for the way back, in bytes.

    kept = sum of the storages that autograd saves, each once; those of weights and buffers do not count

No formula stands here: the loss is worked out on tensors that have sizes and no numbers (PyTorch's fake tensors), for
which it takes a CPU's fused kernels, and autograd says what it saves. Softmax attention that is fused keeps queries,
keys, values, what is mixed, and a number a row; where a pattern is made, it is kept. Blocks that are equal keep equally
much: one more is counted, and the difference taken as often as there are more.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from glassformer.config import require
from glassformer.data import Batch
from glassformer.errors import ConfigError
from glassformer.models.block import BlockConfig
from glassformer.models.model import Model, ModelConfig

Precision = Literal["float32", "bfloat16"]
# what no sub-layer and no norm of the stacks saves: embeddings, logits, the loss, and sums on the stream
ENDS, NORMS = "ends", "norms"


def saved_bytes(config: ModelConfig, length: int, rows: int = 1, precision: Precision = "float32") -> dict[str, int]:
    """Bytes that a training step keeps for the way back, by part; nothing is allocated.

    Args:
        config: The model.
        length: Tokens of each row (of an encoder-decoder, of source and of target).
        rows: Rows that run at once.
        precision: Of the forward pass; weights stay float32.

    Returns:
        By the role of sub-layers (`attn`, `mlp`, …), of `norms`, and of both `ends`: embeddings, logits and loss.

    Raises:
        ConfigError: The model reads images, or what it keeps hangs on numbers (which experts run).
    """
    require(config.patches is None, "saved activations are counted of texts, and this model reads images.")
    return dict(_counted(config, length, rows, precision))


@lru_cache(maxsize=64)
def _counted(config: ModelConfig, length: int, rows: int, precision: Precision) -> dict[str, int]:
    kinds = {stack: tuple(dict.fromkeys(blocks)) for stack, blocks in config.blocks.items()}
    sizes = length, rows, precision
    once = _of_blocks(config, kinds, *sizes)
    found = Counter(once)
    for stack, blocks in config.blocks.items():
        for kind, count in Counter(blocks).items():
            if count == 1:
                continue
            twice = _of_blocks(config, kinds | {stack: (*kinds[stack], kind)}, *sizes)
            for part, saved in twice.items():
                found[part] += (count - 1) * (saved - once[part])
    return {part: saved for part, saved in found.items() if saved}


def saved_in(model: Model, run: Callable[[], object]) -> Counter[str]:
    """Bytes that autograd saves in a call, by part of a model; what the call returns is kept until they are counted.

    Args:
        model: Whose weights do not count, and whose parts do the saving.
        run: A pass through it.
    """
    found, seen, parts = Counter[str](), dict[int, Tensor](), [ENDS]
    for own in (*model.parameters(), *model.buffers()):
        seen[own.untyped_storage()._cdata] = own

    def save(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in seen:
            # held, or another might come to lie where it was
            seen[storage._cdata] = x
            found[parts[-1]] += storage.nbytes()
        return x

    with _told_apart(model, parts), saved_tensors_hooks(save, lambda x: x):
        kept = run()
        del kept
    return found


def _of_blocks(
    config: ModelConfig, blocks: dict[str, tuple[BlockConfig, ...]], length: int, rows: int, precision: Precision
) -> Counter[str]:
    layers = {f"{stack}_layers" if stack else "layers": some for stack, some in blocks.items()}
    with torch.device("meta"):
        model: Any = config.replace(**layers).build().train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        # as a CPU's, which has fused kernels; the meta device has none
        model.to_empty(device="cpu")
        ids = torch.zeros(rows, length, dtype=torch.int64)
        batch = Batch(ids, ids, ids == 0, source=ids if model.reads_pairs else None)
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                return saved_in(model, lambda: model.loss(batch))
        except DynamicOutputShapeException as error:
            kinds = sorted({part.kind or "" for some in blocks.values() for block in some for part in block.parts})
            raise ConfigError(
                f"saved activations: what the model keeps hangs on the numbers it computes (sub-layers: "
                f"{', '.join(kinds)}), and is counted without numbers."
            ) from error


@contextmanager
def _told_apart(model: Model, parts: list[str]) -> Iterator[None]:
    """Keep the part that runs at the end of a list."""

    def begins(part: str) -> Callable[..., None]:
        return lambda *_: parts.append(part)

    def ends(*_: Any) -> None:
        parts.pop()

    with ExitStack() as hooks:
        for module, part in _parts(model):
            hooks.enter_context(_handle(module.register_forward_pre_hook(begins(part))))
            hooks.enter_context(_handle(module.register_forward_hook(ends)))
        yield


def _parts(model: Model) -> Iterator[tuple[nn.Module, str]]:
    for stack in model.stacks.values():
        yield stack.final, NORMS
        norms = dict[nn.Module, None]()
        for block in stack.blocks:
            for name, config in zip(block.names, block.config.parts, strict=True):
                yield block.part(name), config.role
                before = [block.norm(name)] if block.reads_through else []
                behind = [norm for norm in (block.norm_out(name), block.norm_after(name)) if norm is not None]
                norms |= dict.fromkeys([*before, *behind])
        yield from ((norm, NORMS) for norm in norms)


@contextmanager
def _handle(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()
