"""Encoder: tokens or an image in, every position read both ways; logits are of what stands at a position itself.

A masked language model is one: put the mask token at a position, and the logits there say what it hides.
Source: Devlin et al. 2018, "BERT".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.arguments import Count, Natural, Rate
from glassformer.config import UNSAID, require
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models.block import BlockConfig, check_reads_both_ways
from glassformer.models.denoiser import Denoises, VelocityHead
from glassformer.models.embedding import Embedding, PositionEmbedding, Unembedding
from glassformer.models.initialise import initialise
from glassformer.models.model import Model, ModelConfig
from glassformer.models.norms import LayerNorm, NormConfig
from glassformer.models.patches import Patches
from glassformer.models.readout import Readout
from glassformer.models.smoothing import LabelSmoothing
from glassformer.models.stack import Stack, make_context
from glassformer.trace import Site, Tape


@dataclass(frozen=True)
class EncoderConfig(ModelConfig, kind="encoder"):
    """An encoder-only transformer.

    Args:
        vocab_size: Number of token ids; 0 where images are read.
        d_model: Width of the residual stream.
        layers: One config per block, already expanded (see `schedules`).
        max_len: Longest text it is meant for; the length of a learned position table. Of images, as many as patches and
            class token are.
        positions: Positions added to the stream; None where attention handles them.
        n_types: Kinds of tokens told apart by a vector each (first and second of two texts); 0 for none.
        embed_norm: Norm on what enters the first block; None for none.
        final_norm: Norm at the end of the stack.
        predicts: Whether it has an unembedding; without, its output is the stream at the end.
        readout: A layer between the stack and the unembedding; None for none.
        tied: Use the embedding matrix as unembedding.
        unembed_bias: A bias per token on the logits.
        embed_scale: Multiply token vectors by sqrt(d_model), or by this number.
        init: How weights are drawn, see `initialise`.
        embed_dropout: Rate on what enters the first block, in training.
        output_vocab_size: Number of token ids that logits are of, where these are not the tokens that are read; None
            where they are. Even of equal size they count as two vocabularies.
        classifies: What outputs are classes of: the text or image, whose logits are those at its first position, or (of
            an image, `mean`) the mean of those at all positions; or each token. None where they are tokens.
        patches: How images are cut into tokens, if images are what it reads; layers are told the grid. None for text.
        denoises: What it is told of images with noise in them, if it makes images: then its outputs are the numbers of
            each patch's velocity, see `denoiser`. None for what does not.
    """

    vocab_size: Natural
    d_model: Count
    layers: tuple[BlockConfig, ...]
    max_len: Count = 512
    positions: PositionEmbedding | None = None
    n_types: Natural = 0
    embed_norm: NormConfig | None = None
    final_norm: NormConfig = field(default_factory=LayerNorm)
    predicts: bool = True
    readout: Readout | None = None
    tied: bool = True
    unembed_bias: bool = False
    embed_scale: bool | float = False
    init: Literal["gpt", "xavier"] = "gpt"
    embed_dropout: Rate = 0.0
    output_vocab_size: Count | None = None
    classifies: Literal["text", "tokens", "mean"] | None = field(default=None, metadata={UNSAID: True})
    patches: Patches | None = field(default=None, metadata={UNSAID: True})
    denoises: Denoises | None = field(default=None, metadata={UNSAID: True})

    logit_cap: ClassVar[None] = None

    def __post_init__(self) -> None:
        self.check(self.layers, "layer {layer} has cross-attention, but there is no other stack.")
        self.check_embeddings(self.embed_scale)
        self.check_tied(self.tied and self.predicts)
        self.check_head()
        require(
            self.predicts or (self.readout is None and not self.unembed_bias and self.output_vocab_size is None),
            "encoder: predicts=False leaves nothing for readout, unembed_bias and output_vocab_size to do.",
        )
        require(
            (self.vocab_size == 0) == (self.patches is not None),
            f"encoder: vocab_size={self.vocab_size} and patches={'None' if self.patches is None else '…'}; it reads "
            "tokens of a vocabulary, or, with vocab_size=0, images that patches cuts.",
        )
        require(
            self.classifies != "mean" or (self.patches is not None and self.readout is None),
            'encoder: classifies="mean" is of images, and the mean of what a matrix makes of positions: leave readout '
            "out.",
        )
        if self.patches is not None:
            self._check_images(self.patches)
        require(
            self.denoises is None or (self.patches is not None and not self.patches.class_token and not self.predicts),
            "encoder: what makes images reads patches without a class token, and has no unembedding: use "
            "image_generator(patches, …).",
        )
        check_reads_both_ways("encoder", self.placed_layers)

    @property
    def placed_layers(self) -> tuple[BlockConfig, ...]:
        """Its layers as they stand: told of the grid if images are read."""
        if (patches := self.patches) is None:
            return self.layers
        return tuple(layer.on_grid(patches.grid, patches.outside) for layer in self.layers)

    def _check_images(self, patches: Patches) -> None:
        require(
            self.max_len == patches.n_tokens,
            f"encoder: max_len={self.max_len}, and an image has {patches.n_tokens} tokens; set max_len to that, or use "
            "image_encoder(patches, …).",
        )
        require(
            not (self.tied and self.predicts) and self.n_types == 0 and self.embed_scale is False,
            "encoder: patches are no tokens of a vocabulary: set tied=False, n_types=0 and embed_scale=False.",
        )
        require(
            not self.predicts or self.classifies is not None,
            "encoder: outputs for images are classes: give output_vocab_size, how many, and classifies.",
        )
        require(
            self.classifies != "text" or patches.class_token,
            'encoder: classifies="text" reads the first position, which stands for the image if patches have a '
            'class_token; without it use classifies="mean".',
        )

    def build(self, seed: int = 0) -> "Encoder":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Encoder(self)


class Encoder(Model):
    """An encoder-only transformer."""

    predicts_next = False
    config: EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, "encoder")
        d_model, patches = config.d_model, config.patches
        self.embed = Embedding(
            config.vocab_size, d_model, config.max_len, config.positions, config.embed_scale, "embed",
            norm=config.embed_norm, n_types=config.n_types, dropout=config.embed_dropout, patches=patches,
            denoises=config.denoises,
        )  # fmt: skip
        self.stack = Stack(config.placed_layers, d_model, config.max_len, config.final_norm)
        if config.predicts:
            tied, readout = self.embed if config.tied else None, config.readout
            layer = None if readout is None else readout.build(d_model)
            self.unembed = Unembedding(config.n_outputs, d_model, tied, config.unembed_bias, readout=layer)
        self.velocity = None
        if config.denoises is not None and patches is not None:
            self.velocity = VelocityHead(patches, d_model)
        initialise(self, config.init, sum(len(layer.parts) for layer in config.layers))

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"": self.stack}

    @property
    def embeddings(self) -> dict[str, Embedding]:
        return {"": self.embed}

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"] | Float[Tensor, "batch channel row column"],
        *,
        types: Int[Tensor, "batch pos"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
        start: Int[Tensor, " batch"] | None = None,
        documents: Int[Tensor, "batch pos"] | None = None,
        marked: Bool[Tensor, "batch pos"] | None = None,
        times: Float[Tensor, " batch"] | None = None,
        classes: Int[Tensor, " batch"] | None = None,
        tape: Tape | None = None,
        seed: int = 0,
    ) -> Float[Tensor, "batch pos _"]:
        """Return logits `batch pos vocab`, of the token at each position; the stream if the model predicts none.

        What makes images returns the velocity of each patch's pixels, `batch pos pixel`.

        Classes of a text or an image are read off them by `class_logits`.

        Args:
            tokens: Token ids; of a model that reads images, these.
            types: Which of the texts each token belongs to, from 0; all to the first by default.
            lengths: Real tokens per row. Padding is on the right.
            start: Where each row's real tokens begin, if padding is on the left; positions count from there, unless
                the config says that they count padding.
            documents: Document ids of packed rows; documents do not see each other.
            marked: Which tokens are global, for mechanisms that have such, of which there has to be one; none by
                default, but for what these say.
            times: How much noise each image has, of a model that is told; classes alike.
            classes: What each is to be of.
            tape: Reads and edits.
            seed: Source of a mechanism's random draws.

        A tape without `logits` gets the stream at the last block it needs instead.
        """
        x, context = self._enter(tokens, types, lengths, documents, start, seed, marked, tape, (times, classes))
        x, _ = self.stack(x, context, tape=tape)
        return self._leave(x, tape)

    def class_logits(self, logits: Float[Tensor, "*batch pos vocab"]) -> Float[Tensor, "*batch vocab"]:
        """Return the logits of each text's or image's class, as `classifies` says, of those that a pass returns.

        Raises:
            AnalysisUnavailable: The outputs are of each position.
        """
        if self.config.classifies == "mean":
            return logits.mean(-2)
        if self.config.classifies == "text":
            return logits[..., 0, :]
        raise AnalysisUnavailable(
            f'"{self.name}" says something of each position, and no class of the whole (classifies='
            f"{self.config.classifies!r})."
        )

    def loss(self, batch: Any, smoothing: float | LabelSmoothing = 0.0, tape: Tape | None = None) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of a batch in nats: of each row's class, or of the targets that count.

        Of images with noise in them it is the mean squared error of the velocity. Logits are made where a target counts
        alone: of masked tokens that is a seventh of a text.
        """
        told = batch.times, batch.classes
        x, context = self._enter(batch.tokens, None, batch.lengths, batch.documents, None, 0, None, tape, told)
        x, _ = self.stack(x, context, tape=tape)
        if self.velocity is not None:
            return self.velocity.loss(x, batch.targets)
        if self.config.classifies == "mean":
            # logits are an affine map of the stream, so their mean is what it makes of the mean
            x = x.mean(1, keepdim=True)
        elif self.config.classifies == "text":
            x = x[:, :1]
        targets, weight = batch.targets[:, : x.shape[1]], batch.weight[:, : x.shape[1]]
        if self.config.classifies is None:
            x, targets, weight = (value[weight][None] for value in (x, targets, weight))
        return self.unembed.loss(x, targets, weight, smoothing)

    def resume(
        self,
        layer: int,
        resid: Float[Tensor, "batch pos d_model"],
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        start: Int[Tensor, " batch"] | None = None,
        documents: Int[Tensor, "batch pos"] | None = None,
        marked: Bool[Tensor, "batch pos"] | None = None,
        times: Float[Tensor, " batch"] | None = None,
        classes: Int[Tensor, " batch"] | None = None,
        at: Int[Tensor, "batch n"] | None = None,
        tape: Tape | None = None,
    ) -> Float[Tensor, "batch _ d_out"]:
        """Return the logits from the stream entering a layer; earlier layers are not run.

        Args:
            layer: The first block to run; as many as there are blocks for none but the final norm.
            resid: The stream there.
            lengths: Real tokens per row, as in `forward`; start, documents and marked alike.
            start: See `lengths`.
            documents: See `lengths`.
            marked: See `lengths`.
            times: What the pass was told; the stream has it. Classes alike.
            classes: See `times`.
            at: Which positions logits are wanted for; all by default.
            tape: Reads and edits.
        """
        batch, length = resid.shape[:2]
        context = self._context(batch, length, resid.device, lengths, documents, start, 0, marked)
        return self._leave(self.stack(resid, context, tape=tape, start=layer, at=at)[0], tape)

    def _require_marks(self) -> None:
        mixers = [one.attention.config.mixer for one in self.sub_layers() if one.attention is not None]
        if not any(mixer.takes_marks for mixer in mixers):
            kinds = ", ".join(dict.fromkeys(mixer.described for mixer in mixers)) or "no attention"
            raise ConfigError(
                f"this pass marks tokens as global, and no layer of this encoder has global tokens ({kinds}).\n"
                "    Leave `marked` out, or build layers that have them: Longformer()."
            )

    def begin(self, batch: int) -> NoReturn:
        """Raise `AnalysisUnavailable`: there is no state to begin with."""
        raise AnalysisUnavailable(
            f'"{self.name}" is an encoder: it reads both ways, so what it makes of a token changes with every later '
            "one, and nothing can be carried from position to position; it generates no text.\n"
            "    Put the mask token where you want a word, and read the logits there: gf.explain(model, text)."
        )

    def makes_logits_for(self, names: Iterable[str]) -> bool:
        asked = tuple(names)
        return super().makes_logits_for(asked) or (self.velocity is not None and self.velocity.at in asked)

    def _sites(self) -> Iterator[Site]:
        yield from super()._sites()
        if self.velocity is not None:
            yield from self.velocity.sites()

    def _leave(self, x: Tensor, tape: Tape | None) -> Tensor:
        if self.velocity is None or (tape is not None and not tape.logits):
            return super()._leave(x, tape)
        return self.velocity(x, tape)

    def _enter(self, tokens, types, lengths, documents, start, seed, marked, tape, told):
        batch, length = self.embed.size(tokens)
        if self.embed.positions is not None:
            self.embed.positions.check(length)
        context = self._context(batch, length, tokens.device, lengths, documents, start, seed, marked)
        return self.embed(tokens, self.embed.places(context.positions, start), tape, types, *told), context

    def _context(self, batch, length, device, lengths, documents, start, seed, marked):
        if marked is not None:
            self._require_marks()
        # what sees both ways cannot be scanned
        return make_context(
            batch, length, device, is_causal=False, lengths=lengths, document_ids=documents,
            start=start, form="parallel", seed=seed, marked=marked,
        )  # fmt: skip
