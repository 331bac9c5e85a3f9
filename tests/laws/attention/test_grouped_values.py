"""Groups of heads that share a query and a key, each head with values of its own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer import run, weights
from glassformer.attention import Attention, Convolved, QueryKeyNorm, Rope, Separate, Smeared, Tied
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, stream
from glassformer.testing.models import drawn
from glassformer.trace import Add, At
from one_pass import in_one_pass

HEADS, D_HEAD = 4, 2
SHARING: list[Any] = [
    Separate(bias=True),
    Separate(qk_norm=True, clip=0.5),
    Separate(qk_norm=QueryKeyNorm(over="all")),
    Convolved(bias=True, tap_bias=True, activation="silu", qk_norm=True),
    Smeared(),
    Tied(bias=True),
]


def layer(projection: Any) -> Layer:
    config = Attention(HEADS, d_head=D_HEAD, d_value=3, positions=Rope(), projection=projection)
    return Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval()))


def at_each_head(name: str, shared: Tensor, groups: int) -> Tensor:
    """Return a parameter of queries and keys that groups share, with a copy for each head."""
    size = HEADS // groups
    if "taps" in name or "convolutions" in name:
        return shared.repeat_interleave(size, -2)
    rows = groups * D_HEAD * (1 if "query" in name else 2)
    ours, values = shared[:rows], shared[rows:]
    return torch.cat((ours.unflatten(0, (-1, D_HEAD)).repeat_interleave(size, 0).flatten(0, 1), values))


def unshared(attention: Layer, projection: Any) -> Layer:
    """Return the layer in which each head has its own copy of what its group shares."""
    made = layer(projection.replace(groups=None))
    known = dict(attention.module.named_parameters())
    with torch.no_grad():
        for name, parameter in made.module.named_parameters():
            own = known[name]
            parameter.copy_(own if own.shape == parameter.shape else at_each_head(name, own, projection.groups))
    return made


@in_one_pass
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("projection", SHARING, ids=lambda projection: projection.kind)
def test_sharing_is_having_equal_ones(projection: Any, groups: int) -> None:
    shared = projection.replace(groups=groups)
    attention, x = layer(shared), stream(2, 5)
    apart, sites = unshared(attention, shared), ("query", "key", "value", "out")
    ours, theirs = attention.read(x, *sites), apart.read(x, *sites)
    for name in sites:
        close(ours[name], theirs[name])
    ours, theirs = attention.module.projection, apart.module.projection
    for which in ("query", "key", "value"):
        close(ours.matrix(which), theirs.matrix(which))
        assert (ours.bias(which) is None) == (not projection.bias)
        if projection.bias:
            close(ours.bias(which), theirs.bias(which))
    # the state of convolutions is of what is made
    state = attention.module.begin(2, x)
    numbers = sum(part.numel() for part in state.projection or ())
    assert numbers == 2 * ours.state_numbers(3, 0)
    pieces = []
    for part in (slice(0, 2), slice(2, 3), slice(3, 5)):
        out, state = attention.module(x[:, part], causal_context(x[:, part], past=part.start), state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), attention(x))


@in_one_pass
@pytest.mark.parametrize("projection", [Separate(bias=True), Convolved(bias=True, tap_bias=True)], ids=lambda p: p.kind)
def test_a_head_may_be_given_a_stream_that_others_of_its_group_do_not_read(projection: Any) -> None:
    """In models: the other head's query stays as it is, in one pass and in pieces."""
    layers = (block(n_heads=HEADS, d_head=D_HEAD, projection=projection.replace(groups=2), norm=RmsNorm()),)
    found = drawn("one", DecoderConfig(11, 16, layers, max_len=24))
    model, ids = found.model, found.inputs[0]
    usual, name = run(model, ids, read=["*"]), "blocks.0.attn"
    edits = [Add(f"{name}.query_in", 1.0, at=At(head=1)), Add(f"{name}.key_in", -3.0, at=At(kv_head=2))]
    edited = run(model, ids, read=["*.query", "*.key"], edit=edits)
    for which, head in (("query", 1), ("key", 2)):
        change = (edited[f"{name}.{which}"].values - usual[f"{name}.{which}"].values).abs().amax((0, 2, 3))
        assert [i for i in range(HEADS) if change[i] > 1e-9] == [head]


def test_weights_say_what_each_head_has() -> None:
    layers = (block(n_heads=HEADS, d_head=D_HEAD, projection=Separate(bias=True, groups=2), norm=RmsNorm()),)
    found = drawn("one", DecoderConfig(11, 16, layers, max_len=24))
    w = weights.of(found.model, fold=True)
    close(weights.logits(w, *found.inputs).log_softmax(-1), found.model(*found.inputs).log_softmax(-1), 1e-10)
    close(w[0].Q[0], w[0].Q[1])
    ours = weights.folded(found.model)
    close(ours(*found.inputs).log_softmax(-1), found.model(*found.inputs).log_softmax(-1), 1e-10)


@pytest.mark.parametrize(("n_kv_heads", "groups"), [(2, 2), (4, 3)])
def test_groups_that_do_not_come_out_even_or_share_values_are_refused(n_kv_heads: int, groups: int) -> None:
    with pytest.raises(ConfigError, match="share queries and keys"):
        Attention(HEADS, n_kv_heads, D_HEAD, projection=Separate(groups=groups)).build(D_MODEL, 8, 0, "")


def test_parameters_and_operations_are_those_of_what_is_made() -> None:
    own, shared = (layer(Separate(bias=True, groups=groups)).module.projection for groups in (None, 1))
    saved = (HEADS - 1) * D_HEAD
    assert sum(own.widths) - sum(shared.widths) == 2 * saved
    assert own.flops(5, 5)["query"] - shared.flops(5, 5)["query"] == 2 * 5 * D_MODEL * saved
    numbers = [sum(n for _, n in projection.own_parameters()) for projection in (own, shared)]
    assert numbers[0] - numbers[1] == 2 * saved * (D_MODEL + 1)
