"""Circuits reports as samples: of a model set by hand, and of tiny random models with the shapes of real ones."""

from functools import cache
from typing import Any

import torch

from explanations import TEXT, gpt, signed, translator
from glassformer.analysis.reports import Circuits, circuits
from glassformer.analysis.reports.training_facts import training_facts
from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.handmade import induction_model, repeated

SAMPLES = ("hand", "gpt", "signed", "translation")
METRICS: list[dict[str, Any]] = [
    {
        "step": 10 * i, "tokens": 640 * i, "loss": 5.0 - i / 10, "heldout_loss": 5.1 - i / 10,
        "icl_score": -0.4 if i > 4 else -0.1, "prefix_matching": i / 10, "previous_token": i / 12,
    }
    for i in range(1, 9)
]  # fmt: skip


@cache
def sample(name: str) -> Circuits:
    """Return one of the samples."""
    if name == "hand":
        return circuits(induction_model(vocab=6, max_len=11), next_token_batch(repeated(6, batch=3)), k=3)
    if name == "translation":
        model = translator()
        random = torch.Generator().manual_seed(0)
        source, target = (torch.randint(4, model.config.vocab_size, (3, n), generator=random) for n in (7, 9))
        counts = torch.ones(3, 8, dtype=torch.bool)
        return circuits(model, Batch(target[:, :-1], target[:, 1:], counts, source=source), k=3)
    model = gpt() if name == "gpt" else signed()
    ids = torch.tensor(model.require_tokenizer().encode(TEXT)[:128]).reshape(4, 32)
    return circuits(model, next_token_batch(ids), k=4).replace(training=training_facts(METRICS))
