"""What each token's vector does for the answer that is explained: gradient times input, in the explanation's own pass.

    value[t] = x_t . d m / d x_t         x_t the token's vector, m the answer's logit or a difference of two

Norms and patterns are live, so the numbers are local slopes and do not sum to the logit.
Source: Shrikumar et al. 2016 (gradient times input).
"""

import dataclasses

import torch
from torch import Tensor

from glassformer.analysis._run import Run, TextOrIds, run
from glassformer.analysis.reports._explanation import InputAttribution
from glassformer.models import ModelLike


def run_for_gradients(
    model: ModelLike, text: TextOrIds, target: TextOrIds | None, read: list[str], specials: bool | None = None
) -> Run:
    """Run a model once, keeping the graph from its token vectors on."""
    entries = _entries(model)
    edit = [(site, _leaf) for site in entries]
    sites = list(dict.fromkeys([*read, *entries]))
    return run(model, text, target, read=sites, edit=edit, specials=specials, grad=True)


def input_attribution(run: Run, answer: int, against: int | None, at: int) -> InputAttribution:
    """Attribute a logit to the token vectors; the run is one of `run_for_gradients`, and keeps its graph."""
    assert run.logits is not None
    logits = run.logits[0, at]
    metric = logits[answer] if against is None else logits[answer] - logits[against]
    vectors = [run[site].values for site in _entries(run.model)]
    gradients = torch.autograd.grad(metric, vectors, retain_graph=True)
    *source, own = [(g * x.detach()).sum(-1)[0].tolist() for g, x in zip(gradients, vectors)]
    return InputAttribution(
        method="gradient_x_input",
        target="logit" if against is None else "difference",
        values=tuple(own),
        source_values=tuple(source[0]) if source else None,
    )


def without_graph(run: Run) -> Run:
    """Return the run with plain numbers."""
    sites = {name: dataclasses.replace(site, values=site.values.detach()) for name, site in run.sites.items()}
    return dataclasses.replace(run, sites=sites, logits=None if run.logits is None else run.logits.detach())


def _entries(model: ModelLike) -> list[str]:
    return [embed.at_token for embed in model.embeddings.values()]


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()
