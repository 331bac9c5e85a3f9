"""Laws of latent attention: both routes are one, what is kept is enough, and what ranks and parts mean."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer import analysis, handmade, weights
from glassformer.analysis.paths._importance import order_worlds, sweep
from glassformer.analysis.paths._steps import steps_of
from glassformer.attention import (
    Alibi,
    Attention,
    Differential,
    DualChunk,
    Latent,
    Linear,
    NoPositions,
    PositionsConfig,
    RelativeBias,
    Rope,
    Softmax,
)
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import BlockConfig, Decoder, DecoderConfig, LayerNorm, Mlp, NoNorm, RmsNorm, generate
from glassformer.models.accounting import account, count_flops, count_parameters
from glassformer.models.sampling import GREEDY
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from glassformer.trace import Set, Tape
from one_pass import in_one_pass

FULL = Latent(7, rotary=4, query_rank=5, norm=True)
FORMS = {
    "full": FULL,
    "queries of the stream": FULL.replace(query_rank=None),
    "without norms": FULL.replace(norm=False),
    "without a rotary key": FULL.replace(rotary=0),
    "bare": Latent(7),
}
PLACES: list[PositionsConfig] = [
    NoPositions(), Rope(), Rope(pairing="interleaved", fraction=0.5), Rope(at_read=True), Alibi(), RelativeBias(4, 3),
    DualChunk(2, 4),
]  # fmt: skip
# positions that turn all of a key have to turn it when it is read
CASES = [
    (form, place)
    for form in FORMS
    for place in PLACES
    if FORMS[form].rotary or not isinstance(place, Rope | DualChunk) or getattr(place, "at_read", False)
]
# the others are walked in the full sweep
OFTEN = [("full", place) for place in (*PLACES[1:4], PLACES[5])] + [("bare", PLACES[0])]
forms = pytest.mark.parametrize(
    "form", ["full", *[pytest.param(f, marks=pytest.mark.full) for f in FORMS if f != "full"]]
)
cases = pytest.mark.parametrize(
    ("form", "place"),
    [case if case in OFTEN else pytest.param(*case, marks=pytest.mark.full) for case in CASES],
    ids=lambda value: getattr(value, "kind", value),
)


def built(form: str = "full", place: PositionsConfig | None = None, seed: int = 0, **kwargs: Any) -> Layer:
    projection = FORMS[form]
    place = place or Rope(at_read=not projection.rotary)
    sizes: dict[str, Any] = {"n_kv_heads": 2, "d_head": 9, "d_value": 5} | kwargs
    config = Attention(4, positions=place, projection=projection, **sizes)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))


def decoder(form: str = "full", norm: Any = None, **kwargs: Any) -> Decoder:
    part = Attention(
        4, 2, d_head=9, d_value=5, projection=FORMS[form], positions=Rope(at_read=not FORMS[form].rotary), **kwargs
    )
    layers = (BlockConfig((part, Mlp(8)), norm or LayerNorm()), BlockConfig((part,), norm or LayerNorm()))
    return randomise(DecoderConfig(11, 16, layers, max_len=24).build().double().eval(), std=0.4)


def steps(layer: Layer, x: Tensor, pieces: list[int], *names: str) -> tuple[Tensor, dict[str, list[Tensor]], Any]:
    """Return what pieces of a text give one after another, what was read of each, and the last state."""
    state, out, found, start = layer.module.begin(len(x), x), list[Tensor](), {name: [] for name in names}, 0
    for n in pieces:
        context = make_context(len(x), n, x.device, is_causal=True, past=start)
        tape = layer.tape(*names) if names else None
        written, state = layer.module(x[:, start : start + n], context, state=state, tape=tape)
        out.append(written)
        for name in names:
            assert tape is not None
            found[name].append(tape.values[name])
        start += n
    return torch.cat(out, 1), found, state


# the two routes -------------------------------------------------------------------------------------------------------


@cases
@given(seeds, st.sampled_from([Softmax(), Softmax(cap=0.7), Softmax(sinks=True), Softmax(scale=0.3)]))
def test_steps_by_either_route_give_what_one_pass_gives(form: str, place: Any, seed: int, mixer: Softmax) -> None:
    layer, x = built(form, place, seed, mixer=mixer), stream(2, 9, seed)
    calls = counted(layer)
    pieces = [6, 1, 2]
    absorbed, _, _ = steps(layer, x, pieces)
    turned_whole = isinstance(place, Rope) and not FORMS[form].rotary
    assert calls == ([] if turned_whole else ["absorbed", "absorbed"])
    plain, _, _ = steps(layer, x, pieces, "key")
    # a site of keys is wanted: they are made
    assert len(calls) == (0 if turned_whole else 2)
    close(absorbed, plain)
    close(plain, layer(x))


def counted(layer: Layer) -> list[str]:
    """Return a list that grows with each step by the absorbed route, which is taken wherever it can be."""
    calls: list[str] = []
    projection = layer.module.projection
    usual, decides = projection.absorbed, projection.absorbs

    def absorbed(*args: Any) -> Any:
        calls.append("absorbed")
        return usual(*args)

    def absorbs(n_new: int, kept: Any, positions: Any) -> bool:
        # as if much were kept; never for the first piece
        many = kept._replace(rows=kept.rows.new_zeros(1, 10_000, 1))
        return kept.rows.shape[1] > 0 and decides(1, many, positions)

    projection.absorbed, projection.absorbs = absorbed, absorbs
    return calls


@given(seeds)
def test_gradients_of_both_routes_agree(seed: int) -> None:
    layer, x = built(seed=seed), stream(1, 7, seed)
    counted(layer)
    found = []
    with torch.enable_grad():
        for names in ((), ("key",)):
            out, _, _ = steps(layer, x, [5, 1, 1], *names)
            found.append(torch.autograd.grad(out.square().sum(), list(layer.module.parameters())))
    for one, other in zip(*found):
        close(one, other)


def test_the_route_is_the_one_with_fewer_multiply_adds() -> None:
    layer = built()
    projection: Any = layer.module.projection
    begun = projection.begin(1, stream(1, 1))

    def absorbs(n_new: int, n_kept: int, which: Any = projection) -> bool:
        return which.absorbs(n_new, begun._replace(rows=begun.rows.new_zeros(1, n_kept, 1)), layer.module.positions)

    # both by hand, for one query over 100 keys: 2 key heads, 4 heads, r = 7, d_R = 4, d_C = 5, d_value = 5
    assert 100 * 2 * 7 * 10 + 4 * 100 * 14 == 19_600
    assert 4 * (7 * 10 + 100 * 22) == 9_080
    assert absorbs(1, 99) and not absorbs(50, 50) and not absorbs(1, 0)
    streams = Attention(4, d_head=8, projection=FULL, positions=Rope(), mixer=Differential()).build(D_MODEL, 8, 0, "")
    assert not absorbs(1, 99, streams.projection)


@in_one_pass
@pytest.mark.parametrize("site", ["query", "key", "value", "scores", "pattern", "z"])
def test_a_site_means_the_same_at_a_step_as_in_one_pass(site: str) -> None:
    layer, x = built(), stream(2, 8)
    calls = counted(layer)
    _, found, _ = steps(layer, x, [5, 2, 1], site)
    assert bool(calls) == (site == "z")
    whole, last = layer.read(x, site)[site], found[site][-1]
    close(last, whole if site in ("key", "value") else whole[..., -1:, :])


def test_other_mechanisms_take_the_plain_route() -> None:
    layer, x = built(mixer=Differential(), d_head=9), stream(2, 8)
    calls = counted(layer)
    close(steps(layer, x, [5, 2, 1])[0], layer(x))
    assert not calls
    with pytest.raises(ConfigError, match="takes each key once"):
        built(mixer=Linear())


# what is kept ---------------------------------------------------------------------------------------------------------


@forms
def test_a_position_is_kept_as_its_normed_latent_and_its_turned_key(form: str) -> None:
    layer, x, config = built(form), stream(2, 6), FORMS[form]
    _, _, state = steps(layer, x, [4, 2])
    rows = state.projection.rows
    assert rows.shape == (2, 6, config.rank + config.rotary) and state.mixer is None
    assert layer.module.projection.state_numbers(6, 0) == rows[0].numel()
    assert layer.module.state_bytes(6, 0, torch.float16) == 2 * rows[0].numel()
    if config.norm:
        raw = (x @ layer.module.projection.down.weight.mT)[..., : config.rank]
        gain = layer.module.projection.norm.weight
        close(rows[..., : config.rank], raw / (raw.square().mean(-1, keepdim=True) + config.eps).sqrt() * gain)
    if config.rotary:
        # all heads share it, behind what is made of the latent
        key = layer.read(x, "key")["key"]
        close(key[..., -config.rotary :], rows[:, None, :, config.rank :].expand(-1, 2, -1, -1))


def test_ragged_rows_and_documents_read_as_each_would_alone() -> None:
    model = decoder()
    first, second = torch.tensor([[3, 1, 4, 1]]), torch.tensor([[5, 9, 2]])
    packed = model(torch.cat((first, second), 1), documents=torch.tensor([[0, 0, 0, 0, 1, 1, 1]]))
    close(packed, torch.cat((model(first), model(second)), 1))
    close(model(torch.tensor([[0, 5, 9, 2]]), start=torch.tensor([1]))[:, 1:], model(second))
    close(model(torch.tensor([[5, 9, 2, 0]]), lengths=torch.tensor([3]))[:, :3], model(second))
    rows = [[3, 1, 4, 1, 5], [9, 2], [7]]
    together = generate(model, rows, GREEDY, max_new_tokens=6).tokens
    assert list(together) == [generate(model, [row], GREEDY, max_new_tokens=6).tokens[0] for row in rows]


# what ranks and parts mean --------------------------------------------------------------------------------------------


@pytest.mark.full
@given(seeds)
def test_with_a_rank_of_all_keys_and_values_it_can_be_plain_attention(seed: int) -> None:
    plain = Layer(randomise(Attention(3, d_head=4, d_value=2).build(D_MODEL, 32, 0, "").double().eval(), seed))
    rank = 3 * (4 + 2)
    latent = Layer(Attention(3, d_head=4, d_value=2, projection=Latent(rank)).build(D_MODEL, 32, 0, "").double().eval())
    query, key_and_value = plain.module.projection.qkv.weight.split((12, rank))
    made = latent.module.projection
    with torch.no_grad():
        made.query.weight.copy_(query)
        made.down.weight.copy_(key_and_value)
        made.up.weight.copy_(torch.eye(rank))
        latent.module.merge.load_state_dict(plain.module.merge.state_dict())
    x = stream(2, 6, seed)
    close(latent(x), plain(x))


@given(seeds, st.integers(1, 9))
def test_scores_without_rotation_have_the_rank_of_the_latent_at_most(seed: int, rank: int) -> None:
    projection = Latent(rank, rotary=4)
    layer = Layer(
        randomise(Attention(2, d_head=9, projection=projection).build(D_MODEL, 32, 0, "").double().eval(), seed)
    )
    read = layer.read(stream(1, 12, seed), "query", "key")
    content = read["query"][..., :5] @ read["key"][..., :5].mT
    assert int(torch.linalg.matrix_rank(content, rtol=1e-9).max()) <= min(rank, 5)
    assert int(torch.linalg.matrix_rank(layer.module.projection.matrix("key")[..., :5], rtol=1e-9).max()) <= min(
        rank, 5
    )


@given(seeds, st.integers(1, 20))
def test_positions_turn_the_rotary_part_alone_and_scores_know_distances_alone(seed: int, shift: int) -> None:
    layer, x = built(place=Rope(base=50.0), seed=seed), stream(1, 5, seed)
    here, there = (
        layer.read(x, "query", "key", "scores", context=replace(context, first=None, positions=context.positions + by))
        for by in (0, shift)
        for context in [causal_context(x)]
    )
    for name in ("query", "key"):
        assert torch.equal(here[name][..., :5], there[name][..., :5])
        assert not torch.allclose(here[name][..., 5:], there[name][..., 5:])
    close(here["scores"].nan_to_num(neginf=0.0), there["scores"].nan_to_num(neginf=0.0))
    q, k = here["query"], here["key"].repeat_interleave(2, 1)
    seen = here["scores"].isfinite()
    close((q @ k.mT / 9**0.5)[seen], here["scores"][seen])


@forms
def test_a_layer_is_differentiable_at_all_it_reads(form: str) -> None:
    layer = built(form)

    def out(x: Tensor) -> Tensor:
        return layer.module(x, causal_context(x))[0]

    assert torch.autograd.gradcheck(out, stream(1, 3).requires_grad_())


# what others ask ------------------------------------------------------------------------------------------------------


def test_an_old_config_and_its_weights_mean_what_they_did() -> None:
    data = json.loads(Attention(4, 2, positions=Rope(at_read=True), projection=Latent(5)).to_json())
    data["projection"] = {"kind": "latent", "rank": 5}
    config = Attention.from_json(json.dumps(data))
    assert config.projection == Latent(5)
    layer = config.build(D_MODEL, 32, 0, "")
    assert [name for name, _ in layer.projection.named_parameters()] == ["query.weight", "down.weight", "up.weight"]


@pytest.mark.parametrize("norm", [LayerNorm(), RmsNorm(), NoNorm()], ids=lambda norm: norm.kind)
@forms
def test_written_out_from_matrices_it_gives_the_models_logits(form: str, norm: Any) -> None:
    model, ids = decoder(form, norm), torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
    for w in (weights.of(model), weights.of(model, fold=True), weights.of(model, fold=True, augment=True)):
        close(weights.logits(w, ids).log_softmax(-1), model(ids).log_softmax(-1), 1e-8)


@forms
def test_qk_alone_is_refused_where_a_part_of_keys_passes_a_norm_and_another_does_not(form: str) -> None:
    head = weights.of(decoder(form))["L0H1"]
    assert head.ov().left.shape[-1] == 5
    if not (FORMS[form].norm and FORMS[form].rotary):
        assert head.qk(1).left.shape[-1] == 9
        return
    with pytest.raises(AnalysisUnavailable, match=r"norms the latents that its keys are made of.*\n.*hold\(model\)"):
        head.qk(1)


@forms
def test_paths_and_scores_of_a_run_are_split_with_the_scales_of_latents_held(form: str) -> None:
    model, ids = decoder(form), torch.tensor([[1, 2, 3, 1, 2]])
    run = gf.run(model, ids, read="*")
    found = analysis.attribution.direct_logit_attribution(run, answer=3)
    close(found.sum.values, found.total.values)
    paths = analysis.paths.expand_paths(run, answer=3)
    assert abs(float(paths.by_order.values.sum()) - paths.total) < 1e-9
    steps = steps_of(run, "the test")
    for live in (False, True):
        worlds = sweep(steps, order_worlds(steps.depth), live=live)
        close(steps.logits(worlds[-1], live=live), model(ids))
    by_head = analysis.attribution.source_effects(run, answer=3)
    assert by_head is not None
    for head in ("L0H3", "L1H0"):
        split = analysis.paths.score_paths(run, head=head)
        layer, h = int(head[1]), int(head[3])
        scores = run[f"blocks.{layer}.attn.scores"].values[0, h]
        seen = scores.isfinite()
        close(split.total.values[seen], scores[seen])


def test_what_a_head_reads_may_be_edited_head_by_head() -> None:
    model, ids = decoder(), torch.tensor([[1, 2, 3, 1]])
    plain = gf.run(model, ids, read=["blocks.1.attn.*"])
    other = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for which, head in (("query", "L1H2"), ("key", "L1H0"), ("value", "L1H0")):
        tape = Tape(model, ["blocks.1.attn.*"], [Set(f"{head}.{which}_in", other)])
        model(ids, tape=tape)
        h, site = int(head[3]), f"blocks.1.attn.{which}"
        whole = Tape(model, [site], [Set("blocks.1.resid_pre", other)])
        model(ids, tape=whole)
        close(tape.values[site][:, h], whole.values[site][:, h])
        rest = [i for i in range(tape.values[site].shape[1]) if i != h]
        close(tape.values[site][:, rest], plain[site].values[:, rest])


def test_a_stream_that_is_turned_changes_nothing() -> None:
    part = Attention(4, d_head=9, d_value=5, projection=FULL, positions=Rope())
    config = DecoderConfig(11, 16, (BlockConfig((part,), NoNorm()),) * 2, max_len=24, final_norm=NoNorm())
    model, ids = randomise(config.build().double().eval(), std=0.3), torch.tensor([[1, 2, 3, 1]])
    close(handmade.rotated(model)(ids), model(ids))


@pytest.mark.parametrize(
    ("projection", "message"),
    [
        (Latent(3, rotary=9), "rotary=9 leaves nothing of d_head=9"),
        (Latent(3, rotary=1), "leaves no pair to turn"),
    ],
)
def test_parts_that_do_not_fit_are_refused(projection: Latent, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Attention(2, d_head=9, projection=projection, positions=Rope()).build(D_MODEL, 8, 0, "")


# what it costs --------------------------------------------------------------------------------------------------------


@forms
def test_parameters_and_state_are_counted_by_part(form: str) -> None:
    config, latent = decoder(form).config, FORMS[form]
    found, d = count_parameters(config), config.d_model
    short, rotary = latent.query_rank, latent.rotary
    queries = d * 4 * 9 if short is None else short * (d + 4 * 9)
    assert found["query"] == 2 * queries
    assert found["latent"] == 2 * d * latent.rank
    assert found["key"] == 2 * (latent.rank * 2 * (9 - rotary) + d * rotary)
    assert found["value"] == 2 * latent.rank * 2 * 5
    assert account(config, 10).state_bytes == 2 * 10 * (latent.rank + rotary) * 4
    assert count_flops(config, 10)["latent"] == 2 * 2 * 10 * d * latent.rank


def test_the_published_sizes_keep_what_the_paper_says() -> None:
    # DeepSeek-V3: 128 heads of 128 + 64, and 576 numbers for each position of each layer
    latent = Latent(512, rotary=64, query_rank=1536, norm=True)
    part = Attention(128, d_head=192, d_value=128, projection=latent, positions=Rope())
    with torch.device("meta"):
        layer = part.build(7168, 4096, 0, "")
    assert layer.projection.state_numbers(1, 0) == 576
