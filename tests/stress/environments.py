"""The default tests elsewhere: on each Python there is, with the newest and the lowest versions of what we need.

    python tests/stress/environments.py --report environments.json            # every environment that can be made here
    python tests/stress/environments.py --only "lowest"                       # those whose name contains it

Each environment is a fresh one in a temporary folder, so this takes minutes for each and downloads what pip downloads.
PyTorch's default build for Linux brings several GB of GPU libraries along; give `--torch VERSION` to take one that is
at hand. Tests of parity with published implementations stay out: what they compare with has versions of its own.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
TOOLS = ("pytest-xdist", "beartype", "psutil")
EXTRAS = "plot,frames,testing"
SELECTED = "not full and not gpu and not network and not browser"
PARITY = ("tests/parity", "tests/behaviour/test_family_commands.py", "tests/behaviour/test_parity.py")


def lowest() -> list[str]:
    """Return the lowest version of each dependency that `pyproject.toml` accepts, as pip wants it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    accepted = [*project["dependencies"], *(line for name in EXTRAS.split(",") for line in extras[name])]
    return [re.split(r",", line)[0].replace(">=", "==") for line in accepted]


def environments() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name of each environment, its Python, and the versions it is held to."""
    for version in PYTHONS:
        python = which(f"python{version}")
        if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
            continue
        yield f"python {version}, newest versions", python, []
        if version == PYTHONS[0]:
            yield f"python {version}, lowest versions", python, lowest()


def tried(name: str, python: str, versions: list[str], torch: str | None) -> dict[str, str]:
    """Return what came of one environment: the versions it has, and pytest's closing line."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "venv", folder], check=True)
        install = [str(here), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        held = [line for line in versions if not (torch and line.startswith("torch=="))]
        held += [f"torch=={torch}"] if torch else []
        subprocess.run([*install, *held, f"{ROOT}[{EXTRAS}]", *TOOLS], check=True)
        show = "import torch, sys; print(sys.version.split()[0], 'torch', torch.__version__)"
        found = subprocess.run([str(here), "-c", show], capture_output=True, text=True, check=True).stdout.strip()
        ignored = [f"--ignore={path}" for path in PARITY]
        tests = [str(here), "-m", "pytest", "-q", "-n", "auto", "-m", SELECTED, *ignored]
        closing = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True, check=False).stdout
        failed = [line for line in closing.splitlines() if line.startswith(("FAILED", "ERROR"))]
        print("\n".join(failed), file=sys.stderr)
        return {"environment": name, "versions": found, "tests": closing.splitlines()[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="environments whose name contains this")
    parser.add_argument("--torch", default=None, help="a version of torch in place of the newest, or lowest")
    parser.add_argument("--report", type=Path, default=None, help="JSON file for the outcomes")
    options = parser.parse_args()
    found: list[dict[str, str]] = []
    for name, python, versions in environments():
        if options.only in name:
            found.append(tried(name, python, versions, options.torch))
            print(json.dumps(found[-1]))
            if options.report is not None:
                options.report.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
