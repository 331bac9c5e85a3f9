"""MiniMax-01 as it is trained: gradients and the balance loss are the reference's, and so are published sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from families import reference_folder
from families.minimax import _deep, _minimax
from glassformer.checkpoints.comparison.reference import relative, wide
from glassformer.checkpoints.families import recognise
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.loading import open_folder
from glassformer.errors import CheckpointError
from glassformer.models import MixtureOfExperts, preset
from glassformer.models.accounting import count_parameters
from glassformer.models.experts import ExpertsLayer
from glassformer.models.routing import balance
from glassformer.testing import close
from glassformer.trace import Tape

ROUTERS = "blocks.*.mlp.router"


def read(**changes: Any) -> Any:
    said = _minimax(**changes)[1].to_dict()
    return recognise(said, "config.json").config(Fields(said))


@pytest.mark.full
def test_gradients_of_every_tensor_are_the_references(tmp_path) -> None:
    theirs = reference_folder(*_minimax(**_deep(2.5)), tmp_path, torch.float64)
    ours, checkpoint = gf.load(tmp_path, dtype=torch.float64), open_folder(tmp_path)
    ids = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(1))
    with wide(torch.float64):
        theirs(ids, use_cache=False).logits.log_softmax(-1)[..., 3].sum().backward()
    ours(ids).log_softmax(-1)[..., 3].sum().backward()
    theirs_by_name = _by_file(theirs)
    checked = 0
    for name, parameter in ours.named_parameters():
        pieces, start = checkpoint.parts[name].pieces, 0
        assert parameter.grad is not None, name
        for piece in pieces:
            part = piece.part(theirs_by_name[piece.name])
            mine = parameter.grad.flatten()[start : start + part.numel()]
            assert relative(mine, part.reshape(-1)) < 1e-9, name
            start, checked = start + part.numel(), checked + 1
        assert start == parameter.numel(), name
    assert checked > 40


def _by_file(theirs: Any) -> dict[str, Tensor]:
    """Return gradients by the names that files have: experts one by one."""
    found: dict[str, Tensor] = {}
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None, name
        stem = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(parameter.grad):
                for which, part in zip(("w1", "w3"), both.chunk(2)):
                    found[stem.replace("gate_up_proj", f"{e}.{which}.weight")] = part
        elif name.endswith("experts.down_proj"):
            for e, part in enumerate(parameter.grad):
                found[stem.replace("down_proj", f"{e}.w2.weight")] = part
        else:
            found[stem] = parameter.grad
    return found


def test_the_references_loss_is_the_balance_of_all_layers_together_times_how_many_are_chosen(tmp_path) -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    reference_folder(*_minimax(num_experts_per_tok=2), tmp_path, torch.float64)
    ours: Any = gf.load(tmp_path, dtype=torch.float64)
    ids = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(1))
    tape = Tape(ours, [ROUTERS])
    ours(ids, tape=tape)
    logits: Any = tuple(tape.values.values())
    part = ours.stack.blocks[0].part("mlp")
    assert isinstance(part, ExpertsLayer) and len(logits) == 3
    together = torch.cat(logits)
    mine = balance(part.shares(together), part.choices(together))
    for mask in (None, torch.tensor([[1] * 9, [1] * 4 + [0] * 5])):
        if mask is not None:
            mine = balance(part.shares(together), part.choices(together), mask.bool().repeat(3, 1))
        with wide(torch.float64):
            expected: Any = load_balancing_loss_func(tuple(x.flatten(0, 1) for x in logits), 4, 2, mask)
        close(2 * mine, expected)
    assert part.config.balance == pytest.approx(0.001 * 2 / 3)


def test_the_coefficient_is_carried_and_none_where_it_is_zero() -> None:
    assert [layer.parts[1].balance for layer in read(router_aux_loss_coef=0.03).layers] == [pytest.approx(0.02)] * 3
    assert read(router_aux_loss_coef=0.0).layers[0].parts[1].balance is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp_alpha_factor": 2.0}, r"mlp_alpha_factor must be one positive number, found \[1.0, 2.0\]"),
        ({"full_attn_beta_factor": 0.5}, "full_attn_beta_factor=0.5 cannot be represented"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' cannot be represented"),
    ],
)
def test_what_cannot_be_represented_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(**changes)
    said = _minimax()[1].to_dict() | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    with pytest.raises(CheckpointError, match="layer_types must be a list of 3 names"):
        recognise(said, "config.json").config(Fields(said))


def test_the_published_config_has_the_presets_layers_but_for_how_much_of_a_head_turns() -> None:
    kinds = ["full_attention" if i % 8 == 7 else "linear_attention" for i in range(80)]
    published = read(
        vocab_size=200_064, hidden_size=6144, intermediate_size=9216, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, head_dim=128, num_local_experts=32, layer_types=kinds, rope_parameters=None,
        rope_theta=1e7, max_position_embeddings=10_240_000, **_deep(3.5565588200778455),
    )  # fmt: skip
    own: Any = preset("minimax-01")
    assert count_parameters(published) == count_parameters(own)
    for i, (theirs, ours) in enumerate(zip(published.layers, own.layers, strict=True)):
        assert theirs.norm.factor == pytest.approx(ours.norm.factor) and theirs.norm.eps == ours.norm.eps, i
        theirs_mixer, ours_mixer = theirs.parts[0].mixer, ours.parts[0].mixer
        assert theirs_mixer == ours_mixer and theirs.parts[0].projection == ours.parts[0].projection
        experts = theirs.parts[1]
        assert isinstance(experts, MixtureOfExperts) and experts.n_experts == ours.parts[1].n_experts
    assert own.layers[7].parts[0].positions.fraction == 0.5 and published.layers[7].parts[0].positions.fraction == 1.0
