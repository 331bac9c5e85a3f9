"""Adapters in folders of our own: `adapter.json` and `adapter.safetensors`.

The document says kind and settings, which matrices, which weights the adapter was made for, and what else is known of
it; the tensors are the numbers that are trained, and what low-rank kinds took out of a matrix. Singular directions are
made of it again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save as serialise
from torch import Tensor

from glassformer import checkpoints, files
from glassformer.adaptation._adapter import Adapter, AdapterConfig, require_bare
from glassformer.arguments import checked
from glassformer.checkpoints.own import sha256_of
from glassformer.checkpoints.tensors import OWN_ADAPTER
from glassformer.errors import CheckpointError, ConfigError, UnknownSite
from glassformer.models import ModelLike, require_model
from glassformer.provenance.digest import weights_digest

DOCUMENT, WEIGHTS, FORMAT = OWN_ADAPTER, "adapter.safetensors", 1


@checked
def save_adapter(adapter: Adapter, folder: str | Path, *, base: ModelLike | None = None) -> Path:
    """Write an adapter as a folder, alone or beside the model that it was made for.

    A folder with both is the model's, which `glassformer.load` opens without the adapter. While an adapter is attached,
    `glassformer.save(model, folder)` writes the model with it merged in.

    Args:
        adapter: Of any kind.
        folder: Made if missing.
        base: The model, to be written there too, as it is without the adapter.

    Raises:
        SaveError: The folder cannot be written to; what was there before is still whole.
        ConfigError: Another adapter is attached to the model.
    """
    folder = Path(folder)
    if base is not None:
        _save_base(adapter, require_model(base, "save_adapter"), folder)
    tensors = {
        f"{name}.{part}": value.cpu().contiguous()
        for name, change in adapter.changes.items()
        for part, value in change.stored().items()
    }
    weights = serialise(tensors)
    said = {
        "format": FORMAT, "adapter": adapter.config.to_dict(), "matrices": list(adapter.changes),
        "model": adapter.model_name, "digest": adapter.digest, "sha256": checkpoints.sha256(weights),
    } | ({"facts": adapter.facts} if adapter.facts else {})  # fmt: skip
    return files.write_all(folder, {WEIGHTS: weights, DOCUMENT: files.json_text(said, indent=1) + "\n"})


def _save_base(adapter: Adapter, model: Any, folder: Path) -> None:
    with adapter.detached():
        require_bare(model)
        checkpoints.save(model, folder)


@checked
def load_adapter(folder: str | Path, model: ModelLike) -> Adapter:
    """An adapter from a folder of our own, frozen, for the model that it was made for.

    `requires_grad_()` lets it be trained on. Folders in PEFT's layout: `load_peft`.

    Args:
        folder: With `adapter.json` and `adapter.safetensors`.
        model: One of ours, with no adapter attached.

    Raises:
        CheckpointError: A file is missing or damaged, or the adapter was made for other weights.
        ConfigError: An adapter is attached to the model.
    """
    folder, model = Path(folder), require_model(model, "load_adapter")
    require_bare(model)
    if not (folder / DOCUMENT).is_file():
        there = " There is one in PEFT's layout: load_peft." if (folder / "adapter_config.json").is_file() else ""
        raise CheckpointError(f'"{folder}" holds no adapter of ours: there is no {DOCUMENT}.{there}')
    said = files.read_object(folder / DOCUMENT)
    if type(said.get("format")) is not int or said["format"] != FORMAT:
        raise CheckpointError(f'"{folder}": an adapter in format {said.get("format")!r}; this version reads {FORMAT}.')
    name, digest = str(said.get("model") or "?"), said.get("digest")
    if digest != weights_digest(model):
        raise CheckpointError(
            f'"{folder}": this adapter is of another model, or of "{name}" with other weights.\n'
            "    Load the model that it was made for; glassformer.load opens the folder itself where it was saved with "
            "its base."
        )
    try:
        config = AdapterConfig.from_dict(said.get("adapter"))
        known = {one.name: one for one in model.matrices()}
        stored, changes = _tensors(folder, said), {}
        for one in said.get("matrices", ()):
            if one not in known:
                raise UnknownSite(f'it is of a matrix "{one}", which the model lacks.')
            own = {key.removeprefix(f"{one}."): t for key, t in stored.items() if key.rpartition(".")[0] == one}
            changes[one] = config.restored(known[one], own)
    except (ConfigError, UnknownSite, CheckpointError) as error:
        raise CheckpointError(f'cannot read an adapter from "{folder}": {error}') from error
    made = Adapter(config, changes, model=name, digest=str(digest))
    made.matrices(model)
    made.facts = dict(facts) if isinstance(facts := said.get("facts"), Mapping) else {}
    return made.requires_grad_(False).eval()


def _tensors(folder: Path, said: Mapping[str, Any]) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    try:
        if sha256_of(path) != said.get("sha256"):
            raise CheckpointError(f"{WEIGHTS} does not match the digest in {DOCUMENT}; it is damaged.")
        with files.tensors_in(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
    except OSError as error:
        raise CheckpointError(f"{WEIGHTS}: {files.reason(error)}.") from error
    except SafetensorError as error:
        raise CheckpointError(f"{WEIGHTS} is damaged ({error}).") from error
