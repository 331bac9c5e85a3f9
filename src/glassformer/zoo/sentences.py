"""What a model makes of sentences whose answer is known: how often it prefers it, and what that takes.

Questions are pairs of the templates, asked by what of them training never held: a combination of words, the words
themselves, the frame, words and frame. Beside each share stands how far it is above the share after corrupt prompts,
which do not ask for the answer. Heads behind an answer are named on pairs of training, and taken away in new frames.
"""

import re
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from glassformer.analysis.causal import ablation_table, answered, patch
from glassformer.analysis.sweep import Metric, logit_difference, sweep
from glassformer.data import greater_than, pairs
from glassformer.data.pairs import Pairs
from glassformer.data.pairs.templates import TEMPLATES, New, heldout_words
from glassformer.errors import DataError
from glassformer.models import ModelLike
from glassformer.zoo.shares import share_interval

N_PAIRS, N_NAMING, N_ABLATED, N_DRAWS = 1000, 64, 200, 10
LEAST_CARRIED = 0.1  # of the logit difference, from which on a head is named


# what is new in a question, and what its figure is called behind the template's name
KINDS: dict[str, frozenset[New]] = {
    "as_trained": frozenset(),
    "new_combinations": frozenset({"combination"}),
    "new_words": frozenset({"words"}),
    "new_frames": frozenset({"frame"}),
    "new_words_and_frames": frozenset({"words", "frame"}),
}


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
    kept = TEMPLATES[template].kept
    asked = {kind: _pairs(model, template, N_PAIRS, new) for kind, new in KINDS.items() if new <= set(kept)}
    figures, told = dict[str, float](), list[str]()
    for kind, pairs_of_kind in asked.items():
        (clean, right), (corrupt, _) = (_share_right(model, pairs_of_kind, side) for side in ("clean", "corrupt"))
        low, high = share_interval(right, len(pairs_of_kind))
        figures |= {f"{template}_{kind}": clean, f"{template}_{kind}_contrast": clean - corrupt}
        told.append(
            f"{kind.replace('_', ' ')} {clean:.3f} ({low:.3f} to {high:.3f}, of {len(pairs_of_kind)}; after corrupt "
            f"prompts {corrupt:.3f})"
        )
    unseen = asked["new_frames"]
    figures[f"{template}_said"] = answered(model, unseen).share
    notes = [
        f"{template}: share of pairs in which {_right(unseen)}, by what of them no row of training held, with 95 % "
        f"intervals (Wilson): {'; '.join(told)}. contrast: that share less the one after the corrupt prompts, which do "
        "not ask for the answer. said: in new frames the answer is likelier than every token"
    ]
    own, others = _heads(model, _pairs(model, template, N_NAMING, KINDS["as_trained"]))
    if not own:
        return MeasuredFigures(
            figures, [*notes, f"{template}: no head alone carries {LEAST_CARRIED} of the logit difference"]
        )
    random = Random(0)
    drawn = [random.sample(others, min(len(own), len(others))) for _ in range(N_DRAWS)]
    held = unseen[:N_ABLATED]
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
        f"{template}_without_heads: the same on {len(held)} pairs in new frames (with all heads {before:.3f}) when "
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


def _share_right(model: ModelLike, asked: Pairs, side: Literal["clean", "corrupt"]) -> tuple[float, int]:
    """Return of how many pairs what is right after the clean prompt is likelier, after that prompt or the other."""
    prompts = [getattr(pair, side) for pair in asked]
    right = int((sweep(model, prompts, [[]], _preference(model, asked)).base.values > 0).sum())
    return right / len(asked), right


def _pairs(model: ModelLike, template: str, n: int, new: frozenset[New]) -> Pairs:
    """Return that many pairs; half as many, or half of that, where a template has no more."""
    try:
        return getattr(pairs, template)(n, tokenizer=model.tokenizer, new=new)
    except DataError:
        if n < 2:
            raise
        return _pairs(model, template, n // 2, new)


def known_words(templates: Iterable[str], texts: Iterable[str]) -> str:
    """Return in words how often text holds the words that training on templates never asks about.

    Args:
        templates: Which templates.
        texts: The text trained on, without sentences of templates.
    """
    words = heldout_words(templates)
    found: Counter[str] = Counter()
    for text in texts:
        found.update(re.findall(r"\d\d|[A-Za-z]+", text))
    rarest = sorted(words, key=lambda word: found[word])
    told = ", ".join(f"{word} {found[word]:,}" for word in rarest[:5])
    return (
        f"words that no sentence of training asks about stand in the other text it was trained on, each at least "
        f"{found[rarest[0]]:,} times; the rarest of {len(words)}: {told}"
    )


def _heads(model: ModelLike, asked: Pairs) -> tuple[list[str], list[str]]:
    """Return the heads that carry the logit difference, most of it first, and all others."""
    carried = patch(model, asked.encode(model, pad="right"), sites="z")["z"].carried
    found = {f"L{layer}H{head}": share for (_, layer, head), share in carried.top(carried.values.numel())}
    own = [head for head, share in found.items() if share >= LEAST_CARRIED]
    return own, [head for head in found if head not in own]
