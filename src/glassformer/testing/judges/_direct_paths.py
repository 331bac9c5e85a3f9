"""A forward pass in which what was written goes straight to the logits: no sub-layer reads it, no norm reacts to it.

    write (a leaf) -> norms behind it, each dividing by what it divided by -> logits

Numbers are those of the model; derivatives are of direct paths alone. So one backward pass says what each write adds to
a logit, or to the stream at a place, without a direction being carried down by hand.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.models import LayerNorm, Model, NoNorm, ScaleOnly, SubLayer, UnitNorm
from glassformer.models.mlp import MlpLayer
from glassformer.models.norms import Norm
from glassformer.testing.judges._hooks import Change, hooked
from glassformer.trace.heads import head_label


class Leaf(NamedTuple):
    """Something that writes: the labels of its parts, side by side along its last axis, and where a derivative ends."""

    labels: tuple[str, ...]
    value: Tensor


class Mixed(NamedTuple):
    """What an attention layer mixed: arguments and result of its mechanism, and what its output matrix read."""

    layer: SubLayer
    given: tuple[Any, ...]
    z: Tensor
    flat: Tensor


@dataclass
class DirectPaths:
    """The pass, of one row.

    Args:
        model: One of ours.
        inputs: What it reads, ids of each stack.
        leaves: Everything that wrote to the stream, in the order of the pass.
        neurons: What each MLP's output matrix read, by the MLP's label.
        mixed: Attention layers, by their path.
        streams: The stream at its places, by site.
        logits: As the model makes them.
        raw: Before a cap; None of a factored output layer.
    """

    model: Model
    inputs: Sequence[Tensor]
    leaves: list[Leaf] = field(default_factory=list)
    neurons: dict[str, Tensor] = field(default_factory=dict)
    mixed: dict[str, Mixed] = field(default_factory=dict)
    streams: dict[str, Tensor] = field(default_factory=dict)
    raw: Tensor | None = None

    def __post_init__(self) -> None:
        self.layers = self.model.sub_layers()
        with torch.enable_grad(), hooked(self._changes()):
            self.logits: Tensor = self.model(*self.inputs)

    def _changes(self) -> list[Change]:
        found = [*self._of_embedding(), *self._of_streams()]
        for layer in self.layers:
            found += self._of_sub_layer(layer)
            for norm in layer.behind:
                found += self._of_norm(norm, f"{layer.label} norm bias")
        # behind what replaces norms, so that streams are those that lead on
        found += self._of_norm(self.model.output_stack.final, "final norm bias")
        return found + self._of_streams_behind() + self._of_unembedding()

    def leaf(self, value: Tensor, *labels: str) -> Tensor:
        """Return a value that nothing leads to, known by its labels."""
        value = value.detach().requires_grad_()
        self.leaves.append(Leaf(labels, value))
        return value

    def contributions(self, target: Tensor) -> dict[str, Tensor]:
        """Return what each write adds to a number of the pass, by label; those that do not reach it add nothing."""
        values = [leaf.value for leaf in self.leaves]
        found: dict[str, Tensor] = defaultdict(lambda: target.new_zeros(()))
        for leaf, slope in zip(self.leaves, self.slopes(target, values)):
            parts = (leaf.value.detach() * slope).unflatten(-1, (len(leaf.labels), -1))
            for label, part in zip(leaf.labels, parts.unbind(-2)):
                found[label] = found[label] + part.sum()
        return dict(found)

    def vectors(self, place: Tensor) -> dict[str, Tensor]:
        """Return what each write is at one place of the stream, by label: a vector each."""
        each = [self.contributions(number) for number in place]
        return {label: torch.stack([one[label] for one in each]) for label in each[0]}

    def by_neuron(self, target: Tensor) -> dict[str, Tensor]:
        """Return what each neuron adds to a number, by the label of its MLP."""
        slopes = dict(zip(self.neurons, self.slopes(target, list(self.neurons.values()))))
        return {label: (value.detach() * slopes[label]).sum((0, 1)) for label, value in self.neurons.items()}

    def by_key(self, target: Tensor, heads: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Return what each head takes from each key, by the head's label; of all layers, or of those with some heads.

        The mechanism is asked again with all values zero but those of one key, and what becomes of that is what the
        norm and the gate made of the whole.
        """
        found: dict[str, Tensor] = {}
        wanted = None if heads is None else set(heads)
        every = [one for one in self.mixed.values() if wanted is None or wanted & set(labels_of_heads(one.layer))]
        for mixed, slope in zip(every, self.slopes(target, [mixed.flat for mixed in every])):
            # norm and gate multiply number by number
            z = mixed.z.transpose(1, 2).flatten(-2)
            behind = torch.where(z == 0, torch.zeros_like(z), mixed.flat.detach() / z) * slope
            taken = [
                (z_of_key.transpose(1, 2).flatten(-2) * behind).unflatten(-1, (mixed.z.shape[1], -1)).sum((0, 1, 3))
                for z_of_key in mixed_by_key(mixed)
            ]
            found |= dict(zip(labels_of_heads(mixed.layer), torch.stack(taken, 1)))
        return found

    def slopes(self, target: Tensor, values: Sequence[Tensor]) -> list[Tensor]:
        """Return derivatives of a number of the pass; zero of what does not reach it."""
        if not values:
            return []
        if not target.requires_grad:
            return [torch.zeros_like(value) for value in values]
        found = torch.autograd.grad(target, values, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(value) if slope is None else slope for slope, value in zip(found, values)]

    def _of_embedding(self) -> list[Change]:
        embed, kept = self.model.output_embed, dict[str, Tensor]()

        def entered(x: Tensor) -> Tensor:
            ids, place = self.inputs[-1], kept.get("place")
            token = token_vectors(embed, ids)
            total = self.leaf(token, "token")
            if place is not None:
                total = total + self.leaf(place.expand_as(token), "position")
            return total if embed.norm is None else self._frozen(embed.norm, total, "embed norm bias")

        found = [Change(embed, "out", entered)]
        if embed.positions is not None:
            found.append(Change(embed.positions, "out", functools.partial(_keep, kept, "place")))
        return found

    def _of_norm(self, norm: Norm, label: str) -> list[Change]:
        kept = dict[str, Tensor]()
        return [
            Change(norm, "in", functools.partial(_keep, kept, "read")),
            Change(norm, "out", lambda _: self._frozen(norm, kept["read"], label)),
        ]

    def _frozen(self, norm: Norm, x: Tensor, label: str) -> Tensor:
        """Return a norm with what it divides by taken as a number; its bias is a leaf."""
        config = norm.config
        if isinstance(config, NoNorm):
            return x
        read = x if norm.inside is None else x[..., norm.inside]
        if isinstance(config, ScaleOnly):
            y = read * config.factor
        else:
            read = read - read.mean(-1, keepdim=True) if isinstance(config, LayerNorm) else read
            square = read.square().sum(-1, keepdim=True)
            square = square if isinstance(config, UnitNorm) else square / read.shape[-1]
            y = read / (square + norm.eps).sqrt().detach()
            own = norm if norm.tied is None else norm.tied
            weight = own.weight.abs() if isinstance(config, UnitNorm) and own.weight is not None else own.weight
            y = y if weight is None else y * (weight + norm.offset) * norm.enlarged
        if norm.inside is not None:
            y = F.pad(y, (norm.inside.start, norm.d_model - norm.inside.stop))
        shift = norm.shift
        return y if shift is None else y + self.leaf(shift, label)

    def _of_sub_layer(self, layer: SubLayer) -> list[Change]:
        if layer.attention is not None:
            return self._of_attention(layer)
        if not isinstance(layer.part, MlpLayer):
            return [Change(layer.part, "out", lambda x: self.leaf(x, layer.label))]
        output, kept = layer.part.output, dict[str, Tensor]()

        def written(_: Tensor) -> Tensor:
            hidden = kept["read"].detach().requires_grad_()
            self.neurons[layer.label] = hidden
            self.leaves.append(Leaf((layer.label,), hidden))
            return self._through(output, hidden, layer.label)

        return [Change(output, "in", functools.partial(_keep, kept, "read")), Change(output, "out", written)]

    def _of_attention(self, layer: SubLayer) -> list[Change]:
        part: Any = layer.attention
        kept = dict[str, Any]()

        def written(_: Tensor) -> Tensor:
            flat = self.leaf(kept["flat"], *labels_of_heads(layer))
            self.mixed[layer.path] = Mixed(layer, kept["given"], kept["z"].detach(), flat)
            return self._through(part.merge.output, flat, f"{layer.label} bias")

        return [
            Change(part.mixer, "in", functools.partial(_keep, kept, "given"), None),
            Change(part.mixer, "out", functools.partial(_keep, kept, "z")),
            Change(part.merge.output, "in", functools.partial(_keep, kept, "flat")),
            Change(part.merge.output, "out", written),
        ]

    def _through(self, output: nn.Linear, x: Tensor, label: str) -> Tensor:
        y = x @ output.weight.T
        return y if output.bias is None else y + self.leaf(output.bias, label)

    def _of_streams(self) -> list[Change]:
        """Note the stream where a block or a norm reads it."""
        found: list[Change] = []
        for block in self.model.output_stack.blocks:
            found.append(Change(block, "in", functools.partial(_keep, self.streams, block.at_resid[0])))
            found.append(Change(block, "out", functools.partial(_keep, self.streams, block.at_resid[-1])))
        return found + [
            Change(one.before, "in", functools.partial(_keep, self.streams, one.at_stream))
            for one in self._sub_layers()
            if one.before is not None
        ]

    def _of_streams_behind(self) -> list[Change]:
        """Note the stream where a norm returns it."""
        return [
            Change(one.stream_norm, "out", functools.partial(_keep, self.streams, one.at_behind))
            for one in self._sub_layers()
            if one.stream_norm is not None
        ]

    def _sub_layers(self) -> list[SubLayer]:
        own = {*self.model.output_stack.blocks}
        return [one for one in self.model.sub_layers() if one.block in own]

    def _of_unembedding(self) -> list[Change]:
        unembed, kept = self.model.unembed, dict[str, Tensor]()
        found = [Change(unembed, "in", functools.partial(_keep, kept, "read"))]
        if (readout := unembed.readout) is not None:

            def read(_: Tensor) -> Tensor:
                inner = self._through(readout.input, kept["read"], "readout bias")
                # with what it multiplies by held, an activation is linear
                hidden = inner * (readout.activation(inner) / inner).detach()
                kept["unembedded"] = self._frozen(readout.norm, hidden, "readout bias")
                return kept["unembedded"]

            found.append(Change(readout, "out", read))
        if unembed.has_directions:

            def logits(_: Tensor) -> Tensor:
                x = kept.get("unembedded", kept["read"]) * unembed.scale
                x = x if unembed.map is None else x @ unembed.map.weight.T
                raw = x @ unembed.stored.T.detach()
                raw = raw if unembed.factors is None else raw * unembed.factors.detach()
                self.raw = raw if unembed.bias is None else raw + self.leaf(unembed.bias, "unembed bias")
                return self.raw if unembed.cap is None else unembed.cap * (self.raw / unembed.cap).tanh()

            found.append(Change(unembed, "out", logits))
        return found


