"""`glassformer paths`: what every head and MLP does through some receivers alone."""

from typing import Annotated

import tyro

from glassformer.cli.arguments import model_of
from glassformer.cli.options import LongOutput, ModelName, OneMeasure, Opening, PromptOptions
from glassformer.cli.output import check
from glassformer.cli.progress import progress
from glassformer.cli.prompts import present, prompts_of


def paths(
    model: ModelName,
    receivers: Annotated[tuple[str, ...], tyro.conf.Positional] = ("logits",),
    /,
    *,
    prompts: PromptOptions,
    metric: OneMeasure = "logit-difference",
    top: int = 6,
    opening: Opening,
    output: LongOutput,
) -> None:
    """Path patching: what every head and MLP does through some receivers alone.

    Prompts come from a file (--pairs), a template (--task) or the command line (--clean and --corrupt).

    Examples:
        glassformer paths attn-only-2l L1H6.v
        glassformer paths attn-only-2l logits L1H6.v --task repeated_arguments
        glassformer paths gpt-4l --clean "set(a, b); set(a," --corrupt "set(a, c); set(a,"

    Args:
        receivers: What paths lead into, such as L1H6.k or logits.
        top: Largest senders shown.
    """
    from glassformer import analysis

    check(output)
    loaded = model_of(model, opening)
    compared = prompts_of(loaded, prompts)
    measured = compared.metric(loaded, metric)
    with progress("paths", dry_run=output.dry_run) as report:
        found = analysis.circuits.path_patching(loaded, compared.pairs, measured, receivers=receivers, report=report)
    given = {"metric": [measured.name], "seed": prompts.seed, "receivers": list(receivers)}
    present("paths", loaded, compared, [found], given=given, output=output, top=top)
