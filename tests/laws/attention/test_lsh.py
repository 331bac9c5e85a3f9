"""Reformer's attention: what rounds come to, what later tokens can change, and what it costs."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from glassformer.attention import Attention, Context, Lsh, Separate, Softmax, Tied
from glassformer.errors import AnalysisUnavailable
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import Layer, causal_context, randomise, stream
from one_pass import in_one_pass

SHARED = Tied(key="query")


def layer(mixer: Lsh | Softmax, width: int = 12, **slots: object) -> Layer:
    config = Attention(2, d_head=4, mixer=mixer, projection=SHARED, **slots)  # type: ignore[arg-type]
    return Layer(randomise(config.build(width, 64, 0, "").double().eval()))


def contexts(x: torch.Tensor) -> list[Context]:
    ids = torch.tensor([[0] * 7 + [1] * 14, [0] * 20 + [1]])
    padded = [{"lengths": torch.tensor([13, 21])}, {"start": torch.tensor([4, 0])}, {"document_ids": ids}]
    return [causal_context(x), both_ways(x), *[causal_context(x, **facts) for facts in padded]]


def both_ways(x: torch.Tensor) -> Context:
    return make_context(x.shape[0], x.shape[1], x.device, is_causal=False)


def gradients(out: torch.Tensor, *of: torch.Tensor) -> torch.Tensor:
    weights = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    return torch.cat([rows.flatten() for rows in torch.autograd.grad((out * weights).sum(), of)])


@pytest.mark.parametrize("config", [Lsh(4, 3, 2), Lsh(2, 2, 3), Lsh(8, 4, 1), Lsh(2, 32, 4)], ids=str)
def test_sorted_chunks_give_what_the_pattern_gives_and_its_gradients(config: Lsh):
    ours = layer(config)
    x = stream(2, 21).requires_grad_()
    for context in contexts(x):
        fast, dense = ours(x, context), ours(x, context, tape=ours.tape("pattern", grad=True))
        close(fast, dense)
        close(gradients(fast, x), gradients(dense, x))


def rows_of(n: int, n_keys: int, alike: bool) -> list[torch.Tensor]:
    """Return queries, keys and values; where queries are alike, all of a head have one hash."""
    q, k, v = (
        stream(2, heads * length, seed, 4).view(2, heads, length, 4)
        for seed, heads, length in ((1, 4, n), (2, 2, n_keys), (3, 2, n_keys))
    )
    q = q[:, :, :1] * torch.linspace(0.5, 2, n, dtype=q.dtype)[:, None] if alike else q
    return [rows.clone().requires_grad_() for rows in (q, k, v)]


@in_one_pass
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize(
    "config", [Lsh(4, 3, 2), Lsh(2, 2, 3), Lsh(8, 4, 1), Lsh(2, 32, 4), Lsh((2, 4), 5, 3, "library")], ids=str
)
def test_keys_of_their_own_give_what_the_pattern_gives_and_its_gradients(config: Lsh, alike: bool):
    ours = Layer(Attention(4, 2, d_head=4, mixer=config).build(12, 64, 0, "").double().eval())
    x = stream(2, 21)
    for context in contexts(x)[: 2 if config.form == "library" else None]:
        leaves = rows_of(21, 21, alike)
        fast = ours.mixer(*leaves, x, context, None, None)[0]
        dense = ours.mixer(*leaves, x, context, None, ours.tape("pattern", grad=True))[0]
        close(fast, dense)
        close(gradients(fast, *leaves), gradients(dense, *leaves))


def test_keys_that_happen_to_equal_their_queries_keep_their_gradients():
    ours = Layer(Attention(2, d_head=4, mixer=Lsh(4, 3, 2)).build(12, 64, 0, "").double().eval())
    x, context = stream(2, 21), causal_context(stream(2, 21))
    q, _, v = rows_of(21, 21, False)
    q = q[:, :2].detach().requires_grad_()
    k = q.detach().clone().requires_grad_()
    fast = ours.mixer(q, k, v, x, context, None, None)[0]
    close(gradients(fast, k), gradients(ours.mixer(q, k, v, x, context, None, ours.tape("pattern", grad=True))[0], k))


@in_one_pass
@pytest.mark.parametrize("facts", [{}, {"start": torch.tensor([4, 0])}], ids=["whole", "padded"])
@pytest.mark.parametrize("shared", [False, True])
def test_steps_give_what_the_pattern_gives_of_queries_that_are_fewer_than_keys(shared: bool, facts: dict[str, Any]):
    x = stream(2, 30)
    projection = SHARED if shared else Separate()
    ours = Layer(
        randomise(
            Attention(2, d_head=4, mixer=Lsh(4, 3, 2), projection=projection).build(12, 64, 0, "").double().eval()
        )
    )
    state, whole = ours.module.begin(2, x), ours(x, causal_context(x, **facts))
    for begin, stop in pairwise((0, 12, 13, 14, 23, 30)):
        context = make_context(2, stop - begin, x.device, is_causal=True, past=begin, **facts)
        dense, _ = ours.module(x[:, begin:stop], context, state=state, tape=ours.tape("pattern"))
        fast, state = ours.module(x[:, begin:stop], context, state=state)
        close(fast, dense)
        close(fast, whole[:, begin:stop])


@in_one_pass
@pytest.mark.parametrize("n", [20, 17])
@pytest.mark.parametrize("causal", [True, False])
def test_the_library_gives_what_its_pattern_gives_and_its_gradients(causal: bool, n: int):
    ours = layer(Lsh((2, 4), 5, 3, "library"))
    x = stream(2, n).requires_grad_()
    context = causal_context(x) if causal else both_ways(x)
    fast, dense = ours(x, context), ours(x, context, tape=ours.tape("pattern", grad=True))
    close(fast, dense)
    close(gradients(fast, x), gradients(dense, x))


def test_rounds_in_which_every_pair_meets_are_full_attention_to_others():
    ours = layer(Lsh(2, 16, 64))
    x = stream(2, 12)
    values = ours.read(x, "query", "pattern")
    q = values["query"]
    scores = q @ (q / q.norm(dim=-1, keepdim=True)).mT
    others = torch.ones(12, 12, dtype=torch.bool).tril(-1)
    others[0, 0] = True
    close(values["pattern"], scores.masked_fill(~others, float("-inf")).softmax(-1))


def test_what_meets_in_several_rounds_counts_once_in_the_paper_and_as_often_in_the_library():
    x = stream(2, 20)
    q = layer(Lsh(2, 5, 6)).read(x, "query")["query"]
    once = layer(Lsh(2, 5, 6)).mixer._counts(q, q, causal_context(x))
    often = layer(Lsh(2, 5, 6, "library")).mixer._counts_of_library(q, causal_context(x))
    assert set(once.unique().tolist()) == {0.0, 1.0}
    assert often.max() > 1


def test_no_later_token_changes_what_an_earlier_one_sees_and_in_the_published_form_one_does():
    def changed(config: Lsh) -> torch.Tensor:
        ours, x = layer(config), stream(2, 20)
        other = x.clone()
        other[:, 10:] = stream(2, 10, 7)
        return (ours(x) - ours(other))[:, :10].abs().amax((0, 2))

    # but for the order of sums
    assert (changed(Lsh(4, 2, 2)) < 1e-12).all()
    assert (changed(Lsh(4, 2, 2, "library")) > 1e-3).any()


def test_more_rounds_meet_more_of_the_largest_weights():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 64, 4, dtype=torch.float64, generator=generator)
    scores = (q @ (q / q.norm(dim=-1, keepdim=True)).mT).masked_fill(~torch.ones(64, 64).tril(-1).bool(), -torch.inf)
    best = scores.argmax(-1)[..., 1:, None]
    shares = []
    for n_rounds in (1, 2, 4, 8):
        met = layer(Lsh(8, 8, n_rounds)).mixer._counts(q, q, causal_context(stream(1, 64)))
        shares.append(float(met[..., 1:, :].gather(-1, best).mean()))
    assert shares == sorted(shares) and shares[-1] > shares[0] + 0.2


def test_the_library_refuses_what_it_cannot_read_in_words():
    ours = layer(Lsh(2, 4, form="library"))
    x = stream(2, 8)
    with pytest.raises(AnalysisUnavailable, match="padded, packed or continued"):
        ours(x, causal_context(x, lengths=torch.tensor([3, 8])))
    _, state = ours.module(x[:, :4], causal_context(x[:, :4]), state=ours.module.begin(2, x))
    with pytest.raises(AnalysisUnavailable, match="continued"):
        ours.module(x[:, 4:5], make_context(2, 1, x.device, is_causal=True, past=4), state=state)


@in_one_pass
@pytest.mark.parametrize("keys", ["shared", "separate"])
def test_nothing_is_made_for_each_pair_of_positions_of_a_long_text(keys: str):
    n = 8_192
    projection = SHARED if keys == "shared" else Separate()
    ours = Layer(Attention(1, d_head=4, mixer=Lsh(256, 64, 2), projection=projection).build(4, n + 1, 0, ""))
    x = torch.randn(1, n + 1, 4, requires_grad=True)
    with Largest() as seen:
        ours(x[:, :n]).sum().backward()
        _, state = ours.module(x[:, :n], causal_context(x[:, :n]), state=ours.module.begin(1, x))
        ours.module(x[:, n:], make_context(1, 1, x.device, is_causal=True, past=n), state=state)
    assert seen.numbers < n * n / 8
