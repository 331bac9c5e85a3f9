"""Experts of single tasks by a few numbers for each matrix: what rewards add, what it costs, and what can be mixed.

A small decoder knows a part of three tasks and of the question which of them a prompt is of. Experts for each task are
trained by reward, as singular value scales or as low-rank changes, and as scales by next-token loss too; then

    others      what an expert of one task takes from the two others
    mixture     all three experts with a third of each
    two passes  the decoder, or an expert for the question, says which expert answers a prompt
    few-shot    ten solved examples say how experts are mixed for more brackets than any row that is trained on has
    moved       scales of one decoder on the matrices of another one, in the order of singular values or shuffled
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

import torch

from glassformer.adaptation import (
    Adapter,
    AdapterConfig,
    AskedTask,
    ExpertConfig,
    ExpertTraining,
    FewShot,
    Lora,
    SingularScales,
    Svf,
    adapted_answers,
    answer_rewards,
    mixed,
    train_expert,
)
from glassformer.analysis.learning import read_history
from glassformer.data import ClosingBrackets, MixtureConfig, Question, QuestionConfig, WhichTask
from glassformer.models import Decoder
from glassformer.study import (
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Quantity,
    Scale,
    Study,
    above,
    below,
    value,
    within,
)
from glassformer.training.recipes import recipe

SVF, LORA, IMITATED = "SVF by reward", "LoRA by reward", "SVF by next-token loss"
ADAPTERS: dict[str, AdapterConfig] = {SVF: Svf(), LORA: Lora(rank=8), IMITATED: Svf()}
RECIPE = recipe("questions")
assert isinstance(RECIPE.data, MixtureConfig), "a mixture of tasks"
PARTS = [part for part in RECIPE.data.parts if isinstance(part, QuestionConfig)]
TASKS = {str(part.kind): part for part in PARTS if not isinstance(part, WhichTask)}
QUESTION = next(part for part in PARTS if isinstance(part, WhichTask))
# more brackets than any row that the decoder or an expert is trained on has, and as many as the decoder has room for
UNSEEN = ClosingBrackets(n_min=12, n_max=14, n_kinds=4)
TOLD, ASKED = "classifier", "prompt"


def run(case: Case) -> Measures:
    model, prompts = decoder(case, case.seed), case["prompts"]
    tests = {name: task.questions(prompts, "test", seed=case.seed) for name, task in TASKS.items()}
    found = {f"base {name}": right(model, TASKS[name], asked) for name, asked in tests.items()}
    experts, trainings = dict[str, Adapter](), dict[str, ExpertTraining]()
    for name, task in TASKS.items():
        one = trained(case, model, task)
        experts[name], trainings[name] = one.adapter, one.training
    found["parameters"] = sum(p.numel() for p in experts[next(iter(TASKS))].parameters())
    for name, training in trainings.items():
        held_out = training.held_out.values
        found[f"collapse {name}"] = float(held_out.max() - held_out[-1]) / 2
    for name, expert in experts.items():
        with expert.attached(model):
            scores = {other: right(model, TASKS[other], asked) for other, asked in tests.items()}
        found[f"expert {name}"] = scores[name]
        found[f"others {name}"] = fmean(scores[other] - found[f"base {other}"] for other in TASKS if other != name)
    with mixed({expert: 1 / len(experts) for expert in experts.values()}).attached(model):
        found["mixture"] = fmean(right(model, TASKS[name], asked) for name, asked in tests.items())
    for measure in ("base", "expert", "others", "collapse"):
        found[measure] = fmean(found[f"{measure} {name}"] for name in TASKS)
    if case["expert"] == SVF:
        found[f"base {QUESTION.kind}"] = right(model, QUESTION, QUESTION.questions(prompts, "test", seed=case.seed))
        found |= two_passes(case, model, experts, tests) | moved(case, experts)
    return found


def decoder(case: Case, seed: int) -> Decoder:
    """Return the decoder of a seed at the first of its steps that knows a part of each task; at its last if none does.

    Which step that is, is told by held-out prompts; what is measured is asked in others.
    """
    assert case.trains is not None, "cases train where they are run by the engine"
    steps = case["steps"]
    keep = tuple(step for step in RECIPE.keep if step <= steps)
    recipe = RECIPE.replace(seed=seed, steps=steps, evaluate_every=steps, save_every=steps, keep=keep)
    history = read_history(case.trains(recipe))
    asked = [(task, task.questions(case["chosen_by"], "heldout", seed=seed)) for task in (*TASKS.values(), QUESTION)]
    model: Any = None
    for _, model in history.models():
        if all(right(model, task, prompts) >= case["known"] for task, prompts in asked):
            break
    assert isinstance(model, Decoder), "the recipe is of a decoder"
    return model.eval()


def trained(case: Case, model: Decoder, task: QuestionConfig) -> Any:
    kind: str = case["expert"]
    trainings = [*TASKS.values(), *([QUESTION] if kind == SVF else [])]
    before = trainings.index(task)
    return train_expert(
        model,
        ExpertConfig(
            task, ADAPTERS[kind], objective="next-token" if kind == IMITATED else "reward", kl_weight=case["kl_weight"],
            steps=case["expert_steps"], batch_size=case["batch"], evaluate_every=max(case["expert_steps"] // 10, 1),
            evaluate_prompts=case["chosen_by"], seed=case.seed,
        ),
        report=lambda step: case.report(before * step.steps + step.step, len(trainings) * step.steps),
    )  # fmt: skip


def right(model: Decoder, task: QuestionConfig, asked: Sequence[Question]) -> float:
    """Return the share of questions that a model answers right."""
    return float((answer_rewards(model, task, asked) > 0).double().mean())


def two_passes(
    case: Case, model: Decoder, experts: Mapping[str, Adapter], tests: Mapping[str, Sequence[Question]]
) -> dict[str, float]:
    """Return shares of right answers to a mixture of all tasks, and to prompts longer than any that is trained on."""
    classifier = trained(case, model, QUESTION).adapter
    prompts = [one.prompt for one in chain(*tests.values())]
    names = [name for name, asked in tests.items() for _ in asked]
    found = dict[str, float]()
    for way, strategy in ((ASKED, AskedTask(QUESTION)), (TOLD, AskedTask(QUESTION, classifier))):
        answered = adapted_answers(model, experts, strategy, prompts)
        rewards = [TASKS[name].reward(*one) for name, one in zip(names, zip(prompts, answered.answers), strict=True)]
        found[f"two passes {way}"] = fmean(reward > 0 for reward in rewards)
        found[f"chosen {way}"] = fmean(name == said for name, said in zip(names, answered.chosen, strict=True))
    examples = UNSEEN.questions(case["shots"], "heldout", seed=case.seed)
    unseen = UNSEEN.questions(case["prompts"], "test", seed=case.seed)
    search = FewShot(UNSEEN, examples, iterations=case["search"], seed=case.seed)
    answered = adapted_answers(model, experts, search, [one.prompt for one in unseen])
    rewards = [UNSEEN.reward(one.prompt, text) for one, text in zip(unseen, answered.answers, strict=True)]
    found["unseen base"] = right(model, UNSEEN, unseen)
    found["unseen few-shot"] = fmean(reward > 0 for reward in rewards)
    return found


def moved(case: Case, experts: Mapping[str, Adapter]) -> dict[str, float]:
    """Return what scales add to the decoder of another seed: as they are, and with each matrix's own shuffled."""
    other = decoder(case, (case.seed + 1) % case["decoders"])
    random, gains = case.generator(), dict[str, list[float]]()
    for name, expert in experts.items():
        asked = TASKS[name].questions(case["prompts"], "test", seed=case.seed)
        base = right(other, TASKS[name], asked)
        for way in ("moved", "shuffled"):
            adapter = Svf().build(other)
            for matrix, change in adapter.changes.items():
                own = expert.changes[matrix]
                assert isinstance(own, SingularScales) and isinstance(change, SingularScales), "scales are moved"
                order = torch.randperm(len(own.z), generator=random) if way == "shuffled" else torch.arange(len(own.z))
                with torch.no_grad():
                    change.z.copy_(own.z[order])
            with adapter.attached(other):
                gains.setdefault(way, []).append(right(other, TASKS[name], asked) - base)
    return {way: fmean(found) for way, found in gains.items()}


