"""The largest tensor that anything made: `with Largest() as seen: …`, then `seen.numbers`."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor had that was made meanwhile, backward passes included."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(one, Tensor):
                self.numbers = max(self.numbers, one.numel())
        return made
