"""What every test runs under: fixed seeds, one thread, and fresh memory that is poison."""

import gc
import hashlib
import json
import os
import resource
import signal
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import runtime_checks

# until all tests are collected, next to nothing of what is made can go
gc.disable()

# a job that a shell starts in the background ignores Ctrl-C, and so would the runs that tests interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
# the functions of `glassformer.render.page` that draw them: a conftest must not import the package before its checks
PAGES = {"glassformer.explanation": "explanation_page", "glassformer.circuits": "circuits_page"}

# all profiles are derandomised: a failure on one machine is a failure on all of them
_SLOW_EXAMPLES = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "fast", max_examples=4, derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW_EXAMPLES
)
settings.register_profile(
    "full", max_examples=30, derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW_EXAMPLES
)
settings.register_profile(
    "ci", max_examples=12, derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW_EXAMPLES
)
settings.load_profile("fast")

# the models under test are tiny: a second thread costs more than it brings, and sums keep one order
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Give every test the same global generator, whatever ran before it."""
    # `torch.manual_seed` writes down the stack of its caller, for accelerators that are not there yet
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """Fill fresh `torch.empty` with NaN (floats) or the largest value (integers), so that reading it shows."""
    # torch poisons while deterministic algorithms are asked for; warn_only leaves operators without one usable
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """The first CUDA device; tests that need one are skipped without."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Path of the system's Chromium, for Playwright's `executable_path`; tests that need it are skipped without it."""
    found = next((path for path in map(which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
    if found is None:
        pytest.skip("no chromium on PATH")
    return Path(found)


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a function that opens the page of a document, of results and what heads them, or what a function writes.

    Afterwards, no page may have complained or asked for anything.
    """
    from glassformer.render import page as pages
    from pages import wait_for_frame

    contexts: list[Any] = []
    complaints: list[str] = []
    requests: list[str] = []
    addresses: list[str] = []

    def open_page(shown: Any, head: Any = None, *, scheme: Any = "light", width: int = 1280) -> Any:
        path = tmp_path / f"{len(addresses)}.html"
        if callable(shown):
            shown(path)
        else:
            document = isinstance(shown, dict)
            drawn = getattr(pages, PAGES[shown["format"]])(shown) if document else pages.results_page(shown, head)
            path.write_text(drawn, encoding="utf-8")
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        addresses.append(path.as_uri())
        tab.goto(path.as_uri())
        wait_for_frame(tab)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests == addresses


_CPU: defaultdict[str, float] = defaultdict(float)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count the CPU seconds of each file, of the processes that its tests start too."""
    started = _cpu_seconds()
    try:
        return (yield)
    finally:
        _CPU[item.nodeid.partition("::")[0]] += _cpu_seconds() - started


def pytest_unconfigure() -> None:
    if (folder := os.environ.get("CPU_BY_FILE")) and _CPU:
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(_CPU), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--annotations",
        choices=("none", "shapes", "all"),
        default="shapes",
        help="which annotations are checked while tests run: those that name shapes, all, or none",
    )
    parser.addoption("--stress-minutes", type=float, default=None, help="minutes that each stress test goes on")
    parser.addoption("--share", type=int, default=0, help="run one in so many of the tests left to the full sweep")
    parser.addoption("--stress-report", default=None, help="JSON file for the outcomes of the stress tests")


def pytest_configure(config: pytest.Config) -> None:
    if (which := config.getoption("--annotations")) != "none":
        runtime_checks.install("glassformer", only_shapes=which == "shapes")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # left to the process that `make test-all` starts without the run-time checks
    compiled = collection_path.name.startswith("test_compiled")
    return True if compiled and config.getoption("--annotations") != "none" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from glassformer.attention import MixerConfig

    _leave_most_to_the_sweep(items, {f"test_{name}.py" for name in MixerConfig.registry}, one_in=4)
    _leave_pages_to_the_sweep(items)
    if one_in := config.getoption("--share"):
        _leave_all_but_a_share(config, items, one_in)


def pytest_collection_finish() -> None:
    # items and modules stay until the end: a collection need not visit them each time
    gc.collect()
    gc.freeze()
    gc.enable()


def _leave_most_to_the_sweep(items: list[pytest.Item], whole: set[str], one_in: int, least: int = 4) -> None:
    """Mark as `full` all but one in a few cases of each test that has at least so many, but in files named so."""
    tests: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full") or item.path.name in whole:
            continue
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests[item.path, item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        if len(cases) >= least:
            drawn = sorted(cases, key=lambda case: zlib.crc32(case.name.encode()))
            for case in drawn[-(-len(drawn) // one_in) :]:
                case.add_marker(pytest.mark.full)


def _leave_pages_to_the_sweep(items: list[pytest.Item]) -> None:
    """Mark as `full` all tests of a file that open a page in the browser, but its first one."""
    opening: set[Path] = set()
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("full"):
            if item.path in opening:
                item.add_marker(pytest.mark.full)
            opening.add(item.path)


def _leave_all_but_a_share(config: pytest.Config, items: list[pytest.Item], one_in: int) -> None:
    """Keep one in so many `full` tests, drawn by the tree of sources and tests: the same wherever and whenever."""
    tree = hashlib.sha256()
    for path in sorted(path for top in ("src", "tests") for path in (config.rootpath / top).rglob("*.py")):
        tree.update(path.read_bytes())
    seed = tree.hexdigest()
    # only of what the default run leaves out
    left = [item for item in items if item.get_closest_marker("full")]
    share = [item for item in left if zlib.crc32(f"{seed} {item.nodeid}".encode()) % one_in == 0] or left[:1]
    drawn = set(share)
    config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
    items[:] = share
