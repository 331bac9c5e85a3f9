"""One token more: states around it are those of passes of any cut, and its operations are those that torch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention import (
    Attention,
    Differential,
    Latent,
    Lightning,
    Linear,
    MixerConfig,
    NeuralMemory,
    Softmax,
)
from glassformer.errors import AnalysisUnavailable
from glassformer.models import BlockConfig, DecoderConfig
from glassformer.models.accounting import state_bytes
from glassformer.models.added_token import added_token, kept_tensors, step_flops
from glassformer.models.stack import tensors
from glassformer.testing import close
from glassformer.testing.models import drawn, subject
from one_pass import in_one_pass

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
MIXERS: dict[str, tuple[MixerConfig, int]] = {
    "softmax": (Softmax(), 4),
    "windowed": (Softmax(window=3), 4),
    "grouped": (Softmax(), 2),
    "linear": (Linear(), 4),
    "lightning": (Lightning(), 4),
    "differential": (Differential(), 4),
}


def config_of(mixer: MixerConfig, kv_heads: int = 4) -> DecoderConfig:
    layer = BlockConfig((Attention(4, n_kv_heads=kv_heads, mixer=mixer),))
    return DecoderConfig(vocab_size=11, max_len=16, d_model=16, layers=(layer, layer))


@in_one_pass
@pytest.mark.parametrize("name", MIXERS)
def test_a_token_more_leaves_the_state_of_one_pass_over_all_tokens(name: str) -> None:
    config = config_of(*MIXERS[name])
    model = drawn(name, config, batch=1).model
    states = added_token(model, IDS, 4)
    with torch.no_grad():
        _, whole = model(IDS[:, :5], state=model.begin(1))
    for ours, theirs in zip(tensors(states.after.layers), tensors(whole.layers), strict=True):
        close(ours, theirs)
    sizes = [sum(one.nbytes for one in tensors(state.layers)) for state in states[:2]]
    assert sizes == [state_bytes(config, n, torch.float64) for n in (4, 5)] and not states.reread


@in_one_pass
@pytest.mark.parametrize("name", MIXERS)
def test_operations_of_one_position_are_those_that_torch_counts(name: str) -> None:
    config = config_of(*MIXERS[name])
    with torch.device("meta"):
        model, ids = config.build().eval(), torch.zeros(1, 6, dtype=torch.int64)
        before = added_token(model, ids, 5).before
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(ids[:, 5:], state=before)
    layers = [layer.attention for layer in model.sub_layers()]
    ours = sum(sum(step_flops(layer, 6).values()) for layer in layers if layer is not None)
    assert ours + 2 * 16 * 11 == counter.get_total_flops()


def test_tensors_of_a_state_are_named_by_the_way_that_leads_to_them() -> None:
    expected = {
        "softmax": {"mixer.key": ("batch", "kv_head", "key", "d_head")},
        "differential": {"mixer.key": ("batch", "stream", "kv_head", "key", "d_head")},
        "linear": {"mixer.memory": ("batch", "head", "feature", "value")},
    }
    for name, known in expected.items():
        model = drawn(name, config_of(*MIXERS[name]), batch=1).model
        found = kept_tensors(added_token(model, IDS, 2).after.layers[0][0])
        assert {path: found[path].axes for path in known} == known
    model = drawn("memory", config_of(NeuralMemory()), batch=1).model
    found = kept_tensors(added_token(model, IDS, 2).after.layers[0][0])
    assert found["mixer.weights[0]"].axes == ("axis_0", "axis_1", "axis_2", "axis_3")


def test_what_carries_nothing_or_keeps_what_keys_are_made_of_is_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match="reads a text whole"):
        _ = added_token(subject("masked_pre", batch=1).model, IDS, 2)
    layer = BlockConfig((Attention(4, projection=Latent(rank=4)),))
    model = DecoderConfig(vocab_size=11, max_len=16, d_model=16, layers=(layer,)).build()
    attention = model.sub_layers()[0].attention
    assert attention is not None
    with pytest.raises(AnalysisUnavailable, match='"latent" keeps what keys and values are made of'):
        _ = step_flops(attention, 4)
