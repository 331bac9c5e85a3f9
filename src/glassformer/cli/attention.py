"""`glassformer attention`: what every head looks at in a text, and why one of them looks there."""

from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import model_of, prompt_of
from glassformer.cli.options import ModelName, Output, Reading, Target, Text
from glassformer.cli.output import check, deliver, finish
from glassformer.config import require

if TYPE_CHECKING:
    from glassformer.models import ModelLike


def attention(
    model: ModelName,
    text: Text = None,
    /,
    target: Target = None,
    head: str | None = None,
    query: int | None = None,
    key: int | None = None,
    top: int = 12,
    *,
    opening: Reading,
    output: Output,
) -> None:
    """What every head of a model looks at in a text; of any model, an encoder without a head for its vocabulary too.

    On the terminal come the keys that each head looks at most; the page has the whole pattern of each. Layers whose
    mechanism has no pattern are named. With --head: why that one looks from a query at a key, as the sum that its score
    is, over pairs of what wrote the query and what wrote the key.

    Examples:
        glassformer attention gpt-4l "for i in range(10):" --html heads.html
        glassformer attention zh-en 我喜欢猫 --lang zh
        glassformer attention attn-only-2l "import os, sys, os" --head L1H6
        glassformer attention gpt-4l "for i in range(10):" --head L2H1 --query -1 --key 4 --json scores.json

    Args:
        head: Say of this head alone why it looks from a query at a key.
        query: Position that it looks from; the last by default. Negative counts from the end.
        key: Position that it looks at; by default the one that it looks at most.
        top: Strongest pairs of writers shown, of one head.
    """
    from glassformer import analysis
    from glassformer.analysis.reports.attention import attention_of, pattern_sites
    from glassformer.cli.tokens_read import TokensRead, tokens_of
    from glassformer.files import json_text
    from glassformer.render.page import attention_page
    from glassformer.render.terminal.attention import most_seen

    require(text is not None, "give a text, whose tokens the heads look at.")
    require(
        head is not None or (query is None and key is None),
        "--query and --key belong to one head: say which with --head.",
    )
    assert text is not None
    check(output)
    loaded = model_of(model, opening)
    given = prompt_of(loaded, text, opening.chat)
    if head is not None:
        asked = {"text": text, "chat": opening.chat or None, "target": target}
        _one_head(loaded, given, target, head, query, key, top, asked, output)
        return
    run = analysis.run(loaded, given, target, read=pattern_sites(loaded))
    found, read = attention_of(run), tokens_of(run)
    finish(
        [TokensRead(read.rows, marks=read.marks).shown(), "", most_seen(found)],
        JSON=(output.json, lambda: json_text(found.to_dict(), ascii_only=False)),
        page=(output.html, lambda: attention_page(found.to_dict())),
    )


def _one_head(
    model: "ModelLike", given: Any, target: str | None, head: str, query: int | None, key: int | None, top: int,
    asked: dict[str, Any], output: Output,
) -> None:  # fmt: skip
    """Say why a head looks from one query at one key."""
    from glassformer import analysis
    from glassformer.analysis.cards import card_of
    from glassformer.analysis.heads.roles import heads
    from glassformer.cli.tokens_read import tokens_of
    from glassformer.render.terminal import largest

    score_paths = analysis.paths.score_paths
    known, path = model.sites(), {one.label: one.path for one in heads(model)}.get(head)
    sites = {name: f"{head}.{name}" for name in ("scores_raw", "scores", "pattern") if f"{path}.{name}" in known}
    read_of_it = card_of(score_paths).reads(model, head=head)
    run = analysis.run(model, given, target, read=[*read_of_it, *sites.values()])
    query = -1 if query is None else query
    # of every key, for what is refused of the head to come first
    found = score_paths(run, head=head, query=query)
    query = run.place(query)
    rows = {name: run[site].select(batch=0, query=query).values for name, site in sites.items()}
    key = int(rows["pattern"].abs().argmax()) if key is None else run.place(key)
    seen = rows["scores"].isfinite()[..., key].all()
    require(bool(seen), f"{head} sees no key {key} from query {query}: it is masked. {_seen(rows['scores'])}")
    found = score_paths(run, head=head, query=query, key=key)
    asked = asked | {"head": head, "query": query, "key": key}
    read = tokens_of(run)
    scores = rows["scores_raw" if "scores_raw" in rows else "scores"][..., key]
    shown = [read.shown(), _heading(run, head, (query, key), scores, rows["pattern"][key]), "", largest(found, top)]
    deliver("attention", model, asked, [found], output, read, shown=[*shown, read.further(found)])


def _seen(scores: Any) -> str:
    """Return which keys a query sees, of its scores."""
    keys = scores.isfinite().reshape(-1, scores.shape[-1]).all(0).nonzero()[:, 0].tolist()
    return f"It sees {len(keys)}, from {keys[0]} to {keys[-1]}." if keys else "It sees none."


def _heading(run: Any, head: str, places: tuple[int, int], scores: Any, weight: Any) -> Any:
    """Return the score that the model gave, and what came of it."""
    from glassformer.render.terminal.tables import section, table, visible
    from glassformer.words import spoken, spoken_each

    grid = table(*spoken_each("query", "key", "score", "pattern"), left=(0, 1))
    tokens = [f"{place}:{visible(run.tokens[place])}" for place in places]
    grid.add_row(*tokens, ", ".join(f"{x:.3f}" for x in scores.reshape(-1).tolist()), f"{float(weight):.3f}")
    return section(spoken("{names} in {model}", names=head, model=run.model.name), grid)
