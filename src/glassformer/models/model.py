"""Model: what decoders, encoders and encoder-decoders share, and what an analysis may ask of any of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention import Attention, Mixer
from glassformer.attention.context import Spread
from glassformer.attention.depthwise import needs_whole_grid
from glassformer.attention.mixer import needs_whole_texts
from glassformer.config import Config, require
from glassformer.data.tokenizer import Specials, Tokenizer
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.models.block import BlockConfig
from glassformer.models.denoiser import Denoises
from glassformer.models.embedding import Embedding, Unembedding, VocabularyMatrix
from glassformer.models.generation_rules import NO_RULES
from glassformer.models.matrices import Matrix, matching, matrices_of
from glassformer.models.output_layer import OutputLayer
from glassformer.models.patches import Patches
from glassformer.models.reading import Inputs, read, tokenizer_for
from glassformer.models.stack import Stack, site_table
from glassformer.models.sub_layer import SubLayer
from glassformer.provenance import ModelNote
from glassformer.provenance.digest import digest
from glassformer.trace import Foreign, Shares, Site, SiteTable, Tape
from glassformer.words import Sentence, sentence

# what logits at a position are of: the token behind it or at it, a class of the whole text or of the token at it, of
# the whole image or of it as one patch says
LogitsOf = Literal["next_token", "token", "text_class", "token_class", "image_class", "patch_class"]
# what a model answers at a position, in words for readers
ANSWERS: Mapping[LogitsOf, Sentence] = {
    "next_token": sentence("Next token"),
    "token": sentence("The token there"),
    "text_class": sentence("Class of the text"),
    "token_class": sentence("Class of this token"),
    "image_class": sentence("Class of the image"),
    "patch_class": sentence("Class by this patch"),
}


class ModelConfig(Config, family=True):
    """A whole model as data."""

    vocab_size: int
    output_vocab_size: Count | None
    d_model: Count
    max_len: Count
    output_layer: OutputLayer | None = None
    # whether there are logits at all, and what they are classes of: each text, each token; None for tokens to come
    predicts: bool = True
    classifies: Literal["text", "tokens", "mean"] | None = None
    # how images are cut into tokens, of what reads images
    patches: Patches | None = None
    # what it is told of images that have noise in them, of what makes images
    denoises: Denoises | None = None

    @property
    def n_outputs(self) -> int:
        """How many token ids logits are of: as many as are read, unless the outputs are a vocabulary of their own."""
        return self.vocab_size if self.output_vocab_size is None else self.output_vocab_size

    def build(self, seed: int = 0) -> "Model":
        """Return a model with freshly drawn weights."""
        raise NotImplementedError

    def unembedding(self, embed: VocabularyMatrix) -> Unembedding:
        """Return what makes logits: a matrix over the vocabulary, tied to the embedding or not, or an output layer."""
        if self.output_layer is not None:
            return self.output_layer.build(self.n_outputs, self.d_model)
        config: Any = self
        return Unembedding(
            vocab_size=self.n_outputs,
            d_model=self.d_model,
            tied=embed if config.tied else None,
            bias=config.unembed_bias,
            cap=config.logit_cap,
            scale=config.unembed_scale,
            d_embed=getattr(config, "d_embed", None),
            by_token=getattr(config, "token_scale", None),
        )

    @property
    def blocks(self) -> dict[str, tuple[BlockConfig, ...]]:
        """Blocks of each stack, by the name the stack has in the model; where there is only one, it has no name."""
        layers: tuple[BlockConfig, ...] = getattr(self, "layers")  # noqa: B009  (models of two stacks have others)
        return {"": layers}

    def departures(self) -> dict[str, list[str]]:
        """Return where attention layers depart from those of their mechanism's paper: path to what differs, in words.

        Layers that do not depart, and those whose paper leaves all else free, are not in it.
        """
        found = {
            f"{stack}.blocks.{i}.{name}".lstrip("."): part.departures(i)
            for stack, blocks in self.blocks.items()
            for i, block in enumerate(blocks)
            for name, part in zip(block.names(), block.parts)
            if isinstance(part, Attention)
        }
        return {path: words for path, words in found.items() if words}

    def check(self, crossing: tuple[BlockConfig, ...], why_not: str) -> None:
        """Raise `ConfigError` for norms of half a stream of a whole one, or cross-attention in `crossing` blocks."""
        for name in ("final_norm", "embed_norm"):
            half = getattr(getattr(self, name, None), "half", None)
            require(half is None, f"{self.kind}: {name} reads the whole stream; found half={half!r}.")
        crossed = [i for i, layer in enumerate(crossing) for part in layer.parts if part.role == "cross"]
        require(not crossed, f"{self.kind}: " + why_not.format(layer=crossed[:1]))

    def check_causal(self, layers: tuple[BlockConfig, ...]) -> None:
        """Raise `ConfigError` for what cannot look back only, in blocks that do."""
        for i, layer in enumerate(layers):
            for part in layer.parts:
                if isinstance(part, Attention) and not part.cross and part.mixer.bidirectional:
                    raise needs_whole_texts(f"{self.kind}: layer {i}", part.mixer)
                if part.reads_whole is not None:
                    raise needs_whole_grid(f"{self.kind}: layer {i} ({part.kind})", part.reads_whole)

    def check_embeddings(self, scale: bool | float) -> None:
        """Raise `ConfigError` for a factor on token vectors that no model can have."""
        require(
            math.isfinite(scale) and (scale is False or scale != 0),
            f"{self.kind}: embed_scale must be true, false or a finite number other than 0; found {scale}.",
        )

    def check_tied(self, tied: bool) -> None:
        """Raise `ConfigError` if one matrix is to stand for two vocabularies."""
        require(
            self.output_vocab_size is None or not tied,
            f"{self.kind}: tied=True uses the matrix of the {self.vocab_size} tokens that are read as unembedding, and "
            f"output_vocab_size={self.output_vocab_size} makes the outputs a vocabulary of their own. Set tied=False, "
            "or leave output_vocab_size out if both are the same tokens.",
        )

    def check_head(self) -> None:
        """Raise `ConfigError` for classes beside outputs that are the tokens, or that are none."""
        require(
            self.classifies is None or (self.predicts and self.output_vocab_size is not None),
            f"{self.kind}: classifies={self.classifies!r} makes the outputs classes; output_vocab_size says how many.",
        )

    def check_output_layer(self) -> None:
        """Raise `ConfigError` for an output layer beside settings of the matrix that it stands in for."""
        if (layer := self.output_layer) is None:
            return
        layer.check_vocabulary(self.n_outputs)
        wrong = {
            "tied": (False, "its vectors are of decisions, not of tokens"),
            "unembed_bias": (False, "its logits are log-probabilities"),
            "logit_cap": (None, "its logits are log-probabilities"),
            "unembed_scale": (1.0, "its logits are log-probabilities"),
            "token_scale": (None, "its logits are log-probabilities"),
            "d_embed": (None, "its vectors have widths of their own"),
        }
        for name, (right, why) in wrong.items():
            found = getattr(self, name, right)
            require(
                found == right,
                f"{self.kind}: {name}={found} is of an unembedding matrix, and output_layer={layer.kind} has none of a "
                f"row per token: {why}. Set {name}={right}.",
            )

    def check_logits(self, cap: float | None, scale: float) -> None:
        """Raise `ConfigError` for a cap on the logits, or a factor on them, that no model can have."""
        require(
            cap is None or 0 < cap < math.inf,
            f"{self.kind}: logit_cap must be a positive number, or None for no cap; found {cap}.",
        )
        require(
            math.isfinite(scale) and scale != 0,
            f"{self.kind}: unembed_scale must be a finite number other than 0; found {scale}. "
            "1 leaves logits as they are.",
        )


class Model(nn.Module):
    """A model of ours: one or two stacks, what tokens enter them through, and what turns the last stream into logits.

    `tokenizer` names the tokens that are read, `output_tokenizer` those that logits are of, `source_tokenizer` those
    that the encoder of an encoder-decoder reads; where they are one vocabulary, all are `tokenizer`. They are attached
    by whoever loads or trains it; where there is none, `no_tokenizer` says why and what would help. `origin` is the
    family and config of a published checkpoint, set by whoever loads one. `coordinate_names` says what the coordinates
    of the stream mean, where each does by itself; runs label the axis `d_model` with them. `trained_length` is
    how many tokens the longest rows of its training had, None if nobody says; what it can be given, `max_len`, may be
    more. `generation` is what a published checkpoint says of generating, `checkpoint_notes` what must be known of its
    weights.
    """

    output: ClassVar[str] = ""  # name of the stack that ends in the logits, and
    source: ClassVar[str | None] = None  # of the one whose output cross-attention reads, if there is one
    predicts_next: ClassVar[bool] = True  # whether logits are of the token that comes next, or of the one that is there
    unembed: Unembedding
    # from the stream that enters a layer to the logits; and the empty state, for models that carry one
    resume: Callable[..., Any]
    begin: Callable[..., Any]
    # of models of one stack: from tokens to the last stream, before the logits
    stream: Callable[..., Any]
    # of encoders: from the logits of all positions to those of the class of the whole
    class_logits: Callable[..., Any]

    def __init__(self, config: Any, name: str) -> None:
        super().__init__()
        self.config: Any = config
        self.tokenizer: Tokenizer | None = None
        # of vocabularies of their own, by what they are of: `output`, `source`
        self.own_tokenizers: dict[str, Tokenizer | None] = {}
        self.no_tokenizer = ""
        self.origin: Any = None
        self.trained_length: int | None = None
        self.generation = NO_RULES
        self.checkpoint_notes: tuple[ModelNote, ...] = ()
        self.name = name
        # where processes share values of its sites
        self.shares: Shares | None = None
        # where processes share positions of what it reads
        self.spread: Spread | None = None
        self._coordinate_names: tuple[str, ...] = ()

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """What the coordinates of the stream are called; empty where they have no names. Not part of a checkpoint."""
        return self._coordinate_names

    @coordinate_names.setter
    def coordinate_names(self, names: Iterable[str]) -> None:
        found = tuple(names)
        require(
            len(found) in (0, self.config.d_model),
            f"coordinate_names: {len(found)} names for {self.config.d_model} coordinates; give one for each.",
        )
        require(len(set(found)) == len(found), "coordinate_names: two coordinates have one name; give each its own.")
        self._coordinate_names = found

    @property
    def familiar_length(self) -> int:
        """Tokens of the longest text that training prepared the model for: of its rows, or `max_len` if nobody says."""
        return min(self.trained_length or self.config.max_len, self.config.max_len)

    def digest(self) -> str:
        """Return the digest of its config and weights (`provenance.digest`): computed once, until they change."""
        return digest(self)

    @property
    def stacks(self) -> dict[str, Stack]:
        """Stacks by name, in the order they run; where there is only one, it has no name."""
        raise NotImplementedError

    @property
    def embeddings(self) -> dict[str, Embedding]:
        """What tokens enter each stack through, by the stack's name."""
        raise NotImplementedError

    @property
    def output_stack(self) -> Stack:
        """The stack that ends in the logits."""
        return self.stacks[self.output]

    @property
    def output_embed(self) -> Embedding:
        """What tokens enter that stack through."""
        return self.embeddings[self.output]

    @property
    def prefix(self) -> str:
        """What the names of that stack's sites begin with."""
        return self.output_stack.prefix

    @property
    def predicts(self) -> bool:
        """Whether it has an unembedding; without, its output is the stream at the end, and it gives no logits."""
        return self.config.predicts

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        if name == "unembed" and not self.config.predicts:
            raise AnalysisUnavailable(
                f'"{self.name}" has no unembedding (predicts=False), so it gives no logits.\n'
                '    What it gives: gf.run(model, text, read=["blocks.*.resid_post", "blocks.*.attn.pattern"]); for '
                "logits, load the checkpoint with its head: that of a language model, or of classes."
            )
        return super().__getattr__(name)

    @property
    def logits_of(self) -> LogitsOf | None:
        """What logits at a position are of: a token or a class, and of which; None if there are no logits."""
        if not self.predicts:
            return None
        if self.config.classifies is not None:
            of_whole = self.config.classifies == "text"
            if self.patches is not None:
                return "image_class" if of_whole else "patch_class"
            return "text_class" if of_whole else "token_class"
        return "next_token" if self.predicts_next else "token"

    @property
    def reads_pairs(self) -> bool:
        """Whether it reads two texts: a source, and what its decoder has of the target."""
        return self.source is not None

    @property
    def patches(self) -> Patches | None:
        """How what it reads is cut into tokens, if that is images; None if it is token ids."""
        return self.config.patches

    @property
    def generates(self) -> bool:
        """Whether it can write: its logits are of the next token. A model that reads pairs writes behind a source."""
        return self.logits_of == "next_token"

    def require_generates(self) -> None:
        """Raise `AnalysisUnavailable`, which says why, if it cannot write."""
        if self.generates:
            return
        if not self.predicts_next:
            self.begin(0)
        what = "classes, and no tokens" if self.predicts else "none: it has no head (predicts=False)"
        raise AnalysisUnavailable(
            f'"{self.name}" writes no text: its outputs are {what}. For text, load the checkpoint with the head of a '
            "language model."
        )

    @property
    def continues(self) -> bool:
        """Whether it goes on from one text, as decoders do."""
        return self.generates and not self.reads_pairs

    @property
    def stops(self) -> tuple[int, ...]:
        """Tokens that end a text: those of the tokenizer, and those that a published checkpoint names."""
        of_tokenizer = () if self.output_tokenizer is None else self.output_tokenizer.roles.stops
        return tuple(dict.fromkeys((*of_tokenizer, *self.generation.stops)))

    @property
    def start(self) -> tuple[int, ...]:
        """The token that the decoder's text begins with, of models that read pairs: one, or none if nobody says."""
        return ()

    def read(
        self,
        given: Any,
        *,
        source: Any = None,
        specials: Specials = None,
        lengths: Any = None,
        mask: Any = None,
        allow_unknown: bool = False,
    ) -> Inputs:
        """Return what a pass reads, checked: `model(*inputs.args, **inputs.kwargs)` runs it.

        A text gets the special tokens that its tokenizer puts around texts, and `notes` say which; ids are taken as
        they are.

        Args:
            given: A text, token ids (a list, or a tensor of one or two axes), several texts or rows of ids of any
                lengths, which are padded on the right, or a `Batch`; of a model that reads pairs, the target; of one
                that reads images these, `batch channel row column`, or one of them.
            source: What the encoder of a model that reads pairs reads, likewise.
            specials: Put special tokens around a text always (True) or never (False), or take those whose names the
                text holds and no others ("in-text"); by default as the tokenizer was made or published.
            lengths: Real tokens in each row of ids (of `source`, if there is one) that are padded on the right.
            mask: 1 for each real id and 0 for padding, on either side, in place of lengths.
            allow_unknown: Read a text of which more than half is outside the vocabulary, or is single bytes of
                characters that it learnt no token for.

        Raises:
            TextError: A text is empty, longer than the context or mostly unknown, or there is no tokenizer for it.
            TokenOutOfRange: An id is outside the vocabulary.
            ShapeMismatch: It is neither text nor ids, the padding does not fit, or a source is missing or too many.
        """
        return read(
            self, given, source=source, specials=specials, lengths=lengths, mask=mask, allow_unknown=allow_unknown
        )

    def one_vocabulary(self, stack: str | None = None) -> bool:
        """Whether logits are of the tokens that a stack reads; the stack that ends in the logits by default."""
        return self.config.output_vocab_size is None

    def require_one_vocabulary(self, analysis: str, stack: str | None = None) -> None:
        """Raise `AnalysisUnavailable` unless logits are of the tokens that a stack reads, see `one_vocabulary`."""
        if not self.one_vocabulary(stack):
            size = self.embeddings[self.output if stack is None else stack].vocab_size
            raise AnalysisUnavailable(
                f'{analysis} takes what is read and what is predicted for the same tokens; "{self.name}" reads tokens '
                f"of one vocabulary ({size}) and its logits are of another ({self.config.n_outputs}).\n"
                "    What a logit is made of, with names from both: "
                "analysis.attribution.direct_logit_attribution(run, answer=…)."
            )

    @property
    def output_tokenizer(self) -> Tokenizer | None:
        """Names of what logits are of: `tokenizer`, or for outputs of their own what was set, or None."""
        return self.tokenizer if self.one_vocabulary() else self.own_tokenizers.get("output")

    @output_tokenizer.setter
    def output_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        require(
            not self.one_vocabulary(),
            "output_tokenizer: logits are of the tokens that are read (output_vocab_size=None), so set tokenizer.",
        )
        self.own_tokenizers["output"] = tokenizer

    @property
    def source_tokenizer(self) -> Tokenizer | None:
        """Names of what the stack reads whose output cross-attention reads: `tokenizer`, unless it has its own."""
        return self.tokenizer

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of what is read; raises `TextError`, which says why, if there is none."""
        return tokenizer_for(self, self.tokenizer)

    def tokenizer_of(self, stack: str | None) -> Tokenizer | None:
        """Return the tokenizer of what a stack reads; of the one that ends in the logits by default."""
        return self.source_tokenizer if stack is not None and stack == self.source else self.tokenizer

    def reads_ahead(self, stack: str | None = None) -> bool:
        """Whether positions of a stack see those after them; of the stack that ends in the logits by default."""
        return not self.predicts_next or (stack is not None and stack == self.source)

    def reads_whole(self, stack: str | None = None) -> bool:
        """Whether what a position of a stack holds depends on those after it: it sees them, or what it sees does."""
        layers = (layer.attention for layer in self.sub_layers(stack))
        return self.reads_ahead(stack) or not all(layer.config.mixer.continues for layer in layers if layer is not None)

    def stack_name(self, stack: str | None) -> str:
        """Return the name of the stack that is meant: the one that ends in the logits if none is said, or no other is.

        Raises:
            AnalysisUnavailable: There are two, and neither has this name.
        """
        if stack is None or len(self.stacks) == 1:
            return self.output
        if stack not in self.stacks:
            known = " and ".join(f'"{name}"' for name in self.stacks)
            raise AnalysisUnavailable(f'no stack "{stack}".{nearest(stack, self.stacks)} This model has {known}.')
        return stack

    def sub_layers(self, stack: str | None = None) -> tuple[SubLayer, ...]:
        """Return the sub-layers of a stack in order; of the stack that ends in the logits by default."""
        return self.stacks[self.output if stack is None else stack].sub_layers()

    def sub_layer(self, path: str) -> SubLayer:
        """Return the sub-layer that a path is of, `decoder.blocks.3.attn`."""
        return next(layer for name in self.stacks for layer in self.sub_layers(name) if layer.path == path)

    def matrices(self, glob: str = "*") -> tuple[Matrix, ...]:
        """Return the matrices of its sub-layers that a glob covers, in the order they run; see `models.matrices`.

        Args:
            glob: A name, `blocks.2.attn.query`, or of several: `blocks.*.mlp.*`.

        Raises:
            UnknownSite: It covers none.
        """
        known = list(matrices_of([layer for name in self.stacks for layer in self.sub_layers(name)]))
        return tuple(known) if glob == "*" else matching(known, glob)

    def penalty(self) -> Float[Tensor, ""] | None:
        """Return what training adds to the loss for what mechanisms have come to spend, in nats; None for nothing."""
        spent = [module.penalty() for module in self.modules() if isinstance(module, Mixer)]
        found = [penalty for penalty in spent if penalty is not None]
        return torch.stack(found).sum() if found else None

    def sites(self, glob: str = "*") -> SiteTable:
        """Return the static site table, or the part of it that a glob covers."""
        return site_table(self, self._sites, glob)

    def _sites(self) -> Iterator[Site]:
        for name, stack in self.stacks.items():
            yield from self.embeddings[name].sites()
            yield from stack.sites()
        if self.predicts:
            yield from self.unembed.sites()

    def makes_logits_for(self, names: Iterable[str]) -> bool:
        """Whether a pass comes by one of these sites only where it makes logits."""
        return self.predicts and not {site.name for site in self.unembed.sites()}.isdisjoint(names)

    def _leave(self, x: Tensor, tape: Tape | None) -> Tensor:
        if not self.predicts or (tape is not None and not tape.logits):
            return x
        return self.unembed(x, tape)


if TYPE_CHECKING:
    ModelLike = Model
    ModuleLike = nn.Module
else:

    class _Anything(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return True

    class ModelLike(metaclass=_Anything):
        """A model of ours as a caller gives it; what is none is refused in words by `require_model`.

        To the type checker it is a `Model`. At run time it is anything, so that no checker of annotations comes first.
        """

    class ModuleLike(metaclass=_Anything):
        """Any module as a caller gives it: a model of ours, one seen through a spec, or one we know nothing about.

        What is none is refused in words by `require_module`.
        """


def require_model(found: Any, analysis: str = "this analysis") -> Model:
    """A model of ours; raises `AnalysisUnavailable` for anything else, and says what would work."""
    if isinstance(found, Model):
        return found
    raise AnalysisUnavailable(_refusal(found, analysis))


def require_module(found: Any, analysis: str = "this analysis") -> nn.Module:
    """A module of any kind; raises `AnalysisUnavailable` for anything else, and says what would work."""
    if isinstance(found, nn.Module):
        return found
    raise AnalysisUnavailable(_refusal(found, analysis))


def _refusal(found: Any, analysis: str) -> str:
    if found is None:
        return f"{analysis} looks at weights: give the model, Run.load(path, model=…)."
    if isinstance(found, Foreign) and found.has_parts:
        return (
            f"{analysis} looks at the parts of a model, which a module seen through a spec has apart from it.\n"
            "    Give it model.parts(): a model of ours with the module's weights."
        )
    what = f"{analysis} needs the parts of a Decoder, an Encoder or an EncoderDecoder; "
    if isinstance(found, nn.Module):
        return (
            f"{what}{type(found).__name__} is none of them.\n"
            "    What any module offers is gf.run(model, inputs, read=[…]) at its module boundaries; a spec says what "
            "it\n    is made of: gf.foreign(module, gf.Spec(…, config=…, weights=…))."
        )
    if isinstance(found, str):
        return f'{what}found the text "{found[:40]}".\n    Load a model first: glassformer.load("{found[:40]}").'
    if isinstance(getattr(found, "model", None), nn.Module):
        return f"{what}found a {type(found).__name__}.\n    It carries its model: give it .model."
    return f"{what}found {type(found).__name__}.\n    Give a model: glassformer.load(…), or config.build()."
