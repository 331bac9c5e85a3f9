"""Modules we did not write, seen through a spec: the same numbers as a model of ours with the same weights."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer as gf
from glassformer import analysis, weights
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.cards import card_of
from glassformer.analysis.causal import SiteGrid, ablation_table, causal_trace, patch
from glassformer.analysis.lens import logit_lens
from glassformer.analysis.sweep import Donor, grid, logit_difference, one_by_one, sweep, token_loss
from glassformer.attention import Rope
from glassformer.checkpoints import disagreement
from glassformer.checkpoints.comparison.reference import Wide
from glassformer.checkpoints.families.family import Piece
from glassformer.data.tokenizer import symbol_tokenizer
from glassformer.errors import (
    AnalysisUnavailable,
    CheckpointError,
    ConfigError,
    ShapeMismatch,
    SiteNotRead,
    TextError,
    UnknownAxis,
    UnknownSite,
)
from glassformer.models import DecoderConfig, Learned, Mlp, RmsNorm, block, repeat
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.trace import Add, Apply, At, Edit, Foreign, Place, Project, Scale, Set, Take, Tape

CLEAN = torch.tensor([[1, 5, 2, 9, 0, 3, 7], [4, 4, 8, 1, 6, 2, 10]])
CORRUPT = torch.tensor([[1, 5, 3, 9, 0, 3, 7], [4, 9, 8, 1, 6, 2, 10]])
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
METRIC = logit_difference(3, 5)


class Handmade(nn.Module):
    """Someone's own code: fused projections by head, positions first, a tuple returned."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 12), nn.Embedding(8, 12)
        self.layers = nn.ModuleList([HandmadeLayer() for _ in range(2)])
        self.norm, self.out = nn.LayerNorm(12), nn.Linear(12, 11, bias=False)

    def forward(self, ids: Tensor, note: str = "") -> tuple[Tensor, str]:
        x = (self.tokens(ids) + self.places(torch.arange(ids.shape[1]))).transpose(0, 1)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x)).transpose(0, 1), note


class HandmadeLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.join = nn.LayerNorm(12), nn.Linear(12, 36, bias=False), nn.Linear(12, 12, bias=False)
        self.softmax = nn.Softmax(-1)
        self.mlp = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12))

    def forward(self, x: Tensor) -> Tensor:
        # pos batch (head part d_head), as in several published models
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 3, 4)).unbind(-2)
        scores = torch.einsum("qbhd,kbhd->bhqk", q, k) / 2
        pattern = self.softmax(scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf))
        x = x + self.join(torch.einsum("bhqk,kbhd->qbhd", pattern, v).flatten(-2))
        return x + self.mlp(x)


