"""Last key: each query reads one place, the last one that it may see.

    z_t = v_e      e the largest s that the mask lets t see

Read across to a recurrent encoder, whose last position knows all of its text, this is the fixed vector of the first
translators: the same for every word that is written, however long the source. Cross-attention in its place differs in
nothing else, so the two show what attention adds. In a text of its own, read backwards only, a query's last key is its
own: z is v.

Queries and keys are not read: `Tied(query="identity")` spares their maps.

Pattern: exact, a one in each row; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions.   Cost: O(pos^2) time and memory, one product of the two of softmax.
Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", section 2.2, where the vector c
enters every step of the decoder. That of Sutskever, Vinyals and Le 2014, "Sequence to Sequence Learning with Neural
Networks", is the state that the decoder begins from.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.mixer import Mixer, MixerConfig, Traits
from glassformer.trace import Tape


@dataclass(frozen=True)
class LastKey(MixerConfig, kind="last_key"):
    """Attention to the last key that may be seen; it has no settings."""

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True)
    by_order: ClassVar[bool] = True


class LastKeyMixer(Mixer, config=LastKey):
    def pattern(
        self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None
    ) -> Float[Tensor, "batch head query key"]:
        shape = (*q.shape[:-1], k.shape[-2])
        allowed = context.allowed(*shape[-2:])
        if allowed is None:
            allowed = q.new_ones(shape[-2:]).bool()
        # how many may be seen from each key on
        left = allowed.flip(-1).cumsum(-1).flip(-1)
        return (allowed & (left == 1)).to(q.dtype).expand(shape)
