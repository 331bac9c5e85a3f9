"""Ablations side by side: equal to single runs, to each other where they must be, and refused where undefined."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.analysis import run
from glassformer.analysis.causal import AblationTable, SiteGrid, ablation_table
from glassformer.analysis.sweep import Metric, logit, logit_difference
from glassformer.attention import Attention
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.labelled import Labelled
from glassformer.models import Convolution, DecoderConfig, Gru, Mlp
from glassformer.models.block import BlockConfig
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, drawn, subject
from glassformer.trace import At, Scale, Set

METRIC = logit_difference(1, 2)
VARIED = ["gpt2", "llama", "post", "smeared", "lightning_hybrid", "differential", "translator_linear"]


def prompts(name: str, batch: int = 3, length: int = 4) -> tuple[Any, dict[str, Any]]:
    found = subject(name, batch=batch, length=length)
    given: dict[str, Any] = {"inputs": found.inputs[0]}
    return found.model, given if len(found.inputs) == 1 else given | {"target": found.inputs[1]}


def answered(model: Any, given: dict[str, Any], *edits: Any) -> Tensor:
    logits = run(model, given["inputs"], given.get("target"), edit=edits).logits
    assert logits is not None
    return logits[:, -1, 1] - logits[:, -1, 2]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_mean_of_one_prompt_is_its_own_value(name: str) -> None:
    model, given = prompts(name, batch=1)
    found = ablation_table(model, metric=METRIC, parts=["heads", "attentions", "positions"], kinds=["mean"], **given)
    assert found.change.values.abs().max() < 1e-12


@pytest.mark.parametrize("name", VARIED)
def test_every_kind_is_a_run_with_the_head_replaced(name: str) -> None:
    model, given = prompts(name)
    found = ablation_table(model, metric=METRIC, **given)
    last = model.stacks[next(reversed(model.stacks))].blocks[-1].part("attn")
    site = f"{last.path}.head_out"
    clean = run(model, given["inputs"], given.get("target"), read=[site])[site].values[:, 1]
    at = At(head=1)
    values = found.values.select(part="L1H1", metric=0)
    close(found.whole.values[0], answered(model, given))
    close(values.select(kind="zero").values, answered(model, given, Scale(site, 0.0, at=at)))
    mean = Set(site, clean.mean(0, keepdim=True), at=at)
    close(values.select(kind="mean").values, answered(model, given, mean))
    # three prompts in a ring: each gets its neighbour's, one way round or the other
    rings = [answered(model, given, Set(site, clean.roll(step, 0), at=at)) for step in (1, 2)]
    resampled = values.select(kind="resample").values
    assert min(float((resampled - ring).abs().max()) for ring in rings) < 1e-9


def test_where_all_is_linear_resampling_is_on_average_the_mean() -> None:
    """Without norms after it, a last-layer head's value is linear in the logit; n - 1 donors leave out one's own."""
    model, given = prompts("bare", batch=4)
    found = ablation_table(model, metric=logit(3), draws=3, **given)
    change = found.change.select(metric=0)
    for head in ("L1H0", "L1H1"):
        ours = change.select(part=head)
        close(ours.select(kind="resample").values, ours.select(kind="mean").values * 4 / 3)


@pytest.mark.parametrize("name", ["gpt2", "lightning_hybrid", "translator_pre"])
def test_a_part_named_twice_is_ablated_once_and_sets_go_together(name: str) -> None:
    model, given = prompts(name)
    sets = {"one": ["L0H1"], "twice": ["L0H1", "L0H1"], "two": ["L0H1", "L1 mlp"]}
    found = ablation_table(model, metric=METRIC, parts=sets, **given)
    close(found.values.select(part="twice").values, found.values.select(part="one").values)
    stack = f"{list(model.stacks)[-1]}." if len(model.stacks) > 1 else ""
    site = model.stacks[next(reversed(model.stacks))].blocks[0].part("attn").at.head_out
    edits = [Scale(site, 0.0, at=At(head=1)), Scale(f"{stack}blocks.1.mlp.out", 0.0)]
    close(found.values.select(part="two", kind="zero", metric=0).values, answered(model, given, *edits))
    alone = ablation_table(model, metric=METRIC, parts="L0H1", **given)
    close(alone.values.values, found.values.values[:, :, :1])


def test_means_over_all_positions_come_from_the_reference() -> None:
    model, given = prompts("gpt2")
    reference = torch.randint(0, 11, (5, 9), generator=torch.Generator().manual_seed(3))
    batch = Batch(
        reference, reference, torch.ones_like(reference, dtype=torch.bool), lengths=torch.tensor([9, 9, 2, 5, 1])
    )
    found = ablation_table(
        model, metric=METRIC, parts="mlps", kinds=["mean"], reference=batch, mean_over="all", positions=[1, -1], **given
    )
    site = "blocks.0.mlp.out"
    out = run(model, batch, read=[site])[site].values
    mean = torch.cat([out[i, :n] for i, n in enumerate((9, 9, 2, 5, 1))]).mean(0)
    close(found.values.select(part="L0 mlp").values[0, 0], answered(model, given, Set(site, mean, at=At(pos=[1, 3]))))
    assert found.reference == 5
    with pytest.raises(ShapeMismatch, match='mean_over="all"'):
        ablation_table(model, metric=METRIC, reference=batch, **given)


def test_parts_of_every_sort_share_one_table() -> None:
    model, given = prompts("llama")
    parts = ["heads", "attentions", "mlps", "positions", "L1N3", "L1H0", SiteGrid("value", only={"layer": [0]})]
    found = ablation_table(model, metric=METRIC, parts=parts, **given)
    assert found.values.labels("part") == [
        *(f"L{i}H{h}" for i in range(2) for h in range(4)), "L0 attn", "L1 attn", "L0 mlp", "L1 mlp",
        *(f"position {i}" for i in range(4)), "L1N3", "value layer=0 kv_head=0", "value layer=0 kv_head=1",
    ]  # fmt: skip
    close(found.values.select(part="L1N3", kind="zero", metric=0).values,
          answered(model, given, Scale("blocks.1.mlp.hidden", 0.0, at=At(neuron=3))))  # fmt: skip
    # a resampled first vector is another token
    swapped = found.values.select(part="position 3", kind="resample", metric=0).values
    ids = given["inputs"]
    others = [torch.cat((ids[:, :3], ids[:, 3:].roll(step, 0)), 1) for step in (1, 2)]
    assert any(torch.allclose(answered(model, {"inputs": other}), swapped) for other in others)
    assert len(found.plot().axes) == 2
    frame = found.to_frame()
    assert list(frame.columns[:5]) == ["metric", "part", "zero", "mean", "resample"]
    assert frame.loc[frame["part"] == "L1N3", "zero"].item() == pytest.approx(
        float(found.mean.select(part="L1N3", kind="zero").values)
    )


def test_a_sub_layer_that_is_no_mlp_is_a_part_of_its_own() -> None:
    config = DecoderConfig(11, 8, (BlockConfig((Attention(2), Gru(), Convolution(), Mlp(8))),), max_len=24)
    found = drawn("mixed", config)
    table = ablation_table(found.model, found.inputs[0], logit(3), parts=["mlps", "L0 gru"], kinds=["zero"])
    assert table.values.labels("part") == ["L0 gru", "L0 conv", "L0 mlp"]
    for label in ("gru", "conv", "mlp"):
        off = run(found.model, found.inputs[0], edit=[Scale(f"blocks.0.{label}.out", 0.0)])
        assert off.logits is not None
        close(table.values.select(part=f"L0 {label}", kind="zero", metric=0).values, off.logits[:, -1, 3])


def test_kinds_that_rank_alike_agree() -> None:
    changes = torch.tensor(
        [[1.0, 2.0, 3.0, 9.0], [10.0, 20.0, 30.0, 31.0], [-1.0, -2.0, -3.0, -4.0], [5.0, 5.0, 7.0, 7.0]]
    )
    values = Labelled(changes.double()[None, :, :, None].expand(-1, -1, -1, 2), ("metric", "kind", "part", "batch"))
    whole = Labelled(torch.zeros(1, 2, dtype=torch.float64), ("metric", "batch"))
    found = AblationTable(values, whole, reference=2, mean_over="position", draws=1, seed=0).agreement.values[0]
    # ranks 0 1 2 3 against 0.5 0.5 2.5 2.5
    tied = 4 / (5 * 4) ** 0.5
    expected = [[1, 1, -1, tied], [1, 1, -1, tied], [-1, -1, 1, -tied], [tied, tied, -tied, 1]]
    close(found, torch.tensor(expected, dtype=torch.float64))


def test_the_induction_circuit_is_what_ablation_finds() -> None:
    model, ids = induction_model(), repeated(batch=4)
    answers = torch.tensor([int(row[list(row[:-1]).index(row[-1]) + 1]) for row in ids])
    found = ablation_table(model, ids, logit(answers))
    close(found.whole.values, torch.full((1, 4), 50.0).double(), 1e-4)
    for kind in ("zero", "mean", "resample"):
        change = found.mean.select(kind=kind, metric=0)
        for head in ("L0H0", "L1H0") if kind == "zero" else ("L1H0",):
            assert float(change.select(part=head).values) < -30
        for idle in ("L0H1", "L1H1"):
            assert abs(float(change.select(part=idle).values)) < 1e-9


def test_shorter_prompts_have_no_later_positions() -> None:
    model = subject("gpt2").model
    tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
    batch = Batch(tokens, tokens, torch.ones_like(tokens, dtype=torch.bool), lengths=torch.tensor([5, 3]))
    found = ablation_table(model, batch, METRIC, ["positions", "heads"])
    assert found.values.labels("kind") == ["zero", "mean"]
    assert found.values.select(part="position 4", kind="zero").values.isnan().tolist() == [[False, True]]
    alone = ablation_table(model, tokens[1:, :3], METRIC, ["positions", "heads"], kinds=["zero"])
    close(
        found.values.select(part="L0H2", kind="zero").values[:, 1:],
        alone.values.select(part="L0H2", kind="zero").values,
    )
    # at positions that one prompt has alone, its mean is its own value
    last = found.change.select(part="position 4", kind="mean").values
    assert last[0, 0].abs() < 1e-12
    with pytest.raises(ShapeMismatch, match="differ in length"):
        ablation_table(model, batch, METRIC, kinds=["resample"])


def test_parts_of_any_module_are_ablated_by_their_names() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 5)).double()
    ids = torch.tensor([[1, 2], [3, 4], [0, 2]])
    metric = Metric("first", lambda logits: logits[..., -1, 0], (), None)
    for inputs in (ids, (ids,)):
        found = ablation_table(module, inputs, metric, SiteGrid("*.out"))
        assert found.values.labels("part") == ["0.out", "1.out", "2.out", "3.out"]
        mean = module[0](ids).mean(0, keepdim=True)
        close(found.values.values[0, 1, 0], module[1:](mean)[0, -1, 0].expand(3))
        # what is put in at the bottom, at the top comes out
        assert sorted(found.values.values[0, 2, 0].tolist()) == pytest.approx(sorted(found.whole.values[0].tolist()))
    with pytest.raises(AnalysisUnavailable, match="Sequential have no labels"):
        ablation_table(module, ids, metric, "L0H0")


def test_what_cannot_be_ablated_is_said() -> None:
    model, given = prompts("attention_only", batch=1)
    with pytest.raises(AnalysisUnavailable, match=r'(?s)no part "L9H9".*L1H6'):
        ablation_table(model, metric=METRIC, parts="L9H9", **given)
    with pytest.raises(AnalysisUnavailable, match="no MLP"):
        ablation_table(model, metric=METRIC, parts="mlps", **given)
    with pytest.raises(AnalysisUnavailable, match='set "none" is empty'):
        ablation_table(model, metric=METRIC, parts={"none": []}, **given)
    with pytest.raises(ShapeMismatch, match="resampled from another prompt, and there is 1"):
        ablation_table(model, metric=METRIC, kinds=["resample"], **given)
    with pytest.raises(AnalysisUnavailable, match="pairs of positions"):
        ablation_table(model, metric=METRIC, parts=SiteGrid("pattern"), kinds=["mean"], mean_over="all", **given)
    model, given = prompts("attention_only", batch=3)
    with pytest.raises(ShapeMismatch, match="allow 1 to 2 draws, found 3"):
        ablation_table(model, metric=METRIC, draws=3, **given)
