"""Experts: trained by reward or by next-token loss, kept in folders, chosen for each prompt, and taken off again."""

import dataclasses
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from elsewhere import ELSEWHERE, elsewhere
from glassformer.adaptation import (
    NONE,
    Adapter,
    AskedTask,
    CorDA,
    Decision,
    ExpertConfig,
    ExpertStep,
    FewShot,
    FullTuning,
    Lora,
    MiLora,
    SingularScales,
    Strategy,
    Svf,
    _decompositions as decompositions,
    adapted_answers,
    answer_rewards,
    load_adapter,
    mixed,
    save_adapter,
    task_of,
    train_expert,
)
from glassformer.adaptation._rewards import mean_interval
from glassformer.attention import Rope
from glassformer.data import ClosingBrackets, Question, Sorting, WhichTask
from glassformer.errors import ConfigError, TextError, TrainingDiverged
from glassformer.fitting import batch_logits, complete, completion_batch, completion_log_probs
from glassformer.models import GREEDY, DecoderConfig, Mlp, block, generate
from glassformer.models.decoder import Decoder
from glassformer.testing import close
from glassformer.training import OptimConfig

BRACKETS = ClosingBrackets(n_min=1, n_max=3, n_kinds=2, heldout=0.3, tested=0.3)
LISTS = Sorting(n_min=2, n_max=2, largest=9)
WHICH = WhichTask(parts=(BRACKETS, LISTS))
FAST = OptimConfig(lr=0.02, schedule="constant", warmup=0, clip=1.0, weight_decay=0.0)


@dataclasses.dataclass(frozen=True)
class Opening(ClosingBrackets, kind="first-bracket"):
    """Brackets of which it is enough to close one."""

    def reward(self, prompt: str, completion: str) -> float:
        return 1.0 if completion.split()[:1] == [")"] else -1.0


EASY = Opening(n_min=1, n_max=3, n_kinds=1, heldout=0.3, tested=0.3)


def decoder(seed: int = 0) -> Decoder:
    data = WHICH.build()
    layer = block(n_heads=2, positions=Rope(), mlp=Mlp(32))
    model = DecoderConfig(data.vocab_size, 16, (layer,), max_len=32).build(seed).eval()
    with torch.no_grad():
        # what adapters change is to be seen in what is written
        for weight in model.parameters():
            weight.mul_(10 if weight.ndim > 1 else 1)
    model.tokenizer = data.tokenizer
    return model


def config(**changes: Any) -> ExpertConfig:
    usual = {"optim": FAST, "steps": 3, "batch_size": 8, "evaluate_every": 2, "evaluate_prompts": 10}
    return ExpertConfig(EASY, **{**usual, **changes})


def parameters(model: Decoder) -> list[Tensor]:
    return [one.detach().clone() for one in model.parameters()]


def same(model: Decoder, before: list[Tensor]) -> bool:
    return all(torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True))


def test_rewards_make_an_expert_better_and_leave_the_model_as_it_was() -> None:
    model = decoder()
    before = parameters(model)
    told = list[ExpertStep]()
    expert = train_expert(
        model,
        config(
            adapter=Lora(4), steps=24, batch_size=24, evaluate_every=8, evaluate_prompts=20,
            baseline="leave-one-out",
        ),
        report=told.append,
    )  # fmt: skip
    record = expert.training
    first, last = float(record.reward.values[:5].mean()), float(record.reward.values[-5:].mean())
    assert last > first + 0.4 and float(record.divergence.values[-1]) > 0.1
    assert float(record.divergence.values[0]) == 0.0
    was, now = record.tested.values.tolist()
    assert now > was + 0.2 and record.tested_low.values[1] <= now <= record.tested_high.values[1]
    held_out = dict(zip(record.held_out.labels("step"), record.held_out.values.tolist()))
    assert list(held_out) == [0, 8, 16, 24] and held_out[record.best] == max(held_out.values())
    assert [one.step for one in told] == list(range(1, 25)) and told[7].held_out == held_out[8]
    assert same(model, before) and not any(one.requires_grad for one in expert.adapter.parameters())


