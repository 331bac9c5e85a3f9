"""Pictures, numbers and tables of the page on symmetries: laws of layers, heads as operators, how much they stretch."""

import heapq
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

import glassformer as gf
from glassformer.attention import (
    Attention,
    Lightning,
    MixerConfig,
    NoPositions,
    PositionsConfig,
    RopeGrid,
    Softmax,
    SubLayerConfig,
)
from glassformer.dynamics import (
    EquivarianceTable,
    HeadOperator,
    PlacedTokens,
    TokenMeasure,
    equivariance_table,
    jacobian_norm,
    lipschitz_bounds,
    sampling_errors,
    stretched_tokens,
    tokens_of,
)
from glassformer.figures import Panel
from glassformer.labelled import Labelled
from glassformer.testing.layers import D_MODEL, POSITIONS, randomise

View = tuple[Sequence[Panel], dict[str, str]]
LAYER, HEAD, TEXT = 1, 3, inspect.getsource(heapq)
PLACES = [*POSITIONS, RopeGrid()]
SIGNS = {"known": "◉", "exact": "●", "nearly": "◐", "broken": "○", "none": "–"}


def tried(layer: SubLayerConfig) -> EquivarianceTable:
    """The laws of a small layer, all of whose weights are drawn."""
    return equivariance_table(randomise(layer.build(D_MODEL, 32, 0, "").double().eval()))


def attention(mixer: MixerConfig, place: PositionsConfig) -> Attention:
    return Attention(4, 2, 4, mixer=mixer, positions=place, grid=(4, 8) if place.of_grid else None)


def sign(table: EquivarianceTable, law: str) -> str:
    """What was seen of a law, and whether that was known without trying."""
    if table.holds[law] is None:
        return SIGNS["none"]
    if not table.holds[law]:
        return SIGNS["broken"]
    if law not in table.exact:
        return SIGNS["nearly"]
    return SIGNS["known" if table.stated[law] else "exact"]


def laws_of_layers() -> dict[str, list[dict[str, Any]]]:
    """Of mechanisms, positions and other sub-layers a row for settings that obey the same laws, kind by kind."""
    mixers = [cast(Any, cls)(**fields) for _, cls in sorted(MixerConfig.registry.items())
              for fields in ({}, *cast(Any, cls).variants)]  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {}
    for group, layers in {
        "mechanism": [(mixer, attention(mixer, NoPositions())) for mixer in mixers],
        "positions": [(place, attention(Lightning() if place.doubles else Softmax(), place)) for place in PLACES],
        "sub-layer": [(cast(Any, kind)(),) * 2 for kind in others()],
    }.items():
        rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for config, layer in layers:
            table = tried(layer)
            if table.contradicted:
                raise SystemExit(f"{config.described} breaks what it states: {', '.join(table.contradicted)}")
            rows.setdefault((config.kind, tuple(sign(table, law) for law in table.holds)), []).append(config.described)
        found[group] = [{"settings": names, "signs": list(signs)} for (_, signs), names in rows.items()]
    return found


def others() -> list[type[SubLayerConfig]]:
    """The kinds of sub-layer beside attention, by name."""
    return [kind for _, kind in sorted(SubLayerConfig.registry.items()) if kind is not Attention]


def read_by_a_head(n: int) -> tuple[HeadOperator, PlacedTokens]:
    """A head of encoder-4l, and what it reads of a text."""
    model: Any = gf.load("encoder-4l").double()
    ids = model.tokenizer.encode(TEXT)[:n]
    block = model.stack.blocks[LAYER]
    stream = gf.run(model, ids, read=f"blocks.{LAYER}.resid_pre")[f"blocks.{LAYER}.resid_pre"].values[0]
    with torch.no_grad():
        return HeadOperator(block.part("attn"), HEAD), tokens_of(block.norm("attn")(stream[None])[0])


def symmetries() -> View:
    """Errors of texts that are drawn, and the stretch of a head with its bounds."""
    operator, tokens = read_by_a_head(256)
    measure, at = TokenMeasure(tokens), PlacedTokens(tokens.stream[:16], tokens.positions[:16])
    errors = sampling_errors(operator, at, measure, [4, 16, 64, 256, 1024], draws=100)
    weighted, plain, expected = errors.values
    with torch.no_grad():
        twice = PlacedTokens(tokens.stream.repeat(2, 1), tokens.positions.repeat(2))
        apart = (operator(at, TokenMeasure(twice)) - operator(at, measure)).abs().max()

    lengths = [4, 8, 16, 32, 64]
    bounds = [lipschitz_bounds(operator, PlacedTokens(tokens.stream[:n], tokens.positions[:n])) for n in lengths]
    by_length = Labelled(
        torch.tensor([[one.measured for one in bounds], [one.at_tokens for one in bounds],
                      [one.on_ball for one in bounds]]),
        ("of", "length"), {"of": ["measured", "bound here", "bound, ball"], "length": lengths},
    )  # fmt: skip
    far = [stretched_tokens(operator, size) for size in (1.0, 10.0, 100.0)]
    grown = [
        jacobian_norm(lambda x, one=one: operator.self_attention(one.tokens._replace(stream=x)), one.tokens.stream)
        for one in far
    ]
    models = {name: equivariance_table(cast(Any, gf.load(name))) for name in ("encoder-4l", "gpt-4l", "attn-only-2l")}
    return [
        Panel("error of a head on texts that are drawn", errors),
        Panel("stretch of a head, and its bounds", by_length),
    ], {
        f"laws that {name} obeys": ", ".join(law for law, so in table.holds.items() if so)
        for name, table in models.items()
    } | {
        "every token of a text twice, largest difference of what the head mixes": f"{float(apart):.1g}",
        "weighted error of texts of 4, 64, 1,024 tokens, over what it must be": ", ".join(
            f"{float(weighted[i] / expected[i]):.2f}" for i in (0, 2, 4)
        ),
        "plain error, over the same": ", ".join(f"{float(plain[i] / expected[i]):.2f}" for i in (0, 2, 4)),
        **{
            f"stretch of the head at {n} tokens": (
                f"{one.measured:.2f}; bounds {one.at_tokens:.3g} at these tokens, {one.on_ball:.3g} on the ball of "
                f"radius {one.radius:.3g}"
            )
            for n, one in zip(lengths, bounds)
            if n in (4, 64)
        },
        "stretch at three tokens 0, t e, - t e for t = 1, 10, 100": ", ".join(f"{one:.3g}" for one in grown),
        "what it must be at least": ", ".join(f"{max(one.floor, 0.0):.3g}" for one in far),
    }


VIEWS: dict[str, Callable[[], View]] = {"symmetries": symmetries}
# what has rows of its own beside its picture
ROWS: dict[str, Callable[[], dict[str, list[dict[str, Any]]]]] = {"symmetries": laws_of_layers}
