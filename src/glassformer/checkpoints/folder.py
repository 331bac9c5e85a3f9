"""A model folder: `config.json`, `model.safetensors`, and `tokenizer.json` if the model has one.

`config.json` is an envelope around the model's config with the SHA-256 of config, weights and tokenizer, so that a
damaged file is told from a strange one. Tied matrices are stored once.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse, save as serialise

from glassformer import files
from glassformer.checkpoints import hub
from glassformer.checkpoints.checkpoint import (
    CONFIG,
    Checkpoint,
    Origin,
    config_file,
    open_own,
    open_published,
    skeleton,
    translated,
)
from glassformer.checkpoints.streamed import streamed
from glassformer.checkpoints.tensors import PICKLED, WEIGHTS, is_pickle, way_from_pickle
from glassformer.data import Roles, Tokenizer, lack_of_tokenizer, published
from glassformer.errors import CheckpointError, ConfigError, UnknownModel, nearest
from glassformer.models import Model, ModelConfig, ModelLike, require_model

FORMAT = 1
TOKENIZER = "tokenizer.json"


def save(model: ModelLike, folder: str | Path, dtype: torch.dtype | None = None) -> Path:
    """Write a model folder: all of its files are on the disk before one of them takes the place of an older one.

    Args:
        model: The model; its `tokenizer` is written too if it has one.
        folder: Made if missing.
        dtype: Store weights in this type, for example `torch.bfloat16`; as they are by default.

    Raises:
        SaveError: The folder cannot be written to; a model that was there before is still whole.
    """
    folder, model = Path(folder), require_model(model, "save")
    tensors = {
        name: value.detach().to(dtype or value.dtype).contiguous().cpu() for name, value in model.state_dict().items()
    }
    contents: dict[str, bytes | str] = {WEIGHTS: serialise(tensors)}
    if model.tokenizer is not None:
        contents[TOKENIZER] = model.tokenizer.to_json()
    config = model.config.to_dict()
    digests = {name: sha256(content) for name, content in contents.items()}
    envelope: dict[str, Any] = {"format": FORMAT, "model": config, "sha256": digests | {"model": digest_of(config)}}
    if model.origin is not None:
        envelope["origin"] = model.origin._asdict()
    if model.tokenizer is not None and model.tokenizer.published is not None:
        envelope["tokenizer"] = model.tokenizer.published.to_dict()
    # the envelope goes last: a folder without it is no model yet
    return files.write_all(folder, contents | {CONFIG: json.dumps(envelope, indent=1)})


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
    stream: bool = False,
) -> Model:
    """Load a model: one that ships with the package, a folder, or a model of the Hugging Face hub by its id.

    A folder is one of ours, or any config.json with safetensors whose architecture a family covers. It is recognised by
    its config's fields, so that a fine-tuned, resized or renamed model loads as its original does. A run folder gives
    its newest checkpoint. Published weights are mapped from their files, one copy in memory: files that are overwritten
    meanwhile change the model. It comes in evaluation mode; `model.origin` says which family it was read as.

    Args:
        name: Name, folder, or `owner/model`.
        dtype: Of the weights. By default published weights keep the type they are stored in, and ours, which are stored
            short to be small, come as float32.
        device: Where to; the CPU by default.
        revision: Of a hub model: branch, tag or commit.
        stream: Leave the weights of the blocks in their files, for models larger than memory: each block is read when
            the forward pass comes to it, and dropped after it. Results are the same; a pass reads the files once, and
            so does each token of a generation. See `checkpoints.streamed`.

    Raises:
        UnknownModel: No shipped model, no folder and no hub model of that name.
        CheckpointError: The folder is damaged, of a refused format, or its weights do not fit its config.
    """
    folder = folder_of(name, revision)
    if not _is_own(folder):
        checkpoint = open_folder(folder)
        model = streamed(checkpoint, dtype, device) if stream else checkpoint.fill(dtype, device)
        model.tokenizer = published(folder)
        model.no_tokenizer = "" if model.tokenizer is not None else lack_of_tokenizer(folder)
    else:
        envelope = _envelope(folder)
        model = _own(folder, envelope, dtype, device, stream)
        if TOKENIZER in envelope["sha256"]:
            model.tokenizer = _own_tokenizer(folder, envelope, model.config.vocab_size)
    # a run folder names its model, not the step it has come to
    model.name = Path(name).name or folder.name
    return model.eval()


def open_folder(folder: str | Path) -> Checkpoint:
    """Open a folder of ours or a published one without reading its weights.

    Of our own folders the config is checked against its digest; contents are not, which would mean reading everything.

    Raises:
        UnknownModel: No such folder.
        CheckpointError: As for `load`.
    """
    folder = folder_of(folder)
    if _is_own(folder):
        envelope = _envelope(folder)
        return open_own(folder, _own_config(folder, envelope), _own_origin(envelope))
    data, where = config_file(folder)
    return open_published(folder, data, where)


def check_contents(folder: str | Path) -> None:
    """Raise `CheckpointError` if a file of one of our folders is not what its digest says; others have no digests."""
    folder = folder_of(folder)
    if not _is_own(folder):
        return
    digests = _envelope(folder)["sha256"]
    for name in digests:
        if name != "model" and (not (folder / name).is_file() or sha256_of(folder / name) != digests[name]):
            raise CheckpointError(
                f'"{folder / name}" is missing, or does not match the digest in {CONFIG}; it is truncated or damaged. '
                "Copy it again from its source."
            )


def tokenizer_of(folder: str | Path) -> Tokenizer | None:
    """Return the tokenizer of a folder of ours or a published one, None if there is none that can be read."""
    folder = folder_of(folder)
    if not _is_own(folder):
        return published(folder)
    envelope = _envelope(folder)
    vocab_size = _own_config(folder, envelope).vocab_size
    return _own_tokenizer(folder, envelope, vocab_size) if TOKENIZER in envelope["sha256"] else None


def config_of(name: str | Path, revision: str | None = None) -> ModelConfig:
    """Return a model's config without its weights; of a hub model only the files that describe it are fetched.

    Raises:
        UnknownModel: As for `load`.
        CheckpointError: The config is damaged, or no family covers it.
    """
    folder = folder_of(name, revision, weights=False)
    if _is_own(folder):
        return _own_config(folder, _envelope(folder))
    data, where = config_file(folder)
    return translated(data, where)[1]


def _is_own(folder: Path) -> bool:
    """Whether a folder's config is one of ours, damaged or not: a published one says what it is in other words."""
    path = folder / CONFIG
    if not path.is_file() and not (folder / "params.json").is_file():
        return True
    try:
        data, _ = config_file(folder)
    except CheckpointError:
        return True
    return "sha256" in data or "format" in data or not data


