"""Sites of a dictionary: features plus error are the site, and both are read and edited like any other."""

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import weights
from glassformer.analysis.causal import SiteGrid, patch
from glassformer.analysis.dictionaries import JumpRelu, Relu, SparseAutoencoder, TopK, attach
from glassformer.analysis.lens import TunedLens
from glassformer.analysis.sweep import CachedPass, Donor, Metric, one_by_one, sweep
from glassformer.errors import AnalysisUnavailable, CheckpointError, ShapeMismatch, UnknownSite
from glassformer.models import GREEDY, generate
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import Add, At, Foreign, Scale, Set, Tape, unsplit, with_splits, without_splits
from one_pass import in_one_pass


def dictionary(config: Any, seed: int = 1) -> SparseAutoencoder:
    """Return a dictionary with weights that have no pattern."""
    made = config.build(seed).double()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
        made.scale.fill_(1.7)
    return made


def said(run: Any) -> torch.Tensor:
    return run.logits


def split(name: str, site: str, width: int = 16, seed: int = 0) -> tuple[Any, Any, SparseAutoencoder]:
    """Return a subject, its model with a dictionary at a site, and the dictionary."""
    case = subject(name, seed=seed)
    found = dictionary(Relu(width, 24))
    return case, attach(case.model, found, site=site), found


@in_one_pass
@pytest.mark.parametrize(
    ("name", "site", "width"),
    [
        ("llama", "blocks.0.resid_pre", 16), ("gpt2", "blocks.1.resid_post", 16), ("llama", "blocks.1.attn.z", 16),
        ("llama", "blocks.0.mlp.hidden", 20), ("linear", "blocks.0.attn.out", 16), ("gpt2", "final.norm", 16),
        ("gpt2", "embed.token", 16), ("translator_pre", "encoder.blocks.0.resid_post", 16),
        ("masked_pre", "blocks.0.resid_post", 16), ("parallel", "blocks.0.attn.norm", 16),
    ],
)  # fmt: skip
@pytest.mark.parametrize("config", [Relu, TopK, JumpRelu])
def test_features_plus_error_change_nothing(name: str, site: str, width: int, config: Any) -> None:
    case = subject(name)
    options = {"k": 3} if config is TopK else {}
    model = attach(case.model, found := dictionary(config(width, 24, **options)), site=site)
    plain, read = Tape(case.model, [site]), Tape(model, [site, f"{site}.features", f"{site}.error"])
    logits = case.model(*case.inputs, tape=plain)
    assert torch.equal(model(*case.inputs, tape=read), logits), "reading is free"
    assert torch.equal(read.values[site], plain.values[site])
    whole, error = read.values[site], read.values[f"{site}.error"]
    axes = model.sites()[site].axes
    rest = [axis for axis in axes if axis not in ("batch", "pos")]
    rows = whole.permute([axes.index(axis) for axis in ("batch", "pos", *rest)])
    laid = error.permute([axes.index(axis) for axis in ("batch", "pos", *rest)])
    close(read.values[f"{site}.features"], found.encode(rows.flatten(2)))
    close(found.decode(read.values[f"{site}.features"]) + laid.flatten(2), rows.flatten(2))
    still = Tape(model, edit=[Add(f"{site}.features", 0.0), Scale(f"{site}.error", 1.0)])
    assert torch.equal(model(*case.inputs, tape=still), logits)


@in_one_pass
@pytest.mark.parametrize("site", ["blocks.0.resid_post", "blocks.1.attn.z"])
def test_an_edit_of_a_feature_moves_the_site_along_its_decoder_row(site: str) -> None:
    case, model, found = split("llama", site)
    before = gf.run(model, case.inputs[0], read=[site, f"{site}.features"])
    change = Add(f"{site}.features", 2.5, at=At(feature=5, pos=-2))
    after = gf.run(model, case.inputs[0], read=[site, f"{site}.features"], edit=[change])
    moved = (after[site].values - before[site].values).movedim(after[site].axes.index("pos"), 1).flatten(2)
    close(moved[:, -2], (2.5 * found.W_dec[5] / found.scale).expand(2, -1))
    assert moved.abs().sum() == moved[:, -2].abs().sum()
    assert not torch.equal(said(after), said(before))
    # with all features and no error it is the reconstruction
    alone = gf.run(model, case.inputs[0], read=[site], edit=[Set(f"{site}.error", 0.0)])[site].values
    close(alone.movedim(after[site].axes.index("pos"), 1).flatten(2), found.decode(before[f"{site}.features"].values))


