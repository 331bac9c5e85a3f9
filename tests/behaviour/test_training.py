"""Training runs: they resume to the same numbers, one at a time, and leave nothing half-made."""

import errno
import fcntl
import json
import os
import shutil
import signal
import threading
from itertools import product
from pathlib import Path

import pytest
import torch

from glassformer import checkpoints, files
from glassformer.data import TextConfig, ZhEnConfig
from glassformer.errors import CheckpointError, ConfigError, DataError, RunFolderError, SaveError, TextError
from glassformer.models import Learned
from glassformer.training import OptimConfig, read_metrics, train
from glassformer.training.recipes import RECIPES
from tiny_runs import MODEL, recipe


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def stop_at(step: int):
    """Return a report that presses Ctrl-C after a step."""

    def report(progress):
        if progress.step == step:
            signal.raise_signal(signal.SIGINT)

    return report


def without_time(metrics):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in metrics]


@pytest.fixture(autouse=True, scope="module")
def without_sync():
    """Waiting for the disk is most of a tiny run's time, and shows only when the machine loses power."""
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda handle: None)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return folder, weights(train(recipe(), folder))


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), folder, report=stop_at(3))
    return folder


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """Put a run that was stopped after its third step into `tmp_path`."""
    shutil.copytree(stopped_once, tmp_path, dirs_exist_ok=True)


def test_a_finished_run_holds_its_last_and_its_kept_checkpoint_and_a_line_per_measure(uninterrupted):
    folder, final = uninterrupted
    expected = {"config.json", "metrics.jsonl", "tokenizer.json", "lock", "step-00000002", "step-00000006"}
    assert names(folder) == expected
    assert [line["step"] for line in read_metrics(folder)] == [0, 1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in read_metrics(folder) if "heldout_loss" in line] == [0, 3, 6]
    assert same(weights(checkpoints.load(folder)), final)
    assert not (folder / "step-00000002" / "optimizer.safetensors").exists()
    assert checkpoints.load(folder / "step-00000002").config == MODEL


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(uninterrupted, tmp_path):
    assert same(weights(train(recipe(), tmp_path / "again")), uninterrupted[1])
    assert not same(weights(train(recipe(seed=1), tmp_path / "other")), uninterrupted[1])


@pytest.mark.parametrize("step", [1, 2, 5])
def test_ctrl_c_saves_the_step_and_the_run_goes_on_to_the_same_weights_and_metrics(step, uninterrupted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), tmp_path, report=stop_at(step))
    assert f"step-{step:08d}" in names(tmp_path)
    checkpoints.load(tmp_path)
    assert same(weights(train(recipe(), tmp_path)), uninterrupted[1])
    assert without_time(read_metrics(tmp_path)) == without_time(read_metrics(uninterrupted[0]))


def test_a_logged_loss_is_the_mean_since_the_line_before_even_across_a_stop(tmp_path):
    config = recipe(log_every=3)
    train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", report=stop_at(2))
    train(config, tmp_path / "stopped")
    assert without_time(read_metrics(tmp_path / "stopped")) == without_time(read_metrics(tmp_path / "whole"))


def test_ctrl_c_in_the_middle_of_an_update_waits_for_its_end(uninterrupted, tmp_path, monkeypatch):
    update, calls = torch.optim.AdamW.step, []

    def interrupted_update(self, closure=None):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return update(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted_update)
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), tmp_path)
    assert len(calls) == 3 and "step-00000003" in names(tmp_path)
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3]
    assert same(weights(train(recipe(), tmp_path)), uninterrupted[1])


def test_a_second_ctrl_c_does_not_wait_and_does_not_save_half_a_step(uninterrupted, tmp_path, monkeypatch):
    update = torch.optim.AdamW.step

    def interrupted_update(self, closure=None):
        update(self, closure)
        if self.param_groups[0]["lr"] > 2.5e-5:  # the third step of the warm-up
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted_update)
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), tmp_path)
    monkeypatch.undo()
    assert "step-00000002" in names(tmp_path) and "step-00000003" not in names(tmp_path)
    assert same(weights(train(recipe(), tmp_path)), uninterrupted[1])


