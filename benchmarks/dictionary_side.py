"""One process of the dictionaries benchmark: `python dictionary_side.py MODE KIND SHAPE [--side SIDE]`.

It runs in an environment that has sae-lens, with this tree's package on its path. MODE `time` trains by turns with
either library in this process; `memory` trains once with one of them. Both begin with the same dictionary and read the
same rows in the same order; rates, clipping and penalties are equal, and no feature counts as dead. Where ours keeps
decoder rows at norm one, theirs are kept there too, so that both descend the same losses; the time that takes counts as
no time of theirs. Thresholds of JumpReLU are learned by their logarithm here, as published, and as they are there, so
that its last losses differ a little. Prints JSON.
"""

import argparse
import ctypes
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from torch import Tensor

from circuit_side import memory_of
from glassformer.analysis.dictionaries import (
    AutoencoderConfig,
    DictionaryStep,
    JumpRelu,
    Relu,
    SparseAutoencoder,
    TopK,
    train_dictionary,
)
from glassformer.bench.paired import Timing, compare_timed, uncollected
from glassformer.data.batch import generator

LR, SEED, BATCHES = 1e-3, 0, 8
NEVER = 2**31 - 1  # rows after which a feature counts as dead
WARM_UP, STEPS = 2, 8  # steps of a training that are not timed, and those that are


@dataclass(frozen=True)
class Shape:
    d_in: int
    n_features: int
    batch_size: int = 1024
    k: int = 32


SHAPES = {"tiny": Shape(16, 64, 32, 4), "gpt-4l": Shape(256, 2048), "gpt2-small": Shape(768, 6144)}
KINDS = ("relu", "topk", "topk, sparse there", "jumprelu")


class Trained(NamedTuple):
    """Seconds of a step, and the loss of the first one and of the last."""

    timing: Timing
    first: float
    last: float


def drawn(shape: Shape) -> Tensor:
    """Return rows that a few planted directions make up, of mean norm sqrt(d_in)."""
    draw = torch.Generator().manual_seed(SEED)
    directions = torch.randn(shape.n_features, shape.d_in, generator=draw)
    there = torch.rand(BATCHES * shape.batch_size, shape.n_features, generator=draw)
    rows = there.sub(1 - shape.k / shape.n_features).relu() @ directions
    return rows * (shape.d_in**0.5 / rows.norm(dim=-1).mean())


def config_of(kind: str, shape: Shape) -> AutoencoderConfig:
    sizes = shape.d_in, shape.n_features
    return {"relu": Relu(*sizes), "jumprelu": JumpRelu(*sizes)}.get(kind) or TopK(*sizes, k=shape.k)


def of_config(kind: str, shape: Shape) -> type[SparseAutoencoder]:
    return SparseAutoencoder.of_config[type(config_of(kind, shape))]


def glassformer_side(kind: str, shape: Shape, rows: Tensor) -> Trained:
    clocks, losses = dict[int, tuple[float, float]](), list[float]()

    def told(step: DictionaryStep) -> None:
        losses.append(step.loss)
        clocks[step.step] = time.process_time(), time.perf_counter()

    train_dictionary(
        rows, config_of(kind, shape), steps=WARM_UP + STEPS, batch_size=shape.batch_size, lr=LR, warm_up=0.0,
        decay=0.0, dead_after=NEVER, seed=SEED, report=told,
    )  # fmt: skip
    return Trained(between(clocks), losses[0], losses[-1])


def sae_lens_side(kind: str, shape: Shape, rows: Tensor) -> Trained:
    # lives in an environment of its own
    from sae_lens.config import SAETrainerConfig  # pyright: ignore[reportMissingImports]
    from sae_lens.training.sae_trainer import SAETrainer  # pyright: ignore[reportMissingImports]

    sae, steps = begun(kind, shape, rows), WARM_UP + STEPS
    config: Any = SAETrainerConfig(
        total_training_samples=steps * shape.batch_size, train_batch_size_samples=shape.batch_size, lr=LR, lr_end=LR,
        dead_feature_window=NEVER,
    )  # fmt: skip
    trainer: Any = SAETrainer(config, sae, batches(rows, shape.batch_size))
    clocks, losses = dict[int, tuple[float, float]](), list[float]()
    unit_rows = UnitRows(sae.W_dec, trainer.optimizer) if of_config(kind, shape).unit_rows else None
    for step in range(1, steps + 1):
        trainer.maybe_reset_sparsity()
        losses.append(float(trainer.step(next(trainer.data_provider)).loss.detach()))
        trainer.n_training_steps += 1
        added = (0.0, 0.0) if unit_rows is None else unit_rows.seconds
        clocks[step] = time.process_time() - added[0], time.perf_counter() - added[1]
    return Trained(between(clocks), losses[0], losses[-1])


