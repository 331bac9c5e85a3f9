"""A model from one layout to another: ours, Hugging Face's, and those of other libraries, both ways.

    convert("gpt2", "gpt2-ours")                                  ours, which remembers where it came from
    convert("gpt2-ours", "gpt2-again", "huggingface")             as it was, bit for bit
    convert("stories15M", "stories-hf", "huggingface")            rotary pairs reordered on the way

Weights are read, rearranged and written a few tensors at a time; nothing is computed with them. The folder appears when
it is whole, and never in the place of another.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from glassformer import files
from glassformer.arguments import checked
from glassformer.checkpoints.adapters import lasting_notes
from glassformer.checkpoints.checkpoint import Checkpoint, skeleton
from glassformer.checkpoints.conversion.layouts import LAYOUTS, expressed
from glassformer.checkpoints.conversion.leftovers import Leftovers, leftovers_of
from glassformer.checkpoints.families import FIELD, Family, Fields, Source, sources, taken_apart, trained_length
from glassformer.checkpoints.loading import model_folder
from glassformer.checkpoints.names import folder_of
from glassformer.checkpoints.own import TOKENIZERS, envelope, sha256_of
from glassformer.checkpoints.published import NOTES
from glassformer.checkpoints.tensors import INDEX, WEIGHTS, narrowed
from glassformer.config import require
from glassformer.data import Tokenizer
from glassformer.errors import CheckpointError, SaveError, nearest
from glassformer.files import json_text
from glassformer.files.packaged import CONFIG
from glassformer.models.norms import Norm
from glassformer.numerics.placement import NumberType, number_type

SHARD_SIZE = 2_000_000_000
# what belongs to a model besides its config and weights, and goes with it as it is
BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
    "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "source.spm", "target.spm",
    "chat_template.jinja",
)  # fmt: skip
Report = Callable[[int, int], None]


@checked
def convert(
    source: str | Path,
    folder: str | Path,
    to: str = "glassformer",
    *,
    dtype: NumberType | None = None,
    shard_size: int = SHARD_SIZE,
    revision: str | None = None,
    report: Report | None = None,
) -> Path:
    """Write a model in another layout.

    What has no place there is refused, not dropped. Biases that are zero, gains that are one and a copy of a tied
    matrix come and go freely, since the model computes the same with them and without.

    Args:
        source: A shipped model, a folder of any layout that can be read, a GGUF file, or a hub id.
        folder: Where to; must not be there yet, or be empty.
        to: `glassformer`, or a key of `LAYOUTS`.
        dtype: Of the weights; every tensor keeps its own by default.
        shard_size: Bytes per file, at most, unless a single tensor has more.
        revision: Of a hub model.
        report: Told how many tensors are done, and of how many.

    Raises:
        ConfigError: No such layout, a shard size that is not positive, or weights too large for the type.
        CheckpointError: The source cannot be read, or the layout has no place for a part of it.
        SaveError: There is something in the folder, or it cannot be written.
    """
    known = ("glassformer", *LAYOUTS)
    require(to in known, f'no layout "{to}".{nearest(to, known)} Layouts: {", ".join(known)}.')
    kind = number_type(dtype)
    require(shard_size > 0, f"shard_size must be positive, found {shard_size}.")
    folder = Path(folder)
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise SaveError(f'"{folder}" is there already, and nothing is overwritten. Choose another name.')
    origin = folder_of(source, revision)
    found = model_folder(origin)
    # headers first: a file of another size than its tensors' is refused before all of it is read
    checkpoint = found.open()
    # damage would come out with digests of its own
    found.check()
    for note in checkpoint.notes:
        logging.getLogger(__name__).warning("%s", note)
    tokenizers = found.tokenizers()
    family, config = (None, {}) if to == "glassformer" else expressed(checkpoint, to)
    made, temporary = [parent for parent in folder.absolute().parents if not parent.exists()], ""
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}-")
        os.chmod(temporary, 0o755)
        place = Path(temporary)
        groups = _ours(checkpoint) if family is None else _theirs(checkpoint, family, config)
        names = _write(place, groups, len(checkpoint.parts), kind, shard_size, report)
        _beside(origin, place, tokenizers, family is None)
        if family is None:
            written = [*names, *leftovers_of(checkpoint).save(place)]
            files.write(place / CONFIG, _envelope(place, written, checkpoint, tokenizers))
        else:
            config = _with_trained_length(_of_type(config, kind), family, checkpoint)
            # the one layout whose readers pass over fields that they do not know
            if to == "huggingface" and (notes := lasting_notes(checkpoint.notes)):
                config |= {NOTES: [note.to_dict() for note in notes]}
            files.write(place / family.config_name, json_text(config, indent=2))
        if folder.exists():
            folder.rmdir()
        os.rename(place, folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            if parent.exists() and not any(parent.iterdir()):
                parent.rmdir()
        if isinstance(error, OSError) and not isinstance(error, SaveError):
            raise files.refused(folder, error) from error
        raise
    return folder


Group = tuple[int, dict[str, Tensor]]  # of how many of our tensors, and the tensors to write


def _ours(checkpoint: Checkpoint) -> Iterator[Group]:
    """Yield our tensors, one by one."""
    for name in checkpoint.parts:
        yield 1, {name: _read(checkpoint, name)}


def _theirs(checkpoint: Checkpoint, family: Family, config: Mapping[str, Any]) -> Iterator[Group]:
    """Yield tensors of another layout, those together that share some of ours."""
    fields = Fields(config, family.config_name)
    wanted = family.translate(fields)
    model = skeleton(wanted, len(checkpoint.parts), checkpoint.folder)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    # the table asks for the order of rotary pairs, which is that of the tensors as they are
    parts = sources(shapes, family.names(fields, checkpoint.config))
    read = _OurTensors(checkpoint, model)
    for name in checkpoint.parts:
        if name not in parts:
            read.left_out(name)
    stored = {piece.name for part in parts.values() for piece in part.pieces}
    copies = {of: [of, copy] for copy, of in family.copies.items() if family.writes_copies and copy not in stored}
    came_from_it = checkpoint.origin is not None and checkpoint.origin.family == family.name
    back = leftovers_of(checkpoint) if came_from_it else Leftovers()
    for names in _together(parts):
        found = taken_apart(parts, read, names)
        renamed = {name: back.names.get(name) or copies.get(name) or [name] for name in found}
        yield len(names), {own: value for name, value in found.items() for own in renamed[name]}
    yield 0, dict(back.unused)


def _together(parts: Mapping[str, Source]) -> list[list[str]]:
    """Return names of ours in groups that no tensor of theirs is split between."""
    groups: list[list[str]] = []
    of: dict[str, list[str]] = {}
    for name, part in parts.items():
        met = [of[piece.name] for piece in part.pieces if piece.name in of]
        joined = [name, *dict.fromkeys(other for group in met for other in group)]
        groups = [group for group in groups if not any(group is other for other in met)] + [joined]
        of |= {piece.name: joined for other in joined for piece in parts[other].pieces}
    return groups


class _OurTensors:
    """Gives our tensors by name, also those that stand for nothing: zero biases, gains of one, a tied matrix."""

    def __init__(self, checkpoint: Checkpoint, wanted: Any) -> None:
        self.checkpoint, self.wanted = checkpoint, wanted

    def __call__(self, name: str) -> Tensor:
        if name in self.checkpoint.parts:
            return _read(self.checkpoint, name)
        if name == "unembed.matrix":
            return _read(self.checkpoint, "embed.matrix")
        path, _, last = name.rpartition(".")
        shape = self.wanted.get_parameter(name).shape
        module = self.wanted.get_submodule(path)
        fill = 1.0 - module.offset if last == "weight" and isinstance(module, Norm) else 0.0
        assert last == "bias" or isinstance(module, Norm), f"{name} is no tensor that may be absent"
        return torch.full(shape, fill, dtype=self.checkpoint.dtype)

    def left_out(self, name: str) -> None:
        """Raise `CheckpointError` unless a tensor may be left out."""
        value = _read(self.checkpoint, name)
        if name == "unembed.matrix":
            same, what = torch.equal(value, _read(self.checkpoint, "embed.matrix")), "the embedding's matrix"
        elif name.endswith(".bias"):
            same, what = not bool(value.any()), "zero"
        else:
            offset = self.checkpoint.model.get_submodule(name.rpartition(".")[0]).offset
            same, what = bool((value == 1.0 - offset).all()), "a gain of one"
        if not same:
            raise CheckpointError(f'"{name}" has no place in this layout unless it is {what}; in this model it is not.')


def _read(checkpoint: Checkpoint, name: str) -> Tensor:
    """Return a tensor in the type it is stored in; in the widest, if its pieces differ."""
    kind: torch.dtype | None = None
    for piece in checkpoint.parts[name].pieces:
        own = checkpoint.files[checkpoint.stored[piece.name]].dtype
        assert own is not None, "types that weights do not have were refused"
        kind = own if kind is None else torch.promote_types(kind, own)
    return checkpoint.read([name], kind)[name]


def _write(
    place: Path, groups: Iterator[Group], total: int, dtype: torch.dtype | None, shard_size: int, report: Report | None
) -> dict[str, list[str]]:
    """Write tensors in files of at most a size, and their index if there are several; return names by file."""
    shards: list[list[str]] = []
    waiting: dict[str, Tensor] = {}
    done = size = 0

    def flush() -> None:
        nonlocal size
        path = place / f"{len(shards)}.safetensors"
        save_file(waiting, path, {"format": "pt"})
        with path.open("rb") as file:
            os.fsync(file.fileno())
        shards.append(list(waiting))
        waiting.clear()
        size = 0

    for n, tensors in groups:
        for name, value in tensors.items():
            value = narrowed(name, value.detach(), dtype if value.is_floating_point() else None)
            if waiting and size + value.nbytes > shard_size:
                flush()
            # safetensors refuses two names for one memory
            shared = any(value.data_ptr() == other.data_ptr() for other in waiting.values())
            waiting[name] = value.clone() if shared else value
            size += value.nbytes
        done += n
        if report is not None:
            report(min(done, total), total)
    if waiting or not shards:
        flush()
    names: dict[str, list[str]] = {}
    for i, held in enumerate(shards):
        name = WEIGHTS if len(shards) == 1 else f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        os.rename(place / f"{i}.safetensors", place / name)
        names[name] = held
    if len(shards) > 1:
        index = {"metadata": {}, "weight_map": {tensor: name for name, held in names.items() for tensor in held}}
        files.write(place / INDEX, json_text(index, indent=1))
    return names


def _beside(origin: Path, place: Path, tokenizers: Mapping[str, Tokenizer], ours: bool) -> None:
    """Write what goes with the weights: tokenizer files as they are, or those that say of ours what others need."""
    for name in BESIDE:
        if (origin / name).is_file():
            shutil.copyfile(origin / name, place / name)
    tokenizer = tokenizers.get("tokenizer")
    if ours:
        for name, one in tokenizers.items():
            files.write(place / TOKENIZERS[name], one.to_json())
    elif tokenizer is not None and not (place / "tokenizer_config.json").exists():
        files.write(place / "tokenizer.json", tokenizer.with_post_processor())
        files.write(place / "tokenizer_config.json", json_text(_said(tokenizer), indent=1))


def _said(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what tokenizer_config.json says of special tokens."""
    roles = {name: getattr(tokenizer.roles, name) for name in ("bos", "eos", "pad", "unk")}
    names = {f"{role}_token": None if id is None else tokenizer.token(id) for role, id in roles.items()}
    chat = {} if tokenizer.chat is None else {"chat_template": tokenizer.chat.said}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | names | chat


def _envelope(place: Path, weights: list[str], checkpoint: Checkpoint, tokenizers: Mapping[str, Tokenizer]) -> str:
    written = [*weights, *(TOKENIZERS[name] for name in tokenizers)]
    digests = {name: sha256_of(place / name) for name in written}
    return envelope(
        checkpoint.config,
        digests,
        checkpoint.origin,
        tokenizers,
        checkpoint.trained_length,
        checkpoint.generation,
        lasting_notes(checkpoint.notes),
    )


def _with_trained_length(config: dict[str, Any], family: Family, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a config that says what the model was trained on, by a name of ours where its own fields say otherwise."""
    trained, fields = checkpoint.trained_length, Fields(config, family.config_name)
    says = trained_length(family, fields, family.translate(fields))
    return config if trained == says else {**config, FIELD: trained}


def _of_type(config: Mapping[str, Any], dtype: torch.dtype | None) -> dict[str, Any]:
    """Return a config that names the type of its weights as it did, if that was changed."""
    if dtype is None:
        return dict(config)
    name = str(dtype).removeprefix("torch.")
    told = {key: name for key in ("dtype", "torch_dtype") if key in config}
    return {**config, **(told or ({"dtype": name} if "model_type" in config else {}))}
