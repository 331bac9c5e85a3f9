"""Mixtures of experts: the quick route is the dense one, and what each expert does can be read and edited."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from glassformer import analysis, weights
from glassformer.analysis.attribution import direct_logit_attribution, neuron_effects
from glassformer.analysis.cards import card_of
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import DecoderConfig, MixtureOfExperts, Mlp, RmsNorm, block
from glassformer.models.accounting import count_flops, count_parameters
from glassformer.models.experts import ExpertsLayer
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, randomise, seeds, stream
from glassformer.testing.models import subject
from glassformer.trace import At, Set, SiteTable, Tape
from one_pass import in_one_pass

CONFIGS = [
    MixtureOfExperts(4, 2, 5),
    MixtureOfExperts(4, 1, 5, "gelu", gated=False, bias=True),
    MixtureOfExperts(3, 3, 5, "relu", router_bias=True),
    MixtureOfExperts(4, 2, 5, renormalised=False),
    MixtureOfExperts(4, 2, 5, "gelu_sigmoid", bias=True, router_bias=True, shift=1.0, limit=0.7),
    MixtureOfExperts(1, 1, 5),
    MixtureOfExperts(6, 3, 5, renormalised=False, n_groups=3, n_chosen_groups=2, factor=1.7, d_shared=7),
    MixtureOfExperts(
        6, 2, 5, gated=False, bias=True, scoring="sigmoid", choice_bias=True, n_groups=2, group_best=2, d_shared=3
    ),
]
configs = pytest.mark.parametrize("config", CONFIGS, ids=str)


def layer(config: MixtureOfExperts, seed: int = 0) -> ExpertsLayer:
    return randomise(config.build(D_MODEL, 16, 0, "mlp").double().eval(), seed)


def read(module: ExpertsLayer, x: Tensor, *names: str, edit: tuple[Set, ...] = ()) -> dict[str, Tensor]:
    class Sites:
        def sites(self, glob: str = "*") -> SiteTable:
            return SiteTable({site.name: site for site in module.sites()})

    tape = Tape(Sites(), names, edit)
    out = module.write(x, tape)
    return tape.values | {"returned": out}


@configs
@given(seeds)
def test_running_the_chosen_experts_equals_running_all(config: MixtureOfExperts, seed: int) -> None:
    module, x = layer(config, seed), stream(2, 7, seed)
    with torch.enable_grad():
        # no gradient reaches the bias of the choice
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        quick = module.write(x)
        mine = torch.autograd.grad(quick.square().sum(), parameters)
        dense = read(module, x, "mlp.expert_out")["returned"]
        theirs = torch.autograd.grad(dense.square().sum(), parameters)
    close(quick, dense)
    for one, other in zip(mine, theirs):
        close(one, other)


@configs
@given(seeds)
def test_the_dense_route_is_the_plain_loop(config: MixtureOfExperts, seed: int) -> None:
    module, x = layer(config, seed), stream(1, 3, seed)
    beside = ["mlp.shared_out"] if config.d_shared else []
    found = read(module, x, "mlp.router", "mlp.weights", "mlp.expert_out", "mlp.out", *beside)
    for t in range(3):
        logits = module.router(x[0, t])
        shares = logits.softmax(-1) if config.scoring == "softmax" else logits.sigmoid()
        chosen = chosen_by_loop(config, shares, module.choice_bias)
        over = sum(shares[e] for e in chosen) if config.renormalised else 1.0
        total = torch.zeros(D_MODEL, dtype=torch.float64)
        if module.shared_input is not None and module.shared_output is not None:
            hidden = module.shared_input(x[0, t])
            gate = None if module.shared_gate is None else module.activation(module.shared_gate(x[0, t]))
            shared = module.shared_output(module.activation(hidden) if gate is None else gate * hidden)
            close(found["mlp.shared_out"][0, t], shared)
            total += shared
        for e in chosen:
            up, act = module.input.one(e, x[0, t]), module.activation
            if module.gate is None:
                hidden = act(up)
            else:
                gate = module.gate.one(e, x[0, t])
                if config.limit is not None:
                    gate, up = gate.clamp(max=config.limit), up.clamp(-config.limit, config.limit)
                hidden = act(gate) * (up + config.shift)
            share = shares[e] / over * config.factor
            total += share * module.output.one(e, hidden)
            close(found["mlp.weights"][0, t, e], share)
        close(found["mlp.out"][0, t], total)
        assert (found["mlp.weights"][0, t] != 0).sum() == config.n_chosen
    close(found["mlp.expert_out"].sum(-2) + (found["mlp.shared_out"] if beside else 0), found["mlp.out"])


def chosen_by_loop(config: MixtureOfExperts, shares: Tensor, bias: Tensor | None) -> list[int]:
    """Return which experts run, worked out with lists."""
    ranked = (shares if bias is None else shares + bias).tolist()
    size = config.n_experts // config.n_groups
    groups = [range(i * size, (i + 1) * size) for i in range(config.n_groups)]
    groups.sort(key=lambda group: -sum(sorted((ranked[e] for e in group), reverse=True)[: config.group_best]))
    open_to = [e for group in groups[: config.n_chosen_groups] for e in group]
    return sorted(open_to, key=lambda e: -ranked[e])[: config.n_chosen]


@given(seeds)
def test_softmax_over_all_renormalised_is_softmax_over_the_chosen(seed: int) -> None:
    kept, shares = (layer(MixtureOfExperts(5, 2, 4, renormalised=r), seed) for r in (True, False))
    logits = torch.randn(1, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    plain = shares.weights(logits, chosen := shares.choices(logits))
    close(kept.weights(logits, chosen), plain / plain.sum(-1, keepdim=True))


@given(seeds, st.sampled_from(CONFIGS[:2]))
def test_an_edited_weight_runs_another_expert(seed: int, config: MixtureOfExperts) -> None:
    module, x = layer(config, seed), stream(1, 4, seed)
    each = read(module, x, "mlp.expert_out", edit=(Set("mlp.weights", 1.0),))["mlp.expert_out"]
    only = read(module, x, "mlp.out", edit=(Set("mlp.weights", 0.0), Set("mlp.weights", 2.0, at=At(expert=3))))
    close(only["mlp.out"], 2 * each[..., 3, :])


@given(seeds)
def test_edited_choices_run_other_experts_and_none_at_all(seed: int) -> None:
    module, x = layer(CONFIGS[0], seed), stream(1, 4, seed)
    first, rest = Set("mlp.chosen", 1.0, at=At(expert=1)), Set("mlp.chosen", 0.0)
    found = read(module, x, "mlp.weights", "mlp.out", edit=(rest, first))
    close(found["mlp.weights"][..., 1], torch.ones(1, 4))
    assert not found["mlp.weights"][..., [0, 2, 3]].any()
    assert not read(module, x, edit=(rest,))["returned"].any()


def test_derivatives_by_weights_tell_of_experts_that_were_not_chosen() -> None:
    case = subject("experts")
    tape = case.tape("blocks.0.mlp.weights", grad=True)
    (gradient,) = torch.autograd.grad(case(tape).sum(), tape.values["blocks.0.mlp.weights"])
    assert (gradient != 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_keeps_its_type(dtype: torch.dtype) -> None:
    module, x = layer(CONFIGS[0]).to(dtype), stream(2, 3).to(dtype)
    assert module.write(x).dtype == dtype
    close(module.write(x), layer(CONFIGS[0]).write(stream(2, 3)).to(dtype), 0.1)


@pytest.mark.parametrize("shared", [0, 12])
def test_work_is_counted_for_the_experts_that_run(shared: int) -> None:
    experts = MixtureOfExperts(8, 2, 24, choice_bias=shared > 0, d_shared=shared or None)
    config = DecoderConfig(50, 16, (block(n_heads=2, norm=RmsNorm(), mlp=experts),) * 2)
    found, parameters = count_flops(config, 10), count_parameters(config)
    for part in ("mlp in", "mlp gate", "mlp out"):
        assert found[part] == 2 * 2 * 10 * 16 * (2 * 24 + shared)
        assert parameters[part] == 2 * 16 * (8 * 24 + shared)
    assert found["router"] == 2 * 2 * 10 * 16 * 8 and parameters["router"] == 2 * (16 * 8 + 8 * (shared > 0))
    with FlopCounterMode(display=False) as counter:
        # in float64 products go by operators that the counter knows
        config.build().double()(torch.zeros(1, 10, dtype=torch.int64))
    # but for attention, which is fused: whether that is counted depends on the version of PyTorch
    counted = {str(operator): work for operator, work in counter.get_flop_counts()["Global"].items()}
    products = sum(work for operator, work in counted.items() if "attention" not in operator)
    assert products == sum(found.values()) - found["mixing"]


# analyses -------------------------------------------------------------------------------------------------------------


def test_direct_logit_attribution_calls_experts_an_mlp_and_sums_to_the_logit() -> None:
    case = subject("experts")
    run = analysis.run(case.model, case.inputs[0], read=[direct_logit_attribution])
    found = direct_logit_attribution(run, answer=3, position=None, row=None)
    assert {c.kind for c in found.components if c.label.endswith(" mlp")} == {"mlp"}
    close(found.contributions.values.sum(-1), case()[..., 3])


@pytest.mark.parametrize(
    "ask",
    [
        lambda case: analysis.from_weights.virtual_weights(case.model),
        lambda case: analysis.subspaces.rotation_test(case.model, case.inputs[0]),
        lambda case: card_of(neuron_effects).reads(case.model),
    ],
)
def test_analyses_of_one_set_of_matrices_say_what_they_lack(ask) -> None:
    with pytest.raises(AnalysisUnavailable):
        ask(subject("experts"))


def test_matrices_of_the_rest_are_there_and_the_forward_pass_is_whole() -> None:
    case = subject("experts")
    mixed = DecoderConfig(
        11, 12, (block(n_heads=2, mlp=Mlp(8)), block(n_heads=2, mlp=MixtureOfExperts(3, 2, 6)))
    ).build().double()  # fmt: skip
    for model in (case.model, randomise(mixed, std=0.3)):
        for fold in (False, True):
            w = weights.of(model, fold=fold, augment=fold)
            expected, found = (x.log_softmax(-1) for x in (model(case.inputs[0]), weights.logits(w, case.inputs[0])))
            close(found, expected)
    assert [layer.name for layer in weights.of(case.model).opaque] == ["mlp", "mlp"]


@in_one_pass
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixtureOfExperts(2, 3), "experts: n_chosen=3 must lie between 1 and n_experts=2."),
        (lambda: MixtureOfExperts(limit=0.0), "experts: limit must be positive, found 0.0."),
        (
            lambda: MixtureOfExperts(6, n_groups=4),
            "experts: n_experts=6 do not stand in n_groups=4 of equal size.",
        ),
        (
            lambda: MixtureOfExperts(6, 3, n_groups=3),
            "experts: n_chosen_groups=1 of 3 groups of 2 must hold n_chosen=3 experts.",
        ),
        (
            lambda: MixtureOfExperts(6, 2, n_groups=3, group_best=3),
            "experts: group_best=3 must lie between 1 and 2, the experts of a group.",
        ),
        (lambda: MixtureOfExperts(d_shared=0), "experts: d_shared must be at least 1, found 0."),
        (
            lambda: MixtureOfExperts(gated=False, shift=1.0),
            "experts: shift=1.0 moves the linear branch of gated experts.",
        ),
    ],
)
def test_experts_that_make_no_sense_raise(make, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == message
