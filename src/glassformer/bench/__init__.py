"""Benchmarks: what attention mechanisms cost in time, memory and state, beside PyTorch's fused softmax attention.

And what matrix products take here, for output layers whose clusters are to cost least.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.bench.attention import attention_costs
    from glassformer.bench.costs import AttentionCosts
    from glassformer.bench.growth import Growth, growth_exponent
    from glassformer.bench.memory import peak_bytes
    from glassformer.bench.paired import Comparison, Spread, Timing, compare, compare_timed
    from glassformer.bench.products import product_cost

_HOMES = {
    "attention": ("attention_costs",),
    "costs": ("AttentionCosts",),
    "growth": ("Growth", "growth_exponent"),
    "memory": ("peak_bytes",),
    "paired": ("Comparison", "Spread", "Timing", "compare", "compare_timed"),
    "products": ("product_cost",),
}

__all__ = [
    "AttentionCosts", "Comparison", "Growth", "Spread", "Timing", "attention_costs", "compare", "compare_timed",
    "growth_exponent", "peak_bytes", "product_cost",
]  # fmt: skip

# timing alone needs no PyTorch: other libraries are timed by it in environments of their own
__getattr__, __dir__ = lazily(__name__, _HOMES)
