"""Dictionaries in folders, in the layout of sae-lens: `cfg.json` and `sae_weights.safetensors`.

    architecture   standard (ReLU), topk, jumprelu          W_enc  d_in d_sae     W_dec  d_sae d_in     b_enc, b_dec
    jumprelu       threshold, not its logarithm             metadata.hook_name    the site, as TransformerLens calls it

The scale is folded into the weights, which changes no feature: s W_enc, W_dec / s, b_dec / s. What the layout has no
place for, settings of training and what the dictionary is of, stands under `glassformer`, which others leave alone.
Matrices may be stored in half precision, as `dtype` says; vectors, which a row has one of, stay as they are.

Source: sae-lens 6 and its folders from version 3 on.
"""

# a JSON document has no static type
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import files
from glassformer.analysis.dictionaries._autoencoder import AutoencoderConfig, SparseAutoencoder
from glassformer.analysis.dictionaries._jump_relu import JumpRelu
from glassformer.analysis.dictionaries._relu import Relu
from glassformer.analysis.dictionaries._top_k import TopK
from glassformer.arguments import checked
from glassformer.checkpoints.tensors import narrowed
from glassformer.errors import CheckpointError, GlassformerError, nearest
from glassformer.files import json_text
from glassformer.files.packaged import DICTIONARY, shipped_dictionaries, shipped_dictionary
from glassformer.numerics.placement import NumberType, number_type

WEIGHTS = "sae_weights.safetensors"
ARCHITECTURES: Mapping[str, type[AutoencoderConfig]] = {"standard": Relu, "topk": TopK, "jumprelu": JumpRelu}
OWN = "glassformer"
# what stands behind `blocks.3.` in our names, and in those of TransformerLens
_HOOKS = {
    "resid_pre": "hook_resid_pre", "resid_mid": "hook_resid_mid", "resid_post": "hook_resid_post",
    "attn.out": "hook_attn_out", "mlp.out": "hook_mlp_out", "attn.z": "attn.hook_z", "mlp.hidden": "mlp.hook_post",
}  # fmt: skip
_SITES = {theirs: ours for ours, theirs in _HOOKS.items()}


@dataclasses.dataclass(frozen=True)
class DictionaryFolder:
    """A dictionary in a folder, without its weights.

    Args:
        folder: Where it lies.
        config: Its kind and sizes.
        facts: What it is of and how it was trained: `model`, `digest`, `site` and more, as far as known.
    """

    folder: Path
    config: AutoencoderConfig
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What `load_dictionary` takes for it: `MODEL/SITE` if it ships with the package, else its folder."""
        known = (name for name in shipped_dictionaries() if shipped_dictionary(name) == self.folder)
        return next(known, str(self.folder))


@checked
def save_dictionary(dictionary: SparseAutoencoder, folder: str | Path, *, dtype: NumberType | None = None) -> Path:
    """Write a dictionary as a folder that sae-lens loads too.

    Args:
        dictionary: Of any kind.
        folder: Made if missing.
        dtype: Store encoder and decoder in this type, `torch.float16` or `"float16"`; as they are by default.

    Raises:
        SaveError: The folder cannot be written to; a dictionary that was there before is still whole.
        ConfigError: Weights are not kept in such a type, or some are too large for it.
    """
    from safetensors.torch import save

    config, scale, kind = dictionary.config, float(dictionary.scale), number_type(dtype)
    named = {name: value.detach().cpu() for name, value in dictionary.named_parameters()}
    tensors = named | {
        "W_enc": named["W_enc"] * scale, "W_dec": named["W_dec"] / scale, "b_dec": named["b_dec"] / scale
    }  # fmt: skip
    if isinstance(config, JumpRelu):
        tensors["threshold"] = tensors.pop("log_threshold").exp()
    tensors |= {name: narrowed(name, tensors[name], kind) for name in ("W_enc", "W_dec")}
    hook = _renamed(str(dictionary.facts.get("site", "")), _HOOKS)
    said: dict[str, Any] = {
        "architecture": next(name for name, kind in ARCHITECTURES.items() if isinstance(config, kind)),
        "d_in": config.d_in, "d_sae": config.n_features, "dtype": str(tensors["W_dec"].dtype).removeprefix("torch."),
        "device": "cpu", "apply_b_dec_to_input": True, "normalize_activations": "none",
        "reshape_activations": "hook_z" if hook.endswith(".hook_z") else "none",
        "metadata": {"hook_name": hook, "model_name": dictionary.facts.get("model", "")},
        OWN: {"config": config.to_dict(), "facts": dict(dictionary.facts), "scale": scale},
    }  # fmt: skip
    if isinstance(config, TopK):
        said |= {"k": config.k, "rescale_acts_by_decoder_norm": False}
    weights = save({name: value.contiguous() for name, value in tensors.items()})
    return files.write_all(Path(folder), {WEIGHTS: weights, DICTIONARY: json_text(said, indent=1) + "\n"})


@checked
def load_dictionary(folder: str | Path) -> SparseAutoencoder:
    """A dictionary from a folder in the layout of sae-lens, ours or another's, or one that ships with the package.

    It computes in float32 at least, in whatever type it is stored.

    Args:
        folder: With `cfg.json` and `sae_weights.safetensors`; or the name of one that ships,
            `gpt-4l/blocks.2.resid_post`, where there is no folder of that name.

    Raises:
        CheckpointError: A file is missing or damaged, or the dictionary is of a kind that is not one of ours: another
            architecture, or rows that are normalised one by one.
    """
    folder = _place(folder)
    with _reading(folder):
        said: Any = files.read_json(folder / DICTIONARY)
        tensors = _tensors(folder / WEIGHTS)
        return _filled(_config(said), said, tensors)


def _place(folder: str | Path) -> Path:
    """Return the folder that is meant: one there is, else that of a dictionary that ships."""
    name, known = Path(folder).as_posix(), shipped_dictionaries()
    if os.path.isdir(folder):
        return Path(folder)
    if name in known:
        return shipped_dictionary(name)
    raise CheckpointError(f'cannot read a dictionary from "{folder}": there is no such folder.{nearest(name, known)}')


def read_folder(folder: Path) -> DictionaryFolder:
    """Return what a folder says of its dictionary; raises as `load_dictionary`."""
    with _reading(folder):
        said: Any = files.read_json(folder / DICTIONARY)
        return DictionaryFolder(folder, _config(said), _facts(said))


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Raise `CheckpointError` for whatever keeps a dictionary from being read."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else files.reason(error)
        reason = str(error) if isinstance(error, GlassformerError) else said
        raise CheckpointError(f'cannot read a dictionary from "{folder}": {reason}.') from error


def _facts(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a dictionary is of, as its folder says it."""
    if OWN in said:
        return said[OWN]["facts"]
    metadata: Mapping[str, Any] = said.get("metadata") or said
    site = _renamed(str(metadata.get("hook_name") or ""), _SITES)
    facts = {"site": site, "model": metadata.get("model_name")}
    return {name: value for name, value in facts.items() if value}


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        with files.tensors_in(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path.name} is damaged ({error})") from error


