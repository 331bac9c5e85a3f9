"""Mixing by matrices of places: linear, and by an MLP over places."""

import pytest
import torch

from glassformer.attention import Attention, TokenMixing, TokenMlp
from glassformer.errors import NoPattern, TextError
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import Layer, causal_context, randomise, stream


def layer(mixer: TokenMixing | TokenMlp, max_len: int = 16) -> Layer:
    return Layer(randomise(Attention(2, mixer=mixer).build(12, max_len, 0, "").double().eval()))


def test_the_linear_map_is_its_matrix_as_far_as_the_mask_lets_see():
    ours, x = layer(TokenMixing()), stream(2, 7)
    weight = ours.mixer.weight[None, :, :7, :7]
    close(ours.read(x, "pattern")["pattern"], weight.tril().expand(2, -1, -1, -1))
    both = make_context(2, 7, x.device, is_causal=False)
    close(ours.read(x, "pattern", context=both)["pattern"], weight.expand(2, -1, -1, -1))


@pytest.mark.parametrize("causal", [True, False])
def test_the_mlp_is_a_sum_over_hidden_units_of_places(causal: bool):
    ours, x = layer(TokenMlp(hidden=3)), stream(1, 5)
    context = make_context(1, 5, x.device, is_causal=causal)
    found, mixer = ours.read(x, "value", "z", context=context), ours.mixer
    expected = torch.zeros_like(found["z"])
    for t in range(5):
        for s in range(t + 1 if causal else 5):
            for r in range(3):
                seen = s + 1 if causal else 5
                read = torch.einsum("hu,bhue->bhe", mixer.inwards[r, :, s, :seen], found["value"][:, :, :seen])
                hidden = torch.nn.functional.gelu(read + mixer.bias[r, :, s, None])
                expected[:, :, t] += mixer.outwards[r, :, t, s, None] * hidden
    close(found["z"], expected)


def test_an_mlp_has_no_pattern_and_says_so():
    ours, x = layer(TokenMlp()), stream(1, 4)
    assert "pattern" not in ours.sites()
    q, k = (ours.read(x, name)[name] for name in ("query", "key"))
    with pytest.raises(NoPattern):
        ours.mixer.probe(q, k, x, causal_context(x))


def test_texts_longer_than_the_matrices_are_refused():
    for mixer in (TokenMixing(), TokenMlp()):
        with pytest.raises(TextError, match="max_len=4"):
            layer(mixer, 4)(stream(1, 5))
