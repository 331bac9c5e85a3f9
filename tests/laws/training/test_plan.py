"""Plans of training on many processes: bytes by formula against bytes that real groups of ranks hold and send."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from glassformer.attention import Differential, Dims, LearnedScale, LearnedTemperature, Rope, Softmax
from glassformer.data import Batch
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, Mlp, RmsNorm, block, normalised_block, repeat
from glassformer.models.accounting import count_parameters
from glassformer.models.block import BlockConfig
from glassformer.training import OptimConfig
from glassformer.training.parallel import Mesh, Plan, SequenceShards, lasp_plus, plan, ring_attention
from glassformer.training.parallel.fitting_meshes import note_of_room
from glassformer.training.parallel.plan import GIB
from glassformer.training.parallel.rank_part import rank_part
from glassformer.training.parallel.sharding import sharded
from glassformer.training.parallel.units import units_of
from glassformer.training.parallel.wire import Pass, exchanges, memory_bytes, ring_bytes
from glassformer.training.sharing import Trained
from ranks import on_ranks
from wire import Counted, sent_by_sockets

# odd sizes: three ranks share no axis evenly, two not all
LAYER = block(n_heads=2, positions=Rope(), norm=RmsNorm(), mlp=Mlp(26, gated=True), bias=True)
MODEL = DecoderConfig(21, 10, repeat(LAYER, 3), max_len=16, final_norm=RmsNorm(), tied=False)
ROWS, LENGTH = 4, 7


def step_of_shards() -> dict[str, Any]:
    """What a rank holds and sends in one step of data parallel training, without the clipping of gradients."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    axes = Mesh(dp=ranks).axes
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    model, optim = MODEL.build().train(), OptimConfig()
    trained = sharded(Trained(model, optim.build(model)), optim, mesh)
    ids = torch.zeros(1, LENGTH, dtype=torch.int64)
    with Counted(ranks) as counted:
        trained.model.loss(Batch(ids, ids, ids == 0)).backward()
    held = {"weights": 0, "gradients": 0, "moments": 0}
    trained.optimizer.step()
    for parameter in trained.model.parameters():
        held["weights"] += _local(parameter)
        held["gradients"] += _local(parameter.grad)
        held["moments"] += sum(map(_local, trained.optimizer.state[parameter].values()))
    return {"rank": rank, "held": held, "sent": dict(counted.sent), "calls": dict(counted.calls)}


def _local(x: Any) -> int:
    local = x.to_local() if isinstance(x, DTensor) else x
    return local.numel() * local.itemsize


def of_kind(numbers: Any, kind: str) -> int:
    """The sum of a plan's numbers whose collective is of a kind."""
    return round(sum(v for n, v in zip(numbers.labels("collective"), numbers.values.tolist()) if f"({kind})" in str(n)))


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full)])
def test_a_rank_holds_and_sends_what_a_plan_says(ranks: int) -> None:
    found = on_ranks(ranks, step_of_shards)
    planned = plan(MODEL, Mesh(dp=ranks), length=LENGTH)
    said = dict(zip(planned.memory.labels("part"), planned.memory.values.tolist()))
    for name in ("weights", "gradients", "moments (AdamW)"):
        assert said[name] == max(one["held"][name.split()[0]] for one in found)
    for one in found:
        assert {kind: of_kind(planned.wire, kind) for kind in one["sent"]} == one["sent"]
        assert {kind: of_kind(planned.calls, kind) for kind in one["calls"]} == one["calls"]
    assert planned.sent == sum(found[0]["sent"].values())
    assert planned.parameters == sum(count_parameters(MODEL).values())


DIMS = Dims(d_model=24, n_heads=4, n_kv_heads=2, d_head=6, d_value=10, max_len=64)
LENGTHS = (13, 8)


