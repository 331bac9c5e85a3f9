"""Edits along directions: what is exchanged, what is left, where a condition holds, and gradients of the directions."""

from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.sweep import logit_difference, one_by_one, sweep
from glassformer.analysis.sweep.plan import Donor
from glassformer.errors import ShapeMismatch, WrongArgument
from glassformer.labelled import Labelled
from glassformer.models import GREEDY, generate
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import Add, AddWhere, At, Interchange, Set, Site

SITE = Site("blocks.0.resid_post", ("batch", "pos", "d_model"), {"d_model": 16})


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_what_lies_along_the_directions_is_the_others_and_the_rest_ones_own() -> None:
    base, source, directions = drawn(2, 5, 16), drawn(2, 5, 16, seed=1), drawn(3, 16, seed=2)
    # the third lies in the span of the first two
    directions[2] = directions[0] - 2 * directions[1]
    found = Interchange(SITE.name, source, directions)(base, SITE)
    close(found @ directions.T, source @ directions.T, 1e-10)
    across = torch.linalg.svd(directions).Vh[2:]
    close(found @ across.T, base @ across.T, 1e-10)
    one = Interchange(SITE.name, source[:, -1], directions[0], at=At(pos=-1))(base, SITE)
    assert torch.equal(one[:, :-1], base[:, :-1])
    close(one[:, -1] @ directions[0], source[:, -1] @ directions[0], 1e-10)


def test_all_directions_are_all_there_is_and_labelled_ones_are_directions() -> None:
    base, source = drawn(2, 5, 16), drawn(2, 5, 16, seed=1)
    close(Interchange(SITE.name, source, torch.eye(16).double())(base, SITE), source, 1e-10)
    rows = drawn(2, 16)
    labelled = Interchange(SITE.name, source, Labelled(rows, ("direction", "d_model")))
    assert torch.equal(labelled(base, SITE), Interchange(SITE.name, source, rows)(base, SITE))
    half = base.bfloat16()
    assert Interchange(SITE.name, source, rows)(half, SITE).dtype == torch.bfloat16


@pytest.mark.parametrize("orthonormal", [True, False])
def test_gradients_flow_to_directions_and_value(orthonormal: bool) -> None:
    """Of directions of one length, which have no singular vectors of their own, too."""
    base, source, rows = drawn(1, 2, 4), drawn(1, 2, 4, seed=1), drawn(2, 4, seed=2)
    if orthonormal:
        rows = torch.linalg.qr(rows.T).Q.T.contiguous()
    site = Site(SITE.name, SITE.axes, {"d_model": 4})

    def exchanged(directions: Tensor, value: Tensor) -> Tensor:
        return Interchange(SITE.name, value, directions)(base, site)

    assert torch.autograd.gradcheck(exchanged, (rows.requires_grad_(), source.requires_grad_()))


def test_a_vector_is_added_where_the_projection_is_large_enough_and_nowhere_else() -> None:
    base, vector, along = drawn(3, 7, 16), drawn(16, seed=1), drawn(16, seed=2)
    holds = base @ along / along.norm() > 0.3
    assert 0 < int(holds.sum()) < holds.numel()
    found = AddWhere(SITE.name, vector, along=along, above=0.3)(base, SITE)
    assert torch.equal(found[holds], Add(SITE.name, vector)(base, SITE)[holds])
    assert torch.equal(found[~holds], base[~holds])
    # the length of the direction does not count
    close(AddWhere(SITE.name, vector, along=5 * along, above=0.3)(base, SITE), found, 0)
    last = AddWhere(SITE.name, vector, along=along, above=-1e9, at=At(pos=-1))(base, SITE)
    assert torch.equal(last, Add(SITE.name, vector, at=At(pos=-1))(base, SITE))


def _edits(lent: Any) -> list[Any]:
    return [
        Interchange(SITE.name, lent, drawn(2, 16), at=At(pos=slice(1, None))),
        Interchange(SITE.name, lent, drawn(2, 16), at=At(pos=-1)),
        AddWhere(SITE.name, drawn(16), along=drawn(16, seed=2), above=0.0, at=At(pos=-2)),
    ]


def test_in_a_sweep_they_are_what_the_plain_loop_makes_of_them() -> None:
    found = subject("llama")
    ids = found.inputs[0]
    rows = [[edit] for edit in _edits(Donor(ids.flip(0)))]
    metric = logit_difference(1, 2)
    close(
        sweep(found.model, ids, rows, metric).values.values,
        one_by_one(found.model, ids, rows, metric).values.values,
        1e-10,
    )
    # a run lends as a donor does
    lent = gf.run(found.model, ids.flip(0), read=[SITE.name])
    once = [[edit] for edit in _edits(lent)]
    close(
        sweep(found.model, ids, once, metric).values.values, sweep(found.model, ids, rows, metric).values.values, 1e-10
    )


def test_a_text_that_grows_is_what_one_pass_under_the_same_edits_says() -> None:
    model = subject("llama").model
    edits = [
        AddWhere(SITE.name, drawn(16), along=drawn(16, seed=2), above=0.1),
        Interchange("blocks.0.attn.out", 0.0, drawn(2, 16)),
    ]
    made = generate(model, [[1, 2, 3, 4]], GREEDY, max_new_tokens=4, edit=edits)
    ids = torch.tensor([made.ids[0]])
    logits = gf.run(model, ids[:, :-1], edit=edits).predictions()[0, 3:]
    assert logits.argmax(-1).tolist() == ids[0, 4:].tolist()


def test_taking_zero_along_directions_removes_them_as_a_projection_does() -> None:
    base, rows = drawn(2, 5, 16), drawn(3, 16)
    close(Interchange(SITE.name, 0.0, rows)(base, SITE), gf.Project(SITE.name, rows)(base, SITE), 1e-10)
    close(Set(SITE.name, 0.0)(base, SITE), Interchange(SITE.name, 0.0, torch.eye(16).double())(base, SITE), 1e-10)


def test_directions_that_do_not_fit_are_refused_in_words() -> None:
    base = drawn(1, 3, 16)
    with pytest.raises(ShapeMismatch, match=r'Interchange at "blocks\.0.*directions are 2x5; the last axis has 16'):
        Interchange(SITE.name, 0.0, drawn(2, 5))(base, SITE)
    with pytest.raises(ShapeMismatch, match="along= is one direction, found 2"):
        AddWhere(SITE.name, 1.0, along=drawn(2, 16), above=0.0)(base, SITE)
    with pytest.raises(ShapeMismatch, match=r"Interchange at .* takes a number, a tensor, or a run"):
        Interchange(SITE.name, None, drawn(16))
    with pytest.raises(WrongArgument, match="above="):
        AddWhere(SITE.name, 1.0, along=drawn(16), above="much")  # type: ignore[arg-type]
