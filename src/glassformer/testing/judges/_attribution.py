"""Judges of attribution: derivatives of a pass in which only direct paths lead on, and finite differences."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.attention import LinearMemory, NeuralMemory
from glassformer.labelled import Labelled
from glassformer.testing.judges._direct_paths import DirectPaths, token_vectors
from glassformer.testing.judges._hooks import Change, hooked
from glassformer.testing.judges.judge import Asked, Judge, Pair

STEP = 1e-4  # of a finite difference, as a share of what is moved


def _direct_logit_attribution(asked: Asked) -> Iterator[Pair]:
    found, paths = asked.found, DirectPaths(asked.model, asked.inputs)
    logits = asked.model(*asked.inputs)[0, -1]
    yield Pair("logits of the pass", paths.logits[0, -1], logits)
    answer = int(logits.argmax())
    yield Pair("answer", found.answer.values, answer)
    total = _raw(paths, answer)
    yield Pair("total", found.total.values, total)
    yield Pair("sum", found.sum.values, total)
    yield Pair("contributions", *_by_label(found.contributions, "component", paths.contributions(total)))


def _source_effects(asked: Asked) -> Iterator[Pair]:
    paths = DirectPaths(asked.model, asked.inputs)
    taken = paths.by_key(_raw(paths))
    yield from _of_heads(asked.found.contributions, asked.found.cross, taken)


def _neuron_effects(asked: Asked) -> Iterator[Pair]:
    found, paths = asked.found, DirectPaths(asked.parts, asked.inputs)
    yield Pair("logits of the pass", paths.logits, asked.model(*asked.inputs))
    total = _raw(paths)
    neurons, whole = paths.by_neuron(total), paths.contributions(total)
    yield Pair("contributions", found.contributions.values, torch.cat(list(neurons.values())))
    yield Pair("bias", *_by_label(found.bias, "mlp", {mlp: whole[mlp] - each.sum() for mlp, each in neurons.items()}))


def _meaning_shift(asked: Asked) -> Iterator[Pair]:
    found, given = asked.found, asked.given
    contexts = [_context(text) for text in (given["first"], given["second"])]
    paths = [DirectPaths(asked.model, inputs) for inputs in contexts]
    sites = [str(site) for site in found.distance.labels("site")]
    at = [{site: one.streams[site][0, place] for site in sites} for one, place in zip(paths, given["word"])]
    streams = [torch.stack([one[site] for site in sites]).detach() for one in at]
    difference = streams[1] - streams[0]
    yield Pair("distance", found.distance.values, difference.norm(dim=-1))
    lengths = [stream.norm(dim=-1) for stream in streams]
    yield Pair("relative", found.relative.values, difference.norm(dim=-1) / torch.stack(lengths).mean(0))
    yield Pair("cosine", found.cosine.values, torch.cosine_similarity(streams[0], streams[1], dim=-1))
    for i, site in enumerate(sites):
        first, second = (one.vectors(places[site]) for one, places in zip(paths, at))
        moved = {label: second[label] - first[label] for label in second}
        unit = difference[i] / difference[i].norm()
        along, size = (table.select(site=site) for table in (found.along, found.size))
        yield Pair(f"along at {site}", *_by_label(along, "component", {c: v @ unit for c, v in moved.items()}))
        yield Pair(f"size at {site}", *_by_label(size, "component", {c: v.norm() for c, v in moved.items()}))
    unit = difference[-1] / difference[-1].norm()
    for name, one, places in zip(("first", "second"), paths, at):
        tokens, cross = (getattr(found, f"{name}_{which}") for which in ("tokens", "cross"))
        yield from _of_heads(tokens, cross, one.by_key(places[sites[-1]] @ unit))


def _input_gradients(asked: Asked) -> Iterator[Pair]:
    found, model, inputs = asked.found, asked.model, asked.inputs
    embeds = list(model.embeddings.values())
    answer = int(model(*inputs)[0, -1].argmax())
    vectors = [token_vectors(embed, ids) for embed, ids in zip(embeds, inputs)]
    own = model.output_embed
    mean = own.stored.detach() if own.map is None else own.stored.detach() @ own.map.weight.detach().T
    mean = mean.mean(0) * own.factor
    ways = [end - mean for end in vectors]

    def metric(t: float, stream: int = 0, key: int = 0, step: float = 0.0) -> Tensor:
        """Return the logit on the way, one token a step further."""
        at = [mean + t * way for way in ways]
        at[stream][0, key] += step * ways[stream][0, key]
        return with_vectors(model, inputs, at)[0, -1, answer].detach()

    yield Pair("answer", found.answers, [answer])
    yield Pair("metric", found.metric.values, metric(1.0)[None])
    yield Pair("metric of the baseline", found.baseline_metric.values, metric(0.0)[None])
    # Gauss and Legendre's two points, in (0, 1)
    points = [0.5 - 12**-0.5, 0.5 + 12**-0.5]
    places = [(stream, key) for stream, ids in enumerate(inputs) for key in range(ids.shape[1])]
    slopes = [
        sum((metric(t, *place, STEP) - metric(t, *place, -STEP)) / (2 * STEP) for t in points) / len(points)
        for place in places
    ]
    expected = torch.tensor(slopes, dtype=torch.float64)
    # of central differences, whose error falls with the square of the step
    yield Pair("values", found.values.values, expected[None], 1e-5)
    yield Pair("gap", found.gap.values, found.values.values.sum(-1) - (metric(1.0) - metric(0.0)))


@torch.no_grad()
def _memory_influence(asked: Asked) -> Iterator[Pair]:
    given: dict[Any, tuple[Any, ...]] = {}
    memories = [
        part for part in asked.model.modules() if isinstance(getattr(part, "config", None), LinearMemory | NeuralMemory)
    ]
    with hooked([Change(part, "in", functools.partial(given.__setitem__, part), None) for part in memories]):
        asked.model(*asked.inputs)
    rows = torch.cat([_slopes(part, *given[part]) for part in memories])
    # of central differences
    yield Pair("values", asked.found.values.values[:, -1], rows, 1e-5)


def _slopes(mixer: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    """Return how much what heads read at the last position changes with the value at each key, `head key`."""
    squares = torch.zeros(q.shape[1], v.shape[-2], dtype=v.dtype)
    for key in range(v.shape[-2]):
        for channel in range(v.shape[-1]):
            # heads that share a value read nothing of another's
            step = torch.zeros_like(v)
            step[..., key, channel] = STEP
            ahead, behind = (mixer(q, k, v + way * step, *rest)[0][0, :, -1] for way in (1, -1))
            squares[:, key] += ((ahead - behind) / (2 * STEP)).square().mean(-1)
    return squares.sqrt()


@torch.no_grad()
def with_vectors(model: Any, inputs: Sequence[Tensor], vectors: Sequence[Tensor]) -> Tensor:
    """Return the logits with other vectors in place of each stack's tokens."""
    changes: list[Change] = []
    for embed, x in zip(model.embeddings.values(), vectors):
        changes += _entered(embed, x)
    with hooked(changes):
        return model(*inputs)


