"""Every figure: what is compared with what, and what is aimed at.

Each function yields rows for the number of threads that is set; `run.py` names and prints them.
"""

import copy
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_
from torch.utils.flop_counter import FlopCounterMode

from glassformer.analysis.activations import record_activations
from glassformer.attention import Attention, AttentionLayer, Latent, Lightning, LinearMap, Rope, Softmax, linear
from glassformer.bench.paired import Comparison, Spread, Timing, compare, compare_timed, timed
from glassformer.data import Batch
from glassformer.models import GREEDY, AdaptiveSoftmax, Decoder, HierarchicalSoftmax, Serving, generate
from glassformer.models.accounting import state_bytes
from glassformer.models.embedding import Unembedding
from glassformer.models.stack import make_context
from glassformer.trace import Tape
from glassformer.training.recipes import recipe
from glassformer.training.sharing import OneProcess
from grids import GRID, GRID_HEADS, GRID_WIDTH, OVER_GRIDS, SOFTMAX, over_grid
from long import pairs
from meshes import LONG, MESSAGES, RING, kept_by_ranks, mesh_of_one, messages_of_lasp, training_step
from shapes import BareDecoder, gpt2, small, tokens, transformers_twin, without_sites
from states import (
    ASKED,
    D_HEAD,
    DOCUMENTS,
    HEADS,
    KEPT,
    MEMORIES,
    STORED,
    WIDTH,
    Kept,
    decode_step,
    mixed,
    mixing_of,
    nearest_of_many,
    one_layer,
    random_stream,
)


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        case: Model and sizes.
        subject: What is judged.
        baseline: What it is judged against.
        comparison: The measured ratios of time.
        aim: Largest ratio aimed at; None where nothing is.
        speed: The aim is the smallest ratio of speeds instead (baseline time over subject time).
        bytes: What is compared are bytes, which are counted, in place of seconds.
        notes: Further numbers, with their unit in the name.
    """

    case: str
    subject: str
    baseline: str
    comparison: Comparison
    aim: float | None = None
    speed: bool = False
    bytes: bool = False
    notes: dict[str, float] = field(default_factory=dict)


Rows = Iterator[Row]

# what is fixed per layer weighs by how little else there is to do: 70 us without a tape and 150 us with one (README)
WITHOUT_TAPE = {64: 1.07, 128: 1.05, 256: 1.03}
WITH_TAPE = {64: 1.15, 128: 1.1, 256: 1.05}


def sites(seconds: float) -> Rows:
    """A forward pass with sites but no tape, against the same code without them, and against a model written bare."""
    model = small()
    stripped, bare = without_sites(model), BareDecoder(model)
    for length in (64, 128, 256):
        ids = tokens(model, 1, length)
        for name, other, aim in (
            ("the same code, site calls taken out", stripped, 1.02),
            ("bare copy", bare, WITHOUT_TAPE[length]),
        ):
            check_equal(model(ids), other(ids))
            measured = compare(partial(model, ids), partial(other, ids), rounds=400, seconds=seconds)
            yield Row(f"gpt-4l shape, 1 x {length}", "sites, no tape", name, measured, aim=aim)


def reading(seconds: float) -> Rows:
    """Reading the residual stream and z of every layer, against no tape, and a bare copy that holds on to the same."""
    model = small()
    bare = BareDecoder(model, record="stream and z")
    for length in (64, 128, 256):
        ids = tokens(model, 1, length)
        read = partial(read_sites, model, ids, ("*.resid_*", "*.z"))
        check_equal(read(), bare(ids))
        for name, other, aim in (
            ("bare copy that keeps the same", bare, WITH_TAPE[length]),
            ("bare copy", BareDecoder(model), None),
            ("no tape", model, None),
        ):
            measured = compare(read, partial(other, ids), rounds=200, seconds=seconds)
            yield Row(f"gpt-4l shape, 1 x {length}", "read stream and z", name, measured, aim=aim)


def recording(seconds: float) -> Rows:
    """Recording the stream behind every block over a corpus, written to disk, against its passes alone."""
    model, rows, length, passes = small(), 8, 256, 4
    ids = tokens(model, rows * passes, length)
    sites = [f"blocks.{i}.resid_post" for i in range(4)]

    def record(dtype: Any, second_moment: bool = False) -> None:
        with tempfile.TemporaryDirectory() as folder:
            record_activations(
                model, ids, sites, folder, rows=rows, shard=2**24, dtype=dtype, second_moment=second_moment
            )

    def bare(forward: Callable[[torch.Tensor], object]) -> None:
        for some in ids.split(rows):
            forward(some)

    # the digest of the weights is known from the first recording on
    record("float32")
    case = f"gpt-4l shape, {passes} x {rows} x {length}"
    for subject, run, name, forward, aim in (
        (
            "four stream sites, float32",
            partial(record, "float32"),
            "passes to the end of the stream",
            model.stream,
            1.1,
        ),
        (
            "four stream sites, float16",
            partial(record, "float16"),
            "passes to the end of the stream",
            model.stream,
            1.1,
        ),
        ("four stream sites, float32", partial(record, "float32"), "passes with logits", model, None),
        (
            "with second moments",
            partial(record, "float32", True),
            "passes to the end of the stream",
            model.stream,
            None,
        ),
    ):
        measured = compare(run, partial(bare, forward), rounds=20, seconds=seconds, warmup=1)
        yield Row(case, subject, name, measured, aim=aim)


def patterns(seconds: float) -> Rows:
    """Reading every attention pattern, against forward passes that compute attention eagerly, and keep it or not."""
    model = small()
    keeping, eager = BareDecoder(model, "eager", record="patterns"), BareDecoder(model, "eager")
    for length in (64, 256):
        ids = tokens(model, 1, length)
        read = partial(read_sites, model, ids, ("*.pattern",))
        check_equal(read(), eager(ids))
        for name, other, aim in (
            ("bare copy, eager attention, patterns kept", keeping, WITH_TAPE[length]),
            ("bare copy, eager attention", eager, None),
        ):
            measured = compare(read, partial(other, ids), rounds=200, seconds=seconds)
            yield Row(f"gpt-4l shape, 1 x {length}", "read every pattern", name, measured, aim=aim)
    model = gpt2()
    keeping, twin = BareDecoder(model, "eager", record="patterns"), transformers_twin(model, "eager")
    ids = tokens(model, 1, 256)
    read = partial(read_sites, model, ids, ("*.pattern",))
    for name, forward, aim in (
        ("bare copy, eager attention, patterns kept", partial(keeping, ids), 1.0),
        ("bare copy, eager attention", partial(BareDecoder(model, "eager"), ids), None),
        ("transformers, eager attention", partial(logits_of, twin, ids), 1.0),
    ):
        check_equal(read(), forward())
        measured = compare(read, forward, rounds=60, seconds=seconds)
        yield Row("GPT-2 small shape, 1 x 256", "read every pattern", name, measured, aim=aim)


def forward(seconds: float) -> Rows:
    """Our forward pass at the shape of GPT-2 small, against `transformers` with its default attention."""
    model = gpt2()
    twin = transformers_twin(model)
    for length in (64, 256):
        ids = tokens(model, 1, length)
        check_equal(model(ids), logits_of(twin, ids))
        measured = compare(
            partial(model, ids),
            partial(logits_of, twin, ids),
            rounds=60,
            seconds=seconds,
        )
        yield Row(f"GPT-2 small shape, 1 x {length}", "glassformer", "transformers GPT2LMHeadModel", measured, aim=1.0)


def mixing(seconds: float) -> Rows:
    """The softmax mixer alone, from q, k and v to z, against the library's fused kernel; masks are there beforehand."""
    heads, width = 4, 64
    for length in (1024, 2048, 4096):
        mixer = Softmax().build(Attention(heads).dims(heads * width, length), "attn")
        q, k, v = torch.randn(3, 1, heads, length, width, generator=torch.Generator().manual_seed(0))
        ids = (torch.arange(length) * 4 // length)[None]
        for name, documents in (("", None), (", 4 documents packed", ids)):
            context = make_context(1, length, q.device, is_causal=True, document_ids=documents)
            mask = None if documents is None else context.allowed(length, length)
            fused = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=mask, is_causal=mask is None)
            ours = partial(mixer, q, k, v, q, context, None, None)
            check_equal(ours()[0], fused())
            measured = compare(ours, fused, rounds=200, seconds=seconds)
            case = f"{heads} heads of {width}, 1 x {length}{name}"
            yield Row(case, "softmax mixer", "scaled_dot_product_attention", measured, aim=1.03)


