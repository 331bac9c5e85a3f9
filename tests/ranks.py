"""Processes that make up a group of ranks on this machine, forked from a server that has imported the library once."""

import multiprocessing
import os
import socket
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 120
_PRELOADED = ["glassformer.training.parallel.shared", "glassformer.testing", "pytest"]


def on_ranks(n: int, work: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Return what a function returns on each of n ranks of one group; what it raises on one fails the test.

    Args:
        n: How many ranks.
        work: A module's own function, called with the inputs; it asks torch for its rank.
        inputs: For all ranks.
    """
    found = on_processes(n, _grouped, work, *inputs)
    wrong = [f"rank {rank}: {value}" for rank, value in enumerate(found) if isinstance(value, str)]
    assert not wrong, "\n".join(wrong)
    return [value[0] for value in found]


def on_processes(n: int, work: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Return what a function returns in each of n processes that know their ranks, as torchrun starts them.

    A text in place of a tuple of the one value is the error that it raised, or says that the process died.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(rank) for rank in range(n)]
        port = _free_port()
        started = [(rank, n, port, folder, work, inputs) for rank in range(n)]
        processes = [context.Process(target=_process, args=arguments) for arguments in started]
        for process in processes:
            process.start()
        for process in processes:
            process.join(SECONDS)
        for process in processes:
            process.kill()
        found = [torch.load(path, weights_only=True) if path.exists() else "it died" for path in paths]
    return found


def _process(rank: int, n: int, port: int, folder: str, work: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        found: Any = (work(*inputs),)
    except Exception:
        found = traceback.format_exc()
    torch.save(found, Path(folder) / str(rank))


def _grouped(work: Callable[..., Any], *inputs: Any) -> Any:
    dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS / 4))
    try:
        return work(*inputs)
    finally:
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
