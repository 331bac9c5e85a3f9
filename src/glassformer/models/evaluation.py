"""Evaluation as a property of a pass: no dropout in it, whatever mode the model is in and whoever trains it meanwhile.

    with evaluating(model):         # this thread's passes through the model drop nothing
        model(ids)

In our models whatever drops asks here, in a pass of a model in training mode, whether it is live; blocks are told by
their stack, which asks once. The flag `training` stays as it is, so that passes in other threads are what they were.
That cannot be asked of modules we did not write, nor from inside a compiled graph: those are switched to evaluation
mode, counted, so that the first to begin switches them and the last to end puts them back. While they are switched they
drop nothing in any thread; a pass that means to train them has to wait.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from glassformer.errors import AnalysisUnavailable
from glassformer.numerics.decompositions import is_finite
from glassformer.provenance import is_gathering
from glassformer.trace import Tape

# their flag changes nothing that they do
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class _Here(threading.local):
    """Which modules this thread's passes evaluate, by identity, and how many times over."""

    def __init__(self) -> None:
        self.evaluated = Counter[int]()


_here = _Here()
_lock = threading.Lock()
# modules in evaluation mode that were in training mode, and how many passes need them so
_switched = WeakKeyDictionary[nn.Module, int]()


def drops(module: nn.Module) -> bool:
    """Whether a module of ours in training mode drops anything in this pass; a compiled graph goes by the mode."""
    return torch.compiler.is_compiling() or id(module) not in _here.evaluated


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Let this thread's passes through a model be evaluations; afterwards all is as it was, module by module."""
    training = [module for module in model.modules() if module.training]
    compiled = [module for module in training if _is_compiled(module)]
    # whatever their mode: whoever trains the model may switch it while the pass is under way
    own = {} if compiled else {id(module): 1 for module in model.modules() if _is_ours(module)}
    others = [module for module in model.modules() if compiled or not _is_ours(module)]
    _here.evaluated.update(own)
    switched = _switch(others)
    try:
        yield
    finally:
        _put_back(switched)
        for key in own:
            _here.evaluated[key] -= 1
            if not _here.evaluated[key]:
                del _here.evaluated[key]


def require_gradients(model: nn.Module, what: str) -> None:
    """Raise `AnalysisUnavailable` where no graph can be kept: under inference mode, or of weights made under it."""
    if torch.is_inference_mode_enabled():
        raise AnalysisUnavailable(
            f"{what} takes gradients, and torch.inference_mode() keeps no graph for them.\n"
            "    Call it outside of that; torch.no_grad() does no harm."
        )
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise AnalysisUnavailable(
            f"{what} takes gradients, and the weights were made under torch.inference_mode(), which forbids it.\n"
            "    Load or build the model outside of that."
        )


def computed(values: Tensor, what: str, tape: Tape | None = None) -> Tensor:
    """Return what a pass made; raises `AnalysisUnavailable` if an analysis is at work and it is NaN or overflowed.

    Every answer about a text is made of these numbers. A pass that no analysis asked for gives what comes out, so that
    reading its sites shows where it begins; so does one that is edited, since what an edit makes of the model is what
    was asked. Of logits -inf is a token that cannot come.
    """
    if not torch.compiler.is_compiling() and is_gathering() and not (tape is not None and tape.edits):
        require_computed(values, what)
    return values


def require_computed(values: Tensor, what: str) -> None:
    """Raise `AnalysisUnavailable` if what a pass made holds NaN or infinity; -inf masks a score, or bars a token."""
    # the largest of numbers with a NaN among them is NaN
    if is_finite(values) or (not values.is_complex() and bool(values.amax() < torch.inf)):
        return
    raise AnalysisUnavailable(
        f"the {what} of this pass: NaN or infinite, so nothing can be said of what the model does with this text.\n"
        "    glassformer.load says which weights are not finite; gf.run(model, text, read='*') shows where the "
        "pass begins not to be. In float16 a pass overflows that does not in bfloat16 or float32."
    )


def _switch(modules: list[nn.Module]) -> list[nn.Module]:
    """Put modules into evaluation mode; return those that were in training mode before the first pass under way."""
    with _lock:
        found = [module for module in modules if module.training or module in _switched]
        for module in found:
            _switched[module] = _switched.get(module, 0) + 1
            module.training = False
    return found


def _put_back(modules: list[nn.Module]) -> None:
    with _lock:
        for module in modules:
            _switched[module] -= 1
            if not _switched[module]:
                del _switched[module]
                module.training = True


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("glassformer.") or isinstance(module, _CONTAINERS)


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules
