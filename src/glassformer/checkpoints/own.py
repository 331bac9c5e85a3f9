"""Our own layout: `config.json`, `model.safetensors`, and `tokenizer.json` if the model has one.

Outputs and sources that are vocabularies of their own have `output_tokenizer.json` and `source_tokenizer.json`.

`config.json` is an envelope around the model's config with the SHA-256 of config, weights and tokenizers, so that a
damaged file is told from a strange one. Tied matrices are stored once. Where ranks of a mesh wrote the weights, each
its shards, they lie in the files of `rank_files`.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from safetensors.torch import save as serialise

from glassformer import files
from glassformer.arguments import checked
from glassformer.checkpoints.adapters import lasting_notes, unmerged_notes
from glassformer.checkpoints.checkpoint import Checkpoint, Origin, skeleton
from glassformer.checkpoints.families import Piece, Source
from glassformer.checkpoints.rank_files import RankFiles, holds_weights
from glassformer.checkpoints.tensors import WEIGHTS, TensorFiles, Tensors, is_pickle, narrowed
from glassformer.data import Roles, Tokenizer
from glassformer.data.chat_template import ChatTemplate
from glassformer.errors import CheckpointError, ConfigError, nearest
from glassformer.files import json_text
from glassformer.files.packaged import CONFIG
from glassformer.files.reading import MOST_TOKENIZER, opened, read, reason
from glassformer.models import Model, ModelConfig, ModelLike, require_model
from glassformer.models.generation_rules import NO_RULES, GenerationRules
from glassformer.numerics.parametrized import seen_state
from glassformer.numerics.placement import NumberType, number_type
from glassformer.provenance import ModelNote

FORMAT = 1
TOKENIZER = "tokenizer.json"
# by the name that a model has them under, which is also that of their entry in the envelope
TOKENIZERS = {
    "tokenizer": TOKENIZER,
    "output_tokenizer": "output_tokenizer.json",
    "source_tokenizer": "source_tokenizer.json",
}
HALF = (torch.float16, torch.bfloat16)
_SHARD = re.compile(r"(origin|model(-\d{5}-of-\d{5})?)\.safetensors")


@checked
def save(model: ModelLike, folder: str | Path, dtype: NumberType | None = None) -> Path:
    """Write a model folder: all of its files are on the disk before one of them takes the place of an older one.

    Weights are written as every pass sees them: an adapter that is attached is merged into them.

    Args:
        model: The model; its tokenizers are written too if it has any.
        folder: Made if missing.
        dtype: Store weights in this type, `torch.bfloat16` or `"bfloat16"`; as they are by default.

    Raises:
        SaveError: The folder cannot be written to; a model that was there before is still whole.
        ConfigError: Weights are not kept in such a type, or some are too large for it.
    """
    folder, model, kind = Path(folder), require_model(model, "save"), number_type(dtype)
    tensors = {name: narrowed(name, value.detach(), kind).cpu() for name, value in seen_state(model).items()}
    weights = serialise(tensors)
    return files.write_all(folder, {WEIGHTS: weights, **described(model, {WEIGHTS: sha256(weights)})})


def described(
    model: Model, digests: Mapping[str, str], optimizer: Mapping[str, str] | None = None
) -> dict[str, bytes | str]:
    """Files that lie beside a model's weights, by name: its tokenizers, and last the envelope.

    Args:
        model: What they say something of.
        digests: SHA-256 of the files with its weights.
        optimizer: SHA-256 of files with an optimizer's state, if there are any.
    """
    tokenizers = tokenizers_of(model)
    texts = {TOKENIZERS[name]: tokenizer.to_json() for name, tokenizer in tokenizers.items()}
    digests = {**digests, **{name: sha256(text) for name, text in texts.items()}}
    # a folder without its envelope is no model yet
    said = envelope(
        model.config, digests, model.origin, tokenizers, model.trained_length, model.generation,
        model.checkpoint_notes, optimizer,
    )  # fmt: skip
    return {**texts, CONFIG: said}


def tokenizers_of(model: Model) -> dict[str, Tokenizer]:
    """Return the tokenizers that were set on a model, by the attribute."""
    own = {f"{side}_tokenizer": tokenizer for side, tokenizer in model.own_tokenizers.items()}
    return {name: one for name, one in {"tokenizer": model.tokenizer, **own}.items() if one is not None}


def attach(model: Model, tokenizers: Mapping[str, Tokenizer]) -> None:
    """Give a model its tokenizers; what it has none for stays without."""
    for name, tokenizer in tokenizers.items():
        setattr(model, name, tokenizer)


def envelope(
    config: ModelConfig,
    digests: Mapping[str, str],
    origin: Origin | None = None,
    tokenizers: Mapping[str, Tokenizer] | None = None,
    trained_length: int | None = None,
    generation: GenerationRules = NO_RULES,
    notes: tuple[ModelNote, ...] = (),
    optimizer: Mapping[str, str] | None = None,
) -> str:
    """Return what `config.json` says of a model.

    Args:
        config: Of the model.
        digests: SHA-256 of the other files by name.
        origin: Where the model came from.
        tokenizers: Its tokenizers by attribute, whose special tokens their files do not tell.
        trained_length: Tokens of the longest rows it was trained on.
        generation: What it says of generating.
        notes: What must be known of its weights.
        optimizer: SHA-256 of files with the state of what trains it, by name.
    """
    model = config.to_dict()
    said: dict[str, Any] = {"format": FORMAT, "model": model, "sha256": {**digests, "model": digest_of(model)}}
    if origin is not None:
        said["origin"] = origin._asdict()
    for name, tokenizer in (tokenizers or {}).items():
        if tokenizer.published is not None:
            said[name] = tokenizer.published.to_dict()
        if tokenizer.chat is not None:
            said.setdefault("chat", {})[name] = tokenizer.chat.to_dict()
    if trained_length is not None:
        said["trained_length"] = trained_length
    if generation != NO_RULES:
        said["generation"] = generation.to_dict()
    if kept := lasting_notes(notes):
        said["notes"] = [note.to_dict() for note in kept]
    if optimizer:
        said["optimizer"] = dict(optimizer)
    return json_text(said, indent=1)


@dataclass(frozen=True, eq=False)
class OwnFolder:
    """A model on disk in our own layout.

    Args:
        folder: The folder.
        path: Its config file.
        said: What that file says: the envelope, checked on entry.

    Raises:
        CheckpointError: It is no envelope, of another format, or its config does not match its digest.
    """

    folder: Path
    path: Path
    said: Any
    # copied, a model computes to the last bit what it computed when it was saved
    mapped: ClassVar[bool] = False
    in_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_envelope(self.said, self.path)

    @property
    def digests(self) -> Mapping[str, str]:
        """SHA-256 of the files, and of the config under `model`."""
        return self.said["sha256"]

    @property
    def optimizer(self) -> Mapping[str, str]:
        """SHA-256 of the files with the state of an optimizer, which may be gone; none in folders that never had it."""
        return self.said.get("optimizer", {})

    @cached_property
    def config(self) -> ModelConfig:
        """The model's config."""
        try:
            return ModelConfig.from_dict(self.said["model"])
        except ConfigError as error:
            raise CheckpointError(f'"{self.path}": {error}') from error

    @property
    def origin(self) -> Origin | None:
        """Where the model came from, if it was converted."""
        origin = self.said.get("origin")
        return None if origin is None else Origin(origin["family"], origin["config"])

    @property
    def digest(self) -> str:
        """Digest of config and weights, from those that the envelope holds: no file is read."""
        held = {name: digest for name, digest in self.digests.items() if _is_of_weights(name)}
        return f"files:{sha256(json_text(held, sort=True))}"

    @property
    def trained_length(self) -> int | None:
        """Tokens of the longest rows the model was trained on; None in folders that do not say."""
        return self.said.get("trained_length")

    @property
    def generation(self) -> GenerationRules:
        """What it says of generating; no rules in folders that say nothing.

        Raises:
            CheckpointError: It says what are no rules.
        """
        try:
            return GenerationRules.from_dict(self.said.get("generation", {}))
        except ConfigError as error:
            raise CheckpointError(f'"{self.path}": {error}') from error

    @property
    def notes(self) -> tuple[ModelNote, ...]:
        """What must be known of its weights; none in folders that say nothing and hold no adapter.

        Raises:
            CheckpointError: What stands there are no notes.
        """
        try:
            written = tuple(ModelNote.from_dict(note) for note in self.said.get("notes", ()))
            return (*written, *unmerged_notes(self.folder))
        except (TypeError, KeyError) as error:
            raise CheckpointError(f'"{self.path}": "notes" must be a list of notes, or be left out.') from error

    def open(self) -> Checkpoint:
        """Return the checkpoint, nothing read but headers; contents are not checked, see `check`.

        Raises:
            CheckpointError: Names, shapes or types of the tensors are not the model's.
        """
        of_ranks = [name for name in self.digests if holds_weights(name)]
        tensors = RankFiles(self.folder, of_ranks) if of_ranks else TensorFiles(self.folder)
        model = skeleton(self.config, len(tensors), self.folder)
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        _fit(shapes, tensors)
        parts = {name: Source(shape, (Piece(name),)) for name, shape in shapes.items()}
        stored = {name: name for name in shapes}
        return Checkpoint(
            folder=self.folder,
            config=self.config,
            model=model,
            parts=parts,
            files=tensors,
            stored=stored,
            origin=self.origin,
            trained_length=self.trained_length,
            generation=self.generation,
            notes=self.notes,
        )

    def check(self, weights_only: bool = False) -> None:
        """Raise `CheckpointError` if a file is not what its digest says.

        Args:
            weights_only: Check the files that hold the model's weights, and no others.
        """
        for name, digest in self.digests.items():
            if name != "model" and (not weights_only or _is_of_weights(name)):
                verify(self.folder / name, digest)

    def loaded_as(self, stored: torch.dtype) -> torch.dtype | None:
        """Return the type that weights come in unless another is asked for: ours are stored short to be small."""
        return torch.float32 if stored in HALF else None

    def tokenizers(self) -> dict[str, Tokenizer]:
        """Return its tokenizers by attribute of the model, those it has.

        Raises:
            CheckpointError: One is damaged, has more tokens than the model, or is of a vocabulary the model has not.
        """
        config = self.config
        sizes = {
            "tokenizer": ("vocab_size", config.vocab_size),
            "output_tokenizer": ("output_vocab_size", config.output_vocab_size),
            "source_tokenizer": ("source_vocab_size", getattr(config, "source_vocab_size", None)),
        }
        found: dict[str, Tokenizer] = {}
        for name, (field, size) in sizes.items():
            if TOKENIZERS[name] in self.digests:
                found[name] = tokenizer = self._tokenizer(name)
                if size is None or tokenizer.vocab_size > size:
                    path = self.folder / TOKENIZERS[name]
                    raise CheckpointError(f'"{path}" has {tokenizer.vocab_size} tokens, the model {field}={size}.')
        return found

    def _tokenizer(self, name: str) -> Tokenizer:
        path = self.folder / TOKENIZERS[name]
        text = _read(path)
        _require(path, text[:16], len(text), sha256(text), self.digests[path.name])
        try:
            roles = None if (said := self.said.get(name)) is None else Roles.from_dict(said)
            made = Tokenizer.from_json(text.decode("utf-8"), roles)
            template = self.said.get("chat", {}).get(name)
            made.chat = None if template is None else ChatTemplate.from_dict(template)
            return made
        except ConfigError as error:
            raise CheckpointError(f'"{self.path}": {error}') from error
        except UnicodeDecodeError as error:
            raise CheckpointError(f'"{path}" is not UTF-8.') from error

    def lack_of_tokenizer(self) -> str:
        """Return why it has no tokenizer that can be read: the model was saved without one."""
        return ""


