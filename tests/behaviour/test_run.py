"""`gf.run`: any model and any input in, a `Run` out; and every way it can be used wrongly."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import glassformer as gf
from explanations import TEXT, gpt, translator
from glassformer.data.batch import next_token_batch
from glassformer.errors import (
    AnalysisUnavailable,
    CheckpointError,
    SaveError,
    ShapeMismatch,
    SiteNotRead,
    TextError,
    TokenOutOfRange,
    UnknownAxis,
    UnknownSite,
)  # fmt: skip
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject


def test_a_text_becomes_tokens_with_the_beginning_token_first() -> None:
    model = gpt()
    run = gf.run(model, "def area")
    assert run.ids is not None and run.logits is not None
    assert run.tokens[0] == "<bos>"
    assert "".join(run.tokens[1:]) == "def area"
    assert run.text == "def area"
    assert run.logits.shape == (1, len(run.tokens), 300)
    close(run.logits, model(run.ids).detach())


@pytest.mark.parametrize("ids", [[1, 2, 3], torch.tensor([1, 2, 3]), torch.tensor([[1, 2, 3]], dtype=torch.int32)])
def test_ids_are_taken_as_they_are(ids: Any) -> None:
    run = gf.run(gpt(), ids)
    assert run.ids is not None
    assert run.ids.tolist() == [[1, 2, 3]]
    assert run.text is None


def test_a_batch_runs_with_its_lengths() -> None:
    model = gpt()
    batch = next_token_batch(torch.tensor([[1, 2, 3, 9, 9], [4, 5, 6, 7, 8]]), lengths=torch.tensor([3, 4]))
    run = gf.run(model, batch, read=["blocks.0.resid_post"])
    alone = gf.run(model, [1, 2, 3])
    assert [len(row) for row in run.token_rows] == [3, 4]
    assert run.logits is not None and alone.logits is not None
    close(run.logits[0, :3], alone.logits[0], 1e-4)
    # the rows hold different tokens, so their axis has no names
    assert "pos" not in run["blocks.0.resid_post"].coords


def test_values_carry_tokens_with_their_index_and_heads_by_name() -> None:
    run = gf.run(gpt(), "aa", read=["blocks.1.attn.pattern", "blocks.1.attn.key"])
    pattern = run["blocks.1.attn.pattern"]
    assert pattern.axes == ("batch", "head", "query", "key")
    assert pattern.labels("query") == pattern.labels("key") == ["0:<bos>", "1:a", "2:a"]
    assert pattern.labels("head")[5] == "L1H5"
    assert pattern.select(head="L1H5", query="2:a").axes == ("batch", "key")
    assert run["blocks.1.attn.key"].labels("key") == ["0:<bos>", "1:a", "2:a"]


def test_parts_of_a_site_keep_the_names_of_what_was_kept() -> None:
    reads = [gf.Read("blocks.0.attn.pattern", at=gf.At(head=[2, 3], query=-1, key=slice(1, None)))]
    pattern = gf.run(gpt(), "aa", read=reads)["blocks.0.attn.pattern"]
    assert pattern.axes == ("batch", "head", "key")
    assert pattern.labels("head") == ["L0H2", "L0H3"]
    assert pattern.labels("key") == ["1:a", "2:a"]


def test_cross_attention_names_the_source_along_its_keys() -> None:
    run = gf.run(translator(), "我吃了", "I ate", read=["*.pattern"])
    assert run.source_tokens == ["我", "吃", "了"]
    assert run.tokens == ["<bos>", "I", "ate"]
    cross = run["decoder.blocks.0.cross.pattern"]
    assert cross.labels("query") == ["0:<bos>", "1:I", "2:ate"]
    assert cross.labels("key") == ["0:我", "1:吃", "2:了"]
    assert cross.labels("head")[1] == "L0X1"
    assert run["encoder.blocks.0.attn.pattern"].labels("head")[0] == "enc L0H0"
    assert run["encoder.blocks.0.attn.pattern"].labels("query") == ["0:我", "1:吃", "2:了"]


def test_without_a_target_the_decoder_reads_what_it_writes() -> None:
    run = gf.run(translator(), "我吃了一个苹果")
    assert run.generated
    assert run.ids is not None and run.logits is not None
    assert torch.equal(run.ids[0, 1:], run.logits[0, :-1].argmax(-1))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_reading_everything_gives_every_site_with_fitting_labels(name: str) -> None:
    found = subject(name)
    inputs = [ids[:1] for ids in found.inputs]
    run = gf.run(found.model, inputs[0], *inputs[1:], read="*")
    assert list(run) == list(found.model.sites())
    bare = gf.run(found.model, inputs[0], *inputs[1:])
    assert run.logits is not None and bare.logits is not None
    close(run.logits, bare.logits)


def test_edits_change_what_comes_after_and_a_run_can_be_their_value() -> None:
    model = gpt()
    clean = gf.run(model, "def f(", read=["blocks.2.resid_pre"])
    other = gf.run(model, "def g)", edit=[gf.Set("blocks.2.resid_pre", clean)])
    assert clean.logits is not None and other.logits is not None
    close(other.logits, clean.logits)
    plain = gf.run(model, "def f(", edit=[("blocks.0.mlp.out", lambda value: 0 * value)])
    scaled = gf.run(model, "def f(", edit=[gf.Scale("blocks.0.mlp.out", 0.0)])
    assert plain.logits is not None and scaled.logits is not None
    assert torch.equal(plain.logits, scaled.logits)
    assert not torch.allclose(plain.logits, clean.logits)


def test_gradients_at_sites_come_on_request() -> None:
    model = gpt()
    run = gf.run(model, "def", read=["blocks.1.resid_pre"], grad=True)
    assert run.logits is not None
    (gradient,) = torch.autograd.grad(run.logits[0, -1, 5], run["blocks.1.resid_pre"].values)
    assert gradient.abs().sum() > 0
    without = gf.run(model, "def", read=["blocks.1.resid_pre"])
    assert without.logits is not None
    assert not without.logits.requires_grad


def test_the_model_is_run_in_evaluation_mode_and_put_back_module_by_module() -> None:
    model = gpt()
    model.train()
    model.stack.blocks[1].eval()
    gf.run(model, "def")
    assert model.training
    assert not model.stack.blocks[1].training
    with pytest.raises(UnknownSite):
        gf.run(model, "def", read=["nowhere"])
    assert model.training
    model.eval()


def test_any_module_runs_in_one_call() -> None:
    module = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10), nn.Dropout(0.5))
    ids = torch.tensor([[1, 2, 3]])
    run = gf.run(module, ids, read=["1.in", "1.out"], edit=[gf.Scale("1.out", 2.0)])
    assert run.ids is ids
    assert run.tokens == ["1", "2", "3"]
    assert run["1.in"].shape == (1, 3, 4)
    assert run.logits is not None
    close(run.logits, 2 * module[1](module[0](ids)).detach())
    assert module.training


def test_modules_take_tuples_and_mappings_of_arguments() -> None:
    module = nn.Bilinear(2, 3, 4)
    a, b = torch.ones(1, 2), torch.ones(1, 3)
    for given in ((a, b), {"input1": a, "input2": b}):
        run = gf.run(module, given, read=["out"])
        assert run.logits is not None
        assert torch.equal(run.logits, run["out"].values)


def test_a_saved_run_comes_back_whole(tmp_path: Path) -> None:
    run = gf.run(translator(), "我吃了", "I ate", read=["*.pattern", "decoder.blocks.1.resid_post", "logits"])
    loaded = gf.Run.load(run.save(tmp_path / "run.safetensors"))
    assert list(loaded) == list(run)
    for name, site in run.items():
        assert torch.equal(loaded[name].values, site.values)
        assert loaded[name].axes == site.axes
        assert {a: list(c) for a, c in loaded[name].coords.items()} == {a: list(c) for a, c in site.coords.items()}
    assert loaded.ids is not None and run.ids is not None
    assert torch.equal(loaded.ids, run.ids)
    assert (loaded.tokens, loaded.source_tokens, loaded.text) == (run.tokens, run.source_tokens, run.text)


def test_a_loaded_run_needs_the_model_for_what_looks_at_weights(tmp_path: Path) -> None:
    from glassformer.analysis.attribution import direct_logit_attribution

    model = gpt()
    run = gf.run(model, "def f", read=[direct_logit_attribution])
    path = run.save(tmp_path / "run.safetensors")
    with pytest.raises(AnalysisUnavailable, match="give the model"):
        direct_logit_attribution(gf.Run.load(path))
    loaded = direct_logit_attribution(gf.Run.load(path, model))
    assert float(loaded.sum) == pytest.approx(float(direct_logit_attribution(run).sum))


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x00" * 64])
def test_a_damaged_file_is_no_run(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot read a run"):
        gf.Run.load(path)
    with pytest.raises(CheckpointError, match="cannot read a run"):
        gf.Run.load(tmp_path / "missing")


def test_a_truncated_or_foreign_file_is_no_run(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = gf.run(gpt(), "def").save(tmp_path / "run.safetensors")
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError):
        gf.Run.load(path)
    save_file({"x": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError):
        gf.Run.load(tmp_path / "other.safetensors")


def test_a_run_that_cannot_be_saved_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaveError, match="cannot write"):
        gf.run(gpt(), "def").save(tmp_path / "file" / "run.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_notebook_shows_tokens_and_sites_escaped() -> None:
    shown = gf.run(gpt(), "</script>", read=["blocks.0.resid_pre"])._repr_html_()
    assert "&lt;/" in shown and "</script>" not in shown
    assert "blocks.0.resid_pre" in shown


@pytest.mark.parametrize("text", ["", "   "])
def test_a_text_without_tokens_is_refused(text: str) -> None:
    with pytest.raises(TextError, match="empty"):
        gf.run(translator(), text, "I")
    if not text:
        with pytest.raises(TextError, match="empty"):
            gf.run(gpt(), text)


def test_a_text_longer_than_the_context_is_refused_with_both_lengths() -> None:
    with pytest.raises(
        TextError, match=r"\d{4} tokens, but the context of this model is 1024; shorten the text to 1024"
    ):
        gf.run(gpt(), TEXT * 20)


def test_ids_must_be_integers_of_the_vocabulary() -> None:
    model = gpt()
    with pytest.raises(TokenOutOfRange, match="token id 300 is outside the vocabulary: 0 to 299"):
        gf.run(model, [1, 300])
    with pytest.raises(TokenOutOfRange, match="token id -1 is outside"):
        gf.run(model, [-1])
    for empty in (torch.zeros(1, 0, dtype=torch.long), [], [[]]):
        with pytest.raises(TextError, match="at least one"):
            gf.run(model, empty)
    with pytest.raises(ShapeMismatch, match=r"token ids are integers .* bool with 2 axes"):
        gf.run(model, torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ShapeMismatch, match=r"token ids are integers .* float32 with 1 axes"):
        gf.run(model, [0.5])
    with pytest.raises(ShapeMismatch, match=r"a list of several of one of these; found \["):
        gf.run(model, [[1, 2], 3])
    for nothing in (None, [None], {}, object()):
        with pytest.raises(ShapeMismatch, match=r"expected a text"):
            gf.run(model, nothing)


def test_a_run_of_several_prompts_says_how_many_there_are() -> None:
    several, one = gf.run(gpt(), ["aa", "a"]), gf.run(gpt(), "aa")
    assert repr(several) == "Run('<bos> a a', the first of 2 prompts, 2 to 3 tokens, 0 sites)"
    assert repr(one) == "Run('<bos> a a', 3 tokens, 0 sites)"
    assert "of 2 prompts, 2 to 3 tokens" in several._repr_html_()
    assert several._repr_html_().count("&lt;bos&gt;</code>") == 2


def test_a_model_without_a_tokenizer_takes_ids_only() -> None:
    model = subject("gpt2").model
    with pytest.raises(TextError, match=r"no tokenizer: give token ids, or set model\.tokenizer"):
        gf.run(model, "text")
    assert gf.run(model, [1, 2]).tokens == ["1", "2"]
    with pytest.raises(TextError, match="give target="):
        gf.run(subject("translator_pre").model, [1, 2])
    with pytest.raises(TextError, match="tensors it takes"):
        gf.run(nn.Linear(2, 2), "text")


def test_a_target_is_for_models_with_an_encoder() -> None:
    with pytest.raises(ShapeMismatch, match="no encoder"):
        gf.run(gpt(), "def", "area")
    with pytest.raises(ShapeMismatch, match="source has batch=1, target has batch=2"):
        gf.run(translator(), "我", [[1, 2], [1, 2]])


def test_a_site_that_was_not_read_is_named_with_the_nearest() -> None:
    run = gf.run(gpt(), "def", read=["blocks.0.resid_pre"])
    with pytest.raises(SiteNotRead, match=r'"blocks.0.resid_post" was not read. Nearest: "blocks.0.resid_pre".'):
        run["blocks.0.resid_post"]
    with pytest.raises(UnknownSite, match=r'Nearest: "blocks.0.resid_pre"'):
        gf.run(gpt(), "def", read=["blocks.0.resid_prea"])
    with pytest.raises(UnknownAxis, match="axis"):
        gf.run(gpt(), "def", edit=[gf.Scale("blocks.0.resid_pre", 0.0, at=gf.At(head=0))])


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, glassformer; print('torch' in sys.modules, glassformer.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


def test_the_package_offers_its_main_names() -> None:
    for name in gf.__all__:
        assert getattr(gf, name) is not None
    assert gf.run is gf.analysis.run
    assert {"run", "load", "explain", "trace"} <= set(dir(gf))
    with pytest.raises(AttributeError, match="no attribute"):
        gf.nothing  # noqa: B018


def test_a_batch_without_a_source_is_none_for_an_encoder_decoder() -> None:
    found = subject("translator_pre")
    batch = dataclasses.replace(found.batch(), source=None)
    with pytest.raises(ShapeMismatch, match=r"reads a source too, and there is none(.|\n)*source="):
        gf.run(found.model, batch)