def test_edits_of_the_site_come_before_its_features_and_what_is_read_is_what_goes_on() -> None:
    case, model, found = split("gpt2", "blocks.0.resid_post")
    steer = torch.linspace(-1, 1, 16, dtype=torch.float64)
    edits = [Add("blocks.0.resid_post", steer), Scale("blocks.0.resid_post.features", 0.5)]
    plain = gf.run(case.model, case.inputs[0], read=["blocks.0.resid_post"])["blocks.0.resid_post"].values + steer
    run = gf.run(model, case.inputs[0], read=["blocks.0.resid_post*", "blocks.1.resid_pre"], edit=edits)
    close(run["blocks.0.resid_post.features"].values, 0.5 * found.encode(plain))
    close(run["blocks.0.resid_post"].values, plain - 0.5 * found.encode(plain) @ found.W_dec / found.scale)
    assert torch.equal(run["blocks.0.resid_post"].values, run["blocks.1.resid_pre"].values)


def test_gradients_at_features_are_those_of_the_site_along_decoder_rows_and_the_others_stay() -> None:
    case, model, found = split("llama", "blocks.0.resid_post")
    names = ["blocks.0.resid_post", "blocks.0.resid_post.features", "blocks.0.resid_post.error"]
    plain, read = Tape(case.model, ["embed.token"], grad=True), Tape(model, ["embed.token", *names], grad=True)
    goal = torch.randn(2, 7, model.config.vocab_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (expected,) = torch.autograd.grad(
        (case.model(*case.inputs, tape=plain) * goal).sum(), [plain.values["embed.token"]]
    )
    logits, values = model(*case.inputs, tape=read), read.values
    embedded, site, features, error = torch.autograd.grad(
        (logits * goal).sum(), [values["embed.token"], *(values[name] for name in names)]
    )
    close(embedded, expected)
    close(features, site @ found.W_dec.mT / found.scale)
    close(error, site)


@in_one_pass
@pytest.mark.parametrize("name", ["llama", "translator_pre"])
@pytest.mark.parametrize("place", ["blocks.0.resid_pre", "blocks.1.resid_post"])
def test_sweeps_edit_and_measure_features_as_the_plain_loop_does(name: str, place: str) -> None:
    site = f"decoder.{place}" if name.startswith("translator") else place
    case, model, _ = split(name, site)
    first, tokens = case.inputs[0], case.inputs[-1]
    donor = Donor(*case.others(torch.Generator().manual_seed(3)))
    rows = [
        [Set(f"{site}.features", donor, at=At(feature=3))],
        [Scale(f"{site}.error", 0.0, at=At(pos=slice(3, None)))],
        [Add(site, 0.3, at=At(pos=4)), Add(f"{site}.features", 1.0, at=At(pos=2))],
        [Scale(f"{site.replace(place, 'blocks.0.attn.z')}", 0.0, at=At(head=0))],
        [],
    ]
    given: dict[str, Any] = {"target": tokens} if first is not tokens else {}
    metrics = [
        Metric("said", lambda logits: logits[..., 0].square().sum(-1), pos=None),
        Metric("seen", lambda value: value.sum((-2, -1)), site=f"{site}.features"),
    ]
    for common in ([], [Add(f"{site}.features", 0.4)]):
        found = sweep(model, first, rows, metrics, base_edit=common, **given)
        plain = one_by_one(model, first, rows, metrics, base_edit=common, **given)
        close(found.values.values, plain.values.values)
        close(found.base.values, plain.base.values)


def test_a_pass_that_is_kept_reads_and_changes_features() -> None:
    case, model, _ = split("gpt2", "blocks.0.resid_post")
    name = "blocks.0.resid_post.features"
    change = [Scale(name, 0.0, at=At(feature=slice(0, 9)))]
    kept = CachedPass(model, case.inputs[0])
    close(kept.read([name])[name].values, gf.run(model, case.inputs[0], read=[name])[name].values)
    run = gf.run(model, case.inputs[0], read=[name, "blocks.1.resid_post"], edit=change)
    under = kept.under(change)
    close(under.logits(), said(run))
    close(under.read([name])[name].values, run[name].values)


def test_features_are_patched_and_generated_with_like_any_other_site() -> None:
    case, model, _ = split("llama", "blocks.0.resid_post")
    (tokens,) = case.inputs
    name, change = "blocks.0.resid_post.features", Add("blocks.0.resid_post.features", 3.0, at=At(feature=2))
    found = generate(model, tokens[:, :3].tolist(), GREEDY, max_new_tokens=4, edit=[change], read=[name])
    for row in range(2):
        ids = torch.tensor([found.ids[row]])[:, :-1]
        run = gf.run(model, ids, read=[name], edit=[change])
        close(found.sites[name].values[row, : ids.shape[1]], run[name].values[0])
        assert said(run)[0, 2:].argmax(-1).tolist() == list(found.tokens[row])
    other = case.others(torch.Generator().manual_seed(5))[0]
    metric = Metric("said", lambda logits: logits[..., 0].square().sum(-1), pos=None)
    patched = patch(model, (other[:1], tokens[:1]), metric, SiteGrid(name, ("site", "feature"), {"feature": [2, 9]}))
    (grid,) = (found for _, found in patched.items())
    clean = gf.run(model, other[:1], read=[name])
    for i, feature in enumerate((2, 9)):
        run = gf.run(model, tokens[:1], edit=[Set(name, clean, at=At(feature=feature))])
        close(grid.values.values.flatten()[i], said(run)[0, :, 0].square().sum())


def test_a_module_that_is_not_ours_is_split_too() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()
    with pytest.raises(ShapeMismatch, match="single positions"):
        attach(Foreign(module), dictionary(Relu(16, 24)), site="1.out")


def test_a_model_is_the_same_without_its_dictionaries(tmp_path: Path) -> None:
    case, model, _ = split("llama", "blocks.0.resid_post")
    assert set(model.state_dict()) == set(case.model.state_dict())
    assert list(without_splits(model).sites()) == list(case.model.sites())
    assert without_splits(case.model) is case.model and unsplit(model) is case.model
    gf.save(model, tmp_path / "model")
    loaded = gf.load(tmp_path / "model")
    assert torch.equal(loaded(*case.inputs), case.model(*case.inputs))
    assert TunedLens.identity(model).weights == TunedLens.identity(case.model).weights
    # another dictionary at another place joins the first
    both = attach(model, dictionary(Relu(16, 12), 5), site="blocks.1.resid_post")
    assert {"blocks.0.resid_post.features", "blocks.1.resid_post.features"} <= set(both.sites())
    assert "blocks.1.resid_post.features" not in model.sites()


def test_folded_models_keep_dictionaries_of_what_folding_leaves_as_it_is() -> None:
    case, model, _ = split("llama", "blocks.0.resid_post")
    folded = weights.folded(model)
    name = "blocks.0.resid_post.features"
    close(
        gf.run(folded, case.inputs[0], read=[name])[name].values,
        gf.run(model, case.inputs[0], read=[name])[name].values,
    )
    # folding takes the mean out of what layer norms read
    _, other, _ = split("gpt2", "blocks.0.resid_post")
    with pytest.raises(AnalysisUnavailable, match=r"blocks\.0\.resid_post"):
        weights.folded(other)


def test_a_dictionary_for_another_model_or_site_is_refused() -> None:
    case, model, found = split("llama", "blocks.0.resid_post")
    with pytest.raises(UnknownSite, match=r"blocks\.7"):
        attach(case.model, found, site="blocks.7.resid_post")
    with pytest.raises(UnknownSite, match="full name"):
        attach(case.model, found, site="resid_post")
    with pytest.raises(ShapeMismatch, match="rows of 16 numbers"):
        attach(case.model, found, site="blocks.0.mlp.hidden")
    with pytest.raises(ShapeMismatch, match="single positions"):
        attach(case.model, found, site="blocks.0.attn.pattern")
    with pytest.raises(ShapeMismatch, match="single positions"):
        attach(case.model, found, site="blocks.0.attn.query_in")
    with pytest.raises(AnalysisUnavailable, match="split already"):
        attach(model, found, site="blocks.0.resid_post")
    with pytest.raises(AnalysisUnavailable, match="a part of"):
        attach(model, found, site="blocks.0.resid_post.error")
    with pytest.raises(AnalysisUnavailable, match="does not say"):
        attach(case.model, found)
    found.facts = {"site": "blocks.1.resid_post", "digest": subject("llama", seed=4).model.digest(), "model": "other"}
    with pytest.raises(CheckpointError, match="asked for at"):
        attach(case.model, found, site="blocks.0.resid_post")
    with pytest.raises(CheckpointError, match='of "other" with other weights'):
        attach(case.model, found)
    found.facts = {"site": "blocks.1.resid_post", "digest": case.model.digest()}
    assert "blocks.1.resid_post.features" in attach(case.model, found).sites()
    assert with_splits(case.model, {}).sites().keys() == case.model.sites().keys()
