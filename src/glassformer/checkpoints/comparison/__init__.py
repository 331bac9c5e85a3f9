"""Published models beside the implementation they were published with, site by site."""

from glassformer.checkpoints.comparison.whole_checkpoint import Parity, parity

__all__ = ["Parity", "parity"]
