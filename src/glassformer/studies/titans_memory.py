"""Recall beyond the window by memories that learn while they read, and what surprises them.

A row tells facts, each a token for a key and its value, and then asks for them, a token for the key. A block of Titans
uses its memory as a context of attention within segments of the window's length, as a gate on attention within a
window, as a layer before that, or alone; beside it stand attention of the same window, and to all. What has left the
window is out of reach of attention: there is one block, and no answer is read. In half of the rows facts are told once
and asked for until the end; in the other half they are told with new values in every window, so that each model learns
to find what it sees.

What surprises a memory is measured where nothing is asked: a few facts come again and again, and one of them at last
with another value. Surprise is the length of the gradient by which the memory learns, mean over heads.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

import glassformer as gf
from glassformer.attention import Attention, LinearMemory, Persistent, Rope
from glassformer.errors import AnalysisUnavailable
from glassformer.models import BlockConfig, Decoder, DecoderConfig, Mlp, RmsNorm, titans
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
    value,
)
from glassformer.trace import Tape
from glassformer.trace.tape import EditLike

KEYS, VALUES, LENGTH = 4, 4, 32
NEW, FIRST_FACT = 0, 1
FIRST_QUESTION = FIRST_FACT + KEYS * VALUES
FIRST_ANSWER = FIRST_QUESTION + KEYS
WIDTH, HEADS, WINDOW, ROWS, BATCHES, RATE = 32, 2, 8, 32, 4, 1e-2
LEFT = KEYS + WINDOW  # from here on no fact is in sight of a row that tells them once

ALL, WINDOWED = "attention to all", "window"
# attention takes more steps to learn these rows than memories do, most of all where it sees the answers to half of them
SLOWER = {ALL: 8, WINDOWED: 24, "context": 8}
Used = Literal["context", "gate", "layer", "alone"]
USED: tuple[Used, ...] = get_args(Used)


class Rows(NamedTuple):
    """Rows of facts and questions.

    Args:
        tokens: What is read.
        answers: What each question is to be answered by; 0 elsewhere.
        asked: Where questions are.
    """

    tokens: Int[Tensor, "batch pos"]
    answers: Int[Tensor, "batch pos"]
    asked: Bool[Tensor, "batch pos"]


def told(n: int, random: torch.Generator, *, topics: int = 1, redefined: bool = True) -> Rows:
    """Return rows of topics, each a token that says so, a fact for every key in any order, and questions.

    Args:
        n: How many rows.
        random: Draws them.
        topics: In a row, of equal length.
        redefined: Keys have new values in each topic, and not those of the first.
    """
    values = torch.randint(VALUES, (n, topics if redefined else 1, KEYS), generator=random).expand(-1, topics, -1)
    keys = torch.rand(n, topics, KEYS, generator=random).argsort(-1)
    asked = torch.randint(KEYS, (n, topics, LENGTH // topics - KEYS - 1), generator=random)
    facts, questions = FIRST_FACT + keys * VALUES + values.gather(-1, keys), FIRST_QUESTION + asked
    tokens = torch.cat((torch.full((n, topics, 1), NEW), facts, questions), -1).flatten(1)
    answers = F.pad(FIRST_ANSWER + values.gather(-1, asked), (1 + KEYS, 0)).flatten(1)
    return Rows(tokens, answers, answers > 0)


def near_and_far(n: int, random: torch.Generator) -> Rows:
    """Return rows of which half are one topic, and half are topics as long as the window, which nothing leaves."""
    halves = told(n // 2, random), told(n // 2, random, topics=LENGTH // WINDOW)
    return Rows(*map(torch.cat, zip(*halves, strict=True)))


def repeated(n: int, random: torch.Generator) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, " batch"]]:
    """Return rows of facts that come again and again, one of them at last with another value, and where that is."""
    keys = torch.rand(n, KEYS, generator=random).argsort(-1)
    values = torch.randint(VALUES, (n, KEYS), generator=random)
    tokens = (FIRST_FACT + keys * VALUES + values).repeat(1, LENGTH // KEYS)
    place = torch.randint(LENGTH - KEYS, LENGTH, (n,), generator=random)
    key, old = keys.gather(1, place[:, None] % KEYS), values.gather(1, place[:, None] % KEYS)
    new = (old + torch.randint(1, VALUES, (n, 1), generator=random)) % VALUES
    return tokens.scatter(1, place[:, None], FIRST_FACT + key * VALUES + new), place


def run(case: Case) -> Measures:
    config = decoder(layers(case["memory"]))
    steps = case["steps"] * SLOWER.get(case["memory"], 1)
    model = learned(config, case, near_and_far, steps)
    far, near = (told(BATCHES * ROWS, case.generator(), topics=n) for n in (1, LENGTH // WINDOW))
    found: dict[str, float | Callable[[], float]] = {
        "near": answered(model, near, near.asked)[0],
        "beyond": answered(model, far, far.asked & (torch.arange(LENGTH) >= LEFT))[0],
    }
    for name, one in (("", model), ("_untrained", config.build(case.seed))):
        found["novelty" + name] = lambda one=one: novelty(one, case)[0]
        found["peaks" + name] = lambda one=one: novelty(one, case)[1]
    return found


def layers(memory: str) -> tuple[BlockConfig, ...]:
    """Return one block."""
    if memory in USED:
        return titans(1, n_heads=HEADS, memory=LinearMemory(chunk=8), used=memory, window=WINDOW, mlp=Mlp(2 * WIDTH))
    mixer = Persistent(window=None if memory == ALL else WINDOW)
    return (BlockConfig((Attention(HEADS, mixer=mixer, positions=Rope()), Mlp(2 * WIDTH)), RmsNorm()),)


def decoder(blocks: tuple[BlockConfig, ...]) -> DecoderConfig:
    return DecoderConfig(FIRST_ANSWER + VALUES, WIDTH, blocks, max_len=LENGTH)


def learned(
    config: DecoderConfig,
    case: Case,
    draw: Callable[[int, torch.Generator], Rows],
    steps: int,
    edit: tuple[EditLike, ...] = (),
) -> Decoder:
    """Return a model that has learned to answer, with edits in every pass if there are any."""
    model, random = config.build(case.seed), torch.Generator().manual_seed(1000 + case.seed)
    optimiser = torch.optim.AdamW(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        rows = draw(ROWS, random)
        logits = model(rows.tokens, tape=Tape(model, edit=edit) if edit else None)
        optimiser.zero_grad()
        F.cross_entropy(logits[rows.asked], rows.answers[rows.asked]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        case.report(step + 1, steps)
    return model


@torch.no_grad()
def answered(
    model: Decoder, rows: Rows, asked: Bool[Tensor, "batch pos"], edit: tuple[EditLike, ...] = ()
) -> tuple[float, float]:
    """Return the share of some questions that are answered right, and the loss on their answers, in nats."""
    logits, answers = model(rows.tokens, tape=Tape(model, edit=edit))[asked], rows.answers[asked]
    return float((logits.argmax(-1) == answers).double().mean()), float(F.cross_entropy(logits, answers))


def novelty(model: Decoder, case: Case) -> tuple[float, float]:
    """Return surprise at a fact with another value over that at the rest, and how often it is the largest of a row.

    Both are of the second half of rows in which facts come again; a row's largest counts if it is at the fact or at the
    three tokens behind it, into which the memory's convolutions mix it, and the rest is without these.

    Raises:
        AnalysisUnavailable: The model has no memory that learns.
    """
    sites = [name for name in model.sites() if name.endswith(".surprise")]
    if not sites:
        raise AnalysisUnavailable("attention learns nothing while it reads, so that nothing surprises it")
    tokens, place = repeated(BATCHES * ROWS, case.generator())
    values = gf.run(model, tokens, read=sites)
    surprise = torch.stack([values[name].values.mean(1) for name in sites]).mean(0)
    behind = torch.arange(LENGTH) - place[:, None]
    second, planted = torch.arange(LENGTH) >= LENGTH // 2, (behind >= 0) & (behind < 4)
    rest = surprise[second & ~planted].mean()
    largest = surprise.masked_fill(~second, 0.0).argmax(-1, keepdim=True)
    return float(surprise[behind == 0].mean() / rest), float(planted.gather(1, largest).double().mean())


def of(measure: str, memory: str) -> Quantity:
    return value(measure, memory=memory)


def claims(used: Used) -> tuple[Claim, ...]:
    """Return what is claimed of a memory."""
    how = f"Memory, {used}"
    return (
        Claim(f"{used}-beyond", f"{how}: what has left the window is found", counted(of("beyond", used), above(0.9)),
              MAJORITY, (FINDS, SEES)),
        Claim(f"{used}-novelty", f"{how}: a new value for a key surprises it more than what comes again",
              of("novelty", used), above(1), (FINDS,)),
        Claim(f"{used}-novelty-learned", f"{how}: and more so than it does an untrained memory",
              of("novelty", used) - of("novelty_untrained", used), above(0), (FINDS,)),
        Claim(f"{used}-peaks", f"{how}: in most rows surprise is largest there; by chance it is in 0.16 of them",
              of("peaks", used), above(0.5), (FINDS,)),
    )  # fmt: skip


FINDS = Condition("Attention to all finds what has left the window", of("beyond", ALL), above(0.95))
SEES = Condition("Attention within a window finds what is in it", of("near", WINDOWED), above(0.9))

STUDY = Study(
    "titans-memory",
    paper='Behrouz, Zhong, Mirrokni 2025, "Titans: Learning to Memorize at Test Time", arXiv 2501.00663: sections 3.1 '
    "and 4; table 2, where its memories find needles in texts of which other recurrent models lose them",
    question="Do memories that learn while they read find what has left the window, and are they surprised by the new?",
    run=run,
    grid={"memory": (ALL, WINDOWED, *USED)},
    scales={"smoke": Scale(1, {"steps": 2}), "small": Scale(8, {"steps": 300})},
    measures={
        "near": Measure("Share of right answers within the window; guessing has 0.25", learned=True),
        "beyond": Measure("Share of right answers beyond it; guessing has 0.25", learned=True),
        "novelty": Measure("Surprise at a new value for a key, over that at facts that come again"),
        "peaks": Measure("Share of rows in which surprise is largest there"),
        "novelty_untrained": Measure("Surprise at the new value of an untrained model, over that at the rest"),
        "peaks_untrained": Measure("Share of rows in which surprise of an untrained model is largest there"),
    },
    claims=(
        Claim("all-finds", "Attention to all finds what has left the window", counted(of("beyond", ALL), above(0.95)),
              MAJORITY),
        Claim("window-sees", "Attention within a window finds what is in it",
              counted(of("near", WINDOWED), above(0.9)), MAJORITY),
        Claim("window-guesses", "What has left it is guessed", counted(of("beyond", WINDOWED), below(0.4)), MAJORITY,
              (FINDS, SEES)),
        *(claim for used in USED for claim in claims(used)),
    ),
    differs=(
        "One block of width 32 that learns this task alone, on 32 tokens and a window of 8; the paper's models have "
        "170 million parameters and more, learn text, and find needles in up to 16,384 tokens.",
        "The memory is of one matrix, which the paper finds worse than its own of two layers and more.",
        "Attention, and memory as its context, have eight times as many steps as other memories, which learn sooner; "
        "attention within a window, 24 times. Both were set by what attention finds itself.",
        "Surprise is looked at in facts that repeat; the paper defines it and measures none.",
        "How gates are made, and how the memory opens what attention writes, is ours: the paper does not say.",
    ),
    mechanisms=("linear_memory", "persistent"),
    kinds={ALL: ("persistent",), WINDOWED: ("persistent",), "alone": ("linear_memory",)}
    | {used: ("linear_memory", "persistent") for used in USED if used != "alone"},
    references={"memory": (ALL, WINDOWED)},
)  # fmt: skip
