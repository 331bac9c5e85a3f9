"""A sweep returns what the plain loop of single runs returns, however it shares and batches the work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from glassformer.analysis.sweep import (
    Donor,
    Metric,
    Plan,
    grid,
    kl_divergence,
    logit_difference,
    next_token_loss,
    one_by_one,
    sweep,
    token_loss,
)
from glassformer.attention import Lsh
from glassformer.data import Batch
from glassformer.errors import CheckpointError, ShapeMismatch
from glassformer.models import DecoderConfig
from glassformer.models.schedules import block
from glassformer.testing import close
from glassformer.testing.layers import seeds
from glassformer.testing.models import ARCHITECTURES, ENCODERS, Subject, attention_decoders, drawn, subject
from glassformer.trace import Add, Apply, At, Edit, Scale, Set, Site, Take
from one_pass import in_one_pass

# a plan is several rows of several edits, and every row is run whole for comparison: few plans say much
relaxed = settings(
    max_examples=max(4, settings.default.max_examples // 4),  # type: ignore[union-attr]
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@relaxed
@given(data=st.data(), seed=seeds)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_random_plans_give_the_numbers_of_the_plain_loop(name: str, data: Any, seed: int) -> None:
    case = subject(name, seed=seed)
    base, kwargs = batch_of(case, padded=data.draw(st.booleans()))
    check(case, base, data.draw(plans(case, seed)), data.draw(base_edits(case, seed)), data.draw, kwargs)


@in_one_pass
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("common", [Scale("blocks.0.resid_pre", 1.5), Add("blocks.0.resid_pre", 0.7, at=At(pos=-1))])
def test_an_edit_of_the_base_at_the_first_stream_is_made_once(name: str, common: Edit) -> None:
    """Rows that begin in the first block begin at the tokens: the stream that enters it is kept as edited already."""
    case = subject(name)
    (tokens,) = case.inputs
    rows = [[Scale("blocks.0.attn.z", 0.0, at=At(head=0))], [Scale("blocks.0.resid_pre", -1.0)], []]
    found = sweep(case.model, tokens, rows, token_loss(tokens), base_edit=[common])
    plain = one_by_one(case.model, tokens, rows, token_loss(tokens), base_edit=[common])
    close(found.values.values, plain.values.values)
    close(found.base.values, plain.base.values)


@given(seed=seeds, alike=st.integers(0, 6))
def test_what_donors_read_alike_is_run_once(seed: int, alike: int) -> None:
    """As each other: they are one run. As the base: rows begin where they differ from it."""
    case = subject("llama", seed=seed)
    (tokens,) = case.inputs
    other = torch.cat((tokens[:, :alike], (tokens[:, alike:] + 1) % case.model.config.vocab_size), 1)
    rows = [[Set("blocks.1.attn.z", Donor(other), at=At(head=head))] for head in range(4)]
    metric = token_loss(tokens)
    found = sweep(case.model, tokens, rows, metric)
    close(found.values.values, one_by_one(case.model, tokens, rows, metric).values.values)
    assert len({id(edit.value["blocks.1.attn.z"]) for (edit,) in rows}) == 1
    # half of the layers, for as many of the positions
    assert found.work == pytest.approx(0.5 * (7 - alike) / 7)


@given(seed=seeds, alike=st.integers(1, 6))
def test_a_mechanism_that_needs_the_whole_text_is_given_it(seed: int, alike: int) -> None:
    """Where its tokens are sorted, what comes later moves what came before: no text that begins alike goes alike."""
    layers = (block(Lsh(2, 2, form="library"), n_heads=2),) * 2
    case = drawn("sorted", DecoderConfig(vocab_size=11, d_model=16, max_len=24, layers=layers), seed=seed)
    (tokens,) = case.inputs
    other = torch.cat((tokens[:, :alike], (tokens[:, alike:] + 1) % 11), 1)
    rows = [[Set("blocks.0.attn.z", Donor(other), at=At(head=0))], [Scale("blocks.1.resid_pre", 0.5, at=At(pos=5))]]
    found, plain = (loop(case.model, tokens, rows, token_loss(tokens)) for loop in (sweep, one_by_one))
    close(found.values.values, plain.values.values)


@relaxed
@given(data=st.data(), seed=seeds)
@pytest.mark.parametrize("name", ENCODERS)
def test_so_they_do_where_every_position_depends_on_all(name: str, data: Any, seed: int) -> None:
    case = subject(name, seed=seed)
    base, kwargs = batch_of(case, padded=False)
    check(case, base, data.draw(plans(case, seed)), [], data.draw, kwargs)


@relaxed
@given(case=attention_decoders(mlps=True), data=st.data(), seed=seeds)
def test_so_they_do_for_drawn_models(case: Subject, data: Any, seed: int) -> None:
    base, kwargs = batch_of(case, padded=data.draw(st.booleans()))
    check(case, base, data.draw(plans(case, seed)), data.draw(base_edits(case, seed)), data.draw, kwargs)


def check(case: Subject, base: Any, plan: Plan, common: list[Edit], draw: Callable[..., Any], kwargs: Any) -> None:
    metrics = draw(metric_sets(case))
    plain = one_by_one(case.model, base, plan, metrics, base_edit=common, **kwargs)
    # masked scores are minus infinity, and some edits of those leave no number
    assume(bool(plain.values.values.isfinite().all() and plain.base.values.isfinite().all()))
    rows = draw(st.sampled_from([None, 1, 3]))
    found = sweep(
        case.model, base, plan, metrics, base_edit=common, rows=rows, memory=draw(st.sampled_from([None, 1])), **kwargs
    )
    assert found.values.axes == plain.values.axes
    close(found.values.values, plain.values.values)
    close(found.base.values, plain.base.values)
    assert found.work <= 1.0 + 1e-9


def batch_of(case: Subject, padded: bool) -> tuple[Any, dict[str, Any]]:
    """Return the base as `sweep` takes it: ids, or a batch whose second row is shorter."""
    *source, tokens = case.inputs
    if not padded:
        return (source[0], {"target": tokens}) if source else (tokens, {})
    short = torch.tensor([tokens.shape[1], tokens.shape[1] - 2])
    extra = (
        {"source": source[0], "source_lengths": torch.tensor([source[0].shape[1] - 1, source[0].shape[1]])}
        if source
        else {}
    )
    nothing = torch.zeros_like(tokens)
    return Batch(tokens, nothing, nothing == 0, lengths=short, **extra), {}


def donor_of(case: Subject, seed: int) -> Donor:
    """Return a donor that reads as the base does up to some position, if not throughout."""
    generator = torch.Generator().manual_seed(seed + 5)
    *source, tokens = case.others(generator)
    alike = seed % (tokens.shape[1] + 1)
    tokens = torch.cat((case.inputs[-1][:, :alike], tokens[:, alike:]), 1)
    if not source:
        return Donor(tokens)
    return Donor(case.inputs[0] if seed % 2 else source[0], tokens)


@st.composite
def addresses(draw: Callable[..., Any], site: Site, shape: torch.Size) -> At:
    where: dict[str, Any] = {}
    for axis, size in zip(site.axes, shape):
        if axis in ("batch", "d_model", "vocab") or not draw(st.booleans()):
            continue
        place = st.integers(-size, size - 1)
        start = draw(st.integers(0, size - 1))
        slices = st.sampled_from([slice(start, None), slice(start, start + 2), slice(start - size, None, 2)])
        where[axis] = draw(
            st.one_of(place, slices, st.lists(place, min_size=1, max_size=2, unique_by=lambda i, n=size: i % n))
        )
    return At(**where)


@st.composite
def edits(draw: Callable[..., Any], case: Subject, donor: Donor, shapes: Any, take: int | None = None) -> Edit:
    name = draw(st.sampled_from(sorted(shapes)))
    at = draw(addresses(case.model.sites()[name], shapes[name]))
    if take is not None:
        return Take(name, take, at=at)
    kinds = [
        Set(name, donor, at=at),
        # another donor of the same inputs
        Set(name, Donor(donor.inputs, donor.target), at=at),
        Set(name, 0.3, at=at),
        Add(name, 0.5, at=at),
        Add(name, donor, at=at),
        Scale(name, -0.5, at=at),
        Apply(name, torch.tanh, at=at),
    ]
    return draw(st.sampled_from(kinds))


def shapes_of(case: Subject, seed: int) -> dict[str, torch.Size]:
    """Return the shapes of all sites but those of norms, or of all but what heads read before norms."""
    apart = (".norm", ".scale") if seed % 2 else ("_in",)
    return {name: value.shape for name, value in case.values(*case.model.sites()).items() if not name.endswith(apart)}


@st.composite
def plans(draw: Callable[..., Any], case: Subject, seed: int) -> Plan:
    donor, shapes = donor_of(case, seed), shapes_of(case, seed)
    rows: list[list[Edit]] = []
    batched = {name: shape for name, shape in shapes.items() if "batch" in case.model.sites()[name].axes}
    for row in range(draw(st.integers(1, 5))):
        own = [draw(edits(case, donor, shapes)) for _ in range(draw(st.integers(0, 2)))]
        # rows take from earlier ones: there is no circle then
        if row and draw(st.integers(0, 2)) == 2:
            own = [draw(edits(case, donor, batched)), draw(edits(case, donor, batched, draw(st.integers(0, row - 1))))]
            rows[own[1].row] = [edit for edit in rows[own[1].row] if edit.site in batched]
        rows.append(own)
    return Plan.of(rows)


@st.composite
def base_edits(draw: Callable[..., Any], case: Subject, seed: int) -> list[Edit]:
    if draw(st.integers(0, 2)) < 2:
        return []
    donor, shapes = donor_of(case, seed + 1), shapes_of(case, seed)
    return [draw(edits(case, donor, shapes))]


@st.composite
def metric_sets(draw: Callable[..., Any], case: Subject) -> list[Metric]:
    n_outputs = case.model.config.n_outputs
    targets = case.inputs[-1].roll(-1, 1) % n_outputs
    reference = torch.randn(2, n_outputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    site = case.model.sites().match("*.resid_post")[-1]
    sets = [
        [logit_difference([1, 2], 3)],
        [logit_difference(1, 2, pos=2), kl_divergence(reference)],
        [next_token_loss(targets)],
        [Metric("stream", lambda x: x.square().mean((2, 3)), site=site)],
        [token_loss(targets), Metric("top", lambda logits: logits.amax(-1), pos=None, axes=("pos",))],
        [Metric("size", lambda x: x.square().mean(3), site=site, axes=("pos",))],
        [logit_difference(1, 2), Metric("stream", lambda x: x[..., 0], site=site, at=At(pos=-3))],
    ]
    return draw(st.sampled_from(sets))


def test_the_past_is_carried_and_layers_below_are_not_run() -> None:
    case = subject("gpt2")
    donor = donor_of(case, 0)
    edits = [[Set("blocks.1.attn.z", donor, at=At(pos=p))] for p in range(7)]
    found = sweep(case.model, case.inputs[0], edits, logit_difference(1, 2), rows=1)
    # of two layers one is run, and of that not all positions
    assert 0.5 * sum(range(1, 8)) / (7 * 7) <= found.work < 0.5


@pytest.mark.parametrize("name", ["gpt2", "linear", "translator_pre"])
def test_rows_of_all_layers_share_one_run_of_each(name: str) -> None:
    """Each comes in at its own layer; what they read of layers below is the base's, or what their own row made."""
    case = subject(name)
    base, kwargs = batch_of(case, padded=True)
    path = f"{case.model.prefix}blocks.{{}}.{{}}".format
    entry = path(0, "attn.z")
    rows = [
        [Scale(path(1, "resid_pre"), 0.5)],
        [Scale(entry, 0.5, at=At(head=0))],
        [Apply(path(1, "mlp.out"), lambda x, z: x + z.mean((1, 3))[..., None], reads=(entry,))],
        [Scale(entry, -1.0), Apply(path(1, "mlp.out"), lambda x, z: x + z.mean((1, 3))[..., None], reads=(entry,))],
    ]
    calls: list[int] = []
    metrics = [logit_difference(1, 2), Metric("written", lambda x: x.sum((2, 3)), site=path(0, "mlp.out"))]
    plain = one_by_one(case.model, base, rows, metrics, **kwargs)
    handle = case.model.output_stack.blocks[1].register_forward_hook(lambda *_: calls.append(0))
    found = sweep(case.model, base, rows, metrics, **kwargs)
    handle.remove()
    close(found.values.values, plain.values.values)
    # the base's run, and one of all rows together
    assert len(calls) == 2 and found.passes == 1