def absorbing(seconds: float) -> Rows:
    """A step of latent attention over 4,096 kept positions: queries meet latents, or all keys and values are made."""
    length, generator = 4096, torch.Generator().manual_seed(0)
    for width, heads, rank, content, rotary in ((512, 8, 128, 64, 32), (2048, 16, 512, 128, 64)):
        projection = Latent(rank, rotary=rotary, norm=True)
        config = Attention(heads, d_head=content + rotary, d_value=content, positions=Rope(), projection=projection)
        quick = config.build(width, 2 * length, 0, "attn").eval()
        plain = copy.deepcopy(quick)
        plain.projection.absorbs = lambda *_: False
        text, new = (torch.randn(1, n, width, generator=generator) for n in (length, 1))
        _, state = quick(text, make_context(1, length, text.device, is_causal=True), state=quick.begin(1, text))

        def step(layer: AttentionLayer, new: torch.Tensor = new, state: Any = state) -> torch.Tensor:
            context = make_context(1, 1, new.device, is_causal=True, past=length)
            return layer(new, context, state=state)[0]

        check_equal(step(quick), step(plain))
        measured = compare(partial(step, quick), partial(step, plain), rounds=60, seconds=seconds)
        case = f"{heads} heads of {content} + {rotary}, rank {rank}, 1 x {length} kept"
        yield Row(case, "absorbed step", "plain step", measured, aim=0.25)


