"""What neurons of MLPs promote, and what excites them, by the weights alone.

    a neuron adds act_n W_out[n] to the stream:      promoted     the largest of W_out[n] U, mean over tokens taken out
    it is excited by what W_in[:, n] reads:          sought       the largest of norm(E) W_in[:, n]

Two kinds write no token in particular. An entropy neuron writes where the unembedding hardly reads: it changes how long
the stream is, which the final norm turns into sharper or flatter logits. A token-frequency neuron moves all logits
along the logarithm of how often tokens occur.

Each token's vector is read by itself through the layer's norm, as the first layer would read it; what layers before
wrote is not in it. Gated MLPs read by the gate, whose activation opens the neuron.

Source: Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the Vocabulary
Space"; Dar et al. 2023, "Analyzing Transformers in Embedding Space"; Stolfo et al. 2024, "Confidence Regulation Neurons
in Language Models" (null space and frequency).
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis.from_weights.selection import LeftOut, names_of_both
from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.analysis.question import question
from glassformer.analysis.vocabulary.ends import Ends, both_ends
from glassformer.arguments import Count, PositiveShare, Several
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, nearest
from glassformer.labelled import Labelled, Result
from glassformer.numerics import decompositions
from glassformer.numerics.precision import wide
from glassformer.weights import HeadWeights, MlpWeights, WeightsLike

ANALYSIS = "neuron_tokens"
NO_TOKEN = -1
MEASURES = ("variance", "skew", "kurtosis", "cosine", "gain", "null share", "frequency")


@dataclasses.dataclass(frozen=True, eq=False)
class NeuronTokens(Result):
    """What each neuron promotes and suppresses, what excites it, and how it writes.

    Args:
        measures: `mlp neuron measure`. Of the logits that a unit of activation adds, their mean over the vocabulary
            taken out: `variance`, `skew`, `kurtosis` (excess: 0 of a normal distribution). `cosine` of what the neuron
            reads (by its gate, if there is one) and what it writes, in [-1, 1]. `gain`: size of those logits over that
            of a direction of the stream on average. `null share`: share of the squared length of W_out[n] in the
            directions that the unembedding reads least. `frequency`: correlation of those logits with the logarithm of
            how often tokens occur, NaN if that was not said.
        promoted: The largest of those logits, largest first, `mlp neuron rank`.
        promoted_tokens: Their ids.
        suppressed: The lowest of them, lowest first, likewise.
        suppressed_tokens: Their ids.
        sought: What the neuron is excited by, `mlp neuron rank`: the largest pre-activations that tokens by themselves
            bring, biases aside; NaN where no token has a vector of its own.
        sought_tokens: Their ids; -1 where there are none.
        null_directions: How many directions of the stream count as those that the unembedding reads least.
        names: Tokens that are read as text, by id, for those that occur.
        output_names: Outputs likewise.
        folded: Whether norms were folded into the matrices.
        left_out: Sub-layers that have no neurons of this kind, and why.
    """

    HEADLINE = ("measures",)
    SIGNED = ("measures",)

    measures: Labelled
    promoted: Labelled
    promoted_tokens: Labelled
    suppressed: Labelled
    suppressed_tokens: Labelled
    sought: Labelled
    sought_tokens: Labelled
    null_directions: int
    names: dict[int, str]
    output_names: dict[int, str]
    folded: bool
    left_out: LeftOut

    def table(self, mlp: str, neuron: int, k: int = 10) -> dict[str, list[str]]:
        """One neuron's tokens as text, by what it does with them: `promoted`, `suppressed`, `sought`."""
        sides = {
            "promoted": (self.promoted_tokens, self.output_names),
            "suppressed": (self.suppressed_tokens, self.output_names),
            "sought": (self.sought_tokens, self.names),
        }
        picked = {
            what: (ids.select(mlp=mlp).values[neuron, :k].tolist(), names) for what, (ids, names) in sides.items()
        }
        return {what: [names[id] for id in ids if id != NO_TOKEN] for what, (ids, names) in picked.items()}


