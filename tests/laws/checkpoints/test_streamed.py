"""A model whose blocks stay on the disk is the model in memory, to the last bit, and holds one block at a time."""

import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import glassformer as gf
from families import all_cases, reference_folder
from glassformer import weights
from glassformer.analysis.from_weights import composition, copying, copying_rates
from glassformer.analysis.lens import fit_tuned_lens
from glassformer.analysis.vocabulary import token_pairs
from glassformer.checkpoints import AttentionReader, open_folder, save
from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.checkpoints.tensors import TensorFiles
from glassformer.errors import AnalysisUnavailable, CheckpointError
from glassformer.models import GREEDY, generate
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import Tape
from waiting import in_seconds

PUBLISHED = ["llama_grouped_keys", "gpt2_untied_with_wide_mlp"]
OWN = ["alibi_window", "post", "parallel", "differential", "translator_pre"]


def _folder(name: str, path: Path) -> Path:
    """Write a tiny published checkpoint, or one of ours."""
    if name in OWN:
        return save(subject(name).model, path)
    kind, config = all_cases()[name].make()
    reference_folder(kind, config, path, torch.float64)
    return path


def _inputs(model) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    n = len(model.stacks)
    return tuple(torch.randint(0, model.config.vocab_size, (2, 6 + i), generator=generator) for i in range(n))


