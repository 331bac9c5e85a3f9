"""Opening what is damaged or strange: weights that are not finite, special files, other types, other formats."""

import copy
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import glassformer as gf
import right_calls
from glassformer import checkpoints, cli, weights
from glassformer.analysis.cards import Card, cards
from glassformer.analysis.lens import TunedLens
from glassformer.analysis.reports import circuits
from glassformer.analysis.sweep import logit, sweep
from glassformer.checkpoints import tensors
from glassformer.checkpoints.tensors import INDEX, WEIGHTS, TensorFiles
from glassformer.cli.train import train
from glassformer.data import bytes_tokenizer, published, read_pairs
from glassformer.data.tokenizer import byte_alphabet
from glassformer.errors import AnalysisUnavailable, CheckpointError, ConfigError, GlassformerError, WrongArgument
from glassformer.files import json_text, reading
from glassformer.files.packaged import CONFIG
from glassformer.models import DecoderConfig, Learned, Mlp, beam_search, block, repeat
from glassformer.numerics import decompositions
from glassformer.testing.calls import right_call
from glassformer.testing.models import Subject
from one_pass import first_of, in_one_pass
from waiting import in_seconds

NOT_FINITE = (math.nan, math.inf, -math.inf)


def tiny() -> Any:
    torch.manual_seed(0)
    model = DecoderConfig(260, 16, repeat(block(n_heads=2, mlp=Mlp(24)), 2), max_len=32, positions=Learned()).build()
    model.tokenizer = bytes_tokenizer()
    return model.eval()


def spoilt(name: str = "stack.blocks.1.mlp.input.weight", value: float = math.nan) -> Any:
    model = tiny()
    with torch.no_grad():
        model.get_parameter(name).view(-1)[3] = value
    return model


def ours(place: Path, model: Any = None) -> Path:
    return gf.save(tiny() if model is None else model, place / "ours")


def theirs(place: Path, model: Any = None) -> Path:
    return checkpoints.convert(ours(place, model), place / "theirs", "transformer-lens")


# --- weights that are not finite


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("folder", [ours, theirs])
@pytest.mark.parametrize("stream", [False, True])
def test_weights_that_are_not_finite_are_refused_by_name_unless_they_are_allowed(
    folder: Callable[..., Path], value: float, stream: bool, tmp_path: Path
) -> None:
    place = folder(tmp_path, spoilt(value=value))
    with pytest.raises(CheckpointError, match=r'"stack.blocks.1.mlp.input.weight".* holds 1 numbers of 384 that'):
        gf.run(gf.load(place, stream=stream), "ab")
    model = gf.load(place, stream=stream, allow_nonfinite=True)
    logits = gf.run(model, "ab").logits
    assert logits is not None and not logits.isfinite().all()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["embed.matrix", "stack.final.weight", "stack.blocks.0.attn_norm.weight"])
def test_any_tensor_that_is_not_finite_is_named(name: str, stream: bool, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape(f'"{name}"')):
        gf.load(ours(tmp_path, spoilt(name)), stream=stream)


def test_no_beam_goes_on_from_what_is_not_finite() -> None:
    with pytest.raises(AnalysisUnavailable, match="the next token: the model's logits here are NaN"):
        beam_search(spoilt("embed.matrix"), [[1, 2]], n_beams=2)


def test_numbers_too_large_for_the_type_asked_for_are_told_from_damaged_ones(tmp_path: Path) -> None:
    place = ours(tmp_path, spoilt(value=1e6))
    with pytest.raises(CheckpointError, match=r"are too large for torch.float16\. Load it in a wider type"):
        gf.load(place, dtype=torch.float16)
    assert gf.load(place).state_dict()