@question("Which tokens does each neuron promote, and what excites it?", of="weights")
def neuron_tokens(
    model: WeightsLike,
    mlps: Several[str] | None = None,
    *,
    k: Count = 10,
    counts: Sequence[int | float] | Tensor | None = None,
    null: PositiveShare = 0.05,
) -> NeuronTokens:
    """Read what each neuron writes through the unembedding, and what it reads through the embedding.

    Args:
        mlps: Labels, `L3 mlp`; all on the stream of the logits by default.
        k: Tokens per end.
        counts: How often each token of the output vocabulary occurs in some text, by id; one is added to each.
        null: Share of the stream's directions that count as those the unembedding reads least, rounded up.

    Raises:
        AnalysisUnavailable: There is no such MLP, or none at all; post-norm blocks, which normalise the stream between
            a write and the logits; or no matrix leads from the stream to the logits.
        ShapeMismatch: There are not as many counts as outputs.
    """
    w = weights.matrices(model)
    chosen, left_out = mlps_of(w, mlps, ANALYSIS)
    read_out = wide(w.read_out())
    mean = read_out.mean(-1) if w.shifts else None
    frequency = None if counts is None else _log_frequency(counts, read_out)
    space = NullSpace(w, read_out, null)
    found = list[_Neurons]()
    for mlp in chosen:
        written = wide(written_by_neurons(w, mlp))
        said = both_ends(written, lambda some: read_out[:, some].mT, read_out.shape[1], k, mean=mean, along=frequency)
        found.append(_Neurons(said, _sought(w, mlp, k), _measures(mlp, written, said, space)))
    return _result(w, chosen, found, space.n, left_out)


def mlps_of(w: HeadWeights, labels: Sequence[str] | None, analysis: str) -> tuple[list[MlpWeights], LeftOut]:
    """Return the MLPs that write to the stream of the logits, those asked for, and why other sub-layers are not there.

    Raises:
        AnalysisUnavailable: There is no such MLP, or none, or post-norm blocks.
    """
    if any(layer.stream_norm for layer in w.model.sub_layers(w.stack)):
        raise AnalysisUnavailable(
            f"{analysis}: this model has post-norm blocks, which normalise the stream itself between a write and what "
            "reads it.\n    Of one text: analysis.attribution.neuron_effects(run)."
        )
    there = {mlp.label: mlp for mlp in w.mlps if mlp.stack == w.stack}
    left_out = {layer.label: "its neurons are not one set of matrices" for layer in w.opaque if layer.stack == w.stack}
    for label in labels or ():
        if label not in there:
            raise AnalysisUnavailable(f'{analysis}: no MLP "{label}".{nearest(label, there)}')
    if not there:
        why = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
        raise AnalysisUnavailable(f"{analysis}: no MLP of this model writes to the stream of the logits. {why}".strip())
    return [there[label] for label in labels or there], left_out


def written_by_neurons(w: HeadWeights, mlp: MlpWeights) -> Float[Tensor, "neuron d_model"]:
    """Return what a unit of each neuron's activation adds to the stream, up to the scale of a norm behind."""
    return FrozenNorm(w.sub_layers[mlp.path].write_norm, None).unscaled(mlp.W_out).detach()


