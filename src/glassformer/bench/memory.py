"""Peak memory of a call: the most bytes that it held at once beyond what was there before it.

On a CPU every allocation and release of PyTorch's allocator is taken from its profiler, those inside kernels included;
not seen is what other libraries take by themselves (oneDNN, MKL), and stacks. On CUDA it is the mark of PyTorch's
allocator; not seen is what libraries take beside it.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import profile

from glassformer.bench.paired import uncollected
from glassformer.words import sentence

SEEN = {
    "cpu": sentence(
        "the most bytes of PyTorch's allocator at once, inside kernels too, by its profiler; not seen is what other "
        "libraries (oneDNN, MKL) take by themselves"
    ),
    "cuda": sentence(
        "the most bytes of PyTorch's allocator at once (max_memory_allocated); not seen is what libraries take by "
        "themselves"
    ),
}
UNSEEN = sentence("not measured: PyTorch does not say what is taken at most on this device")
# what is allocated or released, in the profiler's record
_EVENT = "[memory]"


KEPT = sentence(
    "what is freed stays with the process (glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD): by default blocks of over "
    "32 MiB go back to the system, which hands out pages anew at every call, and long texts cost that besides"
)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them


def keep_freed_memory() -> bool:
    """Let the process keep the memory it frees, from here on to its end; return whether its allocator does."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    most = 2**31 - 1
    return mallopt is not None and all(mallopt(name, most) for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """Peak memory of a call: the most bytes at once on a device, what it returns included; None if none can say."""
    # what is released inside was not held by the call
    with uncollected():
        if device.type == "cpu":
            return _peak_on_cpu(run)
        return _peak_on_cuda(run, device) if device.type == "cuda" else None


def _peak_on_cuda(run: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(run: Callable[[], object]) -> int:
    # the profiler would tell of its beginning and its end on standard error
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    recorder = profile(profile_memory=True)
    with recorder:
        run()
    record: Any = recorder.kineto_results
    changes = [event for event in record.events() if event.name() == _EVENT]
    held = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
