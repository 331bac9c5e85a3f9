"""What GPT-3 costs: the numbers of its paper, counted from its shape on the meta device."""

from glassformer.models import preset
from glassformer.models.accounting import account, count_parameters
from glassformer.study import Case, Claim, Measure, Measures, Scale, Study, value, within

LENGTH, TOKENS = 2048, 300e9


def run(case: Case) -> Measures:
    shape = preset("gpt3-175b")
    parts = count_parameters(shape)
    total = sum(parts.values())
    attention = sum(parts[part] for part in ("query", "key", "value", "output"))
    costs = account(shape, LENGTH)
    return {
        "parameters": total / 1e9,
        "attention_share": attention / total,
        "mlp_share": (parts["mlp in"] + parts["mlp out"]) / total,
        "rule_of_thumb": 6 * total * TOKENS / 1e23,
        "counted": 3 * costs.forward / LENGTH * TOKENS / 1e23,
    }


COUNTED = "it is counted from the published shape"

STUDY = Study(
    "gpt3-accounting",
    paper='Brown et al. 2020, "Language Models are Few-Shot Learners", table 2.1 and appendix D',
    question="Do the published size and training cost of GPT-3 follow from its shape?",
    run=run,
    scales={"smoke": Scale(), "small": Scale()},
    measures={
        "parameters": Measure("Parameters", "10^9"),
        "attention_share": Measure("Share of them in the four matrices of attention"),
        "mlp_share": Measure("Share of them in the two matrices of MLPs"),
        "rule_of_thumb": Measure("Six operations per parameter and training token", "10^23 FLOP"),
        "counted": Measure("Operations of all matrix products, the backward pass counted twice", "10^23 FLOP"),
    },
    claims=(
        Claim("parameters", "It has 175 billion parameters", value("parameters"), within(0.5, 175), exact=COUNTED),
        Claim("mlps", "Two thirds of them are in MLPs", value("mlp_share"), within(0.01, 2 / 3), exact=COUNTED),
        Claim(
            "attention", "A third of them is in attention", value("attention_share"), within(0.01, 1 / 3), exact=COUNTED
        ),
        Claim(
            "training",
            "Training it took 3.14e23 operations",
            value("rule_of_thumb"),
            within(0.005, 3.14),
            exact=COUNTED,
        ),
        Claim(
            "rule-of-thumb",
            "Six operations per parameter and token leave out next to nothing",
            value("counted") / value("rule_of_thumb"),
            within(0.02, 1),
            exact=COUNTED,
        ),
    ),
)
