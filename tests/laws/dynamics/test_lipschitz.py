"""How much heads stretch: power iteration against whole Jacobians, bounds above it, and tokens without a bound."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import Alibi, Attention, NoPositions, QueryKeyNorm, QueryKeyOnly, Rope, Separate, YarnScaling
from glassformer.dynamics import (
    HeadOperator,
    PlacedTokens,
    ball_bound,
    jacobian_norm,
    lipschitz_bounds,
    local_bound,
    stretched_tokens,
    tokens_of,
)
from glassformer.errors import AnalysisUnavailable, NotConverged, WrongArgument
from glassformer.testing.layers import D_MODEL, randomise, stream


def operator(head: int = 0, *, std: float = 0.4, seed: int = 0, **slots: Any) -> HeadOperator:
    chosen: dict[str, Any] = {"positions": Rope()} | slots
    layer = Attention(4, 2, 4, **chosen).build(D_MODEL, 32, 0, "").double().eval()
    return HeadOperator(randomise(layer, seed, std), head)


def text(n: int = 5, size: float = 1.0, seed: int = 0) -> PlacedTokens:
    return tokens_of(size * stream(1, n, seed)[0])


def whole_jacobian(found: HeadOperator, tokens: PlacedTokens) -> Tensor:
    matrix = torch.func.jacrev(lambda x: found.self_attention(tokens._replace(stream=x)))(tokens.stream)
    return matrix.detach().flatten(2).flatten(0, 1)


def stretch(found: HeadOperator, tokens: PlacedTokens) -> float:
    return jacobian_norm(lambda x: found.self_attention(tokens._replace(stream=x)), tokens.stream)


def test_power_iteration_finds_the_largest_singular_value_of_the_whole_jacobian() -> None:
    found, tokens = operator(), text()
    largest = float(torch.linalg.matrix_norm(whole_jacobian(found, tokens), 2))
    assert stretch(found, tokens) == pytest.approx(largest, rel=1e-3)
    matrix, x = stream(1, 7)[0], stream(1, 2)[0].mT
    assert jacobian_norm(lambda x: matrix @ x, x) == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-3)
    assert jacobian_norm(lambda x: 0 * x, matrix) == 0
    with pytest.raises(NotConverged, match="after 1 steps"):
        jacobian_norm(lambda x: matrix @ x, x, most=1)


def test_what_is_measured_is_below_the_bound_at_the_tokens_and_that_below_the_bound_of_the_ball() -> None:
    for head, size, place in ((0, 0.1, Rope()), (3, 1.0, Rope(fraction=0.5)), (1, 4.0, NoPositions())):
        found = lipschitz_bounds(operator(head, positions=place), text(size=size))
        assert 0 < found.measured <= found.at_tokens <= found.on_ball, found
    # without differences in what is looked at, only the mean is left
    small = lipschitz_bounds(operator(), text(size=1e-3))
    assert small.at_tokens == pytest.approx(small.measured, rel=1e-3)


def test_no_two_texts_of_a_ball_are_further_apart_behind_the_head_than_the_bound_allows() -> None:
    found, rng = operator(), torch.Generator().manual_seed(0)
    bound = ball_bound(found, 1.0, 4)
    for _ in range(20):
        one, other = (torch.randn(4, D_MODEL, generator=rng, dtype=torch.float64) for _ in range(2))
        one, other = (x / x.norm(dim=-1).max() for x in (one, other))
        with torch.no_grad():
            made = [found.self_attention(tokens_of(x)) for x in (one, other)]
        assert float((made[0] - made[1]).norm()) <= bound * float((one - other).norm())


def test_three_tokens_stretch_with_the_square_of_their_size_as_they_must() -> None:
    found = operator()
    sizes, floors = (1.0, 4.0, 16.0, 64.0), list[float]()
    for size in sizes:
        far = stretched_tokens(found, size)
        floors.append(far.floor)
        measured = stretch(found, far.tokens)
        assert far.floor <= measured * (1 + 1e-6) <= local_bound(found, far.tokens) * (1 + 1e-5)
        assert measured <= ball_bound(found, size, 3)
        # the first token looks at all three alike
        block = whole_jacobian(found, far.tokens)[:4, :D_MODEL]
        value = found.layer.projection.matrix("value")[0].detach()
        assert float(torch.linalg.matrix_norm(block - value.mT / 3, 2)) == pytest.approx(
            far.floor + float(torch.linalg.matrix_norm(value, 2)) / 3
        )
    assert floors[-1] / floors[-2] == pytest.approx(16, rel=0.05)


def test_a_ball_bound_grows_with_the_root_of_the_number_of_tokens_until_the_ball_is_what_keeps_them_apart() -> None:
    found = operator()
    bounds = [ball_bound(found, 0.5, n) for n in (1, 4, 10**6, 10**8)]
    assert bounds[0] < bounds[1] <= bounds[2] == bounds[3]
    assert ball_bound(found, 30.0, 400) / ball_bound(found, 30.0, 100) == pytest.approx(2, rel=0.1)
    # nothing overflows
    assert ball_bound(found, 1e3, 10) > ball_bound(found, 10.0, 10)


def test_heads_with_more_than_matrices_and_turns_have_no_bounds() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"projection": Separate(bias=True)}, "biases"),
        ({"projection": Separate(qk_norm=QueryKeyNorm())}, "norms of queries or keys"),
        ({"projection": Separate(clip=0.5)}, "cut off"),
        ({"positions": QueryKeyOnly()}, 'positions "query_key_only"'),
        ({"positions": Rope(scaling=YarnScaling(4.0, original_length=16))}, 'positions "rope"'),
    ]
    for slots, what in refused:
        for asked in (local_bound, lipschitz_bounds):
            with pytest.raises(AnalysisUnavailable, match=what):
                asked(operator(**slots), text())
    with pytest.raises(WrongArgument, match="float64"):
        lipschitz_bounds(operator(), PlacedTokens(text().stream.float(), text().positions))
    with pytest.raises(AnalysisUnavailable, match="alibi"):
        operator(positions=Alibi())
