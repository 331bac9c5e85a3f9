"""Output layers of few decisions: exact distributions, losses of targets alone, and a model around them."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer.analysis import run
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.lens import logit_lens
from glassformer.bench import product_cost
from glassformer.checkpoints import load, save
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import (
    GREEDY,
    AdaptiveSoftmax,
    DecoderConfig,
    HierarchicalSoftmax,
    LabelSmoothing,
    OutputLayer,
    Sampling,
    beam_search,
    block,
    generate,
)
from glassformer.models.accounting import account, count_flops, count_parameters
from glassformer.models.cutoffs import ProductCost, Vocabulary
from glassformer.models.hierarchical_softmax import HuffmanTree
from glassformer.models.output_layer import FactoredUnembedding, shares
from glassformer.testing import close
from glassformer.testing.layers import randomise, stream
from glassformer.testing.models import ARCHITECTURES, drawn, subject
from glassformer.trace import Apply, Set
from one_pass import in_one_pass

NAMES = [name for name, config in ARCHITECTURES.items() if config.output_layer is not None]
named = pytest.mark.parametrize("name", NAMES)
COUNTS = st.lists(st.integers(1, 100).map(float), min_size=2, max_size=40).map(tuple)


@st.composite
def layers(draw) -> tuple[FactoredUnembedding, Tensor, Tensor]:
    """Draw an output layer with weights of size one, and what it reads."""
    counts = draw(COUNTS)
    if draw(st.booleans()):
        config: OutputLayer = HierarchicalSoftmax(counts)
    else:
        ends = draw(st.none() | st.sets(st.integers(1, len(counts) - 1), max_size=4))
        config = AdaptiveSoftmax(counts, None if ends is None else tuple(sorted(ends)), draw(st.floats(1, 4)))
    seed = draw(st.integers(0, 1000))
    layer = randomise(config.build(len(counts), 8).double(), seed, std=1.0)
    ids = torch.randint(0, len(counts), (2, 5), generator=torch.Generator().manual_seed(seed))
    return layer, stream(2, 5, seed, d_model=8), ids


@given(layers())
def test_logits_are_log_probabilities_and_their_softmax_is_themselves(case) -> None:
    layer, x, _ = case
    logits = layer.logits(x)
    assert logits.logsumexp(-1).abs().max() < 1e-12
    close(logits.log_softmax(-1), logits, 1e-12)


@given(layers(), st.sampled_from([0.0, 0.1, LabelSmoothing(0.2, "others")]))
def test_the_loss_of_targets_alone_is_the_cross_entropy_with_its_gradients(case, smoothing) -> None:
    layer, x, ids = case
    x.requires_grad_()
    weight = torch.arange(10).view(2, 5) % 3 > 0
    found = layer.loss(x, ids, weight, smoothing)
    form = smoothing if isinstance(smoothing, LabelSmoothing) else LabelSmoothing(smoothing)
    if form.over == "others" and layer.vocab_size < 3:
        return
    losses = form.losses(layer.logits(x).flatten(0, 1), ids.flatten())
    expected = losses[weight.flatten()].mean()
    close(found, expected, 1e-12)
    wanted = [x, *layer.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(y, wanted, materialize_grads=True) for y in (found, expected))):
        close(ours, theirs, 1e-10)
    close(layer.log_prob(x, ids), layer.logits(x).gather(-1, ids[..., None])[..., 0], 1e-12)


@given(layers())
def test_inner_logits_are_products_with_the_inner_matrix(case) -> None:
    layer, x, _ = case
    close(layer.raw(x), x @ layer.inner.mT, 1e-12)
    assert (
        layer.raw(x).shape[-1]
        == layer.n_inner
        == dict((s.name, s) for s in layer.sites())["logits_inner"].sizes["inner"]
    )


@pytest.mark.parametrize("config", [AdaptiveSoftmax((5.0, 3.0, 1.0), (1,)), HierarchicalSoftmax((5.0, 3.0, 1.0))])
def test_logits_lie_where_what_is_read_does(config: OutputLayer) -> None:
    layer = config.build(3, 8).to("meta")
    # indices of words are made on the CPU, and meeting one there is an error
    assert layer.logits(stream(1, 2, d_model=8).float().to("meta")).is_meta


@given(COUNTS)
def test_huffmans_tree_has_an_expected_depth_of_the_entropy_and_less_than_one_more(counts) -> None:
    share, tree = shares(counts, len(counts)), HuffmanTree.of(counts)
    entropy = float(-(share * share.log2()).sum())
    expected = float(share @ tree.depths.double())
    assert entropy - 1e-9 <= expected < entropy + 1
    # the code is full: no leaf could be moved up
    assert float((0.5 ** tree.depths.double()).sum()) == 1
    assert [len(tree.path(word)) for word in range(len(counts))] == tree.depths.tolist()
    # frequent words are no deeper than rare ones
    assert (tree.depths[share.argsort()].diff() <= 0).all() or len(set(counts)) < len(counts)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_equal_counts_of_a_power_of_two_give_one_depth(k: int) -> None:
    assert (HuffmanTree.of([3.0] * 2**k).depths == k).all()


def test_ties_take_the_inner_node_first_as_word2vec_does() -> None:
    # 1 + 1 makes an inner node of 2, which goes before the word of 2
    tree = HuffmanTree.of([2.0, 1.0, 1.0, 9.0])
    assert tree.depths.tolist() == [2, 3, 3, 1]
    # the word of larger id is the first child of two equals; the inner node of 2 that of the next
    assert tree.path(2) == [(0, 1), (1, 1), (2, 1)]
    assert tree.path(1) == [(0, 1), (1, 1), (2, -1)]
    assert tree.path(0) == [(0, 1), (1, -1)]
    assert tree.path(3) == [(0, -1)]


@given(COUNTS)
def test_the_tree_is_the_one_that_word2vec_makes(counts) -> None:
    # CreateBinaryTree: words sorted by falling count, then two pointers that walk away from their middle
    size = len(counts)
    order = sorted(range(size), key=lambda word: -counts[word])
    weight = [counts[word] for word in order] + [math.inf] * size
    above, code = [0] * (2 * size), [0] * (2 * size)
    left, right = size - 1, size
    for node in range(size, 2 * size - 1):
        pair = []
        for _ in range(2):
            if left >= 0 and weight[left] < weight[right]:
                pair.append(left)
                left -= 1
            else:
                pair.append(right)
                right += 1
        weight[node] = weight[pair[0]] + weight[pair[1]]
        above[pair[0]] = above[pair[1]] = node
        code[pair[1]] = 1
    tree = HuffmanTree.of(counts)
    for place, word in enumerate(order):
        node, signs = place, []
        while node != 2 * size - 2:
            signs.append(-1 if code[node] else 1)
            node = above[node]
        assert [sign for _, sign in tree.path(word)] == signs[::-1]


def test_a_tree_of_zero_vectors_gives_two_to_the_minus_depth_and_one_word_asks_its_path_alone() -> None:
    layer: Any = HierarchicalSoftmax((5.0, 1.0, 2.0, 8.0, 1.0)).build(5, 4).double()
    torch.nn.init.zeros_(layer.stored)
    x = stream(1, 1, d_model=4)
    close(layer.logits(x)[0, 0], -layer.tree.depths.double() * math.log(2), 1e-12)
    randomise(layer)
    for word in range(5):
        layer.zero_grad()
        layer.loss(x, torch.tensor([[word]])).backward()
        touched = layer.stored.grad.abs().sum(-1).nonzero().flatten().tolist()
        assert touched == sorted(node for node, _ in layer.tree.path(word))
        inner, total = layer.raw(x)[0, 0], 0.0
        for node, sign in layer.tree.path(word):
            total -= float(torch.sigmoid(sign * inner[node]).log().detach())
        assert abs(total - float(layer.loss(x, torch.tensor([[word]])).detach())) < 1e-12


def test_an_adaptive_softmax_of_a_head_alone_is_the_softmax() -> None:
    layer = randomise(AdaptiveSoftmax((1.0, 5.0, 3.0), ()).build(3, 4).double())
    x = stream(1, 2, d_model=4)
    # rows are in the order of frequency
    close(layer.logits(x), (x @ layer.stored[[2, 0, 1]].mT).log_softmax(-1), 1e-12)


def test_words_of_a_cluster_may_change_places_together_with_their_rows() -> None:
    one = randomise(AdaptiveSoftmax((9.0, 8.0, 3.0, 2.0, 1.0), (2,)).build(5, 8).double(), std=1.0)
    other = AdaptiveSoftmax((9.0, 8.0, 1.0, 3.0, 2.0), (2,)).build(5, 8).double()
    other.load_state_dict(one.state_dict())
    x = stream(1, 3, d_model=8)
    close(other.logits(x)[..., [0, 1, 3, 4, 2]], one.logits(x), 1e-12)


def test_the_rare_words_of_absent_clusters_get_no_gradient() -> None:
    layer: Any = randomise(AdaptiveSoftmax(None, (2, 4)).build(8, 8).double())
    layer.loss(stream(1, 3, d_model=8), torch.tensor([[0, 1, 3]])).backward()
    first, second = layer.tails
    assert first.words.weight.grad.any() and second.words.weight.grad is None


@given(st.integers(0, 1000), st.integers(8, 60))
def test_found_cutoffs_cost_no_more_than_any_others(seed: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    share = shares(None, size)
    vocabulary = Vocabulary(share, 64, 1024, ProductCost(1e-4 * float(torch.rand((), generator=generator)), 1e-9))
    found = vocabulary.training_cost(vocabulary.best_cutoffs())
    for _ in range(20):
        n = int(torch.randint(0, 4, (), generator=generator))
        cutoffs = sorted((torch.randperm(size - 1, generator=generator)[:n] + 1).tolist())
        assert found <= vocabulary.training_cost(cutoffs) * (1 + 1e-9)


def test_cutoffs_found_on_a_grid_beat_random_ones_and_small_clusters_do_not_pay() -> None:
    vocabulary = Vocabulary(shares(None, 20_000), 256)
    found = vocabulary.training_cost(vocabulary.best_cutoffs())
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        cutoffs = sorted((torch.randperm(19_999, generator=generator)[:3] + 1).tolist())
        assert found < vocabulary.training_cost(cutoffs)
    assert found < vocabulary.training_cost(()) / 4
    # a product that costs its fixed part alone is no reason for a cluster
    assert Vocabulary(shares(None, 100), 16, 8, ProductCost(1.0)).best_cutoffs() == ()


def test_costs_that_are_measured_here_make_cutoffs() -> None:
    cost = product_cost(16, 64, 256)
    assert cost.each > 0
    cutoffs = Vocabulary(shares(None, 5000), 16, 64, cost).best_cutoffs()
    assert all(0 < a < b < 5000 for a, b in itertools.pairwise(cutoffs))


@named
def test_the_site_of_inner_logits_comes_before_the_logits_and_edits_there_keep_a_distribution(name: str) -> None:
    found = subject(name)
    assert list(found.model.sites())[-2:] == ["logits_inner", "logits"]
    bent = found.values("logits", edit=[Set("logits_inner", 3.0)])["logits"]
    assert bent.logsumexp(-1).abs().max() < 1e-12
    assert (bent - found()).abs().max() > 0.1


@named
def test_generation_beam_search_sampling_lens_and_losses_read_log_probabilities(name: str) -> None:
    found = subject(name)
    ids = found.inputs[0]
    greedy = generate(found.model, ids[:1], GREEDY, max_new_tokens=3)
    assert int(greedy.ids[0][7]) == int(found()[0, -1].argmax())
    beams = beam_search(found.model, ids[:1], n_beams=2, max_new_tokens=1)
    assert beams is not None
    assert len(generate(found.model, ids[:1], Sampling(seed=1, top_k=3), max_new_tokens=2).ids[0]) == 9
    seen = run(found.model, ids, read=[logit_lens])
    assert seen.logits is not None
    grid = logit_lens(seen)
    assert grid is not None
    batch = found.batch()
    log_probs = found().log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
    close(found.model.loss(batch), -log_probs[batch.weight.bool()].mean(), 1e-12)


@pytest.mark.parametrize("layer", [HierarchicalSoftmax(), AdaptiveSoftmax(cutoffs=(3, 7))])
def test_an_encoder_decoder_may_have_one_too(layer: OutputLayer) -> None:
    config = ARCHITECTURES["translator_pre"].replace(output_layer=layer)
    found = drawn("translator", config)
    assert found().logsumexp(-1).abs().max() < 1e-12
    batch = found.batch()
    right = found().gather(-1, batch.targets[..., None])[..., 0]
    close(found.model.loss(batch), -right[batch.weight.bool()].mean(), 1e-12)
    assert type(config).from_json(config.to_json()) == config


def test_half_precision_is_summed_in_float32() -> None:
    for config in (HierarchicalSoftmax(), AdaptiveSoftmax(cutoffs=(20, 100))):
        layer = randomise(config.build(500, 16), std=0.3)
        x, ids = stream(1, 40, d_model=16).float(), torch.arange(40)[None] * 12
        expected = layer.loss(x, ids)
        found = layer.bfloat16().loss(x.bfloat16(), ids)
        assert found.dtype == torch.float32
        # inner logits are rounded to 8 bits, sums of them are not
        close(found, expected, 0.02)


@named
def test_what_wants_a_direction_for_each_token_is_refused_and_says_what_would_work(name: str) -> None:
    model = subject(name).model
    ids = subject(name).inputs[0]
    seen = run(model, ids, read=[direct_logit_attribution])
    for refused in (
        lambda: direct_logit_attribution(seen),
        lambda: gf.weights.folded(model),
        lambda: model.unembed.weight,
        lambda: gf.weights.of(model).direct(),
    ):
        with pytest.raises(AnalysisUnavailable, match="factored output layer"):
            refused()
    # an inner logit is a product with a direction, and so it splits
    row = model.unembed.inner[3].detach()
    split = direct_logit_attribution(seen, direction=row)
    inner = subject(name).values("logits_inner")["logits_inner"][0, -1, 3]
    close(split.contributions.values.sum(), inner, 1e-9)


@named
def test_an_explanation_is_of_the_slope_of_the_answers_log_probability(name: str) -> None:
    """A small change along what a part wrote changes the log-probability by as much of its contribution."""
    model = subject(name).model
    ids = subject(name).inputs[0][:1, :5]
    found = gf.explain(model, ids, answer=3, against=4)
    attribution = found.attribution
    assert attribution.target == "slope" and any("factored" in note.seen for note in found.notes)
    close(torch.tensor(attribution.sum), torch.tensor(attribution.total))
    read = model.output_stack.final.at_out

    def gap(factor: float) -> float:
        grown = run(model, ids, edit=[Apply(read, lambda x: x * factor)])
        assert grown.logits is not None
        logits = grown.logits[0, found.position]
        return float(logits[3] - logits[4])

    # the slope along what the unembedding reads
    assert (gap(1 + 1e-5) - gap(1 - 1e-5)) / 2e-5 == pytest.approx(attribution.total, rel=1e-6, abs=1e-9)


@named
def test_folded_weights_give_the_same_inner_logits(name: str) -> None:
    found = subject(name)
    w = gf.weights.of(found.model, fold=True)
    close(gf.weights.logits(w, *found.inputs), found.values("logits_inner")["logits_inner"], 1e-10)


@named
def test_a_saved_model_says_the_same(name: str, tmp_path) -> None:
    found = subject(name)
    save(found.model, tmp_path / "model")
    close(load(tmp_path / "model", dtype=torch.float64)(*found.inputs), found(), 1e-12)


def test_a_config_without_an_output_layer_is_written_as_before() -> None:
    config = DecoderConfig(5, 8, (block(n_heads=2),))
    assert "output_layer" not in config.to_dict()
    one = config.replace(tied=False, output_layer=AdaptiveSoftmax((1.0, 2.0, 3.0, 4.0, 5.0), (2,)))
    assert DecoderConfig.from_json(one.to_json()) == one


@in_one_pass
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tied": True}, "tied=True .* no.* row per token"),
        ({"logit_cap": 3.0}, "logit_cap=3.0"),
        ({"unembed_bias": True}, "unembed_bias=True"),
        ({"d_embed": 4}, "d_embed=4"),
        ({"output_layer": HierarchicalSoftmax((1.0, 2.0))}, "2 counts for logits of 5 tokens"),
    ],
)
def test_settings_of_a_matrix_beside_an_output_layer_are_refused(changes, said: str) -> None:
    config = DecoderConfig(5, 8, (block(n_heads=2),), tied=False, output_layer=HierarchicalSoftmax())
    with pytest.raises(ConfigError, match=said):
        config.replace(**changes)


def test_counts_and_cutoffs_that_none_can_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="token 1 is 0"):
        HierarchicalSoftmax((1.0, 0.0))
    with pytest.raises(ConfigError, match="must rise"):
        AdaptiveSoftmax(cutoffs=(4, 2))
    with pytest.raises(ConfigError, match="below 4"):
        AdaptiveSoftmax(cutoffs=(2, 4)).build(4, 8)
    with pytest.raises(ConfigError, match="two of them"):
        HierarchicalSoftmax().build(1, 8)


@pytest.mark.parametrize("layer", [HierarchicalSoftmax(), AdaptiveSoftmax(cutoffs=(20, 100))])
def test_the_account_counts_parameters_and_what_training_is_spared(layer: OutputLayer) -> None:
    config = DecoderConfig(500, 16, (block(n_heads=2),), max_len=8, tied=False, output_layer=layer)
    found = account(config)
    own = sum(parameter.numel() for parameter in config.build().unembed.parameters())
    assert count_parameters(config)["unembedding"] == own
    # each weight is multiplied once where all probabilities are asked for
    assert count_flops(config, 8)["unembedding"] == 8 * 2 * own
    full = account(config.replace(output_layer=None))
    assert full.spared == 0 and full.backward == 2 * full.forward
    assert 0 < found.spared < found.flops["unembedding"]
    assert found.backward == 2 * (found.forward - found.spared)
    share = shares(None, 500)
    if isinstance(layer, HierarchicalSoftmax):
        needed = 16 * float(share @ HuffmanTree.of(share.tolist()).depths.double())
    else:
        needed = 16 * 22 + sum(
            float(share[a:b].sum()) * width * (16 + b - a) for a, b, width in ((20, 100, 4), (100, 500, 1))
        )
    assert found.spared == round(8 * 2 * (own - needed))
