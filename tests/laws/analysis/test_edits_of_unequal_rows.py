"""An edit at a position of rows of unequal length is at each row's own: the batch gives what each row gives alone."""

from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.sweep import Donor, logit_difference, one_by_one, sweep
from glassformer.data import Batch
from glassformer.errors import ShapeMismatch
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import Add, Apply, At, Edit, Project, Scale, Set, Take
from one_pass import in_one_pass

ROWS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5], [8, 9]]
SITE = "blocks.0.resid_post"
sides = pytest.mark.parametrize("side", ["left", "right"])


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, ROWS))
    fill = [[0] * (longest - len(row)) for row in ROWS]
    ids = [row + more if side == "right" else more + row for row, more in zip(ROWS, fill)]
    mask = [[1] * len(r) + [0] * len(f) if side == "right" else [0] * len(f) + [1] * len(r) for r, f in zip(ROWS, fill)]
    return torch.tensor(ids), torch.tensor(mask)


def edits(model: Any) -> dict[str, Any]:
    """Edits of a batch that say of each row alone what they say of it there."""
    d = model.config.d_model
    vector = torch.linspace(-1, 1, d)
    return {
        "last": Scale(SITE, 3.0, at=At(pos=-1)),
        "second": Add(SITE, vector, at=At(pos=1)),
        "two": Set(SITE, vector, at=At(pos=[-1, 0])),
        "head": Scale("L1H0.z", 0.0, at=At(pos=-2)),
        "scores": Set("blocks.1.attn.pattern", 0.5, at=At(query=-1, key=[0, -1], head=1)),
        "coordinates": Set(SITE, 1.0, at=At(pos=-1, d_model=[0, 2])),
        "sliced": Add(SITE, 1.0, at=At(pos=-1, d_model=slice(1, 3))),
        "direction": Project(SITE, vector, at=At(pos=-1)),
        "function": Apply(SITE, lambda part: part.sin(), at=At(pos=-1)),
        "tensor index": Add(SITE, vector, at=At(pos=torch.tensor([-1]))),
    }


@in_one_pass
@sides
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_edits_at_single_positions_are_those_of_each_row_alone(name: str, side: str) -> None:
    model = subject(name).model
    ids, mask = padded(side)
    for words, edit in edits(model).items():
        batch = gf.run(model, ids, mask=mask, edit=edit, read=SITE)
        for row, alone in enumerate(ROWS):
            one = gf.run(model, [alone], edit=edit, read=SITE)
            close(batch.prompt(row).predictions(), one.predictions(), 1e-10)
            close(batch.prompt(row)[SITE].values, one[SITE].values, 1e-10)
            close(batch.last_logits[row], one.predictions()[0, -1], 1e-10)
        untouched = gf.run(model, ids, mask=mask).prompt(0).predictions()
        assert not torch.allclose(batch.prompt(0).predictions(), untouched), words


@sides
def test_values_lent_by_a_run_are_of_the_same_positions_of_its_rows(side: str) -> None:
    model = subject("gpt2").model
    ids, mask = padded(side)
    others = [[7, 7, 2, 4], [1, 2, 3, 4, 5, 6, 7], [9, 8, 7]]
    donors = gf.run(model, others, read=[SITE, "L1H0.z"])
    one_donor = gf.run(model, others[0], read=SITE)
    for donor, edit in ((donors, SITE), (donors, "L1H0.z"), (one_donor, SITE)):
        batch = gf.run(model, ids, mask=mask, edit=Set(edit, donor, at=At(pos=-1)))
        for row, alone in enumerate(ROWS):
            lent = donor if donor is one_donor else gf.run(model, others[row], read=[SITE, "L1H0.z"])
            close(
                batch.prompt(row).predictions(),
                gf.run(model, alone, edit=Set(edit, lent, at=At(pos=-1))).predictions(),
                1e-10,
            )


