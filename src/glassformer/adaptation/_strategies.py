"""Which expert a prompt gets: three strategies, each the first of two passes.

    AskedTask(question)                 the model answers which task a prompt is of
    AskedTask(question, classifier)     the same, with an expert for that question attached
    FewShot(examples)                   z' = sum over k of a_k z_k, a by the cross-entropy method on solved examples

Asked which task it is, the model writes an answer, the likeliest token at a time. `other`, what is no answer to the
question, and a task without an expert mean the model's own weights. The probability of an answer is that of its whole
text and of the end behind it; what is left of one is that of anything else.

Coefficients weigh what experts change, W' = W + sum over k of a_k (W'_k - W), so that zeros are the model itself; of
the paper's form of SVF this is the paper's where they sum to one. Mixtures are ordered by the share of examples that
they answer right, and equal ones by the log-probability of the right answers.

Source: Sun, Cetin, Tang 2025, "Transformer-Squared: Self-adaptive LLMs", section 3.3, and its published code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.adaptation._adapter import Adapter
from glassformer.adaptation._batches import adapted
from glassformer.adaptation._mixed import mixed
from glassformer.adaptation._rewards import answer_rewards, behind
from glassformer.arguments import Count, PositiveShare, checked
from glassformer.config import require
from glassformer.data import Question, QuestionConfig, WhichTask
from glassformer.errors import ConfigError, nearest
from glassformer.fitting import (
    Search,
    SearchStep,
    batch_logits,
    completion_batch,
    completion_log_probs,
    cross_entropy_method,
)
from glassformer.labelled import Labelled
from glassformer.models import GREEDY, Model, generate
from glassformer.models.evaluation import evaluating

# what a prompt is called that no expert was chosen for: the model's own weights answer it
NONE = "none"
# an answer that is none of those the question has
ELSE = "anything else"
MIXTURE = "mixture"


@dataclass(frozen=True, eq=False)
class Decision:
    """What a first pass decided.

    Args:
        adapters: What answers each prompt; None for the model itself.
        chosen: What that is called, prompt by prompt.
        said: What the model wrote when it was asked which task each prompt is of; empty where it was not asked.
        probability: Of each answer to the question which task a prompt is of, `batch answer`; None where none is asked.
        coefficients: Of a mixture, `expert` or `matrix expert`; None where nothing is mixed.
        search: Share of the examples that the best mixture answered right, `step`; None where nothing is mixed.
    """

    adapters: tuple[Adapter | None, ...]
    chosen: tuple[str, ...]
    said: tuple[str, ...] = ()
    probability: Labelled | None = None
    coefficients: Labelled | None = None
    search: Labelled | None = None


class Strategy:
    """A way to decide which expert answers a prompt."""

    def decide(self, model: Model, experts: Mapping[str, Adapter], prompts: Sequence[str]) -> Decision:
        """Make the first pass; afterwards the model is as it was.

        Args:
            model: The model, with no adapter attached.
            experts: Experts by what they are called.
            prompts: What is to be answered.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it decides")


@checked
@dataclass(frozen=True, eq=False)
class AskedTask(Strategy):
    """The model is asked which task each prompt is of, and the expert of that name answers it.

    Args:
        question: The question, and with it the answers there are: kinds of tasks, which experts are called by.
        classifier: An expert for the question, attached while it is asked; None to ask the model itself.
    """

    question: WhichTask
    classifier: Adapter | None = None

    def decide(self, model: Model, experts: Mapping[str, Adapter], prompts: Sequence[str]) -> Decision:
        *kinds, other = self.question.choices()
        for name in experts:
            require(
                name in kinds,
                f'no answer to the question which task a prompt is of chooses the expert "{name}".'
                f"{nearest(name, kinds)} Answers that do: {', '.join(kinds)}.",
            )
        answers = [*kinds, other]
        asked = [self.question.asked(prompt) for prompt in prompts]
        with adapted(model, self.classifier), evaluating(model), torch.no_grad():
            written = [behind(answer) for answer in answers]
            batch = completion_batch(model, [one for one in asked for _ in answers], written * len(asked))
            log_probs = completion_log_probs(batch_logits(model, batch), batch)
            # as long as the longest of the answers with its end: what goes on behind one is another
            found = generate(model, asked, GREEDY, max_new_tokens=int(batch.weight.sum(1).max()))
        said = tuple(" ".join(text.split()) for text in found.texts)
        known = log_probs.double().exp().view(len(asked), len(answers)).cpu()
        # rounding may leave a little less than nothing
        shares = torch.cat((known, (1 - known.sum(1, keepdim=True)).clamp(min=0)), 1)
        return Decision(
            adapters=tuple(experts.get(name) for name in said),
            chosen=tuple(name if name in experts else NONE for name in said),
            said=said,
            probability=Labelled(shares, ("batch", "answer"), {"answer": [*answers, ELSE]}),
        )


