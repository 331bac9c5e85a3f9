"""The default tests elsewhere: on each Python there is, with the newest and the lowest versions of what we need.

    python tests/stress/environments.py                        # every environment that can be made here
    python tests/stress/environments.py --only lowest          # those whose name contains it

Each is a virtual environment in a folder that stays, so that the second time is quick. The first time takes minutes for
each: PyTorch's default build for Linux brings several GB of GPU libraries along. With the lowest versions, tests that
compare with published implementations stay out: those have versions of their own.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "benchmarks" / "results" / "environments-x86_64.json"
PYTHONS = ("3.11", "3.12", "3.13")
TOOLS = ("pytest-xdist", "beartype", "psutil", "playwright", "axe-playwright-python")
EXTRAS = ("plot", "frames", "testing")
SELECTED = "not full and not gpu and not network and not browser"


def lowest() -> list[str]:
    """Return the lowest version of each dependency that `pyproject.toml` accepts, as pip wants it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    accepted = [*project["dependencies"], *(line for name in EXTRAS for line in project["optional-dependencies"][name])]
    return [line.split(",")[0].replace(">=", "==") for line in accepted]


def environments() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name of each environment, its Python, and the versions it is held to."""
    for version in PYTHONS:
        python = which(f"python{version}")
        if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
            continue
        yield f"python {version}, newest versions", python, []
        if version == PYTHONS[0]:
            yield f"python {version}, lowest versions", python, lowest()


def of_published_models() -> list[str]:
    """Return the tests that compare with other implementations, or that draw models of these."""
    needs = re.compile(r"^\s*(from|import) (transformers|families|family_commands|layouts)\b", re.MULTILINE)
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in tests if needs.search(path.read_text(encoding="utf-8"))]


def tried(name: str, python: str, versions: list[str], home: Path) -> dict[str, str]:
    """Return what came of one environment: the versions it has, and pytest's closing line."""
    folder = home / re.sub(r"\W+", "-", name)
    here = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    extras = [*EXTRAS, *([] if versions else ["parity"])]
    install = [here, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *versions, f"{ROOT}[{','.join(extras)}]", *TOOLS], check=True)
    # the package as it is now, whatever stood there before
    subprocess.run([*install, "--force-reinstall", "--no-deps", str(ROOT)], check=True)
    show = "import sys, torch; print(sys.version.split()[0], torch.__version__)"
    found = subprocess.run([here, "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    ignored = [f"--ignore={path}" for path in (of_published_models() if versions else [])]
    tests = [here, "-m", "pytest", "-q", "-n", "auto", "-m", SELECTED, *ignored]
    said = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    print("\n".join(line for line in said if line.startswith(("FAILED", "ERROR"))), file=sys.stderr)
    return {"environment": name, "versions": found, "tests": said[-1].strip("= ")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="environments whose name contains this")
    parser.add_argument("--home", type=Path, default=ROOT / ".environments", help="folder of the environments")
    options = parser.parse_args()
    found = {entry["environment"]: entry for entry in json.loads(REPORT.read_text())} if REPORT.exists() else {}
    try:
        for name, python, versions in environments():
            if options.only in name:
                found[name] = tried(name, python, versions, options.home)
                print(json.dumps(found[name]))
    finally:
        # behind the last of them: a test compares a page with this file
        REPORT.write_text(json.dumps(list(found.values()), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
