"""What attention added to the fixed vector, and which scores of it stand wide queries and keys.

Rows of symbols are to be written backwards: which word of the source each word of the target is, is known. One model
reads both ways with a gated recurrence, one writes with two of them; between these it reads the source, at its last
position only or by attention. Nothing but the score differs: queries and keys of width d start with unit variance, as
the argument for dividing by the root of d has it, and all else is as wide in every case.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

import glassformer as gf
from glassformer.attention import Additive, Attention, LastKey, MixerConfig, Softmax
from glassformer.models import BlockConfig, EncoderDecoder, EncoderDecoderConfig, Gru, LayerNorm
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

FIXED, ADDITIVE, SCALED, PLAIN = "fixed vector", "additive", "product over sqrt(d)", "product"
MIXERS: dict[str, MixerConfig] = {FIXED: LastKey(), ADDITIVE: Additive(), SCALED: Softmax(), PLAIN: Softmax(scale=1.0)}
SYMBOLS, WIDTH, ROWS, SHORT, NARROW, WIDE = 16, 64, 64, 4, 8, 256
READ = "decoder.blocks.0.cross.pattern"


def run(case: Case) -> Measures:
    model, generator = built(case["reads"], case["width"], case.seed), case.generator()
    steps, long, optimiser = case["steps"], case["longest"], torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(steps):
        length = int(torch.randint(SHORT, long + 1, (), generator=generator))
        optimiser.zero_grad()
        source, tokens, targets = drawn(ROWS, length, generator)
        F.cross_entropy(model(source, tokens).flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    right_long, loss, aligned = measured(model, long, generator)
    return {
        "accuracy_short": measured(model, SHORT, generator)[0],
        "accuracy_long": right_long,
        "share_of_chance": loss / math.log(SYMBOLS),
        "alignment": aligned,
    }


def built(reads: str, width: int, seed: int) -> EncoderDecoder:
    across = Attention(1, d_head=width, d_value=WIDTH, mixer=MIXERS[reads], cross=True)
    model = EncoderDecoderConfig(
        SYMBOLS + 1, WIDTH, (BlockConfig((Gru(bidirectional=True),)),), (BlockConfig((Gru(), across, Gru())),),
        positions=None, final_norm=LayerNorm(),
    ).build(seed)  # fmt: skip
    maps = model.decoder.blocks[0].part("cross").get_submodule("projection.qkv")
    assert isinstance(maps.weight, Tensor), "one matrix, of which the first rows make queries and keys"
    torch.nn.init.normal_(maps.weight.detach()[: 2 * width], std=WIDTH**-0.5)
    return model


def drawn(rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources, what the decoder reads, from token 0 on, and what it is to write."""
    source = torch.randint(1, SYMBOLS + 1, (rows, length), generator=generator)
    targets = source.flip(1)
    return source, F.pad(targets[:, :-1], (1, 0)), targets


def measured(model: EncoderDecoder, length: int, generator: torch.Generator) -> tuple[float, float, float]:
    """Return the share of words that are right, the loss in nats, and the weight on the word that is to be written."""
    source, tokens, targets = drawn(8 * ROWS, length, generator)
    done = gf.run(model, source, tokens, read=[READ])
    logits = done.logits
    assert logits is not None, "the pass is a whole one"
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    aligned = done[READ].values[:, 0].flip(-1).diagonal(dim1=-2, dim2=-1)
    return float((logits.argmax(-1) == targets).double().mean()), float(loss), float(aligned.mean())


def share(reads: str, width: int, measure: str = "share_of_chance") -> Quantity:
    return value(measure, reads=reads, width=width)


def right(reads: str, measure: str) -> Quantity:
    return value(measure, reads=reads, width=32)


LONG = Condition("Long sources are too much for a fixed vector", right(FIXED, "accuracy_long"), below(0.5))
SHORTS = Condition("A fixed vector does for short sources", right(FIXED, "accuracy_short"), above(0.9))
ALWAYS = tuple(
    Condition(f"Scaled products of width {d} learn to translate", share(SCALED, d), below(0.1)) for d in (NARROW, WIDE)
)

STUDY = Study(
    "additive-and-dot",
    paper="Bahdanau, Cho and Bengio 2014, arXiv 1409.0473; Cho et al. 2014, arXiv 1406.1078; Vaswani et al. 2017, "
    "section 3.2.1; Britz et al. 2017, arXiv 1703.03906, section 4.5",
    question="What does attention add to a fixed vector, and which scores stand wide queries and keys?",
    run=run,
    grid={"reads": tuple(MIXERS), "width": (NARROW, 32, WIDE)},
    skip=lambda point: point["reads"] == FIXED and point["width"] != 32,
    scales={"smoke": Scale(1, {"steps": 3, "longest": 5}), "small": Scale(3, {"steps": 600, "longest": 20})},
    measures={
        "accuracy_short": Measure("Share of words that are right, sources of 4 words"),
        "accuracy_long": Measure("Share of words that are right, sources of the largest length trained on"),
        "share_of_chance": Measure("Loss on those, of that of guessing among sixteen symbols"),
        "alignment": Measure("Weight on the word of the source that is to be written, on those"),
    },
    claims=(
        Claim("fixed-short", "A fixed vector is enough for short sources", right(FIXED, "accuracy_short"), above(0.9)),
        Claim("fixed-long", "It is not for long ones", right(FIXED, "accuracy_long"), below(0.5), (SHORTS,)),
        Claim("additive-long", "Additive attention translates long sources", right(ADDITIVE, "accuracy_long"),
              above(0.95), (LONG,)),
        Claim("additive-length", "With it, length costs nothing",
              right(ADDITIVE, "accuracy_short") - right(ADDITIVE, "accuracy_long"), below(0.05), (LONG,)),
        Claim("additive-aligns", "Additive attention finds the word that is translated", right(ADDITIVE, "alignment"),
              above(0.5), (LONG,)),
        Claim("scaled-aligns", "So does the scaled product", right(SCALED, "alignment"), above(0.5), (LONG,)),
        Claim("plain-width", "Plain products get worse with the width", share(PLAIN, WIDE) - share(PLAIN, NARROW),
              above(0.05), ALWAYS),
        Claim("plain-wide", "Wide, they are worse than scaled ones", share(PLAIN, WIDE) - share(SCALED, WIDE),
              above(0.05), ALWAYS),
        Claim("scaled-width", "Scaled products do not get worse", share(SCALED, WIDE) - share(SCALED, NARROW),
              below(0.05), ALWAYS[:1]),
        Claim("additive-width", "Additive scores do not get worse", share(ADDITIVE, WIDE) - share(ADDITIVE, NARROW),
              below(0.05), ALWAYS),
        Claim("additive-wide", "Wide, they do as well as scaled products", share(ADDITIVE, WIDE) - share(SCALED, WIDE),
              within(0.05, 0), ALWAYS),
    ),
    differs=(
        "Sixteen symbols written backwards, 600 steps of training, one learning rate; the papers translate.",
        "Queries are of the state that has read the word before, and what is read of the source, the fixed vector too, "
        "enters a second recurrence; in the papers it enters the state that asks next. States begin at zero.",
    ),
    mechanisms=("softmax", "additive", "last_key"),
    kinds=kinds_of(MIXERS),
    references={"reads": (FIXED, SCALED), "width": (NARROW, 32, WIDE)},
)  # fmt: skip
