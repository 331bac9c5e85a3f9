"""`glassformer study`: papers' claims, checked in miniature."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from glassformer.cli.claims import show_atlas
from glassformer.cli.console import Console
from glassformer.cli.progress import progress
from glassformer.errors import AnalysisUnavailable
from glassformer.files import check_writable
from glassformer.words import spoken, spoken_each

Action = Literal["list", "run", "keep", "report", "verify", "atlas"]
SCALES = Literal["smoke", "small", "full"]


def study(
    action: Annotated[Action, tyro.conf.Positional],
    name: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    /,
    scale: SCALES = "small",
    jobs: int = 1,
    folder: Path = Path("runs/studies"),
    anew: bool = False,
    replay: bool = False,
    html: Path | None = None,
    csv: Path | None = None,
    json: bool = False,
) -> None:
    """Check what papers claim, in miniature: list the studies, run some, keep what is done, show what was found.

    A claim holds, fails, is undecided at the scale, or is not testable here, if what it takes is not so: that a model
    to compare with has learned the task, say. An error of a run decides nothing. Runs are kept, so that the same
    command goes on where it was stopped, and are run again when the code that ran for them has changed. What was found
    at the small scale comes with the package: report shows it where nothing was run.

    keep writes the records of finished runs into one file beside the study's code, which can be committed: where it is
    checked out, run, keep and verify go on from it, without the folder of runs or any model that was trained.

    Numbers of a report are of the code that ran for it. verify --replay makes one run of each report again by the code
    of now, whole, drawn by hash among the cheapest third, and says whether it gives the same measures: equal, within
    the spread of the seeds (agrees), or not: the study is stale. Without names it does so for every report.

    atlas puts all claims of the reports that come with the package beside what applies to what: for each mechanism and
    analysis what was claimed and how it ended, or that the analysis is refused, so that nothing is testable here.

    Exit codes: 0 done, 1 verify found claims that do not stand as reported or stale studies, 2 bad input.

    Examples:
        glassformer study list
        glassformer study run scaled-scores --scale smoke
        glassformer study run scaled-scores my_study.py --jobs 2
        glassformer study keep my_study.py
        glassformer study report scaled-scores --html scaled-scores.html
        glassformer study verify scaled-scores
        glassformer study verify --replay scaled-scores rank-collapse
        glassformer study atlas
        glassformer study atlas differential head_scores
        glassformer study atlas --csv atlas.csv

    Args:
        action: list the studies; run them; keep finished runs in a file; show the report of one; decide its claims
            again from its runs; or show the claims of all by mechanism and analysis.
        name: Studies by name, or Python files that hold one; with atlas mechanisms, analyses and studies, to see what
            they have in common.
        scale: smoke takes seconds and shows that all works, small takes minutes, full as long as the study says.
        jobs: Runs at a time, one thread each.
        folder: Where runs, trained models and reports lie.
        anew: Run again what is there, too.
        replay: With verify: make one run of each report again, and compare.
        html: With run or report, of one study: write the page of its report, every measure by seed, to this file.
        csv: With atlas: write its table to this file, a row for each claim and mechanism, and for each analysis of
            which nothing is claimed.
        json: Print JSON.
    """
    from glassformer.study import names

    if html is not None:
        if action not in ("run", "report") or len(name) != 1:
            raise AnalysisUnavailable("--html writes the page of one study: glassformer study report NAME --html FILE.")
        check_writable(html)
    if csv is not None:
        if action != "atlas":
            raise AnalysisUnavailable("--csv writes the table of the atlas: glassformer study atlas --csv FILE.")
        check_writable(csv)
    if action == "atlas":
        show_atlas(name, csv, json)
        return
    if action == "list":
        _list(json)
        return
    if replay:
        if action != "verify":
            raise AnalysisUnavailable(f"--replay goes with verify: glassformer study verify --replay {' '.join(name)}")
        _replay(name, scale, folder, anew, json)
        return
    if not name:
        raise AnalysisUnavailable(f"study {action} takes the names of studies: {', '.join(names())}; or Python files.")
    for one in name:
        if action == "verify":
            _verify(one, scale, folder)
            continue
        if action == "keep":
            _keep(one, scale, folder)
            continue
        path, report = _run(one, scale, jobs, folder, anew) if action == "run" else _reported(one, scale, folder)
        _show(path, report, html, json)


def _list(json: bool) -> None:
    from glassformer.files import json_text
    from glassformer.study import find, names, shipped
    from glassformer.study.report import tallied

    found = [find(name) for name in names()]
    if json:
        told = [{"study": one.name, "paper": one.paper, "question": one.question, "scales": list(one.scales),
                 "claims": [claim.text for claim in one.claims]} for one in found]  # fmt: skip
        print(json_text(told, indent=1, ascii_only=False))
        return
    table = Table(*spoken_each("study", "question", "claims", "found"))
    table.columns[0].no_wrap = True
    # Chinese has no spaces to break at
    table.columns[1].overflow = "fold"
    for one in found:
        table.add_row(one.name, spoken(one.question), str(len(one.claims)), tallied(shipped(one.name)))
    Console().print(table)


def _run(name: str, scale: str, jobs: int, folder: Path, anew: bool) -> tuple[Path, dict[str, Any]]:
    """Run a study and return its report and the file of that."""
    from glassformer.study import Progress, find, run_study
    from glassformer.study.report import write_report
    from glassformer.study.shelf import read_report

    study = find(name).name
    place = _place(folder, study, scale)
    # first of all: a report that cannot be gone on with costs no run
    read_report(place, study, scale)
    with progress(name) as said:

        def report(at: Progress) -> None:
            under_way = sum(done / total for done, total in at.running.values() if total)
            now = ", ".join(f"{case} {done}/{total}" for case, (done, total) in at.running.items())
            # in hundredths, so that the estimate moves with the runs under way
            said(round(100 * (at.done + under_way)), 100 * at.total, f"{name} {at.done}/{at.total} {now}".strip())

        try:
            found = run_study(name, scale, folder=folder, jobs=jobs, report=report, anew=anew)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(
                spoken('what was finished is in "{folder}"; the same command goes on', folder=folder)
            ) from interrupt
    write_report(found, place.parent)
    return _reported(name, scale, folder)


def _reported(name: str, scale: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a report and its file: of one's own runs, else the one that comes with the package."""
    from glassformer.study import find, shipped
    from glassformer.study.shelf import read_report, shipped_at

    study = find(name).name
    path = _place(folder, study, scale)
    found = read_report(path, study, scale)
    if found is None and scale == "small":
        path, found = shipped_at(study), shipped(study)
    if found is None:
        raise AnalysisUnavailable(
            f'no report of {name} at scale {scale} in "{folder}". Run: glassformer study run {name} --scale {scale}'
        )
    return path, found


