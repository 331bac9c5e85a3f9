"""Compute and draw what the pages on theory show (`make theory`).

    python docs/make_theory.py [PAGE …]       all pages in docs/theory, or some of them

Of each view a picture, `docs/images/theory/PAGE.png`, and numbers in words, in `seen.json` beside it, which `make
tables` puts on its page. All of it takes a minute; what takes longer is a study.
"""

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch.nn.functional import elu

from glassformer.dynamics import (
    BinaryMemory,
    ContinuousMemory,
    NeuronAstrocyteNetwork,
    expected_wrong_bits,
    wrong_bits,
)
from glassformer.figures import Panel, draw
from glassformer.labelled import Labelled

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


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def associative_memory() -> View:
    """Wrong neurons by load, and the two phases of a network of neurons and astrocytes."""
    n, counts = 48, [2**i for i in range(1, 12)]
    degrees = {"pairs": 2, "triples": 3, "fours": 4}
    rows = {name: wrong_bits(degree, n, counts, n_tested=64) for name, degree in degrees.items()}
    rows["e^s"] = wrong_bits("exponential", n, counts, n_tested=16)
    theory = {name: [expected_wrong_bits(degree, n, count) for count in counts] for name, degree in degrees.items()}
    furthest = max(float((rows[name] - torch.tensor(theory[name])).abs().max()) for name in degrees)
    by_load = Labelled(torch.stack(list(rows.values())), ("memory", "count"),
                       {"memory": list(rows), "count": [f"{count:,}" for count in counts]})  # fmt: skip

    binary = BinaryMemory(torch.where(normal(8, n) > 0, 1.0, -1.0).double(), 3)
    states = torch.where(normal(200, n, seed=1) > 0, 1.0, -1.0).double()
    fell = binary.energy(states) - binary.energy(binary.sweep(states))
    real, starts = ContinuousMemory(normal(16, n), beta=0.2), 3 * normal(200, n, seed=2)
    slid = real.energy(starts) - real.energy(real.update(starts))

    positions, features = 12, 8
    keys, values, queries = (
        normal(positions, features),
        normal(positions, 4, seed=3),
        normal(positions, features, seed=4),
    )
    network = NeuronAstrocyteNetwork(lambda u: elu(u) + 1)
    synapses, written, answers = network.empty(keys, values), [], []
    for t in range(positions):
        synapses = network.write(synapses, keys[t : t + 1], values[t : t + 1])
        written.append(synapses.astrocyte)
        answers.append(network.calcium(synapses, queries))
    weights = (elu(queries) + 1) @ (elu(keys) + 1).mT
    apart = network.read(synapses, queries) - weights / weights.sum(-1, keepdim=True) @ values
    return [
        Panel(f"share of {n} neurons that are wrong", by_load),
        Panel("writing: synapses with the astrocyte", Labelled(torch.stack(written, 1), ("feature", "step"))),
        Panel("reading: its calcium for each query", Labelled(torch.stack(answers, 1), ("query", "step"))),
    ], {
        f"wrong neurons of {n} against the normal tail, {len(degrees)} powers at {len(counts)} loads": (
            f"at most {furthest:.3f} apart"
        ),
        "least fall of a binary energy in a sweep of 200 states": f"{float(fell.min()):.3g}",
        "least fall of a continuous energy in an update of 200 states": f"{float(slid.min()):.3g}",
        "neurons and astrocyte against linear attention, largest difference": f"{float(apart.abs().max()):.1g}",
    }  # fmt: skip


VIEWS: dict[str, Callable[[], View]] = {"associative-memory": associative_memory}


if __name__ == "__main__":
    main(sys.argv[1:])
