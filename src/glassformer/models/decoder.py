"""Decoder: tokens in, next-token logits out. Attention-only models are decoders whose blocks have no MLP."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count, Rate
from glassformer.attention import LearnedScale
from glassformer.config import UNSAID
from glassformer.models.block import BlockConfig
from glassformer.models.embedding import Embedding, PositionEmbedding
from glassformer.models.initialise import Scheme, initialise
from glassformer.models.model import Model, ModelConfig
from glassformer.models.norms import LayerNorm, NormConfig
from glassformer.models.output_layer import OutputLayer
from glassformer.models.smoothing import LabelSmoothing
from glassformer.models.stack import Stack, State, make_context
from glassformer.trace import Tape


@dataclass(frozen=True)
class DecoderConfig(ModelConfig, kind="decoder"):
    """A decoder-only transformer.

    Args:
        vocab_size: Number of token ids.
        d_model: Width of the residual stream.
        layers: One config per block, already expanded (see `schedules`).
        max_len: Longest context it is meant for; the length of a learned position table.
        positions: Positions added to the stream; None where attention handles them.
        final_norm: Norm before the unembedding.
        tied: Use the embedding matrix as unembedding.
        embed_scale: Multiply token vectors by sqrt(d_model), or by this number.
        unembed_bias: A bias per token on the logits.
        logit_cap: Keep logits within plus and minus this by cap * tanh(raw / cap); None for no cap.
        init: How weights are drawn, see `initialise`.
        embed_norm: Norm on what enters the first block, token and position vectors together; None for none.
        unembed_scale: Factor on the logits, before their bias.
        token_scale: Learned factors on the logits besides, one for each token; None for none.
        d_embed: Width of the token vectors, where it is not that of the stream; maps lead from one to the other.
        embed_dropout: Rate on what enters the first block, in training.
        output_vocab_size: Number of token ids that logits are of, where these are not the tokens that are read; None
            where they are. Even of equal size they count as two vocabularies.
        output_layer: What makes logits in place of one matrix over the vocabulary (`HierarchicalSoftmax`,
            `AdaptiveSoftmax`), with tied=False; None for the matrix.
        predicts: Whether it has an unembedding; without, its output is the stream at the end.
        classifies: What outputs are classes of: the text, whose logits are those at its last position, or each token;
            None where they are tokens that come next.
    """

    vocab_size: Count
    d_model: Count
    layers: tuple[BlockConfig, ...]
    max_len: Count = 1024
    positions: PositionEmbedding | None = None
    final_norm: NormConfig = field(default_factory=LayerNorm)
    tied: bool = True
    embed_scale: bool | float = False
    unembed_bias: bool = False
    init: Scheme = "gpt"
    logit_cap: float | None = None
    embed_norm: NormConfig | None = None
    unembed_scale: float = 1.0
    d_embed: Count | None = None
    embed_dropout: Rate = 0.0
    output_vocab_size: Count | None = None
    output_layer: OutputLayer | None = field(default=None, metadata={UNSAID: True})
    token_scale: LearnedScale | None = field(default=None, metadata={UNSAID: True})
    predicts: bool = field(default=True, metadata={UNSAID: True})
    classifies: Literal["text", "tokens"] | None = field(default=None, metadata={UNSAID: True})  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.check(self.layers, "layer {layer} has cross-attention, but there is no encoder.")
        self.check_causal(self.layers)
        self.check_embeddings(self.embed_scale)
        self.check_tied(self.tied)
        self.check_logits(self.logit_cap, self.unembed_scale)
        self.check_output_layer()
        self.check_head()

    def build(self, seed: int = 0) -> "Decoder":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Decoder(self)


class Decoder(Model):
    """A decoder-only transformer."""

    config: DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config, "decoder")
        self.embed = Embedding(
            config.vocab_size, config.d_model, config.max_len, config.positions, config.embed_scale, "embed",
            norm=config.embed_norm, d_embed=config.d_embed, dropout=config.embed_dropout,
        )  # fmt: skip
        self.stack = Stack(config.layers, config.d_model, config.max_len, config.final_norm)
        if config.predicts:
            self.unembed = config.unembedding(self.embed)
        initialise(self, config.init, sum(len(layer.parts) for layer in config.layers))

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"": self.stack}

    @property
    def embeddings(self) -> dict[str, Embedding]:
        return {"": self.embed}

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        start: Int[Tensor, " batch"] | None = None,
        documents: Int[Tensor, "batch pos"] | None = None,
        state: State | None = None,
        tape: Tape | None = None,
        form: str = "auto",
        seed: int = 0,
    ) -> Any:
        """Return logits `batch pos vocab`; with a state, the pair (logits, new state).

        Args:
            tokens: Token ids.
            lengths: Real tokens per row. Padding is on the right; together with an empty state it is on the left.
            start: Where each row's real tokens begin, if padding is on the left; positions count from there.
            documents: Document ids of packed rows; documents do not see each other. Where processes share positions
                (`spread`), tokens are those of this one and documents are of all.
            state: Continue after these positions; `begin` makes the empty one.
            tape: Reads and edits.
            form: `auto`, `parallel` or `scan`; a matter of speed only.
            seed: Source of a mechanism's random draws.

        A tape without `logits` gets the stream at the last block it needs instead.
        """
        x, context, state = self._enter(tokens, lengths, documents, state, tape, form, seed, start)
        x, layers = self.stack(x, context, state=None if state is None else state.layers, tape=tape)
        logits = self._leave(x, tape)
        return (
            logits if state is None else (logits, state._replace(length=state.length + tokens.shape[1], layers=layers))
        )

    def stream(
        self,
        tokens: Int[Tensor, "batch pos"],
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        documents: Int[Tensor, "batch pos"] | None = None,
        tape: Tape | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return what the unembedding reads."""
        x, context, _ = self._enter(tokens, lengths, documents, None, tape, "auto", 0)
        return self.stack(x, context, tape=tape)[0]

    def loss(self, batch: Any, smoothing: float | LabelSmoothing = 0.0, tape: Tape | None = None) -> Float[Tensor, ""]:
        """Return the mean next-token cross-entropy of a batch, in nats."""
        x = self.stream(batch.tokens, lengths=batch.lengths, documents=batch.documents, tape=tape)
        return self.unembed.loss(x, batch.targets, batch.weight, smoothing)

    def resume(
        self,
        layer: int,
        resid: Float[Tensor, "batch pos d_model"],
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        documents: Int[Tensor, "batch all"] | None = None,
        state: State | None = None,
        at: Int[Tensor, "batch n"] | None = None,
        tape: Tape | None = None,
        carry: bool = True,
    ) -> Any:
        """Return the logits from the stream entering a layer; earlier layers are not run.

        Args:
            layer: The first block to run; as many as there are blocks for none but the final norm.
            resid: The stream there; with a state, at the positions after those it holds.
            lengths: Real tokens per row, earlier positions included; padding is on the right.
            documents: Document ids of packed rows, earlier positions included.
            state: What these layers carry from earlier positions; then the pair (logits, new state) is returned.
            at: Which of the given positions logits are wanted for; all by default.
            tape: Reads and edits.
            carry: Whether to return a new state, if one was given; without, logits alone.
        """
        batch, length = resid.shape[:2]
        past = 0 if state is None else state.length
        context = make_context(
            batch, length, resid.device, is_causal=True, lengths=lengths, document_ids=documents, past=past
        )
        layers = None if state is None else state.layers
        x, layers = self.stack(resid, context, state=layers, tape=tape, start=layer, at=at, carry=carry)
        logits = self._leave(x, tape)
        return logits if state is None or not carry else (logits, state._replace(length=past + length, layers=layers))

    def begin(self, batch: int) -> State:
        """Return the empty state."""
        return State(0, self.stack.begin(batch, self.embed.stored))

    def _enter(self, tokens, lengths, documents, state, tape, form, seed, start=None):
        batch, length = tokens.shape if self.spread is None else documents.shape
        past = 0 if state is None else state.length
        if state is not None and past == 0 and lengths is not None:
            state, lengths = state._replace(start=length - lengths), None
        if self.embed.positions is not None:
            self.embed.positions.check(past + length)
        context = make_context(
            batch,
            length,
            tokens.device,
            is_causal=True,
            lengths=lengths,
            document_ids=documents,
            past=past,
            start=start if state is None else state.start,
            form=form,
            seed=seed,
        )
        context = context if self.spread is None else context.spread_over(self.spread)
        return self.embed(tokens, context.positions, tape), context, state
