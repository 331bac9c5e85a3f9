"""Models of code that articles go through, under the arguments that the code gives them.

annotated_transformer   `make_model` of the Annotated Transformer, an encoder-decoder in pre-norm wiring
llama                   the `Transformer` of Meta's Llama 3, from its `ModelArgs`
differential            `MultiheadDiffAttn` of the authors of the Differential Transformer
"""

from glassformer.attention import Attention, Differential, Merge, Rope, lambda_init_at
from glassformer.models import DecoderConfig, EncoderDecoderConfig, LayerNorm, Mlp, RmsNorm, block, repeat


def annotated_transformer(
    src_vocab: int,
    tgt_vocab: int,
    N: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    h: int = 8,
    dropout: float = 0.1,
    eps: float = 0.0,
) -> EncoderDecoderConfig:
    """The model that `make_model` builds, from its seven arguments.

    Its norms divide by the standard deviation of a sample, d_model - 1 in the denominator, to which 1e-6 is added; ours
    by the root of the variance, to which `eps` is added. So a gain of ours is theirs times sqrt(1 - 1 / d_model);
    what is left is of the order of 1e-6.

    Args:
        src_vocab: Tokens of the source.
        tgt_vocab: Tokens of the target.
        N: Blocks of the encoder, and as many of the decoder.
        d_model: Width of the stream.
        d_ff: Neurons of each MLP.
        h: Heads.
        dropout: Rate on embeddings, on neurons and on what sub-layers write. On patterns it is 0.1 whatever is asked
            for: `make_model` does not hand its rate to the attention.
        eps: Added to the variance.

    Source: Rush 2018, "The Annotated Transformer"; Huang et al. 2022, the same for newer PyTorch.
    """
    norm = LayerNorm(eps=eps)
    encodes, decodes = (
        block(
            n_heads=h,
            mlp=Mlp(d_ff, activation="relu", dropout=dropout),
            cross=cross,
            bias=True,
            norm=norm,
            dropout=dropout,
            attn_dropout=0.1,
        )
        for cross in (False, True)
    )
    return EncoderDecoderConfig(
        tgt_vocab,
        d_model,
        repeat(encodes, N),
        repeat(decodes, N),
        max_len=5000,
        final_norm=norm,
        tied=False,
        unembed_bias=True,
        shared=False,
        embed_dropout=dropout,
        source_vocab_size=src_vocab,
    )


def llama(
    dim: int = 4096,
    n_layers: int = 32,
    n_heads: int = 32,
    n_kv_heads: int | None = 8,
    vocab_size: int = 128_256,
    multiple_of: int = 1024,
    ffn_dim_multiplier: float | None = 1.3,
    norm_eps: float = 1e-5,
    rope_theta: float = 500_000.0,
    max_seq_len: int = 8192,
) -> DecoderConfig:
    """The model of Llama 3 from its `ModelArgs`; without arguments it is that of 8 billion parameters.

    Args:
        dim: Width of the stream.
        n_layers: Blocks.
        n_heads: Query heads.
        n_kv_heads: Key and value heads; None for as many as query heads.
        vocab_size: Tokens.
        multiple_of: What the number of neurons is rounded up to.
        ffn_dim_multiplier: What 8 / 3 dim neurons are multiplied by; None for 1.
        norm_eps: Added to the mean square in each norm.
        rope_theta: Base of the rotary angles.
        max_seq_len: Longest text.

    Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models", and the code beside it.
    """
    layer = block(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        # neighbours are a pair, as in complex numbers
        positions=Rope(base=rope_theta, pairing="interleaved"),
        norm=RmsNorm(eps=norm_eps),
        mlp=Mlp(
            neurons(dim, multiple_of, ffn_dim_multiplier),
            activation="silu",
            gated=True,
            bias=False,
        ),
    )
    return DecoderConfig(
        vocab_size, dim, repeat(layer, n_layers), max_len=max_seq_len, final_norm=RmsNorm(eps=norm_eps), tied=False
    )


def neurons(dim: int, multiple_of: int, ffn_dim_multiplier: float | None) -> int:
    """The neurons of a `FeedForward`: two thirds of 4 dim, times the factor, rounded down each time, then up."""
    hidden = int(2 * (4 * dim) / 3)
    if ffn_dim_multiplier is not None:
        hidden = int(ffn_dim_multiplier * hidden)
    return multiple_of * -(-hidden // multiple_of)


def differential(embed_dim: int, depth: int, num_heads: int, num_kv_heads: int | None = None) -> Attention:
    """The layer of `MultiheadDiffAttn`.

    Args:
        embed_dim: Width of the stream.
        depth: Of the layer, from 0.
        num_heads: Heads, each with two streams of queries and keys.
        num_kv_heads: Heads of keys and values; None for as many.

    Source: Ye et al. 2024, "Differential Transformer"; `multihead_diffattn.py` of the authors.
    """
    start = lambda_init_at(depth)
    return Attention(
        num_heads,
        num_kv_heads,
        d_head=embed_dim // num_heads // 2,
        mixer=Differential(start, "in_a_row"),
        positions=Rope(pairing="interleaved"),
        merge=Merge(norm="head", factor=1 - start),
    )
