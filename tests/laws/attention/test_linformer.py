"""Linformer: what it equals where its rows are those of the text, its rank, and what it costs."""

from typing import Any

import pytest
import torch

from glassformer.attention import Attention, Linformer, Softmax
from glassformer.models import EncoderConfig, block, repeat
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import Layer, randomise, stream

N = 6


def layer(mixer: Linformer | Softmax, max_len: int = N) -> Layer:
    config = Attention(4, 2, 3, mixer=mixer)
    return Layer(randomise(config.build(12, max_len, 0, "").double().eval()))


def test_with_the_identity_as_maps_it_is_softmax_attention():
    for config in (Linformer(N), Linformer(N, rows="mean"), Linformer(N, rows="convolution")):
        ours, plain = layer(config), layer(Softmax())
        plain.module.load_state_dict(ours.module.state_dict(), strict=False)
        columns = ours.mixer.maps.columns
        if columns is not None:
            with torch.no_grad():
                columns.copy_(torch.eye(N).expand_as(columns) if config.rows == "learned" else torch.ones(()))
        x = stream(2, N)
        context = ours.context(x)
        close(ours(x), plain(x, context))
        close(ours.read(x, "pattern")["pattern"], plain.read(x, "pattern", context=context)["pattern"])


def test_one_even_row_makes_the_mean_of_all_values():
    found = layer(Linformer(1, rows="mean")).read(stream(2, N), "value", "z")
    mean = found["value"].mean(-2, keepdim=True).repeat_interleave(2, 1)
    close(found["z"], mean.expand_as(found["z"]))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_pattern_has_the_rank_of_its_maps_and_signs(rank: int):
    pattern = layer(Linformer(rank)).read(stream(2, N), "pattern")["pattern"]
    assert torch.linalg.matrix_rank(pattern).max() == rank
    assert (pattern < 0).any()


def test_rows_sum_to_what_the_rows_of_values_sum_to():
    ours = layer(Linformer(3, "headwise"))
    x = stream(2, N)
    found, context = ours.read(x, "query", "key", "pattern"), ours.context(x)
    of_keys, of_values = ours.mixer._maps(context, found["key"])
    key = (of_keys @ found["key"]).repeat_interleave(2, 1)
    weights = (found["query"] @ key.mT * ours.mixer.scale).softmax(-1)
    close(found["pattern"].sum(-1), (weights * of_values.sum(-1).repeat_interleave(2, 1)[:, :, None]).sum(-1))


def test_maps_are_as_many_as_sharing_says_and_layers_that_share_store_them_once():
    shapes: dict[Any, tuple[int, ...]] = {
        "none": (2, 2, N, 3),
        "headwise": (2, 1, N, 3),
        "key_value": (1, 1, N, 3),
        "layerwise": (1, 1, N, 3),
    }
    for sharing, shape in shapes.items():
        assert layer(Linformer(3, sharing)).mixer.maps.columns.shape == shape
    blocks = repeat(block(Linformer(3, "layerwise"), n_heads=2), 3)
    model: Any = EncoderConfig(11, 12, blocks, max_len=N).build().double()
    named = [name for name in model.state_dict() if "maps" in name]
    assert named == ["stack.blocks.0.attn.mixer.maps.columns"]
    ids = torch.arange(N)[None]
    before = model(ids)
    with torch.no_grad():
        model.get_parameter(named[0]).zero_()
    # without maps nothing of the text reaches another position: every block reads zeros
    assert not torch.allclose(before, model(ids))
    assert all(not model.stack.blocks[i].attn.mixer.maps(*_of(model, ids)).any() for i in range(3))


def _of(model, ids):
    context = make_context(1, N, ids.device, is_causal=False)
    return context, N, model.embed.matrix


def test_a_shorter_text_reads_the_first_columns_wherever_its_padding_stands():
    ours = layer(Linformer(3, "none"))
    x = stream(1, N)
    alone = ours(x[:, :4])
    close(ours(x, ours.context(x, lengths=torch.tensor([4])))[:, :4], alone)
    shifted = torch.cat((x[:, 4:], x[:, :4]), 1)
    close(ours(shifted, ours.context(shifted, start=torch.tensor([2])))[:, 2:], alone)


def test_a_text_that_is_too_long_is_refused_in_words():
    with pytest.raises(ValueError, match="max_len=6"):
        layer(Linformer(3))(stream(1, N + 1))


@pytest.mark.parametrize("config", [Linformer(64), Linformer(64, rows="mean")])
def test_nothing_is_made_for_each_pair_of_positions_of_a_long_text(config: Linformer):
    n = 16_384
    ours = layer(config, n)
    x = torch.randn(1, n, 12, dtype=torch.float64, requires_grad=True)
    with Largest() as seen:
        ours(x).sum().backward()
    # of four heads, what each position makes of each row
    assert seen.numbers <= n * 64 * 4