@checked
@dataclass(frozen=True, eq=False)
class FewShot(Strategy):
    """Experts are mixed as answers a few solved examples best, once for all prompts.

    Args:
        task: What the examples are of.
        examples: Questions of it with their answers, none of them to be measured on later.
        per: Whether each expert has one coefficient, as in the paper, or one for each matrix.
        normalised: Whether coefficients are divided by their sum, of each matrix.
        iterations: Steps of the search.
        population: Mixtures in each.
        elite: Share of them that the next are drawn around.
        seed: Source of the draws.
        report: Called after each step of the search.
    """

    task: QuestionConfig
    examples: tuple[Question, ...]
    per: Literal["expert", "matrix"] = "expert"
    normalised: bool = False
    iterations: Count = 50
    population: Count = 32
    elite: PositiveShare = 0.2
    seed: int = 0
    report: Callable[[SearchStep], None] | None = None

    def decide(self, model: Model, experts: Mapping[str, Adapter], prompts: Sequence[str]) -> Decision:
        require(len(self.examples) > 0, "few-shot: coefficients are told by examples; give one or more.")
        require(len(experts) > 0, "few-shot: there are no experts to mix.")
        matrices = list(dict.fromkeys(name for one in experts.values() for name in one.changes))
        found = self._search(model, experts, matrices)
        coefficients, axes = self._coefficients(found.best, matrices, experts), ("matrix", "expert")
        assert coefficients is not None, "the best mixture is one"
        labels = {"matrix": matrices, "expert": list(experts)}
        labelled = Labelled(coefficients, axes, labels)
        steps = [one.value for one in found.steps]
        return Decision(
            adapters=(self._mixed(coefficients, matrices, experts),) * len(prompts),
            chosen=(MIXTURE,) * len(prompts),
            coefficients=labelled if self.per == "matrix" else labelled.select(matrix=0),
            search=Labelled(torch.tensor(steps).double(), ("step",), {"step": [one.step for one in found.steps]}),
        )

    def _search(self, model: Model, experts: Mapping[str, Adapter], matrices: Sequence[str]) -> Search:
        prompts, answers = zip(*self.examples)
        solved = completion_batch(model, prompts, [behind(answer) for answer in answers])

        def of_mixture(measure: Callable[[], float]) -> Callable[[Tensor], float]:
            def value(point: Tensor) -> float:
                coefficients = self._coefficients(point, matrices, experts)
                if coefficients is None:
                    return -math.inf
                with adapted(model, self._mixed(coefficients, matrices, experts)), torch.no_grad():
                    return measure()

            return value

        return cross_entropy_method(
            of_mixture(lambda: float((answer_rewards(model, self.task, self.examples) > 0).double().mean())),
            len(experts) * (len(matrices) if self.per == "matrix" else 1),
            tie_break=of_mixture(lambda: float(completion_log_probs(batch_logits(model, solved), solved).mean())),
            iterations=self.iterations, population=self.population, elite=self.elite, mean=1 / len(experts),
            seed=self.seed, report=self.report,
        )  # fmt: skip

    def _coefficients(
        self, point: Float[Tensor, " dimension"], matrices: Sequence[str], experts: Mapping[str, Adapter]
    ) -> Float[Tensor, "matrix expert"] | None:
        """Return the coefficients that a point of the search stands for; None where there is no sum to divide by."""
        found = point.view(-1, len(experts)).expand(len(matrices), -1)
        if not self.normalised:
            return found
        total = found.sum(1, keepdim=True)
        return found / total if bool((total > 0).all()) else None

    def _mixed(
        self, coefficients: Float[Tensor, "matrix expert"], matrices: Sequence[str], experts: Mapping[str, Adapter]
    ) -> Adapter:
        rows = dict(zip(matrices, coefficients.tolist()))
        return mixed({one: {name: rows[name][k] for name in one.changes} for k, one in enumerate(experts.values())})


def require_experts(experts: Mapping[str, Adapter], model: Model) -> None:
    """Raise `ConfigError`, or what `Adapter.matrices` does, unless experts are of a model and have their own names."""
    if NONE in experts:
        raise ConfigError(f'"{NONE}" is what the model without an expert is called; call the expert otherwise.')
    require(len(set(experts.values())) == len(experts), "an expert is given under two names; give each once.")
    for one in experts.values():
        one.matrices(model)
