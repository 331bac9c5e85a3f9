"""Running circuits: between the clean and the corrupt run, and equal to edits of the model where those can say it."""

import pytest
import torch
from hypothesis import given
from torch import Tensor

from circuit_pairs import Compared, pair
from glassformer.analysis import run
from glassformer.analysis.circuits._circuit_runs import CircuitRuns
from glassformer.analysis.circuits._two_runs import two_runs
from glassformer.analysis.sweep import Metric
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.testing import close
from glassformer.testing.layers import seeds
from glassformer.testing.models import ARCHITECTURES, Subject, attention_decoders, subject
from glassformer.trace import At, Set
from one_pass import in_one_pass

every = pytest.mark.parametrize("name", ARCHITECTURES)


def _everywhere(found: Compared) -> CircuitRuns:
    """Return runs whose logits are those of all positions."""
    return found.runs().measuring(lambda logits: logits[:, :, -1, 0])


def _logits(runs: CircuitRuns, cut: Tensor) -> Tensor:
    with torch.no_grad():
        return runs.run(cut)[0]


def _random_cuts(runs: CircuitRuns, worlds: int, seed: int = 0) -> Tensor:
    allowed = runs.graph.allowed.values
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(worlds, *allowed.shape, generator=generator) < 0.3) & allowed


@every
def test_with_all_edges_it_is_the_clean_run_and_with_none_the_corrupt_one(name: str) -> None:
    found = pair(name)
    runs = _everywhere(found)
    none = runs.graph.allowed.values[None]
    close(_logits(runs, torch.zeros_like(none)), found.model(*found.clean).detach())
    # two worlds: no tensor may be shared that should not be
    with torch.no_grad():
        for world in runs.run(none.repeat(2, 1, 1)):
            close(world, found.model(*found.corrupt).detach())


@given(attention_decoders(mlps=True))
def test_with_no_edges_it_is_the_corrupt_run_in_any_mixture_of_mechanisms(found: Subject) -> None:
    prompts = Compared(found)
    runs = _everywhere(prompts)
    close(_logits(runs, runs.graph.allowed.values[None]), prompts.model(*prompts.corrupt).detach())


@every
def test_worlds_side_by_side_are_the_worlds_alone(name: str) -> None:
    runs = pair(name).runs()
    cuts = _random_cuts(runs, 3)
    together = runs.evaluate(cuts)
    for cut, value in zip(cuts, together):
        close(runs.evaluate(cut[None])[0], value)


