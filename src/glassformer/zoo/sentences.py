"""What a model makes of sentences whose answer is known: how often it prefers it, and what that takes.

Questions are pairs of the templates that training never held: of each, one frame and an eighth of the combinations of
words. The heads behind an answer are named on pairs of training, and taken away on the others.
"""

from random import Random
from typing import NamedTuple

from glassformer.analysis.causal import ablation_table, answered, patch
from glassformer.analysis.sweep import logit_difference
from glassformer.data import pairs
from glassformer.data.batch import Split
from glassformer.data.pairs import Pairs
from glassformer.errors import DataError
from glassformer.models import ModelLike

N_PAIRS, N_NAMING, N_ABLATED, N_DRAWS = 1000, 64, 200, 10
LEAST_CARRIED = 0.1  # of the logit difference, from which on a head is named


class Measured(NamedTuple):
    """Figures and notes on them."""

    figures: dict[str, float]
    notes: list[str]


def sentences(model: ModelLike, template: str) -> Measured:
    """Return figures of one template, and what they mean.

    Args:
        model: What was trained on `TemplateText`.
        template: Its name.
    """
    asked = _pairs(model, template, N_PAIRS, "heldout")
    found = answered(model, asked)
    figures = {template: found.preferred, f"{template}_said": found.share}
    notes = [
        f"{template}: share of {len(asked)} pairs never shown in training (another frame, or another combination of "
        "the words that decide) in which the answer is likelier than the wrong one; said: likelier than every token"
    ]
    own, others = _heads(model, _pairs(model, template, N_NAMING, "train"))
    if not own:
        return Measured(figures, [*notes, f"{template}: no head alone carries {LEAST_CARRIED} of the logit difference"])
    random = Random(0)
    drawn = [random.sample(others, min(len(own), len(others))) for _ in range(N_DRAWS)]
    held = asked[:N_ABLATED]
    table = ablation_table(
        model,
        [pair.clean for pair in held],
        logit_difference([pair.answer for pair in held], [pair.wrong for pair in held]),
        {"named": own} | {f"drawn {i}": heads for i, heads in enumerate(drawn)},
        kinds=["mean"],
        mean_over="all",
    )
    before = float((table.whole.values > 0).double().mean())
    after = (table.values.values > 0).double().mean(-1)[0, 0]
    figures[f"{template}_without_heads"] = float(after[0])
    notes.append(
        f"{template}_without_heads: the same on {len(held)} of the pairs (with all heads {before:.3f}) when "
        f"{', '.join(own)} give their mean over these prompts. They are named by patching on {N_NAMING} pairs of "
        f"training: each alone carries at least {LEAST_CARRIED} of the logit difference. When as many others do, drawn "
        f"{N_DRAWS} times: {float(after[1:].mean()):.3f}, {float(after[1:].min()):.3f} at least"
    )
    return Measured(figures, notes)


def _pairs(model: ModelLike, template: str, n: int, split: Split) -> Pairs:
    """Return that many pairs; half as many, or half of that, where a template has no more."""
    try:
        return getattr(pairs, template)(n, tokenizer=model.tokenizer, split=split)
    except DataError:
        if n < 2:
            raise
        return _pairs(model, template, n // 2, split)


def _heads(model: ModelLike, asked: Pairs) -> tuple[list[str], list[str]]:
    """Return the heads that carry the logit difference, most of it first, and all others."""
    carried = patch(model, asked.encode(model, pad="right"), sites="z")["z"].carried
    found = {f"L{layer}H{head}": share for (_, layer, head), share in carried.top(carried.values.numel())}
    own = [head for head, share in found.items() if share >= LEAST_CARRIED]
    return own, [head for head in found if head not in own]
