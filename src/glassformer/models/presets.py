"""Published models as configs.

Each docstring states the parameter count of this config, exactly; a test counts them on the meta device.
"""

from collections.abc import Callable
from functools import partial

from glassformer.attention import Additive, Attention, LastKey, MixerConfig, QueryKeyOnly, Rope, Tied
from glassformer.errors import UnknownModel, nearest
from glassformer.models.block import BlockConfig
from glassformer.models.decoder import DecoderConfig
from glassformer.models.embedding import Learned
from glassformer.models.encoder_decoder import EncoderDecoderConfig
from glassformer.models.experts import MixtureOfExperts
from glassformer.models.mlp import Mlp
from glassformer.models.model import ModelConfig
from glassformer.models.norms import LayerNorm, NoNorm, RmsNorm, ScaleOnly
from glassformer.models.recurrent import Gru
from glassformer.models.schedules import block, minimax, repeat


def transformer_base(vocab_size: int = 37_000) -> EncoderDecoderConfig:
    """Transformer base: 63,045,632 parameters with 37,000 shared byte pairs; the paper states 65 million.

    The paper gives no exact vocabulary ("about 37000 tokens"), and no single one explains both of its counts.

    Source: Vaswani et al. 2017, table 3.
    """
    return _transformer(vocab_size, d_model=512, n_heads=8, d_mlp=2048, dropout=0.1)


def transformer_big(vocab_size: int = 37_000) -> EncoderDecoderConfig:
    """Transformer big: 214,171,648 parameters with 37,000 shared byte pairs; the paper states 213 million.

    Source: Vaswani et al. 2017, table 3.
    """
    return _transformer(vocab_size, d_model=1024, n_heads=16, d_mlp=4096, dropout=0.3)


def rnn_search(vocab_size: int = 30_000) -> EncoderDecoderConfig:
    """RNNsearch: 79,786,660 parameters. A recurrent encoder that reads both ways, a decoder that attends additively.

    Widths are the authors': 620 of words, here of the stream, 1,000 of each state and of the hidden layer of scores.
    Their decoder is one recurrence, which is told what was read of the source and asks for it by its state of before;
    each word comes from state, word and source through a maxout layer. Here a recurrence writes to the stream, its
    state asks, a second recurrence is told all of that, and the stream predicts. States begin at zero, not at a map of
    the source.

    Source: Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate", appendix A.
    """
    return _recurrent(vocab_size, Gru(1000, bidirectional=True), Additive(hidden=1000))


def rnn_encoder_decoder(vocab_size: int = 30_000) -> EncoderDecoderConfig:
    """RNN encoder-decoder: 73,058,660 parameters. The decoder knows the source by the encoder's last position alone.

    As `rnn_search` in all else; the vector is read at every step, as in the paper, where it also begins the state.

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", in the size that Bahdanau et
    al. 2014 compare with.
    """
    return _recurrent(vocab_size, Gru(1000), LastKey())


def gpt2_small() -> DecoderConfig:
    """GPT-2 small: 124,439,808 parameters.  Source: Radford et al. 2019."""
    return _gpt(n_layers=12, d_model=768, n_heads=12, max_len=1024)


def gpt3_175b() -> DecoderConfig:
    """GPT-3: 174,604,259,328 parameters, positions, biases and norms included; for accounting on the meta device.

    Every layer is dense here; the original alternates with locally banded ones, which have the same parameters.

    Source: Brown et al. 2020, table 2.1.
    """
    return _gpt(n_layers=96, d_model=12_288, n_heads=96, max_len=2048)


def llama3_8b() -> DecoderConfig:
    """Llama 3 8B: 8,030,261,248 parameters.  Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 3."""
    layer = block(
        n_heads=32,
        n_kv_heads=8,
        positions=Rope(base=500_000.0),
        norm=RmsNorm(),
        mlp=Mlp(14_336, activation="silu", gated=True, bias=False),
    )
    return DecoderConfig(128_256, 4096, repeat(layer, 32), max_len=8192, final_norm=RmsNorm(), tied=False)


