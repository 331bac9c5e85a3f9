"""The examples of every `--help` are run as they stand, by `sh`, and answer what they ask.

They are taken from the help text itself. What cannot be run here is only read: examples on checkpoints that would have
to be fetched, training, which takes hours, and serving, which ends when it is told to.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import glassformer as gf
from glassformer import checkpoints
from glassformer.analysis import dictionaries
from glassformer.cli import VERBS, main
from glassformer.cli.parsing import call_of
from glassformer.data import Planted, Shapes, TextConfig
from glassformer.models import LearnedGrid, Mlp, Patches, block, image_encoder, image_generator
from glassformer.studies import scaled_scores
from glassformer.training import train
from tiny_runs import MODEL, recipe

FETCHED = ("openai-community/gpt2", "gpt2-ours", "stories15M", "my-llama", "EleutherAI/pythia-70m", ".gguf")
# what an answer looks like that answers nothing
NULL = re.compile(r"The noise does not lower the|nothing changes it|\bnan\b|no roles, no picture")


def examples(verb: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out.partition("Examples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in text.splitlines()]


def words_of(example: str) -> list[str]:
    """Return the arguments of the example's own verb, as a shell reads them."""
    return shlex.split(example.partition("glassformer ")[2])[1:]


def is_run(verb: str, example: str) -> bool:
    return verb not in ("train", "adapt", "serve") and not any(name in example for name in FETCHED)


def less(verb: str, example: str) -> str:
    """Return what lets an example do as it says with less: few steps of a tuned lens, few rows, few prompts."""
    if verb == "lens" and "--train" in example:
        return " --steps 2"
    if verb in ("patch", "prune") and "--clean" not in example and "--pairs" not in example:
        # of fewer pairs nothing is found
        return " --n 12"
    if verb == "features" and " train " in example:
        return " --rows 8 --steps 5"
    if verb == "heads":
        return " --tokens 3000"
    return " --rows 4" if verb == "circuits" else ""


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with everything that examples name, and the command of this tree on the path."""
    monkeypatch.chdir(tmp_path)
    command = tmp_path / "bin" / "glassformer"
    command.parent.mkdir()
    code = "import sys; from glassformer.cli import main; sys.exit(main())"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    source = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n" * 40
    for name in ("setup.py", "script.py"):
        Path(name).write_text(source)
    Path("notes").mkdir()
    for i in range(12):
        Path("notes", f"{i}.txt").write_text(f"# {i}\n" + source * 8)
    model = gf.load("attn-only-2l")
    checkpoints.save(model, "my-model")
    pair = {"clean": "a = b", "corrupt": "a = c", "answer": " b", "wrong": " c"}
    Path("pairs.csv").write_text(",".join(pair) + "\n" + ",".join(pair.values()) + "\n")
    call = "def read(path, {}):\n    return open(path,"
    told = {"clean": call.format("mode"), "corrupt": call.format("size"), "answer": " mode", "wrong": " size"}
    Path("pairs.jsonl").write_text(json.dumps(told | {"roles": {"first": [15, 19]}}) + "\n")
    train(recipe(steps=2), Path("runs/attn-only-2l"))
    text = TextConfig(sources=("notes",), vocab_size=257, heldout=0.4)
    data = Planted(2, 12, text=text, counts=(0, 2), per_count=2, prefix=3, suffix=3, over=4)
    planted = recipe(model=MODEL.replace(vocab_size=300), data=data, steps=4, save_every=4, keep=())
    train(planted, Path("runs/memorisation"))
    layers, patches = (block(n_heads=2, mlp=Mlp(8)),), Patches((16, 16), 8, class_token=True)
    images = image_encoder(patches, 8, layers, n_classes=5, positions=LearnedGrid())
    train(recipe(model=images, data=Shapes(batch_size=4), steps=2), Path("runs/shapes"))
    checkpoints.save(image_generator(Patches((8, 8), 2), 8, layers, n_classes=10).build(), "runs/digits-generator")
    save_file({"joy": torch.ones(256), "grief": -torch.ones(256)}, "vectors.safetensors")
    own = dictionaries.TopK(256, 32, k=8).build()
    own.facts = {"site": "blocks.0.resid_post"}
    dictionaries.save_dictionary(own, "my-dictionary")
    Path("my-recipe.json").write_text(recipe(steps=2).to_json())
    shutil.copy(scaled_scores.__file__, "my_study.py")
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
def test_every_example_is_a_command_line_that_its_verb_takes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib

    function = getattr(importlib.import_module(f"glassformer.cli.{verb}"), verb)
    found = examples(verb, capsys)
    assert found
    for example in found:
        call_of(verb, function, words_of(example))


@pytest.mark.parametrize("verb", VERBS)
def test_no_example_quotes_a_line_break_that_the_shell_takes_for_a_letter(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # printf reads \n; an argument in quotation marks holds a backslash and an n
    assert not any(r"\n" in word for example in examples(verb, capsys) for word in words_of(example))


@pytest.mark.full
@pytest.mark.parametrize("verb", VERBS)
def test_every_example_runs_in_sh_and_answers(verb: str, prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for example in [line for line in examples(verb, capsys) if is_run(verb, line)]:
        done = subprocess.run(["sh", "-c", example + less(verb, example)], capture_output=True, text=True, cwd=prepared)
        assert done.returncode == 0, (example, done.stderr)
        assert done.stdout.strip() and "Traceback" not in done.stderr, example
        assert not NULL.search(done.stdout), (example, done.stdout)
        if verb in ("paths", "patch", "edges", "prune"):
            # some bar is there to be seen
            assert any(block in done.stdout for block in "█▏▎▍▌▋▊▉"), (example, done.stdout)