class NullSpace:
    """How strongly the unembedding reads each direction of the stream, and those that it reads least.

    Args:
        w: The weights.
        read_out: From the stream to logits.
        share: Of all directions, how many count as those; the one that a norm takes out is none of them.
    """

    def __init__(self, w: HeadWeights, read_out: Float[Tensor, "d_model vocab"], share: float) -> None:
        centred = (read_out - read_out.mean(-1, keepdim=True) if w.shifts else read_out).double()
        self.gram = centred @ centred.mT
        d = w.model.output_stack.final.d_model
        gram = self.gram
        if w.final_norm().centred:
            # a constant along the stream is read by nothing and written by nobody: it goes to the other end
            constant = torch.zeros_like(gram[0])
            constant[:d] = d**-0.5
            gram = gram + 2 * gram.trace() * constant[:, None] * constant
        self.n = max(1, math.ceil(share * d))
        # rising: what is read least comes first
        self.directions = decompositions.eigh(gram)[1][:, : self.n]

    def share(self, vectors: Float[Tensor, "n d_model"]) -> Float[Tensor, " n"]:
        """Return the share of each squared length that lies in the directions read least."""
        return (vectors.double() @ self.directions).square().sum(-1) / vectors.double().square().sum(-1)

    def gain(self, vectors: Float[Tensor, "n d_model"]) -> Float[Tensor, " n"]:
        """Return how large the logits of each are, in units of those of a direction on average."""
        v = vectors.double()
        return (
            ((v @ self.gram * v).sum(-1) / v.square().sum(-1) / (self.gram.trace() / len(self.gram)))
            .clamp_min(0)
            .sqrt()
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Neurons:
    said: Ends
    sought: Ends | None
    measures: Float[Tensor, "neuron measure"]


def _measures(
    mlp: MlpWeights, written: Float[Tensor, "neuron d_model"], said: Ends, space: NullSpace
) -> Float[Tensor, "neuron measure"]:
    key = wide(mlp.W_in if mlp.W_gate is None else mlp.W_gate).mT
    cosine = F.cosine_similarity(key, written, dim=-1)
    columns = (said.variance, said.skew, said.kurtosis, cosine, space.gain(written), space.share(written),
               said.correlation)  # fmt: skip
    return torch.stack([column.to(written) for column in columns], -1)


def _sought(w: HeadWeights, mlp: MlpWeights, k: int) -> Ends | None:
    """Return the tokens that excite each neuron; None where none has a vector of its own."""
    try:
        w.require_entry(w.stack, ANALYSIS)
    except AnalysisUnavailable:
        return None
    tokens, norm = w.embeddings[w.stack], w.sub_layers[mlp.path].before
    key = wide(mlp.W_in if mlp.W_gate is None else mlp.W_gate).mT
    return both_ends(key, lambda some: wide(w.normed(tokens[some], norm, bias=False)), len(tokens), k)


def _log_frequency(counts: Sequence[int | float] | Tensor, read_out: Float[Tensor, "d_model vocab"]) -> Tensor:
    found = torch.as_tensor(counts, dtype=torch.float64, device=read_out.device)
    if found.shape != read_out.shape[1:]:
        raise ShapeMismatch(
            f"{ANALYSIS}: counts of shape {tuple(found.shape)}; give one for each of {read_out.shape[1]} outputs."
        )
    return (found + 1).log()


def _result(
    w: HeadWeights, mlps: Sequence[MlpWeights], found: Sequence[_Neurons], n_null: int, left_out: LeftOut
) -> NeuronTokens:
    widest = max(len(one.measures) for one in found)
    labels = {"mlp": [mlp.label for mlp in mlps]}

    def field(parts: Sequence[Tensor], axis: str, **coords: Sequence[str]) -> Labelled:
        empty = NO_TOKEN if parts[0].dtype == torch.long else torch.nan
        padded = [F.pad(part, (0, 0, 0, widest - len(part)), value=empty) for part in parts]
        return Labelled(torch.stack(padded), ("mlp", "neuron", axis), labels | coords)

    said = [one.said for one in found]
    nothing = found[0].said.high[:, :0]
    sought = [(nothing, nothing.long()) if one.sought is None else one.sought[:2] for one in found]
    written = [ids for one in said for ids in (one.high_ids, one.low_ids)]
    names, output_names = names_of_both(w, [ids for _, ids in sought], written)
    return NeuronTokens(
        measures=field([one.measures for one in found], "measure", measure=MEASURES),
        promoted=field([one.high for one in said], "rank"),
        promoted_tokens=field([one.high_ids for one in said], "rank"),
        suppressed=field([one.low for one in said], "rank"),
        suppressed_tokens=field([one.low_ids for one in said], "rank"),
        sought=field([values for values, _ in sought], "rank"),
        sought_tokens=field([ids for _, ids in sought], "rank"),
        null_directions=n_null,
        names=names,
        output_names=output_names,
        folded=w.folded,
        left_out=left_out,
    )
