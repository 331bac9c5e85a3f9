"""Sparse probing of three widths of one recipe: does one neuron tell more, the wider the model?

A wider model has more neurons to choose one from, and of neurons at random the best of many tells more than the best of
few. So each width stands beside a model of that width that was not trained.
"""

import glassformer as gf
from glassformer.analysis.probes import sparse_probe
from glassformer.attention import Rope
from glassformer.data import TextConfig
from glassformer.data.tokenizer import Tokenizer
from glassformer.models import Decoder, DecoderConfig, Mlp, RmsNorm, block, repeat
from glassformer.studies.sparse_probing import CONTEXT, FEW, PAIR, measured
from glassformer.studies.sparse_probing_texts import drawn
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
    least_step,
    value,
)
from glassformer.training import OptimConfig, TrainConfig

WIDTHS = (32, 64, 128)
NARROW, WIDE = WIDTHS[0], WIDTHS[-1]
TRAINED, UNTRAINED = "trained", "untrained"


def run(case: Case) -> Measures:
    model = gf.load(case.train(recipe(case["width"], case["steps"])))
    assert isinstance(model, Decoder) and isinstance(model.tokenizer, Tokenizer), "the recipe trains decoders on text"
    texts = drawn(model.tokenizer, case["files"], case["pairs"], case.seed)
    # weights of this seed in place of those that were learned
    model = Decoder(model.config) if case["weights"] == UNTRAINED else model
    found = dict(measured(model, texts, case))
    shares = {f"{kind} share": found[f"{kind} one"] / found[f"{kind} few"] for kind in (CONTEXT, PAIR)}
    return {f"{kind} {name}": found[f"{kind} {name}"] for kind in (CONTEXT, PAIR) for name in TOLD} | shares


def recipe(width: int, steps: int) -> TrainConfig:
    """Return a decoder of three layers on Python; under two minutes of one core."""
    layer = block(n_heads=4, positions=Rope(), norm=RmsNorm(), mlp=Mlp(4 * width, activation="gelu_tanh"))
    model = DecoderConfig(1024, width, repeat(layer, 3), max_len=512, final_norm=RmsNorm())
    data = TextConfig(batch_size=16, length=128, vocab_size=1024)
    optim = OptimConfig(lr=3e-3, warmup=min(50, steps))
    return TrainConfig(model, data, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


TOLD = {
    "least": f"What {FEW} neurons tell more than those for shuffled labels: of the property told worst, F1",
    "one": "F1 of the best neuron",
    "few": f"F1 of {FEW} neurons",
}


def of(measure: str, width: int, weights: str = TRAINED) -> Quantity:
    return value(measure, width=width, weights=weights)


def gained(kind: str) -> Quantity:
    """Return what one neuron tells more in the widest model than in the narrowest."""
    return of(f"{kind} one", WIDE) - of(f"{kind} one", NARROW)


LEARNED = {
    kind: Condition(f"In the narrowest model few neurons tell every {kind}", of(f"{kind} least", NARROW), above(0.05))
    for kind in (CONTEXT, PAIR)
}

STUDY = Study(
    "sparse-probing-widths",
    paper='Gurnee et al. 2023, "Finding Neurons in a Haystack: Case Studies with Sparse Probing", arXiv 2305.01610, '
    "sparsity by scale",
    question="Does one neuron tell more of what a text is, the wider the model?",
    run=run,
    grid={"width": WIDTHS, "weights": (TRAINED, UNTRAINED)},
    scales={
        "smoke": Scale(1, {"steps": 2, "files": 8, "pairs": 1}, {"width": (NARROW,), "weights": (TRAINED,)}),
        "small": Scale(3, {"steps": 300, "files": 48, "pairs": 6}),
    },
    measures={
        **{f"{kind} {name}": Measure(f"{said}; {kind}s", analysis=sparse_probe)
           for kind in (CONTEXT, PAIR) for name, said in TOLD.items()},
        **{f"{kind} share": Measure(f"Of what {FEW} neurons tell, what the best one does; {kind}s")
           for kind in (CONTEXT, PAIR)},
    },
    claims=(
        *(claim for kind in (CONTEXT, PAIR) for claim in (
            Claim(f"{kind}s-one", f"The wider the model, the more its best neuron tells ({kind}s)",
                  least_step(f"{kind} one", "width", WIDTHS, weights=TRAINED), above(0), (LEARNED[kind],)),
            Claim(f"{kind}s-share", f"and the nearer that is to what few tell ({kind}s)",
                  least_step(f"{kind} share", "width", WIDTHS, weights=TRAINED), above(0), (LEARNED[kind],)),
            Claim(f"{kind}s-learned", f"It is learned: at random weights it grows less ({kind}s)",
                  gained(kind) - (of(f"{kind} one", WIDE, UNTRAINED) - of(f"{kind} one", NARROW, UNTRAINED)),
                  above(0), (LEARNED[kind],)),
        )),
        Claim("not-alike", "Not all properties go alike: contexts gain more than pairs", gained(CONTEXT) - gained(PAIR),
              above(0), tuple(LEARNED.values())),
    ),
    differs=(
        "Three widths from 32 to 128, of three layers that read 600,000 tokens; the paper's models have 70 million to "
        "seven billion parameters, and depth grows with width.",
        "Files that are probed may be among those that were trained on.",
    ),
    mechanisms=("softmax",),
    references={"width": (NARROW,), "weights": (TRAINED,)},
)  # fmt: skip
