"""Models that ranks share by heads, neurons and tokens, against one process: training, and sites of their passes."""

from pathlib import Path

import pytest

from glassformer.attention import Attention, Lightning, Linear, Merge, Rope, Separate
from glassformer.data import Repeat
from glassformer.models import BlockConfig, DecoderConfig, Learned, Mlp, RmsNorm, block
from glassformer.training import TrainConfig
from glassformer.training.parallel import Mesh
from mesh_runs import runs, same_as_one
from ranks import on_processes

# grouped keys and a gated MLP; heads of which each decays in its own way, and gates; tokens that do not divide
GROUPED = block(n_heads=8, n_kv_heads=4, positions=Rope(), mlp=Mlp(24, gated=True, activation="silu"), norm=RmsNorm())
FADING = Attention(
    4, mixer=Lightning(), projection=Separate(bias=True), merge=Merge(bias=True, gate="sigmoid", gate_bias=True)
)
LAYERS = (GROUPED, BlockConfig((FADING, Mlp(8))), BlockConfig((Attention(4, mixer=Linear()),)))
MODEL = DecoderConfig(21, 16, LAYERS, max_len=32, positions=Learned(), tied=False, unembed_bias=True, logit_cap=30.0)
DATA = Repeat(batch_size=5, length=12, unit_min=2, unit_max=4, vocab_size=21)
RECIPE = TrainConfig(
    MODEL, DATA, steps=20, log_every=1, evaluate_every=10, evaluate_batches=2, save_every=20, accumulate=2
)


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(tp=2),
        pytest.param(Mesh(tp=4), marks=pytest.mark.full),
        pytest.param(Mesh(dp=2, tp=2), marks=pytest.mark.full),
    ],
    ids=str,
)
def test_ranks_that_share_layers_train_what_one_process_trains(mesh: Mesh, tmp_path: Path) -> None:
    found = on_processes(mesh.size, runs, RECIPE, tmp_path, mesh)
    assert found == [(None,)] * mesh.size, found
    same_as_one(RECIPE, tmp_path)
