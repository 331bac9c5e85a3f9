"""`glassformer convert`: a model from one layout to another."""

import re
from pathlib import Path
from typing import Annotated, Literal

import tyro

from glassformer.cli.console import say
from glassformer.cli.progress import progress
from glassformer.config import require

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def convert(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    to: Literal["glassformer", "huggingface", "transformer-lens", "per-head", "nanogpt", "llama2c"] = "glassformer",
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = None,
    shard_size: str = "2GB",
    revision: str | None = None,
) -> None:
    """Write a model in another layout: ours, or that of Hugging Face, TransformerLens, nanoGPT, llama2.c or Meta, or as
    plain per-head tensors.

    Weights are rearranged, never recomputed, so the way back gives the same bits. OUT appears when it is whole; what
    has no place in the layout is refused with its name.

    Examples:
        glassformer convert openai-community/gpt2 gpt2-ours
        glassformer convert gpt2-ours gpt2-again --to huggingface
        glassformer convert stories15M stories-hf --to huggingface --dtype bfloat16
        glassformer convert gpt-4l gpt-4l-hooked --to transformer-lens

    Args:
        source: A shipped model, a folder of any layout that can be read, a GGUF file, or a hub id.
        folder: Where to; nothing is overwritten.
        to: The layout.
        dtype: Of the weights; every tensor keeps its own by default.
        shard_size: Bytes per file at most: 2GB, 500MB, 1000000.
        revision: Of a hub model: branch, tag or commit.
    """
    import torch

    from glassformer import checkpoints

    kind = None if dtype is None else getattr(torch, dtype)
    size = _bytes(shard_size)
    with progress("tensors") as report:
        made = checkpoints.convert(source, folder, to, dtype=kind, shard_size=size, revision=revision, report=report)
    say(f"{to}: {made.absolute()}")


def _bytes(given: str) -> int:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", given.upper())
    unit = None if found is None else found[2] if found[2] in UNITS else f"{found[2]}B"
    require(found is not None and unit is not None, f'--shard-size is bytes, such as 2GB or 500MB; found "{given}".')
    assert found is not None and unit is not None, "required above"
    return int(float(found[1]) * (1 if unit == "B" else UNITS[unit]))
