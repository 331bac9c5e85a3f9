"""`glassformer edges`: estimates for all edges between heads, the largest of them checked."""

from glassformer.cli.arguments import model_of
from glassformer.cli.options import LongOutput, ModelName, OneMeasure, Opening, PromptOptions
from glassformer.cli.output import check
from glassformer.cli.progress import progress
from glassformer.cli.prompts import present, prompts_of


def edges(
    model: ModelName,
    /,
    *,
    prompts: PromptOptions,
    verify: int = 12,
    metric: OneMeasure = "logit-difference",
    top: int = 6,
    opening: Opening,
    output: LongOutput,
) -> None:
    """Edge attribution patching: estimate all edges between heads by gradients, and patch the largest to compare.

    Prompts come from a file (--pairs), a template (--task) or the command line (--clean and --corrupt).

    Examples:
        glassformer edges attn-only-2l
        glassformer edges attn-only-2l --task repeated_arguments --verify 8
        glassformer edges my-model --pairs pairs.csv --html edges.html

    Args:
        verify: Patch so many of the largest edges, and some others drawn at random.
        top: Largest edges shown.
    """
    from glassformer import analysis

    check(output)
    loaded = model_of(model, opening)
    compared = prompts_of(loaded, prompts)
    measured = compared.metric(loaded, metric)
    with progress("edges", dry_run=output.dry_run) as report:
        estimated = analysis.circuits.attribute_edges(loaded, compared.pairs, measured)
        verified = estimated.verified(verify, seed=prompts.seed, report=report)
    given = {"metric": [measured.name], "seed": prompts.seed, "verify": verify}
    # estimates are shown beside what they are checked against
    found = [estimated, verified]
    present("edges", loaded, compared, found, given=given, output=output, top=top, aside=[estimated])
