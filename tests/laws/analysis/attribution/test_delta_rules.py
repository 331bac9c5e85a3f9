"""What heads of the delta rule take from each token, held to interventions on values and to the recurrence."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.analysis import run
from glassformer.analysis.attribution import direct_logit_attribution, source_effects
from glassformer.attention import Delta, GatedDelta, Lightning, MixerConfig
from glassformer.models import Decoder, DecoderConfig, NoNorm, block, published_block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.trace import At, Scale

RULES = [Delta(chunk=3), GatedDelta(chunk=3)]
TOKENS = [1, 2, 3, 1, 4, 2, 5]


def decoder(mixer: MixerConfig, n_layers: int = 2, *, published: bool = False) -> Decoder:
    """Return a decoder whose logits are a sum of what is written, with no norm in between."""
    make: Any = published_block if published else lambda mixer, i, **given: block(mixer, **given)
    layers = tuple(make(mixer, i, n_heads=2, norm=NoNorm()) for i in range(n_layers))
    config = DecoderConfig(11, 8, layers, tied=False, max_len=8, final_norm=NoNorm())
    return randomise(config.build().double().eval(), 1, std=0.4)


def logit(model: Decoder, *edit: Any, position: int = -1) -> Tensor:
    found = run(model, [TOKENS], edit=list(edit)).logits
    assert found is not None
    return found[0, position, 3].detach()


@pytest.mark.parametrize("mixer", RULES, ids=lambda mixer: mixer.kind)
def test_what_a_head_takes_from_a_token_is_what_taking_its_value_away_takes_from_the_logit(mixer: MixerConfig) -> None:
    """What other tokens erase of it is the same with it and without."""
    model = decoder(mixer)
    found = source_effects(run(model, [TOKENS], read=[source_effects]), answer=3)
    for head in range(2):
        taken = found[f"L1H{head}"].values
        for key in range(len(TOKENS)):
            without = logit(model, Scale("blocks.1.attn.value", 0.0, at=At(kv_head=head, key=key)))
            close(taken[key], logit(model) - without)


@pytest.mark.parametrize("mixer", RULES, ids=lambda mixer: mixer.kind)
def test_what_heads_take_is_the_recurrence_with_one_value_at_a_time(mixer: MixerConfig) -> None:
    model = decoder(mixer, 1)
    part: Any = model.stack.blocks[0].part("attn")
    names = ["query", "key", "value", "beta", *(["log_decay"] if mixer.kind == "gated_delta" else [])]
    read = run(model, [TOKENS], read=[f"blocks.0.attn.{name}" for name in names])
    seen = {name: read[f"blocks.0.attn.{name}"].values[0] for name in names}
    q, k = part.mixer.unit(seen["query"]) / 2, part.mixer.unit(seen["key"])
    keep = seen.get("log_decay", torch.zeros_like(seen["beta"])).exp()
    direction = model.unembed.weight[3]
    found = source_effects(run(model, [TOKENS], read=[source_effects]), answer=3)
    for head in range(2):
        out = part.merge.matrix()[head]
        for key in range(len(TOKENS)):
            memory = torch.zeros(4, 4, dtype=torch.float64)
            for t in range(len(TOKENS)):
                value = seen["value"][head, t] * (t == key)
                memory = keep[head, t] * memory
                error = value - k[head, t] @ memory
                memory = memory + seen["beta"][head, t] * torch.outer(k[head, t], error)
            close(found[f"L0H{head}"].values[key], q[head, -1] @ memory @ out @ direction)


@pytest.mark.parametrize("mixer", [*RULES, Lightning(chunk=3)], ids=lambda mixer: mixer.kind)
def test_a_weight_knows_the_tokens_from_its_own_to_the_rows_and_no_others(mixer: MixerConfig) -> None:
    """Without erasure, those between count for nothing."""
    model = decoder(mixer, 1)

    def pattern(*tokens: int) -> Tensor:
        return run(model, [list(tokens)], read="blocks.0.attn.pattern")["blocks.0.attn.pattern"].values[0]

    plain, before, between = pattern(1, 2, 3, 4, 5), pattern(9, 2, 3, 4, 5), pattern(1, 2, 9, 4, 5)
    close(before[:, 1:, 1:], plain[:, 1:, 1:])
    moved = (between[:, 4, 1] - plain[:, 4, 1]).abs()
    assert (moved > 1e-4).all() if mixer.kind != "lightning" else (moved < 1e-14).all()


@pytest.mark.parametrize("mixer", RULES, ids=lambda mixer: mixer.kind)
def test_published_heads_sum_to_the_logit_with_norm_and_gate_as_they_were(mixer: MixerConfig) -> None:
    model = decoder(mixer, published=True)
    done = run(model, [TOKENS], read=[direct_logit_attribution, source_effects])
    found, taken = direct_logit_attribution(done, answer=3), source_effects(done, answer=3)
    close(found.contributions.values.sum(), logit(model))
    for layer in range(2):
        for head in range(2):
            close(taken[f"L{layer}H{head}"].values.sum(), found[f"L{layer}H{head}"].values)
