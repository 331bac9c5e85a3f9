"""Into how many heads indirect objects concentrate, where keys are a head's own, a group's or everyone's.

Decoders of one width and one number of parameters learn nothing but templates, "When Mary and John went to the market,
John gave a lamp to" -> Mary; what differs is how many heads of keys and values there are. Trained models of two
families cannot tell that from how each was trained: here it is the only difference.

    heads = (sum over heads of |e|)^2 / sum of e^2        1 if one head does it all, n if n do alike

e is what a head carries of the logit difference of the two names: what is lost if it writes what it writes where the
other one gives (total), or what it adds itself (direct).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

import glassformer as gf
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.causal import patch
from glassformer.attention import Rope
from glassformer.data import Contrast, Pairs, Tokenizer, indirect_objects, word_tokenizer
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Decoder, DecoderConfig, Mlp, block, repeat
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
    least_step,
    value,
)
from glassformer.training import OptimConfig

MHA, GQA, MQA = "MHA", "GQA", "MQA"
HEADS, KEYS = 8, {MHA: 8, GQA: 2, MQA: 1}
WIDTH, DEPTH, ROWS, LONGEST, SEEN = 64, 3, 32, 48, 2048


def run(case: Case) -> Measures:
    tokenizer = words()
    model = config(case["keys"], tokenizer.vocab_size).build(case.seed)
    model.tokenizer = tokenizer
    train(model, case, indirect_objects(case["pairs"], seed=case.seed, split="train").encode(model, pad="right"))
    model.eval()
    # names that were asked about, and never these two together
    asked = indirect_objects(case["asked"], seed=case.seed, new="combination")
    right = known(model, asked.encode(model, pad="right"))

    def carried(by: Callable[[Decoder, Pairs], Tensor], measure: Callable[[Tensor], float]) -> float:
        if right < 0.9:
            raise AnalysisUnavailable(f"the decoder knows {right:.2f} of the indirect objects: no heads carry them")
        return measure(by(model, asked))

    return {
        "right": right,
        "total_heads": lambda: carried(total_effects, participation_ratio),
        "direct_heads": lambda: carried(direct_effects, participation_ratio),
        "largest": lambda: carried(total_effects, largest_share),
    }


def words() -> Tokenizer:
    """The vocabulary: every word that is in thousands of prompts."""
    pairs = indirect_objects(SEEN, split="train")
    return word_tokenizer(prompt for pair in pairs for prompt in (pair.clean, pair.corrupt) if isinstance(prompt, str))


def config(keys: str, vocab_size: int) -> DecoderConfig:
    d_head, kv = WIDTH // HEADS, KEYS[keys]
    # as many weights, whatever the keys: a neuron has as many as a number of a query, key, value or z
    mlp = Mlp(4 * WIDTH - d_head * (HEADS + kv), bias=False)
    layer = block(n_heads=HEADS, n_kv_heads=kv, positions=Rope(), mlp=mlp)
    return DecoderConfig(vocab_size, WIDTH, repeat(layer, DEPTH), max_len=LONGEST, init="xavier")


def train(model: Decoder, case: Case, pairs: Contrast) -> None:
    """Fit a decoder to the names that follow: either prompt of a pair has its own."""
    assert pairs.lengths is not None, "prompts of templates differ in length"
    rows, lengths = torch.cat((pairs.clean, pairs.corrupt)), pairs.lengths.repeat(2)
    names, random = torch.cat((pairs.answer, pairs.wrong)), case.generator()

    def loss(step: int) -> Tensor:
        drawn = torch.randint(len(rows), (ROWS,), generator=random)
        said = last_logits(model, rows[drawn], lengths[drawn])
        return torch.nn.functional.cross_entropy(said, names[drawn])

    for _ in fit(model, case, OptimConfig(lr=3e-3, warmup=50), loss):
        pass


def last_logits(model: Decoder, rows: Tensor, lengths: Tensor) -> Float[Tensor, "batch vocab"]:
    """Return the logits behind each row, which is padded on the right."""
    found = model(rows[:, : int(lengths.max())], lengths=lengths)
    return found[torch.arange(len(rows)), lengths - 1]


@torch.no_grad()
def known(model: Decoder, pairs: Contrast) -> float:
    """Return the share of pairs whose name is the likeliest word of all."""
    assert pairs.lengths is not None, "prompts of templates differ in length"
    likeliest = last_logits(model, pairs.clean, pairs.lengths).argmax(-1)
    return float((likeliest == pairs.answer).double().mean())


def total_effects(model: Decoder, pairs: Pairs) -> Float[Tensor, " head"]:
    """Return what is lost of the logit difference, as a share, if a head writes what it does where the other gives."""
    return patch(model, pairs, sites="head", direction="noising")["head"].carried.values[0].flatten()


def direct_effects(model: Decoder, pairs: Pairs) -> Float[Tensor, " head"]:
    """Return what each head adds to the logit difference by itself, mean over pairs."""
    asked = pairs.encode(model, pad="right")
    read = gf.run(model, [str(pair.clean) for pair in pairs], read=[direct_logit_attribution])
    found = direct_logit_attribution(read, answer=asked.answer, against=asked.wrong, row=None)
    heads = [i for i, component in enumerate(found.components) if component.kind == "head"]
    return found.contributions.values.mean(0)[heads]


def participation_ratio(effects: Float[Tensor, " head"]) -> float:
    """Return how many heads carry effects: their number if all do alike, whatever the signs."""
    return float(effects.abs().sum().square() / effects.square().sum())


def largest_share(effects: Float[Tensor, " head"]) -> float:
    return float(effects.abs().max() / effects.abs().sum())


def of(measure: str, keys: str) -> Quantity:
    return value(measure, keys=keys)


def knows(keys: str) -> Quantity:
    return counted(of("right", keys), above(0.9))


LEARNED = (Condition("With keys of their own, heads learn indirect objects", of("right", MHA), above(0.9)),)


def fewer(keys: str, measure: str, name: str, said: str, most: float = 1.0) -> Claim:
    share = of(measure, keys) / of(measure, MHA)
    return Claim(f"{keys.lower()}-{name}", f"{keys}: {said}", share, below(most), LEARNED)


STUDY = Study(
    "indirect-objects-by-grouping",
    paper='Venkatesh 2026, "Architecture, Not Scale: Circuit Localization in Large Language Models", arXiv 2605.08853 '
    '(grouped queries concentrate circuits, of Qwen2.5 against Pythia); Wang et al. 2022, "Interpretability in the '
    'Wild", arXiv 2211.00593 (the task)',
    question="Do indirect objects concentrate into fewer heads where heads share their keys and values?",
    run=run,
    grid={"keys": (MHA, GQA, MQA)},
    scales={
        "smoke": Scale(1, {"steps": 2, "pairs": 64, "asked": 8}),
        "small": Scale(8, {"steps": 1500, "pairs": 4096, "asked": 128}),
    },
    measures={
        "right": Measure("Share of indirect objects that are known, of names that were never asked about together",
                         learned=True),
        "total_heads": Measure("Heads that carry the difference between the names, by patching", analysis=patch),
        "direct_heads": Measure("Heads that add to it by themselves", analysis=direct_logit_attribution),
        "largest": Measure("Share of the head that carries most, of what all carry, by patching"),
    },
    claims=(
        Claim("learned", "With keys of their own, heads learn indirect objects", knows(MHA), MAJORITY),
        Claim("gqa-learned", "With keys of two groups they do", knows(GQA), MAJORITY, LEARNED),
        Claim("mqa-learned", "With one head of keys they do", knows(MQA), MAJORITY, LEARNED),
        fewer(GQA, "total_heads", "fewer", "fewer heads carry them"),
        fewer(GQA, "total_heads", "far-fewer", "half as many heads carry them, or less", 0.5),
        fewer(GQA, "direct_heads", "fewer-directly", "fewer heads say them"),
        fewer(MQA, "total_heads", "fewer", "fewer heads carry them"),
        fewer(MQA, "direct_heads", "fewer-directly", "fewer heads say them"),
        Claim("ordered", "The fewer heads of keys, the fewer heads carry them",
              least_step("total_heads", "keys", (MQA, GQA, MHA)), above(0), LEARNED),
        Claim("gqa-largest", "GQA: the head that carries most carries a larger share",
              of("largest", GQA) - of("largest", MHA), above(0), LEARNED),
    ),
    differs=(
        "Decoders of three layers with eight heads each and width 64 learn templates alone; the paper compares "
        "families of language models that differ in size, data and training as well.",
        "Concentration is a participation ratio of heads' effects, which is our choice.",
        "What keys have less of, MLPs have more, so that parameters are equal; heads are as many in each.",
        "Pairs that are asked about have frames and names of training, and two names that never stood together there.",
        "A run that knows less than nine of ten is not asked which heads carry what it does not know.",
    ),
    mechanisms=("softmax",),
    references={"keys": (MHA,)},
)  # fmt: skip