@cache
def handmade() -> Foreign:
    parted = "pos batch (head part d_head)"
    stream = "pos batch d_model"
    layer = block(n_heads=3, mlp=Mlp(20))
    config = DecoderConfig(11, 12, repeat(layer, 2), max_len=8, positions=Learned(), tied=False)

    def rows(part: int) -> Callable[[Tensor], Tensor]:
        return lambda w: w.unflatten(0, (3, 3, 4))[:, part]

    qkv = tuple(Piece("layers.{i}.qkv", 12, view=rows(part)) for part in range(3))
    spec = gf.Spec(
        sites={
            "embed.token": "tokens.out",
            "embed.position": Place("places.out", "pos d_model"),
            "blocks.{i}.resid_pre": Place("layers.{i}.in", stream),
            "blocks.{i}.attn.norm": Place("layers.{i}.norm.out", stream),
            "blocks.{i}.attn.query": Place("layers.{i}.qkv.out", parted, {"part": 0}),
            "blocks.{i}.attn.key": Place("layers.{i}.qkv.out", parted, {"part": 1}),
            "blocks.{i}.attn.value": Place("layers.{i}.qkv.out", parted, {"part": 2}),
            "blocks.{i}.attn.pattern": "layers.{i}.softmax.out",
            "blocks.{i}.attn.z": Place("layers.{i}.join.in", "pos batch (head d_head)"),
            "blocks.{i}.attn.out": Place("layers.{i}.join.out", stream),
            "blocks.{i}.resid_mid": Place("layers.{i}.mlp.in", stream, editable=False),
            "blocks.{i}.mlp.hidden": Place("layers.{i}.mlp.3.in", "pos batch neuron"),
            "blocks.{i}.mlp.out": Place("layers.{i}.mlp.out", stream),
            "blocks.{i}.resid_post": Place("layers.{i}.out", stream),
            "final.norm": Place("norm.out", stream),
            "logits": "out",
        },
        sizes={"part": 3},
        config=config,
        weights={
            "embed.matrix": "tokens.weight",
            "embed.positions.weight": "places.weight",
            "stack.blocks.{i}.attn_norm": "layers.{i}.norm",
            "stack.blocks.{i}.attn.projection.qkv": qkv,
            "stack.blocks.{i}.attn.merge.output": "layers.{i}.join",
            "stack.blocks.{i}.mlp_norm": "layers.{i}.mlp.0",
            "stack.blocks.{i}.mlp.input": "layers.{i}.mlp.1",
            "stack.blocks.{i}.mlp.output": "layers.{i}.mlp.3",
            "stack.final": "norm",
            "unembed.matrix": "out.weight",
        },
    )
    return gf.foreign(randomise(Handmade().double(), std=0.3), spec)


GPT2_TABLE = {
    "embed.matrix": "transformer.wte.weight",
    "embed.positions.weight": "transformer.wpe.weight",
    "stack.blocks.{i}.attn_norm": "transformer.h.{i}.ln_1",
    "stack.blocks.{i}.attn.projection.qkv": Piece("transformer.h.{i}.attn.c_attn", transposed=True),
    "stack.blocks.{i}.attn.merge.output": Piece("transformer.h.{i}.attn.c_proj", transposed=True),
    "stack.blocks.{i}.mlp_norm": "transformer.h.{i}.ln_2",
    "stack.blocks.{i}.mlp.input": Piece("transformer.h.{i}.mlp.c_fc", transposed=True),
    "stack.blocks.{i}.mlp.output": Piece("transformer.h.{i}.mlp.c_proj", transposed=True),
    "stack.final": "transformer.ln_f",
}


@cache
def gpt2() -> Foreign:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0,
        **EAGER,
    )  # fmt: skip
    module = randomise(GPT2LMHeadModel(config).double().eval(), std=0.3)
    layer = block(n_heads=3, bias=True, mlp=Mlp(activation="gelu_tanh"))
    their = "transformer.h.{i}"
    parted = "batch pos (part head d_head)"
    spec = gf.Spec(
        sites={
            "embed.token": "transformer.wte.out",
            "embed.position": "transformer.wpe.out",
            "blocks.{i}.resid_pre": f"{their}.in",
            "blocks.{i}.attn.norm": f"{their}.ln_1.out",
            **{
                f"blocks.{{i}}.attn.{name}": Place(f"{their}.attn.c_attn.out", parted, {"part": part})
                for part, name in enumerate(("query", "key", "value"))
            },
            "blocks.{i}.attn.pattern": Place(f"{their}.attn.out", tensor=1),
            "blocks.{i}.attn.z": f"{their}.attn.c_proj.in",
            "blocks.{i}.attn.out": f"{their}.attn.out",
            "blocks.{i}.resid_mid": f"{their}.ln_2.in",
            "blocks.{i}.mlp.hidden": f"{their}.mlp.c_proj.in",
            "blocks.{i}.mlp.out": f"{their}.mlp.out",
            "blocks.{i}.resid_post": f"{their}.out",
            "final.norm": "transformer.ln_f.out",
            "logits": "lm_head.out",
        },
        sizes={"part": 3},
        config=DecoderConfig(11, 12, repeat(layer, 2), max_len=8, positions=Learned()),
        weights=GPT2_TABLE,
    )
    return gf.foreign(module, spec)


