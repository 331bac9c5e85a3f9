"""A state of values alone, for mechanisms whose weights are not made of queries and keys."""

from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.kernels.growing import append
from glassformer.trace import Tape


class Values(NamedTuple):
    """Values of earlier positions, which no key has to find."""

    value: Float[Tensor, "batch kv_head key d_value"]


class ValuesOnly:
    """The state of such a mixer: a base to stand before `Mixer`, whose config says `stores_keys = False`."""

    config: Any
    dims: Any
    parallel: Any

    def begin(self, batch: int, like: Tensor) -> Any:
        return Values(like.new_zeros(batch, self.dims.n_kv_heads, 0, self.dims.d_value))

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Tensor, Any]:
        v, values = append(state.value, v, self.config.reach)
        # keys that are not read: one number in memory, of the shape of as many as there are values
        unread = k.new_zeros(1).expand(*v.shape[:-1], k.shape[-1])
        return self.parallel(q, unread, v, x, context, tape), Values(values)
