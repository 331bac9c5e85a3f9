"""Positions that act when keys are read: rotation at read, and dual chunks, which score in three ways."""

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer import analysis, weights
from glassformer.attention import (
    Attention,
    Differential,
    DualChunk,
    DynamicScaling,
    Linear,
    LongScaling,
    MixerConfig,
    Persistent,
    PositionsConfig,
    Rope,
    Softmax,
    YarnScaling,
)
from glassformer.attention.projections import Projected, ProjectionInputs
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import BlockConfig, Decoder, DecoderConfig, Mlp, generate
from glassformer.models.sampling import GREEDY
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, layers, randomise, seeds, stream

SCORED = [kind for kind, cls in MixerConfig.registry.items() if cls.traits.has_scores]  # type: ignore[attr-defined]
# dual chunks are of causal texts, turn queries and keys behind whatever hashes them, and queries for each key
CHUNKED = [
    kind
    for kind, cls in ((kind, MixerConfig.registry[kind]) for kind in SCORED)
    if not (cls.bidirectional or cls.traits.hashes or cls.has_own_keys)  # type: ignore[attr-defined]
]
# those whose scores are products of a query and a key that only rotation tells apart by place
BY_OFFSET = [
    kind
    for kind in CHUNKED
    if MixerConfig.registry[kind].traits.bilinear_scores and MixerConfig.registry[kind].mixer.by_offset  # type: ignore[attr-defined]
]
STORED = [kind for kind, cls in MixerConfig.registry.items() if cls.stores_keys and not cls.bidirectional]  # type: ignore[attr-defined]


def like(layer: Layer, positions: PositionsConfig) -> Layer:
    """The same layer, with other positions."""
    other = layer.config.replace(positions=positions).build(D_MODEL, 32, 0, "").double().eval()
    other.load_state_dict(layer.module.state_dict())
    return Layer(other)


def before_rotation(layer: Layer, x: Tensor) -> Projected:
    projection = layer.module.projection
    inputs = ProjectionInputs(x, x, x, layer.module.positions, causal_context(x))
    read = [projection.shifted(reader, x, inputs.context) for reader in ("query", "key", "value")]
    return projection.before_rotation(projection.heads(*read), inputs)[0]


def step_by_step(layer: Layer, x: Tensor) -> tuple[Tensor, list]:
    state, outs, states = layer.module.begin(len(x), x), [], []
    for t in range(x.shape[1]):
        context = make_context(len(x), 1, x.device, is_causal=True, past=t)
        out, state = layer.module(x[:, t : t + 1], context, state=state)
        outs.append(out)
        states.append(state)
    return torch.cat(outs, 1), states


# rotation at read -----------------------------------------------------------------------------------------------------

ROPES = [
    Rope(),
    Rope(pairing="interleaved", fraction=0.5),
    Rope(scaling=YarnScaling(4.0, original_length=16, fast=2.0)),
]


@pytest.mark.parametrize("kind", STORED)
@given(st.data(), st.sampled_from(ROPES))
def test_rotating_keys_when_they_are_read_changes_nothing_but_what_is_stored(kind: str, data, rope: Rope) -> None:
    written = data.draw(layers(kind, placed=st.just(rope)))
    read, x = like(written, rope.replace(at_read=True)), stream(2, 6)
    close(read(x), written(x))
    close(read(x, tape=read.tape("pattern")), written(x))
    expected, _ = step_by_step(written, x)
    found, states = step_by_step(read, x)
    close(found, expected)
    unturned = before_rotation(like(written, rope.replace(fraction=1.0, scaling=None)), x)[1]
    held = states[-1].mixer.key
    # a state may have the keys of one stream alone, where no later query asks for the other
    unturned = unturned if held.ndim == unturned.ndim else unturned[:, 0]
    close(held, unturned[..., 6 - held.shape[-2] :, :])


@given(seeds)
def test_keys_of_a_window_are_turned_by_their_own_positions(seed: int) -> None:
    config = Attention(2, mixer=Softmax(window=3), positions=Rope())
    written = Layer(randomise(config.build(D_MODEL, 32, 0, "").double(), seed))
    read, x = like(written, Rope(at_read=True)), stream(2, 7, seed)
    close(step_by_step(read, x)[0], written(x))


def test_gradients_weights_and_score_paths_are_those_of_rotation_at_write() -> None:
    def model(rope: Rope) -> Decoder:
        layer = BlockConfig((Attention(2, positions=rope), Mlp(8)))
        return randomise(DecoderConfig(11, 16, (layer,) * 2, max_len=24).build().double().eval(), std=0.3)

    written, read = model(Rope()), model(Rope(at_read=True))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    for one, other in zip(*(torch.autograd.grad(m(ids).sum(), list(m.parameters())) for m in (read, written))):
        close(one, other)
    close(weights.logits(weights.of(read), ids), written(ids))
    close(weights.of(read)["L1H0"].qk(2).dense(), weights.of(written)["L1H0"].qk(2).dense())
    runs = [gf.run(m, ids, read="*") for m in (read, written)]
    one, other = (analysis.paths.score_paths(run, head="L1H1").terms.values for run in runs)
    close(one, other)
    texts = [[3, 1, 4], [2]]
    assert generate(read, texts, GREEDY, max_new_tokens=5) == generate(written, texts, GREEDY, max_new_tokens=5)


