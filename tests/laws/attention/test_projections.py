"""Laws of the projection slot: what each kind keeps, and what short convolutions do to queries, keys and values."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, strategies as st

import glassformer as gf
from glassformer import analysis, weights
from glassformer.attention import (
    Activated,
    Alibi,
    Attention,
    Convolved,
    Latent,
    Linear,
    PositionsConfig,
    ProjectionConfig,
    QueryKeyOnly,
    Rope,
    Separate,
    Shifted,
    Smeared,
    Softmax,
    Tied,
)
from glassformer.errors import AnalysisUnavailable, ConfigError, NoPattern
from glassformer.models import BlockConfig, Decoder, DecoderConfig, Mlp, beam_search, generate
from glassformer.models.sampling import GREEDY
from glassformer.models.stack import make_context, tensors, with_source
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, layers, randomise, seeds, stream
from glassformer.trace import At, Scale, Set, Tape
from glassformer.weights.forward import logits
from one_pass import in_one_pass

KINDS: dict[str, ProjectionConfig] = {
    "separate": Separate(bias=True, qk_norm=True),
    "activated": Activated(bias=True, qk_norm=True),
    "smeared": Smeared(bias=True),
    "convolved": Convolved(width=3, bias=True),
    "convolved wide": Convolved(width=6, qk_norm=True),
    "convolved alone": Convolved(width=1),
    "shifted": Shifted(bias=True),
    "shifted by what is read": Shifted(rank=2, centred=True),
    "latent": Latent(5),
    "latent with a rotary key": Latent(5, rotary=2, query_rank=4, norm=True),
    "tied": Tied(bias=True, qk_norm=True),
    "identity": Tied(query="identity"),
    "general": Tied(key="identity", bias=True),
    "general of keys": Tied(query="identity", key="own"),
}
# a Gaussian is for mechanisms of two streams, and has its tests with them
COVERED = {config.kind for config in KINDS.values()} | {"gaussian"}
PLACES: list[PositionsConfig] = [Rope(), Rope(at_read=True), Alibi(), QueryKeyOnly()]
every = pytest.mark.parametrize("name", KINDS)
# keys that are made anew at every step are turned when they are read
USUAL = {name: Rope(at_read=name == "latent") for name in KINDS}
# where the stream is cut into heads they are as wide as it together; keys that are made as queries are come in as many
GROUPED = [name for name, kind in KINDS.items() if not isinstance(kind, Tied)]
CASES = [
    (name, place)
    for name, kind in KINDS.items()
    for place in PLACES
    # what is read at two positions is mixed as it stands
    if not (isinstance(kind, Shifted) and place == QueryKeyOnly())
    if not isinstance(kind, Latent) or place in PLACES[1:3] or (kind.rotary and place == PLACES[0])
]


def attention(name: str, positions: PositionsConfig | None, **kwargs: Any) -> Attention:
    groups = 2 if name in GROUPED else 4
    return Attention(4, groups, positions=positions or USUAL[name], projection=KINDS[name], **kwargs)


def built(name: str, positions: PositionsConfig | None = None, seed: int = 0, **kwargs: Any) -> Layer:
    config = attention(name, positions, **kwargs)
    return Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval(), seed))


def decoder(name: str, positions: PositionsConfig | None = None, mixer: Any = None) -> Decoder:
    part = attention(name, positions, mixer=mixer or Softmax())
    layer = BlockConfig((part, Mlp(8)))
    return randomise(DecoderConfig(11, 16, (layer,) * 2, max_len=24).build().double().eval(), std=0.3)


def test_every_kind_is_covered() -> None:
    assert set(ProjectionConfig.registry) == COVERED


@pytest.mark.parametrize(("name", "positions"), CASES, ids=str)
@given(seed=seeds, cuts=st.sets(st.integers(1, 6)))
def test_segments_cut_anywhere_equal_one_pass(name: str, positions: PositionsConfig, seed: int, cuts: set[int]) -> None:
    layer, x = built(name, positions, seed), stream(2, 7, seed)
    state, pieces = layer.module.begin(2, x), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 7]):
        context = make_context(2, stop - start, x.device, is_causal=True, past=start)
        out, state = layer.module(x[:, start:stop], context, state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), layer(x))


@every
@given(seeds, st.integers(1, 6))
def test_what_is_kept_can_be_cut_or_says_that_it_cannot(name: str, seed: int, cut: int) -> None:
    layer, x = built(name, seed=seed), stream(2, 7, seed)
    _, state = layer.module(x[:, :6], causal_context(x[:, :6]), state=layer.module.begin(2, x))
    mixes = layer.module.projection.state_numbers(6, 0) > 0 and not layer.module.projection.stores_keys
    assert layer.module.keeps(6) != mixes
    if mixes:
        return
    context = make_context(2, 7 - cut, x.device, is_causal=True, past=cut)
    close(layer.module(x[:, cut:], context, state=layer.module.cut(state, cut))[0], layer(x)[:, cut:])


@every
def test_the_state_has_the_stated_size_and_the_mechanism_keeps_nothing_of_the_projection(name: str) -> None:
    layer, x = built(name), stream(3, 5)
    _, state = layer.module(x, causal_context(x), state=layer.module.begin(3, x))
    assert sum(part[0].numel() for part in tensors(state.projection)) == layer.module.projection.state_numbers(5, 0)
    if layer.module.projection.stores_keys:
        assert state.mixer is None
    else:
        groups = layer.module.dims.n_kv_heads
        assert state.mixer.key.shape == (3, groups, 5, 3) and state.mixer.value.shape == (3, groups, 5, 3)


@pytest.mark.parametrize("mixer", [Softmax(), Linear()], ids=["softmax", "linear"])
@every
def test_ragged_prompts_and_beams_continue_as_they_would_alone(name: str, mixer: Any) -> None:
    if isinstance(KINDS[name], Latent) and not mixer.stores_keys:
        return
    model, rows = decoder(name, mixer=mixer), [[3, 1, 4, 1, 5], [9, 2], [7]]
    together = generate(model, rows, GREEDY, max_new_tokens=5).tokens
    assert list(together) == [generate(model, [row], GREEDY, max_new_tokens=5).tokens[0] for row in rows]
    beams = beam_search(model, rows, n_beams=3, max_new_tokens=4)
    for row, found in zip(rows, beams.hypotheses):
        alone = beam_search(model, [row], n_beams=3, max_new_tokens=4).hypotheses[0]
        assert [h.tokens for h in found] == [h.tokens for h in alone]


@given(seeds, st.sampled_from(PLACES), st.booleans())
def test_keys_of_a_source_are_made_once_and_rotated_as_they_are_written(
    seed: int, positions: PositionsConfig, without_gradients: bool
) -> None:
    assume(not isinstance(positions, Alibi))
    layer = built("separate", positions, seed, cross=True)
    x, source = stream(2, 4, seed), stream(2, 5, seed + 1)
    whole = with_source(causal_context(x), 5)
    expected, values = layer(x, whole, source=source), layer.read(x, "key", "value", context=whole, source=source)
    state, pieces = layer.module.begin(2, x), []
    for t in range(4):
        step = with_source(make_context(2, 1, x.device, is_causal=True, past=t), 5)
        # what is in the state is not asked for again
        reads = source if t == 0 else torch.full_like(source, torch.nan)
        out, state = layer.module(x[:, t : t + 1], step, source=reads, state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), expected)
    assert state.mixer is None
    close(state.projection.key, values["key"])
    close(state.projection.value, values["value"])
    assert layer.module.projection.state_numbers(4, 5) == sum(p[0].numel() for p in tensors(state))
    assert layer.module.keeps(4) and layer.module.cut(state, 2) is not None


@pytest.mark.parametrize("name", ["smeared", "convolved"])
def test_what_mixes_keys_with_earlier_ones_is_refused_in_cross_attention(name: str) -> None:
    with pytest.raises(ConfigError, match="another sequence's"):
        Attention(4, projection=KINDS[name], cross=True)


# latents --------------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 7))
def test_latents_are_the_projection_of_their_joined_matrices(seed: int, rank: int) -> None:
    config = Attention(4, 2, positions=Rope(at_read=True), projection=Latent(rank))
    latent = randomise(config.build(D_MODEL, 32, 0, "").double().eval(), seed)
    plain = config.replace(projection=Separate()).build(D_MODEL, 32, 0, "").double().eval()
    x = stream(2, 6, seed)
    with torch.no_grad():
        plain.projection.qkv.weight.copy_(latent.projection.qkv.weight)
        plain.merge.load_state_dict(latent.merge.state_dict())
    close(Layer(latent)(x), Layer(plain)(x))
    key = latent.projection.matrix("key")
    assert int(torch.linalg.matrix_rank(key.movedim(1, 0).flatten(1))) <= rank
    assert latent.state_bytes(6, 0, torch.float64) == 6 * rank * 8


def test_weights_and_circuits_of_latents_are_those_of_the_joined_matrices() -> None:
    model = decoder("latent")
    ids = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
    close(logits(weights.of(model), ids), model(ids))
    close(logits(weights.matrices(model), ids).log_softmax(-1), model(ids).log_softmax(-1))
    found = analysis.attribution.direct_logit_attribution(model, ids, answer=3, position=None, row=None)
    close(found.sum.values, found.total.values)


@pytest.mark.parametrize(
    ("site", "axis"), [("attn.key", "key"), ("attn.value", "key"), ("resid_pre", "pos"), ("attn.z", "pos")]
)
def test_sweeps_over_latents_equal_the_plain_loop(site: str, axis: str) -> None:
    model = decoder("latent")
    clean, corrupt = torch.randint(11, (2, 1, 7), generator=torch.Generator().manual_seed(0))
    donor = analysis.sweep.Donor(clean)
    plan = analysis.sweep.grid(
        lambda layer, at: [Set(f"blocks.{layer}.{site}", donor, at=At(**{axis: at}))], layer=range(2), at=range(7)
    )
    metric = analysis.sweep.logit_difference(1, 2)
    quick = analysis.sweep.sweep(model, corrupt, plan, metric).values
    close(quick.values, analysis.sweep.one_by_one(model, corrupt, plan, metric).values.values)


@in_one_pass
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"positions": Rope()}, "at_read=True"),
        ({"positions": QueryKeyOnly()}, "at_read=True"),
        ({"mixer": Linear()}, "takes each key once"),
        ({"mixer": Softmax(window=3)}, "leave its window out"),
    ],
)
def test_what_latents_cannot_go_with_is_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Attention(4, 2, projection=Latent(5), **kwargs).build(D_MODEL, 32, 0, "")


def test_an_edit_of_what_a_head_reads_is_refused_where_latents_are_carried() -> None:
    model = decoder("latent")
    tape = Tape(model, edit=[Scale("L0H1.query_in", 0.0)])
    state = model.begin(1)
    with pytest.raises(AnalysisUnavailable, match="latents that all heads share"):
        model(torch.tensor([[1, 2]]), state=state, tape=tape)


# short convolutions ---------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 5), st.integers(1, 7))
def test_it_is_torchs_depthwise_convolution_before_norms_and_rotation(seed: int, width: int, n: int) -> None:
    layer = Layer(randomise(Attention(2, projection=Convolved(width=width)).build(D_MODEL, 8, 0, "").double(), seed))
    x = stream(2, n, seed)
    found = layer.read(x, "query", "key", "value")
    for name, mix in zip(("query", "key", "value"), layer.module.projection.convolutions):
        flat = (x @ layer.module.projection.matrix(name).transpose(0, 1).flatten(1)).mT
        # theirs goes from the position furthest back to one's own
        kernel = mix.taps.flip(0).flatten(1).T[:, None]
        expected = F.conv1d(F.pad(flat, (width - 1, 0)), kernel, groups=len(kernel)).mT
        close(found[name].transpose(1, 2).flatten(-2), expected)


@given(st.data())
def test_taps_of_the_identity_leave_everything_as_it_was(data: st.DataObject) -> None:
    layer = data.draw(layers("differential"))
    assume(layer.config.projection.kind == "separate")
    fields = {name: getattr(layer.config.projection, name) for name in ("bias", "qk_norm", "clip", "groups")}
    config = layer.config.replace(projection=Convolved(width=3, **fields))
    mixed = config.build(D_MODEL, 32, 0, "").double().eval()
    mixed.load_state_dict(layer.module.state_dict(), strict=False)
    x = stream(2, 5)
    close(Layer(mixed)(x), layer(x))


def test_each_document_begins_anew() -> None:
    model = decoder("convolved wide")
    first, second = torch.tensor([[3, 1, 4, 1]]), torch.tensor([[5, 9, 2]])
    packed = model(torch.cat((first, second), 1), documents=torch.tensor([[0, 0, 0, 0, 1, 1, 1]]))
    close(packed[:, :4], model(first))
    close(packed[:, 4:], model(second))


def test_weights_give_the_same_logits_and_refuse_single_products() -> None:
    model, ids = decoder("convolved", QueryKeyOnly()), torch.tensor([[1, 2, 3, 1, 2]])
    for folded in (False, True):
        close(weights.logits(weights.of(model, fold=folded), ids).log_softmax(-1), model(ids).log_softmax(-1), 1e-8)
    with pytest.raises(AnalysisUnavailable, match="mixes queries and keys with those just before"):
        weights.of(model)["L0H0"].qk(0)
    with pytest.raises(AnalysisUnavailable, match="mixes values with those just before"):
        weights.of(model)["L0H0"].ov()


def test_what_takes_a_value_for_a_map_of_its_position_says_that_it_is_none() -> None:
    model = decoder("convolved")
    run = gf.run(model, torch.tensor([[1, 2, 3, 1, 2]]), read="*")
    for question in (lambda: analysis.token_flow.rollout(run), lambda: analysis.circuits.circuit_graph(model)):
        with pytest.raises((NoPattern, AnalysisUnavailable), match="just before them"):
            question()
    with pytest.raises(AnalysisUnavailable, match="no product of one query and one key"):
        analysis.paths.score_paths(run, head="L0H0")
