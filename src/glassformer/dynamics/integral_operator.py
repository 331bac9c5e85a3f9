"""Attention as an integral operator: a head integrates values against a kernel, over the measure of its tokens.

    y(x) = integral of k(x, x') v(x') dmu(x') / Z(x),    Z(x) = integral of k(x, x') dmu(x')
    k(x, x') = exp(q(x) . k(x') scale),    mu = (1/n) sum_i delta_(x_i)    of n tokens

A token is a row of the stream and the position it stands at. Without a mask a head of softmax attention is this
operator at the empirical measure of a text: it knows nothing of its tokens but mu, neither their order nor how often
the whole is repeated. It is defined for other measures too, so that there is something for more tokens to come near to:
of mu_n, the measure of n tokens drawn from mu,

    n E |Z_n/Z (y_n - y)|^2 = s(x)^2,    s(x)^2 = integral of (k(x, x') / Z(x))^2 |v(x') - y(x)|^2 dmu(x')

for every n, since the mean of k (v - y) is zero; y_n - y itself, a quotient, comes to s / sqrt(n) as n grows.
Axes: `token d_model` of tokens, `query` where the operator is asked, `draw` of samples.
Source: Geshkovski, Letrouit, Polyanskiy and Rigollet 2023 (2312.10794), section 3, and Vuckovic, Baratin and Tachet des
Combes 2020, "A Mathematical Theory of Attention" (2007.02876), for attention on measures; the rate is that of any mean.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count, Natural, Several, checked
from glassformer.attention import AttentionLayer, Context, Mask, Separate, Softmax
from glassformer.attention.projections import ProjectionInputs
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, WrongArgument
from glassformer.labelled import Labelled


class PlacedTokens(NamedTuple):
    """Tokens without an order.

    Args:
        stream: What the layer reads of each.
        positions: Where each stands.
    """

    stream: Float[Tensor, "token d_model"]
    positions: Int[Tensor, " token"]


def tokens_of(stream: Float[Tensor, "token d_model"]) -> PlacedTokens:
    """The tokens of a text, which stand at 0, 1, 2, …

    Args:
        stream: What the layer reads of each.
    """
    return PlacedTokens(stream, torch.arange(len(stream), device=stream.device))


@checked
@dataclass(frozen=True, eq=False)
class TokenMeasure:
    """A measure of finitely many tokens.

    Args:
        tokens: Its atoms.
        mass: How much each weighs, above 0; None for equal masses. What they sum to makes no difference to a head.

    Raises:
        ShapeMismatch: There is not one mass for each token.
        WrongArgument: A mass is not above 0.
    """

    tokens: PlacedTokens
    mass: Float[Tensor, " token"] | None = None

    def __post_init__(self) -> None:
        n = len(self.tokens.stream)
        if self.mass is not None and self.mass.shape != (n,):
            raise ShapeMismatch(f"mass= of shape {tuple(self.mass.shape)} for {n} tokens: one number for each.")
        if self.mass is not None and not bool((self.mass > 0).all()):
            raise WrongArgument("mass= of a measure takes numbers above 0. Leave out tokens that weigh nothing.")

    @property
    def shares(self) -> Float[Tensor, " token"]:
        """The mass of each token, of a whole of one."""
        stream = self.tokens.stream
        mass = stream.new_ones(len(stream)) if self.mass is None else self.mass
        return mass / mass.sum()


@checked
@dataclass(frozen=True, eq=False)
class HeadOperator:
    """A head of softmax attention as an integral operator.

    Args:
        layer: The layer it is of; numbers are of the type of its weights.
        head: Which.

    Raises:
        AnalysisUnavailable: The weight of a key for a query is no function of the two tokens alone, over its sum.
        WrongArgument: There is no such head.
    """

    layer: AttentionLayer
    head: Natural = 0

    def __post_init__(self) -> None:
        config, positions = self.layer.config, self.layer.positions
        kind, plain = config.mixer.kind, Softmax(scale=getattr(config.mixer, "scale", None))
        lacks = {
            f'mixer "{kind}", as set here,': config.mixer != plain,
            f'projection "{config.projection.kind}"': type(config.projection) is not Separate,
            f'positions "{config.positions.kind}", as set here,': (
                positions.has_bias or positions.has_scores or positions.at_read or config.positions.doubles
            ),
            "cross-attention": config.cross,
        }
        found = [name for name, so in lacks.items() if so]
        if found:
            raise AnalysisUnavailable(
                f"HeadOperator: of a head whose kernel is exp(q . k scale); {' and '.join(found)} has another one.\n"
                "    Softmax() over the whole text has it, with Separate(), and Rope() or positions in the stream."
            )
        if self.head >= self.layer.dims.n_heads:
            raise WrongArgument(f"HeadOperator: head= takes 0 to {self.layer.dims.n_heads - 1}; found {self.head}.")

    def __call__(self, at: PlacedTokens, measure: TokenMeasure) -> Float[Tensor, "query d_value"]:
        """What the head mixes for tokens that look at a measure: y of the equation, `z` of the layer.

        Args:
            at: Where the operator is asked.
            measure: What it integrates over.

        Raises:
            ShapeMismatch: Tokens are not of the layer's width.
        """
        return self.weights(at, measure) @ self.values(measure.tokens)

    def self_attention(self, tokens: PlacedTokens) -> Float[Tensor, "token d_value"]:
        """What the head mixes for tokens that look at each other, without a mask."""
        return self(tokens, TokenMeasure(tokens))

    def scores(self, at: PlacedTokens, tokens: PlacedTokens) -> Float[Tensor, "query token"]:
        """The logarithm of the kernel; arguments as of a call."""
        return self.queries(at) @ self.keys(tokens).mT

    def kernel(self, at: PlacedTokens, tokens: PlacedTokens) -> Float[Tensor, "query token"]:
        """The kernel; arguments as of a call."""
        return self.scores(at, tokens).exp()

    def log_normaliser(self, at: PlacedTokens, measure: TokenMeasure) -> Float[Tensor, " query"]:
        """The logarithm of Z of the equation, for a measure whose masses sum to one; arguments as of a call."""
        return (self.scores(at, measure.tokens) + measure.shares.log()).logsumexp(-1)

    def weights(self, at: PlacedTokens, measure: TokenMeasure) -> Float[Tensor, "query token"]:
        """How much each atom counts, mass and kernel over Z: the pattern of the layer; arguments as of a call."""
        return (self.scores(at, measure.tokens) + measure.shares.log()).softmax(-1)

    def queries(self, tokens: PlacedTokens) -> Float[Tensor, "token d_head"]:
        """Queries of tokens, times the scale of their products with keys."""
        return self.layer.mixer.queries(self._projected(tokens)[0])[0, self.head] * self.layer.mixer.scale

    def keys(self, tokens: PlacedTokens) -> Float[Tensor, "token d_head"]:
        """Keys of tokens."""
        return self._projected(tokens)[1][0, self.group]

    def values(self, tokens: PlacedTokens) -> Float[Tensor, "token d_value"]:
        """Values of tokens."""
        return self._projected(tokens)[2][0, self.group]

    @property
    def group(self) -> int:
        """Which keys and values the head reads, where heads share them."""
        return self.head // (self.layer.dims.n_heads // self.layer.dims.n_kv_heads)

    def sampling_variance(self, at: PlacedTokens, measure: TokenMeasure) -> Float[Tensor, " query"]:
        """The square of s in the equation: what n tokens drawn from a measure miss it by, squared, times n.

        Args:
            at: Where the operator is asked.
            measure: What is drawn from.
        """
        weights, values = self.weights(at, measure), self.values(measure.tokens)
        off = (values - (weights @ values)[:, None]).square().sum(-1)
        return (weights.square() / measure.shares * off).sum(-1)

    def sampled(
        self, at: PlacedTokens, measure: TokenMeasure, drawn: Int[Tensor, "draw sample"]
    ) -> tuple[Float[Tensor, "draw query d_value"], Float[Tensor, "draw query"]]:
        """What the head mixes of tokens drawn from a measure, y_n, and the normaliser that they have, Z_n / Z.

        Args:
            at: Where the operator is asked.
            measure: What was drawn from.
            drawn: Which of its atoms are the tokens of each draw.
        """
        scores, values = self.scores(at, measure.tokens), self.values(measure.tokens)
        # query draw sample
        of_drawn = scores[:, drawn]
        found = torch.einsum("qds,dsv->dqv", of_drawn.softmax(-1), values[drawn])
        mean = of_drawn.logsumexp(-1) - math.log(drawn.shape[-1])
        return found, (mean - self.log_normaliser(at, measure)[:, None]).exp().mT

    def _projected(self, tokens: PlacedTokens) -> Any:
        x, positions, width = tokens.stream[None], tokens.positions[None], self.layer.dims.d_model
        if x.shape[-1] != width:
            raise ShapeMismatch(f"tokens of width {x.shape[-1]} for a layer that reads d_model={width}.")
        context = Context(Mask(), positions, positions)
        place = self.layer.positions
        return self.layer.projection(ProjectionInputs(*place.inputs(x, x, context), x, place, context))[0]


@checked
def sampling_errors(
    operator: HeadOperator,
    at: PlacedTokens,
    measure: TokenMeasure,
    lengths: Several[Count],
    *,
    draws: Count = 200,
    seed: int = 0,
) -> Labelled:
    """How far n tokens drawn from a measure are from it, root mean squares over draws and tokens: `error length`.

    `weighted` is of Z_n/Z (y_n - y), `plain` of y_n - y, and `expected` is s / sqrt(n): see the module.

    Args:
        operator: The head.
        at: Where it is asked.
        measure: What is drawn from, with replacement.
        lengths: Numbers of tokens n, of texts that are drawn.
        draws: How many of each.
        seed: Of the draws.
    """
    generator = torch.Generator(measure.shares.device).manual_seed(seed)
    with torch.no_grad():
        exact, variance = operator(at, measure), operator.sampling_variance(at, measure).mean()
        rows: list[list[Tensor]] = [[], [], []]
        for n in lengths:
            drawn = torch.multinomial(measure.shares, draws * n, replacement=True, generator=generator)
            found, ratio = operator.sampled(at, measure, drawn.view(draws, n))
            off = (found - exact).square().sum(-1)
            for row, squared in zip(rows, ((ratio.square() * off).mean(), off.mean(), variance / n)):
                row.append(squared.sqrt())
    values = torch.stack([torch.stack(row) for row in rows])
    return Labelled(values, ("error", "length"), {"error": ["weighted", "plain", "expected"], "length": [*lengths]})