@every
def test_a_world_from_its_first_cut_on_is_the_whole_world(name: str) -> None:
    runs = pair(name).runs()
    cut = _random_cuts(runs, 2)
    early = [r for r, receiver in enumerate(runs.graph.receivers) if receiver.step < len(runs.steps) // 2]
    cut[:, early] = False
    with torch.no_grad():
        close(runs.measure(runs.run(cut)), runs.measure(runs.run(cut, start=0)))


@every
def test_cutting_a_head_off_from_everybody_is_patching_what_it_writes(name: str) -> None:
    found = pair(name)
    runs = _everywhere(found)
    step = runs.steps[0]
    site, label = f"{step.block.path}.{step.name}.head_out", runs.graph.senders[runs.columns[0].start + 1].label
    corrupt = run(found.model, *found.corrupt, read=[site])[site].values[:, 1]
    patched = run(found.model, *found.clean, edit=[Set(site, corrupt, at=At(head=1))]).logits
    assert patched is not None
    cut = runs.graph.allowed.values.clone()
    cut[:, [u for u, s in enumerate(runs.graph.senders) if s.label != label]] = False
    close(_logits(runs, cut[None]), patched)


@pytest.mark.parametrize(
    "name", [n for n in ARCHITECTURES if n not in ("sandwich", "behind", "proportioned", "post", "translator_post")]
)
def test_cutting_the_logits_off_from_a_head_changes_what_the_last_norm_reads(name: str) -> None:
    # in the wirings left out, later norms act on what a head wrote, which no one edit says
    found = pair(name)
    runs = _everywhere(found)
    step = runs.steps[0]
    site, last = f"{step.block.path}.{step.name}.head_out", runs.stack.blocks[-1].at_resid[-1]  # type: ignore[union-attr]
    writes = [run(found.model, *prompt, read=[site])[site].values[:, 0] for prompt in (found.corrupt, found.clean)]
    difference = writes[0] - writes[1]
    patched = run(found.model, *found.clean, edit=[(str(last), lambda x: x + difference)]).logits
    assert patched is not None
    head = runs.graph.senders[runs.columns[0].start].label
    cut = runs.graph.mask([(head, "logits")])
    close(_logits(runs, cut[None]), patched)


@in_one_pass
@pytest.mark.parametrize("slot", ["q", "k", "v"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "differential", "linear", "smeared"])
def test_cutting_all_edges_into_a_key_sets_it_to_the_corrupt_runs(name: str, slot: str) -> None:
    found = pair(name)
    runs = _everywhere(found)
    label = next(r.label for r in runs.graph.receivers if r.slot == slot and r.step == 0)
    site = "blocks.0.attn." + {"q": "query", "k": "key", "v": "value"}[slot]
    at = At(**{"head" if slot == "q" else "kv_head": 0})
    corrupt = at.take(run(found.model, *found.corrupt, read=[site])[site].values, found.model.sites()[site])
    patched = run(found.model, *found.clean, edit=[Set(site, corrupt, at=at)]).logits
    assert patched is not None
    cut = torch.zeros_like(runs.graph.allowed.values)
    r = runs.graph.receiver(label)
    cut[r] = runs.graph.allowed.values[r]
    close(_logits(runs, cut[None]), patched)


@given(seeds)
def test_half_an_edge_is_half_the_difference_where_everything_is_linear(seed: int) -> None:
    found = pair("attention_only", seed=seed % 100)
    runs = found.runs()
    last = runs.graph.receiver("logits")
    cut = torch.zeros(3, *runs.graph.allowed.values.shape, dtype=torch.float64)
    cut[1, last] = 0.5 * runs.graph.allowed.values[last]
    cut[2, last] = 1.0 * runs.graph.allowed.values[last]
    none, half, whole = runs.evaluate(cut, frozen=True)
    close(half, (none + whole) / 2)


def test_rows_of_unequal_length_are_measured_at_their_own_end() -> None:
    found = subject("gpt2", batch=2, length=6)
    tokens, lengths = found.inputs[0], torch.tensor([6, 4])
    other = (tokens + 3) % 11
    batch, corrupt = (
        Batch(tokens=t, targets=t, weight=torch.ones_like(t, dtype=torch.bool), lengths=lengths)
        for t in (tokens, other)
    )
    metric = Compared(found).metric
    runs = CircuitRuns(found.model, batch, corrupt, metric)
    whole = runs.evaluate(torch.stack([torch.zeros_like(runs.graph.allowed.values), runs.graph.allowed.values]))
    for prompt, value in zip((tokens, other), whole):
        alone = found.model(prompt[1:, :4])[:, -1].detach()
        close(value[1], metric.function(alone[None], *metric.ids(found.model, 1, alone.device))[0, 0])


def test_packed_documents_do_not_see_each_other() -> None:
    found = subject("llama", batch=2, length=6)
    tokens, ids = found.inputs[0], torch.tensor([[0, 0, 0, 1, 1, 1]]).expand(2, -1)
    weight = torch.ones_like(tokens, dtype=torch.bool)
    batch, corrupt = (Batch(tokens=t, targets=t, weight=weight, documents=ids) for t in (tokens, (tokens + 3) % 11))
    runs = CircuitRuns(found.model, batch, corrupt, Compared(found).metric)
    values = runs.evaluate(runs.graph.allowed.values.repeat(2, 1, 1))
    # the last document alone, at its own positions
    alone = found.model(((tokens + 3) % 11)[:, 3:])[:, -1].detach()
    for value in values:
        close(value, alone[:, 1] - alone[:, 2])


@every
def test_zeroed_edges_leave_biases_and_nothing_else(name: str) -> None:
    found = pair(name)
    values = found.runs(off="zero").evaluate(found.runs().graph.allowed.values[None])[0]
    # nobody reads any prompt, so that all say the same
    close(values, values[:1].expand_as(values))


def test_the_mean_over_equal_prompts_is_the_prompt() -> None:
    found = pair("gpt2")
    same = found.clean[0][:1].repeat(3, 1)
    runs = CircuitRuns(found.model, same, same, found.metric, off="mean")
    cuts = _random_cuts(runs, 2)
    close(runs.evaluate(cuts), runs.measure(runs.logits(runs.clean)).detach().expand(2, -1))


def test_prompts_of_different_shape_are_refused() -> None:
    found = pair("gpt2")
    with pytest.raises(ShapeMismatch, match="the clean prompt has tokens batch=2 pos=7, the corrupt one batch=2 pos=6"):
        CircuitRuns(found.model, found.clean[0], found.corrupt[0][:, 1:], found.metric)


def test_a_metric_of_another_site_is_refused() -> None:
    found = pair("gpt2")
    metric = Metric("size", lambda x: x.norm(dim=-1), site="blocks.0.resid_post", at=At(pos=-1))
    with pytest.raises(AnalysisUnavailable, match=r'"size" is read at "blocks\.0\.resid_post"'):
        two_runs(*found.prompts, metric, "a test")


@pytest.mark.parametrize("name", ["llama", "parallel", "sandwich", "post", "translator_pre"])
def test_with_frozen_norms_a_world_does_not_depend_on_those_beside_it(name: str) -> None:
    runs = pair(name).runs()
    edges = runs.graph.allowed.values.nonzero()[::5]
    cuts = torch.zeros(len(edges), *runs.graph.allowed.values.shape, dtype=torch.bool)
    cuts[torch.arange(len(edges)), edges[:, 0], edges[:, 1]] = True
    together = runs.evaluate(cuts, frozen=True)
    for cut, value in zip(cuts, together):
        close(runs.evaluate(cut[None], frozen=True)[0], value, 1e-8)
