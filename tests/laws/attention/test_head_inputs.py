"""What each head reads before the norm: views of the stream, streams of their own when edited, and their gradients."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from circuit_pairs import Compared
from glassformer.attention import (
    Attention,
    Context,
    Dims,
    MixerConfig,
    Projection,
    Rope,
    Separate,
    Softmax,
    Traits,
)
from glassformer.attention.head_inputs import INPUTS
from glassformer.attention.mechanisms.softmax import SoftmaxMixer
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.layers import QUERY_KEY_NORMS, Layer, randomise
from glassformer.testing.models import ARCHITECTURES, drawn, subject
from glassformer.trace import Add, Apply, At, Scale, Set, Tape
from one_pass import in_one_pass

every = pytest.mark.parametrize("name", [*ARCHITECTURES, "rwkv", "mixed"])


def _inputs(sites: list[str]) -> list[str]:
    return [site for site in sites if site.rpartition(".")[2] in (*INPUTS, "in")]


@every
def test_what_heads_read_is_a_view_of_the_stream(name: str) -> None:
    model = subject(name)
    reads = _inputs(list(model.model.sites()))
    tape = model.tape(*reads)
    assert torch.equal(model(tape), model())
    for site in reads:
        value = tape.values[site]
        assert value.ndim == 3 or value.shape[1] == 1 or value.stride(1) == 0, site


@every
def test_giving_every_head_the_streams_own_value_changes_nothing(name: str) -> None:
    model = subject(name)
    bare, values = model(), model.values(*_inputs(list(model.model.sites())))
    for site, value in values.items():
        close(model(model.tape(edit=[Set(site, value.clone())])), bare, 1e-12)
        close(model(model.tape(edit=[Set(site, value[:, :1].clone(), at=At(**{value_axis(site): [0]}))])), bare, 1e-12)


def value_axis(site: str) -> str:
    """Return the axis of a site that its heads, or else its positions, lie along."""
    return {"query_in": "head", "gate_in": "head", "key_in": "kv_head", "value_in": "kv_head"}.get(
        site.rpartition(".")[2], "pos"
    )


@every
def test_gradients_at_what_heads_read_add_up_to_the_gradient_through_the_sub_layer(name: str) -> None:
    model = subject(name)
    weights = torch.randn(model().shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for stack in model.model.stacks.values():
        block = stack.blocks[0]
        part, stream = block.part("attn"), block.at_resid[0]
        inputs = [s for s in part.at_inputs.values()]
        tape = model.tape(stream, *inputs, part.at.out, grad=True)
        total = (model(tape) * weights).sum()
        out = torch.autograd.grad(total, tape.values[part.at.out], retain_graph=True)[0]
        # the sub-layer alone: what it writes, weighed by what its output is worth
        through = (tape.values[part.at.out] * out).sum()
        wanted = [tape.values[stream], *(tape.values[s] for s in inputs)]
        whole, *parts = torch.autograd.grad(through, wanted, allow_unused=True)
        close(sum(each.sum(1) if each.ndim == 4 else each for each in parts if each is not None), whole)  # type: ignore[arg-type, misc]


@in_one_pass
@pytest.mark.parametrize("norm", [LayerNorm(), RmsNorm()], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("qk_norm", QUERY_KEY_NORMS, ids=str)
def test_a_head_with_a_stream_of_its_own_is_a_layer_that_reads_it(norm: LayerNorm | RmsNorm, qk_norm: object) -> None:
    """The edited head is that of a pass on another stream, and the others are those of the usual pass."""
    layer = block(n_heads=4, n_kv_heads=2, positions=Rope(), norm=norm, bias=True, qk_norm=qk_norm)  # type: ignore[arg-type]
    model = randomise(DecoderConfig(11, 16, (layer,), max_len=9).build().double().eval(), std=0.4)
    tokens = torch.tensor([[1, 4, 2, 6, 3], [0, 3, 3, 5, 9]])
    other = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def read(*edit: object) -> dict[str, Tensor]:
        tape = Tape(model, ["*.query", "*.key", "*.value"], list(edit))  # type: ignore[arg-type]
        model(tokens, tape=tape)
        return {name.rpartition(".")[2]: value for name, value in tape.values.items()}

    usual, replaced = read(), read(Set("blocks.0.resid_pre", other))
    for quantity, axis in (("query", "head"), ("key", "kv_head"), ("value", "kv_head")):
        own = read(Set(f"blocks.0.attn.{quantity}_in", other, at=At(**{axis: 1})))
        expected = usual[quantity].clone()
        expected[:, 1] = replaced[quantity][:, 1]
        close(own[quantity], expected)
        for rest in {"query", "key", "value"} - {quantity}:
            assert torch.equal(own[rest], usual[rest])


def test_an_edited_gate_is_that_of_a_layer_that_reads_another_stream() -> None:
    model = subject("lightning_hybrid")
    site = "blocks.0.attn.gate_in"
    other = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    layer = model.model.stack.blocks[0]
    opened = layer.part("attn").merge.gate(layer.norm("attn")(other)).sigmoid().unflatten(-1, (4, -1))[:, :, 2]
    was = layer.part("attn").merge.gate(model.values("blocks.0.attn.norm")["blocks.0.attn.norm"]).sigmoid()
    values = model.values("blocks.0.attn.head_out", "blocks.0.attn.z", "blocks.0.attn.z_scale")
    edited = model.values("blocks.0.attn.head_out", edit=[Set(site, other, at=At(head=2))])["blocks.0.attn.head_out"]
    usual = values["blocks.0.attn.head_out"]
    assert torch.equal(edited[:, [0, 1, 3]], usual[:, [0, 1, 3]])
    merge = layer.part("attn").merge
    flat = merge.normed(values["blocks.0.attn.z"], values["blocks.0.attn.z_scale"]).unflatten(-1, (4, -1))[:, :, 2]
    close(edited[:, 2], flat * opened @ merge.matrix()[2])
    close(usual[:, 2], flat * was.unflatten(-1, (4, -1))[:, :, 2] @ merge.matrix()[2])


@every
def test_an_edited_scale_holds_for_every_stream_that_a_head_reads(name: str) -> None:
    model = subject(name)
    for stack in model.model.stacks.values():
        block = stack.blocks[0]
        if block.wiring == "post" or block.norm("attn").identity:
            continue
        norm, part = block.norm("attn"), block.part("attn")
        stream = model.values(block.at_resid[0])[block.at_resid[0]]
        other = torch.linspace(0.5, 2.0, stream.shape[1], dtype=torch.float64).expand(stream.shape[:2])
        edits = [Set(norm.at_scale, other), Add(part.at_inputs["query_in"], 0.25, at=At(head=0))]
        tape = model.tape(part.at.query, edit=edits)
        model(tape)
        # a hand-made norm: divided by the scale that was set, whatever the stream's own is
        read = norm.affine(stream + 0.25, other)
        moved = model.values(part.at.query, edit=[Set(norm.at_out, read)])[part.at.query]
        head = moved.ndim - 3
        if getattr(part.projection.norms, "__len__", None) is None or not part.projection.norms[0].couples_heads:
            close(tape.values[part.at.query].select(head, 0), moved.select(head, 0))


@every
def test_an_edited_norm_and_an_edited_input_before_it_are_refused(name: str) -> None:
    model = subject(name)
    site = next(n for n in model.model.sites() if n.endswith("query_in"))
    norm = site.replace("query_in", "norm")
    if norm not in model.model.sites():
        return
    with pytest.raises(AnalysisUnavailable, match="passes the norm by itself"):
        model(model.tape(edit=[Scale(site, 0.5), Scale(norm, 0.5)]))
    # what an MLP reads goes on through its norm as it is
    inputs = [n for n in model.model.sites() if n.endswith("mlp.in")]
    model(model.tape(edit=[Scale(n, 0.5) for n in inputs] + [Scale(n.replace(".in", ".norm"), 0.5) for n in inputs]))


def test_the_general_projection_of_single_heads_is_the_quicker_one() -> None:
    for qk_norm in QUERY_KEY_NORMS:
        for bias, clip in ((True, None), (False, 0.7)):
            config = Attention(4, 2, 4, 6, projection=Separate(bias=bias, qk_norm=qk_norm, clip=clip))
            projection = randomise(config.build(12, 32, 0, "").double().projection, 3)
            x = torch.randn(2, 3, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
            chosen: dict[Literal["query", "key", "value"], list[int]] = {
                "query": [3, 1],
                "key": [1, 0],
                "value": [0, 1],
            }
            for which, heads in chosen.items():
                quick = projection.of_heads(which, x, torch.tensor(heads))
                close(quick, Projection.of_heads(projection, which, x, torch.tensor(heads)))


@pytest.mark.parametrize("name", ["gpt2", "differential", "smeared", "lightning_hybrid"])
def test_steps_with_a_state_and_edited_inputs_equal_one_pass(name: str) -> None:
    model = subject(name)
    (tokens,) = model.inputs
    edit = [Scale("blocks.1.attn.key_in", 0.5, at=At(kv_head=0)), Add("blocks.0.attn.query_in", 0.5, at=At(head=1))]
    whole = model(model.tape(edit=edit))
    state, pieces = model.model.begin(2), []
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        logits, state = model.model(tokens[:, start:stop], state=state, tape=model.tape(edit=edit))
        pieces.append(logits)
    close(torch.cat(pieces, 1), whole)


def test_what_an_edit_replaces_is_not_worked_out() -> None:
    config = DecoderConfig(7, 8, (block(n_heads=2, mlp=Mlp(6)),) * 2, max_len=5, positions=Learned())
    model = randomise(config.build().double().eval())
    ran: list[str] = []
    for i, stacked in enumerate(model.stack.blocks):
        stacked.part("attn").register_forward_hook(lambda *_, i=i: ran.append(f"attn {i}"))  # type: ignore[operator, union-attr]
    tokens = torch.tensor([[1, 4, 2]])
    given = torch.randn(1, 3, 8, dtype=torch.float64)
    zeroed = [Set("blocks.1.attn.out", given)]
    quick = model(tokens, tape=Tape(model, edit=zeroed))
    assert ran == ["attn 0"]
    # looked into, it is worked out all the same
    tape = Tape(model, ["blocks.1.attn.z"], zeroed)
    assert torch.equal(model(tokens, tape=tape), quick) and ran[1:] == ["attn 0", "attn 1"]
    assert torch.equal(model(tokens, tape=Tape(model, edit=[Apply("blocks.1.attn.out", lambda _: given)])), quick)


class OpenedMixer(SoftmaxMixer):
    """Softmax whose rows are multiplied by what one coordinate of the layer's input opens."""

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        return super().pattern(q, k, x, context, tape) * x[:, None, :, :1].sigmoid()

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        return self.dense(q, k, v, x, context, tape)


