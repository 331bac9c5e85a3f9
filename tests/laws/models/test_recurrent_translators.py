"""Translators that came before the Transformer: recurrences that read both ways, one vector of the source, or all."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from glassformer.attention import Attention, LastKey, Softmax, Tied
from glassformer.data.batch import next_token_batch
from glassformer.models import EncoderDecoderConfig, Gru, beam_search, generate
from glassformer.models.sampling import GREEDY
from glassformer.models.stack import make_context, with_source
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from glassformer.testing.models import RECURRENT, subject
from glassformer.trace import Apply, Set, SiteTable, Tape

LENGTHS = torch.tensor([9, 4, 1])


class Table:
    """The sites of one sub-layer, for a tape over it alone."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def sites(self, glob: str = "*") -> Any:
        table = SiteTable({found.name: found for found in self.layer.sites()})
        return table if glob == "*" else SiteTable({at: table[at] for at in table.match(glob)})


def hidden(layer: Any, x: Tensor, context: Any) -> Tensor:
    tape = Tape(Table(layer), ["hidden"], grad=True)
    layer(x, context, tape=tape)
    return tape.values["hidden"]


def as_torchs(kind: str, told: Tensor, forward: Tensor, back: Tensor) -> dict[str, Tensor]:
    """Return weights or biases under the names that torch has for them."""
    # rows: gate, direction, neuron
    ways = told.unflatten(0, (3, 2, 5)).unbind(1)
    found = {f"{kind}_ih_l0{end}": way.flatten(0, 1) for way, end in zip(ways, ("", "_reverse"))}
    return found | {f"{kind}_hh_l0": forward, f"{kind}_hh_l0_reverse": back}


@pytest.mark.parametrize("bias", [True, False])
@given(seeds, st.booleans())
def test_it_is_torchs_bidirectional_unit_on_packed_rows_with_its_gradients(bias: bool, seed: int, left: bool) -> None:
    ours: Any = randomise(Gru(5, bias, bidirectional=True).build(D_MODEL, 32, 0, "").double(), seed)
    theirs = nn.GRU(D_MODEL, 5, bias=bias, batch_first=True, bidirectional=True).double()
    kinds = ("weight", "bias")[: 1 + bias]
    own = {kind: [getattr(part, kind) for part in (ours.input, ours.recurrent, ours.recurrent_back)] for kind in kinds}
    theirs.load_state_dict({name: p.detach() for kind in kinds for name, p in as_torchs(kind, *own[kind]).items()})
    x, lengths = stream(3, 6, seed), torch.tensor([6, 3, 1])
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    expected, _ = pad_packed_sequence(theirs(packed)[0], batch_first=True)
    if left:
        rows = torch.stack([row.roll(6 - int(length), 0) for row, length in zip(x, lengths)])
        found = hidden(ours, rows, make_context(3, 6, x.device, is_causal=False, start=6 - lengths))
        found = torch.stack([row.roll(int(length) - 6, 0) for row, length in zip(found, lengths)])
    else:
        found = hidden(ours, x, make_context(3, 6, x.device, is_causal=False, lengths=lengths))
    real = torch.arange(6) < lengths[:, None]
    close(found[real], expected[real])
    for kind in kinds:
        mine = as_torchs(kind, *torch.autograd.grad(found[real].square().sum(), own[kind], retain_graph=True))
        for name, gradient in mine.items():
            (other,) = torch.autograd.grad(expected[real].square().sum(), getattr(theirs, name), retain_graph=True)
            close(gradient, other)


@given(seeds)
def test_documents_of_one_row_are_read_both_ways_by_themselves(seed: int) -> None:
    layer, x = randomise(Gru(5, bidirectional=True).build(D_MODEL, 32, 0, "").double(), seed), stream(1, 7, seed)
    ids = torch.tensor([[0, 0, 0, 1, 2, 2, 2]])
    packed = layer(x, make_context(1, 7, x.device, is_causal=False, document_ids=ids))[0]
    for document in range(3):
        alone = x[:, ids[0] == document]
        close(
            packed[:, ids[0] == document], layer(alone, make_context(1, alone.shape[1], x.device, is_causal=False))[0]
        )


@given(seeds, st.booleans())
def test_padding_on_either_side_of_the_source_changes_nothing(seed: int, left: bool) -> None:
    model, others = randomise(subject("recurrent").model, seed, std=0.2), torch.Generator().manual_seed(seed)
    source, tokens = torch.randint(11, (3, 9), generator=others), torch.randint(11, (3, 5), generator=others)
    # what stands in the padding is drawn like the rest
    told = {"source_start": 9 - LENGTHS} if left else {"source_lengths": LENGTHS}
    padded = model(source, tokens, **told)
    for row, length in enumerate(LENGTHS.tolist()):
        own = source[row : row + 1, 9 - length :] if left else source[row : row + 1, :length]
        close(padded[row], model(own, tokens[row : row + 1])[0])


