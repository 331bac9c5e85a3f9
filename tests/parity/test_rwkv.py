"""RWKV against transformers beyond what every family is held to: gradients, the halved stream, and padding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import glassformer as gf
from families import reference_folder
from families.rwkv import rwkv_of
from glassformer.checkpoints.comparison.reference import wide
from glassformer.errors import CheckpointError
from glassformer.testing import close

TOKENS = torch.tensor([[1, 5, 2, 9, 0, 3, 7, 7], [4, 4, 8, 1, 6, 2, 10, 3]])


def both(folder: Path, **changes: Any) -> tuple[Any, Any]:
    """Return a reference and ours of the folder that it was saved in, before it ran."""
    theirs = reference_folder(*rwkv_of(**changes), folder, torch.float64)
    return theirs, gf.load(folder, dtype=torch.float64)


def test_gradients_of_all_parameters_are_the_references(tmp_path: Path) -> None:
    theirs, ours = both(tmp_path)
    with wide(torch.float64):
        expected = theirs(TOKENS, use_cache=False).logits
    found = ours(TOKENS)
    close(found, expected, 1e-9)
    for logits in (expected, found):
        cross_entropy(logits.flatten(0, 1), TOKENS.roll(-1, 1).flatten()).backward()
    given = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for i, block in enumerate(ours.stack.blocks):
        attn, mlp, at = block.attn, block.mlp, f"rwkv.blocks.{i}"
        time, channel = (
            {name: given[f"{at}.{part}.{name}"] for name in ("time_mix_key", "time_mix_receptance")}
            for part in ("attention", "feed_forward")
        )
        shares = (time["time_mix_receptance"], time["time_mix_key"], given[f"{at}.attention.time_mix_value"])
        close(attn.projection.shift.share.grad, torch.cat(shares).squeeze(1), 1e-9)
        close(mlp.shift.share.grad, torch.cat(tuple(channel.values())).squeeze(1), 1e-9)
        matrices = [given[f"{at}.attention.{name}.weight"] for name in ("receptance", "key", "value")]
        close(attn.projection.qkv.weight.grad, torch.cat(matrices), 1e-9)
        close(attn.mixer.rate.grad, given[f"{at}.attention.time_decay"], 1e-9)
        close(attn.mixer.bonus.grad, given[f"{at}.attention.time_first"], 1e-9)
        close(attn.merge.output.weight.grad, given[f"{at}.attention.output.weight"], 1e-9)
        for name, theirs_name in (("key", "key"), ("gate", "receptance"), ("value", "value")):
            close(getattr(mlp, name).weight.grad, given[f"{at}.feed_forward.{theirs_name}.weight"], 1e-9)
    close(ours.embed.matrix.grad, given["rwkv.embeddings.weight"], 1e-9)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_stream_that_is_halved_every_few_blocks_gives_the_same_logits(every: int, tmp_path: Path) -> None:
    theirs, ours = both(tmp_path, num_hidden_layers=4, rescale_every=every)
    with torch.no_grad(), wide(torch.float64):
        expected = theirs(TOKENS, use_cache=False, output_hidden_states=True)
    run = gf.run(ours, TOKENS, read=["logits", "blocks.*.resid_post"])
    close(run["logits"].values, expected.logits, 1e-9)
    for layer in range(4):
        halved = expected.hidden_states[layer] * 2.0 ** ((layer + 1) // every)
        close(run[f"blocks.{layer}.resid_post"].values, halved, 1e-9)


def test_the_mixing_of_one_channel_is_a_softmax_over_time_of_its_own(tmp_path: Path) -> None:
    """A pattern for each channel, rows of the receptance's size, by the formula of its exponents."""
    _, ours = both(tmp_path)
    sites = [f"blocks.1.attn.{name}" for name in ("query", "key", "value", "pattern", "z")]
    q, k, v, pattern, z = (gf.run(ours, TOKENS, read=sites)[site].values for site in sites)
    mixer, n = ours.stack.blocks[1].attn.mixer, TOKENS.shape[1]
    assert pattern.shape == (2, 16, n, n) and z.shape == (2, 16, n, 1)
    for t in range(n):
        fallen = torch.stack([(t - 1 - s) * -mixer.rate.exp() if s < t else mixer.bonus for s in range(t + 1)], -1)
        weights = (fallen + k[:, :, : t + 1, 0]).softmax(-1) * q[:, :, t].sigmoid()
        close(pattern[:, :, t, : t + 1], weights)
        assert (pattern[:, :, t, t + 1 :] == 0).all()
    close(pattern @ v, z)


def test_what_the_reference_would_not_compute_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rescale_every must be a number of blocks"):
        both(tmp_path, rescale_every=-1)