def _own_config(folder: Path, envelope: dict[str, Any]) -> ModelConfig:
    try:
        return ModelConfig.from_dict(envelope["model"])
    except ConfigError as error:
        raise CheckpointError(f'"{folder / CONFIG}": {error}') from error


def _own(
    folder: Path,
    envelope: dict[str, Any],
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    stream: bool,
) -> Model:
    config = _own_config(folder, envelope)
    if stream or WEIGHTS not in envelope["sha256"]:
        if not stream:
            for name in envelope["sha256"]:
                if name.endswith(".safetensors"):
                    _verify(folder, name, envelope)
        checkpoint = open_own(folder, config, _own_origin(envelope))
        dtype = dtype or (torch.float32 if checkpoint.dtype in HALF else None)
        model = streamed(checkpoint, dtype, device) if stream else checkpoint.fill(dtype, device)
    else:
        weights = _verified(folder, WEIGHTS, envelope)
        try:
            tensors = parse(weights)
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(f'"{folder / WEIGHTS}" is not a whole safetensors file ({error}).') from error
        model = skeleton(config, len(tensors), folder)
        _fit(model, tensors, folder)
        model.load_state_dict({k: v.float() if v.dtype in HALF else v for k, v in tensors.items()}, assign=True)
        if dtype is not None or device is not None:
            model = model.to(device=device, dtype=dtype)
    model.origin = _own_origin(envelope)
    return model


def _own_origin(envelope: Mapping[str, Any]) -> Origin | None:
    origin = envelope.get("origin")
    return None if origin is None else Origin(origin["family"], origin["config"])


def _own_tokenizer(folder: Path, envelope: dict[str, Any], vocab_size: int) -> Tokenizer:
    text = _verified(folder, TOKENIZER, envelope)
    try:
        roles = None if (said := envelope.get("tokenizer")) is None else Roles.from_dict(said)
        tokenizer = Tokenizer.from_json(text.decode("utf-8"), roles)
    except ConfigError as error:
        raise CheckpointError(f'"{folder / CONFIG}": {error}') from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f'"{folder / TOKENIZER}" is not UTF-8.') from error
    if tokenizer.vocab_size > vocab_size:
        raise CheckpointError(
            f'"{folder / TOKENIZER}" has {tokenizer.vocab_size} tokens, the model vocab_size={vocab_size}.'
        )
    return tokenizer


def shipped() -> list[str]:
    """Return the names of the models that come with the package."""
    zoo = resources("glassformer") / "zoo"
    return sorted(entry.name for entry in zoo.iterdir() if (entry / CONFIG).is_file()) if zoo.is_dir() else []


