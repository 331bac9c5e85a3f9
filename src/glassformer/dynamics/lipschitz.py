"""How much attention can stretch: bounds on the Jacobian of a head, and the largest stretch that is measured.

    z_i = sum_j P_ij v_j,    P_ij = softmax_j(s q_i . k_j),    rows q = x W_Q, k = x W_K, v = x W_V, turned or not
    dz_i = sum_j P_ij dv_j + s sum_j P_ij (v_j - z_i)(q_i . dk_j) + s sum_j P_ij (v_j - z_i)(k_j . dq_i)

The last term has the covariance of keys and values under a row of the pattern, which grows with the square of what the
tokens are long: self-attention by products is not Lipschitz. Of three tokens 0, t e, -t e, all at one place, the first
looks at all alike, and the block of the Jacobian from it to itself is a third of W_V and a matrix whose norm is

    2/3 t^2 s |e W_V| |e W_K W_Q'|

Of n tokens that are no longer than R it is Lipschitz. With spectral norms, and the terms in their order,

    |J| <= |W_V| (sqrt(c) + sqrt(c) a R^2 + a R^2),    a = s |W_Q| |W_K|,    c = min(n, e^(2 a R^2))

where c bounds the sums of columns of P, so that n counts until the ball is what keeps columns apart. At given tokens
the same three terms are bounded by what they are made of: with c the largest sum of a column of P, S_i the covariance
of values under row i, and M_i = sum_j P_ij (v_j - z_i) k_j' that of values and keys,

    |J| <= |W_V| |P| + s |W_K| sqrt(c) max_i |q_i| |S_i|^(1/2) + s |W_Q| max_i |M_i|

Both follow from the inequality of Cauchy and Schwarz for each row; rotations leave lengths alone. Positions that add to
scores, biases and norms of queries and keys are not covered.
Source: Kim, Papamakarios and Mnih 2021, "The Lipschitz Constant of Self-Attention" (2006.04710), theorem 3.1, for the
counterexample; Castin, Ablin and Peyre 2024, "How Smooth Is Attention?" (2312.14820), section 3, for bounds on balls,
which grow with sqrt(n) and end in a regime without n as these do, with other constants.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.arguments import Count, Positive, checked
from glassformer.attention import NoPositions, Rope
from glassformer.dynamics.integral_operator import HeadOperator, PlacedTokens, TokenMeasure
from glassformer.errors import AnalysisUnavailable, NotConverged, WrongArgument
from glassformer.numerics.decompositions import singular_values, svd


@checked
def jacobian_norm(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    tolerance: Positive = 1e-6,
    most: Count = 2000,
    seed: int = 0,
) -> float:
    """The largest singular value of the Jacobian of a function at a point, by power iteration.

    Every step gives a number that the largest stretch is not below.

    Args:
        function: From a tensor to a tensor, differentiable forwards and backwards.
        x: The point.
        tolerance: It ends when a step changes the number by less than this share of it.
        most: Steps at most.
        seed: Of the direction that it begins with.

    Raises:
        NotConverged: It has not come to rest by then: the two largest singular values are too near to each other.
    """
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    found = change = 0.0
    # weights keep no graph of what is pushed and pulled
    with torch.no_grad():
        pull = torch.func.vjp(function, x)[1]
        for _ in range(most):
            pushed = torch.func.jvp(function, (x,), (direction / direction.norm(),))[1]
            before, found = found, float(pushed.norm())
            [direction] = pull(pushed)
            change = abs(found - before)
            # a direction that is mapped to nothing has no successor
            if change <= tolerance * found or not direction.any():
                return found
    raise NotConverged(
        f"jacobian_norm: after {most} steps the stretch is {found:.6g} and still changes by {change:.2g}. Take a "
        "larger most=, or a larger tolerance=."
    )


class LipschitzBounds(NamedTuple):
    """What the Jacobian of a head is bounded by, and what it is; `measured <= at_tokens <= on_ball`.

    Args:
        measured: Its largest singular value at some tokens.
        at_tokens: The bound at these tokens.
        on_ball: The bound for as many tokens that are no longer than the longest of them.
        radius: How long that one is.
    """

    measured: float
    at_tokens: float
    on_ball: float
    radius: float


@checked
def lipschitz_bounds(operator: HeadOperator, tokens: PlacedTokens) -> LipschitzBounds:
    """Bounds on the stretch of a head of self-attention over a whole text, and the stretch itself.

    Args:
        operator: The head.
        tokens: The text.

    Raises:
        AnalysisUnavailable: Queries, keys and values are no matrices times tokens, up to rotations.
        WrongArgument: Tokens are not in float64: with the layer, call `.double()`.
    """
    if tokens.stream.dtype != torch.float64:
        raise WrongArgument(
            f"lipschitz_bounds: tokens= takes a stream in float64; found {tokens.stream.dtype}. Give the layer's "
            ".double(), and tokens of it."
        )
    # first of all whether there are bounds: measuring takes longest
    at_tokens, radius = local_bound(operator, tokens), float(tokens.stream.norm(dim=-1).max())
    return LipschitzBounds(
        measured=jacobian_norm(lambda x: operator.self_attention(tokens._replace(stream=x)), tokens.stream),
        at_tokens=at_tokens,
        on_ball=ball_bound(operator, radius, len(tokens.stream)),
        radius=radius,
    )


@checked
def ball_bound(operator: HeadOperator, radius: Positive, n_tokens: Count) -> float:
    """What the stretch of a head is not above, whatever tokens of a ball there are.

    Args:
        operator: The head.
        radius: How long a token is at most.
        n_tokens: How many tokens there are.

    Raises:
        AnalysisUnavailable: Queries, keys and values are no matrices times tokens, up to rotations.
    """
    query, key, value = _norms(operator)
    pull = operator.layer.mixer.scale * query * key * radius**2
    columns = min(float(n_tokens), math.exp(min(2 * pull, 700.0)))
    return value * (math.sqrt(columns) * (1 + pull) + pull)


@checked
def local_bound(operator: HeadOperator, tokens: PlacedTokens) -> float:
    """What the stretch of a head is not above at some tokens.

    Args:
        operator: The head.
        tokens: The text.

    Raises:
        AnalysisUnavailable: Queries, keys and values are no matrices times tokens, up to rotations.
    """
    query, key, value = _norms(operator)
    with torch.no_grad():
        pattern = operator.weights(tokens, TokenMeasure(tokens))
        # scaled by s already
        q, k, v = operator.queries(tokens), operator.keys(tokens), operator.values(tokens)
        off = v - (pattern @ v)[:, None]
        spread = singular_values(pattern.sqrt()[..., None] * off)[:, 0]
        crossed = singular_values(torch.einsum("ij,ijv,jk->ivk", pattern, off, k))[:, 0].max()
        mixed, columns = singular_values(pattern)[0], pattern.sum(0).max()
        met = columns.sqrt() * (q.norm(dim=-1) * spread).max()
        return float(value * mixed + key * met + operator.layer.mixer.scale * query * crossed)


class StretchedTokens(NamedTuple):
    """Tokens at which the Jacobian of a head is large.

    Args:
        tokens: They.
        floor: What its largest singular value is not below.
    """

    tokens: PlacedTokens
    floor: float


@checked
def stretched_tokens(operator: HeadOperator, size: Positive) -> StretchedTokens:
    """Three tokens 0, t e, -t e whose stretch grows with t^2, and what it is not below: see the module.

    Args:
        operator: The head.
        size: The t.

    Raises:
        AnalysisUnavailable: Queries, keys and values are no matrices times tokens, up to rotations.
    """
    _, _, norm = _norms(operator)
    query, key, value = _matrices(operator)
    direction = svd(key)[0][:, 0]
    stream = size * torch.stack((0 * direction, direction, -direction))
    written, read = (direction @ value).norm(), (direction @ key @ query.mT).norm()
    grown = 2 / 3 * size**2 * operator.layer.mixer.scale * float(written * read)
    tokens = PlacedTokens(stream, torch.zeros(3, dtype=torch.long, device=stream.device))
    return StretchedTokens(tokens, grown - norm / 3)


def _matrices(operator: HeadOperator) -> tuple[Tensor, Tensor, Tensor]:
    """Return W_Q, W_K and W_V of the head, if they are all that makes its queries, keys and values."""
    projection, place = operator.layer.projection, operator.layer.config.positions
    turns = isinstance(place, Rope) and place.amplitude == 1 and not operator.layer.positions.by_length
    lacks = {
        "biases": projection.bias("query") is not None,
        "norms of queries or keys": projection.normalises,
        "values that are cut off (clip)": projection.clip is not None,
        f'positions "{place.kind}", as set here': not (isinstance(place, NoPositions) or turns),
    }
    found = [name for name, so in lacks.items() if so]
    if found:
        raise AnalysisUnavailable(
            f"bounds are of heads whose queries, keys and values are matrices times tokens; found {', '.join(found)}.\n"
            "    jacobian_norm measures any function. Separate() without bias has bounds, with NoPositions() or Rope()."
        )
    query, key, value = (projection.matrix(which).detach() for which in ("query", "key", "value"))
    return query[operator.head], key[operator.group], value[operator.group]


def _norms(operator: HeadOperator) -> tuple[float, float, float]:
    query, key, value = (float(singular_values(matrix)[0]) for matrix in _matrices(operator))
    return query, key, value
