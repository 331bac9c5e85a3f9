"""LoRA adapters: what PEFT trained beside a model's weights, merged into them as they are read.

    W' = W + s B A        s = alpha / r, or alpha / sqrt(r) for rank-stabilised ones; for embeddings (B A) transposed

    load("base", adapter="adapter")     adapter_config.json and adapter_model.safetensors, in PEFT's layout

Sources: Hu et al. 2021, "LoRA", section 4.1; Kalajdzievski 2023, "A rank stabilization scaling factor for fine-tuning
with LoRA"; PEFT's `LoraLayer` for names and patterns.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from glassformer.checkpoints.families import Fields
from glassformer.checkpoints.tensors import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    OWN_ADAPTER,
    PICKLED,
    StoredTensor,
    TensorFiles,
    Tensors,
)
from glassformer.errors import CheckpointError, nearest
from glassformer.files import read_object
from glassformer.provenance import ModelNote
from glassformer.words import sentence

_ROOT = "base_model.model."
_BESIDE = sentence("An adapter lies beside the weights, and was not merged into them.")
_A, _B = (".lora_A.weight", ".lora_embedding_A"), (".lora_B.weight", ".lora_embedding_B")
# settings that make of an adapter something else than the sum above
_BEYOND = (
    "use_dora", "lora_bias", "layer_replication", "target_parameters", "trainable_token_indices", "megatron_config",
    "alora_invocation_tokens", "use_qalora", "arrow_config", "monteclora_config", "use_bdlora",
)  # fmt: skip
# ways to begin training that change the base's weights too
_CHANGE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


class Factors(NamedTuple):
    """A product that is added to a matrix: names of its factors in the adapter's files, and their scale."""

    a: str
    b: str
    scale: float


class LoraFolder:
    """A folder with an adapter in PEFT's layout: headers and config, no numbers yet.

    Args:
        folder: The folder.

    Raises:
        CheckpointError: It holds none of a kind that is read here, or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = _said(folder)
        self.transposed = self.said.flag("fan_in_fan_out", False)
        self.files = _files(folder)
        # by the module that they are of
        self.factors: dict[str, Factors] = {}
        # what comes in the place of the base's tensors, by their names: biases, and modules that were trained whole
        self.whole: dict[str, str] = {}
        for name in self.files:
            own = name.removeprefix(_ROOT)
            end = next((end for end in (*_A, *_B) if own.endswith(end)), None)
            if end is None:
                self.whole[own] = name
            elif end in _A:
                module = own.removesuffix(end)
                other = f"{name.removesuffix(end)}{_B[_A.index(end)]}"
                if other not in self.files:
                    raise CheckpointError(f'"{folder}" lacks "{other}", the other factor of "{name}".')
                self.factors[module] = Factors(name, other, _scale(self.said, module))
            elif name.removesuffix(end) + _A[_B.index(end)] not in self.files:
                raise CheckpointError(f'"{folder}" lacks the other factor of "{name}".')

    def is_transposed(self, factors: Factors) -> bool:
        """Whether the product is `in out`, as embeddings and some modules of old store what they are added to."""
        return self.transposed or factors.a.endswith(_A[1])


class Adapted(Tensors):
    """The tensors of a base with an adapter merged into them.

    Args:
        base: Its tensors.
        folder: Of the adapter.

    Raises:
        CheckpointError: It is none that is read here, is damaged, or belongs to another base.
    """

    def __init__(self, base: Tensors, folder: Path) -> None:
        super().__init__(base.folder)
        self.base, self.adapter, self.lora = base, folder, LoraFolder(folder)
        self.files = self.lora.files
        self.added = {self._of_base(f"{name}.weight", one.a): one for name, one in self.lora.factors.items()}
        self.replaced = {self._of_base(own, name): name for own, name in self.lora.whole.items()}
        for name, factors in self.added.items():
            self._require_fit(name, factors, self.lora.said)
        for name, own in self.replaced.items():
            if self.files[own].shape != base[name].shape:
                raise self._misfit(own, self.files[own].shape, name)

    def _of_base(self, name: str, own: str) -> str:
        """Return what the base's files call a tensor: the name itself, or with more or less in front."""
        if name in self.base:
            return name
        same = [there for there in self.base if there.endswith(f".{name}") or name.endswith(f".{there}")]
        if len(same) == 1:
            return same[0]
        raise CheckpointError(
            f'"{self.adapter}" holds "{own}", and the base "{self.folder}" no "{name}": it was trained beside another '
            f"model, or with a head that this one has not.{nearest(name, self.base)}"
        )

    def _require_fit(self, name: str, factors: Factors, said: Fields) -> None:
        a, b, shape = self.files[factors.a].shape, self.files[factors.b].shape, self.base[name].shape
        module = name.removesuffix(".weight")
        if len(a) != 2 or len(b) != 2 or len(shape) != 2 or a[0] != b[1]:
            raise self._misfit(factors.a, a, name)
        product = (b[0], a[1])
        if shape != (product[::-1] if self.lora.is_transposed(factors) else product):
            raise self._misfit(factors.a, product, name)
        if a[0] != (rank := _of_pattern(said, "r", "rank_pattern", module)):
            raise CheckpointError(
                f'"{self.adapter}": "{factors.a}" has {a[0]} rows, and its config says r={rank}: one is of '
                "another adapter."
            )

    def _misfit(self, own: str, found: tuple[int, ...], name: str) -> CheckpointError:
        return CheckpointError(
            f'"{self.adapter}": "{own}" makes {found} of "{name}", which has {self.base[name].shape} in the base '
            f'"{self.folder}": it was trained beside another model.'
        )

    def __getitem__(self, name: str) -> StoredTensor:
        return self.base[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)

    def read(self, name: str) -> Tensor:
        """Return a tensor of the base as it is stored, or merged, in the type that it is stored in."""
        stored = self.base.read(name)
        if name in self.replaced:
            return self.files.read(self.replaced[name]).to(stored.dtype)
        factors = self.added.get(name)
        if factors is None:
            return stored
        # in float64 of float64, else in float32, whatever the type that both are stored in
        wide = stored.double() if stored.dtype.itemsize == 8 else stored.float()
        a, b = (self.files.read(one).to(wide.dtype) for one in (factors.a, factors.b))
        product = factors.scale * (b @ a)
        return (wide + (product.T if self.lora.is_transposed(factors) else product)).to(stored.dtype)

    def as_stored(self, name: str) -> Tensor:
        return self.read(name) if name in self.added or name in self.replaced else self.base.as_stored(name)

    def release(self, names: Iterable[str]) -> None:
        self.base.release(names)

    @property
    def notes(self) -> tuple[ModelNote, ...]:
        """A note on what was merged."""
        seen = sentence(
            "An adapter was merged into the weights: {name}, of {n} matrices.",
            name=self.adapter.name,
            n=len(self.added),
        )
        return (ModelNote(seen),)


