"""The fixture that stress tests take their seeds from, and where the outcomes of their trials go."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from trials import Trials


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Iterator["Trials"]:
    """Trials of a size that fits the tier."""
    from trials import Trials  # not before the run-time checks are in place

    minutes = request.config.getoption("--stress-minutes")
    trials = Trials(request.config.getoption("--hypothesis-profile") == "full", minutes and 60 * minutes)
    yield trials
    request.node.user_properties.append(("trials", dict(trials.outcomes)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Say of a failed test which seed it had come to."""
    outcome: Any = yield
    report = outcome.get_result()
    found = getattr(item, "funcargs", {}).get("trials")
    if found is not None and report.when == "call" and report.failed:
        report.sections.append(("trials", f"failed at seed {found.seed}, after {dict(found.outcomes)}"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the outcomes of all trials, and write them where asked."""
    found = {
        report.nodeid.partition("::")[2]: dict(report.user_properties)["trials"]
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "teardown" and "trials" in dict(report.user_properties)
    }
    path = config.getoption("--stress-report")
    if path is None:
        return
    terminalreporter.section("trials")
    for name, outcomes in sorted(found.items()):
        terminalreporter.line(f"{name}: {', '.join(f'{n} {outcome}' for outcome, n in sorted(outcomes.items()))}")
    Path(path).write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