def training(seconds: float) -> Rows:
    """A training step, against a plain loop over a bare model, and the share of the machine's matrix-product rate."""
    batch, length = 8, 256
    ours, plain = small().train(), BareDecoder(copy.deepcopy(small()), plain=True).train()
    ids = tokens(ours, batch, length + 1)
    with torch.enable_grad():
        step, plain_step = our_step(ours, ids), plain_training_step(plain, ids)
        difference = abs(step() - plain_step())
        assert difference < 1e-3, f"the two losses differ by {difference}"
        with FlopCounterMode(display=False) as counter:
            # the same work; the counter does not know the operator that our products go through
            plain_step()
        measured = compare(step, plain_step, rounds=40, seconds=seconds, warmup=1)
        work = counter.get_total_flops()
        rate = work / measured.subject.cpu
        yield Row(
            f"gpt-4l shape, {batch} x {length}", "training step", "plain GPT loop", measured, aim=1.0,
            notes={"tokens_per_cpu_second": batch * length / measured.subject.cpu, "gflops_per_cpu_second": rate / 1e9},
        )  # fmt: skip
        product, product_work = large_product()
        # the same amount of work on both sides, so that the ratio of times is the share of the rate
        measured = compare_timed(
            lambda: scaled(clock(step), 1 / work), lambda: scaled(clock(product), 1 / product_work),
            rounds=40, seconds=seconds,
        )  # fmt: skip
        share = Spread.inverse(measured.cpu)
        yield Row(
            f"gpt-4l shape, {batch} x {length}", "training step, per FLOP", "matrix product 1024^3, per FLOP", measured,
            notes={"share_of_matmul_rate": share.median, "matmul_gflops_per_cpu_second": 1e-9 / measured.baseline.cpu},
        )  # fmt: skip


