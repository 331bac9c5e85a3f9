"""BigBird: what it equals in its limits, that nothing is met twice, and what it costs."""

import pytest
import torch

from glassformer.attention import Attention, BigBird, Softmax
from glassformer.attention.kernels.random_blocks import NOTHING, authors, drawn
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import Layer, randomise, stream
from one_pass import in_one_pass


def layer(mixer: BigBird | Softmax, n: int = 24, index: int = 0) -> Layer:
    return Layer(randomise(Attention(4, 2, 3, mixer=mixer).build(12, n, index, "").double().eval()))


def counts(config: BigBird, n: int, index: int = 0) -> torch.Tensor:
    return layer(config, n, index).mixer._counts(n)


def gradients(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    weights = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    return torch.autograd.grad((out * weights).sum(), x)[0]


@in_one_pass
@pytest.mark.parametrize(
    "config",
    [
        BigBird(4, n_random=1),
        BigBird(3, n_random=2),
        BigBird(5, n_random=0),
        BigBird(4, n_random=2, form="etc", n_global=3),
        BigBird(4, n_random=2, form="etc"),
        BigBird(4, n_random=2, random="first"),
        BigBird(4, n_random=1, random="authors"),
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 4, 9, 24, 47])
def test_blocks_give_what_the_pattern_gives_and_its_gradients(config: BigBird, n: int):
    ours = layer(config, 64)
    x = stream(2, n).requires_grad_()
    fast, dense = ours(x), ours(x, tape=ours.tape("pattern", grad=True))
    close(fast, dense)
    close(gradients(fast, x), gradients(dense, x))


def test_with_enough_random_blocks_it_is_full_attention():
    for config in (BigBird(4, n_random=3), BigBird(4, n_random=5, form="etc", n_global=2)):
        ours, plain = layer(config), layer(Softmax())
        plain.module.load_state_dict(ours.module.state_dict())
        x = stream(2, 24)
        close(ours(x), plain(x, ours.context(x)))


def test_without_global_and_random_blocks_it_is_a_window_of_blocks():
    block = torch.arange(23) // 4
    near = (block[:, None] - block).abs() < 2
    assert torch.equal(counts(BigBird(4, n_random=0, form="etc"), 23) > 0, near.expand(4, -1, -1))


@pytest.mark.parametrize("config", [BigBird(2, n_random=3), BigBird(3, n_random=2, form="etc", n_global=3)], ids=str)
def test_every_key_is_met_once_by_as_many_random_blocks_as_are_drawn(config: BigBird):
    # a last block that is short would be fewer keys
    found = counts(config, 40 if config.form == "itc" else 39)
    assert set(found.unique().tolist()) <= {0.0, 1.0}
    met = {"itc": 5 * config.block, "etc": 3 * config.block + config.n_global}[config.form]
    assert (found[:, 3 * config.block : -3 * config.block].sum(-1) == met + config.n_random * config.block).all()


def test_the_draw_is_of_seed_layer_and_head_and_covers_the_whole_text():
    one = counts(BigBird(1, n_random=2), 40)
    assert torch.equal(one, counts(BigBird(1, n_random=2), 40))
    assert not torch.equal(one, counts(BigBird(1, n_random=2), 40, index=1))
    assert not torch.equal(one, counts(BigBird(1, n_random=2, seed=1), 40))
    assert not torch.equal(one[0], one[1])
    table = drawn(64, 8, 3, 0, ends=True)
    # of 8 heads x 62 blocks x 3 draws a sixteenth falls into every four blocks, or nearly
    share = table[table != NOTHING].div(4, rounding_mode="floor").bincount(minlength=16)[1:-1] / (8 * 62 * 3)
    assert ((share - 1 / 15).abs() < 0.03).all()


def test_any_two_positions_are_two_steps_apart_by_way_of_a_global_block():
    met = (counts(BigBird(2, n_random=0), 40)[0] > 0).long()
    assert (met @ met > 0).all()


def test_the_first_block_counts_again_for_every_random_one_where_it_stands_for_them():
    found = counts(BigBird(2, n_random=3, random="first"), 20)
    assert (found[:, 2:-2, :2] == 4).all()
    assert (found[:, :2] == 1).all() and (found[:, -2:] == 1).all()


def test_the_authors_draw_from_the_beginning_of_a_text():
    table = authors(40, 2, 3, seed=0, block=1, longest=64)
    assert table[:, 1:-1].max() < 2 * 3 + 5
    assert (table[:, [0, -1]] == NOTHING).all()


def test_padding_and_documents_change_nothing_of_a_text():
    ours = layer(BigBird(2, n_random=1))
    x = stream(2, 20)
    alone = ours(x[:1, :11])
    close(ours(x, ours.context(x, lengths=torch.tensor([11, 20])))[:1, :11], alone)
    ids = torch.tensor([[0] * 11 + [1] * 9])
    close(ours(x[:1], ours.context(x[:1], document_ids=ids))[:, 11:], ours(x[:1, 11:]))


def test_short_texts_may_be_read_by_full_attention():
    ours, plain = layer(BigBird(1, n_random=0, full_up_to=9)), layer(Softmax())
    plain.module.load_state_dict(ours.module.state_dict())
    x = stream(2, 10)
    close(ours(x[:, :9]), plain(x[:, :9], ours.context(x[:, :9])))
    assert not torch.allclose(ours(x), plain(x, ours.context(x)))


@pytest.mark.full
@pytest.mark.parametrize("config", [BigBird(), BigBird(84, n_random=0, form="etc", n_global=64)], ids=str)
def test_nothing_is_made_for_each_pair_of_positions_of_a_long_text(config: BigBird):
    n = 16_384
    ours = layer(config, n)
    x = torch.randn(1, n, 12, dtype=torch.float64).requires_grad_()
    with Largest() as seen:
        ours(x).sum().backward()
    assert seen.numbers < n * n / 8
