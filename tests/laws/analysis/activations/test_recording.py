"""A store holds what `run` reads, row by row, of whichever model; rows know their token, document and position."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import glassformer as gf
from glassformer.analysis import activations
from glassformer.analysis.activations import ActivationStore, activation_size, record_activations
from glassformer.data import Batch, word_tokenizer
from glassformer.errors import (
    AnalysisUnavailable,
    CheckpointError,
    GlassformerError,
    SaveError,
    ShapeMismatch,
    TextError,
    TokenOutOfRange,
    UnknownSite,
    WrongArgument,
)
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ALTERNATING, ARCHITECTURES, ENCODERS, IMAGES, RECURRENT, Subject, subject
from one_pass import first_of

NAMES = [*ARCHITECTURES, *ENCODERS, *IMAGES, *RECURRENT, *ALTERNATING]
POSITIONS = ("pos", "query", "key")
Files = Mapping[str, bytes]


def texts(count: int, seed: int = 0, longest: int = 9) -> list[Tensor]:
    """Return rows of ids of unequal length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(0, 11, (length,), generator=generator) for length in lengths]


def files_in(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def single(model: Any) -> list[str]:
    """Return the sites of single positions."""
    return [site.name for site in model.sites().values() if len({*site.axes} & {*POSITIONS}) == 1]


def expected(site: Any, real: Tensor) -> Tensor:
    """Return the rows of a labelled site by loops over the batch and its places."""
    axes = list(site.axes)
    place = next(axis for axis in axes if axis in POSITIONS)
    rows = []
    for b in range(real.shape[0]):
        for p in range(real.shape[1]):
            if real[b, p]:
                rows.append(site.values.select(axes.index("batch"), b).select(axes.index(place) - 1, p).flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("name", first_of(NAMES))
def test_rows_are_what_a_run_reads_to_the_last_bit(name: str, tmp_path: Path) -> None:
    found = subject(name, dtype=torch.float32)
    sites = single(found.model)
    given = [found.batch(), Subject(name, found.model, found.others(torch.Generator().manual_seed(1))).batch()]
    store = record_activations(found.model, given, sites, tmp_path / "store")
    runs = [gf.run(found.model, batch, read=sites) for batch in given]
    for site in store.names:
        stored = store.site(site)
        parts = [expected(run[site], torch.ones(_places(run[site]), dtype=torch.bool)) for run in runs]
        assert torch.equal(stored[:].values, torch.cat(parts)), site
        assert len(stored.tokens) == len(stored) and stored.documents.unique().tolist() == [0, 1, 2, 3]
        if stored.axes:
            table = found.model.sites()[site].sizes
            assert stored.shape == tuple(table[axis] for axis in stored.axes)
    assert store.documents == 4 and torch.is_grad_enabled()


def _places(site: Any) -> tuple[int, int]:
    return site.size("batch"), next(site.size(axis) for axis in site.axes if axis in POSITIONS)


@pytest.mark.parametrize("name", ["llama", "masked_pre", "linear"])
def test_padding_is_no_row_and_rows_know_where_they_are_from(name: str, tmp_path: Path) -> None:
    found, given = subject(name, dtype=torch.float32), texts(7)
    store = record_activations(found.model, given, ["resid_post", "z", "L1H1.z"], tmp_path / "store", rows=3)
    assert store.site("blocks.0.resid_post").tokens.tolist() == torch.cat(given).tolist()
    assert store.site("blocks.1.attn.z").documents.tolist() == [i for i, row in enumerate(given) for _ in row]
    assert store.site("L1H1.z").positions.tolist() == [p for row in given for p in range(len(row))]
    heads = store.site("blocks.1.attn.z")
    assert heads.axes[0] == "head" and heads.width == heads.shape[0] * heads.shape[1]
    assert torch.equal(heads[:].values.unflatten(1, heads.shape)[:, 1], store.site("L1H1.z")[:].values)
    runs = [gf.run(found.model, given[i : i + 3], read="resid_post") for i in (0, 3, 6)]
    for site in ("blocks.0.resid_post", "blocks.1.resid_post"):
        parts = [
            run[site].values[i, : len(row)] for j, run in enumerate(runs) for i, row in enumerate(given[3 * j :][:3])
        ]
        assert torch.equal(store.site(site)[:].values, torch.cat(parts))


def test_ids_texts_and_batches_are_read_alike(tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    found.model.tokenizer = word_tokenizer(["a b c d e f"])
    words = [["a b c", "d", "e f a b"], ["f", "b"]]
    flat = [text for some in words for text in some]
    ids = [found.model.read(text).ids[0] for text in flat]
    one = record_activations(found.model, flat, "resid_post", tmp_path / "a", rows=3)
    for i, given in enumerate((words, ids, [[row.tolist() for row in ids[:3]], *[ids[3:]]])):
        other = record_activations(found.model, given, "resid_post", tmp_path / f"{i}", rows=3)
        assert files_in(other.folder).keys() == files_in(one.folder).keys()
        assert torch.equal(other.site("blocks.1.resid_post")[:].values, one.site("blocks.1.resid_post")[:].values)
        assert other.manifest.plan == one.manifest.plan
    square = torch.stack([ids[0], ids[2][:4]])
    whole = record_activations(found.model, square, "resid_post", tmp_path / "b", rows=1)
    assert len(whole.passes) == 2 and whole.documents == 2


@pytest.mark.parametrize("name", ["gpt2", "linear", "masked_pre"])
def test_packed_documents_are_told_apart_and_positions_begin_anew(name: str, tmp_path: Path) -> None:
    found = subject(name, batch=3, dtype=torch.float32)
    inside = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1]])
    lengths = torch.tensor([6, 7, 4])
    tokens = found.inputs[0]
    batch = Batch(tokens, tokens, tokens >= 0, documents=inside, lengths=lengths)
    store = record_activations(found.model, [batch, batch], "resid_post", tmp_path / "store")
    site, documents, positions, rows = store.site("blocks.1.resid_post"), [], [], []
    values = gf.run(found.model, batch, read="resid_post")["blocks.1.resid_post"].values
    for _ in range(2):
        for b in range(3):
            for p in range(int(lengths[b])):
                new = p == 0 or inside[b, p] != inside[b, p - 1]
                documents.append((documents[-1] if documents else -1) + int(new))
                positions.append(0 if new else positions[-1] + 1)
                rows.append(values[b, p])
    assert site.documents.tolist() == documents and site.positions.tolist() == positions
    assert store.documents == documents[-1] + 1 == 12
    assert torch.equal(site[:].values, torch.stack(rows))