def test_a_loss_over_padded_sources_has_the_gradients_of_its_rows() -> None:
    model, (source, tokens) = subject("recurrent", batch=3).model, subject("recurrent", batch=3).inputs
    # some are not used: a query that no score reads passes a norm
    parameters = list(model.parameters())
    batch = next_token_batch(tokens)

    def loss(rows: slice, source: Tensor, **told: Any) -> Tensor:
        found = model(source, batch.tokens[rows], **told)
        return nn.functional.cross_entropy(found.flatten(0, 1), batch.targets[rows].flatten(), reduction="sum")

    whole = loss(slice(None), source, source_lengths=LENGTHS)
    rows = [loss(slice(i, i + 1), source[i : i + 1, :n]) for i, n in enumerate(LENGTHS.tolist())]
    together, apart = (
        torch.autograd.grad(one, parameters, allow_unused=True) for one in (whole, torch.stack(rows).sum())
    )
    for one, other in zip(together, apart):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            close(one, other)


@torch.no_grad()
def test_one_word_at_a_time_equals_one_pass_and_ragged_sources_are_translated_as_alone() -> None:
    model, (source, tokens) = subject("recurrent", batch=3).model, subject("recurrent", batch=3).inputs
    state, steps = model.begin(source, LENGTHS), []
    for t in range(tokens.shape[1]):
        logits, state = model(None, tokens[:, t : t + 1], state=state)
        steps.append(logits)
    close(torch.cat(steps, 1), model(source, tokens, source_lengths=LENGTHS))
    sources = [row[:n].tolist() for row, n in zip(source, LENGTHS.tolist())]
    starts: list[list[int]] = [[1], [1, 5], [2]]
    asked: dict[str, Any] = {"max_new_tokens": 4}
    together = generate(model, starts, GREEDY, source=sources, **asked).tokens
    beams = beam_search(model, starts, source=sources, n_beams=3, **asked)
    for row in range(3):
        own: tuple[Any, Any] = [starts[row]], [sources[row]]
        assert generate(model, own[0], GREEDY, source=own[1], **asked).tokens[0] == together[row]
        assert beam_search(model, own[0], source=own[1], n_beams=3, **asked).best[0].tokens == beams.best[row].tokens


def test_sites_are_visited_as_declared_and_reading_them_changes_nothing() -> None:
    found = subject("recurrent")
    tape, table = found.tape("*"), found.model.sites()
    close(found(tape), found())
    assert list(tape.values) == list(table)
    lengths = {"batch": 2, "query": 7, "key": 9}
    for at, site in table.items():
        sizes = lengths | {"pos": 9 if site.stack == "encoder" else 7} | dict(site.sizes)
        assert tuple(tape.values[at].shape) == tuple(sizes[axis] for axis in site.axes), at


def test_an_edit_at_any_site_of_the_encoder_reaches_the_logits_and_its_own_value_does_not() -> None:
    found = subject("recurrent")
    plain = found()
    for at in found.model.sites("encoder.blocks.*"):
        values = found.values(at)[at]
        close(found(found.tape(edit=Set(at, values))), plain)
        turned = Apply(at, lambda value: value * torch.linspace(2, 3, value.shape[-1], dtype=value.dtype))
        assert not torch.allclose(found(found.tape(edit=turned)), plain), at


def test_the_tiny_translator_survives_json() -> None:
    config = RECURRENT["recurrent"]
    assert EncoderDecoderConfig.from_json(config.to_json()) == config


@given(seeds)
def test_the_last_key_alone_is_attention_to_a_source_of_one_position(seed: int) -> None:
    config = Attention(2, d_head=4, mixer=LastKey(), cross=True)
    last = Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval(), seed))
    soft = Layer(config.replace(mixer=Softmax()).build(D_MODEL, 16, 0, "").double().eval())
    soft.module.load_state_dict(last.module.state_dict())
    x, source, lengths = stream(2, 3, seed), stream(2, 5, seed + 1).requires_grad_(), torch.tensor([5, 2])
    out = last(x, with_source(causal_context(x), 5, lengths), source=source)
    ends = source[torch.arange(2), lengths - 1][:, None]
    expected = soft(x, with_source(causal_context(x), 1, None), source=ends)
    close(out, expected)
    one, other = (torch.autograd.grad(found.square().sum(), source, retain_graph=True)[0] for found in (out, expected))
    close(one, other)


def test_in_a_text_of_its_own_the_last_key_is_the_querys_own() -> None:
    config = Attention(2, mixer=LastKey(), projection=Tied(query="identity"))
    layer, x = Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval())), stream(2, 5)
    found = layer.read(x, "value", "z")
    assert torch.equal(found["z"], found["value"])
