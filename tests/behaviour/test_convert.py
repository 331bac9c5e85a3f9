"""`convert`: whole or not at all, nothing overwritten, nothing dropped, and texts read as before."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import glassformer as gf
from glassformer import checkpoints
from glassformer.attention import Lightning, Rope, Softmax
from glassformer.checkpoints import convert
from glassformer.cli import main
from glassformer.data import bytes_tokenizer
from glassformer.errors import CheckpointError, ConfigError, SaveError, TextError
from glassformer.models import DecoderConfig, Learned, Mlp, RmsNorm, block, repeat
from glassformer.testing.layers import randomise

TOKENS = torch.tensor([[1, 5, 2, 9, 0, 3]])


def llama_like(**changes: Any) -> DecoderConfig:
    layer = block(
        n_heads=2, positions=Rope(), norm=RmsNorm(), mlp=Mlp(20, activation="silu", gated=True, bias=False), dropout=0.1
    )
    config = DecoderConfig(257, 16, repeat(layer, 3), max_len=32, final_norm=RmsNorm(), init="xavier")
    return config.replace(**changes)


def gpt_like() -> DecoderConfig:
    layer = block(n_heads=2, bias=True, mlp=Mlp(activation="gelu_tanh"))
    return DecoderConfig(257, 16, repeat(layer, 2), max_len=32, positions=Learned())


def attention_only() -> DecoderConfig:
    """Attention alone, in every second layer to the three tokens before."""
    local, wide = (block(Softmax(window=window, cap=5.0), n_heads=2, norm=RmsNorm(gain=False)) for window in (3, None))
    layers = repeat([local, wide], 2)
    return DecoderConfig(257, 16, layers, 32, Learned(), RmsNorm(gain=False), tied=False, logit_cap=3.0)


def saved(config: DecoderConfig, folder: Path) -> Path:
    model: Any = randomise(config.build().eval())
    model.tokenizer = bytes_tokenizer()
    return checkpoints.save(model, folder)


@pytest.mark.parametrize(
    ("config", "to"),
    [
        (llama_like(), "huggingface"), (llama_like(), "llama2c"), (gpt_like(), "huggingface"),
        (llama_like(), "transformer-lens"), (gpt_like(), "transformer-lens"), (attention_only(), "transformer-lens"),
        (gpt_like(), "per-head"), (attention_only(), "per-head"),
    ],
)  # fmt: skip
def test_a_model_of_ours_is_written_in_a_layout_that_says_the_same(
    config: DecoderConfig, to: str, tmp_path: Path
) -> None:
    ours = saved(config, tmp_path / "ours")
    other: Any = gf.load(convert(ours, tmp_path / "other", to))
    expected: Any = gf.load(ours)
    assert torch.allclose(other(TOKENS), expected(TOKENS), atol=1e-5)
    # the beginning token that ours puts in front of a text, others put there too
    assert gf.run(other, "abc").tokens == gf.run(expected, "abc").tokens == ["<bos>", "a", "b", "c"]
    assert str(gf.run(other, "abc").notes[0]) == "The tokenizer added <bos> in front of the text."


def test_a_checkpoint_of_ours_comes_back_bit_for_bit_from_another_layout(tmp_path: Path) -> None:
    ours = saved(gpt_like(), tmp_path / "ours")
    back = convert(convert(ours, tmp_path / "theirs", "huggingface"), tmp_path / "back")
    found, expected = (load_file(folder / "model.safetensors") for folder in (back, ours))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_tensors_of_all_layers_may_be_fewer_than_the_layers_and_must_be_of_as_many(tmp_path: Path) -> None:
    layers = repeat(block(n_heads=2, norm=RmsNorm(gain=False)), 20)
    config = DecoderConfig(257, 16, layers, 32, Learned(), RmsNorm(gain=False), tied=False)
    ours = saved(config, tmp_path / "ours")
    made = convert(ours, tmp_path / "made", "per-head")
    tensors = load_file(made / "model.safetensors")
    assert len(tensors) == 12 and tensors["W_Q"].shape == (20, 2, 16, 8)
    streamed: Any = gf.load(made, stream=True)
    assert torch.equal(streamed(TOKENS), gf.load(made)(TOKENS))
    back = gf.load(convert(made, tmp_path / "back")).state_dict()
    expected = gf.load(ours).state_dict()
    assert all(torch.equal(back[name], expected[name]) for name in expected)
    # the first of more layers would be another model, without a word
    said = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(said | {"n_layers": 19}))
    with pytest.raises(CheckpointError, match=r'"W_Q" has shape \(20, 2, 16, 8\), which does not fit .* 19 layers'):
        gf.load(made)


def test_what_no_layout_has_a_place_for_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    layer = block(Lightning(), n_heads=2, norm=RmsNorm(), positions=Rope(), mlp=Mlp(20, "silu", True, False))
    ours = saved(llama_like(layers=repeat(layer, 2)), tmp_path / "ours")
    with pytest.raises(CheckpointError) as caught:
        convert(ours, tmp_path / "other", "huggingface")
    assert "layers[0].parts[0].mixer: lightning here, softmax there" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = saved(gpt_like(), tmp_path / "ours")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    with pytest.raises(SaveError, match="is there already, and nothing is overwritten"):
        convert(ours, tmp_path / "full")
    with pytest.raises(SaveError):
        convert(ours, ours)

    def interrupted(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(ours, tmp_path / "deep" / "new", shard_size=1000, report=interrupted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "ours"]
    with pytest.raises(ConfigError, match=r'no layout "hugging-face". Nearest: "huggingface"'):
        convert(ours, tmp_path / "new", "hugging-face")


def test_files_have_at_most_the_size_asked_for_and_the_type(tmp_path: Path) -> None:
    ours = saved(gpt_like(), tmp_path / "ours")
    made = convert(ours, tmp_path / "made", "huggingface", dtype=torch.bfloat16, shard_size=10_000)
    files = sorted(made.glob("*.safetensors"))
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors" and len(files) > 2
    tensors = {name: value for path in files for name, value in load_file(path).items()}
    assert {value.dtype for value in tensors.values()} == {torch.bfloat16}
    assert max(path.stat().st_size for path in files) < 12_000
    assert json.loads((made / "config.json").read_text())["dtype"] == "bfloat16"
    # ours again in several files, each under its digest
    again = convert(made, tmp_path / "again", shard_size=10_000)
    model: Any = gf.load(again)
    assert model.origin.family == "GPT-2"
    first = sorted(again.glob("model-*.safetensors"))[0]
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    for read in (gf.load, lambda folder: convert(folder, tmp_path / "more")):
        with pytest.raises(CheckpointError, match="does not match the digest"):
            read(again)


def test_the_lines_that_the_refusal_of_a_pickle_gives_do_what_they_say(tmp_path: Path, monkeypatch: Any) -> None:
    made = convert(saved(gpt_like(), tmp_path / "ours"), tmp_path / "theirs", "huggingface")
    weights = made / "model.safetensors"
    tensors = load_file(weights)
    torch.save(tensors | {"lm_head.weight": tensors["transformer.wte.weight"]}, made / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(CheckpointError) as caught:
        gf.load(made)
    lines = [line.strip() for line in str(caught.value).splitlines() if "torch." in line]
    assert len(lines) == 2
    monkeypatch.chdir(made)
    exec("import torch, safetensors.torch\n" + "\n".join(lines))
    model: Any = gf.load(made)
    assert torch.equal(model.embed.matrix, tensors["transformer.wte.weight"])


def test_the_command_says_where_the_folder_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = saved(gpt_like(), tmp_path / "ours")
    assert main(["convert", str(ours), str(tmp_path / "new"), "--to", "huggingface", "--shard-size", "20KB"]) == 0
    assert f"huggingface: {tmp_path / 'new'}" in capsys.readouterr().out
    assert main(["convert", str(ours), str(tmp_path / "new")]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert main(["convert", str(ours), str(tmp_path / "more"), "--shard-size", "much"]) == 2
    assert 'bytes, such as 2GB or 500MB; found "much"' in capsys.readouterr().err


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return convert(saved(gpt_like(), tmp_path / "ours"), tmp_path / "theirs", "huggingface")


def test_special_tokens_are_added_as_published_or_as_asked_and_said(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model: Any = gf.load(theirs)
    plain = gf.run(model, "ab", specials=False)
    assert (plain.tokens, plain.notes) == (["a", "b"], ())
    assert gf.run(model, [[97, 98]]).notes == ()
    assert str(gf.explain(model, "ab").notes[0]) == "The tokenizer added <bos> in front of the text."
    command = ["lens", str(theirs), "ab<bos>"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "reads  0:<bos> 1:a 2:b 3:< 4:b 5:o 6:s 7:>" in shown
    assert "The tokenizer added <bos> in front of the text." in shown
    assert main([*command, "--specials", "off"]) == 0
    assert "reads  0:a 1:b 2:<" in capsys.readouterr().out
    # the text itself says where specials are
    assert main([*command, "--specials", "in-text"]) == 0
    assert "reads  0:a 1:b 2:<bos>\n" in capsys.readouterr().out


def test_a_published_tokenizer_stays_as_published_in_our_own_files(theirs: Path, tmp_path: Path) -> None:
    told = json.loads((theirs / "tokenizer_config.json").read_text())
    (theirs / "tokenizer_config.json").write_text(json.dumps(told | {"bos_token": None, "eos_token": "<bos>"}))
    model: Any = gf.load(theirs)
    assert (model.tokenizer.bos, model.tokenizer.eos) == (None, 256)
    for folder in (checkpoints.save(model, tmp_path / "saved"), convert(theirs, tmp_path / "converted")):
        again: Any = gf.load(folder)
        assert again.tokenizer.roles == model.tokenizer.roles
        assert again.tokenizer.to_json() == (theirs / "tokenizer.json").read_text()
        assert gf.run(again, "ab").tokens == ["<bos>", "a", "b"]


def test_a_model_without_a_readable_tokenizer_takes_ids_and_says_what_was_found(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (theirs / "tokenizer.json").rename(theirs / "tokenizer.model")
    model: Any = gf.load(theirs)
    assert gf.run(model, [97, 98]).tokens == ["97", "98"]
    with pytest.raises(TextError, match=r"found tokenizer.model, which cannot be read here") as caught:
        gf.run(model, "ab")
    assert "AutoTokenizer.from_pretrained" in str(caught.value)
    (theirs / "tokenizer.model").unlink()
    with pytest.raises(TextError, match=r"holds no tokenizer.json, nor another tokenizer"):
        gf.run(gf.load(theirs), "ab")
    assert main(["explain", str(theirs), "97 98"]) == 0
    assert "0:97 1:98" in capsys.readouterr().out
    assert main(["generate", str(theirs), "97 98", "--max-new-tokens", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("97 98 ") and len(printed.out.split()) == 5
    assert "0:97 1:98" in printed.err
    assert main(["lens", str(theirs), "ab"]) == 2
    assert "holds no tokenizer.json" in capsys.readouterr().err
