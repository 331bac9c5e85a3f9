"""Processes that make up a group of ranks on this machine, forked from a server that has imported the library once."""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 120
_PRELOADED = ["glassformer.training.parallel", "glassformer.testing", "pytest"]


def on_ranks(n: int, work: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Return what a function returns on each of n ranks; what it raises on one fails the test.

    The function is a module's own, called with the inputs; it asks torch for its rank.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(rank) for rank in range(n)]
        processes = [context.Process(target=_rank, args=(rank, n, folder, work, inputs)) for rank in range(n)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(SECONDS)
        for process in processes:
            process.kill()
        found = [torch.load(path, weights_only=True) if path.exists() else "it died" for path in paths]
    wrong = [f"rank {rank}: {value}" for rank, value in enumerate(found) if isinstance(value, str)]
    assert not wrong, "\n".join(wrong)
    return [value[0] for value in found]


def _rank(rank: int, n: int, folder: str, work: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=SECONDS / 4)
    dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=n, timeout=timeout)
    try:
        found: Any = (work(*inputs),)
    except Exception:
        found = traceback.format_exc()
    torch.save(found, Path(folder) / str(rank))
    dist.destroy_process_group()
