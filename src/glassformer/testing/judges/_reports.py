"""Judges of reports: what each of their parts says, by the judges of what it was taken from."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer import weights
from glassformer.analysis.frozen import with_gates, with_scales
from glassformer.analysis.heads.roles import repeated_inputs, repeats_for
from glassformer.numerics.decompositions import eigenvalues
from glassformer.testing.judges._ablation import changes_without
from glassformer.testing.judges._attribution import STEP, with_vectors
from glassformer.testing.judges._direct_paths import DirectPaths, token_vectors
from glassformer.testing.judges._from_weights import composition_score, token_circuits
from glassformer.testing.judges._lens import stopped_after
from glassformer.testing.judges._patterns import evaluated, patterns_of
from glassformer.testing.judges.judge import Asked, Judge, Pair


def _explain(asked: Asked) -> Iterator[Pair]:
    found, model, inputs = asked.found, asked.model, asked.inputs
    at, answer, logits = found.position, found.answer.id, model(*inputs)[0, found.position].detach()
    yield Pair("answer", answer, int(logits.argmax()))
    yield from _said("the answer", found.answer, logits)
    yield Pair("entropy", found.next_token.entropy_bits, _entropy(logits))
    for candidate in found.next_token.candidates:
        yield from _said("a candidate", candidate, logits)
    by_depth = [stopped_after(model, inputs, i)[0] for i in range(len(model.output_stack.blocks) + 1)]
    for row, depth in zip(found.lens, by_depth, strict=True):
        yield from _said(f"the answer at {row.label}", row.answer, depth[at])
        yield Pair(f"entropy at {row.label}", row.entropy_bits, _entropy(depth[at]))
        yield Pair(f"divergence at {row.label}", row.kl_bits, _divergence(logits, depth[at]))
    if found.lens_map is not None:
        yield from _map(found.lens_map, torch.stack(by_depth))
    paths = DirectPaths(model, inputs)
    target = (paths.logits if paths.raw is None else paths.raw)[0, at, answer]
    added = paths.contributions(target)
    components = found.attribution.components
    zero = torch.zeros((), dtype=torch.float64)
    expected = torch.stack([added.pop(one.label, zero) for one in components])
    assert not any(map(bool, added.values())), f"nothing is said of {', '.join(added)}"
    yield Pair("contributions", [one.contribution for one in components], expected)
    yield Pair("their sum", found.attribution.sum, expected.sum())
    yield Pair("their total", found.attribution.total, expected.sum() if paths.raw is None else target)
    yield from _inputs(asked, at, answer)
    patterns = patterns_of(model, inputs)
    assert [one.label for one in found.patterns] == list(patterns)
    for pattern in found.patterns:
        yield Pair(f"pattern of {pattern.label}", pattern.weights, patterns[pattern.label][0])
    if found.top_heads:
        taken = paths.by_key(target, [head.label for head in found.top_heads])
        for head in found.top_heads:
            yield Pair(f"sources of {head.label}", head.sources, taken[head.label])
    if found.translation is not None:
        best = model(*inputs)[0].softmax(-1).max(-1).values
        yield Pair("the translation", [step.probability for step in found.translation.steps], best)


def _said(of: str, found: Any, logits: Tensor) -> Iterator[Pair]:
    yield Pair(f"logit of {of}", found.logit, logits[found.id])
    yield Pair(f"probability of {of}", found.probability, (logits - logits.logsumexp(0)).exp()[found.id])
    if hasattr(found, "rank"):
        yield Pair(f"rank of {of}", found.rank, 1 + int((logits > logits[found.id]).sum()))


def _map(found: Any, logits: Tensor) -> Iterator[Pair]:
    logits = logits[:, list(found.positions)]
    likeliest = logits.softmax(-1).sort(-1, descending=True)
    k = found.top.shape[-1]
    yield Pair("likeliest, by depth", found.probability, likeliest.values[..., :k])
    yield Pair("which, by depth", found.top, likeliest.indices[..., :k])
    yield Pair("entropy, by depth", found.entropy_bits, _entropy(logits))
    yield Pair("divergence, by depth", found.kl_bits, _divergence(logits[-1:], logits))


def _inputs(asked: Asked, at: int, answer: int) -> Iterator[Pair]:
    model, inputs = asked.model, asked.inputs
    vectors = [token_vectors(embed, ids) for embed, ids in zip(model.embeddings.values(), inputs)]

    def logit(stream: int, key: int, factor: float) -> Tensor:
        changed = [x.clone() for x in vectors]
        changed[stream][0, key] *= factor
        return with_vectors(model, inputs, changed)[0, at, answer].detach()

    said: Sequence[Any] = [asked.found.inputs.source_values, asked.found.inputs.values][-len(inputs) :]
    for stream, values in enumerate(said):
        keys = range(vectors[stream].shape[1])
        slopes = [(logit(stream, key, 1 + STEP) - logit(stream, key, 1 - STEP)) / (2 * STEP) for key in keys]
        # of central differences, whose error falls with the square of the step
        yield Pair("what token vectors do", values, torch.stack(slopes), 1e-5)


def _entropy(logits: Tensor) -> Tensor:
    p = logits.softmax(-1)
    return -(p * p.log2()).sum(-1)


def _divergence(of: Tensor, other: Tensor) -> Tensor:
    p, q = of.softmax(-1), other.softmax(-1)
    return (p * (p / q).log2()).sum(-1)


def _circuits(asked: Asked) -> Iterator[Pair]:
    found, model, (batch,) = asked.found, asked.model, asked.given["rows"]
    ids = repeated_inputs(model, repeats=repeats_for(model))
    w = with_scales(with_gates(weights.of(model, fold=True), *ids), *ids)
    if model.continues:
        said = "what heads attend to" not in {one.analysis for one in found.unavailable}
        roles = evaluated(model, ids[0]) if said else {}
        n = len(ids[0][0].unique())
        for head in found.heads:
            scores = dict(roles.get(head.label, {}))
            share = None if "copying" not in scores else (scores.pop("copying") + 1) / 4
            times = math.nan if share is None else share / (1 - share) * n
            yield Pair(f"copying of {head.label}, measured", _or_nan(head.copying_measured), times)
            yield Pair(f"roles of {head.label}", *_beside(head.roles, scores))
    lost = changes_without(model, batch, {head.label: [head.label] for head in found.heads})
    for head in found.heads:
        if found.ablated_loss is not None:
            loss, icl = lost[head.label]
            yield Pair(f"loss without {head.label}", head.ablation_loss, loss, 1e-6)
            yield Pair(f"score without {head.label}", _or_nan(head.ablation_icl), icl, 1e-6)
    copied = [head.label for head in found.heads if head.copying is not None]
    for label, circuit in token_circuits(w, copied).items():
        values = eigenvalues(circuit)
        yield Pair(f"copying of {label}", found[label].copying, values.real.sum() / values.abs().sum(), 1e-6)
    for edge in found.edges:
        score = composition_score(w, edge.kind, edge.earlier, edge.later, range(1, 33))
        yield Pair(f"{edge.kind}-composition of {edge.earlier} and {edge.later}", edge.score, score, 1e-6)
        yield Pair("its excess", edge.excess, score - edge.baseline, 1e-6)


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _beside(found: Mapping[str, float], expected: Mapping[str, float]) -> tuple[Tensor, Tensor]:
    """Return numbers by name side by side; what one of both lacks is NaN there."""
    names = dict.fromkeys((*found, *expected))
    first, second = ([of.get(name, math.nan) for name in names] for of in (found, expected))
    return torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64)


JUDGES = {
    "explain": Judge(
        _explain,
        (
            *("answer.logit", "answer.probability", "next_token.entropy_bits", "next_token.candidates.probability"),
            *("lens.answer.probability", "lens.entropy_bits", "lens.kl_bits", "lens_map.probability"),
            *("lens_map.entropy_bits", "attribution.total", "attribution.sum", "attribution.components.contribution"),
            *("inputs.values", "patterns.weights", "top_heads.sources"),
        ),
    ),
    "circuits": Judge(
        _circuits, ("heads.roles", "heads.copying_measured", "heads.copying", "heads.ablation_loss", "edges.score")
    ),
}
