"""Redundancy of a trained model: heads that can go, blocks that can share their weights, half of the layers.

The shipped decoder reads held-out Python after each of these:

    pruned       heads write nothing, those first whose ablation costs least on other text, or in random order
    shared       a block reads the weights of its neighbour, as they are and after a short fine-tuning
    left out     a block is not there: as few parameters as shared, and one layer less
    drawn anew   as left out, with weights at random, trained as long
    distilled    its first and last block alone, fitted to the whole model's distribution of the next token
    text alone   the same two blocks, fitted as long to the text

Which block is shared, or left out, is chosen by the loss on training text before any fine-tuning.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import fmean

import torch
from jaxtyping import Float, Int
from torch import Tensor

import glassformer as gf
from glassformer.analysis.causal import ablate, ablate_each
from glassformer.analysis.losses import token_losses
from glassformer.data import Batch, Document, TextConfig
from glassformer.data.batch import next_token_batch
from glassformer.fitting import Descent, batch_logits, kl_divergence
from glassformer.models import Decoder
from glassformer.study import Case, Claim, Condition, Measure, Measures, Quantity, Scale, Study, above, below, value
from glassformer.training import OptimConfig

MODEL, DATA, LENGTH = "gpt-4l", TextConfig(), 128
WHOLE, PRUNED = "whole", "pruned"
SHARED, LEFT_OUT, DRAWN = "shared", "left out", "drawn anew"
DISTILLED, TEXT = "distilled", "text alone"
PERCENT = (12, 25, 50, 75)
# the recipe's own rate for weights at random, a quarter of it for those that were trained
RATE, FIRST_RATE = 5e-4, 2e-3

Loss = Callable[[Decoder, Batch], Tensor]


def run(case: Case) -> Measures:
    model, files = shipped(), DATA.documents()
    held_out = rows_of(model, files["heldout"], case["rows"], case.seed)
    if case["way"] == WHOLE:
        return {"loss": loss(model, held_out), "parameters": parameters(model)}
    if case["way"] == PRUNED:
        return pruned(case, model, rows_of(model, files["train"], case["rows"], case.seed), held_out)
    text = rows_of(model, files["train"], case["steps"] * case["batch"], case.seed)
    made = smaller(case["way"], model, text.rows(case["rows"]), case.seed)
    before = loss(made, held_out)
    fit(made, case, text, distance(model) if case["way"] == DISTILLED else text_loss)
    return {
        "loss_before": before,
        "loss": loss(made, held_out),
        "agreement": agreement(made, model, held_out),
        "parameters": parameters(made),
    }


def shipped() -> Decoder:
    model = gf.load(MODEL)
    assert isinstance(model, Decoder), "the shipped model is a decoder"
    return model.eval()


def rows_of(model: Decoder, files: Sequence[Document], count: int, seed: int) -> Batch:
    """Return rows of files, in an order of the seed; no row is of two files."""
    encode, found, left = model.require_tokenizer().encode, list[Tensor](), count
    for document in Random(seed).sample(files, len(files)):
        if left <= 0:
            break
        ids = torch.tensor(encode(document.text))
        if len(ids) > LENGTH:
            found.append(ids.unfold(0, LENGTH + 1, LENGTH + 1))
            left -= len(found[-1])
    rows = torch.cat(found)
    return next_token_batch(rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]])


def loss(model: Decoder, batch: Batch) -> float:
    """Return the mean loss on rows, in nats per token."""
    return float(token_losses(model, batch)[0].mean())


def parameters(model: Decoder) -> float:
    """Return how many parameters a model has, those that blocks share counted once."""
    return float(sum(p.numel() for p in model.parameters()))


def pruned(case: Case, model: Decoder, text: Batch, held_out: Batch) -> Measures:
    """Return losses without shares of all heads: by their ablation on other text, and in random orders."""
    swept = ablate_each(model, text, report=case.report).loss_change
    labels, random = list(map(str, swept.labels("heads"))), case.generator()
    orders = [torch.randperm(len(labels), generator=random) for _ in range(case["orders"])]

    def without(order: Tensor, percent: int) -> float:
        gone = order[: round(len(labels) * percent / 100)].tolist()
        found = ablate(model, [labels[head] for head in gone], held_out)
        return found.loss + float(found.loss_change.values)

    found = {f"by sweep {percent}": without(swept.values.argsort(), percent) for percent in PERCENT}
    drawn = {f"at random {percent}": fmean(without(order, percent) for order in orders) for percent in PERCENT}
    return found | drawn


def smaller(way: str, model: Decoder, known: Batch, seed: int) -> Decoder:
    """Return a model of fewer parameters; of several of a kind the one that has the least loss on rows."""
    layers = range(len(model.config.layers))
    if way == DRAWN:
        return model.config.replace(layers=model.config.layers[1:]).build(seed).eval()
    if way == SHARED:
        made = [sharing(model, owner, reader) for owner in layers for reader in layers if abs(owner - reader) == 1]
    elif way == LEFT_OUT:
        made = [with_layers(model, [layer for layer in layers if layer != out]) for out in layers]
    else:
        made = [with_layers(model, (layers[0], layers[-1]))]
    return min(made, key=lambda one: loss(one, known))


def with_layers(model: Decoder, layers: Sequence[int]) -> Decoder:
    """Return a copy of a decoder that has some of its blocks, in that order."""
    made = model.config.replace(layers=tuple(model.config.layers[layer] for layer in layers)).build()
    outside = model.state_dict()
    for layer, block in enumerate(model.stack.blocks):
        for name in block.state_dict(prefix=f"stack.blocks.{layer}."):
            del outside[name]
    made.load_state_dict(outside, strict=False)
    for block, layer in zip(made.stack.blocks, layers, strict=True):
        block.load_state_dict(model.stack.blocks[layer].state_dict())
    return made.eval()


def sharing(model: Decoder, owner: int, reader: int) -> Decoder:
    """Return a copy of a decoder in which one block reads the weights of another."""
    made = with_layers(model, range(len(model.config.layers)))
    for name, parameter in made.stack.blocks[owner].named_parameters():
        path, _, own = name.rpartition(".")
        setattr(made.stack.blocks[reader].get_submodule(path), own, parameter)
    return made


def fit(model: Decoder, case: Case, text: Batch, term: Loss) -> None:
    """Fit all weights of a decoder to rows of text, each read once."""
    steps, size = case["steps"], case["batch"]
    rate = FIRST_RATE if case["way"] == DRAWN else RATE
    optim = OptimConfig(lr=rate, warmup=20, betas=(0.9, 0.95), weight_decay=0.1)

    def losses(step: int) -> Iterator[Tensor]:
        part = slice((step - 1) * size, step * size)
        yield term(model, Batch(**{name: rows[part] for name, rows in text.tensors().items()}))

    descent = Descent(
        list(model.parameters()), optim.build(model), losses, steps=steps, clip=optim.clip,
        rate=lambda step: optim.rate(step, steps, model.config.d_model), name=f"fitting what is {case['way']}",
        way_on=lambda: f"Fit it with a smaller rate (now {rate:g}).",
    )  # fmt: skip
    for update in descent:
        case.report(update.step, steps)


def text_loss(model: Decoder, batch: Batch) -> Float[Tensor, ""]:
    """Return the mean loss of a batch's targets."""
    return torch.nn.functional.cross_entropy(batch_logits(model, batch).flatten(0, 1), batch.targets.flatten())