def _entered(embed: Any, x: Tensor) -> list[Change]:
    kept = dict[str, Tensor]()

    def total(_: Tensor) -> Tensor:
        found = x + kept["place"] if "place" in kept else x
        return found if embed.norm is None else embed.norm(found)

    found = [Change(embed, "out", total)]
    if embed.positions is not None:
        found.append(Change(embed.positions, "out", lambda place: kept.update(place=place)))
    return found


def _raw(paths: DirectPaths, answer: int | None = None) -> Tensor:
    """Return the raw logit of a token at the last position; of the likeliest by default."""
    assert paths.raw is not None, "tokens have directions"
    return paths.raw[0, -1, int(paths.logits[0, -1].argmax()) if answer is None else answer]


def _by_label(table: Labelled, axis: str, expected: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the numbers of a table and those that are expected, in its order; what has none expected is zero."""
    labels = [str(label) for label in table.labels(axis)]
    lacking = [label for label, value in expected.items() if label not in labels and bool(value)]
    assert not lacking, f"nothing is said of {', '.join(lacking)}"
    zero = torch.zeros((), dtype=torch.float64)
    return table.values, torch.stack([expected.get(label, zero).detach() for label in labels])


def _of_heads(own: Labelled, cross: Labelled | None, taken: Mapping[str, Tensor]) -> Iterator[Pair]:
    """Yield what heads take from keys, self-attention and cross-attention apart."""
    labels = [str(label) for table in (own, cross) if table is not None for label in table.labels("head")]
    assert set(labels) == set(taken), f"{labels} are not {list(taken)}"
    for name, table in (("keys", own), ("cross", cross)):
        if table is not None and table.values.numel():
            yield Pair(name, table.values, torch.stack([taken[str(label)].detach() for label in table.labels("head")]))


def _context(given: Any) -> tuple[Tensor, ...]:
    return (given,) if isinstance(given, Tensor) else (given.source, given.tokens)


JUDGES = {
    "direct_logit_attribution": Judge(_direct_logit_attribution, ("contributions", "answer", "total", "sum")),
    "source_effects": Judge(_source_effects, ("contributions", "cross")),
    "neuron_effects": Judge(_neuron_effects, ("contributions", "bias")),
    "meaning_shift": Judge(
        _meaning_shift,
        (
            *("distance", "relative", "cosine", "along", "size"),
            *("first_tokens", "second_tokens", "first_cross", "second_cross"),
        ),
    ),
    "memory_influence": Judge(_memory_influence, ("values",)),
    "input_gradients": Judge(_input_gradients, ("values", "metric", "baseline_metric", "gap", "answers")),
}
