"""Parameters that layers of a stack have in common: stored with the first of them, read by the others."""

from collections.abc import Hashable, Iterable
from typing import Any

from torch import nn


class Shared:
    """A part of a layer whose parameters may be those of an earlier layer's."""

    # a plain attribute: registering the other module here would store its parameters twice
    owner: Any = None

    @property
    def shared_as(self) -> Hashable | None:
        """What those that share have in common; None for parameters of one's own."""
        return None

    def share(self, owner: Any) -> None:
        """Use another layer's parameters in place of one's own."""
        self.__dict__["owner"] = owner


def share_parameters(modules: Iterable[nn.Module]) -> None:
    """Let modules that share parameters read those of the first of them."""
    owners: dict[Hashable, Shared] = {}
    for module in modules:
        if isinstance(module, Shared) and (key := module.shared_as) is not None:
            owner = owners.setdefault((type(module), key), module)
            if owner is not module:
                module.share(owner)
