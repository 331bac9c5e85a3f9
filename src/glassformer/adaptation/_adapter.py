"""Adapters: numbers beside a model that change some of its matrices, and can be taken off without a trace.

    adapter = Svf().build(model, "blocks.*.mlp.*")
    with adapter.attached(model):
        gf.run(model, text)              every pass, analysis and file sees W'

A matrix is one that the model names (`Model.matrices`): queries, keys and values are adapted apart, though one weight
holds all three, and so is each expert.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.adaptation._attached import AdaptedWeight, Rows, is_adapted, register, unregister
from glassformer.adaptation._change import Change
from glassformer.adaptation._moments import second_moments
from glassformer.config import Config, require
from glassformer.errors import AnalysisUnavailable, ConfigError, ShapeMismatch, UnknownSite, nearest
from glassformer.models import Matrix, Model, ModelLike, require_model
from glassformer.numerics.parametrized import original
from glassformer.provenance.digest import known_digest, remember, state, weights_digest


@dataclass(frozen=True)
class AdapterConfig(Config, family=True):
    """A way to adapt matrices, as data."""

    # what training moves, in words
    trains: ClassVar[str] = ""
    # whether it begins from what matrices read on a sample
    reads_sample: ClassVar[bool] = False

    def build(
        self, model: ModelLike, matrices: str | Sequence[str] = "*", *, seed: int = 0, sample: Any = None
    ) -> "Adapter":
        """An adapter of some of a model's matrices, under which the model is still the same.

        Args:
            model: One of ours, with no adapter attached.
            matrices: Names of matrices, or globs: `blocks.*.mlp.*`, `blocks.2.attn.query`; see `Model.matrices`.
            seed: Source of what is drawn.
            sample: Texts, or rows of token ids, on which to see what matrices read; for kinds that begin from that.

        Raises:
            UnknownSite: The model has no such matrix.
            ConfigError: An adapter is attached to the model, the kind does not fit a matrix, or a sample is missing or
                given in vain.
            AnalysisUnavailable: The weights are not in memory, or no row of the sample comes to a matrix.
        """
        model = require_model(model, "an adapter")
        require_bare(model)
        chosen = chosen_matrices(model, matrices)
        require(
            self.reads_sample == (sample is not None),
            f"{self.kind}: it begins from what matrices read on a sample; give sample=[…], texts or rows of ids."
            if self.reads_sample
            else f"{self.kind}: nothing is read from a sample; leave sample out.",
        )
        moments = second_moments(model, chosen, sample) if self.reads_sample else {}
        generator = torch.Generator().manual_seed(seed)
        changes = {one.name: self.begin(one, generator, moments.get(one.name)) for one in chosen}
        return Adapter(self, changes, model=model.name, digest=weights_digest(model))

    def begin(self, one: Matrix, generator: torch.Generator, moments: Tensor | None = None) -> Change:
        """Return a change of one matrix that changes nothing yet.

        Args:
            one: The matrix.
            generator: Source of what is drawn.
            moments: E[x x'] of what it reads on a sample, `d_in d_in`, for kinds that begin from one.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how a change begins")

    def restored(self, one: Matrix, tensors: Mapping[str, Tensor]) -> Change:
        """Return a change of one matrix as it was stored; raises `CheckpointError` for what is none of this kind.

        Args:
            one: The matrix.
            tensors: What was stored, by name.
        """
        made = self.begin(one, torch.Generator())
        made.restore(tensors)
        return made


class _Held(NamedTuple):
    """What an adapter is attached to, and what was known of it before."""

    model: Model
    modules: list[nn.Module]
    state: int
    digest: str


class Adapter(nn.Module):
    """Changes of some of a model's matrices, with the numbers that training moves.

    Its parameters are the adapter's alone: what an optimiser is given to train it. `requires_grad_(False)` freezes it.
    What is known of it, such as how it was trained, stands in `facts`, as JSON data, and goes with it into its folder.

    Args:
        config: Its kind and settings.
        changes: The change of each matrix, by the matrix's name.
        model: Name of the model it was made for.
        digest: Of that model's weights.
    """

    def __init__(
        self, config: AdapterConfig, changes: Mapping[str, Change], *, model: str = "", digest: str = ""
    ) -> None:
        super().__init__()
        self.config, self.model_name, self.digest = config, model, digest
        self.facts: dict[str, Any] = {}
        # names of modules hold no dots
        self._changes = nn.ModuleDict({name.replace(".", "/"): change for name, change in changes.items()})
        self._held: _Held | None = None

    @property
    def changes(self) -> dict[str, Change]:
        """The change of each matrix, by the matrix's name."""
        found = dict[str, Change]()
        for name, change in self._changes.items():
            assert isinstance(change, Change), "it was given changes"
            found[name.replace("/", ".")] = change
        return found

    @property
    def is_attached(self) -> bool:
        """Whether it stands before a model's weights."""
        return self._held is not None

    def matrices(self, model: ModelLike) -> dict[str, Matrix]:
        """The matrices of a model that it changes, by name.

        Raises:
            UnknownSite: The model lacks one.
            ShapeMismatch: One has another shape.
        """
        known = {one.name: one for one in require_model(model, "an adapter").matrices()}
        for name, change in self.changes.items():
            if name not in known:
                raise UnknownSite(f'the adapter is of a matrix "{name}", which this model lacks.{nearest(name, known)}')
            if known[name].shape != change.shape:
                raise ShapeMismatch(
                    f'the adapter is of "{name}" with d_out={change.shape[0]} d_in={change.shape[1]}; this model has '
                    f"d_out={known[name].shape[0]} d_in={known[name].shape[1]}. It was made for another model."
                )
        return {name: known[name] for name in self.changes}

    def attach(self, model: ModelLike) -> None:
        """Let every pass, analysis and file see the changed matrices, until `detach`.

        The model's own parameters stay as they are and get no gradients where they are adapted. The adapter's become
        parameters of the model too.

        Args:
            model: The model it was made for, or one whose matrices have the same names and shapes.

        Raises:
            ConfigError: It is attached already, or another adapter is to one of the weights.
            UnknownSite: The model lacks a matrix of it.
            ShapeMismatch: A matrix has another shape.
            AnalysisUnavailable: The weights are not in memory.
        """
        require(not self.is_attached, "this adapter is attached already; detach() it first.")
        model = require_model(model, "an adapter")
        by_module = dict[nn.Module, list[Rows]]()
        for name, one in self.matrices(model).items():
            if is_adapted(one.module):
                raise ConfigError(
                    f'another adapter is attached to the weight that holds "{name}". Detach it first; both at once: '
                    "adaptation.mixed({a: 1.0, b: 1.0})."
                )
            require_in_memory(one)
            # it lies where the model does, wherever it was made
            change = self.changes[name].to(original(one.module, "weight").device)
            by_module.setdefault(one.module, []).append((one.rows, change))
        now = state(model)
        self._held = _Held(model, list(by_module), now, known_digest(model, now))
        for module, rows in by_module.items():
            register(module, rows)

    def detach(self) -> None:
        """Let the model be as it was, bit for bit, with the very same parameters; nothing if it is not attached."""
        if self._held is None:
            return
        held, self._held = self._held, None
        for module in held.modules:
            unregister(module)
        if state(held.model) == held.state:
            remember(held.model, held.digest)

    @contextmanager
    def attached(self, model: ModelLike) -> Iterator[None]:
        """Attach it while a `with` lasts; raises as `attach`."""
        self.attach(model)
        try:
            yield
        finally:
            self.detach()

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Let the model be as it was while a `with` lasts; nothing if it is not attached."""
        held = self._held
        self.detach()
        try:
            yield
        finally:
            if held is not None:
                self.attach(held.model)

    def __repr__(self) -> str:
        n = sum(one.numel() for one in self.parameters())
        return f"Adapter({self.config.described}, {len(self.changes)} matrices, {n:,} numbers)"


def chosen_matrices(model: Model, asked: str | Sequence[str]) -> list[Matrix]:
    """Return the matrices that names or globs cover, in the model's order."""
    globs = [asked] if isinstance(asked, str) else list(asked)
    wanted = {one.name for glob in globs for one in model.matrices(glob)}
    found = [one for one in model.matrices() if one.name in wanted]
    require(bool(found), f'"{model.name}" has no matrices that could be adapted.')
    for one in found:
        require_in_memory(one)
    return found


def require_bare(model: Model) -> None:
    """Raise `ConfigError` if an adapter is attached to a model."""
    require(
        not any(isinstance(module, AdaptedWeight) for module in model.modules()),
        f'an adapter is attached to "{model.name}". Detach it first; or merge it for good: '
        "glassformer.save(model, folder), and load that.",
    )


def require_in_memory(one: Matrix) -> None:
    """Raise `AnalysisUnavailable` if the weights of a matrix are not in memory."""
    if original(one.module, "weight").is_meta:
        raise AnalysisUnavailable(
            f'an adapter needs weights in memory, and those of "{one.name}" are not.\n'
            "    Load the model without stream=True."
        )
