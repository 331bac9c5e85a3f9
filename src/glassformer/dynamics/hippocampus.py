"""TEM-t: a transformer whose position codes are carried along by actions, as a model of the hippocampal formation.

    e_(t+1) = e_t W_a(t),   W_a = exp(G_a - G_a') orthogonal            path integration: entorhinal cells
    y_t = sum over s < t of softmax_s(beta_t e_t . e_s) x_s W_V         memory: hippocampal cells
    beta_t = log n_t / (log n sqrt(d)),  n_t memories of at most n

Queries and keys are codes of positions, values are of what was observed there, so that a model recalls what it saw the
last time it stood where it stands now. Codes of a walk that returns agree if the W_a are a representation of the group
of moves, as rotations are on rings and tori. Only observations are recalled: the keys of actions are zero.

The Tolman-Eichenbaum machine (TEM) stores conjunctions p = vec(x e') of one-hot x by Hebb's rule and recalls with x
unknown, vec(1 e') in its place. That is linear attention between codes, whose values are the conjunctions:

    M_t = sum over s <= t of p_s p_s',   M_t vec(1 e_t') = sum over s <= t of (e_t . e_s) p_s

Source: Whittington, Warren and Behrens 2022, "Relating transformers to models and neural representations of the
hippocampal formation" (2112.04035). Differs: W_a is orthogonal and no activation follows; queries and
keys are the codes themselves, without a matrix; actions are tokens between observations.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count, Natural, Positive, checked
from glassformer.attention import (
    Attention,
    AttentionLayer,
    Context,
    LogN,
    NoPositions,
    Positions,
    Softmax,
    Tied,
)
from glassformer.config import require
from glassformer.data import GraphWorlds
from glassformer.data.tasks.graph_worlds import ACTIONS
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import BlockConfig, Decoder, DecoderConfig, NoNorm

_CODES = "codes of places"


class _Codes(NamedTuple):
    """What queries and keys of a pass are made of."""

    query: Float[Tensor, "batch pos d_model"]
    key: Float[Tensor, "batch pos d_model"]


class PathIntegration(Positions):
    """Codes of positions that tokens carry along: each of some tokens, a move, turns the code by a matrix of its own.

    Queries and keys read codes in place of the stream, which then says nothing about scores.

    Args:
        vocab_size: Number of token ids.
        moves: Ids of tokens that are moves; all others leave the code as it is.
        width: Of a code.
    """

    has_scores = True

    def __init__(self, vocab_size: int, moves: tuple[int, ...], width: int) -> None:
        super().__init__(NoPositions())
        self.vocab_size, self.moves = vocab_size, moves
        # as long as a standard normal vector: scores of equal codes, over the root of their width, begin at that root
        self.start = nn.Parameter(torch.randn(width))
        # angles of a quarter of a turn at most, or little more, whatever the width
        self.generators = nn.Parameter(torch.randn(len(moves), width, width) / (2 * width**0.5))

    @property
    def matrices(self) -> Float[Tensor, "move d_model d_model"]:
        """The W_a: orthogonal, with determinant 1."""
        return torch.matrix_exp(self.generators - self.generators.mT)

    def moves_of(self, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
        """Which move each token is, counted from 0; -1 for none."""
        known = torch.full((self.vocab_size,), -1, device=tokens.device)
        known[list(self.moves)] = torch.arange(len(self.moves), device=tokens.device)
        return known[tokens]

    def forward(
        self, tokens: Int[Tensor, "batch pos"], begins: Bool[Tensor, "b pos"] | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the code behind each token.

        Args:
            tokens: What is read.
            begins: Where a walk begins anew; None where only the first position does.
        """
        move = self.moves_of(tokens)
        moved = (move >= 0).any(0).tolist()
        matrices, rows = self.matrices.transpose(0, 1).flatten(1), torch.arange(len(tokens), device=tokens.device)
        code, codes = self.start.expand(len(tokens), -1), list[Tensor]()
        for t, some in enumerate(moved):
            if begins is not None:
                code = torch.where(begins[:, t, None], self.start, code)
            if some:
                turned = (code @ matrices).unflatten(-1, (len(self.moves), -1))
                code = torch.where(move[:, t, None] >= 0, turned[rows, move[:, t]], code)
            codes.append(code)
        return torch.stack(codes, 1)

    def carry(self, tokens: Int[Tensor, "batch pos"], context: Context) -> None:
        """Put the codes of a pass where all its layers find them: what is made of the tokens, once."""
        codes = self(tokens, context.begins)
        # a move is nothing to remember
        seen = (self.moves_of(tokens) < 0)[..., None]
        context.memo[_CODES] = _Codes(codes, codes * seen)

    def inputs(self, x_q: Tensor, x_k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        if _CODES not in context.memo:
            raise AnalysisUnavailable(
                "a layer of TEM-t was run without the tokens that carry its codes along.\n"
                "    Run whole passes, from tokens: gf.run(model, tokens)."
            )
        return context.memo[_CODES]

    def scores(
        self, score: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor, context: Context
    ) -> Float[Tensor, "batch *stream head query key"]:
        return score(q, k)


@dataclass(frozen=True)
class TemDecoderConfig(DecoderConfig, kind="tem_t"):
    """A decoder in which codes of positions, carried along by tokens that are moves, are queries and keys.

    Its attention layers say nothing of positions. `tem_config` has the paper's one layer. The kind is registered by the
    entry point of this package, so that saved models are loaded wherever it is installed.

    Args:
        moves: Ids of the tokens that are moves.
    """

    moves: tuple[Natural, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.moves) > 0, "tem_t: moves=() leaves codes where they are; name the ids of actions.")
        require(
            len(set(self.moves)) == len(self.moves) and max(self.moves) < self.vocab_size,
            f"tem_t: moves={self.moves} are to be different ids of 0 to {self.vocab_size - 1}.",
        )
        placed = [part.positions.kind for part in self._attention() if part.positions != NoPositions()]
        require(
            self.positions is None and not placed,
            f'tem_t: codes are its positions; leave out positions="{placed[0] if placed else self.positions}".',
        )

    def _attention(self) -> Iterator[Attention]:
        return (part for layer in self.layers for part in layer.parts if isinstance(part, Attention))

    def build(self, seed: int = 0) -> "TemDecoder":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TemDecoder(self)