def _config(said: Mapping[str, Any]) -> AutoencoderConfig:
    """Return the config of a folder: ours if it stands there, else what the layout says."""
    # before version 6 the activation had fields of its own
    older: Mapping[str, Any] = said.get("activation_fn_kwargs") or {}
    name = said.get("architecture", "standard")
    name = "topk" if name == "standard" and said.get("activation_fn_str") == "topk" else name
    if name not in ARCHITECTURES:
        raise ValueError(f'its architecture is "{name}"; what can be read is {", ".join(ARCHITECTURES)}')
    normalised = said.get("normalize_activations", "none")
    # the scale of an expected norm is folded into weights before they are saved
    if normalised not in ("none", "expected_average_only_in"):
        raise ValueError(f'its rows are normalised one by one ("{normalised}"), which no dictionary here does')
    if said.get("finetuning_scaling_factor"):
        raise ValueError("its features have factors that were tuned behind it")
    if OWN in said:
        return AutoencoderConfig.from_dict(said[OWN]["config"])
    kind, sizes = ARCHITECTURES[name], {"d_in": said["d_in"], "n_features": said["d_sae"]}
    return kind(**sizes, **({"k": said.get("k") or older["k"]} if kind is TopK else {}))


@torch.no_grad()
def _filled(config: Any, said: Mapping[str, Any], tensors: dict[str, Tensor]) -> SparseAutoencoder:
    """Return a dictionary with the tensors of a folder."""
    tensors = {name: value.float() if value.dtype.itemsize < 4 else value for name, value in tensors.items()}
    if isinstance(config, JumpRelu):
        # below zero nothing fires that would not at zero
        tensors["log_threshold"] = tensors.pop("threshold").clamp_min(0).log()
    made = SparseAutoencoder.of_config[type(config)](config)
    named = dict(made.named_parameters())
    if wrong := named.keys() ^ tensors.keys():
        raise ValueError(f"its tensors are not those of {config.kind}: {', '.join(sorted(wrong))}")
    made.to(tensors["W_dec"].dtype)
    own: Mapping[str, Any] = said.get(OWN, {})
    scale = float(own.get("scale", 1.0))
    if not said.get("apply_b_dec_to_input", True):
        # u = x - b_dec: what is not taken away there is put back behind it
        tensors["b_enc"] = tensors["b_enc"] + tensors["b_dec"] @ tensors["W_enc"]
    if said.get("rescale_acts_by_decoder_norm"):
        norms = tensors["W_dec"].norm(dim=-1)
        tensors["W_enc"], tensors["b_enc"] = tensors["W_enc"] * norms, tensors["b_enc"] * norms
        tensors["W_dec"] = tensors["W_dec"] / norms[:, None]
    factors = {"W_enc": 1 / scale, "W_dec": scale, "b_dec": scale}
    for name, parameter in named.items():
        if tensors[name].shape != parameter.shape:
            raise ValueError(f"{name} is {tuple(tensors[name].shape)}, and its config says {tuple(parameter.shape)}")
        parameter.copy_(tensors[name] * factors.get(name, 1.0))
    made.scale.fill_(scale)
    made.facts = _facts(said)
    return made.eval()


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return a site's name in the other library; as it is, if that has none."""
    found = re.fullmatch(r"(blocks\.\d+\.)(.+)", name)
    return name if found is None or found[2] not in names else found[1] + names[found[2]]
