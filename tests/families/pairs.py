"""What the parity test of an encoder-decoder does; no family of its own."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import glassformer as gf
from families import STEPS, TOLERANCE, reference_folder
from glassformer.checkpoints.parity import compared, relative, set_sines, wide


def check_pair(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """Compare an encoder-decoder with its reference in everything; return the largest error of each comparison."""
    theirs = reference_folder(kind, config, folder, dtype)
    set_sines(theirs)
    return compare_pair(theirs, folder, dtype)


def compare_pair(theirs: Any, folder: Path, dtype: torch.dtype) -> dict[str, float]:
    """Compare a reference with the folder it was saved in."""
    ours: Any = gf.load(folder, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(3, ours.config.vocab_size, (3, 9), generator=generator)
    tokens = torch.randint(3, ours.config.vocab_size, (3, 6), generator=generator)
    sources, targets = torch.tensor([9, 5, 1]), torch.tensor([6, 2, 4])
    errors = {d.site: d.error for d in compared(ours, theirs, tokens, source=source)}
    padded = compared(ours, theirs, tokens, targets, source=source, source_lengths=sources)
    errors |= {f"{d.site}, padded right": d.error for d in padded}
    if ours.config.positions is None:
        # the reference counts padding as positions: on the left, only what goes by distance can be compared
        errors["padded left"] = left_padded(ours, theirs, source, sources, tokens, targets)
    errors["cached generation"] = generated(ours, theirs, source, sources, STEPS)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


def left_padded(ours: Any, theirs: Any, source: Tensor, sources: Tensor, tokens: Tensor, targets: Tensor) -> float:
    """Return the error of logits where sources and targets of unequal length are padded on the left."""
    read, real = (
        torch.arange(ids.shape[1])[None] >= ids.shape[1] - lengths[:, None]
        for ids, lengths in ((source, sources), (tokens, targets))
    )
    with torch.no_grad(), wide(next(theirs.parameters()).dtype):
        expected = theirs(
            input_ids=source, attention_mask=read.long(), decoder_input_ids=tokens, decoder_attention_mask=real.long(),
            use_cache=False,
        ).logits  # fmt: skip
    with torch.no_grad():
        state = ours.begin(source, source_start=source.shape[1] - sources)
        logits, _ = ours(None, tokens, lengths=targets, state=state)
    return relative(logits, expected, real)


def generated(ours: Any, theirs: Any, source: Tensor, lengths: Tensor, steps: int) -> float:
    """Return the error of logits over greedy steps from a cache; infinite if a token differs."""
    dtype, worst = next(theirs.parameters()).dtype, 0.0
    mask = (torch.arange(source.shape[1])[None] < lengths[:, None]).long()
    new = torch.full((len(source), 1), ours.config.start_id)
    with torch.no_grad(), wide(dtype):
        encoded = theirs.get_encoder()(input_ids=source, attention_mask=mask)
    state, cache = ours.begin(source, lengths), None
    for _ in range(steps):
        with torch.no_grad(), wide(dtype):
            out = theirs(
                encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=new, past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
        cache = out.past_key_values
        with torch.no_grad():
            logits, state = ours(None, new, state=state)
        worst = max(worst, relative(logits[:, -1], out.logits[:, -1]))
        chosen = out.logits[:, -1].argmax(-1)
        if not torch.equal(chosen, logits[:, -1].argmax(-1)):
            return float("inf")
        new = chosen[:, None]
    return worst
