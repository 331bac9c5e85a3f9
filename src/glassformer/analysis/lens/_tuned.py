"""Tuned lens: the logit lens with the change of basis learnt, one affine map for each place of the stream.

    lens = norm_final(x + x M + c) W_U + b_U

M and c start at zero, where this is the logit lens, and what pulls at the weights pulls towards it. The maps stay
affine on purpose: a more able probe could compute an answer where it should read one.

Source: Belrose et al. 2023, "Eliciting Latent Predictions from Transformers with the Tuned Lens".
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.checkpoints.own import digest_of
from glassformer.errors import AnalysisUnavailable, CheckpointError, UnknownSite, nearest
from glassformer.files import json_text, tensors_in, write
from glassformer.models import ModelLike, require_model
from glassformer.trace import without_splits

FORMAT = 1


@dataclasses.dataclass(frozen=True, eq=False)
class TunedLens:
    """Translators of one model.

    Args:
        sites: The places they belong to, in the order of the forward pass.
        weight: M of each.
        bias: c of each.
        config: Digest of the model's config.
        weights: Digest of the model's parameters.
        facts: How they were made: start, steps, tokens, seed, ….
    """

    sites: tuple[str, ...]
    weight: Float[Tensor, "site d_model d_model"]
    bias: Float[Tensor, "site d_model"]
    config: str
    weights: str
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def identity(cls, model: ModelLike, sites: Sequence[str] | None = None) -> "TunedLens":
        """Translators that change nothing; raises as `tuned_sites`."""
        names = tuple(tuned_sites(model) if sites is None else check_sites(model, sites))
        like, d_model = model.unembed.stored.detach(), model.config.d_model
        # single precision at least: steps of gradient descent are lost on half precision
        like = like if like.dtype == torch.float64 else like.float()
        weight, bias = like.new_zeros(len(names), d_model, d_model), like.new_zeros(len(names), d_model)
        return cls(names, weight, bias, config_digest(model), weights_digest(model))

    def reads(self, model: ModelLike) -> list[str]:
        """The sites that a lens grid reads with these translators: theirs, and the end of the stream."""
        return [*self.sites, last_site(model)]

    def translator(self, model: ModelLike) -> Callable[[str, Tensor], Tensor]:
        """Translation of streams, which a lens does first: a function of a site's name and the streams there.

        The end of the stream needs no translator.

        Raises:
            CheckpointError: They were made for another model.
        """
        self.check(model)
        last, placed = last_site(model), self.to(model.unembed.stored.device)

        def translate(name: str, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
            if name == last and name not in self.sites:
                return x
            if name not in self.sites:
                raise UnknownSite(
                    f'tuned lens: no translator for "{name}".{nearest(name, self.sites)} There are {len(self.sites)}: '
                    f"{', '.join(self.sites)}.\n    The plain logit lens reads any place: lens_grid(run)."
                )
            return placed(name, x)

        return translate

    def __call__(self, name: str, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
        """Return translated streams."""
        i = self.sites.index(name)
        return translated(x, self.weight[i], self.bias[i])

    def check(self, model: ModelLike) -> None:
        """Raise `CheckpointError` unless this is the model the translators were made for."""
        advice = "    Fit one for this model: fit_tuned_lens(model, batches)."
        if self.config != config_digest(model):
            raise CheckpointError(f"this tuned lens belongs to a model of another config.\n{advice}")
        if self.weights != weights_digest(model):
            raise CheckpointError(
                "this tuned lens belongs to a model of the same config with other weights (or weights of another "
                f"dtype).\n{advice}"
            )

    def save(self, path: str | Path) -> Path:
        """Write the translators as safetensors, the model's identity in the header; raises `SaveError`."""
        from safetensors.torch import save

        tensors = {"weight": self.weight.detach().cpu().contiguous(), "bias": self.bias.detach().cpu().contiguous()}
        header = {
            "format": FORMAT, "sites": self.sites, "config": self.config, "weights": self.weights, "facts": self.facts,
        }  # fmt: skip
        return write(path, save(tensors, {"tuned_lens": json_text(header)}))

    @classmethod
    def load(cls, path: str | Path, model: ModelLike | None = None) -> "TunedLens":
        """Read what `save` wrote.

        Args:
            path: The file.
            model: The model it is meant for; without one, it is compared when the translators are used.

        Raises:
            CheckpointError: The file is missing, damaged, no tuned lens, or that of another model.
        """
        from safetensors import SafetensorError

        try:
            with tensors_in(path) as file:
                header = json.loads((file.metadata() or {})["tuned_lens"])
                tensors = {name: file.get_tensor(name) for name in ("weight", "bias")}
            if header["format"] != FORMAT:
                raise ValueError(f"it is in format {header['format']}; this version reads {FORMAT}")
            found = cls(tuple(header["sites"]), **tensors, **{n: header[n] for n in ("config", "weights", "facts")})
            n, d_model = found.bias.shape
            if len(found.sites) != n or found.weight.shape != (n, d_model, d_model):
                raise ValueError("its tensors do not fit its sites")
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f'cannot read a tuned lens from "{path}": {error}.') from error
        if model is not None:
            found.check(model)
            found = found.to(model.unembed.stored.device)
        return found

    def to(self, device: torch.device) -> "TunedLens":
        """The translators on a device."""
        return dataclasses.replace(self, weight=self.weight.to(device), bias=self.bias.to(device))


def translated(
    x: Float[Tensor, "n d_model"], weight: Float[Tensor, "d_model d_model"], bias: Float[Tensor, " d_model"]
) -> Float[Tensor, "n d_model"]:
    """Return x + x M + c in the dtype of x, computed in that of M."""
    wide = x.to(weight.dtype)
    return (wide + wide @ weight + bias).to(x.dtype)


def tuned_sites(model: ModelLike) -> list[str]:
    """Return the places that translators are fitted for by default: what enters each block.

    Raises:
        AnalysisUnavailable: The model is not one of ours, or has no blocks.
    """
    blocks = require_model(model).output_stack.blocks
    if not blocks:
        raise AnalysisUnavailable(
            "a tuned lens needs places before the end of the stream; a model without blocks has none.\n"
            "    lens_grid(run) reads its embedding."
        )
    return [blocks[0].at_resid[0], *(block.at_resid[-1] for block in list(blocks)[:-1])]


def last_site(model: ModelLike) -> str:
    """Return the end of the stream, which the final norm reads."""
    return model.output_stack.blocks[-1].at_resid[-1]


def check_sites(model: ModelLike, sites: Sequence[str]) -> list[str]:
    """Raise `UnknownSite` unless these are places of the stream that ends in the logits."""
    tuned_sites(model)
    known = [site for block in model.output_stack.blocks for site in block.at_resid]
    for name in sites:
        if name not in known:
            raise UnknownSite(
                f'tuned lens: "{name}" is no place of the stream that ends in the logits.{nearest(name, known)}'
            )
    return list(sites)


def config_digest(model: ModelLike) -> str:
    return digest_of(require_model(model, "a tuned lens").config.to_dict())


def weights_digest(model: ModelLike) -> str:
    """Return a digest of all parameters, their names, types and values; dictionaries at its sites are none of them."""
    digest, model = hashlib.sha256(), without_splits(model)
    for name in sorted(name for name, _ in model.named_parameters()):
        # by way of its module: what a streamed model has registered has a shape alone
        path, _, last = name.rpartition(".")
        parameter: Tensor = getattr(model.get_submodule(path), last)
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
