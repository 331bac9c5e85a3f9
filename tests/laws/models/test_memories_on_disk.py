"""Memories are state: carried through a text and through generation, written to a file and read back bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import glassformer as gf
from glassformer.attention import LinearMemory, NearestMemory, NeuralMemory, SegmentRecurrence
from glassformer.models import GREEDY, BlockConfig, Decoder, DecoderConfig, Mlp, State, published_block, titans
from glassformer.models.stack import mapped, tensors
from glassformer.testing.layers import randomise

DEEP = NeuralMemory(chunk=4)
PUBLISHED: dict[str, Any] = {
    "linear_memory": LinearMemory(chunk=4, learned_start=True),
    "neural_memory": DEEP,
    "segment_recurrence": SegmentRecurrence(segment=3, memory=2),
    "nearest_memory": NearestMemory(window=2, memory=6, nearest=2),
}
BLOCKS: dict[str, tuple[BlockConfig, ...]] = {
    **{name: (published_block(mixer, n_heads=2, mlp=Mlp(8)),) * 2 for name, mixer in PUBLISHED.items()},
    "memory_context": titans(2, n_heads=2, memory=DEEP, used="context", tokens=2, mlp=Mlp(8)),
    "memory_gate": titans(2, n_heads=2, memory=DEEP, used="gate", window=3, tokens=2, mlp=Mlp(8)),
}
TEXT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])


def model(name: str, dtype: torch.dtype) -> Decoder:
    config = DecoderConfig(11, 16, BLOCKS[name], max_len=64)
    return randomise(config.build(0).eval(), 0, std=0.3).to(dtype)


def written(state: State, path: Path) -> None:
    """Write a state's tensors by their number; how they are put together is the model's to say."""
    save_file({str(i): part.contiguous() for i, part in enumerate(tensors(state.layers))}, path)


def read_back(found: Decoder, path: Path, length: int, batch: int) -> State:
    parts = load_file(path)
    order = iter(parts[str(i)] for i in range(len(parts)))
    return State(length, mapped(found.begin(batch).layers, lambda _: next(order)))


def continued(found: Decoder, state: State, token: Tensor, n: int) -> tuple[list[Tensor], State]:
    """Return what comes greedily behind a token, with the logits that say so."""
    logits = []
    for _ in range(n):
        out, state = found(token, state=state)
        logits.append(out)
        token = out[:, -1:].argmax(-1)
    return logits, state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_a_state_from_a_file_is_the_same_and_generation_goes_on_as_it_would(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    """Across segments and within one: both cuts lie in the middle of a chunk, a segment and a window."""
    found = model(name, dtype)
    for cut in (1, 6):
        path = tmp_path / f"{name}-{dtype}-{cut}.safetensors"
        _, state = found(TEXT[:, :cut], state=found.begin(2))
        written(state, path)
        again = read_back(found, path, cut, 2)
        for here, there in zip(tensors(state.layers), tensors(again.layers), strict=True):
            assert here.dtype == there.dtype and torch.equal(here, there)
        ends = [continued(found, held, TEXT[:, cut : cut + 1], 4) for held in (state, again)]
        assert all(map(torch.equal, ends[0][0], ends[1][0]))
        assert all(map(torch.equal, tensors(ends[0][1].layers), tensors(ends[1][1].layers)))


@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_what_is_generated_behind_a_state_is_what_is_generated_of_the_whole_text(tmp_path: Path, name: str) -> None:
    found, prompt = model(name, torch.float64), TEXT[:1, :7]
    whole = list(gf.generate(found, prompt, max_new_tokens=8, sampling=GREEDY).ids[0])[7:]
    _, state = found(prompt[:, :-1], state=found.begin(1))
    written(state, tmp_path / "state.safetensors")
    state = read_back(found, tmp_path / "state.safetensors", 6, 1)
    logits, _ = continued(found, state, prompt[:, -1:], 8)
    assert [int(out[0, -1].argmax()) for out in logits] == whole


@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_a_file_of_a_long_text_is_as_large_as_that_of_a_longer_one(tmp_path: Path, name: str) -> None:
    """What a memory knows does not grow: of windows and segments, once they are full."""
    found, sizes = model(name, torch.float32), []
    for n in (16, 40):
        _, state = found(torch.arange(n)[None] % 11, state=found.begin(1))
        written(state, tmp_path / "state.safetensors")
        sizes.append((tmp_path / "state.safetensors").stat().st_size)
    assert sizes[0] == sizes[1]
