"""Adapters: what each kind makes of a matrix, who sees it, and that a model is left as it was."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer import weights
from glassformer.adaptation import (
    Adapter,
    AdapterConfig,
    CorDA,
    FullTuning,
    Lora,
    LowRank,
    MiLora,
    SingularScales,
    Svf,
)
from glassformer.analysis.gradients import linear_gradients
from glassformer.errors import AnalysisUnavailable, ConfigError, ShapeMismatch, UnknownSite
from glassformer.models import Model
from glassformer.numerics.parametrized import seen_state
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES

KINDS: tuple[AdapterConfig, ...] = (
    Svf(), Svf("code"), Lora(2, 4.0), MiLora(2), CorDA(2), CorDA(2, "instruction"), FullTuning(),
)  # fmt: skip
NAMES = tuple(kind.described for kind in KINDS)
KEY = "blocks.1.attn.key"


def model(name: str = "llama", seed: int = 0) -> Model:
    return ARCHITECTURES[name].build(seed).double().eval()


def ids(of: Model, rows: int = 2) -> Tensor:
    return torch.randint(0, of.config.vocab_size, (rows, 6), generator=torch.Generator().manual_seed(1))


def built(config: AdapterConfig, of: Model, matrices: Any = "*", seed: int = 0) -> Adapter:
    return config.build(of, matrices, seed=seed, sample=list(ids(of)) if config.reads_sample else None)


def moved(adapter: Adapter, by: float = 0.1, seed: int = 0) -> Adapter:
    """The adapter with its numbers somewhere else, as training would leave them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in adapter.parameters():
            one += by * torch.randn(one.shape, generator=generator, dtype=one.dtype)
    return adapter


def merged(of: Model, name: str = "llama") -> Model:
    """A model that has, in parameters of its own, what another one's passes see."""
    made = model(name, 1)
    made.load_state_dict(seen_state(of))
    return made


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_kind_begins_as_the_model_and_leaves_it_bit_for_bit(kind: AdapterConfig) -> None:
    one = model()
    before = {name: (id(p), p.data_ptr(), p._version, p.clone()) for name, p in one.named_parameters()}
    keys, digest, x = list(one.state_dict()), one.digest(), ids(one)
    logits = one(x)
    adapter = built(kind, one)
    with adapter.attached(one):
        # constant scales of the code's form are divided by their sum
        close(one(x), logits, 0.0 if kind != Svf("code") else 1e-14)
        moved(adapter)
        assert (one(x) - logits).abs().max() > 1e-6
        assert one.digest() != digest
    after = {name: (id(p), p.data_ptr(), p._version) for name, p in one.named_parameters()}
    assert {name: known[:3] for name, known in before.items()} == after
    assert all(torch.equal(p, before[name][3]) for name, p in one.named_parameters())
    assert list(one.state_dict()) == keys and list(before) == list(after)
    assert one.digest() == digest and torch.equal(one(x), logits)
    assert not any("parametri" in type(module).__name__.lower() for module in one.modules())


def test_scales_of_one_are_the_matrix_and_what_they_make_is_linear_in_them() -> None:
    one = model()
    change = built(Svf(), one, KEY).changes[KEY]
    assert isinstance(change, SingularScales)
    base = one.matrices(KEY)[0].values.detach()
    assert torch.equal(change.composed(base), base)
    z = torch.rand(3, len(change.s), dtype=torch.float64)
    z[2] = 0.25 * z[0] + 0.75 * z[1]
    made = list[Tensor]()
    for row in z:
        with torch.no_grad():
            change.z.copy_(row)
            made.append(change.composed(base))
            close(made[-1].norm(), (change.s * row).norm(), 1e-12)
    close(made[2], 0.25 * made[0] + 0.75 * made[1], 1e-12)
    with torch.no_grad():
        change.z.copy_(z[0])
        change.z[1:3] = 0
        assert torch.linalg.matrix_rank(change.composed(base)) == len(change.s) - 2


def test_the_gradient_of_a_scale_is_its_direction_in_the_gradient_of_the_matrix() -> None:
    one = model()
    adapter = moved(built(Svf(), one, KEY))
    change, x = adapter.changes[KEY], ids(one)
    assert isinstance(change, SingularScales)

    def loss(of: Model) -> Tensor:
        return of(x).log_softmax(-1)[..., 3].sum()

    with adapter.attached(one):
        loss(one).backward()
        plain = merged(one)
    loss(plain).backward()
    weight = plain.matrices(KEY)[0]
    assert weight.weight.grad is not None
    assert change.z.grad is not None
    rows = weight.weight.grad[weight.rows.start : weight.rows.stop]
    close(change.z.grad, change.s * torch.einsum("oi,od,id->i", change.u, rows, change.vh), 1e-10)
    # the original is constant, and stays without a gradient
    assert one.matrices(KEY)[0].weight.grad is None


