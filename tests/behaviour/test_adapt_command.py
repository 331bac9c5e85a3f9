"""`glassformer adapt`: experts trained and run from the command line."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer.adaptation import ExpertStep, Svf, load_adapter, save_adapter, task_of, train_expert
from glassformer.checkpoints import save
from glassformer.cli import main
from glassformer.cli.adapt import Task, _task
from glassformer.data import DataConfig, QuestionConfig, Sorting, WhichTask
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.training.recipes import recipe

FEW = ["--steps", "2", "--batch-size", "4", "--set", "evaluate_prompts=4"]


@pytest.fixture(autouse=True)
def a_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    data = WhichTask().build()
    model = DecoderConfig(data.vocab_size, 8, (block(n_heads=2, mlp=Mlp(8)),), max_len=64).build()
    model.tokenizer = data.tokenizer
    save(model, "tiny")


def done(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, Any]:
    assert main(["adapt", *words, "--json", "found.json"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out, json.loads(Path("found.json").read_text(encoding="utf-8"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["adapt", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err


def test_an_expert_is_trained_into_a_folder_and_answers_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--adapter", "lora", "--kl-weight", "0.1", "--direction", "forward", "--seed", "3"]
    out, document = done(capsys, "train", "tiny", "--task", "sorting", *changes, *FEW, "adapter.rank=2", "task.n_max=3")
    folder = Path("runs/experts/tiny/sorting")
    adapter = load_adapter(folder, gf.load("tiny"))
    said = adapter.facts["expert"]
    assert task_of(adapter) == Sorting(n_max=3) and said["adapter"]["rank"] == 2
    assert (said["kl_weight"], said["direction"], said["steps"], said["seed"]) == (0.1, "forward", 2, 3)
    (training,) = document["results"]
    assert training["result"] == "ExpertTraining" and training["reward"]["coords"]["step"] == [1, 2]
    assert training["tested"]["values"][1] == adapter.facts["tested"]["after"]["reward"]
    assert document["given"]["config"] == said and "Expert of sorting(n_max=3)" in out and str(folder) in out
    prompts = ["4 , 2 =", "( [ ="]
    out, document = done(capsys, "run", "tiny", *prompts, "--experts", str(folder), "--max-new-tokens", "3")
    (found,) = document["results"]
    assert found["result"] == "AdaptedAnswers" and found["prompts"] == prompts and len(found["answers"]) == 2
    assert found["probability"]["coords"]["answer"] == ["sorting", "other", "anything else"]
    # a model that was never asked names no task
    assert found["chosen"] == ["none", "none"] and "the model's own weights answered" in out


@pytest.mark.full
def test_each_strategy_runs_experts_of_any_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    for task in ("sorting", "closing-brackets", "which-task"):
        done(capsys, "train", "tiny", "--task", task, "--folder", f"experts/{task}", *FEW)
    experts = [f"experts/{task}" for task in ("which-task", "sorting", "closing-brackets")]
    asked = ["run", "tiny", "4 , 2 =", "--experts", *experts, "--max-new-tokens", "3"]
    for strategy in ("prompt", "classifier"):
        (found,) = done(capsys, *asked, "--strategy", strategy)[1]["results"]
        # the question is the classifier's own
        assert found["probability"]["coords"]["answer"][:-1] == list(WhichTask().choices())
    mixed = ["--strategy", "few-shot", "--task", "sorting", "--shots", "2", "--iterations", "1"]
    out, document = done(capsys, *asked, *mixed)
    (found,) = document["results"]
    assert found["coefficients"]["coords"]["expert"] == ["sorting", "closing-brackets"] and "Mixed as answers" in out
    (found,) = done(capsys, *asked, *mixed, "--per", "matrix")[1]["results"]
    assert found["coefficients"]["axes"] == ["matrix", "expert"]


def test_ctrl_c_keeps_the_best_so_far_and_says_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, report: Any) -> Any:
        def told(step: ExpertStep) -> None:
            report(step)
            signal.raise_signal(signal.SIGINT)

        return train_expert(*given, report=told)

    monkeypatch.setattr("glassformer.adaptation.train_expert", interrupted)
    assert main(["adapt", "train", "tiny", "--task", "closing-brackets", "--folder", "kept", *FEW]) == 130
    assert "interrupted: the best of 1 steps is in kept" in capsys.readouterr().err
    assert load_adapter("kept", gf.load("tiny")).facts["steps"] == 1


def test_tasks_have_the_sizes_that_a_model_was_trained_on() -> None:
    assert _task("questions", "sorting") == recipe("questions").data.parts[1] != Sorting()  # type: ignore[attr-defined]
    assert _task("questions", "sorted-sums") == QuestionConfig.from_dict({"kind": "sorted-sums"})
    assert _task("tiny", "sorting") == Sorting()
    Path("runs/questions").mkdir(parents=True)
    Path("runs/questions/metrics.jsonl").write_text("{}\n")
    Path("runs/questions/config.json").write_text(recipe("questions").to_json())
    found = _task("runs/questions", "which-task")
    assert found == recipe("questions").data.parts[3] != WhichTask()  # type: ignore[attr-defined]


def test_the_command_knows_every_task_of_questions() -> None:
    kinds = {kind for kind, one in DataConfig.registry.items() if issubclass(one, QuestionConfig)}
    own = {kind for kind in kinds if DataConfig.registry[kind].__module__.startswith("glassformer.")}
    assert own == set(Task.__args__)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("trian tiny", 'ACTION takes no "trian". Nearest: "train"'),
        ("train tiny", "say what the expert is to be good at"),
        ("train tiny --task sort", 'takes no "sort". Nearest: "sorting"'),
        ("train tiny --task sorting --adapter svd", 'Nearest: "svf"'),
        ("train tiny --task sorting --matrices blocks.0.atn.*", 'Nearest: "blocks.0.attn'),
        ("train tiny --task sorting --set optim.learning_rate=1", 'Nearest: "optim.lr"'),
        ("train tiny text --task sorting", "texts are of run"),
        ("run tiny", "give one prompt or more"),
        ("run tiny 4", "give experts, or train one"),
        ("run tiny 4 --experts nowhere", "there is no adapter.json"),
        ("run tiny 4 --experts bare", "does not say which task it is an expert of"),
        ("run tiny 4 --experts taught --strategy classifer", 'Nearest: "classifier"'),
        ("run tiny 4 --experts taught --strategy classifier", "glassformer adapt train tiny --task which-task"),
        ("run tiny 4 --experts taught --strategy few-shot", "give --task TASK"),
    ],
)
def test_a_slip_is_a_sentence(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = gf.load("tiny")
    adapter = Svf().build(model, "*.attn.query")
    save_adapter(adapter, "bare")
    adapter.facts = {"expert": {"task": Sorting().to_dict()}}
    save_adapter(adapter, "taught")
    assert told in refused(capsys, *words.split())
