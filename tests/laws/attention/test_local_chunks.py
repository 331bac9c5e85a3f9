"""Local attention by chunks: what a query sees, and what it costs."""

import pytest
import torch

from glassformer.attention import Attention, LocalChunks, Softmax
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import Layer, causal_context, randomise, stream
from one_pass import in_one_pass


def layer(mixer: LocalChunks | Softmax) -> Layer:
    return Layer(randomise(Attention(4, 2, 3, mixer=mixer).build(12, 64, 0, "").double().eval()))


@in_one_pass
@pytest.mark.parametrize("config", [LocalChunks(chunk=4), LocalChunks(chunk=3, before=2, after=1)], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_a_query_sees_its_own_chunk_and_those_beside_it_and_both_routes_agree(config: LocalChunks, causal: bool):
    ours = layer(config)
    x = stream(2, 17).requires_grad_()
    context = make_context(2, 17, x.device, is_causal=causal)
    chunk = torch.arange(17) // config.chunk
    apart = chunk[:, None] - chunk
    seen = (apart <= config.before) & (apart >= -config.after)
    seen = seen.tril() if causal else seen
    values = ours.read(x.detach(), "scores", context=context)["scores"]
    assert torch.equal(values.isfinite(), seen.expand_as(values))
    fast, dense = ours(x, context), ours(x, context, tape=ours.tape("pattern", grad=True))
    close(fast, dense)
    one, other = (torch.autograd.grad((out * stream(2, 17, 3)).sum(), x)[0] for out in (fast, dense))
    close(one, other)


def test_one_chunk_of_the_whole_text_is_softmax_attention():
    ours, plain = layer(LocalChunks(chunk=20)), layer(Softmax())
    plain.module.load_state_dict(ours.module.state_dict())
    x = stream(2, 17)
    close(ours(x), plain(x))


def test_padding_and_documents_count_chunks_from_where_a_text_begins():
    ours = layer(LocalChunks(chunk=4))
    x = stream(1, 14)
    ids = torch.tensor([[0] * 5 + [1] * 9])
    close(ours(x, causal_context(x, document_ids=ids))[:, 5:], ours(x[:, 5:]))
    close(ours(x, causal_context(x, start=torch.tensor([3])))[:, 3:], ours(x[:, 3:]))


def test_nothing_is_made_for_each_pair_of_positions_of_a_long_text():
    n = 16_384
    x = torch.randn(1, n, 12, dtype=torch.float64, requires_grad=True)
    with Largest() as seen:
        layer(LocalChunks())(x).sum().backward()
    assert seen.numbers < n * n / 8
