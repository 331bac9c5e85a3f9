"""Weights and optimizer state in shards, one for each rank, put together for a block while it runs (FSDP2).

What a run keeps, and what it is measured by, is the whole model: the leader has one beside its shard, into which all
shards are gathered when it is asked for. A run's folder therefore knows nothing of meshes.
Source: Zhao et al. 2023, "PyTorch FSDP" (2304.11277), section 3; Rajbhandari et al. 2020, "ZeRO" (1910.02054), stage 3.
"""

import copy

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from glassformer.training.optim import OptimConfig
from glassformer.training.sharing import Trained


def sharded(whole: Trained, optim: OptimConfig, mesh: DeviceMesh) -> Trained:
    """Return a copy of a model and its optimizer of which each rank has a shard.

    Args:
        whole: Model and optimizer, the same on all ranks; they stay as they are.
        optim: What the optimizer was built by.
        mesh: Who has the shards.
    """
    model = copy.deepcopy(whole.model)
    for stack in model.stacks.values():
        for block in stack.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "loss")
    optimizer = optim.build(model)
    for ours, theirs in zip(model.parameters(), whole.model.parameters(), strict=True):
        for name, value in whole.optimizer.state.get(theirs, {}).items():
            optimizer.state[ours][name] = _like(ours, value)
    return Trained(model, optimizer)


def gather(shards: Trained, whole: Trained | None) -> None:
    """Put all shards together in a whole model and its optimizer; all ranks call it, and one has the whole."""
    # what ran last without a gradient has left some weights whole, which are not those that the optimizer knows
    shards.model.reshard()
    parameters = list(shards.model.parameters())
    wholes: list[nn.Parameter | None] = [None] * len(parameters) if whole is None else list(whole.model.parameters())
    with torch.no_grad():
        for ours, theirs in zip(parameters, wholes, strict=True):
            # by name: a state that was read from a file lies in an order of each process's own
            held = sorted(shards.optimizer.state.get(ours, {}).items())
            value, state = _full(ours), {name: _full(part) for name, part in held}
            if whole is not None and theirs is not None:
                theirs.copy_(value)
                whole.optimizer.state[theirs] = state


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a whole tensor in shards as a parameter's are; a count of steps is everybody's."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value.clone()
    # all ranks have the same: none sends it
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _full(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