def test_the_code_form_keeps_the_nuclear_norm_and_constant_logits_change_nothing() -> None:
    one = model()
    change = built(Svf("code", max_mult=2.0), one, KEY).changes[KEY]
    assert isinstance(change, SingularScales)
    base = one.matrices(KEY)[0].values.detach()
    with torch.no_grad():
        for constant in (-3.0, 0.1, 2.0):
            close(change.composed(base), base, 1e-14)
            change.z.fill_(constant)
        change.z.copy_(torch.randn(len(change.s), dtype=torch.float64))
        made = change.composed(base)
    assert (made - base).abs().max() > 0.01
    close(torch.linalg.svdvals(made).sum(), torch.linalg.svdvals(base).sum(), 1e-12)


def test_lora_adds_its_scaled_product_and_the_last_directions_are_what_milora_trains() -> None:
    one = model()
    base = one.matrices(KEY)[0].values.detach()
    with torch.no_grad():
        lora = moved(built(Lora(2, 6.0), one, KEY)).changes[KEY]
        assert isinstance(lora, LowRank)
        close(lora.composed(base), base + 3.0 * lora.b @ lora.a, 1e-14)
        last = built(MiLora(3), one, KEY).changes[KEY]
        assert isinstance(last, LowRank)
        u, s, vh = torch.linalg.svd(base, full_matrices=False)
        close(last.b @ last.a, (u[:, -3:] * s[-3:]) @ vh[-3:], 1e-12)
        moved_last = moved(built(MiLora(3), one, KEY)).changes[KEY]
        assert isinstance(moved_last, LowRank)
        kept = base - last.b @ last.a
        close(moved_last.composed(base), kept + moved_last.b @ moved_last.a, 1e-12)


def test_corda_sorts_directions_by_what_they_do_on_a_sample() -> None:
    one = model()
    base = one.matrices(KEY)[0].values.detach()
    rank = min(base.shape)
    sample = list(ids(one, 8))
    with torch.no_grad():
        whole = CorDA(rank).build(one, KEY, sample=sample).changes[KEY]
        assert isinstance(whole, LowRank)
        # W = U S V C^-1
        close(whole.b @ whole.a, base, 3e-12)
        read = one.sub_layer("blocks.1.attn").at_read
        x = gf.run(one, torch.stack(sample), read=[read])[read].values.flatten(0, 1)
        moments = x.mT @ x / len(x)
        damped = moments + 0.01 * moments.diagonal().mean() * torch.eye(len(moments), dtype=x.dtype)
        singular = torch.linalg.svdvals(base @ damped)
        for config, left in ((CorDA(2, "instruction"), singular[2:]), (CorDA(2, "knowledge"), singular[:-2])):
            made = config.build(one, KEY, sample=sample).changes[KEY]
            assert isinstance(made, LowRank)
            # what is frozen acts on the sample as what is left of the decomposition
            close(torch.linalg.svdvals((base - made.b @ made.a) @ damped)[: len(left)], left, 1e-9)


def test_full_tuning_trains_as_the_parameter_itself_would() -> None:
    one, plain = model(), model()
    adapter, x = built(FullTuning(), one, "blocks.0.mlp.input"), ids(one)
    weight = plain.matrices("blocks.0.mlp.input")[0].weight
    optimisers = [torch.optim.AdamW([p], lr=0.01) for p in (*adapter.parameters(), weight)]
    with adapter.attached(one):
        for _ in range(3):
            for of, optimiser in zip((one, plain), optimisers):
                optimiser.zero_grad()
                of(x).log_softmax(-1)[..., 0].sum().backward()
                optimiser.step()
        assert torch.equal(one.matrices("blocks.0.mlp.input")[0].weight, weight)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_everyone_sees_the_changed_matrices(kind: AdapterConfig, tmp_path: Path) -> None:
    one = model()
    adapter, x = moved(built(kind, one, ["blocks.*.attn.*", "blocks.1.mlp.*"])), ids(one, 1)
    with adapter.attached(one):
        plain = merged(one)
        assert torch.equal(one(x), plain(x)) and one.digest() == plain.digest()
        run, expected = gf.run(one, x, read=["blocks.1.attn.pattern"]), gf.run(plain, x, read=["blocks.1.attn.pattern"])
        assert torch.equal(run["pattern", 1].values, expected["pattern", 1].values)
        for ours, theirs in zip(weights.of(one).attention, weights.of(plain).attention):
            assert torch.equal(ours.Q, theirs.Q) and torch.equal(ours.O, theirs.O)
        close(weights.folded(one)(x), weights.folded(plain)(x), 1e-14)
        # products are known by where a weight lies, with gradients and without
        found, wanted = linear_gradients(one, x), linear_gradients(plain, x)
        assert found.norm.coords == wanted.norm.coords and not found.left_out
        close(found.norm.values, wanted.norm.values, 1e-12)
        opened = gf.load(gf.save(one, tmp_path), dtype=torch.float64)
        assert torch.equal(opened(x), one(x))
    assert not torch.equal(one(x), plain(x))


