"""Masks are masks and indices are indices, wherever something is addressed."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import glassformer as gf
from glassformer import weights
from glassformer.analysis import attribution, causal, from_weights, lens, token_flow
from glassformer.errors import GlassformerError, ShapeMismatch, UnknownAxis, UnknownSite
from glassformer.labelled import Labelled
from glassformer.numerics.indices import asked, entries, one
from glassformer.testing.models import subject
from glassformer.trace import Add, Apply, At, Edit, Project, Read, Scale, Set, Site, Take
from one_pass import in_one_pass

SITE = Site("blocks.1.attn.z", ("batch", "head", "pos", "d_head"))
IDS = [[3, 5, 7, 9, 4]]


def value() -> torch.Tensor:
    return torch.arange(120.0, dtype=torch.float64).reshape(3, 2, 5, 4)


def masks(truths: list[bool]) -> list[Any]:
    """Return a mask in every form that is taken."""
    return [truths, tuple(truths), np.array(truths), torch.tensor(truths), [np.bool_(t) for t in truths]]


@given(st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_mask_addresses_the_entries_it_is_true_at(truths: list[bool]) -> None:
    places = [i for i, chosen in enumerate(truths) if chosen]
    expected = Set(SITE.name, -1.0, at=At(pos=places))(value(), SITE)
    for mask in masks(truths):
        assert torch.equal(Set(SITE.name, -1.0, at=At(pos=mask))(value(), SITE), expected)
        assert torch.equal(At(pos=mask).take(value(), SITE), value()[:, :, places])
        labelled = Labelled(value(), SITE.axes, {"pos": list("abcde")})
        assert labelled.select(pos=mask).labels("pos") == [list("abcde")[i] for i in places]
        assert torch.equal(labelled.select(pos=mask).values, value()[:, :, places])


def test_a_mask_of_another_length_and_one_mixed_with_numbers_are_refused() -> None:
    for mask in ([True] * 4, torch.ones(6, dtype=torch.bool), np.array([True])):
        with pytest.raises(ShapeMismatch, match="truths, and the axis has 5 entries"):
            Set(SITE.name, 0.0, at=At(pos=mask))(value(), SITE)
    with pytest.raises(ShapeMismatch, match="mixes truths with numbers"):
        At(pos=[True, 2])


def test_masks_are_taken_by_runs_takes_sweeps_and_analyses() -> None:
    model = subject("gpt2").model
    mask, places = [False, True, False, True, True], [1, 3, 4]
    site = "blocks.0.resid_post"
    parts = [gf.run(model, IDS, read=[Read(site, At(pos=at))])[site] for at in (mask, places)]
    assert torch.equal(parts[0].values, parts[1].values)
    assert parts[0].labels("pos") == parts[1].labels("pos")
    rows = torch.tensor([IDS[0], [4, 4, 4, 4, 4]])
    taken: list[Any] = [gf.run(model, rows, edit=[Take(site, 0, at=At(pos=at))]).logits for at in (mask, places)]
    assert torch.equal(taken[0], taken[1])
    heads = [causal.SiteGrid("z", ("layer", "head"), {"layer": at, "pos": [1]}) for at in ([False, True], [1])]
    patched = [causal.patch(model, (torch.tensor(IDS), rows[1:]), _norm, grid).to_json() for grid in heads]
    assert patched[0] == patched[1]
    reads = [lens.lens_grid, attribution.direct_logit_attribution, token_flow.information_flow_routes]
    run = gf.run(model, IDS, read=reads)
    for found in (
        lambda at: lens.lens_grid(run, positions=at).first.values,
        lambda at: attribution.direct_logit_attribution(run, position=at).contributions.values,
        lambda at: attribution.input_gradients(model, IDS, positions=at).values.values,
        lambda at: token_flow.information_flow_routes(run, positions=at).inputs.values,
    ):
        assert torch.equal(found(torch.tensor(mask)), found(places))


def _norm(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, :, -1].norm(dim=-1)


def test_a_mask_of_the_vocabulary_chooses_tokens() -> None:
    model = subject("attention_only").model
    w = weights.of(model)
    size = model.config.vocab_size
    mask = [i in (2, 5, 6) for i in range(size)]
    found = [from_weights.copying(w, tokens=tokens).ratio.values for tokens in (mask, [2, 5, 6])]
    assert torch.equal(*found)


@in_one_pass
@pytest.mark.parametrize(
    "where",
    [
        1.5, "head", None, True, np.bool_(True), [[1]], [1.5], torch.tensor([1.5]), torch.zeros(2, 2).long(),
        slice(1.5), slice(None, None, 0), b"1",
    ],
)  # fmt: skip
def test_what_is_no_place_is_refused_when_it_is_named(where: Any) -> None:
    with pytest.raises(ShapeMismatch, match="At: pos"):
        At(pos=where)


@in_one_pass
@pytest.mark.parametrize(
    "where",
    [
        True, np.bool_(True), torch.tensor(True), 1.5, np.array(1.5), torch.tensor(1.5), [1], np.array([1]),
        torch.tensor([1]),
    ],
)  # fmt: skip
def test_where_one_index_is_asked_for_nothing_else_is_taken(where: Any) -> None:
    with pytest.raises(ShapeMismatch, match="row: one index is asked for"):
        one(where, "row")


def test_a_place_without_its_axis_says_how_to_name_it() -> None:
    with pytest.raises(UnknownAxis, match=r"At\(pos=-1, head=3\); found 1.5"):
        At(1.5)


@in_one_pass
@pytest.mark.parametrize("where", [[7], torch.tensor([0, 5]), torch.tensor([-6]), 5, np.array([5])])
def test_indices_out_of_range_are_refused_in_every_form(where: Any) -> None:
    with pytest.raises(ShapeMismatch, match="the axis has 5 entries"):
        At(pos=where).take(value(), SITE)
    with pytest.raises(ShapeMismatch, match="the axis has 5 entries"):
        Labelled(value(), SITE.axes).select(pos=where)


def test_ranges_numbers_of_numpy_and_steps_backwards_are_indices() -> None:
    for where, places in ((range(1, 3), [1, 2]), (np.int64(2), [2]), (slice(None, None, -2), [4, 2, 0])):
        assert entries(asked(where, "pos"), 5, "pos") == places
        part = At(pos=where).take(value(), SITE)
        assert torch.equal(part.reshape(3, 2, -1, 4), value()[:, :, places])


def test_long_index_tensors_that_differ_in_the_middle_are_different_parts() -> None:
    many = torch.arange(5000)
    other = many.clone()
    other[2500] = 0
    assert At(pos=many) == At(pos=many.clone())
    assert At(pos=many) != At(pos=other)


# what an edit puts in its place ---------------------------------------------------------------------------------------


def test_a_function_that_returns_another_shape_is_not_spread_over_the_part() -> None:
    for function in (lambda u: u[:, :1], lambda u: u[:, :, :1], lambda u: u[..., 0], torch.mean):
        with pytest.raises(ShapeMismatch, match=r"returned a tensor of .*, and the part is batch=3 head=2 pos=5"):
            Apply(SITE.name, function)(value(), SITE)
    assert bool((Apply(SITE.name, lambda u: u.mean().expand_as(u))(value(), SITE) == value().mean()).all())
    zero: Any = lambda _: 0  # noqa: E731  (a number, which the annotation does not promise)
    assert bool((Apply(SITE.name, zero)(value(), SITE) == 0).all())


def test_what_a_shorter_run_read_is_not_spread_over_positions() -> None:
    model = subject("gpt2").model
    short = gf.run(model, [[3]], read="blocks.0.resid_post")
    with pytest.raises(ShapeMismatch, match="What a run lends is as long as what it replaces"):
        gf.run(model, IDS, edit=[Set("blocks.0.resid_post", short)])
    # of a site whose axes nobody knows
    with pytest.raises(ShapeMismatch):
        Set("m", {"m": torch.ones(4)})(value(), Site("m", ()))
    # one prompt lends to every row
    long = gf.run(model, IDS, read="blocks.0.resid_post")
    two: Any = gf.run(model, [[4] * 5, [3] * 5], edit=[Set("blocks.0.resid_post", long)])
    one: Any = gf.run(model, IDS)
    torch.testing.assert_close(two.logits[0], one.logits[0])


@in_one_pass
@pytest.mark.parametrize(
    "make",
    [
        lambda: Set("blocks.0.resid_post", None),
        lambda: Add("blocks.0.resid_post", "much"),
        lambda: Scale("blocks.0.resid_post", object()),
        lambda: Take("blocks.0.resid_post", True),
        lambda: Apply("blocks.0.resid_post", cast(Any, 3)),
        lambda: Apply("blocks.0.resid_post", torch.add, reads=cast(Any, "blocks.0.resid_pre")),
        lambda: Project("blocks.0.resid_post", cast(Any, "much")),
        lambda: gf.run(subject("gpt2").model, IDS, edit=[Apply("blocks.0.resid_post", cast(Any, print))]),
    ],
)
def test_edits_of_the_wrong_kind_are_refused_in_words(make: Any) -> None:
    with pytest.raises(GlassformerError, match=r"found|returned"):
        make()


@dataclass(frozen=True, eq=False)
class Doubled(Edit):
    """An edit of one's own."""

    def change(self, part: torch.Tensor, whole: torch.Tensor, site: Site, earlier: Any) -> torch.Tensor:
        return 2 * part


def test_an_edit_of_ones_own_is_of_a_site_and_a_part_too() -> None:
    assert torch.equal(Doubled(SITE.name, at=At(pos=1))(value(), SITE)[:, :, 1], 2 * value()[:, :, 1])
    with pytest.raises(UnknownSite, match="Doubled: the first argument is the name of a site, found 3"):
        Doubled(cast(Any, 3))
    with pytest.raises(UnknownAxis, match=r"at= takes a part, At\(pos=-1\); found 3"):
        Doubled(SITE.name, at=cast(Any, 3))


def test_directions_may_be_labelled() -> None:
    rows = torch.eye(4, dtype=torch.float64)[:2]
    labelled = Project(SITE.name, Labelled(rows, ("direction", "d_head")))
    assert torch.equal(labelled(value(), SITE), Project(SITE.name, rows)(value(), SITE))


def test_one_edit_need_not_stand_in_a_list() -> None:
    model, edit = subject("gpt2").model, Scale("blocks.0.attn.z", 0.0)
    alone: Any = gf.run(model, IDS, edit=edit)
    listed: Any = gf.run(model, IDS, edit=[edit])
    assert torch.equal(alone.logits, listed.logits)
