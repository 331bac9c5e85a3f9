"""Ours against the reference implementation of the `transformers` library, site by site.

    parity("path/to/checkpoint")      loads it twice and compares; the first site that differs is named

The reference runs with eager attention, and where float64 is asked for, in float64 throughout: its own casts to float32
(norms, softmax, angles) are widened on the way, so that what is left of a difference is rounding.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from glassformer.errors import MissingExtra
from glassformer.models import Decoder, Encoder
from glassformer.trace import Tape


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


@dataclass(frozen=True)
class Difference:
    """How far a site is from the reference's.

    Args:
        site: Ours.
        error: Largest absolute difference over the root mean square of the reference.
    """

    site: str
    error: float


@dataclass(frozen=True)
class Parity:
    """A comparison with the reference.

    Args:
        reference: Its class.
        family: What ours was read as.
        dtype: Both ran in.
        tolerance: Largest error that counts as equal.
        differences: In the order of the forward pass.
    """

    reference: str
    family: str
    dtype: str
    tolerance: float
    differences: tuple[Difference, ...]

    @property
    def first(self) -> Difference | None:
        """The first site beyond the tolerance."""
        return next((d for d in self.differences if not d.error <= self.tolerance), None)

    @property
    def worst(self) -> Difference:
        """The site with the largest error."""
        return max(self.differences, key=lambda d: float("inf") if d.error != d.error else d.error)


def reference(folder: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return the reference model of a folder, in evaluation mode, with eager attention.

    Raises:
        MissingExtra: `transformers` is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("parity needs the library to compare with: pip install transformers") from error
    config: Any = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    own = getattr(transformers, (config.architectures or [""])[0], None)
    kind: Any = own if own is not None else transformers.AutoModelForCausalLM
    # the reference's product over groups of experts knows no float64
    config._experts_implementation = "eager"
    with wide(dtype):
        model = kind.from_pretrained(
            folder, config=config, attn_implementation="eager", dtype=dtype, local_files_only=True
        )
    return model.eval()


def wide(dtype: torch.dtype) -> Any:
    """Return the context in which a reference computes in this type throughout."""
    import contextlib

    return Wide() if dtype == torch.float64 else contextlib.nullcontext()


def relative(ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> float:
    """Return the largest difference over the reference's root mean square; infinite if shapes differ.

    Args:
        ours: A tensor `batch ...`.
        theirs: The reference.
        real: Which positions count, of the shape of the leading axes.
    """
    if ours.shape != theirs.shape:
        return float("inf")
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if real is not None:
        ours, theirs = ours[real], theirs[real]
    scale = theirs.square().mean().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    error = (ours - theirs).abs().max() / scale if ours.numel() else torch.zeros(())
    return float(error)


def compared(
    ours: Any,
    theirs: Any,
    tokens: Tensor,
    lengths: Tensor | None = None,
    *,
    source: Tensor | None = None,
    source_lengths: Tensor | None = None,
) -> Iterator[Difference]:
    """Yield the differences of one forward pass: streams, patterns and logits, in the order of the pass.

    Args:
        ours: Our model.
        theirs: The reference.
        tokens: Ids, `batch pos`, padded on the right.
        lengths: Real tokens per row.
        source: Ids that the encoder of an encoder-decoder reads.
        source_lengths: Real tokens per source row.
    """
    real, read = _real(tokens, lengths), None if source is None else _real(source, source_lengths)
    given: dict[str, Any] = {"output_hidden_states": True, "output_attentions": True}
    if source is None:
        given |= {"input_ids": tokens} | ({} if lengths is None else {"attention_mask": real.long()})
    else:
        given |= {"input_ids": source, "decoder_input_ids": tokens}
        given |= {} if source_lengths is None else {"attention_mask": read.long()}  # type: ignore[union-attr]
        given |= {} if lengths is None else {"decoder_attention_mask": real.long()}
    # an encoder has no cache to be told of
    given |= {} if isinstance(ours, Encoder) else {"use_cache": False}
    with torch.no_grad(), wide(next(theirs.parameters()).dtype):
        expected = theirs(**given)
    names = [n for n in ours.sites() if n.endswith((".resid_pre", ".pattern", ".attn.patterns", "final.norm"))]
    tape = Tape(ours, names)
    with torch.no_grad():
        if source is None:
            logits = ours(tokens, lengths=lengths, tape=tape)
        else:
            logits = ours(source, tokens, source_lengths=source_lengths, lengths=lengths, tape=tape)
    if isinstance(ours, Decoder) and ours.unembed.map is not None:
        # where the unembedding is narrower than the stream, the reference's last state is what the narrow one reads
        tape.values["final.norm"] = ours.unembed.map(tape.values["final.norm"])
    if source is None:
        yield from _stack("", tape, expected.hidden_states, expected.attentions, None, real)
    else:
        assert read is not None, "a source was given"
        yield from _stack("encoder.", tape, expected.encoder_hidden_states, expected.encoder_attentions, None, read)
        hidden, attentions = expected.decoder_hidden_states, expected.decoder_attentions
        yield from _stack("decoder.", tape, hidden, attentions, expected.cross_attentions, real)
    if (theirs_logits := getattr(expected, "logits", None)) is not None:
        yield Difference("logits", relative(logits, theirs_logits, real))


def _real(tokens: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    return torch.arange(tokens.shape[1], device=tokens.device)[None] < lengths[:, None]


def _stack(prefix: str, tape: Tape, hidden: Any, attentions: Any, crossed: Any, real: Tensor) -> Iterator[Difference]:
    for layer, stream in enumerate(hidden):
        at_end = layer == len(hidden) - 1
        site = f"{prefix}final.norm" if at_end else f"{prefix}blocks.{layer}.resid_pre"
        yield Difference(site, relative(tape.values[site], stream, real))
        for part, patterns in (("attn", attentions), ("cross", crossed)):
            if not at_end and patterns is not None:
                pattern = f"{prefix}blocks.{layer}.{part}.pattern"
                found = tape.values[pattern]
                if (maps := f"{pattern}s") in tape.values:
                    # the reference gives each map of a differential head for a head of its own
                    pattern, found = maps, tape.values[maps].flatten(1, 2)
                rows = real[:, None].expand(-1, patterns[layer].shape[1], -1)
                yield Difference(pattern, relative(found, patterns[layer], rows))


def report(differences: Mapping[str, float]) -> str:
    """Return differences as lines, for messages."""
    return "\n".join(f"{site}: {error:.2e}" for site, error in differences.items())
