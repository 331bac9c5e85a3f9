"""Tokens as particles: a block's terms, what blocks are split steps of, and the order of each splitting."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import Rope
from glassformer.dynamics import ParticleTerms, fitted_orders, particle_terms, split, splitting_gaps
from glassformer.errors import ConfigError, WrongArgument
from glassformer.models import Block, BlockConfig, DecoderConfig, Mlp, block, macaron
from glassformer.testing import close
from glassformer.testing.layers import causal_context, randomise

WIDTH = 6


def alone(layer: BlockConfig) -> Block:
    config = DecoderConfig(vocab_size=5, d_model=WIDTH, layers=(layer,), max_len=8)
    found: Any = randomise(config.build().double().eval()).stack.blocks[0]
    return found


def usual(**rest: Any) -> Block:
    return alone(block(n_heads=2, mlp=Mlp(8, "tanh"), positions=Rope(), **rest))


def stream() -> Tensor:
    return torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("wiring", "scheme"), [("pre", "lie"), ("parallel", "parallel")])
def test_a_block_is_one_split_step_of_eulers(wiring: Any, scheme: Any) -> None:
    found, x = usual(wiring=wiring), stream()
    close(split(particle_terms(found), x, 1, scheme, "euler"), found(x, causal_context(x))[0])


def test_a_macaron_block_is_one_of_strangs() -> None:
    found, x = usual(), stream()
    halves = alone(macaron(n_heads=2, mlp=Mlp(8, "tanh"), positions=Rope()))
    own = found.state_dict()
    halves.load_state_dict({name: own[name.replace("mlp_1", "mlp")] for name in halves.state_dict()})
    close(split(particle_terms(found), x, 1, "strang", "euler"), halves(x, causal_context(x))[0])


def test_convection_moves_each_particle_by_itself_and_diffusion_by_the_others() -> None:
    terms, x = particle_terms(usual()), stream()
    other = x.clone()
    other[:, 0] += 1
    for field, moves in ((terms.convection, False), (terms.diffusion, True)):
        assert bool((field(0.0, x)[:, 1:] != field(0.0, other)[:, 1:]).any()) is moves
    # no particle is moved by those behind it
    other = x.clone()
    other[:, -1] += 1
    assert torch.equal(terms.diffusion(0.0, x)[:, :-1], terms.diffusion(0.0, other)[:, :-1])


def test_solved_parts_have_the_order_of_the_splitting_and_eulers_step_none_above_the_first() -> None:
    terms, x = particle_terms(usual()), stream()
    solved = fitted_orders(splitting_gaps(terms, x, [8, 16], method="midpoint", reference_steps=16))
    for name, found, order in zip(solved.coords["scheme"], solved.values.tolist(), (1, 2, 2)):
        assert abs(found - order) < 0.2, (name, found)
    blocks = splitting_gaps(terms, x, [12, 24], ("lie", "strang", "parallel"), "euler", reference_steps=16)
    for name, found in zip(blocks.coords["scheme"], fitted_orders(blocks).values.tolist()):
        assert abs(found - 1) < 0.2, (name, found)


def linear(matrix: Tensor) -> Any:
    return lambda t, x: x @ matrix


def test_terms_that_commute_are_split_without_an_error() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix, x = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) / 4, stream()
    terms = ParticleTerms(linear(matrix), linear(matrix @ matrix))
    exact = x @ torch.matrix_exp(matrix + matrix @ matrix)
    schemes: tuple[Any, ...] = ("lie", "strang", "around")
    for scheme in schemes:
        close(split(terms, x, 16, scheme, "rk4"), exact, 1e-6)


def test_strangs_step_is_undone_by_one_backwards_and_lies_is_not() -> None:
    terms, x = particle_terms(usual()), stream()
    there_and_back = {
        scheme: float(
            (split(terms, split(terms, x, 1, scheme, end=0.05), 1, scheme, end=-0.05) - x).detach().abs().max()
        )
        for scheme in ("strang", "lie")
    }
    assert there_and_back["strang"] < 1e-5 < 1e-4 < there_and_back["lie"]


def test_a_block_that_has_no_two_terms_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"found mlp \(alone\), attn \(mixes\), mlp_1 \(alone\)"):
        particle_terms(alone(BlockConfig((Mlp(4), block(n_heads=2).parts[0], Mlp(4)))))
    with pytest.raises(ConfigError, match=r"of this one pass a norm \(behind attn, mlp\)"):
        particle_terms(usual(wiring="post"))
    with pytest.raises(ConfigError, match=r"call block\.eval\(\)"):
        particle_terms(usual().train())
    with pytest.raises(WrongArgument, match='Nearest: "strang"'):
        split(particle_terms(usual()), stream(), 1, "strangs")  # type: ignore[arg-type]
