"""Adapters kept in folders, mixed, compared, asked what they did, and one for each row."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer import weights
from glassformer.adaptation import (
    Adapter,
    AdapterConfig,
    CorDA,
    FullTuning,
    Lora,
    LowRank,
    MiLora,
    SingularScales,
    Svf,
    adapter_effect,
    compare,
    grouped_logits,
    load_adapter,
    load_peft,
    mixed,
    save_adapter,
)
from glassformer.errors import CheckpointError, ConfigError
from glassformer.models import Model
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES

KINDS: tuple[AdapterConfig, ...] = Svf(), Svf("code"), Lora(2, 4.0), MiLora(2), CorDA(2), FullTuning()
KEY, VALUE = "blocks.1.attn.key", "blocks.1.attn.value"


def model(name: str = "llama", seed: int = 0) -> Model:
    return ARCHITECTURES[name].build(seed).double().eval()


def ids(of: Model, rows: int = 2) -> Tensor:
    return torch.randint(0, of.config.vocab_size, (rows, 6), generator=torch.Generator().manual_seed(1))


def trained(config: AdapterConfig, of: Model, matrices: Any = "blocks.1.*", seed: int = 0) -> Adapter:
    """An adapter whose numbers are somewhere, as training would leave them."""
    adapter = config.build(of, matrices, seed=seed, sample=list(ids(of)) if config.reads_sample else None)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in adapter.parameters():
            one += 0.1 * torch.randn(one.shape, generator=generator, dtype=one.dtype)
    return adapter


@pytest.mark.parametrize("kind", KINDS, ids=[kind.described for kind in KINDS])
def test_a_folder_gives_every_kind_back_beside_its_base_and_alone(kind: AdapterConfig, tmp_path: Path) -> None:
    one = model()
    adapter, x, alone = trained(kind, one), ids(one), one(ids(one))
    with adapter.attached(one):
        adapted = one(x)
        # the base is written as it is without the adapter, which stays attached
        save_adapter(adapter, tmp_path, base=one)
        assert torch.equal(one(x), adapted)
    base = gf.load(tmp_path, dtype=torch.float64)
    assert torch.equal(base(x), alone)
    for of in (one, base):
        again = load_adapter(tmp_path, of)
        assert again.config == kind and not any(number.requires_grad for number in again.parameters())
        with again.attached(of):
            close(of(x), adapted, 1e-12)


def test_folders_that_are_damaged_or_of_other_weights_are_refused(tmp_path: Path) -> None:
    one = model()
    folder = save_adapter(trained(Lora(2), one), tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="with other weights"):
        load_adapter(folder, model(seed=1))
    with pytest.raises(CheckpointError, match=r"no adapter\.json"):
        load_adapter(tmp_path, one)
    with pytest.raises(CheckpointError, match="no adapter_config"):
        load_peft(folder, one)
    with pytest.raises(CheckpointError, match=r"and no model.*\n.*adaptation.load_adapter"):
        gf.load(folder)
    document, said = folder / "adapter.json", json.loads((folder / "adapter.json").read_text())
    for change, words in (
        ({"format": 2}, "format 2"),
        ({"adapter": {"kind": "lorra"}}, 'Nearest: "lora"'),
        ({"matrices": ["blocks.9.attn.key"]}, "which the model lacks"),
        ({"adapter": {"kind": "full"}}, "a change of this kind has"),
        ({"sha256": "0"}, "it is damaged"),
    ):
        document.write_text(json.dumps(said | change))
        with pytest.raises(CheckpointError, match=words):
            load_adapter(folder, one)
    document.unlink()
    with trained(Lora(1), one).attached(one), pytest.raises(ConfigError, match="Detach it first"):
        load_adapter(folder, one)


def test_scales_halfway_between_two_are_the_matrix_halfway_between() -> None:
    one = model()
    first, second = (Svf().build(one, KEY) for _ in range(2))
    numbers = [1, 0.8, 0, 0.3, 0.5], [0.1, 0.3, 1, 0.7, 0.5]
    for adapter, z in zip((first, second), numbers):
        change = adapter.changes[KEY]
        assert isinstance(change, SingularScales)
        with torch.no_grad():
            change.z[:5] = torch.tensor(z, dtype=torch.float64)
    between = mixed({first: 0.5, second: 0.5}).changes[KEY]
    assert isinstance(between, SingularScales)
    assert between.z[:5].tolist() == [0.55, 0.55, 0.5, 0.5, 0.5]
    base = one.matrices(KEY)[0].values.detach()
    halfway = (first.changes[KEY].composed(base) + second.changes[KEY].composed(base)) / 2
    close(between.composed(base), halfway, 1e-12)


def test_a_mixture_changes_by_the_weighted_sum_and_one_alone_is_itself() -> None:
    one = model()
    base = {known.name: known.values.detach() for known in one.matrices()}
    for kinds in ((Svf(), Svf()), (Lora(2), MiLora(1)), (FullTuning(), FullTuning())):
        first, second = trained(kinds[0], one, [KEY, VALUE], 0), trained(kinds[1], one, KEY, 1)
        parts = {first: 0.25, second: 0.75} if kinds[0] != FullTuning() else {first: 1.0}
        found = mixed(parts)
        for name in (KEY, VALUE):
            expected = sum(
                w * one.changes[name].difference(base[name]) for one, w in parts.items() if name in one.changes
            )
            assert isinstance(expected, Tensor)
            close(found.changes[name].difference(base[name]), expected, 1e-12)
    # the code's form mixes multipliers, and rescales what comes of it
    first, second = (trained(Svf("code"), one, KEY, seed) for seed in (0, 1))
    parts = [adapter.changes[KEY] for adapter in (first, second)]
    between = mixed({first: 0.5, second: 0.5}).changes[KEY]
    assert isinstance(between, SingularScales)
    close(between.multipliers, sum(part.multipliers for part in parts) / 2, 1e-12)  # type: ignore[union-attr,operator]
    with pytest.raises(ConfigError, match="of several kinds"):
        mixed({trained(Svf(), one, KEY): 1.0, trained(Lora(1), one, KEY): 1.0})
    with pytest.raises(ConfigError, match="several models"):
        mixed({trained(Lora(1), one): 1.0, trained(Lora(1), model(seed=1)): 1.0})
    with pytest.raises(ConfigError, match="must sum to one"):
        mixed({trained(FullTuning(), one): 2.0})


def test_changes_are_compared_with_their_own_matrices_only() -> None:
    one = model()
    first, second = trained(Lora(2), one, [KEY, VALUE]), trained(Lora(2), one, KEY, 1)
    opposite = mixed({first: -2.0})
    found = compare(one, {"first": first, "opposite": opposite, "second": second})
    change = first.changes[KEY].difference(one.matrices(KEY)[0].values.detach())
    close(found.norm.select(adapter="first", matrix=KEY).values, change.norm(), 1e-12)
    close(
        found.relative.select(adapter="opposite", matrix=KEY).values,
        2 * change.norm() / one.matrices(KEY)[0].values.norm(),
        1e-12,
    )
    for field, sign in (("cosine", -1.0), ("written", 1.0), ("read", 1.0)):
        values = getattr(found, field).select(adapter="first", matrix=KEY)
        assert float(values.select(adapter_2="first").values) == pytest.approx(1.0)
        assert float(values.select(adapter_2="opposite").values) == pytest.approx(sign)
        assert abs(float(values.select(adapter_2="second").values)) < 1 - 1e-3
    assert found.norm.select(adapter="second", matrix=VALUE).values.isnan()
    assert found.provenance is not None and found.provenance.digest == one.digest()


def test_what_an_adapter_did_is_said_head_by_head() -> None:
    one = model("gpt2")
    adapter = Svf().build(one, [VALUE, "blocks.0.attn.query"])
    change = adapter.changes[VALUE]
    assert isinstance(change, SingularScales)
    with torch.no_grad():
        change.z[0], change.z[2] = 2.0, 0.7
    found = adapter_effect(one, adapter, directions=3, k=4)
    before = weights.of(one, fold=True)
    with adapter.attached(one):
        after = weights.of(one, fold=True)
    for i, head in enumerate(before.attention[1].labels):
        old, new = before.attention[1].ov().dense()[i], after.attention[1].ov().dense()[i]
        close(found.change.select(head=head, circuit="OV").values, (new - old).norm() / old.norm(), 1e-9)
        spectrum = found.spectrum.select(head=head, circuit="OV").values
        close(spectrum, torch.linalg.svdvals(new - old)[:3], 1e-9)
    # scales of one change nothing, and so do those of another matrix
    assert not found.change.select(circuit="QK").values.any()
    assert not found.change.select(head="L0H0").values.any() and not found.moved.select(head="L0H0").values.any()
    assert found.moved.select(head="L1H0", side="OV read").values > 1e-4
    assert found.scaled(0.2) == [(VALUE, 0, 2.0), (VALUE, 2, pytest.approx(0.7))]
    assert found.tokens is not None and set(found.tokens.singular_values.labels("matrix")) == set(
        before.attention[1].labels
    )
    assert found.query is None and not found.left_out
    with torch.no_grad():
        query = adapter.changes["blocks.0.attn.query"]
        assert isinstance(query, SingularScales)
        query.z[0] = 0.0
    found = adapter_effect(one, adapter, directions=2, k=4)
    assert found.query is not None and found.key is not None
    assert found.query.labels("head") == before.attention[0].labels
    assert set(found.query.values.flatten().tolist()) <= set(found.names)
    # of a low-rank change there are no scales, and of linear attention's scores no circuit
    bare = adapter_effect(model("linear"), trained(Lora(1), model("linear")))
    assert bare.scales is None and bare.scaled() == []


def test_rows_with_adapters_of_their_own_are_as_each_alone() -> None:
    one = model()
    x, lengths = ids(one, 5), torch.tensor([6, 3, 6, 4, 5])
    first, second = trained(Lora(2), one), trained(Svf(), one, seed=1)
    order = [first, None, second, first, None]
    found = grouped_logits(one, x, order, lengths=lengths)
    for i, adapter in enumerate(order):
        row = x[i : i + 1, : lengths[i]]
        if adapter is None:
            expected = one(row)
        else:
            with adapter.attached(one):
                expected = one(row)
        close(found[i, : lengths[i]], expected[0], 1e-12)
    with pytest.raises(ConfigError, match="2 adapters for 5 rows"):
        grouped_logits(one, x, [first, None])
    with first.attached(one), pytest.raises(ConfigError, match="Detach it first"):
        grouped_logits(one, x, order)


def test_a_product_that_was_in_the_matrix_is_a_product_of_twice_the_rank() -> None:
    one = model()
    change = trained(MiLora(2), one, KEY).changes[KEY]
    base = one.matrices(KEY)[0].values.detach()
    assert isinstance(change, LowRank)
    b, a = change.unscaled()
    assert b.shape[1] == len(a) == 4
    close(base + change.scale * b @ a, change.composed(base), 1e-12)