def long(seconds: float) -> Rows:
    """Windows and sparse attention over 4,096 tokens, forward and with backward, against `transformers`."""
    for name, ours, theirs, our_weights, their_weights in pairs():
        check_equal(ours(), theirs())
        measured = compare(ours, theirs, rounds=20, seconds=seconds, warmup=1)
        yield Row(f"width 256, 1 x 4096, {name}", "forward", "theirs", measured, aim=1.0)
        both = [partial(gradients, ours, our_weights), partial(gradients, theirs, their_weights)]
        measured = compare(*both, rounds=20, seconds=seconds, warmup=1)
        yield Row(f"width 256, 1 x 4096, {name}", "forward + backward", "theirs", measured, aim=1.0)


def states(seconds: float) -> Rows:
    """Layers whose state has one size: beside fla-core, beside softmax, by length, backward, packed, and in steps."""
    for kept in KEPT:
        yield from beside_references(kept, seconds)
        yield from beside_softmax(kept, seconds)
        yield from beside_themselves(kept, seconds)


def memories(seconds: float) -> Rows:
    """Memories that learn while they read, beside lightning and in steps; neighbours among many keys, beside all."""
    length, short, long_ = 4096, 1024, 65_536
    theirs, their_leaves = mixing_of(Lightning(), length)
    for name, (config, aim, aim_backward) in MEMORIES.items():
        ours, leaves = mixing_of(config, length)
        both = partial(gradients, ours, leaves), partial(gradients, theirs, their_leaves)
        passes = (("forward", (ours, theirs), aim), ("forward + backward", both, aim_backward))
        for what, pair, most in passes:
            measured = compare(*pair, rounds=40, seconds=seconds, warmup=1)
            case = f"{HEADS} heads of {D_HEAD}, 1 x {length}, q, k, v to z, {what}"
            yield Row(case, name, "lightning", measured, aim=most)
        built = one_layer(config, long_ + 1)
        late, early = (decode_step(built, random_stream(n + 1)) for n in (long_, short))
        measured = compare(late, early, rounds=100, seconds=seconds)
        case = f"{name}, a layer of width {WIDTH}, a step"
        yield Row(case, f"after {long_} tokens", f"after {short} tokens", measured, aim=1.1)
    measured = compare(*nearest_of_many(), rounds=20, seconds=seconds, warmup=1)
    case = f"{ASKED} queries of one head, {STORED} keys behind the window"
    yield Row(case, "nearest memory", "softmax", measured, notes={"aim_seconds": 0.4})


def grids(seconds: float) -> Rows:
    """Published attention layers over a grid, with their projections, gates and convolutions, against softmax."""
    case = f"a layer of width {GRID_WIDTH}, {GRID_HEADS} heads, a grid of {GRID[0]} x {GRID[1]}, forward"
    for name, (config, faster) in OVER_GRIDS.items():
        measured = compare(over_grid(config), over_grid(SOFTMAX), rounds=20, seconds=seconds, warmup=1)
        yield Row(case, name, "softmax", measured, aim=faster, speed=True)


def outputs(seconds: float) -> Rows:
    """A training step of the output layer alone, targets by Zipf's law: factored ones against the full softmax."""
    width, positions = 256, 1024
    for vocab in (10_000, 50_000, 200_000):
        layers = {"adaptive softmax": AdaptiveSoftmax(), "hierarchical softmax": HierarchicalSoftmax()}
        full = output_step(Unembedding(vocab, width, None, bias=False), vocab, width, positions)
        for name, layer in layers.items():
            # counts that fall as 1 / rank, as the targets do
            step = output_step(layer.build(vocab, width), vocab, width, positions)
            measured = compare(step, full, rounds=20, seconds=seconds, warmup=1)
            aim = 5.0 if vocab == 200_000 and name == "adaptive softmax" else None
            case = f"{vocab:,} words, {positions:,} positions of width {width}"
            yield Row(case, name, "full softmax", measured, aim=aim, speed=True)


