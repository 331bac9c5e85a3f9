"""Heads over a corpus on the terminal: a sentence each, what became of it, and the pairs with most weight."""

from rich.console import RenderableType
from rich.text import Text

from glassformer.analysis.heads import HeadsOverCorpus
from glassformer.render.terminal.tables import QUIET, largest, section, table, visible
from glassformer.words import spoken, spoken_each

TOP = 2


@largest.register
def _(result: HeadsOverCorpus, top: int = TOP) -> RenderableType:
    grid = table(*spoken_each("head", "held-out", "sentence"), left=(0, 2))
    grid.columns[2].no_wrap = False
    claims = {claim.head: claim for claim in result.claims}
    for head, words in result.sentences.items():
        claim = claims.get(head)
        share = "" if claim is None or not claim.holds else f"{claim.held_out:.0%}"
        said = Text(spoken(words), style="" if share else QUIET)
        if pairs := _pairs(result, head, top):
            said.append("\n" + pairs, style=QUIET)
        grid.add_row(head, share, said)
    return section(_title(result), grid, *map(Text, _tested(result)))


def _title(result: HeadsOverCorpus) -> str:
    said = {"tokens": sum(result.tokens), "passages": sum(result.passages), "documents": result.documents}
    return spoken("Heads over {tokens:,} tokens, {passages:,} passages of {documents:,} documents", **said)


def _tested(result: HeadsOverCorpus) -> list[str]:
    """Return what became of the sentences on held-out text."""
    if not result.claims:
        return []
    told = {"n": len(result.claims), "passages": result.passages[1], "refuted": len(result.refuted)}
    share = "-" if result.false != result.false else f"{result.false:.1%}"
    return [
        spoken(
            "{n} sentences, tested on {passages:,} held-out passages: false in {share} of all cases; {refuted} do not "
            "hold, and are not said.",
            share=share, **told,
        )
    ]  # fmt: skip


def _pairs(result: HeadsOverCorpus, head: str, top: int) -> str:
    """Return the strongest pairs of the passage in which a head looks most sharply, one of each two tokens."""
    shown = dict[str, None]()
    for passage in result.sequences[head][:1]:
        for pair in passage.pairs:
            query, key = (visible(passage.tokens[place], 12) for place in (pair.query, pair.key))
            shown.setdefault(f"{query} → {key} {pair.weight:.2f}")
    return "   ".join(list(shown)[:top])