@pytest.mark.parametrize(
    "kind", [Svf(), Svf("code"), Lora(2), MiLora(2), CorDA(2), FullTuning()], ids=lambda k: k.described
)
@pytest.mark.parametrize("objective", ["reward", "next-token"])
def test_every_kind_trains_by_either_objective_and_its_folder_says_what_came_of_it(
    kind: Any, objective: Any, tmp_path: Path
) -> None:
    model = decoder()
    before = parameters(model)
    asked = config(adapter=kind, objective=objective, kl_weight=0.1, direction="forward", matrices=("*.attn.*",))
    expert = train_expert(model, asked, tmp_path)
    assert same(model, before)
    again = load_adapter(tmp_path, model)
    assert again.facts == expert.adapter.facts and task_of(again) == EASY
    assert ExpertConfig.from_dict(again.facts["expert"]) == asked
    tested = again.facts["tested"]["after"]
    with again.attached(model):
        rewards = answer_rewards(model, EASY, EASY.questions(10, "test"))
    assert (tested["reward"], tested["low"], tested["high"]) == pytest.approx(mean_interval(rewards))
    drawn = expert.training.reward.values
    assert bool(drawn.isnan().all()) == (objective == "next-token") and len(drawn) == 3


def test_the_numbers_are_those_of_the_best_step_and_the_same_for_a_seed() -> None:
    model = decoder()
    one, again, other = (train_expert(model, config(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one.training.loss.values, again.training.loss.values)
    assert not torch.equal(one.training.loss.values, other.training.loss.values)
    with one.adapter.attached(model):
        found = answer_rewards(model, EASY, EASY.questions(10, "heldout", seed=1))
    best = one.training.held_out.select(step=one.training.held_out.labels("step").index(one.training.best))
    assert float(found.mean()) == float(best.values)


def test_next_token_loss_is_that_of_answers_behind_the_very_prompts_that_rewards_are_of() -> None:
    model = decoder().double()
    questions = BRACKETS.questions(6, seed=3)
    prompts, answers = zip(*questions)
    batch = completion_batch(model, prompts, answers)
    found = completion_log_probs(batch_logits(model, batch), batch)
    assert model.tokenizer is not None
    for row, one in enumerate(questions):
        ids = model.tokenizer.encode
        rest = [*ids(one.answer), *model.stops]
        prompt = [model.tokenizer.id("<bos>"), *ids(one.prompt)]
        log_probs = model(torch.tensor([[*prompt, *rest][:-1]]))[0].log_softmax(-1)[len(prompt) - 1 :]
        close(found[row], log_probs.gather(1, torch.tensor(rest)[:, None]).sum())
    # what was drawn is scored alike
    drawn = complete(model, prompts, seed=0, max_new_tokens=6)
    ended = [row for row in range(6) if int(drawn.batch.targets[row][drawn.batch.weight[row]][-1]) in model.stops]
    assert ended
    scored = completion_batch(model, [prompts[row] for row in ended], [drawn.texts[row] for row in ended])
    close(completion_log_probs(batch_logits(model, scored), scored), drawn.log_probs[ended])


@pytest.mark.full
def test_a_divergence_that_weighs_much_holds_the_expert_near_the_model() -> None:
    model = decoder()
    free, held = (train_expert(model, config(adapter=Lora(4), steps=12, kl_weight=weight)) for weight in (0.0, 100.0))
    assert float(held.training.divergence.values[-1]) < 0.3 * float(free.training.divergence.values[-1])


def test_ctrl_c_leaves_the_best_so_far_whole(tmp_path: Path) -> None:
    model = decoder()
    before = parameters(model)

    def stop(step: ExpertStep) -> None:
        if step.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_expert(model, config(steps=50), tmp_path / "stopped", report=stop)
    kept = load_adapter(tmp_path / "stopped", model)
    assert kept.facts["steps"] == 3 and kept.facts["best"] in (0, 2, 3) and same(model, before)


def test_what_diverges_leaves_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder()
    room = "glassformer.adaptation._experts.reinforce_loss"
    monkeypatch.setattr(room, lambda logits, *_, **__: logits.sum() * torch.nan)
    with pytest.raises(TrainingDiverged, match=r"smaller optim\.lr \(now 0\.02\)"):
        train_expert(model, config(), tmp_path)
    assert load_adapter(tmp_path, model).facts["best"] == 0


@pytest.mark.full
def test_experts_are_trained_and_chosen_where_the_model_is() -> None:
    here = decoder()
    with elsewhere():
        model = decoder().to(ELSEWHERE)
        for kind in (Svf(), CorDA(2)):
            made = train_expert(model, config(adapter=kind, steps=1, kl_weight=0.1, baseline="leave-one-out"))
            assert {one.device for one in made.adapter.parameters()} == {ELSEWHERE}
        known = {"sorting": made.adapter}
        asked = adapted_answers(model, known, AskedTask(WHICH, made.adapter), PROMPTS, max_new_tokens=3)
        few = FewShot(LISTS, LISTS.questions(2), iterations=1, population=2)
        assert len(adapted_answers(model, known, few, PROMPTS, max_new_tokens=3).answers) == 5
    assert asked.answers == tuple(generate(here, PROMPTS, GREEDY, max_new_tokens=3).texts)


# ---- decompositions


def test_a_matrix_is_decomposed_once_for_all_adapters_and_anew_when_its_numbers_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted = list[tuple[int, ...]]()

    def counting(matrix: Tensor) -> Any:
        counted.append(tuple(matrix.shape))
        return torch.linalg.svd(matrix, full_matrices=False)

    monkeypatch.setattr(decompositions, "svd", counting)
    model = decoder()
    first = Svf().build(model)
    n = len(first.changes)
    assert len(counted) == n == len(model.matrices())
    second, third = Svf("code").build(model), MiLora(1).build(model)
    again = load_adapter(save_adapter(first, tmp_path), model)
    between = mixed({first: 0.5, again: 0.5})
    assert len(counted) == n
    for name in first.changes:
        parts = [one.changes[name] for one in (first, second, again, between)]
        assert len({part.u.data_ptr() for part in parts if isinstance(part, SingularScales)}) == 1
    assert set(third.changes) == set(first.changes)
    # written past what torch counts, and only one of those that share a weight
    changed = model.matrices("blocks.0.attn.key")[0]
    changed.values.data.mul_(2)
    key = Svf().build(model).changes["blocks.0.attn.key"]
    assert len(counted) == n + 1 and isinstance(key, SingularScales)
    close(key.s, torch.linalg.svdvals(changed.values.detach()))


# ---- two passes

PROMPTS = ["( [ =", "4 , 2 =", "( ( =", "1 , 7 =", "[ ="]
NAMES = ("closing-brackets", "sorting")


def experts(model: Decoder, kind: Any = None, spread: float = 0.5) -> dict[str, Adapter]:
    """Return experts whose numbers are somewhere, by the kinds of their tasks."""
    found = {}
    for seed, name in enumerate(NAMES):
        adapter = (kind or Lora(2)).build(model, seed=seed)
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for one in adapter.parameters():
                one += spread * torch.randn(one.shape, generator=random, dtype=one.dtype)
        found[name] = adapter.requires_grad_(False)
    return found


def alone(model: Decoder, adapter: Adapter | None, prompt: str, most: int = 6) -> str:
    with nullcontext() if adapter is None else adapter.attached(model):
        return generate(model, [prompt], GREEDY, max_new_tokens=most).texts[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Told(Strategy):
    """A strategy that is told what to decide."""

    names: tuple[str, ...]

    def decide(self, model: Any, experts: Any, prompts: Any) -> Decision:
        return Decision(tuple(experts.get(name) for name in self.names), self.names)


@pytest.mark.parametrize("kind", [Svf(), Lora(2), FullTuning()], ids=lambda kind: kind.described)
def test_each_row_of_a_batch_is_answered_as_by_its_own_expert_alone_and_weights_are_restored(kind: Any) -> None:
    model = decoder()
    before, known = parameters(model), experts(model, kind, 3.0 if kind == Svf() else 0.5)
    names = ("sorting", NONE, "closing-brackets", "sorting", NONE)
    found = adapted_answers(model, known, Told(names), PROMPTS, max_new_tokens=6)
    assert found.answers == tuple(alone(model, known.get(name), one) for name, one in zip(names, PROMPTS))
    assert found.chosen == names and found.prompts == tuple(PROMPTS) and found.provenance is not None
    assert any(len({alone(model, known.get(name), one) for name in names}) == 3 for one in PROMPTS)
    assert same(model, before)
    # whatever happens on the way
    with pytest.raises(TextError):
        adapted_answers(model, known, Told(names), PROMPTS, max_new_tokens=60)
    assert same(model, before)
    adapted_answers(model, known, Told(names), PROMPTS, max_new_tokens=1)


def test_the_model_is_asked_which_task_and_an_answer_has_the_probability_of_its_text_and_end() -> None:
    model = decoder().double()
    known = experts(model)
    found = adapted_answers(model, known, AskedTask(WHICH), PROMPTS, max_new_tokens=2)
    assert found.probability is not None
    assert found.probability.labels("answer") == [*NAMES, "other", "anything else"]
    close(found.probability.values.sum(1), torch.ones(5, dtype=torch.float64))
    assert model.tokenizer is not None
    name, end = model.tokenizer.id("sorting"), model.stops[0]
    ids = [model.tokenizer.id(one) for one in ["<bos>", "which", *PROMPTS[1].split(), "sorting"]]
    probabilities = model(torch.tensor([ids]))[0].softmax(-1)
    close(found.probability.select(answer="sorting").values[1], probabilities[-2, name] * probabilities[-1, end])
    # a model that was never asked writes something else
    assert found.chosen == (NONE,) * 5 and not set(found.said) & set(NAMES)
    assert found.answers == tuple(generate(model, PROMPTS, GREEDY, max_new_tokens=2).texts)


@pytest.mark.full
def test_a_classifier_is_attached_while_it_is_asked_and_only_then() -> None:
    model = decoder()
    before, known = parameters(model), experts(model)
    taught = train_expert(
        model,
        ExpertConfig(
            WHICH.replace(other=0.0), FullTuning(), objective="next-token", steps=40, batch_size=32,
            evaluate_prompts=8, evaluate_every=5, optim=FAST,
        ),
    ).adapter  # fmt: skip
    found = adapted_answers(model, known, AskedTask(WHICH, taught), PROMPTS, max_new_tokens=6)
    assert found.chosen == ("closing-brackets", "sorting", "closing-brackets", "sorting", "closing-brackets")
    assert found.answers == tuple(alone(model, known[name], one) for name, one in zip(found.chosen, PROMPTS))
    assert found.said == found.chosen and found.probability is not None
    likeliest = found.probability.values[:, :3].argmax(1).tolist()
    assert [NAMES[i] for i in likeliest] == list(found.chosen)
    assert same(model, before)
    # a task without an expert is answered by the model
    fewer = adapted_answers(model, {"sorting": known["sorting"]}, AskedTask(WHICH, taught), PROMPTS, max_new_tokens=6)
    assert fewer.chosen == (NONE, "sorting", NONE, "sorting", NONE)
    assert fewer.answers[0] == alone(model, None, PROMPTS[0]) and fewer.answers[1] == found.answers[1]


@pytest.mark.parametrize(
    ("per", "iterations"),
    [("expert", 1), *(pytest.param(per, 3, marks=pytest.mark.full) for per in ("expert", "matrix"))],
)
def test_few_shots_mix_experts_as_answers_examples_best_and_the_same_for_a_seed(per: Any, iterations: int) -> None:
    model = decoder()
    before, known = parameters(model), experts(model)
    # answers that one of the two gives, and the model alone does not
    good = known["sorting"]
    examples = tuple(Question(one, alone(model, good, one)) for one in PROMPTS)

    class Parrots(Sorting):
        """Whatever that expert writes is right."""

        def reward(self, prompt: str, completion: str) -> float:
            return 1.0 if completion == dict(examples)[prompt] else -1.0

    task = Parrots(n_min=2, n_max=3, largest=9)
    few = FewShot(task, examples, per=per, iterations=iterations, population=6, seed=1)
    # an answer that goes on where the longest of the examples ends is none of theirs
    most = 1 + max(len(answer.split()) for _, answer in examples)
    found = adapted_answers(model, known, few, PROMPTS, max_new_tokens=most)
    assert found.coefficients is not None and found.search is not None
    axes = ("expert",) if per == "expert" else ("matrix", "expert")
    assert found.coefficients.axes == axes and found.search.size("step") == iterations
    right = float(found.search.values[-1])
    by_model = sum(alone(model, None, one, most) == answer for one, answer in examples) / 5
    assert right >= float(found.search.values[0]) and right >= by_model and (per == "matrix" or right > by_model)
    if iterations > 1:
        again = adapted_answers(model, known, few, PROMPTS, max_new_tokens=most).coefficients
        assert again is not None and torch.equal(found.coefficients.values, again.values)
    assert sum(a == b for a, (_, b) in zip(found.answers, examples)) == round(5 * right)
    assert found.chosen == ("mixture",) * 5 and same(model, before)


@pytest.mark.parametrize("kind", [Svf(), Svf("code"), Lora(1), MiLora(1)], ids=lambda kind: kind.described)
def test_a_mixture_of_one_alone_is_that_expert_and_of_none_the_model_by_matrix_too(kind: Any) -> None:
    model = decoder().double()
    known = experts(model, kind, 0.3)
    first, second = known.values()
    base = {one.name: one.values.detach() for one in model.matrices()}
    for weights, expected in (((1.0, 0.0), first), ((0.0, 1.0), second), ((0.0, 0.0), None)):
        by_matrix = [dict.fromkeys(base, weight) for weight in weights]
        for found in (mixed(dict(zip((first, second), weights))), mixed(dict(zip((first, second), by_matrix)))):
            for name, matrix in base.items():
                wanted = matrix if expected is None else expected.changes[name].composed(matrix)
                close(found.changes[name].composed(matrix), wanted, 1e-12)
    apart = mixed({first: {name: float("attn" in name) for name in base}, second: dict.fromkeys(base, 0.0)})
    for name, matrix in base.items():
        wanted = first.changes[name].composed(matrix) if "attn" in name else matrix
        close(apart.changes[name].composed(matrix), wanted, 1e-12)


def test_only_ratios_of_the_codes_multipliers_count_in_a_mixture() -> None:
    model = decoder().double()
    first, second = experts(model, Svf("code")).values()
    base = {one.name: one.values.detach() for one in model.matrices()}
    small, large = mixed({first: 0.1, second: 0.2}), mixed({first: 5.0, second: 10.0})
    for name, matrix in base.items():
        close(large.changes[name].composed(matrix), small.changes[name].composed(matrix), 1e-12)


REFUSED: list[tuple[Callable[[Decoder, dict[str, Adapter]], object], type[Exception], str]] = [
    (
        lambda m, e: adapted_answers(m, {"sort": e["sorting"]}, AskedTask(WHICH), PROMPTS),
        ConfigError,
        'Nearest: "sorting"',
    ),
    (lambda m, e: adapted_answers(m, {NONE: e["sorting"]}, AskedTask(WHICH), PROMPTS), ConfigError, "call the expert"),
    (lambda m, e: adapted_answers(m, e, AskedTask(WHICH), []), ConfigError, "no prompts"),
    (
        lambda m, e: adapted_answers(m, dict.fromkeys(NAMES, e["sorting"]), AskedTask(WHICH), PROMPTS),
        ConfigError,
        "two names",
    ),
    (lambda m, e: adapted_answers(m, e, FewShot(LISTS, ()), PROMPTS), ConfigError, "give one or more"),
    (
        lambda m, e: adapted_answers(m, {}, FewShot(LISTS, LISTS.questions(1)), PROMPTS),
        ConfigError,
        "no experts to mix",
    ),
    (lambda m, e: adapted_answers(m, e, AskedTask(WhichTask()), PROMPTS[1:2]), TextError, "."),
    (lambda m, e: task_of(e["sorting"]), ConfigError, "does not say which task"),
    (lambda m, e: mixed({e["sorting"]: {"a": 1.0}}), ConfigError, "weights of 1 matrices"),
    (lambda m, e: completion_batch(m, ["4 , 2 ="], []), ConfigError, "0 completions for 1 prompts"),
    (lambda m, e: completion_batch(m, ["4 , 2 ="], ["2 " * 40]), TextError, "this model reads 32"),
    (lambda m, e: config(batch_size=1, baseline="leave-one-out"), ConfigError, "has none"),
    (lambda m, e: config(objective="next-token", baseline="leave-one-out"), ConfigError, "taken from rewards"),
]


def test_what_cannot_be_done_is_refused_in_a_sentence() -> None:
    model = decoder()
    known = experts(model)
    for call, error, words in REFUSED:
        with pytest.raises(error, match=words):
            call(model, known)


def test_a_model_beside_which_an_adapter_lies_says_so_and_its_copies_do_not(tmp_path: Path) -> None:
    model = decoder()
    save_adapter(Svf().build(model), tmp_path / "both", base=model)
    opened = gf.load(tmp_path / "both")
    (note,) = opened.checkpoint_notes
    assert "An adapter lies beside the weights" in note.seen and "load_adapter" in note.advice
    assert str(tmp_path / "both") in note.advice
    gf.save(opened, tmp_path / "copy")
    assert gf.load(tmp_path / "copy").checkpoint_notes == ()
