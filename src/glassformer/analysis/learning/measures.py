"""What is watched while a model trains: loss by position, the in-context-learning score, the best head per role, and
the share of images and of masked tokens that are told right.

Each measure is a function of (model, held-out data) that returns numbers by name, ready for metrics.jsonl, or text for
samples.txt; it returns nothing where it is not defined for the model.
"""

from collections.abc import Sequence
from typing import Any

import torch

from glassformer.analysis.heads.roles import head_scores
from glassformer.analysis.losses import icl_score, loss_by_position
from glassformer.data import Data, MaskedData, Tokenizer
from glassformer.errors import AnalysisUnavailable
from glassformer.models import ModelLike, Sampling, generate
from glassformer.numerics.placement import place_of

SHOWN = 80  # tokens of a text
# as the field calls what a head does; `induction` is measured by prefix matching
ROLES = {"induction": "prefix_matching", "previous_token": "previous_token", "duplicate_token": "duplicate_token"}


def text_measures(model: ModelLike, data: Data, batches: int = 8) -> dict[str, Any]:
    """Return `icl_score` and `loss_by_position` (nats) on held-out text."""
    if not model.continues:
        return {}
    losses = loss_by_position(model, *(data.batch(i, "heldout") for i in range(batches)))
    # a position where no target counts has no loss
    found: dict[str, Any] = {"loss_by_position": [None if x != x else round(x, 4) for x in losses.values.tolist()]}
    try:
        return {"icl_score": icl_score(losses)} | found
    except AnalysisUnavailable:
        return found


def head_measures(model: ModelLike, data: Data) -> dict[str, Any]:
    """Return the best head's score per role on repeated random tokens, and every head's as `{role}_by_head`."""
    try:
        scores = head_scores(model)
    except AnalysisUnavailable:
        return {}
    found: dict[str, Any] = {}
    for role, name in ROLES.items():
        values = scores.scores.select(role=role)
        if bool(values.values.isnan().all()):
            continue  # what reads both ways looks for no prefix
        found[name] = float(values.values.max())
        found[f"{name}_by_head"] = {str(h): round(float(x), 4) for h, x in zip(values.labels("head"), values.values)}
    return found


def sample(model: ModelLike, data: Data) -> dict[str, Any]:
    """A text the model writes: 80 tokens after `<bos>`, or the first held-out sources and their translations.

    A model that cannot read what it writes gives none.
    """
    tokenizer = data.tokenizer
    if tokenizer is None or tokenizer.bos is None or not model.one_vocabulary():
        return {}
    if not model.generates:
        return {}
    if model.continues:
        room = min(80, model.config.max_len - 1)
        made = generate(model, [[tokenizer.bos]], Sampling(temperature=0.8), max_new_tokens=room)
        return {"sample": _read(tokenizer, made.tokens[0])}
    batch = data.batch(0, "heldout").rows(5)
    assert batch.source is not None and batch.source_lengths is not None, "an encoder-decoder's data has sources"
    sources = [row[:n] for row, n in zip(batch.source.tolist(), batch.source_lengths.tolist())]
    stop = [] if tokenizer.eos is None else [tokenizer.eos]
    made = generate(
        model,
        [[tokenizer.bos]] * len(sources),
        Sampling(temperature=0),
        max_new_tokens=40,
        stop_ids=stop,
        source=sources,
    )
    pairs = zip(sources, made.trimmed)
    return {"sample": "\n".join(f"{tokenizer.decode(source)} -> {_read(tokenizer, row)}" for source, row in pairs)}


def class_measures(model: ModelLike, data: Data, batches: int = 8) -> dict[str, Any]:
    """Return `accuracy`, the share of held-out images whose class is the likeliest."""
    if model.patches is None or not model.predicts:
        return {}
    right, n = 0, 0
    for batch in (data.batch(i, "heldout").to(place_of(model)) for i in range(batches)):
        likeliest = model.class_logits(model(batch.tokens)).argmax(-1)
        right, n = right + int((likeliest == batch.targets[:, 0]).sum()), n + len(likeliest)
    return {"accuracy": right / n}


def masked_measures(model: ModelLike, data: Data, batches: int = 8) -> dict[str, Any]:
    """Return `masked_accuracy`, the share of held-out tokens chosen of which the likeliest is right; and two texts.

    The texts are the first held-out rows as the model read them, and what it said in place of what was chosen.
    """
    if not isinstance(data, MaskedData) or model.logits_of != "token":
        return {}
    right, n, texts = 0, 0, list[str]()
    for i in range(batches):
        batch = data.batch(i, "heldout").to(place_of(model))
        likeliest = model(batch.tokens, lengths=batch.lengths, documents=batch.documents).argmax(-1)
        right += int((likeliest == batch.targets)[batch.weight].sum())
        n += int(batch.weight.sum())
        if i == 0:
            said = torch.where(batch.weight, likeliest, batch.tokens)
            texts = ["".join(data.tokenizer.tokens(row[:SHOWN].tolist())) for row in (batch.tokens[0], said[0])]
    return {"masked_accuracy": right / n, "sample": "\n->\n".join(texts)}


def _read(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode what a model wrote; a model may have ids left over that a small corpus has no tokens for."""
    return tokenizer.decode([id for id in ids if id < tokenizer.vocab_size])


MEASURES = {
    "text": text_measures,
    "heads": head_measures,
    "classes": class_measures,
    "masked": masked_measures,
    "sample": sample,
}
