"""Tiny models in float64, one per way of wiring a model, and decoders drawn at random."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from hypothesis import strategies as st
from torch import Tensor

from glassformer.attention import (
    Additive,
    Alibi,
    Attention,
    Differential,
    GatedDelta,
    LastKey,
    Lightning,
    Linear,
    LinearMemory,
    Lrpe,
    Merge,
    MixerConfig,
    NeuralMemory,
    Pola,
    PositionsConfig,
    QueryKeyNorm,
    QueryKeyOnly,
    RelativeBias,
    Rope,
    RopeGrid,
    Rwkv4,
    Rwkv6,
    Separate,
    Shifted,
    Softmax,
    StateSpace,
    Tied,
)
from glassformer.data.batch import Batch, next_token_batch
from glassformer.models import (
    AdaptiveSoftmax,
    Axial,
    BlockConfig,
    ChannelMixing,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Gru,
    HierarchicalSoftmax,
    LayerNorm,
    Learned,
    LearnedGrid,
    MixMlp,
    MixtureOfExperts,
    Mlp,
    ModelConfig,
    NoNorm,
    NormConfig,
    Patches,
    Readout,
    RmsNorm,
    ScaleOnly,
    Sinusoidal,
    SinusoidalGrid,
    block,
    image_encoder,
    macaron,
    metaformer,
    normalised_decoder,
    published_block,
)
from glassformer.testing.layers import mixers, randomise, seeds
from glassformer.trace import Tape

_GPT2: dict[str, Any] = {"mlp": Mlp(activation="gelu_tanh"), "bias": True}
_LLAMA: dict[str, Any] = {
    "n_kv_heads": 2,
    "positions": Rope(),
    "norm": RmsNorm(),
    "mlp": Mlp(20, "silu", gated=True, bias=False),
}
_OFFSET, _CENTRED = RmsNorm(offset=1.0), LayerNorm(offset=1.0)
_DEEP: dict[str, Any] = {"vocab_size": 11, "d_model": 16, "max_len": 24}


def _decoder(*layers: Any, **kwargs: Any) -> DecoderConfig:
    return DecoderConfig(layers=layers, **(_DEEP | kwargs))


_HALVES: Any = (
    (Attention(2, d_head=4), "second", "first"),
    (Mlp(12), "first", "second"),
)  # a part, and the halves that it reads and writes
_SHIFTED = Shifted(rank=2, gate=True, centred=True)
_BOTH_WAYS, _BACK = RelativeBias(8, 6, bidirectional=True), RelativeBias(4, 6)


def _translator(
    wiring: Any,
    mixer: MixerConfig | None = None,
    norm: NormConfig | None = None,
    mlp: Mlp | None = None,
    positions_inside: tuple[PositionsConfig | None, PositionsConfig | None] = (None, None),
    **kwargs: Any,
) -> EncoderDecoderConfig:
    mlp = mlp or Mlp(20, "relu")
    shared: dict[str, Any] = {"n_heads": 4, "mlp": mlp, "bias": True, "wiring": wiring, "norm": norm}
    source, target = positions_inside
    return EncoderDecoderConfig(
        encoder_layers=(block(mixer, positions=source, **shared),) * 2,
        decoder_layers=(block(positions=target, cross=True, **shared),) * 2,
        **(_DEEP | kwargs),
    )


# every wiring, norm and kind of position that ships, in tiny, and every state that a mechanism may have; mechanisms by
# themselves are drawn, see `attention_settings`
ARCHITECTURES: dict[str, ModelConfig] = {
    "gpt2": _decoder(block(n_heads=4, **_GPT2), block(n_heads=4, **_GPT2), positions=Learned()),
    "llama": _decoder(*[block(n_heads=4, **_LLAMA)] * 2, final_norm=RmsNorm(), tied=False),
    "attention_only": _decoder(*[block(n_heads=2, positions=QueryKeyOnly(2.0))] * 2, tied=False, unembed_bias=True),
    "alibi_window": _decoder(
        block(Softmax(window=4), n_heads=4, positions=Alibi(), mlp=Mlp(8)), block(n_heads=4, positions=Alibi())
    ),
    "parallel": _decoder(*[block(n_heads=2, positions=Rope(), mlp=Mlp(), wiring="parallel")] * 2),
    "sandwich": _decoder(*[block(n_heads=2, mlp=Mlp(), wiring="sandwich", norm=RmsNorm())] * 2, positions=Sinusoidal()),
    "post": _decoder(
        *[block(n_heads=2, mlp=Mlp(), wiring="post")] * 2, positions=Learned(), final_norm=NoNorm(), embed_scale=True
    ),
    # one norm for attention and MLP; token vectors narrower than the stream, normed together with positions
    "entered": _decoder(
        *[block(n_heads=2, mlp=Mlp(), wiring="parallel", shared_norm=True)] * 2,
        positions=Learned(offset=2),
        embed_norm=LayerNorm(),
        final_norm=LayerNorm(gain=False),
        d_embed=6,
        unembed_scale=0.5,
    ),
    # norms behind sub-layers only
    "behind": _decoder(
        *[block(n_heads=2, positions=Rope(), mlp=Mlp(), wiring="sandwich", norm=NoNorm(), norm_after=_OFFSET)] * 2,
        embed_norm=_OFFSET,
        final_norm=_OFFSET,
    ),
    # writes, token vectors and logits in fixed proportions
    "proportioned": _decoder(
        *[
            block(n_heads=2, positions=Rope(), mlp=Mlp(), wiring="sandwich", norm=_CENTRED, norm_after=ScaleOnly(0.3)),
        ]
        * 2,
        final_norm=_CENTRED,
        embed_scale=3.0,
        unembed_scale=0.25,
    ),
    "bare": _decoder(*[block(n_heads=2, norm=NoNorm(), qk_norm=True)] * 2, positions=Learned(), final_norm=NoNorm()),
    "smeared": _decoder(block(n_heads=4, smeared=True, **_LLAMA), block(Linear(), n_heads=4, smeared=True, **_LLAMA)),
    "linear": _decoder(*[block(Linear(), n_heads=4, **_LLAMA)] * 2),
    # of the first layer, positions turn and double what the mechanism makes of queries and keys
    "lightning_hybrid": _decoder(
        published_block(Lightning(chunk=4), n_heads=4, **(_LLAMA | dict[str, Any](positions=Lrpe()))),
        block(n_heads=4, **_LLAMA),
    ),
    "differential": _decoder(
        *[published_block(Differential(), i, n_heads=2, **(_LLAMA | {"n_kv_heads": 1})) for i in range(2)]
    ),
    "experts": _decoder(
        block(n_heads=4, **(_LLAMA | dict[str, Any](mlp=MixtureOfExperts(3, 2, 6)))),
        block(
            n_heads=4,
            **(
                _LLAMA
                | dict[str, Any](
                    mlp=MixtureOfExperts(
                        n_experts=4,
                        n_chosen=2,
                        d_mlp=6,
                        activation="gelu",
                        gated=False,
                        bias=True,
                        router_bias=True,
                        renormalised=False,
                    )
                )
            ),
        ),
    ),
    # what bounds scores or values: none of it is bilinear, or sums to one
    "bounded": _decoder(
        block(
            Softmax(cap=0.5, sinks=True), n_heads=4, bias=True, qk_norm=QueryKeyNorm(over="all", bias=True), **_LLAMA
        ),
        block(Softmax(window=4), n_heads=4, qk_norm=QueryKeyNorm(gains="own", centred=True, eps=1e-5), **_LLAMA),
    ),
    # a cap as small as the logits themselves, so that it bends them
    "capped": _decoder(*[block(n_heads=4, **_LLAMA)] * 2, final_norm=RmsNorm(), logit_cap=0.3),
    # outputs that are not the tokens it reads, and fewer
    "classifier": _decoder(
        block(n_heads=4, **_GPT2),
        block(n_heads=4, positions=Rope(), mlp=Mlp(8)),
        positions=Learned(),
        tied=False,
        unembed_bias=True,
        output_vocab_size=7,
    ),
    # logits decision by decision: a tree of words, and words in a head and two clusters, in no order of frequency
    "hierarchical": _decoder(
        *[block(n_heads=4, **_LLAMA)] * 2,
        final_norm=RmsNorm(),
        tied=False,
        output_layer=HierarchicalSoftmax((5.0, 1.0, 9.0, 2.0, 2.0, 30.0, 1.0, 4.0, 1.0, 3.0, 12.0)),
    ),
    "adaptive": _decoder(
        *[block(n_heads=4, **_GPT2)] * 2,
        positions=Learned(),
        tied=False,
        output_layer=AdaptiveSoftmax((5.0, 1.0, 9.0, 2.0, 2.0, 30.0, 1.0, 4.0, 1.0, 3.0, 12.0), (4, 7), 2.0),
    ),
    "translator_post": _translator("post"),
    "translator_pre": _translator("pre", final_norm=LayerNorm(), tied=False, shared=False, embed_scale=False),
    # a bias by distance for scores that are not scaled, and an unembedding of its own
    "translator_relative": _translator(
        "pre",
        Softmax(scale=1.0),
        RmsNorm(),
        Mlp(12, "gelu_tanh", gated=True, bias=False),
        positions_inside=(_BOTH_WAYS, _BACK),
        positions=None,
        final_norm=RmsNorm(),
        tied=False,
        embed_scale=False,
        start_id=1,
    ),
    "translator_linear": _translator(
        "pre",
        Linear(),
        positions=Learned(),
        logit_cap=1.0,
        embed_norm=LayerNorm(),
        unembed_scale=0.5,
        unembed_bias=True,
    ),
    # sources that are not the tokens the decoder reads, and fewer
    "translator_apart": _translator("pre", final_norm=LayerNorm(), shared=False, source_vocab_size=9),
}


# those whose tokens have directions that logits are products with, before a cap: what is said of logits in terms of
# writes holds of these
DIRECTED: list[str] = [name for name, config in ARCHITECTURES.items() if config.output_layer is None]


# read both ways: what holds of a next token, or of a state, does not hold of these
ENCODERS: dict[str, ModelConfig] = {
    # an encoder alone: reads both ways, and predicts through a layer of its own
    "masked_post": EncoderConfig(
        layers=(block(n_heads=4, wiring="post", **_GPT2),) * 2,
        positions=Learned(offset=2),
        n_types=2,
        embed_norm=LayerNorm(),
        final_norm=NoNorm(),
        readout=Readout(),
        unembed_bias=True,
        **_DEEP,
    ),
    # the same before the sub-layers, with a bias by distance in place of position vectors
    "masked_pre": EncoderConfig(
        layers=(block(n_heads=2, positions=_BOTH_WAYS, norm=RmsNorm(), mlp=Mlp(12)),) * 2,
        final_norm=RmsNorm(),
        readout=Readout("relu", RmsNorm(), bias=False),
        tied=False,
        **_DEEP,
    ),
}


# read images: their patches are tokens without ids
IMAGES: dict[str, ModelConfig] = {
    # a class token and a grid of 2 x 3 patches, told to what turns queries and keys
    "image_class": image_encoder(
        Patches((4, 6), 2, channels=2, class_token=True),
        16,
        (block(n_heads=4, positions=RopeGrid(), mlp=Mlp(12)),) * 2,
        n_classes=7,
        positions=LearnedGrid(),
    ),
    # what all positions say, on average
    "image_mean": image_encoder(
        Patches((4, 6), 2),
        16,
        (block(n_heads=2, mlp=Mlp(12), norm=RmsNorm()),) * 2,
        n_classes=7,
        positions=SinusoidalGrid(),
        final_norm=RmsNorm(),
    ),
}


# no self-attention, or behind what runs along a text: what holds of values made at one position does not hold of these
RECURRENT: dict[str, ModelConfig] = {
    # the source read both ways, then backwards only; by additive attention, and at its last position
    "recurrent": EncoderDecoderConfig(
        encoder_layers=(BlockConfig((Gru(5, bidirectional=True),)), BlockConfig((Gru(),))),
        decoder_layers=(
            BlockConfig((Gru(6), Attention(2, d_head=5, mixer=Additive(), cross=True), Gru())),
            BlockConfig((Attention(1, mixer=LastKey(), projection=Tied(query="identity"), cross=True), Gru())),
        ),
        positions=None,
        final_norm=LayerNorm(),
        **_DEEP,
    ),
    # everything read is mixed with what was read before, and what opens the gate too
    "rwkv": _decoder(
        published_block(Rwkv6(3, chunk=4), n_heads=2, projection=_SHIFTED, mlp=Mlp(8)),
        published_block(Rwkv4(chunk=4), n_heads=6, d_head=1, mlp=ChannelMixing(8)),
        tied=False,
    ),
    # memories that learn while they read: a state in several matrices, and no pattern of the second
    "memory": _decoder(
        published_block(LinearMemory(chunk=3), n_heads=2, mlp=Mlp(8)),
        published_block(NeuralMemory(chunk=2, expansion=1), n_heads=2, mlp=Mlp(8)),
        tied=False,
    ),
    # values and neurons are mixed with those just before them, beside what attention does
    "mixed": _decoder(
        block(Pola(convolution=3), n_heads=2, mlp=MixMlp(6)), block(n_heads=4, positions=Rope(), mlp=MixMlp(6, width=2))
    ),
}


# attention in some blocks and an MLP in others, an MLP before attention, attention without matrices, or a stream that
# is no sum: what holds of every block does not hold of these
ALTERNATING: dict[str, ModelConfig] = {
    # a stream of two halves, each read to write into the other, and positions of rows and columns in both
    "halves": _decoder(
        *[
            BlockConfig((part,), LayerNorm(half=read), "sandwich", norm_after=ScaleOnly(half=written))
            for part, read, written in _HALVES
        ]
        * 2,
        positions=Axial((5, 5), (3, 5), copies=2),
        tied=False,
    ),
    # half steps of an MLP before and behind attention
    "macaron": _decoder(*[macaron(n_heads=2, positions=Rope(), mlp=Mlp(8))] * 2),
    # values that are the stream itself, mixed by matrices that know no token, and no output matrix
    "unprojected": _decoder(metaformer("pooling", n_heads=2, mlp=Mlp(8)), metaformer("random", mlp=Mlp(8)), tied=False),
    # a stream on the sphere, moved by rates that differ from coordinate to coordinate, and scales of queries and logits
    "normalised": normalised_decoder(11, 16, 2, n_heads=2, max_len=24, d_mlp=12),
}


@dataclass
class Subject:
    """A tiny model in float64 with a batch to run it on."""

    name: str
    model: Any
    inputs: tuple[Tensor, ...]

    @property
    def patches(self) -> Patches | None:
        """How the model cuts images; None of one that reads tokens, and of a module with a spec."""
        return getattr(self.model, "patches", None)

    @property
    def length(self) -> int:
        """How many positions the stack that ends in the logits reads."""
        return self.inputs[-1].shape[1] if self.patches is None else self.patches.n_tokens

    def others(self, generator: torch.Generator, shapes: Sequence[Sequence[int]] | None = None) -> tuple[Tensor, ...]:
        """Draw other inputs that the model can read, of the same shapes unless others are given; images always are."""
        if self.patches is not None:
            return (_images(self.patches, len(self.inputs[0]), generator, self.inputs[0].dtype),)
        sizes = [embed.vocab_size for embed in self.model.embeddings.values()]
        wanted = shapes or [ids.shape for ids in self.inputs]
        return tuple(torch.randint(0, size, tuple(s), generator=generator) for size, s in zip(sizes, wanted))

    def batch(self) -> Batch:
        """The inputs as a batch whose targets are the next tokens, or any where outputs are other tokens.

        Of an encoder every third token is masked, by token 0, and asked for; an image is of any class.
        """
        *source, tokens = self.inputs
        if self.patches is not None:
            targets = torch.arange(len(tokens))[:, None] % self.model.config.n_outputs
            return Batch(tokens, targets, targets >= 0)
        if not self.model.predicts_next:
            masked = (torch.arange(tokens.shape[1]) % 3 == 1).expand_as(tokens)
            return Batch(tokens.masked_fill(masked, 0), tokens, masked)
        found = next_token_batch(tokens)
        targets = found.targets if self.model.one_vocabulary() else found.targets % self.model.config.n_outputs
        return dataclasses.replace(found, targets=targets, source=source[0] if source else None)

    def __call__(self, tape: Tape | None = None, **kwargs: Any) -> Tensor:
        return self.model(*self.inputs, tape=tape, **kwargs)

    def tape(self, *read: Any, edit: Any = (), **kwargs: Any) -> Tape:
        return Tape(self.model, read, edit, **kwargs)

    def values(self, *read: Any, edit: Any = (), **kwargs: Any) -> dict[str, Tensor]:
        tape = self.tape(*read, edit=edit)
        self(tape, **kwargs)
        return tape.values


def subject(name: str, batch: int = 2, length: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64) -> Subject:
    """Build an architecture by name, with random weights and random tokens."""
    return drawn(name, (ARCHITECTURES | ENCODERS | IMAGES | RECURRENT | ALTERNATING)[name], batch, length, seed, dtype)


def drawn(
    name: str, config: ModelConfig, batch: int = 2, length: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Subject:
    """Build a config with random weights and random tokens, or images."""
    # of size 0.2: large enough that patterns are far from uniform, small enough that post-norm keeps its digits
    model = randomise(config.build().to(dtype).eval(), seed, std=0.2)
    generator = torch.Generator().manual_seed(seed)
    if config.patches is not None:
        return Subject(name, model, (_images(config.patches, batch, generator, dtype),))
    sizes = [embed.vocab_size for embed in model.embeddings.values()]
    widths = [length + 2, length] if config.kind == "encoder_decoder" else [length]
    inputs = [torch.randint(0, size, (batch, n), generator=generator) for size, n in zip(sizes, widths)]
    return Subject(name, model, tuple(inputs))


def _images(patches: Patches, batch: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(batch, *patches.shape, generator=generator, dtype=dtype)


# the package's own mechanisms that have a pattern which multiplies values, in decoders; a test may register others
PATTERNED: list[str] = sorted(
    kind
    for kind, mechanism in cast(dict[str, type[MixerConfig]], MixerConfig.registry).items()
    if mechanism.traits.linear_in_value == "exact"
    and not mechanism.bidirectional
    and mechanism.__module__.startswith("glassformer.")
)

# what else an attention layer may be made of, as one draws it for analyses of paths
SLOTS: dict[str, dict[str, Any]] = {
    "grouped": {"n_kv_heads": 1},
    "window": {"mixer": Softmax(window=3, cap=0.5, sinks=True), "qk_norm": QueryKeyNorm(over="all")},
    "rope": {"positions": Rope(fraction=0.5, pairing="interleaved"), "qk_norm": QueryKeyNorm(centred=True, bias=True)},
    "alibi": {"positions": Alibi(), "n_kv_heads": 1},
    "query_key_only": {"positions": QueryKeyOnly(2.0)},
    "smeared": {"smeared": True, "positions": Rope(), "n_kv_heads": 1},
    "lightning_published": Lightning(chunk=3).as_published(),
    # its convolutions make no path of single positions
    "gated_delta_published": GatedDelta(chunk=3).as_published() | {"projection": None},
    # token shift makes none either
    "rwkv6_published": Rwkv6(chunk=2).as_published() | {"projection": None},
    # one query and key for both heads, and a norm behind the gate; without its convolutions
    "state_space_published": StateSpace(chunk=3).as_published() | {"projection": Separate(groups=1)},
    "gated": {"merge": Merge(gate="silu", norm="head", bias=True)},
    "differential_published": Differential().as_published(1),
}


@st.composite
def attention_settings(draw: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Draw a mechanism that has a pattern, or what else a layer may be made of: a name, and arguments of `block`.

    One is as likely as the other, and each mechanism as likely as the next, whatever variants they name.
    """
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(SLOTS)))
        return name, SLOTS[name]
    mixer = draw(st.sampled_from(PATTERNED).flatmap(mixers))
    return mixer.described, {"mixer": mixer}


