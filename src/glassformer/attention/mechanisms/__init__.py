"""One file per mechanism: equation, config, mixer. Importing this package registers them all."""

from glassformer.attention.mechanisms.adaptive_span import AdaptiveSpan
from glassformer.attention.mechanisms.additive import Additive
from glassformer.attention.mechanisms.atrous import Atrous
from glassformer.attention.mechanisms.big_bird import BigBird
from glassformer.attention.mechanisms.blockwise import Blockwise
from glassformer.attention.mechanisms.concat import Concat
from glassformer.attention.mechanisms.concat_linear import ConcatLinear
from glassformer.attention.mechanisms.delta import Delta, GatedDelta
from glassformer.attention.mechanisms.differential import Differential, lambda_init_at
from glassformer.attention.mechanisms.general import General
from glassformer.attention.mechanisms.last_key import LastKey
from glassformer.attention.mechanisms.lightning import Lightning, depth_slopes
from glassformer.attention.mechanisms.linear import Linear
from glassformer.attention.mechanisms.linformer import Linformer
from glassformer.attention.mechanisms.local_chunks import LocalChunks
from glassformer.attention.mechanisms.longformer import Longformer
from glassformer.attention.mechanisms.lsh import Lsh
from glassformer.attention.mechanisms.nearest_memory import NearestMemory
from glassformer.attention.mechanisms.neural_memory import LinearMemory, NeuralMemory
from glassformer.attention.mechanisms.performer import Performer
from glassformer.attention.mechanisms.persistent import Persistent
from glassformer.attention.mechanisms.pola import Pola
from glassformer.attention.mechanisms.pooling import Pooling
from glassformer.attention.mechanisms.refined import Refined, RefinedWasserstein
from glassformer.attention.mechanisms.rwkv4 import Rwkv4
from glassformer.attention.mechanisms.rwkv6 import Rwkv6
from glassformer.attention.mechanisms.segment_recurrence import SegmentRecurrence
from glassformer.attention.mechanisms.softmax import Softmax
from glassformer.attention.mechanisms.sparse import Sparse
from glassformer.attention.mechanisms.state_space import StateSpace
from glassformer.attention.mechanisms.streaming import Streaming
from glassformer.attention.mechanisms.sum_normalised import SumNormalised
from glassformer.attention.mechanisms.synthesizer import Synthesizer
from glassformer.attention.mechanisms.token_mixing import TokenMixing, TokenMlp
from glassformer.attention.mechanisms.wasserstein import Wasserstein

__all__ = [
    "AdaptiveSpan", "Additive", "Atrous", "BigBird", "Blockwise", "Concat", "ConcatLinear", "Delta", "Differential",
    "GatedDelta", "General", "LastKey", "Lightning", "Linear", "LinearMemory", "Linformer", "LocalChunks", "Longformer",
    "Lsh", "NearestMemory", "NeuralMemory", "Performer", "Persistent", "Pola", "Pooling", "Refined",
    "RefinedWasserstein", "Rwkv4", "Rwkv6", "SegmentRecurrence", "Softmax", "Sparse", "StateSpace", "Streaming",
    "SumNormalised", "Synthesizer", "TokenMixing", "TokenMlp", "Wasserstein", "depth_slopes", "lambda_init_at",
]  # fmt: skip
