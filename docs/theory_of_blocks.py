"""Pictures and numbers of pages on theory: prompts as programs, circuits, blocks as equations in time."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch

import glassformer as gf
from glassformer.dynamics import (
    BlockField,
    circuit_decoder,
    circuit_widths,
    fitted_orders,
    integrate,
    kept_numbers,
    particle_terms,
    prompting,
    random_circuit,
    residual_gaps,
    solve,
    splitting_gaps,
    wrong_gates,
)
from glassformer.figures import Panel
from glassformer.labelled import Labelled
from glassformer.models import Block

TEXT = "def add(a, b):\n    return a +"
View = tuple[Sequence[Panel], dict[str, str]]


def prompted_programs() -> View:
    """Length of chains of thought by the input's, and the digits that they take."""
    lengths = [2, 4, 8, 16, 32, 64]
    chains = prompting.chain_lengths(prompting.PROGRAMS, lengths)
    programs = {name: prompting.compiled(found) for name, found in prompting.PROGRAMS.items()}
    model = prompting.prompted_machine(700)
    inputs = [[1, 0] * n for n in (1, 2, 3)]
    longer = [[1, 0] * n for n in (1, 4, 10)]
    wrong = {name: prompting.wrong_tokens(model, program, inputs) for name, program in programs.items()}
    digits = [prompting.bits_needed(model, programs["not"], bits) for bits in longer]
    return [Panel("tokens of chain of thought and output", chains)], {
        "parameters of the decoder, its table of positions left out": (
            f"{sum(p.numel() for name, p in model.named_parameters() if 'positions' not in name):,}, in "
            f"{len(model.stack.blocks)} layers of width {model.config.d_model}"
        ),
        "tokens of the prompts": ", ".join(
            f"{len(prompting.prompt_tokens(program))} ({name})" for name, program in programs.items()
        ),
        f"tokens that are not the interpreter's, inputs of {', '.join(str(len(bits)) for bits in inputs)} bits": (
            ", ".join(f"{count} ({name})" for name, count in wrong.items())
        ),
        f"bits of significand that chains for not take, inputs of {', '.join(str(len(b)) for b in longer)} bits": (
            ", ".join(map(str, digits))
        ),
        f"tokens of the chain for an input of {lengths[-1]} bits over one of {lengths[-2]}": ", ".join(
            f"{float(row[-1] / row[-2]):.2f} ({name})" for name, row in zip(programs, chains.values)
        ),
    }


def circuits() -> View:
    """Width by the size of a circuit, and whether all gates are right."""
    n, gates, seeds = 8, 250, 3
    inputs = torch.tensor([*product((0, 1), repeat=n)])
    widths = circuit_widths([24, 56, 120, 248, 504, 1016])
    drawn = [random_circuit(n, gates, seed) for seed in range(seeds)]
    decoders = [circuit_decoder(circuit) for circuit in drawn]
    wrong = sum(wrong_gates(model, circuit, inputs) for model, circuit in zip(decoders, drawn))
    halved = sum(wrong_gates(model.bfloat16(), circuit, inputs) for model, circuit in zip(decoders, drawn))
    depths: list[int] = []
    for circuit in drawn:
        levels = [0] * n
        for gate in circuit.gates:
            levels.append(1 + max(levels[gate.first], levels[gate.second]))
        depths.append(max(levels))
    of = f"of {len(inputs) * gates * seeds:,} ({seeds} circuits of {gates} gates, all {len(inputs)} inputs)"
    return [Panel("width of the decoder by inputs and gates", widths)], {
        f"gates that are wrong {of}": f"{wrong}; with bfloat16 {halved}",
        "gates on the longest path of each circuit": ", ".join(map(str, depths)),
        "layers of the decoder": str(len(decoders[0].stack.blocks)),
        "coordinates for each doubling": ", ".join(f"{step:g}" for step in widths.values.diff().tolist()),
    }


def shipped_block(layer: int) -> Block:
    """A block of gpt-4l, in float64."""
    model: Any = gf.load("gpt-4l")
    return model.double().stack.blocks[layer]


