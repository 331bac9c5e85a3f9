"""Smeared keys: what they do to scores, where they stop, and the one layer that completes repetitions with them."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer import weights
from glassformer.attention import Alibi, Attention, AttentionLayer, Rope, Separate, Smeared
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.handmade import repeated, smeared_induction_model
from glassformer.models import Decoder, DecoderConfig, block, generate
from glassformer.models.sampling import GREEDY
from glassformer.testing import close
from glassformer.testing.layers import Layer, causal_context, layer_sizes, randomise, seeds, stream
from glassformer.testing.models import subject


def losses(model: Decoder, ids: torch.Tensor) -> torch.Tensor:
    return -model(ids)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1).detach()


def unsmeared(module: AttentionLayer) -> Layer:
    """The same layer with keys left as they are."""
    plain = module.config.replace(projection=Separate(bias=True)).build(12, 32, 0, "").double().eval()
    plain.load_state_dict(module.state_dict(), strict=False)
    return Layer(plain)


@given(layer_sizes, seeds, st.integers(1, 6))
def test_scores_are_a_mixture_of_the_scores_at_two_offsets(layout, seed: int, n: int) -> None:
    config = Attention(layout.n_heads, layout.n_kv_heads, layout.d_head, layout.d_value, projection=Smeared(bias=True))
    layer = Layer(randomise(config.build(12, 32, 0, "").double().eval(), seed))
    x = stream(1, n, seed)
    found = layer.read(x, "scores")["scores"]
    smear = layer.module.projection.smear
    # what the future may not see is -inf at either offset
    plain = unsmeared(layer.module).read(x, "scores")["scores"]
    share = smear.share.detach().double().repeat_interleave(layout.n_heads // layout.n_kv_heads)[:, None, None]
    shifted = torch.cat((plain[..., :1], plain[..., :-1]), -1)
    seen = torch.ones(n, n).tril().bool()
    close(found[..., seen], (share * plain + (1 - share) * shifted)[..., seen])


def test_a_share_of_one_leaves_everything_as_it_was() -> None:
    found = subject("smeared")
    for name, parameter in found.model.named_parameters():
        if name.endswith("alpha"):
            parameter.data.fill_(60.0)
    smeared = found()
    layers = tuple(
        layer.replace(parts=tuple(p.replace(projection=Separate()) if p.role == "attn" else p for p in layer.parts))
        for layer in found.model.config.layers
    )
    plain = found.model.config.replace(layers=layers).build().double().eval()
    plain.load_state_dict(found.model.state_dict(), strict=False)
    close(smeared, plain(*found.inputs))


def test_each_document_begins_with_a_key_of_its_own() -> None:
    model = _softmax_model()
    first, second = torch.tensor([[3, 1, 4, 1]]), torch.tensor([[5, 9, 2]])
    packed = model(torch.cat((first, second), 1), documents=torch.tensor([[0, 0, 0, 0, 1, 1, 1]]))
    close(packed[:, :4], model(first))
    close(packed[:, 4:], model(second))


def test_rows_padded_on_the_left_continue_as_they_would_alone() -> None:
    model = _softmax_model()
    rows = [[3, 1, 4, 1, 5], [9, 2]]
    together = generate(model, rows, GREEDY, max_new_tokens=5).tokens
    alone = [generate(model, [row], GREEDY, max_new_tokens=5).tokens[0] for row in rows]
    assert [list(row) for row in together] == [list(row) for row in alone]


def test_the_shares_receive_gradients() -> None:
    model = _softmax_model()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    first: Any = model.stack.blocks[0].attn
    smear = first.projection.smear

    def loss(alpha: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, {"stack.blocks.0.attn.projection.smear.alpha": alpha}, (ids,)).sum()

    start = smear.alpha.detach().clone().requires_grad_(True)
    assert torch.autograd.gradcheck(loss, (start,))
    assert torch.autograd.grad(loss(start), start)[0].abs().min() > 0


def test_one_smeared_layer_completes_repetitions() -> None:
    found = losses(smeared_induction_model(), repeated(22, batch=3, gap=True))
    close(found[:, :21], torch.full_like(found[:, :21], math.log(22)), 1e-3)
    assert found[:, 22:].max() < 1e-6


def test_the_same_layer_without_smearing_repeats_the_current_token() -> None:
    found = losses(smeared_induction_model(share=1.0), repeated(22, batch=3, gap=True))
    close(found[:, 22:], torch.full_like(found[:, 22:], 50.0), 1e-3)


def test_weights_refuse_qk_of_smeared_keys_and_keep_everything_else() -> None:
    model = subject("smeared").model
    w = weights.of(model)
    with pytest.raises(AnalysisUnavailable, match=r"smears its keys.*two bilinear forms"):
        w["L0H0"].qk(0)
    assert w["L0H0"].ov().shape[-1] == 16
    ids = torch.tensor([[1, 2, 3, 1, 2]])
    for folded in (False, True):
        close(weights.logits(weights.of(model, fold=folded), ids).log_softmax(-1), model(ids).log_softmax(-1), 1e-8)


def test_smearing_is_refused_in_cross_attention() -> None:
    with pytest.raises(ConfigError, match="another sequence's"):
        Attention(2, projection=Smeared(), cross=True)


@pytest.mark.parametrize("positions", [Rope(), Rope(pairing="interleaved"), Alibi()], ids=str)
def test_keys_are_mixed_before_positions_enter(positions) -> None:
    layer = Layer(randomise(Attention(2, positions=positions, projection=Smeared()).build(12, 32, 0, "").double()))
    x = stream(1, 5)
    module = layer.module
    q, k, _ = module.projection.heads(x, x, x)
    k = torch.stack(
        [k[..., j, :] if j == 0 else _mixed(module, k[..., j, :], k[..., j - 1, :]) for j in range(5)], dim=-2
    )
    turned = module.positions.rotate(q, k, causal_context(x))[1]
    assert turned is not None
    close(layer.read(x, "key")["key"], turned)


def _mixed(module, key: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    share = module.projection.smear.share[:, None]
    return share * key + (1 - share) * before


def _softmax_model() -> Decoder:
    layer = block(n_heads=4, n_kv_heads=2, positions=Rope(), smeared=True)
    return randomise(DecoderConfig(11, 16, (layer,) * 2, max_len=24).build().double().eval(), std=0.3)
