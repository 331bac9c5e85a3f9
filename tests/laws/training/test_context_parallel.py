"""Texts whose positions ranks share, against one process: training on packed documents, with dropout."""

import json
from pathlib import Path

import pytest

from glassformer.attention import Alibi, Attention, Delta, Lightning, Linear, Rope
from glassformer.data import TextConfig
from glassformer.errors import ConfigError
from glassformer.models import BlockConfig, DecoderConfig, Learned, Mlp, RmsNorm, block
from glassformer.training import TrainConfig
from glassformer.training.parallel import Mesh
from mesh_runs import runs, same_as_one
from ranks import on_processes

SOFTMAX = block(
    n_heads=4, n_kv_heads=2, positions=Rope(), mlp=Mlp(12, gated=True, dropout=0.1), norm=RmsNorm(), dropout=0.1,
    attn_dropout=0.1,
)  # fmt: skip
MODEL = DecoderConfig(
    257,
    8,
    (SOFTMAX, block(n_heads=2, mixer=Lightning(), mlp=None, dropout=0.1), BlockConfig((Attention(2, mixer=Linear()),))),
    max_len=32,
    positions=Learned(),
    embed_dropout=0.1,
)


def recipe(folder: Path, mesh: Mesh) -> TrainConfig:
    """Rows of an odd length, of documents that are longer than a rank's part, and of some that are much shorter."""
    texts = [("ab" * n)[: 2 * n + n % 2] for n in (30, 1, 2, 3, 1, 25, 2, 4)]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    data = TextConfig(3, 13, sources=(str(folder / "texts.jsonl"),), vocab_size=257, heldout=0.3)
    # without dropout where layers are shared too
    model = MODEL if mesh.tp == 1 else MODEL.replace(layers=(block(n_heads=4, positions=Rope()),), embed_dropout=0.0)
    return TrainConfig(model, data, steps=20, log_every=1, evaluate_every=20, evaluate_batches=1, save_every=20)


@pytest.mark.parametrize(
    ("mesh", "stops"),
    [
        (Mesh(cp=2), False),
        pytest.param(Mesh(dp=2), False, marks=pytest.mark.full),
        pytest.param(Mesh(cp=3), True, marks=pytest.mark.full),
        pytest.param(Mesh(dp=2, cp=2), False, marks=pytest.mark.full),
        pytest.param(Mesh(cp=2, tp=2), False, marks=pytest.mark.full),
    ],
)
def test_ranks_that_share_positions_train_what_one_process_trains(mesh: Mesh, stops: bool, tmp_path: Path) -> None:
    wanted = recipe(tmp_path, mesh)
    found = on_processes(mesh.size, runs, wanted, tmp_path, mesh, stops)
    assert found == [(None,)] * mesh.size, found
    same_as_one(wanted, tmp_path, stops)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (Attention(4, mixer=Delta()), 'mixer "delta", as set here, looks at a text whole'),
        (Attention(4, positions=Alibi()), 'positions "alibi", as set here'),
        (Attention(4, mixer=Linear(), dropout=0.1), "dropout on patterns, as set here"),
    ],
)
def test_slots_that_look_at_a_text_whole_are_not_spread(attention: Attention, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attention.build(16, 32, 0, "blocks.0.attn").require_spread()
