"""Weights and optimizer state in shards, one for each rank, put together for a block while it runs (FSDP2).

Ranks that share layers have shards of their part of each, which stays a part while a block runs.

Where a run keeps the whole model, the leader has one beside its shard, into which all shards are gathered when it is
asked for; where it keeps shards, a model is cut up in place, and no rank has the whole again.
Source: Zhao et al. 2023, "PyTorch FSDP" (2304.11277), section 3; Rajbhandari et al. 2020, "ZeRO" (1910.02054), stage 3.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from glassformer.models import Model
from glassformer.training.optim import OptimConfig
from glassformer.training.parallel.spread import SharedPositions
from glassformer.training.parallel.tensor import row_orders, share_layers
from glassformer.training.sharing import Trained

# of each weight, by its name
State = Mapping[str, Mapping[str, Tensor]]


def sharded(whole: Trained, optim: OptimConfig, mesh: DeviceMesh) -> Trained:
    """Return a copy of a model and its optimizer of which each rank has a shard.

    Args:
        whole: Model and optimizer, the same on all ranks; they stay as they are.
        optim: What the optimizer was built by.
        mesh: Who has the shards.
    """
    state = {name: whole.optimizer.state.get(weight, {}) for name, weight in whole.model.named_parameters()}
    return shard(copy.deepcopy(whole.model), optim, mesh, state)


def shard(model: Model, optim: OptimConfig, mesh: DeviceMesh, state: State | None = None) -> Trained:
    """Let each rank keep its shard of a model, in place; return it with an optimizer of the shards.

    Args:
        model: The same on all ranks.
        optim: What builds the optimizer.
        mesh: Who has the shards.
        state: Of the optimizer, whole; none for a new one.
    """
    if mesh["tp"].size() > 1:
        share_layers(model, mesh["tp"])
    model.spread = SharedPositions(mesh["cp"]) if mesh["cp"].size() > 1 else None
    shares = _of_weights(mesh)
    for stack in model.stacks.values():
        for block in stack.blocks:
            fully_shard(block, mesh=shares)
    fully_shard(model, mesh=shares)
    register_fsdp_forward_method(model, "loss")
    optimizer, orders = optim.build(model), row_orders(model)
    for name, ours in model.named_parameters():
        for key, value in ({} if state is None else state[name]).items():
            optimizer.state[ours][key] = part_of(value, ours, orders.get(name))
    return Trained(model, optimizer)


def gather(shards: Trained, whole: Trained | None) -> None:
    """Put all shards together in a whole model and its optimizer; all ranks call it, and one has the whole.

    Args:
        shards: What this rank has.
        whole: The model and its optimizer, of the rank that has them.
    """
    # what ran last without a gradient has left some weights whole, which are not those that the optimizer knows
    shards.model.reshard()
    wholes = {} if whole is None else dict(whole.model.named_parameters())
    orders = row_orders(shards.model)
    with torch.no_grad():
        for parameter, ours in shards.model.named_parameters():
            # by name: a state that was read from a file lies in an order of each process's own
            held = sorted(shards.optimizer.state.get(ours, {}).items())
            value, state = full(ours), {name: full(part) for name, part in held}
            if whole is not None:
                back = orders[parameter].argsort() if parameter in orders else slice(None)
                theirs = wholes[parameter]
                theirs.copy_(value[back])
                whole.optimizer.state[theirs] = {
                    name: part[back] if part.shape == value.shape else part for name, part in state.items()
                }


def _of_weights(mesh: DeviceMesh) -> DeviceMesh:
    """Return who has shards of weights: the ranks of `dp` and `cp` in one row, since of two axes FSDP copies one."""
    several = [name for name in ("dp", "cp") if mesh[name].size() > 1]
    if len(several) < 2:
        return mesh[several[0] if several else "dp"]
    return mesh["dp", "cp"]._flatten("dp_cp")


def part_of(value: Tensor, parameter: Tensor, order: Tensor | None = None) -> Tensor:
    """Return a whole tensor in shards as a parameter's are; a count of steps is everybody's.

    Args:
        value: The same on all ranks.
        parameter: One of a model in shards.
        order: In which the ranks have its rows; None for their own.
    """
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value.clone()
    own, mesh = value if order is None else value[order], parameter.device_mesh
    # the part of a layer is cut before its shard is; all ranks have the same, so none sends it
    for axis, placement in reversed([*enumerate(parameter.placements)]):
        if not placement.is_replicate():
            cut: Any = placement
            size, rank = mesh.size(axis), mesh.get_local_rank(axis)
            each = -(-own.shape[cut.dim] // size)
            start = min(each * rank, own.shape[cut.dim])
            own = own.narrow(cut.dim, start, min(each, own.shape[cut.dim] - start))
    own = own.clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(
        own, mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def full(value: Tensor) -> Tensor:
    """Return all shards of a tensor put together; all ranks ask together."""
    return value.full_tensor() if isinstance(value, DTensor) else value