@pytest.mark.parametrize("name", ["translator_pre", "translator_linear"])
def test_rows_of_an_encoder_are_those_of_its_own_text(name: str, tmp_path: Path) -> None:
    found = subject(name, dtype=torch.float32)
    sources, targets = texts(4, 1), texts(4, 2)
    sites = ["encoder.blocks.1.resid_post", "decoder.blocks.1.resid_post", "decoder.blocks.0.cross.value"]
    given = [(sources[:3], targets[:3]), (sources[3], targets[3])]
    store = record_activations(found.model, given, sites, tmp_path / "store", shard=1)
    for site, of in zip(sites, (sources, targets, sources)):
        stored = store.site(site)
        assert stored.tokens.tolist() == torch.cat(of).tolist()
        assert stored.documents.tolist() == [i for i, row in enumerate(of) for _ in row]
        assert stored.positions.tolist() == [p for row in of for p in range(len(row))]
        assert torch.equal(stored[:].values, torch.cat([one.values(site) for one in store.passes]))
    run = gf.run(found.model, *([row.tolist() for row in side] for side in given[0]), read=sites)
    for site, of in zip(sites[:2], (sources, targets)):
        first = torch.cat([run[site].values[i, : len(row)] for i, row in enumerate(of[:3])])
        assert torch.equal(store.passes[0].values(site), first)
    with pytest.raises(AnalysisUnavailable, match=r"both sides, \(source, target\) or a Batch"):
        record_activations(found.model, sources, sites, tmp_path / "other")


