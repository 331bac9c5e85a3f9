"""`glassformer patch`: which values carry the difference between two prompts."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from glassformer.cli.documents import check, deliver
from glassformer.cli.given import Specials, model_of
from glassformer.cli.progress import progress
from glassformer.cli.prompts import Prompts, prompts_of

SITES = ("stream", "z")
Measure = Literal["logit-difference", "logit", "probability", "log-probability", "rank", "kl"]


def patch(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    /,
    pairs: Path | None = None,
    task: str | None = None,
    n: int = 32,
    fitting: bool = False,
    clean: str | None = None,
    corrupt: str | None = None,
    answer: str | None = None,
    wrong: str | None = None,
    target: str | None = None,
    sites: tuple[str, ...] = (),
    by: tuple[str, ...] = (),
    direction: Literal["denoising", "noising", "both"] = "denoising",
    metric: tuple[Measure, ...] = ("logit-difference",),
    paths: tuple[str, ...] = (),
    edges: int | None = None,
    prune: float | None = None,
    specials: Specials = "default",
    top: int = 6,
    save_to: Path | None = None,
    html: Path | None = None,
    json: Path | None = None,
    seed: int = 0,
) -> None:
    """Patch activations: put values of one run into another, one at a time, and see how much of the answer they carry.

    Prompts come from a file (--pairs), a template (--task) or the command line (--clean and --corrupt). The further
    questions --paths, --edges and --prune are asked instead of patching sites unless --sites is given too.

    Examples:
        glassformer patch attn-only-2l
        glassformer patch attn-only-2l --sites z query key value --direction both
        glassformer patch gpt-4l --task repeated_arguments --sites resid_pre attn_out mlp_out
        glassformer patch gpt-4l --clean "a = b" --corrupt "a = c" --answer " b" --wrong " c"
        glassformer patch attn-only-2l --paths L1H6.k --edges 12
        glassformer patch my-model --pairs pairs.csv --json found.json --save-to sweep.safetensors

    Args:
        model: A shipped model, or a folder.
        pairs: Prompt pairs: a .csv, .tsv or .jsonl file with clean, corrupt, answer and wrong.
        task: Draw pairs from a template: induction (the default), indirect_objects, greater_than,
            subject_verb_agreement, repeated_arguments.
        n: Pairs drawn from the template.
        fitting: Leave out pairs that do not fit the model's tokenizer.
        clean: A prompt; token ids for a model without a tokenizer.
        corrupt: The same with a difference that changes the answer, of as many tokens.
        answer: The next token of the clean prompt; by default what the model finds likeliest.
        wrong: The token it is compared with; by default the likeliest after the corrupt prompt.
        target: What the decoder of an encoder-decoder has read.
        sites: What is replaced: stream, everything, resid_pre, resid_mid, resid_post, attn_out, mlp_out, head, z,
            query, key, value, scores, pattern, pattern_entries, neurons, or site names and globs. Stream and z by
            default.
        by: Cut the sites along these axes (layer, head, pos, neuron, query, key, site) instead of their usual ones.
        direction: Clean values into the corrupt run, corrupt ones into the clean run, or both.
        metric: What is measured at the last token; kl is the divergence from the clean run. The further questions take
            the first.
        paths: Path patching: what every head and MLP does through these receivers alone, such as L1H6.k or logits.
        edges: Estimate all edges between heads by gradients, and patch so many of the largest to compare.
        prune: Find a circuit by pruning edges whose loss costs less than this (ACDC).
        specials: Special tokens around the text: as the tokenizer adds them, always (on), never (off), or only those
            whose names the text itself holds (in-text).
        top: Largest cells, senders or edges per table.
        save_to: Keep finished rows of the sweep in this file; the same command goes on from it.
        html: Write a page that opens in a browser, with pictures.
        json: Write everything as JSON, see docs/results-json.md.
        seed: Of the drawn pairs and of the sample that --edges checks.
    """
    from rich.console import Console

    from glassformer.analysis.circuits import EdgeAttribution
    from glassformer.config import require
    from glassformer.render.terminal import largest

    require(top >= 1, f"--top must be at least 1, found {top}.")
    require(edges is None or edges >= 1, f"--edges must be at least 1, found {edges}.")
    require(not by or bool(sites), "--by says how --sites are cut: give --sites too.")
    further = bool(paths) or edges is not None or prune is not None
    sweeps = bool(sites) or not further
    require(sweeps or save_to is None, "--save-to is for sweeps over sites: give --sites too.")
    require(save_to is None or direction != "both", "--save-to holds one sweep: give one --direction.")
    check(html, json, save_to)
    loaded = model_of(model, specials)
    asked = prompts_of(
        loaded, pairs=pairs, task=task, n=n, seed=seed, fitting=fitting, clean=clean, corrupt=corrupt, answer=answer,
        wrong=wrong, target=target,
    )  # fmt: skip
    metrics = [_metric(loaded, name, asked) for name in dict.fromkeys(metric) or ("logit-difference",)]
    found = []
    if sweeps:
        ways = ("denoising", "noising") if direction == "both" else (direction,)
        found += [_swept(loaded, asked, metrics, sites or SITES, by, way, save_to) for way in ways]
    if further:
        found += _further(loaded, asked, metrics[0], paths, edges, prune, seed)
    console = Console()
    reading = asked.reading(loaded)
    console.print(_heading(loaded, asked), reading.shown())
    for result in found:
        # estimates are shown beside what they are checked against
        if not isinstance(result, EdgeAttribution):
            console.print()
            console.print(largest(result, top))
    given: dict[str, Any] = {"prompts": asked.name, "n": asked.n, "metric": [m.name for m in metrics], "seed": seed}
    given |= {"sites": list(sites or SITES)} if sweeps else {}
    deliver("patch", loaded, given, found, html, json, reading)


def _swept(
    model: Any, asked: Prompts, metrics: list[Any], sites: tuple[str, ...], by: tuple[str, ...], way: Any,
    save_to: Path | None,
) -> Any:  # fmt: skip
    from glassformer import analysis

    cells = [analysis.causal.Cells(name, by or None) for name in sites]
    with progress(way) as report:
        return analysis.interventions.patch(
            model, asked.clean, asked.corrupt, metrics, cells, direction=way, target=asked.target, labels=asked.labels,
            report=report, save_to=save_to,
        )  # fmt: skip


def _further(
    model: Any, asked: Prompts, metric: Any, paths: tuple[str, ...], edges: int | None,
    prune: float | None, seed: int,
) -> list[Any]:  # fmt: skip
    """Ask about paths, edges and circuits, in this order."""
    from glassformer import analysis

    found: list[Any] = []
    runs = {"target": asked.target}
    if paths:
        with progress("paths") as report:
            found.append(
                analysis.circuits.path_patching(
                    model, asked.clean, asked.corrupt, metric, receivers=paths, report=report, **runs
                )
            )
    if edges is not None:
        with progress("edges") as report:
            estimated = analysis.circuits.attribute_edges(model, asked.clean, asked.corrupt, metric, **runs)
            found += [estimated, estimated.verified(edges, seed=seed, report=report)]
    if prune is not None:
        with progress("pruning") as report:
            found.append(
                analysis.circuits.acdc(
                    model, asked.clean, asked.corrupt, metric, threshold=prune, report=report, **runs
                )
            )
    return found


def _metric(model: Any, name: str, asked: Prompts) -> Any:
    from glassformer import analysis
    from glassformer.analysis import sweep as interventions

    if name == "kl":
        return interventions.kl_divergence(analysis.run(model, asked.clean, asked.target), pos=asked.pos)
    if name == "logit-difference":
        return interventions.logit_difference(asked.answer, asked.wrong, pos=asked.pos)
    known = {
        "logit": interventions.logit, "probability": interventions.probability,
        "log-probability": interventions.log_probability,
        "rank": interventions.answer_rank,
    }  # fmt: skip
    return known[name](asked.answer, pos=asked.pos)


def _heading(model: Any, asked: Prompts) -> Any:
    from rich.text import Text

    from glassformer.render.tables import STRONG

    return Text.assemble((model.name, STRONG), f"  {asked.n} pair{'s' * (asked.n != 1)} of prompts: {asked.name}")