def along_texts() -> list[tuple[int, int]]:
    """What a rank sends by the ring and by memories, in texts of each length."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    found = []
    for n in LENGTHS:
        shards, sent = SequenceShards.zigzag(n, ranks), []
        mechanisms: list[tuple[Any, int]] = [(ring_attention, DIMS.n_kv_heads), (lasp_plus, DIMS.n_heads)]
        for mix, heads in mechanisms:
            sizes = ((DIMS.n_heads, DIMS.d_head), (heads, DIMS.d_head), (heads, DIMS.d_value))
            own = len(shards.positions(rank))
            q, k, v = (torch.randn(2, h, own, d, requires_grad=True) for h, d in sizes)
            with Counted(ranks) as counted:
                rest = (torch.full((heads,), 0.9),) if mix is lasp_plus else ()
                mix(q, k, v, *rest, shards).sum().backward()
            sent.append(sum(counted.sent.values()))
        found.append(tuple(sent))
    return found


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full)])
def test_positions_that_ranks_share_are_exchanged_in_as_many_bytes_as_planned(ranks: int) -> None:
    found = on_ranks(ranks, along_texts)
    for i, n in enumerate(LENGTHS):
        shards, one = SequenceShards.zigzag(n, ranks), Pass(2, n, 4)
        numbers = DIMS.n_heads * DIMS.d_head * DIMS.d_value
        assert max(of_rank[i][0] for of_rank in found) == ring_bytes(shards, DIMS, one)
        assert {of_rank[i][1] for of_rank in found} == {memory_bytes(shards, numbers, DIMS, one)}


class Summed(torch.autograd.Function):
    """The sum over ranks of what each has; its gradient is everybody's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradients[0]


class Read(torch.autograd.Function):
    """What all ranks have; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def layers_in_parts() -> tuple[dict[str, int], float, float]:
    """Bytes of all-reduces, loss and norm of the tokens' gradient of an MLP cut by neurons and words among ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    vectors, inner, outer = mlp_weights()
    words = vectors.chunk(ranks)[rank].clone().requires_grad_()
    a, b = inner.chunk(ranks, 0)[rank], outer.chunk(ranks, 1)[rank]
    ids, first = token_ids(), rank * len(words)
    with Counted(ranks) as counted:
        here = (ids >= first) & (ids < first + len(words))
        x = Summed.apply(words[(ids - first).clamp(0, len(words) - 1)] * here[..., None])
        x = x + Summed.apply(F.gelu(Read.apply(x) @ a.mT) @ b.mT)
        logits = Read.apply(x) @ words.mT
        most = logits.detach().amax(-1)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        total = Summed.apply((logits - most[..., None]).exp().sum(-1)).log() + most
        right = Summed.apply(logits.gather(-1, (ids - first).clamp(0, len(words) - 1)[..., None])[..., 0] * here)
        loss = (total - right).mean()
        loss.backward()
    assert words.grad is not None
    squares = words.grad.square().sum()
    dist.all_reduce(squares)
    return dict(counted.sent), float(loss.detach()), float(squares)


def mlp_weights() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) / 3 for shape in ((20, 10), (24, 10), (10, 24))]


def token_ids() -> torch.Tensor:
    return torch.randint(20, (3, 5), generator=torch.Generator().manual_seed(1))


def test_layers_cut_by_neurons_and_words_sum_as_many_bytes_as_planned() -> None:
    vectors, inner, outer = mlp_weights()
    vectors.requires_grad_()
    ids = token_ids()
    x = F.embedding(ids, vectors)
    x = x + F.gelu(x @ inner.mT) @ outer.mT
    loss = F.cross_entropy((x @ vectors.mT).flatten(0, 1), ids.flatten())
    loss.backward()
    assert vectors.grad is not None
    model = DecoderConfig(20, 10, (BlockConfig((Mlp(24, bias=False),)),), max_len=8)
    part = rank_part(model, 2)
    planned = {one.name: one for one in exchanges(part, units_of(part), Mesh(tp=2), [Pass(3, 5, 4)])}
    for sent, of_ranks, squares in on_ranks(2, layers_in_parts):
        assert of_ranks == pytest.approx(float(loss.detach()), rel=1e-5)
        assert squares == pytest.approx(float(vectors.grad.square().sum()), rel=1e-4)
        assert sent == {"all-reduce": sum(one.sent for one in planned.values())}


