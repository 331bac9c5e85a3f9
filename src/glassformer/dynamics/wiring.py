"""Decoders written as equations between named coordinates of the stream.

Every coordinate has a name, and what is read of the stream is a sum of named coordinates with factors, a `Reading`:

    head     z = sum_s softmax_s(beta query_t . key_s) value_s, query, key and value being lists of readings
    neuron   relu(gate) * input, both readings, added to named coordinates

The token writes into coordinates that its `embed` names, the place of a token in the text, counted from 0, into
`place`. Scores of what hand-made heads compare are whole numbers, so that at beta = 40 a key whose score is one lower
than the best has e^-40 of its weight, less than float64 keeps beside 1: attention is hard, and averages over ties.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.attention import Softmax
from glassformer.handmade import HeadMatrices, MlpMatrices, assemble
from glassformer.models import Decoder

BETA = 40.0
LOGIT = 40.0  # of the token that comes next; all others have 0
Reading = Mapping[str, float]


class Head(NamedTuple):
    """One head: keys are compared with the query entry by entry, and `value` says which coordinate takes what.

    A head without queries and keys averages all positions so far.
    """

    value: Mapping[str, Reading]
    query: Sequence[Reading] = ()
    key: Sequence[Reading] = ()


class Neuron(NamedTuple):
    """One neuron: relu(gate) * input, into coordinates with a factor each."""

    gate: Reading
    input: Reading
    output: Reading


class Layer(NamedTuple):
    """Heads, and the neurons behind them."""

    heads: Sequence[Head]
    neurons: Sequence[Neuron]


def wired(
    embed: Mapping[str, Reading],
    layers: Sequence[Layer],
    unembed: Mapping[str, Reading],
    places: Mapping[str, Tensor],
) -> Decoder:
    """Build the decoder that works out given equations, in float64.

    Args:
        embed: What each token writes into the stream.
        layers: Heads and neurons.
        unembed: What is read for the logit of each token; those left out have 0.
        places: What each position writes into a coordinate: whole columns of the table of positions.
    """
    names = _coordinates(embed, layers, places)
    rows = {name: i for i, name in enumerate(names)}

    def column(reading: Reading) -> Tensor:
        vector = torch.zeros(len(names), dtype=torch.float64)
        for name, factor in reading.items():
            vector[rows[name]] += factor
        return vector

    def columns(readings: Sequence[Reading], width: int) -> Tensor:
        matrix = torch.zeros(len(names), width, dtype=torch.float64)
        for i, reading in enumerate(readings):
            matrix[:, i] = column(reading)
        return matrix

    def head(found: Head, d_head: int, d_value: int) -> HeadMatrices:
        output = columns([{name: 1.0} for name in found.value], d_value).mT
        return HeadMatrices(
            columns(found.query, d_head), columns(found.key, d_head), columns([*found.value.values()], d_value), output
        )

    def mlp(neurons: Sequence[Neuron]) -> MlpMatrices:
        gate, read, write = (columns([*part], len(neurons)) for part in zip(*neurons))
        return MlpMatrices(gate, read, write.mT)

    heads: list[list[HeadMatrices]] = []
    for layer in layers:
        d_head = max(1, *(len(found.query) for found in layer.heads))
        d_value = max(len(found.value) for found in layer.heads)
        heads.append([head(found, d_head, d_value) for found in layer.heads])
    positions = torch.zeros(max(map(len, places.values())), len(names), dtype=torch.float64)
    for name, values in places.items():
        positions[:, rows[name]] = values.double()
    return assemble(
        torch.stack([column(reading) for reading in embed.values()]),
        LOGIT * torch.stack([column(unembed.get(token, {})) for token in embed]),
        heads,
        symbols=[*embed],
        max_len=len(positions),
        positions=positions,
        mixer=Softmax(scale=BETA),
        mlps=[mlp(layer.neurons) for layer in layers],
    )


def _coordinates(embed: Mapping[str, Reading], layers: Sequence[Layer], places: Mapping[str, Tensor]) -> list[str]:
    """Return the names of coordinates that anything is written into, in the order in which it is."""
    found = dict.fromkeys([*(name for reading in embed.values() for name in reading), *places])
    for layer in layers:
        found |= dict.fromkeys(name for head in layer.heads for name in head.value)
        found |= dict.fromkeys(name for neuron in layer.neurons for name in neuron.output)
    return [*found]
