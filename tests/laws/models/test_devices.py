"""Everything runs where the model is.

On the meta device tensors have shapes and no numbers, and meeting a tensor of the CPU is an error, as on a GPU: what
makes a tensor of its own in the wrong place fails here on any machine. What looks at numbers is held to the same on a
stand-in that has them (`tests/elsewhere.py`), by the laws of analyses and of training, and on a GPU where there is one.
"""

from typing import Any

import pytest
import torch

from glassformer import weights
from glassformer.analysis.causal import patch
from glassformer.analysis.from_weights import composition, copying
from glassformer.analysis.sweep import Donor, logit_difference, sweep
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import At, Scale, Set, Tape
from glassformer.weights import Factored

gpu = pytest.mark.gpu


def on_meta(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    case = subject(name)
    return case.model.to("meta"), tuple(ids.to("meta") for ids in case.inputs)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_forward_pass_its_sites_and_their_gradients_stay_on_the_device(name: str) -> None:
    model, inputs = on_meta(name)
    edit = Scale(f"{model.prefix}blocks.1.resid_pre", 0.5, at=At(pos=[1, 2]))
    tape = Tape(model, list(model.sites()), [edit], grad=True)
    logits = model(*inputs, tape=tape)
    found = [value for value in tape.values.values() if value.requires_grad]
    gradients = torch.autograd.grad(logits.sum(), found, allow_unused=True)
    assert logits.is_meta and all(value.is_meta for value in tape.values.values())
    assert all(gradient is None or gradient.is_meta for gradient in gradients)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_carried_state_and_resumed_layers_stay_on_the_device(name: str) -> None:
    model, (*source, tokens) = on_meta(name)
    state = model.begin(*source) if source else model.begin(len(tokens))
    extra = (None,) if source else ()
    for part in (tokens[:, :4], tokens[:, 4:5]):
        logits, state = model(*extra, part, state=state)
        assert logits.is_meta
    entry = f"{model.prefix}blocks.1.resid_pre"
    tape = Tape(model, [entry])
    model(*source, tokens, tape=tape)
    encoded = {"encoded": state.source} if source else {}
    at = torch.zeros(len(tokens), 1, dtype=torch.long, device="meta")
    assert model.resume(1, tape.values[entry], **encoded, at=at).is_meta


def test_factored_matrices_stay_on_the_device() -> None:
    a, b = (Factored(torch.ones(3, 7, 2, device="meta"), torch.ones(3, 2, 7, device="meta")) for _ in range(2))
    for matrix in (a @ b, a.mT, a + b, a.centred(rows=True)):
        assert matrix.dense().is_meta
    ids = torch.tensor([0, 2], device="meta")
    parts = [a.trace(), a.norm(), a.diagonal(), a.rows(ids), a.columns(ids), a.singular_values(), *a.svd()]
    assert all(part.is_meta for part in parts)


@gpu
def test_a_gpu_gives_the_numbers_of_the_cpu(cuda: torch.device) -> None:
    case = subject("llama")
    ids = case.inputs[0]
    own = weights.of(case.model)
    here = [composition(own, draws=0).scores.values.nan_to_num(), copying(own).eigenvalues.values.abs()]
    donor = Donor(ids.flip(1))
    plan = [[Set("blocks.1.attn.z", donor, at=At(pos=p))] for p in range(7)]
    here.append(sweep(case.model, ids, plan, logit_difference(1, 2)).values.values)
    here.append(patch(case.model, (ids, ids.flip(1)), logit_difference(1, 2), "z")["z"].values.values)
    there_model, there_ids = case.model.to(cuda), ids.to(cuda)
    own = weights.of(there_model)
    there = [composition(own, draws=0).scores.values.nan_to_num(), copying(own).eigenvalues.values.abs()]
    donor = Donor(there_ids.flip(1))
    plan = [[Set("blocks.1.attn.z", donor, at=At(pos=p))] for p in range(7)]
    there.append(sweep(there_model, there_ids, plan, logit_difference(1, 2)).values.values)
    there.append(patch(there_model, (there_ids, there_ids.flip(1)), logit_difference(1, 2), "z")["z"].values.values)
    for ours, reference in zip(there, here, strict=True):
        close(ours.cpu(), reference)


@gpu
def test_the_largest_entries_are_the_same_on_a_gpu(cuda: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(3, *shape, generator=generator, dtype=torch.float64) for shape in ((300, 8), (8, 400)))
    here, there = (Factored(a.to(where), b.to(where)).top(20, block=64) for where in ("cpu", cuda))
    for ours, reference in zip(there, here, strict=True):
        close(torch.as_tensor(ours).cpu().double(), torch.as_tensor(reference).double())
