"""Opening and loading models by name: one route for our own folders and published ones.

config.json, read once  ->  OwnFolder | PublishedFolder  ->  Checkpoint (nothing read)  ->  model
"""

from dataclasses import replace
from pathlib import Path

from glassformer.arguments import checked
from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.checkpoints.gguf import GgufFile, gguf_of
from glassformer.checkpoints.names import folder_of
from glassformer.checkpoints.own import OwnFolder, attach
from glassformer.checkpoints.published import PublishedFolder
from glassformer.checkpoints.streamed import streamed
from glassformer.checkpoints.tensors import ADAPTER, OWN_ADAPTER, PICKLED, way_from_pickle
from glassformer.errors import CheckpointError
from glassformer.files import read_json, reason
from glassformer.files.packaged import CONFIG
from glassformer.models import Model, ModelConfig
from glassformer.numerics.placement import Device, NumberType, device_of, number_type
from glassformer.provenance import ModelNote, digest


@checked
def load(
    name: str | Path,
    *,
    dtype: NumberType | None = None,
    device: Device | None = None,
    revision: str | None = None,
    stream: bool = False,
    allow_nonfinite: bool = False,
    adapter: str | Path | None = None,
) -> Model:
    """Load a model: one that ships with the package, a folder, a GGUF file, or one of the Hugging Face hub by its id.

    A folder is one of ours, or any config.json with safetensors whose architecture a family covers. It is recognised by
    its config's fields, so that a fine-tuned, resized or renamed model loads as its original does. A run folder gives
    its newest checkpoint. Published weights are mapped from their files, one copy in memory: files that are overwritten
    meanwhile change the model. It comes in evaluation mode; `model.origin` says which family it was read as.

    Args:
        name: Name, folder, `.gguf` file, or `owner/model`; `owner/model:FILE.gguf` where several such files lie there.
        dtype: Of the weights. By default published weights keep the type they are stored in, and ours, which are stored
            short to be small, come as float32. As `torch.bfloat16` or by name, `"bfloat16"`.
        device: Where to: a device by its name, or `"auto"`, this machine's accelerator if it has one and the CPU
            otherwise. The CPU by default.
        revision: Of a hub model: branch, tag or commit.
        stream: Leave the weights of the blocks in their files, for models larger than memory: each block is read when
            the forward pass comes to it, and dropped after it. Results are the same; a pass reads the files once, and
            so does each token of a generation. See `checkpoints.streamed`.
        allow_nonfinite: Take weights that hold NaN or infinity. Otherwise all are looked at once: when the model is
            loaded, or, with `stream`, when a block is first read.
        adapter: Folder of a LoRA adapter in PEFT's layout, which is merged into the weights of a published model.

    Raises:
        UnknownModel: No shipped model, no folder and no hub model of that name.
        CheckpointError: The folder is damaged, of a refused format, its weights do not fit its config, or are not
            finite.
        MissingExtra: It is a GGUF file, and what reads those is not installed.
        ConfigError: There is no such device here, or weights are not computed in such a type.
    """
    kind, place = number_type(dtype), device_of(device)
    folder = folder_of(name, revision)
    found = model_folder(folder)
    if adapter is not None:
        found = _with_adapter(found, Path(adapter))
    if stream and found.in_memory:
        raise CheckpointError(
            f'"{folder}" is turned into numbers as a whole, so its blocks cannot stay in their file. Write it as '
            f'safetensors first: glassformer convert "{folder}" OUT.'
        )
    # headers first: a file of another size than its tensors' is refused before all of it is read
    checkpoint = found.open()
    if not stream:
        found.check(weights_only=True)
    wanted = kind or found.loaded_as(checkpoint.dtype)
    if stream:
        model = streamed(checkpoint, wanted, place, allow_nonfinite=allow_nonfinite)
    else:
        model = checkpoint.fill(wanted, place, mapped=found.mapped, allow_nonfinite=allow_nonfinite)
    attach(model, found.tokenizers())
    model.no_tokenizer = "" if model.tokenizer is not None else found.lack_of_tokenizer()
    # a run folder names its model, not the step it has come to
    model.name = Path(name).name or folder.name
    digest.remember(model, found.digest)
    return model.eval()


