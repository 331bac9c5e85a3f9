"""The stacks that the study of norms compares: what passes a sub-layer by, and gradients that are those of the loss."""

import pytest
import torch

import glassformer as gf
from glassformer.models import Decoder
from glassformer.studies.norm_placement import ALONE, BARE, DATA, POST, PRE, READS, WRITES, built, gradients, loss
from glassformer.testing import close

BATCH = DATA.replace(batch_size=2).build().batch(0)
DEPTH = 2


def model(kind: str) -> Decoder:
    return built(kind, DEPTH, 0).double()


@pytest.mark.parametrize("kind", [POST, ALONE])
def test_what_the_norm_gets_is_what_was_written_and_the_stream_if_that_passes_by(kind: str) -> None:
    run = gf.run(model(kind), BATCH.tokens, read=["blocks.*"])
    for layer in range(DEPTH):
        path = f"blocks.{layer}"
        for part, stream in (("attn", "resid_pre"), ("mlp", "resid_mid")):
            wrote = run[f"{path}.{part}.out"].values
            passed = run[f"{path}.{stream}"].values if kind == POST else 0
            close(run[f"{path}.{part}.sum"].values, wrote + passed)
        close(run[f"{path}.resid_post"].values.mean(-1), torch.zeros(2, DATA.length, dtype=torch.float64))


def test_without_norms_the_stream_is_the_sum_of_all_that_was_written() -> None:
    run = gf.run(model(BARE), BATCH.tokens, read=["blocks.*"])
    writes = [run[f"blocks.{layer}.{part}.out"].values for layer in range(DEPTH) for part in ("attn", "mlp")]
    close(run[f"blocks.{DEPTH - 1}.resid_post"].values, run["blocks.0.resid_pre"].values + sum(writes))


@pytest.mark.parametrize("kind", [PRE, ALONE])
@pytest.mark.parametrize("matrix", [WRITES, READS])
def test_gradients_of_blocks_are_slopes_of_the_loss(kind: str, matrix: str) -> None:
    stack, step = model(kind), 1e-6
    for layer, found in zip(stack.stack.blocks, gradients(stack, BATCH, matrix), strict=True):
        weight = layer.get_parameter(matrix)
        along = found / found.norm()
        with torch.no_grad():
            weight += step * along
            ahead = loss(stack, BATCH)
            weight -= 2 * step * along
            slope = (ahead - loss(stack, BATCH)) / (2 * step)
            weight += step * along
        # of differences of numbers near 3 in float64
        close(slope, found.norm(), 1e-5)
