"""Explanations of tiny random models, as samples: `python tests/explanations.py FOLDER` writes them as JSON.

`short` and `long` (a decoder with the shapes of a real one), `signed` (patterns that are not distributions),
`translation` (target given) and `generated` (not given), `image` (an encoder of images, with a class token).
"""

import base64
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from glassformer.analysis.reports import Explanation, explain
from glassformer.attention import Differential, Lightning, MixerConfig, Rope, Softmax
from glassformer.data import Shapes, Tokenizer, train_bpe
from glassformer.data.grammar.translation import zh_en_tokenizer
from glassformer.data.tokenizer import label_tokenizer
from glassformer.models import (
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    Learned,
    LearnedGrid,
    Mlp,
    Patches,
    RmsNorm,
    Sampling,
    block,
    image_encoder,
    published_block,
    repeat,
)  # fmt: skip
from glassformer.models.model import LogitsOf

TEXT = '''def area(shape):
    """Return the area of a shape; </script> & <b>markup</b> must stay text."""
    if shape.kind == "circle":
        return math.pi * shape.radius ** 2
    return shape.width * shape.height


def perimeter(shape):
    if shape.kind == "circle":
        return 2 * math.pi * shape.radius
    return 2 * (shape.width + shape.height)
'''


@cache
def sample(name: str) -> Explanation:
    """Return one of the samples."""
    if name == "short":
        return explain(gpt(), TEXT[:24], sampling=Sampling(temperature=0.8, top_k=40, top_p=0.9))
    if name == "long":
        return explain(gpt(), (TEXT * 3)[:700], answer="\n", against=" ")
    if name == "signed":
        return explain(signed(), TEXT[:60])
    if name == "image":
        return explain(of_images(), Shapes(batch_size=1).build().batch(0).tokens)
    target = "I ate an apple" if name == "translation" else None
    return explain(translator(), "我吃了一个苹果", target=target)


SAMPLES = ("short", "long", "signed", "translation", "generated", "image")


def gpt() -> Decoder:
    layer = block(n_heads=8, n_kv_heads=4, mlp=Mlp(gated=True, activation="silu"), norm=RmsNorm(), positions=Rope())
    return _random(DecoderConfig(300, 64, repeat(layer, 4), max_len=1024, final_norm=RmsNorm()), "gpt-sample", _bpe())


def signed() -> Decoder:
    layers = [block(n_heads=4, mlp=Mlp(), **Differential().as_published()), published_block(Lightning(), n_heads=4)]
    config = DecoderConfig(300, 64, repeat(layers, 4), max_len=256, positions=Learned())
    return _random(config, "signed-sample", _bpe())


def translator() -> EncoderDecoder:
    tokenizer = zh_en_tokenizer()
    encoder = repeat(block(n_heads=4, mlp=Mlp(), wiring="post"), 2)
    decoder = repeat(block(n_heads=4, mlp=Mlp(), cross=True, wiring="post"), 2)
    config = EncoderDecoderConfig(tokenizer.vocab_size, 64, encoder, decoder, max_len=64)
    return _random(config, "translation-sample", tokenizer)


def of_images(
    class_token: bool = True,
    mixer: MixerConfig | None = None,
    image: tuple[int, int] = (16, 16),
    channels: int = 1,
) -> Encoder:
    """Return a tiny model that says which kind of shape is on an image, by patches of 4 x 4 pixels."""
    patches = Patches(image, 4, channels, class_token)
    layers = repeat(block(mixer or Softmax(), n_heads=2, mlp=Mlp(32)), 2)
    config = image_encoder(patches, 16, layers, n_classes=5, positions=LearnedGrid())
    model = _random(config, "image-sample", None)
    model.output_tokenizer = label_tokenizer(Shapes().classes())
    return model


def predicting(of: LogitsOf) -> Decoder | Encoder:
    """Return a tiny model whose logits are of the token behind a position or at it, or of classes that have names."""
    heads = {"text_class": "text", "token_class": "tokens"}
    outputs: Any = {"output_vocab_size": 3, "classifies": heads[of], "tied": False} if of in heads else {}
    layers = repeat(block(n_heads=2, mlp=Mlp()), 1)
    if of in ("token", "text_class"):
        model = _random(EncoderConfig(300, 16, layers, max_len=16, **outputs), "tiny", _bpe())
    else:
        model = _random(DecoderConfig(300, 16, layers, max_len=16, **outputs), "tiny", _bpe())
    if outputs:
        model.output_tokenizer = label_tokenizer(["very good", "bad", "neither"])
    return model


@cache
def _bpe() -> Tokenizer:
    return train_bpe([TEXT], 300)


def _random(config: Any, name: str, tokenizer: Tokenizer | None) -> Any:
    model = config.build(seed=1)
    # larger than initial weights, so that patterns and contributions have something to show
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25, generator=generator)
    model.tokenizer, model.name = tokenizer, name
    return model.eval()


def weights(pattern: dict[str, Any]) -> list[list[float | None]]:
    """Decode a pattern of a document as its page says; None where the mask forbids looking."""
    numbers, value, at = list[int](), 0, 0
    for byte in base64.b64decode(pattern["data"]):
        value, at = value + ((byte & 127) << at), at + 7
        if byte < 128:
            numbers.append((-(value + 1) // 2 if value % 2 else value // 2) if pattern["signed"] else value)
            value = at = 0
    data, step, decoded = iter(numbers), pattern["scale"] / pattern["steps"], list[list[float | None]]()
    for q in range(pattern["rows"]):
        n = q + 1 if pattern["layout"] == "lower" else pattern["columns"]
        decoded.append([*(next(data) * step for _ in range(n)), *[None] * (pattern["columns"] - n)])
    assert next(data, None) is None, "a number beyond the last entry"
    return decoded


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in SAMPLES:
        (folder / f"{name}.json").write_text(sample(name).to_json(indent=1), encoding="utf-8")