def test_what_is_turned_at_read_is_turned_by_how_long_the_text_is_then() -> None:
    rope = Rope(scaling=DynamicScaling(2.0, original_length=4), at_read=True)
    layer = Layer(randomise(Attention(2, positions=rope).build(D_MODEL, 32, 0, "").double()))
    x = stream(1, 7)
    # a longer text turns earlier keys otherwise, and nothing has to be reread
    close(step_by_step(layer, x)[0][:, -1], layer(x)[:, -1])
    for at_read in (False, True):
        long = Rope(scaling=LongScaling((2.0,) * 3, (1.0,) * 3, original_length=4), at_read=at_read)
        assert Attention(2, positions=long).build(D_MODEL, 32, 0, "").outgrows(4, 7) != at_read


def test_a_query_turned_for_each_key_is_refused_where_keys_stand_at_no_position() -> None:
    with pytest.raises(ConfigError, match=r'keys of "persistent" stand at no position; use "rope"'):
        Attention(2, mixer=Persistent(), positions=DualChunk(4, 8))


def test_a_mechanism_that_stores_no_keys_refuses_to_turn_them_later() -> None:
    with pytest.raises(ConfigError, match=r'"linear" stores none; use at_read=False'):
        Attention(2, mixer=Linear(), positions=Rope(at_read=True)).build(8, 8, 0, "")


# dual chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CHUNKED)
@given(st.data(), st.sampled_from(ROPES))
def test_a_chunk_longer_than_the_text_gives_plain_rotation(kind: str, data, rope: Rope) -> None:
    plain = data.draw(layers(kind, placed=st.just(rope)))
    chunked, x = like(plain, DualChunk(10, 16, rope)), stream(2, 6)
    close(chunked(x), plain(x))
    for name in ("scores", "pattern"):
        one, other = chunked.read(x, name)[name], plain.read(x, name)[name]
        seen = other.isfinite()
        assert torch.equal(one.isfinite(), seen)
        close(one[seen], other[seen])


@pytest.mark.parametrize("kind", BY_OFFSET)
@given(st.data(), st.integers(2, 4), st.integers(1, 4))
def test_scores_are_those_of_each_pair_turned_by_its_own_distance(kind: str, data, chunk: int, more: int) -> None:
    """The definition again, pair by pair, with one rotation by the distance that the paper's table says."""
    length = chunk + more
    layer = data.draw(layers(kind, placed=st.just(DualChunk(chunk, length))))
    assume(getattr(layer.config.mixer, "cap", None) is None)
    x, n = stream(1, 11), 11
    found = layer.read(x, "scores")["scores"]
    rope = Rope().build(layer.module.dims)
    heads = before_rotation(like(layer, Rope()), x)
    q = layer.mixer.queries(heads[0], causal_context(x)) * layer.mixer.scale
    k = layer.mixer.keys(heads[1])
    for i in range(n):
        for j in range(i + 1):
            if not found[..., i, j].isfinite().all():
                continue
            d, place = i // chunk - j // chunk, i % chunk
            where = place if d == 0 else min(place + chunk, length - 1) if d == 1 else length - 1
            distance = where - j % chunk
            assert 0 <= distance < length
            if i - j <= min(chunk, length - chunk):
                assert distance == i - j
            close(found[..., i, j], (rope.turned(q[..., i, :], distance) * k[..., j, :]).sum(-1))


@pytest.mark.parametrize(
    "mixer", [Softmax(), Softmax(window=4), Differential()], ids=["softmax", "window", "differential"]
)
@given(seeds, st.sets(st.integers(1, 9)))
def test_segments_equal_one_pass_and_keys_are_turned_once(mixer: MixerConfig, seed: int, cuts: set[int]) -> None:
    config = Attention(2, mixer=mixer, positions=DualChunk(3, 5))
    layer = Layer(randomise(config.build(D_MODEL, 32, 0, "").double(), seed))
    x = stream(2, 10, seed)
    state, pieces = layer.module.begin(2, x), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 10]):
        context = make_context(2, stop - start, x.device, is_causal=True, past=start)
        out, state = layer.module(x[:, start:stop], context, state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), layer(x))
    held = state.mixer.key
    close(held, layer.read(x, "key")["key"][..., 10 - held.shape[-2] :, :])


def test_what_an_offset_does_not_determine_is_refused() -> None:
    layer = BlockConfig((Attention(2, positions=DualChunk(3, 5)),))
    model = randomise(DecoderConfig(11, 16, (layer,), max_len=24).build().double().eval())
    with pytest.raises(AnalysisUnavailable, match="an offset alone does not say how"):
        weights.of(model)["L0H0"].qk(2)
    with pytest.raises(AnalysisUnavailable, match="no product of one query and one key"):
        analysis.paths.score_paths(gf.run(model, torch.tensor([[1, 2, 3]]), read="*"), head="L0H0")
    assert not model.stack.blocks[0].attn.traits.bilinear_scores  # type: ignore[union-attr]


def test_chunks_that_make_no_sense_are_refused() -> None:
    for fields in ({"chunk": 5, "length": 5}, {"chunk": 0}, {"rope": Rope(at_read=True)}):
        with pytest.raises(ConfigError, match="dual_chunk"):
            DualChunk(**fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cross-attention does not have"):
        Attention(2, positions=DualChunk(), cross=True)
    with pytest.raises(ConfigError, match='"linear" has none'):
        Attention(2, mixer=Linear(), positions=DualChunk()).build(8, 8, 0, "")
