"""BigBird: BERT whose attention is to blocks; or to everything, as its config says (`attention_type`).

In place of random blocks the reference reads the first block at inference, again and again, and texts that would hardly
be longer than what is met it reads by full attention; both belong to what a checkpoint gives. A model that was trained
with the authors' random blocks has them with `BigBird(random="authors")`.

Longer texts agree with the reference where they stand alone. In rows that are padded its blocks are those of the row,
of which the last one, all padding, stands for the end of the text; here a text has its own blocks, padded or not.
Patterns that the reference returns leave out that the first block counts again, and do not give its output.
"""

from typing import Any

from glassformer.attention import BigBird, MixerConfig, Softmax
from glassformer.checkpoints.families.bert import BOTH_WAYS, encoder, predicting
from glassformer.checkpoints.families.family import Family
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.heads import TextHead
from glassformer.errors import CheckpointError
from glassformer.models import EncoderConfig, LayerNorm, Learned, Mlp


def _config(fields: Fields) -> EncoderConfig:
    fields.only("is_decoder", False, "an encoder reads both ways")
    fields.only("add_cross_attention", False, "it reads another stack that is not there")
    fields.only("use_bias", True, "queries, keys and values have biases")
    activation = fields.activation("hidden_act", "gelu_new")
    config = encoder(
        fields,
        d_model=fields.whole("hidden_size"),
        n_heads=fields.whole("num_attention_heads"),
        mixers=(_mixer(fields),) * fields.whole("num_hidden_layers"),
        mlp=Mlp(fields.whole("intermediate_size"), activation),
        n_types=fields.whole("type_vocab_size", 2),
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-12)),
        positions=Learned(counts_padding=True),
        activation=activation,
        longest=4096,
    )
    return config.replace(embed_scale=fields.flag("rescale_embeddings", False))


def _mixer(fields: Fields) -> MixerConfig:
    kind: Any = fields.get("attention_type", "block_sparse")
    block, n_random = fields.whole("block_size", 64), fields.whole("num_random_blocks", 3)
    if kind == "original_full":
        return Softmax()
    if kind != "block_sparse":
        raise CheckpointError(f'"attention_type" is "block_sparse" or "original_full"; found {kind!r}.')
    return BigBird(block, n_random, random="first", full_up_to=(5 + 2 * n_random) * block)


BIG_BIRD = Family(
    "BigBird",
    ("big_bird",),
    _config,
    predicting,
    prefixes=("bert.",),
    text_head=TextHead("classifier.dense", "classifier.out_proj", None),
    token_head="classifier",
    without_effect=BOTH_WAYS,
    no_lengths=("block_size",),
    ignored=(
        "*embeddings.position_ids",
        "*embeddings.token_type_ids",
        "*pooler.*",
        "cls.seq_relationship.*",
        "cls.predictions.bias",
    ),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)
