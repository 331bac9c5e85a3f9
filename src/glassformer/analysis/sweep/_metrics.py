"""What a sweep measures: a number per prompt, from the logits or from any site.

    logit_difference(" Mary", " John")        at the last token of each row; answers may differ by row
    Metric("rest", lambda z: z.norm(dim=-1), site="blocks.3.attn.z", at=At(head=2, pos=-1))

A metric's function sees many worlds at once: the base batch as one row of the plan left it, times the number of rows.
Its first two axes are `world batch`, then whatever is read; it returns `world batch`.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.prepare import token_id
from glassformer.errors import ShapeMismatch
from glassformer.trace import At

Token = str | int
Tokens = Token | Sequence[Token] | Int[Tensor, " batch"]


@dataclass(frozen=True, eq=False)
class Metric:
    """A number per prompt.

    Args:
        name: How results call it.
        function: Of what is read, axes `world batch …`, and of the tokens below; returns `world batch`.
        tokens: Tokens it asks about, each one for all rows or one per row; it gets them as ids, `batch`.
        pos: For logits: the position looked at, negative ones counted from the end of each row's real tokens; all
            positions (axes `world batch pos vocab`) if None.
        site: What is read; the logits by default.
        at: For other sites: the part that is read.
    """

    name: str
    function: Callable[..., Tensor]
    tokens: tuple[Tokens, ...] = ()
    pos: int | None = -1
    site: str = "logits"
    at: At = field(default_factory=At)

    def ids(self, model: Any, batch: int, device: torch.device) -> list[Int[Tensor, " batch"]]:
        """Return the tokens as ids, one per row of the batch.

        Raises:
            TextError: A text is several tokens, or unknown.
            TokenOutOfRange: There is no such id.
            ShapeMismatch: There are as many tokens as the batch has no rows.
        """
        return [_ids(model, tokens, batch, self.name).to(device) for tokens in self.tokens]


def logit(answer: Tokens, *, pos: int = -1) -> Metric:
    """Return the metric "logit of the answer"."""
    return Metric("logit", _at, (answer,), pos)


def logit_difference(answer: Tokens, wrong: Tokens, *, pos: int = -1) -> Metric:
    """Return the metric "logit of the answer less that of the wrong one": linear in the final stream."""
    return Metric("logit difference", lambda logits, a, b: _at(logits, a) - _at(logits, b), (answer, wrong), pos)


def probability(answer: Tokens, *, pos: int = -1) -> Metric:
    """Return the metric "probability of the answer"; it saturates, and hides what pushes a likely answer down."""
    return Metric("probability", lambda logits, a: _at(_log_probs(logits), a).exp(), (answer,), pos)


def log_probability(answer: Tokens, *, pos: int = -1) -> Metric:
    """Return the metric "log-probability of the answer", in nats."""
    return Metric("log-probability", lambda logits, a: _at(_log_probs(logits), a), (answer,), pos)


def answer_rank(answer: Tokens, *, pos: int = -1) -> Metric:
    """Return the metric "rank of the answer": 1 is the likeliest; ties do not count."""

    def rank(logits: Tensor, ids: Tensor) -> Tensor:
        return (logits > _at(logits, ids)[..., None]).sum(-1).to(logits.dtype) + 1

    return Metric("rank", rank, (answer,), pos)


def kl_divergence(reference: Run | Float[Tensor, "batch vocab"], *, pos: int = -1) -> Metric:
    """Return the metric KL(reference || row) of next-token distributions, in nats.

    Args:
        reference: A run on prompts of the same number (its logits at the same position count), or logits.
        pos: Position looked at.
    """
    logits = reference
    if isinstance(reference, Run):
        if reference.logits is None:
            raise ShapeMismatch("kl_divergence: the reference run gave no logits.")
        rows = range(len(reference.logits))
        # rows of a batch end where their real tokens end
        logits = torch.stack([reference.logits[row, reference.place(pos, row)] for row in rows])
    assert isinstance(logits, Tensor)
    target = _log_probs(logits)

    def divergence(found: Tensor) -> Tensor:
        return (target.exp() * (target - _log_probs(found))).nan_to_num(0.0).sum(-1)

    return Metric("KL divergence", divergence, (), pos)


def next_token_loss(targets: Int[Tensor, "batch pos"], weight: Tensor | None = None) -> Metric:
    """Return the metric "mean cross-entropy per prompt", in nats.

    Args:
        targets: The token that follows each position.
        weight: Which positions count; all by default.
    """

    def loss(logits: Tensor) -> Tensor:
        log_probs = _log_probs(logits)
        losses = -log_probs.gather(-1, targets.expand(log_probs.shape[:-1])[..., None]).squeeze(-1)
        counted = torch.ones_like(losses) if weight is None else weight.to(losses.dtype).expand_as(losses)
        return (losses * counted).sum(-1) / counted.sum(-1)

    return Metric("loss", loss, (), None)


def _at(values: Float[Tensor, "world batch vocab"], ids: Int[Tensor, " batch"]) -> Float[Tensor, "world batch"]:
    return values.gather(-1, ids[None, :, None].expand(values.shape[0], -1, 1)).squeeze(-1)


def _log_probs(logits: Tensor) -> Tensor:
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def _ids(model: Any, tokens: Tokens, batch: int, name: str) -> Int[Tensor, " batch"]:
    if isinstance(tokens, (str, int)):
        return torch.tensor(token_id(model, tokens)).expand(batch)
    ids = [token_id(model, int(token) if isinstance(token, Tensor) else token) for token in tokens]
    if len(ids) != batch:
        raise ShapeMismatch(f"{name}: {len(ids)} answers for {batch} prompts; give one answer, or one per prompt.")
    return torch.tensor(ids)
