"""Where features fire most, in context, and what the model loses without them.

Examples are the largest activations over some texts, with the tokens around them. An effect is what setting one feature
to zero, at all positions and with the dictionary's error left as it is, adds to the loss.

Source: Bricken et al. 2023, "Towards Monosemanticity" (dataset examples, ablations).
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownMemberType=false

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.dictionaries._attached import attach, site_of
from glassformer.analysis.dictionaries._autoencoder import SparseAutoencoder
from glassformer.analysis.dictionaries._tokens import chosen_features
from glassformer.analysis.prepare import next_tokens
from glassformer.analysis.question import question
from glassformer.analysis.sweep import Metric, sweep
from glassformer.arguments import Count, Natural, Several
from glassformer.data import Batch
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, ModuleLike, require_model, require_module
from glassformer.trace import At, Edit, Set, without_splits


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureExamples(Result):
    """Where features fire most.

    Args:
        activations: Largest activations, `feature example`, largest first; NaN where a feature fires less often.
        density: Share of positions in which each feature fires, `feature`.
        texts: Tokens around each, joined, the one itself between « and »; empty where there is none. By feature.
        places: Text (a row, counted over all batches) and position of each, by feature.
    """

    HEADLINE = ("activations", "density")

    activations: Labelled
    density: Labelled
    texts: dict[int, list[str]]
    places: dict[int, list[tuple[int, int]]]


@question("On which tokens does each feature fire most?", of="texts")
@torch.no_grad()
def feature_examples(
    model: ModuleLike,
    dictionary: SparseAutoencoder,
    batches: Several[Any],
    features: Sequence[int] | None = None,
    *,
    site: str | None = None,
    k: Count = 5,
    around: Natural = 6,
    report: Callable[[int, int], None] | None = None,
) -> FeatureExamples:
    """Find the positions where features of a dictionary fire most.

    Args:
        model: A model of ours, or a module seen through a spec.
        dictionary: Of one of its sites.
        batches: Texts, each whatever `run` takes.
        features: Which; all by default.
        site: Full name of the site, for a dictionary that does not say.
        k: Examples of each feature.
        around: Tokens shown on either side.

    Raises:
        CheckpointError: The dictionary is of another model or site.
        ShapeMismatch: There is no such feature, or the site has rows of another width.
    """
    model = without_splits(require_module(model, "feature_examples"))
    name = f"{site_of(dictionary, site)}.features"
    split, chosen = attach(model, dictionary, site=site), chosen_features(dictionary, features, "feature_examples")
    best = _Best(len(chosen), k)
    for i, batch in enumerate(batches):
        found = run(split, batch, read=[name])
        values, rows = found[name].values[..., chosen].double().cpu(), _rows(found, name)
        best.add(values, rows, around)
        if report is not None:
            report(i + 1, len(batches))
    return best.result(chosen.tolist())


def _rows(found: Any, name: str) -> list[list[str]]:
    """Return the tokens of each row at a site, of its own text."""
    encoder = found.model.sites()[name.removesuffix(".features")].stack == "encoder"
    rows = found.inputs.source_rows if encoder else found.inputs.token_rows
    return [list(row) for row in rows]


class _Best:
    """The largest activations so far."""

    def __init__(self, features: int, k: int) -> None:
        self.k, self.rows, self.positions = k, 0, 0
        self.values = torch.full((features, 0), -torch.inf, dtype=torch.float64)
        self.places = torch.zeros(features, 0, 2, dtype=torch.long)
        self.fired = torch.zeros(features, dtype=torch.float64)
        self.shown: dict[tuple[int, int], str] = {}

    def add(self, values: Float[Tensor, "batch pos feature"], rows: list[list[str]], around: int) -> None:
        batch, length, features = values.shape
        real = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
        values = values.masked_fill(~real[..., None], -torch.inf)
        self.fired += (values > 0).double().sum((0, 1))
        self.positions += int(real.sum())
        where = torch.stack(torch.meshgrid(torch.arange(batch), torch.arange(length), indexing="ij"), -1)
        where = (where + torch.tensor([self.rows, 0])).flatten(0, 1).expand(features, -1, -1)
        values, where = torch.cat((self.values, values.flatten(0, 1).mT), 1), torch.cat((self.places, where), 1)
        kept = values.topk(min(self.k, values.shape[1]), -1)
        self.values, self.places = kept.values, where.gather(1, kept.indices[..., None].expand(-1, -1, 2))
        named = {(row, pos) for row, pos in self.places.flatten(0, 1).tolist()}
        new = {(row, pos): rows[row - self.rows] for row, pos in named if row >= self.rows}
        shown = {place: _shown(row, place[1], around) for place, row in new.items() if place[1] < len(row)}
        self.shown = {place: text for place, text in (self.shown | shown).items() if place in named}
        self.rows += batch

    def result(self, features: list[int]) -> FeatureExamples:
        coords = {"feature": features}
        there = self.values > 0
        places = {feature: [tuple(p) for p, own in zip(*pair) if own] for feature, *pair in self._by_feature(features)}
        texts = {feature: [self.shown[place] for place in own] for feature, own in places.items()}
        return FeatureExamples(
            activations=Labelled(self.values.masked_fill(~there, torch.nan), ("feature", "example"), coords),
            density=Labelled(self.fired / max(self.positions, 1), ("feature",), coords),
            texts=texts,
            places=places,
        )

    def _by_feature(self, features: list[int]) -> Any:
        return zip(features, self.places.tolist(), (self.values > 0).tolist())


def _shown(row: list[str], position: int, around: int) -> str:
    """Return the tokens around a position, the one there marked."""
    before, after = row[max(position - around, 0) : position], row[position + 1 : position + 1 + around]
    return "".join((*before, "«", row[position], "»", *after))


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureEffects(Result):
    """What the model loses without each feature.

    Args:
        loss: What setting the feature to zero adds to the mean loss of counted tokens, `feature`, in nats.
        error: Standard error of that over texts, `feature`; NaN of one.
        kl: Mean KL(as it is || without the feature) of next-token distributions, `feature`, in nats.
        base: Mean loss as it is, in nats.
        tokens: How many were counted.
    """

    HEADLINE = ("loss", "kl")
    SIGNED = ("loss",)

    loss: Labelled
    error: Labelled
    kl: Labelled
    base: float
    tokens: int

    @property
    def used(self) -> list[int]:
        """Features without which the loss is higher by more than three standard errors."""
        pairs = zip(self.loss.labels("feature"), (self.loss.values > 3 * self.error.values).tolist())
        return [int(feature) for feature, there in pairs if there]


@question("What does the model lose without each feature?", of="texts")
@torch.no_grad()
def feature_effects(
    model: ModelLike,
    dictionary: SparseAutoencoder,
    batches: Several[Any],
    features: Sequence[int] | None = None,
    *,
    site: str | None = None,
    report: Callable[[int, int], None] | None = None,
) -> FeatureEffects:
    """Set features to zero one at a time, and measure.

    Args:
        dictionary: Of one of the model's sites.
        batches: Texts, each a text, ids or a `Batch`.
        features: Which; all by default.
        site: Full name of the site, for a dictionary that does not say.

    Raises:
        CheckpointError: The dictionary is of another model or site.
        ShapeMismatch: There is no such feature, or the site has rows of another width.
        AnalysisUnavailable: The model is not one of ours, or its logits are of no tokens.
    """
    model = without_splits(require_model(model, "feature_effects"))
    name = f"{site_of(dictionary, site)}.features"
    split, chosen = attach(model, dictionary, site=site), chosen_features(dictionary, features, "feature_effects")
    plan: list[list[Edit]] = [[Set(name, 0.0, at=At(feature=feature))] for feature in chosen.tolist()]
    found, base, counts = list[Tensor](), list[Tensor](), list[Tensor]()
    for i, given in enumerate(batches):
        batch = next_tokens(model, given, "feature_effects")
        done = sweep(split, batch, plan, _metrics(run(split, batch).logits, batch))
        found.append(done.values.values.double().cpu())
        base.append(done.base.values.double().cpu())
        counts.append(batch.weight.sum(-1).double().cpu())
        if report is not None:
            report(i + 1, len(batches))
    return _effects(torch.cat(found, -1), torch.cat(base, -1), torch.cat(counts), chosen.tolist())


def _metrics(logits: Any, batch: Batch) -> list[Metric]:
    """Return loss and KL, each summed over the tokens of a text that count."""
    whole: Tensor = logits.double().log_softmax(-1)
    counted = batch.weight.double()

    def loss(found: Tensor) -> Tensor:
        each = found.double().log_softmax(-1).gather(-1, batch.targets[..., None].expand(*found.shape[:-1], 1))[..., 0]
        return -(each * counted).sum(-1)

    def kl(found: Tensor) -> Tensor:
        apart = whole.exp() * (whole - found.double().log_softmax(-1))
        return (apart.nan_to_num(0.0).sum(-1) * counted).sum(-1)

    return [Metric("loss", loss, pos=None), Metric("kl", kl, pos=None)]


def _effects(
    found: Float[Tensor, "metric feature text"],
    base: Float[Tensor, "metric text"],
    counts: Float[Tensor, " text"],
    features: list[int],
) -> FeatureEffects:
    total, n = counts.sum(), len(counts)
    added = found[0] - base[0]
    mean = added.sum(-1) / total
    # of a ratio of sums over texts
    apart = (added - mean[:, None] * counts).square().sum(-1) * (n / max(n - 1, 1))
    error = apart.sqrt() / total if n > 1 else torch.full_like(mean, torch.nan)
    coords = {"feature": features}
    loss, error, kl = (Labelled(value, ("feature",), coords) for value in (mean, error, found[1].sum(-1) / total))
    return FeatureEffects(loss=loss, error=error, kl=kl, base=float(base[0].sum() / total), tokens=int(total))
