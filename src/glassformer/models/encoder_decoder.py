"""EncoderDecoder: source tokens in, next-token logits of the target out."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count, Rate
from glassformer.attention import Context
from glassformer.config import UNSAID, require
from glassformer.data.tokenizer import Tokenizer
from glassformer.models.block import BlockConfig
from glassformer.models.embedding import Embedding, PositionEmbedding, Sinusoidal
from glassformer.models.initialise import initialise
from glassformer.models.model import Model, ModelConfig
from glassformer.models.norms import NoNorm, NormConfig
from glassformer.models.output_layer import OutputLayer
from glassformer.models.smoothing import LabelSmoothing
from glassformer.models.stack import Stack, State, make_context, with_source
from glassformer.trace import Tape


@dataclass(frozen=True)
class EncoderDecoderConfig(ModelConfig, kind="encoder_decoder"):
    """An encoder-decoder, a transformer or a recurrent one; both sides share one vocabulary unless told otherwise.

    Args:
        vocab_size: Number of token ids that the decoder reads.
        d_model: Width of both residual streams.
        encoder_layers: Blocks of the encoder. What looks at earlier positions only may be among them, as in the first
            recurrent translators, whose last position then knows all of the source.
        decoder_layers: Blocks of the decoder, each with a cross-attention part.
        max_len: Longest source or target it is meant for.
        positions: Positions added to both streams.
        final_norm: Norm at the end of each stack (none in the original post-norm wiring).
        tied: Use the decoder's embedding matrix as unembedding.
        shared: One embedding matrix for both sides; with `tied`, one for all three (Vaswani et al. 2017, section 3.4).
        embed_scale: Multiply token vectors by sqrt(d_model), or by this number.
        init: How weights are drawn, see `initialise`.
        logit_cap: Keep logits within plus and minus this by cap * tanh(raw / cap); None for no cap.
        embed_norm: Norm on what enters the first block of each stack; None for none.
        unembed_scale: Factor on the logits, before their bias.
        unembed_bias: A bias per token on the logits.
        start_id: Token that the decoder's text starts with; the tokenizer's beginning token by default.
        never_ids: Tokens that are never generated, whatever their logits.
        embed_dropout: Rate on what enters the first block of each stack, in training.
        source_vocab_size: Number of token ids that the encoder reads, where these are not the decoder's; None where
            they are.
        output_vocab_size: Number of token ids that logits are of, where these are not the decoder's; None where they
            are. Even of equal size they count as two vocabularies.
        output_layer: What makes logits in place of one matrix over the vocabulary, with tied=False, as in
            `DecoderConfig`; None for the matrix.
        predicts: Whether it has an unembedding; without, its output is the decoder's stream at the end.
    """

    vocab_size: Count
    d_model: Count
    encoder_layers: tuple[BlockConfig, ...]
    decoder_layers: tuple[BlockConfig, ...]
    max_len: Count = 512
    positions: PositionEmbedding | None = field(default_factory=Sinusoidal)
    final_norm: NormConfig = field(default_factory=NoNorm)
    tied: bool = True
    embed_scale: bool | float = True
    init: Literal["gpt", "xavier"] = "xavier"
    logit_cap: float | None = None
    embed_norm: NormConfig | None = None
    unembed_scale: float = 1.0
    unembed_bias: bool = False
    shared: bool = True
    start_id: int | None = None
    never_ids: tuple[int, ...] = ()
    embed_dropout: Rate = 0.0
    source_vocab_size: Count | None = None
    output_vocab_size: Count | None = None
    output_layer: OutputLayer | None = field(default=None, metadata={UNSAID: True})
    predicts: bool = field(default=True, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        self.check(self.encoder_layers, "encoder layer {layer} has cross-attention; only the decoder may.")
        self.check_causal(self.decoder_layers)
        self.check_embeddings(self.embed_scale)
        self.check_logits(self.logit_cap, self.unembed_scale)
        self.check_output_layer()
        self.check_tied(self.tied)
        self._check_source()
        of = {"start_id": ((self.start_id or 0,), self.vocab_size), "never_ids": (self.never_ids, self.n_outputs)}
        for name, (ids, size) in of.items():
            require(
                all(0 <= id < size for id in ids),
                f"encoder_decoder: {name} must be of tokens, 0 to {size - 1}; found {getattr(self, name)}.",
            )
        without = [i for i, b in enumerate(self.decoder_layers) if all(p.role != "cross" for p in b.parts)]
        require(not without, f"encoder_decoder: decoder layer {without[:1]} has no cross-attention part.")

    @property
    def blocks(self) -> dict[str, tuple[BlockConfig, ...]]:
        return {"encoder": self.encoder_layers, "decoder": self.decoder_layers}

    @property
    def n_sources(self) -> int:
        """How many token ids the encoder reads: the decoder's, unless sources are a vocabulary of their own."""
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size

    def _check_source(self) -> None:
        size = self.source_vocab_size
        require(
            size is None or not self.shared,
            f"encoder_decoder: shared=True uses one matrix for source and target, and source_vocab_size={size} makes "
            "the sources a vocabulary of their own. Set shared=False, or leave source_vocab_size out if both are the "
            "same tokens.",
        )

    def build(self, seed: int = 0) -> "EncoderDecoder":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return EncoderDecoder(self)


