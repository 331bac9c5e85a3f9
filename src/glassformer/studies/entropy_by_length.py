"""Entropy by length: rows of softmax spread as keys become many; scores that grow with log n keep sharp rows sharp.

Of normal noise of deviation s the entropy is near log n - s^2 / 2, which grows with n as fast as that of even rows.
Scores times log n / log m have a deviation that grows too. Small decoders without positions, in which nothing but
attention can feel a length, learn to recall one pair of many in 64 tokens, and are asked in longer rows of more pairs.
"""

import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Attention, LogN, Softmax
from glassformer.data import Recall
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.models.stack import cross_context, make_context
from glassformer.study import Case, Claim, Measure, Measures, Quantity, Scale, Study, above, below, value, within
from glassformer.training import OptimConfig, TrainConfig

MILD, SHARP, TASK = "noise of deviation 1", "noise of deviation 3", "recall"
PLAIN, LOG_N, TESTED = "none", "log n", "log n, at test time alone"
TRAINED, NOISE_AT, WIDTH, BATCHES = 64, 512, 64, 8
LONG, LONGEST = 512, 4096


def run(case: Case) -> Measures:
    temperature, n = case["temperature"], case["n"]
    if case["scores"] != TASK:
        return {"entropy": noise(3.0 if case["scores"] == SHARP else 1.0, temperature, n, case)}
    trained = gf.load(case.train(recipe(PLAIN if temperature == TESTED else temperature, case["steps"])))
    model = decoder(temperature).build().eval()
    model.load_state_dict(trained.state_dict())
    data, found = pairs(n, n // 2 - 1).build(), dict[str, list[Tensor]](entropy=[], spread=[], loss=[])
    for batch in (data.batch(i, "heldout") for i in range(BATCHES)):
        read = gf.run(model, batch.tokens, read=["pattern", "scores", "logits"])
        last = read["logits"].values[:, -1]
        found["loss"].append(torch.nn.functional.cross_entropy(last, batch.targets[:, -1], reduction="none"))
        found["entropy"].append(entropy(read["pattern", 0].values[:, :, -1]))
        found["spread"].append(read["scores", 0].values[:, :, -1].std(-1))
    return {name: float(torch.cat(numbers).mean()) for name, numbers in found.items()}


def noise(deviation: float, temperature: str, n: int, case: Case) -> float:
    """Return the entropy of what normal queries make of n normal keys, each query seeing all of them."""
    mixer = Softmax(temperature=LogN(NOISE_AT) if temperature == LOG_N else None)
    generator, queries = case.generator(), case["queries"]
    q, k = (torch.randn(1, 1, rows, WIDTH, generator=generator, dtype=torch.float64) for rows in (queries, n))
    context = cross_context(make_context(1, queries, q.device, is_causal=True), n, None)
    head = mixer.build(Attention(1).dims(WIDTH, n), "head")
    return float(entropy(head.pattern(q * deviation, k, q, context, None)).mean())


def entropy(weights: Tensor) -> Tensor:
    return -torch.special.xlogy(weights, weights).sum(-1)


def decoder(temperature: str) -> DecoderConfig:
    """Return one layer whose keys are mixed with those of the token before."""
    kinds = {PLAIN: None, LOG_N: LogN(TRAINED), TESTED: LogN(TRAINED, beyond=True)}
    layer = block(Softmax(temperature=kinds[temperature]), n_heads=2, mlp=Mlp(2 * WIDTH), smeared=True)
    return DecoderConfig(len(pairs(TRAINED, 1).symbols()), WIDTH, (layer,), max_len=LONG)


def pairs(length: int, number: int) -> Recall:
    return Recall(batch_size=32, length=length, n_pairs=number, n_keys=256)


def recipe(temperature: str, steps: int) -> TrainConfig:
    data, optim = pairs(TRAINED, TRAINED // 4), OptimConfig(lr=3e-3, warmup=50)
    model = decoder(temperature)
    return TrainConfig(model, data, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


def grown(scores: str, temperature: str, to: int) -> Quantity:
    """Return by how much the entropy grows from 64 keys to so many."""
    longer, shorter = (value("entropy", scores=scores, temperature=temperature, n=n) for n in (to, TRAINED))
    return longer - shorter


def loss(temperature: str, n: int = LONG) -> Quantity:
    return value("loss", scores=TASK, temperature=temperature, n=n)


STUDY = Study(
    "entropy-by-length",
    paper='Su 2021, "Entropy invariance of softmax", kexue.fm/archives/8823; Nakanishi 2025, "Scalable-Softmax Is '
    'Superior for Attention", arXiv 2501.19399',
    question="Does attention spread in longer texts, do scores that grow with log n keep it, and does that help?",
    run=run,
    grid={"scores": (MILD, SHARP, TASK), "temperature": (PLAIN, LOG_N, TESTED), "n": (TRAINED, 128, LONG, LONGEST)},
    scales={
        "smoke": Scale(2, {"steps": 5, "queries": 8}, {"n": (TRAINED, LONG)}),
        "small": Scale(3, {"steps": 1500, "queries": 256}),
    },
    measures={
        "entropy": Measure("Entropy of a row that sees n keys, mean over heads", "nats"),
        "spread": Measure("Standard deviation of a row of scores that heads have learned"),
        "loss": Measure("Loss on the value of one of the pairs in n tokens", "nats"),
    },
    claims=(
        Claim("Over mild noise it grows as that of even rows does", grown(MILD, PLAIN, LONGEST), within(0.1, 4.159)),
        Claim("With log n it grows by 2/3 less", grown(MILD, LOG_N, LONGEST), within(0.1, 3.492)),
        Claim("Over sharp noise it grows, too", grown(SHARP, PLAIN, LONGEST), above(2)),
        Claim("With log n sharp rows stay as sharp as they are", grown(SHARP, LOG_N, LONGEST), within(0.5, 0)),
        Claim("Heads trained on 64 tokens spread over 512", grown(TASK, PLAIN, LONG), above(0)),
        Claim("With log n they spread less", grown(TASK, LOG_N, LONG) - grown(TASK, PLAIN, LONG), below(0)),
        Claim("In 512 tokens recall is worse than in 64", loss(PLAIN) - loss(PLAIN, TRAINED), above(0)),
        Claim("With log n it is better than without", loss(LOG_N) - loss(PLAIN), below(0)),
        Claim("With log n at test time alone, too", loss(TESTED) - loss(PLAIN), below(0)),
        Claim("Better still if it was trained with it", loss(LOG_N) - loss(TESTED), below(0)),
        Claim("In 64 tokens log n costs nothing", loss(LOG_N, TRAINED) - loss(PLAIN, TRAINED), within(0.05, 0)),
    ),
    differs=(
        "One layer of width 64 and a task with a known answer, without positions; Su's are masked language models with "
        "rotary positions, Nakanishi's language models that learn the factor on log n.",
        "Rows that are trained on have 16 pairs, some asked for again; tested are n / 2 - 1 pairs, one asked for. "
        "Seeds draw weights and noise, and rows are the same for all. Noise is as it is without log n at 512 keys.",
    ),
    mechanisms=("softmax",),
    skip=lambda at: at["n"] == LONGEST if at["scores"] == TASK else at["n"] == 128 or at["temperature"] == TESTED,
)  # fmt: skip
