"""`glassformer prune`: the circuit that is left when edges that cost little are cut."""

from glassformer.cli.arguments import model_of
from glassformer.cli.options import ModelName, OneMeasure, Opening, Output, PromptOptions
from glassformer.cli.output import check
from glassformer.cli.progress import progress
from glassformer.cli.prompts import present, prompts_of


def prune(
    model: ModelName,
    /,
    *,
    threshold: float,
    compare: bool = False,
    prompts: PromptOptions,
    metric: OneMeasure = "logit-difference",
    top: int = 6,
    opening: Opening,
    output: Output,
) -> None:
    """Find a circuit by pruning (ACDC): cut every edge whose loss costs less than a threshold, and show what is left.

    Prompts come from a file (--pairs), a template (--task) or the command line (--clean and --corrupt).

    Examples:
        glassformer prune attn-only-2l --threshold 0.5
        glassformer prune attn-only-2l --task repeated_arguments --threshold 0.5 --html circuit.html
        glassformer prune my-model --pairs pairs.csv --metric kl --threshold 0.02

    Args:
        threshold: By how much the measure may get worse for an edge, in its own units.
        compare: Also prune for each half of the prompts, and a model with weights drawn anew: three further searches.
        top: Largest edges shown.
    """
    from glassformer import analysis

    check(output)
    loaded = model_of(model, opening)
    compared = prompts_of(loaded, prompts)
    measured = compared.metric(loaded, metric)
    with progress("pruning") as report:
        found = analysis.circuits.acdc(
            loaded, compared.pairs, measured, threshold=threshold, compare=compare, report=report
        )
    given = {"metric": [measured.name], "seed": prompts.seed, "threshold": threshold}
    present("prune", loaded, compared, [found], given=given, output=output, top=top)
