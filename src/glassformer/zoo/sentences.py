"""What a model makes of sentences whose answer is known: how often it prefers it, and what that takes.

Questions are pairs of the templates that training never held: of each, one frame and an eighth of the combinations of
words. The heads behind an answer are named on pairs of training, and taken away on the others.
"""

from random import Random
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from glassformer.analysis.causal import ablation_table, answered, patch
from glassformer.analysis.sweep import Metric, logit_difference, sweep
from glassformer.data import greater_than, pairs
from glassformer.data.batch import Split
from glassformer.data.pairs import Pairs
from glassformer.errors import DataError
from glassformer.models import ModelLike

N_PAIRS, N_NAMING, N_ABLATED, N_DRAWS = 1000, 64, 200, 10
LEAST_CARRIED = 0.1  # of the logit difference, from which on a head is named


class MeasuredFigures(NamedTuple):
    """Figures and notes on them."""

    figures: dict[str, float]
    notes: list[str]


def sentences(model: ModelLike, template: str) -> MeasuredFigures:
    """Return figures of one template, and what they mean.

    Args:
        model: What was trained on `TemplateText`.
        template: Its name.
    """
    asked = _pairs(model, template, N_PAIRS, "heldout")
    clean, corrupt = (_share_right(model, asked, side) for side in ("clean", "corrupt"))
    known = _pairs(model, template, N_ABLATED, "train")
    trained = _share_right(model, known, "clean")
    figures = {template: clean, f"{template}_said": answered(model, asked).share}
    notes = [
        f"{template}: share of {len(asked)} pairs never shown in training (another frame, or another combination of "
        f"the words that decide) in which {_right(asked)}; after the corrupt prompts, which do not ask for it, "
        f"{corrupt:.3f}; of {len(known)} pairs as in training {trained:.3f}; said: the answer is likelier "
        "than every token"
    ]
    own, others = _heads(model, _pairs(model, template, N_NAMING, "train"))
    if not own:
        return MeasuredFigures(
            figures, [*notes, f"{template}: no head alone carries {LEAST_CARRIED} of the logit difference"]
        )
    random = Random(0)
    drawn = [random.sample(others, min(len(own), len(others))) for _ in range(N_DRAWS)]
    held = asked[:N_ABLATED]
    table = ablation_table(
        model,
        [pair.clean for pair in held],
        _preference(model, held),
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
    return MeasuredFigures(figures, notes)


def _right(asked: Pairs) -> str:
    """Return in words what `_preference` asks."""
    if asked.name == greater_than.__name__:
        return "all years later than the one read are together likelier than all others"
    return "the answer is likelier than the wrong one"


def _preference(model: ModelLike, asked: Pairs) -> Metric:
    """Return log odds of what is right against what is wrong: above 0 the model takes the right.

    Two years, one on each side of the year read, tell little: of most such pairs the later one is likelier whatever was
    read. So all years are asked, as Hanna et al. 2023, "How does GPT-2 compute greater-than?", section 2, do.
    """
    if asked.name != greater_than.__name__:
        return logit_difference([pair.answer for pair in asked], [pair.wrong for pair in asked])
    tokenizer = model.require_tokenizer()
    years = torch.tensor([tokenizer.encode(f"{year:02}")[0] for year in range(100)])

    def later_years(logits: Tensor, read: Tensor) -> Tensor:
        later = (years == read[:, None]).cumsum(-1) - (years == read[:, None]).long() > 0
        odds = logits[..., years]
        return odds.masked_fill(~later, -torch.inf).logsumexp(-1) - odds.masked_fill(later, -torch.inf).logsumexp(-1)

    named = [str(pair.clean)[slice(*pair.roles["year"])] for pair in asked]
    return Metric("later years against all others", later_years, (named,))


def _share_right(model: ModelLike, asked: Pairs, side: Literal["clean", "corrupt"]) -> float:
    """Return of how many pairs what is right after the clean prompt is likelier, after that prompt or the other."""
    prompts = [getattr(pair, side) for pair in asked]
    return float((sweep(model, prompts, [[]], _preference(model, asked)).base.values > 0).double().mean())


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
