"""`glassformer prune`: the circuit that is left when edges that cost little are cut."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import model_of
from glassformer.cli.options import LongOutput, ModelName, OneMeasure, Opening, PromptOptions
from glassformer.cli.output import check
from glassformer.cli.progress import progress
from glassformer.cli.prompts import present, prompts_of
from glassformer.cli.work import UNASKED, pass_flops

if TYPE_CHECKING:
    from glassformer.models import ModelLike


def prune(
    model: ModelName,
    /,
    *,
    threshold: float,
    compare: bool = False,
    prompts: PromptOptions,
    metric: OneMeasure = "logit-difference",
    candidates: int | None = None,
    top: int = 6,
    save_to: Path | None = None,
    opening: Opening,
    output: LongOutput,
) -> None:
    """Find a circuit by pruning (ACDC): cut every edge whose loss costs less than a threshold, and show what is left.

    Prompts come from a file (--pairs), a template (--task) or the command line (--clean and --corrupt).

    Examples:
        glassformer prune attn-only-2l --threshold 0.5
        glassformer prune attn-only-2l --task repeated_arguments --threshold 0.5 --html circuit.html
        glassformer prune my-model --pairs pairs.csv --metric kl --threshold 0.02

    Args:
        threshold: By how much the measure may get worse for an edge, in its own units.
        candidates: Edges that are tried one by one: those with the largest effects by attribution patching, the others
            being cut at once. By default all, or as many as take about a minute where all would take hours.
        compare: Also prune for each half of the prompts, and a model with weights drawn anew: three further searches.
        top: Largest edges shown.
        save_to: Keep what is decided in this file; the same command goes on from it.
    """
    from glassformer import analysis

    check(output, save_to=save_to)
    loaded = model_of(model, opening)
    compared = prompts_of(loaded, prompts)
    measured = compared.metric(loaded, metric)
    if candidates is None:
        candidates = _affordable(loaded, compared.pairs)
    with progress("pruning", dry_run=output.dry_run) as report:
        found = analysis.circuits.acdc(
            loaded,
            compared.pairs,
            measured,
            threshold=threshold,
            candidates=candidates,
            compare=compare,
            save_to=save_to,
            report=report,
        )
    given = {"metric": [measured.name], "seed": prompts.seed, "threshold": threshold, "candidates": candidates}
    present("prune", loaded, compared, [found], given=given, output=output, top=top)


def _affordable(model: "ModelLike", pairs: Any) -> int | None:
    """Return how many edges are tried one by one, None for all."""
    from glassformer import analysis
    from glassformer.analysis.prepare import prepare

    tried = analysis.circuits.circuit_graph(model).n_edges
    # an edge's pass begins at its receiver: half of a pass on average, and as much again for what is exchanged in it
    ids = prepare(model, pairs.side("clean"), pairs.target).ids
    assert ids is not None, "one of our models reads ids"
    each = pass_flops(model, *ids.shape)
    return None if tried * each < UNASKED else max(int(UNASKED / 10 / each), 1)
