"""One program on many processes: what ranks share, and how they exchange it."""

from glassformer.training.parallel.lasp import lasp, lasp_plus
from glassformer.training.parallel.mesh import Mesh
from glassformer.training.parallel.plan import Plan, plan
from glassformer.training.parallel.processes import leads
from glassformer.training.parallel.ring import ring_attention
from glassformer.training.parallel.sharded_checkpoint import join_shards, load_shards, save_shards
from glassformer.training.parallel.shards import SequenceShards
from glassformer.training.parallel.sweeps import shared_sweeps
from glassformer.training.parallel.tensor import tensor_parallel

__all__ = [
    "Mesh", "Plan", "SequenceShards", "join_shards", "lasp", "lasp_plus", "leads", "load_shards", "plan",
    "ring_attention", "save_shards", "shared_sweeps", "tensor_parallel",
]  # fmt: skip