@cache
def llama(more: tuple[tuple[str, Any], ...] = ()) -> Foreign:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=11, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, max_position_embeddings=16, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0}, **EAGER,
    )  # fmt: skip
    with Wide():
        module = randomise(LlamaForCausalLM(config).double().eval(), std=0.3)
    mlp = Mlp(20, "silu", gated=True, bias=False)
    layer = block(n_heads=4, n_kv_heads=2, d_head=4, positions=Rope(100.0), norm=RmsNorm(), mlp=mlp)
    their, our = "model.layers.{i}", "stack.blocks.{i}"
    spec = gf.Spec(
        sites={
            "embed.token": "model.embed_tokens.out",
            "blocks.{i}.resid_pre": f"{their}.in",
            "blocks.{i}.attn.norm": f"{their}.input_layernorm.out",
            "blocks.{i}.attn.value": f"{their}.self_attn.v_proj.out",
            "blocks.{i}.attn.pattern": Place(f"{their}.self_attn.out", tensor=1),
            "blocks.{i}.attn.z": f"{their}.self_attn.o_proj.in",
            "blocks.{i}.attn.out": f"{their}.self_attn.out",
            "blocks.{i}.resid_mid": f"{their}.post_attention_layernorm.in",
            "blocks.{i}.mlp.hidden": f"{their}.mlp.down_proj.in",
            "blocks.{i}.mlp.out": f"{their}.mlp.out",
            "blocks.{i}.resid_post": f"{their}.out",
            "final.norm": "model.norm.out",
            "logits": "lm_head.out",
            **dict(more),
        },
        sizes={"head": 4},
        config=DecoderConfig(11, 12, repeat(layer, 2), max_len=16, final_norm=RmsNorm(), tied=False),
        weights={
            "embed.matrix": "model.embed_tokens.weight",
            f"{our}.attn_norm": f"{their}.input_layernorm",
            f"{our}.attn.projection.qkv": (
                Piece(f"{their}.self_attn.q_proj", 16),
                Piece(f"{their}.self_attn.k_proj", 8),
                Piece(f"{their}.self_attn.v_proj", 8),
            ),
            f"{our}.attn.merge.output": f"{their}.self_attn.o_proj",
            f"{our}.mlp_norm": f"{their}.post_attention_layernorm",
            f"{our}.mlp.gate": f"{their}.mlp.gate_proj",
            f"{our}.mlp.input": f"{their}.mlp.up_proj",
            f"{our}.mlp.output": f"{their}.mlp.down_proj",
            "stack.final": "model.norm",
            "unembed.matrix": "lm_head.weight",
        },
    )
    return gf.foreign(module, spec)


MODELS = {"handmade": handmade, "gpt2": gpt2, "llama": llama}
every = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def float64_throughout(request: pytest.FixtureRequest) -> Iterator[None]:
    """Casts to float32 inside a module are widened, so that what is left of a difference is rounding."""
    with Wide() if "llama" in request.node.name else nullcontext():
        yield


def logits(model: Any, **asked: Any) -> Tensor:
    found = gf.run(model, CLEAN, **asked).logits
    assert found is not None
    return found


def hooks(model: Foreign) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.module.modules())


@every
def test_what_a_spec_says_is_what_the_module_computes(name: str) -> None:
    model = MODELS[name]()
    found = disagreement(model, CLEAN)
    assert len(found) > 20
    assert max(found.values()) < 1e-9, found


@every
def test_every_site_reads_as_in_a_model_of_ours(name: str) -> None:
    model = MODELS[name]()
    ours = model.parts()
    names = [n for n in model.sites() if n in ours.sites()]
    assert {"blocks.1.attn.head_out", "blocks.0.attn.scale", "final.scale"} <= set(names)
    theirs, mine = gf.run(model, CLEAN, read=names), gf.run(ours, CLEAN, read=names)
    for site in names:
        assert theirs[site].axes == mine[site].axes
        assert theirs[site].coords == mine[site].coords
        close(theirs[site].values, mine[site].values)
    close(logits(model), logits(ours))