def test_training_leaves_the_program_s_own_signal_handler_alone(tmp_path):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        train(recipe(), tmp_path, report=stop_at(2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [1]


def test_training_runs_in_a_thread(uninterrupted, tmp_path):
    done = []
    # PyTorch's thread count is set per thread's pool; one thread keeps sums in one order
    thread = threading.Thread(target=lambda: done.append(weights(train(recipe(), tmp_path))))
    thread.start()
    thread.join()
    assert done and same(done[0], uninterrupted[1])


def test_a_run_killed_before_its_first_checkpoint_has_no_duplicate_lines_after_it_begins_again(uninterrupted, tmp_path):
    class Killed(BaseException):
        pass

    def report(progress):
        raise Killed

    with pytest.raises(Killed):
        train(recipe(), tmp_path, report=report)
    # and the kill cut a line off
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "tok')
    assert same(weights(train(recipe(), tmp_path)), uninterrupted[1])
    assert without_time(read_metrics(tmp_path)) == without_time(read_metrics(uninterrupted[0]))


def test_lines_and_samples_after_the_last_checkpoint_are_written_once(tmp_path):
    def measures(model, data):
        return {"sample": "=== not a header\ntext"}

    class Killed(BaseException):
        pass

    def report(progress):
        if progress.step == 5:
            raise Killed

    config = recipe(evaluate_every=1)
    with pytest.raises(Killed):
        train(config, tmp_path, measures={"sample": measures}, report=report)
    train(config, tmp_path, measures={"sample": measures})
    headers = [line for line in (tmp_path / "samples.txt").read_text().splitlines() if line.startswith("=== step")]
    assert headers == [f"=== step {step}" for step in range(7)]
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3, 4, 5, 6]
    assert "sample" not in read_metrics(tmp_path)[0]


def killed_while_writing(path: Path) -> None:
    """Write a file in a process that dies before it takes its name."""
    before = names(path.parent)
    child = os.fork()
    if child == 0:
        os.replace = lambda *_: os._exit(0)  # type: ignore[assignment]
        files.write(path, "x")
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0 and len(names(path.parent) - before) == 1


def test_what_a_kill_left_unfinished_is_swept_away(uninterrupted, stopped, tmp_path):
    for name in (".building-00000004", ".removing-step-00000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("x")
    killed_while_writing(tmp_path / "metrics.jsonl")
    (tmp_path / ".mine").write_text("x")
    assert same(weights(train(recipe(), tmp_path)), uninterrupted[1])
    assert names(tmp_path) == names(uninterrupted[0]) | {".mine"}


def test_another_thread_count_warns(stopped, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.warns(UserWarning, match="began with threads=1 and goes on with threads=2.* not the same bit for bit"):
        train(recipe(), tmp_path)


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path):
    train(recipe(steps=1), tmp_path)
    # a lock belongs to an open file, so a second opening in this process stands for another process
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            RunFolderError, match=r"another process is training in .* Wait for it, or give this run a folder"
        ):
            train(recipe(steps=1), tmp_path)
    train(recipe(steps=1), tmp_path)


def test_a_run_inside_a_run_of_the_same_folder_is_refused(tmp_path):
    def report(progress):
        with pytest.raises(RunFolderError, match="another process"):
            train(recipe(steps=2), tmp_path)

    train(recipe(steps=2), tmp_path, report=report)


def test_a_folder_of_another_recipe_is_refused_and_left_as_it_was(tmp_path):
    train(recipe(steps=2), tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(RunFolderError, match=r"holds a run of another recipe \(different: seed, steps\)"):
        train(recipe(steps=3, seed=1), tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "\ud800"])
def test_a_damaged_recipe_in_the_folder_is_said(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(RunFolderError, match=r"config.json"):
        train(recipe(), tmp_path)


MISTAKES = {
    "corpus without text": (DataError, "no usable text", lambda p: dict(data=TextConfig(sources=(str(p / "empty"),)))),
    "missing corpus": (DataError, "no file", lambda p: dict(data=TextConfig(sources=(str(p / "none"),)))),
    "no held-out text": (
        DataError, 'the "heldout" split',
        lambda p: dict(
            data=TextConfig(sources=(str(p / "one"),), vocab_size=257), model=MODEL.replace(vocab_size=257)
        ),
    ),
    "vocabulary too small": (
        ConfigError, "the model has vocab_size=20", lambda p: dict(data=TextConfig(sources=(str(p / "one"),)))
    ),
    "sources for a decoder": (
        ConfigError, 'data of kind "zh-en" has sources, which only an encoder-decoder reads',
        lambda p: dict(data=ZhEnConfig(), model=MODEL.replace(vocab_size=2000)),
    ),
    "rows longer than learned positions": (
        TextError, "learned positions", lambda p: dict(model=MODEL.replace(positions=Learned(), max_len=8))
    ),
    "heads that do not divide": (
        ConfigError, "does not divide into n_heads", lambda p: dict(model=MODEL.replace(d_model=17))
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("existing", [False, True])
def test_a_run_that_cannot_start_leaves_no_folder_behind(mistake, existing, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "blank.txt").write_text(" \n")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "only.txt").write_text("one document is not held out. " * 3)
    runs = tmp_path / "runs"
    if existing:
        (runs / "mine").mkdir(parents=True)
    error, message, change = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        train(recipe(**change(tmp_path)), runs / "mine")
    assert runs.exists() == existing
    assert not existing or names(runs / "mine") == set()


def test_a_full_disk_while_saving_keeps_the_last_checkpoint_and_the_run_goes_on_later(
    uninterrupted, tmp_path, monkeypatch
):
    sync = os.fsync

    def full(handle):
        if "building-00000004" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SaveError, match="No space left on device"):
        train(recipe(), tmp_path)
    monkeypatch.undo()
    assert not [name for name in names(tmp_path) if name.startswith(".")]
    assert checkpoints.folder_of(tmp_path).name == "step-00000002"
    assert same(weights(train(recipe(), tmp_path)), uninterrupted[1])


def test_a_run_folder_below_a_file_is_a_save_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaveError, match="cannot write"):
        train(recipe(), tmp_path / "file" / "run")


def newest(folder: Path) -> Path:
    return max(folder.glob("step-*"))


# a checkpoint without optimizer state is no damage: it was kept for its weights
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *product(["model.safetensors", "facts.json", "config.json"], ["truncated", "flipped", "missing"]),
        *product(["optimizer.safetensors"], ["truncated", "flipped"]),
    ],
)
def test_a_damaged_checkpoint_is_said_when_resuming(name, damage, stopped, tmp_path):
    path = newest(tmp_path) / name
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[2 if name == "facts.json" else -40] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(CheckpointError, match=r"cannot resume from .*Delete that folder to begin again"):
        train(recipe(), tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_a_run_whose_damaged_checkpoint_was_deleted_begins_again(uninterrupted, stopped, tmp_path):
    for path in newest(tmp_path).iterdir():
        path.unlink()
    newest(tmp_path).rmdir()
    assert same(weights(train(recipe(), tmp_path)), uninterrupted[1])
    assert names(tmp_path) == names(uninterrupted[0])
    assert without_time(read_metrics(tmp_path)) == without_time(read_metrics(uninterrupted[0]))


def test_bfloat16_runs_and_resumes_to_the_same_weights(tmp_path):
    config = recipe(precision="bfloat16")
    whole = weights(train(config, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", report=stop_at(3))
    assert same(weights(train(config, tmp_path / "stopped")), whole)
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in whole.values())
    assert not same(whole, weights(train(recipe(), tmp_path / "float32")))


def test_metrics_that_are_none_or_damaged_are_said(tmp_path):
    with pytest.raises(RunFolderError, match=r"holds no metrics.jsonl"):
        read_metrics(tmp_path)
    for content in ('{"step": 1', "[1]\n", '{"loss": 2}\n', "3"):
        (tmp_path / "metrics.jsonl").write_text(content)
        with pytest.raises(RunFolderError, match="is damaged"):
            read_metrics(tmp_path)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: recipe(steps=0), "steps must be at least 1, found 0"),
        (lambda: recipe(smoothing=1.0), r"smoothing must be in \[0, 1\)"),
        (lambda: recipe(seed=2**70), "seed must fit in 64 bits"),
        (lambda: OptimConfig(lr=0.0), "lr must be positive"),
        (lambda: OptimConfig(clip=-1.0), "clip must not be negative"),
        (lambda: OptimConfig(weight_decay=-0.1), "weight_decay must not be negative"),
        (lambda: OptimConfig(betas=(0.9, 1.0)), "betas must be in"),
    ],
)
def test_recipes_that_cannot_be_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize("name", RECIPES)
def test_a_shipped_recipe_survives_json(name):
    config = RECIPES[name]()
    assert type(config).from_json(config.to_json()) == config
    assert json.loads(config.to_json())["model"]["d_model"] == config.model.d_model