def folder_of(name: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a shipped model, the model folder a path stands for, or that of a hub model's local copy.

    Raises:
        UnknownModel: None of them is there.
        CheckpointError: It is a file, or the hub cannot be reached.
    """
    if str(name) in shipped():
        return Path(str(resources("glassformer") / "zoo" / str(name)))
    folder = Path(name)
    # os.path, unlike Path, takes any text for a name that may not exist, however long
    if not os.path.isdir(folder):
        if os.path.isfile(folder):
            raise CheckpointError(f'"{folder}" is a file; give the folder that holds {CONFIG} and {WEIGHTS}.')
        if hub.is_id(str(name)):
            return hub.download(str(name), revision, weights=weights)
        known = shipped()
        raise UnknownModel(
            f'no model "{name}".{nearest(str(name), known)} Shipped: {", ".join(known) or "none"}; or give a folder, '
            "or a hub id (owner/model)."
        )
    steps = sorted(folder.glob("step-*"))
    return folder if (folder / WEIGHTS).exists() or not steps else steps[-1]


_SHARD = re.compile(r"(origin|model(-\d{5}-of-\d{5})?)\.safetensors")
HALF = (torch.float16, torch.bfloat16)
_TYPES = (*HALF, torch.float32, torch.float64)


def _envelope(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        pickles = [p.name for p in folder.glob("*") if p.suffix in PICKLED]
        found = ", ".join(pickles) or ", ".join(sorted(p.name for p in folder.glob("*"))[:6]) or "an empty folder"
        advice = f" Pickles can run code and are refused.\n{way_from_pickle(pickles[0])}" if pickles else ""
        raise CheckpointError(f'"{folder}" holds no {CONFIG} (found: {found}).{advice}')
    try:
        envelope = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f'"{path}" is not valid JSON ({error}).') from error
    digests = envelope.get("sha256") if isinstance(envelope, dict) else None
    files = [] if not isinstance(digests, dict) else [name for name in digests if name.endswith(".safetensors")]
    if not isinstance(digests, dict) or "model" not in envelope or not files:
        raise CheckpointError(f'"{path}" is not a model config of this package: "model" and "sha256" are needed.')
    if envelope.get("format") != FORMAT:
        raise CheckpointError(f'"{path}" is in format {envelope.get("format")!r}; this version reads {FORMAT}.')
    # a damaged name must not pass for a file that was never there
    strange = [
        *(envelope.keys() - {"format", "model", "origin", "sha256", "tokenizer"}),
        *(digests.keys() - {"model", TOKENIZER, *(name for name in files if _SHARD.fullmatch(name))}),
    ]
    if strange:
        raise CheckpointError(f'"{path}" has entries that this version does not know: {", ".join(strange)}.')
    if digests.get("model") != digest_of(envelope["model"]):
        raise CheckpointError(f'"{path}": the model config does not match its digest; it was changed or damaged.')
    return envelope


def sha256_of(path: Path) -> str:
    """Return the digest of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(content: bytes | str) -> str:
    """Return the digest by which damage is noticed."""
    return hashlib.sha256(content.encode("utf-8") if isinstance(content, str) else content).hexdigest()


def digest_of(config: object) -> str:
    """Return the digest of a config's JSON data."""
    try:
        return sha256(json.dumps(config, sort_keys=True))
    except (ValueError, RecursionError):  # nested too deeply, or a number too long to be written
        return "none"


def _verified(folder: Path, name: str, envelope: dict[str, Any]) -> bytes:
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {error.strerror or error}.') from error
    _require(path, content[:16], len(content), sha256(content), envelope["sha256"][name])
    return content


def _verify(folder: Path, name: str, envelope: dict[str, Any]) -> None:
    """Check a file against its digest without holding it."""
    path = folder / name
    try:
        with path.open("rb") as file:
            start = file.read(16)
            file.seek(0)
            digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {error.strerror or error}.') from error
    _require(path, start, size, digest, envelope["sha256"][name])


def _require(path: Path, start: bytes, size: int, digest: str, expected: str) -> None:
    if is_pickle(start):
        raise CheckpointError(f'"{path}" is a pickle, not safetensors; pickles can run code and are refused.')
    if digest != expected:
        raise CheckpointError(
            f'"{path}" ({size:,} bytes) does not match the digest in {CONFIG}; it is truncated or damaged. '
            "Copy it again from its source."
        )


def _fit(model: torch.nn.Module, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Raise `CheckpointError` unless names and shapes are exactly the model's."""
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    problems = [f'"{name}" is missing' for name in expected if name not in found]
    problems += [f'"{name}" is not in the model.{nearest(name, expected)}' for name in found if name not in expected]
    problems += [
        f'"{name}" has shape {found[name]}, the config asks for {shape}'
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    problems += [f'"{name}" is of type {value.dtype}' for name, value in tensors.items() if value.dtype not in _TYPES]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise CheckpointError(f'"{folder / WEIGHTS}" does not fit its config: {"; ".join(problems[:3])}{more}.')
