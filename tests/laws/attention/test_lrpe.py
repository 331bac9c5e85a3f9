"""Learned rotation of features: what it makes of weights, and that a text knows nothing of what came before it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention import (
    Attention,
    Lightning,
    Linear,
    Lrpe,
    LrpePositions,
    MixerConfig,
    NoPositions,
    Performer,
    PositionsConfig,
    Softmax,
)
from glassformer.errors import ConfigError
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, stream
from one_pass import in_one_pass

TURNED: list[MixerConfig] = [
    Lightning(chunk=3),
    Lightning(activation="none"),
    Linear(denominator=False),
    Linear(denominator=False, feature_map="signed_elu"),
]
every = pytest.mark.parametrize("mixer", TURNED, ids=lambda mixer: mixer.described)


def layer(mixer: MixerConfig, positions: PositionsConfig = Lrpe()) -> Layer:  # noqa: B008  # frozen
    config = Attention(4, n_kv_heads=2, d_head=3, d_value=2, mixer=mixer, positions=positions)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval()))


def features(attention: Layer, u: Tensor) -> Tensor:
    """Return what the equation turns, of queries or keys by query head."""
    u = u.repeat_interleave(4 // u.shape[1], 1)
    mixer = attention.config.mixer
    if isinstance(mixer, Lightning):
        return F.silu(u) if mixer.activation == "silu" else u
    assert isinstance(mixer, Linear)
    return F.elu(u) + (0 if mixer.feature_map == "signed_elu" else 1)


def frequencies(attention: Layer) -> Tensor:
    """Return the learned angles per position."""
    positions = attention.module.positions
    assert isinstance(positions, LrpePositions)
    return positions.frequencies


@in_one_pass
@every
def test_each_product_of_features_is_weighed_by_the_cosine_of_its_angle(mixer: MixerConfig) -> None:
    attention, n = layer(mixer), 7
    read = attention.read(stream(2, n), "query", "key", "pattern")
    q, k = (features(attention, read[name]) for name in ("query", "key"))
    offset = torch.arange(n)[:, None] - torch.arange(n)
    angle = frequencies(attention)[:, None, None] * offset[..., None]
    weight = (q[..., :, None, :] * k[..., None, :, :] * angle.cos()).sum(-1).tril()
    decay = attention.mixer.decay(weight)[:, None, None] ** offset.clamp_min(0)
    close(read["pattern"], weight * decay)


@in_one_pass
@every
def test_chunks_steps_and_the_pattern_are_one_and_their_gradients_too(mixer: MixerConfig) -> None:
    attention, x = layer(mixer), stream(2, 11)
    wanted = list(attention.module.parameters())

    def stepped() -> Tensor:
        state, pieces = attention.module.begin(2, x), []
        for start, stop in ((0, 4), (4, 5), (5, 11)):
            context = make_context(2, stop - start, x.device, is_causal=True, past=start)
            piece, state = attention.module(x[:, start:stop], context, state=state)
            pieces.append(piece)
        return torch.cat(pieces, 1)

    outs = [attention(x, tape=attention.tape("pattern")), attention(x), stepped()]
    grads = [torch.autograd.grad((out * stream(2, 11, 5)).sum(), wanted) for out in outs]
    for out, found in zip(outs[1:], grads[1:]):
        close(out, outs[0])
        for one, other in zip(found, grads[0]):
            close(one, other)
    learned = next(g for g, p in zip(grads[0], wanted) if p is frequencies(attention))
    assert learned.abs().min() > 0


@in_one_pass
@every
def test_texts_of_a_row_and_texts_behind_padding_begin_at_their_own_position(mixer: MixerConfig) -> None:
    attention, x = layer(mixer), stream(1, 12)
    ids = torch.tensor([[4, 4, 4, 4, 4, 9, 9, 1, 1, 1, 1, 1]])
    for names in ((), ("pattern",)):
        tape = attention.tape(*names) if names else None
        packed = attention(x, attention.context(x, document_ids=ids), tape=tape)
        close(packed, torch.cat([attention(x[:, part]) for part in (slice(5), slice(5, 7), slice(7, 12))], 1))
    padded = attention(x, attention.context(x, start=torch.tensor([5])))
    close(padded[:, 5:], attention(x[:, 5:]))


@in_one_pass
@every
def test_weights_go_by_distance_alone_and_nothing_turns_where_frequencies_are_zero(mixer: MixerConfig) -> None:
    attention, x = layer(mixer), stream(1, 6)
    moved = causal_context(x)
    later = make_context(1, 6, x.device, is_causal=True, past=1000)
    close(attention.module(x, later, state=attention.module.begin(1, x))[0], attention(x, moved))
    with torch.no_grad():
        frequencies(attention).zero_()
    plain = layer(mixer, NoPositions())
    plain.module.load_state_dict(attention.module.state_dict(), strict=False)
    close(attention(x), plain(x))


def test_frequencies_begin_as_those_of_one_spectrum_for_all_heads() -> None:
    module = Attention(4, d_head=3, mixer=Lightning(), positions=Lrpe()).build(D_MODEL, 64, 0, "")
    found = frequencies(Layer(module))
    assert found.requires_grad and tuple(found.shape) == (4, 3)
    expected = torch.tensor([10000 ** (-2 * i / 12) for i in range(12)]).view(4, 3)
    close(found.detach(), expected, 1e-6)


def test_the_state_is_twice_as_large_and_no_larger_for_a_longer_text() -> None:
    plain, turned = layer(Lightning(), NoPositions()), layer(Lightning())
    x = stream(1, 9).float()
    for attention, numbers in ((plain, 4 * 3 * 2), (turned, 4 * 6 * 2)):
        state = attention.module.float()(x, causal_context(x), state=attention.module.begin(1, x))[1]
        assert state.mixer.memory.numel() == numbers
        assert attention.module.state_bytes(9, 0, torch.float32) == 4 * numbers
        assert attention.module.state_bytes(900, 0, torch.bfloat16) == 4 * numbers
    assert turned.config.mixer.flops(64, 64, turned.module.dims) > plain.config.mixer.flops(64, 64, plain.module.dims)


@pytest.mark.parametrize("mixer", [Softmax(), Linear(), Performer()], ids=lambda mixer: mixer.kind)
def test_mechanisms_whose_weights_are_no_products_of_either_sign_refuse(mixer: MixerConfig) -> None:
    with pytest.raises(ConfigError, match=f'positions "lrpe" turn .* "{mixer.kind}" as set here has others'):
        Attention(2, mixer=mixer, positions=Lrpe())


def test_another_sequence_has_no_distance() -> None:
    with pytest.raises(ConfigError, match='positions "lrpe" go by distance'):
        Attention(2, mixer=Linear(denominator=False), positions=Lrpe(), cross=True)
