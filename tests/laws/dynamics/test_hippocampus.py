"""TEM-t: codes that close on walks that do, recall that is exact by construction, Hebb's rule as linear attention."""

from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Attention, Lightning, Rope, Tied
from glassformer.data import GraphWorlds
from glassformer.data.batch import generator
from glassformer.dynamics import PathIntegration, TemDecoderConfig, hebbian_recall, lattice_decoder, tem_config
from glassformer.errors import AnalysisUnavailable, ConfigError, ShapeMismatch
from glassformer.models import BlockConfig, Learned, ModelConfig
from glassformer.models.accounting import count_parameters
from glassformer.models.stack import make_context
from glassformer.testing import close

GRAPHS = ("ring", "torus", "square", "hexagonal")


def worlds(graph: Any = "torus", **fields: Any) -> GraphWorlds:
    return GraphWorlds(batch_size=4, length=24, graph=graph, side=4, n_symbols=6).replace(**fields)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("graph", GRAPHS)
def test_codes_of_a_place_agree_however_one_came_and_those_of_two_are_orthogonal(graph: str) -> None:
    config = worlds(graph)
    walks = config.walks("train", generator(0, "train", 1))
    codes = lattice_decoder(config, sharpness=3.0).codes(config.build().batch(1).tokens)[:, ::2]
    places = walks.places[:, :-1]
    same = (places[:, :, None] == places[:, None]).double()
    close(codes @ codes.mT, 3.0 * same)


@pytest.mark.parametrize("graph", GRAPHS)
def test_moves_by_construction_are_a_representation_of_the_lattice(graph: str) -> None:
    matrices = lattice_decoder(worlds(graph)).path.matrices
    identity = torch.eye(matrices.shape[-1], dtype=torch.float64).expand_as(matrices)
    close(matrices @ matrices.mT, identity)
    close(matrices[::2] @ matrices[1::2], identity[::2])
    close(matrices @ matrices @ matrices @ matrices, identity)
    for one in matrices:
        close(one @ matrices, matrices @ one)


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_was_seen_before_is_recalled_and_nothing_else_is(graph: str) -> None:
    config = worlds(graph, length=48)
    model, batch = lattice_decoder(config), config.build().batch(2)
    pattern = gf.run(model, batch.tokens, read=["blocks.0.attn.pattern"])["pattern", 0].values[:, 0]
    walks = config.walks("train", generator(0, "train", 2))
    # what is looked for is the place behind an action, among observations so far
    same = walks.places[:, 1:, None] == walks.places[:, None, :-1]
    recalls = (pattern[:, 1::2, ::2] * same).sum(-1)
    known = walks.revisited[:, 1:]
    close(recalls[known], torch.ones_like(recalls[known]))
    close(recalls[~known], torch.zeros_like(recalls[~known]))
    answers = torch.nn.functional.one_hot(batch.targets, len(config.symbols())).double()
    close(model(batch.tokens)[batch.weight], answers[batch.weight])


def test_codes_are_the_product_of_the_matrices_of_moves() -> None:
    path = PathIntegration(6, (1, 4), 5).double()
    tokens = torch.tensor([[0, 1, 1, 2, 4, 3, 1], [4, 4, 0, 0, 1, 5, 5]])
    code = path(tokens)
    for row, ids in enumerate(tokens.tolist()):
        expected = path.start
        for i, token in enumerate(ids):
            if token in (1, 4):
                expected = expected @ path.matrices[(1, 4).index(token)]
            close(code[row, i], expected)
    close(code.norm(dim=-1), path.start.norm().expand(2, 7))


def test_what_is_observed_has_no_part_in_the_pattern_and_actions_none_in_what_is_mixed_of_it() -> None:
    config = worlds()
    model, tokens = tem_config(config, 16, 2).build(1).double(), config.build().batch(1).tokens
    other = tokens.clone()
    other[:, ::2] = (other[:, ::2] + 1) % config.n_symbols
    read = ["blocks.0.attn.pattern", "blocks.0.attn.key"]
    runs = [gf.run(model, ids, read=read) for ids in (tokens, other)]
    assert torch.equal(*(run["pattern", 0].values for run in runs))
    assert not runs[0]["key", 0].values[..., 1::2, :].any()
    assert runs[0]["key", 0].values[..., ::2, :].norm(dim=-1).min() > 0


