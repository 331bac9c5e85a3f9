"""A network of neurons and astrocytes that computes linear attention: an astrocyte is the normaliser.

    write    H <- H + v phi(k)' / m                  neuron to neuron: Hebb's rule on hidden and last layer
             g <- g + phi(k) / m                     neuron to astrocyte: plasticity by what comes before the synapse
    read     p  = g . phi(q)                         the calcium of the astrocyte that wraps all of H's synapses
             z  = (H / p) phi(q)                     synapses as the astrocyte modulates them

    z = sum_s (phi(q) . phi(k_s)) v_s / sum_s phi(q) . phi(k_s)

A text is written as a whole and then read, or each position is written and read before the next comes, which is causal
attention; H and g are then the state of linear attention. phi makes no negative numbers. An astrocyte belongs to each
head. With Performer's random features what is read comes near softmax attention.
Source: Kozachkov, Kastanenka and Krotov 2023, "Building transformers from neurons and astrocytes", PNAS 120(34),
equations as in its figure 2: the network, and its phases of writing and reading.
Differs from the paper: the calcium answers in proportion; the paper also lets it answer by a power.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Positive, checked
from glassformer.errors import WrongArgument


class Tripartite(NamedTuple):
    """What is written: synapses between neurons, and those of neurons with the astrocyte.

    Args:
        neurons: H, from the hidden layer to the last one.
        astrocyte: g, from the hidden layer to the astrocyte.
    """

    neurons: Float[Tensor, "*batch d_value feature"]
    astrocyte: Float[Tensor, "*batch feature"]


@checked
@dataclass(frozen=True, eq=False)
class NeuronAstrocyteNetwork:
    """A hidden layer phi, a last layer, and an astrocyte around the synapses between both.

    Args:
        features: phi of keys, `*lead d_head` to `*lead feature`, which makes no negative numbers.
        of_queries: phi of queries, if it is another: a factor of a query's own cancels.
        scale: What writes are divided by, the m of the equation; it cancels, too.
    """

    features: Callable[[Tensor], Tensor]
    of_queries: Callable[[Tensor], Tensor] | None = None
    scale: Positive = 1.0

    def empty(
        self, keys: Float[Tensor, "*batch pos d_head"], values: Float[Tensor, "*batch pos d_value"]
    ) -> Tripartite:
        """The network before anything is written, for keys and values of these shapes."""
        hidden = self._of_keys(keys)
        lead, width = hidden.shape[:-2], hidden.shape[-1]
        return Tripartite(hidden.new_zeros(*lead, values.shape[-1], width), hidden.new_zeros(*lead, width))

    def write(
        self,
        synapses: Tripartite,
        keys: Float[Tensor, "*batch pos d_head"],
        values: Float[Tensor, "*batch pos d_value"],
    ) -> Tripartite:
        """The network after positions were written, in any order.

        Raises:
            WrongArgument: A feature is negative.
        """
        hidden = self._of_keys(keys)
        return Tripartite(
            synapses.neurons + values.mT @ hidden / self.scale, synapses.astrocyte + hidden.sum(-2) / self.scale
        )

    def calcium(self, synapses: Tripartite, queries: Float[Tensor, "*batch pos d_head"]) -> Float[Tensor, "*batch pos"]:
        """How the astrocyte answers to each query: one number for all synapses that it wraps."""
        return (self._of_queries(queries) @ synapses.astrocyte[..., None])[..., 0]

    def read(
        self, synapses: Tripartite, queries: Float[Tensor, "*batch pos d_head"]
    ) -> Float[Tensor, "*batch pos d_value"]:
        """What the last layer says to each query, without the skip around the network.

        Raises:
            WrongArgument: An astrocyte does not answer to a query, so that nothing was written that it resembles.
        """
        calcium = self.calcium(synapses, queries)
        if not bool((calcium > 0).all()):
            raise WrongArgument(
                "read: the astrocyte's calcium is zero for a query: nothing was written, or no feature of the query "
                "was met. Write first, and take features that are above zero, such as elu(x) + 1."
            )
        return self._of_queries(queries) @ synapses.neurons.mT / calcium[..., None]

    def attend(
        self,
        queries: Float[Tensor, "*batch pos d_head"],
        keys: Float[Tensor, "*batch pos d_head"],
        values: Float[Tensor, "*batch pos d_value"],
        *,
        causal: bool,
    ) -> Float[Tensor, "*batch pos d_value"]:
        """Write a text and read it: all of it first, or position by position if `causal`."""
        synapses = self.empty(keys, values)
        if not causal:
            return self.read(self.write(synapses, keys, values), queries)
        found: list[Tensor] = []
        for t in range(keys.shape[-2]):
            here = slice(t, t + 1)
            synapses = self.write(synapses, keys[..., here, :], values[..., here, :])
            found.append(self.read(synapses, queries[..., here, :]))
        return torch.cat(found, -2)

    def _of_keys(self, keys: Tensor) -> Tensor:
        hidden = self.features(keys)
        if bool((hidden < 0).any()):
            raise WrongArgument(
                "features= of a neuron-astrocyte network are rates, and none is negative; found some that are. "
                "elu(x) + 1, relu and exp make none."
            )
        return hidden

    def _of_queries(self, queries: Tensor) -> Tensor:
        return (self.of_queries or self.features)(queries)
