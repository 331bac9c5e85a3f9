"""Entropy by length: rows of softmax spread as keys become many; scores that grow with log n keep sharp rows sharp.

Of normal noise of deviation s the entropy is near log n - s^2 / 2, which grows with n as fast as that of even rows.
Scores times log n / log m have a deviation that grows too. Small decoders without positions, in which nothing but
attention can feel a length, are trained on 64 tokens of text, and predict the same 16 tokens behind longer ones.
"""

import math

import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Attention, LogN, Softmax
from glassformer.data import TextConfig, Tokenizer
from glassformer.models import DecoderConfig, Mlp, block, repeat
from glassformer.models.stack import cross_context, make_context
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
    within,
)
from glassformer.training import OptimConfig, TrainConfig

MILD, SHARP, TEXT = "noise of deviation 1", "noise of deviation 3", "text"
PLAIN, LOG_N, TESTED = "none", "log n", "log n, at test time alone"
TRAINED, NOISE_AT, WIDTH, LAYERS, LAST, SETS = 64, 512, 64, 2, 16, 16
LONG, LONGEST = 512, 4096
DATA = TextConfig(batch_size=32, length=TRAINED, sources=("prose:python-stdlib",), vocab_size=512)


def run(case: Case) -> Measures:
    temperature, n = case["temperature"], case["n"]
    if case["scores"] != TEXT:
        return {"entropy": noise(3.0 if case["scores"] == SHARP else 1.0, case)}
    trained = gf.load(case.train(recipe(PLAIN if temperature == TESTED else temperature, case["steps"])))
    model = decoder(temperature).build()
    model.load_state_dict(trained.state_dict())
    found: dict[str, list[Tensor]] = {"entropy": [], "spread": [], "loss": []}
    for rows in held_out(trained.tokenizer, case["rows"]).split(16):
        read = gf.run(model, rows[:, -n - 1 : -1], read=["pattern", "scores", "logits"])
        last = read["logits"].values[:, -LAST:].mT
        found["loss"].append(torch.nn.functional.cross_entropy(last, rows[:, -LAST:], reduction="none"))
        for layer in range(LAYERS):
            found["entropy"].append(entropy(read["pattern", layer].values[:, :, -1]))
            found["spread"].append(read["scores", layer].values[:, :, -1].std(-1))
    return {name: float(torch.cat(numbers).mean()) for name, numbers in found.items()}


def noise(deviation: float, case: Case) -> float:
    """Return the entropy of what normal queries make of n normal keys, in 16 sets of both."""
    mixer = Softmax(temperature=LogN(NOISE_AT) if case["temperature"] == LOG_N else None)
    generator, n, queries = case.generator(), case["n"], case["rows"] // SETS
    q, k = (torch.randn(SETS, 1, size, WIDTH, generator=generator, dtype=torch.float64) for size in (queries, n))
    context = cross_context(make_context(SETS, queries, q.device, is_causal=True), n, None)
    head = mixer.build(Attention(1).dims(WIDTH, n), "head")
    return float(entropy(head.pattern(q * deviation, k, q, context, None)).mean())


def entropy(weights: Tensor) -> Tensor:
    return -torch.special.xlogy(weights, weights).sum(-1)


def decoder(temperature: str) -> DecoderConfig:
    kinds = {PLAIN: None, LOG_N: LogN(TRAINED), TESTED: LogN(TRAINED, beyond=True)}
    layer = block(Softmax(temperature=kinds[temperature]), n_heads=4, mlp=Mlp(4 * WIDTH))
    return DecoderConfig(DATA.vocab_size, WIDTH, repeat(layer, LAYERS), max_len=LONG)


def recipe(temperature: str, steps: int) -> TrainConfig:
    model, optim = decoder(temperature), OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(model, DATA, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


def held_out(tokenizer: Tokenizer | None, number: int) -> Tensor:
    """Return rows of 513 tokens of held-out documents, none of two, that begin 128 tokens apart."""
    assert tokenizer is not None, "what is trained on text has one"
    ids = [torch.tensor(tokenizer.encode(document.text)) for document in DATA.documents()["heldout"]]
    rows = torch.cat([text.unfold(0, LONG + 1, 128) for text in ids if len(text) > LONG])
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:number]]


