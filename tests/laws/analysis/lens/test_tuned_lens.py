"""Tuned lens: untrained it is the logit lens, trained it is nearer to the model, and it knows whose it is."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.activations import record_activations
from glassformer.analysis.lens import TunedLens, fit_tuned_lens, lens_divergence, lens_grid
from glassformer.analysis.lens._fit import _divergences, _log_probs, _streams
from glassformer.analysis.lens._tuned import tuned_sites
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, CheckpointError, UnknownSite
from glassformer.models import DecoderConfig, Learned
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, Subject, subject
from one_pass import first_of

every = pytest.mark.parametrize("name", ARCHITECTURES)


def texts(found: Subject, count: int, seed: int = 0) -> list[Batch]:
    """Return random batches of the kind a model reads."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        drawn = list(found.others(generator))
        source = drawn[0] if len(drawn) > 1 else None
        nothing = torch.zeros_like(drawn[-1])
        batches.append(Batch(drawn[-1], nothing, nothing == 0, source=source))
    return batches


@every
def test_an_untrained_tuned_lens_is_the_logit_lens(name: str) -> None:
    found = subject(name)
    tuned = TunedLens.identity(found.model)
    done = run(found.model, found.inputs[0], *found.inputs[1:], read=[lens_grid])
    sites = tuned.reads(found.model)
    one, other = lens_grid(done, answer=3, translators=tuned), lens_grid(done, answer=3, sites=sites)
    assert one.tuned and not other.tuned and one.sites == other.sites
    for field in ("probability", "kl_bits", "entropy_bits", "top_probability"):
        close(getattr(one, field).values, getattr(other, field).values)
    measured = lens_divergence(found.model, tuned, texts(found, 2))
    close(measured.kl_bits.values[0], measured.kl_bits.values[1])
    assert (measured.kl_bits.values[:, -1] == 0).all()


@pytest.mark.full
@every
def test_fitting_brings_every_layer_nearer_on_the_texts_fitted_to(name: str) -> None:
    found = subject(name)
    batches = texts(found, 6)
    tuned = fit_tuned_lens(found.model, batches, steps=30, lr=0.5)
    kl = lens_divergence(found.model, tuned, batches).kl_bits.values
    assert (kl[1, :-1] < kl[0, :-1]).all()


def test_gradients_are_those_of_the_mean_divergence() -> None:
    found = subject("llama")
    model, batch = found.model, texts(found, 1)[0]
    tuned = fit_tuned_lens(model, [batch], steps=2)
    streams, last = _streams(model, batch, tuned.sites)
    weight, bias = tuned.weight.clone().requires_grad_(), tuned.bias.clone().requires_grad_()
    final = _log_probs(model, last).detach()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(tuned.sites)):
        lens = _log_probs(model, streams[i] + streams[i] @ weight[i] + bias[i])
        total = total + torch.nn.functional.kl_div(lens, final, log_target=True, reduction="batchmean")
    expected = torch.autograd.grad(total, (weight, bias))
    mean = torch.stack(list(_divergences(model, list(zip(weight, bias)), streams, last))).sum()
    for actual, wanted in zip(torch.autograd.grad(mean, (weight, bias)), expected):
        close(actual, wanted)


def test_the_closed_form_finds_a_map_that_is_there() -> None:
    # without attention and MLP in it, the last block leaves the stream an affine image of what it was
    found = subject("bare")
    model = found.model
    last = model.stack.blocks[-1]
    with torch.no_grad():
        last.attn.merge.output.weight.zero_()
    batches = texts(found, 8)
    tuned = fit_tuned_lens(model, batches, start="ridge", steps=0, ridge=1e-12)
    assert tuned.sites[-1] == "blocks.0.resid_post"
    close(tuned.weight[-1], torch.zeros_like(tuned.weight[-1]), 1e-6)
    close(tuned.bias[-1], torch.zeros_like(tuned.bias[-1]), 1e-6)


