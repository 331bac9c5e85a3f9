"""Models that ranks share by heads, neurons and tokens, against one process: training, and sites of their passes."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

import glassformer as gf
from glassformer.attention import Alibi, Attention, LearnedScale, Lightning, Linear, Merge, Rope, Separate, Softmax
from glassformer.data import Repeat
from glassformer.errors import AnalysisUnavailable, ConfigError, GlassformerError
from glassformer.models import BlockConfig, DecoderConfig, Learned, Mlp, Model, NoNorm, RmsNorm, block, normalised_block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.trace import Add, At, Scale
from glassformer.training import TrainConfig
from glassformer.training.parallel import Mesh, tensor_parallel
from glassformer.training.parallel.processes import joined
from glassformer.training.parallel.tensor import share_layers
from mesh_runs import run, runs, same_as_one
from ranks import on_processes

# grouped keys and a gated MLP; heads of which each decays in its own way, and gates; tokens that do not divide
GROUPED = block(n_heads=8, n_kv_heads=4, positions=Rope(), mlp=Mlp(24, gated=True, activation="silu"), norm=RmsNorm())
FADING = Attention(
    4, mixer=Lightning(), projection=Separate(bias=True), merge=Merge(bias=True, gate="sigmoid", gate_bias=True)
)
LAYERS = (GROUPED, BlockConfig((FADING, Attention(4, mixer=Linear()), Mlp(8))))
MODEL = DecoderConfig(21, 16, LAYERS, max_len=32, positions=Learned(), tied=False, unembed_bias=True, logit_cap=30.0)
DATA = Repeat(batch_size=3, length=12, unit_min=2, unit_max=4, vocab_size=21)
RECIPE = TrainConfig(MODEL, DATA, steps=20, log_every=1, evaluate_every=20, evaluate_batches=1, save_every=20)
IDS = [[3, 1, 20, 7, 7], [0, 2, 4, 6, 8]]
REFUSED = {
    "dropout": MODEL.replace(embed_dropout=0.1),
    "keys": MODEL.replace(layers=(block(n_heads=4, n_kv_heads=1),)),
}


def trained(folder: Path, mesh: Mesh, stops: bool) -> dict[str, str]:
    """What errors say of models that ranks cannot share; runs are left in the folder."""
    runs(RECIPE, folder, mesh, stops)
    said = dict[str, str]()
    for name, model in REFUSED.items():
        try:
            run(RECIPE.replace(model=model), folder / name, mesh)
        except GlassformerError as error:
            said[name] = str(error)
    with joined(mesh, torch.device("cpu")) as ranks:
        if mesh.size == mesh.tp:
            part, whole = taken_apart(ranks.devices["tp"])
            if stops:
                differentiated(part, whole)
                found: list[Any] = [
                    gf.run(one, IDS) for one in (tensor_parallel(whole.float(), ranks.devices["tp"]), whole)
                ]
                close(found[0].logits, found[1].logits)
    return said


def taken_apart(devices: Any) -> tuple[Model, Model]:
    """A model that ranks share, and the whole: each rank has all sites of an edited pass, as one process has them."""
    whole = randomise(MODEL.build(1).double().eval())
    part = tensor_parallel(whole, devices)
    parameters: list[Any] = [*part.parameters()]
    assert sum(p.to_local().numel() for p in parameters) < sum(p.numel() for p in whole.parameters())
    edits: list[Any] = [Scale("blocks.0.attn.z", 0.0, at=At(head=3)), Add("blocks.1.mlp.hidden", 1.0, at=At(neuron=5))]
    seen: list[Any] = [gf.run(model, IDS, read=["*", "L0H3.pattern"], edit=edits) for model in (part, whole)]
    ours, theirs = seen
    assert [*ours] == [*theirs] and "L0H3.pattern" in ours
    for name in theirs:
        close(ours[name].values.nan_to_num(neginf=0.0), theirs[name].values.nan_to_num(neginf=0.0))
    close(ours.logits, theirs.logits)
    with pytest.raises(AnalysisUnavailable, match="layer 0: ranks share its heads"):
        gf.run(part, IDS, edit=Scale("blocks.0.attn.query_in", 0.0, at=At(head=3)))
    return part, whole


def differentiated(part: Model, whole: Model) -> None:
    """Gradients at sites are those of whole values, on every rank."""
    names, gradients = ["blocks.0.attn.pattern", "blocks.0.mlp.hidden", "blocks.1.attn.value", "blocks.1.resid_pre"], []
    for model in (part, whole):
        found: Any = gf.run(model, IDS, read=names, grad=True)
        gradients.append(torch.autograd.grad(found.logits.square().sum(), [found[name].values for name in names]))
    for own, wanted in zip(*gradients, strict=True):
        close(own, wanted)


@pytest.mark.parametrize(
    ("mesh", "stops"),
    [
        (Mesh(tp=2), False),
        pytest.param(Mesh(tp=2), True, marks=pytest.mark.full),
        pytest.param(Mesh(tp=4), False, marks=pytest.mark.full),
        pytest.param(Mesh(dp=2, tp=2), True, marks=pytest.mark.full),
    ],
)
def test_ranks_that_share_layers_train_and_show_what_one_process_does(mesh: Mesh, stops: bool, tmp_path: Path) -> None:
    found = on_processes(mesh.size, trained, tmp_path, mesh, stops)
    assert all(isinstance(value, tuple) and value == found[0] for value in found), found
    same_as_one(RECIPE, tmp_path, stops)
    (said,) = found[0]
    assert "Set every dropout to 0" in said["dropout"]
    assert f'"blocks.0.attn" has 4 heads that read 1 keys (n_kv_heads), and {mesh.tp} ranks' in said["keys"]


def test_neurons_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="has d_mlp=9 neurons, and 2 ranks take as many each"):
        Mlp(9).build(16, 32, 0, "blocks.0.mlp").take_part(0, 2)


def test_rates_and_factors_that_all_ranks_would_read_whole_are_refused() -> None:
    two = Mock(spec=DeviceMesh)
    two.get_local_rank.return_value, two.size.return_value = 0, 2
    sphere = normalised_block(16, n_heads=4, mixer=Softmax(), qk_norm=False, mlp=Mlp(8, bias=False))
    with pytest.raises(ConfigError, match=r'"blocks\.0\.attn" moves the stream on a sphere'):
        share_layers(MODEL.replace(layers=(sphere,), final_norm=NoNorm()).build(), two)
    with pytest.raises(ConfigError, match="multiplies its neurons by learned factors"):
        Mlp(8, bias=False, scale=LearnedScale()).build(16, 32, 0, "blocks.0.mlp").take_part(0, 2)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (Attention(4, mixer=Softmax(sinks=True)), 'mixer "softmax", as set here, holds heads together'),
        (Attention(4, positions=Alibi()), 'positions "alibi", as set here'),
        (Attention(4, projection=Separate(qk_norm=True)), 'projection "separate", as set here'),
        (Attention(4, merge=Merge(norm="head")), "merge, as set here"),
    ],
)
def test_slots_that_hold_heads_together_are_not_shared(attention: Attention, message: str) -> None:
    layer = attention.build(16, 32, 0, "blocks.0.attn")
    with pytest.raises(ConfigError, match=message):
        layer.take_part(0, 2)
