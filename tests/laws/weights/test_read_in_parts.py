"""What a head makes of a vocabulary is narrower than what it reads: the latter is never there as a whole."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer import weights
from glassformer.analysis.vocabulary import skip_trigrams
from glassformer.models import DecoderConfig, block

VOCAB, WIDTH = 20_000, 128


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that was made, in entries; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and not found._is_view() and not func.is_view:
            self.entries = max(self.entries, found.numel())
        return found


def test_no_step_of_a_heads_full_circuits_holds_what_it_reads_of_every_token() -> None:
    config = DecoderConfig(layers=(block(n_heads=8),), d_model=WIDTH, vocab_size=VOCAB, max_len=16)
    w = weights.of(config.build(seed=0), fold=True)
    with _Largest() as made:
        w.full_qk("L0H1")
        w.full_ov("L0H1")
        skip_trigrams(w, ["L0H1"], k=2, n_sources=4)
    assert VOCAB * 16 <= made.entries < VOCAB * WIDTH
