"""A gated recurrent layer: one vector of state, rewritten at every position.

    r_t = sigmoid(x_t W_r + h_{t-1} U_r)                reset
    u_t = sigmoid(x_t W_u + h_{t-1} U_u)                update
    n_t = tanh(x_t W_n + r_t * (h_{t-1} U_n))           candidate
    h_t = (1 - u_t) n_t + u_t h_{t-1},   out_t = h_t W_out

Each map has its own bias. The state is zero before the first position of a text, of each packed document and of each
left-padded row. Positions run one after the other.

Bidirectional, a second such state runs from the last position to the first, and out_t is made of both side by side. It
is zero wherever the mask hides the position behind: at the end of a document, at the last real token of a padded row
and, in a decoder, everywhere, so that it never looks ahead there.

State: h of the forward direction, d_hidden numbers.
Cost: O(pos d_hidden (d_model + d_hidden)) for each direction, pos sequential steps for both.
Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", with the reset behind the product,
as cuDNN and `torch.nn.GRU` have it; Schuster and Paliwal 1997, "Bidirectional Recurrent Neural Networks".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention import Context, LinearMap, SubLayerConfig, SubLayerModule
from glassformer.attention.linear_map import parameters_of
from glassformer.trace import Site, Tape, declare, full_names, site, wants


@dataclass(frozen=True)
class Gru(SubLayerConfig, kind="gru"):
    """A gated recurrent unit, and a map from its state to the stream.

    Args:
        d_hidden: Width of the state, in each direction; d_model by default.
        bias: Biases on all maps.
        bidirectional: A second state that runs backwards, as far as the mask lets positions see ahead: in encoders.
    """

    d_hidden: Count | None = None
    bias: bool = True
    bidirectional: bool = False

    role: ClassVar[str] = "gru"

    @property
    def only_backwards(self) -> bool:  # type: ignore[override]
        return not self.bidirectional

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "GruLayer":
        return GruLayer(self, d_model, layer, path)


class GruState(NamedTuple):
    """The hidden state of the forward direction after the last position."""

    hidden: Float[Tensor, "batch d_hidden"]


class GruLayer(SubLayerModule):
    """Runs position by position; the gates are worked out again, all at once, if a site of theirs is wanted.

    `input` is what the gates are told by x; an edit there is felt by all positions that are read later. An edit at a
    gate or at `hidden` changes what its own position writes; the recurrence goes on as it was. Neurons are those of
    the forward direction, then those of the other one.
    """

    SITES: ClassVar[dict[str, str]] = {
        "input": "batch pos gate neuron",
        "reset": "batch pos neuron",
        "update": "batch pos neuron",
        "candidate": "batch pos neuron",
        "hidden": "batch pos neuron",
        "out": "batch pos d_model",
    }
    GATES = ("reset", "update", "candidate")

    def __init__(self, config: Gru, d_model: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.d_hidden = config.d_hidden or d_model
        self.width = self.d_hidden * (1 + config.bidirectional)
        self.at = full_names(path, self.SITES)
        self.at_gates = [getattr(self.at, name) for name in self.GATES]
        # rows: reset, update, candidate, each of the forward direction first
        self.input = LinearMap(d_model, 3 * self.width, bias=config.bias)
        self.recurrent = LinearMap(self.d_hidden, 3 * self.d_hidden, bias=config.bias)
        self.recurrent_back = (
            LinearMap(self.d_hidden, 3 * self.d_hidden, bias=config.bias) if config.bidirectional else None
        )
        self.output = LinearMap(self.width, d_model, bias=config.bias)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: GruState | None = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], GruState | None]:
        at = self.at
        told = site(tape, at.input, self.input(x).unflatten(-1, (3, self.width)))
        before = self.begin(len(x), x).hidden if state is None else state.hidden
        before = torch.nn.functional.pad(before, (0, self.width - self.d_hidden))
        fresh = self.fresh(context)
        read = self.recur(self.turned(told), before, fresh)
        hidden = self.turned(read)
        new = None if state is None else GruState(hidden[:, -1, : self.d_hidden])
        if wants(tape, *self.at_gates):
            before = torch.cat((before[:, None], read[:, :-1]), 1)
            before = before if fresh is None else before.masked_fill(fresh, 0.0)
            hidden = self.step(told, self.turned(before), tape)
        return site(tape, at.out, self.output(site(tape, at.hidden, hidden))), new

    def turned(self, values: Float[Tensor, "batch pos *n neuron"]) -> Float[Tensor, "batch pos *n neuron"]:
        """Return values in the order in which each direction reads them, or back in that of positions."""
        if not self.config.bidirectional:
            return values
        forward, back = values.chunk(2, -1)
        return torch.cat((forward, back.flip(1)), -1)

    def fresh(self, context: Context) -> Bool[Tensor, "b pos n"] | None:
        """Return where each direction has read nothing yet, in the order in which it reads; None for its first."""
        begins = context.begins
        if not self.config.bidirectional:
            return None if begins is None else begins[..., None]
        ends = context.ends
        if begins is None and ends is None:
            return None
        both = [context.positions.new_zeros(1, 1, dtype=torch.bool) if at is None else at for at in (begins, ends)]
        forward, back = torch.broadcast_tensors(*both)
        return torch.stack((forward, back.flip(1)), -1).repeat_interleave(self.d_hidden, -1)

    def recur(
        self,
        told: Float[Tensor, "batch pos 3 neuron"],
        hidden: Float[Tensor, "batch neuron"],
        fresh: Bool[Tensor, "b pos n"] | None,
    ) -> Float[Tensor, "batch pos neuron"]:
        """Return the state after each position that is read, from what x tells the gates and the state before."""
        found = []
        for t in range(told.shape[1]):
            if fresh is not None:
                hidden = hidden.masked_fill(fresh[:, t], 0.0)
            hidden = self.step(told[:, t], hidden)
            found.append(hidden)
        return torch.stack(found, 1)

    def step(
        self, told: Float[Tensor, "*n 3 neuron"], before: Float[Tensor, "*n neuron"], tape: Tape | None = None
    ) -> Float[Tensor, "*n neuron"]:
        """Return each state from the one before it; a tape sees the gates of a whole sequence."""
        at = self.at
        kept = self.kept(before)
        reset, update = (told[..., :2, :] + kept[..., :2, :]).sigmoid().unbind(-2)
        reset, update = site(tape, at.reset, reset), site(tape, at.update, update)
        candidate = site(tape, at.candidate, (told[..., 2, :] + reset * kept[..., 2, :]).tanh())
        return candidate + update * (before - candidate)

    def kept(self, before: Float[Tensor, "*n neuron"]) -> Float[Tensor, "*n 3 neuron"]:
        """Return what the gates are told by the state before, each direction by its own."""
        gates = (3, self.d_hidden)
        if self.recurrent_back is None:
            return self.recurrent(before).unflatten(-1, gates)
        forward, back = before.chunk(2, -1)
        told = self.recurrent(forward).unflatten(-1, gates), self.recurrent_back(back).unflatten(-1, gates)
        return torch.cat(told, -1)

    def begin(self, batch: int, like: Tensor) -> GruState:
        return GruState(like.new_zeros(batch, self.d_hidden))

    def keeps(self, length: int) -> bool:
        return False

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        gates = 2 * length * 3 * self.width
        return {
            "gru in": gates * self.d_model,
            "gru recurrent": gates * self.d_hidden,
            "gru out": 2 * length * self.width * self.d_model,
        }

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        return self.d_hidden * dtype.itemsize

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from parameters_of("gru in", self.input)
        yield from parameters_of("gru recurrent", self.recurrent)
        yield from parameters_of("gru recurrent", self.recurrent_back)
        yield from parameters_of("gru out", self.output)

    def sites(self) -> Iterator[Site]:
        sizes = {"gate": 3, "neuron": self.width, "d_model": self.d_model}
        yield from declare(self.path, self.SITES, sizes, layer=self.layer, lazy=self.GATES)