def _keep(kept: dict[str, Any], name: str, value: Any) -> None:
    kept[name] = value


def labels_of_heads(layer: SubLayer) -> tuple[str, ...]:
    """Return the labels of an attention layer's heads."""
    assert layer.attention is not None, "heads are those of attention"
    return tuple(head_label(layer.stack, layer.name, layer.layer, h) for h in range(layer.attention.dims.n_heads))


@torch.no_grad()
def mixed_by_key(mixed: Mixed) -> list[Tensor]:
    """Return what the mechanism mixes of each key's values alone, queries and keys as they were."""
    assert mixed.layer.attention is not None, "mechanisms are those of attention"
    mixer, (q, k, v, *rest) = mixed.layer.attention.mixer, mixed.given
    found: list[Tensor] = []
    for key in range(v.shape[-2]):
        alone = torch.zeros_like(v)
        alone[..., key, :] = v[..., key, :]
        found.append(mixer(q, k, alone, *rest)[0])
    return found


def token_vectors(embed: Any, ids: Tensor) -> Tensor:
    """Return what an embedding makes of ids, or of images, before positions are added, worked out by hand."""
    if embed.patches is not None:
        return _patch_vectors(embed.patches, ids)
    found = embed.stored.detach()[ids]
    found = found if embed.map is None else found @ embed.map.weight.detach().T
    found = found * embed.factor
    return found if embed.types is None else found + embed.types[0].detach()


def _patch_vectors(embed: Any, images: Tensor) -> Tensor:
    config, maps = embed.config, embed.map
    kernel = maps.weight.detach().reshape(-1, config.channels, config.size, config.size)
    found = F.conv2d(images, kernel, maps.bias.detach(), stride=config.size).flatten(2).mT
    return found if embed.first is None else torch.cat((embed.first.detach().expand(len(found), 1, -1), found), 1)