LLAMA = DecoderConfig(
    32, 16,
    repeat(block(n_heads=4, n_kv_heads=2, norm=RmsNorm(), mlp=Mlp(24, gated=True, bias=False)), 2),
    max_len=16, final_norm=RmsNorm(), tied=False,
)  # fmt: skip
TEMPERED = block(Softmax(temperature=LearnedTemperature()), n_heads=4)
SCALED = block(n_heads=4, mlp=Mlp(24, bias=False, scale=LearnedScale()))


def sent_by(found: Plan) -> dict[str, float]:
    return dict(zip(map(str, found.wire.labels("collective")), found.wire.values.tolist()))


def test_ranks_of_a_layer_have_its_matrices_together_and_its_norms_each() -> None:
    whole, part = count_parameters(LLAMA), count_parameters(rank_part(LLAMA, 2))
    assert part == {name: n if name == "norms" else n // 2 for name, n in whole.items()}


def test_a_product_of_meshes_sends_what_its_factors_send_of_a_rank_s_part() -> None:
    both, layers = plan(LLAMA, Mesh(dp=2, tp=2), length=8, batch=6), plan(LLAMA, Mesh(tp=2), length=8, batch=3)
    rows = plan(rank_part(LLAMA, 2), Mesh(dp=2), length=8)
    assert sent_by(both) == sent_by(layers) | sent_by(rows)
    texts = plan(LLAMA, Mesh(cp=2, tp=2), length=8, batch=3)
    ring = plan(rank_part(LLAMA, 2), Mesh(cp=2), length=8, batch=3)
    half = plan(LLAMA, Mesh(tp=2), length=4, batch=3)
    assert sent_by(texts) == sent_by(ring) | sent_by(half)
    saved = [sum(v for p, v in held_by(found).items() if "activations" in p) for found in (ring, texts)]
    assert saved[1] == saved[0]


def held_by(found: Plan) -> dict[str, float]:
    return dict(zip(map(str, found.memory.labels("part")), found.memory.values.tolist()))


def test_parts_of_a_batch_gather_weights_anew_and_keep_less() -> None:
    one, three = (plan(MODEL, Mesh(dp=2), length=LENGTH, batch=6, accumulate=n) for n in (1, 3))
    assert three.sent == 3 * one.sent
    saved = [sum(v for p, v in held_by(found).items() if "activations" in p) for found in (one, three)]
    assert 2.5 < saved[0] / saved[1] <= 3


def test_one_process_sends_nothing_and_holds_no_copy() -> None:
    found = plan(MODEL, length=LENGTH)
    assert found.sent == 0 and found.ranks == 1 and found.fits
    assert not any("whole" in part for part in held_by(found))


@pytest.mark.parametrize(
    ("config", "mesh", "message"),
    [
        (LLAMA, Mesh(tp=4), "layer 0 has 4 heads and 2 key heads, which 4 ranks cannot share evenly"),
        (LLAMA.replace(tied=False, d_embed=8), Mesh(tp=2), "one matrix as wide as the stream"),
        (LLAMA.replace(layers=(block(Softmax(window=4), n_heads=2),)), Mesh(cp=2), 'mixes by "softmax" as set here'),
        (LLAMA, Mesh(cp=32), "32 ranks cannot share 16 positions"),
        (LLAMA.replace(layers=(block(Differential(), n_heads=2),)), Mesh(tp=2), 'heads of "differential", as set here'),
        (LLAMA.replace(layers=(TEMPERED,)), Mesh(tp=2), 'heads of "softmax", as set here, are not shared'),
        (LLAMA.replace(token_scale=LearnedScale()), Mesh(tp=2), "factors of tokens (token_scale) are not shared"),
        (LLAMA.replace(layers=(SCALED,)), Mesh(tp=2), "layer 0 has factors of neurons (scale)"),
        (LLAMA.replace(layers=(normalised_block(8, n_heads=2),)), Mesh(tp=2), "layer 0 has a stream of length 1"),
    ],
)
def test_what_ranks_cannot_share_is_refused_by_name(config: DecoderConfig, mesh: Mesh, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(config, mesh)


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would() -> None:
    whole = 4 * sum(count_parameters(LLAMA).values())
    found = plan(LLAMA, Mesh(dp=2), length=16, batch=32, memory=7 * whole / GIB)
    note = note_of_room(LLAMA, found)
    assert note is not None and f"{(found.peak - found.capacity) / GIB:.1f} GiB more than it has" in note.seen
    least = plan(LLAMA, Mesh(dp=2), length=16, memory=2 * whole / GIB)
    told = note_of_room(LLAMA, least)
    assert told is not None and told.meaning.startswith("No mesh changes that")
    assert note_of_room(LLAMA, plan(LLAMA, Mesh(dp=2), length=16)) is None


def test_ranks_that_keep_shards_hold_no_whole_model_beside_them() -> None:
    mesh, size = Mesh(dp=3), 4 * sum(count_parameters(MODEL).values())
    whole, shards = plan(MODEL, mesh, length=LENGTH), plan(MODEL, mesh, length=LENGTH, checkpoints="shards")
    assert whole.held - shards.held == 3 * size and whole.sent == shards.sent
    share = held_by(shards)["weights"]
    assert shards.beginning == size + share and shards.resuming == size + 3 * share
    assert whole.beginning == 2 * size and whole.resuming == 4 * size
    # beside what it keeps, a rank holds the whole once, before it is cut up
    deep = LLAMA.replace(layers=LLAMA.layers * 4)
    size = 4 * sum(count_parameters(deep).values())
    small: dict[str, Any] = {"length": 1, "memory": 2 * size / GIB}
    note = note_of_room(deep, plan(deep, Mesh(dp=2), **small))
    assert note is not None and "It would fit where ranks keep shards (--checkpoints shards), with dp=" in note.advice
    found = plan(deep, Mesh(dp=64), checkpoints="shards", **small)
    assert found.fits and note_of_room(deep, found) is None
    small["memory"] = size / 2 / GIB
    least = note_of_room(deep, plan(deep, Mesh(dp=64), checkpoints="shards", **small))
    assert least is not None and least.meaning.endswith("of the whole model, which each rank builds.")


def on_sockets() -> dict[str, tuple[int, int]]:
    """Bytes that collectives are said to send, and those that the system saw this process send."""
    ranks, found = dist.get_world_size(), dict[str, tuple[int, int]]()
    share, whole = torch.zeros(2**18), torch.zeros(2**18 * ranks)
    shards = SequenceShards.zigzag(768 * ranks, ranks)
    q, k, v = (torch.randn(1, 2, 768, 64, requires_grad=True) for _ in range(3))
    collectives: dict[str, Callable[[], Any]] = {
        "all-gather": lambda: dist.all_gather_single(whole, share),
        "all-reduce": lambda: dist.all_reduce(whole),
        "reduce-scatter": lambda: dist.reduce_scatter_single(share, whole),
        "ring": lambda: ring_attention(q, k, v, shards).sum().backward(),
    }
    for name, run in collectives.items():
        dist.barrier()
        dist.barrier()
        before = sent_by_sockets()
        with Counted(ranks) as counted:
            run()
        # whoever has passed the second knows that what it sent before the first has left
        dist.barrier()
        dist.barrier()
        found[name] = (sum(counted.sent.values()), sent_by_sockets() - before)
    return found


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
def test_sockets_send_what_ring_algorithms_are_said_to_send(ranks: int) -> None:
    for found in on_ranks(ranks, on_sockets):
        for name, (said, seen) in found.items():
            # gloo scatters what it has reduced for all
            times = 2 if name == "reduce-scatter" else 1
            assert seen == pytest.approx(times * said, rel=0.02), name