def edits() -> list[list[Edit]]:
    directions = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return [
        [Scale("blocks.0.attn.z", 0.0, at=At(head=1))],
        [Set("blocks.*.attn.z", 0.3, at=At(head=[0, 2], pos=[1, -1]))],
        [Add("blocks.1.resid_pre", 0.5, at=At(pos=slice(2, 5)))],
        [Apply("blocks.1.attn.z", torch.tanh, at=At(head=-1))],
        [Project("blocks.0.attn.out", directions)],
        [Take("blocks.0.attn.out", 0, at=At(batch=1))],
        [Scale("blocks.*.mlp.out", 0.5), Add("blocks.0.attn.out", 0.1)],
        [Scale("blocks.0.mlp.hidden", 0.5), Scale("logits", 2.0)],
        [Scale("blocks.1.attn.value", 0.0, at=At(kv_head=1))],
    ]


@every
def test_an_edit_does_what_it_does_to_a_model_of_ours(name: str) -> None:
    model = MODELS[name]()
    bare = logits(model)
    for changes in edits():
        edited = logits(model, edit=changes)
        assert not torch.equal(edited, bare), changes
        close(edited, logits(model.parts(), edit=changes))


def moved(x: Tensor, written: Tensor, hidden: Tensor) -> Tensor:
    return x + 0.5 * written - hidden.mean(-1, keepdim=True)


@every
def test_an_edit_reads_earlier_sites_as_it_does_in_a_model_of_ours(name: str) -> None:
    model = MODELS[name]()
    changes = [Apply("blocks.1.mlp.out", moved, reads=("blocks.0.attn.out", "blocks.1.mlp.hidden"))]
    edited = logits(model, edit=changes)
    assert not torch.equal(edited, logits(model))
    close(edited, logits(model.parts(), edit=changes))
    plan = [changes, [Scale("blocks.0.attn.out", 0.5), *changes], [Scale("blocks.1.mlp.out", 0.5)]]
    found = sweep(model, CORRUPT, plan, METRIC)
    close(found.values.values, sweep(model.parts(), CORRUPT, plan, METRIC).values.values)


def test_queries_keys_and_patterns_can_be_edited_where_a_boundary_carries_them() -> None:
    model = handmade()
    for site, at in (("query", At(head=1)), ("key", At(kv_head=2)), ("pattern", At(head=0, query=3))):
        changes = [Scale(f"blocks.0.attn.{site}", 0.3, at=at)]
        close(logits(model, edit=changes), logits(model.parts(), edit=changes))


def test_what_was_read_does_not_change_when_the_module_adds_in_place() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            x = self.part(x)
            x += 1
            return x

    x = torch.zeros(1, 3, 2)
    model = gf.foreign(InPlace(), gf.Spec({"stream": Place("part.out", axes="batch pos d_model")}))
    assert not gf.run(model, x, read="stream")["stream"].values.any()


@pytest.mark.parametrize(
    "at", [At(batch=0), At(batch=1, pos=-1), At(batch=[1, 0], pos=[2, 0]), At(batch=[True, False], d_model=1)]
)
def test_parts_of_a_module_that_reads_no_ids_are_read_and_edited(at: At) -> None:
    x = torch.arange(1.0, 13.0).reshape(2, 3, 2)
    model = gf.foreign(nn.Sequential(nn.Identity()), gf.Spec({"stream": Place("0.out", axes="batch pos d_model")}))
    site = model.sites()["stream"]
    assert torch.equal(gf.run(model, x, read=gf.Read("stream", at))["stream"].values, at.take(x, site))
    edited = gf.run(model, x, read="stream", edit=gf.Scale("stream", -1.0, at=at))["stream"].values
    assert torch.equal(edited, at.put(x, -at.take(x, site), site))


