"""What a state may let go of: loss against the share of it that is kept, by the shape of attention.

Over a long context most heads look at its first tokens and its last ones, a V over positions. If that is what they
need, the middle can go. Beside it: the last tokens alone, and tokens evenly spaced, as many of each.
"""

import math

import torch

from glassformer.analysis.behaviour import long_context
from glassformer.attention import Atrous, MixerConfig, Softmax, Streaming
from glassformer.studies.window_and_first_tokens import BEGUN, DATA, SHIPPED, TRAINED, decoder, each, mixing
from glassformer.study import Case, Claim, Condition, Measure, Measures, Quantity, Scale, Study, above, below, value

FIRST = 4
ALL, ENDS, LAST, SPACED = "all", "first and last", "last", "evenly spaced"


def mixer(kept: str, share: float) -> MixerConfig:
    n = round(TRAINED * share)
    if kept == SPACED:
        return Atrous(rate=round(1 / share))
    return {ALL: Softmax(), ENDS: Streaming(FIRST, n - FIRST), LAST: Softmax(window=n)}[kept]


def run(case: Case) -> Measures:
    model, rows = decoder(case, TRAINED + 1)
    losses = each(mixing(model, mixer(case["kept"], case["share"])), rows[:, :-1], rows[:, 1:])
    shape = long_context(model, rows[:, :-1], last=TRAINED // 4, sink=FIRST, recent=TRAINED // 8 - FIRST)
    found = [name in ("V", "sink only", "recent only") for name in shape.classes.values()]
    ends = [shape.measures.select(measure=which).values for which in ("sink", "recent")]
    return {
        "loss": float(losses[:, -TRAINED // 4 :].mean()),
        "of_shape": sum(found) / len(found),
        "on_ends": float(torch.stack(ends).sum(0).mean()),
    }


def cost(model: str, kept: str, share: float) -> Quantity:
    return value("loss", model=model, kept=kept, share=share) - value("loss", model=model, kept=ALL, share=1.0)


def of(model: str) -> tuple[Claim, ...]:
    whole = {"model": model, "kept": ALL, "share": 1.0}
    predicts = Condition(
        "The decoder has learned text: it loses two thirds of what guessing does at most", value("loss", **whole),
        below(2 / 3 * math.log(DATA.vocab_size)),
    )  # fmt: skip
    ends = Condition("Most of its weight is on the ends", value("on_ends", **whole), above(0.5))
    short = {SHIPPED: "shipped", BEGUN: "begun"}[model]
    return (
        Claim(f"{short}-heads", f"{model}: most heads look at the ends", value("of_shape", **whole), above(0.5),
              (predicts,)),
        Claim(f"{short}-weight", f"{model}: most of the weight is there", value("on_ends", **whole), above(0.5),
              (predicts,)),
        Claim(f"{short}-half", f"{model}: half of the state is as good as all", cost(model, ENDS, 0.5), below(0.02),
              (predicts, ends)),
        Claim(f"{short}-eighth", f"{model}: an eighth costs less than a tenth of a nat", cost(model, ENDS, 0.125),
              below(0.1), (predicts, ends)),
        Claim(f"{short}-eighth-costs", f"{model}: an eighth costs something", cost(model, ENDS, 0.125), above(0),
              (predicts,)),
        Claim(f"{short}-last", f"{model}: the last alone cost more",
              cost(model, LAST, 0.125) - cost(model, ENDS, 0.125), above(0), (predicts, ends)),
        Claim(f"{short}-spaced", f"{model}: evenly spaced ones do",
              cost(model, SPACED, 0.125) - cost(model, ENDS, 0.125), above(0), (predicts, ends)),
    )  # fmt: skip


STUDY = Study(
    "eviction",
    paper='Fu 2024, "How Do Language Models put Attention Weights over Long Context?", for the shape; Xiao et al. '
    '2023, "Efficient Streaming Language Models with Attention Sinks", for what is kept',
    question="Do heads look at the ends of a long context, and can what they do not look at go?",
    run=run,
    grid={"model": (SHIPPED, BEGUN), "kept": (ALL, ENDS, LAST, SPACED), "share": (1.0, 0.5, 0.25, 0.125)},
    scales={
        "smoke": Scale(1, {"rows": 1, "steps": 2}, {"share": (1.0, 0.125)}),
        "small": Scale(3, {"rows": 32, "steps": 1200}),
    },
    measures={
        "loss": Measure("Loss in the last quarter of 256 tokens, of which each position keeps a share", "nats"),
        "of_shape": Measure(
            "Share of heads that have nine tenths of their weight on the first 4 and the last 28", "", long_context
        ),
        "on_ends": Measure("Weight on these, mean over heads; spread evenly it were 0.14", "", long_context),
    },
    claims=(*of(SHIPPED), *of(BEGUN)),
    differs=(
        "Decoders of 3 million and half a million parameters, within the 256 tokens that they were trained on; Fu's "
        "has 7 billion. Every row of the second begins with `<bos>`.",
        "What is kept is the same for all heads. Behind the first tokens positions are counted anew, as in Xiao et al.",
        "Seeds choose rows of held-out text.",
    ),
    mechanisms=("streaming", "softmax", "atrous"),
    kinds={ALL: ("softmax",), ENDS: ("streaming",), LAST: ("softmax",), SPACED: ("atrous",)},
    references={"model": (SHIPPED, BEGUN), "kept": (ALL,), "share": (1.0,)},
    skip=lambda at: (at["share"] == 1) != (at["kept"] == ALL),
)  # fmt: skip
