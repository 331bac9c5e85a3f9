"""Path patching: exact on every architecture, equal to what edits and direct logit attribution say."""

import itertools

import pytest
import torch
from hypothesis import given
from torch import Tensor

from circuit_pairs import Compared, novelty, pair, repetition
from glassformer.analysis import run
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.circuits import edge_effects, path_patching, sender_effects
from glassformer.analysis.circuits._circuit_runs import CircuitRuns
from glassformer.analysis.circuits._direct_paths import received
from glassformer.data import Contrast
from glassformer.errors import AnalysisUnavailable
from glassformer.handmade import (
    induction_model,
    plant,
    pointer_model,
    random_head,
    resting_copier,
    rotated,
    virtual_head_model,
)
from glassformer.models import Decoder
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, DIRECTED, Subject, attention_decoders
from glassformer.trace import At, Set
from one_pass import in_one_pass

every = pytest.mark.parametrize("name", ARCHITECTURES)
# writes are added as they are, and there is no cap on logits: what attribution splits is what the metric measures
OTHERS = ("sandwich", "behind", "post", "translator_post", "capped", "translator_linear")
ADDED = [n for n in DIRECTED if n not in OTHERS]


@pytest.mark.parametrize("name", ADDED)
def test_direct_effects_with_a_frozen_norm_are_differences_of_direct_logit_attributions(name: str) -> None:
    found = pair(name)
    senders = [s.label for s in found.runs().graph.senders if s.kind in ("head", "mlp")]
    effect = path_patching(*found.args, senders=senders, norm="frozen").effect
    both = [run(found.model, *prompt, read=[direct_logit_attribution]) for prompt in (found.clean, found.corrupt)]
    final = found.runs().stack.final
    for row in range(2):
        clean, corrupt = (direct_logit_attribution(each, answer=1, against=2, row=row) for each in both)
        # attribution divides by the scale of its own run
        scales = [1.0, 1.0] if final.identity else [float(each[final.at_scale].values[row, -1]) for each in both]
        expected = [float(corrupt[label]) * scales[1] / scales[0] - float(clean[label]) for label in senders]
        close(effect.values[:, row], torch.tensor(expected, dtype=torch.float64))


def _read(runs: CircuitRuns, row: int, cut: Tensor) -> Tensor:
    """Return what a receiver reads in the clean run with its edges cut, `world batch pos d_model`."""
    (given,) = received(runs, cut, [row])
    return given.streams[:, 0].unflatten(0, (len(cut), -1))


def test_effects_are_the_same_whatever_memory_is_free_when_a_pass_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pair(ADDED[0])

    def asked() -> list[Tensor]:
        split = sender_effects(*found.args)
        paths = path_patching(*found.args)
        return [paths.effect.values, edge_effects(*found.args).effect.values, split.total.values, split.direct.values]

    expected = asked()
    free = itertools.cycle((4, 1, 3))
    monkeypatch.setattr(CircuitRuns, "at_once", property(lambda _: next(free)))
    for values, once in zip(asked(), expected):
        close(values, once)


@every
def test_all_senders_together_change_what_a_receiver_reads_by_all_of_the_difference(name: str) -> None:
    found = pair(name)
    runs = found.runs()
    for r, receiver in enumerate(runs.graph.receivers):
        cut = torch.zeros_like(runs.graph.allowed.values)
        cut[r] = runs.graph.allowed.values[r]
        expected = runs.corrupt.source if receiver.source else runs.corrupt.sites[runs.read_at(receiver.step)]
        assert expected is not None
        close(_read(runs, r, cut[None])[0], expected)


@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "llama", "attention_only", "parallel", "translator_pre"])
def test_differences_of_single_edges_add_up_in_what_a_receiver_reads(name: str) -> None:
    runs = pair(name).runs()
    r = len(runs.graph.receivers) - 1
    senders = runs.graph.allowed.values[r].nonzero().flatten()
    single = torch.zeros(len(senders), *runs.graph.allowed.values.shape, dtype=torch.bool)
    single[torch.arange(len(senders)), r, senders] = True
    clean, corrupt = (found.sites[runs.read_at(len(runs.steps))] for found in (runs.clean, runs.corrupt))
    close((_read(runs, r, single) - clean).sum(0), corrupt - clean)


@every
def test_patching_all_senders_into_the_logits_is_the_corrupt_run(name: str) -> None:
    found = pair(name)
    senders = [[s.label for s in found.runs().graph.senders if s.kind != "source"]]
    result = path_patching(*found.args, senders=senders)
    close(result.effect.values[0] + result.clean.values, result.corrupt.values)
    close(result.corrupt.values, found.value(found.model(*found.corrupt)))


