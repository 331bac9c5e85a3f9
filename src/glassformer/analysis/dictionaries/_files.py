"""Dictionaries in folders, in the layout of sae-lens: `cfg.json` and `sae_weights.safetensors`.

    architecture   standard (ReLU), topk, jumprelu          W_enc  d_in d_sae     W_dec  d_sae d_in     b_enc, b_dec
    jumprelu       threshold, not its logarithm             metadata.hook_name    the site, as TransformerLens calls it

The scale is folded into the weights, which changes no feature: s W_enc, W_dec / s, b_dec / s. What the layout has no
place for, settings of training and what the dictionary is of, stands under `glassformer`, which others leave alone.

Source: sae-lens 6 and its folders from version 3 on.
"""

# a JSON document has no static type
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import re
from collections.abc import Mapping
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
from glassformer.errors import CheckpointError, GlassformerError
from glassformer.files import json_text

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
ARCHITECTURES: Mapping[str, type[AutoencoderConfig]] = {"standard": Relu, "topk": TopK, "jumprelu": JumpRelu}
OWN = "glassformer"
# what stands behind `blocks.3.` in our names, and in those of TransformerLens
_HOOKS = {
    "resid_pre": "hook_resid_pre", "resid_mid": "hook_resid_mid", "resid_post": "hook_resid_post",
    "attn.out": "hook_attn_out", "mlp.out": "hook_mlp_out", "attn.z": "attn.hook_z", "mlp.hidden": "mlp.hook_post",
}  # fmt: skip
_SITES = {theirs: ours for ours, theirs in _HOOKS.items()}


@checked
def save_dictionary(dictionary: SparseAutoencoder, folder: str | Path) -> Path:
    """Write a dictionary as a folder that sae-lens loads too.

    Args:
        dictionary: Of any kind.
        folder: Made if missing.

    Raises:
        SaveError: The folder cannot be written to; a dictionary that was there before is still whole.
    """
    from safetensors.torch import save

    config, scale = dictionary.config, float(dictionary.scale)
    named = {name: value.detach().cpu() for name, value in dictionary.named_parameters()}
    tensors = named | {
        "W_enc": named["W_enc"] * scale, "W_dec": named["W_dec"] / scale, "b_dec": named["b_dec"] / scale
    }  # fmt: skip
    if isinstance(config, JumpRelu):
        tensors["threshold"] = tensors.pop("log_threshold").exp()
    hook = _renamed(str(dictionary.facts.get("site", "")), _HOOKS)
    said: dict[str, Any] = {
        "architecture": next(name for name, kind in ARCHITECTURES.items() if isinstance(config, kind)),
        "d_in": config.d_in, "d_sae": config.n_features, "dtype": str(named["W_dec"].dtype).removeprefix("torch."),
        "device": "cpu", "apply_b_dec_to_input": True, "normalize_activations": "none",
        "reshape_activations": "hook_z" if hook.endswith(".hook_z") else "none",
        "metadata": {"hook_name": hook, "model_name": dictionary.facts.get("model", "")},
        OWN: {"config": config.to_dict(), "facts": dict(dictionary.facts), "scale": scale},
    }  # fmt: skip
    if isinstance(config, TopK):
        said |= {"k": config.k, "rescale_acts_by_decoder_norm": False}
    weights = save({name: value.contiguous() for name, value in tensors.items()})
    return files.write_all(Path(folder), {WEIGHTS: weights, CONFIG: json_text(said, indent=1) + "\n"})


@checked
def load_dictionary(folder: str | Path) -> SparseAutoencoder:
    """A dictionary from a folder in the layout of sae-lens, ours or another's.

    Args:
        folder: With `cfg.json` and `sae_weights.safetensors`.

    Raises:
        CheckpointError: A file is missing or damaged, or the dictionary is of a kind that is not one of ours: another
            architecture, or rows that are normalised one by one.
    """
    folder = Path(folder)
    try:
        said: Any = files.read_json(folder / CONFIG)
        tensors = _tensors(folder / WEIGHTS)
        config = _config(said)
        return _filled(config, said, tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        said = f"it lacks {error}" if isinstance(error, KeyError) else files.reason(error)
        reason = str(error) if isinstance(error, GlassformerError) else said
        raise CheckpointError(f'cannot read a dictionary from "{folder}": {reason}.') from error


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
    metadata: Mapping[str, Any] = said.get("metadata") or said
    site = _renamed(str(metadata.get("hook_name") or ""), _SITES)
    facts = {"site": site, "model": metadata.get("model_name")}
    made.facts = own["facts"] if own else {name: value for name, value in facts.items() if value}
    return made.eval()


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return a site's name in the other library; as it is, if that has none."""
    found = re.fullmatch(r"(blocks\.\d+\.)(.+)", name)
    return name if found is None or found[2] not in names else found[1] + names[found[2]]