def test_weights_too_large_for_a_type_are_not_written_in_it(tmp_path: Path) -> None:
    model, folder = spoilt(value=1e6), tmp_path / "half"
    with pytest.raises(ConfigError, match=r'1 of 384 numbers of "stack.blocks.1.mlp.input.weight" are too large'):
        gf.save(model, folder, dtype="float16")
    with pytest.raises(ConfigError, match="too large for float16"):
        checkpoints.convert(ours(tmp_path, model), folder, "transformer-lens", dtype="float16")
    assert not folder.exists()
    assert gf.load(gf.save(model, folder, dtype="bfloat16")).state_dict()


def test_a_streamed_block_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.checkpoints.checkpoint import Checkpoint

    model, seen = gf.load(theirs(tmp_path), stream=True), list[str]()
    monkeypatch.setattr(Checkpoint, "require_finite", lambda self, name, value: seen.append(name))
    for _ in range(3):
        gf.run(model, "ab")
    assert seen and len(seen) == len(set(seen))


def test_layers_read_one_by_one_are_looked_at(tmp_path: Path) -> None:
    place = ours(tmp_path, spoilt("stack.blocks.1.attn.projection.qkv.weight"))
    with pytest.raises(CheckpointError, match=r'"stack.blocks.1.attn.projection.qkv.weight" holds 1 numbers'):
        list(checkpoints.AttentionReader(place))


VERBS = [
    "explain", "circuits", "generate", "lens", "attribute", "backward", "route", "trace",
    "patch", "edges", "prune --threshold 1", "paths",
]  # fmt: skip
AFTER = {
    "explain": "ab",
    "generate": "ab",
    "lens": "ab",
    "attribute": "ab",
    "backward": "ab",
    "route": "ab",
    "trace": "ab",
    "paths": "logits",
}


@pytest.mark.parametrize("verb", first_of(VERBS))
def test_the_command_line_refuses_them_and_opens_them_when_told(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*verb.split(), str(ours(tmp_path, spoilt())), *AFTER.get(verb, "").split()]
    assert cli.main(words) == 2
    assert "--allow-nonfinite" in capsys.readouterr().err
    assert cli.main([*words, "--allow-nonfinite"]) in (0, 2)
    # whatever is said of it is no longer said of opening it
    assert "--allow-nonfinite" not in capsys.readouterr().err


@pytest.mark.full
def test_circuits_of_a_damaged_checkpoint_do_not_end_the_process(tmp_path: Path) -> None:
    code = "import sys; from glassformer.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["circuits", str(ours(tmp_path, spoilt())), "--allow-nonfinite"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["embed.matrix", "stack.blocks.1.attn.projection.qkv.weight"])
def test_analyses_of_weights_changed_in_memory_say_that_they_are_not_finite(name: str) -> None:
    model = spoilt(name)
    with pytest.raises(AnalysisUnavailable, match=re.escape(f'"{name}" of this model holds numbers')):
        weights.of(model, fold=True)
    with pytest.raises(AnalysisUnavailable, match="NaN or infinite"):
        circuits(model)
    with pytest.raises(AnalysisUnavailable, match="of this pass: NaN or infinite"):
        gf.explain(model, "ab")


DECOMPOSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "svd": decompositions.svd,
    "singular_values": decompositions.singular_values,
    "eigenvalues": decompositions.eigenvalues,
    "eigh": decompositions.eigh,
    "qr": decompositions.qr,
    "triangular": decompositions.triangular,
    "pseudo_inverse": decompositions.pseudo_inverse,
    "rank": decompositions.rank,
    "solve": lambda matrix: decompositions.solve(matrix, torch.eye(4)),
    "solve for": lambda matrix: decompositions.solve(torch.eye(4), matrix),
}


@in_one_pass
@pytest.mark.parametrize("name", DECOMPOSED)
@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_decomposition_of_what_is_not_finite_is_refused(name: str, value: float) -> None:
    matrix = torch.eye(4)
    matrix[1, 2] = value
    with pytest.raises(AnalysisUnavailable, match=r"asked of a matrix \(4x4\) in which 1 of 16 numbers are NaN"):
        DECOMPOSED[name](matrix)


