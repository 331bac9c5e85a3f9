"""Messages between the ranks of a group: tensors passed on around the ring, and tensors of unequal size gathered.

Who receives knows the shape of what comes, so no message says its size. Nothing here has a derivative: a collective
that has one is made of these, forth and back.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Ring(NamedTuple):
    """The ranks of a group in a circle.

    Args:
        group: The process group; None for all processes.
    """

    group: dist.ProcessGroup | None

    @property
    def rank(self) -> int:
        """This process's place."""
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """How many places there are."""
        return dist.get_world_size(self.group)

    def peer(self, place: int) -> int:
        """The number, among all processes, of the one at a place, counted around the circle."""
        place %= self.size
        return place if self.group is None else dist.get_global_rank(self.group, place)

    def pass_on(self, tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> "Passing":
        """Send tensors to the next rank and begin to receive as many from the one before.

        Args:
            tensors: What is sent.
            shapes: Of what comes.
        """
        if self.size == 1:
            return Passing(list(tensors), [], [])
        coming = [x.new_empty(*shape) for x, shape in zip(tensors, shapes, strict=True)]
        going = [x.contiguous() for x in tensors]
        # an empty message would be none to some back-ends
        sends = [dist.P2POp(dist.isend, x, self.peer(self.rank + 1), self.group) for x in going if x.numel()]
        receives = [dist.P2POp(dist.irecv, x, self.peer(self.rank - 1), self.group) for x in coming if x.numel()]
        pending = dist.batch_isend_irecv(sends + receives) if sends or receives else []
        return Passing(coming, going, pending)

    def send(self, x: Tensor, place: int) -> None:
        """Send a tensor to the rank at a place."""
        dist.send(x.contiguous(), self.peer(place), self.group)

    def receive(self, like: Tensor, place: int) -> Tensor:
        """Return what the rank at a place sends, a tensor of the shape and type of `like`."""
        found = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(found, self.peer(place), self.group)
        return found

    def gather(self, x: Tensor) -> list[Tensor]:
        """Return every rank's tensor, all of one shape, in the order of ranks."""
        found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(found, x.contiguous(), self.group)
        return found


class Passing(NamedTuple):
    """Tensors under way: what comes may be read after `wait`, and what goes must live until then."""

    coming: list[Tensor]
    going: list[Tensor]
    pending: list[dist.Work]

    def wait(self) -> list[Tensor]:
        """Return what has come."""
        for work in self.pending:
            work.wait()
        return self.coming