def _replay(asked: tuple[str, ...], scale: str, folder: Path, anew: bool, json: bool) -> None:
    from dataclasses import asdict

    from glassformer.files import json_text
    from glassformer.study import names, shipped
    from glassformer.study.replay import replay_reports
    from glassformer.study.report import time_of

    chosen = asked or tuple(name for name in names() if shipped(name) is not None)
    reports = {name: _reported(name, scale, folder)[1] for name in chosen}
    with progress("replays") as said:
        try:
            found = replay_reports(
                reports, folder / f"replays-{scale}.json", folder, anew=anew,
                say=lambda name, done, total: said(done, total, name),
            )  # fmt: skip
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(
                spoken('what was finished is in "{folder}"; the same command goes on', folder=folder)
            ) from interrupt
    stale = [name for name, one in found.items() if one.outcome == "differs"]
    if json:
        print(json_text({name: asdict(one) for name, one in found.items()}, indent=1, ascii_only=False))
    else:
        table = Table(*spoken_each("study", "time", "replay"))
        for name, one in found.items():
            table.add_row(name, time_of(asdict(one)), one.said())
        console = Console()
        console.print(table)
        counts = {said: sum(one.outcome == outcome for one in found.values()) for outcome, said in _outcomes().items()}
        console.print(spoken(", ").join(f"{count} {said}" for said, count in counts.items()), highlight=False)
        if stale:
            console.print(spoken("stale: {studies}", studies=", ".join(stale)), highlight=False)
    if stale:
        raise SystemExit(1)


