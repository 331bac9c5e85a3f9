"""Segment recurrence and relative sinusoids: the loop over segments that both stand for, and where gradients go."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer.attention import Attention, RelativeSinusoids, SegmentRecurrence, Softmax, Streaming, sinusoids
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, Mlp, NoNorm, block
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass

HEADS, WIDTH = 2, 6


def layer(mixer: Any, positions: Any = None, seed: int = 0) -> Any:
    config = Attention(HEADS, mixer=mixer, **({} if positions is None else {"positions": positions}))
    return Layer(randomise(config.build(12, 64, 0, "").double().eval(), seed))


def shifted(by_distance: Tensor) -> Tensor:
    """Products with vectors of distances m - 1, …, 0, moved so that entry (i, j) is that of i + m - n - j."""
    *lead, n, m = by_distance.shape
    padded = torch.cat((by_distance.new_zeros(*lead, n, 1), by_distance), -1)
    return padded.view(*lead, m + 1, n)[..., 1:, :].reshape(*lead, n, m)


def by_segment(module: Any, x: Tensor, memory: Tensor) -> Tensor:
    """What a layer writes for one segment beside what it read before, as the paper's equations have it."""
    whole = torch.cat((memory, x), 1)
    w_q, w_k, w_v = (rows.unflatten(0, (HEADS, WIDTH)) for rows in module.projection.qkv.weight.chunk(3))
    q, k, v = (torch.einsum("bnd,hed->bhne", u, w) for u, w in ((x, w_q), (whole, w_k), (whole, w_v)))
    n, m = x.shape[1], whole.shape[1]
    distances = sinusoids(torch.arange(m - 1, -1, -1), 12, "halves")
    r = (distances @ module.positions.distance.weight.mT).unflatten(-1, (HEADS, WIDTH)).transpose(0, 1)
    # queries here are not scaled yet, so these are as long as the paper's
    of_keys, of_distances = module.positions.weight * WIDTH**0.5
    scores = (q + of_keys[:, None]) @ k.mT + shifted((q + of_distances[:, None]) @ r.mT)
    later = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    pattern = (scores / WIDTH**0.5).masked_fill(later, float("-inf")).softmax(-1)
    return module.merge.output((pattern @ v).transpose(1, 2).flatten(-2))


def recurrent(model: Any, x: Tensor, segment: int, memory: int) -> Tensor:
    """The stream behind all blocks, segment by segment, each layer beside the last of what it read."""
    kept, out = [x[:, :0] for _ in model.stack.blocks], []
    for begin in range(0, x.shape[1], segment):
        h = x[:, begin : begin + segment]
        for i, part in enumerate(model.stack.blocks):
            read = h
            h = h + by_segment(part.attn, read, kept[i])
            kept[i] = torch.cat((kept[i], read), 1)[:, max(0, kept[i].shape[1] + read.shape[1] - memory) :].detach()
        out.append(h)
    return torch.cat(out, 1)


def model_of(segment: int, memory: int, seed: int = 0, n_layers: int = 3) -> Any:
    mixer = SegmentRecurrence(segment=segment, memory=memory)
    layers = (block(mixer, n_heads=HEADS, positions=RelativeSinusoids(), norm=NoNorm()),) * n_layers
    config = DecoderConfig(vocab_size=11, d_model=12, layers=layers, max_len=64, final_norm=NoNorm())
    return randomise(config.build().double().eval(), seed, std=0.3)


@in_one_pass
@pytest.mark.parametrize("memory", [0, 2, 3, 5, 12])
def test_one_pass_is_the_loop_over_segments_with_what_layers_read_before(memory: int):
    model, x = model_of(3, memory), stream(2, 11)
    whole = model.stack(x, causal_context(x))[0]
    close(whole, recurrent(model, x, 3, memory))


def test_relative_shift_reads_each_distance_where_the_direct_form_does():
    products = stream(1, 4, d_model=7)
    apart = torch.arange(4)[:, None] + 3 - torch.arange(7)
    direct = products.gather(-1, (6 - apart.clamp_min(0))[None])
    seen = apart >= 0
    assert torch.equal(shifted(products)[:, seen], direct[:, seen])


def test_segments_carried_by_a_state_are_those_of_one_pass():
    model, ids = model_of(4, 3), torch.arange(13)[None] % 11
    state, pieces = model.begin(1), []
    # wherever the text is cut, segments are counted from its beginning
    for cut in (ids[:, :4], ids[:, 4:5], ids[:, 5:10], ids[:, 10:]):
        logits, state = model(cut, state=state)
        pieces.append(logits)
    close(torch.cat(pieces, 1), model(ids))


def test_a_memory_of_the_whole_text_is_causal_attention_with_the_same_gradients():
    place = RelativeSinusoids()
    ours, plain, x = layer(SegmentRecurrence(segment=3, memory=12), place), layer(Softmax(), place), stream(2, 12)
    plain.module.load_state_dict(ours.module.state_dict())
    x.requires_grad_()
    close(ours(x), plain(x))
    one, other = (torch.autograd.grad((at(x) * stream(2, 12, 5)).sum(), x)[0] for at in (ours, plain))
    close(one, other)