def _is_of_weights(name: str) -> bool:
    """Whether a digest is of weights, or of the config that says what they are."""
    return name.startswith("model") or holds_weights(name)


def _check_envelope(said: Any, path: Path) -> None:
    digests = said.get("sha256") if isinstance(said, dict) else None
    files = [] if not isinstance(digests, dict) else [name for name in digests if name.endswith(".safetensors")]
    if not isinstance(digests, dict) or "model" not in said or not files:
        raise CheckpointError(f'"{path}" is not a model config of this package: "model" and "sha256" are needed.')
    # true is 1 to Python
    if type(said.get("format")) is not int or said["format"] != FORMAT:
        raise CheckpointError(f'"{path}" is in format {said.get("format")!r}; this version reads {FORMAT}.')
    known = [name for name in files if _SHARD.fullmatch(name) or holds_weights(name)]
    # a damaged name must not pass for a file that was never there
    entries = {"format", "model", "origin", "sha256", "trained_length", "generation", "notes", "chat", "optimizer"}
    entries |= TOKENIZERS.keys()
    strange = [
        *(said.keys() - entries),
        *(digests.keys() - {"model", *TOKENIZERS.values(), *known}),
    ]
    if strange:
        raise CheckpointError(f'"{path}" has entries that this version does not know: {", ".join(strange)}.')
    if not isinstance(said.get("optimizer", {}), dict):
        raise CheckpointError(f'"{path}": "optimizer" must be an object of files and their digests, or be left out.')
    if no_text := [name for name, digest in digests.items() if not isinstance(digest, str)]:
        raise CheckpointError(f'"{path}": the digest of {", ".join(no_text)} is no text; it was changed or damaged.')
    _check_origin(said.get("origin"), path)
    if digests.get("model") != digest_of(said["model"]):
        raise CheckpointError(f'"{path}": the model config does not match its digest; it was changed or damaged.')
    length = said.get("trained_length", 1)
    if type(length) is not int or length < 1:
        raise CheckpointError(f'"{path}": trained_length must be a number of tokens, found {str(length)[:80]}.')


