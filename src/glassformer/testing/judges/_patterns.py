"""What heads look at, by giving their mechanisms values that say which key they are of; and roles by counting."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis.heads.roles import repeated_inputs
from glassformer.models import SubLayer
from glassformer.testing.judges._direct_paths import Mixed, labels_of_heads
from glassformer.testing.judges._hooks import Change, hooked
from glassformer.testing.judges.judge import Asked, Judge, Pair


@torch.no_grad()
def mixed_in(model: Any, inputs: Sequence[Tensor]) -> list[Mixed]:
    """Return what every attention layer of a model mixed of a text, stack by stack."""
    kept: dict[str, Any] = {}
    layers = [layer for stack in model.stacks for layer in model.sub_layers(stack) if layer.attention is not None]
    changes: list[Change] = []
    for layer in layers:
        mixer = layer.attention.mixer
        changes.append(Change(mixer, "in", functools.partial(kept.__setitem__, f"{layer.path} given"), None))
        changes.append(Change(mixer, "out", functools.partial(kept.__setitem__, f"{layer.path} z")))
        output = layer.attention.merge.output
        changes.append(Change(output, "in", functools.partial(kept.__setitem__, f"{layer.path} flat")))
    with hooked(changes):
        model(*inputs)
    return [Mixed(one, *(kept[f"{one.path} {what}"] for what in ("given", "z", "flat"))) for one in layers]


@torch.no_grad()
def pattern_of(mixed: Mixed) -> Tensor:
    """Return the pattern, `batch row query key`: a key's column is what becomes of a one among its values.

    A row is a head or, where heads have several values, one of them: what becomes of a one stands where its value does,
    less what a convolution makes of it, and what becomes of no values at all.
    """
    assert mixed.layer.attention is not None, "patterns are those of attention"
    mixer: Any = mixed.layer.attention.mixer
    q, k, v, *rest = mixed.given
    streams = 1 if v.ndim == 4 else v.shape[1]
    joined = streams > 1 and mixer.traits.value_merge == "concat"
    # of which values know nothing
    offset = mixer(q, k, torch.zeros_like(v), *rest)[0] if mixer.traits.linear_in_value == "affine" else 0.0
    rows: list[Tensor] = []
    for stream in range(streams):
        columns: list[Tensor] = []
        for key in range(v.shape[-2]):
            one = torch.zeros_like(v)
            (one if v.ndim == 4 else one[:, stream])[..., key, 0] = 1
            z = mixer(q, k, one, *rest)[0] - offset
            if mixer.traits.linear_in_value == "convolved":
                z = z - mixer.local(one, rest[1])[0]
            columns.append(z[..., stream * v.shape[-1] if joined else 0])
        rows.append(torch.stack(columns, -1))
    return torch.stack(rows, 2).flatten(1, 2)


def patterns_of(model: Any, inputs: Sequence[Tensor], *, crossing: bool = True) -> dict[str, Tensor]:
    """Return the patterns of a model's heads by their labels, `batch query key`; those that have none are left out."""
    found: dict[str, Tensor] = {}
    for mixed in mixed_in(model, inputs):
        part: Any = mixed.layer.attention
        if part.traits.shows_patterns and (crossing or not mixed.layer.crosses):
            found |= dict(zip(labels_of_patterns(mixed.layer), pattern_of(mixed).unbind(1), strict=True))
    return found


def labels_of_patterns(layer: SubLayer) -> list[str]:
    """Return the labels of an attention layer's patterns: those of its heads, of each value where they have several."""
    part: Any = layer.attention
    n, labels = part.mixer.traits.value_streams, labels_of_heads(layer)
    return list(labels) if n == 1 else [f"{label}/{i}" for label in labels for i in range(n)]


def role_scores(pattern: Tensor, ids: Tensor) -> dict[str, float]:
    """Return how far a head plays each role: query by query, key by key."""
    shares: dict[str, list[float]] = {}
    rows, weights, total = ids.tolist(), pattern.tolist(), pattern.abs().sum(-1).tolist()
    for b, tokens in enumerate(rows):
        for q in range(1, len(tokens)):
            keys = {
                "previous_token": [q - 1],
                "induction": [k for k in range(1, q + 1) if tokens[k - 1] == tokens[q]],
                "duplicate_token": [k for k in range(q) if tokens[k] == tokens[q]],
                "first_token": [0],
                "current_token": [q],
            }
            for role, looked in keys.items():
                if looked:
                    mass = sum(weights[b][q][k] for k in looked)
                    shares.setdefault(role, []).append(mass / total[b][q] if total[b][q] else 0.0)
    return {role: sum(of_role) / len(of_role) for role, of_role in shares.items()}