class TemDecoder(Decoder):
    """A decoder with path integration. It reads walks from their beginning, and carries no state."""

    def __init__(self, config: TemDecoderConfig) -> None:
        super().__init__(config)
        self.path = PathIntegration(config.vocab_size, config.moves, config.d_model)
        for part in self.stack.parts():
            if isinstance(part, AttentionLayer):
                # a plain attribute: registered at every layer, the matrices would be stored as often
                del part.positions
                part.__dict__["positions"] = self.path

    def begin(self, batch: int) -> Any:
        raise AnalysisUnavailable(
            "TEM-t keeps no state: the code of a position is made of all moves before it.\n"
            "    Read walks whole: gf.run(model, tokens), or model(tokens)."
        )

    def codes(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """Return the code of the position behind each token."""
        return self.path(tokens)

    def _enter(self, tokens, lengths, documents, state, tape, form, seed, start=None):
        x, context, state = super()._enter(tokens, lengths, documents, state, tape, form, seed, start)
        self.path.carry(tokens, context)
        return x, context, state


@checked
def tem_config(worlds: GraphWorlds, d_model: Count = 32, n_heads: Count = 1) -> TemDecoderConfig:
    """The paper's model of walks through worlds: one layer of attention between codes, to logits of what is seen next.

    Args:
        worlds: What it walks through.
        d_model: Width of codes, and of the stream.
        n_heads: How many shares of the codes are compared, each by a head.
    """
    attention = Attention(
        n_heads,
        mixer=Softmax(temperature=LogN(worlds.length)),
        projection=Tied(query="identity", key="identity"),
    )
    return TemDecoderConfig(
        len(worlds.symbols()), d_model, (BlockConfig((attention,)),), worlds.length, tied=False, moves=worlds.moves
    )


@checked
def lattice_decoder(worlds: GraphWorlds, sharpness: Positive = 40.0) -> TemDecoder:
    """The model that is right on every place that was visited before, by construction, in float64.

    Its codes are the characters of the lattice, which moves turn by whole parts of a turn: codes of one place agree,
    those of two are orthogonal. Values are observations, and logits how much of each is recalled.

    Args:
        worlds: What it walks through.
        sharpness: Score of a memory of the same place; that of others is zero.
    """
    waves, n_symbols = _waves(worlds), worlds.n_symbols
    width = max(2 * len(waves), len(worlds.symbols()))
    config = tem_config(worlds, width).replace(final_norm=NoNorm())
    [layer] = config.layers
    [attention] = layer.parts
    assert isinstance(attention, Attention), "a model of this kind has one layer of it"
    plain = attention.replace(mixer=Softmax(scale=1.0))
    model = config.replace(layers=(layer.replace(parts=(plain,), norm=NoNorm()),)).build().double()
    steps = torch.tensor([ACTIONS[name] for name in worlds.actions], dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for i, (frequency, share) in enumerate(waves):
            model.path.start[2 * i] = math.sqrt(sharpness * share)
            angles = 2 * math.pi / worlds.side * steps @ torch.tensor(frequency, dtype=torch.float64)
            # halves: a generator is taken less its transpose
            model.path.generators[:, 2 * i, 2 * i + 1] = angles / 2
            model.path.generators[:, 2 * i + 1, 2 * i] = -angles / 2
        seen = torch.arange(n_symbols)
        model.embed.stored[seen, seen] = 1.0
        model.unembed.stored[seen, seen] = 1.0
        projected: Any = model.stack.blocks[0].part("attn")
        projected.projection.qkv.value.weight.copy_(torch.eye(width))
        projected.merge.output.weight.copy_(torch.eye(width))
    return model


@checked
def hebbian_recall(
    codes: Float[Tensor, "batch pos d_code"], observations: Float[Tensor, "b step symbol"]
) -> Float[Tensor, "batch pos symbol d_code"]:
    """What TEM's memory gives back at each step when asked by a code alone: a sum of conjunctions stored so far.

    The memory is a matrix of conjunctions by conjunctions, made here as it is written; linear attention makes none.

    Args:
        codes: Of the position at each step.
        observations: What is seen there, one-hot.

    Raises:
        ShapeMismatch: Codes and observations are not of the same steps.
    """
    if codes.shape[:2] != observations.shape[:2]:
        raise ShapeMismatch(
            f"hebbian_recall: codes of {tuple(codes.shape[:2])} rows and steps, and observations of "
            f"{tuple(observations.shape[:2])}: both are of the same."
        )
    stored = torch.einsum("bpx,bpe->bpxe", observations, codes)
    asked = torch.einsum("bpx,bpe->bpxe", torch.ones_like(observations), codes)
    memory = stored.new_zeros(len(codes), stored[0, 0].numel(), stored[0, 0].numel())
    recalled = list[Tensor]()
    for p, probe in zip(stored.flatten(2).unbind(1), asked.flatten(2).unbind(1)):
        memory = memory + p[:, :, None] * p[:, None, :]
        recalled.append((memory @ probe[..., None])[..., 0])
    return torch.stack(recalled, 1).unflatten(-1, stored.shape[2:])


def _waves(worlds: GraphWorlds) -> list[tuple[tuple[int, int], float]]:
    """Return frequencies by rows and columns, one of each with its opposite, and the share each has of a code."""
    rows = 1 if worlds.graph == "ring" else worlds.side
    found: dict[tuple[int, int], int] = {}
    for down, right in product(range(rows), range(worlds.side)):
        opposite = (-down % rows, -right % worlds.side)
        kept = min((down, right), opposite)
        found[kept] = found.get(kept, 0) + 1
    return [(frequency, count / worlds.n_places) for frequency, count in found.items()]
