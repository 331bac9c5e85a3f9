"""What layers read of a token by itself, and sums over the vocabulary of products of such reads.

`token` takes the stream to hold the token's vector and nothing else. `stream` adds what is written where the token
stands before a layer reads it, other tokens aside: MLPs, and heads as far as they attend to the token itself. A head
that attends to the current token only, as many first layers have one, changes what "the same token" looks like to the
next layer; left out, circuits behind it look like noise.

Rows are divided by their own scale wherever a norm stands before a layer.
"""
# torch does not type the parts of a module
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.from_weights._positional import offsets_by_position
from glassformer.analysis.from_weights.selection import values_of
from glassformer.attention import ByPosition
from glassformer.errors import AnalysisUnavailable
from glassformer.models import SubLayer
from glassformer.numerics.precision import wide_copy
from glassformer.weights import AttentionWeights, HeadWeights

Through = Literal["token", "stream"]
CHUNK = 1024  # tokens whose rows are held at a time


class TokenReads:
    """What the self-attention layers of a stack read of tokens by themselves.

    Args:
        w: The weights.
        layers: The layers that read, of one stack.
        through: As above.
        current: Attention of each head of these layers to the token itself, one tensor per layer, for `stream`; zeros
            where what a head moves is no matrix.
        analysis: What asks, for errors.
        instead: What to ask of a model with post-norm blocks.

    Raises:
        AnalysisUnavailable: The weights are augmented, or of some blocks only where the stream is wanted, or the model
            is post-norm: tokens pass norms on the stream.
    """

    def __init__(
        self,
        w: HeadWeights,
        layers: Sequence[AttentionWeights],
        through: Through,
        current: Sequence[Float[Tensor, " _"]],
        *,
        analysis: str,
        instead: str,
    ) -> None:
        if w.augmented:
            raise AnalysisUnavailable(
                f"{analysis}: biases are left out; give weights without their constant coordinate, augment=False."
            )
        if through == "stream":
            w.require_all_layers(f'{analysis} through="stream"', 'Or ask through="token".')
        self.w, self.layers, self.through = w, {a.path: a for a in layers}, through
        self.current = {a.path: c for a, c in zip(layers, current)}
        self.stack = layers[0].stack
        w.require_entry(self.stack, analysis)
        if any(layer.stream_norm for layer in w.model.sub_layers(self.stack)):
            raise AnalysisUnavailable(
                f"{analysis}: in post-norm blocks tokens pass norms on the stream, so their vectors are not what later "
                f"layers read.\n    {instead}"
            )

        passed = filter(self._passes, w.model.sub_layers(self.stack))
        shifted = [layer for layer in passed if not isinstance(layer.part, ByPosition)]
        if shifted:
            raise AnalysisUnavailable(
                f'{analysis} through="stream": {shifted[0].path} reads what came before, so weights do not say what a '
                'token becomes on its way.\n    Ask through="token".'
            )

    def __call__(self, ids: Int[Tensor, " n"]) -> Iterator[tuple[str, Float[Tensor, "n d_model"]]]:
        """Yield each layer's path and what it reads, in the order of the forward pass; call without gradients."""
        w = self.w
        x = entry = w.embeddings[self.stack][ids]
        first: Tensor | None = None
        for place in w.model.sub_layers(self.stack):
            entry = x if place.entry == place.index else entry
            layer = self.layers.get(place.path)
            if layer is None and not self._passes(place):
                continue
            if layer is None:
                assert place.before is not None, "no norm stands on the stream"
                assert isinstance(place.part, ByPosition), "others were refused"
                # the hidden layer is wider than the stream, and rows may be a whole vocabulary
                part, norm = wide_copy(place.part), wide_copy(place.before)
                written = torch.cat([part.write(norm(some[None]))[0] for some in entry.split(CHUNK)])
            else:
                if first is None or self.through == "stream" or not w.folded:
                    first = w.normed(entry, place.before, bias=False)
                yield layer.path, first
                written = self._written(layer, first)
            if written is not None:
                x = x + w.normed(written, place.write_norm)

    def _passes(self, place: SubLayer) -> bool:
        """Whether tokens pass a sub-layer other than attention on their way."""
        return self.through == "stream" and place.role == "mlp" and place.path not in self.layers

    def _written(self, layer: AttentionWeights, rows: Tensor) -> Tensor | None:
        """Return what heads write of the token they stand on, as far as they attend to it."""
        current = self.current[layer.path].to(rows)
        # how much of a token a head writes is not known while the scale of a norm on mixed values or latents is not
        unknown = (layer.gain is not None and not layer.held) or (
            layer.module.projection.norms_within and not layer.scaled
        )
        if self.through == "token" or unknown or not current.any():
            return None
        value = layer.V[layer.group] if layer.gain is None else layer.V[layer.group] * layer.gain[:, None]
        return rows @ torch.einsum("hde,hef->df", value * current[:, None, None], layer.O)