def _verify(name: str, scale: str, folder: Path) -> None:
    from glassformer.study import find, survey, verify
    from glassformer.study.report import document, earlier_self
    from glassformer.study.shelf import read_report

    study = find(name)
    found = verify(study, scale, folder=folder)
    states = survey(study, scale, folder)
    reported = read_report(_place(folder, study.name, scale), study.name, scale)
    table = Table(*spoken_each("claim", "reported", "from the runs"))
    stands = True
    for claim in document(found, reported)["claims"]:
        then = None if reported is None else earlier_self(claim, reported)
        stands = stands and (reported is None or (then is not None and then["verdict"] == claim["verdict"]))
        said = spoken("not reported") if then is None else spoken(then["verdict"])
        table.add_row(claim["text"], said, spoken(claim["verdict"]))
    console = Console()
    console.print(table)
    counted = spoken(", ").join(f"{states.count(state)} {_states()[state]}" for state in dict.fromkeys(states))
    console.print(spoken("{n} runs: {states}", n=len(states), states=counted), highlight=False)
    if not stands:
        raise SystemExit(1)


def _keep(name: str, scale: str, folder: Path) -> None:
    from glassformer.study import find, keep

    path, kept = keep(name, scale, folder=folder)
    total = len(find(name).cases(scale))
    said = spoken("{n} of {total} runs kept: {path}", n=kept, total=total, path=path)
    Console().print(said, highlight=False, soft_wrap=True)


def _outcomes() -> dict[str, str]:
    """Return how replays end, in the language that is spoken."""
    return {"equal": spoken("equal"), "agrees": spoken("agrees"), "differs": spoken("differs")}


def _states() -> dict[str, str]:
    """Return what becomes of runs, in the language that is spoken."""
    return {
        "current": spoken("current"), "outdated": spoken("outdated"), "missing": spoken("missing"),
        "error": spoken("error"),
    }  # fmt: skip


def _place(folder: Path, name: str, scale: str) -> Path:
    from glassformer.study.shelf import REPORT

    return folder / name / scale / REPORT


def _show(path: Path, report: dict[str, Any], html: Path | None, json: bool) -> None:
    """Show a report, and write its page where that was asked for."""
    from rich.markdown import Markdown

    from glassformer.files import write
    from glassformer.render.page import study_page
    from glassformer.study.replay import read_replays
    from glassformer.study.report import markdown, outdated
    from glassformer.study.sealed import sealed_text
    from glassformer.study.shelf import shipped_at, shipped_replays_at

    console = Console()
    if html is not None:
        write(html, study_page(report).encode())
    if json:
        print(sealed_text(report), end="")
        return
    console.print(Markdown(markdown(report)))
    older = outdated(report)
    if older:
        more = spoken(" and {n} more", n=len(older) - 1) if len(older) > 1 else ""
        console.print(spoken("of earlier code: {name}{more} changed since", name=older[0], more=more), highlight=False)
    known = read_replays(shipped_replays_at()).get(report["study"]) if path == shipped_at(report["study"]) else None
    if known is not None:
        since = "" if known.is_current(report) else spoken(" That code has changed since.")
        console.print(f"{known.said()}{since}", highlight=False)
    page = path.with_suffix(".html") if html is None else html
    console.print(spoken("report: {path}", path=page if page.is_file() else path), highlight=False, soft_wrap=True)
    if not page.is_file():
        console.print(
            spoken("As a page: glassformer study report {study} --html FILE", study=report["study"]), highlight=False
        )