def copying_scores(model: Any, ids: Tensor, patterns: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how much of what each head's write raises among a text's tokens is what it looks at, from -1 to 1."""
    found: dict[str, float] = {}
    for mixed in mixed_in(model, (ids,)):
        n = len(labels := labels_of_heads(mixed.layer))
        for h, label in enumerate(labels):
            own = {name: pattern for name, pattern in patterns.items() if name.partition("/")[0] == label}
            if not own:
                continue
            alone = torch.zeros_like(mixed.flat).unflatten(-1, (n, -1))
            alone[..., h, :] = mixed.flat.unflatten(-1, (n, -1))[..., h, :]
            assert mixed.layer.attention is not None, "heads are those of attention"
            write = _carried(model, mixed.layer, alone.flatten(-2) @ mixed.layer.attention.merge.output.weight.T)
            logits = write @ model.unembed.weight.T
            raised = (logits - logits.mean(-1, keepdim=True)).clamp_min(0).detach()
            found |= {name: _copied(raised.tolist(), pattern, ids.tolist()) for name, pattern in own.items()}
    return found


def _copied(raised: Sequence[Any], pattern: Tensor, rows: Sequence[Sequence[int]]) -> float:
    shares: list[float] = []
    looks = (pattern.abs() / pattern.abs().sum(-1, keepdim=True)).nan_to_num().tolist()
    for b, tokens in enumerate(rows):
        for q in range(1, len(tokens)):
            if tokens[q] in tokens[:q]:
                attended = sum(looks[b][q][k] * raised[b][q][token] for k, token in enumerate(tokens))
                every = attended + sum(raised[b][q][token] for token in set(tokens))
                shares.append(4 * attended / every - 1 if every else -1.0)
    return sum(shares) / len(shares)


def _carried(model: Any, layer: SubLayer, write: Tensor) -> Tensor:
    """Return a write behind the norms on its way to the logits, up to their scales, which are positive."""
    norms = [layer.write_norm, layer.stream_norm]
    for one in model.sub_layers(layer.stack)[layer.index + 1 :]:
        norms += [one.rate, one.stream_norm]
    for passed in (*norms, model.output_stack.final):
        if isinstance(passed, Tensor):
            write = write * (1 - passed)
        elif passed is not None:
            write = write - write.mean(-1, keepdim=True) if passed.centred else write
            write = write if passed.gain is None else write * passed.gain
    return write


def _head_roles(asked: Asked) -> Iterator[Pair]:
    found, model = asked.found, asked.model
    yield from _roles(found.scores, _of_output(model, asked.inputs), asked.inputs[-1])


def _of_output(model: Any, inputs: Sequence[Tensor]) -> Mapping[str, Tensor]:
    """Return the patterns of self-attention in the stack that ends in the logits."""
    labels = [label for layer in model.sub_layers() if layer.self_attention for label in labels_of_patterns(layer)]
    return {label: p for label, p in patterns_of(model, inputs, crossing=False).items() if label in labels}


def _roles(scores: Any, patterns: Mapping[str, Tensor], ids: Tensor) -> Iterator[Pair]:
    labels, roles = [str(label) for label in scores.labels("head")], scores.labels("role")
    assert labels == list(patterns), f"{labels} are not {list(patterns)}"
    expected = [[role_scores(patterns[label], ids).get(str(role), math.nan) for role in roles] for label in labels]
    yield Pair("scores", scores.values, torch.tensor(expected, dtype=torch.float64))


def _find_pattern(asked: Asked) -> Iterator[Pair]:
    patterns, mask = patterns_of(asked.model, asked.inputs, crossing=False), asked.given["mask"]
    shares = {label: float(p[..., mask].sum() / p.abs().sum()) for label, p in patterns.items()}
    assert [str(label) for label in asked.found.labels("head")] == list(shares)
    yield Pair("shares", asked.found.values, list(shares.values()))


def _head_scores(asked: Asked) -> Iterator[Pair]:
    found, model = asked.found, asked.model
    inputs = repeated_inputs(model, **{name: asked.given[name] for name in ("n_sequences", "unit", "repeats")})
    patterns, labels = patterns_of(model, inputs, crossing=False), [str(one) for one in found.scores.labels("head")]
    assert labels == list(patterns), f"{labels} are not {list(patterns)}"
    expected: list[list[float]] = []
    for ids, (name, stack) in zip(inputs, model.stacks.items()):
        for layer in stack.sub_layers():
            for label in labels_of_patterns(layer) if layer.self_attention else ():
                if label in patterns:
                    scores = role_scores(patterns[label], ids)
                    # what stands ahead is not foretold
                    scores |= {"induction": math.nan} if model.reads_ahead(name) else {}
                    expected.append([scores.get(str(role), math.nan) for role in found.scores.labels("role")])
    yield Pair("scores", found.scores.values, torch.tensor(expected, dtype=torch.float64))


def evaluated(model: Any, ids: Tensor) -> dict[str, dict[str, float]]:
    """Return every head's scores on rows of ids, as `evaluate_heads` calls them."""
    patterns = patterns_of(model, (ids,))
    copied = copying_scores(model, ids, patterns) if model.one_vocabulary() else {}
    found: dict[str, dict[str, float]] = {}
    for label, pattern in patterns.items():
        scores = role_scores(pattern, ids)
        found[label] = {"prefix_matching" if role == "induction" else role: x for role, x in scores.items()}
        found[label] |= {"copying": copied[label]} if label in copied else {}
    return found


JUDGES = {
    "head_roles": Judge(_head_roles, ("scores",)),
    "find_pattern": Judge(_find_pattern, ("",)),
    "head_scores": Judge(_head_scores, ("scores",)),
}