def minimax_01() -> DecoderConfig:
    """MiniMax-01: 456,089,655,296 parameters; for accounting on the meta device. 45.9 thousand million run at a token.

    Seventy layers of lightning and ten of softmax, 32 experts each, two of which run. As in the report, half of a head
    turns in softmax layers, by base 10,000, and the balance loss is .01 / E sum f m.

    Source: MiniMax 2025, "MiniMax-01" (2501.08313), section 2.
    """
    return _minimax(80, 200_064, 6144, 64, 8, 128, MixtureOfExperts(32, 2, 9216, balance=0.02 / 32**2), 1_048_576)


def minimax_8l(vocab_size: int = 1024) -> DecoderConfig:
    """Eight layers in the shape of MiniMax-01: seven of lightning, one of softmax, four experts; a few CPU-minutes."""
    experts = MixtureOfExperts(4, 2, 128, balance=0.01, router_z=0.001)
    return _minimax(8, vocab_size, 128, 4, 2, 32, experts, 512)


def attention_only(
    n_layers: int,
    *,
    vocab_size: int = 1024,
    d_model: int = 256,
    n_heads: int = 8,
    max_len: int = 512,
    amplitude: float = 1.0,
) -> DecoderConfig:
    """Attention without MLPs or biases, positions on queries and keys only: the models of the framework paper.

    Its paths from token to logit can be written out in full. Zero layers make a bigram model.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    norm = LayerNorm(bias=False)
    layer = block(n_heads=n_heads, positions=QueryKeyOnly(amplitude), norm=norm)
    layers = repeat(layer, n_layers)
    return DecoderConfig(vocab_size, d_model, layers, max_len=max_len, final_norm=norm, tied=False)


PRESETS: dict[str, Callable[[], ModelConfig]] = {
    "transformer-base": transformer_base,
    "transformer-big": transformer_big,
    "rnn-search": rnn_search,
    "rnn-encoder-decoder": rnn_encoder_decoder,
    "gpt2-small": gpt2_small,
    "gpt3-175b": gpt3_175b,
    "llama3-8b": llama3_8b,
    "minimax-01": minimax_01,
    "minimax-8l": minimax_8l,
    "attention-only-0l": partial(attention_only, 0),
    "attention-only-1l": partial(attention_only, 1),
    "attention-only-2l": partial(attention_only, 2),
}


def preset(name: str) -> ModelConfig:
    """A preset by name.

    Raises:
        UnknownModel: No preset of that name; the message gives the nearest one.
    """
    if name not in PRESETS:
        raise UnknownModel(f'no preset "{name}".{nearest(name, PRESETS)} Presets: {", ".join(PRESETS)}.')
    return PRESETS[name]()


def _transformer(vocab_size: int, d_model: int, n_heads: int, d_mlp: int, dropout: float) -> EncoderDecoderConfig:
    encoder, decoder = (
        block(n_heads=n_heads, mlp=Mlp(d_mlp, activation="relu"), cross=cross, wiring="post", dropout=dropout)
        for cross in (False, True)
    )
    return EncoderDecoderConfig(vocab_size, d_model, repeat(encoder, 6), repeat(decoder, 6), embed_dropout=dropout)


def _recurrent(vocab_size: int, reader: Gru, mixer: MixerConfig) -> EncoderDecoderConfig:
    across = Attention(1, mixer=mixer, projection=Tied(query="identity"), cross=True)
    encoder, decoder = BlockConfig((reader,), NoNorm()), BlockConfig((Gru(1000), across, Gru(1000)), NoNorm())
    return EncoderDecoderConfig(
        vocab_size, 620, (encoder,), (decoder,), max_len=50, positions=None, tied=False, unembed_bias=True,
        shared=False, source_vocab_size=vocab_size,
    )  # fmt: skip


def _minimax(
    n_layers: int,
    vocab_size: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    d_head: int,
    experts: MixtureOfExperts,
    max_len: int,
) -> DecoderConfig:
    alpha = (2 * n_layers) ** 0.25
    layers = minimax(n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head, experts=experts)
    return DecoderConfig(
        vocab_size, d_model, layers, max_len=max_len, embed_norm=RmsNorm(factor=alpha), final_norm=ScaleOnly(1 / alpha),
        tied=False, init="xavier",
    )  # fmt: skip


def _gpt(n_layers: int, d_model: int, n_heads: int, max_len: int) -> DecoderConfig:
    layer = block(n_heads=n_heads, mlp=Mlp(activation="gelu_tanh"), bias=True)
    return DecoderConfig(50_257, d_model, repeat(layer, n_layers), max_len=max_len, positions=Learned())