def test_the_closed_form_is_weighted_least_squares() -> None:
    found = subject("llama")
    model, batches = found.model, texts(found, 12)
    tuned = fit_tuned_lens(model, batches, start="ridge", steps=0, ridge=0.0)
    parts = [_streams(model, batch, tuned.sites) for batch in batches]
    streams, last = torch.cat([s for s, _ in parts], 1), torch.cat([e for _, e in parts])
    root = 1 / model.stack.final.scale(last)[:, None]
    # what enters the first block takes as few values as there are tokens: only later places determine a map
    rows = torch.cat((streams[-1], torch.ones_like(root)), 1)
    solved = torch.linalg.lstsq(rows * root, (last - streams[-1]) * root).solution
    close(tuned.weight[-1], solved[:-1], 1e-6)
    close(tuned.bias[-1], solved[-1], 1e-6)


def test_the_same_seed_gives_the_same_lens_and_the_model_stays_as_it_was() -> None:
    found = subject("gpt2")
    before = {name: p.detach().clone() for name, p in found.model.named_parameters()}
    found.model.train()
    one, same, other = (fit_tuned_lens(found.model, texts(found, 4), steps=3, tokens=5, seed=s) for s in (1, 1, 2))
    assert torch.equal(one.weight, same.weight) and torch.equal(one.bias, same.bias)
    assert not torch.equal(one.weight, other.weight)
    assert found.model.training
    for name, parameter in found.model.named_parameters():
        assert torch.equal(parameter, before[name]) and parameter.grad is None


@pytest.mark.parametrize("name", first_of(["gpt2", "translator_pre", "linear"]))
def test_a_store_fits_the_lens_that_its_texts_do_to_the_last_bit(name: str, tmp_path: Path) -> None:
    found = subject(name, dtype=torch.float32)
    batches = texts(found, 4)
    ragged = dataclasses.replace(batches[3], lengths=torch.tensor([4, 7]))
    batches = [*batches[:3], ragged]
    sites = TunedLens.identity(found.model).reads(found.model)
    store = record_activations(found.model, batches, sites, tmp_path / "store", shard=3000)
    assert len(store.manifest.shards) > 1
    for start in ("zero", "ridge"):
        of_texts, of_store = (
            fit_tuned_lens(found.model, given, start=start, steps=5, tokens=6) for given in (batches, store)
        )
        assert torch.equal(of_texts.weight, of_store.weight) and torch.equal(of_texts.bias, of_store.bias)
        assert of_store.facts["tokens"] == of_texts.facts["tokens"]
    assert of_store.facts["provenance"]["analysis"] == "fit_tuned_lens"
    for given, stored in ((batches, store), (batches[2:], store.passes[2:])):
        one, other = (lens_divergence(found.model, of_store, read) for read in (given, stored))
        assert torch.equal(one.kl_bits.values, other.kl_bits.values) and one.positions == other.positions


def test_a_store_without_the_places_or_of_another_model_fits_no_lens(tmp_path: Path) -> None:
    found = subject("gpt2", dtype=torch.float32)
    store = record_activations(found.model, texts(found, 2), ["blocks.0.resid_pre"], tmp_path / "store")
    with pytest.raises(UnknownSite, match="is not in this store"):
        fit_tuned_lens(found.model, store)
    with pytest.raises(CheckpointError, match="holds activations of"):
        fit_tuned_lens(subject("gpt2", seed=1, dtype=torch.float32).model, store.passes[:1])


def test_progress_is_told_to_the_end() -> None:
    found = subject("gpt2")
    told: list[tuple[int, int]] = []
    batches = texts(found, 2)
    tuned = fit_tuned_lens(found.model, batches, start="ridge", steps=3, report=lambda *at: told.append(at))
    assert told == [(i, 5) for i in range(1, 6)]
    told.clear()
    lens_divergence(found.model, tuned, batches, report=lambda *at: told.append(at))
    assert told == [(1, 2), (2, 2)]


