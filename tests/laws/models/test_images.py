"""Images: patches as tokens, positions of a grid, classes of a whole; one pass for training and for analyses."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import glassformer as gf
from glassformer import weights
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.causal import ablate_each, patch
from glassformer.analysis.sweep import grid, logit_difference, one_by_one, sweep
from glassformer.attention import Attention, Grid, Linformer, RopeGrid, Softmax, SubLayerConfig
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ConfigError, ShapeMismatch
from glassformer.models import (
    Axial,
    BlockConfig,
    EncoderConfig,
    Learned,
    LearnedGrid,
    Mlp,
    ModelConfig,
    Patches,
    Sinusoidal,
    SinusoidalGrid,
    block,
    image_encoder,
    patchify,
    unpatchify,
)
from glassformer.models.accounting import account
from glassformer.models.embedding import PositionEmbedding
from glassformer.testing import close
from glassformer.testing.applies import outcomes
from glassformer.testing.layers import randomise
from glassformer.testing.models import IMAGES, subject
from glassformer.trace import At, Scale, Set, Tape

# a grid of 2 x 3 patches, so that rows and columns cannot be taken for each other
BARE = Patches((4, 6), 2, channels=2)
WITH_CLASS = BARE.replace(class_token=True)
BLOCK = block(n_heads=2, d_head=4, mlp=Mlp(12))
both = pytest.mark.parametrize("patches", [BARE, WITH_CLASS], ids=["mean", "class"])


def images(n: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(n, 2, 4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(patches: Patches = WITH_CLASS, layer: Any = BLOCK, **settings: Any) -> Any:
    config = image_encoder(patches, 8, (layer,) * 2, n_classes=3, **settings)
    return randomise(config.build().double().eval(), 1, std=0.3)


def permuted(pixels: Tensor, order: Tensor) -> Tensor:
    """Images whose patches stand in another order."""
    return unpatchify(patchify(pixels, 2)[:, order], BARE)


def test_images_are_put_together_again_of_their_patches() -> None:
    close(unpatchify(patchify(images(), 2), BARE), images())
    numbers = torch.arange(24.0).view(1, 1, 4, 6)
    # the second patch of the first row: rows of pixels one after another
    assert patchify(numbers, 2)[0, 1].tolist() == [2, 3, 8, 9]


def test_patches_are_a_convolution_as_wide_as_its_step() -> None:
    found, pixels = model(BARE), images().requires_grad_()
    maps = found.embed.patches.map
    tape = Tape(found, ["embed.token"], grad=True)
    found(pixels, tape=tape)
    ours = tape.values["embed.token"]
    theirs = F.conv2d(pixels, maps.weight.view(8, 2, 2, 2), maps.bias, stride=2).flatten(2).mT
    close(ours, theirs)
    wanted = (pixels, maps.weight, maps.bias)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), wanted) for x in (ours, theirs)), strict=True):
        close(a, b)


@both
def test_without_positions_an_order_of_patches_is_an_order_of_outputs(patches: Patches) -> None:
    found, order = model(patches), torch.tensor([4, 2, 0, 1, 5, 3])
    there = patches.outside + order
    there = torch.cat((torch.arange(patches.outside), there))
    close(found(permuted(images(), order)), found(images())[:, there])
    # so that the class of the whole does not know the order, and with positions does
    close(found.class_logits(found(permuted(images(), order))), found.class_logits(found(images())))
    placed = model(patches, positions=LearnedGrid())
    apart = placed.class_logits(placed(permuted(images(), order))) - placed.class_logits(placed(images()))
    assert float(apart.detach().abs().max()) > 1e-3


@pytest.mark.parametrize("positions", [Learned(), LearnedGrid(), SinusoidalGrid(), Sinusoidal()])
@both
def test_positions_of_a_grid_are_of_rows_and_columns(patches: Patches, positions: PositionEmbedding) -> None:
    found = model(patches, positions=positions)
    tape = Tape(found, ["embed.position"])
    found(images(1), tape=tape)
    added = tape.values["embed.position"][0]
    if not positions.of_grid:
        assert len(added) == patches.n_tokens
        return
    assert not added[: patches.outside].any()
    table = added[patches.outside :].unflatten(0, (2, 3))
    if isinstance(positions, SinusoidalGrid):
        # the first half goes by the row alone, the second by the column alone
        assert torch.equal(table[:, :1, :4].expand(-1, 3, -1), table[..., :4])
        assert torch.equal(table[:1, :, 4:].expand(2, -1, -1), table[..., 4:])
    # what one step of a row adds is the same in every column
    close(table[1] - table[0], (table[1] - table[0])[:1].expand(3, -1))
    close(table[:, 1] - table[:, 0], (table[:, 1] - table[:, 0])[:1].expand(2, -1))
    assert len({tuple(row) for row in table.flatten(0, 1).tolist()}) == 6


def test_tables_of_rows_and_columns_fit_the_grid_or_are_refused() -> None:
    model(BARE, positions=Axial((2, 3), (4, 4)))
    for patches, shape in ((BARE, (3, 2)), (WITH_CLASS, (2, 4))):
        with pytest.raises(ConfigError, match="learned_grid"):
            model(patches, positions=Axial(shape, (4, 4)))
    with pytest.raises(ConfigError, match="rows and columns"):
        EncoderConfig(5, 8, (BLOCK,), positions=LearnedGrid()).build()


def test_rotary_scores_of_a_grid_go_by_the_difference_in_both_axes() -> None:
    rope, (rows, columns) = RopeGrid().build(Attention(1, d_head=8, grid=(5, 7)).dims(8, 35)), (5, 7)
    q, k = (torch.randn(8, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (0, 1))
    every = torch.arange(rows * columns)
    turned = [rope.placed(x.expand(len(every), -1), every).unflatten(0, (rows, columns)) for x in (q, k)]
    scores = torch.einsum("ijd,abd->ijab", *turned)
    for down, right in ((0, 0), (1, 0), (0, 2), (2, 1), (-1, 3)):
        pairs = [
            scores[i, j, i + down, j + right]
            for i in range(rows)
            for j in range(columns)
            if 0 <= i + down < rows and 0 <= j + right < columns
        ]
        close(torch.stack(pairs), pairs[0].expand(len(pairs)))
    # and by each of them: nor rows nor columns alone decide
    assert len({round(float(scores[0, 0, i, j]), 9) for i in range(3) for j in range(3)}) == 9
    close(torch.stack(turned).norm(dim=-1), torch.stack((q, k)).norm(dim=-1)[:, None, None].expand(2, 5, 7))


@both
def test_layers_are_told_the_grid_that_their_model_reads(patches: Patches) -> None:
    found = model(patches, block(n_heads=2, d_head=4, positions=RopeGrid()))
    assert [layer.attention.dims.grid for layer in found.sub_layers()] == [(2, 3)] * 2
    assert [layer.attention.dims.outside for layer in found.sub_layers()] == [patches.outside] * 2
    order = torch.tensor([4, 2, 0, 1, 5, 3])
    apart = found(permuted(images(), order))[:, patches.outside :] - found(images())[:, patches.outside + order]
    assert float(apart.detach().abs().max()) > 1e-4


@dataclass(frozen=True)
class Tiled(SubLayerConfig):
    """A sub-layer that goes by rows and columns alone."""

    grid: tuple[int, int] | None = None


class Filling(Softmax):
    fills_grid = True


def test_what_mixes_along_rows_and_columns_is_told_them_and_refuses_a_class_token() -> None:
    assert BlockConfig((Tiled(), Mlp())).on_grid((2, 3), 0).parts == (Tiled((2, 3)), Mlp())
    assert Attention(2).on_grid((2, 3), 1) == Attention(2, grid=(2, 3), outside=1)
    layer = block(Filling(), n_heads=2)
    assert layer.on_grid((2, 3), 0).parts[0] == Attention(2, mixer=Filling(), grid=(2, 3))
    for refused in (BlockConfig((Tiled(),)), layer):
        with pytest.raises(ConfigError, match=r"class_token=False"):
            refused.on_grid((2, 3), 1)


def test_a_class_token_is_not_turned() -> None:
    places = Grid(2, 3, outside=1).places(torch.arange(7))
    assert places.row.tolist() == [0, 0, 0, 0, 1, 1, 1] and places.column.tolist() == [0, 0, 1, 2, 0, 1, 2]
    assert places.inside.tolist() == [False] + [True] * 6
    rope = RopeGrid().build(Attention(1, d_head=8, grid=(2, 3), outside=1).dims(8, 7))
    rows = torch.randn(7, 8, dtype=torch.float64)
    close(rope.placed(rows, torch.arange(7))[:2], rows[:2])


def test_a_class_is_read_off_the_class_token_or_off_the_mean_of_all_positions() -> None:
    first, mean = model(WITH_CLASS), model(BARE)
    logits = first(images())
    close(first.class_logits(logits), logits[:, 0])
    tape = Tape(mean, ["final.norm"])
    logits = mean(images(), tape=tape)
    pooled = mean.unembed(tape.values["final.norm"].mean(1, keepdim=True), None)
    close(mean.class_logits(logits), pooled[:, 0])
    labels = torch.tensor([[2], [0]])
    batch = Batch(images(), labels, labels >= 0)
    for one in (first, mean):
        one.loss(batch).backward()
        loss = F.cross_entropy(one.class_logits(one(images())), labels[:, 0])
        close(one.loss(batch), loss)
        close(one.embed.patches.map.weight.grad, torch.autograd.grad(loss, one.embed.patches.map.weight)[0])


@both
def test_a_model_of_images_survives_json_and_a_folder(patches: Patches, tmp_path: Any) -> None:
    found = model(patches, positions=SinusoidalGrid())
    assert ModelConfig.from_json(found.config.to_json()) == found.config
    gf.save(found, tmp_path / "model")
    again = gf.load(tmp_path / "model").double()
    assert torch.equal(again(images()), found(images()))


def test_settings_that_contradict_images_are_refused_with_what_would_work() -> None:
    with pytest.raises(ConfigError, match="not cut"):
        Patches((5, 4), 2)
    for wrong, said in (
        ({"max_len": 12}, "image_encoder"),
        ({"tied": True}, "tied=False"),
        ({"classifies": "mean", "patches": None, "max_len": 9}, "vocab_size=0"),
    ):
        with pytest.raises(ConfigError, match=said):
            model(BARE).config.replace(**wrong)
    with pytest.raises(ConfigError, match="class_token"):
        image_encoder(BARE, 8, (BLOCK,), 3, classifies="text")
    with pytest.raises(ConfigError, match="leave"):
        model(BARE, block(n_heads=2).replace(parts=(Attention(2, grid=(3, 2)),)))


@pytest.mark.parametrize("wrong", [torch.zeros(1, 3, 4, 6), torch.zeros(2, 2, 6, 4), torch.zeros(4, 6), "text", [[1]]])
def test_what_is_no_image_of_this_size_is_refused(wrong: Any) -> None:
    with pytest.raises(ShapeMismatch, match="2 x 4 x 6"):
        gf.run(model(), wrong)


def test_a_pass_refuses_an_image_that_has_as_many_patches_in_other_rows_and_columns() -> None:
    with pytest.raises(ShapeMismatch, match=r"2 x 4 x 6 .*found 1 x 2 x 6 x 4"):
        model()(torch.zeros(1, 2, 6, 4))


def test_images_that_hold_what_is_no_number_are_refused() -> None:
    images = torch.zeros(1, 2, 4, 6)
    images[0, 1, 2, 3] = float("nan")
    with pytest.raises(ShapeMismatch, match="1 numbers of these images are NaN or infinite"):
        gf.run(model(), images)


def test_images_are_read_with_or_without_axes_that_have_one_entry() -> None:
    gray = model(Patches((4, 6), 2, class_token=True))
    pixels = images()[:, :1]
    for given in (pixels, pixels[:, 0], pixels.float()):
        close(gray(gray.read(given).args[0]), gray(pixels), tolerance=1e-5)
    assert gf.run(gray, pixels[0, 0]).tokens[:3] == ["class", "1,1", "1,2"]


@both
def test_a_run_names_patches_by_row_and_column(patches: Patches) -> None:
    run = gf.run(model(patches), images(), read=["*.pattern", "embed.token"])
    assert run.ids is None and run.inputs.shape == (2, patches.n_tokens)
    assert run.prompt(1)["blocks.0.attn.pattern"].labels("key")[-1] == f"{patches.n_tokens - 1}:2,3"
    alone = gf.run(model(patches), images()[1:], read=["*.pattern"])
    close(run.prompt(1)["blocks.0.attn.pattern"].values, alone["blocks.0.attn.pattern"].values)


@both
def test_a_sweep_over_an_image_is_a_pass_for_each_row(patches: Patches) -> None:
    found, other = model(patches), images(seed=3)
    donor = gf.run(found, other, read=["*.resid_pre"])
    plan = grid(
        lambda layer, pos: [Set(f"blocks.{layer}.resid_pre", donor, at=At(pos=pos))],
        layer=range(2), pos=range(patches.n_tokens),
    )  # fmt: skip
    metric = logit_difference(0, 1, pos=0)
    close(sweep(found, images(), plan, metric).values.values, one_by_one(found, images(), plan, metric).values.values)
    patched = patch(found, (images(), other), metric)
    assert patched["resid_pre"].values.size("pos") == patches.n_tokens


@both
def test_contributions_to_a_class_add_up_to_its_logit(patches: Patches) -> None:
    found = model(patches, positions=LearnedGrid())
    run = gf.run(found, images(1), read=[direct_logit_attribution])
    split = direct_logit_attribution(run, answer=2, position=0)
    close(split.contributions.values.sum(-1), found(images(1))[0, 0, 2])


def test_what_goes_by_token_ids_says_in_a_sentence_that_there_are_none() -> None:
    found = model()
    for ask in (
        lambda: gf.run(found, images()).inputs.require_ids("this"),
        lambda: gf.analysis.heads.head_scores(found),
        lambda: gf.generate(found, images()),
        lambda: weights.folded(found),
        lambda: weights.logits(weights.of(found), torch.zeros(1, 3, dtype=torch.long)),
        lambda: weights.of(found).E,
    ):
        with pytest.raises(AnalysisUnavailable):
            ask()


@both
def test_what_a_model_of_images_costs_is_counted(patches: Patches) -> None:
    found = model(patches, positions=LearnedGrid())
    counted = account(found.config)
    assert sum(counted.parameters.values()) == sum(parameter.numel() for parameter in found.parameters())
    assert counted.flops["embedding"] == 2 * 6 * 8 * 8 and counted.length == patches.n_tokens


def test_edits_reach_a_class_token_and_patches_alike() -> None:
    found = model()
    clean = found(images())
    for pos, same in ((0, False), (3, False)):
        tape = Tape(found, edit=[Scale("embed.token", 0.0, at=At(pos=pos))])
        assert torch.equal(found(images(), tape=tape)[:, 0], clean[:, 0]) is same


def test_a_mechanism_with_parameters_of_places_has_one_for_every_patch() -> None:
    found = model(WITH_CLASS, block(Linformer(rank=3), n_heads=2, d_head=4))
    assert found(images()).shape == (2, 7, 3)


@pytest.mark.full
@pytest.mark.parametrize("name", IMAGES)
def test_every_analysis_answers_of_images_or_refuses_in_a_sentence(name: str) -> None:
    found = outcomes(subject(name))
    refused = {analysis: one.reason for analysis, one in found.items() if one.status == "refused"}
    # more than half answer, and those that have a judge as it does
    assert len(refused) < len(found) / 2 and sum(one.compared for one in found.values()) >= 10
    answering = {"patch", "sweep", "direct_logit_attribution", "rollout", "ablate", "logit_lens", "explain", "acdc"}
    assert answering.isdisjoint(refused)
    assert all(reason.endswith(".") for reason in refused.values())


def test_what_an_ablation_costs_images_is_a_loss_of_their_classes() -> None:
    found = subject("image_mean")
    lost = ablate_each(found.model, found.batch())
    scaled = Tape(found.model, edit=[Scale("L1H0.z", 0.0)])
    labels = found.batch().targets[:, 0]
    losses = [F.cross_entropy(found.model.class_logits(found(tape)), labels) for tape in (None, scaled)]
    close(lost.loss_change.select(heads="L1H0").values, losses[1] - losses[0])
    assert lost.loss == pytest.approx(float(losses[0].detach()))
