"""Models in GGUF files: the numbers that were written, back to what their type keeps, and the same tokens."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import glassformer as gf
from families import EPSILON, reference_folder
from glassformer.attention import Rope
from glassformer.attention.positions import Llama3Scaling
from glassformer.checkpoints import convert, notes_of, parity
from glassformer.checkpoints.gguf import gguf_of, rounding_notes
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.errors import CheckpointError, MissingExtra
from glassformer.testing import close

N_HEADS, N_KV_HEADS, N_LAYERS, VOCABULARY = 4, 2, 2, 290
TEXT = "it's a naïve cat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, max_position_embeddings=64,
        bos_token_id=0, eos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    made = tmp_path_factory.mktemp("llama")
    reference_folder(transformers.LlamaForCausalLM, config, made, torch.float32)
    return made


@pytest.fixture
def gguf() -> Any:
    pytest.importorskip("accelerate", reason="needs the extra gguf")
    return pytest.importorskip("gguf", reason="needs the extra gguf")


def written(
    gguf: Any,
    folder: Path,
    path: Path,
    kind: str = "F32",
    more: Mapping[str, Tensor] | None = None,
    said: Callable[[Any], None] = lambda writer: None,
    **options: Any,
) -> Path:
    """Write a folder's Llama as llama.cpp's converter does, matrices in a type; return the (first) file."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_name("tiny")
    for add, value in (
        (writer.add_context_length, 64), (writer.add_embedding_length, 64), (writer.add_block_count, N_LAYERS),
        (writer.add_feed_forward_length, 96), (writer.add_head_count, N_HEADS), (writer.add_head_count_kv, N_KV_HEADS),
        (writer.add_rope_dimension_count, 16), (writer.add_rope_freq_base, 10000.0),
        (writer.add_layer_norm_rms_eps, EPSILON), (writer.add_vocab_size, VOCABULARY),
    ):  # fmt: skip
        add(value)
    _say_tokens(writer)
    said(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, N_LAYERS)
    for name, value in load_file(folder / WEIGHTS).items():
        for part, heads in (("q_proj", N_HEADS), ("k_proj", N_KV_HEADS)):
            if part in name:  # llama.cpp turns neighbours, published files turn halves
                value = value.view(heads, 2, -1, value.shape[1]).transpose(1, 2).reshape(value.shape)
        own = gguf.GGMLQuantizationType[kind if value.ndim == 2 else "F32"]
        content = value.numpy() if own.name == "F32" else gguf.quantize(value.numpy(), own)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), content, raw_dtype=own)
    for name, value in (more or {}).items():
        writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else sorted(path.parent.glob("*.gguf"))[0]


