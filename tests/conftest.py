"""What every test runs under: fixed seeds, one thread, and fresh memory that is poison."""

import signal
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
import torch
from hypothesis import HealthCheck, settings

import runtime_checks

# a job that a shell starts in the background ignores Ctrl-C, and so would the runs that tests interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)

# both profiles are derandomised: a failure on one machine is a failure on all of them
_SLOW_EXAMPLES = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "fast", max_examples=6, derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW_EXAMPLES
)
settings.register_profile(
    "full", max_examples=30, derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW_EXAMPLES
)
settings.load_profile("fast")

# the models under test are tiny: a second thread costs more than it brings, and sums keep one order
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Give every test the same global generator, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fill fresh `torch.empty` with NaN (floats) or the largest value (integers), so that reading it shows."""
    # torch poisons while deterministic algorithms are asked for; warn_only leaves operators without one usable
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Path of the system's Chromium, for Playwright's `executable_path`; tests that need it are skipped without it."""
    found = next((path for path in map(which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
    if found is None:
        pytest.skip("no chromium on PATH")
    return Path(found)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unchecked", action="store_true", help="leave shape and type annotations unchecked")
    parser.addoption("--stress-minutes", type=float, default=None, help="minutes that each stress test goes on")
    parser.addoption("--stress-report", default=None, help="JSON file for the outcomes of the stress tests")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--unchecked"):
        runtime_checks.install("glassformer")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_half_to_the_sweep(items)
    _leave_out_compiled(config, items)


def _leave_half_to_the_sweep(items: list[pytest.Item]) -> None:
    """Mark half of the architectures as `full` for every law over all of them: another half for each law."""
    from glassformer.testing.models import ARCHITECTURES

    laws: dict[tuple[Path, str], dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if isinstance(item, pytest.Function) and "[" in item.name:
            for name in {str(value) for value in item.callspec.params.values()} & ARCHITECTURES.keys():
                laws[item.path, item.originalname][name].append(item)
    for (_, law), drawn in laws.items():
        # who has chosen already, or has few, is left alone
        chosen = any(item.get_closest_marker("full") for some in drawn.values() for item in some)
        if chosen or len(drawn) < len(ARCHITECTURES) // 2:
            continue
        order = sorted(drawn, key=lambda name: zlib.crc32(f"{law} {name}".encode()))
        for name in order[-(-len(order) // 2) :]:
            for item in drawn[name]:
                item.add_marker(pytest.mark.full)


def _leave_out_compiled(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave `test_compiled*.py` to the process that `make test-all` starts without the run-time shape checks."""
    if config.getoption("--unchecked"):
        return
    compiled = [item for item in items if item.path.name.startswith("test_compiled")]
    config.hook.pytest_deselected(items=compiled)
    items[:] = [item for item in items if item not in compiled]
