"""Learning rates, label smoothing, accumulation and weight decay against what their papers and definitions say."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.attention import Attention, Separate
from glassformer.data import Batch, Copy
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, LabelSmoothing, LayerNorm, Learned, Mlp, block, repeat
from glassformer.testing import close
from glassformer.training import OptimConfig, TrainConfig, read_metrics, train
from glassformer.training.loop import _parts
from one_pass import in_one_pass
from tiny_runs import DATA, MODEL, recipe


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.988e-4), (1024, 4.941e-4)])
def test_noam_peaks_once_at_the_end_of_the_warm_up_at_the_published_rate(d_model, peak):
    optim = OptimConfig(lr=1.0, schedule="noam", warmup=4000)
    rates = [optim.rate(step, 100_000, d_model) for step in range(1, 20_001)]
    assert max(rates) == rates[3999] == pytest.approx(peak, rel=1e-4)
    assert all(a < b for a, b in pairwise(rates[:4000]))
    assert all(a > b for a, b in pairwise(rates[3999:]))
    assert optim.rate(0, 100_000, d_model) == rates[0]


@given(
    lr=st.floats(1e-5, 1),
    warmup=st.integers(0, 50),
    floor=st.floats(0, 1),
    steps=st.integers(60, 200),
)
def test_cosine_rises_to_its_peak_and_falls_to_its_floor(lr, warmup, floor, steps):
    optim = OptimConfig(lr=lr, warmup=warmup, floor=floor)
    rates = [optim.rate(step, steps, 64) for step in range(1, steps + 1)]
    top = max(warmup, 1) - 1
    assert all(a <= b for a, b in pairwise(rates[: top + 1]))
    assert all(a >= b - 1e-12 for a, b in pairwise(rates[top:]))
    assert rates[top] == pytest.approx(lr, rel=1e-3 if warmup == 0 else 1e-12)
    assert rates[-1] == pytest.approx(lr * floor, abs=1e-12)
    half = (warmup + steps) / 2
    if half == int(half):
        assert optim.rate(int(half), steps, 64) == pytest.approx(lr * (1 + floor) / 2)


def test_constant_stays_at_its_peak():
    optim = OptimConfig(lr=0.3, schedule="constant", warmup=4)
    assert [optim.rate(step, 10, 8) for step in (1, 2, 4, 5, 10)] == pytest.approx([0.075, 0.15, 0.3, 0.3, 0.3])


def test_label_smoothing_cannot_go_below_the_entropy_of_its_target():
    vocab, smoothing = 11, 0.1
    target = torch.full((vocab,), smoothing / vocab, dtype=torch.float64)
    target[3] += 1 - smoothing
    model = DecoderConfig(vocab, vocab, repeat(block(n_heads=1), 1), tied=False).build().double()
    # with the identity as unembedding the stream is the logits
    assert isinstance(model.unembed.matrix, torch.nn.Parameter)
    model.unembed.matrix.data = torch.eye(vocab, dtype=torch.float64)
    loss = model.unembed.loss(target.log()[None, None], torch.tensor([[3]]), None, smoothing)
    entropy = -(target * target.log()).sum()
    close(loss, entropy)
    assert loss.item() == pytest.approx(0.5140, abs=5e-5)
    away = model.unembed.loss(
        (target.log() + torch.randn(vocab) * 0.1)[None, None], torch.tensor([[3]]), None, smoothing
    )
    assert away > loss


def annotated(logits: torch.Tensor, ids: torch.Tensor, rate: float, padding: int) -> torch.Tensor:
    """Return the divergence from the smoothed target by position, built as in "The Annotated Transformer"."""
    target = torch.full_like(logits, rate / (logits.shape[-1] - 2))
    for row, right in enumerate(ids.tolist()):
        target[row, right] = 1 - rate
        target[row, padding] = 0
    return torch.nn.functional.kl_div(logits.log_softmax(-1), target, reduction="none").sum(-1)


@given(st.integers(0, 2**31), st.floats(0.01, 0.9), st.integers(4, 12))
def test_smoothing_over_the_others_is_the_annotated_form_and_the_entropy_of_its_target(seed, rate, vocab):
    torch.manual_seed(seed)
    logits = torch.randn(5, vocab, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(1, vocab, (5,))
    ours = LabelSmoothing(rate, over="others", excluded=(0,)).losses(logits, ids)
    theirs = annotated(logits, ids, rate, padding=0)
    entropy = -(1 - rate) * math.log(1 - rate) - rate * math.log(rate / (vocab - 2))
    close(ours, theirs + entropy)
    slopes = [torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0] for loss in (ours, theirs)]
    close(slopes[0], slopes[1])


@given(st.integers(0, 2**31), st.floats(0.0, 0.9))
def test_the_two_forms_of_smoothing_are_one_at_rates_that_give_the_others_the_same(seed, rate):
    torch.manual_seed(seed)
    vocab, logits, ids = 7, torch.randn(5, 7, dtype=torch.float64), torch.randint(0, 7, (5,))
    shared = LabelSmoothing(rate).losses(logits, ids)
    close(LabelSmoothing(rate * (vocab - 1) / vocab, over="others").losses(logits, ids), shared)


def test_where_the_right_token_is_an_excluded_one_all_that_is_taken_from_it_is_shared():
    logits, ids = torch.randn(3, 6, dtype=torch.float64), torch.tensor([0, 1, 4])
    log_prob = logits.log_softmax(-1)
    found = LabelSmoothing(0.3, over="others", excluded=(0, 1)).losses(logits, ids)
    # 0 and 1 have no share; neither has the right token, which of the last row is one more
    for row, sharing in enumerate(([2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 5])):
        close(found[row], -0.7 * log_prob[row, ids[row]] - 0.3 * log_prob[row, sharing].mean())


def test_shares_that_nobody_or_nobody_there_could_have_are_refused():
    logits, ids = torch.randn(3, 4), torch.tensor([0, 1, 3])
    with pytest.raises(ConfigError, match='belongs to over="others"'):
        LabelSmoothing(0.1, excluded=(0,))
    for excluded in ((4,), (-1,), (0, 1, 2)):
        with pytest.raises(ConfigError, match="leaves no other of 4 tokens, or names one outside"):
            LabelSmoothing(0.1, over="others", excluded=excluded).losses(logits, ids)


@pytest.mark.parametrize("smoothing", [0.1, LabelSmoothing(0.1, over="others", excluded=(0,))])
def test_smoothing_survives_json(smoothing):
    config = recipe(smoothing=smoothing)
    assert TrainConfig.from_json(config.to_json()) == config


def gradients(model: Any, batches: list[Batch], shares: list[float]) -> list[torch.Tensor]:
    model.zero_grad()
    for batch, share in zip(batches, shares, strict=True):
        (model.loss(batch, 0.1) * share).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@in_one_pass
@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_accumulated_parts_give_the_gradient_of_the_whole_batch(count):
    model = MODEL.build().double().eval()
    batch = DATA.build().batch(1)
    parts = _parts(batch, count)
    assert sum(len(part.tokens) for part in parts) == len(batch.tokens)
    # rows count different numbers of tokens, so equal shares would be wrong
    shares = [float(part.weight.sum() / batch.weight.sum()) for part in parts]
    assert len({int(row.sum()) for row in batch.weight}) > 1
    whole = gradients(model, [batch], [1.0])
    for one, other in zip(whole, gradients(model, parts, shares), strict=True):
        close(other, one)


def test_a_run_that_accumulates_ends_where_one_that_does_not_ends(tmp_path):
    model = MODEL.replace(layers=tuple(layer.replace(dropout=0.0) for layer in MODEL.layers))
    # sums in float32 differ in their order; Adam divides by small roots, so a fresh second moment magnifies that
    optim = OptimConfig(eps=1e-3)
    ends = [train(recipe(model=model, optim=optim, accumulate=n), tmp_path / str(n)).state_dict() for n in (1, 2, 4)]
    for other in ends[1:]:
        for name, value in ends[0].items():
            close(other[name], value, tolerance=1e-4)


def test_a_batch_in_which_nothing_counts_changes_no_loss_to_nan(tmp_path):
    # units as long as the row: no repetition begins, so no target counts
    data = DATA.replace(unit_min=13, unit_max=13)
    assert not data.build().batch(1).weight.any()
    model = train(recipe(data=data), tmp_path)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_matrices_are_decayed_and_embeddings_norms_and_biases_are_not():
    config = DecoderConfig(
        20,
        16,
        repeat(block(n_heads=2, mlp=Mlp(24), bias=True, qk_norm=True, norm=LayerNorm()), 2),
        positions=Learned(),
        tied=False,
        unembed_bias=True,
    )
    model = config.build()
    optimizer = OptimConfig(weight_decay=0.3).build(model)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    names = {0.3: set(), 0.0: set()}
    for name, parameter in model.named_parameters():
        names[decays[id(parameter)]].add(name.split(".blocks.")[-1].split(".", 1)[-1])
    assert names[0.3] == {
        "attn.projection.qkv.weight", "attn.merge.output.weight", "mlp.input.weight", "mlp.output.weight"
    }  # fmt: skip
    assert {"matrix", "positions.weight", "attn_norm.weight", "mlp_norm.bias", "mlp.input.bias"} <= names[0.0]
    first = config.layers[0].parts[0]
    assert isinstance(first, Attention) and isinstance(first.projection, Separate)


def test_decay_is_decoupled_from_the_gradient():
    model = MODEL.build()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = OptimConfig(lr=0.1, weight_decay=0.5).build(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if name.endswith(("qkv.weight", "input.weight", "output.weight")) else 1.0
        close(parameter, before[name] * factor)


def test_a_clipped_run_takes_smaller_steps_and_logs_the_norm_before_clipping(tmp_path):
    # an Adam step is as long as the rate says, unless eps is much larger than the gradient
    moved, norm = {}, 0.0
    for clip in (0.0, 0.1):
        optim = OptimConfig(lr=100.0, schedule="constant", warmup=0, eps=1e3, weight_decay=0.0, clip=clip)
        config = recipe(optim=optim, steps=1)
        start, end = MODEL.build(), train(config, tmp_path / str(clip))
        pairs = zip(start.parameters(), end.parameters(), strict=True)
        moved[clip] = sum((a - b).square().sum().item() for a, b in pairs) ** 0.5
        norm = read_metrics(tmp_path / str(clip))[-1]["grad_norm"]
    assert norm > 0.2
    assert moved[0.1] == pytest.approx(moved[0.0] * 0.1 / norm, rel=0.01)


def test_every_task_goes_on_with_the_tokenizer_it_saved(tmp_path):
    config = recipe(model=MODEL.replace(vocab_size=64, max_len=64), data=Copy(batch_size=2), steps=2, save_every=1)
    train(config, tmp_path)
    (last,) = [p for p in tmp_path.glob("step-*") if (p / "optimizer.safetensors").exists()]
    assert last.name == "step-00000002"
    train(config, tmp_path)


def test_training_smooths_as_its_recipe_says_and_the_held_out_loss_does_not(tmp_path):
    smoothings = (0.0, 0.5, LabelSmoothing(0.5, over="others"))
    lines = []
    for i, smoothing in enumerate(smoothings):
        train(recipe(steps=1, smoothing=smoothing), tmp_path / str(i))
        lines.append(read_metrics(tmp_path / str(i)))
    assert len({found[-1]["loss"] for found in lines}) == len(smoothings)
    assert len({found[0]["heldout_loss"] for found in lines}) == 1


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_of_smoothing_that_is_none_is_refused(rate):
    with pytest.raises(ConfigError, match=r"rate must be in \[0, 1\)"):
        LabelSmoothing(rate)
