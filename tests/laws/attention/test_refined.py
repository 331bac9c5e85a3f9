"""Attention on attention weights: what the refinements equal, and against plain loops."""

from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention import Attention, Context, Gaussian, Mask, Refined, RefinedWasserstein, Rope, Softmax
from glassformer.attention.mechanisms.wasserstein import points, squared_distances
from glassformer.errors import TextError
from glassformer.models import DecoderConfig, block
from glassformer.models.accounting import count_flops
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass

KINDS: list[tuple[Literal["simple", "value_weighted"], int | None]] = [("simple", None), ("value_weighted", 2)]
SETTINGS: list[Any] = [
    Refined(by=by, additive=additive, use_logits=use_logits, rank=rank)
    for by, rank in KINDS
    for additive in (False, True)
    for use_logits in (False, True)
]
ALL = [*SETTINGS, RefinedWasserstein(), RefinedWasserstein(rank=2)]
refinements = st.sampled_from(SETTINGS)
every = st.sampled_from(ALL)


def built(mixer: Any, seed: int = 0, max_len: int = 9, std: float = 0.4, **fields: Any) -> Layer:
    config = Attention(4, 2, 3, 5, mixer=mixer, **fields)
    return Layer(randomise(config.build(D_MODEL, max_len, 0, "").double().eval(), seed, std))


def without_matrices(layer: Layer) -> Layer:
    with torch.no_grad():
        for matrix in layer.mixer.parameters():
            matrix.zero_()
    return layer


def visible(n: int) -> Tensor:
    return torch.ones(n, n).tril().bool()


def uniform(n: int) -> Tensor:
    return visible(n).double() / torch.arange(1, n + 1)[:, None]


@given(seeds, refinements)
def test_it_is_a_plain_loop_over_rows(seed: int, mixer: Any) -> None:
    layer, n = built(mixer, seed), 5
    found = layer.read(stream(1, n, seed), "first_scores", "scores", "pattern")
    query, key, value = layer.mixer.query, layer.mixer.key, layer.mixer.value
    for head in range(4):
        first = found["first_scores"][0, head]
        rows = [first[i, : i + 1] if mixer.use_logits else first[i, : i + 1].softmax(0) for i in range(n)]

        def mapped(i: int, matrix: Tensor, rows: list[Tensor] = rows, head: int = head) -> Tensor:
            return sum(weight * matrix[head, j] for j, weight in enumerate(rows[i]))  # type: ignore[return-value]

        for i in range(n):
            alike = torch.stack([mapped(i, query) @ mapped(k, key) for k in range(i + 1)]) / query.shape[-1] ** 0.5
            if mixer.weighs_values:
                seen = torch.stack([mapped(k, value)[: i + 1] for k in range(i + 1)])
                alike = alike.softmax(0) @ seen
            scores = alike + rows[i] if mixer.additive else alike
            close(found["scores"][0, head, i, : i + 1], scores)
            close(found["pattern"][0, head, i, : i + 1], scores.softmax(0))
            assert (found["pattern"][0, head, i, i + 1 :] == 0).all()


@given(seeds, st.integers(1, 6), st.booleans())
def test_without_matrices_simple_refinement_is_uniform(seed: int, n: int, use_logits: bool) -> None:
    for mixer in (Refined(use_logits=use_logits), Refined(by="value_weighted", use_logits=use_logits)):
        pattern = without_matrices(built(mixer, seed)).read(stream(2, n, seed), "pattern")["pattern"]
        close(pattern, uniform(n).expand_as(pattern))


@given(seeds, st.sampled_from(["simple", "value_weighted"]))
def test_without_matrices_additive_refinement_is_softmax_of_what_is_refined(seed: int, by: Any) -> None:
    x = stream(2, 6, seed)
    found = without_matrices(built(Refined(by=by, additive=True), seed)).read(x, "first_pattern", "pattern")
    hidden = float("-inf")
    close(found["pattern"], found["first_pattern"].masked_fill(~visible(6), hidden).softmax(-1))
    # of weights it is not the weights, and nearly flat: entries differ by one at most
    seen = found["pattern"][..., visible(6)] * (1 / uniform(6))[visible(6)]
    assert (seen < 2.72).all() and (seen > 0.36).all()
    # of scores it is softmax attention
    layer = without_matrices(built(Refined(by=by, additive=True, use_logits=True), seed))
    softmax = Attention(4, 2, 3, 5, mixer=Softmax()).build(D_MODEL, 9, 0, "").double().eval()
    names = softmax.state_dict()
    softmax.load_state_dict({name: value for name, value in layer.module.state_dict().items() if name in names})
    close(layer(x), Layer(softmax)(x))


@pytest.mark.parametrize("mixer", ALL, ids=str)
def test_what_is_declared_is_visited_and_weights_that_nobody_makes_are_not_declared(mixer: Any) -> None:
    layer = built(mixer)
    assert list(layer.read(stream(1, 3), "*")) == list(layer.sites())


