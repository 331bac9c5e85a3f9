"""Layers that keep a state of one size, however long the text: ours in chunks, and the naive references of fla-core.

Memories that learn while they read stand beside lightning attention. fla-core's package needs triton when it is
imported, its references need nothing: their files are read by path.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention import (
    Attention,
    AttentionLayer,
    Delta,
    GatedDelta,
    Lightning,
    Linear,
    LinearMemory,
    MixerConfig,
    NearestMemory,
    NeuralMemory,
    Rwkv6,
    Softmax,
    StateSpace,
)
from glassformer.attention.kernels.channel_decay import channel_decay_chunks
from glassformer.attention.kernels.chunked import chunked, gated
from glassformer.attention.kernels.delta import delta_chunks
from glassformer.bench.memory import keep_freed_memory
from glassformer.bench.paired import Timing, timed
from glassformer.config import require
from glassformer.models.stack import make_context

WIDTH, HEADS, D_HEAD = 256, 4, 64
DOCUMENTS = 4  # in a packed row
STORED, ASKED = 100_000, 512  # keys of one head behind the window, and queries that look for the nearest of them

Form = Callable[[], Tensor]


@dataclass(frozen=True)
class Kept:
    """A mechanism that keeps a state.

    Args:
        mixer: Its config.
        forms: From a length to our chunks, fla-core's loop over positions, and its chunks, on the same numbers.
        faster: How many times faster than the softmax layer its layer is meant to be, forward at 16,384 tokens.
    """

    mixer: MixerConfig
    forms: Callable[[int], tuple[Form, Form, Form]]
    faster: float | None

    @property
    def name(self) -> str:
        return str(self.mixer.kind)


def random_stream(length: int) -> Tensor:
    return torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(0))


def one_layer(mixer: MixerConfig, length: int) -> AttentionLayer:
    """Return one layer with its projections, fresh weights in it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Attention(HEADS, d_head=D_HEAD, mixer=mixer).build(WIDTH, length, 0, "").eval()