def grown(scores: str, temperature: str, to: int) -> Quantity:
    """Return by how much the entropy grows from 64 keys to so many."""
    longer, shorter = (value("entropy", scores=scores, temperature=temperature, n=n) for n in (to, TRAINED))
    return longer - shorter


def loss(temperature: str, n: int = LONG) -> Quantity:
    return value("loss", scores=TEXT, temperature=temperature, n=n)


LEARNED = Condition(
    "The decoder has learned text: it loses two thirds of what guessing does at most", loss(PLAIN, TRAINED),
    below(2 / 3 * math.log(DATA.vocab_size)),
)  # fmt: skip
SPREADS = Condition("Its heads spread over 512 tokens", grown(TEXT, PLAIN, LONG), above(0))
WORSE = Condition("It predicts worse behind 512 tokens than behind 64", loss(PLAIN) - loss(PLAIN, TRAINED), above(0))

STUDY = Study(
    "entropy-by-length",
    paper='Su 2021, "Entropy invariance of softmax", kexue.fm/archives/8823; Nakanishi 2025, "Scalable-Softmax Is '
    'Superior for Attention", arXiv 2501.19399',
    question="Does attention spread in longer texts, do scores that grow with log n keep it, and does that help?",
    run=run,
    grid={"scores": (MILD, SHARP, TEXT), "temperature": (PLAIN, LOG_N, TESTED), "n": (TRAINED, 128, LONG, LONGEST)},
    scales={
        "smoke": Scale(1, {"steps": 5, "rows": 16}, {"n": (TRAINED, LONG)}),
        "small": Scale(3, {"steps": 800, "rows": 256}),
    },
    measures={
        "entropy": Measure("Entropy of a row that sees n keys, mean over heads", "nats"),
        "spread": Measure("Standard deviation of a row of scores that heads have learned"),
        "loss": Measure("Loss on the last 16 tokens of n", "nats"),
    },
    claims=(
        Claim("mild-grows", "Over mild noise it grows as that of even rows does", grown(MILD, PLAIN, LONGEST),
              within(0.1, 4.159)),
        Claim("mild-log-n", "With log n it grows by 2/3 less", grown(MILD, LOG_N, LONGEST), within(0.1, 3.492)),
        Claim("sharp-grows", "Over sharp noise it grows, too", grown(SHARP, PLAIN, LONGEST), above(2)),
        Claim("sharp-log-n", "With log n sharp rows stay as sharp as they are", grown(SHARP, LOG_N, LONGEST),
              within(0.5, 0)),
        Claim("heads-spread", "Heads trained on 64 tokens spread over 512", grown(TEXT, PLAIN, LONG), above(0),
              (LEARNED,)),
        Claim("heads-log-n", "With log n they spread less", grown(TEXT, LOG_N, LONG) - grown(TEXT, PLAIN, LONG),
              below(0), (LEARNED, SPREADS)),
        Claim("text-worse", "Behind 512 tokens text is predicted worse than behind 64",
              loss(PLAIN) - loss(PLAIN, TRAINED), above(0), (LEARNED,)),
        Claim("log-n-helps", "With log n it is predicted better than without", loss(LOG_N) - loss(PLAIN), below(0),
              (LEARNED, WORSE)),
        Claim("log-n-tested", "With log n at test time alone, too", loss(TESTED) - loss(PLAIN), below(0),
              (LEARNED, WORSE)),
        Claim("log-n-trained", "Better still if it was trained with it", loss(LOG_N) - loss(TESTED), below(0),
              (LEARNED, WORSE)),
        Claim("log-n-within", "Behind 64 tokens log n costs nothing", loss(LOG_N, TRAINED) - loss(PLAIN, TRAINED),
              within(0.05, 0), (LEARNED,)),
    ),
    differs=(
        "Decoders of two layers and width 64 on docstrings, without positions; Su's are masked language models with "
        "rotary positions, Nakanishi's learn the factor on log n. Noise is as it is without log n at 512 keys.",
        "Asked first of recalling one pair of many, which was solved at every length: that decided nothing.",
    ),
    mechanisms=("softmax",),
    references={"scores": (TEXT,), "temperature": (PLAIN,), "n": (TRAINED, LONG)},
    skip=lambda at: at["n"] == LONGEST if at["scores"] == TEXT else at["n"] == 128 or at["temperature"] == TESTED,
)  # fmt: skip