def _say_tokens(writer: Any) -> None:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "</s>", *alphabet, "at", "cat"]
    tokens += [f"<more {i}>" for i in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") and token != "<" else 1 for token in tokens])
    writer.add_token_merges(["a t", "c at"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def as_lists(model: Any) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in model.state_dict().items()}


def unembedding(path: Path) -> Tensor:
    found = gf.load(path).unembed.matrix
    assert found is not None
    return found


def logits_of(model: Any, ids: Any) -> Tensor:
    found = gf.run(model, ids).logits
    assert found is not None
    return found


def test_a_file_of_whole_numbers_is_the_model_that_was_written_and_reads_its_tokens(gguf, folder, tmp_path):
    path = written(gguf, folder, tmp_path / "tiny.gguf")
    model, want = gf.load(path), gf.load(folder)
    assert model.config == want.config and model.trained_length == want.trained_length
    assert as_lists(model) == as_lists(want)
    assert not model.checkpoint_notes and model.name == "tiny.gguf"
    run = gf.run(model, TEXT)
    assert model.tokenizer is not None and run.ids is not None
    assert model.tokenizer.decode(run.ids[0].tolist()) == TEXT and run.tokens[-1] == "cat"
    assert torch.equal(logits_of(model, TEXT), logits_of(want, run.ids))
    # a folder that holds it and no safetensors stands for it
    assert gf.load(tmp_path).config == want.config


def test_numbers_of_eight_bits_are_off_by_half_a_step_and_a_note_says_so(gguf, folder, tmp_path):
    path = written(gguf, folder, tmp_path / "tiny.gguf", "Q8_0")
    found, expected, model = unembedding(path).view(-1, 32), unembedding(folder).view(-1, 32), gf.load(path)
    # the step of each 32 is their largest number over 127, as a half-precision number
    step = expected.abs().amax(-1, keepdim=True) / 127
    assert ((found - expected).abs() <= 0.5 * step + 127 * step * 2**-11).all() and not torch.equal(found, expected)
    (note,) = model.checkpoint_notes
    assert note.seen == "The weights were rounded to few bits before they were read: Q8_0 100 %."
    assert note in gf.run(model, "cat").notes


def test_a_model_in_several_files_is_that_of_one_and_a_file_that_is_missing_is_named(gguf, folder, tmp_path):
    first = written(gguf, folder, tmp_path / "tiny.gguf", "F16", split_max_tensors=12)
    assert first.name == "tiny-00001-of-00002.gguf"
    want = load_file(folder / WEIGHTS)["lm_head.weight"].half().float()
    for given in (first, tmp_path):
        assert torch.equal(unembedding(given), want)
    (tmp_path / "tiny-00002-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 2 files of its model: tiny-00002-of-00002.gguf"):
        gf.load(first)


@pytest.mark.parametrize("quick", [True, False])
def test_what_takes_a_while_to_be_turned_back_says_so_before(quick, gguf, folder, tmp_path, caplog, monkeypatch):
    path = written(gguf, folder, tmp_path / "tiny.gguf", "Q8_0")
    if not quick:
        monkeypatch.setattr("glassformer.checkpoints.gguf._QUICK", 1000)
    gf.load(path)
    told = [line for line in caplog.messages if "numbers are turned back" in line and f'convert "{path}" OUT' in line]
    assert len(told) == (not quick)


@pytest.mark.parametrize("to", ["glassformer", "huggingface"])
def test_it_is_written_as_safetensors_for_good(to, gguf, folder, tmp_path):
    path = written(gguf, folder, tmp_path / "tiny.gguf", "Q8_0")
    model, again = gf.load(path), gf.load(convert(path, tmp_path / "out", to))
    assert as_lists(again) == as_lists(model)
    assert gf.run(again, TEXT).tokens == gf.run(model, TEXT).tokens
    assert again.checkpoint_notes == model.checkpoint_notes == notes_of(path) == notes_of(tmp_path / "out") != ()
    # nothing is said twice, and a layout that keeps no notes leaves them at that
    back = convert(convert(tmp_path / "out", tmp_path / "ours"), tmp_path / "back", "huggingface")
    assert gf.load(back).checkpoint_notes == model.checkpoint_notes


def test_stretched_positions_are_those_of_the_published_config(gguf, folder, tmp_path):
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 16)
    factors = Rope(10000.0).frequencies(16) / scaling.frequencies(10000.0, 16)
    path = written(gguf, folder, tmp_path / "llama3.gguf", more={"rope_freqs.weight": factors.float()})
    ids = [list(range(3, 40))]
    want = gf.load(folder)
    plain = logits_of(want, ids)
    layers = tuple(
        dataclasses.replace(
            layer,
            parts=tuple(
                dataclasses.replace(part, positions=dataclasses.replace(part.positions, scaling=scaling))
                if hasattr(part, "positions")
                else part
                for part in layer.parts
            ),
        )
        for layer in want.config.layers
    )
    stretched = dataclasses.replace(want.config, layers=layers).build()
    stretched.load_state_dict(want.state_dict())
    found = logits_of(gf.load(path), ids)
    close(found, logits_of(stretched.eval(), ids), 1e-5)
    assert (found - plain).abs().max() > 0.01


def test_what_cannot_be_read_whole_is_refused(gguf, folder, tmp_path):
    path = written(gguf, folder, tmp_path / "tiny.gguf")
    content = path.read_bytes()
    for size in (8, 200, len(content) // 2, len(content) - 40):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"tiny.gguf.*cannot be read as GGUF.*truncated or damaged"):
            gf.load(path)
    unread = {"blk.0.attn_q.bias": torch.ones(64)}
    with pytest.raises(CheckpointError, match=r"of a variant that the reader does not know"):
        gf.load(written(gguf, folder, tmp_path / "biased.gguf", more=unread))

    def say(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_yarn_log_mul(0.5)

    with pytest.raises(CheckpointError, match=r"stretches its rotary positions .*\(type=yarn, yarn_log_multiplier=0.5"):
        gf.load(written(gguf, folder, tmp_path / "yarn.gguf", said=say))


def test_what_reads_from_files_asks_for_safetensors(gguf, folder, tmp_path):
    path = written(gguf, folder, tmp_path / "tiny.gguf")
    with pytest.raises(CheckpointError, match=r"safetensors first: glassformer convert .*tiny.gguf"):
        gf.load(path, stream=True)
    with pytest.raises(CheckpointError, match=r"read by the library that it would be compared with"):
        parity(path)


def test_a_file_that_only_calls_itself_so_is_told(tmp_path):
    path = tmp_path / "model.gguf"
    for content, told in (
        (b"", "is no GGUF file"),
        (b"\x80\x04K\x01.", "is a pickle, not GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of git-lfs"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=told):
            gf.load(path)
    (tmp_path / "other.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds several models \(model.gguf, other.gguf\); give the file"):
        gf.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert gguf_of(tmp_path) is None


def test_without_what_reads_them_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(60))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r"need gguf to be read: pip install 'glassformer\[gguf\]'"):
        gf.load(tmp_path / "model.gguf")


def test_whole_types_are_not_noted_and_others_with_their_share():
    assert rounding_notes({"F16": 90, "F32": 10}) == ()
    (note,) = rounding_notes({"Q4_K": 70, "Q6_K": 20, "F32": 10})
    assert "Q4_K 70 %, Q6_K 20 %." in note.seen
