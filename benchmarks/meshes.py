"""Processes that train together: a mesh of one beside plain training, what a rank keeps of a long text, what it sends.

Bytes are counted, not timed. What is kept is what autograd saves, by the hooks by which `glassformer plan` counts, in
processes that exchange by gloo on this machine; beside it stands how far resident memory grows in a whole step. What is
sent by LASP+ is what ranks hand over to be gathered. Ranks meet at a file, so no port is taken.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from glassformer.attention import Rope
from glassformer.data import Batch
from glassformer.fitting.descent import Descent
from glassformer.models import DecoderConfig, Mlp, RmsNorm, block, repeat
from glassformer.models.saved_activations import saved_in
from glassformer.training import TrainConfig
from glassformer.training.parallel import Mesh, SequenceShards, lasp_plus
from glassformer.training.parallel.processes import Ranks
from glassformer.training.parallel.shared import Shared
from glassformer.training.parallel.spread import SharedPositions
from glassformer.training.record import RunFolder
from glassformer.training.sharing import Sharing

LONG = 16_384
# half as wide as gpt-4l, whose shape it has: a step of it over a long text takes seconds
LAYER = block(
    n_heads=4, n_kv_heads=2, positions=Rope(), norm=RmsNorm(), mlp=Mlp(344, activation="silu", gated=True, bias=False)
)
OVER_LONG = DecoderConfig(256, 128, repeat(LAYER, 4), max_len=LONG)
# beside the share of what one process keeps that a rank may keep, by the number of ranks
RING = {2: 0.65, 4: 0.4}
MESSAGES = (1024, 2048, 4096, 8192, 16_384)
HEADS, D_HEAD = 4, 64
KIB = 1024


class Kept(NamedTuple):
    """What a process keeps of a training step, in bytes: what autograd saves, and by how much resident memory grows."""

    saved: int
    resident: int


@contextmanager
def mesh_of_one(config: TrainConfig) -> Iterator[Shared]:
    """Yield what the training loop asks of a mesh that has one process, in a group of that one."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield Shared(config, Ranks(Mesh(), 0, store, torch.device("cpu")))
    finally:
        dist.destroy_process_group()


def training_step(config: TrainConfig, sharing: Sharing, batch: Batch) -> Callable[[], float]:
    """Return what the training loop does in one step of a recipe, less its data and its logging; it gives the loss.

    Args:
        config: The recipe.
        sharing: Who trains.
        batch: Of every step.
    """
    with tempfile.TemporaryDirectory() as folder, RunFolder(folder, config) as run:
        (model, optimizer), _ = sharing.begun(config.model.build(config.seed).train(), config.optim, run)

    def losses(step: int) -> Iterator[Tensor]:
        part = sharing.rows(batch)
        own = int(part.weight.sum())
        counted, rows = sharing.totals(own, len(part.tokens))
        with sharing.dropout(part, int(rows)):
            yield model.loss(part) * (own / counted * sharing.size)

    steps = iter(Descent(
        list(model.parameters()), optimizer, losses, rate=lambda _: config.optim.lr, steps=sys.maxsize,
        clip=config.optim.clip, name="a benchmark", way_on=lambda: "", mean=sharing.mean,
    ))  # fmt: skip
    return lambda: next(steps).loss


@cache
def kept_by_ranks(ranks: int, length: int = LONG) -> list[Kept]:
    """Return what each of so many ranks keeps of a training step of one text, whose positions they share."""
    return [Kept(*told) for told in on_ranks(ranks, "kept", length)]


@cache
def messages_of_lasp(lengths: tuple[int, ...] = MESSAGES) -> list[int]:
    """Return the bytes that one of two ranks hands over to be gathered, there and back, for texts of each length."""
    return on_ranks(2, "messages", *lengths)[0]


def on_ranks(ranks: int, work: str, *numbers: int) -> list[Any]:
    """Return what a function of this file gives on each of so many ranks, processes of their own.

    Args:
        ranks: How many.
        work: The function's name.
        numbers: What it is called with.
    """
    with tempfile.TemporaryDirectory() as folder:
        threads = max(1, torch.get_num_threads() // ranks)
        told = os.environ | {"OMP_NUM_THREADS": str(threads)}
        started = [
            subprocess.Popen(
                [sys.executable, "-c", f"import meshes; meshes.tell({rank}, {ranks}, {folder!r}, {work!r}, {numbers})"],
                env=told, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        said = [process.communicate()[0] for process in started]
        for process in started:
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args)
    return [json.loads(lines) for lines in said]


def tell(rank: int, ranks: int, folder: str, work: str, numbers: tuple[int, ...]) -> None:
    """Print, as JSON, what one of the functions below gives in a group of ranks."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        print(json.dumps({"kept": kept, "messages": messages}[work](*numbers)))
    finally:
        dist.destroy_process_group()


def kept(length: int) -> Kept:
    """Return what this rank keeps of a training step of one text, of which it has some positions."""
    ranks = dist.get_world_size()
    model = OVER_LONG.build(0).train()
    positions = SharedPositions(init_device_mesh("cpu", (ranks,)))
    model.spread = positions if ranks > 1 else None

    def own(length: int) -> Batch:
        ids = torch.randint(OVER_LONG.vocab_size, (1, length + 1), generator=torch.Generator().manual_seed(0))
        batch = Batch(ids[:, :-1], ids[:, 1:], ids[:, 1:] >= 0)
        return positions.batch(batch) if ranks > 1 else batch

    text = own(length)
    # what is loaded by the first step is not of the long one
    model.loss(own(16 * ranks)).backward()
    before = _resident()
    model.loss(text).backward()
    grown = _resident() - before
    return Kept(sum(saved_in(model, lambda: model.loss(text)).values()), grown)


def messages(*lengths: int) -> list[int]:
    """Return the bytes that this rank hands over to be gathered by LASP+, there and back, for each length."""
    sent, gather = list[int](), dist.all_gather

    def counted(found: list[Tensor], x: Tensor, *others: Any) -> Any:
        sent[-1] += x.nbytes
        return gather(found, x, *others)

    for length in lengths:
        sent.append(0)
        shards = SequenceShards.contiguous(length, dist.get_world_size())
        shape = 1, HEADS, sum(shards.lengths(dist.get_rank())), D_HEAD
        q, k, v = (torch.randn(shape).requires_grad_() for _ in range(3))
        with patch.object(dist, "all_gather", counted):
            lasp_plus(q, k, v, torch.ones(HEADS), shards).sum().backward()
    return sent


def _resident() -> int:
    """Return the most memory that this process has had resident, in bytes."""
    return KIB * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