@pytest.mark.parametrize("common", [[], [Add(SITE, 0.5, at=At(pos=-1))]], ids=["plain", "base edited"])
def test_a_sweep_counts_in_each_row_as_the_plain_loop_does(common: list[Edit]) -> None:
    model, metric = subject("gpt2").model, logit_difference(1, 2)
    others = [[7, 7, 2, 4], [1, 2, 3, 4, 5, 6, 7], [9, 8, 7]]
    of_each_row = [[edit] for edit in edits(model).values()]
    lent = [
        [Set(SITE, Donor(others), at=At(pos=-1))],
        [Set("blocks.1.attn.z", Donor(others), at=At(pos=[0, -1], head=1))],
        [Set(SITE, Donor(others[0], edit=[Scale("blocks.0.resid_pre", 2.0, at=At(pos=-1))]), at=At(pos=-1))],
        [Set(SITE, gf.run(model, others, read=SITE), at=At(pos=-2))],
        [Take(SITE, row=0, at=At(pos=-2))],
        [Add(SITE, 1.0, at=At(batch=[0, 1], pos=3))],
    ]
    asked = model, ROWS, [*of_each_row, *lent], metric
    found = sweep(*asked, base_edit=common).values.values
    close(found, one_by_one(*asked, base_edit=common).values.values, 1e-10)
    for row, alone in enumerate(ROWS):
        own = sweep(model, [alone], of_each_row, metric, base_edit=common).values.values[..., 0]
        close(found[:, : len(of_each_row), row], own, 1e-10)


def test_what_a_batch_lends_counts_its_columns() -> None:
    model, (ids, mask) = subject("gpt2").model, padded("right")
    batch = Batch(ids, torch.zeros_like(ids), mask.bool(), lengths=mask.sum(1))
    lent, edit = gf.run(model, batch, read=SITE), At(pos=-3)
    found = gf.run(model, batch, edit=Set(SITE, lent, at=edit), read=SITE)
    assert torch.equal(found[SITE].values, lent[SITE].values)
    rows = [[Scale(SITE, 2.0, at=edit)], [Take(SITE, row=0, at=edit)]]
    asked = model, batch, rows, logit_difference(1, 2, pos=0)
    close(sweep(*asked).values.values, one_by_one(*asked).values.values, 1e-10)


@sides
def test_a_row_that_takes_from_another_takes_from_its_own_last_position(side: str) -> None:
    model = subject("gpt2").model
    ids, mask = padded(side)
    found = gf.run(model, ids, mask=mask, edit=Take(SITE, row=1, at=At(pos=-1)), read=SITE)
    source = gf.run(model, [ROWS[1]], read=SITE)[SITE].values[0, -1]
    for row in range(len(ROWS)):
        close(found.prompt(row)[SITE].values[0, -1], source, 1e-10)


@sides
def test_one_row_is_edited_and_a_row_without_the_position_is_refused(side: str) -> None:
    model = subject("gpt2").model
    ids, mask = padded(side)
    edit: list[Edit] = [Scale(SITE, 2.0, at=At(batch=1, pos=-1)), Scale(SITE, 3.0, at=At(batch=[0, 1], pos=3))]
    found, plain = gf.run(model, ids, mask=mask, edit=edit), gf.run(model, ids, mask=mask)
    alone = [Scale(SITE, 2.0, at=At(pos=-1)), Scale(SITE, 3.0, at=At(pos=3))]
    close(found.prompt(1).predictions(), gf.run(model, ROWS[1], edit=alone).predictions(), 1e-10)
    close(found.prompt(0).predictions(), gf.run(model, ROWS[0], edit=alone[1:]).predictions(), 1e-10)
    close(found.prompt(2).predictions(), plain.prompt(2).predictions(), 1e-10)
    for where in (3, -3, [0, 5]):
        with pytest.raises(ShapeMismatch, match="row 2 of the batch, pos"):
            gf.run(model, ids, mask=mask, edit=Scale(SITE, 2.0, at=At(batch=2, pos=where)))


def test_a_batch_without_padding_is_edited_as_before() -> None:
    model = subject("gpt2").model
    whole = torch.tensor([[1, 2, 3], [4, 5, 6]])
    edit = Scale(SITE, 2.0, at=At(pos=-1))
    found = gf.run(model, whole, edit=edit)
    assert torch.equal(found.last_logits, found.predictions()[:, -1])
    masked = gf.run(model, whole, mask=torch.ones_like(whole), edit=edit)
    assert torch.equal(found.predictions(), masked.predictions())


def test_a_misspelt_site_is_not_recommended_back() -> None:
    model = subject("gpt2").model
    found = gf.run(model, [1, 2], read="pattern")
    for name, nearest in (
        ("blocks.0.attn.patern", "blocks.0.attn.pattern"), ("patern", "pattern"), ("L0H0.patern", "L0H0.pattern"),
    ):  # fmt: skip
        with pytest.raises(gf.errors.SiteNotRead) as refused:
            found[name]
        said = str(refused.value)
        assert f'Nearest: "{nearest}"' in said and f'read=["{name}"]' not in said
    with pytest.raises(gf.errors.SiteNotRead, match=r'read=\["blocks.0.attn.z"\]'):
        found["blocks.0.attn.z"]