@every
def test_gradients_at_sites_are_those_of_a_model_of_ours(name: str) -> None:
    model = MODELS[name]()
    sites = ["blocks.0.attn.z", "blocks.1.resid_pre", "blocks.0.mlp.out"]
    # parts hold weights, not parameters: something has to want a gradient
    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = []
    for one in (model, model.parts()):
        run = gf.run(one, CLEAN, read=sites, edit=[Add("embed.token", zero)], grad=True)
        assert run.logits is not None
        found.append(torch.autograd.grad(run.logits[:, -1, 3].sum(), [run[site].values for site in sites]))
    for theirs, mine in zip(*found):
        close(theirs, mine)


@every
def test_rows_of_a_sweep_run_side_by_side_with_the_numbers_of_the_plain_loop(name: str) -> None:
    model = MODELS[name]()
    donor = Donor(CLEAN)
    plan = grid(
        lambda layer, pos: [Set(f"blocks.{layer}.attn.z", donor, at=At(pos=pos, head=1))], layer=range(2), pos=range(7)
    )
    found = sweep(model, CORRUPT, plan, METRIC)
    assert (found.how, found.passes) == ("side by side", 1)
    close(found.values.values, one_by_one(model, CORRUPT, plan, METRIC).values.values)
    close(found.values.values, sweep(model.parts(), CORRUPT, plan, METRIC).values.values)
    assert found.values.axes == ("metric", "layer", "pos", "batch")
    losses, rows = token_loss(CORRUPT.roll(-1, 1)), plan.rows[:3]
    by_token = sweep(model, CORRUPT, rows, losses)
    assert (by_token.how, by_token.values.axes) == ("side by side", ("metric", "row", "batch", "pos"))
    close(by_token.values.values, one_by_one(model, CORRUPT, rows, losses).values.values)


def test_rows_that_take_from_each_other_run_in_one_pass() -> None:
    model = gpt2()
    rows = [
        [Add("blocks.0.resid_pre", 0.5, at=At(pos=1))],
        [Scale("blocks.0.mlp.out", 0.0)],
        [Take("blocks.1.attn.out", 0, at=At(pos=3)), Take("blocks.0.mlp.out", 1)],
        [Set("blocks.1.attn.z", 0.0, at=At(head=2))],
    ]
    for at_once in (None, 1, 3):
        found = sweep(model, CLEAN, rows, METRIC, rows=at_once)
        close(found.values.values, sweep(model.parts(), CLEAN, rows, METRIC).values.values)


def test_named_arguments_are_repeated_with_their_rows_and_padding_counts() -> None:
    model = gpt2()
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    inputs = {"input_ids": CLEAN, "attention_mask": mask}
    plan = grid(lambda layer, head: [Scale(f"blocks.{layer}.attn.z", 0.0, at=At(head=head))], layer=[0, 1], head=[0, 2])
    found = sweep(model, inputs, plan, METRIC)
    assert found.how == "side by side"
    alone = sweep(model, CLEAN[1:, :5], plan, METRIC)
    close(found.values.values[..., 1], alone.values.values[..., 0])


def test_positions_that_all_rows_share_are_edited_row_by_row() -> None:
    model = gpt2()
    rows = [[Scale("blocks.0.mlp.out", 0.5)], [Scale("embed.position", 0.0)], [Scale("embed.token", 0.5)]]
    found = sweep(model, CLEAN, rows, METRIC)
    assert found.how == "side by side"
    close(found.values.values, sweep(model.parts(), CLEAN, rows, METRIC).values.values)


def test_a_module_whose_rows_meet_runs_row_by_row_and_says_why() -> None:
    class Meeting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(11, 6), nn.Linear(6, 11)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            return self.out(x - x.mean(0, keepdim=True))

    class Single(Meeting):
        def forward(self, ids: Tensor) -> Tensor:
            if len(ids) > 2:
                raise ValueError("two rows at most")
            return self.out(self.embed(ids))

    rows = [[Scale("embed.token", 0.5, at=At(pos=i))] for i in range(4)]
    spec = gf.Spec({"embed.token": "embed.out", "logits": "out.out"})
    for module, why in ((Meeting(), "in a batch the numbers are other ones"), (Single(), "two rows at most")):
        model = gf.foreign(module.double(), spec)
        found = sweep(model, CLEAN, rows, METRIC)
        assert found.how.startswith("row by row: ")
        assert why in found.how
        close(found.values.values, one_by_one(model, CLEAN, rows, METRIC).values.values)


