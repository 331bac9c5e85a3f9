"""Neurons of an MLP's write: their shares, and what cannot be split."""

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.token_flow import neuron_shares
from glassformer.errors import AnalysisUnavailable, SiteNotRead
from glassformer.testing import close
from glassformer.testing.models import subject
from one_pass import in_one_pass

SITES = ["blocks.1.mlp.hidden", "blocks.1.mlp.out"]


@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "llama", "sandwich", "post", "parallel"])
def test_shares_of_neurons_and_bias_are_one_and_measure_nearness(name: str) -> None:
    found = subject(name)
    done = run(found.model, *found.inputs, read=SITES)
    shares = neuron_shares(done, layer=1, position=3, row=1)
    close(shares.shares.values.sum() + shares.bias, torch.tensor(1.0, dtype=torch.float64))
    mlp, w = found.model.stack.blocks[1].mlp, done["blocks.1.mlp.out"].values[1, 3]
    parts = [a * column for a, column in zip(shares.activations.values, mlp.output.weight.mT)]
    assert (mlp.output.bias is None) == (shares.bias == 0)
    parts += [] if mlp.output.bias is None else [mlp.output.bias]
    close(torch.stack(parts).sum(0), w)
    near = torch.stack([(w.abs().sum() - (w - part).abs().sum()).clamp_min(0) for part in parts])
    close(shares.shares.values, (near / near.sum())[: len(shares.shares.values)])


def test_layers_without_an_mlp_and_runs_without_the_sites_say_so() -> None:
    found = subject("gpt2")
    with pytest.raises(SiteNotRead, match=r"blocks\.1\.mlp\.hidden"):
        neuron_shares(run(found.model, [1, 2]), layer=1)
    with pytest.raises(AnalysisUnavailable, match=r'no MLP "mlp" in layer 4. MLPs: layer 0 "mlp", layer 1 "mlp"'):
        neuron_shares(run(found.model, [1, 2], read=SITES), layer=4)
    with pytest.raises(AnalysisUnavailable, match="MLPs: none"):
        neuron_shares(run(subject("attention_only").model, [1, 2]), layer=0)
