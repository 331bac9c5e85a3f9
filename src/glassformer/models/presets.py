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
from glassformer.models.mlp import Mlp
from glassformer.models.model import ModelConfig
from glassformer.models.norms import LayerNorm, NoNorm, RmsNorm
from glassformer.models.recurrent import Gru
from glassformer.models.schedules import block, repeat


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


def _gpt(n_layers: int, d_model: int, n_heads: int, max_len: int) -> DecoderConfig:
    layer = block(n_heads=n_heads, mlp=Mlp(activation="gelu_tanh"), bias=True)
    return DecoderConfig(50_257, d_model, repeat(layer, n_layers), max_len=max_len, positions=Learned())
