"""What layers cost as a report states it in formulas, beside what models built of them are counted to cost.

                          parameters                 floating-point operations of training on b texts of n tokens
    softmax               12 l d^2                   72 b n l d^2 (1 + n/(6d) + 5/(18d))
    lightning             12 l d^2 + 2 l d^2/h       72 b n l d^2 (1 + 1/(2h) + 5/(18d))
    hybrid-lightning      12 l d^2 + 7 l d^2/(4h)    72 b n l d^2 (1 + n/(48d) + 7/(16h) + 5/(18d))

with l layers of width d and h heads of d/h. The models are what these are of, and leave out the embedding: attention of
as many key heads as heads, an MLP of 4 d neurons without a gate, no biases, norms without gains; lightning in chunks of
d/h rows, its output gated through d/h numbers; in the hybrid, softmax in every eighth layer. Their matrix products are
counted by `accounting`. The formulas' last term, 5/(18d), is of operations on single numbers and is not counted.

Source: MiniMax 2025, "MiniMax-01" (2501.08313), table 1; a layer's state is 2 n d numbers of keys and values, or d^2/h
of a memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from glassformer.arguments import Count
from glassformer.attention import Lightning, Merge, MixerConfig
from glassformer.config import Config, require
from glassformer.errors import UnknownModel, nearest
from glassformer.models.accounting import Account, account
from glassformer.models.block import BlockConfig
from glassformer.models.decoder import DecoderConfig
from glassformer.models.mlp import Mlp
from glassformer.models.norms import NoNorm, RmsNorm
from glassformer.models.schedules import block, every, published_block

PERIOD = 8  # layers to one of softmax, in the hybrid
# parts of an account that are none of the layers'
OUTSIDE = ("embedding", "unembedding")
NUMBER = 4  # bytes, of a number in a state


@dataclass(frozen=True)
class Sizes(Config):
    """Sizes of the models that are compared; the defaults are those of MiniMax-01, at its first length of training.

    Args:
        width: Of the stream, d.
        layers: How many, l.
        heads: In each layer, h, each as wide as the stream has room for.
        length: Tokens of a text, n.
    """

    width: Count = 6144
    layers: Count = 80
    heads: Count = 64
    length: Count = 8192

    def __post_init__(self) -> None:
        require(self.width % self.heads == 0, f"width={self.width} does not divide into heads={self.heads}.")


@dataclass(frozen=True)
class Cost:
    """Three numbers of one model, without its embedding.

    Args:
        parameters: Of all layers.
        flops: Of training on one text, three times the matrix products of the forward pass.
        state_bytes: Of one text's state behind its last token, in float32.
    """

    parameters: int
    flops: int
    state_bytes: int


@dataclass(frozen=True)
class Compared:
    """A model's counted cost, and what the formulas state.

    Args:
        name: Of the model.
        counted: Of the model, built.
        stated: By the formulas, without their last term; None where there are none.
        uncounted_flops: That last term, of operations on single numbers.
    """

    name: str
    counted: Cost
    stated: Cost | None
    uncounted_flops: int | None

    def ratios(self) -> dict[str, float]:
        """Return counted over stated, by field; empty where nothing is stated."""
        if self.stated is None:
            return {}
        return {name: getattr(self.counted, name) / number for name, number in vars(self.stated).items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "name": self.name,
            "counted": vars(self.counted),
            "stated": None if self.stated is None else vars(self.stated),
            "stated_uncounted_flops": self.uncounted_flops,
            "ratios": self.ratios(),
        }


def compared(name: str, sizes: Sizes) -> Compared:
    """Compare what a model of so many layers of a kind costs with what the formulas state.

    Args:
        name: One of `FORMULAS`, or the kind of a mechanism, which has its published layer and no formula.
        sizes: Of the model.

    Raises:
        UnknownModel: There is no mechanism of that kind.
    """
    found = account(
        DecoderConfig(1, sizes.width, _layers(name, sizes), sizes.length, final_norm=NoNorm()), sizes.length
    )
    stated = FORMULAS[name](sizes) if name in FORMULAS else None
    base = 72 * sizes.length * sizes.layers * sizes.width**2
    return Compared(name, _counted(found), stated, None if stated is None else base * 5 // (18 * sizes.width))


def _layers(name: str, sizes: Sizes) -> tuple[BlockConfig, ...]:
    kinds = MixerConfig.registry
    if name not in FORMULAS and name not in kinds:
        known = ", ".join(FORMULAS)
        raise UnknownModel(f'no mechanism "{name}".{nearest(name, [*FORMULAS, *kinds])} With formulas: {known}.')
    d_head = sizes.width // sizes.heads
    slots: dict[str, Any] = {
        "n_heads": sizes.heads,
        "norm": RmsNorm(gain=False),
        "mlp": Mlp(4 * sizes.width, bias=False),
    }
    softmax = block(**slots)
    merge = Merge(norm="all", gain=False, gate="sigmoid", gate_rank=d_head)
    lightning = block(Lightning(chunk=d_head), merge=merge, **slots)
    if name == "hybrid-lightning":
        return every(PERIOD, softmax, lightning, sizes.layers)
    own = {"softmax": softmax, "lightning": lightning}
    if name in own:
        return (own[name],) * sizes.layers
    kind: Any = kinds[name]
    return tuple(published_block(kind(), i, **slots) for i in range(sizes.layers))


def _counted(found: Account) -> Cost:
    own = {part: n for part, n in found.parameters.items() if part not in OUTSIDE}
    work = {part: n for part, n in found.flops.items() if part not in OUTSIDE}
    return Cost(sum(own.values()), 3 * sum(work.values()), found.state_bytes)


def _stated(sizes: Sizes, share: Fraction) -> Cost:
    """Return what the formulas give of layers of which so large a share is of softmax."""
    d, layers, h, n = sizes.width, sizes.layers, sizes.heads, sizes.length
    linear = 1 - share
    factor = 1 + share * Fraction(n, 6 * d) + linear * Fraction(1, 2 * h)
    return Cost(
        parameters=int(12 * layers * d**2 + linear * 2 * layers * d**2 / h),
        flops=int(72 * n * layers * d**2 * factor),
        state_bytes=int(NUMBER * layers * (share * 2 * n * d + linear * d**2 / h)),
    )


FORMULAS: dict[str, Callable[[Sizes], Cost]] = {
    "softmax": lambda sizes: _stated(sizes, Fraction(1)),
    "lightning": lambda sizes: _stated(sizes, Fraction(0)),
    "hybrid-lightning": lambda sizes: _stated(sizes, Fraction(1, PERIOD)),
}