def _check_origin(origin: Any, path: Path) -> None:
    if origin is None:
        return
    kinds = {name: type(value) for name, value in origin.items()} if isinstance(origin, dict) else {}
    if kinds != {"family": str, "config": dict}:
        raise CheckpointError(f'"{path}": "origin" must be {{"family": a name, "config": an object}}, or be left out.')


def sha256_of(path: Path) -> str:
    """Return the digest of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(content: bytes | str) -> str:
    """SHA-256 digest, by which damage is noticed."""
    return hashlib.sha256(content.encode("utf-8") if isinstance(content, str) else content).hexdigest()


def digest_of(config: object) -> str:
    """Return the digest of a config's JSON data."""
    try:
        return sha256(json_text(config, sort=True))
    except (ValueError, RecursionError):  # nested too deeply, or a number too long to be written
        return "none"


def _fit(shapes: Mapping[str, tuple[int, ...]], tensors: Tensors) -> None:
    """Raise `CheckpointError` unless names, shapes and types are exactly the model's."""
    problems = [f'"{name}" is missing.{nearest(name, tensors)}' for name in shapes if name not in tensors]
    problems += [f'"{name}" is not in the model.{nearest(name, shapes)}' for name in tensors if name not in shapes]
    for name, shape in shapes.items():
        if name in tensors and tensors[name].shape != shape:
            problems.append(f'"{name}" has shape {tensors[name].shape}, the config asks for {shape}.')
    for name, tensor in tensors.items():
        if tensor.dtype is None:
            problems.append(f'"{name}" is stored as {tensor.stored_as}; F16, BF16, F32 and F64 are read.')
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise CheckpointError(f'"{tensors.folder}" does not fit its config: {" ".join(problems[:3])}{more}')


def _read(path: Path) -> bytes:
    try:
        return read(path, MOST_TOKENIZER)
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error


def verify(path: Path, expected: str) -> None:
    """Raise `CheckpointError` unless a file is what its digest says; it is not held in memory."""
    try:
        with opened(path) as file:
            start = file.read(16)
            file.seek(0)
            digest, size = hashlib.file_digest(cast(Any, file), "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error
    _require(path, start, size, digest, expected)


def _require(path: Path, start: bytes, size: int, digest: str, expected: str) -> None:
    if is_pickle(start):
        raise CheckpointError(f'"{path}" is a pickle, not safetensors; pickles can run code and are refused.')
    if digest != expected:
        raise CheckpointError(
            f'"{path}" ({size:,} bytes) does not match the digest in {CONFIG}; it is truncated or damaged. '
            "Copy it again from its source."
        )
