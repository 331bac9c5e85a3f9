"""Put reports of studies into the package, or what came of making one run of each again.

python -m glassformer.studies NAME…                 run studies at the small scale, and put their reports there
python -m glassformer.studies --decide [NAME…]      decide the claims of reports there anew, of the runs they hold
python -m glassformer.studies --replay [NAME…]      make one run of each report there again, and put the outcome there
"""

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glassformer.study import find, names, run_study
from glassformer.study.replay import replay_reports
from glassformer.study.report import decided_anew, document, tallied, time_of
from glassformer.study.sealed import seal
from glassformer.study.shelf import shipped, shipped_at, shipped_replays_at


def main(asked: list[str]) -> None:
    """Do what the words of the command line ask for."""
    if asked[:1] == ["--decide"]:
        for name, report in _reports(asked[1:]).items():
            found = decided_anew(find(name), report)
            seal(shipped_at(name), found)
            print(f"{name}: {tallied(report)} -> {tallied(found)}")
        return
    if asked[:1] == ["--replay"]:
        reports = _reports(asked[1:])
        with tempfile.TemporaryDirectory() as folder:
            for name, found in replay_reports(reports, shipped_replays_at(), Path(folder)).items():
                print(name, time_of(asdict(found)), found.said())
        return
    for name in asked:
        found = document(run_study(name), shipped(name))
        path = shipped_at(name)
        path.parent.mkdir(exist_ok=True)
        seal(path, found)
        print(name, {claim["name"]: claim["verdict"] for claim in found["claims"]})


def _reports(asked: list[str]) -> dict[str, dict[str, Any]]:
    """Return the reports there of some studies, or of all."""
    return {name: report for name in asked or names() if (report := shipped(name)) is not None}


if __name__ == "__main__":
    main(sys.argv[1:])