def test_without_preferences_and_vectors_of_distance_it_has_no_positions():
    ours, plain = layer(Softmax(), RelativeSinusoids()), layer(Softmax())
    with torch.no_grad():
        ours.module.positions.weight.zero_()
        ours.module.positions.distance.weight.zero_()
    plain.module.load_state_dict(ours.module.state_dict(), strict=False)
    x = stream(2, 7)
    close(ours(x), plain(x))


@in_one_pass
@pytest.mark.parametrize("positions", [None, RelativeSinusoids()])
@pytest.mark.parametrize("dense", [False, True])
def test_in_training_gradients_stay_within_a_segment_and_values_are_the_same(positions: Any, dense: bool):
    ours, x = layer(SegmentRecurrence(segment=3, memory=4), positions), stream(1, 9).requires_grad_()
    expected = ours(x)
    ours.module.train()
    out = ours(x, tape=ours.tape("pattern", grad=True) if dense else None)
    close(out, expected)
    for t in range(9):
        reached = torch.autograd.grad(out[:, t].sum(), x, retain_graph=True)[0][0].abs().sum(-1)
        begin = t // 3 * 3
        assert (reached[:begin] == 0).all() and (reached[begin : t + 1] > 0).all()


def test_in_training_a_row_gives_the_gradients_of_its_segments_one_by_one():
    model, x = model_of(3, 4, n_layers=2), stream(1, 9)
    weight = stream(1, 9, 5)
    model.train()
    entries = x.clone().requires_grad_()
    (ours,) = torch.autograd.grad((model.stack(entries, causal_context(x))[0] * weight).sum(), entries)
    other = x.clone().requires_grad_()
    (theirs,) = torch.autograd.grad((recurrent(model, other, 3, 4) * weight).sum(), other)
    close(ours, theirs)


def test_each_layer_reaches_a_memory_further():
    model, x = model_of(3, 3), stream(1, 15).requires_grad_()
    for memory, reaches in ((0, 3), (3, 12)):
        model = model_of(3, memory)
        out = model.stack(x, causal_context(x))[0]
        influence = torch.autograd.grad(out[:, 14].sum(), x)[0][0].abs().sum(-1)
        assert int((influence > 0).sum()) == reaches


@given(seeds, st.integers(1, 5), st.integers(0, 6))
def test_both_routes_see_ones_own_segment_and_the_memory_before_it(seed: int, segment: int, memory: int):
    ours, x = layer(SegmentRecurrence(segment=segment, memory=memory), seed=seed), stream(1, 11, seed)
    place = torch.arange(11)
    begin = place[:, None] // segment * segment
    seen = (place <= place[:, None]) & (place >= begin - memory)
    scores = ours.read(x, "scores")["scores"]
    assert torch.equal(scores.isfinite(), seen.expand_as(scores))
    close(ours(x), ours(x, tape=ours.tape("pattern")))


def test_distances_beyond_the_furthest_count_as_that():
    ours = layer(Softmax(), RelativeSinusoids(furthest=2))
    with torch.no_grad():
        ours.module.projection.qkv.weight[:12].zero_()
        ours.module.positions.weight[0].zero_()
    scores = ours.read(stream(1, 8), "scores")["scores"][0]
    # with no queries, a row holds what a head thinks of distances
    close(scores[:, 7, :5], scores[:, 7, 5:6].expand(-1, 5))
    assert (scores[:, 7, 6] - scores[:, 7, 5]).abs().min() > 1e-3


def test_one_pair_of_preferences_serves_all_layers_and_each_has_its_own_distances():
    model = model_of(3, 2)
    names = [name for name, _ in model.named_parameters() if ".positions." in name]
    assert sum(name.endswith("preferred") for name in names) == 1
    assert sum(name.endswith("distance.weight") for name in names) == 3


def test_queries_that_a_mechanism_widens_meet_distances_in_half_precision():
    ours, x = layer(Streaming(first=2, window=3), RelativeSinusoids()), stream(1, 9)
    expected = ours(x)
    # eight bits, through projections, scores and output
    close(ours.module.bfloat16()(x.bfloat16(), causal_context(x))[0].double(), expected, 0.2)


def test_texts_read_both_ways_are_refused():
    ours, x = layer(Softmax(), RelativeSinusoids()), stream(1, 4)
    with pytest.raises(AnalysisUnavailable, match="causal self-attention"):
        ours(x, make_context(1, 4, x.device, is_causal=False))


def test_padding_and_documents_count_segments_from_where_a_text_begins():
    ours, x = layer(SegmentRecurrence(segment=3, memory=2), RelativeSinusoids()), stream(1, 12)
    ids = torch.tensor([[0] * 5 + [1] * 7])
    close(ours(x, causal_context(x, document_ids=ids))[:, 5:], ours(x[:, 5:]))
    close(ours(x, causal_context(x, start=torch.tensor([4])))[:, 4:], ours(x[:, 4:]))


def test_it_generates_what_a_whole_pass_says():
    mixer = SegmentRecurrence(segment=4, memory=3)
    layers = (block(mixer, n_heads=2, positions=RelativeSinusoids(), mlp=Mlp(8)),) * 2
    model = randomise(DecoderConfig(vocab_size=11, d_model=12, layers=layers, max_len=32).build().double().eval())
    made = gf.generate(model, torch.arange(6)[None], max_new_tokens=7, stop_ids=()).tokens[0]
    for t in range(6, len(made)):
        assert made[t] == int(model(torch.tensor([made[:t]]))[0, -1].argmax())
