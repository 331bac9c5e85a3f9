"""Which processor a measurement ran on, as the system names it."""

import platform
from pathlib import Path


def processor() -> str:
    """Return the model of the processor; its architecture where the system says no more."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), "") or platform.processor() or platform.machine()
