"""Rewards of what a model answers, and how sure their mean is."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.uncertainty import share_interval
from glassformer.arguments import checked
from glassformer.data import Question, QuestionConfig
from glassformer.labelled import Labelled
from glassformer.models import GREEDY, ModelLike, generate, require_model
from glassformer.models.evaluation import evaluating


@checked
def answer_rewards(model: ModelLike, task: QuestionConfig, questions: Sequence[Question]) -> Float[Tensor, " batch"]:
    """The reward of each answer that a model gives, the likeliest token at a time, float64 on the CPU.

    Args:
        model: A decoder; with an adapter attached, the adapted one answers.
        task: What the questions are of.
        questions: Those asked.

    Raises:
        DataError: The task has no answer to a prompt.
        TextError: A prompt is mostly unknown to the model, or leaves no room for an answer.
    """
    with evaluating(require_model(model, "answering questions")):
        found = generate(model, [one.prompt for one in questions], GREEDY, max_new_tokens=room(task))
    rewards = [task.reward(one.prompt, text) for one, text in zip(questions, found.texts, strict=True)]
    return torch.tensor(rewards, dtype=torch.float64)


def room(task: QuestionConfig) -> int:
    """Return how many tokens a task's longest answer takes, its end among them, where a symbol is a token."""
    return task.longest().answer + 1


def mean_interval(rewards: Float[Tensor, " batch"]) -> tuple[float, float, float]:
    """Return the mean of rewards that are 1 or -1 and its 95 % interval, by Wilson; NaN of none."""
    if not len(rewards):
        return math.nan, math.nan, math.nan
    # a reward of 1 is one more that is right
    mean, ends = float(rewards.mean()), share_interval(Labelled((rewards + 1) / 2, ("batch",)))
    low, high = (2 * ends.values - 1).tolist()
    # rounding may leave the mean outside where all are alike
    return mean, min(low, mean), max(high, mean)