@st.composite
def attention_decoders(draw: Callable[..., Any], *, mlps: bool = False) -> Subject:
    """Draw a float64 decoder of one to three layers, any mechanism with a pattern in each, in any wiring."""
    norm = draw(
        st.sampled_from([LayerNorm(), LayerNorm(bias=False), RmsNorm(), NoNorm(), LayerNorm(gain=False), _OFFSET])
    )
    wiring, bias = draw(st.sampled_from(["pre", "post", "sandwich", "parallel"])), draw(st.booleans())
    chosen = draw(st.lists(attention_settings(), min_size=1, max_size=3))
    blocks = []
    for _, settings in chosen:
        shared = wiring == "parallel" and draw(st.booleans())
        layer = block(n_heads=2, wiring=wiring, norm=norm, shared_norm=shared, **({"bias": bias} | settings))
        # two attention parts in one block: what they read depends on the wiring
        twice = draw(st.booleans()) and len(chosen) < 3
        parts = layer.parts * (1 + twice) + ((Mlp(6),) if mlps and draw(st.booleans()) else ())
        blocks.append(layer.replace(parts=parts))
    config = _decoder(
        *blocks, d_model=12, final_norm=norm, positions=draw(st.sampled_from([None, Learned()])),
        embed_norm=draw(st.sampled_from([None, norm])), tied=draw(st.booleans()), unembed_bias=draw(st.booleans()),
        logit_cap=draw(st.sampled_from([None, 4.0])),
    )  # fmt: skip
    seed = draw(seeds)
    model = randomise(config.build().double().eval(), seed, std=0.4)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, config.vocab_size, (2, 5), generator=generator)
    return Subject("+".join(name for name, _ in chosen), model, (tokens,))
