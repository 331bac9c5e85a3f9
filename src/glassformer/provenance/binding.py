"""What a result is of: model, weights, input, precision, seed and versions.

A `Binding` is made when something is computed and costs next to nothing; `said` makes a `Provenance` of it when it is
exported. The model is held weakly: a result keeps no weights in memory.
"""

import copy
import dataclasses
import hashlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from glassformer.provenance.digest import digest, is_cheap, known_digest, state
from glassformer.version import __version__
from glassformer.words import sentence

SHOWN_CHARACTERS, SHOWN_IDS, SHOWN_INPUTS = 240, 64, 8


@dataclasses.dataclass(frozen=True)
class Given:
    """One input, as it can be shown.

    Args:
        shown: The text, or its ids; of a long one the beginning.
        size: How long it is, in characters or ids by row.
        sha256: Digest of the whole, if not all of it is shown.
    """

    shown: str
    size: str
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What a result is of.

    Args:
        analysis: Function that made it.
        model: Name of the model.
        digest: Of its weights and config, `files:…` or `weights:…`; empty if it is not known, and `why` says why not.
        why: Why there is no digest.
        trained_length: Tokens of the longest rows of its training; None if that is not known.
        dtype: Of its weights.
        device: Where it ran.
        input: What it read; empty for what is asked of weights alone.
        seed: Of what was drawn; None if nothing is.
        version: Of this package.
        torch: Version of PyTorch.
    """

    analysis: str
    model: str
    digest: str
    why: str
    trained_length: int | None
    dtype: str
    device: str
    input: tuple[Given, ...]
    seed: int | None
    version: str
    torch: str

    def said(self) -> "Provenance":
        return self

    def of(self, analysis: str, inputs: Sequence[Any] = (), seed: int | None = None) -> Self:
        """Return that of a result made from one with this provenance."""
        return dataclasses.replace(self, analysis=analysis, input=(*self.input, *given(inputs)), seed=seed)

    def reading(self, inputs: Sequence[Any]) -> Self:
        """Return that of a part of what was read."""
        return dataclasses.replace(self, input=given(inputs))

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return dataclasses.asdict(self) | {"input": [dataclasses.asdict(one) for one in self.input]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Provenance":
        return cls(**{**data, "input": tuple(Given(**one) for one in data["input"])})


class Binding:
    """What a result is of, bound when it is made and put into words when it is exported.

    Texts and ids are held as they were given, and are not read before they are exported; weights are not held, nor read
    if that would take long (see `digest.MOST_BYTES`), unless their digest is known already.

    Args:
        analysis: Function that makes the result.
        model: What ran.
        inputs: What it read: texts, ids, batches.
        seed: Of what is drawn.
    """

    def __init__(self, analysis: str, model: nn.Module, inputs: Sequence[Any] = (), seed: int | None = None) -> None:
        first = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.analysis, self.inputs, self.seed = analysis, tuple(inputs), seed
        self.name = str(getattr(model, "name", "") or type(model).__name__)
        self.trained_length: int | None = getattr(model, "trained_length", None)
        self.dtype = "" if first is None else str(first.dtype).removeprefix("torch.")
        self.device = "" if first is None else str(first.device)
        self._model: weakref.ref[nn.Module] | None = weakref.ref(model)
        self._state = state(model)
        self._digest = known_digest(model, self._state)

    def of(self, analysis: str, inputs: Sequence[Any] = (), seed: int | None = None) -> Self:
        """The binding of a result made from one that is bound."""
        found = copy.copy(self)
        found.analysis, found.inputs, found.seed = analysis, (*self.inputs, *inputs), seed
        return found

    def reading(self, inputs: Sequence[Any]) -> Self:
        """The binding of a part of what was read."""
        found = copy.copy(self)
        found.inputs = tuple(inputs)
        return found

    def said(self) -> Provenance:
        """Return it in words, with the digest of the weights as they were."""
        found, why = self._weights()
        return Provenance(
            analysis=self.analysis,
            model=self.name,
            digest=found,
            why=why,
            trained_length=self.trained_length,
            dtype=self.dtype,
            device=self.device,
            input=given(self.inputs),
            seed=self.seed,
            version=__version__,
            torch=str(torch.__version__),
        )

    def _weights(self) -> tuple[str, str]:
        """Return the digest of the weights when the result was made, or why it cannot be said any more."""
        if self._digest:
            return self._digest, ""
        model = None if self._model is None else self._model()
        if model is None:
            return "", sentence("the model is gone, and its digest was not asked for while it was there")
        if state(model) != self._state:
            return "", sentence("the weights were changed since")
        if not known_digest(model, self._state) and not is_cheap(model):
            return "", sentence(
                "the weights are large or lie in their files: model.digest() reads them once, and is remembered"
            )
        self._digest = digest(model)
        return self._digest, ""

    def __getstate__(self) -> dict[str, Any]:
        # a copy that leaves the process leaves the model behind
        return {**self.__dict__, "_digest": self._weights()[0], "_model": None}

    def __copy__(self) -> Self:
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        return found


# what a result carries: a binding, or the provenance that was read from a file
Bound = Binding | Provenance


def of_several(analysis: str, bounds: Sequence[Bound | None], seed: int | None = None) -> Bound | None:
    """Provenance of a result made from several of one model: it read what all of them read.

    None if one has none, or if they are of different models, or of one before and after its weights were changed.
    """
    known = [bound for bound in bounds if bound is not None]
    if not known or len(known) < len(bounds):
        return None
    if all(isinstance(bound, Binding) for bound in known):
        bindings = cast(list[Binding], known)
        if any((one._model, one._state) != (bindings[0]._model, bindings[0]._state) for one in bindings):
            return None
        return bindings[0].of(analysis, [one for bound in bindings[1:] for one in bound.inputs], seed)
    said = [bound.said() for bound in known]
    if any((one.model, one.digest) != (said[0].model, said[0].digest) for one in said):
        return None
    return dataclasses.replace(said[0].of(analysis, seed=seed), input=tuple(one for of in said for one in of.input))


def of_runs(analysis: str, runs: Sequence[str], inputs: Sequence[Any], seed: int | None) -> Provenance:
    """Provenance of a result made from the checkpoints of training runs, which are models of many digests."""
    why = "measured at several checkpoints, each of which has a digest of its own"
    return Provenance(
        analysis=analysis,
        model=", ".join(runs),
        digest="",
        why=why,
        trained_length=None,
        dtype="",
        device="",
        input=given(inputs),
        seed=seed,
        version=__version__,
        torch=str(torch.__version__),
    )


def given(inputs: Sequence[Any]) -> tuple[Given, ...]:
    """Return texts, ids and batches as they can be shown; further ones than a few are counted together."""
    flat = [one for value in inputs for one in _flat(value)]
    shown = [_given(one) for one in flat[:SHOWN_INPUTS]]
    if rest := flat[SHOWN_INPUTS:]:
        whole = hashlib.sha256("".join(_sha256(one) for one in rest).encode()).hexdigest()
        n = len(rest)
        shown.append(Given(sentence("… and {n} more", n=n), sentence("{n} inputs", n=n), whole))
    return tuple(shown)


def _flat(value: Any) -> list[str | Tensor]:
    """Return the texts and tensors of ids in an input; ids in lists become a tensor, anything else is left out."""
    if isinstance(value, str | Tensor):
        return [value]
    if isinstance(value, Sequence) and value and all(isinstance(one, int) for one in value):
        return [torch.tensor(value)]
    if isinstance(value, Sequence | Mapping):
        return [one for inner in (value.values() if isinstance(value, Mapping) else value) for one in _flat(inner)]
    if isinstance(getattr(value, "tokens", None), Tensor):
        # a batch: what it reads, and not what it is compared with
        return [one for one in (getattr(value, "source", None), value.tokens) if isinstance(one, Tensor)]
    sides = (getattr(value, side, None) for side in ("clean", "corrupt"))
    return [one for side in sides if side is not None for one in _flat(side)]


def _given(one: str | Tensor) -> Given:
    if isinstance(one, str):
        short = len(one) <= SHOWN_CHARACTERS
        size = sentence("{n} characters", n=len(one))
        return Given(one, size) if short else Given(one[:SHOWN_CHARACTERS] + "…", size, _sha256(one))
    shape = " × ".join(str(n) for n in one.shape)
    size = sentence("{shape} numbers" if one.is_floating_point() else "{shape} ids", shape=shape)
    if one.is_floating_point() or one.is_complex():
        return Given("", size, _sha256(one))
    flat = one.detach().flatten()
    words = " ".join(str(id) for id in flat[:SHOWN_IDS].tolist())
    return Given(words, size) if flat.numel() <= SHOWN_IDS else Given(f"{words} …", size, _sha256(one))


def _sha256(one: str | Tensor) -> str:
    if isinstance(one, str):
        return hashlib.sha256(one.encode("utf-8", "surrogatepass")).hexdigest()
    kind = f"{one.dtype} {tuple(one.shape)} ".encode()
    data = one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(kind + data.tobytes()).hexdigest()
