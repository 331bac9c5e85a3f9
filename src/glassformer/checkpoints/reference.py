"""The reference implementation of a checkpoint, in the `transformers` library, and what it computes at our sites.

It runs with eager attention, and where float64 is asked for, in float64 throughout: its own casts to float32 (norms,
softmax, angles) are widened on the way, so that what is left of a difference is rounding.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.errors import CheckpointError, MissingExtra
from glassformer.models.parts import Norm


class Wide(TorchFunctionMode):
    """Inside this, whatever asks for float32 gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        if func is Tensor.float:
            func = Tensor.double
        return func(*args, **kwargs)


def wide(dtype: torch.dtype) -> Any:
    """Return the context in which a reference computes in this type throughout."""
    return Wide() if dtype == torch.float64 else contextlib.nullcontext()


def library() -> Any:
    """Return the `transformers` module.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("parity needs transformers to compare with: pip install 'glassformer[parity]'.") from error
    return transformers


def reference(folder: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return the reference model of a folder, in evaluation mode, with eager attention.

    Code that a checkpoint brings along is not run.

    Raises:
        MissingExtra: `transformers` is not installed.
        CheckpointError: The library cannot open the folder.
    """
    transformers = library()
    try:
        config: Any = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        own = getattr(transformers, (config.architectures or [""])[0], None)
        kind: Any = own if own is not None else transformers.AutoModelForCausalLM
        with wide(dtype):
            model = kind.from_pretrained(folder, attn_implementation="eager", dtype=dtype, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        raise CheckpointError(
            f'transformers {transformers.__version__} cannot open "{folder}" ({type(error).__name__}: {error}); '
            "a newer version may know this architecture."
        ) from error
    return model.eval()


def counterparts(checkpoint: Checkpoint) -> dict[str, str]:
    """Return, by our site, the name of the reference's module that gives the same: norms and what parts write.

    The family's table says which weights are whose, and thereby which modules.
    """
    modules = dict(checkpoint.model.named_modules())
    found: dict[str, str] = {}
    for name, source in checkpoint.parts.items():
        path, _, tensor = name.rpartition(".")
        place = _given_by(path, modules)
        if tensor == "weight" and place is not None and len(source.pieces) == 1:
            found[place] = source.pieces[0].name.removesuffix(".weight")
    return found


def _given_by(path: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Return the site that holds what a module gives; None for one that has no site to itself."""
    module: Any = modules.get(path)
    if isinstance(module, Norm):
        return module.at_out
    for end in (".merge.output", ".output"):
        owner: Any = modules.get(path.removesuffix(end)) if path.endswith(end) else None
        if owner is not None and hasattr(owner, "at"):
            return getattr(owner.at, "out", None)
    return None


def recorded(
    theirs: Any, tokens: Tensor, lengths: Tensor | None = None, modules: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Return what a decoder's reference computes, by our sites: streams, patterns, what modules give, and logits.

    Args:
        theirs: The reference.
        tokens: Ids, `batch pos`, padded on the right.
        lengths: Real tokens per row.
        modules: Its modules by our site, see `counterparts`; those it does not have are left out.
    """
    given = {} if lengths is None else {"attention_mask": real_positions(tokens, lengths).long()}
    values: dict[str, Tensor] = {}
    with torch.no_grad(), wide(next(theirs.parameters()).dtype), _watched(theirs, modules or {}, values):
        out = theirs(input_ids=tokens, output_hidden_states=True, output_attentions=True, use_cache=False, **given)
    # a module may see positions and batch as one axis
    values = {site: value.unflatten(0, tokens.shape) if value.ndim == 2 else value for site, value in values.items()}
    *entering, last = out.hidden_states
    values |= {f"blocks.{layer}.resid_pre": hidden for layer, hidden in enumerate(entering)}
    values |= {f"blocks.{layer}.attn.pattern": pattern for layer, pattern in enumerate(out.attentions)}
    return values | {"final.norm": last, "logits": out.logits}


def real_positions(tokens: Tensor, lengths: Tensor, *, left: bool = False) -> Tensor:
    """Return which positions hold tokens and no padding, `batch pos`.

    Args:
        tokens: Ids, `batch pos`.
        lengths: Real tokens per row.
        left: Whether padding is on the left.
    """
    total = tokens.shape[1]
    positions = torch.arange(total)[None]
    return positions >= total - lengths[:, None] if left else positions < lengths[:, None]


def recorded_left_padded(theirs: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Return a reference's logits for rows of unequal length that are padded on the left."""
    real = real_positions(tokens, lengths, left=True)
    given = {"attention_mask": real.long()}
    # models without position ids count by the mask
    if "position_ids" in inspect.signature(theirs.forward).parameters:
        given["position_ids"] = (real.long().cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad(), wide(next(theirs.parameters()).dtype):
        return theirs(input_ids=tokens, use_cache=False, **given).logits


def recorded_steps(theirs: Any, tokens: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return the greedy tokens of a reference, `batch step`, and the logits each was chosen by, from its cache.

    Args:
        theirs: The reference.
        tokens: Where it begins, `batch pos`.
        steps: How many tokens.
    """
    chosen, logits = [], []
    cache, new = None, tokens
    for _ in range(steps):
        with torch.no_grad(), wide(next(theirs.parameters()).dtype):
            out = theirs(input_ids=new, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits[:, -1])
        new = logits[-1].argmax(-1)[:, None]
        chosen.append(new)
    return torch.cat(chosen, 1), torch.stack(logits, 1)


@contextlib.contextmanager
def _watched(theirs: Any, modules: Mapping[str, str], values: dict[str, Tensor]) -> Iterator[None]:
    """Keep, by our site, what modules of the reference give while this lasts."""
    there = dict(theirs.named_modules())

    def keeper(place: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, out: Any) -> None:
            if isinstance(out, Tensor):
                values[place] = out

        return keep

    hooks = []
    for place, name in modules.items():
        # files and live models may differ by a prefix
        same = [n for n in there if n and (n == name or n.endswith(f".{name}") or name.endswith(f".{n}"))]
        if len(same) == 1:
            hooks.append(there[same[0]].register_forward_hook(keeper(place)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
