"""The stream as a sum of writes: nothing is left over at any place of any architecture."""

import pytest
import torch
from hypothesis import given

from glassformer.analysis import Run, run
from glassformer.analysis.cards import card_of
from glassformer.analysis.frozen import write_projections, write_shares, write_sources, writes
from glassformer.analysis.frozen.addends import residual_sites
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, SiteNotRead, UnknownSite
from glassformer.handmade import induction_model, repeated
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, Subject, attention_decoders, subject
from glassformer.trace import Scale

every = pytest.mark.parametrize("name", ARCHITECTURES)


def passed(found: Subject, *more: str, stack: str | None = None) -> Run:
    return run(found.model, *found.inputs, read=[*residual_sites(found.model, stack), *more])


def places(done: Run) -> list[str]:
    return [name for name in done if ".resid_" in name]


@every
def test_writes_sum_to_the_stream_at_every_place(name: str) -> None:
    done = passed(subject(name))
    for site in places(done):
        found = writes(done, site=site, position=3, row=1)
        close(found.vectors.values.sum(0), done[site].values[1, 3])
        close(found.signed_share.values.sum(), torch.ones((), dtype=torch.float64))


@given(attention_decoders(mlps=True))
def test_writes_sum_to_the_stream_in_any_small_model(found: Subject) -> None:
    done = passed(found)
    for site in places(done):
        close(writes(done, site=site).vectors.values.sum(0), done[site].values[0, -1])


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name.startswith("translator")])
def test_the_encoders_stream_is_split_like_any_other(name: str) -> None:
    done = passed(subject(name), stack="encoder")
    site = "encoder.blocks.1.resid_post"
    found = writes(done, site=site, position=-1)
    assert found.components[-1].label.startswith("enc L1 mlp")
    close(found.vectors.values.sum(0), done[site].values[0, -1])


@every
def test_shares_and_projections_at_all_positions_are_those_of_the_vectors(name: str) -> None:
    done = passed(subject(name))
    directions = torch.randn(3, 16, dtype=torch.float64)
    shares, along = write_shares(done, row=1), write_projections(done, directions=directions, row=1)
    for position in (0, 4):
        found = writes(done, position=position, row=1)
        close(shares.signed.values[:, position], found.signed_share.values)
        close(shares.norm.values[:, position], found.norm_share.values)
        close(along.values.values[:, position], found.vectors.values @ directions.mT)
    close(shares.signed.values.sum(0), torch.ones(7, dtype=torch.float64))


@every
def test_what_a_head_takes_from_each_key_sums_to_its_write(name: str) -> None:
    model = subject(name)
    done = passed(model, *card_of(write_sources).reads(model.model), "*.head_out")
    # right behind the layer, before a later norm of a post-norm block changes what was written
    heads = [f"{path}H{h}" for path in ("L0", "L1") for h in range(2)]
    for label in heads:
        block = list(model.model.stacks.values())[-1].blocks[int(label[1])]
        written = done[block.part("attn").at.head_out].values[1, int(label[3]), 5]
        if block.wiring == "sandwich":
            written = writes(done, site=block.at_resid[1], position=5, row=1).vectors.select(component=label).values
        close(write_sources(done, label=label, position=5, row=1).values.sum(0), written, 1e-8)


@every
def test_writes_are_those_of_the_pass_where_mixed_values_were_read(name: str) -> None:
    found = subject(name)
    done, whole = passed(found), passed(found, "*.head_out")
    for layer in found.model.sub_layers():
        part = layer.attention
        if part is not None:
            assert (part.at.head_out in done) == (part.merge.gate is not None or not part.merge.linear)
    close(writes(done, row=1).vectors.values, writes(whole, row=1).vectors.values, 1e-12)


def test_edited_writes_are_taken_as_they_were_edited_or_asked_for() -> None:
    found, site = subject("gpt2"), "blocks.0.attn.head_out"
    reads = residual_sites(found.model)
    for edit in (Scale("L0H1.head_out", 2.0), Scale("L0H1.z", 2.0)):
        done = run(found.model, *found.inputs, read=[*reads, site], edit=edit)
        split = writes(done)
        close(split.vectors.values.sum(0), done["blocks.1.resid_post"].values[0, -1])
        close(split.vectors.select(component="L0H1").values, done[site].values[0, 1, -1])
    # mixed values do not say what became of them
    done = run(found.model, *found.inputs, read=reads, edit=Scale("L0H1.head_out", 2.0))
    with pytest.raises(SiteNotRead, match=rf"Add to read=:\n *\['{site}'\]"):
        writes(done)


def test_cosines_are_those_between_the_vectors() -> None:
    found = writes(passed(subject("gpt2")))
    vectors = found.vectors.values
    size = vectors.norm(dim=-1)
    close(found.cosine.values, (vectors @ vectors.mT) / size / size[:, None])
    close(found.cosine.values.diagonal(), torch.ones(len(vectors), dtype=torch.float64))


def test_in_the_induction_model_two_heads_write_into_blocks_of_their_own() -> None:
    model = induction_model()
    found = writes(run(model, repeated(), read=[writes]))
    sizes = {c.label: float(s) for c, s in zip(found.components, found.norm_share.values) if c.kind == "head"}
    assert {label for label, size in sizes.items() if size > 1e-9} == {"L0H0", "L1H0"}
    assert float(found.cosine.select(component="L0H0", other="L1H0").values) == 0


def test_a_place_that_is_none_is_refused_with_the_nearest() -> None:
    done = passed(subject("gpt2"))
    with pytest.raises(UnknownSite, match=r'"blocks.1.resid_prae" is no place .* Nearest: "blocks.1.resid_pre"'):
        writes(done, site="blocks.1.resid_prae")


def test_a_run_without_the_sites_is_told_what_to_read() -> None:
    model = subject("gpt2").model
    with pytest.raises(SiteNotRead, match=r"Add to read=:\n.*blocks.0.attn.z"):
        writes(run(model, [1, 2], read=["blocks.1.resid_post"]))


def test_directions_of_another_width_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="directions are 1x3; the stream has d_model=16"):
        write_projections(passed(subject("gpt2")), directions=torch.zeros(3, dtype=torch.float64))


def test_an_unknown_head_is_refused_with_the_nearest() -> None:
    with pytest.raises(AnalysisUnavailable, match=r'no head "L1H7".* Nearest: "L1H'):
        write_sources(passed(subject("gpt2")), label="L1H7")
