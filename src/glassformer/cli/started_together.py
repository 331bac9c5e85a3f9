"""A command that was started many times at once, by torchrun: its processes share the rows of sweeps, and one tells."""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager

from glassformer.cli.options import LongOutput, Opening
from glassformer.config import require


@contextmanager
def shared_among_processes(opening: Opening, output: LongOutput) -> Iterator[tuple[Opening, bool]]:
    """Share sweeps inside; yield how this process opens the model, and whether it tells what came of it.

    Args:
        opening: How the model is opened, on a device of which each process takes its own.
        output: Where results go.

    Raises:
        ConfigError: A dry run is asked for, which ends in one process while others wait.
        RankLost: A process did not come, died or no longer answers.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield opening, True
        return
    from glassformer.training.parallel import leads, shared_sweeps

    require(not output.dry_run, "--dry-run measures one process: start it without torchrun.")
    with shared_sweeps(opening.device) as device:
        yield dataclasses.replace(opening, device=str(device)), leads()
