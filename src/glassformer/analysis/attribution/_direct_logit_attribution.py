"""Direct logit attribution of one position: one logit as the sum of what every component wrote to the stream.

The direction of a token is pulled back from the unembedding through each norm with its scale frozen; what a component
adds is the dot product of its write with the direction as it stands where it writes. With scales frozen all of this is
linear, so the parts sum to the logit. In post-norm stacks the direction passes every later norm, and each of those
norms contributes its bias. `direct_effects` does the same for whole batches.
"""

import dataclasses
from typing import Any

from glassformer.analysis._run import run_for
from glassformer.analysis.attribution._direct_effects import aim, effects_at
from glassformer.analysis.attribution._parts_of_effects import by_key
from glassformer.analysis.components import Component, head_labels, vector_sites
from glassformer.analysis.frozen._pull_back import pull_back, scale_sites
from glassformer.analysis.frozen._writes import require_sources, source_sites
from glassformer.analysis.places import places
from glassformer.analysis.question import question
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model


@dataclasses.dataclass(frozen=True, eq=False)
class Attribution(Result):
    """Contributions to a logit, or to the difference of two.

    Args:
        contributions: In logits, over `component`.
        components: What each of them is, in the order of the forward pass.
        answer: Token id.
        against: Token id subtracted, or None.
        position: Index of the position whose next token is in question.
        total: The logit, or the difference, as the model computed it.
        sum: Of the contributions; equal to `total` up to rounding unless the stream itself was edited.
        cap: The model's soft cap on logits, or None. With a cap, `total` and the contributions are of the raw logit,
            before the cap: what comes after it is no sum.
    """

    contributions: Labelled
    components: tuple[Component, ...]
    answer: int
    against: int | None
    position: int
    total: float
    sum: float
    cap: float | None = None

    def __getitem__(self, label: str) -> float:
        """Return one contribution by its label."""
        return float(self.contributions.select(component=label).values)


@dataclasses.dataclass(frozen=True, eq=False)
class Sources(Result):
    """What one head takes from each token.

    Args:
        contributions: In logits, over `key`; they sum to the head's contribution.
        label: The head.
    """

    contributions: Labelled
    label: str


def attribution_sites(model: ModelLike) -> list[str]:
    """Return the sites that `direct_logit_attribution` reads, to be passed as `read=`."""
    names = vector_sites(require_model(model).output_embed)
    for layer in model.sub_layers():
        names.append(layer.at_out if layer.attention is None else layer.attention.at.head_out)
    names += scale_sites(model)
    return names if model.unembed.cap is None else [*names, model.unembed.at_raw]


@question("What adds to this logit?", reads=attribution_sites)
def direct_logit_attribution(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: str | int | None = None,
    against: str | int | None = None,
    position: int = -1,
    row: int = 0,
) -> Attribution:
    """Split one logit into the contributions of everything that wrote to the stream.

    Norm scales are frozen at the values they took in this pass, and so is what the activation of a readout multiplies
    its input by (act(u) / u), where the model has one; then the parts sum to the logit exactly (tested to
    1e-9 in float64). What is measured is the direct effect: what later components made of a write is credited to them.
    Of a model that caps its logits, the raw logit is split.

    Args:
        run: A forward pass that read `[direct_logit_attribution]`, or a model.
        text: What the model reads, if it is a model: a text, ids or a batch.
        target: Text or ids of its decoder, if it has an encoder.
        answer: Token (text or id) whose logit is split; the likeliest next token by default.
        against: Token whose logit is subtracted. Differences are free of the constant that logits are arbitrary up to.
        position: Position whose next token is in question; negative ones count from the end of the text.
        row: Row of the batch.

    Returns:
        Contributions in logits: `token`, `position`, `L0H0` …, `L0 attn bias`, `L0 mlp`, …, `final norm bias`,
        `unembed bias`. Heads of cross-attention are `L0X0`.

    Raises:
        SiteNotRead: The run lacks a site; the message lists what to add to `read=`.
        AnalysisUnavailable: The model is not one of ours, or its weights are not at hand (a loaded run).

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (expansion into direct paths).
    """
    run = run_for(direct_logit_attribution, run, text, target)
    run.require(attribution_sites(run.model), "direct_logit_attribution")
    at = places(run, position, row)
    found = effects_at(run, answer, against, at=at, analysis="direct_logit_attribution")
    assert found.answers is not None, "tokens were asked for"
    return Attribution(
        found.contributions.select(batch=0, pos=0),
        found.components,
        int(found.answers.values),
        None if found.against is None else int(found.against.values),
        int(at.positions),
        float(found.total.values),
        float(found.sum.values),
        found.cap,
    )


def _sites(model: ModelLike) -> list[str]:
    return attribution_sites(model) + source_sites(model)


@question("Which tokens does a head's share of this logit come from?", reads=_sites, traits=("linear_in_value",))
def sources(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    split: Attribution,
    label: str,
    row: int = 0,
) -> Sources:
    """Split a head's contribution by the token whose value it moved: pattern times value, through the output matrix.

    Args:
        run: The pass that `split` was made from, which also read `[sources]`; or the model.
        text: What the model reads, if it is a model: a text, ids or a batch.
        target: Text or ids of its decoder, if it has an encoder.
        split: Direction and position.
        label: A head, as `direct_logit_attribution` names it.
        row: Row of the batch.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: There is no such head, or its mechanism has no pattern.
    """
    run = run_for(sources, run, text, target)
    heads = [c.label for c in split.components if c.head is not None]
    if label not in heads:
        raise AnalysisUnavailable(f'sources: "{label}" is no head of this attribution. Heads: {", ".join(heads)}.')
    at = places(run, split.position, row)
    layer = next(one for one in require_model(run.model).sub_layers() if label in head_labels(one))
    require_sources(run, layer)
    path = pull_back(run, aim(run, split.answer, split.against, None, at, "sources").directions, at)
    found = by_key(run, path, at, [layer])
    every = found.contributions if found.cross is None else found.cross
    return Sources(every.select(batch=0, pos=0, head=label), label)
