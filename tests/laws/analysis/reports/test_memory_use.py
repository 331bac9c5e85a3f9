"""What an explanation says of memories: shares of a row, what is opened, how surprising a token is."""

from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.reports import Explanation
from glassformer.attention import NearestMemory, NeuralMemory, SegmentRecurrence
from glassformer.models import Decoder, DecoderConfig, Mlp, published_block, titans
from glassformer.render.terminal import lines
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject
from one_pass import in_one_pass

IDS, AT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]]), 6
DEEP: dict[str, Any] = {"n_heads": 2, "memory": NeuralMemory(chunk=4), "window": 3, "tokens": 2, "mlp": Mlp(8)}
BLOCKS: dict[str, Any] = {
    **{used: titans(2, used=used, **DEEP) for used in ("context", "gate", "layer", "alone")},  # type: ignore[arg-type]
    "nearest": (published_block(NearestMemory(window=2, memory=5, nearest=2), n_heads=2),),
    "segments": (published_block(SegmentRecurrence(segment=4, memory=3), n_heads=2),),
}


def explained(name: str) -> tuple[Decoder, Explanation]:
    config = DecoderConfig(11, 12, BLOCKS[name], max_len=32)
    model = randomise(config.build(0).double().eval(), 0, std=0.3)
    return model, gf.explain(model, IDS, position=AT)


@in_one_pass
@pytest.mark.parametrize("name", BLOCKS)
def test_shares_of_a_row_sum_to_one_and_are_those_of_the_run(name: str) -> None:
    model, found = explained(name)
    run = gf.run(model, IDS, read="*")
    expected: dict[str, list[tuple[Any, ...]]] = {
        "context": [(f"L{i} mac", True, True, True) for i in range(2)],
        "gate": [(f"L{i} mag", True, False, True) for i in range(2)],
        "layer": [(f"L{i} {part}", *has) for i in range(2) for part, *has in (
            ("attn", False, False, True), ("attn_1", True, False, False))],
        "alone": [(f"L{i} attn", False, False, True) for i in range(2)],
        "nearest": [("L0 attn", True, True, False)],
        "segments": [("L0 attn", True, True, False)],
    }  # fmt: skip
    assert [
        (use.label, use.window is not None, use.memory is not None, use.surprise is not None) for use in found.memories
    ] == expected[name]
    for use in found.memories:
        if use.window is not None:
            assert use.window + (use.persistent or 0) + (use.memory or 0) == pytest.approx(1)
            assert 0 < use.window < 1
    use = found.memories[0]
    if name in ("context", "gate"):
        path = f"blocks.0.{'mac' if name == 'context' else 'mag'}"
        assert use.gate == pytest.approx(float(run[f"{path}.gate"].values[0, AT].mean()))
        assert use.surprise == pytest.approx(float(run[f"{path}.memory.surprise"].values[0, :, AT].mean()))
    if name == "context":
        shares = run["blocks.0.mac.attention.pattern"].values[0, :, :, AT].sum(-1).mean(-1)
        assert (use.window, use.memory) == pytest.approx(tuple(shares.tolist()))
    if name == "nearest":
        assert use.memory == pytest.approx(float(run["blocks.0.attn.memory_share"].values[0, :, AT].mean()))
    if name == "segments":
        assert use.memory == pytest.approx(float(run["blocks.0.attn.pattern"].values[0, :, AT, :4].sum(-1).mean()))


def test_the_terminal_shows_them_and_a_model_without_a_memory_has_none() -> None:
    _, found = explained("context")
    shown = "\n".join(lines(found, width=120))
    assert f"Window and memory at position {AT}" in shown and "L1 mac" in shown
    assert [use["label"] for use in found.to_dict()["memories"]] == ["L0 mac", "L1 mac"]
    plain = gf.explain(subject("gpt2").model, subject("gpt2").inputs[0][:1])
    assert "memories" not in plain.to_dict() and plain.memories == ()