def merging(folder: Path) -> Callable[[Tensors], tuple[Tensors, tuple[ModelNote, ...]]]:
    """How to merge the adapter in a folder into tensors of a base: what gives the merged ones, and notes on them."""

    def merged(base: Tensors) -> tuple[Tensors, tuple[ModelNote, ...]]:
        found = Adapted(base, folder)
        return found, found.notes

    return merged


def unmerged_notes(folder: Path) -> tuple[ModelNote, ...]:
    """Return a note on an adapter that lies beside a model and was not asked for; none where there is none."""
    name = f'"{folder}"'
    if (folder / ADAPTER).is_file():
        return (ModelNote(_BESIDE, "", sentence("To merge it: load({name}, adapter={name}); --adapter.", name=name)),)
    if (folder / OWN_ADAPTER).is_file():
        way = sentence("To attach it: adaptation.load_adapter({name}, model).attach(model).", name=name)
        return (ModelNote(_BESIDE, "", way),)
    return ()


def lasting_notes(notes: tuple[ModelNote, ...]) -> tuple[ModelNote, ...]:
    """Return the notes that hold of the weights wherever they lie: all but those on what lies beside them."""
    return tuple(note for note in notes if note.seen != _BESIDE)


def _said(folder: Path) -> Fields:
    """Return what an adapter's config says, if it is one of a kind that is read."""
    path = folder / ADAPTER
    if not path.exists():
        raise CheckpointError(f'"{folder}" holds no adapter: there is no {ADAPTER}.')
    said = read_object(path)
    fields, way = Fields(said, str(path)), _way_on(folder)
    kind = fields.get("peft_type", "of an unknown kind")
    if kind != "LORA":
        raise CheckpointError(f'"{folder}" holds an adapter {kind!r}; LORA is read.{way}')
    for name in _BEYOND:
        if said.get(name):
            raise CheckpointError(
                f'"{path}": {name}={str(said[name])[:60]} makes of it another adapter than is read here.{way}'
            )
    begun = said.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGE_BASE):
        raise CheckpointError(f'"{path}": init_lora_weights={begun!r} changed the weights of the base too.{way}')
    return fields


def _way_on(folder: Path) -> str:
    return (
        " Merge it with the library that made it, and open the folder that is written:\n"
        f'    peft.AutoPeftModelForCausalLM.from_pretrained("{folder}").merge_and_unload().save_pretrained("merged")'
    )


def _files(folder: Path) -> TensorFiles:
    if not (folder / ADAPTER_WEIGHTS).is_file():
        pickles = [path.name for path in folder.glob("adapter_model*") if path.suffix in PICKLED]
        why = f"{pickles[0]}, which can run code when it is opened and is refused" if pickles else "none"
        raise CheckpointError(f'"{folder}" holds no {ADAPTER_WEIGHTS} with the weights of its adapter (found: {why}).')
    return TensorFiles(folder, ADAPTER_WEIGHTS)


def _scale(said: Fields, module: str) -> float:
    rank, alpha = (
        _of_pattern(said, "r", "rank_pattern", module),
        _of_pattern(said, "lora_alpha", "alpha_pattern", module),
    )
    if rank <= 0:
        raise said.wrong("r", rank, "above zero")
    return alpha / (math.sqrt(rank) if said.flag("use_rslora", False) else rank)


def _of_pattern(said: Fields, name: str, patterns: str, module: str) -> float:
    """Return a setting of a module: that of the first pattern that its name ends in, else the common one."""
    own = said.get(patterns, {})
    if not isinstance(own, Mapping):
        raise said.wrong(patterns, own, "an object")
    for pattern, value in own.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return Fields({name: value}, said.where).number(name)
    return said.number(name, 8)
