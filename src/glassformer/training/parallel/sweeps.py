"""Sweeps whose rows are shared among processes: each has the whole model and runs some rows, all have what all found.

    with shared_sweeps("cuda") as device:          # torchrun --nproc-per-node 4 script.py
        model = gf.load("gpt-4l", device=device)
        found = gf.analysis.causal.patch(model, pairs, sites="everything")
    if leads():
        print(found)

The same script runs in one process, which has all rows then.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from glassformer.errors import ConfigError
from glassformer.models.row_ranks import rows_shared_among
from glassformer.numerics.placement import Device, device_of
from glassformer.training.parallel.exchange import Ring
from glassformer.training.parallel.mesh import Mesh
from glassformer.training.parallel.processes import Ranks, joined, own_device, started

_WAY_ON = "a sweep goes on with the rows that save_to has kept."


@contextmanager
def shared_sweeps(device: Device = "cpu") -> Iterator[torch.device]:
    """Let the processes that were started together share the rows of sweeps, and yield where this one computes.

    Inside, all of them make the same calls with the same arguments. What sweeps (`patch`, `ablate_each`, …) and what
    cuts edges (`edge_effects`, `acdc`, …) runs this process's share of the rows and returns all of them, the same
    numbers to every process. What keeps a graph for gradients, and all else, each process does by itself. Rank 0 calls
    `report`, by how far it has come itself. With `save_to`, a rank keeps the rows of a sweep in a file beside that one,
    which has all rows in the end.

    Args:
        device: Where to compute, `cpu` or `cuda`, of which each process of a machine takes the one of its number.

    Raises:
        ConfigError: The processes are in a group already, were not told their ranks, or cannot meet; inside, a rank
            asks something else than rank 0.
        RankLost: A process did not come, died or no longer answers.
    """
    place = device_of(device)
    assert place is not None, "a device was named"
    place = own_device(place)
    if started() == 1:
        yield place
        return
    if dist.is_initialized():
        raise ConfigError(
            "shared_sweeps: this process is in a group of processes already, of a mesh or of other shared sweeps.\n"
            "    Leave that first: blocks come one after the other."
        )
    with joined(Mesh(dp=started()), place, _WAY_ON) as ranks, rows_shared_among(_Rows(ranks)):
        yield place


class _Rows:
    """The processes of a mesh, which share rows; a `RowRanks`.

    Args:
        ranks: The processes.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.size, self.device = ranks.rank, ranks.size, ranks.device

    def gather(self, x: Tensor) -> list[Tensor]:
        """As `RowRanks` says."""
        return [found.to(x.device) for found in Ring(None).gather(x.to(self.device))]
