"""What the study of the normalised transformer measures is right where the answer is known."""

import math
from typing import Any

import torch
import torch.nn.functional as F

from glassformer.data import Repeat
from glassformer.models import normalised_decoder
from glassformer.studies.normalised_transformer import DRAWN, loss_from, nearness, orthogonal_map, spectra, streams
from glassformer.testing import close

DATA = Repeat(batch_size=4, length=12, unit_min=2, unit_max=4, vocab_size=20)


def model(seed: int = 0) -> Any:
    return normalised_decoder(20, 16, 2, n_heads=2, d_mlp=12, max_len=32).build(seed).eval()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_map_between_streams_is_the_rotation_that_turned_them_and_no_other_is_nearer() -> None:
    turn = torch.linalg.qr(drawn(5, 5))[0]
    x = drawn(3, 7, 5, seed=1)
    close(orthogonal_map(x, x @ turn), turn)
    noisy = x @ turn + 0.3 * drawn(3, 7, 5, seed=2)
    found = orthogonal_map(x, noisy)
    close(found @ found.T, torch.eye(5, dtype=torch.float64))
    others = [torch.matrix_exp(0.1 * (a - a.T)) @ found for a in drawn(20, 5, 5, seed=3)]
    assert all((x @ found - noisy).norm() < (x @ other - noisy).norm() for other in others)


def test_a_model_stitched_to_itself_loses_nothing() -> None:
    one, batch = model(), DATA.build().batch(0)
    entered = streams(one, 1, batch)
    turn = orthogonal_map(entered, entered).float()
    assert math.isclose(loss_from(one, 1, entered @ turn, batch), float(one.loss(batch)), rel_tol=1e-5)


def test_condition_numbers_are_geometric_means_and_neurons_that_write_tokens_are_near_them() -> None:
    one = model()
    with torch.no_grad():
        one.embed.matrix[:16], one.unembed.matrix[:16] = torch.eye(16), torch.eye(16)
        one.embed.matrix[16:], one.unembed.matrix[16:] = 0.0, 0.0
        one.embed.matrix[0] *= 4.0
    assert math.isclose(spectra(one)["condition_tokens"], 2.0, rel_tol=1e-5)
    with torch.no_grad():
        for block in one.stack.blocks:
            block.part("mlp").output.weight.copy_(torch.eye(16)[:, :12])
    rows = F.normalize(torch.randn(DRAWN, 16, generator=torch.Generator().manual_seed(0)), dim=-1)
    expected = 1.0 - float(rows.amax(-1).mean())
    assert math.isclose(nearness(one, torch.Generator().manual_seed(0)), expected, abs_tol=1e-4)
