"""Models larger than memory: weights in several files, and attention layers read from them one at a time.

A sharded folder holds `model-00001-of-00032.safetensors`, … and `model.safetensors.index.json`, which says what lies in
which file; `config.json` is that of any model folder. `AttentionReader` reads whole folders too.

    layers = AttentionReader("big-model")            no weights yet
    layers[5].Q                                      reads the fifth attention layer
    composition(layers)                              whatever walks over layers needs room for one of them
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from glassformer import files
from glassformer.attention import AttentionLayer
from glassformer.checkpoints.folder import CONFIG, FORMAT, HALF, WEIGHTS, digest_of, folder_of, sha256
from glassformer.errors import CheckpointError, ConfigError, nearest
from glassformer.models import Block, Decoder, ModelConfig
from glassformer.weights import AttentionWeights, attention_views
from glassformer.weights.fold import Reading, all_centre, centre_write, fold_attention

INDEX = f"{WEIGHTS}.index.json"


def save_shards(config: ModelConfig, shards: Sequence[Mapping[str, Tensor]], folder: str | Path) -> Path:
    """Write a sharded folder, one file for each mapping of names to tensors; a lazy sequence needs room for one.

    Args:
        config: The model's config; names are those of its state dict.
        shards: What goes into each file.
        folder: Made if missing.

    Raises:
        SaveError: The folder cannot be written to.
    """
    folder = Path(folder)
    places: dict[str, str] = {}
    digests: dict[str, str] = {}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        content = serialise({key: value.detach().contiguous().cpu() for key, value in tensors.items()})
        files.write(folder / name, content)
        digests[name] = sha256(content)
        places |= dict.fromkeys(tensors, name)
    model = config.to_dict()
    envelope = {"format": FORMAT, "model": model, "sha256": digests | {"model": digest_of(model)}}
    index = {"weight_map": places}
    # the envelope goes last: a folder without it is no model yet
    return files.write_all(folder, {INDEX: json.dumps(index, indent=1), CONFIG: json.dumps(envelope, indent=1)})


class AttentionReader:
    """The attention layers of a decoder's folder in the order of the forward pass, each read when it is asked for.

    Nothing is kept between readings. Half-precision weights come as float32. The config is checked against its digest,
    names and shapes against the config; contents are not, which would mean reading everything.

    Args:
        folder: A model folder, sharded or whole.
        fold: Absorb gains, biases and means of norms, as `weights.of` does.

    Raises:
        CheckpointError: The folder holds no decoder, or a tensor is missing or of another shape.
    """

    def __init__(self, folder: str | Path, fold: bool = True) -> None:
        self.folder, self.folded = Path(folder), fold
        config = _config(self.folder)
        with torch.device("meta"):
            self.model: Any = config.build()
        if not isinstance(self.model, Decoder):
            raise CheckpointError(f'"{folder}" holds no decoder; load it whole: glassformer.load.')
        self.places = _places(self.folder)
        blocks: list[Any] = list(self.model.stack.blocks)
        self.keys = [(b, part) for b in blocks for part in b.names if isinstance(b.part(part), AttentionLayer)]

    @property
    def norms(self) -> dict[str, tuple[Tensor | None, Tensor | None]]:
        """Gain and bias of the norms that stand on the stream, in post-norm blocks."""
        found: dict[str, tuple[Tensor | None, Tensor | None]] = {}
        for block in self.model.stack.blocks:
            if block.wiring == "post":
                own = self._read(block, [f"{part}_norm_after" for part in block.names])
                norms = [own.norm_after(part) for part in block.names]
                found |= {norm.at_out: (norm.gain, norm.shift) for norm in norms if norm is not None}
        return found

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[AttentionWeights]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> AttentionWeights:
        block, part = self.keys[i]
        before = block.names[0] if block.config.shared_norm else part
        own = self._read(block, [part, f"{before}_norm", f"{part}_norm_after"])
        layer = own.part(part)
        assert isinstance(layer, AttentionLayer), "keys are those of attention layers"
        found = attention_views(layer, "", part, own.norm_after(part) if own.wiring == "sandwich" else None)
        if not self.folded:
            return found
        norm = None if own.wiring == "post" else own.norm(part)
        reading = Reading() if norm is None else Reading(norm.gain, norm.shift, norm.centred)
        found = fold_attention(found, reading, reading)
        return centre_write(found) if all_centre(self.model, "") else found

    def _read(self, block: Block, parts: Sequence[str]) -> Block:
        """Return a copy of a block with the tensors of some of its parts; the others have none."""
        own = copy.deepcopy(block)
        shapes = {n: tuple(v.shape) for n, v in own.state_dict().items() if n.partition(".")[0] in parts}
        prefix = f"stack.blocks.{block.layer}."
        found = _tensors(self.folder, self.places, {prefix + name: shape for name, shape in shapes.items()})
        own.load_state_dict({n.removeprefix(prefix): v for n, v in found.items()}, strict=False, assign=True)
        return own.eval().requires_grad_(False)


def _config(folder: Path) -> ModelConfig:
    path = folder_of(folder) / CONFIG
    try:
        envelope = json.loads(path.read_text(encoding="utf-8"))
        model, digest = envelope["model"], envelope["sha256"]["model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'"{path}" is no config of a model of this package ({error!r}).') from error
    if digest != digest_of(model):
        raise CheckpointError(f'"{path}": the model config does not match its digest; it was changed or damaged.')
    try:
        return ModelConfig.from_dict(model)
    except ConfigError as error:
        raise CheckpointError(f'"{path}": {error}') from error


def _places(folder: Path) -> dict[str, Path]:
    """Return the file each tensor lies in."""
    folder = folder_of(folder)
    index = folder / INDEX
    try:
        if index.is_file():
            found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {str(name): folder / str(file) for name, file in found.items()}
        with safe_open(folder / WEIGHTS, "pt") as file:
            return dict.fromkeys(file.keys(), folder / WEIGHTS)
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f'"{folder}" holds neither a readable {INDEX} nor {WEIGHTS} ({error!r}).') from error


def _tensors(folder: Path, places: Mapping[str, Path], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    missing = [name for name in shapes if name not in places]
    if missing:
        raise CheckpointError(f'"{folder}": "{missing[0]}" is missing.{nearest(missing[0], places)}')
    found: dict[str, Tensor] = {}
    for path in dict.fromkeys(places[name] for name in shapes):
        try:
            # closed again at once: what is mapped of an open file counts as memory in use
            with safe_open(path, "pt") as file:
                for name in shapes:
                    if places[name] == path:
                        found[name] = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f'"{path}" is not a whole safetensors file ({error}).') from error
    for name, value in found.items():
        if tuple(value.shape) != shapes[name]:
            raise CheckpointError(
                f'"{folder}": "{name}" has shape {tuple(value.shape)}, the config asks for {shapes[name]}.'
            )
    return {name: value.float() if value.dtype in HALF else value for name, value in found.items()}
