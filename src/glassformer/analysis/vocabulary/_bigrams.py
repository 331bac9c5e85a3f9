"""The direct path as a bigram table: what the token alone predicts.

    logits(next | current) = norm(E) U + biases

Exact for a model without layers; in a deeper one the direct path supplies what no other path does, which need not be
the bigram statistics. Position vectors are left out, or taken at one position.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (zero-layer transformers).
"""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer import weights
from glassformer.analysis.from_weights.selection import names_of_both, token_choice
from glassformer.analysis.question import question
from glassformer.arguments import Count, Natural
from glassformer.data.text.counts import BigramModel
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.weights import HeadWeights, WeightsLike

BLOCK = 1 << 22  # logits held at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Bigrams(Result):
    """What the direct path predicts after each token.

    Args:
        probability: Of the likeliest continuations, best first, `current rank`, in [0, 1].
        outputs: Their ids, `current rank`.
        kl_nats: KL divergence of the text's bigrams from the direct path's, by `current`, in nats; NaN without a text.
        loss_nats: Expected loss of the direct path on the text's bigrams, in nats per token; NaN without a text.
        entropy_nats: The least any bigram model can have there: the conditional entropy; NaN without a text.
        position: The position whose vector was added, or None.
        layers: Sub-layers of the model that the direct path leaves out; 0 means it is the whole model.
        names: Current tokens as text, by id.
        output_names: Continuations likewise, for those that occur.
        folded: Whether norms were folded into the matrices.
    """

    HEADLINE = ("probability", "kl_nats")

    probability: Labelled
    outputs: Labelled
    kl_nats: Labelled
    loss_nats: float
    entropy_nats: float
    position: int | None
    layers: int
    names: dict[int, str]
    output_names: dict[int, str]
    folded: bool

    def table(self, current: int, k: int = 10) -> list[tuple[str, float]]:
        """The likeliest continuations of a token, by its place among `current`."""
        ids, found = self.outputs.values[current][:k].tolist(), self.probability.values[current][:k].tolist()
        return [(self.output_names[i], p) for i, p in zip(ids, found)]


@question("Which bigrams does the direct path hold?", of="weights")
def bigrams(
    model: WeightsLike,
    tokens: Int[Tensor, " n"] | Sequence[int] | None = None,
    *,
    k: Count = 10,
    position: Natural | None = None,
    text: BigramModel | Float[Tensor, "vocab vocab"] | None = None,
    frequency: Float[Tensor, " n"] | None = None,
) -> Bigrams:
    """Read the direct path as a table of next-token probabilities.

    Outputs of a vocabulary of their own are what the token itself says; no text's bigrams are to be compared with that.

    Args:
        tokens: Ids of the current token; all by default.
        k: Continuations per token.
        position: Add the position vector of this position to the token's, where there are such vectors.
        text: What to compare with: a counted bigram model, or a table of probabilities (a row per current token).
        frequency: How often each of `tokens` occurs, for the means; alike by default.

    Raises:
        AnalysisUnavailable: There are no position vectors to add; or a text is given, and the model's outputs are not
            the tokens it reads.
        ShapeMismatch: The table does not fit the vocabulary.
    """
    w = weights.matrices(model)
    ids = token_choice(w, tokens)
    if text is not None:
        w.model.require_one_vocabulary("comparing the direct path with bigrams of a text")
    table = text.log_probs if isinstance(text, BigramModel) else None if text is None else text.log()
    size = w.model.config.n_outputs
    if table is not None and (table.shape[-1] != size or len(table) < size):
        raise ShapeMismatch(f"bigrams: the text's table is {tuple(table.shape)}; the vocabulary has {size} tokens.")
    share = torch.ones(len(ids)) if frequency is None else frequency
    if len(share) != len(ids):
        raise ShapeMismatch(f"bigrams: {len(share)} frequencies for {len(ids)} tokens.")
    share = share.to(w.U) / share.sum()
    k = min(k, size)
    best, kl, loss, entropy = [], [], w.U.new_zeros(()), w.U.new_zeros(())
    step = max(1, BLOCK // size)
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        log_p = direct_log_probs(w, part, position)
        best.append(log_p.exp().topk(k))
        if table is None:
            kl.append(log_p.new_full((len(part),), torch.nan))
            continue
        known = table[part.to(table.device)].to(log_p)
        p, weight = known.exp(), share[start : start + step]
        kl.append((p * (known - log_p)).nan_to_num(0.0).sum(-1))
        loss -= weight @ (p * log_p).sum(-1)
        entropy -= weight @ (p * known).nan_to_num(0.0).sum(-1)
    probability, outputs = (torch.cat(column) for column in zip(*best))
    names, output_names = names_of_both(w, [ids], [outputs])
    coords = {"current": [names[i] for i in ids.tolist()]}
    nothing = table is None
    return Bigrams(
        probability=Labelled(probability, ("current", "rank"), coords),
        outputs=Labelled(outputs, ("current", "rank"), coords),
        kl_nats=Labelled(torch.cat(kl), ("current",), coords),
        loss_nats=float("nan") if nothing else float(loss),
        entropy_nats=float("nan") if nothing else float(entropy),
        position=position,
        layers=_layers(w),
        names=names,
        output_names=output_names,
        folded=w.folded,
    )


def direct_log_probs(w: HeadWeights, ids: Int[Tensor, " n"], position: int | None = None) -> Float[Tensor, "n vocab"]:
    """Return log-probabilities of the direct path after some tokens, through the cap if logits have one."""
    rows, table = w.E[ids], w.P
    if position is not None:
        if table is None:
            raise AnalysisUnavailable(
                "bigrams: this model adds no position vectors to the stream, so position=… has nothing to add.\n"
                "    Leave it out: the direct path knows tokens alone."
            )
        if not 0 <= position < len(table):
            raise ShapeMismatch(f"bigrams: position {position}; the model knows positions 0 to {len(table) - 1}.")
        rows = rows + table[position]
    logits = w.normed(rows, w.final_norm()) @ w.U
    logits = logits if w.bU is None else logits + w.bU
    return w.model.unembed.capped(logits).log_softmax(-1)


def _layers(w: HeadWeights) -> int:
    return sum(len(block.names) for block in w.model.stacks[w.stack].blocks)
