"""The recipes of the shipped models: `glassformer train NAME` redoes them."""

from collections.abc import Callable
from typing import Any, Literal

from glassformer.attention import QueryKeyOnly, Rope
from glassformer.data import MixtureConfig, Planted, Repeat, Senses, TextConfig, UnseenWords, ZhEnConfig
from glassformer.data.grammar.translation import zh_en_tokenizer
from glassformer.errors import UnknownModel, nearest
from glassformer.models import DecoderConfig, EncoderDecoderConfig, Mlp, RmsNorm, block, repeat
from glassformer.training.config import TrainConfig
from glassformer.training.optim import OptimConfig


def gpt_4l() -> TrainConfig:
    """A small Llama-like decoder on the Python standard library."""
    layer = block(
        n_heads=8,
        n_kv_heads=2,
        positions=Rope(),
        norm=RmsNorm(),
        mlp=Mlp(688, activation="silu", gated=True, bias=False),
    )
    model = DecoderConfig(2048, 256, repeat(layer, 4), max_len=512, final_norm=RmsNorm())
    text = TextConfig(batch_size=8, length=256, vocab_size=2048)
    optim = OptimConfig(lr=1.5e-3, warmup=200, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, floor=0.05)
    return TrainConfig(model, text, optim=optim, steps=3000, log_every=20, evaluate_every=200, save_every=200)


def zh_en() -> TrainConfig:
    """An encoder-decoder in the original post-norm wiring, from Chinese to English."""
    kind: dict[str, Any] = dict(n_heads=4, mlp=Mlp(512, activation="relu"), bias=True, wiring="post", dropout=0.05)
    encoder, decoder = repeat(block(**kind), 2), repeat(block(cross=True, **kind), 2)
    model = EncoderDecoderConfig(zh_en_tokenizer().vocab_size, 128, encoder, decoder, max_len=64)
    optim = OptimConfig(lr=2.5e-3, warmup=500, weight_decay=0.0, floor=0.01)
    data = ZhEnConfig(batch_size=64)
    return TrainConfig(
        model, data, optim=optim, steps=6000, smoothing=0.1, log_every=50, evaluate_every=250, save_every=250
    )


def attention_only(n_layers: int, *, smeared: bool = False) -> TrainConfig:
    """The models of "A Mathematical Framework for Transformer Circuits": no MLP, no biases in its matrices,
    positions on q and k only.

    A quarter of each batch are random tokens repeated to the end: enough for induction heads to form within minutes.

    Args:
        n_layers: How many.
        smeared: Mix each key with the one before it, which is what a single layer lacks for induction.
    """
    layer = block(n_heads=8, positions=QueryKeyOnly(amplitude=2.0), smeared=smeared)
    model = DecoderConfig(1024, 256, repeat(layer, n_layers), max_len=256)
    text = TextConfig(length=128, vocab_size=1024)
    data = MixtureConfig((text, Repeat(length=128)), shares=(0.75, 0.25), batch_size=16, length=128)
    optim = OptimConfig(lr=2e-3, warmup=100)
    return TrainConfig(
        model, data, evaluate=text, optim=optim, steps=4000, log_every=20, evaluate_every=100, save_every=250
    )


def phase_change() -> TrainConfig:
    """The two-layer model with its weights kept along the way, to look at the moment when induction heads form."""
    return attention_only(2).replace(keep=tuple(range(100, 4001, 100)))


def unseen_words(n_layers: int, *, smeared: bool = False) -> TrainConfig:
    """Attention alone on a language of which a quarter of the words are withheld: a minute or two on one core.

    Two layers learn to complete a word from its first occurrence in the row, whatever the word; one layer learns which
    letters go together, which says nothing about words it never saw.

    Args:
        n_layers: How many.
        smeared: Mix each key with the one before it, see `attention_only`.
    """
    layer = block(n_heads=4, positions=QueryKeyOnly(amplitude=2.0), smeared=smeared)
    data = UnseenWords()
    model = DecoderConfig(data.alphabet + 1, 128, repeat(layer, n_layers), max_len=128)
    optim = OptimConfig(lr=2e-3, warmup=100)
    return TrainConfig(
        model, data, optim=optim, steps=1500, log_every=50, evaluate_every=250, evaluate_batches=4, save_every=500
    )


def senses() -> TrainConfig:
    """A small decoder on sentences whose nouns mean what one earlier word makes of them: well under a minute."""
    layer = block(n_heads=4, positions=Rope(), norm=RmsNorm(), mlp=Mlp(128, activation="gelu_tanh"))
    data = Senses()
    model = DecoderConfig(len(data.symbols()), 64, repeat(layer, 2), max_len=64, final_norm=RmsNorm())
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(
        model, data, optim=optim, steps=200, log_every=50, evaluate_every=100, evaluate_batches=4, save_every=100
    )


def memorisation(made_of: Literal["text", "tokens"] = "text") -> TrainConfig:
    """A small decoder on Python with sequences planted a known number of times: what it knows by heart is known.

    Args:
        made_of: What the planted sequences are: pieces of held-out text, or tokens of which nothing can be guessed.
    """
    steps = 1500
    layer = block(n_heads=4, positions=Rope(), norm=RmsNorm(), mlp=Mlp(512, activation="gelu_tanh"))
    model = DecoderConfig(1024, 128, repeat(layer, 6), max_len=128, final_norm=RmsNorm())
    data = Planted(batch_size=16, length=128, over=steps, made_of=made_of)
    optim = OptimConfig(lr=2e-3, warmup=100, betas=(0.9, 0.95))
    return TrainConfig(model, data, optim=optim, steps=steps, log_every=20, evaluate_every=250, save_every=250)


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "attn-only-1l": lambda: attention_only(1),
    "attn-only-1l-smeared": lambda: attention_only(1, smeared=True),
    "attn-only-2l": lambda: attention_only(2),
    "gpt-4l": gpt_4l,
    "memorisation": memorisation,
    "memorisation-tokens": lambda: memorisation("tokens"),
    "phase-change": phase_change,
    "senses": senses,
    "unseen-words-1l": lambda: unseen_words(1),
    "unseen-words-2l": lambda: unseen_words(2),
    "zh-en": zh_en,
}


def recipe(name: str) -> TrainConfig:
    """Return a recipe by name; raises `UnknownModel` with the nearest one."""
    if name not in RECIPES:
        raise UnknownModel(f'no recipe "{name}".{nearest(name, RECIPES)} Recipes: {", ".join(RECIPES)}.')
    return RECIPES[name]()