def test_no_position_learns_of_later_ones_and_packed_walks_are_walks_alone() -> None:
    config = worlds()
    model, tokens = tem_config(config, 16).build(2).double().eval(), config.build().batch(1).tokens
    later = tokens.clone()
    later[:, 10:] = later[:, 10:].flip(0)
    close(model(later)[:, :10], model(tokens)[:, :10])
    packed = torch.cat((tokens[:1, :8], tokens[1:2, :10]), 1)
    documents = torch.tensor([[0] * 8 + [1] * 10])
    close(model(packed, documents=documents)[0, 8:], model(tokens[1:2, :10])[0])


def test_recall_by_hebbs_rule_is_linear_attention_whose_values_are_conjunctions() -> None:
    codes, symbols = normal(2, 7, 4).requires_grad_(), torch.randint(3, (2, 7), generator=generator("symbols"))
    seen = torch.nn.functional.one_hot(symbols, 3).double()
    mixer: Any = Lightning(slopes=(0.0,), activation="none")
    mixer = mixer.build(Attention(1, d_head=4, d_value=12).dims(4, 7), "mixer").double()
    context = make_context(2, 7, codes.device, is_causal=True)
    values = torch.einsum("bpx,bpe->bpxe", seen, codes).flatten(2)[:, None]
    mixed = mixer(codes[:, None], codes[:, None], values, codes, context, None, None)[0]
    found = []
    for recalled in (hebbian_recall(codes, seen), mixed[:, 0].unflatten(-1, (3, 4))):
        [gradient] = torch.autograd.grad((recalled * normal(*recalled.shape, seed=3)).sum(), codes, retain_graph=True)
        found.append((recalled, gradient))
    for ours, theirs in zip(*found):
        close(ours, theirs)


def test_a_config_survives_json_and_says_how_many_parameters_there_are() -> None:
    config = tem_config(worlds("hexagonal"), 12, 3)
    assert ModelConfig.from_json(config.to_json()) == config
    model = config.build(3)
    assert model.path.start.equal(config.build(3).path.start)
    assert count_parameters(config)["positions"] == 12 + 6 * 12**2
    assert len(model.state_dict()) == len(list(model.parameters()))


def test_layers_of_one_model_share_its_codes() -> None:
    config = tem_config(worlds(), 16)
    model = config.replace(layers=config.layers * 2).build(5).double()
    tokens = worlds().build().batch(1).tokens
    run = gf.run(model, tokens, read=["blocks.*.attn.pattern"])
    close(run["pattern", 1].values, run["pattern", 0].values)
    for name, parameter in model.path.named_parameters():
        assert torch.autograd.grad(model(tokens).square().sum(), parameter)[0].abs().sum() > 0, name


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"moves": ()}, "name the ids of actions"),
        ({"moves": (6, 6)}, "different ids of 0 to 9"),
        ({"moves": (6, 10)}, "different ids of 0 to 9"),
        ({"positions": Learned()}, "leave out positions="),
        ({"layers": (BlockConfig((Attention(1, positions=Rope()),)),)}, 'leave out positions="rope"'),
    ],
)
def test_a_decoder_that_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tem_config(worlds()).replace(**fields)


def test_what_a_walk_alone_does_not_say_is_refused_in_words() -> None:
    config = worlds()
    model, tokens = tem_config(config, 16).build(), config.build().batch(1).tokens
    with pytest.raises(AnalysisUnavailable, match="keeps no state"):
        gf.generate(model, tokens[:1, :4])
    with pytest.raises(AnalysisUnavailable, match="without the tokens"):
        model.resume(0, torch.zeros(1, 4, 16))
    with pytest.raises(ShapeMismatch, match="both are of the same"):
        hebbian_recall(normal(1, 3, 2), normal(1, 4, 2))


def test_queries_and_keys_of_the_built_config_are_codes_as_they_are() -> None:
    config = tem_config(worlds(), 16)
    assert isinstance(config, TemDecoderConfig)
    [part] = config.layers[0].parts
    assert isinstance(part, Attention) and part.projection == Tied(query="identity", key="identity")
    tokens = worlds().build().batch(1).tokens
    model = config.build(4)
    query = gf.run(model, tokens, read=["blocks.0.attn.query"])["query", 0].values[:, 0]
    close(query, model.codes(tokens))
