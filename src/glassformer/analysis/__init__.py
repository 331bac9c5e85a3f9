"""Analyses: functions of a model and a text, of a run or of weights alone, that return labelled results.

Each room answers one question; `ROOMS` lists them. `activations` keeps what several of them read. All are imported when
first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from glassformer.analysis._run import Run as Run, run as run
from glassformer.lazy import renamed

if TYPE_CHECKING:
    from glassformer.analysis import (
        activations as activations,
        attribution as attribution,
        behaviour as behaviour,
        causal as causal,
        circuits as circuits,
        dictionaries as dictionaries,
        from_weights as from_weights,
        frozen as frozen,
        gradients as gradients,
        heads as heads,
        learning as learning,
        lens as lens,
        losses as losses,
        paths as paths,
        probes as probes,
        reports as reports,
        subspaces as subspaces,
        sweep as sweep,
        token_flow as token_flow,
        vocabulary as vocabulary,
    )

# what answers no question by itself
_BESIDE = ("activations", "losses")
ROOMS = {
    "attribution": "What adds to this logit?",
    "lens": "What would the model say if it stopped here?",
    "heads": "What do heads look at?",
    "from_weights": "What do the weights alone say of heads?",
    "vocabulary": "What do the weights say from token to token?",
    "subspaces": "Where in the stream do things lie?",
    "probes": "What can be read where, and is it used?",
    "dictionaries": "Which features make up an activation?",
    "paths": "Which chains of heads does it take?",
    "token_flow": "Which tokens does it come from?",
    "causal": "What changes if a value is replaced?",
    "circuits": "Which edges carry it?",
    "behaviour": "Which known habits does the model have?",
    "gradients": "What would a gradient step write?",
    "learning": "How does it come about in training?",
    "frozen": "What is the model with norms and patterns held fixed?",
    "sweep": "Which engine runs many interventions at once?",
    "reports": "What do all of these say together?",
}


# to type checkers, which see the imports above, any other name is an error
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in ROOMS or name in _BESIDE:
            return importlib.import_module(f"{__name__}.{name}")
        return renamed(__name__, name, f" Rooms: {', '.join(ROOMS)}.")

    def __dir__() -> list[str]:
        return sorted({*(name for name in globals() if name.startswith("__")), "Run", "run", *_BESIDE, *ROOMS})
