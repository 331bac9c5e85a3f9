"""What an adapter does to one matrix: W' = change(W), with the numbers that training moves.

A change computes in float32 at least, whatever type the matrix is kept in, and gives W' in that type.
"""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import CheckpointError
from glassformer.numerics.precision import wide
from glassformer.weights import Factored


class Change(nn.Module):
    """The change of one matrix; each kind says how its numbers make W' of W."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix it is of: `d_out`, `d_in`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it is of")

    def composed(self, base: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        """W' of the matrix W that it was made for, in the type of W."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it makes of a matrix")

    def factors(self) -> Factored | None:
        """W' - W as a product of two thin matrices; None where it is none."""
        return None

    def difference(self, base: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        """W' - W, in float32 at least."""
        known = self.factors()
        return wide(self.composed(base)) - wide(base) if known is None else known.dense()

    def sum_of(self, others: Mapping["Change", float]) -> "Change":
        """Return the change whose W' - W is a weighted sum of those of others of its kind, on the same matrix.

        Args:
            others: Changes, itself among them or not, and what each is multiplied by.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how changes are summed")

    def stored(self) -> dict[str, Tensor]:
        """What has to be kept of it beside the matrix, by name."""
        return {name: value.detach() for name, value in self.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what was `stored`; raises `CheckpointError` where that is of another change."""
        own = self.state_dict()
        if {name: value.shape for name, value in own.items()} != {name: t.shape for name, t in tensors.items()}:
            found, wanted = (
                ", ".join(f"{name} {tuple(value.shape)}" for name, value in sorted(each.items()))
                for each in (tensors, own)
            )
            raise CheckpointError(f"a change of this kind has {wanted}; found {found or 'nothing'}.")
        self.load_state_dict(dict(tensors))
