"""Models larger than memory: weights in several files, and attention layers read from them one at a time.

A sharded folder holds `model-00001-of-00032.safetensors`, … and `model.safetensors.index.json`, which says what lies in
which file; `config.json` is that of any model folder. `AttentionReader` reads whole folders too.

    layers = AttentionReader("big-model")            no weights yet
    layers[5].Q                                      reads the fifth attention layer
    composition(layers)                              whatever walks over layers needs room for one of them
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialise
from torch import Tensor

from glassformer import files
from glassformer.checkpoints.checkpoint import place
from glassformer.checkpoints.loading import open_folder
from glassformer.checkpoints.own import HALF, envelope, sha256
from glassformer.checkpoints.tensors import INDEX
from glassformer.errors import CheckpointError
from glassformer.files import json_text
from glassformer.files.packaged import CONFIG
from glassformer.models import Block, ModelConfig
from glassformer.models.sub_layer import sub_layers_of
from glassformer.weights import AttentionWeights, attention_views
from glassformer.weights.fold import Reading, all_centre, centre_write, fold_attention, require_whole


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
    index = {"weight_map": places}
    # the envelope goes last: a folder without it is no model yet
    return files.write_all(folder, {INDEX: json_text(index, indent=1), CONFIG: envelope(config, digests)})


class AttentionReader:
    """The attention layers of a decoder's folder in the order of the forward pass, each read when it is asked for.

    Nothing is kept between readings. Half-precision weights come as float32. The config is checked against its digest,
    names and shapes against the config; contents are not, which would mean reading everything.

    Args:
        folder: A model folder, sharded or whole.
        fold: Absorb gains, biases and means of norms, as `weights.of` does.

    Raises:
        CheckpointError: The folder holds no decoder, or a tensor is missing, of another shape or not finite.
        AnalysisUnavailable: It is to be folded, and a norm reads half of the stream.
    """

    def __init__(self, folder: str | Path, fold: bool = True) -> None:
        self.folder, self.folded = Path(folder), fold
        self.checkpoint = open_folder(folder)
        self.model: Any = self.checkpoint.model
        if not self.model.continues:
            raise CheckpointError(f'"{folder}" holds no decoder; load it whole: glassformer.load.')
        if fold:
            require_whole(self.model)
        self._last: list[str] = []
        self.keys = [(layer.block, layer.name) for layer in self.model.sub_layers() if layer.attention is not None]

    @property
    def norms(self) -> dict[str, tuple[Tensor | None, Tensor | None]]:
        """Gain and bias of the norms that stand on the stream, in post-norm blocks."""
        found: dict[str, tuple[Tensor | None, Tensor | None]] = {}
        for layer in self.model.sub_layers():
            if layer.stream_norm is not None:
                norm = self._read(layer.block, [f"{layer.name}_norm_after"]).norm_after(layer.name)
                assert norm is not None, "it was there"
                found[norm.at_out] = norm.gain, norm.shift
        return found

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[AttentionWeights]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> AttentionWeights:
        block, part = self.keys[i]
        before = block.names[0] if block.config.shared_norm else part
        own = self._read(block, [part, f"{before}_norm", f"{part}_norm_out", f"{part}_norm_after"])
        layer = next(one for one in sub_layers_of([own], "") if one.name == part)
        assert layer.attention is not None, "keys are those of attention layers"
        found = attention_views(layer.attention, "", part, layer.write_norm)
        if not self.folded:
            return found
        norm = layer.before
        reading = Reading() if norm is None else Reading(norm.gain, norm.shift, norm.centred)
        found = fold_attention(found, reading, reading)
        return centre_write(found) if all_centre(self.model, "") else found

    def _read(self, block: Block, parts: Sequence[str]) -> Block:
        """Return a copy of a block with the tensors of some of its parts; the others have none."""
        own = copy.deepcopy(block)
        prefix = f"stack.blocks.{block.layer}."
        names = [prefix + name for name in own.state_dict() if name.partition(".")[0] in parts]
        wanted = torch.float32 if self.checkpoint.dtype in HALF else None
        self.checkpoint.files.release(self._last)
        self._last = [stored for name in names for stored in self.checkpoint.stored_as(name)]
        for name, value in self.checkpoint.read(names, wanted).items():
            self.checkpoint.require_finite(name, value)
            place(own, name.removeprefix(prefix), value)
        return own.eval().requires_grad_(False)