def meshes(seconds: float) -> Rows:
    """A mesh of one process beside plain training; what ranks keep of a long text, and send of texts of any length."""
    config, model = recipe("gpt-4l").replace(compile=False), small()
    batch = batch_of(tokens(model, 8, 257))
    with mesh_of_one(config) as mesh, torch.enable_grad():
        wrapped, plain = (training_step(config, sharing, batch) for sharing in (mesh, OneProcess()))
        difference = abs(wrapped() - plain())
        assert difference < 1e-3, f"the two losses differ by {difference}"
        measured = compare(wrapped, plain, rounds=40, seconds=seconds, warmup=1)
    case = "gpt-4l shape, 8 x 256"
    yield Row(case, "training step, a mesh of one (FSDP2)", "plain training step", measured, aim=1.05)
    (alone,) = kept_by_ranks(1)
    for ranks, share in RING.items():
        most = max(kept_by_ranks(ranks))
        grown = max(each.resident for each in kept_by_ranks(ranks))
        notes = {"saved_bytes": most.saved, "resident_share": grown / alone.resident}
        yield Row(
            f"four layers of width 128, 1 x {LONG}, activations", f"a rank of {ranks} in a ring", "one process",
            counted(most.saved, alone.saved), aim=share, bytes=True, notes=notes,
        )  # fmt: skip
    short, *others = zip(MESSAGES, messages_of_lasp(), strict=True)
    for length, sent in others:
        yield Row(
            "messages of LASP+, two ranks", f"{length} tokens", f"{short[0]} tokens", counted(sent, short[1]), aim=1.0,
            bytes=True, notes={"sent_bytes": sent},
        )  # fmt: skip


def generation(seconds: float) -> Rows:
    """Greedy state-carried generation, batch 1, shape of GPT-2 small, against `transformers` generate."""
    model = gpt2()
    twin = transformers_twin(model)
    new = 64
    for prompt in (16, 256):
        ids = tokens(model, 1, prompt)
        settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        theirs = partial(twin.generate, ids, attention_mask=torch.ones_like(ids), **settings)
        ours = partial(generate, model, ids, GREEDY, max_new_tokens=new)
        assert list(ours().tokens[0]) == theirs()[0, prompt:].tolist(), "the two generate different tokens"
        measured = compare(ours, theirs, rounds=20, seconds=seconds, warmup=0)
        speed = {"tokens_per_cpu_second": new / measured.subject.cpu, "theirs": new / measured.baseline.cpu}
        case = f"GPT-2 small shape, {prompt} + {new} tokens"
        yield Row(case, "glassformer generate", "transformers generate", measured, aim=1.2, speed=True, notes=speed)
        # what no way of generating can spare: every matrix once for the prompt and once per token after it
        measured = compare(ours, partial(matrix_products, model, prompt, new - 1), rounds=20, seconds=seconds, warmup=0)
        yield Row(case, "glassformer generate", "its matrix products alone", measured)


def serving(seconds: float) -> Rows:
    """Greedy generation of 16 prompts whose states lie in pages, against one batch with contiguous state."""
    model, n, prefix, own, new = small(), 16, 128, 16, 64
    ids = tokens(model, n, prefix + own)
    shared = ids.clone()
    shared[:, :prefix] = ids[0, :prefix]
    for case, prompts, aim in (
        (f"{prefix} of {prefix + own} tokens shared", shared, 1.0),
        # what pages cost where they save nothing
        ("nothing shared", ids, None),
    ):
        rows = prompts.tolist()
        contiguous = partial(generate, model, prompts, GREEDY, max_new_tokens=new)
        drawn, held = served(model, rows, new)
        # argmax may differ where two logits are as good as equal: sums are rounded in another order
        same = sum(a == b for a, b in zip(drawn, contiguous().tokens)) / n
        measured = compare(
            partial(served, model, rows, new, watched=False), contiguous, rounds=20, seconds=seconds, warmup=1
        )
        full = n * state_bytes(model.config, prefix + own + new - 1)
        yield Row(
            f"gpt-4l shape, {n} x ({prefix + own} + {new}) tokens, {case}", "paged", "contiguous", measured, aim=aim,
            # rows of one layer at a time are side by side besides
            notes={"peak_bytes_of_contiguous": held / full, "with_a_layer_gathered":
                   held / full + 1 / len(model.config.layers), "share_of_texts_with_equal_tokens": same},
        )  # fmt: skip


