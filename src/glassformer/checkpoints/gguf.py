"""GGUF files, llama.cpp's: weights that are rounded as a rule, turned back into numbers once and held in memory.

    load("SmolLM2-135M.Q4_1.gguf")            the file, or a folder that holds one model in such files and no other
    convert("SmolLM2-135M.Q4_1.gguf", OUT)    the same numbers as safetensors, for good

The library that knows the names and orders of llama.cpp's tensors is transformers, which reads config, tokenizer and
weights. It does so in an empty folder of its own, so that nothing that lies beside a file is read, fetched or run.
"""

import contextlib
import importlib
import io
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.checkpoints.gguf_positions import with_positions
from glassformer.checkpoints.held import HeldTensors
from glassformer.checkpoints.published import checkpoint_of, translated
from glassformer.checkpoints.tensors import GGUF, is_pickle
from glassformer.data import Tokenizer, published
from glassformer.errors import CheckpointError, MissingExtra
from glassformer.files import json_text
from glassformer.files.packaged import CONFIG
from glassformer.files.reading import opened, reason
from glassformer.models import ModelConfig
from glassformer.provenance import ModelNote
from glassformer.words import sentence

_MAGIC = b"GGUF"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
# types whose numbers are those that were stored, and none that were rounded to a grid
_WHOLE = ("F16", "BF16", "F32", "F64")
# numbers that are turned back in some two seconds
_QUICK = 10_000_000
# what a damaged file, or one of an architecture that is not known, makes of the readers
_UNREAD = (
    OSError, ValueError, LookupError, AttributeError, TypeError, RuntimeError, OverflowError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A model in GGUF files.

    Args:
        path: The file, or the first of several.
    """

    path: Path
    mapped: ClassVar[bool] = True
    # these files come without digests
    digest: ClassVar[str] = ""
    in_memory: ClassVar[bool] = True

    @cached_property
    def config(self) -> ModelConfig:
        """Our config of it."""
        return translated(self._said, self.path)[1]

    @property
    def notes(self) -> tuple[ModelNote, ...]:
        """What must be known of its weights, as the headers say: how they were rounded."""
        return rounding_notes(self._n_stored)

    def open(self) -> Checkpoint:
        """Return the checkpoint, its tensors read and turned back into numbers.

        Raises:
            MissingExtra: What reads such files is not installed.
            CheckpointError: A file is damaged, no family covers what it holds, or a part of it is not known.
        """
        # what no family covers is told before anything is turned back
        translated(self._said, self.path)
        # the reader tells nothing while it is at work
        if self._n_weights > _QUICK:
            logging.getLogger(__name__).warning(
                '"%s": %s million numbers are turned back, which takes a while whenever it is opened. To write them '
                'for good: glassformer convert "%s" OUT.',
                self.path, f"{self._n_weights / 1e6:,.0f}", self.path,
            )  # fmt: skip
        files = HeldTensors(self.path, self._tensors())
        return checkpoint_of(self._said, self.path, files, notes=self.notes)

    def check(self, weights_only: bool = False) -> None:
        """Do nothing: these files come without digests."""

    def loaded_as(self, stored: torch.dtype) -> torch.dtype | None:
        """Return the type that weights come in unless another is asked for: the one that holds what was rounded."""
        return None

    def tokenizers(self) -> dict[str, Tokenizer]:
        """Return its tokenizer under that name, nothing if there is none that can be read."""
        found, _ = self._tokenizer
        return {} if found is None else {"tokenizer": found}

    def lack_of_tokenizer(self) -> str:
        """Return why it has no tokenizer that can be read."""
        return self._tokenizer[1]

    @cached_property
    def _headers(self) -> Sequence[Any]:
        """What each file says and holds."""
        return [_header(path) for path in _all_of(self.path)]

    @cached_property
    def _n_stored(self) -> dict[str, int]:
        """Numbers of each type, the most first."""
        found: dict[str, int] = {}
        for tensor in (tensor for header in self._headers for tensor in header.tensors):
            found[tensor.tensor_type.name] = found.get(tensor.tensor_type.name, 0) + int(tensor.n_elements)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def _said(self) -> Mapping[str, Any]:
        """What it says, in the words of a published config."""
        with self._alone() as (folder, name), _reading(self.path):
            config: Any = _library("transformers").AutoConfig.from_pretrained(folder, gguf_file=name, **_LOCAL)
            said = json.loads(config.to_json_string())
            # what is rounded there is not so any more
            said.pop("quantization_config", None)
            if (turn := self._fields("tokenizer.ggml.eot_token_id")) not in (None, said.get("eos_token_id")):
                said["eos_token_id"] = [said["eos_token_id"], turn] if type(said.get("eos_token_id")) is int else turn
            return _decimal(with_positions(said, self._headers, self.path))

    def _tensors(self) -> dict[str, Tensor]:
        """Return its tensors under the names that a published folder has them by."""
        transformers = _library("transformers")
        encodes = self._said.get("is_encoder_decoder") is True
        made = transformers.AutoModelForSeq2SeqLM if encodes else transformers.AutoModelForCausalLM
        with self._alone() as (folder, name), _reading(self.path):
            theirs, told = made.from_pretrained(
                folder, gguf_file=name, dtype=torch.float32, output_loading_info=True, **_LOCAL
            )
        missing = sorted(told["missing_keys"])
        if missing:
            raise CheckpointError(
                f'"{self.path}" lacks "{missing[0]}"' + (f" and {len(missing) - 1} more" if missing[1:] else "")
                + ", which its config asks for: it is of a variant that the reader does not know."
            )  # fmt: skip
        # matrices that are tied come once; tables of angles are computed, and in no file
        states = reversed(theirs.state_dict(keep_vars=True).items())
        found = {id(value): (name, value.detach()) for name, value in states}
        n_read = sum(value.numel() for _, value in found.values())
        if n_read != self._n_weights:
            raise CheckpointError(
                f'"{self.path}" holds {self._n_weights:,} numbers, and {n_read:,} are read from it: some of its '
                "tensors are of a variant that the reader does not know, and without them it would be another model."
            )
        return dict(found.values())

    @property
    def _n_weights(self) -> int:
        """Numbers that are weights: all but the factors of positions, which the config says."""
        tensors = [tensor for header in self._headers for tensor in header.tensors]
        return sum(int(tensor.n_elements) for tensor in tensors if not tensor.name.startswith("rope_f"))

    @cached_property
    def _tokenizer(self) -> tuple[Tokenizer | None, str]:
        """Return its tokenizer, or why it gives none."""
        try:
            with self._alone() as (folder, name), _reading(self.path), tempfile.TemporaryDirectory() as written:
                theirs: Any = _library("transformers").AutoTokenizer.from_pretrained(folder, gguf_file=name, **_LOCAL)
                theirs.save_pretrained(written)
                _forget_beyond(len(self._fields("tokenizer.ggml.tokens", ())), Path(written, "tokenizer.json"))
                # which tokens end a text, it says of the model
                Path(written, CONFIG).write_text(json_text(dict(self._said)), encoding="utf-8")
                return published(written), f'"{self.path}": its tokenizer is none that can be read here.'
        except CheckpointError as error:
            return None, str(error)

    def _fields(self, name: str, default: Any = None) -> Any:
        """Return what the (first) file says under a name."""
        field = self._headers[0].fields.get(name)
        return default if field is None else field.contents()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[tuple[str, str]]:
        """Give a folder that holds the model in one file and nothing else, and the file's name."""
        name = f"model{GGUF}"
        with tempfile.TemporaryDirectory() as folder:
            there = Path(folder, name)
            if len(self._headers) > 1:
                _join(self._headers, there)
            else:
                try:
                    os.symlink(self.path.absolute(), there)
                except OSError:  # a system that lets nobody make links
                    shutil.copyfile(self.path, there)
            yield folder, name


# nothing is fetched, and no code of a checkpoint is run
_LOCAL: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def gguf_of(folder: Path) -> Path | None:
    """Return the file, the first of several, that a folder without other weights holds its model in; None without one.

    Raises:
        CheckpointError: There are several models.
    """
    found = sorted(path.name for path in folder.glob(f"*{GGUF}") if path.is_file())
    if not found or any(folder.glob("*.safetensors")):
        return None
    if len(gguf_models(found)) > 1:
        names = ", ".join(found[:4])
        raise CheckpointError(
            f'"{folder}" holds several models ({names}{", …" if found[4:] else ""}); give the file that is meant.'
        )
    return folder / found[0]


def gguf_models(names: Iterable[str]) -> list[list[str]]:
    """Return the GGUF files among some in one folder, those together that hold one model, in order.

    Args:
        names: Names of files; those with a folder's before them lie elsewhere.
    """
    models = dict[tuple[str, ...], list[str]]()
    for name in sorted(name for name in names if name.endswith(GGUF) and "/" not in name):
        shard = _SHARD.fullmatch(name)
        models.setdefault((shard[1], shard[3]) if shard else (name,), []).append(name)
    return list(models.values())


def rounding_notes(n_stored: Mapping[str, int]) -> tuple[ModelNote, ...]:
    """Return a note on the types that weights were rounded to; none if they were not.

    Args:
        n_stored: Numbers of each type.
    """
    rounded, total = [kind for kind in n_stored if kind not in _WHOLE], sum(n_stored.values())
    if not rounded:
        return ()
    listed = ", ".join(f"{kind} {100 * n_stored[kind] / total:.0f} %" for kind in rounded)
    return (
        ModelNote(
            sentence("The weights were rounded to few bits before they were read: {types}.", types=listed),
            sentence("Numbers are those of the rounded model, not of the one that was trained."),
        ),
    )


def _all_of(path: Path) -> list[Path]:
    """Return the files of a model, of which one was given."""
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        return [path]
    of = int(shard[3])
    files = [path.with_name(f"{shard[1]}-{i:05d}-of-{shard[3]}{GGUF}") for i in range(1, of + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f'"{path.parent}" lacks {len(missing)} of the {of} files of its model: {", ".join(missing[:3])}. '
            "Copy or download them again."
        )
    return files


def _header(path: Path) -> Any:
    """Return what a file says and where its tensors lie, mapped."""
    try:
        with opened(path) as file:
            start = file.read(64)
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error
    if is_pickle(start):
        raise CheckpointError(f'"{path}" is a pickle, not GGUF; pickles can run code and are refused.')
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f'"{path}" is a pointer of git-lfs, not the weights themselves; fetch them: git lfs pull.'
        )
    if not start.startswith(_MAGIC):
        raise CheckpointError(f'"{path}" is no GGUF file, whatever its name says: such a file begins with "GGUF".')
    with _reading(path):
        return _library("gguf").GGUFReader(path)


def _join(headers: Sequence[Any], there: Path) -> None:
    """Write the model of several files into one, as it is stored."""
    gguf = _library("gguf")
    first = headers[0]
    writer = gguf.GGUFWriter(there, first.fields["general.architecture"].contents(), endianess=first.endianess)
    for field in first.fields.values():
        if field.name != "general.architecture" and not field.name.startswith(("GGUF.", "split.")):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in (tensor for header in headers for tensor in header.tensors):
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _forget_beyond(size: int, path: Path) -> None:
    """Take tokens out of a tokenizer's file that its library has names for and the vocabulary has not."""
    said = json.loads(path.read_text(encoding="utf-8"))
    said["added_tokens"] = [token for token in said["added_tokens"] if token["id"] < size]
    path.write_text(json_text(said), encoding="utf-8")


def _decimal(said: Any) -> Any:
    """Return a config with numbers as they were typed, which the files hold as float32: .00001 as .0000099999997…"""
    if isinstance(said, dict):
        return {name: _decimal(value) for name, value in said.items()}
    if isinstance(said, list):
        return [_decimal(value) for value in said]
    if isinstance(said, float) and said == torch.tensor(said).item():
        return float(str(numpy.float32(said)))
    return said


def _library(name: str) -> Any:
    """Return one of the libraries that read such files; raises `MissingExtra` if any of them is missing."""
    try:
        for needed in ("gguf", "accelerate", "transformers"):
            importlib.import_module(needed)
    except ImportError as error:
        raise MissingExtra(f"GGUF files need {error.name} to be read: pip install 'glassformer[gguf]'.") from error
    return importlib.import_module(name)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an error about it; what the readers print is left out."""
    reader = logging.getLogger("transformers")
    level = reader.level
    reader.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except (CheckpointError, MissingExtra):
        raise
    except _UNREAD as error:
        told = (str(error).splitlines() or [""])[0][:200]
        raise CheckpointError(
            f'"{path}" ({path.stat().st_size:,} bytes) cannot be read as GGUF ({type(error).__name__}: {told}). It is '
            "truncated or damaged, or of an architecture that the reader does not know: copy or download it again, or "
            "take the checkpoint that it was made from."
        ) from error
    finally:
        reader.setLevel(level)
