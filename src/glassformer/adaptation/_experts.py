"""Experts: adapters of one task each, trained by the reward of what the model writes, or by next-token loss.

    reward        -J,  J = E over y ~ W' of [ (r - baseline) log W'(y | x) ]        log-probabilities are summed over y
    next-token    mean over the tokens of answers of -log W'(token | what stands before it)
    both          + kl_weight KL, between W' and W at the tokens of y, in either direction (see `kl_divergence`)

What y is drawn from are the weights that it is scored with. Training reads prompts of the split "train"; which step was
the best is told by "heldout", and what the expert is worth by "test", before and after, so that nothing that was chosen
by is measured on. What a step reads and draws is a function of seed and step.

Source: Sun, Cetin, Tang 2025, "Transformer-Squared: Self-adaptive LLMs", sections 3.1 and 3.2, and its code, whose
rate, clip and batch size are the defaults. Differs from the code: AdamW in place of Adam, without decay the same.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.adaptation._adapter import Adapter, AdapterConfig
from glassformer.adaptation._folders import save_adapter
from glassformer.adaptation._rewards import answer_rewards, behind, mean_interval, room
from glassformer.adaptation._svf import Svf
from glassformer.arguments import Count, FiniteAmount, checked
from glassformer.config import Config, require
from glassformer.data import Question, QuestionConfig, QuestionSplit
from glassformer.data.batch import hash64
from glassformer.errors import ConfigError, TrainingDiverged
from glassformer.fitting import (
    Descent,
    Interrupts,
    batch_logits,
    complete,
    completion_batch,
    completion_log_probs,
    kl_divergence,
    leave_one_out,
    reinforce_loss,
)
from glassformer.fitting.reinforce import Direction
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.provenance.binding import Binding
from glassformer.training import OptimConfig

# questions on which kinds that begin from a sample see what matrices read
_SAMPLE = 32
_WHEN = ("before", "after")
_ADAM = OptimConfig(
    lr=2e-3, schedule="constant", warmup=0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, clip=1e-3
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ExpertConfig(Config):
    """How an expert is trained: everything that decides its numbers but the model.

    Args:
        task: What it is to be good at.
        adapter: Its kind.
        matrices: Which matrices it changes, by name or glob.
        objective: `reward`, what the model writes is rewarded, or `next-token`, the answers are to be likely.
        optim: How its numbers change.
        steps: Number of updates.
        batch_size: Prompts in each.
        kl_weight: How strongly it is held near the model without it, in reward (or nats) per nat.
        direction: Of that divergence: "reverse", KL(adapted || model), the paper's, or "forward", the published code's.
        baseline: What is taken from rewards: nothing, as in the paper, or the mean of the batch's other rewards.
        evaluate_every: Steps between held-out rewards, by which the best step is told.
        evaluate_prompts: Prompts in each, always the same ones, and of the test before and after.
        seed: Of what is drawn: the adapter's first numbers, prompts, and what is written.
    """

    task: QuestionConfig
    adapter: AdapterConfig = dataclasses.field(default_factory=Svf)
    matrices: tuple[str, ...] = ("*",)
    objective: Literal["reward", "next-token"] = "reward"
    optim: OptimConfig = _ADAM
    steps: Count = 200
    batch_size: Count = 256
    kl_weight: FiniteAmount = 0.0
    direction: Direction = "reverse"
    baseline: Literal["none", "leave-one-out"] = "none"
    evaluate_every: Count = 20
    evaluate_prompts: Count = 200
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            self.baseline == "none" or self.batch_size > 1,
            f'expert: baseline="{self.baseline}" is of the other prompts of a batch; batch_size=1 has none.',
        )
        require(
            self.objective == "reward" or self.baseline == "none",
            f'expert: baseline="{self.baseline}" is taken from rewards; objective="{self.objective}" has none.',
        )
        require(
            not self.optim.unit_vectors,
            "expert: optim.unit_vectors is of a model's matrices, which an expert leaves as they are. Leave it out.",
        )

    def build(self, model: ModelLike) -> Adapter:
        """An adapter to begin training from; raises as `AdapterConfig.build`.

        Args:
            model: The model.
        """
        sample = None
        if self.adapter.reads_sample:
            sample = [one.prompt + behind(one.answer) for one in self.task.questions(_SAMPLE, seed=self.seed)]
        return self.adapter.build(model, self.matrices, seed=self.seed, sample=sample)


@dataclasses.dataclass(frozen=True)
class ExpertStep:
    """What is told after a step.

    Args:
        step: Its number, counted from 1.
        steps: The last one.
        reward: Mean reward of what was drawn in it; NaN where nothing is.
        loss: What was descended.
        divergence: From the model without the adapter, in nats, summed over a completion, mean over the batch.
        held_out: Mean held-out reward behind it; None where it was not measured.
    """

    step: int
    steps: int
    reward: float
    loss: float
    divergence: float
    held_out: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class ExpertTraining(Result):
    """How an expert was trained. Rewards are means, from -1 for all wrong to 1 for all right.

    Args:
        reward: Reward of what was drawn in each step, `step`; NaN by next-token loss, which draws nothing.
        loss: What was descended in each step, `step`.
        divergence: From the model without the adapter in each step, in nats per completion, `step`.
        held_out: Reward of answers to held-out prompts, which told the best step, `step`; 0 is before the first.
        tested: Reward of answers to prompts that nothing was chosen by, before and after, `when`.
        tested_low: Lower end of its 95 % interval, `when`.
        tested_high: Upper end of it, `when`.
        best: The step whose numbers the expert has.
        prompts: How many prompts were held out, and as many tested.
        task: What it was trained on, in words.
    """

    HEADLINE = ("tested", "held_out", "divergence")
    SIGNED = ("reward", "held_out", "tested")

    reward: Labelled
    loss: Labelled
    divergence: Labelled
    held_out: Labelled
    tested: Labelled
    tested_low: Labelled
    tested_high: Labelled
    best: int
    prompts: int
    task: str


@dataclasses.dataclass(frozen=True, eq=False)
class Expert:
    """An expert and how it was trained.

    Args:
        adapter: Frozen, with the numbers of the best step; its `facts` say what it was trained on and what came of it.
        training: The record.
    """

    adapter: Adapter
    training: ExpertTraining


@checked
def train_expert(
    model: ModelLike,
    config: ExpertConfig,
    folder: str | Path | None = None,
    *,
    report: Callable[[ExpertStep], None] | None = None,
) -> Expert:
    """Train an expert: an adapter that makes a model better at one task.

    The model's own numbers are constant, and after each step it is as it was before. Interrupted by Ctrl-C, the step
    under way is finished, and the best expert so far is in `folder`, whole.

    Args:
        model: A decoder that reads the task's symbols, with no adapter attached.
        config: Task, kind of adapter, and how it is trained.
        folder: Where the expert is written when it is trained, or interrupted; nowhere by default.
        report: Called with an `ExpertStep` after each step.

    Raises:
        ConfigError: An adapter is attached, or the kind does not fit a matrix.
        UnknownSite: The model has no such matrix.
        TextError: The task's prompts are unknown to the model, or leave no room for an answer.
        TrainingDiverged: A loss or a gradient is not finite; the best expert so far is in `folder`.
        SaveError: The folder cannot be written to.

    Example:
        expert = train_expert(model, ExpertConfig(Sorting(), Svf(), steps=100), "experts/sorting")
        expert.training.tested, expert.training.tested_low
    """
    training = _Training(require_model(model, "train_expert"), config)
    with Interrupts() as interrupts:
        try:
            for step in training.steps():
                if report is not None:
                    report(step)
                interrupts.check()
        except (KeyboardInterrupt, TrainingDiverged):
            if folder is not None:
                save_adapter(training.expert().adapter, folder)
            raise
        expert = training.expert()
        if folder is not None:
            save_adapter(expert.adapter, folder)
    return expert


def task_of(adapter: Adapter) -> QuestionConfig:
    """The task that an expert was trained on; raises `ConfigError` for an adapter that does not say."""
    said: Any = adapter.facts.get("expert")
    if not isinstance(said, dict) or "task" not in said:
        raise ConfigError(
            f"{adapter} does not say which task it is an expert of. Train one: train_expert, or on the command line "
            "glassformer adapt train."
        )
    return QuestionConfig.from_dict(said["task"])


class _Training:
    """One training: the adapter, what was seen of each step, and the best numbers so far."""

    def __init__(self, model: Model, config: ExpertConfig) -> None:
        self.model, self.config, self.adapter = model, config, config.build(model)
        # reward, loss and divergence of each step that was made
        self.seen: list[tuple[float, float, float]] = []
        self.held_out: dict[int, float] = {}
        self.asked, self.tested = (self._questions(split) for split in ("heldout", "test"))
        self.before = mean_interval(answer_rewards(model, config.task, self.tested))
        self.best, self.numbers = 0, dict[str, Tensor]()
        self._measure()

    def steps(self) -> Iterator[ExpertStep]:
        """Yield what is told of each step; when it is, the step is made."""
        config, optim = self.config, self.config.optim
        now = [(math.nan, math.nan)]

        def losses(step: int) -> Iterator[Tensor]:
            loss, now[0] = self._loss(step)
            yield loss

        descent = Descent(
            list(self.adapter.parameters()), optim.build(self.adapter), losses,
            rate=lambda step: optim.rate(step, config.steps, self.model.config.d_model), steps=config.steps,
            clip=optim.clip, name="train_expert",
            way_on=lambda: f"Train it with a smaller optim.lr (now {optim.lr:g}), or a larger kl_weight.",
        )  # fmt: skip
        for update in descent:
            ((reward, divergence),) = now
            self.seen.append((reward, update.loss, divergence))
            is_due = update.step % config.evaluate_every == 0 or update.step == config.steps
            held_out = self._measure() if is_due else None
            yield ExpertStep(
                step=update.step, steps=config.steps, reward=reward, loss=update.loss, divergence=divergence,
                held_out=held_out,
            )  # fmt: skip

    def expert(self) -> Expert:
        """Return the best of the steps that were made, tested."""
        if len(self.seen) not in self.held_out:
            self._measure()
        with torch.no_grad():
            for name, number in self.adapter.named_parameters():
                number.copy_(self.numbers[name])
        with self.adapter.attached(self.model):
            after = mean_interval(answer_rewards(self.model, self.config.task, self.tested))
        ends = [{"reward": mean, "low": low, "high": high} for mean, low, high in (self.before, after)]
        self.adapter.facts = {
            "expert": self.config.to_dict(), "steps": len(self.seen), "best": self.best,
            "held_out": self.held_out[self.best], "tested": dict(zip(_WHEN, ends)),
        }  # fmt: skip
        return Expert(self.adapter.requires_grad_(False).eval(), self._record(after))

    def _record(self, after: tuple[float, float, float]) -> ExpertTraining:
        columns = torch.tensor(self.seen, dtype=torch.float64).reshape(-1, 3).unbind(1)
        made = {"step": list(range(1, len(self.seen) + 1))}
        reward, loss, divergence = (Labelled(column, ("step",), made) for column in columns)
        measured = torch.tensor(list(self.held_out.values()), dtype=torch.float64)
        ends = torch.tensor([self.before, after], dtype=torch.float64).unbind(1)
        tested, low, high = (Labelled(end, ("when",), {"when": list(_WHEN)}) for end in ends)
        return ExpertTraining(
            reward=reward, loss=loss, divergence=divergence,
            held_out=Labelled(measured, ("step",), {"step": list(self.held_out)}),
            tested=tested, tested_low=low, tested_high=high, best=self.best, prompts=len(self.tested),
            task=self.config.task.described,
        ).bound(Binding("train_expert", self.model, seed=self.config.seed))  # fmt: skip

    def _loss(self, step: int) -> tuple[Tensor, tuple[float, float]]:
        """Return the loss of a step, and what is told of it: the mean reward and the mean divergence."""
        config, model = self.config, self.model
        asked = config.task.questions(config.batch_size, seed=_seed(config.seed, step))
        prompts, rewards = [one.prompt for one in asked], None
        # what is drawn is scored with the very weights that drew it
        with self.adapter.attached(model):
            if config.objective == "reward":
                drawn = complete(model, prompts, seed=_seed(config.seed, step), max_new_tokens=room(model, asked))
                rewards = torch.tensor([config.task.reward(*one) for one in zip(prompts, drawn.texts, strict=True)])
                batch = drawn.batch
            else:
                batch = completion_batch(model, prompts, [behind(one.answer) for one in asked])
            logits = batch_logits(model, batch)
        with torch.no_grad():
            reference = batch_logits(model, batch)
        with torch.set_grad_enabled(config.kl_weight > 0):
            divergence = kl_divergence(logits, reference, batch.weight, config.direction).mean()
        if rewards is None:
            loss = -completion_log_probs(logits, batch).sum() / batch.weight.sum()
        else:
            baseline = leave_one_out(rewards) if config.baseline == "leave-one-out" else None
            loss = reinforce_loss(logits, batch, rewards, baseline=baseline)
        # rounding may leave a little less than nothing
        told = math.nan if rewards is None else float(rewards.mean()), max(0.0, float(divergence.detach()))
        return loss + config.kl_weight * divergence, told

    def _measure(self) -> float:
        """Measure the reward of held-out prompts behind the steps so far, and keep the numbers if it is the best."""
        step = len(self.seen)
        with self.adapter.attached(self.model):
            found = float(answer_rewards(self.model, self.config.task, self.asked).mean())
        if not self.held_out or found > self.held_out[self.best]:
            self.best = step
            self.numbers = {name: number.detach().clone() for name, number in self.adapter.named_parameters()}
        self.held_out[step] = found
        return found

    def _questions(self, split: QuestionSplit) -> tuple[Question, ...]:
        return self.config.task.questions(self.config.evaluate_prompts, split, seed=self.config.seed)


def _seed(seed: int, step: int) -> int:
    """Return the seed of what a step draws."""
    return hash64("expert", seed, step) >> 2
