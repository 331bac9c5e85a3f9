"""`glassformer train`: run a recipe, or go on with it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glassformer.cli.console import Console
from glassformer.cli.overrides import overridden
from glassformer.errors import ConfigError
from glassformer.words import spoken

if TYPE_CHECKING:
    from glassformer.training import TrainConfig, loop


def train(
    recipe_name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="recipe", metavar="RECIPE")],
    /,
    folder: Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    mesh: str | None = None,
    checkpoints: Literal["whole", "shards"] = "whole",
    set: tuple[str, ...] = (),
    data: tuple[str, ...] = (),
    begin_from: Path | None = None,
    show: bool = False,
) -> None:
    """Train a model by a recipe, or go on where the last run of it stopped.

    Stop with Ctrl-C at any moment; the same command resumes to the same numbers.

    Examples:
        glassformer train attn-only-2l
        glassformer train gpt-4l --folder runs/mine --steps 500 --set optim.lr=0.001 data.batch_size=8
        glassformer train gpt-4l --folder runs/mine --data my/texts more.jsonl
        glassformer train my-recipe.json --show

    Args:
        recipe_name: A name, or a JSON file as `--show` prints it.
        folder: Run folder; `runs/RECIPE` by default.
        steps: Number of updates, instead of the recipe's.
        seed: Seed, instead of the recipe's.
        threads: CPU threads.
        device: Where to train, instead of the recipe's: cpu, cuda, cuda:1, mps; auto is this machine's accelerator if
            it has one, and the CPU otherwise.
        mesh: Processes that share the work, each started by torchrun: rows of every batch (dp=2), positions of every
            text (cp=2), heads and neurons of every layer (tp=2), or several of these (dp=2,tp=2).
        checkpoints: What a mesh keeps: the whole model, or each process its shards, so that none needs room for the
            whole; nothing but the held-out loss is measured then.
        set: Changes to the recipe. A path is optim. and lr, schedule, warmup, floor, betas, eps, weight_decay, clip or
            unit_vectors; or steps, seed, accumulate, smoothing, precision, compile, device, log_every, evaluate_every,
            evaluate_batches, save_every, keep or weights; or what --show prints below model, data and evaluate, entries
            of a list by index: data.length, data.parts.0.sources, model.layers.1.dropout. A value is JSON, or a word.
        data: Text to train on and to measure the held-out loss on, instead of the recipe's: files, folders, globs.
        begin_from: A run folder, or one of its checkpoints: a new run takes over its weights and goes on from there.
        show: Print the recipe as JSON and do nothing.
    """
    import torch

    config = _recipe(recipe_name)
    for name, value in (("steps", steps), ("seed", seed), ("device", device)):
        config = config if value is None else config.replace(**{name: value})
    if data:
        config = config.on_text(*data)
    for override in set:
        config = overridden(config, override)
    if show:
        print(config.to_json())
        return
    if threads is not None:
        torch.set_num_threads(threads)
    folder = folder or Path("runs") / Path(recipe_name).stem
    _train(config, folder, begin_from, mesh, checkpoints)


def _train(
    config: "TrainConfig",
    folder: Path,
    begin_from: Path | None,
    mesh: str | None,
    checkpoints: Literal["whole", "shards"],
) -> None:
    from glassformer.analysis.learning.measures import MEASURES
    from glassformer.training import train as run_training

    shape, console = None, Console(stderr=True)
    if mesh is not None:
        from glassformer.training.parallel import Mesh, leads

        shape = Mesh.read(mesh)
        # one of them tells how it goes
        console.quiet = not leads()
    columns = (spoken("loss") + " {task.fields[loss]:.3f}", "{task.fields[rate]:,.0f} " + spoken("tokens/s"))
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        *map(TextColumn, columns),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task(str(folder), total=config.steps, loss=float("nan"), rate=0.0)

    def report(progress: "loop.Progress") -> None:
        if not bar.live.is_started:
            # a terminal shows one live thing at a time, and no bar before there is a step to show
            status.stop()
            bar.start()
        bar.update(task, completed=progress.step, loss=progress.loss, rate=progress.tokens_per_second)
        if "heldout_loss" in progress.notes:
            numbers = {k: v for k, v in progress.notes.items() if isinstance(v, float)}
            bar.console.print(
                spoken("step {n}", n=progress.step) + "  " + "  ".join(f"{k} {v:.4g}" for k, v in numbers.items())
            )

    try:
        with _notes_on(console), console.status(spoken("reading data, measuring the start")) as status:
            # what no process has whole is not measured
            measures = MEASURES if checkpoints == "whole" else None
            run_training(
                config, folder, measures=measures, report=report, begin_from=begin_from, mesh=shape,
                checkpoints=checkpoints,
            )  # fmt: skip
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(_kept(folder)) from interrupt
    finally:
        if bar.live.is_started:
            bar.stop()
    console.print(_reached(config, folder), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _notes_on(console: Console) -> Iterator[None]:
    """Show warnings as notes for the duration, in words alone, each once."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            if str(message) in shown:
                return
            shown.add(str(message))
            console.print(spoken("note: {words}", words=message), highlight=False, markup=False, soft_wrap=True)
        else:
            usual(message, category, *place, **more)

    usual = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _kept(folder: Path) -> str:
    """Return what is left of a run that was interrupted."""
    from glassformer.checkpoints import run_steps

    steps = run_steps.steps(folder)
    if not steps:
        return spoken("before anything was kept")
    return spoken("kept at step {n}; the same command goes on", n=steps[-1])


def _reached(config: "TrainConfig", folder: Path) -> str:
    """Return what a finished run came to, and where it is."""
    from glassformer.checkpoints import run_steps
    from glassformer.training import read_metrics

    last = read_metrics(folder)[-1]
    loss = last.get("heldout_loss")
    measured = "" if loss is None else _measured(config, loss, last["heldout_on"])
    place = run_steps.at(folder, last["step"])
    done = spoken("done: {folder}, step {n} of {all}", folder=folder, n=last["step"], all=config.steps)
    where = spoken("model: {place}; load it with glassformer.load({folder!r})", place=place, folder=str(folder))
    return f"{done}{measured}\n{where}"


def _measured(config: "TrainConfig", loss: float, on: str) -> str:
    """Return what the held-out loss came to, in its unit."""
    if config.model.denoises is not None:
        return spoken(", held-out squared error {loss:.4g} (on {what})", loss=loss, what=on)
    return spoken(", held-out loss {loss:.4g} nats (on {what})", loss=loss, what=on)


def _recipe(name: str) -> "TrainConfig":
    from glassformer.files import MOST_JSON, read_text
    from glassformer.training import TrainConfig
    from glassformer.training.recipes import RECIPES, recipe

    path = Path(name)
    if path.suffix == ".json":
        try:
            return TrainConfig.from_json(read_text(path, MOST_JSON))
        except OSError as error:
            raise ConfigError(f'cannot read "{path}": {error.strerror}. Recipes: {", ".join(RECIPES)}.') from error
        except UnicodeDecodeError as error:
            raise ConfigError(f'"{path}" is no recipe: it is not UTF-8.') from error
    return recipe(name)
