"""A pass of which the stream is cached gives what a whole pass gives, whatever is read of it or changed in it later."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import glassformer as gf
from glassformer.analysis.sweep import CachedPass
from glassformer.errors import AnalysisUnavailable
from glassformer.testing import close
from glassformer.testing.layers import seeds
from glassformer.testing.models import ALTERNATING, ARCHITECTURES, ENCODERS, RECURRENT, Subject, subject
from glassformer.trace import Add, At, Edit, Scale, Set

EVERY = [*ARCHITECTURES, *ENCODERS, *RECURRENT, *ALTERNATING]
few = settings(max_examples=max(2, settings.default.max_examples // 8))  # type: ignore[union-attr]


def read_by(case: Subject) -> dict[str, Any]:
    *source, tokens = case.inputs
    return {"inputs": source[0] if source else tokens, "target": tokens if source else None}


@st.composite
def edits(draw: Callable[..., Any], case: Subject) -> list[Edit]:
    """Draw edits at any sites of a model, one after another at the same one too."""
    names = [name for name, site in case.model.sites().items() if not site.read_only and "axis0" not in site.axes]
    found: list[Edit] = []
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(names))
        part = At(pos=draw(st.sampled_from([0, -1]))) if "pos" in case.model.sites()[name].axes else At()
        found.append(draw(st.sampled_from([Scale(name, 0.5, at=part), Add(name, 0.25, at=part), Scale(name, 1.5)])))
    return found


@few
@given(data=st.data(), seed=seeds)
@pytest.mark.parametrize("name", EVERY)
def test_what_is_read_and_changed_later_is_what_whole_passes_have(name: str, data: Any, seed: int) -> None:
    case = subject(name, seed=seed)
    given_, first, then = read_by(case), data.draw(edits(case)), data.draw(edits(case))
    try:
        gf.run(case.model, **given_, edit=[*first, *then])
    except AnalysisUnavailable:
        # some edits do not go together, in either way
        with pytest.raises(AnalysisUnavailable):
            CachedPass(case.model, **given_, edit=[*first, *then])
        return
    cached = CachedPass(case.model, **given_, edit=first)
    other = cached.under([*first, *then] if data.draw(st.booleans()) else then)
    for one, made in ((cached, first), (other, [edit for _, edit in other.edits])):
        sites = data.draw(st.lists(st.sampled_from(list(case.model.sites())), min_size=1, max_size=3, unique=True))
        whole = gf.run(case.model, **given_, read=sites, edit=made)
        found = one.read(sites, logits=True)
        for site in sites:
            # masked scores are minus infinity in both
            ours, theirs = (run[site].values.nan_to_num(neginf=-7.0) for run in (found, whole))
            close(ours, theirs)
            assert found[site].axes == whole[site].axes and found[site].coords == whole[site].coords
        logits = whole.predictions()
        close(found.predictions(), logits)
        close(one.logits([0, 2]), logits[:, [0, 2]])
        close(one.of_logits(lambda some: some.amax(-1)), logits.amax(-1))


def test_other_edits_run_from_the_first_block_that_they_change() -> None:
    case = subject("llama")
    (tokens,) = case.inputs
    cached = CachedPass(case.model, tokens, edit=[Scale("blocks.0.mlp.out", 0.5)])
    assert cached.blocks_run == 2
    later = cached.under([Scale("blocks.0.mlp.out", 0.5), Scale("L1H2.z", 0.0)])
    assert later.blocks_run == 1
    assert later.streams["blocks.0.resid_post"] is cached.streams["blocks.0.resid_post"]
    # what an edit puts there counts, not which object it is
    value = torch.ones(8)
    assert later.under([Scale("blocks.0.mlp.out", 0.5), Scale("L1H2.z", 0.0)]).blocks_run == 0
    one = cached.under([Set("blocks.1.attn.z", value[:4], at=At(head=0))])
    assert one.under([Set("blocks.1.attn.z", value.clone()[:4], at=At(head=0))]).blocks_run == 0
    assert one.under([Set("blocks.1.attn.z", value[:4], at=At(head=1))]).blocks_run == 1
    assert later.under([Scale("L1H2.z", 0.0)]).blocks_run == 2


def test_a_head_is_read_through_its_own_block() -> None:
    case = subject("gpt2")
    (tokens,) = case.inputs
    cached = CachedPass(case.model, tokens)
    ran = list[str]()
    for block in case.model.output_stack.blocks:
        for name in block.names:
            part = f"{block.layer} {name}"
            block.part(name).register_forward_hook(lambda *_, part=part: ran.append(part))
    cached.read(["L1H3.pattern"])
    # its MLP is not needed
    assert ran == ["1 attn"]
    cached.read(["blocks.1.resid_mid", "L0H1.z"])
    assert ran[1:] == ["0 attn", "0 mlp", "1 attn"]
    cached.logits([-1])
    assert len(ran) == 4
