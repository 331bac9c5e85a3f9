"""Pictures and numbers of pages on theory that show what studies of trained models found: spheres, and what can go."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch

import glassformer as gf
from glassformer.figures import Panel
from glassformer.labelled import Labelled
from glassformer.models import normalised_decoder
from glassformer.studies import normalised_transformer, redundancy
from glassformer.study.shelf import shipped

View = tuple[Sequence[Panel], dict[str, str]]
PERCENT = (0, *redundancy.PERCENT)


def report(study: str) -> dict[str, Any]:
    found = shipped(study)
    assert found is not None, "it comes with the package"
    return found


def recorded(study: str, axis: str) -> dict[str, dict[str, float]]:
    """What the report that comes with the package measured of each case, the mean of its seeds."""
    runs: dict[str, list[dict[str, float]]] = {}
    for run in report(study)["runs"]:
        runs.setdefault(run["point"][axis], []).append(run["measures"])
    return {case: {name: fmean(one[name] for one in seeds) for name in seeds[0]} for case, seeds in runs.items()}


def on_the_sphere() -> View:
    """Loss by steps of the normalised transformer and its baseline, and of halves that are joined."""
    name = normalised_transformer.STUDY.name
    found, steps = recorded(name, "model"), report(name)["settings"]["steps"]
    kinds = {normalised_transformer.NGPT: "normalised", normalised_transformer.BASELINE: "baseline"}
    taken = {round(share * steps): f"loss_{name}" for name, share in normalised_transformer.BUDGETS.items()}
    taken |= {steps: "loss"}
    of_steps = torch.tensor([[found[kind][taken[at]] for at in sorted(taken)] for kind in kinds])
    joined = {"alone": "loss_alone", "one rotation": "loss_stitched", "by tokens": "loss_by_tokens",
              "at random": "loss_random"}  # fmt: skip
    of_halves = {
        f"{kinds[kind]}, {how}": found[kind][measure] for how, measure in joined.items() for kind in kinds
    }  # fmt: skip

    sphere = normalised_decoder(vocab_size=50, d_model=64, n_layers=4, n_heads=4, d_mlp=172).build(0).double().eval()
    ids = torch.randint(50, (1, 64), generator=torch.Generator().manual_seed(0)).tolist()
    run: Any = gf.run(sphere, ids, read=["blocks.*.resid_*"])
    lengths = torch.stack([run[name].values.norm(dim=-1) for name in run])
    first, last = (run[f"blocks.{at}"].values for at in ("0.resid_pre", "3.resid_post"))
    return [
        Panel("held-out loss by steps", Labelled(of_steps, ("model", "step"),
                                                 {"model": [*kinds.values()], "step": sorted(taken)})),
        Panel("loss of halves of two seeds, joined", Labelled(torch.tensor([*of_halves.values()]), ("halves",),
                                                              {"halves": [*of_halves]})),
    ], {
        "a stream of four blocks that are not trained: largest difference of its length from 1": (
            f"{float((lengths - 1).abs().max()):.1g}"
        ),
        "a stream of four blocks that are not trained: mean cosine of what goes in and what comes out": (
            f"{float((first * last).sum(-1).mean()):.2f}"
        ),
        "loss of both at the end, nats": ", ".join(
            f"{found[kind]['loss']:.3f} ({name})" for kind, name in kinds.items()
        ),
        "share of what a random rotation loses that one rotation loses, too": ", ".join(
            f"{found[kind]['stitched_share']:.2f} ({name})" for kind, name in kinds.items()
        ),
    }  # fmt: skip


def redundant() -> View:
    """Loss without shares of all heads, and of models that are smaller in other ways."""
    found = recorded(redundancy.STUDY.name, "way")
    whole, pruned = found[redundancy.WHOLE]["loss"], found[redundancy.PRUNED]
    of_heads = torch.tensor(
        [[whole, *(pruned[f"{order} {percent}"] for percent in redundancy.PERCENT)] for order in
         ("by sweep", "at random")]
    )  # fmt: skip
    ways = (redundancy.WHOLE, redundancy.SHARED, redundancy.LEFT_OUT, redundancy.DISTILLED, redundancy.TEXT,
            redundancy.DRAWN)  # fmt: skip
    of_ways = torch.tensor([found[way]["loss"] for way in ways])
    size = found[redundancy.WHOLE]["parameters"]
    return [
        Panel("loss by percent of heads left out", Labelled(of_heads, ("order", "amount"),
                                                            {"order": ["by sweep", "at random"],
                                                             "amount": list(PERCENT)})),
        Panel("loss of smaller models", Labelled(of_ways, ("way",), {"way": list(ways)})),
    ], {
        "loss of the whole model, nats": f"{whole:.3f}",
        "loss with half of its heads, by sweep and at random": f"{pruned['by sweep 50']:.2f}, "
        f"{pruned['at random 50']:.2f}",
        "share of the parameters that are left": ", ".join(
            f"{found[way]['parameters'] / size:.2f} ({way})" for way in ways[1:-1]
        ),
        "share of next tokens on which they agree with the whole model": ", ".join(
            f"{found[way]['agreement']:.2f} ({way})" for way in ways[1:]
        ),
        "loss of two blocks with one's weights, before and after 200 updates": (
            f"{found[redundancy.SHARED]['loss_before']:.2f}, {found[redundancy.SHARED]['loss']:.2f}"
        ),
    }  # fmt: skip


VIEWS: dict[str, Callable[[], View]] = {"normalised-transformer": on_the_sphere, "redundancy": redundant}
