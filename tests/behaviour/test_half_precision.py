"""Models in half precision: every documented command and every analysis works, near what float32 gives."""

import contextlib
import dataclasses
import io
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import glassformer as gf
from glassformer import checkpoints, cli, weights
from glassformer.analysis.cards import Card, cards
from glassformer.checkpoints.own import OwnFolder
from glassformer.errors import GlassformerError
from glassformer.labelled import Labelled
from glassformer.testing import close

ROOT = Path(__file__).parents[2]
HALF = (torch.bfloat16, torch.float16)
TEXTS = {"attn-only-2l": "import os\nimport sys\nimport", "gpt-4l": "for i in range(", "zh-en": "我吃了一个苹果"}
# verbs whose model has a default
DEFAULT = ("explain",)
# needs what only a reader has (files, a network, another library), or long
NOT_HERE = re.compile(
    r"my-|runs/|pairs\.|mine|path/to|/|glassformer (train|serve|features train)|--tuned|gpt2-ours|gpt-like|--train"
    r"|stories|\.gguf"
)
FEW = {
    "circuits": "--rows 2",
    "heads": "--tokens 3000",
    "patch": "--n 4",
    "paths": "--n 4",
    "edges": "--n 4",
    "prune": "--n 4",
}
# the quickest of each kind: reading, taking apart, weights and ablations
QUICK = ("explain zh-en", "generate zh-en", "attribute zh-en", "patch attn-only-2l --task repeated_arguments")


