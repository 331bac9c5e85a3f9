"""What every family's parity test does: a tiny random reference is saved, loaded by ours, and compared.

Compared are logits, every hidden state, eager patterns, rows of unequal length padded on either side, and 50 greedy
tokens generated from a cache: within 1e-9 of the reference's root mean square in float64, 1e-4 in float32.

A module here registers the cases of one family, several that differ in heads, biases, ties and scales:

    @case("Llama")
    def llama_grouped_keys():
        return LlamaForCausalLM, LlamaConfig(...)
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import glassformer as gf
from glassformer.checkpoints.parity import compared, relative, wide
from strategies import randomise

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
STEPS = 50


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
    with wide(dtype):
        model = randomise(kind(config).to(dtype).eval(), std=std)
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
    ours: Any = gf.load(folder, dtype=dtype)
    vocab = ours.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocab, (3, length), generator=generator)
    lengths = torch.tensor([length, length - 3, 1])
    errors = {d.site: d.error for d in compared(ours, theirs, tokens)}
    errors |= {f"{d.site}, padded right": d.error for d in compared(ours, theirs, tokens, lengths)}
    errors["padded left"] = left_padded(ours, theirs, tokens, lengths)
    steps = min(STEPS, ours.config.max_len - length)
    errors["cached generation"] = generated(ours, theirs, tokens[:2], steps)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


def left_padded(ours: Any, theirs: Any, tokens: Tensor, lengths: Tensor) -> float:
    """Return the error of logits where rows of unequal length are padded on the left."""
    total = tokens.shape[1]
    real = torch.arange(total)[None] >= total - lengths[:, None]
    positions = (real.long().cumsum(-1) - 1).clamp_min(0)
    given = {"attention_mask": real.long()}
    # models without position ids count by the mask
    if "position_ids" in inspect.signature(theirs.forward).parameters:
        given["position_ids"] = positions
    with torch.no_grad(), wide(next(theirs.parameters()).dtype):
        expected = theirs(input_ids=tokens, use_cache=False, **given).logits
    with torch.no_grad():
        logits, _ = ours(tokens, lengths=lengths, state=ours.begin(len(tokens)))
    return relative(logits, expected, real)


def generated(ours: Any, theirs: Any, tokens: Tensor, steps: int) -> float:
    """Return the error of logits over greedy steps from a cache; infinite if a token differs."""
    worst = 0.0
    dtype = next(theirs.parameters()).dtype
    state, cache, new = ours.begin(len(tokens)), None, tokens
    for _ in range(steps):
        with torch.no_grad(), wide(dtype):
            out = theirs(input_ids=new, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        with torch.no_grad():
            logits, state = ours(new, state=state)
        worst = max(worst, relative(logits[:, -1], out.logits[:, -1]))
        chosen = out.logits[:, -1].argmax(-1)
        if not torch.equal(chosen, logits[:, -1].argmax(-1)):
            return float("inf")
        new = chosen[:, None]
    return worst
