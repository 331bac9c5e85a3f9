"""Dispersion: softmax must spread as keys become many, and a rule of temperature at test time sharpens some rows.

Items have a value and a class, and the class of the largest is asked for: one head that reads them, between two small
networks, trained with 16 items at most. Its scores have bounds, so that with n items no weight exceeds a constant over
n. The rule makes scores larger by a polynomial of the row's entropy, which exceeds one between two entropies.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.attention import AdaptiveTemperature, Attention, Softmax
from glassformer.attention.temperature import AdaptiveSharpness
from glassformer.models.stack import make_context, with_source
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
    within,
)
from glassformer.trace import SiteTable, Tape

CLASSES, WIDTH, ROWS, MOST = 10, 32, 128, 16
FEW, FAR, FARTHEST = 16, 1024, 65_536
RULE = AdaptiveTemperature()


class Finder(nn.Module):
    """Items through a network, one learned query over them, and a network that names a class."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Sequential(nn.Linear(1 + CLASSES, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.query = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.head = Attention(1, mixer=Softmax(temperature=RULE), cross=True).build(WIDTH, MOST, 0, "head")
        self.name = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, CLASSES))

    def sites(self, glob: str = "*") -> SiteTable:
        return SiteTable({site.name: site for site in self.head.sites()})

    def forward(self, values: Tensor, classes: Tensor, tape: Tape | None = None) -> Tensor:
        items = self.items(torch.cat((values[..., None], F.one_hot(classes, CLASSES)), -1))
        context = with_source(make_context(len(items), 1, items.device, is_causal=True), items.shape[1])
        return self.name(self.head(self.query.expand(len(items), -1, -1), context, source=items, tape=tape)[0][:, 0])


def run(case: Case) -> Measures:
    generator, finder, n = case.generator(), Finder(), case["n"]
    optimiser = torch.optim.Adam(finder.parameters(), lr=1e-3)
    for _ in range(case["steps"]):
        optimiser.zero_grad()
        values, classes, answers = drawn(ROWS, int(torch.randint(1, MOST + 1, (), generator=generator)), generator)
        F.cross_entropy(finder(values, classes), answers).backward()
        optimiser.step()
    rows, at_once = max(64, min(1024, 2**22 // n)), 2**18 // n
    found = [measured(finder, *drawn(at_once, n, generator)) for _ in range(0, rows, at_once)]
    entropies = torch.linspace(0, 8, 80_001, dtype=torch.float64)
    acts = entropies[sharpens(entropies)]
    means = {name: float(torch.cat([some[name].double() for some in found]).mean()) for name in found[0]}
    return means | {"lowest": float(acts[0]), "highest": float(acts[-1])}


def drawn(rows: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return values and classes of items, `row item`, and the class of each row's largest."""
    values, classes = torch.rand(rows, n, generator=generator), torch.randint(CLASSES, (rows, n), generator=generator)
    return values, classes, classes.gather(1, values.argmax(1, keepdim=True))[:, 0]


@torch.no_grad()
def measured(finder: Finder, values: Tensor, classes: Tensor, answers: Tensor) -> dict[str, Tensor]:
    """Return numbers of each row: in training mode the rule does nothing, in evaluation it does."""
    tape = Tape(finder.train(), ["pattern"])
    accuracy = finder(values, classes, tape).argmax(-1) == answers
    weights = tape.values["head.pattern"]
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    with_rule = finder.eval()(values, classes).argmax(-1) == answers
    found = {"accuracy": accuracy, "accuracy_rule": with_rule, "sharpened": sharpens(entropy)}
    return found | {"largest": weights.amax(-1), "entropy": entropy}


def sharpens(of: Tensor) -> Tensor:
    """Return whether the rule multiplies scores by more than one, in rows of an entropy."""
    return AdaptiveSharpness(RULE).factor(of) > 1


def at(n: int, measure: str = "accuracy") -> Quantity:
    return value(measure, n=n)


READS = Condition("The head finds the largest of as many items as in training", at(FEW), above(0.9))
SPREADS = Condition("Of 1,024 it finds fewer, so that there is something to mend", at(FAR) - at(FEW), below(-0.1))
COEFFICIENTS = "it follows from the coefficients of the rule, whatever was trained"

STUDY = Study(
    "dispersion",
    paper='Veličković et al. 2024, "softmax is not enough (for sharp out-of-distribution)", arXiv 2410.01104: of '
    "maxima among 1,024 items 53.8 % are found, 57.7 % with the rule",
    question="Does a trained head spread over many items, and what does a temperature at test time mend?",
    run=run,
    grid={"n": (FEW, 64, 256, FAR, FARTHEST)},
    scales={"smoke": Scale(2, {"steps": 10}, {"n": (FEW, FAR)}), "small": Scale(3, {"steps": 4000})},
    measures={
        "accuracy": Measure("Share of rows whose class is found; guessing finds 0.1"),
        "largest": Measure("Largest weight of a row"),
        "entropy": Measure("Entropy of a row", "nats"),
        "accuracy_rule": Measure("Share of rows whose class is found with the rule"),
        "sharpened": Measure("Share of rows that the rule makes sharper"),
        "lowest": Measure("Entropy from which the rule makes rows sharper", "nats"),
        "highest": Measure("Entropy up to which it does", "nats"),
    },
    claims=(
        Claim("finds-few", "One head finds the largest of as many items as in training", at(FEW), above(0.9)),
        Claim("finds-fewer", "Of 1,024 it finds fewer", at(FAR) - at(FEW), below(-0.1), (READS,)),
        Claim("weights-shrink", "Weights over 64 times as many items are a 64th",
              at(FARTHEST, "largest") / at(FAR, "largest"), within(0.5 / 64, 1 / 64), (READS,)),
        Claim("rule-helps", "With the rule it finds more of 1,024", at(FAR, "accuracy_rule") - at(FAR), above(0),
              (READS, SPREADS)),
        Claim("rule-not-enough", "It still finds fewer than of 16", at(FAR, "accuracy_rule") - at(FEW), below(-0.1),
              (READS, SPREADS)),
        Claim("rule-near", "Of 16, the rule changes next to nothing", at(FEW, "accuracy_rule") - at(FEW),
              within(0.01, 0), (READS,)),
        Claim("rule-from", "The rule makes rows sharper from 0.849 nats", value("lowest"), within(1e-3, 0.849),
              exact=COEFFICIENTS),
        Claim("rule-to", "It does so up to 5.944 nats", value("highest"), within(1e-3, 5.944), exact=COEFFICIENTS),
        Claim("rule-far", "It leaves the trained head alone over 65,536 items",
              counted(at(FARTHEST, "sharpened"), below(0.05)), MAJORITY, (READS,)),
    ),
    differs=(
        "Networks of width 32 and 4,000 steps of 128 rows; the paper trains for far longer.",
        "The query is learned. Edges of the rule follow from its coefficients; the paper does not name them.",
    ),
    mechanisms=("softmax",),
    references={"n": (FEW, FAR)},
)  # fmt: skip