def test_rows_that_change_nothing_a_metric_looks_at_are_not_run() -> None:
    case = subject("gpt2")
    (tokens,) = case.inputs
    early = Metric("early", lambda x: x.sum((2, 3)), site="blocks.0.mlp.out")
    behind = [[Scale("blocks.1.resid_pre", 0.0)], [Scale("blocks.1.mlp.out", 0.0)], []]
    later = [
        [Scale("blocks.0.resid_mid", 0.0, at=At(pos=slice(4, None)))],
        [Scale("blocks.1.attn.z", 0.0, at=At(pos=-1))],
    ]
    for rows, metric in ((behind, early), (later, logit_difference(1, 2, pos=3))):
        found, plain = (loop(case.model, tokens, rows, metric) for loop in (sweep, one_by_one))
        close(found.values.values, plain.values.values)
        assert found.passes == 0 == found.work
    reached = sweep(case.model, tokens, later, logit_difference(1, 2, pos=4))
    close(reached.values.values, one_by_one(case.model, tokens, later, logit_difference(1, 2, pos=4)).values.values)
    assert reached.passes == 1 and float(reached.change.values[0, 0].abs().max()) > 0


@pytest.mark.parametrize(("at_end", "width"), [([], 1), ([Scale("blocks.1.mlp.out", 0.5)], 7)])
def test_the_last_mlp_runs_only_where_a_metric_looks_unless_an_edit_is_there(at_end: list[Edit], width: int) -> None:
    case = subject("gpt2")
    widths: list[int] = []
    part = case.model.stack.blocks[1].part("mlp")
    plan = [[Set("blocks.0.attn.z", 0.3, at=At(head=0)), *at_end]]
    with torch.no_grad():
        handle = part.register_forward_hook(lambda _, given, __: widths.append(given[0].shape[1]))
        found = sweep(case.model, case.inputs[0], plan, logit_difference(1, 2))
        handle.remove()
    # the base run comes first
    assert widths == [7, width]
    close(found.values.values, one_by_one(case.model, case.inputs[0], plan, logit_difference(1, 2)).values.values)


