"""Addressing parts of a site by axis name, and what is said when that fails."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.errors import AnalysisUnavailable, ShapeMismatch, SiteNotRead, UnknownAxis, UnknownSite, WrongArgument
from glassformer.labelled import Labelled
from glassformer.numerics.indices import is_empty
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import Add, Apply, At, Project, Read, Scale, Set, Site, Take, Tape
from one_pass import in_one_pass

SITE = Site("blocks.1.attn.z", ("batch", "head", "pos", "d_head"))
SIZES = dict(zip(SITE.axes, (3, 2, 5, 4)))


def value() -> Tensor:
    return torch.arange(120.0, dtype=torch.float64).reshape(3, 2, 5, 4)


def forward(place: slice) -> bool:
    """Return whether a slice goes forward and, whatever the axis, may choose an entry: others are no part to edit."""
    return (place.step or 1) > 0 and not is_empty(place)


@st.composite
def places(draw: st.DrawFn) -> dict[str, int | slice | list[int] | Tensor]:
    """Draw a part: any mix of integers, negative ones, slices and lists, on any axes."""
    where: dict[str, int | slice | list[int] | Tensor] = {}
    for axis in draw(st.lists(st.sampled_from(SITE.axes), unique=True, min_size=1)):
        inside = st.integers(-SIZES[axis], SIZES[axis] - 1)
        several = st.lists(inside, min_size=1, max_size=3, unique_by=lambda i, n=SIZES[axis]: i % n)
        where[axis] = draw(st.one_of(inside, st.slices(SIZES[axis]).filter(forward), several))
        if isinstance(where[axis], list) and draw(st.booleans()):
            where[axis] = torch.tensor(where[axis])
    return where


def by_hand(where: dict[str, int | slice | list[int] | Tensor]) -> list[tuple[int, ...]]:
    """Return the addressed entries by looping over all of them."""
    chosen = []
    for axis, size in SIZES.items():
        at = where.get(axis, slice(None))
        if isinstance(at, slice):
            chosen.append(list(range(size))[at])
        else:
            chosen.append([i % size for i in ([at] if isinstance(at, int) else [int(i) for i in at])])
    return [(b, h, p, d) for b in chosen[0] for h in chosen[1] for p in chosen[2] for d in chosen[3]]


@given(places())
def test_a_part_holds_the_addressed_entries_in_order(where: dict[str, int | slice | list[int] | Tensor]) -> None:
    part = At(**where).take(value(), SITE)
    assert part.flatten().tolist() == [value()[entry] for entry in by_hand(where)]
    assert part.ndim == len(At(**where).remaining(SITE.axes))


# an edit that would change nothing is refused
@given(places().filter(by_hand))
def test_an_edit_changes_the_addressed_entries_and_no_others(
    where: dict[str, int | slice | list[int] | Tensor],
) -> None:
    original = value()
    expected = original.clone()
    for entry in by_hand(where):
        expected[entry] = -1.0
    assert torch.equal(Set(SITE.name, -1.0, at=At(**where))(original, SITE), expected)
    # never in place
    assert torch.equal(original, value())


@given(places())
def test_putting_back_a_taken_part_is_a_no_op(where: dict[str, int | slice | list[int] | Tensor]) -> None:
    at = At(**where)
    assert torch.equal(at.put(value(), at.take(value(), SITE), SITE), value())


@given(places().filter(by_hand))
def test_setting_from_a_run_takes_the_same_part_there(where: dict[str, int | slice | list[int] | Tensor]) -> None:
    donor = value() + 1000
    at = At(**where)
    expected = at.put(value(), at.take(donor, SITE), SITE)
    for run in ({SITE.name: donor}, {SITE.name: Labelled(donor, SITE.axes)}):
        assert torch.equal(Set(SITE.name, run, at=at)(value(), SITE), expected)


def test_lists_on_two_axes_form_a_grid() -> None:
    edited = Set(SITE.name, 0.0, at=At(head=[0, 1], pos=[0, 2]))(value(), SITE)
    assert (edited == 0).sum() == 3 * 2 * 2 * 4


def test_numbers_vectors_and_broadcast_tensors_fit() -> None:
    assert torch.equal(Add(SITE.name, 2.0)(value(), SITE), value() + 2)
    vector = torch.arange(4.0, dtype=torch.float64)
    assert torch.equal(Add(SITE.name, vector)(value(), SITE), value() + vector)
    per_head = torch.tensor([1.0, 3.0], dtype=torch.float64).view(1, 2, 1, 1)
    assert torch.equal(Scale(SITE.name, per_head)(value(), SITE), value() * per_head)
    assert torch.equal(Set(SITE.name, vector, at=At(head=1, pos=-1))(value(), SITE)[:, 1, -1], vector.expand(3, 4))


def test_an_edit_keeps_the_sites_dtype() -> None:
    half = value().bfloat16()
    for edit in (Set("s", 0.1), Add("s", torch.ones(4)), Scale("s", 0.1), Project("s", torch.ones(4))):
        assert edit(half, SITE).dtype == torch.bfloat16
    assert Apply("s", lambda u: u.double())(half, SITE).dtype == torch.bfloat16


def test_take_copies_rows_at_one_place_only() -> None:
    edited = Take(SITE.name, 1, at=At(head=0, pos=[1, 3]))(value(), SITE)
    expected = value()
    expected[:, 0, [1, 3]] = value()[1, 0, [1, 3]]
    assert torch.equal(edited, expected)


# messages -----------------------------------------------------------------------------------------------------------


def message(error: type[Exception], edit: object = None, read: object = ()) -> str:
    """Return what a model says to a bad request."""
    model = subject("gpt2", batch=4, length=17)
    with pytest.raises(error) as caught:
        model(model.tape(*([read] if read else []), edit=[edit] if edit else []))
    return str(caught.value)


def test_an_unknown_site_is_named_with_its_nearest_neighbour() -> None:
    assert message(UnknownSite, read="blocks.1.attn.patern") == (
        'no site "blocks.1.attn.patern" in this model. Nearest: "blocks.1.attn.pattern".\n'
        '    List them with model.sites("blocks.1.*").'
    )
    assert message(UnknownSite, Scale("blocks.1.attn.patern", 2.0)) == message(UnknownSite, read="blocks.1.attn.patern")
    assert message(UnknownSite, read="blocks.9.*").startswith('no site "blocks.9.*" in this model.')


def test_an_unknown_axis_lists_those_of_the_site() -> None:
    expected = 'site "blocks.1.attn.z" has no axis "haed". Nearest: "head". Axes: batch head pos d_value.'
    assert message(UnknownAxis, Scale("blocks.1.attn.z", 0.0, at=At(haed=1))) == expected
    assert message(UnknownAxis, read=Read("blocks.1.attn.z", at=At(haed=1))) == expected


def test_a_wrong_shape_names_axes_sizes_and_what_is_missing() -> None:
    assert message(ShapeMismatch, Set("blocks.1.attn.z", torch.zeros(4, 17, 4))) == (
        'edit at "blocks.1.attn.z" has batch=4 pos=17 d_value=4; the site carries batch=4 head=4 pos=17 d_value=4.\n'
        "    Missing axis: head. Use At(head=...) to address a part."
    )
    assert message(ShapeMismatch, Set("blocks.1.attn.z", torch.zeros(4, 3, 17, 4))) == (
        'edit at "blocks.1.attn.z" has batch=4 head=3 pos=17 d_value=4; '
        "the site carries batch=4 head=4 pos=17 d_value=4.\n"
        "    Sizes must be equal or 1; a number and a vector along the last axis also fit."
    )
    assert "at(head=0)" not in message(ShapeMismatch, Set("blocks.1.attn.z", torch.zeros(3, 3), at=At(head=0)))


@pytest.mark.parametrize("head", [4, -5, [0, 4]])
def test_a_place_outside_the_axis_is_refused(head: int | list[int]) -> None:
    found = message(ShapeMismatch, Set("blocks.1.attn.z", 0.0, at=At(head=head)))
    assert "head=" in found and 'at "blocks.1.attn.z"' in found and "4 entries" in found


def test_a_row_outside_the_batch_is_refused() -> None:
    assert "the axis has 4 entries" in message(ShapeMismatch, Take("blocks.1.attn.z", 4))


def test_a_row_of_a_site_without_a_batch_is_refused() -> None:
    model = subject("differential")
    with pytest.raises(UnknownAxis, match=r'site "blocks\.0\.attn\.lambda" has no axis "batch"'):
        model(model.tape(edit=[Take("blocks.0.attn.lambda", 0)]))


def test_directions_of_another_width_are_refused() -> None:
    found = message(ShapeMismatch, Project("blocks.0.resid_post", torch.ones(2, 5)))
    assert found == 'Project at "blocks.0.resid_post": directions are 2x5; the last axis has 16.'


def test_a_function_that_changes_the_shape_is_refused() -> None:
    found = message(ShapeMismatch, ("blocks.0.resid_post", lambda u: u[..., :3]))
    assert "d_model=3" in found and "d_model=16" in found


def test_a_run_without_the_site_or_with_a_part_of_it_is_refused() -> None:
    assert "did not read that site; add it to read" in message(SiteNotRead, Set("blocks.0.resid_post", {}))
    part = {"blocks.0.resid_post": torch.zeros(4, 16)}
    assert "kept 2 axes of 3" in message(ShapeMismatch, Set("blocks.0.resid_post", part))


def test_a_value_that_was_not_read_is_named() -> None:
    model = subject("gpt2")
    tape = model.tape("blocks.0.attn.z")
    model(tape)
    with pytest.raises(SiteNotRead) as caught:
        tape["blocks.0.attn.zz"]
    assert str(caught.value) == '"blocks.0.attn.zz" was not read. Nearest: "blocks.0.attn.z". Read: "blocks.0.attn.z".'


def test_a_site_the_pass_never_came_by_is_reported() -> None:
    model = subject("gpt2")
    tape = model.tape("embed.token")
    model.model.resume(1, torch.zeros(1, 2, 16, dtype=torch.float64), tape=tape)
    with pytest.raises(SiteNotRead, match=r'did not reach "embed\.token"'):
        tape.check_visited()


def mixed(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return x + first - 0.5 * second


@pytest.mark.parametrize("name", ["gpt2", "differential", "sandwich"])
def test_an_edit_reads_what_its_pass_made_earlier_edits_included(name: str) -> None:
    model = subject(name)
    site, earlier = "blocks.1.attn.out", ("blocks.0.resid_mid", "blocks.1.attn.norm")
    first = Scale(earlier[0], 0.5)
    edits = [first, Apply(site, mixed, reads=earlier)]
    seen = model.values(site, *earlier, edit=edits)
    plain = model.values(site, edit=[first])
    close(seen[site], plain[site] + seen[earlier[0]] - 0.5 * seen[earlier[1]])
    # it reads as well where nothing of that is read by the caller, and no further than it has to
    close(model.values(site, edit=edits)[site], seen[site])
    tape = model.tape(site, edit=edits, logits=False)
    model(tape)
    close(tape.values[site], seen[site])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_gradients_flow_through_what_an_edit_reads(name: str) -> None:
    model = subject(name)
    source, site = "blocks.0.resid_pre", "blocks.1.resid_post"
    tape = model.tape(source, edit=[Apply(site, lambda x, y: 0.0 * x + y, reads=(source,))], grad=True)
    final = model.model.stack.final(tape_stream := model.values(source)[source].clone().requires_grad_())
    expected = torch.autograd.grad(model.model.unembed(final, None).square().sum(), tape_stream)[0]
    close(torch.autograd.grad(model(tape).square().sum(), tape.values[source])[0], expected)


def test_an_edit_that_reads_a_later_site_is_refused_when_the_tape_is_made() -> None:
    model = subject("gpt2")
    for read in ("blocks.1.resid_post", "blocks.1.resid_pre"):
        with pytest.raises(AnalysisUnavailable, match=f'reads "{read}", which the pass comes by later'):
            model.tape(edit=[Apply("blocks.1.resid_pre", lambda x, y: y, reads=(read,))])
    with pytest.raises(UnknownSite, match=r"blocks\.0\.resid_prr"):
        model.tape(edit=[Apply("blocks.1.resid_pre", lambda x, y: y, reads=("blocks.0.resid_prr",))])
    with pytest.raises(UnknownSite, match="name one site there"):
        model.tape(edit=[Apply("blocks.1.resid_pre", lambda x, y: y, reads=("blocks.0.*",))])


@pytest.mark.parametrize("name", ["gpt2", "translator_pre"])
def test_an_edit_that_reads_is_refused_under_a_carried_state(name: str) -> None:
    model = subject(name)
    path = f"{model.model.prefix}blocks.{{}}.resid_pre".format
    tape = model.tape(edit=[Apply(path(1), lambda x, y: y, reads=(path(0),))])
    *source, tokens = model.inputs
    with pytest.raises(AnalysisUnavailable, match="continues from a carried state"):
        model.model(*([None] * len(source)), tokens, state=model.model.begin(*(source or [2])), tape=tape)


def test_a_pass_that_begins_behind_what_an_edit_reads_is_refused() -> None:
    model = subject("gpt2")
    stream = model.values("blocks.1.resid_pre")["blocks.1.resid_pre"]
    tape = model.tape(edit=[Apply("blocks.1.resid_post", lambda x, y: y, reads=("blocks.0.resid_pre",))])
    with pytest.raises(SiteNotRead, match="began behind there"):
        model.model.resume(1, stream, tape=tape)


@in_one_pass
@pytest.mark.parametrize(
    "place",
    [[], (), range(0), [False] * 5, torch.zeros(5, dtype=torch.bool), torch.zeros(0, dtype=torch.long), slice(3, 3),
     slice(4, 2), slice(0), slice(-1, -3)],
)  # fmt: skip
def test_an_edit_of_no_entry_is_refused(place):
    table = subject("llama").model.sites()
    for made in (Scale, Set, Add):
        with pytest.raises(ShapeMismatch, match="chooses no entry"):
            table.place(made("blocks.0.attn.z", 0.0, at=At(pos=place)))
    # a read of none is an empty tensor
    assert At(pos=place).entries("pos", 5) == []


@in_one_pass
@pytest.mark.parametrize("place", [slice(100, 120), slice(7, None), slice(-20, -9), slice(100, 50, -1)])
@pytest.mark.parametrize("axis", ["pos", "head"])
def test_an_edit_beyond_the_text_is_refused(axis, place):
    done = subject("llama")
    for made in (Scale, Set, Add):
        with pytest.raises(ShapeMismatch, match=rf"{axis}=slice\({place.start}, .*chooses no entry of [47]"):
            done(Tape(done.model, edit=[made("blocks.0.attn.z", 0.0, at=At(**{axis: place}))]))


@in_one_pass
@pytest.mark.parametrize(
    "place", [slice(-2, 1), slice(2, -1), slice(3, 1, -1), slice(None), slice(2, None), [True, False]]
)
def test_an_edit_that_may_choose_an_entry_is_none_of_them(place):
    sizes = (2,) if isinstance(place, list) else (2, 4)
    assert any(At(pos=place).entries("pos", size) for size in sizes) and Scale("*.z", 0.0, at=At(pos=place))


@in_one_pass
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda part: part.sum(), "a tensor of one number"), (lambda part: part[..., :1], "d_head=1"),
        (lambda part: part.to(torch.complex64), "that is complex"), (lambda part: part.to_sparse(), "that is sparse"),
        (lambda part: part.to("meta"), "without numbers"), (lambda part: None, "returned None"),
    ],
)  # fmt: skip
def test_what_only_fits_by_spreading_or_by_losing_something_is_refused(given, said):
    part = value()
    with pytest.raises(ShapeMismatch, match=said):
        Apply(SITE.name, given)(part, SITE)
    made = given(part)
    if isinstance(made, Tensor) and made.shape == part.shape:
        for edit in (Set, Add, Scale):
            with pytest.raises((ShapeMismatch, WrongArgument), match=said):
                edit(SITE.name, made)(part, SITE)
