"""The Annotated Transformer, Llama 3 and differential attention, from their formulas: every class is what ours is."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import glassformer as gf
from glassformer.book import articles_code
from glassformer.testing import close
from glassformer.testing.layers import Layer, randomise, stream

SOURCE, TARGET = torch.tensor([[3, 1, 4, 1, 5], [6, 2, 6, 0, 0]]), torch.tensor([[2, 7, 1, 8], [3, 3, 0, 5]])
SEEN = torch.tensor([5, 3])
Parameters = Mapping[str, Tensor]


def annotated(p: Parameters, h: int, layers: int, eps: float) -> dict[str, Tensor]:
    """What each class of the Annotated Transformer returns, by the site of ours, from our parameters."""
    found: dict[str, Tensor] = {}
    d = len(p["encoder.final.bias"])

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def layer_norm(x: Tensor, name: str) -> Tensor:
        gain = p[f"{name}.weight"] * math.sqrt(d / (d - 1))
        return gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + p[f"{name}.bias"]

    def multi_headed_attention(x: Tensor, memory: Tensor, mask: Tensor, name: str) -> Tensor:
        w, b = (p[f"{name}.projection.qkv.{of}"].chunk(3) for of in ("weight", "bias"))
        q, k, v = (
            (y @ w[i].T + b[i]).unflatten(-1, (h, d // h)).transpose(1, 2) for i, y in enumerate((x, memory, memory))
        )
        found[f"{name}.pattern"] = (q @ k.mT / math.sqrt(d // h)).masked_fill(mask == 0, -1e9).softmax(-1)
        mixed = (found[f"{name}.pattern"] @ v).transpose(1, 2).flatten(-2)
        return linear(mixed, f"{name}.merge.output")

    def feed_forward(x: Tensor, name: str) -> Tensor:
        return linear(linear(x, f"{name}.input").relu(), f"{name}.output")

    def embedded(ids: Tensor, stack: str) -> Tensor:
        place, pair = torch.arange(ids.shape[1], dtype=torch.float64), torch.arange(0, d, 2, dtype=torch.float64)
        angle = place[:, None] * torch.exp(pair * -(math.log(10000.0) / d))
        found[f"{stack}.embed.token"] = p[f"{stack}_embed.matrix"][ids] * math.sqrt(d)
        found[f"{stack}.embed.position"] = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
        return found[f"{stack}.embed.token"] + found[f"{stack}.embed.position"]

    def stacked(x: Tensor, stack: str, own: Tensor, memory: Tensor | None = None, source: Any = None) -> Tensor:
        for i in range(layers):
            at = f"{stack}.blocks.{i}"
            found[f"{at}.attn.norm"] = y = layer_norm(x, f"{at}.attn_norm")
            found[f"{at}.attn.out"] = multi_headed_attention(y, y, own, f"{at}.attn")
            x = x + found[f"{at}.attn.out"]
            found[f"{at}.resid_mid" if memory is None else f"{at}.resid_mid_0"] = x
            if memory is not None:
                found[f"{at}.cross.out"] = multi_headed_attention(
                    layer_norm(x, f"{at}.cross_norm"), memory, source, f"{at}.cross"
                )
                x = x + found[f"{at}.cross.out"]
            found[f"{at}.mlp.out"] = feed_forward(layer_norm(x, f"{at}.mlp_norm"), f"{at}.mlp")
            found[f"{at}.resid_post"] = x = x + found[f"{at}.mlp.out"]
        found[f"{stack}.final.norm"] = layer_norm(x, f"{stack}.final")
        return found[f"{stack}.final.norm"]

    seen = (torch.arange(5) < SEEN[:, None])[:, None, None]
    memory = stacked(embedded(SOURCE, "encoder"), "encoder", seen)
    out = stacked(embedded(TARGET, "decoder"), "decoder", torch.ones(4, 4).tril()[None, None], memory, seen)
    found["logits"] = (out @ p["unembed.matrix"].T + p["unembed.bias"]).log_softmax(-1)
    return found


def small(eps: float = 0.0) -> Any:
    config = articles_code.annotated_transformer(7, 9, N=2, d_model=8, d_ff=12, h=2, eps=eps)
    return randomise(config.build().double().eval(), std=0.5)


def real(name: str, value: Tensor) -> Tensor:
    """What a site holds at real tokens of the source; at padding it means nothing."""
    return value if not name.startswith("encoder.") or "position" in name else value[..., :3, :]


def test_every_class_of_the_annotated_transformer_returns_what_our_site_holds() -> None:
    model = small()
    expected = annotated(dict(model.named_parameters()), 2, 2, 0.0)
    # those that the page names, in place of the layer's number
    page = (Path(__file__).parents[2] / "docs" / "book" / "articles-code.md").read_text(encoding="utf-8")
    table = page.partition("| class |")[2].partition("\n\n")[0]
    named = {site.replace(".i.", ".1.") for site in re.findall(r"`((?:encoder|decoder)\.[\w.]+|logits)`", table)}
    assert len(named) > 10 and named <= expected.keys()
    run: Any = gf.run(model, SOURCE, TARGET, read=[site for site in expected if site != "logits"], lengths=SEEN)
    for name, value in expected.items():
        ours = run.logits.log_softmax(-1) if name == "logits" else run[name].values
        close(real(name, ours), real(name, value.expand_as(ours)))


def test_gradients_of_the_annotated_transformer_are_those_of_ours() -> None:
    model = small()
    weight = torch.sin(torch.arange(2 * 4 * 9, dtype=torch.float64)).view(2, 4, 9)
    theirs = annotated(dict(model.named_parameters()), 2, 2, 0.0)["logits"]
    run: Any = gf.run(model, SOURCE, TARGET, lengths=SEEN, grad=True)
    ours = run.logits.log_softmax(-1)
    parameters = list(model.parameters())
    for one, other in zip(*(torch.autograd.grad((out * weight).sum(), parameters) for out in (ours, theirs))):
        close(one, other, 1e-9)


def test_what_its_norms_add_to_the_deviation_changes_a_millionth() -> None:
    model = small()
    parameters = dict(model.named_parameters())
    exact, added = (annotated(parameters, 2, 2, eps)["logits"] for eps in (0.0, 1e-6))
    assert 0 < (exact - added).abs().max() < 1e-4


def test_dropout_of_make_model_stands_in_four_places_and_its_rate_in_three() -> None:
    config: Any = articles_code.annotated_transformer(7, 9, N=1, d_model=8, d_ff=12, h=2, dropout=0.3)
    attention, mlp = config.encoder_layers[0].parts
    rates = config.embed_dropout, config.encoder_layers[0].dropout, mlp.dropout
    assert rates == (0.3, 0.3, 0.3) and attention.dropout == 0.1


def test_without_arguments_it_is_the_published_llama() -> None:
    published = gf.models.preset("llama3-8b")
    ours = articles_code.llama()
    assert [block.parts[1] for block in ours.layers] == [block.parts[1] for block in published.layers]
    # the same up to which numbers turn together
    assert gf.models.accounting.count_parameters(ours) == gf.models.accounting.count_parameters(published)


def llama(p: Parameters, ids: Tensor, heads: int, kv_heads: int, layers: int, theta: float, eps: float) -> Tensor:
    """Logits of the code of Llama 3, from our parameters: wq, wk and wv lie in one matrix."""
    n, d = ids.shape[1], p["embed.matrix"].shape[1]
    width = d // heads
    angle = torch.arange(n)[:, None] / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    turn = torch.polar(torch.ones_like(angle), angle)
    mask = torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)

    def rms_norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * p[f"{name}.weight"]

    def turned(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)

    x = p["embed.matrix"][ids]
    for i in range(layers):
        at = f"stack.blocks.{i}"
        y = rms_norm(x, f"{at}.attn_norm")
        q, k, v = (
            (y @ w.T).unflatten(-1, (-1, width)).transpose(1, 2)
            for w in p[f"{at}.attn.projection.qkv.weight"].split([d, kv_heads * width, kv_heads * width])
        )
        k, v = (u.repeat_interleave(heads // kv_heads, 1) for u in (turned(k), v))
        mixed = (turned(q) @ k.mT / math.sqrt(width) + mask).softmax(-1) @ v
        x = x + mixed.transpose(1, 2).flatten(-2) @ p[f"{at}.attn.merge.output.weight"].T
        y = rms_norm(x, f"{at}.mlp_norm")
        w1, w2, w3 = (p[f"{at}.mlp.{name}.weight"] for name in ("gate", "output", "input"))
        x = x + (F.silu(y @ w1.T) * (y @ w3.T)) @ w2.T
    return rms_norm(x, "stack.final") @ p["unembed.matrix"].T


def test_the_code_of_llama_gives_our_logits_and_gradients_whole_and_from_a_cache() -> None:
    config = articles_code.llama(
        dim=16, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=11, multiple_of=8, rope_theta=100.0, max_seq_len=16
    )
    model: Any = randomise(config.build().double().eval(), std=0.4)
    theirs = llama(dict(model.named_parameters()), TARGET, 4, 2, 2, 100.0, 1e-5)
    close(model(TARGET), theirs)
    weight = torch.cos(torch.arange(theirs.numel(), dtype=torch.float64)).view_as(theirs)
    parameters = list(model.parameters())
    for one, other in zip(*(torch.autograd.grad((out * weight).sum(), parameters) for out in (model(TARGET), theirs))):
        close(one, other, 1e-9)
    # start_pos: how much the state holds
    first, state = model(TARGET[:, :3], state=model.begin(2))
    second, _ = model(TARGET[:, 3:], state=state)
    close(torch.cat([first, second], 1), theirs)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
def test_the_code_of_differential_attention_gives_ours_in_a_row(heads: int, kv_heads: int) -> None:
    width, depth = 32, 3
    module = articles_code.differential(width, depth, heads, kv_heads).build(width, 16, 0, "")
    ours, x = Layer(randomise(module.double().eval())), stream(2, 5, d_model=width).requires_grad_()
    p = dict(module.named_parameters())
    d, repeats, start = width // heads // 2, heads // kv_heads, 0.8 - 0.6 * math.exp(-0.3 * depth)
    rows = p["projection.qkv.weight"].split([width, width // repeats, width // repeats])
    q, k = ((x @ w.T).unflatten(-1, (-1, d)).transpose(1, 2) for w in rows[:2])
    v = (x @ rows[2].T).unflatten(-1, (-1, 2 * d)).transpose(1, 2).repeat_interleave(repeats, 1)
    angle = torch.arange(5)[:, None] / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    turn = torch.polar(torch.ones_like(angle), angle)
    q, k = (
        torch.view_as_real(torch.view_as_complex(u.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)
        for u in (q, k)
    )
    scores = (q * d**-0.5) @ k.repeat_interleave(repeats, 1).mT
    weights = (scores + torch.full((5, 5), -math.inf, dtype=torch.float64).triu(1)).softmax(-1).unflatten(1, (heads, 2))
    q1, k1, q2, k2 = p["mixer.lambdas"]
    full = torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + start
    z = (weights[:, :, 0] - full * weights[:, :, 1]) @ v
    z = z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-5) * p["merge.gain"] * (1 - start)
    theirs = z.transpose(1, 2).flatten(-2) @ p["merge.output.weight"].T
    close(ours(x), theirs, 1e-13)
    one, other = (torch.autograd.grad(out.pow(3).sum(), x)[0] for out in (ours(x), theirs))
    close(one, other)