@pytest.mark.parametrize("name", ["gpt2", "linear", "translator_pre"])
def test_gradients_flow_to_parameters_and_to_what_edits_hold(name: str) -> None:
    case = subject(name)
    base, kwargs = batch_of(case, padded=False)
    site = case.model.prefix + "blocks.{}.resid_pre"

    def gradients(loop: Any) -> list[torch.Tensor]:
        vectors = [torch.linspace(-1, 1, 16, dtype=torch.float64).requires_grad_() for _ in range(3)]
        plan = [[Set(site.format(1), vectors[0], at=At(pos=2))], [Add(site.format(0), vectors[1], at=At(pos=4))]]
        plan.append([Scale(site.format(1), vectors[2], at=At(pos=[1, 3])), Take(site.format(1), 0, at=At(pos=2))])
        found = loop(case.model, base, plan, logit_difference(1, 2), grad=True, **kwargs)
        weight = torch.arange(1.0, 4.0, dtype=torch.float64)[:, None]
        total = (found.values.values[0] * weight).sum()
        parameters = [p for p in case.model.parameters() if p.requires_grad]
        return list(torch.autograd.grad(total, [*vectors, *parameters], allow_unused=True, materialize_grads=True))

    for ours, plain in zip(gradients(sweep), gradients(one_by_one), strict=True):
        close(ours, plain)