@in_one_pass
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_a_tensor_is_finite_if_every_number_is(dtype: torch.dtype) -> None:
    values = torch.full((3, 5), 1.0 if dtype.is_complex else torch.finfo(dtype).max, dtype=dtype)
    assert decompositions.is_finite(values) and decompositions.is_finite(values[:0])
    for value in NOT_FINITE:
        for where in ((0, 0), (2, 4)):
            changed = values.clone()
            changed[where] = value
            assert not decompositions.is_finite(changed) and not decompositions.is_finite(changed.mT)


# --- JSON


@pytest.mark.parametrize("value", NOT_FINITE)
def test_json_has_null_for_what_is_not_finite(value: float) -> None:
    for text in (json_text({"a": [1.0, (value, {"b": value})]}), json_text([value], tight=True, ascii_only=False)):
        assert json.loads(text, parse_constant=pytest.fail) in ({"a": [1.0, [None, {"b": None}]]}, [None])


def test_json_of_half_a_character_can_be_written() -> None:
    assert json.loads(json_text({"token": "\ud800é"}, ascii_only=False).encode("utf-8")) == {"token": "\ud800é"}


def test_a_class_of_numbers_is_no_type_of_weights_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongArgument, match=r"dtype= takes .*; found <class 'numpy.float16'>"):
        gf.load(ours(tmp_path), dtype=numpy.float16)  # type: ignore[arg-type]


def test_true_is_no_number_of_a_format(tmp_path: Path) -> None:
    path = ours(tmp_path) / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": True}))
    with pytest.raises(CheckpointError, match="is in format True"):
        gf.load(path.parent)


def overflowing() -> Any:
    """A model of finite weights whose first MLP writes more than the stream holds."""
    model = copy.deepcopy(right_calls.model())
    with torch.no_grad():
        for name, weight in model.stack.blocks[0].mlp.named_parameters():
            if name.endswith("weight"):
                weight.mul_(1e30)
    return model


@pytest.mark.parametrize("card", [one for one in cards() if one.of != "weights"], ids=lambda one: one.name)
def test_what_is_asked_of_a_pass_that_overflows_is_refused(card: Card) -> None:
    model = overflowing()
    with pytest.raises(GlassformerError):
        right_call(card.function, Subject("gpt2", model, (right_calls.OTHERS,)))()
    if card.of == "one pass":
        call = right_call(card.function, Subject("gpt2", right_calls.model(), (right_calls.OTHERS,)))
        run = gf.run(model, right_calls.IDS, read="*")
        with pytest.raises(AnalysisUnavailable, match="of this pass: NaN or infinite"):
            card.function(run, **{name: value for name, value in call.arguments.items() if name not in ("run", "text")})


def test_json_is_written_in_one_place() -> None:
    source = Path(gf.__file__).parent
    others = [path for path in source.rglob("*.py") if path.name != "as_json.py"]
    assert [path.name for path in others if re.search(r"json\w*\.dumps?\(", path.read_text("utf-8"))] == []


# --- special files

