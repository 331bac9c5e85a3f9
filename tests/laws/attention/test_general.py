"""Identities of general attention: a matrix of each head between query and key."""

import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import Attention, General, MixerConfig, Softmax
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream


def layer(mixer: MixerConfig, seed: int = 0, **kwargs: object) -> Layer:
    config = Attention(4, 2, d_head=4, mixer=mixer, **kwargs)  # type: ignore[arg-type]
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval(), seed))


def like(other: Layer, mixer: MixerConfig) -> Layer:
    built = Layer(other.config.replace(mixer=mixer).build(D_MODEL, 16, 0, "").double().eval())
    built.module.load_state_dict(other.module.state_dict(), strict=False)
    return built


@given(seeds, st.sampled_from([None, 1.0]))
def test_a_new_layer_is_the_dot_product_scaled_or_not(seed: int, scale: float | None) -> None:
    x, plain = stream(2, 6, seed), layer(Softmax(scale=scale), seed)
    close(like(plain, General(scale=scale))(x), plain(x))


@given(seeds, st.booleans())
def test_it_is_the_librarys_attention_on_mapped_queries(seed: int, is_causal: bool) -> None:
    x, attention = stream(2, 6, seed).requires_grad_(), layer(General(scale=1.0), seed)
    context = make_context(2, 6, x.device, is_causal=is_causal)
    tape = attention.tape("query", "key", "value", "z", grad=True)
    attention(x, context, tape=tape)
    q, k, v = (tape.values[name] for name in ("query", "key", "value"))
    mapped = torch.stack([q[:, h] @ attention.mixer.form[h] for h in range(4)], 1)
    theirs = F.scaled_dot_product_attention(mapped, k, v, is_causal=is_causal, scale=1.0, enable_gqa=True)
    close(tape.values["z"], theirs)
    wanted = [x, attention.mixer.form]
    ours, expected = (
        torch.autograd.grad(z.pow(3).sum(), wanted, retain_graph=True) for z in (tape.values["z"], theirs)
    )
    for one, other in zip(ours, expected):
        close(one, other)


@given(seeds)
def test_a_query_matrix_that_has_taken_it_in_says_the_same(seed: int) -> None:
    x, attention = stream(2, 6, seed), layer(General(), seed)
    plain = like(attention, Softmax())
    with torch.no_grad():
        rows = plain.module.projection.qkv.weight[:16].unflatten(0, (4, 4))
        rows.copy_(attention.mixer.form.mT @ rows)
    close(plain(x), attention(x))


def test_a_symmetric_form_of_equal_queries_and_keys_gives_symmetric_scores() -> None:
    x, attention = stream(1, 5), layer(General())
    with torch.no_grad():
        attention.mixer.form.copy_(attention.mixer.form + attention.mixer.form.mT)
    same = torch.randn(1, 4, 5, 4, dtype=torch.float64)

    def scores() -> Tensor:
        context = make_context(1, 5, x.device, is_causal=False)
        return attention.mixer.scores(same, same, context)

    close(scores(), scores().mT)
    with torch.no_grad():
        attention.mixer.form[:, 0, 1] += 1.0
    assert float((scores() - scores().mT).abs().max()) > 0.1


def test_the_gradient_of_the_form_is_that_of_the_query_matrix_seen_through_it() -> None:
    """Scores see the product W_Q W alone, so where W is the identity dW = W_Q' dW_Q."""
    x, attention = stream(1, 4), layer(General())
    with torch.no_grad():
        attention.mixer.form.copy_(torch.eye(4).expand_as(attention.mixer.form))
    attention(x, causal_context(x)).square().sum().backward()
    weight = attention.module.projection.qkv.weight
    of_query = weight.grad[:16].unflatten(0, (4, 4))  # type: ignore[index]
    rows = weight.detach()[:16].unflatten(0, (4, 4))
    close(attention.mixer.form.grad, rows @ of_query.mT)