@checked
def open_folder(folder: str | Path) -> Checkpoint:
    """Open a folder of ours or a published one without reading its weights.

    Of our own folders the config is checked against its digest; contents are not, which would mean reading everything.

    Raises:
        UnknownModel: No such folder.
        CheckpointError: As for `load`.
    """
    return model_folder(folder_of(folder)).open()


@checked
def config_of(name: str | Path, revision: str | None = None) -> ModelConfig:
    """Config of a model without its weights; of a hub model only the files that describe it are fetched.

    Raises:
        UnknownModel: As for `load`.
        CheckpointError: The config is damaged, or no family covers it.
    """
    return model_folder(folder_of(name, revision, weights=False)).config


@checked
def notes_of(name: str | Path, revision: str | None = None) -> tuple[ModelNote, ...]:
    """What must be known of a model's weights, as far as it is seen without them: rounded, or an adapter beside them.

    Raises:
        UnknownModel: As for `load`.
        CheckpointError: The config is damaged.
    """
    return model_folder(folder_of(name, revision, weights=False)).notes


def model_folder(folder: Path) -> OwnFolder | PublishedFolder | GgufFile:
    """Return a folder with what its config file says, read here and nowhere else; or a file that says it itself.

    A config is ours, damaged or not, unless it says what it is in other words.

    Raises:
        CheckpointError: There is no config file, it is not JSON, or it is ours and damaged.
    """
    whole = folder if folder.is_file() else gguf_of(folder)
    if whole is not None:
        return GgufFile(whole)
    path = next((folder / name for name in (CONFIG, "params.json") if (folder / name).exists()), None)
    if path is None and (folder / ADAPTER).exists():
        raise CheckpointError(_of_adapter(folder))
    if path is None and (folder / OWN_ADAPTER).exists():
        raise CheckpointError(
            f'"{folder}" holds an adapter, and no model: what it changes lies elsewhere. Open it with that:\n'
            f'    adaptation.load_adapter("{folder}", glassformer.load(BASE))'
        )
    if path is None:
        pickles = [p.name for p in folder.glob("*") if p.suffix in PICKLED]
        found = ", ".join(pickles) or ", ".join(sorted(p.name for p in folder.glob("*"))[:6]) or "an empty folder"
        advice = f" Pickles can run code and are refused.\n{way_from_pickle(pickles[0])}" if pickles else ""
        raise CheckpointError(f'"{folder}" holds no {CONFIG} (found: {found}).{advice}')
    try:
        said = read_json(path)
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error
    except ValueError as error:
        raise CheckpointError(f'"{path}" is not valid JSON ({error}).') from error
    if not isinstance(said, dict) or "sha256" in said or "format" in said or not said:
        return OwnFolder(folder, path, said)
    return PublishedFolder(folder, path, said)


def _with_adapter(found: OwnFolder | PublishedFolder | GgufFile, adapter: Path) -> PublishedFolder:
    """Return a published folder with an adapter to be merged; raises `CheckpointError` for models of other layouts."""
    if not isinstance(found, PublishedFolder):
        raise CheckpointError(
            "an adapter is merged into the weights of a published folder, whose names it goes by; this model lies in "
            "another layout. Convert it first: glassformer convert IN OUT --to huggingface."
        )
    if not adapter.is_dir():
        raise CheckpointError(f'no folder "{adapter}" with an adapter; of the hub, download it first: hf download.')
    return replace(found, adapter=adapter)


def _of_adapter(folder: Path) -> str:
    """Return what to say of a folder that holds the weights of an adapter, and no model."""
    try:
        said = read_json(folder / ADAPTER)
    except (OSError, ValueError):
        said = None
    said = said if isinstance(said, dict) else {}
    kind, base = said.get("peft_type"), said.get("base_model_name_or_path")
    named = f" ({kind})" if isinstance(kind, str) else ""
    named += f' of "{base}"' if isinstance(base, str) and base else ""
    return (
        f'"{folder}" holds an adapter{named}, and no model: what it adds to '
        f'weights that lie elsewhere. Open them with it: glassformer.load(BASE, adapter="{folder}"); --adapter. To put '
        f'it on and take it off: adaptation.load_peft("{folder}", model).\n'
        "    Or merge it into them, and open the folder that is written:\n"
        f'    peft.AutoPeftModelForCausalLM.from_pretrained("{folder}").merge_and_unload().save_pretrained("merged")'
    )
