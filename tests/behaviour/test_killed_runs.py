"""kill -9 at any point: the run goes on from what is on disk, to the same weights bit for bit.

The driver forks one child per kill point. An audit hook counts what a child does to the file system and kills it just
before the n-th such act, so every state a crash can leave between two acts is met; other children are killed by the
clock, in the middle of whatever they do.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]

DRIVER = '''
import hashlib, json, os, random, signal, sys, time
from pathlib import Path

import torch

torch.set_num_threads(1)
from glassformer.training import read_metrics, train
from tiny_runs import recipe

# waiting for the disk matters only when the machine loses power
os.fsync = lambda handle: None
root, mode = Path(sys.argv[1]), sys.argv[2]
config = recipe()


def digest(model):
    state = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        state.update(name.encode() + value.numpy().tobytes())
    return state.hexdigest()


def acts(event, arguments):
    """Whether an audit event changes the file system, inside the run's folder."""
    if event == "open":
        path, kind, flags = arguments
        return isinstance(path, str) and str(root) in path and bool(flags & (os.O_WRONLY | os.O_RDWR))
    return event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod") and str(root) in str(arguments[0])


def forked(work):
    """Run work in a child; return its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return child


def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_before_act(number):
    count = 0

    def hook(event, arguments):
        nonlocal count
        if acts(event, arguments):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def finish(folder):
    model = train(config, folder)
    steps = [line["step"] for line in read_metrics(folder)]
    names = sorted(p.name for p in folder.iterdir())
    (folder / "result").write_text(json.dumps([digest(model), steps, names]))


def result(folder):
    return json.loads((folder / "result").read_text())


# warm up: what is imported or compiled lazily must not differ between children
train(config, root / "warm")
assert wait(forked(lambda: finish(root / "whole"))) == 0
expected, killed = result(root / "whole"), 0

if mode == "acts":
    first, stride, number = int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[3])
    while True:
        folder = root / f"act-{number}"

        def work():
            killed_before_act(number)
            train(config, folder)

        status = wait(forked(work))
        if status == 0:
            break  # fewer acts than that in a whole run
        assert status == -signal.SIGKILL, status
        killed += 1
        assert wait(forked(lambda: finish(folder))) == 0, f"cannot resume after a kill before act {number}"
        assert result(folder) == expected, (number, result(folder), expected)
        number += stride
else:
    draw = random.Random(0)
    began = time.perf_counter()
    assert wait(forked(lambda: train(config, root / "timed"))) == 0
    length = time.perf_counter() - began
    for number in range(int(sys.argv[3])):
        folder = root / f"time-{number}"
        # several kills in a row: a resumed run is killed again
        for _ in range(2):
            child = forked(lambda: train(config, folder))
            time.sleep(draw.random() * length)
            os.kill(child, signal.SIGKILL)
            killed += wait(child) == -signal.SIGKILL
        assert wait(forked(lambda: finish(folder))) == 0, f"cannot resume after kills in {folder}"
        assert result(folder) == expected, (folder, result(folder), expected)

print(json.dumps({"killed": killed, "names": expected[2], "steps": expected[1]}))
'''


SEARCH = """
import os, signal, sys
from pathlib import Path

import torch

torch.set_num_threads(1)
from circuit_pairs import repetition
from glassformer.analysis import saved
from glassformer.analysis.circuits import acdc
from glassformer.handmade import induction_model

saved.SECONDS, killed = 0.0, 0
given, file = (induction_model(), *repetition()), Path(sys.argv[1]) / "search.safetensors"
whole = acdc(*given, threshold=1e-3)
while True:
    child = os.fork()
    if child == 0:
        calls = []

        def kill(done, total):
            calls.append(done)
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        found = acdc(*given, threshold=1e-3, save_to=file, report=kill)
        os._exit(0 if (found.log, found.passes) == (whole.log, whole.passes) else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != -signal.SIGKILL:
        break
    killed += 1
assert status == 0, "the search came to another end"
print(killed)
"""


def drive(folder: Path, *arguments: str, driver: str = DRIVER) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", driver, str(folder), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_a_run_killed_before_any_act_on_the_disk_goes_on_to_the_same_weights(tmp_path):
    found = drive(tmp_path, "acts", "1", "1")
    assert found["killed"] > 60
    assert found["steps"] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.full
def test_a_run_killed_by_the_clock_goes_on_to_the_same_weights(tmp_path):
    assert drive(tmp_path, "clock", "12")["killed"] > 5


@pytest.mark.full
def test_a_search_killed_again_and_again_comes_to_the_same_circuit(tmp_path):
    assert drive(tmp_path, driver=SEARCH) >= 2