def test_padding_takes_no_part() -> None:
    found = subject("gpt2")
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    padded = Batch(ids, ids, ids > 0, lengths=torch.tensor([4, 2]))
    streams, last = _streams(found.model, padded, tuned_sites(found.model))
    assert last.shape[0] == 6 and streams.shape[1] == 6
    alone = _streams(found.model, [[5, 6]], tuned_sites(found.model))[1]
    close(last[4:], alone)
    assert lens_divergence(found.model, TunedLens.identity(found.model), [padded]).positions == 6


def test_spread_is_over_batches_and_unknown_for_one() -> None:
    found = subject("gpt2")
    tuned = TunedLens.identity(found.model)
    one = lens_divergence(found.model, tuned, texts(found, 1))
    assert one.spread.values.isnan().all()
    batches = texts(found, 3)
    each = torch.stack([lens_divergence(found.model, tuned, [b]).kl_bits.values for b in batches])
    several = lens_divergence(found.model, tuned, batches)
    close(several.kl_bits.values, each.mean(0))
    close(several.spread.values, each.std(0) / math.sqrt(3))


def test_a_saved_lens_comes_back_and_is_refused_by_any_other_model(tmp_path: Path) -> None:
    found = subject("gpt2")
    tuned = fit_tuned_lens(found.model, texts(found, 2), steps=2)
    path = tuned.save(tmp_path / "lens.safetensors")
    again = TunedLens.load(path, found.model)
    assert torch.equal(again.weight, tuned.weight) and torch.equal(again.bias, tuned.bias)
    assert again.sites == tuned.sites and again.facts == tuned.facts
    other = subject("gpt2", seed=1).model
    with pytest.raises(CheckpointError, match=r"same config with other weights .*\n.*fit_tuned_lens"):
        TunedLens.load(path, other)
    with pytest.raises(CheckpointError, match="a model of another config"):
        TunedLens.load(path, subject("parallel").model)
    with pytest.raises(CheckpointError, match="same config with other weights"):
        lens_grid(run(other, [1, 2], read=[lens_grid]), translators=TunedLens.load(path))


@pytest.mark.parametrize("damage", ["missing", "cut", "strange"])
def test_what_is_no_tuned_lens_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "lens.safetensors"
    if damage == "cut":
        path.write_bytes(TunedLens.identity(subject("gpt2").model).save(path).read_bytes()[:200])
    if damage == "strange":
        from safetensors.torch import save_file

        save_file({"weight": torch.zeros(2)}, str(path))
    with pytest.raises(CheckpointError, match=r'cannot read a tuned lens from ".*lens.safetensors"'):
        TunedLens.load(path)


def test_what_cannot_be_fitted_is_refused() -> None:
    found = subject("gpt2")
    bare: Any = randomise(DecoderConfig(7, 6, (), positions=Learned(), max_len=4).build())
    with pytest.raises(AnalysisUnavailable, match="a model without blocks has none"):
        TunedLens.identity(bare)
    with pytest.raises(AnalysisUnavailable, match="no batches"):
        fit_tuned_lens(found.model, [])
    with pytest.raises(UnknownSite, match="is no place of the stream"):
        fit_tuned_lens(found.model, texts(found, 1), sites=["blocks.0.attn.z"])
    done = run(found.model, [1, 2], read=[lens_grid])
    with pytest.raises(UnknownSite, match=r'no translator for "blocks.0.resid_mid"'):
        lens_grid(done, sites=["blocks.0.resid_mid"], translators=TunedLens.identity(found.model))


def test_a_model_of_half_precision_has_a_lens_of_single_precision() -> None:
    found = subject("gpt2", dtype=torch.bfloat16)
    batches = texts(found, 4)
    tuned = fit_tuned_lens(found.model, batches, start="ridge", steps=10)
    assert tuned.weight.dtype == torch.float32
    kl = lens_divergence(found.model, tuned, batches).kl_bits.values
    assert (kl[1, :-1] < kl[0, :-1]).all()
