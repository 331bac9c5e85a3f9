"""What is watched while a model trains: loss by position, the in-context-learning score, the best head per role.

Each measure is a function of (model, held-out data) that returns numbers by name; it leaves out what is not defined for
the model's mechanisms. Scores lie in [0, 1].
Source: Olsson et al. 2022, "In-context Learning and Induction Heads", and its appendix on head evaluators.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.data import Data
from glassformer.models import Decoder
from glassformer.trace import Read, Tape

Window = tuple[int, int]


def loss_by_position(model: Decoder, data: Data, batches: int = 8) -> Float[Tensor, " pos"]:
    """Return the mean held-out loss at each position, in nats; position t is the prediction of token t + 1."""
    total, count = torch.zeros(()), torch.zeros(())
    for i in range(batches):
        batch = data.batch(i, "heldout")
        x = model.stream(batch.tokens, lengths=batch.lengths, documents=batch.documents)
        losses = -model.unembed.log_prob(x, batch.targets)
        total = total + (losses * batch.weight).sum(0)
        count = count + batch.weight.sum(0)
    return total / count.clamp_min(1)


def icl_windows(length: int) -> tuple[Window, Window]:
    """Return the early and the late positions that the in-context-learning score compares, as half-open ranges."""
    return (math.ceil(0.08 * length), math.ceil(0.12 * length)), (math.ceil(0.9 * length), length)


def icl_score(losses: Float[Tensor, " pos"]) -> float:
    """Return mean late loss minus mean early loss, in nats: negative where context helps.

    The paper compares tokens 500 and 50 of 512; here windows around the same shares of the context, which halves the noise
    of few documents.
    """
    (a, b), (c, d) = icl_windows(len(losses))
    return float(losses[c:d].mean() - losses[a:b].mean())


def repeated_tokens(
    vocab_size: int, bos: int | None, *, unit: int = 25, repeats: int = 4, rows: int = 10, seed: int = 0
) -> Int[Tensor, "batch pos"]:
    """Return rows of random tokens repeated several times, after `<bos>` if there is one.

    The tokens of a unit are distinct, so that an earlier occurrence is always in an earlier repeat.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.ones(rows, vocab_size)
    if bos is not None:
        weights[:, bos] = 0
    block = torch.multinomial(weights, unit, generator=generator)
    block = block.repeat(1, repeats)
    return block if bos is None else torch.cat((torch.full((rows, 1), bos), block), 1)


def role_masks(tokens: Int[Tensor, "batch pos"]) -> dict[str, Float[Tensor, "batch query key"]]:
    """Return for each role which keys count: 1 where attention of that kind would go.

    `prefix_matching` is the token after an earlier copy of the query's token; the paper's sentence, read literally, is
    one position off and scores a perfect induction head zero.
    """
    n = tokens.shape[1]
    q, k = torch.arange(n)[:, None], torch.arange(n)[None, :]
    same = tokens[:, :, None] == tokens[:, None, :]
    earlier = same & (k < q)
    # key k counts if token k - 1 is an earlier copy of the query's token
    after = torch.zeros_like(earlier)
    after[:, :, 1:] = earlier[:, :, :-1]
    previous = (k == q - 1).expand_as(same)
    return {"prefix_matching": after.float(), "duplicate_token": earlier.float(), "previous_token": previous.float()}


def head_scores(model: Decoder, seed: int = 0) -> dict[str, Float[Tensor, "layer head"]]:
    """Return each head's score per role on repeated random tokens, from one forward pass.

    A score is the attention on the keys that count, averaged over the queries that have one.
    """
    bos = model.tokenizer.bos if model.tokenizer is not None else None
    tokens = repeated_tokens(model.config.vocab_size, bos, seed=seed)
    masks = role_masks(tokens)

    def reduce(pattern: Tensor) -> Tensor:
        # batch head query key -> role head; reduced at once, since patterns of all layers would be large
        return torch.stack([_score(pattern, mask) for mask in masks.values()])

    tape = Tape(model, read=[Read("*.attn.pattern", reduce=reduce)], logits=False)
    model(tokens, tape=tape)
    scores = torch.stack(list(tape.values.values()), 1)
    return dict(zip(masks, scores))


def text_measures(model: Decoder, data: Data) -> dict[str, Any]:
    """Measure loss by position and the in-context-learning score on held-out text."""
    losses = loss_by_position(model, data)
    return {"icl_score": icl_score(losses), "loss_by_position": [round(float(x), 4) for x in losses]}


def head_measures(model: Decoder, data: Data) -> dict[str, Any]:
    """Measure every head's score per role, and the best of each."""
    layers = [block.part("attn") for block in model.stack.blocks]  # type: ignore[operator]
    if not all(layer.traits.rows_sum_to_one for layer in layers):
        return {}
    scores = head_scores(model)
    best = {name: float(value.max()) for name, value in scores.items()}
    return best | {f"{name}_by_head": [[round(float(x), 4) for x in row] for row in v] for name, v in scores.items()}


def _score(pattern: Float[Tensor, "batch head query key"], mask: Float[Tensor, "batch query key"]) -> Float[Tensor, " head"]:
    mass = (pattern * mask[:, None]).sum(-1)
    defined = (mask.sum(-1) > 0).float()[:, None]
    return (mass * defined).sum((0, 2)) / defined.sum((0, 2)).clamp_min(1)