def importing(seconds: float) -> Rows:
    """What `import glassformer` takes beyond `import torch`, in fresh processes."""
    public = "import glassformer as gf; [getattr(gf, name) for name in gf.__all__]"
    for case, code in (("import glassformer", "import glassformer"), ("and touch every public name", public)):
        measured = compare_timed(
            partial(fresh_process, f"import torch; {code}"),
            partial(fresh_process, "import torch"),
            rounds=15,
            seconds=seconds,
        )
        yield Row(case, "torch and glassformer", "import torch", measured, notes=beyond(measured, aim=1.0))


# what the command line answers without a model
ANSWERS = (("--help",), ("explain", "--help"), ("train", "--help"), ("models",), ("models", "gpt-4l"))


def answering(seconds: float) -> Rows:
    """What a command that opens no model takes beyond starting Python, in fresh processes."""
    for words in ANSWERS:
        code = (
            "import contextlib, io; from glassformer.cli import main\n"
            f"with contextlib.redirect_stdout(io.StringIO()): main({words})"
        )
        measured = compare_timed(
            partial(fresh_process, code), partial(fresh_process, "pass"), rounds=15, seconds=seconds
        )
        yield Row(f"glassformer {' '.join(words)}", "the command", "python", measured, notes=beyond(measured, aim=0.5))


FIGURES: dict[str, Callable[[float], Rows]] = {
    f.__name__: f
    for f in (
        sites,
        reading,
        recording,
        patterns,
        mixing,
        absorbing,
        forward,
        training,
        long,
        states,
        memories,
        grids,
        outputs,
        meshes,
        generation,
        serving,
        importing,
        answering,
    )
}


def beside_references(kept: Kept, seconds: float) -> Rows:
    """Our chunks from q, k, v to z, against the naive references of fla-core on the same numbers."""
    length = 2048
    ours, loop, chunks = kept.forms(length)
    for name, theirs, aim, speed in (("position by position", loop, 3.0, True), ("in chunks", chunks, 1.0, False)):
        check_equal(ours(), theirs())
        measured = compare(ours, theirs, rounds=40, seconds=seconds, warmup=1)
        case = f"{HEADS} heads of {D_HEAD}, 1 x {length}"
        yield Row(case, f"{kept.name}, in chunks", f"fla-core, {name}", measured, aim=aim, speed=speed)


def beside_softmax(kept: Kept, seconds: float) -> Rows:
    """One layer with its projections, against the same layer with softmax attention."""
    length = 16_384
    x, ours, theirs = random_stream(length), one_layer(kept.mixer, length), one_layer(Softmax(), length)
    passes = [partial(mixed, one, x) for one in (ours, theirs)]
    both = [partial(gradients, run, list(one.parameters())) for run, one in zip(passes, (ours, theirs))]
    for name, (subject, baseline), share in (("forward", passes, 1), ("forward + backward", both, 0.5)):
        measured = compare(subject, baseline, rounds=20, seconds=seconds, warmup=1)
        aim = None if kept.faster is None else share * kept.faster
        case = f"a layer of width {WIDTH}, 1 x {length}, {name}"
        yield Row(case, kept.name, "softmax", measured, aim=aim, speed=True)