def test_a_module_that_keeps_a_state_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.calls = nn.Embedding(11, 11), 0

        def forward(self, ids: Tensor) -> Tensor:
            self.calls += 1
            return self.embed(ids) * self.calls

    model = gf.foreign(Counting(), gf.Spec({"embed.token": "embed.out"}))
    with pytest.raises(AnalysisUnavailable, match="other numbers when it runs again"):
        sweep(model, CLEAN, [[Scale("embed.token", 0.5)]], METRIC)


def test_an_interrupted_sweep_goes_on_from_its_file(tmp_path) -> None:
    model, plan = handmade(), [[Scale("blocks.0.attn.z", 0.0, at=At(head=h))] for h in range(3)]
    first = sweep(model, CLEAN, plan, METRIC, save_to=tmp_path / "rows")
    again = sweep(model, CLEAN, plan, METRIC, save_to=tmp_path / "rows")
    assert again.passes == 0
    close(again.values.values, first.values.values)
    with pytest.raises(AnalysisUnavailable, match="save_to"):
        sweep(model.module, CLEAN, [[Scale("out", 2.0)]], METRIC, save_to=tmp_path / "others")


@every
def test_patching_and_ablation_know_the_families_of_sites_that_a_spec_names(name: str) -> None:
    model = MODELS[name]()
    ours = model.parts()
    clean, corrupt = CLEAN[:, :4], CORRUPT[:, :4]
    asked = ["stream", SiteGrid("value", only={"layer": [1]})]
    theirs, mine = (patch(each, (clean, corrupt), METRIC, asked) for each in (model, ours))
    assert list(theirs) == list(mine)
    for table in mine:
        assert theirs[table].values.axes == mine[table].values.axes
        close(theirs[table].values.values.nan_to_num(), mine[table].values.values.nan_to_num())
    parts = ["heads", "L0 mlp"]
    tables = [ablation_table(one, clean, METRIC, parts, kinds=["mean"]) for one in (model, ours)]
    close(tables[0].values.values, tables[1].values.values)
    traced = [causal_trace(one, clean[:1, :3], [1], 3, 5, samples=2, window=1) for one in (model, ours)]
    close(traced[0].values.values, traced[1].values.values)


@every
def test_lens_and_attribution_take_runs_of_the_module(name: str) -> None:
    model = MODELS[name]()
    sites = {*card_of(logit_lens).reads(model.parts()), *card_of(direct_logit_attribution).reads(model.parts())}
    run, mine = gf.run(model, CLEAN, read=sites), gf.run(model.parts(), CLEAN, read=sites)
    close(analysis.lens.logit_lens(run, row=1).logits.values, analysis.lens.logit_lens(mine, row=1).logits.values)
    found = analysis.attribution.direct_logit_attribution(run, answer=3, against=5, row=1)
    close(found.sum.values, found.total.values, 1e-7)
    close(
        found.contributions.values,
        analysis.attribution.direct_logit_attribution(mine, answer=3, against=5, row=1).contributions.values,
    )


@every
def test_weights_are_those_of_the_module_and_give_its_log_probabilities(name: str) -> None:
    model = MODELS[name].__wrapped__()
    expected = logits(model)
    w = weights.of(model)
    with pytest.raises(AnalysisUnavailable, match=r"model\.parts\(\)"):
        card_of(logit_lens).reads(model)
    close(weights.logits(w, CLEAN), expected)
    close(weights.logits(weights.of(model, fold=True), CLEAN).log_softmax(-1), expected.log_softmax(-1))
    storage = {p.untyped_storage().data_ptr() for p in model.module.parameters()}
    assert all(o.untyped_storage().data_ptr() in storage for o in (*w.O, w.E, w.U))
    if name == "llama":
        with pytest.raises(AnalysisUnavailable, match="rotary"):
            w["L0H1"].qk()
        assert w["L0H1"].qk(offset=2).shape == (1, 12, 12)
    # the weights are looked at anew when they have changed
    with torch.no_grad():
        for p in model.module.parameters():
            p.mul_(0.5)
    close(weights.of(model).Q[1], w.Q[1].clone() if name == "gpt2" else w.Q[1] * 0.5)
    close(weights.logits(weights.of(model), CLEAN), logits(model))


