"""Causal tracing: no noise does nothing, restoring everything restores everything, severing is what it says."""

from typing import Any

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.causal import average_traces, causal_trace, subject_deviation
from glassformer.analysis.causal._tracing import KINDS, token_roles
from glassformer.data import Batch
from glassformer.data.tokenizer import word_tokenizer
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError
from glassformer.handmade import induction_model
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import Add, At, Set


def prompt(name: str, length: int = 4) -> tuple[Any, Any, dict[str, Any]]:
    found = subject(name, batch=1, length=length)
    return found.model, found.inputs[0], {} if len(found.inputs) == 1 else {"target": found.inputs[1]}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_noise_there_is_no_effect(name: str) -> None:
    model, ids, given = prompt(name, length=3)
    found = causal_trace(model, ids, [1], noise=0.0, samples=2, window=1, **given)
    close(found.values.values, found.clean.values[:, None, None, None, None].expand_as(found.values.values))
    assert found.total_effect.values.abs().max() < 1e-12


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if not name.startswith("translator")])
def test_restoring_reaches_the_answer_from_the_last_position_and_not_from_before_the_subject(name: str) -> None:
    model, ids, _ = prompt(name)
    found = causal_trace(model, ids, [1], samples=2)
    effect = found.indirect_effect.select(kind="state").values
    close(effect[:, -1, -1], found.total_effect.values)
    assert found.total_effect.values.abs().max() > 1e-6
    # what comes before the subject is as it was
    assert found.indirect_effect.values[:, :, 0].abs().max() < 1e-12
    # the last layer's stream at any other position is read by nobody
    assert effect[:, :-1, -1].abs().max() < 1e-12


def test_a_subject_of_the_whole_source_is_restored_by_restoring_it_at_its_only_position() -> None:
    model, ids, _ = prompt("translator_pre")
    target = torch.tensor([[1, 2]])
    found = causal_trace(model, ids[:, :1], [0], samples=2, target=target)
    close(found.indirect_effect.select(kind="state").values[:, 0], found.total_effect.values[:, None].expand(2, 2))
    both = causal_trace(model, ids, [0], samples=2, stack="decoder", target=target)
    assert both.values.size("pos") == 2


@pytest.mark.parametrize("name", ["gpt2", "parallel", "post", "lightning_hybrid", "translator_pre"])
def test_each_cell_is_one_run_with_these_edits(name: str) -> None:
    model, ids, given = prompt(name)
    stack = "encoder." if given else ""
    found = causal_trace(model, ids, [1, 2], 3, 4, kinds=KINDS, window=2, samples=3, seed=7, **given)
    embed: Any = model.encoder_embed if given else model.embed
    generator = torch.Generator().manual_seed(7)
    deviation = float((embed.weight[ids[0, [1, 2]]] * embed.factor).detach().std())
    assert found.noise == pytest.approx(3 * deviation)
    assert found.noise == pytest.approx(3 * subject_deviation(model, [ids[0, 1:3]]))
    drawn = torch.randn(3, 2, 16, generator=generator, dtype=torch.float64) * found.noise
    noise = Add(f"{stack}embed.token", drawn, at=At(pos=[1, 2]))
    many = ids.expand(3, -1)
    target = given["target"].expand(3, -1) if given else None
    sites = ["*.resid_post", "*.out"]
    clean = run(model, ids, given.get("target"), read=sites)
    corrupt = run(model, many, target, read=sites, edit=[noise])

    def answered(edits: list[Any]) -> torch.Tensor:
        logits = run(model, many, target, edit=[noise, *edits]).logits
        assert logits is not None
        last = logits[:, -1]
        return torch.stack((last.softmax(-1)[:, 3], last[:, 3] - last[:, 4]))

    close(found.corrupt.values, answered([]))
    for pos in (2, 3):
        at = At(pos=pos)
        held = {
            ("state", 0): [Set(f"{stack}blocks.0.resid_post", clean, at=at)],
            # a window of two is the layer before and the layer
            ("mlp", 0): [Set(f"{stack}blocks.0.mlp.out", clean, at=at)],
            ("mlp", 1): [Set(f"{stack}blocks.{i}.mlp.out", clean, at=at) for i in (0, 1)],
            ("attn", 1): [Set(f"{stack}blocks.{i}.attn.out", clean, at=at) for i in (0, 1)],
        }
        for part in ("mlp", "attn"):
            later = Set(f"{stack}blocks.1.{part}.out", corrupt, at=at)
            held[f"state_without_{part}", 0] = [*held["state", 0], later]
        for (kind, layer), edits in held.items():
            close(found.values.select(kind=kind, pos=pos, layer=layer).values, answered(edits))