@pytest.mark.parametrize("name", [*PUBLISHED, "gpt_oss_sinks_and_experts", "t5", *OWN])
def test_blocks_on_the_disk_give_the_same_bits(name: str, tmp_path: Path) -> None:
    folder = _folder(name, tmp_path)
    found = []
    # mapped like the other: where in memory a matrix begins decides how its products are rounded
    for model in (open_folder(folder).fill(), gf.load(folder, stream=True)):
        edit = [("*blocks.0.*.out", lambda x: 2 * x)]
        tape = Tape(model, [n for n, s in model.sites().items() if not s.lazy], edit)
        with torch.no_grad():
            logits = model(*_inputs(model), tape=tape)
        found.append([*tape.values.values(), logits, *model.state_dict().values()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", PUBLISHED)
def test_analyses_and_generation_do_not_see_where_weights_lie(name: str, tmp_path: Path) -> None:
    folder = _folder(name, tmp_path)
    loaded, streamed = gf.load(folder), gf.load(folder, stream=True)
    ids = _inputs(loaded)[0]
    one, other = (generate(model, ids, GREEDY, max_new_tokens=9) for model in (loaded, streamed))
    assert one == other
    one, other = (gf.explain(model, ids[:1]).to_dict() for model in (loaded, streamed))
    # of weights that are left in their files, another digest is known
    assert one | {"provenance": None} == other | {"provenance": None}
    one, other = (composition(weights.of(model, fold=True), draws=0).scores.values for model in (loaded, streamed))
    close(one.nan_to_num(), other.nan_to_num())
    for one, other in zip(loaded.parameters(), streamed.parameters(), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype


def test_a_tuned_lens_is_of_the_same_weights_wherever_they_lie(tmp_path: Path) -> None:
    folder = _folder("llama_grouped_keys", tmp_path)
    models = [gf.load(folder), gf.load(folder, stream=True)]
    one, other = (fit_tuned_lens(model, [_inputs(model)[0]], steps=2) for model in models)
    assert one.weights == other.weights
    close(one.weight, other.weight)


class Alive:
    """The bytes that readings of a checkpoint have in memory: now, and at most."""

    def __init__(self) -> None:
        self.storages: list[tuple[weakref.ref[torch.UntypedStorage], int]] = []
        self.most = 0

    @property
    def now(self) -> int:
        return sum(size for storage, size in self.storages if storage() is not None)

    def count(self, value: torch.Tensor) -> None:
        storage = value.untyped_storage()
        self.storages.append((weakref.ref(storage), storage.nbytes()))
        self.most = max(self.most, self.now)


@pytest.fixture
def alive(monkeypatch) -> Alive:
    counted, read = Alive(), Checkpoint.read

    def counting(self, names, dtype=None):
        found = read(self, names, dtype)
        for value in found.values():
            counted.count(value)
        return found

    monkeypatch.setattr(Checkpoint, "read", counting)
    return counted


@pytest.mark.parametrize("name", PUBLISHED)
def test_one_block_is_in_memory_at_a_time(name: str, tmp_path: Path, alive: Alive) -> None:
    model: Any = gf.load(_folder(name, tmp_path), stream=True)
    outside = alive.now
    block = _bytes(model.stack.blocks[0])
    assert len(model.stack.blocks) >= 2
    ids = _inputs(model)[0]
    with torch.no_grad():
        model(ids)
    generate(model, ids, GREEDY, max_new_tokens=3)
    # gradients run through all blocks, whose weights the graph does not keep
    gf.explain(model, ids[:1])
    assert outside < alive.most <= outside + block


def test_a_gradient_reads_weights_again(tmp_path: Path) -> None:
    folder = _folder("llama_grouped_keys", tmp_path)
    gradients = []
    for model in (gf.load(folder), gf.load(folder, stream=True)):
        leaf = []
        edit = [("embed.token", lambda x, leaf=leaf: leaf.append(x.detach().requires_grad_()) or leaf[0])]
        logits = model(_inputs(model)[0], tape=Tape(model, ["*.pattern"], edit, grad=True))
        (first,) = torch.autograd.grad(logits.square().sum(), leaf, create_graph=True)
        gradients.append((first, *torch.autograd.grad(first.square().sum(), leaf)))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_type_and_device_are_chosen_when_it_is_opened(tmp_path: Path) -> None:
    folder = _folder("llama_grouped_keys", tmp_path)
    model = gf.load(folder, stream=True, dtype=torch.float32)
    ids = _inputs(model)[0]
    assert torch.equal(model(ids), gf.load(folder, dtype=torch.float32)(ids))
    with pytest.raises(CheckpointError, match="load it anew"):
        model.double()
    assert torch.equal(model(ids), gf.load(folder, dtype=torch.float32)(ids))


def test_ours_stored_short_come_as_single_precision_streamed_or_not(tmp_path: Path) -> None:
    folder = save(subject("llama", dtype=torch.float32).model, tmp_path, dtype=torch.bfloat16)
    loaded, streamed = gf.load(folder), gf.load(folder, stream=True)
    ids = _inputs(loaded)[0]
    logits = streamed(ids)
    assert logits.dtype == torch.float32 and torch.equal(logits, loaded(ids))


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("fold", [True, False])
def test_attention_of_a_published_checkpoint_is_read_layer_by_layer(
    name: str, fold: bool, tmp_path: Path, alive: Alive
) -> None:
    folder = _folder(name, tmp_path)
    whole = weights.of(gf.load(folder), fold=fold)
    before, most = alive.now, 0
    reader = AttentionReader(folder, fold)
    for layer, expected in zip(reader, whole, strict=True):
        most = max(most, alive.now - before)
        assert layer.labels == expected.labels
        for which in "QKVO":
            close(getattr(layer, which), getattr(expected, which))
        close(layer.ov().dense(), expected.ov().dense())
        offset = 3 if name.startswith("llama") else None
        close(layer.qk(offset).dense(), expected.qk(offset).dense())
    # the one in hand and the one before it, which a loop lets go of when it has the next
    assert 0 < most <= 2 * _bytes(reader.model.stack.blocks[0])
    found = composition(reader, draws=0).scores.values
    close(found.nan_to_num(), composition(whole, draws=0).scores.values.nan_to_num())


@pytest.mark.parametrize("name", PUBLISHED)
def test_analyses_of_weights_take_a_streamed_model_a_layer_at_a_time(name: str, tmp_path: Path, alive: Alive) -> None:
    folder = _folder(name, tmp_path)
    loaded = gf.load(folder)
    expected = copying(loaded), copying_rates(loaded), token_pairs(loaded, k=3)
    before = alive.now
    model: Any = gf.load(folder, stream=True)
    outside = alive.now - before
    for i in range(len(model.stack.blocks)):
        w = weights.of(model, fold=True, layers=[i])
        found = copying(w), copying_rates(w), token_pairs(w, k=3)
        for label in w.labels:
            for one, other in zip(found[:2], expected[:2]):
                for field in ("ratio", "trace", "rate", "z"):
                    if hasattr(one, field):
                        close(*(getattr(r, field).select(head=label).values for r in (one, other)))
        assert alive.now - before <= outside + 2 * _bytes(model.stack.blocks[0])
        with pytest.raises(AnalysisUnavailable, match="every layer"):
            weights.logits(w, _inputs(model)[0])
        with pytest.raises(AnalysisUnavailable, match="every layer"):
            token_pairs(w, k=3, through="stream")
    with pytest.raises(AnalysisUnavailable, match="no layer 2; this model has layers 0 to 1"):
        weights.of(model, layers=[2])


def _bytes(block: torch.nn.Module) -> int:
    return sum(p.numel() for p in block.parameters()) * torch.float64.itemsize


def test_a_tensor_is_a_view_on_its_file_that_may_be_given_back(tmp_path: Path) -> None:
    stored = {
        "odd": torch.arange(3, dtype=torch.float16),
        "wide": torch.randn(300, 70, dtype=torch.float64),
        "none": torch.empty(0, 4),
        "counts": torch.arange(5),
    }
    save_file(stored, tmp_path / "model.safetensors")
    files = TensorFiles(tmp_path)
    for name in ("odd", "wide", "none"):
        assert torch.equal(files.read(name), stored[name])
    with pytest.raises(CheckpointError, match=r"\"counts\" is stored as I64"):
        files.read("counts")
    view = files.read("wide")
    view.zero_()
    assert torch.equal(TensorFiles(tmp_path).read("wide"), stored["wide"])
    files.release(["wide"])
    # pages that belong to it alone come from the file again
    assert int((view != 0).sum()) > 0.9 * view.numel() - 2 * 4096 / 8


def test_a_file_that_shrank_since_it_was_opened_is_an_error_and_no_crash(tmp_path: Path) -> None:
    save_file({"a": torch.randn(100)}, tmp_path / "model.safetensors")
    files = TensorFiles(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"gone")
    with pytest.raises(CheckpointError, match="has 4 bytes now"):
        files.read("a")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_file_that_became_a_pipe_since_it_was_opened_is_an_error_and_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(100)}, path)
    files = TensorFiles(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with in_seconds(), pytest.raises(CheckpointError, match="no regular file"):
        files.read("a")
