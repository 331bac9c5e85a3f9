"""What every family's parity test does: a tiny random reference is saved, loaded by ours, and compared.

Compared are logits, every hidden state, eager patterns, rows of unequal length padded on either side, and 50 greedy
tokens generated from a cache: within 1e-9 of the reference's root mean square in float64, 1e-4 in float32.

A module here registers the cases of one family, several that differ in heads, biases, ties and scales:

    @case("Llama")
    def llama_grouped_keys():
        return LlamaForCausalLM, LlamaConfig(...)
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import glassformer as gf
from glassformer.checkpoints.comparison import whole_checkpoint
from glassformer.checkpoints.comparison.reference import set_sines, wide
from glassformer.checkpoints.comparison.whole_checkpoint import TOLERANCE, comparisons_of
from glassformer.checkpoints.loading import open_folder
from glassformer.testing.layers import randomise

STEPS = 50
# what configs call the epsilon of their norms, and one that is no library's default: a field nobody read would show
EPSILONS, EPSILON = ("_eps", "_epsilon"), 0.03


@dataclass(frozen=True)
class Case:
    """One tiny checkpoint of a family.

    Args:
        family: The family it has to be read as.
        make: Gives the reference's class and config.
        check: Saves, loads and compares; returns errors by what was compared.
    """

    family: str
    make: Callable[[], tuple[Any, Any]]
    check: Callable[[Any, Any, Path, torch.dtype], dict[str, float]]


CASES: dict[str, Case] = {}


def case(family: str, check: Callable[..., dict[str, float]] | None = None) -> Callable[[Any], Any]:
    """Register a case under its function's name; decoders are compared by `check_decoder`."""

    def register(make: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
        assert make.__name__ not in CASES, f"two cases are called {make.__name__}"
        CASES[make.__name__] = Case(family, make, check or check_decoder)
        return make

    return register


def all_cases() -> dict[str, Case]:
    """Return the cases of all modules here."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return CASES


def reference_folder(kind: Any, config: Any, folder: Path, dtype: torch.dtype, std: float = 0.3) -> Any:
    """Build a reference model with random weights of visible size, save it, and return it."""
    # the product over groups of experts knows no float64
    config._attn_implementation = config._experts_implementation = "eager"
    for name in [name for name in vars(config) if name.endswith(EPSILONS)]:
        setattr(config, name, EPSILON)
    with wide(dtype):
        model = randomise(kind(config).to(dtype).eval(), std=std)
        # tables of sines are drawn at random with all else
        set_sines(model)
    model.save_pretrained(folder)
    return model


def check_decoder(
    kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64, length: int = 7
) -> dict[str, float]:
    """Compare a decoder with its reference in everything; return the largest error of each comparison.

    Args:
        kind: The reference's class.
        config: Its config, tiny.
        folder: Where the checkpoint is saved.
        dtype: Both run in.
        length: Tokens per row.
    """
    theirs = reference_folder(kind, config, folder, dtype)
    errors, _ = compared_whole(theirs, folder, dtype, length)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


def compared_whole(
    theirs: Any, folder: Path, dtype: torch.dtype, length: int = 7, first: int = 0
) -> tuple[dict[str, float], Any]:
    """Return the error of each comparison of a reference with the folder it was saved in, and our model.

    Args:
        theirs: The reference.
        folder: The checkpoint.
        dtype: Both run in.
        length: Tokens per row.
        first: The smallest id that is drawn: those below may be padding, which some references treat as such.
    """
    checkpoint = open_folder(folder)
    generator = torch.Generator().manual_seed(0)
    config: Any = checkpoint.config
    tokens = torch.randint(first, getattr(config, "n_sources", config.vocab_size), (3, length), generator=generator)
    comparisons = comparisons_of(checkpoint, theirs, tokens, STEPS)
    ours: Any = gf.load(folder, dtype=dtype)
    with torch.no_grad():
        return {f"{d.site}, {d.rows}": d.error for part in comparisons for d in part(ours)}, ours


def left_padded(ours: Any, theirs: Any, tokens: Tensor, lengths: Tensor) -> float:
    """Return the error of logits where rows of unequal length are padded on the left."""
    return _error(whole_checkpoint.left_padded(theirs, tokens, lengths), ours)


def generated(ours: Any, theirs: Any, tokens: Tensor, steps: int) -> float:
    """Return the error of logits over greedy steps from a cache; infinite if a token differs."""
    return _error(whole_checkpoint.generated(theirs, tokens, steps), ours)


def _error(found: whole_checkpoint.Comparison, ours: Any) -> float:
    with torch.no_grad():
        return max(difference.error for difference in found(ours))