class UnitRows:
    """Decoder rows that an optimizer keeps at norm one: gradients along them are taken away, steps brought back.

    Args:
        rows: The decoder.
        optimizer: What changes them.
    """

    def __init__(self, rows: Tensor, optimizer: torch.optim.Optimizer) -> None:
        self.rows, self.seconds = rows, (0.0, 0.0)
        optimizer.register_step_pre_hook(lambda *_: self.add(self.project))
        optimizer.register_step_post_hook(lambda *_: self.add(self.normalise))

    @torch.no_grad()
    def add(self, work: Callable[[], None]) -> None:
        """Do some of it, and count its seconds, by both clocks, apart."""
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        self.seconds = self.seconds[0] + time.process_time() - cpu, self.seconds[1] + time.perf_counter() - wall

    def project(self) -> None:
        assert self.rows.grad is not None
        self.rows.grad -= (self.rows.grad * self.rows).sum(-1, keepdim=True) * self.rows

    def normalise(self) -> None:
        self.rows /= self.rows.norm(dim=-1, keepdim=True)


def between(clocks: dict[int, tuple[float, float]]) -> Timing:
    """Return the seconds of a step, from both clocks as they were after each: the first steps are not counted."""
    (cpu, wall), (first_cpu, first_wall) = clocks[WARM_UP + STEPS], clocks[WARM_UP]
    return Timing((cpu - first_cpu) / STEPS, (wall - first_wall) / STEPS)


def begun(kind: str, shape: Shape, rows: Tensor) -> Any:
    """Return a dictionary of sae-lens that begins as ours does: rows of norm one, the encoder their transpose."""
    from sae_lens import (  # pyright: ignore[reportMissingImports]
        JumpReLUTrainingSAE,
        JumpReLUTrainingSAEConfig,
        StandardTrainingSAE,
        StandardTrainingSAEConfig,
        TopKTrainingSAE,
        TopKTrainingSAEConfig,
    )

    config, sizes = config_of(kind, shape), {"d_in": shape.d_in, "d_sae": shape.n_features}
    if isinstance(config, Relu):
        sae: Any = StandardTrainingSAE(StandardTrainingSAEConfig(**sizes, l1_coefficient=config.l1))
    elif isinstance(config, JumpRelu):
        sae = JumpReLUTrainingSAE(
            JumpReLUTrainingSAEConfig(
                **sizes, l0_coefficient=config.l0, jumprelu_bandwidth=config.bandwidth,
                jumprelu_init_threshold=config.threshold,
            )
        )  # fmt: skip
    else:
        sae = TopKTrainingSAE(
            TopKTrainingSAEConfig(
                **sizes, k=shape.k, aux_loss_coefficient=1 / 32, rescale_acts_by_decoder_norm=False,
                use_sparse_activations=kind.endswith("sparse there"),
            )
        )  # fmt: skip
    ours = config.build()
    ours.draw(SEED, rows.mean(0))
    with torch.no_grad():
        for name in ("W_enc", "W_dec", "b_enc", "b_dec"):
            getattr(sae, name).copy_(getattr(ours, name))
    return sae


def batches(rows: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Yield the batches that a training of ours reads, in its order."""
    epoch = 0
    while True:
        order = torch.randperm(len(rows), generator=generator("rows", SEED, epoch))
        yield from (rows[places] for places in order.split(batch_size))
        epoch += 1


SIDES: dict[str, Callable[[str, Shape, Tensor], Trained]] = {
    "glassformer": glassformer_side,
    "sae_lens": sae_lens_side,
}


def timed_side(side: str, kind: str, shape: Shape, rows: Tensor) -> Timing:
    with uncollected():
        return SIDES[side](kind, shape, rows).timing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["time", "memory"])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--side", choices=SIDES, default="glassformer")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time, beyond five rounds")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kind, shape = asked.kind, SHAPES[asked.shape]
    rows = drawn(shape)
    found: dict[str, Any] = {"load": os.getloadavg(), "torch": str(torch.__version__)}
    if asked.mode == "memory":
        # what a first call loads is no part of what the computation needs
        SIDES[asked.side](kind, SHAPES["tiny"], drawn(SHAPES["tiny"]))
        ctypes.CDLL(None).malloc_trim(0)
        _, found["bytes"] = memory_of(lambda: SIDES[asked.side](kind, shape, rows))
    else:
        ours, theirs = (SIDES[side](kind, shape, rows) for side in SIDES)
        run = partial(timed_side, kind=kind, shape=shape, rows=rows)
        compared = compare_timed(partial(run, "glassformer"), partial(run, "sae_lens"), rounds=asked.rounds,
                                 seconds=asked.seconds)  # fmt: skip
        found |= {"comparison": asdict(compared), "peer": f"sae-lens {version('sae-lens')}"}
        found |= {"first_loss": [ours.first, theirs.first], "last_loss": [ours.last, theirs.last]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
