"""Compute and draw what the pages on theory show (`make theory`).

    python docs/make_theory.py [PAGE …]       all pages in docs/theory, or some of them

Of each view a picture, `docs/images/theory/PAGE.png`, and numbers in words, in `seen.json` beside it, which `make
tables` puts on its page. All of it takes a minute; what takes longer is a study.
"""

import io
import json
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch
from PIL import Image

from glassformer.dynamics import circuit_decoder, circuit_widths, prompting, random_circuit, wrong_gates
from glassformer.figures import Panel, draw

FOLDER = Path(__file__).resolve().parent / "images" / "theory"
SEEN = FOLDER / "seen.json"
View = tuple[Sequence[Panel], dict[str, str]]


def main(pages: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
    for page in pages or VIEWS:
        panels, known[page] = VIEWS[page]()
        picture = io.BytesIO()
        draw(panels).savefig(picture, dpi=80)
        # few colours are a third of the bytes
        Image.open(picture).convert("RGB").quantize(96).save(FOLDER / f"{page}.png", optimize=True)
        SEEN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


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


VIEWS: dict[str, Callable[[], View]] = {"prompting": prompted_programs, "circuits": circuits}


if __name__ == "__main__":
    main(sys.argv[1:])
