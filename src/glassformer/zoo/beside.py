"""A shipped model beside another that was trained on the same data: what both recall, hold and write in a second."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.bench.paired import compare
from glassformer.models import GREEDY, ModelLike, generate
from glassformer.models.accounting import state_bytes

LENGTH, PROMPT, NEW, ROUNDS, SECONDS = 4096, 384, 64, 7, 120.0
# figures of cards that two models are compared by, whatever else there is
SHARED = ("heldout_loss", "bits_per_byte", "icl_score", "prefix_matching", "prefix_matching_on_repeated_text")


def figures_beside(
    model: ModelLike, other: ModelLike, spans: Int[Tensor, "row pos"], copies: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return figures of a model and of the other, by the same names.

    Args:
        model: A decoder.
        other: Another with the same vocabulary.
        spans: Rows of `<bos>` and a span of text, over and over.
        copies: How often each row has it.
    """
    found: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for figures, one in zip(found, (model, other), strict=True):
        figures["recall_on_repeated_text"] = recall(one, spans, copies)
        figures[f"state_bytes_at_{LENGTH}"] = state_bytes(one.config, LENGTH)
    prompt = spans.flatten()[None, :PROMPT].tolist()

    def writing(one: ModelLike) -> Any:
        return lambda: generate(one, prompt, GREEDY, max_new_tokens=NEW)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timed = compare(writing(model), writing(other), rounds=ROUNDS, seconds=SECONDS, warmup=1)
    finally:
        torch.set_num_threads(threads)
    for figures, seconds in zip(found, (timed.subject, timed.baseline), strict=True):
        figures["tokens_per_second"] = NEW / seconds.cpu
    return found


def recall(model: ModelLike, spans: Int[Tensor, "row pos"], copies: int) -> float:
    """Return the share of tokens of the last copy that are the likeliest where they stand."""
    length = (spans.shape[1] - 1) // copies
    with torch.no_grad():
        guessed = model(spans[:, :-1]).argmax(-1)
    return float((guessed[:, -length:] == spans[:, -length:]).float().mean())


def notes_beside(other: str) -> list[str]:
    """Return what the figures are, in sentences."""
    return [
        "recall_on_repeated_text: share of tokens of the last copy that are the likeliest there, on the spans of "
        f"prefix_matching_on_repeated_text, {other} on the same ones",
        f"state_bytes_at_{LENGTH}: what is held of one text of {LENGTH:,} tokens in float32 to go on with the next; "
        "both models read at most 512",
        f"tokens_per_second: tokens written one after the other behind {PROMPT}, per CPU second of one thread, by "
        f"turns with {other}; another machine and another hour give other figures for both",
    ]