def test_rows_may_read_each_other_at_different_sites_in_both_directions() -> None:
    case = subject("llama")
    first = [Take("blocks.0.attn.z", 1), Add("blocks.1.resid_pre", 0.5)]
    second = [Add("blocks.0.attn.z", 1.0), Take("blocks.1.resid_pre", 0)]
    ours, plain = (
        loop(case.model, case.inputs[0], [first, second], logit_difference(1, 2)) for loop in (sweep, one_by_one)
    )
    close(ours.values.values, plain.values.values)


@pytest.mark.parametrize("name", ["gpt2", "sandwich", "translator_linear"])
def test_rows_may_edit_a_norm_beside_rows_that_edit_what_heads_read_before_it(name: str) -> None:
    case = subject(name)
    base, kwargs = batch_of(case, padded=False)
    path = f"{case.model.prefix}blocks.1.attn"
    plan = [
        [Scale(f"{path}.query_in", 0.5, at=At(head=1))],
        [Scale(f"{path}.norm", torch.linspace(0, 1, 16))],
        [Scale(f"{path}.key_in", 0.5, at=At(kv_head=0, key=2)), Add(f"{path}.scale", 0.5)],
        [Set(f"{path}.value_in", donor_of(case, 3), at=At(kv_head=1))],
    ]
    ours, plain = (loop(case.model, base, plan, logit_difference(1, 2), **kwargs) for loop in (sweep, one_by_one))
    close(ours.values.values, plain.values.values)
    assert ours.passes < len(plan)