def test_on_the_induction_circuit_tracing_finds_where_the_answer_is_kept() -> None:
    model = induction_model()
    # the answer follows the earlier copy of the last token; its token is the subject
    found = causal_trace(model, [0, 1, 2, 3, 4, 5, 1], [2], 2, 7, noise=30.0, samples=4, window=1)
    share = found.indirect_effect.values[1] / found.total_effect.values[1]
    state, attention = found.values.labels("kind").index("state"), found.values.labels("kind").index("attn")
    # below the induction head it is in the token itself, above it where the answer is read
    assert share[state][6].tolist() == pytest.approx([0, 1], abs=1e-9)
    assert share[attention][6].tolist() == pytest.approx([0, 1], abs=1e-9)
    assert share[state][[0, 1, 4, 5]].abs().max() < 1e-9
    assert share[state][2, 0] == pytest.approx(1, abs=0.2)


def test_roles_follow_the_subject() -> None:
    assert token_roles([1, 2, 3], 7) == [
        "before", "first subject", "middle subject", "last subject", "next", "further", "last",
    ]  # fmt: skip
    assert token_roles([0], 2) == ["last subject", "last"]
    model, ids, _ = prompt("gpt2", length=6)
    traces = [causal_trace(model, ids, places, samples=2) for places in ([1], [1, 2, 3])]
    found = average_traces(traces)
    assert len(found.plot().axes) == 2 * 3 * 2 and len(traces[0].plot("corrupt").axes) == 2
    first, second = (trace.indirect_effect.values for trace in traces)
    roles = found.values.labels("role")
    close(found.mean.values[:, :, roles.index("further")], first[:, :, [3, 4]].mean(2))
    close(found.mean.values[:, :, roles.index("last subject")], (first[:, :, 1] + second[:, :, 3]) / 2)
    close(found.mean.values[:, :, roles.index("middle subject")], second[:, :, 2])
    close(found.average_total.values, (traces[0].total_effect.values + traces[1].total_effect.values) / 2)
    assert found.error.select(role="middle subject").values.isnan().all()
    with pytest.raises(ShapeMismatch, match="differ in kinds"):
        average_traces([traces[0], causal_trace(model, ids, [1], samples=2, window=3)])
    with pytest.raises(ShapeMismatch, match="at least one"):
        average_traces([])


def test_the_subject_is_found_in_the_text() -> None:
    model = subject("gpt2").model
    model.tokenizer = word_tokenizer(["the cat sat on mats"], specials=("<bos>",))
    assert causal_trace(model, "the cat sat on mats", "cat sat", samples=2).subject == (2, 3)
    with pytest.raises(TextError, match="'dog' is not in the text"):
        causal_trace(model, "the cat", "dog")
    padded = torch.tensor([[1, 2, 3, 0, 0]])
    batch = Batch(padded, padded, torch.ones_like(padded, dtype=torch.bool), lengths=torch.tensor([3]))
    close(
        causal_trace(model, batch, [1], samples=2).values.values,
        causal_trace(model, padded[:, :3], [1], samples=2).values.values,
    )
    packed = Batch(padded, padded, torch.ones_like(padded, dtype=torch.bool), documents=torch.tensor([[0, 0, 1, 1, 1]]))
    with pytest.raises(ShapeMismatch, match="packed documents"):
        causal_trace(model, packed, [1])
    with pytest.raises(ShapeMismatch, match="one prompt at a time, and was given 2"):
        causal_trace(model, [[1, 2], [3, 4]], [0])
    with pytest.raises(ShapeMismatch, match="position 9"):
        causal_trace(model, [1, 2], [9])


def test_the_answer_is_what_the_model_would_say_and_the_wrong_one_what_it_says_corrupted() -> None:
    model, ids, _ = prompt("gpt2")
    found = causal_trace(model, ids, [1], samples=3, seed=1)
    logits = run(model, ids).logits
    assert logits is not None
    assert found.answer == str(int(logits[0, -1].argmax())) != found.wrong
    again = causal_trace(model, ids, [1], int(found.answer), int(found.wrong), samples=3, seed=1)
    close(again.values.values, found.values.values)
    other = causal_trace(model, ids, [1], int(found.answer), int(found.wrong), samples=3, seed=2)
    assert (other.values.values != found.values.values).any()


def test_what_cannot_be_traced_is_said() -> None:
    model, ids, _ = prompt("attention_only")
    with pytest.raises(AnalysisUnavailable, match=r"(?s)no layer has mlp outputs.*'state', 'attn'"):
        causal_trace(model, ids, [1], kinds=["state_without_mlp"])
    assert causal_trace(model, ids, [1], samples=2).values.labels("kind") == ["state", "attn"]
    with pytest.raises(AnalysisUnavailable, match="Linear is none of them"):
        causal_trace(torch.nn.Linear(1, 1), ids, [1])
