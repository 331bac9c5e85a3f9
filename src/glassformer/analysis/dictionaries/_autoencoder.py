"""Sparse autoencoder: an overcomplete dictionary of directions, a few of which make up each activation.

    u = s x - b_dec        f = act(u W_enc + b_enc)        x' = (f W_dec + b_dec) / s

x are rows of a site, s brings their mean norm to sqrt(d_in), and a feature is a column of W_enc, which says when it is
there, with a row of W_dec, which says what it adds. What `act` is, what a loss adds to the squared error and what holds
the length of decoder rows down is each kind's: `ReluAutoencoder`, `TopKAutoencoder`, `JumpReluAutoencoder`.

Source: Bricken et al. 2023, "Towards Monosemanticity"; Cunningham et al. 2023, "Sparse Autoencoders Find Highly
Interpretable Features in Language Models".
"""

# torch does not type the parts of a module
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.config import Config
from glassformer.errors import ShapeMismatch
from glassformer.trace import PartAxes, Site

_POSITIONS = ("pos", "query", "key")


@dataclass(frozen=True)
class AutoencoderConfig(Config, family=True):
    """A sparse autoencoder as data.

    Args:
        d_in: Numbers in a row of the site.
        n_features: Features in the dictionary.
    """

    d_in: Count
    n_features: Count

    def build(self, seed: int = 0) -> "SparseAutoencoder":
        """A dictionary with freshly drawn directions."""
        made: SparseAutoencoder = SparseAutoencoder.of_config[type(self)](self)
        made.draw(seed)
        return made


class Losses(NamedTuple):
    """What training descends, as means over rows in units of the scaled rows.

    Args:
        error: Squared distance of rows and reconstruction, summed over coordinates.
        penalty: What the kind adds to it.
        active: Which features fired in any row.
        l0: Features that fired, mean over rows.
    """

    error: Float[Tensor, ""]
    penalty: Float[Tensor, ""]
    active: Bool[Tensor, " feature"]
    l0: Float[Tensor, ""]


