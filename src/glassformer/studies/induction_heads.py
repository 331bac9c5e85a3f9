"""Is it induction heads that carry in-context learning? What ablation and weights say of the two-layer model.

The runs are those of the phase change: who has run that study has trained them.
"""

import dataclasses
import statistics

import torch

import glassformer as gf
from glassformer.analysis.causal import ablate, ablate_each
from glassformer.analysis.from_weights import composition
from glassformer.analysis.heads import HeadEvaluation, evaluate_heads, head_roles
from glassformer.analysis.learning import read_history
from glassformer.data import Repeat
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.models import ModelLike
from glassformer.studies.phase_change import DIFFERS, SCALES, TWO, recipe
from glassformer.study import Case, Claim, Measure, Measures, Study, above, below, value

INDUCTION = 0.4  # prefix matching from which a head counts as an induction head: a habit of the field


def run(case: Case) -> Measures:
    history = read_history(case.train(recipe(TWO, case)))
    rows = history.batches(case["batches"])
    model = history.model(history.steps[-1])
    circuit = Circuit(model, evaluate_heads(model, torch.cat([batch.tokens for batch in rows])))
    return {
        "icl_share": lambda: float(ablate(model, circuit.induction, *rows).icl_share.values),
        "icl_share_of_others": lambda: circuit.median_of_others(ablate_each(model, *rows).icl_share),
        "least_matching": circuit.least_matching,
        "matching_without_source": circuit.matching_without_source,
        "k_composition": circuit.k_composition,
        "copying": lambda: circuit.score(circuit.best, "copying"),
    }


@dataclasses.dataclass(frozen=True)
class Circuit:
    """The induction heads of a model after training, and where they have it from."""

    model: ModelLike
    scores: HeadEvaluation

    @property
    def induction(self) -> list[str]:
        heads = map(str, self.scores.scores.labels("head"))
        if found := [head for head in heads if self.score(head, "prefix_matching") >= INDUCTION]:
            return found
        raise AnalysisUnavailable(f"no head's prefix matching reaches {INDUCTION}: there is no induction head")

    @property
    def best(self) -> str:
        return max(self.induction, key=lambda head: self.score(head, "prefix_matching"))

    @property
    def source(self) -> str:
        """Return the head before the best induction head that attends most to the previous token."""
        if self.best.startswith("L0"):
            raise AnalysisUnavailable(f"{self.best} lies in the first layer: no head before it")
        earlier = [head for head in map(str, self.scores.scores.labels("head")) if head.startswith("L0")]
        return max(earlier, key=lambda head: self.score(head, "previous_token"))

    def score(self, head: str, evaluator: str, setting: str = "repeated") -> float:
        return float(self.scores.scores.select(setting=setting, head=head, evaluator=evaluator).values)

    def median_of_others(self, share: Labelled) -> float:
        """Return the median over heads that are no induction heads."""
        values = zip(share.labels("heads"), share.values.tolist())
        return statistics.median(value for head, value in values if head not in self.induction)

    def least_matching(self) -> float:
        settings = map(str, self.scores.scores.labels("setting"))
        return min(max(self.score(head, "prefix_matching", each) for head in self.induction) for each in settings)

    def matching_without_source(self) -> float:
        """Return the share of the best head's prefix matching that is left when its source writes nothing."""
        ids = Repeat(batch_size=10, length=100, unit_min=25, unit_max=25, vocab_size=self.model.config.vocab_size)
        tokens = ids.build().batch(0, "heldout").tokens
        silent = gf.Scale(f"{self.source}.head_out", 0.0)
        found = [head_roles(gf.run(self.model, tokens, read=[head_roles], edit=edit)) for edit in ([], [silent])]
        whole, without = (each.scores.select(head=self.best, role="induction").values for each in found)
        return float(without / whole)

    def k_composition(self) -> float:
        return float(composition(self.model).excess().select(kind="K", earlier=self.source, later=self.best).values)


STUDY = Study(
    "induction-heads",
    paper='Olsson et al. 2022, "In-context Learning and Induction Heads", arguments 3 to 5',
    question="Is it induction heads that carry in-context learning, and how do they work?",
    run=run,
    scales=SCALES,
    measures={
        "icl_share": Measure("Share of the score that goes with the induction heads", analysis=ablate),
        "icl_share_of_others": Measure("Share that goes with one of the other heads, their median"),
        "least_matching": Measure("Prefix matching in the setting where it is least, natural text among them"),
        "matching_without_source": Measure("Share of prefix matching left without the previous-token head before it"),
        "k_composition": Measure("K-composition with that head", "standard deviations of random matrices", composition),
        "copying": Measure("Copying score of the best induction head"),
    },
    claims=(
        Claim("carry", "Without them most in-context learning is gone", value("icl_share"), above(0.5)),
        Claim("others-do-not", "Without another head it is not", value("icl_share_of_others"), below(0.1)),
        Claim("match-in-text", "They match prefixes in text as well", value("least_matching"), above(INDUCTION)),
        Claim("by-source", "They do so by what the previous-token head tells them", value("matching_without_source"),
              below(0.5)),
        Claim("through-keys", "Through their keys", value("k_composition"), above(4)),
        Claim("copy", "They copy", value("copying"), above(0)),
    ),
    differs=(
        *DIFFERS, "Ablation is by zeros, and what comes after reacts.",
        "Argument 6, that large models do the same, no small model answers.",
    ),
    mechanisms=("softmax",),
)  # fmt: skip