def mixed(built: AttentionLayer, x: Tensor, *, packed: bool = False) -> Tensor:
    """Return what a layer writes of a text, or of documents of equal length in a row."""
    n = x.shape[1]
    ids = (torch.arange(n) * DOCUMENTS // n)[None] if packed else None
    return built(x, make_context(1, n, x.device, is_causal=True, document_ids=ids))[0]


def decode_step(built: AttentionLayer, x: Tensor) -> Callable[[], Tensor]:
    """Return a decode step on the state that a layer has after a text, all but its last position."""
    past = x.shape[1] - 1
    _, state = built(x[:, :-1], make_context(1, past, x.device, is_causal=True), state=built.begin(1, x))
    context = make_context(1, 1, x.device, is_causal=True, past=past)
    return lambda: built(x[:, -1:], context, state=state)[0]


def _reference(name: str, file: str = "naive") -> ModuleType:
    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("fla-core is not installed, whose naive references are the baseline.", name="fla")
    spec = importlib.util.spec_from_file_location(name, Path(package.origin).parent / "ops" / name / f"{file}.py")
    assert spec is not None and spec.loader is not None, "a file that is there has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _drawn(length: int) -> tuple[Tensor, ...]:
    """Return queries, keys of length one, values, shares in (0, 1), logarithms of what is kept, and an empty memory."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, length, D_HEAD, generator=generator)
    beta, gate = torch.randn(2, 1, HEADS, length, generator=generator)
    return q, F.normalize(k, dim=-1), v, beta.sigmoid(), F.logsigmoid(gate), q.new_zeros(1, HEADS, D_HEAD, D_HEAD)


def _by_position(*tensors: Tensor) -> Sequence[Tensor]:
    """Return tensors with positions before heads, as most of the references have them."""
    return [x.transpose(1, 2).contiguous() for x in tensors]


def _z(form: Callable[[], Any], *, by_position: bool) -> Form:
    def z() -> Tensor:
        found = form()
        # most return a state too
        found = found[0] if isinstance(found, tuple) else found
        return found.transpose(1, 2) if by_position else found

    return z


def _delta(length: int) -> tuple[Form, Form, Form]:
    fla, (q, k, v, beta, _, memory) = _reference("delta_rule"), _drawn(length)
    ours = partial(delta_chunks, q * D_HEAD**-0.5, k, v, beta, None, memory, Delta().chunk)
    theirs = (partial(form, q, k, v, beta) for form in (fla.delta_rule_recurrence, fla.delta_rule_chunkwise))
    loop, chunks = (_z(form, by_position=False) for form in theirs)
    return _z(ours, by_position=False), loop, chunks


def _gated_delta(length: int) -> tuple[Form, Form, Form]:
    fla, (q, k, v, beta, gate, memory) = _reference("gated_delta_rule"), _drawn(length)
    ours = partial(delta_chunks, q * D_HEAD**-0.5, k, v, beta, gate, memory, GatedDelta().chunk)
    rows = dict(zip(("q", "k", "v", "beta", "g"), _by_position(q, k, v, beta, gate)))
    theirs = (fla.naive_recurrent_gated_delta_rule, fla.naive_chunk_gated_delta_rule)
    loop, chunks = (_z(partial(form, **rows), by_position=True) for form in theirs)
    return _z(ours, by_position=False), loop, chunks


def _lightning(length: int) -> tuple[Form, Form, Form]:
    fla, (q, k, v, _, _, memory) = _reference("simple_gla"), _drawn(length)
    decay = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)]).neg().exp()
    ours = partial(chunked, q * D_HEAD**-0.5, k, v, decay, memory, Lightning().chunk)
    rows = _by_position(q, k, v, decay.log()[None, :, None].expand(1, HEADS, length))
    theirs = (fla.naive_recurrent_simple_gla, fla.naive_chunk_simple_gla)
    loop, chunks = (_z(partial(form, *rows), by_position=True) for form in theirs)
    return _z(ours, by_position=False), loop, chunks


def _linear(length: int) -> tuple[Form, Form, Form]:
    fla, (q, k, v, _, _, memory) = _reference("linear_attn"), _drawn(length)
    ours = partial(chunked, q * D_HEAD**-0.5, k, v, torch.ones(HEADS), memory)
    theirs = (fla.naive_recurrent_linear_attn, fla.naive_chunk_linear_attn)
    loop, chunks = (_z(partial(form, *_by_position(q, k, v)), by_position=True) for form in theirs)
    return _z(ours, by_position=False), loop, chunks


def _rwkv6(length: int) -> tuple[Form, Form, Form]:
    r, k, v, _, _, memory = _drawn(length)
    generator = torch.Generator().manual_seed(1)
    gate = F.logsigmoid(torch.randn(1, HEADS, length, D_HEAD, generator=generator))
    bonus = torch.randn(HEADS, D_HEAD, generator=generator)
    ours = partial(channel_decay_chunks, r * D_HEAD**-0.5, k, v, gate, bonus, memory, Rwkv6().chunk)
    loop = partial(_reference("rwkv6", "recurrent_naive").naive_recurrent_rwkv6, r, k, v, gate, bonus)
    # theirs takes queries as they come
    chunks = partial(_reference("rwkv6", "chunk_naive").naive_chunk_rwkv6, r * D_HEAD**-0.5, k, v, gate, bonus)
    return _z(ours, by_position=False), _z(loop, by_position=False), _z(chunks, by_position=False)


def _state_space(length: int) -> tuple[Form, Form, Form]:
    fla, (q, k, v, _, gate, memory) = _reference("simple_gla"), _drawn(length)
    ours = partial(gated, q * D_HEAD**-0.5, k, v, gate, memory, StateSpace().chunk)
    rows = _by_position(q, k, v, gate)
    theirs = (fla.naive_recurrent_simple_gla, fla.naive_chunk_simple_gla)
    loop, chunks = (_z(partial(form, *rows), by_position=True) for form in theirs)
    return _z(ours, by_position=False), loop, chunks


KEPT = (
    Kept(Delta(), _delta, 5.0),
    Kept(GatedDelta(), _gated_delta, 5.0),
    Kept(Lightning(), _lightning, 8.0),
    Kept(Linear(), _linear, None),
    Kept(Rwkv6(), _rwkv6, None),
    Kept(StateSpace(), _state_space, 4.0),
)


# beside how many times the time of lightning each may take, forward and with its backward pass
MEMORIES: dict[str, tuple[MixerConfig, float, float]] = {
    "linear memory": (LinearMemory(), 5.0, 8.0),
    "neural memory of two layers": (NeuralMemory(), 10.0, 14.0),
}


def mixing_of(mixer: MixerConfig, length: int, heads: int = HEADS, past: int = 0) -> tuple[Form, list[Tensor]]:
    """Return what makes z of a text without projections, and the tensors that it has gradients in.

    Args:
        mixer: The mechanism.
        length: Queries.
        heads: How many, of width `D_HEAD` each.
        past: Keys before those of the queries.
    """
    layer, generator = Attention(heads, d_head=D_HEAD, mixer=mixer), torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = mixer.build(layer.dims(WIDTH, past + length), "").eval()
    q = torch.randn(1, heads, length, D_HEAD, generator=generator)
    k, v = torch.randn(2, 1, heads, past + length, D_HEAD, generator=generator).unbind()
    x = torch.randn(1, length, WIDTH, generator=generator)
    context = make_context(1, length, x.device, is_causal=True, past=past)
    leaves = [one.requires_grad_() for one in (q, k, v, x, *built.parameters())]
    return lambda: built.fast(q, k, v, x, context, None), leaves


def nearest_of_many() -> tuple[Form, Form]:
    """Return what queries of one head make of a window and the nearest of many keys behind it, and of all keys."""
    nearest = NearestMemory(window=ASKED, memory=STORED)
    (ours, _), (theirs, _) = (mixing_of(one, ASKED, 1, STORED) for one in (nearest, Softmax()))
    return ours, theirs


@torch.no_grad()
def pass_time(name: str, length: int, calls: int) -> Timing:
    """Return the time of a forward pass of a layer, in a process that keeps what it frees from here on."""
    require(keep_freed_memory(), "this machine's allocator cannot be told to keep what is freed.")
    (kept,) = (one for one in KEPT if one.name == name)
    once = partial(mixed, one_layer(kept.mixer, length), random_stream(length))
    once()
    return timed(once, calls)
