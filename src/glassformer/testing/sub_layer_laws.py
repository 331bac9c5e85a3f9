"""Laws every sub-layer obeys, inside a decoder that also has blocks of softmax attention.

class TestMine(SubLayerLaws):
    sub_layer = Mine(width=4)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention import Rope, SubLayerConfig
from glassformer.models import (
    BlockConfig,
    Decoder,
    DecoderConfig,
    LayerNorm,
    Mlp,
    NoNorm,
    RmsNorm,
    beam_search,
    block,
    generate,
)
from glassformer.models.accounting import account, count_parameters
from glassformer.models.sampling import GREEDY
from glassformer.testing.closeness import close
from glassformer.testing.layers import D_MODEL, causal_context, randomise, seeds, stream
from glassformer.testing.suite import Suite
from glassformer.trace import Apply, Scale, Set, Tape

SUITE = Suite("part")
every = SUITE.law()
WIRINGS = ("pre", "post", "sandwich", "parallel")


class SubLayerLaws:
    """The laws of one sub-layer or of several, as tests.

    Args:
        sub_layer: The config of what is under test; or several, by the names that their tests are to bear.
    """

    sub_layer: ClassVar[SubLayerConfig | Mapping[str, SubLayerConfig]]

    def __init_subclass__(cls) -> None:
        found = cls.sub_layer
        SUITE.bind(cls, found if isinstance(found, Mapping) else {type(found).__name__: found})


def hybrid_config(part: SubLayerConfig, wiring: Any = "pre") -> DecoderConfig:
    """Return a model that has the sub-layer before an MLP, below a softmax block, and alone at the top."""
    first = BlockConfig((part, Mlp(8)), LayerNorm(), wiring)
    middle = block(n_heads=2, positions=Rope(), mlp=Mlp(8), wiring=wiring)
    last = BlockConfig((part,), LayerNorm(), wiring)
    norm = NoNorm() if wiring == "post" else RmsNorm()
    return DecoderConfig(vocab_size=11, d_model=16, layers=(first, middle, last), max_len=24, final_norm=norm)


def hybrid(part: SubLayerConfig, wiring: str = "pre", seed: int = 0) -> Decoder:
    return randomise(hybrid_config(part, wiring).build().double().eval(), seed, std=0.2)


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


@every
@given(seeds, st.sampled_from(WIRINGS), st.sets(st.integers(1, 7)))
def test_segments_cut_anywhere_equal_one_pass(part: SubLayerConfig, seed: int, wiring: str, cuts: set[int]) -> None:
    model, ids = hybrid(part, wiring, seed), tokens(2, 8, seed)
    state, pieces = model.begin(2), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 8]):
        logits, state = model(ids[:, start:stop], state=state)
        pieces.append(logits)
    close(torch.cat(pieces, 1), model(ids))


@every
@torch.no_grad()
def test_one_state_can_be_continued_twice(part: SubLayerConfig) -> None:
    model, ids, other = hybrid(part), tokens(2, 6), tokens(2, 6, 5)
    _, state = model(ids[:, :4], state=model.begin(2))
    ends = [model(new[:, 4:], state=state)[0] for new in (ids, other, ids)]
    assert torch.equal(ends[0], ends[2])
    close(ends[1], model(torch.cat((ids[:, :4], other[:, 4:]), 1))[:, 4:])


@every
@pytest.mark.parametrize("wiring", WIRINGS)
def test_reading_changes_nothing(part: SubLayerConfig, wiring: str) -> None:
    model, ids = hybrid(part, wiring), tokens(2, 6)
    plain = [at for at, found in model.sites().items() if not found.lazy]
    assert torch.equal(model(ids, tape=Tape(model, plain)), model(ids))
    close(model(ids, tape=Tape(model, "*")), model(ids))


@every
def test_declared_sites_are_visited_in_order_with_the_declared_sizes(part: SubLayerConfig) -> None:
    model = hybrid(part)
    tape, table = Tape(model, "*"), model.sites()
    model(tokens(2, 5), tape=tape)
    assert list(tape.values) == list(table)
    lengths = {"batch": 2, "pos": 5, "query": 5, "key": 5}
    for at, found in table.items():
        assert tuple(tape.values[at].shape) == tuple((lengths | dict(found.sizes))[axis] for axis in found.axes), at


def own_sites(model: Decoder, part: SubLayerConfig) -> list[str]:
    """Return the sites of the sub-layer in the first block, but for those that only measure."""
    return [at for at, found in model.sites(f"blocks.0.{part.role}.*").items() if not found.read_only]


def stretched(value: Tensor) -> Tensor:
    """Return a value changed in direction as well as in size, which a norm behind it might take back."""
    return value * torch.linspace(2, 3, value.shape[-1], dtype=value.dtype)


@every
def test_an_edit_at_each_of_its_sites_is_felt_and_its_own_value_is_not(part: SubLayerConfig) -> None:
    model, ids = hybrid(part), tokens(2, 5)
    sites = own_sites(model, part)
    assert sites
    for at in sites:
        tape = Tape(model, [at])
        plain = model(ids, tape=tape)
        assert not torch.allclose(model(ids, tape=Tape(model, edit=[Apply(at, stretched)])), plain), at
        close(model(ids, tape=Tape(model, edit=[Set(at, tape.values[at])])), plain)


@every
def test_gradients_at_its_sites_are_the_effects_of_small_edits(part: SubLayerConfig) -> None:
    model, ids = hybrid(part), tokens(1, 4)
    for at in own_sites(model, part):
        if model.sites()[at].lazy:
            continue
        tape = Tape(model, [at], grad=True)
        (gradient,) = torch.autograd.grad(model(ids, tape=tape).square().sum(), tape.values[at])
        edited = [model(ids, tape=Tape(model, edit=[Scale(at, 1 + step)])) for step in (1e-5, -1e-5)]
        ends = [logits.square().sum() for logits in edited]
        effect, slope = (ends[0] - ends[1]) / 2e-5, (gradient * tape.values[at]).sum()
        # a difference of sums near each other, over 1e-5: what they round to is all that is left of small effects
        rounding = 8 * torch.finfo(ends[0].dtype).eps * ends[0].abs() / 2e-5
        assert (slope - effect).abs() <= 1e-4 * effect.abs() + rounding, (at, slope, effect)


@every
@given(seeds)
def test_documents_in_one_row_do_not_see_each_other(part: SubLayerConfig, seed: int) -> None:
    model, ids = hybrid(part, seed=seed), tokens(2, 7, seed)
    documents = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [4, 4, 4, 4, 5, 5, 5]])
    packed = model(ids, documents=documents)
    for row in range(2):
        for document in documents[row].unique():
            where = documents[row] == document
            close(packed[row, where], model(ids[row : row + 1, where])[0])


@every
@given(seeds)
def test_left_padded_rows_equal_rows_on_their_own(part: SubLayerConfig, seed: int) -> None:
    model, ids, lengths = hybrid(part, seed=seed), tokens(3, 7, seed), [2, 5, 4]
    first, state = model(ids[:, :5], state=model.begin(3), lengths=torch.tensor(lengths))
    second, _ = model(ids[:, 5:], state=state)
    both = torch.cat((first, second), 1)
    for row, length in enumerate(lengths):
        close(both[row, 5 - length :], model(ids[row : row + 1, 5 - length :])[0])


@every
def test_right_padding_changes_nothing_before_it(part: SubLayerConfig) -> None:
    model, ids = hybrid(part), tokens(2, 6)
    padded = model(ids, lengths=torch.tensor([3, 6]))
    close(padded[0, :3], model(ids[:1, :3])[0])
    close(padded[1], model(ids[1:])[0])


@every
def test_ragged_prompts_generate_what_each_would_alone(part: SubLayerConfig) -> None:
    model, prompts = hybrid(part), [[3, 1, 4, 1, 5], [9, 2], [7]]
    together = generate(model, prompts, GREEDY, max_new_tokens=4).tokens
    assert list(together) == [generate(model, [row], GREEDY, max_new_tokens=4).tokens[0] for row in prompts]
    beams = [beam_search(model, rows, n_beams=3, max_new_tokens=3) for rows in (prompts, prompts[1:2])]
    assert beams[0].best[1].tokens == beams[1].best[0].tokens


@every
def test_later_positions_cannot_change_earlier_ones(part: SubLayerConfig) -> None:
    module, x = alone(part), stream(1, 6).requires_grad_()
    out = module(x, causal_context(x))[0] @ stream(1, 1, 3)[0, 0]
    influence = torch.stack([torch.autograd.grad(out[0, t], x, retain_graph=True)[0][0].norm(dim=-1) for t in range(6)])
    # exact zero, not small
    assert (influence.triu(1) == 0).all()
    assert (influence.diagonal() > 0).all()


@every
def test_gradients_equal_finite_differences(part: SubLayerConfig) -> None:
    # of size 4: near a tie between experts the derivative jumps
    module, x = alone(part), (4 * stream(1, 3)).requires_grad_()
    names = [name for name, _ in module.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, parameters)), (x, causal_context(x)))[0]

    assert torch.autograd.gradcheck(run, (x, *module.parameters()), fast_mode=True)


def alone(part: SubLayerConfig) -> torch.nn.Module:
    """Return a block that adds the sub-layer to the stream and does nothing else."""
    config = DecoderConfig(vocab_size=11, d_model=D_MODEL, layers=(BlockConfig((part,), NoNorm()),), max_len=32)
    return randomise(config.build().stack.blocks[0].double().eval())


@every
def test_a_config_survives_json(part: SubLayerConfig) -> None:
    config = hybrid_config(part)
    assert DecoderConfig.from_json(config.to_json()) == config
    assert SubLayerConfig.from_json(part.to_json()) == part


@every
def test_it_costs_what_torch_counts(part: SubLayerConfig) -> None:
    config = hybrid_config(part)
    for length in (5, 16):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            config.build()(torch.zeros(1, length, dtype=torch.int64))
        # a router's choice is not known without numbers, so every expert is counted there
        if part.kind != "experts":
            assert counter.get_total_flops() == account(config, length).forward
    assert sum(count_parameters(config).values()) == sum(p.numel() for p in config.build().parameters())


@every
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_pass_that_stops_early_reads_the_same(part: SubLayerConfig, wiring: str) -> None:
    model, ids = hybrid(part, wiring), tokens(2, 6)
    at = own_sites(model, part)[-1]
    early, whole = Tape(model, [at], logits=False), Tape(model, [at])
    model(ids, tape=early)
    model(ids, tape=whole)
    assert torch.equal(early.values[at], whole.values[at])
    assert model.stack.needed(early) == 1


@every
@pytest.mark.parametrize("wiring", WIRINGS)
def test_logits_asked_for_at_some_positions_are_those_of_all(part: SubLayerConfig, wiring: str) -> None:
    model, at = hybrid(part, wiring), torch.tensor([[5, 1], [0, 3]])
    resid = stream(2, 6, d_model=16)
    whole = model.resume(0, resid)
    close(model.resume(0, resid, at=at), whole.gather(1, at[..., None].expand(-1, -1, 11)))