def test_queries_keys_and_values_are_apart_in_their_joined_map_and_experts_in_their_stack() -> None:
    for name, chosen in (("llama", KEY), ("experts", "blocks.0.mlp.input.1")):
        one = model(name)
        before = {known.name: known.values.detach().clone() for known in one.matrices()}
        with moved(built(Lora(1), one, chosen)).attached(one):
            changed = [known.name for known in one.matrices() if not torch.equal(known.values, before[known.name])]
        assert changed == [chosen]


def test_what_is_composed_is_kept_until_a_number_changes_and_has_the_gradient_of_composing() -> None:
    one = model()
    adapter = moved(built(Lora(2), one, KEY))
    change, base = adapter.changes[KEY], one.matrices(KEY)[0].values.detach().clone()
    with adapter.attached(one):
        matrix = one.matrices(KEY)[0]
        first = matrix.weight
        with torch.no_grad():
            assert matrix.weight is matrix.weight
            assert matrix.weight.data_ptr() == first.data_ptr()
        weighing = torch.randn(matrix.shape, dtype=torch.float64)
        found = torch.autograd.grad((matrix.values * weighing).sum(), list(adapter.parameters()))
        expected = torch.autograd.grad((change.composed(base) * weighing).sum(), list(adapter.parameters()))
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, theirs, 1e-14)
        moved(adapter, seed=1)
        assert not torch.equal(matrix.weight, first)
        adapter.requires_grad_(False)
        assert not matrix.weight.requires_grad
        with torch.inference_mode():
            moved(adapter, seed=2)
            one(ids(one))
        # nothing that inference mode made is left for passes outside of it
        one(ids(one)).sum().backward()


def test_half_precision_is_composed_in_float32_and_given_back_in_its_type() -> None:
    one = ARCHITECTURES["llama"].build(0).bfloat16().eval()
    adapter = moved(built(Svf(), one, KEY))
    base = one.matrices(KEY)[0].values.detach().clone()
    assert all(one.dtype == torch.float32 for one in adapter.parameters())
    with adapter.attached(one), torch.no_grad():
        found = one.matrices(KEY)[0].values
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, (base.float() + adapter.changes[KEY].difference(base)).bfloat16())


def test_adapters_of_other_weights_stand_side_by_side_and_of_one_weight_do_not() -> None:
    one = model()
    attention, mlp = (moved(built(Lora(1), one, f"blocks.*.{part}.*")) for part in ("attn", "mlp"))
    both = moved(built(Lora(1), one, "blocks.1.attn.value"))
    x, alone = ids(one), model()(ids(one))
    with attention.attached(one):
        with mlp.attached(one):
            assert (one(x) - alone).abs().max() > 0.01
        with pytest.raises(ConfigError, match="another adapter is attached"):
            both.attach(one)
        with pytest.raises(ConfigError, match="attached already"):
            attention.attach(one)
        with pytest.raises(ConfigError, match="Detach it first"):
            Svf().build(one)
    assert not both.is_attached and torch.equal(one(x), alone)


def test_what_an_adapter_cannot_be_of_is_said() -> None:
    one = model()
    with pytest.raises(UnknownSite, match=r'no matrix "blocks.0.attn.querry".* Nearest: "blocks.0.attn.query"'):
        Svf().build(one, "blocks.0.attn.querry")
    with pytest.raises(ConfigError, match="give sample="):
        CorDA(2).build(one)
    with pytest.raises(ConfigError, match="leave sample out"):
        Svf().build(one, sample=[[1, 2]])
    with pytest.raises(ConfigError, match="rank=400 directions"):
        MiLora(400).build(one, KEY)
    with pytest.raises(AnalysisUnavailable, match="no row of the sample comes to"):
        CorDA(1).build(model("experts"), "blocks.*.mlp.input.*", sample=[[1]])
    with pytest.raises(ShapeMismatch, match="made for another model"):
        built(Lora(1), model("gpt2"), "blocks.0.mlp.input").attach(one)
    with pytest.raises(UnknownSite, match="lacks"):
        built(Lora(1), one, "blocks.0.mlp.gate").attach(model("gpt2"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_matrices_of_every_architecture_have_names_of_their_own_and_can_be_adapted(name: str) -> None:
    one = model(name)
    names = [known.name for known in one.matrices()]
    assert len(set(names)) == len(names)
    before = {key: value.clone() for key, value in one.state_dict().items()}
    adapter = moved(built(Lora(1), one))
    with adapter.attached(one):
        assert set(seen_state(one)) == set(before)
        changed = {key for key, value in seen_state(one).items() if not torch.equal(value, before[key])}
        assert len(changed) == len({id(known.module) for known in one.matrices()})
    assert all(torch.equal(value, before[key]) for key, value in one.state_dict().items())
