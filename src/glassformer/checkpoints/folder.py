"""A model folder: `config.json`, `model.safetensors`, and `tokenizer.json` if the model has one.

`config.json` is an envelope around the model's config with the SHA-256 of config, weights and tokenizer, so that a
damaged file is told from a strange one. Tied matrices are stored once.
"""

import hashlib
import json
import os
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as serialise

from glassformer import files
from glassformer.data import Tokenizer
from glassformer.errors import CheckpointError, ConfigError, UnknownModel, nearest
from glassformer.models import Decoder, Encoder, EncoderDecoder, ModelConfig

FORMAT = 1
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
Model = Decoder | Encoder | EncoderDecoder


def save(model: Model, folder: str | Path, dtype: torch.dtype | None = None) -> Path:
    """Write a model folder: all of its files are on the disk before one of them takes the place of an older one.

    Args:
        model: The model; its `tokenizer` is written too if it has one.
        folder: Made if missing.
        dtype: Store weights in this type, for example `torch.bfloat16`; as they are by default.

    Raises:
        SaveError: The folder cannot be written to; a model that was there before is still whole.
    """
    folder = Path(folder)
    tensors = {
        name: value.detach().to(dtype or value.dtype).contiguous().cpu() for name, value in model.state_dict().items()
    }
    contents: dict[str, bytes | str] = {WEIGHTS: serialise(tensors)}
    if model.tokenizer is not None:
        contents[TOKENIZER] = model.tokenizer.to_json()
    config = model.config.to_dict()
    digests = {name: sha256(content) for name, content in contents.items()}
    envelope = {"format": FORMAT, "model": config, "sha256": digests | {"model": digest_of(config)}}
    # the envelope goes last: a folder without it is no model yet
    return files.write_all(folder, contents | {CONFIG: json.dumps(envelope, indent=1)})


def load(name: str | Path) -> Model:
    """Load a model by the name it ships under, or from a folder.

    A run folder gives its newest checkpoint. Half-precision weights come back as float32, in evaluation mode.

    Raises:
        UnknownModel: No shipped model and no folder of that name.
        CheckpointError: The folder is damaged, of a refused format, or its weights do not fit its config.
    """
    folder = folder_of(name)
    envelope = _envelope(folder)
    try:
        config = ModelConfig.from_dict(envelope["model"])
    except ConfigError as error:
        raise CheckpointError(f'"{folder / CONFIG}": {error}') from error
    weights = _verified(folder, WEIGHTS, envelope)
    try:
        tensors = parse(weights)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f'"{folder / WEIGHTS}" is not a whole safetensors file ({error}).') from error
    model = _skeleton(config, len(tensors), folder)
    _fit(model, tensors, folder)
    model.load_state_dict({k: v.float() if v.dtype in HALF else v for k, v in tensors.items()}, assign=True)
    if TOKENIZER in envelope["sha256"]:
        text = _verified(folder, TOKENIZER, envelope)
        try:
            model.tokenizer = Tokenizer.from_json(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise CheckpointError(f'"{folder / TOKENIZER}" is not UTF-8.') from error
        if model.tokenizer.vocab_size > config.vocab_size:
            raise CheckpointError(
                f'"{folder / TOKENIZER}" has {model.tokenizer.vocab_size} tokens, '
                f"the model vocab_size={config.vocab_size}."
            )
    # a run folder names its model, not the step it has come to
    model.name = Path(name).name or folder.name
    return model.eval()


def shipped() -> list[str]:
    """Return the names of the models that come with the package."""
    zoo = resources("glassformer") / "zoo"
    return sorted(entry.name for entry in zoo.iterdir() if (entry / CONFIG).is_file()) if zoo.is_dir() else []


def folder_of(name: str | Path) -> Path:
    """Return the folder of a shipped model, or the model folder a path stands for; raises `UnknownModel`."""
    if str(name) in shipped():
        return Path(str(resources("glassformer") / "zoo" / str(name)))
    folder = Path(name)
    # os.path, unlike Path, takes any text for a name that may not exist, however long
    if not os.path.isdir(folder):
        if os.path.isfile(folder):
            raise CheckpointError(f'"{folder}" is a file; give the folder that holds {CONFIG} and {WEIGHTS}.')
        known = shipped()
        raise UnknownModel(
            f'no model "{name}".{nearest(str(name), known)} Shipped: {", ".join(known) or "none"}; or give a folder.'
        )
    steps = sorted(folder.glob("step-*"))
    return folder if (folder / WEIGHTS).exists() or not steps else steps[-1]


HALF = (torch.float16, torch.bfloat16)
_TYPES = (*HALF, torch.float32, torch.float64)
# protocols 2 to 5, and the archive that torch.save writes
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")


def _envelope(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        pickles = [p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")]
        found = ", ".join(pickles) or ", ".join(sorted(p.name for p in folder.glob("*"))[:6]) or "an empty folder"
        advice = " Pickles can run code and are refused; convert them to safetensors." if pickles else ""
        raise CheckpointError(f'"{folder}" holds no {CONFIG} (found: {found}).{advice}')
    try:
        envelope = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f'"{path}" is not valid JSON ({error}).') from error
    digests = envelope.get("sha256") if isinstance(envelope, dict) else None
    if not isinstance(digests, dict) or "model" not in envelope or WEIGHTS not in digests:
        raise CheckpointError(f'"{path}" is not a model config of this package: "model" and "sha256" are needed.')
    if envelope.get("format") != FORMAT:
        raise CheckpointError(f'"{path}" is in format {envelope.get("format")!r}; this version reads {FORMAT}.')
    # a damaged name must not pass for a file that was never there
    strange = [*(envelope.keys() - {"format", "model", "sha256"}), *(digests.keys() - {"model", WEIGHTS, TOKENIZER})]
    if strange:
        raise CheckpointError(f'"{path}" has entries that this version does not know: {", ".join(strange)}.')
    if digests.get("model") != digest_of(envelope["model"]):
        raise CheckpointError(f'"{path}": the model config does not match its digest; it was changed or damaged.')
    return envelope


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
    # the length of a safetensors header may begin like a pickle, but is followed by zeros and a brace
    if content.startswith(_PICKLES) and content[2:9] != bytes(6) + b"{":
        raise CheckpointError(f'"{path}" is a pickle, not safetensors; pickles can run code and are refused.')
    if sha256(content) != envelope["sha256"][name]:
        raise CheckpointError(
            f'"{path}" ({len(content):,} bytes) does not match the digest in {CONFIG}; it is truncated or damaged. '
            "Copy it again from its source."
        )
    return content


def _skeleton(config: ModelConfig, n_tensors: int, folder: Path) -> Model:
    """Build the model without memory for its weights, however many the config asks for."""
    blocks = sum(len(value) for value in vars(config).values() if isinstance(value, tuple))
    if blocks > n_tensors:
        raise CheckpointError(
            f'"{folder / WEIGHTS}" has {n_tensors} tensors: too few for the {blocks} blocks of its config.'
        )
    try:
        with torch.device("meta"):
            return config.build()
    except ConfigError as error:
        raise CheckpointError(f'"{folder / CONFIG}": {error}') from error
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:  # what torch says of sizes beyond 64 bits
        reason = str(error).splitlines()[0]
        raise CheckpointError(f'"{folder / CONFIG}" asks for tensors of impossible sizes ({reason}).') from error


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
