"""The normalised transformer beside its baseline: steps to equal loss, what matrices say of tokens, halves that fit.

Both are trained on the same rows at rates of a sweep, and each is taken at its best. Of the normalised one shorter
trainings at that rate say how many steps it needs for the loss at which the baseline ends.

What matrices say is read with vectors of length 1: how far they are from singular, and how near to one token what a
neuron writes lies, beside a random direction.

The lower half of one model and the upper half of another, of the next seed, are joined by an orthogonal map of the
stream between them. It is fitted to streams, or to nothing but the vectors that both have of the same tokens. The loss
of the two by themselves is the least to be had, that of a random orthogonal map what knows nothing of the other stream.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import glassformer as gf
from glassformer.data import Batch
from glassformer.models import Decoder
from glassformer.numerics.decompositions import qr, singular_values, svd
from glassformer.study import (
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Quantity,
    Scale,
    Study,
    above,
    below,
    value,
)
from glassformer.trace import Tape
from glassformer.training import TrainConfig, read_metrics
from glassformer.training.recipes import normalised

Kind = Literal["ngpt", "baseline"]
NGPT, BASELINE = "ngpt", "baseline"
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
BUDGETS = {"quarter": 0.25, "half": 0.5}  # of the steps
FITTED, TESTED = 16, 8  # batches that maps are fitted to, and that losses are measured on
DRAWN = 256  # random directions


def run(case: Case) -> Measures:
    kind: Kind = case["model"]
    rates, steps = RATES[: case["rates"]], case["steps"]
    losses = {rate: loss_of(case, kind, rate, steps) for rate in rates}
    best = min(losses, key=lambda rate: losses[rate])
    found = {"loss": losses[best], "rate": best}
    found |= {f"loss_{name}": loss_of(case, kind, best, max(int(share * steps), 1)) for name, share in BUDGETS.items()}
    lower, upper = (decoder(case, recipe(kind, best, steps), case.seed + further) for further in (0, 1))
    return found | spectra(lower) | {"nearness": nearness(lower, case.generator())} | stitched(case, lower, upper)


def recipe(kind: Kind, rate: float, steps: int) -> TrainConfig:
    """Return the recipe of a model at another rate, for so many steps."""
    whole = normalised(kind)
    return whole.replace(optim=whole.optim.replace(lr=rate), steps=steps, evaluate_every=steps, save_every=steps)


def loss_of(case: Case, kind: Kind, rate: float, steps: int) -> float:
    """Return the held-out loss at the end of training."""
    lines = read_metrics(case.train(recipe(kind, rate, steps)))
    return next(line["heldout_loss"] for line in reversed(lines) if "heldout_loss" in line)


def decoder(case: Case, config: TrainConfig, seed: int) -> Decoder:
    """Return the decoder of a seed, trained here or by another case."""
    assert case.trains is not None, "cases train where they are run by the engine"
    model = gf.load(case.trains(config.replace(seed=seed)))
    assert isinstance(model, Decoder), "the recipes are of decoders"
    return model.eval()


def spectra(model: Decoder) -> dict[str, float]:
    """Return the geometric means of condition numbers: of matrices of attention, of MLPs, and of the two of tokens."""
    groups: dict[str, list[Tensor]] = {"attention": [], "mlp": [], "tokens": []}
    for matrix in model.matrices():
        groups["mlp" if matrix.layer.attention is None else "attention"].append(matrix.values)
    groups["tokens"] = [model.embed.stored, model.unembed.stored]
    return {f"condition_{name}": math.exp(_mean_log_condition(found)) for name, found in groups.items()}


def _mean_log_condition(matrices: Sequence[Tensor]) -> float:
    spectrum = [singular_values(matrix.detach().double()) for matrix in matrices]
    return float(torch.stack([(found[0] / found[-1]).log() for found in spectrum]).mean())


def nearness(model: Decoder, generator: torch.Generator) -> float:
    """Return the mean cosine of what neurons write with the nearest token, less that of random directions."""
    final = model.output_stack.final
    tokens = F.normalize(final.transposed(model.unembed.weight.detach()), dim=-1)
    written = [m.values.detach().mT for m in model.matrices() if m.layer.attention is None and m.path == "output"]
    random = torch.randn(DRAWN, tokens.shape[-1], generator=generator)
    of_neurons, of_random = (_nearest(rows, tokens) for rows in (torch.cat(written), random))
    return float(of_neurons.mean() - of_random.mean())


def _nearest(rows: Float[Tensor, "row d_model"], tokens: Float[Tensor, "vocab d_model"]) -> Float[Tensor, " row"]:
    return (F.normalize(rows, dim=-1) @ tokens.T).amax(-1)


def stitched(case: Case, lower: Decoder, upper: Decoder) -> dict[str, float]:
    """Return losses of the lower half of one model under the upper half of another, and what bounds them."""
    data = normalised(case["model"]).data.build(lower.tokenizer)
    middle = len(lower.stack.blocks) // 2
    fitted = [data.batch(i) for i in range(FITTED)]
    tested = [data.batch(i, "heldout") for i in range(TESTED)]
    random, _ = qr(torch.randn(lower.config.d_model, lower.config.d_model, generator=case.generator()).double())
    below_it, above_it = ([streams(model, middle, batch) for batch in fitted] for model in (lower, upper))
    maps = {
        "stitched": orthogonal_map(torch.cat(below_it), torch.cat(above_it)),
        "by_tokens": orthogonal_map(*(torch.cat(_token_vectors(model)) for model in (lower, upper))),
        "random": random,
    }
    found = {
        name: _mean(loss_from(upper, middle, streams(lower, middle, b) @ turn.to(torch.float32), b) for b in tested)
        for name, turn in maps.items()
    }
    alone = _mean(loss_from(model, middle, streams(model, middle, b), b) for model in (lower, upper) for b in tested)
    shares = {f"{name}_share": (found[name] - alone) / (found["random"] - alone) for name in ("stitched", "by_tokens")}
    return {"loss_alone": alone} | {f"loss_{name}": loss for name, loss in found.items()} | shares


def streams(model: Decoder, layer: int, batch: Batch) -> Float[Tensor, "batch pos d_model"]:
    """Return the stream that enters a block."""
    name = f"blocks.{layer}.resid_pre"
    tape = Tape(model, [name], logits=False)
    with torch.no_grad():
        model.stream(batch.tokens, lengths=batch.lengths, documents=batch.documents, tape=tape)
    return tape.values[name]


def orthogonal_map(
    before: Float[Tensor, "*n d_model"], behind: Float[Tensor, "*n d_model"]
) -> Float[Tensor, "d_model d_model"]:
    """Return the orthogonal R that brings ``before R`` nearest to `behind`, in float64: Procrustes' problem."""
    u, _, v = svd(before.flatten(0, -2).double().mT @ behind.flatten(0, -2).double())
    return u @ v


