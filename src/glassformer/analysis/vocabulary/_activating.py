"""Which tokens of which texts excite neurons most: the other half of what weights alone say of them.

Texts are read some at a time; of each neuron only the highest activations so far are kept.

Source: Geva et al. 2021, "Transformer Feed-Forward Layers Are Key-Value Memories" (trigger examples).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.components import mlp_of
from glassformer.analysis.question import question
from glassformer.arguments import Count, Several
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.models.readable import readable
from glassformer.numerics.indices import entries

ANALYSIS = "activating_texts"


@dataclasses.dataclass(frozen=True, eq=False)
class ActivatingTexts(Result):
    """Where some neurons of one MLP are most active.

    Args:
        activations: What the output matrix reads of each neuron, highest first, `neuron rank`.
        texts: Index of the text, likewise.
        positions: Index of the position in it, likewise.
        contexts: The tokens up to there, by neuron, highest first, in the order of `rank`.
        label: Of the MLP, `L1 mlp`.
        n_positions: How many positions were looked at.
    """

    HEADLINE = ("activations",)
    SIGNED = ("activations",)

    activations: Labelled
    texts: Labelled
    positions: Labelled
    contexts: dict[str, tuple[str, ...]]
    label: str
    n_positions: int


@question("Which texts excite each neuron most?", of="texts")
@torch.no_grad()
def activating_texts(
    model: ModelLike,
    inputs: Any,
    *,
    layer: int,
    neurons: Several[int] | None = None,
    part: str = "mlp",
    k: Count = 5,
    context: Count = 8,
    rows_at_once: Count = 16,
) -> ActivatingTexts:
    """Find where each neuron of an MLP on the stream of the logits is most active.

    Args:
        inputs: Texts or ids, several, of any lengths.
        layer: Index of the block.
        neurons: Which; all by default.
        part: Name of the sub-layer, where a block has several MLPs.
        k: Places per neuron.
        context: How many tokens of the text up to a place are shown.
        rows_at_once: Texts in one pass.

    Raises:
        AnalysisUnavailable: There is no such MLP, or the model reads pairs or images.
        ShapeMismatch: There is no such neuron.
    """
    model = require_model(model, ANALYSIS)
    mlp = mlp_of(model, layer, part, ANALYSIS)
    if model.reads_pairs:
        raise AnalysisUnavailable(f"{ANALYSIS}: an encoder-decoder reads pairs; this is of texts, one after the other.")
    read = model.read(inputs)
    ids = read.require_ids(ANALYSIS)
    lengths = [ids.shape[1]] * len(ids) if read.lengths is None else read.lengths.tolist()
    rows = [row[:n].tolist() for row, n in zip(ids, lengths)]
    chosen = entries(slice(None) if neurons is None else list(neurons), mlp.d_mlp, "neurons")
    best, places = ids.new_zeros(len(chosen), 0).to(mlp.output.weight), ids.new_zeros(len(chosen), 0, 2)
    for first in range(0, len(rows), rows_at_once):
        found = run(model, rows[first : first + rows_at_once], read=[mlp.at.hidden])
        active = found[mlp.at.hidden].values[..., chosen]
        at = torch.tensor([(r, p) for r, row in enumerate(rows[first : first + rows_at_once]) for p in range(len(row))])
        at = at.to(active.device)
        new = active[at[:, 0], at[:, 1]].mT
        best, places = _better(best, places, new, at + at.new_tensor([first, 0]), k)
    return _result(model, rows, chosen, best, places, f"L{layer} {part}", context)


def _better(
    best: Float[Tensor, "neuron have"], places: Int[Tensor, "neuron have two"],
    new: Float[Tensor, "neuron place"], at: Int[Tensor, "place two"], k: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the k highest among those in hand and new ones, and where they are."""
    top = new.topk(min(k, new.shape[1]))
    best, places = torch.cat((best, top.values), 1), torch.cat((places, at[top.indices]), 1)
    found = best.topk(min(k, best.shape[1]))
    return found.values, places.gather(1, found.indices[..., None].expand(-1, -1, 2))


def _result(
    model: Model, rows: Sequence[list[int]], chosen: Sequence[int], best: Tensor, places: Tensor, label: str,
    context: int,
) -> ActivatingTexts:  # fmt: skip
    names = {"neuron": [str(n) for n in chosen]}

    def shown(text: int, position: int) -> str:
        ids = rows[text][max(0, position + 1 - context) : position + 1]
        return "".join(readable(model, torch.tensor([ids]))[0])

    return ActivatingTexts(
        activations=Labelled(best, ("neuron", "rank"), names),
        texts=Labelled(places[..., 0], ("neuron", "rank"), names),
        positions=Labelled(places[..., 1], ("neuron", "rank"), names),
        contexts={name: tuple(shown(*at) for at in where) for name, where in zip(names["neuron"], places.tolist())},
        label=label,
        n_positions=sum(map(len, rows)),
    )
