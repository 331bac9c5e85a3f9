"""Laws every mechanism obeys, drawn over head layouts, positions and merge steps.

    class TestMine(MechanismLaws):
        mechanism = Mine

Each law is a function of a kind; pytest finds it as a test of such a class, if the mechanism claims what it speaks of.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, cast

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor

from glassformer.attention import (
    Alibi,
    Attention,
    Context,
    Mask,
    MixerConfig,
    NoPositions,
    PositionsConfig,
    RelativeBias,
    RelativeSinusoids,
    Separate,
    Traits,
    causal,
    documents,
    padding,
    per_query_head,
    window,
)
from glassformer.attention.kernels.paged import PagedRows, Places
from glassformer.errors import ConfigError, NoPattern
from glassformer.models import BlockConfig, DecoderConfig, EncoderConfig, EncoderDecoderConfig
from glassformer.models.stack import make_context, mapped, tensors, with_source
from glassformer.testing.closeness import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import (
    D_MODEL,
    Layer,
    causal_context,
    layers,
    lengths as sizes,
    mixers,
    randomise,
    seeds,
    stream,
)
from glassformer.testing.precision import moved_by_rounding, require_precision
from glassformer.testing.settings import settings
from glassformer.testing.suite import Suite
from glassformer.trace import Scale

SUITE = Suite("kind")


class MechanismLaws:
    """The laws of one mechanism or of several, as tests.

    Args:
        mechanism: Config classes of what is under test. Their `variants` are drawn beside the defaults.
    """

    mechanism: ClassVar[type[MixerConfig] | Sequence[type[MixerConfig]]]

    def __init_subclass__(cls) -> None:
        several = [cls.mechanism] if isinstance(cls.mechanism, type) else cls.mechanism
        SUITE.bind(cls, {str(each.kind): each for each in several}, lambda mechanism: mechanism.kind)


def claiming(claim: Callable[[Traits], bool]) -> Callable[[Any], Any]:
    """Make a law of those mechanisms that claim it."""
    return SUITE.law(lambda mechanism: claim(mechanism.traits))


every = SUITE.law()
stepwise = SUITE.law(lambda mechanism: not mechanism.bidirectional)
scored = SUITE.law(lambda mechanism: mechanism.traits.has_scores and not mechanism.bidirectional)
has_pattern = claiming(lambda traits: traits.linear_in_value != "no")
crossing = SUITE.law(lambda mechanism: cast(Any, mechanism)().crosses)
unordered = SUITE.law(lambda mechanism: cast(Any, mechanism)().crosses and not mechanism.by_order)
exact = claiming(lambda traits: traits.linear_in_value == "exact")


@exact
@given(st.data())
def test_pattern_times_value_is_z(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x = stream(2, n)
    # two runs: asking for the pattern changes the route, so a single run would compare the dense route with itself
    fused, dense = layer.read(x, "query", "value", "z"), layer.read(x, "pattern")
    close(dense["pattern"] @ per_query_head(fused["value"], fused["query"]), fused["z"])


@exact
@given(st.data())
def test_a_written_pattern_is_what_the_probe_finds(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x = stream(2, n)
    assume(not layer.module.positions.has_scores)
    values = layer.read(x, "query", "key", "pattern")
    q, k, context = seen(layer, values["query"], values["key"], x)
    probed = layer.mixer.probe(q, per_query_head(k, q), layer.mix_read(x), context)
    close(values["pattern"], probed)


@has_pattern
@given(st.data())
def test_the_dense_route_gives_the_same_output(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x = stream(2, n)
    close(layer(x, tape=layer.tape("pattern")), layer(x))


@stepwise
@given(st.data())
def test_segments_with_carried_state_equal_one_pass(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    cuts = sorted(data.draw(st.sets(st.integers(1, n))) | {n})
    x = stream(2, n)
    # without gradients a state may grow in place
    with torch.set_grad_enabled(data.draw(st.booleans())):
        state, pieces = layer.module.begin(2, x), []
        for start, stop in zip([0, *cuts], cuts):
            context = make_context(2, stop - start, x.device, is_causal=True, past=start)
            out, state = layer.module(x[:, start:stop], context, state=state)
            pieces.append(out)
    close(torch.cat(pieces, 1), layer(x))


@scored
@pytest.mark.parametrize("place", [Alibi(), RelativeBias(4, 6)], ids=["alibi", "relative"])
def test_segments_of_scores_that_are_biased_equal_one_pass(kind: str, place: PositionsConfig) -> None:
    # every setting under every cut: among all kinds of positions, those that bias scores are seldom drawn
    cls = cast(Any, MixerConfig.registry[kind])
    x = stream(2, 7)
    for mixer in (cls(**fields) for fields in ({}, *cls.variants)):
        config = Attention(2, 2, 4, mixer=mixer, positions=place)
        layer = Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval(), 1))
        with torch.no_grad():
            whole = layer(x)
            for cuts in ((0, 1, 7), (0, 3, 5, 7), (0, 4, 5, 6, 7)):
                state, pieces = layer.module.begin(2, x), []
                for start, stop in pairwise(cuts):
                    context = make_context(2, stop - start, x.device, is_causal=True, past=start)
                    out, state = layer.module(x[:, start:stop], context, state=state)
                    pieces.append(out)
                close(torch.cat(pieces, 1), whole)


@stepwise
@given(st.data())
def test_one_state_can_be_continued_twice(kind: str, data: st.DataObject) -> None:
    layer, cut = data.draw(layers(kind)), data.draw(st.integers(1, 4))
    x, other = stream(2, 6), stream(2, 6, 5)
    other[:, :cut] = x[:, :cut]
    context = make_context(2, 1, x.device, is_causal=True, past=cut)
    with torch.set_grad_enabled(data.draw(st.booleans())):
        _, state = layer.module(x[:, :cut], causal_context(x[:, :cut]), state=layer.module.begin(2, x))
        before = [part.clone() for part in tensors(state)]
        outs = [layer.module(u[:, cut : cut + 1], context, state=state)[0] for u in (x, other, x)]
        after = tensors(state)
    for out, whole in zip(outs, (x, other, x)):
        close(out, layer(whole[:, : cut + 1])[:, cut:])
    assert all(torch.equal(a, b) for a, b in zip(after, before))


@stepwise
@given(st.data())
def test_rows_that_lie_in_pages_are_continued_as_contiguous_ones_are(kind: str, data: st.DataObject) -> None:
    layer, n, m = data.draw(layers(kind)), data.draw(sizes), data.draw(st.integers(1, 3))
    x = stream(2, n + m)
    # in any order, and nothing but the text's own slots holds numbers
    slots = torch.tensor(data.draw(st.permutations(range(2 * (n + m) + 3)))[: 2 * (n + m)]).view(2, -1)
    context = make_context(2, m, x.device, is_causal=True, past=n)
    with torch.no_grad():
        empty = layer.module.begin(2, x)
        _, state = layer.module(x[:, :n], causal_context(x[:, :n]), state=empty)
        grown = iter([a.shape != b.shape for a, b in zip(tensors(empty), tensors(state))])

        def paged(rows: Tensor) -> Tensor | PagedRows:
            if not next(grown):
                return rows
            store = rows.new_full((*rows.shape[1:-2], 2 * (n + m) + 3, rows.shape[-1]), float("nan"))
            own = slots[:, n - rows.shape[-2] : n].flatten()
            store[..., own, :] = rows.movedim(0, -3).flatten(-3, -2)
            return PagedRows(store, Places(slots, m))

        out, _ = layer.module(x[:, n:], context, state=mapped(state, paged))
    close(out, layer(x)[:, n:])


@stepwise
@given(st.data())
def test_scan_equals_parallel(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x = stream(2, n)
    close(layer(x, causal_context(x, form="scan")), layer(x, causal_context(x, form="parallel")))


@every
@given(st.data())
def test_permuting_the_batch_permutes_the_output(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x, order = stream(3, n), torch.tensor([2, 0, 1])
    close(layer(x[order]), layer(x)[order])


@stepwise
@given(st.data())
def test_future_tokens_cannot_change_past_outputs(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    x = stream(1, 5).requires_grad_()
    out = layer(x) @ stream(1, 1, 3)[0, 0]
    influence = torch.stack(
        [torch.autograd.grad(out[0, t], x, retain_graph=True)[0][0].abs().sum(-1) for t in range(5)]
    )
    # exact zero, not small
    assert (influence.triu(1) == 0).all()


@stepwise
@given(st.data())
def test_a_first_position_depends_on_itself_where_its_heads_mix_anything(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    x = stream(1, 5).requires_grad_()
    out = layer(x) @ stream(1, 1, 3)[0, 0]
    influence = torch.autograd.grad(out[0, 0], x)[0][0, 0].abs().sum()
    # weights that are exactly zero, as a squared ReLU's may be, leave nothing to depend on; nor do values cut off
    mixed = layer.read(x.detach(), "z")["z"][..., 0, :].any()
    assert layer.module.projection.clip is not None or not mixed or influence > 0


@every
@given(st.data())
def test_tokens_beyond_a_rows_length_change_nothing_before_it(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    lengths = torch.tensor([2, 5, 4])
    x = stream(3, 5)
    other = x.clone()
    for row, length in enumerate(lengths.tolist()):
        other[row, length:] += 1.0
    # lengths that hide nothing change nothing, of one row either
    close(layer(x[:1], layer.context(x[:1], lengths=torch.tensor([5]))), layer(x[:1]))
    one, two = (layer(u, layer.context(u, lengths=lengths)) for u in (x, other))
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(one[row, :length], two[row, :length])
        close(one[row, :length], layer(x[row : row + 1, :length])[0])


@stepwise
@given(st.data())
def test_left_padded_rows_with_state_equal_rows_on_their_own(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    lengths, total, new = [2, 4, 3], 4, 2
    x = stream(3, total + new)
    start = total - torch.tensor(lengths)
    prompt = make_context(3, total, x.device, is_causal=True, start=start)
    state = layer.module.begin(3, x)
    first, state = layer.module(x[:, :total], prompt, state=state)
    step = make_context(3, new, x.device, is_causal=True, past=total, start=start)
    second, _ = layer.module(x[:, total:], step, state=state)
    both = torch.cat((first, second), 1)
    assert both.isfinite().all()
    for row, begin in enumerate(start.tolist()):
        close(both[row, begin:], layer(x[row : row + 1, begin:])[0])


@every
@given(st.data())
def test_a_row_that_may_attend_to_nothing_gives_zeros_and_finite_gradients(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    x = stream(2, 4).requires_grad_()
    # left padding: the first positions of a row see themselves only, and are padding themselves; read both ways they
    # see the others, so that there all of a row is padding
    empty = 4 if layer.config.mixer.bidirectional else 2
    start = torch.tensor([empty, 0])
    for names in ((), ("pattern",)):
        if names and "pattern" not in layer.sites():
            continue
        tape = layer.tape("z", *names, grad=True)
        out = layer(x, layer.context(x, start=start), tape=tape)
        assert (tape.values["z"][0, :, :empty] == 0).all()
        if names:
            assert (tape.values["pattern"][0, ..., :empty, :] == 0).all()
        gradients = torch.autograd.grad(out.square().sum(), [x, *layer.module.parameters()], allow_unused=True)
        assert all(g.isfinite().all() for g in gradients if g is not None)


@every
@given(st.data())
def test_gradients_equal_finite_differences(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    x, projection = stream(1, 3).requires_grad_(), layer.module.projection
    # a difference across the corner where a coordinate is cut off is the slope of neither side
    assume(projection.clip is None or ((projection.qkv(x).abs() - projection.clip).abs() > 1e-5).all())
    assert torch.autograd.gradcheck(layer, (x,), fast_mode=True)


@has_pattern
@given(st.data())
def test_fused_and_dense_routes_have_the_same_gradients(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x = stream(2, n).requires_grad_()
    wanted = [x, *layer.module.parameters()]

    def gradients(out: Tensor) -> list[Tensor]:
        found = torch.autograd.grad((out * stream(2, n, 9)).sum(), wanted, allow_unused=True)
        return [torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted)]

    fused, dense = gradients(layer(x)), gradients(layer(x, tape=layer.tape("pattern")))
    close(torch.cat([g.flatten() for g in dense]), torch.cat([g.flatten() for g in fused]))


@claiming(lambda traits: traits.rows_sum_to_one)
@given(st.data())
def test_rows_sum_to_one_where_claimed(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    assume(layer.mixer.traits.rows_sum_to_one)
    pattern = layer.read(stream(2, n), "pattern")["pattern"]
    assert (pattern >= 0).all()
    # linear attention adds eps = 1e-6 to a normaliser of order one
    close(pattern.sum(-1), torch.ones_like(pattern[..., 0]), 1e-4)


@every
@given(st.data())
def test_scores_exist_exactly_where_claimed(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    assert ("scores" in layer.sites()) == layer.mixer.traits.has_scores


def _adds_to_scores(layer: Layer) -> bool:
    """Whether a layer's positions add to the products of its queries and keys."""
    return layer.module.positions.has_bias or isinstance(layer.config.positions, RelativeSinusoids)


