"""`glassformer bench`: what attention mechanisms cost, beside fused softmax attention."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from glassformer.cli.options import ComputeDevice, Output
from glassformer.cli.output import check, deliver
from glassformer.cli.progress import progress

Subject = Literal["attention"]


def bench(
    subject: Annotated[Subject, tyro.conf.Positional],
    mechanisms: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    /,
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384),
    heads: Annotated[int, tyro.conf.arg(metavar="N")] = 4,
    d_head: int = 64,
    batch: int = 1,
    threads: int = 1,
    seconds: float = 5.0,
    plot: Path | None = None,
    seed: int = 0,
    dtype: str = "float32",
    *,
    computing: ComputeDevice,
    output: Output,
) -> None:
    """Measure attention mechanisms by length: time, memory, state and growth, beside PyTorch's fused softmax attention.

    Mechanisms alone are measured, from queries, keys and values to what they mix, in layers of equal width: a forward
    pass, with and without a backward pass, over one text and over several documents packed into a row; and a decode
    step. Each takes turns with scaled_dot_product_attention in one process. What this machine has no time or no memory
    for is left out, and said.

    Examples:
        glassformer bench attention softmax linear --lengths 128 256 512 --seconds 0.2
        glassformer bench attention --lengths 64 128 --heads 2 --d-head 32 --seconds 0.1 --html costs.html
        glassformer bench attention lightning --lengths 64 128 --seconds 0.1 --json costs.json --plot costs.svg

    Args:
        subject: What is measured: attention.
        mechanisms: Kinds of attention: softmax, linear, lightning, differential, or a plug-in's; by default all there
            are.
        lengths: Tokens of a row.
        heads: Heads of a layer.
        d_head: Width of a head.
        batch: Rows.
        threads: Threads on the CPU. Time there is CPU time of all of them together.
        seconds: Longest time per comparison; a length for which that is too short is left out.
        plot: Draw costs by length into this file (.png, .svg, .pdf).
        seed: Of queries, keys, values and weights.
        dtype: Type of queries, keys and values: float16, bfloat16, float32 or float64.
    """
    from glassformer.bench import attention_costs
    from glassformer.figures import new_figure
    from glassformer.render import curves
    from glassformer.render.terminal.tables import noted, tables

    check(output, plot=plot)
    if plot is not None:
        # what cannot be drawn is to be known before it is measured
        curves.encoded(new_figure(1.0, 1.0), plot)
    with progress("measuring") as report:
        found = attention_costs(
            mechanisms, lengths=lengths, n_heads=heads, d_head=d_head, batch=batch, device=computing.device,
            dtype=dtype, threads=threads, seconds=seconds, seed=seed, keep_freed=True, report=report,
        )  # fmt: skip
    asked = {
        "mechanisms": list(mechanisms), "lengths": list(lengths), "heads": heads, "d_head": d_head, "batch": batch,
        "threads": threads, "seconds": seconds, "seed": seed, "device": computing.device, "dtype": dtype,
    }  # fmt: skip
    shown = [tables(found), *noted(found.notes)]
    picture = (plot, lambda: curves.encoded(found.plot(), Path(str(plot))))
    deliver(f"bench {subject}", None, asked, [found], output, shown=shown, picture=picture)
