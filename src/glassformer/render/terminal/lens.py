"""Lenses and words in context on the terminal."""

import math

from rich.console import Group, RenderableType
from rich.text import Text

from glassformer.analysis.attribution import MeaningShift
from glassformer.analysis.lens import LensDivergence, LensGrid
from glassformer.labelled import Labelled
from glassformer.models.model import ANSWERS
from glassformer.render.terminal.tables import QUIET, STRONG, bar, section, table, tables, visible
from glassformer.trace import Site
from glassformer.words import spoken, spoken_each

N_COMPONENTS, N_TOKENS, N_POSITIONS = 10, 6, 6


@tables.register
def _(result: LensGrid) -> RenderableType:
    parts = [_row(result, row) for row in range(result.first.size("batch"))]
    return Group(*parts)


@tables.register
def _(result: LensDivergence) -> RenderableType:
    grid = table(*spoken_each("site", "logit lens", "tuned lens"))
    for i, site in enumerate(result.kl_bits.labels("site")):
        grid.add_row(_place(str(site)), *(_with_error(result, j, i) for j in range(2)))
    title = spoken("KL(final || lens) in bits, mean over {n:,} positions ± standard error", n=result.positions)
    return section(title, grid)


@tables.register
def _(result: MeaningShift) -> RenderableType:
    title = Text.assemble(
        (visible(result.word[0]), STRONG), spoken(" at {place} in the first context, ", place=result.positions[0]),
        (visible(result.word[1]), STRONG), spoken(" at {place} in the second", place=result.positions[1]),
    )  # fmt: skip
    depth = table(*spoken_each("place", "distance", "relative", "cosine", "moved by"), left=(0, 4))
    columns = (result.distance, result.relative, result.cosine)
    for i, site in enumerate(result.distance.labels("site")):
        movers = Labelled(result.along.values[i], ("component",), {"component": result.along.labels("component")})
        named = "  ".join(f"{label} {v:+.2f}" for (label, *_), v in movers.top(3, by_size=True) if v)
        depth.add_row(_place(str(site)), *(f"{c.values[i]:.3f}" for c in columns), named)
    moved = result.along.select(site=result.site)
    parts = table(*spoken_each("component", "moves it by", ""), left=(0, 2))
    largest = float(moved.values.abs().max())
    for (label, *_), value in [pair for pair in moved.top(N_COMPONENTS, by_size=True) if pair[1]]:
        parts.add_row(str(label), f"{value:+.3f}", bar(value, largest))
    parts.add_row(spoken("sum"), f"{float(moved.values.sum()):+.3f}", "", style=STRONG)
    first, second = (Labelled(t.values * sign, t.axes, t.coords) for t, sign in zip(result.by_token(), (-1, 1)))
    taken = table(*spoken_each("context", "token", "heads took", ""), left=(0, 1, 3))
    most = max(float(t.values.abs().max()) if t.values.numel() else 0.0 for t in (first, second))
    for name, tokens in ((spoken("the first"), first), (spoken("the second"), second)):
        for (label, *_), value in [pair for pair in tokens.top(N_TOKENS, by_size=True) if abs(pair[1]) >= 0.0005]:
            taken.add_row(name, visible(str(label)), f"{value:+.3f}", bar(value, most))
    what = spoken("What moves it, at {place} (along the direction, norms frozen)", place=_place(result.site))
    return Group(
        title, Text(""), section(spoken("How far it moves, by depth"), depth), Text(""),
        section(what, parts), Text(""),
        section(spoken("Which tokens the heads took that from (the first context's count the other way)"), taken),
    )  # fmt: skip


