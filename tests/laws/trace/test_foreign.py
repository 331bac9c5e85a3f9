"""The same tape over modules we did not write."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.errors import SiteNotRead, UnknownSite
from glassformer.testing import close
from glassformer.trace import At, Foreign, Scale, Set, Tape


def sequential() -> tuple[Foreign, tuple[Tensor, ...]]:
    return Foreign(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()), (torch.randn(2, 4).double(),)


def gpt2() -> tuple[Foreign, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    return Foreign(GPT2LMHeadModel(config).double().eval()), (torch.randint(0, 11, (2, 6)),)


MODELS = {"sequential": (sequential, "0.out"), "gpt2": (gpt2, "transformer.h.0.out")}
both = pytest.mark.parametrize("name", MODELS)


def logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits


def hooks(model: Foreign) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.module.modules())


@both
def test_reading_every_module_changes_nothing(name: str) -> None:
    model, inputs = MODELS[name][0]()
    bare = logits(model(*inputs))
    tape = Tape(model, "*")
    assert torch.equal(logits(model(*inputs, tape=tape)), bare)
    assert torch.equal(tape.values["out"], bare)
    assert len(tape.values) > 4


def test_a_glob_covers_the_sites_that_it_names() -> None:
    model, _ = sequential()
    assert list(model.sites("*.in")) == [name for name in model.sites() if name.endswith(".in")]
    assert list(model.sites("0.out")) == ["0.out"]


@both
def test_edits_reach_what_comes_after(name: str) -> None:
    model, inputs = MODELS[name][0]()
    site, bare = MODELS[name][1], logits(model(*inputs))
    tape = Tape(model, [site], [Scale(site, 0.5)])
    edited = logits(model(*inputs, tape=tape))
    assert not torch.equal(edited, bare)
    close(logits(model(*inputs, tape=Tape(model, edit=[Set(site, tape)]))), edited)


@both
def test_hooks_are_gone_after_the_call_even_if_it_fails(name: str) -> None:
    model, inputs = MODELS[name][0]()
    model(*inputs, tape=Tape(model, "*"))
    assert hooks(model) == 0

    def fail(value: Tensor) -> Tensor:
        return value / (1 // 0)

    with pytest.raises(ZeroDivisionError):
        model(*inputs, tape=Tape(model, "*", [(MODELS[name][1], fail)]))
    assert hooks(model) == 0
    model(*inputs)


def test_inputs_can_be_edited_whether_they_come_by_place_or_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Identity()
            self.sum = _Sum()

        def forward(self, x: Tensor) -> Tensor:
            return self.sum(scale=2.0, x=self.part(x))

    model, x = Foreign(Named()), torch.ones(2, 3)
    close(model(x, tape=Tape(model, edit=[Scale("part.in", 3.0)])), model(x * 3))
    close(model(x, tape=Tape(model, edit=[Scale("sum.in", 3.0)])), model(x * 3))


class _Sum(nn.Module):
    def forward(self, *, scale: float, x: Tensor) -> Tensor:
        return x.sum(-1) * scale


def test_a_module_called_twice_keeps_both_values() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Linear(3, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.step(self.step(self.step(x)))

    module, x = Twice(), torch.randn(2, 3)
    model = Foreign(module)
    tape = Tape(model, "step.out")
    out = model(x, tape=tape)
    close(tape.values["step.out"], module.step(x))
    close(tape.values["step.out#2"], module.step(module.step(x)))
    assert torch.equal(tape.values["step.out#3"], out)


def test_axes_without_names_are_addressed_by_number() -> None:
    model, inputs = sequential()
    tape = Tape(model, "0.out", [Set("0.out", 0.0, at=At(axis1=2))])
    model(*inputs, tape=tape)
    assert (tape.values["0.out"][:, 2] == 0).all()
    assert tape["0.out"].axes == ("axis0", "axis1")


def test_gradients_at_sites_come_from_autograd() -> None:
    model, inputs = sequential()
    last: Any = model.module.get_submodule("2")
    tape = Tape(model, "*", grad=True)
    out = model(*inputs, tape=tape)
    (found,) = torch.autograd.grad(out.sum(), tape.values["1.out"])
    close(found, last.weight.sum(0).expand(2, 5))


def test_an_unknown_module_is_named() -> None:
    model, _ = sequential()
    with pytest.raises(UnknownSite, match=r'no site "0\.ouut" in this model\. Nearest: "0\.out"'):
        Tape(model, "0.ouut")
    tape = Tape(model, "0.out")
    with pytest.raises(SiteNotRead):
        tape["0.out"]


def test_a_glob_leaves_out_modules_that_do_not_run_but_a_name_must_be_reached() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model, x = Foreign(Half()), torch.randn(2, 4)
    tape = Tape(model, "*.out")
    model(x, tape=tape)
    tape.check_visited()
    assert set(tape.values) == {"used.out"}
    for read in ("idle.out", "idle.*"):
        tape = Tape(model, read)
        model(x, tape=tape)
        with pytest.raises(SiteNotRead, match="idle"):
            tape.check_visited()
