"""Ours against torch's own modules, with copied weights: outputs, intermediate sites and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.attention import Attention, Merge, QueryKeyNorm, Rope, Separate, Softmax, Tied, causal
from glassformer.attention.positions.rope_scaling import plain_frequencies
from glassformer.models import EncoderDecoderConfig, LayerNorm, Mlp, NoNorm, RmsNorm, block
from glassformer.models.stack import make_context, with_source
from glassformer.testing import close
from glassformer.testing.layers import Layer, causal_context, randomise, stream
from glassformer.trace import Tape

WIDTH, HEADS = 12, 3


def copy_attention(theirs: nn.MultiheadAttention, ours: Any) -> None:
    ours.projection.qkv.load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    ours.merge.output.load_state_dict(theirs.out_proj.state_dict())


def attention(cross: bool = False) -> tuple[nn.MultiheadAttention, Layer]:
    theirs = randomise(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double())
    config = Attention(HEADS, projection=Separate(bias=True), merge=Merge(bias=True), cross=cross)
    ours = Layer(config.build(WIDTH, 16, 0, "").double())
    copy_attention(theirs, ours.module)
    return theirs, ours


@pytest.mark.parametrize("lengths", [None, [3, 5]])
def test_self_attention_equals_torchs(lengths: list[int] | None) -> None:
    theirs, ours = attention()
    x = stream(2, 5, d_model=WIDTH).requires_grad_()
    real = None if lengths is None else torch.tensor(lengths)
    hidden = None if real is None else torch.arange(5) >= real[:, None]
    expected, pattern = theirs(
        x, x, x, key_padding_mask=hidden, attn_mask=~causal().dense(5, 5)[0, 0], average_attn_weights=False
    )
    tape = ours.tape("pattern")
    out = ours(x, causal_context(x, lengths=real), tape=tape)
    close(out, expected)
    close(tape.values["pattern"], pattern)
    found, reference = (torch.autograd.grad(u.square().sum(), x)[0] for u in (out, expected))
    close(found, reference)


def without_gains(of: Any = "both", eps: float | None = None, **kwargs: Any) -> Layer:
    norm = QueryKeyNorm(gains="none", of=of, eps=eps)
    config = Attention(HEADS, projection=Separate(bias=True, qk_norm=norm), merge=Merge(bias=True), **kwargs)
    return Layer(randomise(config.build(WIDTH, 16, 0, "").double()))


def copy_separately(theirs: Any, ours: Any, names: tuple[str, str, str]) -> None:
    for name, weight, bias in zip(names, *(part.split(WIDTH) for part in (ours.qkv.weight, ours.qkv.bias))):
        own = getattr(theirs, name)
        own.weight.copy_(weight)
        if own.bias is not None:
            own.bias.copy_(bias)
        else:
            bias.zero_()


def test_cosine_attention_equals_that_of_swin_v2() -> None:
    """Every head at the temperature that theirs begin with; their position bias is the same for all keys here."""
    swin = pytest.importorskip("transformers.models.swinv2.modeling_swinv2")
    config = swin.Swinv2Config(qkv_bias=True, attention_probs_dropout_prob=0.0)
    theirs = swin.Swinv2SelfAttention(config, WIDTH, HEADS, 3).double()
    ours = without_gains(mixer=Softmax(scale=float(theirs.logit_scale.detach().exp()[0]) * HEADS / WIDTH))
    with torch.no_grad():
        copy_separately(theirs, ours.module.projection, ("query", "key", "value"))
        for parameter in theirs.continuous_position_bias_mlp.parameters():
            parameter.zero_()
    x = stream(2, 9, d_model=WIDTH).requires_grad_()
    mixed, pattern = theirs(x, output_attentions=True)
    both_ways = make_context(2, 9, x.device, is_causal=False)
    tape = ours.tape("pattern", grad=True)
    out = ours(x, both_ways, tape=tape)
    close(tape.values["pattern"], pattern, 1e-6)
    close(out, ours.module.merge.output(mixed), 1e-6)
    found, reference = (
        torch.autograd.grad(p.square().sum(), x, retain_graph=True)[0] for p in (tape.values["pattern"], pattern)
    )
    close(found, reference, 1e-6)


def test_norms_without_gains_equal_nanochats_which_come_behind_rotation() -> None:
    nano = pytest.importorskip("transformers.models.nanochat.modeling_nanochat")
    config = nano.NanoChatConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, attention_bias=True,
        attn_implementation="eager",
    )  # fmt: skip
    theirs, ours = nano.NanoChatAttention(config, 0).double(), without_gains(eps=1e-6, positions=Rope())
    with torch.no_grad():
        copy_separately(theirs, ours.module.projection, ("q_proj", "k_proj", "v_proj"))
    theirs.o_proj.load_state_dict(ours.module.merge.output.state_dict())
    x = stream(2, 5, d_model=WIDTH)
    angle = torch.arange(5.0, dtype=torch.float64)[:, None] * plain_frequencies(10000.0, WIDTH // HEADS)
    cos, sin = (torch.cat((u, u), -1)[None] for u in (angle.cos(), angle.sin()))
    hidden = torch.full((5, 5), float("-inf"), dtype=torch.float64).triu(1)
    # theirs turn the other way round, and norm in single precision
    expected, pattern = theirs(x, (cos, -sin), hidden[None, None])
    values = ours.read(x, "pattern", "out")
    close(values["pattern"], pattern, 1e-6)
    close(values["out"], expected, 1e-6)


def test_keys_that_are_queries_of_unit_length_are_reformers() -> None:
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    projection = Tied(qk_norm=QueryKeyNorm(gains="none", of="keys", eps=1e-6))
    layer = Layer(randomise(Attention(HEADS, projection=projection).build(WIDTH, 16, 0, "").double()))
    found, root = layer.read(stream(2, 5, d_model=WIDTH), "query", "key"), (WIDTH / HEADS) ** 0.5
    theirs = reformer.LSHSelfAttention(reformer.ReformerConfig())
    # theirs divide keys, ours scores, by the root of the width
    close(found["key"] / root, theirs._len_and_dim_norm(found["query"], root))


def test_cross_attention_equals_torchs() -> None:
    theirs, ours = attention(cross=True)
    x, source = stream(2, 5, d_model=WIDTH), stream(2, 4, 3, d_model=WIDTH).requires_grad_()
    real = torch.tensor([2, 4])
    expected, pattern = theirs(
        x, source, source, key_padding_mask=torch.arange(4) >= real[:, None], average_attn_weights=False
    )
    tape = ours.tape("pattern")
    out = ours(x, with_source(causal_context(x), 4, real), source=source, tape=tape)
    close(out, expected)
    close(tape.values["pattern"], pattern)
    found, reference = (torch.autograd.grad(u.square().sum(), source)[0] for u in (out, expected))
    close(found, reference)


def transformer(norm_first: bool) -> tuple[nn.Transformer, Any]:
    """Return torch's transformer and ours with the same weights; ours has embeddings on top."""
    theirs = nn.Transformer(WIDTH, HEADS, 2, 2, 20, dropout=0.0, norm_first=norm_first, batch_first=True)
    # torch adds a final norm to either wiring
    randomise(theirs.double().eval(), std=0.3)
    shared: dict[str, Any] = {"n_heads": HEADS, "mlp": Mlp(20, "relu"), "bias": True}
    shared["wiring"] = "pre" if norm_first else "post"
    config = EncoderDecoderConfig(
        11, WIDTH, (block(**shared),) * 2, (block(cross=True, **shared),) * 2, 16, final_norm=LayerNorm(), tied=False
    )
    ours = randomise(config.build().double().eval(), std=0.3)
    end = "norm" if norm_first else "norm_after"
    pairs: list[tuple[Any, Any]] = [(ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)]
    for stack, layers in pairs:
        stack.final.load_state_dict(layers.norm.state_dict())
        for mine, layer in zip(stack.blocks, layers.layers):
            parts = ["attn", "cross", "mlp"] if hasattr(layer, "multihead_attn") else ["attn", "mlp"]
            copy_attention(layer.self_attn, mine.part("attn"))
            if "cross" in parts:
                copy_attention(layer.multihead_attn, mine.part("cross"))
            mine.part("mlp").input.load_state_dict(layer.linear1.state_dict())
            mine.part("mlp").output.load_state_dict(layer.linear2.state_dict())
            for i, name in enumerate(parts, 1):
                norm = mine.get_submodule(f"{name}_{end}")
                norm.load_state_dict(getattr(layer, f"norm{i}").state_dict())
    return theirs, ours


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_an_encoder_decoder_equals_torchs(norm_first: bool) -> None:
    theirs, ours = transformer(norm_first)
    source, tokens = torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (2, 5))
    source_lengths = torch.tensor([4, 6])
    hidden = torch.arange(6) >= source_lengths[:, None]

    tape = Tape(ours, ["*.embed.*", "encoder.final.norm", "*.blocks.0.resid_*"], grad=True)
    logits = ours(source, tokens, source_lengths=source_lengths, tape=tape)
    entering = [
        (tape.values[f"{side}.embed.token"] + tape.values[f"{side}.embed.position"]).detach().requires_grad_()
        for side in ("encoder", "decoder")
    ]
    memory = theirs.encoder(entering[0], src_key_padding_mask=hidden)
    first = theirs.decoder.layers[0](
        entering[1], memory, tgt_mask=~causal().dense(5, 5)[0, 0], memory_key_padding_mask=hidden
    )
    out = theirs.decoder(entering[1], memory, tgt_mask=~causal().dense(5, 5)[0, 0], memory_key_padding_mask=hidden)
    expected = out @ ours.unembed.weight.T

    # padded source positions are don't-cares: torch's fast path zeroes them
    real = ~hidden
    close(tape.values["encoder.final.norm"][real], memory[real])
    close(tape.values["decoder.blocks.0.resid_post"], first)
    close(logits, expected)
    streams = [tape.values[f"{side}.blocks.0.resid_pre"] for side in ("encoder", "decoder")]
    found = torch.autograd.grad(logits.square().sum(), streams)
    for mine, reference in zip(found, torch.autograd.grad(expected.square().sum(), entering)):
        close(mine, reference)


def test_norms_equal_torchs() -> None:
    x: Tensor = stream(2, 5, d_model=WIDTH)
    for config, theirs in ((LayerNorm(1e-3), nn.LayerNorm(WIDTH, 1e-3)), (RmsNorm(1e-3), nn.RMSNorm(WIDTH, 1e-3))):
        randomise(theirs.double())
        ours = config.build(WIDTH, "final", None).double()
        ours.load_state_dict(theirs.state_dict())
        close(ours(x), theirs(x))
        close(ours.affine(x, ours.scale(x)), theirs(x))
    assert NoNorm().build(WIDTH, "final", None)(x) is x
