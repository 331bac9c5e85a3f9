"""Plain per-head tensors: the parameters of all layers in one tensor, as `model.W_Q` of a HookedTransformer gives them.

    W_E [vocab d_model]                      W_pos [n_ctx d_model], for learned positions
    W_Q W_K W_V [layer head d_model d_head]  b_Q b_K b_V [layer head d_head]
    W_O [layer head d_head d_model]          b_O [layer d_model]
    W_in W_gate [layer d_model d_mlp]        b_in [layer d_mlp]
    W_out [layer d_mlp d_model]              b_out [layer d_model]
    W_U [d_model vocab]                      b_U [vocab]

Beside them lies the config of a TransformerLens model; which tensors there are follows from it. Norms that have
parameters keep their names there: `ln1.w` [layer d_model], `ln1.b`, `ln2.w`, `ln2.b`, `ln_final.w`, `ln_final.b`.
"""

from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.family import Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.transformer_lens import TRANSFORMER_LENS


def _table(fields: Fields, config: Any) -> Table:
    def plain(piece: str | Piece) -> Piece:
        piece = Piece(piece) if isinstance(piece, str) else piece
        layers = len(config.layers) if "{i}" in piece.name else None
        return replace(piece, name=_plain(piece.name), layers=layers)

    found: dict[str, Any] = {}
    for ours, theirs in TRANSFORMER_LENS.table(fields, config).items():
        listed = (theirs,) if isinstance(theirs, (str, Piece)) else theirs
        found[ours] = tuple(plain(piece) for piece in listed)
    return found


def _plain(name: str) -> str:
    """Return what a name of the state dict is without its layer, and without its module where the rest says it all."""
    # grouped keys and values have an underscore in front
    last = name.rpartition(".")[2].removeprefix("_")
    return last if last.startswith(("W_", "b_")) else name.removeprefix("blocks.{i}.")


PER_HEAD = replace(TRANSFORMER_LENS, name="Per-head tensors", table=_table, ignored=(), holds=("W_E",))
