"""Fitting a tuned lens to a frozen model, and how far any lens is from what the model says in the end.

    minimise over M, c at each place:   mean over positions of  KL(final || lens(x + x M + c))

Every place is fitted by itself. The closed form to start from is ridge regression of what is still missing, x_end - x,
on x, each position weighing as the final norm will weigh it.

Source: Belrose et al. 2023, "Eliciting Latent Predictions from Transformers with the Tuned Lens", section 2 and the
authors' settings: stochastic gradient descent with Nesterov momentum 0.9, rate 1 (1 - 0.9), weight decay 1e-3, falling
to zero over 250 steps. Differs: a step takes thousands of tokens by default, not a quarter of a million.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.activations import ActivationStore, StoredPass
from glassformer.analysis.lens._tuned import TunedLens, last_site, translated
from glassformer.analysis.lens.read_out import read_logits
from glassformer.analysis.prepare import prepare
from glassformer.analysis.question import question
from glassformer.arguments import Amount, Count, Natural, Several, Share
from glassformer.errors import AnalysisUnavailable
from glassformer.fitting import Descent
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.models.evaluation import evaluating, require_gradients
from glassformer.numerics import decompositions
from glassformer.numerics.distributions import kl_bits
from glassformer.provenance import Binding
from glassformer.trace import Tape

Progress = Callable[[int, int], None]
# places read through the unembedding at once, when divergences are measured
_CHUNK = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class LensDivergence(Result):
    """How far lenses are from the model's own distributions.

    Args:
        kl_bits: KL(final || lens), mean over positions, `lens site`; lenses are `logit` and `tuned`.
        spread: Standard error of the mean over batches, same axes; NaN with fewer than two.
        positions: How many positions were read.
    """

    HEADLINE = ("kl_bits",)

    kl_bits: Labelled
    spread: Labelled
    positions: int


@question("Which maps make early layers readable?", of="texts")
def fit_tuned_lens(
    model: ModelLike,
    batches: Sequence[Any] | ActivationStore,
    *,
    sites: Several[str] | None = None,
    start: Literal["zero", "ridge"] = "zero",
    steps: Natural = 250,
    tokens: Count = 2048,
    lr: Amount = 1.0,
    momentum: Share = 0.9,
    weight_decay: Amount = 1e-3,
    ridge: Amount = 1e-3,
    seed: int = 0,
    report: Progress | None = None,
) -> TunedLens:
    """Fit a translator for each place of the stream; the model does not change.

    Args:
        model: One of ours.
        batches: Training texts, each whatever `run` takes: ids `batch pos`, a `Batch`, a text. Steps go round through
            them in random order; keep others to measure on. Or a store of their activations, or some of its passes,
            `store.passes[:-10]`, which holds the places and the end of the stream: the model's blocks do not run.
        sites: Places to fit; what enters each block by default.
        start: `zero`, the logit lens; `ridge`, the closed form, for which all batches are read once.
        steps: Gradient steps; 0 leaves the start.
        tokens: Positions drawn from a batch in each step.
        lr: Learning rate over (1 - momentum); it falls linearly to zero.
        momentum: Nesterov's.
        weight_decay: Pull of the weights towards zero, which is the logit lens.
        ridge: Penalty of the closed form, as a share of the stream's mean variance.
        seed: Source of the order of batches and of the positions drawn.
        report: Called with (done, total), steps and batches of the start counted alike.

    Raises:
        AnalysisUnavailable: The model is not one of ours or has no blocks, or there is nothing to fit to.
        UnknownSite: A site is no place of the stream, or is not in the store.
        CheckpointError: The store is of another model, or damaged.
        TrainingDiverged: A divergence or its gradient is not finite.
    """
    lens = TunedLens.identity(model, sites)
    require_gradients(model, "fit_tuned_lens")
    batches = batches.passes if isinstance(batches, ActivationStore) else batches
    if not len(batches):
        raise AnalysisUnavailable("fit_tuned_lens: there are no batches to fit to.")
    total = steps + (len(batches) if start == "ridge" else 0)
    tell: Progress = report or (lambda done, total: None)
    done = 0
    if start == "ridge":
        statistics = _Statistics(lens)
        for batch in batches:
            statistics.add(model, *_streams(model, batch, lens.sites))
            done += 1
            tell(done, total)
        lens = statistics.solve(ridge)
    # a parameter for each place, so that logits of one place are all that is held
    maps = [(m.clone().requires_grad_(), c.clone().requires_grad_()) for m, c in zip(lens.weight, lens.bias)]
    parameters = [parameter for pair in maps for parameter in pair]
    optimizer = torch.optim.SGD(
        parameters, lr * (1 - momentum), momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0
    )
    random = torch.Generator().manual_seed(seed)
    order, seen = _round(batches, steps, random), 0

    def losses(step: int) -> Iterator[Tensor]:
        nonlocal seen
        streams, last = _streams(model, next(order), lens.sites)
        drawn = torch.randperm(len(last), generator=random)[:tokens].to(last.device)
        seen += len(drawn)
        yield from _divergences(model, maps, streams[:, drawn], last[drawn])

    descent = Descent(
        parameters, optimizer, losses, rate=lambda step: lr * (1 - momentum) * (1 - (step - 1) / steps), steps=steps,
        name="fit_tuned_lens", way_on=lambda: f"Fit it with a smaller lr (now {lr:g}).",
    )  # fmt: skip
    for update in descent:
        tell(done + update.step, total)
    facts = {
        "start": start, "steps": steps, "tokens": seen, "lr": lr, "momentum": momentum, "weight_decay": weight_decay,
        "ridge": ridge if start == "ridge" else None, "seed": seed, "batches": len(batches),
        "provenance": _read(model, batches, seed),
    }  # fmt: skip
    weight, bias = (torch.stack([parameter.detach() for parameter in kind]) for kind in zip(*maps))
    return dataclasses.replace(lens, weight=weight, bias=bias, facts=facts)


@question("How far is each lens from what the model says?", of="texts")
def lens_divergence(
    model: ModelLike,
    lens: TunedLens,
    batches: Several[Any] | ActivationStore,
    *,
    report: Progress | None = None,
) -> LensDivergence:
    """Measure how far the logit lens and a tuned lens are from the model, on texts the lens was not fitted to.

    Args:
        model: The model the lens was fitted for.
        lens: The tuned lens.
        batches: Held-out texts, as for `fit_tuned_lens`.

    Raises:
        CheckpointError: The lens, or the store, belongs to another model.
    """
    require_model(model, "lens_divergence")
    if not isinstance(lens, TunedLens):
        raise AnalysisUnavailable(
            f"lens_divergence compares a tuned lens, and was given {type(lens).__name__}.\n"
            "    Fit one: lens.fit_tuned_lens(model, batches)."
        )
    translate = lens.translator(model)
    names = lens.reads(model)
    batches = batches.passes if isinstance(batches, ActivationStore) else batches
    means, counts = [], []
    for i, batch in enumerate(batches):
        streams, last = _streams(model, batch, names)
        sums = torch.zeros(2, len(names), dtype=torch.float64)
        with torch.no_grad():
            for rows in torch.arange(len(last), device=last.device).split(_CHUNK):
                final = _log_probs(model, last[rows])
                for j, name in enumerate(names):
                    x = streams[j, rows]
                    for k, read in enumerate((x, translate(name, x))):
                        sums[k, j] += kl_bits(final, _log_probs(model, read)).double().sum().cpu()
        means.append(sums / len(last))
        counts.append(len(last))
        if report is not None:
            report(i + 1, len(batches))
    weight, each = torch.tensor(counts, dtype=torch.float64), torch.stack(means)
    mean = (each * weight[:, None, None]).sum(0) / weight.sum()
    error = ((each - mean) * weight[:, None, None]).square().sum(0).sqrt() / weight.sum()
    n = len(counts)
    spread = error * math.sqrt(n / (n - 1)) if n > 1 else torch.full_like(mean, torch.nan)
    coords = {"lens": ["logit", "tuned"], "site": names}
    axes = ("lens", "site")
    return LensDivergence(Labelled(mean, axes, coords), Labelled(spread, axes, coords), sum(counts))


class _Statistics:
    """Weighted sums from which ridge regression is solved, so that no stream is kept."""

    def __init__(self, lens: TunedLens) -> None:
        n, d_model = lens.bias.shape
        wide = lens.bias.new_zeros(0, dtype=torch.float64)
        self.lens, self.weight = lens, wide.new_zeros(())
        self.x, self.missing = wide.new_zeros(n, d_model), wide.new_zeros(n, d_model)
        self.square, self.product = (wide.new_zeros(n, d_model, d_model) for _ in range(2))

    def add(self, model: ModelLike, streams: Float[Tensor, "site n d_model"], last: Float[Tensor, "n d_model"]) -> None:
        final = model.output_stack.final
        streams, last = streams.double(), last.double()
        weight = torch.ones_like(last[:, 0]) if final.identity else final.scale(last) ** -2
        weighted, missing = streams * weight[:, None], last - streams
        self.weight += weight.sum()
        self.x += weighted.sum(1)
        self.missing += (missing * weight[:, None]).sum(1)
        self.square += weighted.mT @ streams
        self.product += weighted.mT @ missing

    def solve(self, ridge: float) -> TunedLens:
        x, missing = self.x / self.weight, self.missing / self.weight
        variance = self.square / self.weight - x[:, :, None] * x[:, None]
        together = self.product / self.weight - x[:, :, None] * missing[:, None]
        unit = variance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        weight = decompositions.solve(variance + ridge * unit * identity, together)
        bias = missing - torch.einsum("sd,sde->se", x, weight)
        return dataclasses.replace(self.lens, weight=weight.to(self.lens.weight), bias=bias.to(self.lens.bias))


def _divergences(
    model: ModelLike,
    maps: Sequence[tuple[Tensor, Tensor]],
    streams: Float[Tensor, "site n d_model"],
    last: Float[Tensor, "n d_model"],
) -> Iterator[Float[Tensor, ""]]:
    """Yield KL(final || lens) in nats of each place, mean over positions."""
    with torch.no_grad():
        final = _log_probs(model, last)
        probabilities = final.exp()
    for x, (m, c) in zip(streams, maps):
        yield (probabilities * (final - _log_probs(model, translated(x, m, c)))).sum(-1).mean()


def _log_probs(model: ModelLike, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n vocab"]:
    logits = read_logits(model, x)
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def _streams(
    model: ModelLike, batch: Any, sites: Sequence[str]
) -> tuple[Float[Tensor, "site n d_model"], Float[Tensor, "n d_model"]]:
    """Return the streams at some sites and at the end, at every position that is not padding, or that is stored."""
    last = last_site(model)
    if isinstance(batch, StoredPass):
        batch.store.check(model)
        like = model.unembed.stored
        stored = [batch.values(name).to(like.device, like.dtype) for name in (*sites, last)]
        return torch.stack(stored[:-1]), stored[-1]
    tape = Tape(model, [*dict.fromkeys((*sites, last))], logits=False)
    with evaluating(model), torch.no_grad():
        given = prepare(model, batch, None)
        model(*given.args, **given.kwargs, tape=tape)
    real = torch.ones(given.shape, dtype=torch.bool, device=given.device)
    if given.lengths is not None:
        real = torch.arange(given.shape[1], device=given.device) < given.lengths[:, None]
    return torch.stack([tape.values[name][real] for name in sites]), tape.values[last][real]


def _read(model: ModelLike, batches: Sequence[Any], seed: int) -> dict[str, Any]:
    """Return what a lens was fitted on: texts as they were given, or what the passes of a store read."""
    stored = [batch.store for batch in batches if isinstance(batch, StoredPass)]
    if not stored:
        return Binding("fit_tuned_lens", model, batches, seed).said().to_dict()
    return dataclasses.replace(stored[0].provenance, analysis="fit_tuned_lens", seed=seed).to_dict()


def _round(batches: Sequence[Any], steps: int, random: torch.Generator) -> Iterator[Any]:
    """Yield batches in random order, all of them before any comes again."""
    order: list[int] = []
    for _ in range(steps):
        order = order or torch.randperm(len(batches), generator=random).tolist()
        yield batches[order.pop()]