@every
def test_total_effects_are_direct_and_indirect_ones(name: str) -> None:
    found = pair(name)
    runs = found.runs()
    last = [s.label for s in runs.graph.senders if s.step == len(runs.steps) - 1][:2]
    result = sender_effects(*found.args, senders=["embed", *last])
    close(result.direct.values + result.indirect.values, result.total.values)
    assert bool(result.indirect.select(sender="embed").values.any())
    # behind the last sub-layer there is nothing but the logits
    for label in last:
        close(result.indirect.select(sender=label).values, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("name", ["gpt2", "llama", "parallel", "sandwich", "post", "lightning_hybrid"])
def test_with_mlps_recomputed_it_is_a_run_with_the_other_heads_held(name: str) -> None:
    found = pair(name)
    label = "L0H1"
    result = path_patching(*found.args, senders=[label], mlps="recomputed")
    heads = [f"blocks.{i}.attn.head_out" for i in range(2)]
    clean, corrupt = (run(found.model, *prompt, read=heads) for prompt in (found.clean, found.corrupt))
    edit = [Set(site, clean[site].values) for site in heads]
    edit.append(Set(heads[0], corrupt[heads[0]].values[:, 1], at=At(head=1)))
    patched = run(found.model, *found.clean, edit=edit).logits
    assert patched is not None
    close(result.effect.values[0] + result.clean.values, found.value(patched))


@every
def test_without_mlps_on_the_way_both_choices_agree(name: str) -> None:
    found = pair(name)
    # between the embedding and the first head there is nothing
    frozen = path_patching(*found.args, receivers="L0H0.q", mlps="frozen")
    recomputed = path_patching(*found.args, receivers="L0H0.q", mlps="recomputed")
    close(frozen.effect.values, recomputed.effect.values)


@every
def test_an_edge_is_a_path_to_one_receiver(name: str) -> None:
    found = pair(name)
    edges = found.runs().graph.edges[::11]
    result = edge_effects(*found.args, edges=edges)
    for i in (0, len(edges) - 1):
        one = path_patching(*found.args, senders=[edges[i].sender], receivers=edges[i].receiver)
        close(one.effect.values[0], result.effect.values[i])


@given(attention_decoders(mlps=True))
def test_a_path_from_a_run_to_itself_does_nothing(found: Subject) -> None:
    prompts = Compared(found)
    result = edge_effects(prompts.model, (prompts.clean[0], prompts.clean[0]), prompts.metric)
    # rounding differs with how many rows share a product
    assert float(result.effect.values.abs().max()) < 1e-12


def _wired(model: Decoder, pairs: Contrast, metric: object) -> set[tuple[str, str]]:
    found = edge_effects(model, pairs, metric)  # type: ignore[arg-type]
    return {edge for edge, effect in zip(found.edges, found.share.values.abs().tolist()) if effect > 1e-3}


INDUCTION = {
    ("embed", "L0H0.v"), ("L0H0", "L1H0.k"), ("embed", "L1H0.q"), ("embed", "L1H0.v"), ("L1H0", "logits"),
}  # fmt: skip
POINTER = {
    ("embed", "L0H0.q"), ("embed", "L0H0.k"), ("L0H0", "L1H0.q"), ("embed", "L1H0.v"), ("L1H0", "logits"),
}  # fmt: skip


def test_paths_tell_key_composition_from_query_composition() -> None:
    assert _wired(induction_model(), *repetition()) == INDUCTION
    pairs, metric = novelty()
    assert _wired(pointer_model(vocab=25), pairs, metric) <= POINTER
    assert ("L0H0", "L1H0.q") in _wired(pointer_model(vocab=25), pairs, metric)
    assert ("L0H0", "L1H0.k") not in _wired(pointer_model(vocab=25), pairs, metric)


def test_paths_are_found_in_a_hidden_basis_and_beside_decoys() -> None:
    model = rotated(induction_model(), seed=3)
    model = plant(model, 1, resting_copier(model, 1))
    model = plant(model, 0, random_head(model, 0))
    assert _wired(model, *repetition()) == INDUCTION


def test_a_virtual_head_is_a_path_through_values() -> None:
    generator = torch.Generator().manual_seed(0)
    clean, corrupt = (torch.randint(1, 10, (4, 8), generator=generator) for _ in range(2))
    found = path_patching(virtual_head_model(), (clean, corrupt), lambda z: z[:, :, -1, 3], receivers="L1H0.v")
    wired = {
        label for label, effect in zip(found.effect.labels("sender"), found.effect.values) if effect.abs().max() > 1
    }
    assert wired == {"L0H0"}


def test_redundant_heads_share_the_effect() -> None:
    pairs, metric = repetition()
    found = path_patching(induction_model(redundant=True), pairs, metric)
    share = found.share
    close(share.select(sender="L1H0").values, torch.tensor(0.5, dtype=torch.float64))
    close(share.select(sender="L1H1").values, torch.tensor(0.5, dtype=torch.float64))


def test_progress_counts_senders() -> None:
    seen: list[tuple[int, int]] = []
    found = pair("gpt2")
    path_patching(*found.args, report=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (11, 11)


def test_an_unknown_receiver_is_refused() -> None:
    found = pair("gpt2")
    with pytest.raises(AnalysisUnavailable, match=r'no receiver "L1H9\.k"'):
        path_patching(*found.args, receivers="L1H9.k")
