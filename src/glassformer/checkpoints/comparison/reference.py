"""What the reference implementation in the `transformers` library computes at our sites, and how far ours is from it.

The reference runs with eager attention, and where float64 is asked for, in float64 throughout: its own casts to float32
(norms, softmax, angles) are widened on the way, so that what is left of a difference is rounding.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.errors import CheckpointError, MissingExtra
from glassformer.models.norms import Norm
from glassformer.numerics.placement import NumberType, number_type
from glassformer.trace import Site, Tape

DIVERGES = float("inf")


class Wide(TorchFunctionMode):
    """Inside this, whatever asks for float32 gets float64, and so does what asks for nothing."""

    def __enter__(self) -> "Wide":
        # a Python number times integers is of the default type
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(self.default)
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        if func is Tensor.float:
            func = Tensor.double
        return func(*args, **kwargs)


def wide(dtype: torch.dtype) -> Any:
    """Return the context in which a reference computes in this type throughout."""
    return Wide() if dtype == torch.float64 else contextlib.nullcontext()


@dataclass(frozen=True)
class Difference:
    """How far a site is from the reference's.

    Args:
        site: Ours.
        error: Largest absolute difference over the root mean square of the reference; infinite where shapes or chosen
            tokens differ.
        rows: Which rows were run: of one length, padded right, padded left, cached.
        theirs: The reference's module that gives the same, where there is one.
        rounding: How far ours is there from itself in float64, in the same unit: what the size of the numbers that were
            summed leaves of a float32. Measured where an error is beyond the tolerance, else 0.
    """

    site: str
    error: float
    rows: str = "one length"
    theirs: str = ""
    rounding: float = 0.0


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


def reference(folder: str | Path, dtype: NumberType = torch.float32, attention: str = "eager") -> Any:
    """Return the reference model of a folder, in evaluation mode, with eager attention unless another is named.

    Code that a checkpoint brings along is not run.

    Raises:
        MissingExtra: `transformers` is not installed.
        CheckpointError: The library cannot open the folder.
    """
    transformers, kind = library(), number_type(dtype) or torch.float32
    try:
        config: Any = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        made = _class_of(transformers, config)
        # the reference's product over groups of experts knows no float64
        config._experts_implementation = "eager"
        if getattr(config, "hash_seed", 0) is None:
            # one that hashes anew at every pass is no reference; without a seed ours hashes by 0
            config.hash_seed = 0
        with wide(kind):
            model = made.from_pretrained(
                folder, config=config, attn_implementation=attention, dtype=kind, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        raise CheckpointError(
            f'transformers {transformers.__version__} cannot open "{folder}" ({type(error).__name__}: {error}); '
            "a newer version may know this architecture."
        ) from error
    if getattr(model, "_hf_peft_config_loaded", False):
        # where peft is installed, the library puts an adapter on that lies beside the weights
        model.disable_adapters()
    if kind == torch.float64:
        set_sines(model)
    return model.eval()


def _class_of(transformers: Any, config: Any) -> Any:
    """Return the class a config asks for; where that is of another config, the one the library picks."""
    own = getattr(transformers, (config.architectures or [""])[0], None)
    if own is not None and own.config_class is type(config):
        return own
    picks = (transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM, transformers.AutoModelForSeq2SeqLM)
    return next((auto for auto in picks if type(config) in auto._model_mapping), transformers.AutoModelForCausalLM)


def cache_argument(theirs: Any) -> str:
    """What a reference calls the cache or the state that it takes and returns."""
    named = inspect.signature(theirs.forward).parameters
    return next((name for name in ("cache_params", "state") if name in named), "past_key_values")


def carries_state(theirs: Any) -> bool:
    """Whether a reference carries a state of its own kind from step to step, in place of keys and values.

    Those there are read padding as if it were text, whatever the mask says, and one row at a time in single steps.
    """
    return cache_argument(theirs) == "state"


def set_sines(theirs: Any) -> None:
    """Make fixed sines anew in the precision of a reference's weights; it computes them once, and rounds to float32."""
    for module in theirs.modules():
        if hasattr(module, "create_weight"):
            n, width = module.weight.shape
            half = torch.arange(width // 2, dtype=torch.float64)
            angle = torch.arange(n, dtype=torch.float64)[:, None] / 10000 ** (2 * half / width)
            module.weight.data.copy_(torch.cat((angle.sin(), angle.cos()), -1))


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


def real_positions(tokens: Tensor, lengths: Tensor | None, *, left: bool = False) -> Tensor:
    """Return which positions hold tokens and no padding, `batch pos`.

    Args:
        tokens: Ids, `batch pos`.
        lengths: Real tokens per row; all by default.
        left: Whether padding is on the left.
    """
    if lengths is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    total = tokens.shape[1]
    positions = torch.arange(total, device=tokens.device)[None]
    return positions >= total - lengths[:, None] if left else positions < lengths[:, None]


def recorded(
    theirs: Any,
    tokens: Tensor,
    lengths: Tensor | None = None,
    *,
    source: Tensor | None = None,
    source_lengths: Tensor | None = None,
    modules: Mapping[str, str] | None = None,
) -> dict[str, Tensor]:
    """Return what a reference computes, by our sites: streams, patterns, what modules give, and logits.

    Args:
        theirs: The reference.
        tokens: Ids, `batch pos`, padded on the right.
        lengths: Real tokens per row.
        source: Ids that the encoder of an encoder-decoder reads.
        source_lengths: Real tokens per source row.
        modules: Its modules by our site, see `counterparts`; those it does not have are left out.
    """
    # attention that is not eager gives no patterns
    eager = theirs.config._attn_implementation == "eager" and not carries_state(theirs)
    given: dict[str, Any] = {"output_hidden_states": True, "output_attentions": eager}
    # an encoder has no cache to be told of
    given |= {"use_cache": False} if "use_cache" in inspect.signature(theirs.forward).parameters else {}
    own = {} if lengths is None else {"attention_mask": real_positions(tokens, lengths).long()}
    if source is None:
        given |= {"input_ids": tokens} | own
    else:
        given |= {"input_ids": source, "decoder_input_ids": tokens}
        given |= {f"decoder_{name}": mask for name, mask in own.items()}
        if source_lengths is not None:
            given["attention_mask"] = real_positions(source, source_lengths).long()
    values: dict[str, Tensor] = {}
    with torch.no_grad(), wide(next(theirs.parameters()).dtype), _watched(theirs, modules or {}, values):
        out = theirs(**given)
    # some modules see batch and position as one axis
    for site, value in values.items():
        side = source if source is not None and Site.named(site).stack == "encoder" else tokens
        value = value.unflatten(0, side.shape) if value.ndim == 2 else value
        # some fill a text up to a multiple of their window
        values[site] = value[:, : side.shape[1]]
    if carries_state(theirs):
        values |= _behind(out.hidden_states)
    elif source is None:
        banded = getattr(theirs.config, "attention_window", None) is not None
        # what has no patterns gives none
        patterns = getattr(out, "attentions", None)
        patterns = tuple(map(_square, patterns or ())) if banded else patterns
        values |= _stack("", out.hidden_states, patterns, behind=cache_argument(theirs) == "cache_params")
    else:
        values |= _stack("encoder.", out.encoder_hidden_states, out.encoder_attentions)
        values |= _stack("decoder.", out.decoder_hidden_states, out.decoder_attentions, out.cross_attentions)
    logits = getattr(out, "logits", None)
    return values if logits is None else values | {"logits": logits}


def _stack(
    prefix: str, hidden: Any, attentions: Any, crossed: Any = None, *, behind: bool = False
) -> dict[str, Tensor]:
    """Return streams and patterns by our sites; streams are those before each layer, or `behind` it."""
    *streams, last = hidden
    place = "resid_post" if behind else "resid_pre"
    values = {f"{prefix}blocks.{layer}.{place}": stream for layer, stream in enumerate(streams)}
    for part, patterns in (("attn", attentions), ("cross", crossed)):
        values |= {f"{prefix}blocks.{layer}.{part}.pattern": pattern for layer, pattern in enumerate(patterns or ())}
    return values | {f"{prefix}final.norm": last}


def _behind(hidden: Any) -> dict[str, Tensor]:
    """Return streams that a reference keeps as they leave its blocks, and not as they enter them."""
    *leaving, last = hidden
    return {f"blocks.{layer}.resid_post": stream for layer, stream in enumerate(leaving)} | {"final.norm": last}


def _square(band: Tensor) -> Tensor:
    """Return a pattern over all keys from one over those near each query: as many before it as after it, and itself."""
    n, width = band.shape[-2:]
    keys = torch.arange(n)[:, None] + torch.arange(width) - width // 2
    there = (keys >= 0) & (keys < n)
    found = band.new_zeros(*band.shape[:-1], n)
    return found.scatter_add(-1, keys.clamp(0, n - 1).expand_as(band), band.masked_fill(~there, 0.0))


@contextlib.contextmanager
def _watched(theirs: Any, modules: Mapping[str, str], values: dict[str, Tensor]) -> Iterator[None]:
    """Keep, by our site, what modules of the reference give while this lasts."""
    there = dict(theirs.named_modules())

    def keeper(place: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, out: Any) -> None:
            if isinstance(out, Tensor):
                # some models add to it in place afterwards
                values[place] = out.clone()

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


def relative(ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> float:
    """Return the largest difference over the reference's root mean square; infinite if shapes differ.

    Args:
        ours: A tensor `batch ...`.
        theirs: The reference.
        real: Which positions count, of the shape of the leading axes.
    """
    if ours.shape != theirs.shape:
        return DIVERGES
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if real is not None:
        ours, theirs = ours[real], theirs[real]
    scale = theirs.square().mean().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    error = (ours - theirs).abs().max() / scale if ours.numel() else torch.zeros(())
    return float(error)


def of_texts(ours: Any, logits: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return the logits of a text's classes, at the position that stands for it: `batch class`.

    Args:
        ours: The model.
        logits: At all positions, padded on the right.
        lengths: Real tokens per row.
    """
    if not ours.predicts_next:
        return logits[:, 0]
    return logits[:, -1] if lengths is None else logits[torch.arange(len(logits)), lengths - 1]


def compared(
    ours: Any,
    theirs: Any,
    tokens: Tensor,
    lengths: Tensor | None = None,
    *,
    source: Tensor | None = None,
    source_lengths: Tensor | None = None,
    modules: Mapping[str, str] | None = None,
) -> Iterator[Difference]:
    """Yield the differences of one forward pass, in its order: streams, patterns, what modules give, and logits.

    Args:
        ours: Our model.
        theirs: The reference.
        tokens: Ids, `batch pos`, padded on the right.
        lengths: Real tokens per row.
        source: Ids that the encoder of an encoder-decoder reads.
        source_lengths: Real tokens per source row.
        modules: Its modules by our site, see `counterparts`.
    """
    pair: dict[str, Any] = {"source": source, "source_lengths": source_lengths}
    recording = recorded(theirs, tokens, lengths, modules=modules, **pair)
    yield from compared_with(ours, recording, tokens, lengths, **pair)


def compared_with(
    ours: Any,
    recording: Mapping[str, Tensor],
    tokens: Tensor,
    lengths: Tensor | None = None,
    *,
    source: Tensor | None = None,
    source_lengths: Tensor | None = None,
) -> Iterator[Difference]:
    """Yield the differences between one forward pass and what was recorded of the reference's.

    Args:
        ours: Our model.
        recording: By our sites, see `recorded`.
        tokens: Ids, `batch pos`, padded on the right.
        lengths: Real tokens per row.
        source: Ids that the encoder of an encoder-decoder reads.
        source_lengths: Real tokens per source row.
    """
    rows = "one length" if lengths is None and source_lengths is None else "padded right"
    real = real_positions(tokens, lengths)
    read = None if source is None else real_positions(source, source_lengths)
    order = {site: place for place, site in enumerate(ours.sites())}
    # the reference gives each map of a differential head for a head of its own
    places = {name: maps if (maps := f"{name}s") in order else name for name in recording}
    there = sorted((name for name in recording if places[name] in order), key=lambda name: order[places[name]])
    tape = Tape(ours, [*dict.fromkeys(places[name] for name in there)])
    with torch.no_grad():
        if source is None:
            ours(tokens, lengths=lengths, tape=tape)
        else:
            ours(source, tokens, source_lengths=source_lengths, lengths=lengths, tape=tape)
    for name in recording:
        if name not in there:
            yield Difference(name, DIVERGES, rows)
    for name in there:
        mine = tape.values[places[name]]
        if places[name] != name:
            mine = mine.flatten(1, 2)
        elif mine.ndim == 5:
            # a row of it is zero for all values but one
            mine = mine.sum(1)
        elif name == "final.norm" and getattr(ours.config, "d_embed", None) is not None:
            # where the unembedding is narrower than the stream, the reference's last state is what the narrow one reads
            mine = ours.unembed.map(mine)
        if name == "logits" and getattr(ours.config, "classifies", None) == "text":
            # theirs are of whole texts
            yield Difference(name, relative(of_texts(ours, mine, lengths), recording[name]), rows)
            continue
        here = read if read is not None and Site.named(name).stack == "encoder" else real
        if mine.ndim == 4:
            here = here[:, None].expand(-1, mine.shape[1], -1)
        yield Difference(places[name], relative(mine, recording[name], here), rows)
