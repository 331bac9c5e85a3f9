"""A model as a graph: who writes to the residual stream, who reads it, and every direct path between the two.

    senders     the embedding (or token and position apart), every head, every MLP; an encoder's output
    receivers   q, k and v of every head (and its gate, if mixed values are gated), every MLP's input, the logits;
                what a mechanism reads of the stream besides queries, keys and values
    edges       sender -> receiver, wherever the receiver reads what the sender wrote

Query heads that share a key head share its two receivers: `L1H4-7.k`. Biases are constants, and no senders. In parallel
blocks nobody reads what the same block writes.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from glassformer.analysis.components import head_labels
from glassformer.analysis.question import question
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, SubLayer, require_model

SenderKind = Literal["embed", "token", "position", "source", "head", "mlp", "part"]
Slot = Literal["q", "k", "v", "gate", "mix", "in", "logits"]


class Edge(NamedTuple):
    """A direct path, by labels: `Edge("L0H1", "L1H6.k")`."""

    sender: str
    receiver: str


@dataclasses.dataclass(frozen=True)
class Sender:
    """Something that writes to the stream.

    Args:
        label: `embed`, `L0H1`, `L0 mlp`, ….
        kind: What it is; `source` is an encoder's output, `part` a sub-layer that is neither attention nor an MLP.
        step: Index of its sub-layer in the order of the forward pass; -1 before the first.
        index: Which of the writers of that step.
    """

    label: str
    kind: SenderKind
    step: int
    index: int


@dataclasses.dataclass(frozen=True)
class Receiver:
    """Something that reads the stream.

    Args:
        label: `L1H6.k`, `L0 mlp.in`, `logits`.
        slot: What is read.
        step: Index of its sub-layer; for the logits, how many sub-layers there are.
        index: Head, or key head; 0 for others.
        feeds: Labels of the senders that depend on it directly.
        source: Whether it reads an encoder's output, not the stream.
    """

    label: str
    slot: Slot
    step: int
    index: int
    feeds: tuple[str, ...] = ()
    source: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class CircuitGraph(Result):
    """Senders, receivers and the edges between them.

    Args:
        allowed: Whether a receiver reads what a sender writes, `receiver sender`.
        senders: In the order of the forward pass.
        receivers: In the order of the forward pass.
    """

    HEADLINE = ("allowed",)

    allowed: Labelled
    senders: tuple[Sender, ...]
    receivers: tuple[Receiver, ...]

    @property
    def n_edges(self) -> int:
        return int(self.allowed.values.sum())

    @property
    def edges(self) -> list[Edge]:
        """All edges, receivers in the order of the forward pass."""
        return self.named(self.allowed.values)

    def named(self, chosen: Bool[Tensor, "receiver sender"]) -> list[Edge]:
        """The edges that a mask selects."""
        return [Edge(self.senders[u].label, self.receivers[r].label) for r, u in chosen.nonzero().tolist()]

    def mask(self, edges: Iterable[Edge | tuple[str, str]]) -> Bool[Tensor, "receiver sender"]:
        """Mask of some edges; raises `AnalysisUnavailable` for an edge that the model does not have."""
        found = torch.zeros_like(self.allowed.values)
        for sender, receiver in edges:
            r, u = self.receiver(receiver), self.sender(sender)
            if not self.allowed.values[r, u]:
                raise AnalysisUnavailable(
                    f'no edge "{sender}" -> "{receiver}": that receiver does not read what the sender writes; it reads '
                    f"{', '.join(self.read_by(r)) or 'nothing'}."
                )
            found[r, u] = True
        return found

    def read_by(self, receiver: int) -> list[str]:
        """The labels of the senders that a receiver reads."""
        return [self.senders[u].label for u in self.allowed.values[receiver].nonzero().flatten().tolist()]

    def sender(self, label: str) -> int:
        """The index of a sender; raises `AnalysisUnavailable` if there is none of that name."""
        return _find(label, [sender.label for sender in self.senders], "sender")

    def receiver(self, label: str) -> int:
        """The index of a receiver; `L1H6.k` finds the key it shares with others."""
        labels = [receiver.label for receiver in self.receivers]
        if label not in labels and "." in label:
            head, slot = label.rsplit(".", 1)
            for i, receiver in enumerate(self.receivers):
                if receiver.slot == slot and head in receiver.feeds:
                    return i
        return _find(label, labels, "receiver")

    def __repr__(self) -> str:
        return f"CircuitGraph({len(self.senders)} senders, {len(self.receivers)} receivers, {self.n_edges} edges)"


@question("Which parts write, which read, and what lies between?", of="weights")
def circuit_graph(model: ModelLike, *, split_embedding: bool = False) -> CircuitGraph:
    """Lay out a model as a graph of senders and receivers.

    Args:
        model: A decoder, or an encoder-decoder: of that the decoder's side, with the encoder's output as one sender
            that keys and values of cross-attention read.
        split_embedding: Let token and position vectors be two senders, if the model adds positions to the stream.

    Raises:
        AnalysisUnavailable: The model is not one of ours, or a mechanism has no values that heads write.

    Source: Conmy et al. 2023, "Towards Automated Circuit Discovery", section 2 (graph with queries, keys and values).
    """
    steps, embed = require_model(model, "circuit_graph").sub_layers(), model.output_embed
    split = split_embedding and embed.positions is not None
    if split and embed.norm is not None:
        raise AnalysisUnavailable(
            "circuit_graph: split_embedding makes token and position vectors two senders, but in this model a norm "
            "divides their sum (embed_norm).\n    split_embedding=False takes what enters the stream as one sender."
        )
    senders = [Sender("token", "token", -1, 0), Sender("position", "position", -1, 1)]
    senders = senders if split else [Sender("embed", "embed", -1, 0)]
    if model.source is not None:
        senders.append(Sender("source", "source", -1, len(senders)))
    receivers: list[Receiver] = []
    for i, step in enumerate(steps):
        if step.attention is None:
            senders.append(Sender(step.label, "mlp" if step.role == "mlp" else "part", i, 0))
            receivers.append(Receiver(f"{step.label}.in", "in", i, 0, (step.label,)))
            continue
        _require_values(step.attention)
        labels = head_labels(step)
        senders += [Sender(label, "head", i, h) for h, label in enumerate(labels)]
        receivers += _read_by(step, i, labels)
    receivers.append(Receiver("logits", "logits", len(steps), 0))
    allowed = torch.tensor([[_reads(r, u, steps) for u in senders] for r in receivers])
    coords = {"receiver": [r.label for r in receivers], "sender": [u.label for u in senders]}
    return CircuitGraph(Labelled(allowed, ("receiver", "sender"), coords), tuple(senders), tuple(receivers))


def _read_by(step: SubLayer, i: int, labels: Sequence[str]) -> list[Receiver]:
    """Return the receivers of an attention layer: queries, keys, values, gates."""
    layer, part = step.layer, step.attention
    assert part is not None
    each = [Receiver(f"{label}.q", "q", i, h, (label,)) for h, label in enumerate(labels)]
    size = part.dims.n_heads // part.dims.n_kv_heads
    groups = [labels[g * size : (g + 1) * size] for g in range(part.dims.n_kv_heads)]
    for slot in ("k", "v"):
        for g, members in enumerate(groups):
            name = members[0] if size == 1 else _span(members[0], len(f"L{layer}H{g * size}"), (g + 1) * size - 1)
            each.append(Receiver(f"{name}.{slot}", slot, i, g, tuple(members), step.crosses))
    if part.merge.gate is not None:
        each += [Receiver(f"{label}.gate", "gate", i, h, (label,)) for h, label in enumerate(labels)]
    if part.traits.reads_input:
        each.append(Receiver(f"L{layer} {step.name}.mix", "mix", i, 0, tuple(labels)))
    return each


def _span(label: str, end: int, last: int) -> str:
    # what marks a second attention part stays behind the heads
    return f"{label[:end]}-{last}{label[end:]}"


def _reads(receiver: Receiver, sender: Sender, steps: Sequence[SubLayer]) -> bool:
    if receiver.source or sender.kind == "source":
        return receiver.source and sender.kind == "source"
    return sender.step < (steps[receiver.step].entry if receiver.step < len(steps) else len(steps))


def _require_values(part: AttentionLayer) -> None:
    linear = part.traits.linear_in_value
    if linear == "no":
        raise AnalysisUnavailable(
            f'circuit_graph: layer {part.dims.layer} uses "{part.config.mixer.kind}" (linear_in_value="{linear}"), '
            "whose heads do not mix values, so there are no queries, keys and values to tell apart.\n"
            "    Whole sub-layers can be patched: sweep over their out sites."
        )
    if not part.projection.values_by_position:
        raise AnalysisUnavailable(
            f"circuit_graph: layer {part.dims.layer} mixes queries, keys and values with those just before them "
            f"({part.config.projection.kind}), so what one of them reads is no single position.\n"
            "    Whole sub-layers can be patched: sweep over their out sites."
        )


def _find(label: str, labels: Sequence[str], what: str) -> int:
    if label not in labels:
        raise AnalysisUnavailable(
            f'this model has no {what} "{label}".{nearest(label, labels)}\n    All: {", ".join(labels)}.'
        )
    return labels.index(label)
