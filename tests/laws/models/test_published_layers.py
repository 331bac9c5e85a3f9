"""A mechanism's paper builds a whole layer around it; a config knows where it departs from that."""

import math

import pytest

import glassformer as gf
from glassformer.attention import (
    Attention,
    Differential,
    Lightning,
    Linear,
    Merge,
    MixerConfig,
    Softmax,
    lambda_init_at,
)
from glassformer.models import DecoderConfig, EncoderDecoderConfig, block, hybrid, published_block
from glassformer.testing.models import ARCHITECTURES
from one_pass import in_one_pass


@in_one_pass
@pytest.mark.parametrize("mixer", [Softmax(), Linear(), Lightning(), Differential()], ids=lambda mixer: mixer.kind)
def test_a_published_block_departs_from_its_paper_nowhere(mixer: MixerConfig) -> None:
    layers = tuple(published_block(mixer, i, n_heads=2) for i in range(5))
    assert DecoderConfig(10, 16, layers).departures() == {}


def test_lightning_layers_of_a_hybrid_are_those_of_their_paper() -> None:
    assert DecoderConfig(10, 16, hybrid(3, n_heads=2, period=3)).departures() == {}


def test_where_a_layer_departs_is_said_with_its_stack() -> None:
    bare, across = block(Differential(), n_heads=2), block(n_heads=2, cross=True)
    assert list(EncoderDecoderConfig(10, 16, (bare,), (across,)).departures()) == ["encoder.blocks.0.attn"]


def test_a_bare_differential_layer_says_what_it_leaves_out() -> None:
    config = DecoderConfig(10, 16, (block(n_heads=2), block(Differential(), n_heads=2)))
    ((path, words),) = config.departures().items()
    assert path == "blocks.1.attn"
    assert words == [
        "mixer.lambda_init=0.8, as published 0.3555",
        "merge.norm=None, as published 'head'",
        "merge.factor=1, as published 0.6445",
    ]
    assert math.isclose(lambda_init_at(1), 0.3555, abs_tol=5e-5)


def test_an_explanation_of_bare_layers_says_so_once() -> None:
    bare, published = block(Differential(), n_heads=2), published_block(Differential(), 0, n_heads=2)
    for layers, expected in (((bare, bare), 1), ((published,), 0)):
        found = gf.explain(DecoderConfig(10, 16, layers).build(), [1, 2, 3])
        said = [note.seen for note in found.notes if "is not the layer of its mechanism's paper" in note.seen]
        assert len(said) == expected and all("blocks.0.attn (and 1 more layers)" in words for words in said)


def test_a_bare_lightning_layer_says_that_norm_and_gate_are_missing() -> None:
    attention = block(Lightning(chunk=8), n_heads=2).parts[0]
    assert isinstance(attention, Attention)
    assert attention.departures(0) == ["merge.norm=None, as published 'all'", "merge.gate=None, as published 'sigmoid'"]
    assert attention.replace(merge=Merge(norm="all", gate="sigmoid")).departures(0) == []


def test_what_is_said_by_hand_goes_before_what_the_paper_says() -> None:
    layer = published_block(Differential(), 2, n_heads=2, merge=Merge(norm="all")).parts[0]
    assert isinstance(layer, Attention)
    assert layer.merge == Merge(norm="all") and layer.mixer == Differential(lambda_init_at(2))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_blocks_of_a_config_are_those_of_its_model(name: str) -> None:
    model = ARCHITECTURES[name].build()
    found = {stack: tuple(block.config for block in blocks.blocks) for stack, blocks in model.stacks.items()}
    assert found == model.config.blocks
