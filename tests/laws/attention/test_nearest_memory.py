"""Nearest-neighbour memory: what it equals in its limits, what is found, and where no gradient goes."""

import io
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import glassformer as gf
from glassformer.attention import Attention, NearestMemory, Softmax
from glassformer.attention.kernels.nearest import GROUP, largest
from glassformer.checkpoints import load, save
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.models.stack import make_context, mapped, tensors
from glassformer.testing import close
from glassformer.testing.layers import Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass


def layer(mixer: NearestMemory | Softmax, seed: int = 0) -> Layer:
    return Layer(randomise(Attention(2, mixer=mixer).build(12, 64, 0, "").double().eval(), seed))


@given(seeds, st.integers(1, 5), st.integers(6, 12))
def test_one_softmax_over_all_that_is_kept_is_full_attention(seed: int, window: int, length: int):
    ours = layer(NearestMemory(window=window, memory=length, nearest=length, joined="joint"), seed)
    plain = layer(Softmax())
    plain.module.load_state_dict(ours.module.state_dict())
    x = stream(2, length, seed)
    close(ours(x), plain(x))
    close(ours.read(x, "pattern")["pattern"], plain.read(x, "pattern")["pattern"])


def test_a_gate_that_is_shut_leaves_the_window_and_one_that_is_open_what_is_found():
    ours, x = layer(NearestMemory(window=3, memory=4, nearest=2)), stream(2, 9)
    local = layer(Softmax(window=3))
    local.module.load_state_dict({k: v for k, v in ours.module.state_dict().items() if k != "mixer.gate"})
    with torch.no_grad():
        ours.mixer.gate.fill_(-60.0)
    close(ours(x), local(x))
    with torch.no_grad():
        ours.mixer.gate.fill_(60.0)
    pattern, place = ours.read(x, "pattern")["pattern"], torch.arange(9)
    apart = place[:, None] - place
    assert (pattern[..., (apart >= 0) & (apart < 3)].view(2, 2, -1)[..., 6:].abs() < 1e-20).all()
    # the first positions have nothing but their window
    close(ours(x)[:, :3], local(x)[:, :3])


@given(seeds)
def test_what_a_row_is_off_by_is_twice_the_mass_of_what_is_left_out(seed: int):
    some = layer(NearestMemory(window=2, memory=12, nearest=3), seed)
    every = layer(NearestMemory(window=2, memory=12, nearest=12), seed)
    with torch.no_grad():
        for one in (some, every):
            one.mixer.gate.fill_(60.0)
    x = stream(1, 12, seed)
    ours, whole = (one.read(x, "pattern")["pattern"][..., 5:, :] for one in (some, every))
    left_out = whole.masked_fill(ours > 0, 0.0).sum(-1)
    close((ours - whole).abs().sum(-1), 2 * left_out)


def test_one_softmax_is_a_gate_by_the_sums_of_both():
    ours, x = layer(NearestMemory(window=2, memory=9, nearest=3, joined="joint")), stream(1, 9)
    found = ours.read(x, "pattern", "scores", "memory_share")
    apart = torch.arange(9)[:, None] - torch.arange(9)
    kept = found["scores"].masked_fill(found["pattern"] == 0, float("-inf"))
    sums = [kept.masked_fill(~where, float("-inf")).logsumexp(-1) for where in (apart >= 2, (apart >= 0) & (apart < 2))]
    close(found["memory_share"], (sums[0] - sums[1]).sigmoid())
    close(found["memory_share"], found["pattern"].masked_fill(apart < 2, 0.0).sum(-1))


def test_the_order_in_which_a_memory_was_written_does_not_matter():
    ours, x = layer(NearestMemory(window=3, memory=6, nearest=2)), stream(1, 9)
    order = torch.cat((torch.randperm(6, generator=torch.Generator().manual_seed(0)), torch.arange(6, 9)))
    close(ours(x)[:, -1], ours(x[:, order])[:, -1])


def test_the_oldest_make_room_and_a_state_is_no_larger_than_memory_and_window():
    ours = layer(NearestMemory(window=3, memory=4, nearest=2))
    x = stream(1, 20)
    state, out = ours.module.begin(1, x), x
    with torch.no_grad():
        for t in range(20):
            context = make_context(1, 1, x.device, is_causal=True, past=t)
            out, state = ours.module(x[:, t : t + 1], context, state=state)
    assert [part.shape[-2] for part in tensors(state)] == [6, 6]
    close(out, ours(x)[:, -1:])
    # the last position sees 3 + 4 and no others
    other = x.clone()
    other[:, :13] += 1
    assert torch.equal(ours(other)[:, -1], ours(x)[:, -1])


