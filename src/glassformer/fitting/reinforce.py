"""REINFORCE: what a model writes is made more probable by how well it is rewarded, and held near a reference model.

    J = E over y ~ pi(. | x) of [ (r - baseline) log pi(y | x) ]  -  kl_weight KL,     minimised: -J
    log pi(y | x) = sum over the tokens of y, its end among them        never their mean: length would weigh rewards
    KL = sum over the positions of y of the divergence of the next token's distributions
        reverse    KL(pi || reference) = sum_v pi_v (log pi_v - log reference_v)            the paper's
        forward    KL(reference || pi) = sum_v reference_v (log reference_v - log pi_v)     the published code's

The tokens that positions are behind are those drawn: no gradient goes through the drawing. It stands below training and
adaptation, since either may hand its loss to `Descent`.

Source: Williams 1992, "Simple Statistical Gradient-Following Algorithms", section 3; Sun, Cetin and Tang 2025,
"Transformer^2" (2501.06252), section 3.2; the mean of the others as a baseline: Kool et al. 2019.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.arguments import Count, FiniteAmount, checked
from glassformer.config import require
from glassformer.data import Batch
from glassformer.data.batch import hash64, next_token_batch
from glassformer.errors import ShapeMismatch, TextError
from glassformer.models import ModelLike, Sampling, generate, require_model
from glassformer.models.evaluation import evaluating
from glassformer.models.reading import read_opening
from glassformer.numerics.placement import place_of
from glassformer.numerics.precision import wide

Direction = Literal["reverse", "forward"]


@dataclass(frozen=True, eq=False)
class Completions:
    """What a model wrote behind prompts, as a batch to score it by.

    Args:
        batch: Prompts and completions, padded on the right; `weight` is true of targets that were drawn, the end among
            them.
        texts: Each completion without its end; empty for a model without a tokenizer.
        log_probs: Log-probability of each completion as it was drawn, in nats, `batch`.
    """

    batch: Batch
    texts: tuple[str, ...]
    log_probs: Float[Tensor, " batch"]


@checked
def complete(
    model: ModelLike, prompts: Sequence[str] | Sequence[Sequence[int]], *, seed: int, max_new_tokens: Count
) -> Completions:
    """Draw one completion of each prompt from a decoder's own distribution, nothing dropped: its policy.

    Args:
        model: A decoder.
        prompts: Texts, or token ids; a prompt that is given several times is completed as often.
        seed: Source of the draws; those of other seeds have nothing in common.
        max_new_tokens: Where a completion without an end is cut off.

    Raises:
        TextError: A prompt is empty, or the context has no room for so many tokens.
    """
    # rows draw with seeds that follow each other, which those of the next seed must not be among
    sampling = Sampling(seed=hash64("completions", seed) >> 2)
    with evaluating(require_model(model, "drawing completions")):
        found = generate(model, prompts, sampling, max_new_tokens=max_new_tokens)
    place = place_of(model)
    log_probs = torch.tensor([sum(row) for row in found.log_probs], dtype=torch.float64, device=place)
    return Completions(_batch(found.ids, list(map(len, found.tokens)), place), found.texts, log_probs)


@checked
def completion_batch(model: ModelLike, prompts: Sequence[str], completions: Sequence[str]) -> Batch:
    """Prompts with completions that are given, as a batch to score them by or to train on.

    `weight` is true of the tokens of a completion and of the end behind it, as where the model had drawn them.

    Args:
        model: A decoder with a tokenizer.
        prompts: Texts.
        completions: What stands behind each.

    Raises:
        ConfigError: There are not as many completions as prompts.
        TextError: The model has no tokenizer, a prompt is empty, or a row is longer than the model's context.
    """
    model = require_model(model, "a batch of completions")
    require(
        len(prompts) == len(completions),
        f"completion_batch: {len(completions)} completions for {len(prompts)} prompts; give one each.",
    )
    tokenizer = model.output_tokenizer
    if tokenizer is None:
        raise TextError("completion_batch: this model has no tokenizer to read completions with.")
    read = read_opening(model, list(prompts)).output.rows
    written = [[*tokenizer.encode(text), *model.stops[:1]] for text in completions]
    rows, longest = [[*row, *own] for row, own in zip(read, written)], model.config.max_len
    if (found := max(map(len, rows))) - 1 > longest:
        raise TextError(f"completion_batch: a row has {found:,} tokens; this model reads {longest:,} before the last.")
    return _batch(rows, list(map(len, written)), place_of(model))


def _batch(ids: Sequence[Sequence[int]], drawn: Sequence[int], place: torch.device) -> Batch:
    """Return rows of ids as a batch in which the last so many tokens of each count."""
    longest = max(map(len, ids))
    # the padding of a row is its last token: any would do that is in the vocabulary
    rows = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in ids], device=place)
    lengths = torch.tensor([len(row) - 1 for row in ids], device=place)
    at = torch.arange(longest - 1, device=place)
    weight = (at >= (lengths - torch.tensor(drawn, device=place))[:, None]) & (at < lengths[:, None])
    return next_token_batch(rows, weight, lengths=lengths)


def batch_logits(model: ModelLike, batch: Batch) -> Float[Tensor, "batch pos vocab"]:
    """Return the logits that a model of ours has of a batch's targets, nothing dropped: those of the policy that drew.

    Args:
        model: A decoder or an encoder-decoder.
        batch: Its tokens, and its sources.
    """
    inputs = require_model(model, "logits of a batch").read(batch)
    with evaluating(model):
        return model(*inputs.args, **inputs.kwargs)


def completion_log_probs(logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> Float[Tensor, " batch"]:
    """Return the log-probability of each row's targets that count, in nats: the sum over them, whatever their number.

    Args:
        logits: Those of the policy.
        batch: Rows whose `weight` is true of the targets that were drawn.

    Raises:
        ShapeMismatch: The logits are not those of the batch.
    """
    _require_of(logits, batch, "logits")
    targets, weight = batch.targets.to(logits.device), batch.weight.to(logits.device)
    found = wide(logits).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    return found.masked_fill(~weight, 0.0).sum(-1)


def kl_divergence(
    logits: Float[Tensor, "batch pos vocab"],
    reference: Float[Tensor, "batch pos vocab"],
    weight: Bool[Tensor, "batch pos"],
    direction: Direction = "reverse",
) -> Float[Tensor, " batch"]:
    """Return how far a policy is from a reference along each row, in nats: summed over the positions that count.

    It is 0 where the two say the same, and at least 0.

    Args:
        logits: Those of the policy.
        reference: Those of the reference, which get no gradient.
        weight: True of the positions that count.
        direction: "reverse", KL(policy || reference), as the paper of Transformer^2 has it; "forward",
            KL(reference || policy), as its published code computes.
    """
    log_policy, log_reference = wide(logits).log_softmax(-1), wide(reference.detach()).log_softmax(-1)
    p, q = (log_policy, log_reference) if direction == "reverse" else (log_reference, log_policy)
    # what p rules out adds nothing, in its gradient neither: 0 (log 0 - log q) is not to become NaN
    apart = (p.exp() * (p - q).masked_fill(p.isinf(), 0.0)).sum(-1)
    return apart.masked_fill(~weight.to(apart.device), 0.0).sum(-1)


@checked
def reinforce_loss(
    logits: Float[Tensor, "batch pos vocab"],
    batch: Batch,
    rewards: Float[Tensor, " batch"],
    *,
    baseline: Float[Tensor, " batch"] | None = None,
    reference: Float[Tensor, "batch pos vocab"] | None = None,
    kl_weight: FiniteAmount = 0.0,
    direction: Direction = "reverse",
) -> Float[Tensor, ""]:
    """The loss whose gradient is REINFORCE's: minus the rewarded log-probability, plus the weighted divergence.

    It is the mean over rows, in nats times reward. Its value says nothing by itself: the mean reward does.

    Args:
        logits: Those of the policy at the batch, see `batch_logits`: of the very weights that drew it.
        batch: Prompts and what was drawn behind them, see `complete`; `weight` is true of what was drawn.
        rewards: One for each row, such as +1 for right and -1 for wrong.
        baseline: Taken from each row's reward; it must not depend on what the row drew. None for nothing, which is how
            Transformer^2 trains; `leave_one_out(rewards)` makes the gradient vary less.
        reference: Logits of the model that the policy is held near.
        kl_weight: How strongly it is, in reward per nat.
        direction: Of the divergence, see `kl_divergence`.

    Raises:
        ShapeMismatch: Rewards, logits or those of the reference are not of this batch.
        ConfigError: `kl_weight` is given and no reference.

    Example:
        found = complete(model, prompts, seed=step, max_new_tokens=8)
        rewards = torch.tensor([task.reward(prompt, text) for prompt, text in zip(prompts, found.texts)])
        loss = reinforce_loss(batch_logits(model, found.batch), found.batch, rewards)
    """
    require(
        kl_weight == 0 or reference is not None,
        f"reinforce_loss: kl_weight={kl_weight:g} weighs a divergence from reference=, which is not given.",
    )
    for name, given in {"rewards": rewards, "baseline": baseline}.items():
        if given is not None and given.shape != batch.tokens.shape[:1]:
            raise ShapeMismatch(
                f"reinforce_loss: {name} has shape {tuple(given.shape)}; give one for each of {len(batch.tokens)} rows."
            )
    log_probs = completion_log_probs(logits, batch)
    advantage = rewards if baseline is None else rewards - baseline
    gain = advantage.detach().to(log_probs) * log_probs
    if kl_weight == 0 or reference is None:
        return -gain.mean()
    _require_of(reference, batch, "reference")
    return (kl_weight * kl_divergence(logits, reference, batch.weight, direction) - gain).mean()


def leave_one_out(rewards: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Return the mean reward of the other rows, for each row: a baseline that leaves the gradient right on average.

    Raises:
        ShapeMismatch: There is one row, which has no others.
    """
    if len(rewards) < 2:
        raise ShapeMismatch(f"leave_one_out: {len(rewards)} row; the mean of the others takes two rows or more.")
    return (rewards.sum() - rewards) / (len(rewards) - 1)


def _require_of(logits: Tensor, batch: Batch, name: str) -> None:
    """Raise `ShapeMismatch` unless there are logits of every target."""
    if logits.shape[:-1] != batch.targets.shape:
        raise ShapeMismatch(
            f"{name} has axes batch={logits.shape[0]} pos={logits.shape[1]}, and the batch batch="
            f"{batch.targets.shape[0]} pos={batch.targets.shape[1]}; take batch_logits(model, batch)."
        )
