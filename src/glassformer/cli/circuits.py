"""`glassformer circuits`: the heads of a model and how they work together."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from glassformer.cli.arguments import placed_model, require_text, source_of
from glassformer.cli.options import LongOutput, Placement
from glassformer.cli.output import check, finish
from glassformer.cli.progress import LONG, progress
from glassformer.cli.work import UNASKED, pass_flops, seconds

if TYPE_CHECKING:
    from glassformer.models import ModelLike

TOKENS = 16_384  # of text that is run unless rows are asked for


def circuits(
    model: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    heads: tuple[str, ...] = (),
    run: Path | None = None,
    data: tuple[str, ...] = (),
    rows: int | None = None,
    top: int = 12,
    seed: int = 0,
    save_to: Path | None = None,
    *,
    placement: Placement,
    output: LongOutput,
) -> None:
    """Find a model's circuits: heads by role, what reads what, copying, skip-trigrams, and how much each matters.

    Evidence from weights stands beside evidence from activations; what is not defined for the model is said.

    Examples:
        glassformer circuits attn-only-2l
        glassformer circuits attn-only-2l --heads L0H1 L1H6 --html circuits.html
        glassformer circuits --run runs/attn-only-2l --json circuits.json
        glassformer circuits my-model --data notes

    Args:
        model: A shipped model, or a folder; with --run, the run's last checkpoint by default.
        heads: List the token pairs of these heads; by default those that stand out.
        run: A run folder: shows what changed in training. Shipped models carry their own metrics.
        data: Text for losses and ablations: files, folders, globs, python-stdlib. By default the held-out text of the
            model's recipe or run, else python-stdlib.
        rows: Rows of text to run, as far as --data has so many, on all of which every head is ablated. By default as
            many as hold 16384 tokens, or none where that would take more than a few minutes.
        top: Entries per table.
        seed: Of random tokens and random matrices.
        save_to: Keep finished steps and ablations in this folder; the same command goes on from it.
    """
    from glassformer import analysis, weights
    from glassformer.analysis.reports.training_facts import training_facts
    from glassformer.cli.console import Console
    from glassformer.config import require
    from glassformer.errors import AnalysisUnavailable, ConfigError
    from glassformer.render.page import circuits_page
    from glassformer.render.terminal.tables import noted, tables

    require(0 <= seed < 2**62, f"--seed must be in 0 to 2**62 - 1, found {seed}.")
    if model is None and run is None:
        raise ConfigError("give a model (glassformer models lists those that ship) or --run FOLDER.")
    check(output, save_to=None if save_to is None else save_to / "steps.safetensors")
    if run is not None:
        analysis.learning.read_history(run)  # whether it is a run folder
    loaded = placed_model(str(run) if model is None else model, placement)
    require_text(loaded)
    for label in heads:
        weights.of(loaded)[label]  # before anything is run
    metrics = _metrics(model, run)
    with Console(stderr=True).status("reading text"):
        batches, tokens = _text(loaded, model, run, data, rows)
    if batches:
        batches = _worthwhile(loaded, batches, rows is None, output.dry_run)
    # analyses of weights are few, and no two of them cost the same
    with progress("circuits", dry_run=output.dry_run, alike=False) as report:
        found = analysis.reports.circuits(
            loaded, *batches, heads=list(heads) or None, tokens=tokens, k=top, seed=seed, report=report, save_to=save_to
        )
    if metrics:
        try:
            found = found.replace(training=training_facts(metrics))
        except AnalysisUnavailable as error:
            found = found.replace(
                unavailable=(*found.unavailable, analysis.reports.Unavailable("training", str(error)))
            )
    finish(
        [tables(found), *noted(found.notes)], JSON=(output.json, found.to_json),
        page=(output.html, lambda: circuits_page(found.to_dict())),
    )  # fmt: skip


def _worthwhile(model: "ModelLike", batches: list[Any], unasked: bool, dry_run: bool) -> list[Any]:
    """Return the batches to run: none if nobody asked for rows and they would take long; say what they cost."""
    from glassformer.analysis.heads.roles import heads
    from glassformer.cli.console import Console
    from glassformer.words import duration, spoken

    n = len(heads(model))
    # a head's ablation begins at its layer: half of a pass on average
    work = sum(pass_flops(model, *batch.tokens.shape) for batch in batches) * (n / 2 + 3)
    left_out, taken = unasked and work > UNASKED, seconds(model, work)
    told = {
        "n": n, "rows": sum(len(batch.tokens) for batch in batches), "length": batches[0].tokens.shape[1],
        "taken": duration(taken),
    }  # fmt: skip
    if left_out or taken > LONG or dry_run:
        line = spoken("Ablating each of {n} heads on {rows:,} rows of {length:,} tokens takes about {taken}.", **told)
        line += spoken(" It is left out: --rows asks for it.") if left_out else ""
        Console(stderr=True).print(line, highlight=False, soft_wrap=True)
    if dry_run:
        raise SystemExit(0)
    return [] if left_out else batches


def _metrics(model: str | None, run: Path | None) -> list[dict[str, Any]]:
    from glassformer import checkpoints
    from glassformer.training import read_metrics

    if run is not None:
        return read_metrics(run)
    return read_metrics(checkpoints.folder_of(model)) if model in checkpoints.shipped() else []


def _text(
    loaded: "ModelLike", model: str | None, run: Path | None, data: tuple[str, ...], rows: int | None
) -> tuple[list[Any], Any]:
    """Return batches of held-out text and the ids that are frequent in it; none where the model reads no text."""
    from glassformer.analysis.vocabulary import frequent_tokens
    from glassformer.config import require
    from glassformer.data import TextConfig
    from glassformer.data.text.corpus import TextData
    from glassformer.errors import TextError
    from glassformer.models import Decoder, Encoder

    config, split = source_of(loaded, model, run, data), "train" if data else "heldout"
    if isinstance(config, TextConfig):
        able = loaded.continues and loaded.tokenizer is not None and loaded.one_vocabulary()
        apart = "predicts tokens of another vocabulary than it reads"
        lacks = {
            Decoder: "has no tokenizer" if loaded.one_vocabulary() else apart,
            Encoder: "predicts no next tokens: it reads both ways",
        }
        lack = lacks.get(type(loaded), "reads pairs of texts")
        require(able or not data, f"--data is for models that read text, and this one {lack}: leave it out.")
        if not able:
            return [], None
    try:
        built = config.build(loaded.tokenizer)
    except TextError:
        # a model of its own words: the standard library is no text for it, and no other was named
        if data or run is not None:
            raise
        return [], None
    first = built.batch(0, split)
    n, length = first.tokens.shape
    wanted = -(-TOKENS // length) if rows is None else rows
    if data and isinstance(built, TextData):
        wanted = min(wanted, -(-built.n_tokens[split] // length))
    batches = [built.batch(i, split) for i in range(-(-wanted // n))]
    batches[-1] = batches[-1].rows(n - (-wanted) % n)
    largest, size = max(int(batch.tokens.max()) for batch in batches), loaded.config.vocab_size
    require(largest < size, f"the text holds token {largest}, and the model has {size} tokens: it is another model's.")
    return batches, frequent_tokens(built.documents(split)) if isinstance(config, TextConfig) else None
