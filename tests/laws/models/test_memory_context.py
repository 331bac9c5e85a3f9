"""Memory as context: the equations, what a segment hears of others, and the leak of the form that the paper prints."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer.attention import Attention, Latent, LinearMemory, NeuralMemory, NoPositions, Persistent, Rope, Softmax
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import DecoderConfig, MemoryContext, Mlp, beam_search, titans
from glassformer.models.stack import make_context, tensors
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, causal_context, randomise, seeds, stream
from glassformer.trace import Add, SiteTable, Tape
from one_pass import in_one_pass

MEMORIES = [NeuralMemory(chunk=3), LinearMemory(chunk=4, learned_start=True)]
segments = st.integers(1, 5)


def layer(memory: Any = None, seed: int = 0, **attention: Any) -> Any:
    slots: dict[str, Any] = {"mixer": Persistent(2), "positions": Rope()} | attention
    config = MemoryContext(Attention(2, **(memory or NeuralMemory(chunk=3)).as_published()), Attention(2, **slots))
    return randomise(config.build(D_MODEL, 32, 0, "").double().eval(), seed)


def tape_of(found: Any, *read: str, **kwargs: Any) -> Tape:
    class Table:
        def sites(self, glob: str = "*") -> Any:
            table = SiteTable({one.name: one for one in found.sites()})
            return table if glob == "*" else SiteTable({at: table[at] for at in table.match(glob)})

    return Tape(Table(), read, **kwargs)


def segment_by_segment(found: Any, x: Tensor) -> Tensor:
    """The definition: each segment by itself, reads before tokens, then the memory, which alone goes on."""
    segment, memory, written = found.segment, found.memory.begin(len(x), x), []
    for start in range(0, x.shape[1], segment):
        own = x[:, start : start + segment]
        z = found.memory.mixer.unit(found.ask(own).unflatten(-1, (2, -1)).transpose(1, 2))
        for i, matrix in enumerate(memory.mixer.weights):
            z = (z if i == 0 else F.silu(z)) @ matrix
        merge = found.memory.merge
        read = merge(z, own, merge.scale(z))
        both = torch.stack((read, own), 2).flatten(1, 2)
        y = found.attention(both, causal_context(both))[0][:, 1::2]
        context = make_context(len(x), own.shape[1], x.device, is_causal=True, past=start)
        m, memory = found.memory(y, context, state=memory)
        opens, opened = (F.rms_norm(u, u.shape[-1:], g, 1e-6) for u, g in zip((m, y), found.gains))
        written.append(opens.sigmoid() * opened)
    return torch.cat(written, 1)


@given(seeds, segments, st.integers(1, 9))
def test_it_is_its_definition_segment_by_segment(seed: int, segment: int, n: int) -> None:
    for memory in (NeuralMemory(chunk=segment), LinearMemory(chunk=segment, learned_start=True)):
        found, x = layer(memory, seed), stream(2, n, seed)
        close(found(x, causal_context(x))[0], segment_by_segment(found, x))


@in_one_pass
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_no_output_has_a_gradient_of_any_later_token(memory: Any) -> None:
    found, x = layer(memory), stream(1, 9).requires_grad_()
    out = found(x, causal_context(x))[0]
    for t in range(9):
        (gradient,) = torch.autograd.grad(out[0, t].square().sum(), x, retain_graph=True)
        assert (gradient[0, t + 1 :] == 0).all() and (gradient[0, : t + 1] != 0).any(-1).all()


def test_the_form_that_the_paper_prints_foretells_tokens_by_both_of_its_ways() -> None:
    """Of one segment: reads of all of it before all of its tokens, and a memory asked behind it, not on the way."""
    found, x = layer(NeuralMemory(chunk=3)), stream(1, 3).requires_grad_()
    context, behind = causal_context(x), make_context(1, 3, x.device, is_causal=True, past=3)

    def asked(u: Tensor) -> Tensor:
        return found.memory.mixer.unit(found.ask(u).unflatten(-1, (2, -1)).transpose(1, 2))

    def attended(both: Tensor) -> Tensor:
        return found.attention(both, causal_context(both))[0]

    state = found.begin(1, x).memory
    reads = found.recalled(asked(x), x, context, state)
    y = attended(torch.stack((reads, x), 2).flatten(1, 2))[:, 1::2]
    m, learnt = found.memory(y, context, state=state)
    printed = attended(torch.cat((reads, x), 1))[:, 3:], found.recalled(asked(y), y, behind, learnt)
    for written, foretells in ((y, False), (m, False), *((each, True) for each in printed)):
        (gradient,) = torch.autograd.grad(written[0, 0].square().sum(), x, retain_graph=True)
        later = gradient[0, 1:].abs().max()
        assert later > 1e-6 if foretells else later == 0


@in_one_pass
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_segments_hear_of_each_other_through_the_memory_alone(memory: Any) -> None:
    found, x = layer(memory), stream(1, 11)
    other = x.clone()
    other[:, 0] += 1
    assert (found(x, causal_context(x))[0] - found(other, causal_context(x))[0])[:, -1].abs().max() > 1e-8
    # no step is taken and nothing forgotten, and a convolution reaches three back
    found.memory.mixer.gate_bias.data[[0, 2]] = -1e4
    found.memory.mixer.gates.weight.data[:] = 0
    gone = (found(x, causal_context(x))[0] - found(other, causal_context(x))[0]).abs().amax((0, 2))
    assert (gone[:3] > 0).all() and (gone[-4:] == 0).all()


def test_reads_of_a_memory_that_gives_nothing_are_keys_of_zeros() -> None:
    """They take as much of a row as keys that score zero; what is left is attention to the tokens."""
    found, x = layer(NeuralMemory(chunk=9), mixer=Softmax(), positions=NoPositions()), stream(2, 6)
    with torch.no_grad():
        found.memory.merge.output.weight.zero_()
    inside, plain = tape_of(found, "attention.pattern", "recalled"), tape_of(found, "attention.pattern")
    found(x, causal_context(x), tape=inside)
    found.attention(x, causal_context(x), tape=plain)
    assert (inside.values["recalled"] == 0).all()
    of_tokens, of_reads = inside.values["attention.pattern"].unbind(1)
    last = of_reads[:, :, -1]
    close(last, last[..., :1].expand_as(last))
    close(of_tokens / of_tokens.sum(-1, keepdim=True), plain.values["attention.pattern"])


def test_rows_of_patterns_sum_to_one_with_what_rests_on_persistent_tokens() -> None:
    found, x = layer(), stream(2, 8)
    tape = tape_of(found, "attention.pattern", "attention.persistent")
    found(x, causal_context(x), tape=tape)
    of_tokens, of_reads = tape.values["attention.pattern"].unbind(1)
    close((of_tokens + of_reads).sum(-1) + tape.values["attention.persistent"], torch.ones(2, 2, 8).double())
    place = torch.arange(8)
    own = (place[:, None] // 3 == place // 3) & (place <= place[:, None])
    for part in (of_tokens, of_reads):
        assert ((part > 0) == own).all()


@given(seeds, st.sets(st.integers(1, 8)))
def test_what_is_read_inside_is_the_same_however_a_text_is_cut(seed: int, cuts: set[int]) -> None:
    found, x = layer(seed=seed), stream(2, 9, seed)
    names = [one.name for one in found.sites() if one.name != "attention.pattern"]
    whole = tape_of(found, *names)
    found(x, causal_context(x), tape=whole)
    state, tapes = found.begin(2, x), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 9]):
        tapes.append(tape_of(found, *names))
        context = make_context(2, stop - start, x.device, is_causal=True, past=start)
        _, state = found(x[:, start:stop], context, state=state, tape=tapes[-1])
    for one in found.sites():
        if one.name in names:
            axis = next(i for i, axis in enumerate(one.axes) if axis in ("pos", "query", "key"))
            close(torch.cat([tape.values[one.name] for tape in tapes], axis), whole.values[one.name])


def test_a_pattern_behind_a_state_has_columns_for_the_keys_that_are_kept() -> None:
    found, x = layer(), stream(1, 8)
    whole = tape_of(found, "attention.pattern")
    found(x, causal_context(x), tape=whole)
    _, state = found(x[:, :4], causal_context(x[:, :4]), state=found.begin(1, x))
    tape = tape_of(found, "attention.pattern")
    found(x[:, 4:], make_context(1, 4, x.device, is_causal=True, past=4), state=state, tape=tape)
    close(tape.values["attention.pattern"], whole.values["attention.pattern"][..., 4:, 2:])


def test_the_state_is_as_large_before_a_text_as_behind_a_long_one() -> None:
    found = layer()
    sizes = []
    for n in (0, 1, 20):
        x, state = stream(1, n), found.begin(1, stream(1, 1))
        if n:
            _, state = found(x, causal_context(x), state=state)
        sizes.append([tuple(part.shape) for part in tensors(state)])
    assert sizes[0] == sizes[1] == sizes[2]


def test_beams_go_on_as_rows_by_themselves() -> None:
    layers = titans(2, n_heads=2, memory=NeuralMemory(chunk=3), used="context", tokens=2, mlp=Mlp(8))
    model = randomise(DecoderConfig(11, 12, layers, max_len=64).build(0).double().eval(), 0, std=0.4)
    model.requires_grad_(False)
    best = beam_search(model, [[3, 1, 4, 1, 5]], n_beams=4, max_new_tokens=5).best[0]
    logits = model(torch.tensor([[3, 1, 4, 1, 5, *best.tokens]])).log_softmax(-1)[0]
    total = sum(float(logits[4 + i, token]) for i, token in enumerate(best.tokens))
    assert total == pytest.approx(float(best.log_prob))


def test_what_is_found_on_the_way_can_be_read_and_not_edited() -> None:
    layers = titans(1, n_heads=2, memory=NeuralMemory(chunk=3), used="context")
    model = DecoderConfig(11, 12, layers, max_len=64).build(0).eval()
    run = gf.run(model, torch.arange(7)[None], read=["blocks.0.mac.*"])
    assert run["blocks.0.mac.attention.pattern"].axes == ("batch", "value_stream", "head", "query", "key")
    with pytest.raises(AnalysisUnavailable, match=r"recalled.*segment by segment.*edit asked"):
        gf.run(model, torch.arange(7)[None], edit=[Add("blocks.0.mac.recalled", 1.0)])


def test_a_memory_that_cannot_be_asked_and_keys_that_are_not_kept_are_refused() -> None:
    long, near = Attention(2, mixer=NeuralMemory()), Attention(2, mixer=Persistent())
    with pytest.raises(ConfigError, match=r'"linear_memory" or "neural_memory".*found "softmax"'):
        MemoryContext(Attention(2), near)
    with pytest.raises(ConfigError, match="Leave its window out"):
        MemoryContext(long, Attention(2, mixer=Persistent(window=4)))
    with pytest.raises(ConfigError, match="cross-attention"):
        MemoryContext(long, Attention(2, cross=True))
    with pytest.raises(ConfigError, match='projection "latent"'):
        MemoryContext(long, Attention(2, projection=Latent(3))).build(8, 16, 0, "")
