"""Every command: bad input is one sentence and exit code 2, `--debug` adds the traceback, `--help` shows examples."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from itertools import combinations, pairwise
from pathlib import Path
from typing import Literal

import pytest

import glassformer as gf
from glassformer import __version__
from glassformer.attention import Rope
from glassformer.cli import VERBS, main
from glassformer.cli.help import BEFORE, BEHIND
from glassformer.cli.options import ModelName, PromptOptions
from glassformer.cli.parsing import NOT_STREAMED, call_of
from glassformer.data import MixtureConfig, Repeat, TextConfig
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, block, repeat
from glassformer.training import OptimConfig, TrainConfig, read_metrics, train
from tiny_runs import recipe


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.json").write_text(recipe(steps=2).to_json())
    Path("file").write_text("in the way")
    Path("latin.json").write_bytes(b'{"a": "caf\xe9"}')
    Path("broken.json").write_text("{")
    Path("folder.json").mkdir()
    Path("blank.txt").write_text(" \n")


BAD = {
    "train nope": 'no recipe "nope"',
    "train attn-only-3l": 'Nearest: "attn-only-',
    "train missing.json": 'cannot read "missing.json": No such file',
    "train folder.json": "it is no regular file",
    "train latin.json": "it is not UTF-8",
    "train broken.json": "not valid JSON",
    "train recipe.json --set optim.lrr=1": 'no field "lrr". Nearest: "optim.lr". Fields: lr, schedule',
    "train recipe.json --set lr=1": 'no field "lr". Nearest: "optim.lr"',
    "train recipe.json --set model.layers.0.n_heads=1": 'no field "n_heads". Nearest: "model.layers.0.parts.0.n_heads"',
    "train recipe.json --set optim.lr.x=1": 'no field "x". Nearest: "optim.lr". Fields: none, it is a value',
    "train recipe.json --set evaluate.x=1": 'no field "x"',
    "train recipe.json --set model.layers.9.dropout=1": 'no field "9"',
    "train recipe.json --set optim.lr": "expected path.to.field=value",
    "train recipe.json --set optim.lr=fast": "lr: expected float, found 'fast'",
    "train recipe.json --set optim.schedule=cosin": 'is not one of',
    "train recipe.json --steps 0": "steps must be at least 1",
    "train recipe.json --seed 99999999999999999999": "seed must fit in 64 bits",
    "train recipe.json --set data.batch_size=100000000000000": "batch_size must be at most",
    "train recipe.json --threads 0": "--threads must be at least 1",
    "train recipe.json --folder file/run": 'cannot write "file/run"',
    'train memorisation --set data.text.sources=["blank.txt"]': "no usable text",
    'train memorisation --set data.text.sources=["nothing"]': 'no file "nothing"',
    "plot nowhere": 'holds no metrics.jsonl',
    "plot file": "holds no metrics.jsonl",
    "explain nope hello": 'no model "nope"',
    "explain file hello": "is a file; give the folder",
    "explain folder.json hello": "holds no config.json",
    "explain gpt-5l hello": 'no model "gpt-5l". Nearest: "gpt-4l"',
    "explain 我吃了一个苹果": 'no model "我吃了一个苹果". A text comes after the model.',
    **{f"{verb} a --stream": f"--stream is not for {verb}: {why}." for verb, why in NOT_STREAMED.items()},
    "models nope": 'no shipped model "nope"',
    "behaviour gpt-4l x --habits sinks sink": (
        '--habits takes no "sink". Nearest: "sinks". Choices: sinks, suppression, stream-rank, long-context, '
        "score-geometry, expert-load, meaning-shift, short-circuit.\n"
    ),
    "route gpt-4l x --stack None": '--stack takes no "None". Choices: encoder, decoder.',
    "generate gpt-4l x --specials of": '--specials takes no "of". Nearest: "off". Choices: default, on, off, in-text.',
}  # fmt: skip


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_a_sentence_and_exit_code_2(command, capsys):
    before = sorted(p.name for p in Path().iterdir())
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert err.lstrip().startswith(f"glassformer {command.split()[0]}: ") and BAD[command] in err
    assert "Traceback" not in out + err
    assert sorted(p.name for p in Path().iterdir()) == before


@pytest.mark.parametrize("command", ["train nope", "plot nowhere", "explain nope hello", "models nope"])
def test_debug_shows_the_traceback_as_well(command, capsys):
    assert main([*command.split(), "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith(f"glassformer {command.split()[0]}: ")


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_examples_line_by_line(verb, capsys):
    assert main([verb, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    examples = lines[lines.index("Examples:") + 1 :]
    examples = examples[: examples.index("")]
    assert examples and all(f"glassformer {verb}" in line for line in examples)


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option_is_exit_code_2(verb, capsys):
    assert main([verb, "--no-such-option"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert 'no command "trian". Nearest: "train"' in capsys.readouterr().err


def test_the_overview_lists_every_command(capsys):
    assert main([]) == 0 == main(["--help"])
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"glassformer {__version__}\n"


def test_show_prints_the_recipe_with_changes_and_writes_nothing(capsys):
    before = sorted(Path().rglob("*"))
    changes = ["--steps", "7", "--seed", "3", "--set", "optim.lr=0.5", "model.layers.1.dropout=0.25"]
    assert main(["train", "recipe.json", "--show", *changes]) == 0
    shown = type(recipe()).from_json(capsys.readouterr().out)
    assert isinstance(shown.model, DecoderConfig)
    assert (shown.steps, shown.seed, shown.optim.lr, shown.model.layers[1].dropout) == (7, 3, 0.5, 0.25)
    assert sorted(Path().rglob("*")) == before


def test_an_option_of_several_values_that_is_given_again_goes_on_where_it_was(capsys):
    apart = "--set optim.lr=0.5 --steps 7 --set model.layers.1.dropout=0.25 optim.warmup=1 --set optim.warmup=3"
    assert main(["train", "recipe.json", "--show", *apart.split()]) == 0
    shown = type(recipe()).from_json(capsys.readouterr().out)
    assert isinstance(shown.model, DecoderConfig)
    assert (shown.optim.lr, shown.steps, shown.model.layers[1].dropout, shown.optim.warmup) == (0.5, 7, 0.25, 3)


def test_every_option_of_several_values_takes_them_at_once_and_one_by_one():
    received = list[tuple[object, ...]]()

    def verb(
        model: ModelName, /, *, prompts: PromptOptions, lengths: tuple[int, ...] = (256, 512),
        method: tuple[Literal["direct", "alti"], ...] | None = None, folders: tuple[Path, ...] = (),
    ) -> None:  # fmt: skip
        """Receive what options stand for.

        Args:
            lengths: Numbers, some of them by default.
            method: Choices, or nothing.
            folders: Paths.
        """
        received.append((prompts.columns, lengths, method, folders))

    lines = (
        "m",
        "m --columns a=b c=d --lengths 1 2 --method alti direct --folders x y",
        "m --columns a=b --lengths 1 --method alti --folders x --columns c=d --lengths 2 --method direct --folders y",
    )
    for line in lines:
        call_of("verb", verb, line.split())()
    default, at_once, one_by_one = received
    assert default == ((), (256, 512), None, ())
    assert at_once == one_by_one == (("a=b", "c=d"), (1, 2), ("alti", "direct"), (Path("x"), Path("y")))
    with pytest.raises(ConfigError, match=r'--method takes no "alty"\. Nearest: "alti"'):
        call_of("verb", verb, ["m", "--method", "direct", "--method", "alty"])
    with pytest.raises(ConfigError, match="--lengths must be at least 1, found 0"):
        call_of("verb", verb, ["m", "--lengths", "0", "--lengths", "2"])


def test_the_help_of_set_names_every_setting_of_a_recipe_and_only_paths_there_are(capsys):
    assert main(["train", "--help"]) == 0
    told = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    told = told[told.index("Changes to the recipe.") : told.index("A value is JSON")]
    named = set(re.findall(r"[a-z_]+", told))
    settings = {field.name for one in (TrainConfig, OptimConfig) for field in fields(one)}
    assert settings <= named
    data = MixtureConfig((TextConfig(length=12), Repeat()), (0.5, 0.5), batch_size=4, length=12)
    Path("mixed.json").write_text(recipe(data=data).to_json())
    for path, value in (("data.length", 13), ("data.parts.0.sources", ["a"]), ("model.layers.1.dropout", 0.25)):
        assert path in told
        assert main(["train", "mixed.json", "--show", "--set", f"{path}={json.dumps(value)}"]) == 0


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_what_stands_for_a_value_and_wraps_sentences_to_the_terminal(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    assert main([verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert not re.search(r"\b(STR|INT|FLOAT|PATH|None)\b(?!=)|\(default: (False|)\)|\.\.\.\]\]", told)
    above = told.partition("Examples:")[0].splitlines()
    assert max(map(len, above)) <= 72
    # a line is as full as it can be, so that none ends in mid-sentence
    for line, following in pairwise(above):
        if line and following:
            assert len(line) + len(following.split()[0]) >= 72


def test_every_verb_takes_what_is_worked_on_first_and_shows_shared_options_in_one_order(capsys):
    shown, first = {}, {}
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        told = capsys.readouterr().out
        options = re.findall(r"^\W*--([a-z-]+)", told.partition("Examples:")[2], re.MULTILINE)
        shown[verb] = [one for one in options if one.replace("-", "_") in (*BEFORE, *BEHIND)]
        assert ("stream" in shown[verb]) != (verb in NOT_STREAMED)
        usage = told.partition("\n\n")[0]
        first[verb] = re.findall(r"[A-Z]+", usage.partition("]")[2].replace("[OPTIONS]", ""))
    for one, other in combinations(shown.values(), 2):
        assert [x for x in one if x in other] == [x for x in other if x in one]
    stands_for_a_model = {"train": "RECIPE", "models": "NAME", "plot": "RUN", "convert": "IN", "study": "NAME",
                          "bench": "MECHANISM"}  # fmt: skip
    for verb, words in first.items():
        assert words[0] == stands_for_a_model.get(verb, "MODEL")
        assert "TEXT" not in words[2:]


@pytest.mark.full
def test_plot_says_what_of_the_training_rows_is_no_text(monkeypatch):
    pytest.importorskip("matplotlib")
    Path("texts").mkdir()
    for i in range(12):
        Path(f"texts/{i}.txt").write_text(f"one after the other {i}\n" * 9)
    text = TextConfig(sources=("texts",), batch_size=2, length=12, vocab_size=260, heldout=0.5)
    plain = recipe(steps=2, data=text)
    Path("plain.json").write_text(plain.replace(model=plain.model.replace(vocab_size=260)).to_json())
    drawn = []
    monkeypatch.setattr("glassformer.render.curves.save", lambda figure, path: drawn.append(figure))
    for trained in ("recipe", "plain"):
        assert main(["train", f"{trained}.json"]) == 0
    for run in ("attn-only-2l", "runs/plain", "runs/recipe"):
        assert main(["plot", run]) == 0
    titles = [[axes.get_title() for axes in figure.axes] for figure in drawn]
    assert titles[0][0].startswith("25 % of the rows of every training batch: Random tokens")
    assert not any(titles[1]) and not any(titles[0][1:])
    assert titles[2][0].startswith("100 % of the rows")


def test_train_writes_the_folder_of_its_recipe_and_plot_draws_it(capsys):
    assert main(["train", "recipe.json"]) == 0
    said = capsys.readouterr().err
    assert "done: runs/recipe, step 2 of 2, held-out loss" in said and "(on repeat)" in said
    assert "model: runs/recipe/step-00000002" in said
    assert main(["train", "recipe.json"]) == 0
    again = capsys.readouterr().err
    assert again.startswith("done: runs/recipe, step 2 of 2") and again.count("\n") == 2
    pytest.importorskip("matplotlib")
    assert main(["plot", "runs/recipe", "--out", "curves.svg"]) == 0
    assert Path("curves.svg").read_text().startswith("<?xml")
    assert main(["plot", "runs/recipe", "--out", "curves.abc"]) == 2
    assert "Use .png, .svg or .pdf" in capsys.readouterr().err
    assert main(["train", "recipe.json", "--steps", "3"]) == 2
    assert "holds a run of another recipe (different: steps)" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["[red]x", "[/]"])
def test_the_bar_of_training_shows_the_name_of_its_folder_whatever_it_is(folder, capsys):
    assert main(["train", "recipe.json", "--folder", folder]) == 0
    (bar,) = [line for line in capsys.readouterr().err.splitlines() if "2/2" in line]
    assert bar.startswith(f"{Path(folder)} ")


def test_ctrl_c_is_exit_code_130_and_a_whole_checkpoint(monkeypatch, capsys):
    def interrupted(config, folder, **options):
        def report(progress):
            options["report"](progress)
            if progress.step == 3:
                signal.raise_signal(signal.SIGINT)

        return train(config, folder, report=report)

    monkeypatch.setattr("glassformer.training.train", interrupted)
    assert main(["train", "recipe.json", "--steps", "4", "--set", "keep=[2]"]) == 130
    assert "glassformer train: interrupted: kept at step 3; the same command goes on" in capsys.readouterr().err
    # of two checkpoints, the last
    assert all(Path(f"runs/recipe/step-0000000{step}/config.json").exists() for step in (2, 3))


def test_ctrl_c_before_the_first_step_says_that_nothing_was_kept(monkeypatch, capsys):
    def interrupted(config, folder, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("glassformer.training.train", interrupted)
    assert main(["train", "recipe.json"]) == 130
    assert "glassformer train: interrupted: before anything was kept" in capsys.readouterr().err


def process(*arguments: str, **options) -> subprocess.Popen:
    code = "import sys; from glassformer.cli import main; sys.exit(main())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, **pipes, **options)


# what is answered without a model
LIGHT = ("--help", "--version", "models", "models gpt-4l", "models nope", *(f"{verb} --help" for verb in VERBS))
# without the libraries that take long to load; how long an answer takes is a figure of the benchmarks
BARE = """
import contextlib, io, json, sys
class Absent:
    def find_spec(self, name, *_):
        if name in ("torch", "numpy", "jaxtyping", "safetensors", "tokenizers", "huggingface_hub"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from glassformer.cli import main
found = {}
for line in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            found[line] = main(line.split())
        except ImportError as error:
            found[line] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answered_bare():
    """Return the exit code of each light command line, or which import it needed, from one process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", BARE, *LIGHT], env=environment, capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", LIGHT)
def test_what_needs_no_model_is_answered_without_torch(line, answered_bare):
    assert answered_bare[line] == (2 if "nope" in line else 0)


def test_the_package_runs_as_the_command():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for words, code in ((["--version"], 0), (["trian"], 2)):
        line = [sys.executable, "-m", "glassformer", *words]
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert (done.stdout + done.stderr).startswith(f"glassformer {__version__}" if code == 0 else "glassformer: ")


def test_the_exit_code_reaches_the_shell():
    child = process("trian")
    out, err = child.communicate()
    assert child.returncode == 2 and out == "" and "Traceback" not in err


def test_train_takes_text_of_one_s_own_for_both_losses_and_says_what_it_left_out(capsys):
    Path("mine").mkdir()
    for i in range(12):
        Path(f"mine/{i}.txt").write_text(f"some words of mine, number {i} of them. " * 5)
    Path("mine/latin.txt").write_bytes(b"caf\xe9")
    text = TextConfig(batch_size=2, length=12, vocab_size=257, heldout=0.3)
    mixed = MixtureConfig((text, Repeat(unit_min=2, unit_max=4)), (0.5, 0.5), batch_size=4, length=12)
    model = recipe().model.replace(vocab_size=300)
    Path("own.json").write_text(recipe(model=model, data=mixed, evaluate=text, steps=1).to_json())
    assert main(["train", "own.json", "--data", "mine"]) == 0
    said = capsys.readouterr().err
    assert said.count("note: ") == 1 and 'left out 1 not UTF-8 (first: "mine/latin.txt")' in said
    assert "nats (on mine)" in said
    assert main(["train", "own.json", "--show", "--data", "mine", "--set", 'evaluate.sources=["other"]']) == 0
    assert '"other"' in capsys.readouterr().out
    assert main(["train", "own.json", "--show", "--data", "mine", "more.jsonl"]) == 0
    assert '"more.jsonl"' in capsys.readouterr().out


@pytest.mark.full
def test_train_says_where_a_run_that_diverged_goes_on_from(capsys):
    change = ["--set", "optim.lr=1e30", "optim.warmup=0"]
    assert main(["train", "recipe.json", "--folder", "steep", *change]) == 2
    err = capsys.readouterr().err
    assert "training stopped in step 2" in err and "optim.lr" in err and "done" not in err
    assert main(["train", "recipe.json", "--folder", "whole"]) == 0
    assert main(["train", "recipe.json", "--folder", "on", "--steps", "8", "--begin-from", "whole"]) == 0
    assert "done: on, step 8 of 8" in capsys.readouterr().err
    assert read_metrics("on")[0]["step"] == read_metrics("whole")[-1]["step"] == 2


@pytest.mark.parametrize(
    "option", ["--temperature 0.8", "--top-k 3", "--top-p 0.5", "--min-p 0.1", "--repetition-penalty 1.2"]
)
def test_settings_of_drawing_beside_beams_are_refused(option, capsys):
    assert main(["generate", "zh-en", "我", "--beams", "2", *option.split()]) == 2
    assert f"draws nothing: {option.split()[0]} would do nothing" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("way", [["--temperature", "0"], ["--beams", "2"]])
def test_generate_goes_on_beyond_the_context_where_it_is_told_to(way, capsys):
    model = DecoderConfig(11, 16, repeat(block(n_heads=2, positions=Rope()), 1), max_len=8).build(0).eval()
    words = ["generate", str(gf.save(model, "mine")), "1 2 3 4 5", *way]

    def new(*more: str) -> int:
        assert main([*words, *more]) == 0
        return len(capsys.readouterr().out.split()) - 5

    assert main([*words, "--max-new-tokens", "6"]) == 2
    assert "go on beyond it with beyond_context (--beyond-context)" in capsys.readouterr().err
    assert new("--max-new-tokens", "6", "--beyond-context") == 6
    assert (new(), new("--beyond-context")) == (4, 128)


@pytest.mark.full
def test_a_signal_from_outside_stops_a_training_process_with_130_and_whole_files():
    Path("long.json").write_text(recipe(steps=100_000).to_json())
    child = process("train", "long.json")
    metrics = Path("runs/long/metrics.jsonl")
    while child.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 20):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "interrupted" in err and "Traceback" not in err
    assert not list(Path("runs/long").glob(".*"))
    assert len([p for p in Path("runs/long").glob("step-*/optimizer.safetensors")]) == 1