@pytest.mark.parametrize("rows", [None, 1, 2])
@pytest.mark.parametrize("name", ["gpt2", "differential", "translator_pre"])
def test_edits_read_what_their_own_row_made_earlier(name: str, rows: int | None) -> None:
    case = subject(name)
    base, kwargs = batch_of(case, padded=True)
    path = f"{case.model.prefix}blocks.{{}}.{{}}".format

    def moved(x: torch.Tensor, entry: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        return x + 0.5 * entry - written[:, 1]

    reads = (path(0, "resid_pre"), path(0, "attn.head_out"))
    plan = [
        # of a layer before the one where the row begins, and of the row's own
        [Apply(path(1, "resid_pre"), moved, reads=reads)],
        [Scale(path(0, "attn.z"), -1.0, at=At(head=1)), Apply(path(1, "resid_pre"), moved, reads=reads)],
        [Scale(path(1, "resid_pre"), 0.5, at=At(pos=-1))],
        [Apply(path(1, "attn.query_in"), lambda x, y: x - y, at=At(head=0), reads=(path(1, "resid_pre"),))],
    ]
    loops: list[tuple[Any, dict[str, Any]]] = [(sweep, kwargs | {"rows": rows}), (one_by_one, kwargs)]
    ours, plain = (
        loop(case.model, base, plan, logit_difference(1, 2), base_edit=[Scale(path(0, "attn.out"), 2.0)], **extra)
        for loop, extra in loops
    )
    close(ours.values.values, plain.values.values)
    assert len({round(float(value), 9) for value in ours.values.values[0, :, 0]}) == len(plan)


def test_an_edit_of_the_stream_that_enters_the_first_layer_is_made_once_in_every_row() -> None:
    case = subject("llama")
    for edits in ([Scale("blocks.0.resid_pre", 2.0)], [Add("blocks.0.resid_pre", torch.ones(()).double())]):
        plan = [[Scale("blocks.0.attn.z", 0.0, at=At(head=0))], [Scale("blocks.0.resid_pre", 0.5)]]
        ours, plain = (
            loop(case.model, case.inputs[0], plan, logit_difference(1, 2), base_edit=edits)
            for loop in (sweep, one_by_one)
        )
        close(ours.values.values, plain.values.values)


@pytest.mark.parametrize("loop", [sweep, one_by_one])
def test_a_row_whose_edit_makes_what_is_no_number_says_so_and_the_others_are_what_they_were(loop: Any) -> None:
    case = subject("llama")
    plan = [[Scale("blocks.0.attn.scores", -1.0)], [Scale("blocks.0.attn.z", 0.0)]]
    lost, other = loop(case.model, case.inputs[0], plan, logit_difference(1, 2)).values.values[0]
    assert lost.isnan().all() and other.isfinite().all()


@pytest.mark.parametrize("loop", [sweep, one_by_one])
def test_rows_that_read_each_other_at_one_site_are_refused(loop: Any) -> None:
    case = subject("llama")
    plan = [[Take("blocks.0.attn.z", 1)], [Take("blocks.0.attn.z", 0)]]
    with pytest.raises(ShapeMismatch, match="circle"):
        loop(case.model, case.inputs[0], plan, logit_difference(1, 2))


def test_an_interrupted_sweep_goes_on_from_its_file(tmp_path: Any) -> None:
    case = subject("gpt2")
    plan = grid(
        lambda layer, pos: [Scale(f"blocks.{layer}.resid_pre", 0.0, at=At(pos=pos))], layer=range(2), pos=range(7)
    )
    whole = sweep(case.model, case.inputs[0], plan, logit_difference(1, 2), rows=2)
    path = tmp_path / "rows.safetensors"

    def stop(done: int, total: int) -> None:
        if done > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(case.model, case.inputs[0], plan, logit_difference(1, 2), rows=2, report=stop, save_to=path)
    calls: list[Any] = []
    handle = case.model.stack.blocks[1].register_forward_hook(lambda *_: calls.append(0))
    again = sweep(case.model, case.inputs[0], plan, logit_difference(1, 2), rows=2, save_to=path)
    handle.remove()
    close(again.values.values, whole.values.values)
    assert 0 < len(calls) < again.passes
    with pytest.raises(CheckpointError, match="another sweep"):
        sweep(case.model, case.inputs[0], plan, logit_difference(1, 3), save_to=path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="cannot read"):
        sweep(case.model, case.inputs[0], plan, logit_difference(1, 2), save_to=path)


def test_metrics_keep_axes_through_plans_means_and_files(tmp_path: Any) -> None:
    case = subject("gpt2")
    ids = case.inputs[0]
    plan = grid(lambda layer, head: [Scale(f"blocks.{layer}.attn.z", 0.0, at=At(head=head))], layer=range(2), head=[0])
    metric = token_loss(ids.roll(-1, 1))
    found = sweep(case.model, ids, plan, metric, save_to=tmp_path / "rows.safetensors")
    assert found.values.axes == ("metric", "layer", "head", "batch", "pos")
    assert found.base.axes == ("metric", "batch", "pos")
    assert found.mean.axes == ("metric", "layer", "head", "pos") == found.spread.axes
    close(found.change.values[0, 1, 0], found.values.values[0, 1, 0] - found.base.values[0])
    close(found.values.values.mean(-1), sweep(case.model, ids, plan, next_token_loss(ids.roll(-1, 1))).values.values)
    again = sweep(case.model, ids, plan, metric, save_to=tmp_path / "rows.safetensors")
    assert torch.equal(again.values.values, found.values.values)
    with pytest.raises(ShapeMismatch, match='"token loss" pos, "loss" none'):
        sweep(case.model, ids, plan, [metric, next_token_loss(ids)])
    with pytest.raises(ShapeMismatch, match="axes of one size"):
        sweep(case.model, ids, plan, [metric, Metric("last", lambda x: x[:, :, -2:, 0], pos=None, axes=("pos",))])
    with pytest.raises(ShapeMismatch, match='keep an axis "pos", and the result has one of that name'):
        sweep(case.model, ids, Plan(plan.rows, {"pos": [0, 1]}), metric)
    with pytest.raises(ShapeMismatch, match="world, batch and its axes pos"):
        sweep(case.model, ids, plan, Metric("all", lambda x: x, pos=None, axes=("pos",)))


def test_errors_say_what_would_work() -> None:
    case = subject("gpt2")
    ids = case.inputs[0]
    with pytest.raises(ShapeMismatch, match="one per prompt"):
        sweep(case.model, ids, [[]], logit_difference([1, 2, 3], 1))
    with pytest.raises(ShapeMismatch, match="rows 0 to 0"):
        sweep(case.model, ids, [[Take("blocks.0.attn.z", 3)]], logit_difference(1, 2))
    with pytest.raises(ShapeMismatch, match="one number per world"):
        sweep(case.model, ids, [[]], lambda logits: logits)
    with pytest.raises(ShapeMismatch, match="position 9"):
        sweep(case.model, ids, [[]], logit_difference(1, 2, pos=9))
    with pytest.raises(ShapeMismatch, match="no rows"):
        Plan.of([])
