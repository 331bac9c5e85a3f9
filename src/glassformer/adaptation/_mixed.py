"""Sums and interpolations of adapters: weighted sums of what they change.

    W' = W + sum over i of w_i (W'_i - W)

Of SVF these are scales z = sum of w_i z_i, where weights sum to one: W' is linear in z. Of low-rank changes factors
are laid side by side. The code's form of SVF is linear in neither: its multipliers are mixed and then rescaled, as its
authors do.
"""

from collections.abc import Mapping

from glassformer.adaptation._adapter import Adapter
from glassformer.adaptation._change import Change
from glassformer.adaptation._low_rank import Lora, LowRank
from glassformer.arguments import checked
from glassformer.config import require


@checked
def mixed(adapters: Mapping[Adapter, float | Mapping[str, float]]) -> Adapter:
    """The adapter that changes matrices by a weighted sum of what others change.

    A matrix that one of them leaves alone is changed by the others.

    Args:
        adapters: Adapters of one model and of one kind (all low-rank kinds are one), and the weight of each: one
            number, or one for each of its matrices, by name.

    Raises:
        ConfigError: There are none, they are of several models or kinds, or weights have no meaning for the kind or
            are not of the adapter's matrices.
    """
    known = list(adapters)
    require(bool(known), "mixed: no adapters were given.")
    digests = {one.digest for one in known if one.digest}
    require(len(digests) <= 1, "mixed: these adapters were made for several models, or for other weights of one.")
    parts = dict[str, dict[Change, float]]()
    for adapter, weight in adapters.items():
        by_matrix = weight if isinstance(weight, Mapping) else dict.fromkeys(adapter.changes, weight)
        require(
            by_matrix.keys() == adapter.changes.keys(),
            f"mixed: weights of {len(by_matrix)} matrices are given for an adapter of {len(adapter.changes)}; give one "
            "for each of adapter.changes.",
        )
        for name, change in adapter.changes.items():
            parts.setdefault(name, {})[change] = float(by_matrix[name])
    changes = dict[str, Change]()
    for name, of_matrix in parts.items():
        first = next(iter(of_matrix))
        require(
            len({_kind(change) for change in of_matrix}) == 1,
            f'mixed: changes of "{name}" are of several kinds ({", ".join(one.config.described for one in known)}). '
            "Low-rank kinds are mixed with each other, the others each with their own.",
        )
        changes[name] = first.sum_of(of_matrix)
    config, one = known[0].config, next(iter(changes.values()))
    if isinstance(one, LowRank):
        config = Lora(one.a.shape[0])
    return Adapter(config, changes, model=known[0].model_name, digest=next(iter(digests), ""))


def _kind(change: Change) -> object:
    return type(change), getattr(change, "config", None)