def shipped_stream(layer: int) -> torch.Tensor:
    """What it reads of a text."""
    return gf.run(gf.load("gpt-4l"), TEXT, read=f"blocks.{layer}.resid_pre")[
        f"blocks.{layer}.resid_pre"
    ].values.double()


def neural_ode() -> View:
    """Gaps between residual networks and their equation, what gradients keep, and steps that adapt."""
    first, last, x = shipped_block(1), shipped_block(2), shipped_stream(1)
    field, depths = BlockField(first, last), [4, 8, 16]
    gaps = residual_gaps(field, x, depths, reference_steps=32)
    orders = fitted_orders(gaps)

    with torch.no_grad():
        exact = integrate(field, x, 32, "rk4")
        found = {tolerance: solve(field, x, tolerance=tolerance) for tolerance in (1e-2, 1e-4, 1e-6)}

    layer = gf.models.block(n_heads=2, mlp=gf.models.Mlp(32))
    small: Any = gf.models.DecoderConfig(2, 16, (layer,), max_len=8, init="xavier").build().double().eval()
    own, ways = BlockField(small.stack.blocks[0]), ["backpropagation", "adjoint"]
    y, weights = torch.randn(2, 1, 8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def kept(gradient: Any, steps: int) -> int:
        return kept_numbers(lambda: solve(own, y, steps=steps, gradient=gradient).x)

    numbers = torch.tensor([[float(kept(way, n)) for n in depths] for way in ways])
    parameters = list(own.parameters())
    through, adjoint = (
        torch.cat(
            [g.flatten() for g in torch.autograd.grad((solve(own, y, gradient=way).x * weights).sum(), parameters)]
        )
        for way in ways
    )
    vectors = [torch.cat([p.detach().flatten() for p in block.parameters()]) for block in (first, last)]
    return [
        Panel("distance from the equation", gaps),
        Panel(
            "numbers kept for gradients (a small block)",
            Labelled(numbers, ("gradient", "steps"), {"gradient": ways, "steps": depths}),
        ),
    ], {
        "order of the distance, fitted": ", ".join(
            f"{order:.2f} ({name})" for name, order in zip(orders.coords["method"], orders.values.tolist())
        ),
        "the field asked for, and distance from the equation, at tolerance": ", ".join(
            f"{tolerance:g}: {solution.evaluations} times, {float((solution.x - exact).norm() / exact.norm()):.1e}"
            for tolerance, solution in found.items()
        ),
        "gradient by the adjoint and by backpropagation, at tolerance 1e-06, distance over size": (
            f"{float((through - adjoint).norm() / through.norm()):.1e}"
        ),
        "weights of blocks 1 and 2, distance over size of the first": (
            f"{float((vectors[0] - vectors[1]).norm() / vectors[0].norm()):.2f}"
        ),
    }


def splitting() -> View:
    """Errors of splittings of a block's two terms, and of the steps that blocks are."""
    terms, x, counts = particle_terms(shipped_block(1)), shipped_stream(1), [4, 8, 16]
    solved = splitting_gaps(terms, x, counts, reference_steps=32)
    stepped = splitting_gaps(terms, x, counts, ("lie", "strang", "parallel"), "euler", reference_steps=32)
    with torch.no_grad():
        moved = {name: float(field(0.0, x).norm() / x.norm()) for name, field in terms._asdict().items()}
    return [Panel("parts solved", solved), Panel("a step of Euler's each", stepped)], {
        f"{name}, fitted": ", ".join(
            f"{order:.2f} ({scheme})"
            for scheme, order in zip(gaps.coords["scheme"], fitted_orders(gaps).values.tolist())
        )
        for name, gaps in (("order with parts solved", solved), ("order with a step of Euler's each", stepped))
    } | {
        "how far the terms of the block move the stream, over its size": ", ".join(
            f"{size:.2f} ({name})" for name, size in moved.items()
        ),
        "error of four short blocks of a kind, over that of four usual ones": ", ".join(
            f"{float(row[0] / stepped.values[0, 0]):.2f} ({scheme})"
            for scheme, row in zip(stepped.coords["scheme"], stepped.values)
        ),
    }


VIEWS: dict[str, Callable[[], View]] = {
    "prompting": prompted_programs,
    "circuits": circuits,
    "neural-ode": neural_ode,
    "splitting": splitting,
}