class TokenSums:
    """Sums over tokens of what layers read: E' E, V' E1' E2 of what an earlier layer moves, and U E.

    The latter are of models whose outputs are the tokens they read.

    Args:
        reads: What layers of the stack that ends in the logits read.
        ids: Tokens that count.
    """

    def __init__(self, reads: TokenReads, ids: Int[Tensor, " n"]) -> None:
        self.layers = reads.layers
        self.own: dict[str, Float[Tensor, "d_model d_model"]] = {}
        self.to_logits: dict[str, Float[Tensor, "d_model d_model"]] = {}
        self._moved: dict[tuple[str, str], Float[Tensor, "values d_model"]] = {}
        out = reads.w.read_out() if reads.w.model.one_vocabulary() else None
        # views on weights carry no gradients, MLPs would
        with torch.no_grad():
            for start in range(0, len(ids), CHUNK):
                some = ids[start : start + CHUNK]
                self._add(dict(reads(some)), None if out is None else out[:, some])

    def moved(self, earlier: AttentionWeights, later: AttentionWeights) -> Float[Tensor, "head d_value d_model"]:
        """Return the sum of what each head of a layer takes from a token times what a later layer reads of it."""
        found = self._moved.get((earlier.path, later.path))
        # layers that read alike share their sum
        found = _values(earlier).mT @ self.own[earlier.path] if found is None else found
        found = found.unflatten(0, (len(earlier.V), -1))[earlier.group]
        return found if earlier.gain is None else found * earlier.gain[..., None]

    def _add(self, rows: dict[str, Tensor], out: Float[Tensor, "d_model n"] | None) -> None:
        alike: dict[int, tuple[Tensor, Tensor | None]] = {}
        for path, read in rows.items():
            if id(read) not in alike:
                alike[id(read)] = read.mT @ read, None if out is None else out @ read
            for sums, found in zip((self.own, self.to_logits), alike[id(read)]):
                if found is not None:
                    sums[path] = found if path not in sums else sums[path] + found
        # grouped heads share their values: fewer columns than the stream has
        taken = {path: read @ _values(self.layers[path]) for path, read in rows.items() if len(alike) > 1}
        for j, later in enumerate(rows):
            for earlier in list(rows)[:j]:
                if rows[earlier] is not rows[later]:
                    found, known = taken[earlier].mT @ rows[later], self._moved.get((earlier, later))
                    self._moved[earlier, later] = found if known is None else known.add_(found)


def _values(layer: AttentionWeights) -> Float[Tensor, "d_model values"]:
    """Return a layer's V, key heads side by side."""
    return layer.V.movedim(0, 1).flatten(1)


def by_position(w: HeadWeights, labels: Sequence[str]) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """Attention to the same position and to the one before, by position alone; NaN for heads without any."""
    try:
        found = offsets_by_position(w, offsets=2, first_query=1)
    except AnalysisUnavailable:
        return torch.full((len(labels),), torch.nan), torch.full((len(labels),), torch.nan)
    return values_of(found.select(offset="0"), labels), values_of(found.select(offset="1"), labels)
