"""Where the norm stands and what the residual is for: gradients by depth, and what deep stacks learn.

    pre-norm      x <- x + f(norm(x))        post-norm     x <- norm(x + f(x))
    no norm       x <- x + f(x)              no residual   x <- norm(f(x))

Before a step is made, gradients near the output of post-norm stacks are as large however deep these are, and those of
pre-norm fall with the root of the depth. That is why post-norm needs a warm-up, it is said; whether a stack learns to
recall a pair shows it. Twelve blocks are many for that: three do.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.data import Batch, Recall
from glassformer.fitting import batch_logits
from glassformer.models import Decoder, DecoderConfig, LayerNorm, Learned, Mlp, NoNorm, block, repeat
from glassformer.studies.fits import fit
from glassformer.study import (
    MAJORITY,
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
    counted,
    growth,
    value,
    within,
)
from glassformer.training import OptimConfig

PRE, POST, WARMED = "pre-norm", "post-norm", "post-norm, warm-up"
BARE, ALONE = "no norm", "no residual"
SHALLOW, DEEP, WIDTH, SYMBOLS, BATCHES = 3, 12, 64, 16, 4
# what each MLP writes by, and what makes queries, keys and values
WRITES, READS = "mlp.output.weight", "attn.projection.qkv.weight"
DATA = Recall(batch_size=32, length=24, n_pairs=4, n_keys=SYMBOLS, n_values=SYMBOLS)


def run(case: Case) -> Measures:
    rows = DATA.replace(seed=case.seed).build()
    held_out = [rows.batch(i, "heldout") for i in range(BATCHES)]
    model = built(case["block"], case["depth"], case.seed)
    before, after = sizes(gradients(model, held_out[0], WRITES)), list[float]()
    # maps of queries and keys are the first rows of the matrix that makes both and values
    compared = gradients(model, held_out[0], READS)[-1][: 2 * WIDTH]
    optim = OptimConfig(lr=2e-3, warmup=0 if case["block"] in (PRE, POST) else case["warmup"], clip=0.0)
    for update in fit(model, case, optim, lambda step: loss(model, rows.batch(step))):
        if update.step == case["warmup"]:
            after = sizes(gradients(model, held_out[0], WRITES))
    with torch.no_grad():
        unlearned = sum(float(loss(model, batch)) for batch in held_out) / BATCHES / math.log(SYMBOLS)
    return {
        # where a fit diverges, the loss of the weights that are left need not be a number
        "share_unlearned": unlearned if math.isfinite(unlearned) else 1.0,
        "last": before[-1],
        "queries": float(compared.norm()),
        "evenness": before[0] / before[-1],
        # a gradient that is nothing anywhere has no shape
        "evenness_later": after[0] / after[-1] if after and after[-1] > 0 else math.nan,
    }


def built(kind: str, depth: int, seed: int) -> Decoder:
    """Return a stack of so many blocks with drawn weights."""
    model = decoder(kind, depth).build(seed)
    if kind == ALONE:
        for layer in model.stack.blocks:
            for name in layer.names:
                layer.part(name).register_forward_hook(less_what_it_read)
    return model


def decoder(kind: str, depth: int) -> DecoderConfig:
    layer = block(
        n_heads=4, mlp=Mlp(2 * WIDTH), norm=NoNorm() if kind == BARE else LayerNorm(),
        wiring="pre" if kind in (PRE, BARE) else "post",
        # keys know what came before them: the stack has to look up, and not to join pairs
        smeared=True,
    )  # fmt: skip
    return DecoderConfig(
        DATA.build().vocab_size, WIDTH, repeat(layer, depth), max_len=DATA.length, positions=Learned(), tied=False,
        final_norm=LayerNorm() if kind == PRE else NoNorm(), init="xavier",
    )  # fmt: skip


def less_what_it_read(module: nn.Module, read: tuple[Any, ...], wrote: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    """Take from what a sub-layer writes the stream that it is added to, so that nothing passes it by."""
    return wrote[0] - read[0], wrote[1]


def loss(model: Decoder, batch: Batch) -> Tensor:
    """Return the mean loss of the values that are asked for, in nats."""
    return torch.nn.functional.cross_entropy(batch_logits(model, batch)[batch.weight], batch.targets[batch.weight])


def gradients(model: Decoder, batch: Batch, matrix: str) -> tuple[Tensor, ...]:
    """Return the gradient at a matrix of each block, from the first block on."""
    matrices = [layer.get_parameter(matrix) for layer in model.stack.blocks]
    return torch.autograd.grad(loss(model, batch), matrices)


def sizes(found: tuple[Tensor, ...]) -> list[float]:
    return [float(each.norm()) for each in found]


def of(measure: str, kind: str, depth: int) -> Quantity:
    return value(measure, block=kind, depth=depth)


def learns(kind: str, depth: int) -> Quantity:
    return counted(of("share_unlearned", kind, depth), below(0.1))


def misses(kind: str, depth: int) -> Quantity:
    return counted(of("share_unlearned", kind, depth), above(0.3))


LEARNED = (Condition("Three blocks of pre-norm learn to recall", of("share_unlearned", PRE, SHALLOW), below(0.1)),)

STUDY = Study(
    "norm-placement",
    paper='Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture", arXiv 2002.04745, theorem 1, '
    'figure 3 and section 3.2; He et al. 2015, "Deep Residual Learning for Image Recognition", arXiv 1512.03385; Dong '
    "et al. 2021, arXiv 2103.03404, and Noci et al. 2022, arXiv 2206.03126 (what no residual does to tokens)",
    question="What do the residual and the place of the norm do to gradients and to learning in deep stacks?",
    run=run,
    grid={"block": (PRE, POST, WARMED, BARE, ALONE), "depth": (SHALLOW, 6, DEEP)},
    scales={
        "smoke": Scale(1, {"steps": 2, "warmup": 1}, {"depth": (SHALLOW, 6)}),
        "small": Scale(8, {"steps": 200, "warmup": 40}),
    },
    measures={
        "share_unlearned": Measure(
            "Loss, of that of guessing any value, and 1 where it is not finite; guessing one of the four of a row is "
            "0.5", learned=True,
        ),
        "last": Measure("Norm of the gradient at what the last MLP writes by, before training"),
        "queries": Measure("Norm of the gradient at the maps of queries and keys in the last block, before training"),
        "evenness": Measure("The gradient at what the first MLP writes by, of that at the last, before training"),
        "evenness_later": Measure("The same after as many steps as a warm-up takes"),
    },
    claims=(
        Claim("recall-learned", "Three blocks of pre-norm learn to recall", learns(PRE, SHALLOW), MAJORITY),
        Claim("post-last-stays", "Post-norm: the last gradient is as large however deep the stack",
              growth("last", "depth", block=POST), within(0.15, 0)),
        Claim("pre-last-falls", "Pre-norm: it falls with the root of the depth", growth("last", "depth", block=PRE),
              within(0.15, -0.5)),
        Claim("post-uneven", "Post-norm: of twelve blocks the first has less than half the gradient of the last",
              of("evenness", POST, DEEP), below(0.5)),
        Claim("pre-even", "Pre-norm: the first has from half to twice that of the last", of("evenness", PRE, DEEP),
              within(0.75, 1.25)),
        Claim("warm-up-evens", "A warm-up makes gradients of post-norm more even",
              of("evenness_later", WARMED, DEEP) - of("evenness", WARMED, DEEP), above(0), LEARNED),
        Claim("residual-carries", "A residual carries a tenth of the gradient through twelve blocks and more, without "
              "any norm", of("evenness", BARE, DEEP), above(0.1)),
        Claim("vanishes", "Without a residual less than a tenth arrives", of("evenness", ALONE, DEEP), below(0.1)),
        Claim("queries-vanish", "Queries and keys of the last block get less than a tenth of the gradient that they "
              "get with it, as where tokens are alike", of("queries", ALONE, DEEP) / of("queries", POST, DEEP),
              below(0.1)),
        Claim("pre-deep", "Twelve blocks of pre-norm learn without warm-up", learns(PRE, DEEP), MAJORITY, LEARNED),
        Claim("post-deep", "Twelve of post-norm do not", misses(POST, DEEP), MAJORITY, LEARNED),
        Claim("post-warmed", "With warm-up they do", learns(WARMED, DEEP), MAJORITY, LEARNED),
        Claim("post-shallow", "Three of post-norm learn without it", learns(POST, SHALLOW), MAJORITY, LEARNED),
        Claim("bare-shallow", "Three without norms learn", learns(BARE, SHALLOW), MAJORITY, LEARNED),
        Claim("alone-deep", "Twelve without a residual do not", misses(ALONE, DEEP), MAJORITY, LEARNED),
    ),
    differs=(
        "Stacks of width 64 that recall one of four pairs, in 200 steps at a peak of 0.002 without clipping; the "
        "papers translate, pre-train BERT or classify images. The rate is the same for all, chosen for none.",
        "Stacks without norms or without a residual are given the warm-up, and norms of stacks without a residual "
        "stand behind sub-layers. A run that diverges counts as unlearned, with the weights of the step before.",
        "Embedding and unembedding are two matrices, drawn after Xavier as all others are.",
    ),
    mechanisms=("softmax",),
    references={"block": (PRE,), "depth": (SHALLOW,)},
)  # fmt: skip
