"""`glassformer sites`: the named places of a model's forward pass."""

from typing import Annotated, Any

import tyro
from rich.table import Table

from glassformer.cli.configs import config_of
from glassformer.cli.console import Console
from glassformer.files import json_text
from glassformer.words import spoken, spoken_each


def sites(
    model: Annotated[str, tyro.conf.Positional],
    /,
    glob: str = "*",
    length: int | None = None,
    json: bool = False,
) -> None:
    """List the sites of a model: what a forward pass can be asked to record or let itself be edited at.

    Lazy sites are computed only when asked for. With --length, a forward pass over so many tokens is walked on the meta
    device, so that every shape is known and nothing is allocated, whatever the model's size.

    Examples:
        glassformer sites gpt-4l
        glassformer sites llama3-8b --glob "blocks.0.attn.*"
        glassformer sites llama3-8b --glob "L0H5.*"
        glassformer sites gpt3-175b --length 1000

    Args:
        model: A shipped model, a preset (gpt2-small, gpt3-175b, …) or a folder.
        glob: Names to list, a short name (attn.pattern, of all layers), or a head's label and what of it.
        length: Number of tokens to walk a forward pass with.
        json: Print JSON.
    """
    import torch

    from glassformer.models.accounting import shapes

    config = config_of(model)
    with torch.device("meta"):
        found = config.build().sites().locate(glob)
    walked = {} if length is None else shapes(config, length)
    rows = [
        {"name": s.name, "axes": s.axes, "shape": _shape(s, walked), "layer": s.layer, "lazy": s.lazy}
        | ({"of": of, "at": at.where} if of else {})
        for _, s, at, of in found
    ]
    if json:
        print(json_text({"model": model, "length": length, "sites": rows}, indent=1))
        return
    title = spoken("{model}: {n} sites", model=model, n=len(rows))
    title += "" if length is None else spoken(", {n} tokens", n=length)
    by_head = any(of for *_, of in found)
    shown = Table(*spoken_each("name", "axes", "shape", "lazy"), *([spoken("of")] if by_head else []), title=title)
    for row in rows:
        shape = " ".join(str(size) for size in row["shape"]) or spoken("one number")
        of = [row["of"]] if by_head else []
        shown.add_row(row["name"], " ".join(row["axes"]), shape, spoken("lazy") if row["lazy"] else "", *of)
    Console().print(shown)


def _shape(site: Any, walked: dict[str, tuple[int, ...]]) -> list[int | str]:
    """Return lengths where they are known, axis names where they depend on the text."""
    return list(walked[site.name]) if walked else [site.sizes.get(axis, axis) for axis in site.axes]