def beside_themselves(kept: Kept, seconds: float) -> Rows:
    """One layer with its projections: long texts, backward passes, packed rows and steps, against its plain pass."""
    short, middle, long_ = 1024, 2048, 65_536
    case, times = f"{kept.name}, a layer of width {WIDTH}", long_ // short
    # as many tokens on both sides
    measured = compare_timed(
        partial(kept_time, kept, long_, 1), lambda: scaled(kept_time(kept, short, times), times),
        rounds=20, seconds=seconds,
    )  # fmt: skip
    growth = {"growth_exponent": 1 + math.log(measured.cpu.median, times)}
    aim = round(times**0.1, 2)  # an exponent of 1.1
    yield Row(f"{case}, {long_} tokens", "one text", f"{times} texts", measured, aim=aim, notes=growth)
    built = one_layer(kept.mixer, long_ + 1)
    late, early = (decode_step(built, random_stream(length + 1)) for length in (long_, short))
    measured = compare(late, early, rounds=100, seconds=seconds)
    yield Row(f"{case}, a step", f"after {long_} tokens", f"after {short} tokens", measured, aim=1.2)
    x = random_stream(middle)
    whole, packed = partial(mixed, built, x), partial(mixed, built, x, packed=True)
    weights: list[torch.Tensor] = list(built.parameters())
    forward, backward = partial(timed, partial(graph, whole)), partial(backward_alone, whole, weights)
    measured = compare_timed(backward, forward, rounds=100, seconds=seconds)
    yield Row(f"{case}, 1 x {middle}", "backward", "forward", measured, aim=3.0)
    both = (partial(gradients, packed, weights), partial(gradients, whole, weights))
    for name, pair in (("forward", (packed, whole)), ("forward + backward", both)):
        measured = compare(*pair, rounds=100, seconds=seconds)
        row = f"{case}, 1 x {middle}, {name}"
        yield Row(row, f"{DOCUMENTS} documents packed", "one text", measured, aim=1.15)


def kept_time(kept: Kept, length: int, calls: int) -> Timing:
    """Return the time of a pass in a process that keeps the memory it frees: what the system takes to give is apart."""
    code = f"import states; print(*states.pass_time({kept.name!r}, {length}, {calls}))"
    told = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, env=told, cwd=Path(__file__).parent, capture_output=True, text=True
    )
    cpu, wall = map(float, run.stdout.split())
    return Timing(cpu, wall)