NAMES = [CONFIG, WEIGHTS, "tokenizer.json"]
BESIDE = [INDEX, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"]
# the last of a disk that is slow to answer
REFUSED = r"no regular file|larger than|not a whole safetensors|does not match|nothing came of it"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _larger(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(reading.MOST_TOKENIZER + 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("make", [_pipe, _endless, _larger])
@pytest.mark.parametrize(
    ("folder", "name"), [*((ours, name) for name in NAMES), *((theirs, name) for name in [*NAMES, *BESIDE])]
)
def test_files_that_are_special_or_too_large_are_refused(
    folder: Callable[..., Path], name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    place = folder(tmp_path)
    (place / name).unlink(missing_ok=True)
    make(place / name)
    with (
        in_seconds(),
        pytest.raises(
            CheckpointError,
            match=r"no regular file|larger than|not a whole safetensors|does not match|nothing came of it",
        ),
    ):
        gf.load(place)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("make", [_pipe, _endless, _larger])
@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_words_and_merges_that_are_special_or_too_large_are_refused(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({byte: i for i, byte in enumerate(byte_alphabet())}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    found = published(tmp_path)
    assert found is not None and found.vocab_size == 256
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with in_seconds(), pytest.raises(CheckpointError, match=r"no regular file|larger than"):
        published(tmp_path)


def _recipe(path: Path) -> None:
    train(str(path), show=True)


def swept(path: Path) -> Any:
    return sweep(tiny(), [1, 2, 3], [[gf.Scale("L0H0.z", 0.0)]], logit(1), save_to=path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("make", [_pipe, _endless])
@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("run", gf.Run.load),
        ("lens", TunedLens.load),
        ("rows", swept),
        ("pairs.csv", read_pairs),
        ("recipe.json", _recipe),
    ],
)
def test_saved_results_pairs_and_recipes_that_are_no_regular_files_are_refused(
    name: str, reads: Callable[[Path], Any], make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / name)
    with in_seconds(), pytest.raises(GlassformerError, match="no regular file"):
        reads(tmp_path / name)


def test_a_file_is_read_up_to_its_bound_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert reading.read(path, 10) == b"x" * 10
    with pytest.raises(OSError, match="larger than the 9 bytes"):
        reading.read(path, 9)
    with pytest.raises(OSError, match="no regular file"):
        reading.read(tmp_path, 9)


def test_a_file_that_says_it_is_empty_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class MadeUp(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(-1 if size is None else size)
            return b"x" * asked[-1]

    path = tmp_path / "made up as it is read"
    path.touch()
    monkeypatch.setattr(reading, "opened", MadeUp)
    with pytest.raises(OSError, match="larger than the 9 bytes"):
        reading.read(path, 9)
    assert asked == [10]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_header_is_read_of_the_file_that_was_looked_at_whatever_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = theirs(tmp_path)

    def replaced(path: Path, framework: str) -> Any:
        found = safe_open(path, framework)
        path.unlink()
        _pipe(path)
        return found

    monkeypatch.setattr(tensors, "safe_open", replaced)
    with in_seconds():
        found = TensorFiles(place)
        with pytest.raises(CheckpointError, match="no regular file"):
            found.read(next(iter(found)))


@pytest.mark.parametrize(("name", "most"), [(CONFIG, 2**26), (INDEX, 2**26), ("tokenizer.json", 2**29)])
def test_a_bound_is_that_of_the_kind_of_file(name: str, most: int, tmp_path: Path) -> None:
    place = theirs(tmp_path)
    with (place / name).open("wb") as file:
        file.truncate(most + 1)
    # the reason alone: which file it is has been said before it
    with pytest.raises(CheckpointError, match=rf'(": |\()it is larger than the {most:,} bytes'):
        gf.load(place)


# --- values of other types

CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "an index nested too deeply": (lambda f: _write(f / INDEX, "[" * 50_000 + "]" * 50_000), "nested too deeply"),
    "an index with a name of 5,000 characters": (
        lambda f: _write(f / INDEX, json.dumps({"weight_map": {"a": "x" * 5000}})),
        r"lacks 1 of its 1 files: x+… \(5,000 characters\)",
    ),
    "a config nested too deeply": (lambda f: _write(f / CONFIG, "[" * 50_000 + "]" * 50_000), "nested too deeply"),
    "a header of impossible size": (
        lambda f: _write_bytes(f / WEIGHTS, b"\0\0\0\0\0\0\0\x7f" * 8),
        "its header would have",
    ),
}


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_such_file_is_refused_in_words(change: str, tmp_path: Path) -> None:
    place = theirs(tmp_path)
    alter, message = CHANGES[change]
    alter(place)
    with pytest.raises(CheckpointError, match=message):
        gf.load(place)


@pytest.mark.parametrize("value", ["\ud800", {"content": "\ud800"}, ["x"], {"content": 5}, 5])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_special_token_that_no_text_can_be_is_none(name: str, value: object, tmp_path: Path) -> None:
    place = theirs(tmp_path)
    (place / "tokenizer_config.json").unlink()
    _write(place / name, json.dumps({"bos_token": value}))
    assert gf.load(place).require_tokenizer().bos is None


@pytest.mark.parametrize(
    "origin", [5, "x", [1], {}, {"family": "llama"}, {"family": 3, "config": {}}, {"family": "llama", "config": 3}]
)
def test_an_origin_of_another_type_is_refused(origin: object, tmp_path: Path) -> None:
    place = ours(tmp_path)
    _write(place / CONFIG, json.dumps(json.loads((place / CONFIG).read_text()) | {"origin": origin}))
    with pytest.raises(CheckpointError, match='"origin" must be'):
        gf.load(place)


@pytest.mark.parametrize("value", [-256, 0, -0.5])
@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text"])
def test_a_scale_of_queries_that_is_not_positive_is_refused(kind: str, value: float, tmp_path: Path) -> None:
    fields = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 9, "intermediate_size": 8, "head_dim": 8}
    fields |= {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 4}
    _write(tmp_path / CONFIG, json.dumps({"model_type": kind, "query_pre_attn_scalar": value, **fields}))
    with pytest.raises(CheckpointError, match="query_pre_attn_scalar must be above zero"):
        checkpoints.config_of(tmp_path)


# --- other formats

QUANTISED = {
    "GPTQ, 4 bits": {"quant_method": "gptq", "bits": 4},
    "AWQ, 4 bits": {"quant_method": "awq", "bits": 4, "zero_point": True},
    "bitsandbytes, 4 bits": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "bitsandbytes, 8 bits": {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False},
    "compressed-tensors": {"quant_method": "compressed-tensors", "config_groups": {}},
    "HQQ": {"quant_method": "hqq"},
    "FP8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
TENSORS = {
    "GPTQ or AWQ": ("qweight", torch.int32),
    "bitsandbytes, 8 bits": ("SCB", torch.float32),
    "bitsandbytes, 4 bits": ("weight.absmax", torch.float32),
    "compressed-tensors": ("weight_packed", torch.int32),
    "FP8 with scales": ("weight_scale_inv", torch.float32),
    "MXFP4": ("down_proj_blocks", torch.uint8),
    "EXL2": ("q_weight", torch.int32),
}


@pytest.mark.parametrize("method", QUANTISED)
def test_a_config_of_quantised_weights_is_refused_with_what_it_says(method: str, tmp_path: Path) -> None:
    place = theirs(tmp_path)
    said = json.loads((place / CONFIG).read_text()) | {"quantization_config": QUANTISED[method]}
    _write(place / CONFIG, json.dumps(said))
    message = rf"quantised weights \({method}: quantization_config\)[\s\S]*Take the checkpoint it was made\s+from"
    with pytest.raises(CheckpointError, match=message):
        gf.load(place)


def test_quantisation_goes_by_an_older_name_too(tmp_path: Path) -> None:
    place = theirs(tmp_path)
    said = json.loads((place / CONFIG).read_text()) | {"compression_config": {"quant_method": "compressed-tensors"}}
    _write(place / CONFIG, json.dumps(said))
    with pytest.raises(CheckpointError, match=r"quantised weights \(compressed-tensors"):
        gf.load(place)


@pytest.mark.parametrize("method", TENSORS)
def test_quantised_tensors_are_known_where_the_config_says_nothing(method: str, tmp_path: Path) -> None:
    place = theirs(tmp_path)
    ending, dtype = TENSORS[method]
    tensors = load_file(place / WEIGHTS)
    tensors[f"blocks.0.mlp.{ending}"] = torch.zeros(4).to(dtype)
    save_file(tensors, place / WEIGHTS)
    with pytest.raises(CheckpointError, match=rf'\({method}: a tensor "blocks.0.mlp.{ending}"\)'):
        gf.load(place)
