"""Tensor parallel models: each rank holds some of every layer's heads, neurons and tokens of the vocabulary.

    column   y_r = x W_r + b_r            W = [W_1 … W_R]: each rank has some of what is given, and reads all of x
    row      y = sum_r x_r W_r + b        W = [W_1; …; W_R]: each rank reads some, and results are summed

A sub-layer is a column and then a row: W_Q, W_K, W_V before W_O, and what leads into neurons before what leads out. So
ranks exchange one sum for each, and one of gradients on the way back. The joined W_Q, W_K and W_V is cut by groups of
key heads: its rows are put in the order of ranks first. Token vectors are looked up where they are, and the loss is
made of each rank's logits. What is left, norms and positions, all ranks have.
The stream is the same tensor on all ranks, and so are the parameters' names; a parameter is a DTensor. Values of heads
and neurons are put together where a tape wants their sites.
Source: Shoeybi et al. 2019, "Megatron-LM" (1909.08053), section 3; plans, collectives and loss are PyTorch's
(`torch.distributed.tensor.parallel`).
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from glassformer.attention import AttentionLayer, linear
from glassformer.attention.merge import MergeHeads
from glassformer.config import require
from glassformer.models import Model, ModelLike, require_model
from glassformer.models.embedding import Embedding, PositionTable, Unembedding
from glassformer.models.norms import Norm
from glassformer.models.smoothing import LabelSmoothing
from glassformer.numerics.precision import wide
from glassformer.trace import Site

# axes of sites along which each rank computes a part
_SHARED = ("head", "kv_head", "neuron")
_STYLES: Mapping[str, type[ParallelStyle]] = {"column": ColwiseParallel, "row": RowwiseParallel}


def tensor_parallel(model: ModelLike, devices: DeviceMesh) -> Model:
    """Return a copy of a decoder of which each rank of a mesh of one axis holds a part; all ranks call it.

    It gives what the whole model gives, to all ranks, and `gf.run` reads and edits all of its sites there: the pattern
    of a head is read on every rank, whichever holds the head. All ranks run it together, with the same arguments.

    Args:
        model: The same on all ranks; it stays as it is.
        devices: Its ranks, one axis of PyTorch's `init_device_mesh`.

    Raises:
        ConfigError: Ranks cannot share it: heads, neurons or tokens do not divide, or it has parts that know no heads.
        AnalysisUnavailable: It is no model of ours.
    """
    made = copy.deepcopy(require_model(model, "tensor_parallel"))
    share_layers(made, devices)
    return made


def share_layers(model: Model, devices: DeviceMesh) -> None:
    """Let each rank of a mesh of one axis keep its part of a decoder, in place; all ranks call it.

    Args:
        model: The same on all ranks; no rank has the whole afterwards.
        devices: Its ranks.

    Raises:
        ConfigError: As for `tensor_parallel`.
    """
    rank, ranks = devices.get_local_rank(), devices.size()
    sphere = [layer.path for stack in model.stacks.values() for layer in stack.sub_layers() if layer.rate is not None]
    require(
        not sphere,
        f'tensor parallel: "{"".join(sphere[:1])}" moves the stream on a sphere, by rates that it multiplies by '
        "outside of a norm, which ranks cannot share. Let them share rows (dp).",
    )
    plans = [(part, part.take_part(rank, ranks)) for stack in model.stacks.values() for part in stack.parts()]
    with torch.device("meta"):
        # layers that have taken their part know no other rows
        whole = model.config.build()
    orders = _joined_rows(whole, ranks)
    for name, order in orders.items():
        joined = model.get_parameter(name)
        joined.data = joined.data[order.to(joined.device)]
    for part, plan in plans:
        styles = {path: _STYLES[kind]() for path, kind in plan.items()}
        parallelize_module(part, devices, styles, src_data_rank=None)
        if isinstance(part, AttentionLayer):
            part.merge.__class__ = _PartOfMerge
    for module in model.modules():
        if isinstance(module, Norm | PositionTable) and _has_parameters(module):
            # torch's types lack what both functions return
            replicated_input, local_output = cast(Any, _replicated_input), cast(Any, _local_output)
            distribute_module(module, devices, _replicated, replicated_input, local_output)
    _share_vocabulary(model, devices)
    left = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
    require(not left, f'tensor parallel: ranks cannot share "{", ".join(left[:1])}". Let them share rows (dp).')
    model.shares = _Shares(devices, orders)


def row_orders(model: Model) -> Mapping[str, Int[Tensor, " row"]]:
    """The order in which ranks have the rows of the joined W_Q, W_K and W_V, by the parameter's name.

    Args:
        model: One whose layers ranks share, or a whole one, whose rows are in no other order.
    """
    return model.shares.orders if isinstance(model.shares, _Shares) else {}


def _joined_rows(model: Model, ranks: int) -> dict[str, Int[Tensor, " row"]]:
    return {
        f"{name}.projection.qkv.{own}": layer.projection.rows_by_part(ranks)
        for name, layer in model.named_modules()
        if isinstance(layer, AttentionLayer)
        for own, _ in layer.projection.qkv.named_parameters()
    }


class VocabParallelEmbedding(Embedding):
    """Token vectors of which each rank has those of some tokens; all ranks get all that are looked up."""

    def rows(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_embed"]:
        table: Any = self.stored
        return F.embedding(_on_all(ids, table.device_mesh), table).full_tensor()  # type: ignore[attr-defined]


class VocabParallelUnembedding(Unembedding):
    """Logits of which each rank makes those of some tokens; the loss is made of them where they are."""

    def products(self, read: Float[Tensor, "... d_embed"]) -> Float[Tensor, "... vocab"]:
        return self._shared(read).full_tensor()

    def losses(
        self, x: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"], form: LabelSmoothing
    ) -> Float[Tensor, " position"]:
        # smoothing shares probability with all other tokens, so it asks all of them
        if form.rate:
            return super().losses(x, ids, form)
        losses: Any = form.losses(wide(self.capped(self._shared(self.read(x)))), ids)
        return losses.to_local()

    def _shared(self, read: Tensor) -> Any:
        table: Any = self.stored
        return linear(_on_all(read, table.device_mesh), table, self.bias)


class _PartOfMerge(MergeHeads):
    """From some heads' mixed values to what all write."""

    def matrix(self) -> Float[Tensor, "head d_z d_model"]:
        weight: Any = self.output.weight
        return weight.to_local().unflatten(1, (self.dims.n_heads, self.dims.d_z)).permute(1, 2, 0)

    def summed(self, written: Float[Tensor, "batch head pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        weight: Any = self.output.weight
        bias: Any = self.output.bias
        out = DTensor.from_local(written.sum(-3), weight.device_mesh, [Partial()]).full_tensor()
        return out if bias is None else out + bias.to_local()


class _Shares:
    """Puts values of heads and neurons together, by the shape that their site says; knows who has which rows."""

    def __init__(self, devices: DeviceMesh, orders: Mapping[str, Int[Tensor, " row"]]) -> None:
        self.devices, self.orders = devices, orders

    def visited(self, value: Tensor, site: Site, visit: Callable[[Tensor], Tensor]) -> Tensor:
        if isinstance(value, DTensor):
            # a norm's, which all ranks have
            return _on_all(visit(value.to_local()), self.devices)
        cut = [i for i, axis in enumerate(site.axes) if axis in _SHARED and value.shape[i] < site.sizes[axis]]
        if not cut:
            return visit(value)
        whole = DTensor.from_local(value, self.devices, [Shard(cut[0])]).full_tensor()
        return _on_all(visit(whole), self.devices).redistribute(placements=[Shard(cut[0])]).to_local()


def _share_vocabulary(model: Model, devices: DeviceMesh) -> None:
    for embed in model.embeddings.values():
        _share_rows(embed, devices)
        embed.__class__ = VocabParallelEmbedding
    if not model.predicts:
        return
    kind = type(model.unembed)
    require(
        kind is Unembedding, f"tensor parallel: ranks cannot share an output layer ({kind.__name__}). Use a matrix."
    )
    _share_rows(model.unembed, devices)
    model.unembed.__class__ = VocabParallelUnembedding


def _share_rows(module: nn.Module, devices: DeviceMesh) -> None:
    """Cut a matrix of the vocabulary, and its biases, along that."""
    for name in ("matrix", "bias"):
        whole: Any = module._parameters.get(name)
        if whole is not None:
            n, ranks = len(whole), devices.size()
            require(
                n >= ranks, f"tensor parallel: {n} tokens of the vocabulary for {ranks} ranks, of which each has one."
            )
            cut = distribute_tensor(whole.data, devices, [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(cut, requires_grad=whole.requires_grad))


def _has_parameters(module: nn.Module) -> bool:
    """Whether a module multiplies by parameters, its own or those of a norm that it is tied to."""
    own = module.tied if isinstance(module, Norm) and module.tied is not None else module
    return any(True for _ in own.parameters())


def _replicated(name: str, module: nn.Module, devices: DeviceMesh) -> None:
    for own, parameter in module.named_parameters(recurse=False):
        whole = distribute_tensor(parameter.data, devices, [Replicate()], src_data_rank=None)
        module.register_parameter(own, nn.Parameter(whole, requires_grad=parameter.requires_grad))


def _replicated_input(module: nn.Module, inputs: tuple[Any, ...], devices: DeviceMesh) -> tuple[Any, ...]:
    return _on_all(inputs[0], devices), *inputs[1:]


def _local_output(module: nn.Module, output: Any, devices: DeviceMesh) -> Tensor:
    return output.to_local()


def _on_all(x: Tensor, devices: DeviceMesh) -> DTensor:
    """Return a tensor that all ranks have as one of all of them."""
    return DTensor.from_local(x, devices, [Replicate()], run_check=False)
