"""Dictionaries on the terminal: how good they are, what the model loses by them, and what their features are of."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import RenderableType

from glassformer.analysis.dictionaries import (
    DictionaryFolder,
    DictionaryQuality,
    FeatureExamples,
    FeatureTokens,
    SpliceLoss,
)
from glassformer.render.terminal.tables import bar, section, table, tables, visible
from glassformer.words import spoken, spoken_each

N_TEXTS, N_TOKENS = 2, 3


@tables.register
def _(result: DictionaryQuality) -> RenderableType:
    grid = table(*spoken_each("fires in a share of rows of", "features", ""), left=(0, 2))
    counts = result.by_density
    for name, count in zip(counts.labels("density"), counts.values.tolist()):
        label = spoken("none") if name == "0" else str(name)
        grid.add_row(label, f"{count:,}", bar(float(count), float(counts.values.max())))
    measured = {"l0": f"{result.l0:.1f}", "fvu": f"{result.fvu:.3f}", "dead": f"{result.dead:.0%}", "n": result.rows}
    title = spoken("Dictionary on {n:,} rows: L0 {l0}, share of variance left over {fvu}, dead {dead}", **measured)
    return section(title, grid)


@tables.register
def _(result: SpliceLoss) -> RenderableType:
    grid = table(*spoken_each("site", "loss", "±", "KL"))
    for i, name in enumerate(spoken_each("as it is", "spliced", "ablated")):
        loss, spread, kl = (float(field.values[i]) for field in (result.loss, result.spread, result.kl))
        grid.add_row(name, f"{loss:.4f}", f"{spread:.4f}", f"{kl:.4f}")
    share = "-" if result.recovered != result.recovered else f"{result.recovered:.1%}"
    title = spoken("What the model loses by it, in nats, over {n:,} tokens: {share} recovered", n=result.tokens,
                   share=share)  # fmt: skip
    return section(title, grid)


def feature_table(examples: FeatureExamples, tokens: FeatureTokens | None) -> RenderableType:
    """Return features with the texts on which they fire most, and what they promote and suppress beyond chance."""
    grid = table(*spoken_each("feature", "density", "most", "text", "promotes", "suppresses"), left=(0, 3, 4, 5))
    for i, label in enumerate(examples.density.labels("feature")):
        feature = int(label)
        texts, sizes = examples.texts[feature][:N_TEXTS] or [""], examples.activations.values[i].tolist()
        said = ["", ""]
        if tokens is not None:
            sides = (tokens.promoted(feature), tokens.suppressed(feature))
            said = ["  ".join(visible(token.partition(":")[2], 8) for token, _ in side[:N_TOKENS]) for side in sides]
        for j, text in enumerate(texts):
            size = f"{sizes[j]:.2f}" if text else "-"
            first = (str(feature), f"{float(examples.density.values[i]):.2%}") if j == 0 else ("", "")
            grid.add_row(*first, size, visible(_around(text), 30), *(said if j == 0 else ("", "")))
    return section(spoken("Features: where they fire most, and next tokens beyond chance"), grid)


def _around(text: str) -> str:
    """Return what stands nearest to the token that is marked."""
    before, mark, behind = text.partition("«")
    return before[-12:] + mark + behind


def folder_table(found: Sequence[DictionaryFolder], root: Path) -> RenderableType:
    """Return dictionaries, those that ship by name, with what was measured on held-out text when they were trained."""
    columns = spoken_each("folder", "site", "kind", "features", "L0", "FVU", "dead", "recovered")
    grid = table(*columns, left=(0, 1, 2))
    grid.columns[0].no_wrap = False
    grid.columns[0].overflow = "fold"
    for one in found:
        known = one.facts.get("held_out") or {}
        shown = {"l0": "{:.1f}", "fvu": "{:.3f}", "dead": "{:.0%}", "recovered": "{:.1%}"}
        numbers = [form.format(known[name]) if name in known else "-" for name, form in shown.items()]
        place = str(one.folder.relative_to(root)) if one.folder.is_relative_to(root) else one.name
        site = str(one.facts.get("site", "-"))
        grid.add_row(place, site, one.config.kind, f"{one.config.n_features:,}", *numbers)
    return grid
