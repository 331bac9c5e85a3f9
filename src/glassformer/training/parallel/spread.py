"""Context parallel models: each rank holds some positions of every text, and mixes them with those of all.

    softmax                    ring attention: keys and values go around the ranks      (`parallel.ring`)
    linear, with decay or not  LASP+: what ranks write into memories is gathered        (`parallel.lasp`)

Positions are shared zigzag, so that under a causal mask all ranks meet as many keys; documents end anywhere. Whatever
else a model does, it does position by position.
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from glassformer.attention.context import Documents
from glassformer.data import Batch
from glassformer.training.parallel.lasp import lasp_plus
from glassformer.training.parallel.ring import ring_attention
from glassformer.training.parallel.shards import SequenceShards


class SharedPositions:
    """The ranks of one axis of a mesh, which share the positions of texts; a `Spread`.

    Args:
        devices: The ranks.
    """

    def __init__(self, devices: DeviceMesh) -> None:
        self.group, self.rank, self.ranks = devices.get_group(), devices.get_local_rank(), devices.size()

    def shards(self, length: int) -> SequenceShards:
        """Which rank holds which positions of so many."""
        return SequenceShards.zigzag(length, self.ranks)

    def own(self, x: Tensor) -> Tensor:
        """What this rank has of a tensor with all positions on its last axis."""
        return self.shards(x.shape[-1]).shard(x, self.rank, -1)

    def batch(self, batch: Batch) -> Batch:
        """What this rank has of a batch: its positions, and the documents of all.

        Padding is on the right, where no token that counts looks, so that it goes as tokens do.
        """
        documents = torch.zeros_like(batch.tokens) if batch.documents is None else batch.documents
        shared = {name: self.own(getattr(batch, name)) for name in ("tokens", "targets", "weight")}
        return dataclasses.replace(batch, **shared, documents=documents, lengths=None)

    def softmax(
        self,
        q: Float[Tensor, "batch head pos d_head"],
        k: Float[Tensor, "batch kv_head pos d_head"],
        v: Float[Tensor, "batch kv_head pos d_value"],
        scale: float,
        documents: Documents | None,
        dropout: float,
    ) -> Float[Tensor, "batch head pos d_value"]:
        """As `Spread` says."""
        return ring_attention(q, k, v, self._shards_of(documents), documents, self.group, scale, dropout)

    def linear(
        self,
        q: Float[Tensor, "batch head pos feature"],
        k: Float[Tensor, "batch head pos feature"],
        v: Float[Tensor, "batch head pos value"],
        keep: Float[Tensor, " head"],
        documents: Documents | None,
    ) -> Float[Tensor, "batch head pos value"]:
        """As `Spread` says."""
        return lasp_plus(q, k, v, keep, self._shards_of(documents), documents, self.group)

    def _shards_of(self, documents: Documents | None) -> SequenceShards:
        assert documents is not None, "`batch` names the documents of all positions"
        return self.shards(documents.ids.shape[-1])
