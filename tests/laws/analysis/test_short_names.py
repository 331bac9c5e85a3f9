"""Sites by what stands behind their block and by layer, one layer or all of them."""

from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer.analysis import Run, run
from glassformer.analysis.sweep import Metric, sweep
from glassformer.attention import MixerConfig, NeuralMemory, TokenMlp
from glassformer.errors import GlassformerError, ShapeMismatch, SiteNotRead, UnknownSite
from glassformer.models import Decoder, DecoderConfig, block
from glassformer.testing.models import subject
from glassformer.trace import Site
from one_pass import in_one_pass


def passed(name: str, read: str = "*") -> Run:
    found = subject(name)
    return run(found.model, *found.inputs, read=read)


@in_one_pass
@pytest.mark.parametrize(
    ("model", "short", "site"),
    [
        ("gpt2", ("pattern", 1), "blocks.1.attn.pattern"),
        ("gpt2", ("resid_post", -1), "blocks.1.resid_post"),
        ("gpt2", ("mlp.out", 0), "blocks.0.mlp.out"),
        ("translator_pre", ("resid_post", 0), "decoder.blocks.0.resid_post"),
        ("translator_pre", ("cross.pattern", 1), "decoder.blocks.1.cross.pattern"),
        ("translator_pre", ("encoder.pattern", -2), "encoder.blocks.0.attn.pattern"),
        ("translator_pre", ("encoder.attn.pattern", 1), "encoder.blocks.1.attn.pattern"),
    ],
)
def test_a_short_name_and_a_layer_stand_for_a_site(model: str, short: tuple[str, int], site: str) -> None:
    done = passed(model)
    assert done[short] is done[site]
    assert short in done


@in_one_pass
@pytest.mark.parametrize(
    ("model", "short", "error", "said"),
    [
        ("gpt2", ("patern", 0), UnknownSite, 'Nearest: "pattern"'),
        ("gpt2", ("out", 0), UnknownSite, '"attn.out" or "mlp.out"'),
        ("translator_pre", ("encoder.out", 0), UnknownSite, '"encoder.attn.out" or "encoder.mlp.out"'),
        ("translator_pre", ("pattern", 0), UnknownSite, '"attn.pattern" or "cross.pattern"'),
        ("gpt2", ("pattern", 2), ShapeMismatch, "there are 2 layers, 0 to 1"),
        ("gpt2", ("pattern",), UnknownSite, "a short name and a layer"),
        ("lightning_hybrid", ("scores", 0), ShapeMismatch, "the layers that have this site: 1"),
    ],
)
def test_a_short_name_of_nothing_or_of_several_sites_says_what_there_is(
    model: str, short: tuple[str, int], error: type[GlassformerError], said: str
) -> None:
    done = passed(model)
    with pytest.raises(error) as refusal:
        _ = done[short]
    assert said in str(refusal.value)
    assert short not in done


@in_one_pass
@pytest.mark.parametrize(
    ("model", "short", "glob"),
    [
        ("gpt2", "pattern", "blocks.*.attn.pattern"),
        ("gpt2", "mlp.out", "blocks.*.mlp.out"),
        ("gpt2", "resid_post", "blocks.*.resid_post"),
        ("translator_pre", "cross.pattern", "decoder.blocks.*.cross.pattern"),
        ("translator_pre", "encoder.pattern", "encoder.blocks.*.attn.pattern"),
        # only one of the layers has scores
        ("lightning_hybrid", "scores", "blocks.*.attn.scores"),
    ],
)
def test_a_short_name_reads_the_sites_of_all_layers_that_it_finds_there(model: str, short: str, glob: str) -> None:
    done, expected = passed(model, short), passed(model, glob)
    assert list(done) == list(expected)
    for name, site in expected.items():
        layer = Site.named(name).layer
        assert layer is not None
        assert torch.equal(done[short, layer].values, site.values)


def test_a_short_name_is_all_layers_in_parts_edits_and_tables_too() -> None:
    found = subject("gpt2")
    (ids,) = found.inputs
    first = run(found.model, ids, read=gf.Read("pattern", at=gf.At(head=0)))
    assert first["pattern", 1].axes == ("batch", "query", "key")
    short, glob = (run(found.model, ids, edit=gf.Scale(name, 0.0)) for name in ("z", "blocks.*.attn.z"))
    assert torch.equal(short.predictions(), glob.predictions())
    assert list(found.model.sites("resid_post")) == ["blocks.0.resid_post", "blocks.1.resid_post"]


@in_one_pass
@pytest.mark.parametrize(
    ("model", "short", "said"),
    [
        ("gpt2", "patern", 'no site "patern" in this model. Nearest: "pattern"'),
        ("gpt2", "atn.out", 'no site "atn.out" in this model. Nearest: "attn.out"'),
        ("gpt2", "blocks.2.pattern", 'no site "blocks.2.pattern" in this model. Nearest: "blocks.1.attn.pattern"'),
        ("gpt2", "out", '"out" is the name of several sites of layer 0: "attn.out" or "mlp.out"'),
        ("translator_pre", "pattern", '"attn.pattern" or "cross.pattern"'),
    ],
)
def test_a_short_name_of_nothing_or_of_several_sites_is_not_read(model: str, short: str, said: str) -> None:
    with pytest.raises(UnknownSite) as refusal:
        passed(model, short)
    assert said in str(refusal.value)