class SparseAutoencoder(nn.Module):
    """A dictionary of features of one site; each kind says what its activation and its penalty are.

    Args:
        config: Its kind and sizes.
    """

    of_config: ClassVar[dict[type[Config], type["SparseAutoencoder"]]] = {}
    # whether decoder rows have norm one, or a penalty that counts their norms holds them
    unit_rows: ClassVar[bool] = True

    def __init_subclass__(cls, *, config: type[Config], **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        SparseAutoencoder.of_config[config] = cls

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        # what it was trained on, and what it is a dictionary of: site, model, digest
        self.facts: Mapping[str, Any] = {}
        self.W_enc = nn.Parameter(torch.zeros(config.d_in, config.n_features))
        self.W_dec = nn.Parameter(torch.zeros(config.n_features, config.d_in))
        self.b_enc = nn.Parameter(torch.zeros(config.n_features))
        self.b_dec = nn.Parameter(torch.zeros(config.d_in))
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def draw(self, seed: int, mean: Tensor | None = None, scale: float = 1.0) -> None:
        """Begin anew: decoder rows of norm one in random directions, W_enc = W_dec^T, b_dec the rows' mean.

        Args:
            seed: Source of the directions.
            mean: Mean of the rows; zero by default.
            scale: What rows are multiplied by.
        """
        drawn = torch.randn(self.W_dec.shape, generator=torch.Generator().manual_seed(seed))
        self.W_dec.copy_(drawn / drawn.norm(dim=-1, keepdim=True))
        self.W_enc.copy_(self.W_dec.mT)
        self.b_enc.zero_()
        self.scale.fill_(scale)
        self.b_dec.zero_() if mean is None else self.b_dec.copy_(mean * scale)

    def pre_activations(self, rows: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows feature"]:
        """What each feature's activation is made of."""
        return F.linear(self.centred(rows), self.W_enc.mT, self.b_enc)

    def centred(self, rows: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_in"]:
        """Rows in the encoder's units: scaled, and without the decoder's bias."""
        return rows.to(self.W_enc.dtype) * self.scale - self.b_dec

    def activations(self, pre: Float[Tensor, "*rows feature"]) -> Float[Tensor, "*rows feature"]:
        """How strongly each feature is there; zero for most."""
        raise NotImplementedError

    def encode(self, rows: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows feature"]:
        """Activations of features in rows of the site, in units of the scaled rows."""
        return self.activations(self.pre_activations(rows))

    def decode(self, features: Float[Tensor, "*rows feature"]) -> Float[Tensor, "*rows d_in"]:
        """The rows that activations stand for, in units of the site."""
        return (features @ self.W_dec + self.b_dec) / self.scale

    def forward(self, rows: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_in"]:
        """Reconstruction of rows, in their own type."""
        return self.decode(self.encode(rows)).to(rows.dtype)

    def losses(self, rows: Float[Tensor, "row d_in"], dead: Bool[Tensor, " feature"], warm: float = 1.0) -> Losses:
        """What training descends on some rows.

        Args:
            rows: Rows of the site.
            dead: Features that have not fired for long.
            warm: Share of the penalty that counts yet.
        """
        raise NotImplementedError

    def scaled_error(
        self, rows: Float[Tensor, "row d_in"], made: Float[Tensor, "row d_in"]
    ) -> Float[Tensor, "row d_in"]:
        """What a reconstruction in units of the scaled rows lacks of them."""
        return rows.to(made.dtype) * self.scale - made

    @torch.no_grad()
    def project_gradient(self) -> None:
        """Take from the gradient of each decoder row what lies along it, where rows keep norm one."""
        if self.unit_rows and (gradient := self.W_dec.grad) is not None:
            along = (gradient * self.W_dec).sum(-1, keepdim=True) / self.W_dec.square().sum(-1, keepdim=True)
            gradient -= along * self.W_dec

    @torch.no_grad()
    def normalise(self) -> None:
        """Bring decoder rows back to norm one, where they keep it."""
        if self.unit_rows:
            self.W_dec /= self.W_dec.norm(dim=-1, keepdim=True)

    @torch.no_grad()
    def rescale(self, factors: Float[Tensor, " feature"]) -> None:
        """Multiply each feature's activations by a positive number, and divide its decoder row by it.

        Reconstructions stay as they are, except of `TopKAutoencoder`, where it changes which are the largest.
        """
        self.W_enc *= factors
        self.b_enc *= factors
        self.W_dec /= factors[:, None]

    def part_axes(self, whole: Site) -> Mapping[str, PartAxes]:
        """Axes of `features` and `error`, the sites that it adds behind one; raises `ShapeMismatch` if it does not fit.

        A row is what one position has: other axes are laid out flat, the last running fastest, as in a store of
        activations.
        """
        positions = [axis for axis in whole.axes if axis in _POSITIONS]
        rest = [axis for axis in whole.axes if axis not in ("batch", *positions)]
        if len(positions) != 1 or "batch" not in whole.axes or ("d_model" in rest and len(rest) > 1):
            raise ShapeMismatch(
                f'a dictionary is of vectors of single positions, and "{whole.name}" is {whole.shape() or "one number"}'
                ".\n    Split a place of the stream, z or mlp.hidden."
            )
        width = 1
        for axis in rest:
            width *= whole.sizes.get(axis, 1)
        if width != self.config.d_in:
            raise ShapeMismatch(
                f'this dictionary is of rows of {self.config.d_in} numbers, and "{whole.name}" has {width} at each '
                f"position ({whole.shape()})."
            )
        features = PartAxes(("batch", positions[0], "feature"), {"feature": self.config.n_features})
        return {"features": features, "error": PartAxes(whole.axes, whole.sizes)}

    def parts(self, value: Tensor, whole: Site) -> Mapping[str, Tensor]:
        """Features and error of a site's value, by what they are called."""
        laid = _laid_out(value, whole)
        rows = laid.flatten(2)
        features = self.encode(rows)
        left = laid - self.decode(features).to(laid.dtype).view_as(laid)
        return {"features": features, "error": _put_back(left, whole)}

    def changed(self, value: Tensor, whole: Site, changes: Mapping[str, Tensor]) -> Tensor:
        """The site's value with features and error changed by so much: each by its decoder row."""
        laid = _laid_out(value, whole)
        if (features := changes.get("features")) is not None:
            laid = laid + ((features @ self.W_dec) / self.scale).to(laid.dtype).view_as(laid)
        error = changes.get("error")
        return _put_back(laid, whole) if error is None else _put_back(laid, whole) + error

    def __repr__(self) -> str:
        of = f' of "{self.facts["site"]}"' if "site" in self.facts else ""
        return f"{type(self).__name__}({self.config.d_in} -> {self.config.n_features}{of})"


def _order(whole: Site) -> list[int]:
    """Return where batch, positions and the rest of a site's axes lie."""
    first = ("batch", *_POSITIONS)
    kept = [i for axis in first for i, name in enumerate(whole.axes) if name == axis]
    return kept + [i for i in range(len(whole.axes)) if i not in kept]


def _laid_out(value: Tensor, whole: Site) -> Tensor:
    """Return a site's value with batch and positions first."""
    return value.permute(_order(whole))


def _put_back(laid: Tensor, whole: Site) -> Tensor:
    order = _order(whole)
    return laid.permute([order.index(i) for i in range(len(order))])
