"""Redo the numbers of the page on memorisation: `python docs/make_memorisation.py TEXT TOKENS`.

The arguments are run folders of `memorisation` and `memorisation-tokens`; the page says how to make them. Takes about a
minute on one core.
"""

import re
import sys
from pathlib import Path

import torch

import glassformer as gf
from glassformer.analysis.behaviour import ShortCircuit, short_circuit
from glassformer.data import PlantedData
from glassformer.training import TrainConfig

PAGE = Path(__file__).resolve().parent / "how-to" / "measure-memorisation.md"
BATCHES = 16


def measure(folder: str) -> ShortCircuit:
    """Short-circuit the model of a run folder on what was planted in its text."""
    model = gf.load(folder)
    config = TrainConfig.from_json(Path(folder, "config.json").read_text(encoding="utf-8"))
    data = config.data.build(model.tokenizer)
    assert isinstance(data, PlantedData), f"{folder} is no run with planted sequences"
    return short_circuit(model, data.planted, *(data.batch(i, "heldout") for i in range(BATCHES)))


def table(found: ShortCircuit) -> list[str]:
    """Return a table with a row for every set of short-circuited layers."""
    counts = found.exact_match.labels("count")
    shown, often = [i for i, count in enumerate(counts) if int(count) >= 32], len(counts) - 1
    head = [f"recited, shown {counts[i]} times" for i in shown]
    head += [f"right tokens, {counts[often]} times", "right tokens, never shown"]
    head += [f"loss on the suffix, {counts[often]} times", "loss on new text"]
    lines = [f"| short-circuited | {' | '.join(head)} |", f"|:---|{'---:|' * len(head)}"]
    for i, name in enumerate(found.exact_match.labels("layers")):
        exact, accuracy = found.exact_match.values[i], found.token_accuracy.values[i]
        cells = [f"{float(exact[j]):.2f} ± {float(found.exact_match_spread.values[i, j]):.2f}" for j in shown]
        cells += [f"{float(accuracy[often]):.2f}", f"{float(accuracy[0]):.2f}"]
        cells += [f"{float(found.suffix_loss.values[i, often]):.2f}"]
        change, spread = found.novel_loss_change.values[i], found.novel_loss_change_spread.values[i]
        if i:
            cells += [f"{float(change):+.3f} ± {float(spread):.3f}"]
        else:
            cells += [f"{float(found.novel_loss.values[i]):.3f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def fill(page: str, name: str, lines: list[str]) -> str:
    block = "\n".join(
        [f"<!-- {name}: made by docs/make_memorisation.py -->", "", *lines, "", f"<!-- end of {name} -->"]
    )
    filled, count = re.subn(rf"<!-- {name}: .*?<!-- end of {name} -->", lambda _: block, page, flags=re.DOTALL)
    assert count == 1, f"{PAGE} has {count} places for {name}"
    return filled


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    text = PAGE.read_text(encoding="utf-8")
    for kind, run in zip(("text", "tokens"), sys.argv[1:], strict=True):
        text = fill(text, kind, table(measure(run)))
    PAGE.write_text(text, encoding="utf-8")