@given(seeds, every)
def test_equal_rows_of_weights_are_refined_alike(seed: int, mixer: Any) -> None:
    layer, x, positions = built(mixer, seed), stream(1, 6, seed), torch.arange(6)[None]
    name = "first_scores" if getattr(mixer, "use_logits", False) else "first_pattern"

    def alike(value: Tensor) -> Tensor:
        return torch.cat((value[:, :, :5], value[:, :, 2:3]), 2)

    # everything may be attended to: under a causal mask the later of two rows also meets itself
    plain, edited = layer.tape("scores"), layer.tape("scores", edit={name: alike})
    for tape in (plain, edited):
        layer(x, Context(Mask(), positions, positions), tape=tape)
    scores = edited.values["scores"]
    close(scores[:, :, 5], scores[:, :, 2])
    assert (plain.values["scores"][:, :, 5] - plain.values["scores"][:, :, 2]).abs().max() > 1e-6


@given(seeds, every, st.integers(1, 6))
def test_refined_weights_depend_on_no_later_token_and_sum_to_one(seed: int, mixer: Any, n: int) -> None:
    layer, x = built(mixer, seed), stream(1, n, seed).requires_grad_()
    tape = layer.tape("pattern", grad=True)
    layer(x, tape=tape)
    pattern = tape.values["pattern"]
    means = pattern[:, 0] if pattern.ndim == 5 else pattern
    close(means.sum(-1), torch.ones_like(means[..., 0]))
    for i in range(n):
        (reach,) = torch.autograd.grad(means[0, :, i].square().sum(), x, retain_graph=True)
        assert (reach[0, i + 1 :] == 0).all()


@given(seeds, every, st.sets(st.integers(1, 6)))
def test_steps_on_a_state_give_the_rows_of_one_pass(seed: int, mixer: Any, cuts: set[int]) -> None:
    projection: Any = {"projection": Gaussian()} if mixer.traits.value_streams == 2 else {}
    layer, x = built(mixer, seed, positions=Rope(), **projection), stream(2, 7, seed)
    whole = layer.read(x, "first_scores", "pattern", "out")
    state = layer.module.begin(2, x)
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 7]):
        context = make_context(2, stop - start, x.device, is_causal=True, past=start)
        tape = layer.tape("first_scores", "pattern", "out")
        _, state = layer.module(x[:, start:stop], context, state=state, tape=tape)
        for name in ("first_scores", "pattern"):
            rows = whole[name][..., start:stop, :stop]
            seen = rows.isfinite()
            close(tape.values[name][seen], rows[seen])
        close(tape.values["out"], whole["out"][:, start:stop])
    assert layer.module.keeps(7)
    for cut in (0, 4):
        context = make_context(2, 7 - cut, x.device, is_causal=True, past=cut)
        close(layer.module(x[:, cut:], context, state=layer.module.cut(state, cut))[0], whole["out"][:, cut:])


@in_one_pass
@pytest.mark.parametrize("mixer", ALL, ids=lambda mixer: mixer.described)
def test_a_document_reads_what_it_reads_alone_and_longer_ones_are_refused(mixer: Any) -> None:
    # more tokens in the row than there are places
    layer, x = built(mixer, max_len=4), stream(1, 10)
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2]])
    packed = layer.read(x, "pattern", context=causal_context(x, document_ids=ids))["pattern"]
    for document in range(3):
        where = (ids[0] == document).nonzero()[:, 0]
        close(packed[..., where, :][..., where], layer.read(x[:, where], "pattern")["pattern"])
    with pytest.raises(TextError, match=r"5 tokens, but layer 0 .* max_len=4"):
        layer(x[:, :5])


@given(seeds)
def test_refined_distances_are_those_of_rows_made_gaussians(seed: int) -> None:
    mixer, n = RefinedWasserstein(rank=2), 5
    layer, x = built(mixer, seed, projection=Gaussian()), stream(2, n, seed)
    found = layer.read(x, "query", "key", "value", "first_pattern", "scores", "pattern", "z")
    q, k = points(found["query"]), points(found["key"].repeat_interleave(2, 2))
    first = (-squared_distances(q, k).sum(1) * 3**-0.5).masked_fill(~visible(n), float("-inf"))
    close(found["first_pattern"], first.softmax(-1))
    mean = torch.einsum("bhij,hjr->bhir", found["first_pattern"], layer.mixer.mean[:, :n])
    root = (F.elu(torch.einsum("bhij,hjr->bhir", found["first_pattern"], layer.mixer.covariance[:, :n])) + 1).sqrt()
    for i in range(n):
        for j in range(i + 1):
            apart = (mean[:, :, i] - mean[:, :, j]).square().sum(-1) + (root[:, :, i] - root[:, :, j]).square().sum(-1)
            close(found["scores"][:, :, i, j], -apart * 2**-0.5)
    pattern, value = found["pattern"][:, 0], found["value"].repeat_interleave(2, 2)
    close(found["z"], torch.cat((pattern @ value[:, 0], pattern.square() @ value[:, 1]), -1))
    flat = without_matrices(layer).read(x, "pattern")["pattern"][:, 0]
    close(flat, uniform(n).expand_as(flat))


@in_one_pass
@pytest.mark.parametrize("mixer", ALL, ids=lambda mixer: mixer.described)
def test_it_costs_what_torch_counts(mixer: Any) -> None:
    config = DecoderConfig(11, 12, (block(mixer, n_heads=3),), max_len=10)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        config.build()(torch.zeros(1, 7, dtype=torch.int64))
    assert counter.get_total_flops() == sum(count_flops(config, 7).values())


def test_matrices_are_born_small() -> None:
    mixer = Attention(8, mixer=Refined(by="value_weighted")).build(64, 64, 0, "").mixer
    for matrix in mixer.parameters():
        assert 0.019 < float(matrix.detach().std()) < 0.021
