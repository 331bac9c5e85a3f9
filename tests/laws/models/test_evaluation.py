"""Evaluation belongs to a pass: passes of one thread do not depend on what another does with the same model."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer as gf
from glassformer.attention import Attention
from glassformer.models import BlockConfig, DecoderConfig, Mlp
from glassformer.models.evaluation import evaluating
from one_pass import in_one_pass

IDS = torch.arange(24).reshape(2, 12) % 11


def dropping() -> gf.Decoder:
    """Return a decoder in training mode that drops half of what its sub-layers write."""
    blocks = (BlockConfig((Attention(n_heads=2), Mlp(16)), dropout=0.5),) * 2
    return DecoderConfig(11, 8, blocks, max_len=16).build(seed=3).double().train()


class Theirs(nn.Module):
    """A module that is not ours, with dropout of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.out = nn.Embedding(11, 8), nn.Dropout(0.5), nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.drop(self.embed(ids)))


MODELS: dict[str, Callable[[], nn.Module]] = {"ours": dropping, "theirs": lambda: Theirs().double().train()}
both = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def alone(model: nn.Module) -> Any:
    """Return what the model gives in evaluation mode."""
    model.eval()
    with torch.no_grad():
        found = model(IDS)
    model.train()
    return found


@contextmanager
def in_another_thread(action: Callable[[], Any]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=action)
    thread.start()
    yield thread
    thread.join()


@both
def test_a_pass_that_ends_in_another_thread_does_not_switch_dropout_on_here(make: Callable[[], nn.Module]) -> None:
    model = make()
    expected, begun, entered = alone(model), threading.Event(), threading.Event()

    def other() -> None:
        with evaluating(model):
            begun.set()
            entered.wait(10)

    with in_another_thread(other) as thread:
        begun.wait(10)
        with evaluating(model), torch.no_grad():
            entered.set()
            thread.join()
            assert torch.equal(model(IDS), expected)
    assert model.training and all(module.training for module in model.modules())


def logits(model: nn.Module) -> torch.Tensor:
    found = gf.run(model, IDS).logits
    assert found is not None
    return found


@both
def test_many_threads_that_run_one_model_get_one_answer(make: Callable[[], nn.Module]) -> None:
    model = make()
    expected = alone(model)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: logits(model), range(24)))
    assert all(torch.equal(one, expected) for one in found)
    assert all(module.training for module in model.modules())


@both
def test_passes_within_passes_evaluate_until_the_outermost_ends(make: Callable[[], nn.Module]) -> None:
    model = make()
    expected = alone(model)
    with evaluating(model), torch.no_grad():
        with pytest.raises(ZeroDivisionError), evaluating(model):
            raise ZeroDivisionError
        assert torch.equal(model(IDS), expected)
    assert not torch.equal(model(IDS), expected)


def test_a_model_of_ours_trains_on_while_another_thread_evaluates_it() -> None:
    model = dropping()
    expected, dropped = alone(model), list[Tensor]()
    with evaluating(model):
        with in_another_thread(lambda: dropped.append(model(IDS))):
            pass
        assert model.training
        assert torch.equal(model(IDS), expected)
    assert not torch.equal(dropped[0], expected)


def test_an_evaluation_drops_nothing_at_whatever_moment_a_trainer_switches_the_mode() -> None:
    part = (Attention(n_heads=2, dropout=0.5), Mlp(16, dropout=0.5))
    blocks = (BlockConfig(part, dropout=0.5),) * 2
    model = DecoderConfig(11, 8, blocks, max_len=16, embed_dropout=0.5).build(seed=3).double()
    expected = alone(model)
    for module in model.modules():
        model.eval()
        hook = module.register_forward_pre_hook(lambda *_: model.train() and None)
        assert torch.equal(logits(model), expected)
        hook.remove()


def test_another_model_trains_on_while_this_one_is_evaluated() -> None:
    model, other = dropping(), dropping()
    with evaluating(model):
        assert not torch.equal(other(IDS), alone(other))


def test_dropout_of_parts_that_a_user_adds_to_our_model_is_off_in_an_evaluation() -> None:
    model: Any = dropping()
    model.stack.blocks[0].attn.register_module("drop", drop := nn.Dropout(0.5))
    model.stack.blocks[0].attn.register_forward_hook(lambda _, args, out: (drop(out[0]), out[1]))
    first = logits(model)
    assert torch.equal(logits(model), first)
    assert not torch.equal(model(IDS), model(IDS))


def test_the_seed_decides_what_is_dropped_in_training() -> None:
    model, found = dropping(), list[Tensor]()
    for _ in range(2):
        torch.manual_seed(5)
        found.append(model(IDS))
        gf.run(model, IDS)
    assert torch.equal(*found)


TAKING_GRADIENTS = ("run", "explain", "input_gradients", "attribute_edges", "fit_tuned_lens")


def taking_gradients(what: str, model: Any) -> Any:
    from glassformer.analysis import attribution, circuits, lens

    calls = {
        "run": lambda: gf.run(model, IDS, grad=True),
        "explain": lambda: gf.explain(model, IDS[:1]),
        "input_gradients": lambda: attribution.input_gradients(model, IDS[:1]),
        "attribute_edges": lambda: circuits.attribute_edges(
            model, (IDS, IDS.flip(0)), lambda logits: logits[..., -1, 3]
        ),
        "fit_tuned_lens": lambda: lens.fit_tuned_lens(model, [IDS], steps=1),
    }
    return calls[what]()


@in_one_pass
@pytest.mark.parametrize("what", TAKING_GRADIENTS)
def test_what_takes_gradients_says_so_under_inference_mode(what: str) -> None:
    with (
        torch.inference_mode(),
        pytest.raises(gf.errors.AnalysisUnavailable, match=r"torch.inference_mode\(\) keeps no"),
    ):
        taking_gradients(what, dropping().eval())


@pytest.mark.parametrize("what", TAKING_GRADIENTS)
def test_what_takes_gradients_gives_the_same_where_graphs_are_switched_off(what: str) -> None:
    model = dropping().eval()
    with torch.no_grad():
        found = taking_gradients(what, model)
    expected = taking_gradients(what, model)
    if what == "run":
        assert found.logits.requires_grad
    elif what == "fit_tuned_lens":
        assert torch.equal(found.weight, expected.weight) and torch.equal(found.bias, expected.bias)
    else:
        assert found.to_dict() == expected.to_dict()