def _token_vectors(model: Decoder) -> list[Float[Tensor, "vocab d_model"]]:
    """Return the vectors that a model reads tokens as, and those that it says them by, at length 1."""
    return [F.normalize(rows.detach(), dim=-1) for rows in (model.embed.weight, model.unembed.weight)]


def loss_from(model: Decoder, layer: int, stream: Float[Tensor, "batch pos d_model"], batch: Batch) -> float:
    """Return the mean loss of the blocks from a layer on, given the stream that enters it."""
    with torch.no_grad():
        logits = model.resume(layer, stream, lengths=batch.lengths, documents=batch.documents)
    losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
    counted = batch.weight.flatten()
    return float((losses * counted).sum() / counted.sum())


def _mean(numbers: Any) -> float:
    found = list(numbers)
    return sum(found) / len(found)


def of(kind: str, measure: str = "loss") -> Quantity:
    return value(measure, model=kind)


GUESSING = math.log(normalised("baseline").model.n_outputs)
LEARNED = (
    Condition(
        "The baseline has learned text: it loses two thirds of what guessing does at most", of(BASELINE),
        below(2 / 3 * GUESSING),
    ),
)  # fmt: skip

STUDY = Study(
    "normalised-transformer",
    paper='Loshchilov et al. 2024, "nGPT: Normalized Transformer with Representation Learning on the Hypersphere", '
    'arXiv 2410.01131; Dar et al. 2023, "Analyzing Transformers in Embedding Space", arXiv 2209.02535',
    question="Does a transformer on the sphere need fewer steps, and do its matrices and streams say more?",
    run=run,
    grid={"model": (NGPT, BASELINE)},
    scales={
        "smoke": Scale(1, {"steps": 4, "rates": 1}),
        "small": Scale(3, {"steps": 500, "rates": len(RATES)}),
        "full": Scale(5, {"steps": 4000, "rates": len(RATES)}),
    },
    measures={
        "loss": Measure("Held-out loss at the best rate", "nats"),
        "rate": Measure("The best rate of the sweep"),
        "loss_quarter": Measure("Held-out loss of a training of a quarter of the steps, at that rate", "nats"),
        "loss_half": Measure("The same of half of the steps", "nats"),
        "condition_attention": Measure("Condition number of attention's matrices, geometric mean"),
        "condition_mlp": Measure("The same of those of MLPs"),
        "condition_tokens": Measure("The same of embedding and unembedding"),
        "nearness": Measure("Cosine of what a neuron writes with its nearest token, less that of a random direction"),
        "loss_alone": Measure("Held-out loss of the two models that are joined, by themselves", "nats"),
        "loss_stitched": Measure("Held-out loss of their halves, joined by a map fitted to streams", "nats"),
        "loss_by_tokens": Measure("The same with a map fitted to the vectors of tokens", "nats"),
        "loss_random": Measure("The same with a random orthogonal map", "nats"),
        "stitched_share": Measure("What joining by streams loses, of what a random map loses"),
        "by_tokens_share": Measure("What joining by tokens loses, of what a random map loses"),
    },
    claims=(
        Claim("learned", "The normalised transformer learns text, too", of(NGPT), below(2 / 3 * GUESSING), LEARNED),
        Claim("equal-steps", "At equal steps it ends at a smaller loss", of(NGPT) - of(BASELINE), below(0), LEARNED),
        Claim("half-steps", "In half of the steps it comes to the loss at which the baseline ends",
              of(NGPT, "loss_half") - of(BASELINE), below(0), LEARNED),
        Claim("quarter-steps", "In a quarter of them, as published for texts of 1,024 tokens",
              of(NGPT, "loss_quarter") - of(BASELINE), below(0), LEARNED),
        Claim("condition-attention", "Its matrices of attention are farther from singular",
              of(NGPT, "condition_attention") / of(BASELINE, "condition_attention"), below(1), LEARNED),
        Claim("condition-mlp", "So are those of MLPs", of(NGPT, "condition_mlp") / of(BASELINE, "condition_mlp"),
              below(1), LEARNED),
        Claim("condition-tokens", "So are embedding and unembedding",
              of(NGPT, "condition_tokens") / of(BASELINE, "condition_tokens"), below(1), LEARNED),
        Claim("neurons-near-tokens", "What the baseline's neurons write lies nearer to one token than chance",
              of(BASELINE, "nearness"), above(0), LEARNED),
        Claim("neurons-nearer", "In the normalised transformer it lies nearer still",
              of(NGPT, "nearness") - of(BASELINE, "nearness"), above(0), LEARNED),
        Claim("stitched", "Halves of two of its seeds fit by one rotation: most of what a random one loses is kept",
              of(NGPT, "stitched_share"), below(0.5), LEARNED),
        Claim("stitched-better", "They fit better than halves of two baselines",
              of(NGPT, "stitched_share") - of(BASELINE, "stitched_share"), below(0), LEARNED),
        Claim("stitched-by-tokens", "They fit by a rotation that is fitted to vectors of tokens alone",
              of(NGPT, "by_tokens_share"), below(0.5), LEARNED),
    ),
    differs=(
        "Four layers of width 64 on docstrings, 64 tokens each, in place of half a billion and a billion parameters on "
        "web text; 500 steps. The smallest factor published, 4, is of texts of 1,024 tokens.",
        "Rates are one of four for each model, the best at the whole number of steps; shorter trainings take that one, "
        "which may not be best for them. Rates of sub-layers begin at 1 / 4, one over the number of layers.",
        "The papers join no halves of trained models by a rotation: Dar et al. join a fine-tuned classifier to another "
        "model by the tokens' vectors. The claims on halves are this study's own.",
    ),
    mechanisms=("softmax",),
    references={"model": (BASELINE,)},
)  # fmt: skip