class EncoderDecoder(Model):
    """Two stacks; the decoder's cross-attention reads the encoder's output."""

    output, source = "decoder", "encoder"
    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config, "encoder-decoder")
        sizes = (config.d_model, config.max_len, config.positions, config.embed_scale)
        rate = config.embed_dropout
        self.decoder_embed = Embedding(config.vocab_size, *sizes, "decoder.embed", norm=config.embed_norm, dropout=rate)
        shared = self.decoder_embed if config.shared else None
        self.encoder_embed = Embedding(
            config.n_sources, *sizes, "encoder.embed", shared, config.embed_norm, dropout=rate
        )
        self.encoder = Stack(config.encoder_layers, config.d_model, config.max_len, config.final_norm, "encoder")
        self.decoder = Stack(config.decoder_layers, config.d_model, config.max_len, config.final_norm, "decoder")
        if config.predicts:
            self.unembed = config.unembedding(self.decoder_embed)
        writes = sum(len(layer.parts) for layer in (*config.encoder_layers, *config.decoder_layers))
        initialise(self, config.init, writes)

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def embeddings(self) -> dict[str, Embedding]:
        return {"encoder": self.encoder_embed, "decoder": self.decoder_embed}

    def one_vocabulary(self, stack: str | None = None) -> bool:
        of_sources = stack == self.source and self.config.source_vocab_size is not None
        return self.config.output_vocab_size is None and not of_sources

    @property
    def source_tokenizer(self) -> Tokenizer | None:
        """Names of what the encoder reads: `tokenizer`, or for sources of their own what was set, or None."""
        return self.tokenizer if self.config.source_vocab_size is None else self.own_tokenizers.get("source")

    @source_tokenizer.setter
    def source_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        require(
            self.config.source_vocab_size is not None,
            "source_tokenizer: both sides read the same tokens (source_vocab_size=None), so set tokenizer.",
        )
        self.own_tokenizers["source"] = tokenizer

    @property
    def start(self) -> tuple[int, ...]:
        first = self.config.start_id
        if first is None and self.tokenizer is not None:
            first = self.tokenizer.bos
        return () if first is None else (first,)

    def forward(
        self,
        source: Int[Tensor, "batch key"] | None,
        tokens: Int[Tensor, "batch pos"],
        *,
        source_lengths: Int[Tensor, " batch"] | None = None,
        source_start: Int[Tensor, " batch"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
        state: State | None = None,
        tape: Tape | None = None,
        form: str = "auto",
        seed: int = 0,
    ) -> Any:
        """Return logits `batch pos vocab`; with a state, the pair (logits, new state).

        Args:
            source: Source token ids; not needed with a state, which holds the encoder's output.
            tokens: Target token ids, shifted right.
            source_lengths: Real tokens per source row, padded on the right.
            source_start: Where each source row's real tokens begin, if they are padded on the left.
            lengths: Real tokens per target row. Padding is on the right; with an empty state it is on the left.
            state: Continue after these positions; `begin` runs the encoder and makes it.
            tape: Reads and edits.
            form: `auto`, `parallel` or `scan`, for the decoder; a matter of speed only.
            seed: Source of a mechanism's random draws.
        """
        if state is None:
            encoded = self.encode(source, source_lengths, source_start, tape=tape, seed=seed)
            if self._stops_early(tape):
                return encoded
            padded = (source_lengths, source_start)
            x, _ = self._decode(tokens, encoded, padded, lengths, None, tape, form, seed)
            return self._leave(x, tape)
        if state.length == 0 and lengths is not None:
            state, lengths = state._replace(start=tokens.shape[1] - lengths), None
        padded = (state.source_lengths, state.source_start)
        x, layers = self._decode(tokens, state.source, padded, lengths, state, tape, form, seed)
        return self._leave(x, tape), state._replace(length=state.length + tokens.shape[1], layers=layers)

    def encode(
        self,
        source: Int[Tensor, "batch key"] | None,
        lengths: Int[Tensor, " batch"] | None = None,
        start: Int[Tensor, " batch"] | None = None,
        *,
        tape: Tape | None = None,
        seed: int = 0,
    ) -> Float[Tensor, "batch key d_model"]:
        """Return the encoder's output; `lengths` and `start` are those of the source."""
        assert source is not None, "the encoder needs source tokens"
        if self.encoder_embed.positions is not None:
            self.encoder_embed.positions.check(source.shape[1])
        context = _source_context(source, lengths, start, seed)
        x = self.encoder_embed(source, self.encoder_embed.places(context.positions, start), tape)
        return self.encoder(x, context, tape=tape)[0]

    def loss(self, batch: Any, smoothing: float | LabelSmoothing = 0.0, tape: Tape | None = None) -> Float[Tensor, ""]:
        """Return the mean next-token cross-entropy of the targets, in nats."""
        encoded = self.encode(batch.source, batch.source_lengths, tape=tape)
        padded = (batch.source_lengths, None)
        x, _ = self._decode(batch.tokens, encoded, padded, batch.lengths, None, tape, "auto", 0)
        return self.unembed.loss(x, batch.targets, batch.weight, smoothing)

    def resume(
        self,
        layer: int,
        resid: Float[Tensor, "batch pos d_model"],
        *,
        encoded: Float[Tensor, "batch key d_model"],
        source_lengths: Int[Tensor, " batch"] | None = None,
        source_start: Int[Tensor, " batch"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
        state: State | None = None,
        at: Int[Tensor, "batch n"] | None = None,
        tape: Tape | None = None,
        carry: bool = True,
    ) -> Any:
        """Return the logits from the stream entering a decoder layer; the encoder's output is kept.

        Arguments as in `Decoder.resume`; with a state, the pair (logits, new state).
        """
        batch, length = resid.shape[:2]
        past = 0 if state is None else state.length
        context = make_context(batch, length, resid.device, is_causal=True, lengths=lengths, past=past)
        context = with_source(context, encoded.shape[1], source_lengths, source_start)
        layers = None if state is None else state.layers
        x, layers = self.decoder(
            resid, context, source=encoded, state=layers, tape=tape, start=layer, at=at, carry=carry
        )
        logits = self._leave(x, tape)
        return logits if state is None or not carry else (logits, state._replace(length=past + length, layers=layers))

    def resume_encoder(
        self,
        layer: int,
        resid: Float[Tensor, "batch key d_model"],
        tokens: Int[Tensor, "batch pos"],
        *,
        source_lengths: Int[Tensor, " batch"] | None = None,
        source_start: Int[Tensor, " batch"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
        at: Int[Tensor, "batch n"] | None = None,
        tape: Tape | None = None,
    ) -> Any:
        """Return the logits from the stream entering an encoder layer; the decoder reads `tokens`."""
        context = _source_context(resid, source_lengths, source_start, 0)
        encoded = self.encoder(resid, context, tape=tape, start=layer)[0]
        if self._stops_early(tape):
            return encoded
        x, _ = self._decode(tokens, encoded, (source_lengths, source_start), lengths, None, tape, "auto", 0, at)
        return self._leave(x, tape)

    def begin(
        self,
        source: Int[Tensor, "batch key"],
        source_lengths: Int[Tensor, " batch"] | None = None,
        source_start: Int[Tensor, " batch"] | None = None,
        *,
        tape: Tape | None = None,
    ) -> State:
        """Run the encoder, under the reads and edits of a tape, and return the empty state of the decoder."""
        layers = self.decoder.begin(source.shape[0], self.decoder_embed.stored)
        encoded = self.encode(source, source_lengths, source_start, tape=tape)
        return State(0, layers, None, encoded, source_lengths, source_start)

    def _decode(self, tokens, encoded, source_padding, lengths, state, tape, form, seed, at=None):
        batch, length = tokens.shape
        past = 0 if state is None else state.length
        if self.decoder_embed.positions is not None:
            self.decoder_embed.positions.check(past + length)
        start = None if state is None else state.start
        context = make_context(
            batch, length, tokens.device, is_causal=True, lengths=lengths, past=past, start=start, form=form, seed=seed
        )
        context = with_source(context, encoded.shape[1], *source_padding)
        x = self.decoder_embed(tokens, context.positions, tape)
        layers = None if state is None else state.layers
        return self.decoder(x, context, source=encoded, state=layers, tape=tape, at=at)

    def _stops_early(self, tape: Tape | None) -> bool:
        if tape is None or tape.logits or tape.last is None:
            return False
        return tape.table[tape.last].stack == self.source


def _source_context(like: Tensor, lengths: Tensor | None, start: Tensor | None, seed: int) -> Context:
    # what sees both ways cannot be scanned
    return make_context(
        like.shape[0], like.shape[1], like.device, is_causal=False, lengths=lengths, start=start, form="parallel",
        seed=seed,
    )  # fmt: skip
