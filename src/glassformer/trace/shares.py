"""Values that processes share: each computes a part of a site's value, and a tape looks at the whole of it.

The whole is put together before edits and reads, which are the same on all processes, and each goes on with its part of
what they leave. A pass asks for it where a tape wants the site, so all processes send the same tape through the model.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from glassformer.trace.sites import Site


@runtime_checkable
class Shares(Protocol):
    """What puts values together that are shared among processes."""

    def visited(self, value: Tensor, site: Site, visit: Callable[[Tensor], Tensor]) -> Tensor:
        """This process's part of what a visit leaves of the whole value.

        Args:
            value: The part that this process computed; the whole of what is not shared.
            site: Where.
            visit: Edits and reads a whole value.
        """
        ...
