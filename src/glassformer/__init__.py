"""Glassformer: transformers you can see through.

    import glassformer as gf
    model = gf.load("gpt-4l")
    run = gf.run(model, "def f(", read=["blocks.*.attn.pattern"])
    gf.explain(model, "def f(")

Names are imported when first used, so that `import glassformer` costs nothing.
"""

from typing import TYPE_CHECKING

from glassformer.figures import viewers
from glassformer.lazy import lazily
from glassformer.version import __version__ as __version__

if TYPE_CHECKING:
    from glassformer.analysis import Run, run
    from glassformer.analysis.reports import Explanation, circuits, explain
    from glassformer.checkpoints import Spec, foreign, load, save
    from glassformer.labelled import Labelled
    from glassformer.models import (
        Decoder,
        DecoderConfig,
        Encoder,
        EncoderConfig,
        EncoderDecoder,
        EncoderDecoderConfig,
        chat,
        generate,
    )
    from glassformer.trace import Add, AddWhere, Apply, At, Interchange, Place, Project, Read, Scale, Set, Take, Tape

_HOMES = {
    "analysis": ("Run", "run"),
    "analysis.reports": ("Explanation", "circuits", "explain"),
    "checkpoints": ("Spec", "foreign", "load", "save"),
    "labelled": ("Labelled",),
    "models": (
        "Decoder",
        "DecoderConfig",
        "Encoder",
        "EncoderConfig",
        "EncoderDecoder",
        "EncoderDecoderConfig",
        "chat",
        "generate",
    ),
    "trace": (
        "Add",
        "AddWhere",
        "Apply",
        "At",
        "Interchange",
        "Place",
        "Project",
        "Read",
        "Scale",
        "Set",
        "Take",
        "Tape",
    ),
}
_PACKAGES = (
    "adaptation",
    "analysis",
    "attention",
    "bench",
    "checkpoints",
    "data",
    "errors",
    "explorer",
    "handmade",
    "models",
    "render",
    "study",
    "trace",
    "training",
    "weights",
)

__all__ = [
    "Add",
    "AddWhere",
    "Apply",
    "At",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Explanation",
    "Interchange",
    "Labelled",
    "Place",
    "Project",
    "Read",
    "Run",
    "Scale",
    "Set",
    "Spec",
    "Take",
    "Tape",
    "chat",
    "circuits",
    "explain",
    "foreign",
    "generate",
    "load",
    "run",
    "save",
]

__getattr__, __dir__ = lazily(__name__, _HOMES, _PACKAGES)


def _viewer() -> viewers.Viewer:
    from glassformer.render import viewing

    return viewing


# whoever makes a result has imported this package: results are shown by `render`, which they do not know
viewers.register(_viewer)
