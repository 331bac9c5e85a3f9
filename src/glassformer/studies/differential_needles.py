"""A fact in noise: where differential attention looks, and where softmax does, at nearly equal parameters.

A row is noise with one fact in it, and its last token asks for the fact. Of what the last token attends to, over all
layers and heads, a share is on the answer and a share on noise; the rest is on `<bos>` and on the marks of the fact.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Differential, MixerConfig, QueryKeyOnly, Softmax
from glassformer.data import Needle
from glassformer.models import DecoderConfig, ModelLike, published_block
from glassformer.study import (
    MAJORITY,
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Scale,
    Study,
    above,
    below,
    counted,
    value,
)
from glassformer.training import OptimConfig, TrainConfig

SOFTMAX, DIFFERENTIAL = "softmax", "differential"
# a differential head has twice the streams and values of twice the width: half as many are as many parameters
MIXERS: dict[str, tuple[MixerConfig, int]] = {SOFTMAX: (Softmax(), 4), DIFFERENTIAL: (Differential(), 2)}
WIDTH, BATCHES = 64, 8


def run(case: Case) -> Measures:
    data = Needle(length=case["length"])
    model = gf.load(case.train(recipe(case["mechanism"], data, case["steps"])))
    tokens, answers = asked(data)
    parts = parts_of(tokens, answers, data)
    return found(model, tokens, answers) | looked(model, tokens, {name: parts[name] for name in ("answer", "noise")})


def recipe(mechanism: str, data: Needle, steps: int, layers: int = 2, *, smeared: bool = False) -> TrainConfig:
    """Return layers of a mechanism as its paper builds them, on facts in noise."""
    mixer, n_heads = MIXERS[mechanism]
    layout = {"n_heads": n_heads, "d_head": WIDTH // 4, "smeared": smeared}
    places = QueryKeyOnly(amplitude=2.0)
    blocks = tuple(published_block(mixer, i, positions=places, **layout) for i in range(layers))
    model = DecoderConfig(len(data.symbols()), WIDTH, blocks, max_len=data.length)
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(model, data, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


def asked(data: Needle) -> tuple[Tensor, Tensor]:
    """Return held-out rows and their answers."""
    rows = [data.build().batch(i, "heldout") for i in range(BATCHES)]
    return torch.cat([row.tokens for row in rows]), torch.cat([row.targets[:, -1] for row in rows])


def found(model: ModelLike, tokens: Tensor, answers: Tensor) -> dict[str, float]:
    """Return how well a model answers, and its size."""
    with torch.no_grad():
        logits = model(tokens)[:, -1]
    return {
        "accuracy": float((logits.argmax(-1) == answers).double().mean()),
        "loss": float(torch.nn.functional.cross_entropy(logits, answers)),
        "parameters": float(sum(p.numel() for p in model.parameters())),
    }


def parts_of(tokens: Tensor, answers: Tensor, data: Needle) -> dict[str, Tensor]:
    """Return where in the rows the answer is, values of other facts, and noise; needles and `<bos>` are neither."""
    first_value = 1 + data.n_names
    answer, noise = tokens == answers[:, None], tokens >= first_value + data.n_values
    return {"answer": answer, "others": (tokens >= first_value) & ~answer & ~noise, "noise": noise}


def looked(model: ModelLike, tokens: Tensor, parts: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the share of the last token's attention on each part, of sizes of weights, mean over layers and heads."""
    weight = gf.run(model, tokens, read="pattern").layers("pattern").values[..., -1, :].abs()
    shares = (weight / weight.sum(-1, keepdim=True)).mean((0, 2))
    return {f"on_{name}": float((shares * where).sum(-1).mean()) for name, where in parts.items()}


FINDS = Condition("Softmax finds the fact", value("accuracy", mechanism=SOFTMAX), above(0.95))

STUDY = Study(
    "differential-needles",
    paper='Ye et al. 2024, "Differential Transformer", arXiv 2410.05258, table 3: attention to the answer is 0.27 to '
    "0.40 where that of a Transformer is 0.03 to 0.09, and to noise 0.01 to 0.02 where that is 0.49 to 0.54",
    question="Does differential attention look at the fact and not at the noise?",
    run=run,
    grid={"mechanism": tuple(MIXERS)},
    scales={
        "smoke": Scale(seeds=1, settings={"steps": 20, "length": 32}),
        "small": Scale(seeds=8, settings={"steps": 250, "length": 128}),
        "full": Scale(seeds=8, settings={"steps": 2000, "length": 512}),
    },
    measures={
        "accuracy": Measure("Share of facts that are found; guessing among values finds 0.06", learned=True),
        "loss": Measure("Loss on the fact", "nats"),
        "on_answer": Measure("Share of the last token's attention on the answer, mean over layers and heads"),
        "on_noise": Measure("Share on all noise together; attention spread evenly has 0.97 there among 128 tokens"),
        "parameters": Measure("Parameters of the model"),
    },
    claims=(
        Claim("softmax-finds", "Softmax finds a single fact",
              counted(value("accuracy", mechanism=SOFTMAX), above(0.95)), MAJORITY),
        Claim("differential-finds", "Differential attention finds it too",
              counted(value("accuracy", mechanism=DIFFERENTIAL), above(0.95)), MAJORITY, (FINDS,)),
        Claim(
            "looks-at-answer", "Differential attention looks more at the answer",
            value("on_answer", mechanism=DIFFERENTIAL) - value("on_answer", mechanism=SOFTMAX), above(0.1), (FINDS,),
        ),
        Claim(
            "looks-at-noise", "Differential attention looks next to not at all at noise",
            value("on_noise", mechanism=DIFFERENTIAL) / value("on_noise", mechanism=SOFTMAX), below(0.25), (FINDS,),
        ),
        Claim("softmax-noise", "Softmax spends half of its attention on noise", value("on_noise", mechanism=SOFTMAX),
              above(0.4), (FINDS,)),
    ),
    differs=(
        "Two layers of width 64 without MLPs, trained on this task alone; the paper's are of 3 billion parameters, "
        "trained on text, and look for several facts in 4,000 tokens.",
        "A fact is a token of a kind that noise has none of, so that finding it takes no comparison with the question.",
        "Weights of differential attention may be negative: shares are of their sizes.",
        "Seeds draw weights; the rows are the same for all.",
    ),
    mechanisms=("softmax", "differential"),
    references={"mechanism": (SOFTMAX,)},
)  # fmt: skip
