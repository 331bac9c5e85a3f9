"""`glassformer adapt`: train an expert for a task, and let experts that are chosen for each prompt answer it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from glassformer.cli.arguments import placed_model, require_text
from glassformer.cli.options import ComputeDevice, ModelName, Output, Placement
from glassformer.cli.output import check, deliver
from glassformer.cli.overrides import overridden
from glassformer.cli.progress import progress
from glassformer.config import require

if TYPE_CHECKING:
    from glassformer.adaptation import Adapter, ExpertConfig, ExpertStep, Strategy
    from glassformer.data import QuestionConfig, WhichTask
    from glassformer.fitting import SearchStep
    from glassformer.models import ModelLike

Action = Literal["train", "run"]
Task = Literal[
    "arithmetic",
    "sorting",
    "closing-brackets",
    "which-task",
    "sorted-sums",
    "running-sum",
    "permutation-product",
    "iterated-squaring",
    "circuit-value",
]
Kind = Literal["svf", "lora", "milora", "corda", "full"]
Choice = Literal["prompt", "classifier", "few-shot"]
WHICH = "which-task"


def adapt(
    action: Annotated[Action, tyro.conf.Positional],
    model: ModelName,
    texts: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    /,
    task: Task | None = None,
    adapter: Kind = "svf",
    matrices: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[GLOB ...]")] = ("*",),
    objective: Literal["reward", "next-token"] = "reward",
    kl_weight: float = 0.0,
    direction: Literal["reverse", "forward"] = "reverse",
    steps: int = 200,
    batch_size: int = 256,
    set: tuple[str, ...] = (),
    folder: Path | None = None,
    experts: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="[FOLDER ...]")] = (),
    strategy: Choice = "prompt",
    shots: int = 10,
    per: Literal["expert", "matrix"] = "expert",
    iterations: int = 50,
    max_new_tokens: int | None = None,
    seed: int = 0,
    *,
    computing: ComputeDevice,
    output: Output,
) -> None:
    """Experts: train an adapter for a task by rewards, or let experts that are chosen for each prompt answer it.

    train draws answers, rewards those that are right, and writes the expert that did best on held-out prompts, with
    what it is worth on prompts that nothing was chosen by, before and after. Stop with Ctrl-C at any moment: the best
    so far is kept. run goes over each prompt twice: first it is decided which expert it gets, then that one answers;
    none is the model as it is.

    Examples:
        glassformer adapt train runs/questions --task sorting
        glassformer adapt train runs/questions --task sorting --adapter lora --set adapter.rank=4 optim.lr=0.001
        glassformer adapt train runs/questions --task which-task --kl-weight 0.2 --direction forward
        glassformer adapt run runs/questions "4 2 , 7 , 1 9 =" "1 7 + 2 5 =" --experts runs/experts/questions/*
        glassformer adapt run runs/questions "4 2 , 7 =" --experts runs/experts/questions/* --strategy classifier
        glassformer adapt run runs/questions "7 , 1 + 2 =" --experts mine others --strategy few-shot --task sorted-sums

    Args:
        action: train an expert; or run experts.
        texts: For run: prompts.
        task: What the expert is trained on; with few-shot, what its examples are of. Its sizes are those of the model's
            own training, if that had the task.
        adapter: Kind of the expert.
        matrices: Matrices that it changes, by name or glob: blocks.*.mlp.*
        objective: reward: right answers are made more probable; next-token: answers are learned token by token.
        kl_weight: How strongly the expert is held near the model.
        direction: Of the divergence that holds it: reverse, the paper's, or forward, its published code's.
        steps: Updates.
        batch_size: Prompts in each.
        set: Further settings of train. A path is objective, baseline, evaluate_every or evaluate_prompts; optim. and
            lr, schedule, warmup, clip and so on; or a setting of adapter. or task.: adapter.rank, task.largest.
        folder: Where the expert goes; by default runs/experts/MODEL/TASK.
        experts: Folders of experts. One that was trained on which-task says which task a prompt is of.
        strategy: How run chooses: prompt, the model is asked which task it is; classifier, the expert for that question
            is; few-shot, experts are mixed as answers some solved examples best.
        shots: Solved examples of few-shot.
        per: What few-shot looks for: a coefficient for each expert, or for each matrix of each.
        iterations: Steps of its search.
        max_new_tokens: Where an answer without an end is cut off.
        seed: Of all that is drawn.
    """
    check(output)
    train, choose = "glassformer adapt train MODEL --task TASK", "glassformer adapt run MODEL TEXT --experts FOLDER"
    if action == "train":
        require(task is not None, f"say what the expert is to be good at: {train}.")
        require(not texts, f"texts are of run: {choose}.")
        require(not experts, f"--experts is of run: {choose}.")
    else:
        require(len(texts) > 0, f"give one prompt or more: {choose}.")
        require(len(experts) > 0, f"give experts, or train one: {train}.")
        require(not set, f"--set is of train: {train} --set PATH=VALUE.")
    loaded = placed_model(model, Placement(device=computing.device))
    require_text(loaded)
    if action == "train":
        assert task is not None, "required above"
        config = _config(model, task, adapter, matrices, seed)
        config = config.replace(
            objective=objective, kl_weight=kl_weight, direction=direction, steps=steps, batch_size=batch_size
        )
        for override in set:
            config = overridden(config, override)
        _train(loaded, model, config, folder or Path("runs/experts") / Path(model).name / task, output)
        return
    known, classifier = _experts(loaded, experts)
    asked: dict[str, Any] = {"action": "run", "experts": [str(one) for one in experts], "strategy": strategy}
    if strategy == "few-shot":
        require(task is not None, "--strategy few-shot takes its examples from a task: give --task TASK.")
        assert task is not None, "required above"
        asked |= {"task": task, "shots": shots, "per": per, "iterations": iterations, "seed": seed}
    with _strategy(strategy, model, known, classifier, asked) as chosen:
        _run(loaded, known, chosen, texts, max_new_tokens, asked, output)


def _config(model: str, task: Task, adapter: Kind, matrices: tuple[str, ...], seed: int) -> "ExpertConfig":
    from glassformer.adaptation import AdapterConfig, ExpertConfig

    return ExpertConfig(_task(model, task), AdapterConfig.from_dict({"kind": adapter}), matrices, seed=seed)


def _task(model: str, kind: Task) -> "QuestionConfig":
    """Return a task in the sizes that a model was trained on, if it was; else in its own."""
    from glassformer.analysis.learning import read_history
    from glassformer.data import DataConfig, MixtureConfig, QuestionConfig
    from glassformer.training.recipes import RECIPES, recipe

    data: DataConfig | None = recipe(model).data if model in RECIPES else None
    if (Path(model) / "metrics.jsonl").is_file():
        data = DataConfig.from_dict(read_history(model).config["data"])
    parts = data.parts if isinstance(data, MixtureConfig) else (data,)
    known = {part.kind: part for part in parts if isinstance(part, QuestionConfig)}
    return known.get(kind) or QuestionConfig.from_dict({"kind": kind})


def _train(loaded: "ModelLike", model: str, config: "ExpertConfig", folder: Path, output: Output) -> None:
    """Train, say on the way how far it has come, and show what came of it; interrupted, say what is kept."""
    from glassformer.adaptation import train_expert
    from glassformer.render.terminal.tables import tables
    from glassformer.words import spoken

    at, told = 0, {"held_out": float("nan")}
    try:
        with progress("training") as bar:

            def report(step: "ExpertStep") -> None:
                nonlocal at
                at = step.step
                if step.held_out is not None:
                    told["held_out"] = step.held_out
                drawn = f"reward {step.reward:+.2f}, held out {told['held_out']:+.2f}, KL {step.divergence:.3f}"
                bar(step.step, step.steps, drawn)

            training = train_expert(loaded, config, folder, report=report).training
    except KeyboardInterrupt as interrupt:
        kept = spoken("the best of {n} steps is in {folder}", n=at, folder=folder)
        raise KeyboardInterrupt(kept if at else spoken("before anything was kept")) from interrupt
    shown = [
        tables(training),
        "",
        spoken("expert: {path}", path=folder.absolute()),
        spoken("Use it: glassformer adapt run {model} TEXT --experts {folder}", model=model, folder=folder),
    ]
    asked = {"action": "train", "folder": str(folder), "config": config.to_dict()}
    deliver("adapt", loaded, asked, [training], output, shown=shown)


def _experts(loaded: "ModelLike", folders: tuple[Path, ...]) -> "tuple[dict[str, Adapter], Adapter | None]":
    """Return experts by the kind of their task, and by the folder too where several have one; and the classifier."""
    from glassformer.adaptation import load_adapter, task_of

    read = [(folder, load_adapter(folder, loaded)) for folder in folders]
    kinds = [str(task_of(one).kind) for _, one in read]
    require(kinds.count(WHICH) <= 1, f"several experts say which task a prompt is of ({WHICH}); give one of them.")
    counted = Counter(kinds)
    named = {
        kind if counted[kind] == 1 else f"{kind} ({folder})": one
        for kind, (folder, one) in zip(kinds, read, strict=True)
    }
    classifier = named.pop(WHICH, None)
    require(len(named) > 0, f"--experts holds none but the one that says which task a prompt is of ({WHICH}).")
    return named, classifier


@contextmanager
def _strategy(
    choice: Choice, model: str, experts: "dict[str, Adapter]", classifier: "Adapter | None", asked: dict[str, Any]
) -> "Iterator[Strategy]":
    """Yield what decides which expert answers; of one that searches, say how far it has come."""
    from glassformer.adaptation import AskedTask, FewShot

    if choice != "few-shot":
        require(
            choice == "prompt" or classifier is not None,
            f"--strategy classifier takes an expert for the question itself among --experts: train one with\n"
            f"    glassformer adapt train {model} --task {WHICH}",
        )
        yield AskedTask(_question(experts, classifier), classifier if choice == "classifier" else None)
        return
    task = _task(model, asked["task"])
    with progress("mixing") as bar:

        def report(step: "SearchStep") -> None:
            bar(step.step, asked["iterations"], f"right {step.value:.0%}")

        yield FewShot(
            # what is mixed by these is measured on none of the split "test"
            task, task.questions(asked["shots"], "heldout", seed=asked["seed"]), per=asked["per"],
            iterations=asked["iterations"], seed=asked["seed"], report=report,
        )  # fmt: skip


def _question(experts: "dict[str, Adapter]", classifier: "Adapter | None") -> "WhichTask":
    """Return the question which task a prompt is of: the classifier's, or that of the tasks there are experts of."""
    from glassformer.adaptation import task_of
    from glassformer.data import WhichTask

    if classifier is not None and isinstance(own := task_of(classifier), WhichTask):
        return own
    return WhichTask(parts=tuple(task_of(one) for one in experts.values()))


def _run(
    loaded: "ModelLike", experts: "dict[str, Adapter]", strategy: "Strategy", texts: tuple[str, ...],
    max_new_tokens: int | None, asked: dict[str, Any], output: Output,
) -> None:  # fmt: skip
    from glassformer.adaptation import adapted_answers
    from glassformer.render.terminal.tables import tables

    found = adapted_answers(loaded, experts, strategy, texts, max_new_tokens=max_new_tokens)
    given = asked | {"text": list(texts), "max_new_tokens": max_new_tokens}
    deliver("adapt", loaded, given, [found], output, shown=[tables(found)])