@in_one_pass
@pytest.mark.parametrize("mixer", [NeuralMemory(chunk=2), TokenMlp()])
@pytest.mark.parametrize(
    ("asked", "quantity"),
    [
        ("blocks.1.attn.pattern", "pattern"),
        ("pattern", "pattern"),
        ("*.attn.pattern", "pattern"),
        ("L1H0.scores", "scores"),
    ],
)
def test_a_site_that_a_mechanism_lacks_is_refused_by_what_the_mechanism_is(
    mixer: MixerConfig, asked: str, quantity: str
) -> None:
    model = Decoder(DecoderConfig(7, 8, (block(n_heads=2, mixer=mixer),) * 2, max_len=6))
    first = 0 if asked in ("pattern", "*.attn.pattern") else 1
    with pytest.raises(UnknownSite) as refusal:
        model.sites(asked)
    assert f'no site "{asked}" in this model: layer {first} uses "{mixer.kind}"' in str(refusal.value)
    assert ("which has no pattern here" in str(refusal.value)) == (quantity == "pattern")
    assert "Nearest" not in str(refusal.value)
    with pytest.raises(UnknownSite, match=f'no site "{quantity}" in any layer: layer 0 uses "{mixer.kind}"'):
        run(model, [1, 2, 3]).layers(quantity)


def test_a_site_that_one_layer_lacks_is_refused_there_and_read_elsewhere() -> None:
    found = subject("lightning_hybrid")
    assert list(found.model.sites("scores")) == ["blocks.1.attn.scores"]
    with pytest.raises(UnknownSite, match='layer 0 uses "lightning", which makes no scores'):
        found.model.sites("blocks.0.attn.scores")


@pytest.mark.parametrize("site", ["z", "*.z"])
def test_a_metric_looks_at_one_layer(site: str) -> None:
    found = subject("gpt2")
    metric = Metric("size", lambda z: z.flatten(2).norm(dim=-1), site=site, at=gf.At(pos=-1))
    with pytest.raises(ShapeMismatch, match=r'metric "size" looks at one site; .* blocks\.0\.attn\.z, blocks\.1'):
        sweep(found.model, found.inputs[0], [[gf.Scale("blocks.0.resid_pre", 0.5)]], metric)


def test_what_was_not_read_says_what_to_read() -> None:
    done = passed("gpt2", "blocks.0.resid_post")
    with pytest.raises(
        SiteNotRead, match=r'read=\["blocks.1.attn.pattern"\], or of all layers with read=\["blocks.\*.'
    ):
        _ = done["pattern", 1]
    with pytest.raises(SiteNotRead, match=r'1 of 2 layers were not read(.|\n)*read=\["blocks.\*.resid_post"\]'):
        done.layers("resid_post")
    with pytest.raises(SiteNotRead, match=r'A name without its layer: run\["pattern", 0\]'):
        _ = done["pattern"]


@pytest.mark.parametrize("model", ["gpt2", "translator_pre"])
def test_all_layers_are_the_layers_one_by_one(model: str) -> None:
    done = passed(model)
    stream, patterns = done.layers("resid_post"), done.layers("attn.pattern")
    assert stream.axes == ("layer", "batch", "pos", "d_model") and stream.labels("layer") == ["L0", "L1"]
    for layer in range(2):
        assert torch.equal(stream.select(layer=layer).values, done["resid_post", layer].values)
        assert torch.equal(patterns.select(layer=f"L{layer}").values, done["attn.pattern", layer].values)


def test_layers_without_the_site_are_left_out_and_layers_of_other_shapes_refused() -> None:
    assert passed("lightning_hybrid").layers("scores").labels("layer") == ["L1"]
    blocks = [gf.models.block(n_heads=n, mlp=gf.models.Mlp(8)) for n in (2, 4, 4)]
    model = gf.models.DecoderConfig(vocab_size=11, d_model=8, layers=tuple(blocks), max_len=8).build()
    done = run(model, [1, 2, 3], read="*")
    assert done.layers("resid_post").shape == (3, 1, 3, 8)
    with pytest.raises(ShapeMismatch, match="0: batch=1 head=2 query=3 key=3; 1, 2: batch=1 head=4"):
        done.layers("pattern")


def test_layers_of_prompts_of_unequal_length_keep_what_is_real_of_each() -> None:
    done = run(subject("gpt2").model, [[1, 2, 3, 4], [5, 6]], read="blocks.*.resid_post")
    whole = done.layers("resid_post")
    alone = run(subject("gpt2").model, [5, 6], read="blocks.*.resid_post").layers("resid_post")
    one = whole.select(batch=[1])
    assert one.coords == alone.coords and one.shape == alone.shape


def test_a_loaded_run_knows_short_names_and_padding_too(tmp_path: Path) -> None:
    done = run(subject("gpt2").model, [[1, 2, 3, 4], [5, 6]], read="*.pattern")
    loaded = Run.load(done.save(tmp_path / "run.safetensors"))
    assert loaded["pattern", 1].rows == done["pattern", 1].rows
    assert loaded.prompt(1)["pattern", -1].labels("key") == done.prompt(1)["pattern", 1].labels("key")
    with pytest.raises(ShapeMismatch, match="row 2"):
        loaded.prompt(2)