class Blocks(nn.Module):
    """A module of nobody's: embeddings and two layers, ids and a mask in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.one, self.two = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.two(torch.tanh(self.one(self.embed(input_ids))))


def test_a_module_is_recorded_by_its_spec_and_refused_without(tmp_path: Path) -> None:
    module = randomise(Blocks(), 0)
    model = gf.foreign(
        module,
        gf.Spec({"embed.token": "embed.out", "logits": "two.out", "read": gf.Place("embed.in", axes="batch pos")}),
    )
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 7]])
    given: list[Any] = [{"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])}, ids[:1]]
    sites = ["embed.token", "logits"]
    store = record_activations(model, given, sites, tmp_path / "store")
    site = store.site(sites[0])
    assert site.tokens.tolist() == [1, 2, 3, 4, 7, 7, 1, 2, 3, 4]
    assert site.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]
    assert site.axes == ("d_model",) and site.shape == (6,)
    assert torch.equal(site[:].values, module.embed(site.tokens).detach())
    assert activation_size(model, given, sites).rows == 10
    holes = {"input_ids": ids, "attention_mask": torch.tensor([[1, 0, 1, 1], [0, 0, 1, 1]])}
    with pytest.raises(ShapeMismatch, match="has holes"):
        record_activations(model, [holes], sites, tmp_path / "holes")
    with pytest.raises(ShapeMismatch, match="holds int64 at 1 x 4 places"):
        record_activations(model, [ids[:1]], "read", tmp_path / "ids")
    with pytest.raises(ShapeMismatch, match="by a spec"):
        record_activations(module, given, "embed.out", tmp_path / "bare")
    with pytest.raises(AnalysisUnavailable, match="not known of this module"):
        record_activations(model, [torch.ones(2, 3)], sites, tmp_path / "numbers")


@pytest.mark.parametrize("shard", [1, 700, 2**26])
def test_moments_are_those_of_numpy_in_float64(shard: int, tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    with torch.no_grad():
        # a mean far beyond the spread, where sums of raw squares lose it
        found.model.embed.matrix += 1000.0
    store = record_activations(
        found.model, texts(30), ["resid_post", "z"], tmp_path / "store", rows=4, shard=shard, second_moment=True
    )
    for name in store.names:
        site = store.site(name)
        rows = site[:].values.double().numpy()
        close(site.mean, torch.from_numpy(rows.mean(0)), 1e-14)
        close(site.variance, torch.from_numpy(rows.var(0)), 1e-9)
        close(site.covariance, torch.from_numpy(np.cov(rows.T, bias=True)), 1e-9)
        close(site.second_moment, torch.from_numpy(rows.T @ rows / len(rows)), 1e-13)
        norm = np.sqrt((rows**2).sum(1)).mean()
        assert site.scale == pytest.approx(norm / np.sqrt(rows.shape[1]), rel=1e-13)
        assert np.linalg.norm(rows / site.scale, axis=1).mean() == pytest.approx(np.sqrt(rows.shape[1]), rel=1e-12)


def test_moments_do_not_depend_on_files_and_products_are_summed_on_request_alone(tmp_path: Path) -> None:
    found = subject("llama", dtype=torch.float32)
    stores = [
        record_activations(found.model, texts(20), "resid_post", tmp_path / f"{shard}", rows=3, shard=shard)
        for shard in (1, 5000, 2**26)
    ]
    counts = [len(store.manifest.shards) for store in stores]
    assert counts[0] == 7 and counts[0] > counts[1] > counts[2] == 1
    first = stores[0].site("blocks.1.resid_post")
    for store in stores[1:]:
        site = store.site("blocks.1.resid_post")
        assert torch.equal(site[:].values, first[:].values) and torch.equal(site.tokens, first.tokens)
        assert torch.equal(site.mean, first.mean) and torch.equal(site.variance, first.variance)
        assert site.scale == first.scale
        for low, high in ((0, 1), (5, 40), (17, 18), (0, 10_000), (30, 20)):
            assert torch.equal(site[low:high].values, first[:].values[low:high])
        assert torch.equal(torch.cat([batch.values for batch in site.batches(7)]), first[:].values)
    with pytest.raises(AnalysisUnavailable, match="second_moment=True"):
        _ = first.covariance
    with pytest.raises(ShapeMismatch, match="a step of 2"):
        _ = first[::2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_each_number_once(dtype: Any, tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    whole = record_activations(found.model, texts(5), "resid_post", tmp_path / "whole")
    half = record_activations(found.model, texts(5), "resid_post", tmp_path / "half", dtype=dtype)
    site, other = half.site("blocks.0.resid_post"), whole.site("blocks.0.resid_post")
    assert site[:].values.dtype == half.dtype == getattr(torch, dtype)
    assert torch.equal(site[:].values, other[:].values.to(half.dtype))
    close(site.mean, site[:].values.double().mean(0))


def test_numbers_too_large_for_the_type_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    with torch.no_grad():
        found.model.embed.matrix += 1e5
    with pytest.raises(AnalysisUnavailable, match=r"resid_post.* in pass 0: .*float16 holds.*\n.*bfloat16"):
        record_activations(found.model, texts(5), "resid_post", tmp_path / "store", dtype="float16")
    # nothing but what it was to be is there, and another recording may take the place
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["manifest.json"]
    store = record_activations(found.model, texts(5), "resid_post", tmp_path / "store", dtype="bfloat16")
    assert store.dtype == torch.bfloat16


def test_opening_tokens_and_sinks_are_left_out_on_request(tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    found.model.tokenizer = word_tokenizer(["a b c d"])
    bos, sink = found.model.tokenizer.roles.bos, 9
    assert bos is not None
    with torch.no_grad():
        found.model.embed.matrix[sink] *= 1000.0
    rows = [[bos, 3, 4, sink], [bos, bos, 5, bos, 6], [7, 8, 3], [bos]]
    kept = {
        (): rows,
        ("begin",): [[3, 4, sink], [5, bos, 6], [7, 8, 3], []],
        ("sinks",): [[bos, 3, 4], rows[1], rows[2], rows[3]],
        ("begin", "sinks"): [[3, 4], [5, bos, 6], [7, 8, 3], []],
    }
    for drop, left in kept.items():
        folder = tmp_path / "-".join(("store", *drop))
        store = record_activations(found.model, rows, "resid_post", folder, drop=drop, rows=4)
        site = store.site("blocks.0.resid_post")
        assert site.tokens.tolist() == [token for row in left for token in row]
        assert site.documents.tolist() == [i for i, row in enumerate(left) for _ in row]
        values = gf.run(found.model, rows, read="resid_post")["blocks.0.resid_post"].values
        assert torch.equal(site[:].values, values[site.documents, site.positions])
        assert store.documents == 4
    with pytest.raises(AnalysisUnavailable, match="sinks are told by vectors as wide as the stream"):
        record_activations(found.model, rows, "z", tmp_path / "z", drop=["sinks"])


def test_the_size_is_known_before(tmp_path: Path) -> None:
    found, given = subject("gpt2", dtype=torch.float32), texts(40)
    sites = ["resid_post", "blocks.0.mlp.hidden"]
    cases: list[tuple[Any, bool]] = [("float32", False), ("float16", True)]
    for dtype, second in cases:
        size = activation_size(found.model, given, sites, dtype=dtype, second_moment=second)
        store = record_activations(found.model, given, sites, tmp_path / dtype, dtype=dtype, second_moment=second)
        assert size.rows == len(store.site("blocks.0.resid_post")) == sum(map(len, given))
        assert (size.documents, size.source_rows) == (40, 0)
        disk = sum(len(content) for name, content in files_in(store.folder).items() if name != "manifest.json")
        assert 0 < disk - size.bytes < 4000
    size = activation_size(found.model, given, sites)
    assert str(size) == f"{size.rows} rows of 40 documents, 0.1 MiB"
    pair = subject("translator_pre", dtype=torch.float32)
    both = activation_size(pair.model, [(texts(3, 1), texts(3, 2))], ["encoder.resid_post", "decoder.resid_post"])
    assert (both.rows, both.source_rows) == (sum(map(len, texts(3, 2))), sum(map(len, texts(3, 1))))


def test_too_little_room_is_said_before_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = subject("gpt2", dtype=torch.float32)
    disk = type("Disk", (), {"free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda place: disk)
    told: list[tuple[int, int]] = []
    with pytest.raises(SaveError, match="MiB free"):
        record_activations(found.model, texts(5), "resid_post", tmp_path / "a" / "b", report=lambda *n: told.append(n))
    assert not told and not list(tmp_path.iterdir())


def test_the_model_is_left_as_it_was_and_progress_is_told(tmp_path: Path) -> None:
    found, told = subject("gpt2", dtype=torch.float32), list[tuple[int, int]]()
    found.model.train()
    record_activations(
        found.model, texts(7), "resid_post", tmp_path / "store", rows=3, report=lambda *n: told.append(n)
    )
    assert found.model.training and all(p.grad is None for p in found.model.parameters())
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


OTHERS: dict[str, Callable[[Any], Mapping[str, Any]]] = {
    "it is of 'decoder'": lambda found: {"model": subject("gpt2", seed=1, dtype=torch.float32).model},
    "texts, or ways of cutting them": lambda found: {"texts": texts(7, 3)},
    "it is of the sites blocks.0.resid_post, blocks.1.resid_post, and asked are blocks.0.attn.z": lambda found: {
        "sites": "z"
    },
    "dtype='float32', and asked is dtype='float16'": lambda found: {"dtype": "float16"},
    r"drop=\(\), and": lambda found: {"drop": ["sinks"]},
    "second_moment=False": lambda found: {"second_moment": True},
    "shard=67108864": lambda found: {"shard": 5},
}


@pytest.mark.parametrize("said", OTHERS)
def test_another_recording_is_not_continued_in_the_folder(said: str, tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    usual: dict[str, Any] = {"model": found.model, "texts": texts(7), "sites": "resid_post", "folder": tmp_path / "s"}
    record_activations(**usual)
    before = files_in(tmp_path / "s")
    with pytest.raises(CheckpointError, match=f"holds another recording: .*{said}"):
        record_activations(**{**usual, **OTHERS[said](found)})
    assert files_in(tmp_path / "s") == before


def test_a_store_of_another_model_is_not_opened_for_this_one(tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    record_activations(found.model, texts(7), "resid_post", tmp_path / "s")
    store = ActivationStore.open(tmp_path / "s", found.model)
    assert store.provenance.analysis == "record_activations" and "float32" in repr(store)
    assert repr(store.site("blocks.0.resid_post")).endswith("rows of d_model=16)")
    for other in (subject("gpt2", dtype=torch.float64).model, subject("gpt2", seed=1, dtype=torch.float32).model):
        with pytest.raises(CheckpointError, match="holds activations of 'decoder'"):
            ActivationStore.open(tmp_path / "s", other)
    with torch.no_grad():
        found.model.embed.matrix[0] += 1.0
    with pytest.raises(CheckpointError, match="and the model is"):
        store.check(found.model)


def test_what_is_no_store_is_refused_in_words(tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    with pytest.raises(CheckpointError, match=r"holds no store of activations: there is no manifest\.json"):
        ActivationStore.open(tmp_path)
    store = record_activations(found.model, texts(20), "resid_post", tmp_path / "s", shard=500)
    with pytest.raises(UnknownSite, match=r'"blocks.0.resid_pos" is not in this store. Nearest: "blocks.0.resid_post"'):
        store.site("blocks.0.resid_pos")
    for content in (b"{}", b"[]", b"no JSON", store.manifest.text().replace('"format": 1', '"format": 2').encode()):
        (tmp_path / "s" / "manifest.json").write_bytes(content)
        with pytest.raises(CheckpointError, match="cannot read a store of activations"):
            ActivationStore.open(tmp_path / "s")
    (tmp_path / "s" / "manifest.json").write_text(store.manifest.text())
    shard = tmp_path / "s" / store.manifest.shards[-1].file
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="bytes in place of"):
        ActivationStore.open(tmp_path / "s")
    shard.write_bytes(b"\xff" * len(whole))
    with pytest.raises(CheckpointError, match="cannot read"):
        _ = ActivationStore.open(tmp_path / "s").site("blocks.0.resid_post")[:]
    shard.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        ActivationStore.open(tmp_path / "s")
    (tmp_path / "s" / "manifest.json").unlink()
    before = files_in(tmp_path / "s")
    with pytest.raises(CheckpointError, match="so whose file that is is not known"):
        record_activations(found.model, texts(20), "resid_post", tmp_path / "s")
    assert files_in(tmp_path / "s") == before


def test_what_cannot_be_recorded_is_refused_in_words(tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)

    def record(**changed: Any) -> Any:
        usual = {"model": found.model, "texts": texts(3), "sites": "resid_post", "folder": tmp_path / "s"}
        return record_activations(**cast(Any, usual | changed))

    wrong: list[tuple[type[GlassformerError], str, dict[str, Any]]] = [
        (ShapeMismatch, "a row is what one position has", {"sites": "blocks.0.attn.pattern"}),
        (UnknownSite, "Nearest", {"sites": "resid_pots"}),
        (AnalysisUnavailable, "no texts", {"texts": []}),
        (AnalysisUnavailable, "no sites", {"sites": []}),
        (ShapeMismatch, "texts= takes a list", {"texts": None}),
        (ShapeMismatch, "texts= takes a list", {"texts": iter(texts(2))}),
        (ShapeMismatch, "expected a text or token ids", {"texts": [None]}),
        (TextError, "no token", {"texts": [[]]}),
        (TextError, "no token", {"texts": torch.ones(0, 4, dtype=torch.long)}),
        (TextError, "the context of this model is 24", {"texts": [[1] * 25]}),
        (TokenOutOfRange, "11", {"texts": [[3, 11]]}),
        (WrongArgument, "dtype=", {"dtype": "float8"}),
        (WrongArgument, "drop=", {"drop": ["end"]}),
        (WrongArgument, "shard=", {"shard": 0}),
    ]
    for error, said, changed in wrong:
        with pytest.raises(error, match=said):
            record(**changed)
    for model in ("gpt2", 3, None):
        for ask in (record, lambda **changed: activation_size(**changed, texts=[], sites="z")):
            with pytest.raises(GlassformerError, match=r"\n    |give"):
                ask(model=model)
    assert not (tmp_path / "s").exists()


def test_the_room_offers_what_it_says() -> None:
    for name in ("ActivationStore", "StoredSite", "StoredPass", "ShuffledRows", "ActivationBatch", "ActivationSize"):
        assert hasattr(activations, name)