def commands() -> list[str]:
    """Return the commands that pages and help texts show, of shipped models."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src/glassformer/cli").glob("*.py")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages if "_build" not in page.parts)
    verbs = "|".join(cli.VERBS)
    found = re.findall(rf"^ *(?:\$ )?glassformer ((?:{verbs})\b.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\s+#.*", "", line.replace("\\\\n", "\n")).strip() for line in found]
    whole = [line for line in plain if not NOT_HERE.search(f"glassformer {line}") and line.count('"') % 2 == 0]
    named = [line for line in whole if any(name in line for name in checkpoints.shipped()) or line.startswith(DEFAULT)]
    return sorted({line for line in named if re.fullmatch(r"[a-z]+( .+)?", line, re.DOTALL)})


def _marked(line: str) -> Any:
    return line if line.startswith(QUICK) else pytest.param(line, marks=pytest.mark.full)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("line", [_marked(line) for line in commands()])
def test_a_documented_command_works_on_a_model_in_half_precision(
    line: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(OwnFolder, "loaded_as", lambda self, stored: dtype)
    monkeypatch.chdir(tmp_path)
    save_file({"joy": torch.zeros(256), "raising": torch.zeros(256)}, "vectors.safetensors")
    words = shlex.split(line)
    if "--pairs" not in words and "--clean" not in words:
        words += FEW.get(words[0], "").split()
    error = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        code = cli.main(words)
    assert code == 0, error.getvalue()


def test_the_documented_commands_cover_every_verb_that_opens_a_model() -> None:
    verbs = {line.split()[0] for line in commands()}
    assert {"explain", "patch", "paths", "edges", "prune", "trace", "attribute", "lens", "route", "circuits"} <= verbs
    assert "behaviour" in verbs
    assert {"generate", "convert", "params", "sites", "models", "plot"} <= verbs


# of weights, and of a pass besides: near, not equal
PASS_TOO = ("matching_trace",)
ARGUMENTS: dict[str, dict[str, Any]] = {
    # by default the likeliest token of each place, which of two near each other may be the other one in half precision
    "lens_grid": {"answer": 5},
    "token_circuits": {"token": 5},
    "score_paths": {"head": "L1H6"},
    "path_sources": {"heads": ("L0H4", "L1H6")},
    "composed_pattern": {"first": "L0H4", "second": "L1H6"},
    "write_sources": {"label": "L0H4"},
}
THRESHOLD = (
    # which paths are followed goes by a threshold
    "information_flow_routes", "average_routes",
    # what is left of a row without its first key may lie below the least number of float16
    "offset_scores",
)  # fmt: skip
NEAR = {torch.bfloat16: 0.06, torch.float16: 0.01}


def _asked(kind: str) -> list[Any]:
    """Return analyses of a kind, each of every model: of the smallest in `make test`."""
    return [
        pytest.param(card, name, dtype, id=f"{card.name}-{name}-{dtype}", marks=_marks(card, name, dtype))
        for card in cards()
        if card.of == kind and card.name != "circuits"  # a command, above
        for name in TEXTS
        for dtype in HALF
    ]


def _marks(card: Card, name: str, dtype: torch.dtype) -> Any:
    quick = name == "attn-only-2l" and dtype == torch.bfloat16 and card.name not in PASS_TOO
    return () if quick else pytest.mark.full


@cache
def _model(name: str, dtype: torch.dtype, wide: bool) -> Any:
    model = gf.load(name, dtype=dtype)
    return model.float() if wide else model


def _found(card: Card, name: str, dtype: torch.dtype, wide: bool) -> Any:
    model = _model(name, dtype, wide)
    also = ARGUMENTS.get(card.name, {})
    try:
        return card.function(model, TEXTS[name], **also) if card.of == "one pass" else card.function(model, **also)
    except GlassformerError as error:
        return error
    except TypeError as error:
        # what to look for is for the caller to say
        assert "argument" in str(error), error
        pytest.skip(f"{card.name} has arguments of its own: {error}")


@pytest.mark.parametrize(("card", "name", "dtype"), _asked("weights"))
def test_an_analysis_of_half_precision_weights_is_that_of_the_same_numbers_in_float32(
    card: Card, name: str, dtype: torch.dtype
) -> None:
    half, wide = (_found(card, name, dtype, wide) for wide in (False, True))
    assert type(half) is type(wide), half
    if isinstance(half, GlassformerError):
        assert str(half) == str(wide)
    elif card.name in PASS_TOO:
        assert set(half.to_dict()) == set(wide.to_dict())
    else:
        # what they are of differs in the type of the weights
        assert half.to_dict() | {"provenance": None} == wide.to_dict() | {"provenance": None}


@pytest.mark.parametrize(("card", "name", "dtype"), _asked("one pass"))
def test_an_analysis_of_a_pass_in_half_precision_is_near_that_in_float32(
    card: Card, name: str, dtype: torch.dtype
) -> None:
    half, wide = (_found(card, name, dtype, wide) for wide in (False, True))
    assert type(half) is type(wide), half
    if isinstance(half, GlassformerError) or card.name in THRESHOLD:
        return
    for (values, labels), (expected, others) in zip(_numbers(half), _numbers(wide)):
        # the strongest of many: of two that are nearly alike either may be last
        both = [one for one in others if one in labels]
        if both and len(both) == len(set(both)) and len(both) >= len(others) - 1:
            values, expected = (x[[of.index(one) for one in both]] for x, of in ((values, labels), (expected, others)))
        values, expected = values.double(), expected.double()
        assert torch.equal(values.isfinite(), expected.isfinite())
        size = expected[expected.isfinite()].square().mean().sqrt()
        off = (values - expected)[expected.isfinite()].square().mean().sqrt()
        assert not off > NEAR[dtype] * size, f"off by {float(off / size):.3f} of their size"


def _numbers(result: Any) -> list[tuple[torch.Tensor, list[str]]]:
    """Return the labelled numbers of a result, each with the labels of its first axis."""
    if isinstance(result, Labelled):
        found = [result]
    else:
        fields = dataclasses.fields(result) if dataclasses.is_dataclass(result) else ()
        found = [value for value in (getattr(result, field.name) for field in fields) if isinstance(value, Labelled)]
    real = [one for one in found if one.values.is_floating_point()]
    return [(one.values, [str(label) for label in one.coords.get((*one.axes, "")[0], ())]) for one in real]


@pytest.mark.parametrize("dtype", HALF)
def test_the_written_forward_pass_of_half_precision_weights_is_that_of_the_same_numbers_in_float32(
    dtype: torch.dtype,
) -> None:
    ids = torch.tensor([[5, 7, 11, 13]])
    half, wide = (_model("gpt-4l", dtype, wide) for wide in (False, True))
    close(weights.logits(weights.of(half, fold=True), ids), weights.logits(weights.of(wide, fold=True), ids), 0.0)
    assert weights.of(half).Q[0].dtype == torch.float32


def test_every_decomposition_goes_through_the_file_that_guards_them() -> None:
    source = ROOT / "src/glassformer"
    others = [path for path in source.rglob("*.py") if path.name != "decompositions.py"]
    assert [path.name for path in others if re.search(r"linalg|torch\.(svd|qr|eig)", path.read_text("utf-8"))] == []
