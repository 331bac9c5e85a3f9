"""A published checkpoint of 1.5 billion parameters: load, memory, first token, speed, explanation, streaming.

python large_checkpoint.py FOLDER [--rounds 3] [--threads 1 2] [--json FILE]

Writes random weights of the shape of Llama 3.2 1B, with an unembedding of its own, in bfloat16 and in several files,
one after the other, into FOLDER (3 GB; removed at the end unless --keep). Every number is of a process of its own
(`large_side.py`); those of both libraries take turns. The files were just written or read, so they come from the
system's cache, not from the disk, but for the first pass of the streamed model.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from large_side import NEW, SIDES
from run import machine

HERE = Path(__file__).parent
SHARD = 600 << 20  # bytes
SIZES: dict[str, dict[str, Any]] = {
    "large": {
        "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip


def write(folder: Path, size: str) -> None:
    """Write the checkpoint, one file after the other; there is room for one in memory at a time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config: Any = LlamaConfig(
        **SIZES[size], rope_parameters=rope, max_position_embeddings=131_072, rms_norm_eps=1e-5, dtype="bfloat16",
        tie_word_embeddings=False, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in LlamaForCausalLM(config).state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    groups = list(_groups(shapes))
    places: dict[str, str] = {}
    for i, names in enumerate(groups):
        file = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
        save_file({name: _drawn(name, shapes[name], i) for name in names}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    total = 2 * sum(torch.Size(shape).numel() for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _tokenizer().save(str(folder / "tokenizer.json"))
    config.save_pretrained(folder)


def _groups(shapes: dict[str, tuple[int, ...]]) -> Iterator[list[str]]:
    names, held = [], 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        if names and held + size > SHARD:
            yield names
            names, held = [], 0
        names, held = [*names, name], held + size
    yield names


def _drawn(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    value = torch.empty(shape, dtype=torch.bfloat16).normal_(generator=generator)
    # gains about one, matrices of a usual size
    return value.mul_(0.1).add_(1) if "norm" in name else value.mul_(0.02)


def _tokenizer() -> Any:
    """Return a small byte-level vocabulary, of this file's own words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        Path(__file__).read_text().splitlines(),
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False),
    )
    return found


def side(name: str, folder: Path, threads: int) -> dict[str, Any]:
    """Run one process and return what it printed."""
    command = [sys.executable, str(HERE / "large_side.py"), name, str(folder), "--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    load = os.getloadavg()[0]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout.splitlines()[-1]) | {"machine_load": load}


def measure(folder: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Return medians over rounds of every side; the order of the two that are compared changes every round."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
    for i in range(rounds):
        for name in ("glassformer", "transformers")[:: 1 if i % 2 == 0 else -1]:
            found[name].append(side(name, folder, threads))
        for name in ("explain", "streamed"):
            found[name].append(side(name, folder, threads))
    ids = {name: found[name][0]["ids"] for name in ("glassformer", "transformers", "streamed")}
    same = next((i for i, (a, b) in enumerate(zip(ids["glassformer"], ids["transformers"])) if a != b), NEW + 1)
    return {
        "threads": threads, "rounds": rounds, "same_tokens": same,
        "streamed_same": ids["streamed"] == ids["glassformer"][:1],
        "sides": {name: summary(processes) for name, processes in found.items()},
    }  # fmt: skip


def summary(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over processes: seconds of every step, tokens per second, bytes."""

    def median(read: Any) -> float:
        return statistics.median(read(process) for process in processes)

    steps = [name for name, value in processes[0].items() if isinstance(value, dict) and "wall" in value]
    found: dict[str, Any] = {
        step: {clock: median(lambda p, s=step, c=clock: p[s][c]) for clock in ("wall", "cpu")} for step in steps
    }
    if "tokens" in found:
        # what the prompt took is known from the second time it was read
        found["per_second"] = {
            clock: median(lambda p, c=clock: NEW / (p["tokens"][c] - p["again"][c])) for clock in ("wall", "cpu")
        }
    for name in ("before_bytes", "peak_bytes"):
        found[name] = median(lambda p, n=name: p[n])
    found["load_peak_bytes"] = median(lambda p: p["load"]["peak_bytes"])
    found["resident"] = {kind: median(lambda p, k=kind: p["resident"][k]) for kind in ("own", "of_files")}
    return found | {"machine_load": median(lambda p: p["machine_load"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--keep", action="store_true", help="leave the folder; one that is there is used as it is")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    asked = parser.parse_args()
    if not (asked.folder / "config.json").is_file():
        write(asked.folder, asked.size)
    try:
        size = sum(path.stat().st_size for path in asked.folder.glob("*.safetensors"))
        found = {"machine": machine(), "size": asked.size, "file_bytes": size, "rows": []}
        for threads in asked.threads:
            found["rows"].append(measure(asked.folder, asked.rounds, threads))
            print(json.dumps(found["rows"][-1], indent=1), flush=True)
    finally:
        if not asked.keep:
            shutil.rmtree(asked.folder)
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
