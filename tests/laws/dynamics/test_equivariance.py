"""Equivariance: actions, laws of layers whose symmetries are known, what traits state, and laws of what is composed."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from glassformer.attention import (
    Alibi,
    Attention,
    AttentionLayer,
    Context,
    Lightning,
    Linear,
    Linformer,
    Mask,
    MixerConfig,
    NoPositions,
    PositionsConfig,
    QueryKeyOnly,
    RelativeBias,
    Rope,
    Softmax,
    SubLayerConfig,
)
from glassformer.dynamics import EQUIVARIANCE_LAWS, EquivarianceTable, equivariance_defect, equivariance_table
from glassformer.dynamics.equivariance_laws import Point
from glassformer.errors import AnalysisUnavailable, ConfigError, UnknownKind
from glassformer.models import DecoderConfig, EncoderConfig, Mlp, block
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, POSITIONS, randomise
from glassformer.testing.models import subject
from one_pass import in_one_pass

OF_TOKENS = [name for name, law in EQUIVARIANCE_LAWS.items() if not law.of_heads]


def layer(mixer: MixerConfig, positions: PositionsConfig | None = None, **sizes: Any) -> AttentionLayer:
    config = Attention(4, 2, 4, mixer=mixer, positions=positions or NoPositions(), **sizes)
    return randomise(config.build(D_MODEL, 32, 0, "").double().eval())


def broken(table: EquivarianceTable) -> list[str]:
    return [name for name, so in table.holds.items() if so is False]


@in_one_pass
@pytest.mark.parametrize("name", EQUIVARIANCE_LAWS)
def test_to_act_twice_is_to_act_with_the_product(name: str) -> None:
    law, rng = EQUIVARIANCE_LAWS[name], torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    heads = drawn(3, 4, 8, 5), drawn(3, 2, 8, 5), drawn(3, 2, 8, 6)
    point = Point(drawn(3, 8, 7), torch.arange(8), heads if law.of_heads else None)
    first = law.element(point, rng)
    second = law.element(law.on_input(first, point), rng)
    both = law.product(first, second)
    once, twice = law.on_input(both, point), law.on_input(second, law.on_input(first, point))
    close(twice.stream, once.stream)
    assert torch.equal(twice.positions, once.positions)
    if law.of_heads:
        for one, other in zip(twice.qkv, once.qkv):
            close(one, other)
    out = drawn(3, 4, 8, 6) if law.of_heads else drawn(3, 8, 7)
    close(law.on_output(second, law.on_output(first, out)), law.on_output(both, out))


def test_softmax_without_positions_obeys_every_law_and_what_breaks_one_is_seen() -> None:
    known: list[tuple[AttentionLayer, set[str]]] = [
        (layer(Softmax()), set()),
        (layer(Softmax(), Rope()), {"tokens"}),
        (layer(Softmax(), QueryKeyOnly()), {"tokens", "translation"}),
        (layer(Softmax(), Alibi()), {"tokens", "heads"}),
        (layer(Softmax(window=3)), {"tokens", "tokens with positions", "repetition"}),
        (layer(Softmax(sinks=True)), {"repetition", "values shifted", "keys shifted", "heads"}),
        # queries and keys meet by a function of each coordinate by itself, which is no exponential
        (layer(Linear()), {"queries against keys", "heads turned", "keys shifted"}),
    ]
    for found, breaks in known:
        table = equivariance_table(found)
        assert set(broken(table)) == breaks, found.config
        assert not table.contradicted and not table.left_out


def test_what_is_not_normalised_counts_its_tokens_and_what_reads_whole_texts_is_not_cut() -> None:
    table = equivariance_table(layer(Lightning()))
    assert table.holds["truncation"] and table.holds["values scaled"] and table.holds["values shifted"] is False
    table = equivariance_table(layer(Linformer()))
    assert table.holds["truncation"] is None and '"linformer"' in table.left_out["truncation"]
    assert bool(table.defect.select(law="truncation").values.isnan())


@pytest.mark.parametrize("kind", MixerConfig.registry)
def test_no_mechanism_breaks_what_its_traits_state(kind: str) -> None:
    cls = cast(Any, MixerConfig.registry[kind])
    for mixer in (cls(**fields) for fields in ({}, *cls.variants)):
        table = equivariance_table(layer(mixer))
        assert table.stated["batch"] and not table.contradicted, mixer


@in_one_pass
@pytest.mark.parametrize("place", POSITIONS)
def test_no_positions_break_what_they_state(place: PositionsConfig) -> None:
    table = equivariance_table(layer(Lightning() if place.doubles else Softmax(), place))
    assert not table.contradicted
    # what turns by differences alone is known to
    assert not isinstance(place, Rope | RelativeBias) or table.stated["translation"]


@in_one_pass
@pytest.mark.parametrize("kind", sorted({*SubLayerConfig.registry} - {Attention.kind}))
def test_no_sub_layer_breaks_what_is_known_of_it(kind: str) -> None:
    made = cast(Any, SubLayerConfig.registry[kind])().build(D_MODEL, 32, 0, "")
    table = equivariance_table(randomise(made.double().eval()))
    assert table.holds["batch"] and not table.contradicted
    # what works position by position obeys all that ask for no heads
    assert not made.by_position or all(table.holds[law] for law in OF_TOKENS)


@pytest.mark.parametrize("name", ["gpt2", "llama", "post", "sandwich", "parallel", "attention_only"])
def test_the_laws_of_a_block_follow_from_its_parts_and_those_of_a_stack_from_its_blocks(name: str) -> None:
    model = cast(Any, subject(name).model)

    def follow(whole: nn.Module, parts: list[nn.Module]) -> None:
        found, of_parts = equivariance_table(whole), [equivariance_table(part) for part in parts]
        for law in OF_TOKENS:
            if all(table.holds[law] for table in of_parts):
                assert found.holds[law], (name, law)
            if all(table.stated[law] for table in of_parts):
                assert found.stated[law] and found.holds[law], (name, law)

    for one in model.stack.blocks:
        follow(one, [one.part(part) for part in one.names])
    follow(model.stack, list(model.stack.blocks))


def test_what_parts_break_may_hold_of_the_whole() -> None:
    found = layer(Softmax(window=3))
    assert "tokens" in broken(equivariance_table(found))
    with torch.no_grad():
        # a head that writes nothing tells nobody where it looks
        found.merge.output.weight.zero_()
    assert "tokens" not in broken(equivariance_table(found))


def test_vectors_of_positions_in_the_stream_tell_places_apart() -> None:
    table = equivariance_table(subject("gpt2").model)
    assert {name for name in OF_TOKENS if table.holds[name]} == {"batch", "truncation"}
    assert table.stated["truncation"] and table.stated["translation"] is None
    assert table.holds["heads"] is None and "attention layer" in table.left_out["heads"]


def test_a_model_is_asked_under_the_mask_that_it_has() -> None:
    layers = (block(n_heads=2, positions=Rope(), mlp=Mlp(8)),) * 2
    obeyed: dict[str, set[str]] = {}
    for config in (DecoderConfig(9, 12, layers, max_len=24), EncoderConfig(9, 12, layers, max_len=24)):
        table = equivariance_table(randomise(cast(Any, config).build().double().eval()))
        assert not table.contradicted
        obeyed[str(config.kind)] = {name for name in OF_TOKENS if table.holds[name]}
    # only what looks back can be cut, and only what looks both ways exchanged or repeated
    assert obeyed["decoder"] == {"batch", "translation", "truncation"}
    assert obeyed["encoder"] == {"batch", "translation", "tokens with positions", "repetition"}


def test_a_law_that_holds_holds_of_slopes_too() -> None:
    found, order = layer(Softmax(), Rope()), torch.tensor([2, 0, 3, 1])
    law = EQUIVARIANCE_LAWS["tokens with positions"]
    x = torch.randn(1, 4, D_MODEL, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def slope(point: Point, direction: torch.Tensor) -> torch.Tensor:
        stream, at = point.stream.clone().requires_grad_(), point.positions[None]
        out = found(stream, Context(Mask(), at, at))[0]
        return torch.autograd.grad((out * direction).sum(), stream)[0]

    point, direction = Point(x, torch.arange(4)), torch.sin(torch.arange(4.0 * D_MODEL).double()).view(1, 4, D_MODEL)
    close(slope(law.on_input(order, point), law.on_output(order, direction)), slope(point, direction)[:, order])


def test_a_copy_of_what_is_in_another_type_is_tried_and_the_result_says_what_it_is_of() -> None:
    single = layer(Softmax()).float()
    table = equivariance_table(single)
    assert not broken(table) and next(single.parameters()).dtype == torch.float32
    assert table.provenance is not None and table.provenance.dtype == "float32"
    assert table.to_dict()["holds"]["batch"] is True
    assert table.exact == [*EQUIVARIANCE_LAWS]
    # what is added to a normaliser is no more than that
    nearly = equivariance_table(layer(Linear()))
    assert nearly.holds["values shifted"] and "values shifted" not in nearly.exact


def test_what_is_no_map_of_one_stream_is_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match="found Linear"):
        equivariance_table(nn.Linear(3, 3).eval())
    with pytest.raises(AnalysisUnavailable, match="reads a second one"):
        equivariance_table(layer(Softmax(), cross=True))
    with pytest.raises(ConfigError, match=r"Call \.eval\(\)"):
        equivariance_table(layer(Softmax()).train())
    with pytest.raises(UnknownKind, match='Nearest: "tokens"'):
        equivariance_defect("token", layer(Softmax()))
    with pytest.raises(AnalysisUnavailable, match="one attention layer; found Block"):
        equivariance_defect("heads", cast(Any, subject("llama").model).stack.blocks[0])
    with pytest.raises(AnalysisUnavailable, match='"linformer"'):
        equivariance_defect("truncation", layer(Linformer()))