@pytest.fixture
def opened() -> Iterator[Compared]:
    """Two prompts for a model with a mechanism that reads the layer's input."""

    @dataclass(frozen=True)
    class Opened(Softmax, kind="opened"):
        @property
        def traits(self) -> Traits:  # type: ignore[override]
            return Traits(has_scores=True, reads_input=True)

        def build(self, dims: Dims, path: str) -> OpenedMixer:
            return OpenedMixer(self, dims, path)

    layers = (block(Opened(), n_heads=2, mlp=Mlp(6)),) * 2
    config = DecoderConfig(11, 12, layers, max_len=9, positions=Learned())
    yield Compared(drawn("opened", config, length=5))
    del MixerConfig.registry["opened"]


def test_what_a_mechanism_reads_besides_is_a_site(opened: Compared) -> None:
    model, tokens = opened.model, opened.clean[0]
    site = "blocks.1.attn.mix_in"
    assert list(model.sites("*mix_in")) == ["blocks.0.attn.mix_in", site]

    def read(*edit: object) -> dict[str, Tensor]:
        tape = Tape(model, ["blocks.1.attn.query", "blocks.1.attn.pattern", site], list(edit))  # type: ignore[arg-type]
        model(tokens, tape=tape)
        return tape.values

    plain = read()
    other = torch.randn(plain[site].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, norm = read(Set(site, other)), model.stack.blocks[1].norm("attn")
    assert torch.equal(found["blocks.1.attn.query"], plain["blocks.1.attn.query"])
    ratio = norm(other)[:, None, :, :1].sigmoid() / norm(plain[site])[:, None, :, :1].sigmoid()
    close(found["blocks.1.attn.pattern"], plain["blocks.1.attn.pattern"] * ratio)


def test_gradients_at_what_a_mechanism_reads_are_those_of_what_comes_after(opened: Compared) -> None:
    model, tokens = opened.model, opened.clean[0]
    site = "blocks.0.attn.mix_in"
    tape = Tape(model, [site, "blocks.0.attn.query_in"], grad=True)
    total = model(tokens, tape=tape)[:, -1, 3].sum()
    (found,) = torch.autograd.grad(total, tape.values[site])
    variable = tape.values[site].detach().clone().requires_grad_()
    alone = model(tokens, tape=Tape(model, edit=[Set(site, variable)]))[:, -1, 3].sum()
    close(found, torch.autograd.grad(alone, variable)[0])


def test_circuits_know_what_a_mechanism_reads_besides(opened: Compared) -> None:
    runs = opened.runs()
    assert "L1 attn.mix" in [receiver.label for receiver in runs.graph.receivers]
    everything = runs.graph.allowed.values
    expected = opened.value(opened.model(*opened.corrupt))
    close(runs.evaluate(everything[None])[0], expected)
    # the last heads are read, and so is what they read besides, in one of two worlds
    mix, last = runs.graph.receiver("L1 attn.mix"), [runs.graph.sender(f"L1H{head}") for head in range(2)]
    everything = everything.clone()
    everything[:, last] = False
    rest = everything.clone()
    rest[mix] = False
    found = runs.evaluate(torch.stack([everything, rest]))
    assert (found[0] - found[1]).abs().max() > 1e-6


@pytest.mark.parametrize("kind", sorted(MixerConfig.registry))
def test_a_mechanism_that_does_not_say_so_reads_no_input(kind: str) -> None:
    layer = Layer(randomise(Attention(2, mixer=MixerConfig.registry[kind]()).build(12, 32, 0, "").double().eval()))  # type: ignore[call-arg]
    x = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q, k, v = layer.module.projection.heads(x, x, x)
    read, poisoned = (
        layer.mixer(q, k, v, given, layer.context(x), None, None)[0] for given in (x, torch.full_like(x, torch.nan))
    )
    assert torch.equal(read, poisoned) != layer.mixer.traits.reads_input