@claiming(lambda traits: traits.bilinear_scores)
@given(st.data())
def test_scores_are_bilinear_where_claimed(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    assume(layer.mixer.traits.bilinear_scores and not _adds_to_scores(layer))
    x = stream(1, 4)
    plain = layer.read(x, "scores")["scores"]
    seen = plain.isfinite()
    for name in ("query", "key"):
        tape = layer.tape("scores", edit=[Scale(name, 2.0)])
        layer(x, tape=tape)
        close(tape.values["scores"][seen], 2 * plain[seen])


@claiming(lambda traits: traits.by_products)
@given(st.data(), seeds)
def test_only_products_of_queries_and_keys_are_seen_where_claimed(kind: str, data: st.DataObject, seed: int) -> None:
    layer, n = data.draw(layers(kind, placed=st.just(NoPositions()))), data.draw(sizes)
    x, d_head = stream(2, n), layer.module.dims.d_head
    found = layer.read(x, "query", "key", "value", "z")
    # wider, and no longer of the same lengths
    wider = torch.randn(d_head, d_head + 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q, k = found["query"] @ wider, found["key"] @ (wider @ wider.mT).inverse() @ wider
    context = layer.context(x)
    for tape in (None, layer.tape("pattern")):
        close(layer.mixer(q, k, found["value"], layer.mix_read(x), context, None, tape)[0], found["z"])


@claiming(lambda traits: traits.has_scores)
@given(st.data())
def test_capped_scores_are_a_rising_function_of_bilinear_ones(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    if not layer.mixer.traits.capped_scores or _adds_to_scores(layer):
        # a claim of some settings only
        return
    assert not layer.mixer.traits.bilinear_scores
    x = stream(1, 4)
    plain = layer.read(x, "scores", "scores_raw")
    seen = plain["scores"].isfinite()
    close(layer.mixer.capped(plain["scores_raw"])[seen], plain["scores"][seen])
    order = plain["scores_raw"][seen].argsort()
    assert (plain["scores"][seen][order].diff() >= 0).all()
    for name in ("query", "key"):
        tape = layer.tape("scores_raw", edit=[Scale(name, 2.0)])
        layer(x, tape=tape)
        close(tape.values["scores_raw"][seen], 2 * plain["scores_raw"][seen])


@has_pattern
@given(st.data())
def test_rows_lack_mass_where_claimed(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    if not layer.mixer.traits.rows_lack_mass:
        return
    assert not layer.mixer.traits.rows_sum_to_one
    pattern = layer.read(stream(2, n), "pattern")["pattern"]
    assert (pattern >= 0).all() and (pattern.sum(-1) < 1 + 1e-12).all()


@every
@given(st.data())
def test_one_position_works(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    out = layer(stream(2, 1))
    assert out.shape == (2, 1, D_MODEL)
    assert out.isfinite().all()


@every
@given(st.data())
def test_memory_layout_of_the_input_does_not_matter(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x = stream(2, n)
    strided = x.mT.contiguous().mT
    assert n == 1 or not strided.is_contiguous()
    close(layer(strided), layer(x))


@every
@given(st.data())
def test_what_heads_write_plus_the_bias_is_what_attention_writes(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x = stream(2, n)
    written = layer.read(x, "head_out")["head_out"].sum(1)
    bias = layer.module.merge.output.bias
    close(written if bias is None else written + bias, layer.read(x, "out")["out"])


@every
@given(st.data())
def test_a_config_survives_json(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    assert Attention.from_json(layer.config.to_json()) == layer.config
    assert MixerConfig.from_json(layer.config.mixer.to_json()) == layer.config.mixer


@every
@given(st.data())
def test_documents_in_one_row_do_not_see_each_other(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    x = stream(2, 6)
    ids = torch.tensor([[0, 0, 1, 1, 1, 2], [4, 4, 4, 4, 5, 5]])
    x.requires_grad_()
    packed, alone = layer(x, layer.context(x, document_ids=ids)), []
    for row in range(2):
        for document in ids[row].unique():
            where = ids[row] == document
            alone.append(layer(x[row : row + 1, where])[0])
            close(packed[row, where], alone[-1])
    weights = torch.sin(torch.arange(packed.numel(), dtype=packed.dtype)).view_as(packed)
    of_alone = (torch.cat(alone).view_as(packed) * weights).sum()
    found, expected = (torch.autograd.grad(total, x) for total in ((packed * weights).sum(), of_alone))
    close(found[0], expected[0])


@every
@given(st.data())
def test_documents_in_one_row_cost_what_they_cost_apart(kind: str, data: st.DataObject) -> None:
    """Nothing is made for each pair of positions of a row, forwards or backwards."""
    layer, n = data.draw(layers(kind)), 390
    assume(not layer.module.positions.has_scores)
    x = stream(1, n).requires_grad_()
    with Largest() as seen:
        layer(x, layer.context(x, document_ids=torch.arange(n)[None] // 30)).sum().backward()
    assert seen.numbers < n * n


@exact
@given(st.data(), seeds)
def test_grouped_heads_equal_a_plain_loop_over_heads(kind: str, data: st.DataObject, seed: int) -> None:
    """The definition again, head by head and one query at a time: the group and stream of every head is spelled out."""
    layer = data.draw(layers(kind))
    dims, x = layer.module.dims, stream(2, 4, seed)
    values = layer.read(x, "query", "key", "value", "z")
    per_group = dims.n_heads // dims.n_kv_heads
    for head in range(dims.n_heads):
        group = head // per_group
        q, k = values["query"][..., head : head + 1, :, :], values["key"][..., group : group + 1, :, :]
        if layer.mixer.key_streams is not None:
            k = k[:, layer.mixer.key_streams[head]]
        alone = one_head(layer, head, q, k, x)
        close(alone @ values["value"][:, group], values["z"][:, head])


def one_head(layer: Layer, head: int, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    """Return the pattern of one head, by expanding to a layer in which all heads are that head."""
    heads = layer.module.dims.n_heads
    q, k = (u.expand(*u.shape[:-3], heads, -1, -1) for u in (q, k))
    q, k, context = seen(layer, q, k, x)
    return layer.mixer.pattern(q, k, layer.mix_read(x), context, None)[:, head]


def seen(layer: Layer, q: Tensor, k: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Context]:
    """Return queries, keys and context as a mechanism's pattern gets them."""
    context = layer.module.positions.within(layer.context(x))
    return q, context.read(k), context


@every
@given(st.data())
def test_the_projection_is_what_the_matrices_say(kind: str, data: st.DataObject) -> None:
    """Heads and streams are cut from the fused projection by the reference loop below and nowhere else."""
    # of matrices alone: no bias, norm, clip or smear
    layer = data.draw(layers(kind, placed=st.just(NoPositions()), projected=st.just(Separate())))
    projection: Any = layer.module.projection
    dims, traits, x = layer.module.dims, layer.mixer.traits, stream(2, 3)
    values = layer.read(x, "query", "key", "value")
    for name, heads, width, streams in (
        ("query", dims.n_heads, dims.d_head, traits.streams),
        ("key", dims.n_kv_heads, dims.d_head, traits.streams),
        ("value", dims.n_kv_heads, dims.d_value, traits.value_streams),
    ):
        for head in range(heads):
            flat = x @ projection.matrix(name)[head]
            if streams == 1:
                close(values[name][:, head], flat)
            else:
                for s in range(streams):
                    close(values[name][:, s, head], flat[..., s * width : (s + 1) * width])


@unordered
@given(st.data())
def test_cross_attention_sees_no_order_of_the_source(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind, placed=st.just(NoPositions()), cross=True))
    x, source, order = stream(2, 3), stream(2, 5, 7), torch.tensor([3, 1, 4, 0, 2])
    context = with_source(causal_context(x), 5, None)
    plain = layer(x, context, source=source)
    close(layer(x, context, source=source[:, order]), plain)
    if "pattern" in layer.sites():
        context = with_source(causal_context(x), 5, None)
        close(layer(x, context, source=source, tape=layer.tape("pattern")), plain)
    lengths = torch.tensor([2, 5])
    hidden = layer(x, with_source(causal_context(x), 5, lengths), source=source)
    close(hidden[:1], layer(x[:1], with_source(causal_context(x[:1]), 2, None), source=source[:1, :2]))


@crossing
@given(st.data())
def test_cross_state_holds_the_source_and_gives_the_same_output(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind, cross=True))
    x, source = stream(2, 3), stream(2, 5, 7)
    context = with_source(causal_context(x), 5, None)
    whole = layer(x, context, source=source)
    state, pieces = layer.module.begin(2, x), []
    for t in range(3):
        step = make_context(2, 1, x.device, is_causal=True, past=t)
        out, state = layer.module(x[:, t : t + 1], with_source(step, 5, None), source=source, state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), whole)
    assert sum(part[0].numel() for part in state.projection) == layer.module.projection.state_numbers(3, 5)


MASKS = {
    "everything": lambda n: Mask(),
    "window": lambda n: window(2),
    "causal window": lambda n: causal() & window(2),
    "documents": lambda n: documents(torch.arange(n)[None] // 2),
    "padded documents": lambda n: causal() & documents(torch.arange(n)[None] // 2) & padding(torch.tensor([3])),
    "causal or window": lambda n: causal() | window(2),
    "padding": lambda n: padding(torch.tensor([3])),
    "nothing": lambda n: causal() & padding(torch.tensor([0])),
}


@has_pattern
@pytest.mark.parametrize("mask", MASKS)
@given(data=st.data())
def test_both_routes_honour_every_mask(kind: str, mask: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), 5
    x, positions = stream(1, n), torch.arange(n)[None]
    outs = []
    for names in ((), ("pattern",)) if "pattern" in layer.sites() else ((), ()):
        tape = layer.tape("z", *names)
        try:
            layer(x, Context(MASKS[mask](n), positions, positions), tape=tape)
        except ValueError as error:
            outs.append(type(error))
            continue
        outs.append(tape.values["z"])
        if names:
            allowed = MASKS[mask](n).dense(n, n)
            assert (tape.values["pattern"].masked_select(~allowed) == 0).all()
    if isinstance(outs[0], Tensor):
        close(outs[1], outs[0])
    else:
        assert outs[0] is outs[1]


@SUITE.law(lambda mechanism: mechanism.bidirectional)
@given(st.data())
def test_what_needs_a_text_whole_refuses_to_look_back_only_or_to_go_on(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    x = stream(1, 4)
    for context in (causal_context(x), layer.context(x, form="scan")):
        with pytest.raises(ConfigError, match=f'"{kind}"'):
            layer(x, context)
    with pytest.raises(ConfigError, match=f'"{kind}"'):
        layer.module(x, layer.context(x), state=layer.module.begin(1, x))
    assert layer.config.mixer.state_numbers(4, layer.module.dims) == 0
    block = BlockConfig((layer.config,))
    EncoderConfig(11, D_MODEL, (block,))
    with pytest.raises(ConfigError, match=f'"{kind}"'):
        DecoderConfig(11, D_MODEL, (block,))
    with pytest.raises(ConfigError, match=f'"{kind}"'):
        EncoderDecoderConfig(11, D_MODEL, (block,), (block,))


@stepwise
@given(st.data())
def test_scan_refuses_masks_that_are_not_causal(kind: str, data: st.DataObject) -> None:
    """Scanning a bidirectional mask in order would answer with causal attention and no word of warning."""
    layer = data.draw(layers(kind))
    x, positions = stream(1, 4), torch.arange(4)[None]
    mask = Mask()
    try:
        scanned = layer(x, Context(mask, positions, positions, form="scan"))
    except ValueError as error:
        assert "causal" in str(error)
        return
    close(scanned, layer(x, Context(mask, positions, positions)))


@SUITE.law(lambda mechanism: not mechanism.bidirectional and mechanism.traits.linear_in_value != "no")
@given(st.data())
def test_a_pattern_with_state_is_rows_of_the_whole_pattern_or_no_pattern(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    x = stream(2, 5)
    _, state = layer.module(x[:, :3], causal_context(x[:, :3]), state=layer.module.begin(2, x))
    tape = layer.tape("pattern")
    context = make_context(2, 2, x.device, is_causal=True, past=3)
    try:
        layer.module(x[:, 3:], context, state=state, tape=tape)
    except NoPattern as error:
        assert layer.config.mixer.kind is not None and layer.config.mixer.kind in str(error)
        return
    rows = tape.values["pattern"]
    whole = layer.read(x, "pattern")["pattern"][..., 3:, :]
    # a rolling state holds fewer keys: those it dropped had weight zero
    dropped = whole.shape[-1] - rows.shape[-1]
    close(rows, whole[..., dropped:])
    assert (whole[..., :dropped] == 0).all()


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@given(data=st.data())
def test_low_precision_stays_near_float64(kind: str, dtype: torch.dtype, data: st.DataObject) -> None:
    traits = cast(Any, MixerConfig.registry[kind]).traits
    # rotation rounds, and what is rounded may fall into another bucket, or be another's neighbour
    jumps = traits.hashes or traits.searches
    layer = data.draw(layers(kind, placed=st.just(NoPositions())) if jumps else layers(kind))
    # long enough for decays that were rounded to bfloat16 to go astray
    x = stream(2, 32)
    low, high = layer.module.to(dtype), layer
    values = layer.read(x.to(dtype), "query", "key", "value", "z")
    assert low(x.to(dtype), layer.context(x))[0].dtype == dtype
    high.module.double()
    # same queries, keys and values: what is measured is the mechanism, not the projection
    rows = {name: values[name].double() for name in ("query", "key", "value")}
    tape = high.tape("z", edit={name: lambda _, row=row: row for name, row in rows.items()})
    high(x, tape=tape)
    z, error = tape.values["z"], (values["z"].double() - tape.values["z"]).abs()
    # descent whose steps are too long diverges, in any type
    assume(traits.linear_in_value != "no" or z.abs().amax() < 1e3 * values["value"].abs().amax())
    # two roundings of what may be large, sums of eight-bit terms, and (differential) a difference of such sums
    share = {torch.bfloat16: 0.06, torch.float32: 1e-5}[dtype]
    size = z.abs() + z.square().mean().sqrt()
    if layer.config.mixer.traits.streams > 1:
        # a difference is as exact as what is subtracted, averages of the values, however little is left of them
        size = size + values["value"].double().square().mean().sqrt()
    if not (error <= share * size).all():
        # what large scores make of their own rounding is no fault of the mechanism's
        error = error - moved_by_rounding(layer, x, rows, dtype)
    assert (error <= share * size).all()


@every
def test_every_setting_is_as_exact_as_its_number_type(kind: str) -> None:
    for mixer in settings(cast(Any, MixerConfig.registry[kind])):
        require_precision(mixer)


@every
@pytest.mark.full
def test_pairs_of_settings_are_as_exact_as_their_number_type(kind: str) -> None:
    for mixer in settings(cast(Any, MixerConfig.registry[kind]), at_once=2):
        require_precision(mixer)


@stepwise
@given(st.data())
def test_state_has_the_size_that_the_config_states(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x = stream(3, n)
    _, state = layer.module(x, causal_context(x), state=layer.module.begin(3, x))
    held = [sum(part[0].numel() for part in tensors(half)) for half in (state.projection, state.mixer)]
    dims, projection = layer.module.dims, layer.module.projection
    mixer = layer.config.mixer
    stated = mixer.state_numbers(n, dims)
    assert held[0] == projection.state_numbers(n, 0)
    assert held[1] == stated or (mixer.learns_reach and held[1] < stated)


@every
@given(st.data())
def test_reading_a_site_does_not_change_the_output(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    x, table = stream(2, n), layer.sites()
    plain = [name for name, site in table.items() if not site.lazy]
    assert torch.equal(layer(x, tape=layer.tape(*plain)), layer(x))
    close(layer(x, tape=layer.tape("*")), layer(x))


@every
@given(st.data())
def test_every_declared_site_is_visited_in_order_with_the_declared_sizes(kind: str, data: st.DataObject) -> None:
    layer = data.draw(layers(kind))
    x, table = stream(2, 5), layer.sites()
    values = layer.read(x, "*")
    assert list(values) == list(table)
    lengths = {"batch": 2, "pos": 5, "query": 5, "key": 5}
    for name, site in table.items():
        assert tuple(values[name].shape) == tuple((lengths | dict(site.sizes))[axis] for axis in site.axes), name


@every
@given(st.data())
def test_dropping_a_mixer_config_default_changes_nothing(kind: str, data: st.DataObject) -> None:
    mixer = data.draw(mixers(kind))
    assert mixer.replace() == mixer
    assert MixerConfig.from_dict({"kind": kind}) == MixerConfig.registry[kind]()


@SUITE.law(lambda mechanism: mechanism.stores_keys and not mechanism.bidirectional)
@given(st.data())
def test_a_state_that_is_kept_can_be_cut_to_any_earlier_length(kind: str, data: st.DataObject) -> None:
    layer, n = data.draw(layers(kind)), data.draw(sizes)
    cut = data.draw(st.integers(0, n))
    assume(layer.module.keeps(n))
    x = stream(2, n + 1)
    _, state = layer.module(x[:, :n], causal_context(x[:, :n]), state=layer.module.begin(2, x))
    context = make_context(2, n + 1 - cut, x.device, is_causal=True, past=cut)
    close(layer.module(x[:, cut:], context, state=layer.module.cut(state, cut))[0], layer(x)[:, cut:])
