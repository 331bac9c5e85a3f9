"""A window that loses the first tokens of a text, and one that keeps four of them, in decoders trained without either.

Xiao et al. find that models put what attention they need nowhere on the first tokens, whatever these are, and break
when a window lets go of them. Two decoders that were trained on 256 tokens see 128 of up to 2,048: the shipped one,
whose rows began anywhere in a file, and one whose rows all began with `<bos>`.
"""

import math

import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import MixerConfig, Rope, Softmax, Streaming
from glassformer.data import TextConfig
from glassformer.models import DecoderConfig, Mlp, Model, block, repeat
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
    kinds_of,
    value,
    within,
)
from glassformer.training import OptimConfig, TrainConfig

TRAINED, SEEN, LONG, WIDTH = 256, 128, 2048, 128
SHIPPED, BEGUN = "gpt-4l", "rows begin with <bos>"
DATA = TextConfig(batch_size=8, length=TRAINED, vocab_size=1024)
ALL, LAST, ONE, FOUR, LINES = "all", "last", "first one and last", "first four and last", "four line ends and last"
MIXERS: dict[str, MixerConfig] = {ALL: Softmax(), LAST: Softmax(window=SEEN), ONE: Streaming(1, SEEN - 1)}
MIXERS |= {FOUR: Streaming(4, SEEN - 4), LINES: Streaming(4, SEEN - 4)}


def run(case: Case) -> Measures:
    model, rows = decoder(case, LONG + 1)
    read, seen = rows[:, :-1].clone(), case["seen"]
    if seen == LINES:
        read[:, :4] = model.require_tokenizer().encode("\n")[0]
    patterns = gf.run(model, read[:, :TRAINED], read="pattern").layers("pattern").values
    changed = mixing(model, MIXERS[seen])
    losses = torch.cat([each(changed, *some) for some in zip(read.split(2), rows[:, 1:].split(2))])
    return {
        "loss": float(losses[:, TRAINED * 3 // 4 : TRAINED].mean()),
        "loss_beyond": float(losses[:, LONG * 3 // 4 :].mean()),
        "at_once": float(losses[:, SEEN : SEEN + 16].mean()),
        "on_first": float(patterns[..., SEEN:, 0].mean()),
    }


def decoder(case: Case, length: int) -> tuple[Model, Tensor]:
    """Return the decoder of a case, and rows of held-out files, other ones for every seed."""
    begun = case["model"] == BEGUN
    model = gf.load(case.train(begins_alike(case["steps"])) if begun else case["model"])
    tokenizer, number = model.require_tokenizer(), case["rows"]
    ids = [torch.tensor(tokenizer.encode(document.text)) for document in DATA.documents()["heldout"]]
    rows = torch.cat([text.unfold(0, length, length) for text in ids if len(text) >= length])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    rows = rows[order[case.seed * number : (case.seed + 1) * number]]
    if begun:
        rows[:, 0] = tokenizer.require("bos")
    return model.eval(), rows


def begins_alike(steps: int) -> TrainConfig:
    layer, data = block(n_heads=4, mlp=Mlp(4 * WIDTH), positions=Rope()), DATA.replace(row_bos=True)
    model = DecoderConfig(DATA.vocab_size, WIDTH, repeat(layer, 3), max_len=LONG)
    return TrainConfig(model, data, optim=OptimConfig(lr=3e-3, warmup=50), steps=steps, evaluate_every=steps)


def mixing(model: Model, mixer: MixerConfig, **slots: object) -> Model:
    """Return a shipped decoder with another mechanism in all of its layers, and other slots of attention."""
    layers = [
        layer.replace(parts=(layer.parts[0].replace(mixer=mixer, **slots), *layer.parts[1:]))
        for layer in model.config.layers
    ]
    changed = model.config.replace(layers=tuple(layers), max_len=LONG).build()
    changed.load_state_dict(model.state_dict())
    return changed.eval()


@torch.no_grad()
def each(model: Model, read: Tensor, answers: Tensor) -> Tensor:
    """Return the loss at every position."""
    return torch.nn.functional.cross_entropy(model(read).mT, answers, reduction="none")


def loss(model: str, seen: str, than: str | None = None, measure: str = "loss") -> Quantity:
    found = value(measure, seen=seen, model=model)
    return found if than is None else found - value(measure, seen=than, model=model)


def of(model: str) -> tuple[Claim, ...]:
    beyond = loss(model, FOUR, measure="loss_beyond") - loss(model, FOUR)
    reads = Condition(
        "The decoder has learned text: it loses two thirds of what guessing does at most", loss(model, ALL),
        below(2 / 3 * math.log(DATA.vocab_size)),
    )  # fmt: skip
    rests = Condition("Its heads rest on the first token", loss(model, ALL, measure="on_first"), above(0.1))
    short, sees = {SHIPPED: "shipped", BEGUN: "begun"}[model], (reads, rests)
    return (
        Claim(f"{short}-rests", f"{model}: heads rest on the first token", loss(model, ALL, measure="on_first"),
              above(0.1), (reads,)),
        Claim(f"{short}-window", f"{model}: a window that loses it costs a nat and more", loss(model, LAST, ALL),
              above(1), sees),
        Claim(f"{short}-at-once", f"{model}: it does at once", loss(model, LAST, ALL, "at_once"), above(1), sees),
        Claim(f"{short}-four", f"{model}: with the first four it predicts as with all", loss(model, FOUR, ALL),
              within(0.1, 0), sees),
        Claim(f"{short}-one", f"{model}: with one it does not, four are needed", loss(model, ONE, FOUR), above(0),
              sees),
        Claim(f"{short}-lines", f"{model}: line ends in their place do as well", loss(model, LINES, FOUR),
              within(0.1, 0), sees),
        Claim(f"{short}-breaks", f"{model}: in 2,048 tokens it breaks if it sees all",
              loss(model, ALL, FOUR, "loss_beyond"), above(0), (reads,)),
        Claim(f"{short}-reads-on", f"{model}: with the first four it reads on", beyond, within(0.2, 0), sees),
        Claim(f"{short}-beyond", f"{model}: there a window without them is worse",
              loss(model, LAST, FOUR, "loss_beyond"), above(0), sees),
    )  # fmt: skip


STUDY = Study(
    "window-and-first-tokens",
    paper='Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453, table 1: '
    "perplexity 5158 with the last 1024 tokens, 5.40 with the first 4 and the last 1020, 5.60 with 4 line ends",
    question="Does a window break a decoder by losing its first tokens, and do four of them mend it?",
    run=run,
    grid={"model": (SHIPPED, BEGUN), "seen": tuple(MIXERS)},
    scales={"smoke": Scale(1, {"rows": 1, "steps": 2}), "small": Scale(3, {"rows": 8, "steps": 1200})},
    measures={
        "loss": Measure("Loss in the last quarter of 256 tokens", "nats"),
        "loss_beyond": Measure("Loss in the last quarter of 2,048 tokens", "nats"),
        "at_once": Measure("Loss on tokens 129 to 144, of which a window loses the first ones", "nats"),
        "on_first": Measure("Weight of the first token, mean over heads and queries 129 to 256 that see all"),
    },
    claims=(*of(SHIPPED), *of(BEGUN)),
    differs=(
        "Decoders of 3 million and half a million parameters on Python; the paper's have 3 to 70 billion.",
        "Of the shipped one seeds choose rows of held-out files alone; they do not begin with `<bos>`.",
    ),
    mechanisms=("streaming", "softmax"),
    kinds=kinds_of(MIXERS),
    references={"model": (SHIPPED, BEGUN), "seen": (ALL,)},
)  # fmt: skip
