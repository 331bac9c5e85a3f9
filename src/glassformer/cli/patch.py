"""`glassformer patch`: which values carry the difference between two prompts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.arguments import model_of
from glassformer.cli.options import LongOutput, Measure, ModelName, Opening, PromptOptions
from glassformer.cli.output import check
from glassformer.cli.progress import progress
from glassformer.cli.prompts import ComparedPrompts, present, prompts_of
from glassformer.cli.started_together import shared_among_processes

if TYPE_CHECKING:
    from glassformer.models import ModelLike

SITES = ("stream", "z")


def patch(
    model: ModelName,
    /,
    *,
    prompts: PromptOptions,
    sites: tuple[str, ...] = (),
    by: tuple[str, ...] = (),
    direction: Literal["denoising", "noising", "both"] = "denoising",
    metric: tuple[Measure, ...] = ("logit-difference",),
    top: int = 6,
    save_to: Path | None = None,
    opening: Opening,
    output: LongOutput,
) -> None:
    """Patch activations: put values of one run into another, one at a time, and see how much of the answer they carry.

    Prompts come from a file (--pairs), a template (--task) or the command line (--clean and --corrupt). Further
    questions about the same prompts are the commands paths, edges and prune. Processes that torchrun starts share the
    values to be replaced among them (torchrun --nproc-per-node 2 -m glassformer patch ...), and the first one prints.

    Examples:
        glassformer patch attn-only-2l
        glassformer patch attn-only-2l --sites z query key value --direction both
        glassformer patch gpt-4l --task repeated_arguments --sites resid_pre attn_out mlp_out
        glassformer patch gpt-4l --clean "set(a, b); set(a," --corrupt "set(a, c); set(a,"
        glassformer patch my-model --pairs pairs.csv --json found.json --save-to sweep.safetensors

    Args:
        sites: What is replaced: stream, everything, resid_pre, resid_mid, resid_post, attn_out, mlp_out, head, z,
            query, key, value, scores, pattern, pattern_entries, neurons, or site names and globs. Stream and z by
            default.
        by: Cut the sites along these axes (layer, head, pos, neuron, query, key, site) instead of their usual ones.
        direction: Clean values into the corrupt run, corrupt ones into the clean run, or both.
        metric: What is measured at the last token; kl is the divergence from the clean run.
        top: Largest cells per table.
        save_to: Keep finished rows of the sweep in this file; the same command goes on from it.
    """
    from glassformer.config import require

    require(not by or bool(sites), "--by says how --sites are cut: give --sites too.")
    require(save_to is None or direction != "both", "--save-to holds one sweep: give one --direction.")
    check(output, save_to=save_to)
    with shared_among_processes(opening, output) as (opening, tells):
        loaded = model_of(model, opening)
        compared = prompts_of(loaded, prompts)
        metrics = [compared.metric(loaded, name) for name in dict.fromkeys(metric) or ("logit-difference",)]
        ways = ("denoising", "noising") if direction == "both" else (direction,)
        found = [_swept(loaded, compared, metrics, sites or SITES, by, way, save_to, output.dry_run) for way in ways]
    if not tells:
        return
    given = {"metric": [m.name for m in metrics], "seed": prompts.seed, "sites": list(sites or SITES)}
    present("patch", loaded, compared, found, given=given, output=output, top=top)


def _swept(
    model: "ModelLike", prompts: ComparedPrompts, metrics: list[Any], sites: tuple[str, ...], by: tuple[str, ...],
    way: Any, save_to: Path | None, dry_run: bool,
) -> Any:  # fmt: skip
    from glassformer import analysis

    grids = [analysis.causal.SiteGrid(name, by or None) for name in sites]
    with progress(way, dry_run=dry_run) as report:
        return analysis.causal.patch(
            model, prompts.pairs, metrics, grids, direction=way, report=report, save_to=save_to
        )
