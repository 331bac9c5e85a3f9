"""Compiled equals eager; run in a process without the run-time shape checks, which torch.compile cannot see through."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from glassformer.attention import Linear, LinearMemory, Lrpe, MixerConfig, Performer, Pola, StateSpace
from glassformer.models import DecoderConfig, Mlp, block, titans
from glassformer.models.evaluation import evaluating
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import Add, Apply, At, Scale, Set, Tape

pytestmark = pytest.mark.full
every = pytest.mark.parametrize("name", [*ARCHITECTURES, "rwkv"])
# each compilation takes seconds: for these laws, the least alike stand for all
few = pytest.mark.parametrize("name", ["differential", "lightning_hybrid", "translator_post"])
FEATURES: list[MixerConfig] = [kind(**fields) for kind in (Linear, Performer) for fields in ({}, *kind.variants)]
FEATURES += [StateSpace(chunk=8), Pola(convolution=3, key_places=True)]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    # deterministic algorithms poison memory, and the graph would differ from what users compile
    torch.use_deterministic_algorithms(False)
    yield
    torch._dynamo.reset()


def compiled(model: torch.nn.Module, backend: Any = "eager") -> Any:
    return torch.compile(model, fullgraph=True, backend=backend)


@every
def test_compiled_equals_eager_without_a_tape(name: str) -> None:
    model = subject(name)
    expected = model()
    model.model, plain = compiled(model.model), model.model
    close(model(), expected)
    assert plain is not model.model


def test_an_evaluation_of_a_compiled_model_drops_nothing() -> None:
    model = DecoderConfig(11, 8, (block(n_heads=2, mlp=Mlp(8, dropout=0.5), dropout=0.5),)).build().double()
    ids = torch.arange(8)[None]
    expected = model.eval()(ids)
    fast = compiled(model.train())
    assert not torch.equal(fast(ids), expected)
    with evaluating(fast):
        close(fast(ids), expected)
    assert all(module.training for module in model.modules())
    assert not torch.equal(fast(ids), expected)


@pytest.mark.parametrize("mixer", FEATURES, ids=lambda mixer: mixer.described)
def test_every_kind_of_features_compiles_with_its_gradients(mixer: MixerConfig) -> None:
    positions = Lrpe() if mixer.turns_features else None
    config = DecoderConfig(11, 8, (block(mixer, n_heads=2, positions=positions, mlp=Mlp(8)),))
    model, ids = config.build(seed=0).double().eval(), torch.arange(20)[None] % 11
    found = []
    # derivatives of elu and softplus have other strides than torch foretells, unless they are taken apart as inductor
    # takes them
    for call in (model, compiled(model, "aot_eager_decomp_partition")):
        logits = call(ids)
        found.append([logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))])
    for one, other in zip(*found):
        close(one, other)


def test_features_that_are_drawn_anew_in_training_are_so_when_compiled() -> None:
    config, ids = DecoderConfig(11, 8, (block(Performer(6, redraw=2), n_heads=2),)), torch.arange(9)[None]
    plain, model = (config.build(seed=0).double().train() for _ in range(2))
    # how often it was passed is a number that is read, at which a graph ends
    fast: Any = torch.compile(model, backend="eager")
    seen = []
    for _ in range(5):
        expected = plain(ids)
        close(fast(ids), expected)
        seen.append(expected)
    assert [torch.equal(a, b) for a, b in pairwise(seen)] == [True, False, True, False]


def test_memory_as_context_compiles_with_a_tape_and_for_packed_documents() -> None:
    """Where segments begin differs by row in the latter; a graph goes from position to position there."""
    layers = titans(1, n_heads=2, memory=LinearMemory(chunk=2), used="context", tokens=2)
    model = randomise(DecoderConfig(11, 8, layers, max_len=16).build(seed=0).double().eval(), std=0.3)
    fast, ids, documents = compiled(model), torch.arange(6).view(2, 3), torch.tensor([[0, 0, 1], [0, 1, 1]])
    seen, told = Tape(model, "*"), Tape(model, "*")
    close(fast(ids, tape=seen), model(ids, tape=told))
    for at, value in told.values.items():
        close(seen.values[at], value)
    close(fast(ids, documents=documents), model(ids, documents=documents))


@every
def test_compiled_equals_eager_with_reads_and_edits(name: str) -> None:
    model = subject(name)
    sites = model.model.sites()
    mid = next(s for s in sites if s.endswith("resid_post"))
    for read, edit in ((["*"], []), ([mid, "*.pattern"], [Scale(mid, 0.5, at=At(pos=-1)), Add(mid, 1.0)])):
        torch._dynamo.reset()
        eager = model.tape(*read, edit=edit)
        expected = model(eager)
        fast = compiled(model.model)
        tape = model.tape(*read, edit=edit)
        close(fast(*model.inputs, tape=tape), expected)
        assert set(tape.values) == set(eager.values)
        for site, value in eager.values.items():
            close(tape.values[site].nan_to_num(), value.nan_to_num())


@few
def test_edits_of_what_heads_read_that_read_earlier_sites_compile(name: str) -> None:
    model = subject(name)
    sites = [s for s in model.model.sites() if "encoder" not in s or "decoder" in s]
    stream = next(s for s in sites if s.endswith("0.resid_pre"))
    head = next(s for s in sites if s.endswith("1.attn.key_in"))
    edit = [
        Apply(head, lambda x, y: x + 0.5 * y, at=At(kv_head=0), reads=(stream,)),
        Scale(head.replace("key_in", "value_in"), 0.5),
    ]
    expected = model(model.tape(edit=edit))
    close(compiled(model.model)(*model.inputs, tape=model.tape(edit=edit)), expected)


def test_the_default_backend_equals_eager() -> None:
    model = subject("lightning_hybrid", dtype=torch.float32)
    mid = next(s for s in model.model.sites() if s.endswith("resid_post"))
    plain, eager = model(), model.tape(mid, edit=[Scale(mid, 0.5)])
    edited = model(eager)
    fast = compiled(model.model, "inductor")
    close(fast(*model.inputs), plain, 1e-4)
    tape = model.tape(mid, edit=[Scale(mid, 0.5)])
    close(fast(*model.inputs, tape=tape), edited, 1e-4)
    close(tape.values[mid], eager.values[mid], 1e-4)


@few
def test_equal_plans_and_new_edit_values_do_not_recompile(name: str) -> None:
    model = subject(name)
    mid = next(s for s in model.model.sites() if s.endswith("resid_post"))
    counter = CompileCounter()
    fast = compiled(model.model, counter)

    def run(value: Tensor, factor: float) -> Tensor:
        tape = model.tape(mid, "logits", edit=[Set(mid, value, at=At(pos=-1)), Scale(mid, torch.tensor(factor))])
        return fast(*model.inputs, tape=tape)

    first = run(torch.zeros(16, dtype=torch.float64), 1.0)
    assert counter.frame_count == 1
    second = run(torch.ones(16, dtype=torch.float64), 2.0)
    assert counter.frame_count == 1
    assert not torch.equal(first, second)


@few
def test_gradients_through_a_compiled_edited_pass_equal_eager(name: str) -> None:
    model = subject(name)
    mid = next(s for s in model.model.sites() if s.endswith("resid_post"))
    value = torch.ones(16, dtype=torch.float64, requires_grad=True)
    fast = compiled(model.model, "aot_eager")
    gradients = []
    for call in (model.model, fast):
        logits = call(*model.inputs, tape=model.tape(edit=[Add(mid, value)]))
        gradients.append(torch.autograd.grad(logits.square().sum(), value)[0])
    close(gradients[1], gradients[0])


@few
def test_an_idle_tape_adds_nothing_to_the_graph(name: str) -> None:
    model = subject(name)
    sizes = []
    for tape in (None, model.tape()):
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled(model.model, counter)(*model.inputs, tape=tape)
        sizes.append(counter.op_count)
    assert sizes[0] == sizes[1]
