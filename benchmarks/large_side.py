"""One process of the large checkpoint's benchmark: `python large_side.py SIDE FOLDER [--threads 1]`; prints JSON.

SIDE is `glassformer` or `transformers`: load, the first token of a prompt, new tokens one by one, each with wall and
processor seconds; or `explain`: load, and one explanation; or `streamed`: a forward pass that reads the layers as it
goes, first from the disk, then from the system's cache. Memory is the largest resident set of the process, the interpreter and its libraries included, as the system
counts it; what it was before loading is given too.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

PROMPT, NEW = 64, 32


class Record(dict[str, Any]):
    """Numbers of this process, filled step by step."""

    @contextmanager
    def step(self, name: str):
        """Time what is done inside."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self[name] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        self[name]["peak_bytes"] = peak()


def peak() -> int:
    """Return the largest resident set so far, in bytes."""
    # not getrusage: it begins with what the process had that started this one
    return _status("VmHWM")


def resident() -> dict[str, int]:
    """Return what is resident now, in bytes: memory of its own, and pages of files."""
    return {"own": _status("RssAnon"), "of_files": _status("RssFile")}


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return 1024 * int(line.split()[1])


def prompt() -> torch.Tensor:
    """Return the ids that every side reads."""
    return torch.randint(200, (1, PROMPT), generator=torch.Generator().manual_seed(0))


def glassformer_side(folder: Path, found: Record) -> None:
    import glassformer as gf
    from glassformer.models import GREEDY, generate

    found["before_bytes"] = peak()
    with found.step("load"):
        model = gf.load(folder)
    _generate(found, lambda ids, n: list(generate(model, ids, GREEDY, max_new_tokens=n).tokens[0]))


def transformers_side(folder: Path, found: Record) -> None:
    # the second name only so that what it imports is not counted as loading
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    assert LlamaForCausalLM is not None

    found["before_bytes"] = peak()
    with found.step("load"):
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    given = {"do_sample": False, "attention_mask": torch.ones(1, PROMPT, dtype=torch.long), "eos_token_id": None}

    def generated(ids: torch.Tensor, n: int) -> list[int]:
        return model.generate(ids, max_new_tokens=n, **given)[0, PROMPT:].tolist()

    _generate(found, generated)


def _generate(found: Record, generated: Callable[[torch.Tensor, int], list[int]]) -> None:
    """Time the first token right after loading, and once more, then new tokens."""
    ids = prompt()
    with found.step("first"):
        generated(ids, 1)
    with found.step("again"):
        generated(ids, 1)
    with found.step("tokens"):
        found["ids"] = generated(ids, NEW + 1)


def explain_side(folder: Path, found: Record) -> None:
    import glassformer as gf

    found["before_bytes"] = peak()
    with found.step("load"):
        model: Any = gf.load(folder)
    with found.step("explain"):
        explanation = gf.explain(model, "The cat sat on the mat, and the dog sat on the")
    found["tokens_explained"] = len(explanation.tokens)


def streamed_side(folder: Path, found: Record) -> None:
    import glassformer as gf

    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found["before_bytes"] = peak()
    with found.step("load"):
        model: Any = gf.load(folder, stream=True)
    with torch.no_grad():
        with found.step("first"):
            logits = model(prompt())
        with found.step("again"):
            model(prompt())
    found["ids"] = [int(logits[0, -1].argmax())]


SIDES = {
    "glassformer": glassformer_side, "transformers": transformers_side, "explain": explain_side,
    "streamed": streamed_side,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found = Record(side=asked.side, threads=asked.threads)
    SIDES[asked.side](asked.folder, found)
    found |= {"peak_bytes": peak(), "resident": resident()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