@dataclass
class Wrong:
    """A spec with a mistake in it, and what is said of it."""

    sites: dict[str, Any]
    error: type[Exception]
    says: str
    sizes: Any = None


LAYER = "transformer.h.{i}"
Z = "blocks.{i}.attn.z"
WRONG = {
    "no such module": Wrong({"logits": "lm_heat.out"}, UnknownSite, r'no module "lm_heat"\. Nearest: "lm_head"'),
    "no such layers": Wrong({Z: "transformer.layers.{i}.out"}, UnknownSite, r'no module "transformer\.layers\.0"'),
    "no such site": Wrong({"blocks.{i}.attn.patern": f"{LAYER}.attn.out"}, UnknownSite, r'Nearest: "blocks\.\{i\}'),
    "no side": Wrong({"logits": "lm_head"}, ConfigError, r'"lm_head\.in" or "lm_head\.out"'),
    "a layer on our side": Wrong({"blocks.{i}.mlp.out": "lm_head.out"}, ConfigError, "one site per layer"),
    "a layer on theirs": Wrong({"logits": f"{LAYER}.out"}, ConfigError, "one boundary per layer"),
    "heads not said": Wrong({Z: f"{LAYER}.attn.c_proj.in"}, UnknownAxis, "lengths of head and d_value"),
    "an axis missing": Wrong(
        {Z: Place(f"{LAYER}.attn.c_proj.in", "batch pos (hed d_value)")}, UnknownAxis, 'Nearest: "hed"'
    ),
    "an index missing": Wrong(
        {"blocks.{i}.attn.query": Place(f"{LAYER}.attn.c_attn.out", "batch pos (part head d_head)")},
        UnknownAxis, r"Give at=\{axis: index\}", {"head": 3, "part": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_spec_is_refused_where_it_is_wrong(mistake: str) -> None:
    wrong = WRONG[mistake]
    with pytest.raises(wrong.error, match=wrong.says):
        gf.foreign(gpt2().module, gf.Spec(wrong.sites, wrong.sizes or {}))


def test_a_wrong_number_of_heads_shows_in_the_first_pass_and_leaves_no_hook() -> None:
    z = {"blocks.{i}.attn.z": f"{LAYER}.attn.c_proj.in"}
    model = gf.foreign(gpt2().module, gf.Spec(z, {"head": 5}))
    with pytest.raises(ShapeMismatch, match=r"an axis of 12 is not head=5 x d_value=\?"):
        gf.run(model, CLEAN, read="*")
    assert hooks(model) == 0

    def fail(value: Tensor) -> Tensor:
        return value / (1 // 0)

    model = gpt2()
    with pytest.raises(ZeroDivisionError):
        gf.run(model, CLEAN, read="*", edit=[("blocks.1.mlp.out", fail)])
    assert hooks(model) == 0
    close(logits(model), logits(model.parts()))


def test_a_boundary_without_a_tensor_is_named() -> None:
    model = gf.foreign(gpt2().module, gf.Spec({"blocks.{i}.attn.pattern": Place(f"{LAYER}.mlp.out", tensor=1)}))
    with pytest.raises(SiteNotRead, match=r'"transformer\.h\.0\.mlp\.out" carries has no tensor 1 \(Tensor\)'):
        gf.run(model, CLEAN, read="blocks.0.attn.pattern")
    assert hooks(model) == 0


def test_edits_that_nothing_would_notice_are_refused() -> None:
    model = gpt2()
    refused = {
        "blocks.0.attn.pattern": "nothing says that the module goes on with it",
        "blocks.0.resid_mid": "the stream goes on beside it",
        "blocks.1.attn.head_out": r'computed from "blocks\.1\.attn\.z"',
    }
    for site, why in refused.items():
        with pytest.raises(AnalysisUnavailable, match=why):
            Tape(model, edit=[Scale(site, 0.0)])


def test_a_table_that_does_not_cover_both_sides_is_refused() -> None:
    module = gpt2().module
    config: Any = gpt2().parts().config
    for change, error, says in (
        ({"stack.final": None}, ConfigError, r'no row for our tensor "stack\.final\.weight"'),
        ({"stack.final": "transformer.lnf"}, ConfigError, r'no such tensor\. Nearest: "transformer\.ln_f\.weight"'),
        (
            {"stack.final": "transformer.h.0.ln_1"},
            ConfigError,
            r'leaves out 2 parameters .* "transformer\.ln_f\.weight"',
        ),
        ({"embed.matrix": ("transformer.wte.weight", "transformer.wte.weight")}, CheckpointError, "does not fit"),
    ):
        wrong = {name: right for name, right in {**GPT2_TABLE, **change}.items() if right is not None}
        with pytest.raises(error, match=says):
            gf.foreign(module, gf.Spec({}, config=config, weights=wrong))


def test_queries_that_have_yet_to_be_turned_are_not_called_queries() -> None:
    boundary = "model.layers.{i}.self_attn.q_proj.out"
    with pytest.raises(ConfigError, match=r'"model\.layers\.0\.self_attn\.q_proj\.out" is what it was before its'):
        llama((("blocks.{i}.attn.query", boundary),))
    spec = gf.Spec({"blocks.{i}.attn.query_raw": Place(boundary, axes="batch head pos d_head")}, {"head": 4})
    model = gf.foreign(llama().module, spec)
    assert gf.run(model, CLEAN, read="*")["blocks.1.attn.query_raw"].shape == (2, 4, 7, 4)


def test_a_comparison_leaves_the_module_in_its_mode() -> None:
    model = gpt2.__wrapped__()
    model.module.train()
    model.module.get_submodule("transformer.h.0").eval()
    disagreement(model, CLEAN)
    assert model.module.training
    assert not model.module.get_submodule("transformer.h.0.attn").training


def test_without_a_config_sites_work_and_analyses_of_parts_say_what_is_missing() -> None:
    module = gpt2().module
    model = gf.foreign(module, gf.Spec({"blocks.{i}.attn.z": f"{LAYER}.attn.c_proj.in"}, {"head": 3}))
    assert model.sites()["blocks.1.attn.z"].axes == ("batch", "head", "pos", "d_value")
    for analysis_of in (weights.of, card_of(logit_lens).reads, lambda m: disagreement(m, CLEAN)):
        with pytest.raises(AnalysisUnavailable, match="config=…, weights=…"):
            analysis_of(model)
    with pytest.raises(AnalysisUnavailable, match='names no site of the family "mlp_out"'):
        patch(model, (CLEAN, CORRUPT), METRIC, "mlp_out")
    close(logits(model), module(CLEAN).logits)


def test_a_tokenizer_lets_a_module_read_text() -> None:
    named, metric = gpt2(), logit_difference("a", "b")
    spec = gf.Spec({"blocks.{i}.mlp.out": f"{LAYER}.mlp.out"})
    model = gf.foreign(named.module, spec, symbol_tokenizer(["<bos>", *"abcdefghi"]))
    run = gf.run(model, "a b c", read="*")
    assert run.tokens == ["<bos>", "a", "b", "c"]
    assert run["blocks.0.mlp.out"].labels("pos") == ["0:<bos>", "1:a", "2:b", "3:c"]
    assert patch(model, (["a b c", "b c d"], ["a a c", "b d d"]), metric, "mlp_out")["mlp_out"].values.shape == (
        1,
        2,
        4,
        2,
    )
    with pytest.raises(TextError, match="one length"):
        patch(model, (["a b c", "b"], ["a a c", "c"]), metric, "mlp_out")
    with pytest.raises(TextError, match="no tokenizer"):
        gf.run(named, "a b c")
