"""Tokens as points: axes of most variance, and arrows of what was written that sum to the way from zero to a token."""

import pytest
import torch

import glassformer as gf
from glassformer.analysis.frozen import write_projections
from glassformer.analysis.subspaces import token_plane
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, UnknownSite
from glassformer.numerics.decompositions import principal_axes
from glassformer.testing import close
from glassformer.testing.models import subject
from one_pass import in_one_pass

IDS = [3, 1, 4, 1, 5, 2]


@in_one_pass
@pytest.mark.parametrize("of", ["embedding", "unembedding", "stream"])
def test_all_axes_together_keep_every_distance_and_the_first_have_the_most_variance(of: str) -> None:
    model = subject("gpt2").model
    run = gf.run(model, IDS, read=["embed.token", "blocks.1.resid_post"])
    vectors = {
        "embedding": lambda: run["embed.token"].values[0],
        "unembedding": lambda: model.unembed.weight[torch.tensor(IDS)],
        "stream": lambda: run["blocks.1.resid_post"].values[0],
    }[of]()
    plane = token_plane(run, of=of, axes=64)  # type: ignore[arg-type]
    close(torch.cdist(plane.points.values, plane.points.values), torch.cdist(vectors, vectors), 1e-7)
    close(plane.explained.values.sum(), torch.tensor(1.0, dtype=torch.float64))
    variances = plane.points.values.square().sum(0)
    close(variances / variances.sum(), plane.explained.values)
    assert bool((plane.explained.values.diff() <= 1e-12).all()) and bool((plane.points.values[-1] >= -1e-12).all())
    close(plane.placed(vectors), plane.points.values)
    first = token_plane(run, of=of, axes=2)  # type: ignore[arg-type]
    close(first.points.values, plane.points.values[:, :2])
    assert plane.points.labels("pos")[1] == "1:1"


@pytest.mark.parametrize("name", ["gpt2", "post", "sandwich", "parallel", "linear", "masked_pre", "translator_pre"])
def test_arrows_of_what_was_written_sum_to_the_way_from_zero_to_the_token(name: str) -> None:
    tested = subject(name, batch=1)
    run = gf.run(
        tested.model, *tested.inputs, read=[token_plane, write_projections, tested.model.output_embed.at_token]
    )
    for of in ("stream", "embedding"):
        plane = token_plane(run, of=of)  # type: ignore[arg-type]
        place = tested.model.output_stack.blocks[-1].at_resid[-1]
        arrows = write_projections(run, directions=plane.axes.values, site=place).values.values
        ends = plane.placed(run[place].values[0])
        close(plane.zero.values + arrows.sum(0), ends)
        if of == "stream":
            close(ends, plane.points.values)


def test_positions_that_do_not_count_are_placed_on_the_axes_of_the_others() -> None:
    model = subject("gpt2").model
    run = gf.run(model, IDS, read=["embed.token"])
    found, others = token_plane(run, of="embedding", skip=2), token_plane(model, IDS[2:], of="embedding")
    for name in ("axes", "centre", "explained", "zero"):
        close(getattr(found, name).values, getattr(others, name).values)
    close(found.points.values[2:], others.points.values)
    close(found.points.values, found.placed(run["embed.token"].values[0]))
    with pytest.raises(AnalysisUnavailable, match=r"that count \(1\) do not differ"):
        token_plane(run, of="embedding", skip=5)
    with pytest.raises(AnalysisUnavailable, match=r"that count \(0\) do not differ"):
        token_plane(run, of="embedding", skip=9)


def test_what_does_not_differ_has_no_axes_and_what_has_no_tokens_no_unembedding() -> None:
    model = subject("gpt2").model
    with pytest.raises(AnalysisUnavailable, match="do not differ"):
        token_plane(model, [3])
    with pytest.raises(AnalysisUnavailable, match="do not differ"):
        token_plane(model, [3, 3, 3], of="embedding")
    assert token_plane(model, [3, 4], of="embedding").axes.shape[0] == 1
    with pytest.raises(ShapeMismatch, match=r'site="blocks\.0\.resid_post" is a place of the stream'):
        token_plane(model, IDS, of="embedding", site="blocks.0.resid_post")
    with pytest.raises(UnknownSite, match="no place in a residual stream"):
        token_plane(model, IDS, site="blocks.0.resid_pots")


def test_principal_axes_are_those_of_the_covariance() -> None:
    rows = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    centre, axes, share = principal_axes(rows, 3)
    values, vectors = torch.linalg.eigh(rows.T.cov())
    close(centre, rows.mean(0))
    close(share, values.flip(0)[:3] / values.sum())
    close((axes @ vectors.flip(1)[:, :3]).abs(), torch.eye(3, dtype=torch.float64), 1e-7)
    assert float(principal_axes(rows[:1].expand(4, -1), 2)[2].sum()) == 0
