"""Laws of REINFORCE: its gradient is that of the expected reward, and its divergence is the one that is named."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import TypeCheckError
from torch import Tensor

from glassformer.attention import Rope
from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.data.tokenizer import symbol_tokenizer
from glassformer.errors import ConfigError, ShapeMismatch
from glassformer.fitting import (
    Descent,
    batch_logits,
    complete,
    completion_log_probs,
    kl_divergence,
    leave_one_out,
    reinforce_loss,
)
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.models.decoder import Decoder
from glassformer.testing import close
from glassformer.testing.models import subject

PROMPTS = [[1, 4, 2], [3], [5, 5, 1, 2]]


def tiny(seed: int = 0, dropout: float = 0.0, vocab_size: int = 7) -> Decoder:
    layer = block(n_heads=2, positions=Rope(), mlp=Mlp(12), dropout=dropout)
    model = DecoderConfig(vocab_size, 8, (layer,), max_len=16).build(seed).double()
    model.tokenizer = symbol_tokenizer(["<eos>", *map(str, range(1, vocab_size))])
    return model


def alone(model: Decoder, batch: Batch, row: int) -> Tensor:
    """Return the log-probability of what was drawn in a row, by a pass over it alone and a loop over its tokens."""
    assert batch.lengths is not None
    tokens = [*batch.tokens[row, : batch.lengths[row]].tolist(), int(batch.targets[row, batch.lengths[row] - 1])]
    log_probs = model(torch.tensor([tokens[:-1]]))[0].log_softmax(-1)
    return torch.stack([log_probs[at, tokens[at + 1]] for at in range(len(tokens) - 1) if batch.weight[row, at]]).sum()


def gradient(loss: Tensor, model: Decoder) -> Tensor:
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])


def test_a_completion_is_scored_as_it_was_drawn_rows_of_any_length_and_nothing_dropped() -> None:
    model = tiny(dropout=0.5).train()
    found = complete(model, PROMPTS, seed=4, max_new_tokens=5)
    close(completion_log_probs(batch_logits(model, found.batch), found.batch), found.log_probs)
    counts = found.batch.weight.sum(1).tolist()
    assert len(set(counts)) > 1, "rows that end apart are drawn with this seed"
    for row, (prompt, count) in enumerate(zip(PROMPTS, counts)):
        assert found.batch.weight[row].nonzero()[:, 0].tolist() == [len(prompt) - 1 + i for i in range(count)]
        assert found.batch.tokens[row, : len(prompt)].tolist() == prompt
        last = int(found.batch.targets[row][found.batch.weight[row]][-1])
        assert last == 0 or count == 5
        close(alone(model.eval(), found.batch, row), found.log_probs[row])
        assert found.texts[row].split() == [
            str(t) for t in found.batch.targets[row][found.batch.weight[row]].tolist() if t
        ]


def test_draws_are_a_function_of_the_seed_and_rows_of_two_seeds_differ() -> None:
    model = tiny()
    one, two, other = (complete(model, [[1]] * 8, seed=seed, max_new_tokens=6) for seed in (1, 1, 2))
    assert torch.equal(one.batch.tokens, two.batch.tokens)
    rows = [{tuple(row) for row in found.batch.targets.tolist()} for found in (one, other)]
    # the rows of a seed are not those of the seed before, moved by one
    assert len(rows[0] & rows[1]) <= 1 and len(rows[0]) > 4


def test_the_gradient_is_reward_times_the_gradient_of_the_log_probability_by_finite_differences() -> None:
    model = tiny()
    found = complete(model, PROMPTS, seed=0, max_new_tokens=4)
    rewards = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    found_gradient = gradient(reinforce_loss(batch_logits(model, found.batch), found.batch, rewards), model)
    parameters = list(model.parameters())
    directions = torch.randn(3, len(found_gradient), generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    @torch.no_grad()
    def moved(direction: Tensor, by: float) -> float:
        parts = direction.split([p.numel() for p in parameters])
        for p, part in zip(parameters, parts):
            p += by * part.view_as(p)
        value = -sum(rewards[row] * alone(model, found.batch, row) for row in range(3)) / 3
        for p, part in zip(parameters, parts):
            p -= by * part.view_as(p)
        return float(value)

    for direction in directions:
        slope = (moved(direction, 1e-6) - moved(direction, -1e-6)) / 2e-6
        assert slope == pytest.approx(float(found_gradient @ direction), rel=1e-6)


def every_completion() -> Batch:
    """Return all that can be written behind a prompt of two tokens, where 0 ends it and a second token does, too."""
    rows = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    lengths = torch.tensor([1, 2, 2])
    return next_token_batch(rows, torch.arange(2) < lengths[:, None], lengths=lengths)


def test_with_every_completion_by_its_probability_the_gradient_is_that_of_the_expected_reward() -> None:
    model = tiny(vocab_size=2)
    batch = every_completion()
    probabilities = completion_log_probs(batch_logits(model, batch), batch).exp()
    close(probabilities.sum(), torch.ones((), dtype=torch.float64))
    rewards = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float64)
    wanted = gradient(-(probabilities * rewards).sum(), model)
    for baseline in (None, torch.full((3,), 7.0, dtype=torch.float64)):
        # each row stands for its share of the draws; a baseline that all share changes nothing
        shares = 3 * probabilities.detach()
        found = reinforce_loss(
            batch_logits(model, batch),
            batch,
            shares * rewards,
            baseline=None if baseline is None else shares * baseline,
        )
        close(gradient(found, model), wanted)


def test_equal_rewards_give_no_gradient_in_expectation_and_would_if_long_texts_were_averaged() -> None:
    model = tiny(vocab_size=2)
    batch = every_completion()
    logits = batch_logits(model, batch)
    log_probs = completion_log_probs(logits, batch)
    shares = 3 * log_probs.exp().detach()
    assert float(gradient(reinforce_loss(logits, batch, shares), model).abs().max()) < 1e-15
    by_length = -(shares * completion_log_probs(batch_logits(model, batch), batch) / batch.weight.sum(1)).mean()
    assert float(gradient(by_length, model).abs().max()) > 1e-3


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_divergence_is_torchs_at_the_positions_drawn_at_least_zero_and_zero_between_equals(direction: str) -> None:
    one, other = tiny(0), tiny(1)
    batch = complete(one, PROMPTS, seed=0, max_new_tokens=4).batch
    logits, reference = batch_logits(one, batch), batch_logits(other, batch)
    found = kl_divergence(logits, reference, batch.weight, direction)  # type: ignore[arg-type]
    policy, frozen = logits.log_softmax(-1), reference.log_softmax(-1)
    # torch's first argument is the one that the divergence is from: kl_div(q, p) = KL(p || q)
    q, p = (frozen, policy) if direction == "reverse" else (policy, frozen)
    pointwise = F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    close(found, (pointwise * batch.weight).sum(1))
    assert bool((found > 0).all())
    assert reference.requires_grad
    assert torch.autograd.grad(found.sum(), list(other.parameters()), allow_unused=True)[0] is None
    same = kl_divergence(logits, logits, batch.weight, direction)  # type: ignore[arg-type]
    assert float(same.detach().abs().max()) < 1e-14
    assert float(gradient(batch_logits(one, batch).mul(0).sum() + same.sum(), one).abs().max()) < 1e-14


def test_tokens_that_both_rule_out_add_nothing_to_the_divergence_nor_to_its_gradient() -> None:
    logits = torch.tensor([[[1.0, 2.0, float("-inf")]]], dtype=torch.float64, requires_grad=True)
    reference, weight = torch.tensor([[[2.0, 1.0, float("-inf")]]], dtype=torch.float64), torch.ones(1, 1).bool()
    for direction in ("reverse", "forward"):
        found = kl_divergence(logits, reference, weight, direction)
        close(found, kl_divergence(logits[..., :2], reference[..., :2], weight, direction))
        assert bool(torch.autograd.grad(found.sum(), logits)[0].isfinite().all())


def test_the_loss_is_the_rewarded_log_probability_and_the_weighted_divergence_of_a_translator_too() -> None:
    translator = subject("translator_post", batch=3)
    model, batch = translator.model, translator.batch()
    rewards = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    logits = batch_logits(model, batch)
    # products of other lengths are rounded in another order
    close(logits, translator()[:, :-1])
    reference = logits.roll(1, -1)
    found = reinforce_loss(logits, batch, rewards, reference=reference, kl_weight=0.3)
    apart = kl_divergence(logits, reference, batch.weight)
    close(found, (0.3 * apart - rewards * completion_log_probs(logits, batch)).mean())


def test_the_baseline_of_a_row_is_the_mean_reward_of_the_others() -> None:
    rewards = torch.tensor([1.0, -1.0, 1.0, 1.0])
    assert leave_one_out(rewards).tolist() == pytest.approx([1 / 3, 1, 1 / 3, 1 / 3])


def test_what_is_rewarded_becomes_more_probable_by_the_one_gradient_loop() -> None:
    model, share = tiny(), list[float]()

    def losses(step: int) -> Iterator[Tensor]:
        found = complete(model, [[1, 2]] * 24, seed=step, max_new_tokens=1)
        rewards = torch.where(found.batch.targets[:, -1] == 3, 1.0, -1.0)
        share.append(float((rewards > 0).double().mean()))
        yield reinforce_loss(batch_logits(model, found.batch), found.batch, rewards, baseline=leave_one_out(rewards))

    parameters = list(model.parameters())
    list(
        Descent(
            parameters, torch.optim.Adam(parameters), losses, rate=lambda _: 0.02, steps=25, name="policy",
            way_on=lambda: "",
        )
    )  # fmt: skip
    assert share[0] < 0.4 < 0.9 < share[-1]


REFUSED: list[tuple[Callable[[Tensor, Batch], object], type[Exception], str]] = [
    (
        lambda logits, batch: reinforce_loss(logits, batch, torch.ones(3), kl_weight=0.2),
        ConfigError, r"kl_weight=0\.2 weighs a divergence from reference=",
    ),
    (
        lambda logits, batch: reinforce_loss(logits, batch, torch.ones(2)),
        ShapeMismatch, r"rewards has shape \(2,\); give one for each of 3 rows",
    ),
    (
        lambda logits, batch: reinforce_loss(logits[:2], batch, torch.ones(3)),
        ShapeMismatch, r"logits has axes batch=2 .* batch_logits\(model, batch\)",
    ),
    (lambda logits, batch: leave_one_out(torch.ones(1)), ShapeMismatch, "1 row; the mean of the others takes two"),
]  # fmt: skip


def test_what_is_of_another_batch_is_refused() -> None:
    model = tiny()
    batch = complete(model, PROMPTS, seed=0, max_new_tokens=2).batch
    logits = batch_logits(model, batch)
    for call, error, message in REFUSED:
        # run-time checks of shapes come first where they are on
        with pytest.raises((error, TypeCheckError), match=f"{message}|size of dimension batch"):
            call(logits, batch)
    # what was drawn is told by the weight alone
    none = replace(batch, weight=torch.zeros_like(batch.weight))
    assert not completion_log_probs(logits, none).any()
