"""Which tokens a feature promotes and suppresses when its decoder row reaches the final norm as it is.

    W_dec[j] / s . U'        U' the unembedding with the final norm's gain and centring; logits per unit of activation

The norm's scale is left out, which is one number at each position, so that orders hold and sizes compare within a
feature. Of folded weights logits are less their mean over the vocabulary, which softmax does not see. Later layers read
the row too, and what they make of it is not in here: `feature_effects` measures that.

Some token is always the largest. So a row is compared with directions at random of its length: what is no larger than
the largest entries of those is what any direction has.

Source: Bricken et al. 2023, "Towards Monosemanticity" (logit weights).
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownMemberType=false

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis.dictionaries._attached import check_model, site_of
from glassformer.analysis.dictionaries._autoencoder import SparseAutoencoder
from glassformer.analysis.from_weights.selection import names_of_both
from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.weights import WeightsLike

# directions at random that each row is compared with
_RANDOM = 64


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureTokens(Result):
    """Tokens that features promote and suppress.

    Args:
        raised: Logits per unit of activation of the tokens that are raised most, `feature rank`.
        raised_tokens: Their ids, `feature rank`.
        lowered: Of those that are lowered most, `feature rank`.
        lowered_tokens: Their ids, `feature rank`.
        chance: Largest size of a logit that one of 64 directions at random of the row's length has, `feature`.
        names: Outputs as text, by id, for those that occur.
    """

    HEADLINE = ("raised", "lowered")
    SIGNED = ("raised", "lowered")

    raised: Labelled
    raised_tokens: Labelled
    lowered: Labelled
    lowered_tokens: Labelled
    chance: Labelled
    names: dict[int, str]

    def promoted(self, feature: int) -> list[tuple[str, float]]:
        """Tokens that a feature raises by more than chance, largest first; most features have few or none."""
        return self._beyond(feature, self.raised, self.raised_tokens)

    def suppressed(self, feature: int) -> list[tuple[str, float]]:
        """Tokens that a feature lowers by more than chance, lowest first."""
        return self._beyond(feature, self.lowered, self.lowered_tokens)

    def _beyond(self, feature: int, values: Labelled, ids: Labelled) -> list[tuple[str, float]]:
        row = [int(label) for label in values.labels("feature")].index(feature)
        pairs = zip(ids.values[row].tolist(), values.values[row].tolist())
        return [(self.names[id], value) for id, value in pairs if abs(value) > float(self.chance.values[row])]


@question("Which tokens does each feature promote and suppress?", of="weights")
@torch.no_grad()
def feature_tokens(
    model: WeightsLike,
    dictionary: SparseAutoencoder,
    features: Sequence[int] | None = None,
    *,
    k: Count = 10,
    site: str | None = None,
    seed: int = 0,
) -> FeatureTokens:
    """Read decoder rows of a dictionary of the stream in the vocabulary.

    Args:
        dictionary: Of a place of the stream that ends in the logits, or of what a sub-layer adds to it.
        features: Which; all by default.
        k: Tokens of each.
        site: Full name of the site, for a dictionary that does not say.

    Raises:
        CheckpointError: The dictionary is of another model or site.
        AnalysisUnavailable: The site is not of the stream that ends in the logits, or no matrix makes these.
        ShapeMismatch: There is no such feature.
    """
    w = weights.matrices(model)
    check_model(dictionary, w.model)
    table = w.model.sites()
    place = table[table.match(site_of(dictionary, site))[0]]
    if place.axes != ("batch", "pos", "d_model") or place.stack != w.stack:
        raise AnalysisUnavailable(
            f'feature_tokens reads what is added to the stream that ends in the logits, and "{place.name}" is '
            f"{place.shape()}.\n    Train a dictionary of resid_post, attn.out or mlp.out."
        )
    chosen = chosen_features(dictionary, features, "feature_tokens")
    rows = (dictionary.W_dec[chosen.to(dictionary.W_dec.device)] / dictionary.scale).to(w.U)
    read_out = w.read_out()
    if rows.shape[1] != len(read_out):
        raise ShapeMismatch(f"feature_tokens: rows have {rows.shape[1]} numbers, and the stream has {len(read_out)}.")
    logits, k = rows @ read_out, min(k, read_out.shape[1])
    raised, lowered = logits.topk(k), logits.topk(k, largest=False)
    names = names_of_both(w, [], [raised.indices, lowered.indices])[1]
    coords = {"feature": chosen.tolist()}

    def ranked(values: Tensor) -> Labelled:
        return Labelled(values, ("feature", "rank"), coords)

    return FeatureTokens(
        raised=ranked(raised.values),
        raised_tokens=ranked(raised.indices),
        lowered=ranked(lowered.values),
        lowered_tokens=ranked(lowered.indices),
        chance=Labelled(rows.norm(dim=-1) * _largest_at_random(read_out, seed), ("feature",), coords),
        names=names,
    )


def chosen_features(dictionary: SparseAutoencoder, features: Sequence[int] | None, analysis: str) -> Tensor:
    """Return which features are asked for, all by default; raises `ShapeMismatch` for one that is not there."""
    count = dictionary.config.n_features
    chosen = torch.arange(count) if features is None else torch.tensor(list(features), dtype=torch.long)
    if not len(chosen) or int(chosen.min()) < 0 or int(chosen.max()) >= count:
        raise ShapeMismatch(f"{analysis}: features are 0 to {count - 1}; asked are {list(features or [])}.")
    return chosen


def _largest_at_random(read_out: Float[Tensor, "d_model vocab"], seed: int) -> float:
    """Return the largest logit that directions of norm one at random have."""
    drawn = torch.randn(_RANDOM, len(read_out), generator=torch.Generator().manual_seed(seed)).to(read_out)
    return float(((drawn / drawn.norm(dim=-1, keepdim=True)) @ read_out).abs().max())
