"""The colours of numbers on a page, out of the table that figures are drawn from: a style sheet and a script."""

from glassformer.figures.colours import DARK, LIGHT, SERIES, Palette
from glassformer.files import json_text


def colour_style() -> str:
    """Return the style sheet that gives colours their names, for light and dark screens and for print."""
    light, dark = _variables(LIGHT), _variables(DARK)
    series = " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(SERIES))
    return (
        f":root, :host {{ {light} {series} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root, :host {{ {dark} }} }}\n"
        f"@media print {{ :root, :host {{ {light} }} }}\n"
    )


def colour_script() -> str:
    """Return the script that holds the ramps of both themes, every colour as six hexadecimal digits."""
    themes = {"light": LIGHT, "dark": DARK}
    ramps = {
        theme: {kind: "".join(palette.ramp(kind)).replace("#", "") for kind in ("sequential", "diverging")}
        for theme, palette in themes.items()
    }
    return f"const RAMPS = {json_text(ramps)};\n"


def _variables(palette: Palette) -> str:
    names = ("positive", "negative", "bar", "undefined", "trained")
    return " ".join(f"--{name}: {getattr(palette, name)};" for name in names)