def graph(forward: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return what a pass yields, with what its backward pass needs."""
    with torch.enable_grad():
        return forward().sum()


def backward_alone(forward: Callable[[], torch.Tensor], weights: list[torch.Tensor]) -> Timing:
    """Return the time of a backward pass, without that of the forward pass before it."""
    total = graph(forward)
    return timed(partial(torch.autograd.grad, total, weights))


def served(
    model: Decoder, prompts: list[list[int]], new: int, *, watched: bool = True
) -> tuple[list[tuple[int, ...]], int]:
    """Return what is drawn behind each prompt, and the most bytes that pages held if that is watched."""
    # enough for all prompts at once, as the batch reads them
    serving, held = Serving(model, budget=sum(map(len, prompts))), 0
    asked = [serving.submit(prompt, GREEDY, max_new_tokens=new) for prompt in prompts]
    while serving.running or serving.waiting:
        serving.step()
        held = max(held, serving.held_bytes) if watched else 0
    return [request.tokens for request in asked], held


def beyond(measured: Comparison, *, aim: float) -> dict[str, float]:
    """Return what the subject takes beyond the baseline, in seconds, and what is aimed at."""
    subject, baseline = measured.subject, measured.baseline
    extra = {"extra_cpu_seconds": subject.cpu - baseline.cpu, "extra_wall_seconds": subject.wall - baseline.wall}
    return extra | {"aim_extra_seconds": aim}


def read_sites(model: Decoder, ids: torch.Tensor, globs: tuple[str, ...]) -> torch.Tensor:
    return model(ids, tape=Tape(model, globs))


def logits_of(twin: Any, ids: torch.Tensor) -> torch.Tensor:
    return twin(ids, use_cache=False).logits


def gradients(forward: Callable[[], torch.Tensor], weights: list[torch.Tensor]) -> object:
    """Return the gradients of a pass in the weights that it reads."""
    with torch.enable_grad():
        return torch.autograd.grad(forward().sum(), weights, allow_unused=True)


def batch_of(ids: torch.Tensor) -> Batch:
    """Return rows of ids as a batch in which every next token counts."""
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Batch(inputs, targets, torch.ones_like(targets, dtype=torch.bool))


def counted(subject: float, baseline: float) -> Comparison:
    """Return a comparison of two numbers of bytes, which are the same in every round."""
    ours, theirs = (Timing(each, each) for each in (subject, baseline))
    return Comparison.of([(ours, theirs, theirs)])


def our_step(model: Decoder, ids: torch.Tensor) -> Callable[[], float]:
    """Return what the training loop does in one step, less its logging."""
    optim = recipe("gpt-4l").optim
    optimizer = optim.build(model)
    batch = batch_of(ids)

    def step() -> float:
        loss = model.loss(batch)
        loss.backward()
        clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def plain_training_step(model: torch.nn.Module, ids: torch.Tensor) -> Callable[[], float]:
    """Return the step of a minimal GPT training script."""
    optim = recipe("gpt-4l").optim
    optimizer = torch.optim.AdamW(model.parameters(), lr=optim.lr, betas=optim.betas, eps=optim.eps)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> float:
        logits = model(inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def output_step(layer: Unembedding, vocab: int, width: int, positions: int) -> Callable[[], object]:
    """Return the loss of an output layer and the gradients of all that it reads, a batch of one row."""
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    x = torch.randn(1, positions, width, generator=generator).requires_grad_()
    share = 1 / torch.arange(1, vocab + 1, dtype=torch.float64)
    ids = torch.multinomial(share, positions, replacement=True, generator=generator)[None]
    wanted = [x, *layer.parameters()]
    expected = layer.logits(x[:, :16]).log_softmax(-1).gather(-1, ids[:, :16, None])
    check_equal(layer.log_prob(x[:, :16], ids[:, :16]), expected[..., 0])

    def step() -> object:
        with torch.enable_grad():
            # a cluster none of whose words is a target has no gradient
            return torch.autograd.grad(layer.loss(x, ids), wanted, allow_unused=True)

    return step


def large_product() -> tuple[Callable[[], object], int]:
    """Return a matrix product that shows the machine's rate, by the quickest route there is, and its operations."""
    a, b = torch.randn(2, 1024, 1024).unbind()
    return partial(linear, a, b), 2 * 1024**3


def clock(run: Callable[[], object]) -> Timing:
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return Timing(time.process_time() - cpu, time.perf_counter() - wall)


def matrix_products(model: Decoder, prompt: int, new: int) -> None:
    """Multiply every matrix with a prompt, the unembedding with its last token, then all with one token at a time."""
    maps, unembed = [part for part in model.modules() if isinstance(part, LinearMap)], model.unembed.weight
    for length, times in ((prompt, 1), (1, new)):
        rows = {part.in_features: torch.ones(1, length, part.in_features) for part in maps}
        last = torch.ones(1, 1, unembed.shape[1])
        for _ in range(times):
            for part in maps:
                part(rows[part.in_features])
            linear(last, unembed)


def scaled(timing: Timing, factor: float) -> Timing:
    return Timing(timing.cpu * factor, timing.wall * factor)


def fresh_process(code: str) -> Timing:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    cpu, wall = spent(), time.perf_counter()
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | threads)
    return Timing(spent() - cpu, time.perf_counter() - wall)


def check_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Two models that disagree are not worth timing."""
    error = float((ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())
    assert error < 1e-4, f"the outputs differ by {error} of their size"