@in_one_pass
@pytest.mark.parametrize("joined", ["gate", "joint"])
@pytest.mark.parametrize("dense", [False, True])
def test_training_leaves_what_is_stored_alone_and_trains_what_asks(joined: Any, dense: bool):
    ours = layer(NearestMemory(window=2, memory=8, nearest=3, joined=joined))
    x = stream(1, 8).requires_grad_()
    ours.module.train()
    tape = ours.tape("query", "key", "value", *(["pattern"] if dense else []), grad=True)
    out = ours(x, tape=tape)
    asked, key, value = torch.autograd.grad(
        (out[:, -1] * stream(1, 1, 3)[:, 0]).sum(), [tape.values[name] for name in ("query", "key", "value")]
    )
    assert (key[..., :-2, :] == 0).all() and (value[..., :-2, :] == 0).all()
    assert key[..., -2:, :].abs().sum() > 0 and value[..., -2:, :].abs().sum() > 0
    # what asks is trained by what it found: as much as in evaluation, where the store is no constant
    ours.module.eval()
    tape = ours.tape("query", "value", grad=True)
    out = ours(x, tape=tape)
    expected, stored = torch.autograd.grad(
        (out[:, -1] * stream(1, 1, 3)[:, 0]).sum(), [tape.values["query"], tape.values["value"]]
    )
    close(asked, expected)
    assert stored[..., :-2, :].abs().sum() > 0


def test_training_and_evaluation_give_the_same():
    ours, x = layer(NearestMemory(window=2, memory=8, nearest=3)), stream(2, 9)
    expected = ours(x)
    ours.module.train()
    close(ours(x), expected)
    close(ours(x, tape=ours.tape("pattern")), expected)


def test_queries_in_blocks_find_what_the_pattern_finds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("glassformer.attention.mechanisms.nearest_memory.SCORES", 1)
    ours, x = layer(NearestMemory(window=5, memory=30, nearest=4)), stream(2, 45)
    for context in (causal_context(x), causal_context(x, start=torch.tensor([7, 0]))):
        close(ours(x, context), ours(x, context, tape=ours.tape("pattern")))


def test_documents_in_one_row_find_nothing_of_each_other():
    ours, x = layer(NearestMemory(window=2, memory=9, nearest=2)), stream(1, 12)
    packed = ours(x, causal_context(x, document_ids=torch.tensor([[0] * 7 + [1] * 5])))
    close(packed, torch.cat((ours(x[:, :7]), ours(x[:, 7:])), 1))


def test_a_model_with_memory_generates_and_is_saved_and_restored(tmp_path: Any):
    mixer = NearestMemory(window=2, memory=6, nearest=2)
    config = DecoderConfig(vocab_size=11, d_model=12, layers=(block(mixer, n_heads=2, mlp=Mlp(8)),) * 2, max_len=32)
    model = randomise(config.build().double().eval())
    ids = torch.arange(9)[None] % 11
    made = gf.generate(model, ids, max_new_tokens=6, stop_ids=()).tokens[0]
    for t in range(9, len(made)):
        assert made[t] == int(model(torch.tensor([made[:t]]))[0, -1].argmax())
    save(model, tmp_path / "model")
    close(load(tmp_path / "model")(ids), model(ids))


def test_a_memory_that_was_written_to_disk_goes_on_as_the_one_that_was_not():
    ours, x = layer(NearestMemory(window=2, memory=6, nearest=2)), stream(1, 12)
    _, state = ours.module(x[:, :9], causal_context(x[:, :9]), state=ours.module.begin(1, x))
    held = io.BytesIO()
    torch.save(tensors(state), held)
    held.seek(0)
    read = iter(torch.load(held, weights_only=True))
    context = make_context(1, 3, x.device, is_causal=True, past=9)
    out, _ = ours.module(x[:, 9:], context, state=mapped(state, lambda _: next(read)))
    close(out, ours(x)[:, 9:])


@given(seeds, st.integers(1, 6), st.integers(0, 3))
def test_the_search_finds_the_largest(seed: int, n: int, more: int):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, 2 * n * GROUP + more * (GROUP // 2) + more + 1, generator=generator)
    scores[0, : scores.shape[1] // 2] = float("-inf")
    expected = scores.topk(n).values
    assert torch.equal(scores.gather(-1, largest(scores, n)).sort(descending=True).values, expected)
