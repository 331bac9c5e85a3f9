"""`glassformer route`: along which edges the content of a prediction arrived."""

from pathlib import Path
from typing import Literal

from glassformer.cli.arguments import model_of, prompt_of
from glassformer.cli.options import Columns, Fitting, ModelName, Output, Reading, Target, Text
from glassformer.cli.output import check, deliver
from glassformer.cli.progress import progress
from glassformer.cli.prompts import clean_run, one_source, pairs_in
from glassformer.cli.tokens_read import tokens_of


def route(
    model: ModelName,
    text: Text = None,
    /,
    target: Target = None,
    positions: tuple[int, ...] = (-1,),
    threshold: float = 0.04,
    stack: Literal["encoder", "decoder"] | None = None,
    pairs: Path | None = None,
    fitting: Fitting = False,
    columns: Columns = (),
    top: int = 12,
    *,
    opening: Reading,
    output: Output,
) -> None:
    """Information-flow routes: the edges between tokens, heads and MLPs through which a prediction's content arrived.

    Every state is split into what was kept, what each head brought from each token, and what MLPs wrote; edges of a
    smaller share than the threshold are dropped, from the top down. One forward pass, nothing replaced.

    Examples:
        printf 'class TokenBuffer:\\n    pass\\n\\nbuffer = Token' | glassformer route attn-only-2l -
        glassformer route gpt-4l "for i in range(" --threshold 0.02 --html routes.html
        glassformer route zh-en 我吃了一个苹果 --target "i ate an"
        glassformer route attn-only-2l --pairs pairs.csv

    Args:
        positions: Where routes start, at the top; negative ones count from the end. By default the last, or the masked
            one of an encoder.
        threshold: Smallest share an edge is kept with; 0 keeps the whole graph.
        stack: In an encoder-decoder, encoder traces within the encoder alone.
        pairs: In place of a text, the clean prompts of a .csv, .tsv or .jsonl file: what passes through each head on
            the way to their last tokens, averaged.
        top: Largest entries per table.
    """
    from glassformer import analysis
    from glassformer.analysis.prepare import asked_position
    from glassformer.config import require
    from glassformer.render.terminal import largest

    one_source(text, pairs, columns, target=target, stack=stack, chat=opening.chat or None)
    check(output)
    loaded = model_of(model, opening)
    if pairs is not None:
        require(positions == (-1,), "--positions belongs to a text; routes of pairs start at their last tokens.")
        batch, encoded = clean_run(loaded, pairs_in(pairs, columns), fitting, [analysis.token_flow.average_routes])
        with progress("tracing") as report:
            averaged = analysis.token_flow.average_routes(batch, threshold=threshold, report=report)
        read = tokens_of(batch)
        told = {"pairs": str(pairs), "n": len(encoded), "threshold": threshold}
        deliver("route", loaded, told, [averaged], output, read, shown=[read.shown(), largest(averaged, top)])
        return
    assert text is not None, "one of the two was given"
    given = prompt_of(loaded, text, opening.chat)
    given_target = None if target is None else prompt_of(loaded, target)
    # of an encoder-decoder, whole routes lead through both stacks: that is what naming none means
    side = "encoder" if stack == "encoder" else None
    run = analysis.run(loaded, given, given_target, read=[analysis.token_flow.information_flow_routes])
    if positions == (-1,) and run.ids is not None:
        positions = (asked_position(loaded, run.ids[0]),)
    found = analysis.token_flow.information_flow_routes(run, positions=positions, threshold=threshold, stack=side)
    read = tokens_of(run)
    asked = {
        "text": text,
        "chat": opening.chat or None,
        "target": target,
        "positions": list(positions),
        "threshold": threshold,
    }
    deliver("route", loaded, asked, [found], output, read, shown=[read.shown(), largest(found, top)])
