"""One process of the sweeps benchmark: `python sweep_side.py SIDE TASK SHAPE OUT [--threads 1 2]`.

SIDE is `glassformer`, `transformer_lens` or `nnsight`; the file runs in the environment of either and imports nothing
of the others. Weights are random and the same everywhere. First comes one call whose growth of memory and values are
kept, then the task takes turns with plain PyTorch. OUT gets a dictionary, saved by torch; what it has already is kept.

A row of a peer's sweep costs what any other costs, so peers run a sample of rows, and the time of a sweep is that of
its clean run plus that of the sample times rows / sample. Ours runs all rows: they share work.
"""

import argparse
import ctypes
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from circuit_side import memory_of
from glassformer.bench.paired import Timing, compare_timed
from sweep_models import SHAPES, Shape, Weights, draw, forward, glassformer_model, hooked_model, huggingface_model

RIGHT, WRONG = 17, 23  # the answers, as token ids
BASE_SECONDS = 0.6  # of forward passes between two readings of the clock


@dataclass(frozen=True)
class Task:
    """What is computed: `kind` of sweep or reading, on `batch` prompts of `length` tokens."""

    kind: str
    length: int
    batch: int = 1

    def rows(self, shape: Shape) -> int:
        layers, length = shape.n_layers, self.length
        sizes = {"resid": layers * length, "z": layers * shape.n_heads, "blocks": 3 * layers * length}
        return sizes.get(self.kind, 1)


TASKS = {
    "resid-16": Task("resid", 16), "resid-64": Task("resid", 64), "z-16": Task("z", 16), "z-64": Task("z", 64),
    "blocks-16": Task("blocks", 16), "lens-64": Task("lens", 64), "dla-8x64": Task("dla", 64, 8),
}  # fmt: skip


