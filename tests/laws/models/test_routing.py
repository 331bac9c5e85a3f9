"""Routing: an even load costs least, padding counts for nothing, and dropping goes by who came first."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.data import Batch, Repeat
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, MixtureOfExperts, Mlp, RmsNorm, block
from glassformer.models.routing import balance, charged_sites, charges, held, squared_size
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, randomise, seeds, stream
from glassformer.trace import Tape
from glassformer.training import OptimConfig, TrainConfig, read_metrics, train

EXPERTS = MixtureOfExperts(4, 2, 5)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def top(shares: Tensor, k: int) -> Tensor:
    return torch.zeros_like(shares).scatter(-1, shares.topk(k, -1).indices, 1.0)


def model(experts: MixtureOfExperts, seed: int = 0, layers: int = 1):
    config = DecoderConfig(11, D_MODEL, (block(n_heads=2, norm=RmsNorm(), mlp=experts),) * layers, max_len=16)
    return randomise(config.build().double(), seed, std=0.3)


# losses ---------------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(2, 6), st.integers(1, 2))
def test_balance_is_one_where_shares_or_choices_are_even(seed: int, n: int, k: int) -> None:
    shares, one = drawn(seed, 2, 5, n).softmax(-1), torch.tensor(1.0)
    close(balance(torch.full_like(shares, 1 / n), top(shares, k)), one)
    close(balance(shares, torch.ones_like(shares)), one)
    alone = torch.zeros_like(shares)
    alone[..., 0] = 1
    close(balance(alone, alone), torch.tensor(float(n)))


@given(seeds, st.integers(1, 3))
def test_balance_is_the_sum_over_experts_of_what_they_take_times_what_they_are_wanted(seed: int, k: int) -> None:
    shares, total = drawn(seed, 2, 3, 4).softmax(-1), 0.0
    chosen = top(shares, k)
    rows = [(s, c) for shared, taken in zip(shares, chosen) for s, c in zip(shared, taken)]
    for e in range(4):
        taken = sum(float(c[e]) for _, c in rows) / (k * len(rows))
        total += taken * sum(float(s[e]) for s, _ in rows) / len(rows)
    close(balance(shares, chosen), torch.tensor(4 * total, dtype=torch.float64))


@given(seeds)
def test_z_is_the_mean_square_of_the_log_sum_of_exponentials(seed: int) -> None:
    logits = drawn(seed, 2, 3, 4)
    squares = [math.log(sum(math.exp(u) for u in row)) ** 2 for row in logits.flatten(0, 1).tolist()]
    close(squared_size(logits), torch.tensor(sum(squares) / 6, dtype=torch.float64))


@given(seeds, st.integers(1, 5))
def test_padding_counts_for_nothing(seed: int, length: int) -> None:
    logits = drawn(seed, 1, 6, 4)
    real = torch.arange(6)[None] < length
    shares, short = logits.softmax(-1), logits[:, :length].softmax(-1)
    close(balance(shares, top(shares, 2), real), balance(short, top(short, 2)))
    close(squared_size(logits, real), squared_size(logits[:, :length]))
    kept = held(top(shares, 2), 2, 1.0, real)
    assert torch.equal(kept[:, :length], held(top(short, 2), 2, 1.0, None))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_what_is_charged_reaches_the_router_alone_and_evens_the_load(scoring) -> None:
    module = model(EXPERTS.replace(scoring=scoring, balance=0.5, router_z=0.25))
    ids = torch.arange(10)[None]
    layer: Any = module.stack.blocks[0].part("mlp")

    def charged() -> dict[str, Tensor]:
        tape = Tape(module, charged_sites(module), grad=True)
        module.loss(Batch(ids, ids, torch.ones_like(ids, dtype=torch.bool)), tape=tape)
        return {name: factor * value for name, factor, value in charges(module, tape, {"": None})}

    first = charged()
    assert list(first) == ["balance", "router_z"]
    for value in first.values():
        mine = torch.autograd.grad(
            value, [layer.router.weight, layer.output.weight], retain_graph=True, allow_unused=True
        )
        assert mine[0].abs().sum() > 0 and mine[1] is None
    (step,) = torch.autograd.grad(first["balance"], layer.router.weight)
    with torch.no_grad():
        # so small that the choices, and with them f, stay
        layer.router.weight -= 1e-4 * step / step.norm()
    assert charged()["balance"] < first["balance"]


def test_layers_without_losses_ask_for_nothing() -> None:
    assert charged_sites(model(EXPERTS)) == []
    assert charged_sites(model(EXPERTS.replace(balance=1.0), layers=2)) == [
        "blocks.0.mlp.router",
        "blocks.1.mlp.router",
    ]


# mixtures -------------------------------------------------------------------------------------------------------------


@given(seeds)
def test_all_experts_are_the_sum_of_all_weighed_by_their_shares(seed: int) -> None:
    module, x = randomise(MixtureOfExperts(3, 3, 5).build(D_MODEL, 16, 0, "mlp").double(), seed), stream(2, 4, seed)
    shares, each = module.router(x).softmax(-1), []
    for e in range(3):
        hidden = module.activation(module.gate.one(e, x)) * module.input.one(e, x)  # type: ignore[union-attr]
        each.append(shares[..., e, None] * module.output.one(e, hidden))
    close(module.write(x), torch.stack(each).sum(0))


@given(seeds)
def test_one_expert_is_an_mlp_and_equal_experts_make_routing_irrelevant(seed: int) -> None:
    x = stream(2, 4, seed)
    for n, k in ((1, 1), (4, 2)):
        module = randomise(MixtureOfExperts(n, k, 5).build(D_MODEL, 16, 0, "mlp").double(), seed)
        mlp = Mlp(5, "silu", gated=True, bias=False).build(D_MODEL, 16, 0, "mlp").double()
        with torch.no_grad():
            for name in ("gate", "input", "output"):
                own = getattr(module, name).weight
                own.copy_(own[:1].expand_as(own))
                getattr(mlp, name).weight.copy_(own[0])
        close(module.write(x), mlp.write(x))


# capacity -------------------------------------------------------------------------------------------------------------


@given(seeds, st.sampled_from([0.4, 0.7, 1.0, 1.5]))
def test_experts_hold_those_that_come_first(seed: int, capacity: float) -> None:
    chosen = top(drawn(seed, 3, 5, 4), 2)
    kept, room = held(chosen, 2, capacity, None), math.ceil(capacity * 2 * 15 / 4)
    taken = [0] * 4
    for t in range(5):
        for b in range(3):
            for e in range(4):
                if chosen[b, t, e]:
                    taken[e] += 1
                    assert bool(kept[b, t, e]) == (taken[e] <= room)


@given(seeds)
def test_room_for_all_drops_none_and_evaluation_drops_none(seed: int) -> None:
    x = stream(3, 5, seed)
    plain = randomise(EXPERTS.build(D_MODEL, 16, 0, "mlp").double().train(), seed)
    ample, tight = (EXPERTS.replace(capacity=c).build(D_MODEL, 16, 0, "mlp").double() for c in (4.0, 0.25))
    for module in (ample, tight):
        module.load_state_dict(plain.state_dict())
    assert torch.equal(ample.train().write(x), plain.write(x))
    assert torch.equal(tight.eval().write(x), plain.write(x))
    assert not torch.equal(tight.train().write(x), plain.write(x))


def test_a_choice_that_is_dropped_leaves_the_weights_of_others_and_the_stream_as_they_are() -> None:
    module = model(MixtureOfExperts(2, 1, 5, capacity=0.3)).train()
    ids = torch.tensor([[3] * 8])
    tape = Tape(module, ["blocks.0.mlp.chosen", "blocks.0.mlp.weights", "blocks.0.resid_mid", "blocks.0.resid_post"])
    module(ids, tape=tape)
    chosen, weights = (tape.values[f"blocks.0.mlp.{name}"] for name in ("chosen", "weights"))
    # eight like tokens ask for one expert, which holds ceil(.3 8 / 2)
    assert chosen.sum((0, 1)).max() == 8 and (weights != 0).sum() == 2 and (weights[:, :2].sum(-1) == 1).all()
    stream_before, behind = tape.values["blocks.0.resid_mid"], tape.values["blocks.0.resid_post"]
    assert torch.equal(behind[:, 2:], stream_before[:, 2:]) and not torch.equal(behind[:, :2], stream_before[:, :2])


@given(seeds)
def test_later_tokens_and_padding_drop_no_earlier_choice(seed: int) -> None:
    module = model(MixtureOfExperts(3, 2, 5, capacity=0.5), seed).train()
    ids = torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(seed))
    other = torch.cat((ids[:, :5], (ids[:, 5:] + 1) % 11), 1)
    close(module(ids)[:, :5], module(other)[:, :5])
    padded = torch.cat((ids, ids[:, :3]), 1)
    close(module(padded, lengths=torch.tensor([8, 8, 8]))[:, :8], module(ids))


# training -------------------------------------------------------------------------------------------------------------


def recipe(experts: MixtureOfExperts, **changes) -> TrainConfig:
    data = Repeat(batch_size=4, length=16, unit_min=3, unit_max=6, vocab_size=24)
    config = DecoderConfig(24, 16, (block(n_heads=2, norm=RmsNorm(), mlp=experts),) * 2, max_len=16)
    return TrainConfig(
        config, data, optim=OptimConfig(lr=1e-2, warmup=1), steps=6, log_every=2, evaluate_every=6, evaluate_batches=1,
        save_every=3, **changes,
    )  # fmt: skip


def test_losses_enter_training_by_the_config_and_are_logged_by_name(tmp_path) -> None:
    charged = MixtureOfExperts(4, 1, 8, balance=0.5, router_z=0.1)
    train(recipe(charged), tmp_path / "charged")
    train(recipe(charged, accumulate=2), tmp_path / "halves")
    train(recipe(charged.replace(balance=None, router_z=None)), tmp_path / "plain")
    lines, plain = (read_metrics(tmp_path / name)[1:] for name in ("charged", "plain"))
    for line in lines:
        assert 1.0 - 1e-6 <= line["balance"] <= 4.0 and line["router_z"] > 0
    assert not any("balance" in line for line in plain)
    # at the first step weights are the same: what is added is the sum over two layers
    assert lines[0]["loss"] > plain[0]["loss"] + 0.9
    assert abs(read_metrics(tmp_path / "halves")[1]["router_z"] - lines[0]["router_z"]) < 0.05


def test_a_run_that_stopped_logs_what_one_that_did_not_logs(tmp_path) -> None:
    config = recipe(MixtureOfExperts(4, 1, 8, balance=0.5, capacity=1.0))
    train(config, tmp_path / "whole")

    def stop(progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", report=stop)
    train(config, tmp_path / "cut")
    whole, cut = ([line | {"seconds": 0} for line in read_metrics(tmp_path / name)] for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.parametrize("name", ["balance", "router_z", "capacity"])
def test_coefficients_are_positive_or_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match=f"experts: {name} must be positive"):
        EXPERTS.replace(**{name: 0.0})