def distance(teacher: Decoder) -> Loss:
    """Return the mean divergence of a model's distributions from a teacher's: KL(teacher || model)."""

    def apart(model: Decoder, batch: Batch) -> Tensor:
        with torch.no_grad():
            reference = batch_logits(teacher, batch)
        found = kl_divergence(batch_logits(model, batch), reference, batch.weight, "forward")
        return found.sum() / batch.weight.sum()

    return apart


def agreement(model: Decoder, teacher: Decoder, batch: Batch) -> float:
    """Return the share of tokens for which both say the same is likeliest."""
    with torch.no_grad():
        said: list[Int[Tensor, "batch pos"]] = [batch_logits(one, batch).argmax(-1) for one in (model, teacher)]
    return float((said[0] == said[1]).double().mean())


def of(way: str, measure: str = "loss") -> Quantity:
    return value(measure, way=way)


KNOWS = (Condition("The shipped model knows the language", of(WHOLE), below(3.0)),)

STUDY = Study(
    "redundancy",
    paper='Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", arXiv 1905.10650 (heads); Lan et '
    'al. 2020, "ALBERT", arXiv 1909.11942 (shared layers); Hinton, Vinyals and Dean 2015, arXiv 1503.02531, and Sanh '
    'et al. 2019, "DistilBERT", arXiv 1910.01108 (distillation into half of the layers)',
    question="How much of a trained model can go: heads, weights of a block of its own, half of the layers?",
    run=run,
    grid={"way": (WHOLE, PRUNED, SHARED, LEFT_OUT, DRAWN, DISTILLED, TEXT)},
    scales={
        "smoke": Scale(
            1, {"steps": 1, "batch": 2, "rows": 2, "orders": 1}, {"way": (WHOLE, PRUNED, SHARED, DISTILLED)}
        ),
        "small": Scale(5, {"steps": 200, "batch": 8, "rows": 32, "orders": 4}),
    },
    measures={
        "loss": Measure("Loss on held-out Python, after fitting what is fitted", "nats"),
        "loss_before": Measure("Loss before that", "nats"),
        "agreement": Measure("Share of tokens for which the whole model says the same is likeliest"),
        "parameters": Measure("Parameters, shared ones counted once"),
        **{
            f"{order} {percent}": Measure(f"Loss without {percent} % of all heads, {said}", "nats", ablate)
            for order, said in (("by sweep", "those that cost least alone"), ("at random", "mean of random orders"))
            for percent in PERCENT
        },
    },
    claims=(
        Claim("learned", "The task was learned: held-out Python costs the shipped model less than 3 nats a token, and "
              "counts of five tokens 3.2", of(WHOLE), below(3.0)),
        Claim("quarter-of-heads", "A quarter of all heads, those that cost least alone, go for a tenth of a nat",
              of(PRUNED, "by sweep 25") - of(WHOLE), below(0.1), KNOWS),
        *(Claim(f"sweep-before-random-{percent}", f"{percent} % of heads cost less by the sweep than at random",
                of(PRUNED, f"at random {percent}") - of(PRUNED, f"by sweep {percent}"), above(0), KNOWS)
          for percent in PERCENT),
        Claim("sharing-heals", "A short fine-tuning takes back half of what sharing two blocks costs",
              (of(SHARED, "loss_before") - of(SHARED)) / (of(SHARED, "loss_before") - of(WHOLE)), above(0.5), KNOWS),
        Claim("shared-before-left-out", "A block that is used twice is better than one that is left out, with as many "
              "parameters and updates", of(SHARED) - of(LEFT_OUT), below(0), KNOWS),
        Claim("shared-before-drawn", "Shared blocks are better than as few parameters drawn anew and trained as long",
              of(SHARED) - of(DRAWN), below(0), KNOWS),
        Claim("distilled-before-text", "Half of the layers learn more of the text from the model's distribution than "
              "from the text itself", of(DISTILLED) - of(TEXT), below(0), KNOWS),
        Claim("distilled-agrees", "They agree with the model more often then",
              of(DISTILLED, "agreement") - of(TEXT, "agreement"), above(0), KNOWS),
        Claim("half-the-layers", "Half of the layers, distilled, cost less than half a nat", of(DISTILLED) - of(WHOLE),
              below(0.5), KNOWS),
    ),
    differs=(
        "One decoder of four layers that reads Python, and two hundred updates; the papers' have six to twenty-four "
        "layers and are trained for days. Sharing is of a trained model here; ALBERT shares from the start.",
        "Heads are pruned all at once, by what each costs alone; nothing is trained behind that.",
        "The model of as few parameters keeps the trained weights of the other blocks, or has none that are trained.",
        "Seeds draw files, rows, orders of heads and new weights. The interval says nothing of other trained models.",
    ),
    mechanisms=("softmax",),
    references={"way": (WHOLE,)},
)  # fmt: skip
