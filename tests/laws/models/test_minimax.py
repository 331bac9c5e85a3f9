"""MiniMax-01: DeepNorm is post-norm on a larger stream, whatever is asked of it, and layers are the report's."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer import weights
from glassformer.analysis.cards import cards
from glassformer.attention import Activated, Attention, Lightning, Merge, Rope, Softmax
from glassformer.errors import ConfigError
from glassformer.models import (
    DecoderConfig,
    MixtureOfExperts,
    Mlp,
    RmsNorm,
    ScaleOnly,
    block,
    deep_norm,
    minimax,
    preset,
)
from glassformer.models.stack import make_context
from glassformer.testing import applies, close
from glassformer.testing.layers import D_MODEL, Layer, randomise, seeds, stream
from glassformer.testing.models import Subject

ALPHA = 1.5


def decoder(*layers: Any, seed: int = 0, alpha: float = ALPHA) -> Any:
    config = DecoderConfig(
        11, 16, layers, max_len=24, embed_norm=RmsNorm(factor=alpha), final_norm=ScaleOnly(1 / alpha), tied=False
    )
    return randomise(config.build().double().eval(), seed, std=0.3)


def ids(seed: int = 0, batch: int = 2) -> Tensor:
    return torch.randint(11, (batch, 7), generator=torch.Generator().manual_seed(seed))


@given(seeds, st.floats(0.3, 4.0))
def test_deep_norm_weighs_the_stream_alpha_times_what_is_written(seed: int, alpha: float) -> None:
    model = decoder(*[block(n_heads=2, mlp=Mlp(8), positions=Rope(), **deep_norm(alpha))] * 2, seed=seed, alpha=alpha)
    tokens = ids(seed)
    context = make_context(2, 7, tokens.device, is_causal=True)

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    u = norm(model.embed.matrix[tokens], model.embed.norm.weight)
    for one in model.stack.blocks:
        for name in ("attn", "mlp"):
            u = norm(alpha * u + one.part(name)(u, context)[0], one.norm_after(name).weight)
    close(model(tokens), u @ model.unembed.matrix.T)


def test_at_one_it_is_post_norm() -> None:
    assert deep_norm(1.0) == {"wiring": "post", "norm": RmsNorm()}
    with pytest.raises(ConfigError, match="norm_before belongs to post-norm blocks"):
        block(n_heads=2, norm_before=ScaleOnly(2.0))
    with pytest.raises(ConfigError, match=r"factor=2\.0 is on a gain, and there is none"):
        RmsNorm(gain=False, factor=2.0)


def test_weights_and_folded_weights_give_its_logits() -> None:
    model = decoder(*[block(n_heads=2, mlp=Mlp(8), positions=Rope(), **deep_norm(ALPHA))] * 2)
    for fold in (False, True):
        found = weights.logits(weights.of(model, fold=fold), ids())
        close(found.log_softmax(-1), model(ids()).log_softmax(-1))


@pytest.fixture(scope="module")
def tiny() -> Subject:
    layers = minimax(2, n_heads=4, n_kv_heads=2, period=2, alpha=ALPHA, experts=MixtureOfExperts(3, 2, 6, balance=0.1))
    return Subject("minimax", decoder(*layers), (ids(batch=3),))


@pytest.mark.parametrize(
    "name",
    [
        "direct_logit_attribution", "source_effects", "logit_lens", "head_roles", "ablate_each", "meaning_shift",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("acdc", "patch", "copying", "circuits", "explain")),
    ],
)  # fmt: skip
def test_analyses_of_a_whole_hybrid_are_what_their_judges_say(name: str, tiny: Subject) -> None:
    card = next(card for card in cards() if card.name == name)
    assert applies.outcome(card, tiny).compared


def test_a_hybrid_goes_on_from_a_state_as_in_one_pass(tiny: Subject) -> None:
    model, (tokens,) = tiny.model, tiny.inputs
    state, pieces = model.begin(3), []
    for part in tokens.split([3, 1, 3], 1):
        logits, state = model(part, state=state)
        pieces.append(logits)
    close(torch.cat(pieces, 1), model(tokens))


@given(seeds)
def test_activated_projections_pass_each_number_through_silu(seed: int) -> None:
    layer = Layer(randomise(Attention(2, projection=Activated()).build(D_MODEL, 8, 0, "").double(), seed))
    x, found = stream(2, 5, seed), layer.read(stream(2, 5, seed), "query", "key", "value")
    for name in ("query", "key", "value"):
        made = x[:, None] @ layer.module.projection.matrix(name)
        close(found[name], made * made.sigmoid())


@given(seeds)
def test_a_gate_of_low_rank_is_the_product_of_its_matrices(seed: int) -> None:
    narrow, whole = (
        randomise(Attention(2, merge=Merge(gate="sigmoid", gate_rank=rank)).build(D_MODEL, 8, 0, "").double(), seed)
        for rank in (3, None)
    )
    own = {name: value for name, value in narrow.state_dict().items() if "gate" not in name}
    whole.load_state_dict(own | {"merge.gate.weight": narrow.merge.gate.weight.detach()})  # type: ignore[union-attr]
    x = stream(2, 5, seed)
    close(Layer(narrow)(x), Layer(whole)(x))


def test_the_preset_is_seven_of_lightning_to_one_of_softmax_as_the_report_has_it() -> None:
    config: Any = preset("minimax-01")
    kinds = [layer.parts[0].mixer for layer in config.layers]
    assert [i for i, kind in enumerate(kinds) if isinstance(kind, Softmax)] == list(range(7, 80, 8))
    first, softmax = config.layers[0].parts[0], config.layers[7].parts[0]
    assert isinstance(first.mixer, Lightning) and first.projection == Activated()
    assert first.merge == Merge(norm="all", gate="sigmoid") and config.departures() == {}
    # the last layer of lightning hardly decays
    slopes = [kind.slopes[0] for kind in kinds if isinstance(kind, Lightning) and kind.slopes is not None]
    assert slopes == sorted(slopes, reverse=True) and slopes[-1] < 0.02 * slopes[0]
    assert softmax.dims(6144, 8).n_kv_heads == 8 and softmax.positions.fraction == 0.5
    assert config.layers[0].norm.factor == pytest.approx(160**0.25)
    whole: Any = minimax(8, n_heads=2, rotated="whole")[7].parts[0]
    assert whole.positions.fraction == 1.0


@pytest.mark.full
def test_the_small_one_learns_and_keeps_its_load_even(tmp_path) -> None:
    from glassformer.data import Repeat
    from glassformer.training import OptimConfig, TrainConfig, read_metrics, train

    layers = minimax(4, n_heads=2, period=4, experts=MixtureOfExperts(4, 1, 16, balance=0.05))
    alpha = 8**0.25
    model = DecoderConfig(
        12, 24, layers, max_len=16, embed_norm=RmsNorm(factor=alpha), final_norm=ScaleOnly(1 / alpha), init="xavier",
        tied=False,
    )  # fmt: skip
    data = Repeat(batch_size=8, length=16, unit_min=3, unit_max=5, vocab_size=12)
    recipe = TrainConfig(
        model, data, optim=OptimConfig(lr=5e-3, warmup=5), steps=30, log_every=10, evaluate_every=30, save_every=30
    )
    train(recipe, tmp_path)
    first, *_, last = read_metrics(tmp_path)
    assert last["heldout_loss"] < first["heldout_loss"] - 0.3 and 1 <= last["balance"] < 2
