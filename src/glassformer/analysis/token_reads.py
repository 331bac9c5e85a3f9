"""What layers read of a token by itself, and sums over the vocabulary of products of such reads.

`token` takes the stream to hold the token's vector and nothing else. `stream` adds what is written where the token
stands before a layer reads it, other tokens aside: MLPs, and heads as far as they attend to the token itself. A head
that attends to the current token only, as many first layers have one, changes what "the same token" looks like to the
next layer; left out, circuits behind it look like noise.

Rows are divided by their own scale wherever a norm stands before a layer.
"""
# torch does not type the parts of a module
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import AnalysisUnavailable
from glassformer.models import Block
from glassformer.weights import AttentionWeights, HeadWeights

Through = Literal["token", "stream"]
CHUNK = 1024  # tokens whose rows are held at a time


class TokenSums:
    """Sums over tokens of what one layer reads times what another reads, E1' E2, or times the unembedding, U E.

    Args:
        w: The weights.
        layers: Self-attention layers of the stack that ends in the logits.
        through: As above.
        current: Attention of each head of these layers to the token itself, one tensor per layer, for `stream`.
        ids: Tokens that count.

    Raises:
        AnalysisUnavailable: The weights are augmented, or the model is post-norm: tokens pass norms on the stream.
    """

    def __init__(
        self,
        w: HeadWeights,
        layers: Sequence[AttentionWeights],
        through: Through,
        current: Sequence[Float[Tensor, " _"]],
        ids: Int[Tensor, " n"],
    ) -> None:
        if w.augmented:
            raise AnalysisUnavailable(
                "induction circuits leave biases out: give weights without their constant coordinate, augment=False."
            )
        if any(block.wiring == "post" for block in w.model.stacks[w.stack].blocks):
            raise AnalysisUnavailable(
                "induction circuits: in post-norm blocks tokens pass norms on the stream, so their vectors are not "
                "what later layers read.\n    Composition takes those gains into account: analysis.composition(model)."
            )
        self.w, self.layers, self.through = w, {a.path: a for a in layers}, through
        self.current = {a.path: c for a, c in zip(layers, current)}
        self.sums: dict[tuple[str, str], Tensor] = {}
        self.to_logits: dict[str, Float[Tensor, "d_model d_model"]] = {}
        out = w.read_out()
        # views on weights carry no gradients, MLPs would
        with torch.no_grad():
            for start in range(0, len(ids), CHUNK):
                some = ids[start : start + CHUNK]
                self._add(self._rows(some), out[:, some])

    def __call__(self, earlier: AttentionWeights, later: AttentionWeights) -> Float[Tensor, "d_model d_model"]:
        return self.sums[earlier.path, later.path]

    def _add(self, rows: dict[str, Tensor], out: Float[Tensor, "d_model n"]) -> None:
        paths = list(rows)
        read_out = {id(read): out @ read for read in rows.values()}
        for path, read in rows.items():
            known = self.to_logits.get(path)
            self.to_logits[path] = read_out[id(read)] if known is None else known + read_out[id(read)]
        # layers that read alike share their sums
        shared: dict[tuple[int, int], Tensor] = {}
        for j, later in enumerate(paths):
            for earlier in paths[: j + 1]:
                key = id(rows[earlier]), id(rows[later])
                if key not in shared:
                    shared[key] = rows[earlier].mT @ rows[later]
                    known = self.sums.get((earlier, later))
                    if known is not None:
                        shared[key] += known
                self.sums[earlier, later] = shared[key]

    def _rows(self, ids: Tensor) -> dict[str, Float[Tensor, "n d_model"]]:
        """Return what each layer reads, by its path."""
        w, x = self.w, self.w.E[ids]
        rows: dict[str, Tensor] = {}
        first: Tensor | None = None
        for block in w.model.stacks[w.stack].blocks:
            assert isinstance(block, Block), "a stack is made of blocks"
            entry = x
            for name in block.names:
                read = entry if block.wiring == "parallel" else x
                layer = self.layers.get(block.part(name).path)  # type: ignore[union-attr]
                if layer is None and (self.through == "token" or not name.startswith("mlp")):
                    continue
                if layer is None:
                    written = block.part(name)(block.norm(name)(read[None]))[0]
                else:
                    if first is None or self.through == "stream" or not w.folded:
                        first = w.normed(read, w.norm_before(layer), bias=False)
                    rows[layer.path] = first
                    written = self._written(layer, first)
                if written is not None:
                    after = block.norm_after(name) if block.wiring == "sandwich" else None
                    x = x + (written if after is None else w.normed(written, after))
        return rows

    def _written(self, layer: AttentionWeights, rows: Tensor) -> Tensor | None:
        """Return what heads write of the token they stand on, as far as they attend to it."""
        current = self.current[layer.path].to(rows)
        if self.through == "token" or layer.gain is not None or not current.any():
            return None
        mixed = torch.einsum("nd,hde->hne", rows, layer.V)[layer.group] * current[:, None, None]
        return torch.einsum("hne,hed->nd", mixed, layer.O)