def depth(result: LensGrid, position: int, top: int = 3, answer: str | None = None) -> RenderableType:
    """Return the way to one prediction through depth: likeliest tokens, and the numbers of the token followed."""
    assert result.top is not None and result.top_probability is not None, "a grid with all its measures"
    assert result.probability is not None and result.rank is not None and result.answers is not None
    assert result.entropy_bits is not None and result.kl_bits is not None
    followed = visible(result.words.get(int(result.answers.values[0, position]), answer or ""))
    grid = table(*spoken_each("site", "likeliest, %", "probability", "rank", "KL bits", "entropy"), left=(0, 1))
    grid.columns[1].no_wrap = False
    for i, site in enumerate(result.sites):
        ids, shares = (x.values[i, 0, position, :top].tolist() for x in (result.top, result.top_probability))
        likeliest = "  ".join(f"{visible(result.words[id], 9)} {100 * p:.0f}" for id, p in zip(ids, shares))
        numbers = [float(x.values[i, 0, position]) for x in (result.kl_bits, result.entropy_bits)]
        p, rank = float(result.probability.values[i, 0, position]), int(result.rank.values[i, 0, position])
        grid.add_row(_place(site), likeliest, f"{p:.4f}", f"{rank:,}", *(f"{x:.2f}" for x in numbers))
    where = visible(str(result.first.labels("pos")[position]), 24)
    asked = {"place": where, "token": followed}
    title = (
        spoken("After {place}, following {token}: probability and rank by depth", **asked)
        if result.logits_of == "next_token"
        else spoken("At {place}, following {token}: probability and rank by depth", **asked)
    )
    return section(title, grid)


def answers_by_depth(result: LensGrid) -> RenderableType:
    """Return how likely answers are at each place, averaged over rows; one position of each."""
    assert result.probability is not None and result.rank is not None and result.kl_bits is not None
    n = result.first.size("batch")
    grid = table(*spoken_each("site", "probability", "", "median rank", "at rank 1", "KL bits"), left=(0, 2))
    chances = result.probability.values[:, :, 0].double()
    for i, site in enumerate(result.sites):
        p, ranks = chances[i], result.rank.values[i, :, 0]
        spread = f" ± {float(p.std() / n**0.5):.4f}" if n > 1 else ""
        best, kl = float((ranks == 1).double().mean()), float(result.kl_bits.values[i, :, 0].mean())
        shown = bar(float(p.mean()), float(chances.mean(1).max()))
        grid.add_row(_place(site), f"{p.mean():.4f}{spread}", shown, f"{ranks.median():,}", f"{best:.0%}", f"{kl:.2f}")
    return section(spoken("{lens}: the answers of {n} prompts by depth", lens=_lens(result), n=n), grid)


def _row(result: LensGrid, row: int) -> RenderableType:
    n = result.first.size("pos")
    shown = list(range(n))[-N_POSITIONS:]
    grid = table(
        spoken("site"), *(visible(str(result.first.labels("pos")[p]), 10) for p in shown), left=tuple(range(7))
    )
    for i, site in enumerate(result.sites):
        grid.add_row(_place(site), *(_likeliest(result, i, row, p) for p in shown))
    since = [_place(result.sites[int(result.settled.values[row, p])]) for p in shown]
    grid.add_row(spoken("stays from"), *since, style=QUIET)
    which = spoken(", row {row}", row=row) if result.first.size("batch") > 1 else ""
    title = spoken(
        "{lens}{row}, likeliest by place: {answer}", lens=_lens(result), row=which, answer=ANSWERS[result.logits_of]
    )
    return section(title, grid)


def _lens(result: LensGrid) -> str:
    return spoken("Tuned lens" if result.tuned else "Logit lens")


def _likeliest(result: LensGrid, i: int, row: int, p: int) -> str:
    if result.top is None or result.top_probability is None:
        return "-"
    word = result.words[int(result.top.values[i, row, p, 0])]
    return f"{visible(word, 9)} {100 * float(result.top_probability.values[i, row, p, 0]):.0f}"


def _place(site: str) -> str:
    """Return a short name of a place in the stream: `0 pre`, `0 mid`, `0 post`."""
    at = Site.named(site)
    return site if at.layer is None else f"{at.layer} {at.quantity.removeprefix('resid_')}"


def _with_error(result: LensDivergence, lens: int, site: int) -> str:
    value, error = float(result.kl_bits.values[lens, site]), float(result.spread.values[lens, site])
    return f"{value:.3f}" if math.isnan(error) else f"{value:.3f} ± {error:.3f}"
