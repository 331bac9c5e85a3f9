"""`glassformer params`: what a model costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.table import Table

from glassformer.cli.configs import config_of, notes_of
from glassformer.cli.output import finish
from glassformer.config import require
from glassformer.files import check_writable, json_text
from glassformer.words import spoken, spoken_each

if TYPE_CHECKING:
    from glassformer.models import ModelConfig
    from glassformer.models.accounting import Account

PATH_POSITIONS = 33  # the path is looked for with real layers, which is quick at this length


def params(
    model: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    length: int | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    complexity: bool = False,
    compare: tuple[str, ...] | None = None,
    width: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    json: Path | None = None,
) -> None:
    """Show parameters by part, floating-point operations per token, and bytes of state; nothing is allocated.

    Operations are those of matrix products, 2 per multiply-add, attention over the full square (or, for linear
    mechanisms, in chunks). The backward pass counts two products for each forward one. Where an output layer spares
    training the words that are no targets, what training needs has a line of its own.

    With --compare, models of one size are built of layers of several kinds, and counted beside the formulas of the
    cost table of MiniMax-01: softmax, lightning, hybrid-lightning; other mechanisms are counted alone.

    Examples:
        glassformer params gpt-4l
        glassformer params gpt3-175b --length 2048 --dtype float16
        glassformer params llama3-8b --complexity --json llama.json
        glassformer params --compare softmax lightning hybrid-lightning --length 65536

    Args:
        model: A shipped model, a preset (gpt2-small, llama3-8b, …) or a folder.
        length: Tokens per sequence; the model's longest context by default.
        dtype: Of the state.
        complexity: Also show how kinds of layers scale at this length and width.
        compare: Kinds of layers to compare, in the place of a model.
        width: In a comparison, of the stream; 6,144 by default.
        layers: In a comparison; 80 by default.
        heads: In a comparison, of each layer; 64 by default.
        json: Write the numbers to this file.
    """
    if json is not None:
        check_writable(json)
    sizes = {"width": width, "layers": layers, "heads": heads}
    if compare is not None:
        require(model is None, "--compare builds its models itself: leave the model out.")
        require(not complexity and dtype == "float32", "--complexity and --dtype are for a model, not for --compare.")
        return _compare(compare, sizes | {"length": length}, json)
    given = [f"--{name}" for name, size in sizes.items() if size is not None]
    require(not given, f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for --compare.")
    require(model is not None, "give a model, or --compare with kinds of layers.")
    assert model is not None, "just required"
    _show(model, length, dtype, complexity, json)


def _compare(names: tuple[str, ...], sizes: dict[str, int | None], json: Path | None) -> None:
    from glassformer.cli.costs import compare
    from glassformer.models.cost_table import Sizes

    compare(names, Sizes(**{name: size for name, size in sizes.items() if size is not None}), json)


def _show(model: str, length: int | None, dtype: str, complexity: bool, json: Path | None) -> None:
    import torch

    from glassformer.models.accounting import account

    config = config_of(model)
    kind = getattr(torch, dtype)
    found = account(config, length, kind)
    notes = notes_of(model)
    data = {"model": model} | found.to_dict() | {"departures": config.departures()}
    data |= {"notes": [note.to_dict() for note in notes]}
    departures = config.departures().items()
    told = [
        spoken("{path} is not the layer of its paper: {how}.", path=path, how="; ".join(words))
        for path, words in departures
    ]
    shown = [_parts(model, found), *told, *map(str, notes), _lengths(config, found, kind)]
    if complexity:
        scaling, of_layers = _complexity(config, found.length)
        shown, data = [*shown, *scaling], data | of_layers
    finish(shown, JSON=(json, lambda: json_text(data, indent=2)))


def _parts(model: str, found: "Account") -> Table:
    table = Table(title=spoken("{model}: {n:,} parameters", model=model, n=found.total))
    flops = spoken("forward FLOPs per token, length {length:,}", length=found.length)
    for i, name in enumerate((*spoken_each("part", "parameters", "share"), flops)):
        table.add_column(name, justify="right" if i else "left")
    called = _called()
    for part in dict.fromkeys((*found.parameters, *found.flops)):
        own, flops = found.parameters.get(part, 0), found.flops.get(part, 0)
        share = f"{own / found.total:.1%}" if own else ""
        name = (
            spoken("{part} (tied)", part=called.get(part, part))
            if part == "unembedding" and not own
            else called.get(part, part)
        )
        table.add_row(name, f"{own:,}" if own else "", share, f"{flops / found.length:,.0f}" if flops else "")
    table.add_section()
    table.add_row(spoken("total"), f"{found.total:,}", "", f"{found.forward / found.length:,.0f}")
    if found.spared:
        table.add_row(spoken("total in training"), "", "", f"{(found.forward - found.spared) / found.length:,.0f}")
    return table


def _called() -> dict[str, str]:
    """Return what parts that most models have are called in the language that is spoken."""
    return {
        "embedding": spoken("embedding"), "positions": spoken("positions"), "query": spoken("query"),
        "latent": spoken("latent"), "key": spoken("key"), "value": spoken("values"), "mixing": spoken("mixing"),
        "output": spoken("output"), "output gate": spoken("output gate"), "mechanism": spoken("mechanism"),
        "mlp in": spoken("mlp in"), "mlp gate": spoken("mlp gate"), "mlp convolution": spoken("mlp convolution"),
        "mlp out": spoken("mlp out"), "router": spoken("router"), "biases": spoken("biases"), "norms": spoken("norms"),
        "readout": spoken("readout"), "unembedding": spoken("unembedding"),
    }  # fmt: skip


def _lengths(config: "ModelConfig", found: "Account", dtype: Any) -> Table:
    from glassformer.models.accounting import count_flops, spared_flops, state_bytes

    title = spoken("per token, averaged over a sequence; state in {dtype}", dtype=found.dtype)
    heads = spoken_each("length", "forward FLOPs", "backward FLOPs", "of which mixing", "state bytes", "per token")
    table = Table(*heads, title=title)
    for column in table.columns:
        column.justify = "right"
    shorter = [found.length // 4**i for i in (3, 2, 1) if found.length // 4**i >= 1]
    for n in dict.fromkeys((*shorter, found.length)):
        flops = count_flops(config, n)
        forward, state = sum(flops.values()), state_bytes(config, n, dtype)
        needed = forward - spared_flops(config, n)
        mixing = f"{flops.get('mixing', 0) / forward:.1%}"
        each = (f"{n:,}", _brief(forward / n), _brief(2 * needed / n), mixing, f"{state:,}", f"{state / n:,.0f}")
        table.add_row(*each)
    return table


def _brief(number: int | float) -> str:
    """Return a large number with a metric prefix, four digits long."""
    for factor, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M")):
        if number >= factor:
            return f"{number / factor:.4g}{prefix}"
    return f"{number:,.0f}"


def _complexity(config: "ModelConfig", length: int) -> tuple[list[Table], dict[str, Any]]:
    """Return how the work of layers grows, by formula and measured: as tables, and as JSON data."""
    from dataclasses import asdict

    from glassformer.models.complexity import complexity, confirm

    d_head, window = _head(config)
    sizes = f"n={length:,}, d={config.d_model:,}, d_head={d_head}, r={window}, k=3"
    heads = spoken_each("layer", "work (multiply-adds)", "sequential operations", "longest path")
    scaling = Table(*heads, title=spoken("scaling: {sizes}", sizes=sizes))
    rows = complexity(length, config.d_model, d_head=d_head, window=window)
    for row in rows:
        cells = ((row.work, row.operations), (row.sequential, row.steps), (row.path, row.layers))
        scaling.add_row(row.name, *(f"{formula} = {_brief(number)}" for formula, number in cells))
    scaling.columns[0].no_wrap = True
    short = min(length, PATH_POSITIONS)
    measured = confirm(short, config.d_model, d_head=d_head, window=min(window, 5))
    title = spoken(
        "measured here: n={n}, r={r} (4 FLOPs are one multiply-add in each of two products)", n=short, r=min(window, 5)
    )
    heads = spoken_each("layer", "run as", "counted FLOPs", "formula", "counted / work", "layers to reach")
    table = Table(*heads, title=title)
    for row in measured:
        table.add_row(
            row.name, row.form, f"{row.counted:,}", f"{row.formula:,}", f"{row.per_work:.3g}", str(row.layers)
        )
    table.columns[0].no_wrap = True
    data = {"complexity": [asdict(row) for row in rows], "measured": [asdict(row) for row in measured]}
    return [scaling, table], data


def _head(config: "ModelConfig") -> tuple[int, int]:
    """Return d_head and window of the first attention layer; a whole-width head and 128 where there is none."""
    from glassformer.attention import Attention

    layers = list(config.blocks.values())[-1]
    found = [part for block in layers for part in block.parts if isinstance(part, Attention)]
    if not found:
        return config.d_model, 128
    d_head = found[0].dims(config.d_model, config.max_len).d_head
    return d_head, max(2, getattr(found[0].mixer, "window", None) or 128)
