"""Rewards of what a model answers, and how sure their mean is."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.uncertainty import share_interval
from glassformer.arguments import checked
from glassformer.data import Question, QuestionConfig
from glassformer.errors import TextError
from glassformer.labelled import Labelled
from glassformer.models import GREEDY, Model, ModelLike, generate, require_model
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
    model = require_model(model, "answering questions")
    with evaluating(model):
        found = generate(model, [one.prompt for one in questions], GREEDY, max_new_tokens=room(model, questions))
    rewards = [task.reward(one.prompt, text) for one, text in zip(questions, found.texts, strict=True)]
    return torch.tensor(rewards, dtype=torch.float64)


def room(model: Model, questions: Sequence[Question]) -> int:
    """Return how many tokens the longest of some answers takes with its end; what is longer is right for none of them.

    Raises:
        TextError: The model has no tokenizer.
    """
    if model.tokenizer is None:
        raise TextError("questions are texts, and this model has no tokenizer to read them with.")
    return 1 + max(len(model.tokenizer.encode(behind(one.answer))) for one in questions)


def behind(answer: str) -> str:
    """Return an answer as it stands behind a prompt: apart, as its own words are."""
    return f" {answer}"


def mean_interval(rewards: Float[Tensor, " batch"]) -> tuple[float, float, float]:
    """Return the mean of rewards that are 1 or -1 and its 95 % interval, by Wilson; NaN of none."""
    if not len(rewards):
        return math.nan, math.nan, math.nan
    # a reward of 1 is one more that is right
    mean, ends = float(rewards.mean()), share_interval(Labelled((rewards + 1) / 2, ("batch",)))
    low, high = (2 * ends.values - 1).tolist()
    # rounding may leave the mean outside where all are alike
    return mean, min(low, mean), max(high, mean)
