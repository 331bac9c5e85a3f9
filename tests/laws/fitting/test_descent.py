"""Laws of the one gradient loop, and that it is the only one."""

import ast
import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.errors import TrainingDiverged
from glassformer.fitting import Descent

SOURCE = Path(glassformer.__file__).parent
# where a gradient is what is looked at, or a search of its own; studies write out how they train what they compare
ELSEWHERE = ("studies/", "testing/", "data/tasks/one_head.py", "analysis/circuits/_edge_scores.py")


def target(step: int) -> Tensor:
    return torch.randn(3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def descent(x: Tensor, optimizer: torch.optim.Optimizer, *, steps: int, step: int = 0, clip: float = 0.0) -> Descent:
    """Return the descent of x towards a target that each step draws anew, in two terms; NaN from step 9 on."""

    def losses(step: int) -> Iterator[Tensor]:
        difference = (x - target(step)) * (1.0 if step < 9 else float("nan"))
        yield 0.25 * difference.square().sum()
        yield 0.25 * (x - target(step)).square().sum()

    return Descent(
        [x], optimizer, losses, rate=lambda step: 1 / step, steps=steps, step=step, clip=clip, name="descent",
        way_on=lambda: "Take other numbers.",
    )  # fmt: skip


def start() -> tuple[Tensor, torch.optim.Optimizer]:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    return x, torch.optim.SGD([x], lr=7.0)


def test_at_a_rate_of_one_over_the_step_half_squares_lead_to_the_mean_of_the_targets() -> None:
    x, optimizer = start()
    updates = list(descent(x, optimizer, steps=8))
    assert torch.allclose(x.detach(), torch.stack([target(step) for step in range(1, 9)]).mean(0), rtol=0, atol=1e-14)
    assert [update.step for update in updates] == list(range(1, 9))
    assert updates[0].loss == pytest.approx(float(target(1).square().sum()) / 2)
    assert updates[0].norm == pytest.approx(float(target(1).norm()))


def test_a_clipped_step_is_no_longer_than_the_norm_allows() -> None:
    x, optimizer = start()
    for update in descent(x, optimizer, steps=1, clip=0.5):
        assert update.norm > 0.5
    assert float(x.detach().norm()) == pytest.approx(0.5, rel=1e-5)


def test_resumed_is_not_interrupted() -> None:
    x, _ = start()
    whole = torch.optim.Adam([x])
    list(descent(x, whole, steps=6))
    y, _ = start()
    first = torch.optim.Adam([y])
    list(descent(y, first, steps=2))
    z = y.detach().clone().requires_grad_()
    second = torch.optim.Adam([z])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    list(descent(z, second, steps=6, step=2))
    assert torch.equal(x, z)


def test_looking_at_the_next_gradient_changes_no_step() -> None:
    x, optimizer = start()
    looked = descent(x, optimizer, steps=4)
    for _ in looked:
        assert looked.gradient() is looked.gradient()
    y, other = start()
    list(descent(y, other, steps=4))
    assert torch.equal(x, y)


def test_no_step_is_made_by_what_is_not_finite() -> None:
    x, optimizer = start()
    with pytest.raises(
        TrainingDiverged, match=r"descent stopped in step 9: loss is nan and gradient norm is nan\. Take"
    ):
        list(descent(x, optimizer, steps=12))
    y, other = start()
    list(descent(y, other, steps=8))
    assert torch.equal(x, y)


def loops(text: str) -> list[int]:
    """Return the lines where a gradient is taken by `backward` or an optimizer steps."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [(call.lineno, call.func) for call in calls if isinstance(call.func, ast.Attribute)]
    return [
        line
        for line, name in named
        if name.attr == "backward"
        or (name.attr == "step" and ast.unparse(name.value).split(".")[-1].startswith("opti"))
    ]


def test_there_is_one_gradient_loop() -> None:
    assert loops("loss.backward()\nself.optimizer.step()\nserver.step()") == [1, 2]
    where = {str(path.relative_to(SOURCE)): loops(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    others = {path for path, lines in where.items() if lines and not path.startswith(ELSEWHERE)}
    assert others == {"fitting/descent.py"}