@dataclass
class Job:
    """What a side does.

    Args:
        prepare: What a sweep needs of the clean prompt, timed with it; once and untimed for what is no sweep.
        run: Of that and of row numbers: a number per row, or for what is no sweep a tensor.
        sample: How many rows are timed; all by default.
        notes: How it was done.
    """

    prepare: Callable[[], Any]
    run: Callable[[Any, Sequence[int]], Tensor]
    sample: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def prompts(task: Task, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return clean and corrupt ids, `batch pos`."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(shape.vocab, (2, task.batch, task.length), generator=generator)
    return drawn[0], drawn[1]


def difference(logits: Tensor) -> Tensor:
    """Return the metric, a number per row of the batch."""
    return logits[:, -1, RIGHT] - logits[:, -1, WRONG]


# ---- the sides: each returns what it does for a task


def glassformer_side(task: Task, shape: Shape, w: Weights) -> Job:
    from glassformer.analysis import sweep as interventions
    from glassformer.trace import At, Set

    model, (clean, corrupt) = glassformer_model(shape, w), prompts(task, shape)
    if task.kind in ("lens", "dla"):
        return _reading(model, task, clean)
    layers, positions, heads = range(shape.n_layers), range(task.length), range(shape.n_heads)

    def run(donor: Any, _: Sequence[int]) -> Tensor:
        def patch(layer: int, site: str, **where: int) -> list[Set]:
            return [Set(f"blocks.{layer}.{site}", donor, at=At(**where))]

        if task.kind == "z":
            plan = interventions.grid(lambda layer, head: patch(layer, "attn.z", head=head), layer=layers, head=heads)
        else:
            sites = ["resid_pre"] if task.kind == "resid" else ["resid_pre", "attn.out", "mlp.out"]
            plan = interventions.grid(
                lambda site, layer, pos: patch(layer, site, pos=pos), site=sites, layer=layers, pos=positions
            )  # fmt: skip
        found = interventions.sweep(model, corrupt, plan, interventions.logit_difference(RIGHT, WRONG))
        job.notes |= {"work": found.work, "passes": found.passes}
        return found.values.values.flatten()

    job = Job(lambda: interventions.Donor(clean), run)
    return job


def _reading(model: Any, task: Task, ids: Tensor) -> Job:
    """Return the lens, or direct effects, of a run that is there already."""
    from glassformer import run
    from glassformer.analysis.attribution import direct_logit_attribution
    from glassformer.analysis.lens import lens_grid
    from glassformer.analysis.cards import card_of

    if task.kind == "lens":
        sites = [name for name in card_of(lens_grid).reads(model) if not name.endswith("resid_mid")]

        def lens(found: Any, _: Sequence[int]) -> Tensor:
            top = lens_grid(found, sites=sites, measures=("top",), k=5).top
            assert top is not None
            return top.values

        return Job(lambda: run(model, ids, read=sites), lens)

    def effects(found: Any, _: Sequence[int]) -> Tensor:
        split = direct_logit_attribution(found, answer=RIGHT, against=WRONG, position=None, row=None)
        heads = [i for i, part in enumerate(split.components) if part.kind == "head"]
        return split.contributions.values[..., heads].permute(2, 0, 1)

    return Job(lambda: run(model, ids, read=[direct_logit_attribution]), effects)


def transformer_lens_side(task: Task, shape: Shape, w: Weights) -> Job:
    import pandas  # pyright: ignore[reportMissingImports]
    from transformer_lens import patching  # pyright: ignore[reportMissingImports]

    patching.tqdm = lambda items: items
    folded = task.kind == "dla"
    if version("transformer_lens").split()[1] < "4":
        model = hooked_model(shape, w, folded=folded)
    else:
        from transformer_lens.model_bridge.sources import (  # pyright: ignore[reportMissingImports]
            build_bridge_from_module,
        )

        inner = huggingface_model(shape, w, folded=folded)
        model = build_bridge_from_module(inner, "GPT2LMHeadModel", hf_config=inner.config).eval()
    clean, corrupt = prompts(task, shape)

    def cache() -> Any:
        return model.run_with_cache(clean)[1]

    if task.kind == "lens":

        def lens(cache: Any, _: Sequence[int]) -> Tensor:
            stream = cache.accumulated_resid(apply_ln=True)
            return (stream @ model.W_U + model.b_U).topk(5, -1).indices

        return Job(cache, lens)
    if task.kind == "dla":

        def effects(cache: Any, _: Sequence[int]) -> Tensor:
            # what the cache was given by an earlier call is made anew
            for name in [name for name in cache.cache_dict if name.endswith("hook_result")]:
                del cache.cache_dict[name]
            return cache.logit_attrs(cache.stack_head_results(), torch.tensor(RIGHT), torch.tensor(WRONG))

        return Job(cache, effects)

    def metric(logits: Tensor) -> Tensor:
        return difference(logits)[0]

    layers, length = shape.n_layers, task.length
    second, size = ("head", shape.n_heads) if task.kind == "z" else ("pos", length)
    sweeps = {
        "resid": [patching.get_act_patch_resid_pre],
        "z": [patching.get_act_patch_attn_head_out_all_pos],
        # these three are what get_act_patch_block_every runs, one after the other
        "blocks": [patching.get_act_patch_resid_pre, patching.get_act_patch_attn_out, patching.get_act_patch_mlp_out],
    }[task.kind]

    def run(cache: Any, rows: Sequence[int]) -> Tensor:
        found = dict[int, float]()
        for i, sweep in enumerate(sweeps):
            own = [row for row in rows if row // (layers * size) == i]
            if not own:
                continue
            table = pandas.DataFrame([divmod(row % (layers * size), size) for row in own], columns=["layer", second])
            values = sweep(model, corrupt, cache, metric, index_axis_names=None, index_df=table)
            found |= dict(zip(own, values.tolist()))
        return torch.tensor([found[row] for row in rows])

    return Job(cache, run, sample=12 if length < 64 else 6)


def nnsight_side(task: Task, shape: Shape, w: Weights) -> Job:
    from nnsight.modeling.transformers import TransformersModel  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer, models  # pyright: ignore[reportMissingImports]
    from transformers import PreTrainedTokenizerFast  # pyright: ignore[reportMissingImports]

    # prompts are ids; a tokenizer there has to be
    words = Tokenizer(models.WordLevel({str(i): i for i in range(shape.vocab)}, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0")
    model: Any = TransformersModel(huggingface_model(shape, w), task="text-generation", tokenizer=tokenizer)
    clean, corrupt = prompts(task, shape)
    per_trace = 16

    def cache() -> Any:
        with model.trace(clean, logits_to_keep=1):
            streams = list().save()  # pyright: ignore[reportAttributeAccessIssue]
            for layer in range(shape.n_layers):
                streams.append(model.transformer.h[layer].input)
        return streams  # pyright: ignore[reportPossiblyUnboundVariable]

    def together(streams: Any, rows: Sequence[int]) -> list[Tensor]:
        # logits of the last position only, which no one is made to ask for
        with model.trace(logits_to_keep=1) as tracer:
            found = list().save()  # pyright: ignore[reportAttributeAccessIssue]
            for row in rows:
                layer, pos = divmod(row, task.length)
                with tracer.invoke(corrupt):
                    model.transformer.h[layer].input[:, pos] = streams[layer][:, pos]
                    found.append(difference(model.lm_head.output)[0])
        return found  # pyright: ignore[reportPossiblyUnboundVariable]

    def run(streams: Any, rows: Sequence[int]) -> Tensor:
        groups = [rows[i : i + per_trace] for i in range(0, len(rows), per_trace)]
        return torch.stack([value for group in groups for value in together(streams, group)])

    return Job(cache, run, sample=3 * per_trace if task.length < 64 else per_trace, notes={"rows per trace": per_trace})


SIDES = {"glassformer": glassformer_side, "transformer_lens": transformer_lens_side, "nnsight": nnsight_side}
PACKAGES = {"transformer_lens": "transformer-lens"}


def version(side: str) -> str:
    from importlib.metadata import version as installed

    return f"{side} {installed(PACKAGES.get(side, side))}"


# ---- measuring


def timed(run: Callable[[], object]) -> Timing:
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return Timing(time.process_time() - cpu, time.perf_counter() - wall)


def measure(job: Job, rows: Sequence[int], count: int, base: Callable[[], object], rounds: int, seconds: float) -> Any:
    """Return the comparison of the whole task with one forward pass."""
    ready = None if count > 1 else job.prepare()
    passes = max(1, round(BASE_SECONDS / max(timed(base).cpu, 1e-9)))

    def once() -> Timing:
        if ready is not None:
            return timed(lambda: job.run(ready, rows))
        kept: list[Any] = []
        first = timed(lambda: kept.append(job.prepare()))
        rest = timed(lambda: job.run(kept[0], rows))
        return Timing(*(a + b * count / len(rows) for a, b in zip(first, rest)))

    def several() -> Timing:
        taken = timed(lambda: [base() for _ in range(passes)])
        return Timing(*(t / passes for t in taken))

    return asdict(compare_timed(once, several, rounds=rounds, seconds=seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time of a case beyond five rounds")
    parser.add_argument("--all-rows", action="store_true", help="let a peer run every row in the first call")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    task, shape = TASKS[asked.task], SHAPES[asked.shape]
    count, w = task.rows(shape), draw(shape)
    found: dict[str, Any] = torch.load(asked.out) if asked.out.exists() else {}
    with torch.no_grad():
        if "values" not in found:
            # what a first call loads is no part of what the computation needs
            tiny = SIDES[asked.side](task, SHAPES["tiny"], draw(SHAPES["tiny"]))
            tiny.run(tiny.prepare(), range(1))
        job = SIDES[asked.side](task, shape, w)
        sample = count if job.sample is None else min(job.sample, count)
        rows = sorted(random.Random(0).sample(range(count), sample))
        if "values" not in found:
            first = list(range(count)) if asked.all_rows else rows
            # what was freed but kept for later would hide as much of what is asked for now
            ctypes.CDLL(None).malloc_trim(0)
            if count > 1:
                values, grown = memory_of(lambda: job.run(job.prepare(), first))
            else:
                ready = job.prepare()
                ctypes.CDLL(None).malloc_trim(0)
                values, grown = memory_of(lambda: job.run(ready, first))
            found = {"version": version(asked.side), "torch": str(torch.__version__), "count": count, "rows": rows}
            found |= {"first": first, "values": values, "bytes": grown, "notes": job.notes, "times": {}}
            torch.save(found, asked.out)
        else:
            job.run(job.prepare(), rows[:1])
        _, corrupt = prompts(task, shape)
        for threads in (n for n in asked.threads if n not in found["times"]):
            torch.set_num_threads(threads)
            base = lambda: forward(w, shape, corrupt)  # noqa: E731
            measured = measure(job, rows, count, base, asked.rounds, asked.seconds)
            found["times"][threads] = json.loads(json.dumps(measured)) | {"load": os.getloadavg()}
            torch.save(found, asked.out)


if __name__ == "__main__":
    sys.exit(main())