def of(measure: str, expert: str = SVF) -> Quantity:
    return value(measure, expert=expert)


def learned(name: str) -> Condition:
    return Condition(f"The decoder knows a part of {name} and not all of it", of(f"base {name}"), within(0.2, 0.6))


ROOM = tuple(map(learned, TASKS))
ASKING = (*ROOM, learned(str(QUESTION.kind)))
# less than of what it was trained on, and enough for ten examples to tell one mixture from another
BEYOND = (
    *ROOM,
    Condition("The decoder knows a part of longer brackets and not all of them", of("unseen base"), within(0.3, 0.4)),
)

SHARES = {"two passes": "right answers to all tasks", "chosen": "prompts that get their expert"}

STUDY = Study(
    "task-experts",
    paper='Sun, Cetin, Tang 2025, "Transformer-Squared: Self-adaptive LLMs", arXiv 2501.06252, sections 3 and 4: '
    "scales of singular values trained by reward beat LoRA with fewer parameters, are composed, and move to others",
    question="What do experts of a few numbers a matrix add, and can they be chosen, mixed and moved?",
    run=run,
    grid={"expert": (SVF, LORA, IMITATED)},
    scales={
        "smoke": Scale(
            1,
            {"steps": 2, "expert_steps": 2, "batch": 4, "prompts": 4, "chosen_by": 4, "known": 1.0, "shots": 2,
             "search": 2, "kl_weight": 0.0, "decoders": 1},
        ),
        "small": Scale(
            3,
            {"steps": RECIPE.steps, "expert_steps": 120, "batch": 128, "prompts": 600, "chosen_by": 200, "known": 0.45,
             "shots": 10, "search": 12, "kl_weight": 0.1, "decoders": 3},
        ),
    },
    measures={
        "base": Measure("Share of right answers without an expert, mean over tasks"),
        "expert": Measure("The same with the expert of each task"),
        "others": Measure("What an expert adds to the share of the other tasks, mean over experts"),
        "collapse": Measure("Share that training has lost again at its end, mean over experts"),
        "mixture": Measure("Share of right answers with a third of each expert's change, mean over tasks"),
        "parameters": Measure("Numbers of an expert that are trained"),
        **{
            f"base {name}": Measure(f"Share of right answers to {name} without an expert")
            for name in (*TASKS, str(QUESTION.kind))
        },
        **{f"expert {name}": Measure(f"Share of right answers to {name} with its expert") for name in TASKS},
        **{f"others {name}": Measure(f"What the expert of {name} adds to the other tasks") for name in TASKS},
        **{f"collapse {name}": Measure(f"Share that training on {name} has lost again at its end") for name in TASKS},
        **{
            f"{measure} {way}": Measure(f"Share of {said}, {how}")
            for measure, said in SHARES.items()
            for way, how in ((ASKED, "the decoder is asked"), (TOLD, "an expert for the question is"))
        },
        "unseen base": Measure("Share of brackets closed that are more than any it saw, without an expert"),
        "unseen few-shot": Measure("The same with the mixture that answers ten examples best"),
        "moved": Measure("What scales add to the share of another decoder, mean over tasks"),
        "shuffled": Measure("The same, scales of each matrix shuffled"),
    },
    claims=(
        Claim("reward-helps", "SVF experts trained by reward answer their tasks better than the decoder",
              of("expert") - of("base"), above(0), ROOM),
        Claim("beats-lora", "They answer better than LoRA experts of rank 8 trained so",
              of("expert") - of("expert", LORA), above(0), ROOM),
        Claim("fewer-numbers", "They train less than a tenth of the numbers", of("parameters") / of("parameters", LORA),
              below(0.1), exact="Both are counted of the decoder's matrices"),
        Claim("lora-collapses", "By reward LoRA loses again what it had gained, and SVF less",
              of("collapse", LORA) - of("collapse"), above(0), ROOM),
        Claim("beats-imitation", "Scales trained by reward answer better than scales trained by next-token loss",
              of("expert") - of("expert", IMITATED), above(0), ROOM),
        Claim("forgets-less", "SVF experts take less from other tasks than LoRA experts",
              of("others") - of("others", LORA), above(0), ROOM),
        Claim("composes", "A third of each expert answers all tasks better than the decoder",
              of("mixture") - of("base"), above(0), ROOM),
        Claim("two-passes-asked", "Where the decoder says which expert answers, a mixture of tasks is answered better",
              of(f"two passes {ASKED}") - of("base"), above(0), ASKING),
        Claim("two-passes-told", "Where an expert for the question says it, too", of(f"two passes {TOLD}") - of("base"),
              above(0), ASKING),
        Claim("classifier-helps", "The expert for the question chooses better than the decoder",
              of(f"chosen {TOLD}") - of(f"chosen {ASKED}"), above(0), ASKING),
        Claim("few-shot", "Mixtures chosen by ten examples close longer brackets, which no expert saw, more often",
              of("unseen few-shot") - of("unseen base"), above(0), BEYOND),
        Claim("moves", "Scales make a decoder of another seed better", of("moved"), above(0), ROOM),
        Claim("moves-in-order", "They do more in their order than shuffled", of("moved") - of("shuffled"), above(0),
              ROOM),
    ),
    differs=(
        "Decoders of 335,000 parameters that know these tasks alone; the paper adapts Llama 3 8B and Mistral 7B.",
        "Another decoder is one of the same shape from another seed; the paper's two models differ in family.",
        "LoRA changes all matrices too, by rank 8.",
        "The unseen task is longer prompts of a task that an expert learned. Of what takes two experts, as sums "
        "brought in order, such a decoder answers nearly nothing, and ten examples tell no mixture from another.",
    ),
    mechanisms=("softmax",),
    references={"expert": (SVF,)},
)  # fmt: skip
