"""Whatever is done to a config or a checkpoint, the loader gives a model or one of the public errors."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load as parse, save as serialise

from glassformer import checkpoints
from glassformer.attention import Differential, Lightning, Linear, Rope
from glassformer.checkpoints.own import TOKENIZER, digest_of, sha256
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.data import MixtureConfig, TextConfig, bytes_tokenizer
from glassformer.errors import GlassformerError
from glassformer.files.packaged import CONFIG
from glassformer.models import DecoderConfig, EncoderDecoderConfig, Learned, Mlp, ModelConfig, block, repeat
from glassformer.training import TrainConfig
from tiny_runs import recipe

# `make test-all` draws a hundred examples of each
MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

# beyond 64 bits, beyond floats, beyond memory; wrong types; other names that exist somewhere
VALUES = st.sampled_from(
    [
        -1,
        0,
        1,
        2,
        3,
        7,
        10**5,
        10**12,
        2**63,
        10**40,
        10**400,
        0.5,
        -0.5,
        1e308,
        float("nan"),
        float("inf"),
        None,
        True,
        False,
        "",
        "softmax",
        "rope",
        "decoder",
        "mlp",
        "none",
        "�",
        "x" * 300,
        [],
        [[]],
        [1],
        {},
        {"kind": "softmax"},
        {"kind": 3},
        {"kind": None},
        {"kind": "mlp", "d_mlp": 10**12},
    ]
)
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "decoder": (
        ModelConfig,
        DecoderConfig(
            260,
            16,
            (
                block(n_heads=4, n_kv_heads=2, positions=Rope(), mlp=Mlp(24)),
                block(Differential(), n_heads=2),
                block(Lightning(), n_heads=2),
                block(Linear(), n_heads=2, wiring="sandwich"),
            ),
            positions=Learned(),
        ).to_dict(),
    ),
    "encoder_decoder": (
        ModelConfig,
        EncoderDecoderConfig(
            260, 16, repeat(block(n_heads=2), 1), repeat(block(n_heads=2, cross=True, mlp=Mlp(8)), 1), init="gpt"
        ).to_dict(),
    ),
    "recipe": (
        TrainConfig,
        recipe(data=MixtureConfig((TextConfig(), recipe().data), (0.5, 0.5))).to_dict(),
    ),
}


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside JSON data."""
    items: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


@st.composite
def mangled(draw: st.DrawFn, name: str) -> Any:
    """Draw a config with one to three values replaced, removed, renamed, added or repeated."""
    data = copy.deepcopy(CONFIGS[name][1])
    for _ in range(draw(st.integers(1, 3))):
        choices: list[tuple[Any, ...]] = [p for p in places(data) if p] or [()]
        path = draw(st.sampled_from(choices))
        if not path:
            return draw(VALUES)
        holder = data
        for key in path[:-1]:
            holder = holder[key]
        last, action = path[-1], draw(st.sampled_from(["replace", "replace", "remove", "rename", "add", "repeat"]))
        if action == "replace":
            holder[last] = draw(VALUES)
        elif action == "remove":
            del holder[last]
        elif action == "rename" and isinstance(holder, dict):
            holder[draw(st.text(max_size=6))] = holder.pop(last)
        elif action == "add" and isinstance(holder, dict):
            holder[draw(st.sampled_from(["kind", "seed", "n_heads", "window", "zzz"]))] = draw(VALUES)
        elif action == "repeat" and isinstance(holder, list):
            holder.extend(holder * draw(st.sampled_from([1, 50])))
    return data


def refused_or(action: Any) -> Any:
    """Return what the action gives, or the public error it raises; any other error fails the test."""
    try:
        return action()
    except GlassformerError as error:
        assert str(error)
        return error


@pytest.mark.parametrize("name", CONFIGS)
@given(data=st.data())
@MANY
def test_a_mangled_config_is_a_config_or_a_public_error(name, data):
    kind, changed = CONFIGS[name][0], data.draw(mangled(name))
    found = refused_or(lambda: kind.from_json(json.dumps(changed)))
    if not isinstance(found, GlassformerError):
        assert kind.from_json(found.to_json()) == found


@pytest.mark.parametrize("name", ["decoder", "encoder_decoder"])
@given(data=st.data())
@MANY
def test_a_mangled_config_with_digests_that_fit_is_a_model_or_a_public_error(name, data, tmp_path_factory):
    folder = template(name, tmp_path_factory)
    changed = data.draw(mangled(name))
    envelope = json.loads((folder / CONFIG).read_text())
    envelope["model"] = changed
    envelope["sha256"]["model"] = digest_of(json.loads(json.dumps(changed)))
    with copied(folder, tmp_path_factory) as place:
        (place / CONFIG).write_text(json.dumps(envelope))
        loads_or_is_refused(place)


@given(data=st.data())
@MANY
def test_mangled_bytes_are_a_model_or_a_public_error(data, tmp_path_factory):
    """Also with a digest that fits: then safetensors, tokenizers and our own checks stand alone."""
    folder = template("decoder", tmp_path_factory)
    name = data.draw(st.sampled_from([CONFIG, WEIGHTS, WEIGHTS, TOKENIZER]))
    content = bytearray((folder / name).read_bytes())
    header = 8 + int.from_bytes(content[:8], "little") if name == WEIGHTS else len(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.one_of(st.integers(0, min(16, len(content))), st.integers(0, min(header, len(content)))))
        junk = data.draw(
            st.one_of(st.binary(max_size=8), st.sampled_from([b"{", b"}", b"9" * 30, b"null", b"[" * 3000]))
        )
        if data.draw(st.booleans()):
            content[place : place + len(junk)] = junk
        else:
            del content[place : place + data.draw(st.integers(1, len(content)))]
    with copied(folder, tmp_path_factory) as place:
        (place / name).write_bytes(content)
        if name != CONFIG and data.draw(st.booleans()):
            envelope = json.loads((place / CONFIG).read_text())
            envelope["sha256"][name] = sha256(bytes(content))
            (place / CONFIG).write_text(json.dumps(envelope))
        loads_or_is_refused(place)


# complex tensors by their name in files: safetensors before 0.7 does not write them, but meets them
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, "C64", torch.float8_e4m3fn]


@given(data=st.data())
@MANY
def test_tensors_of_any_name_shape_and_type_are_a_model_or_a_public_error(data, tmp_path_factory):
    folder = template("decoder", tmp_path_factory)
    state = parse((folder / WEIGHTS).read_bytes())
    name = data.draw(st.sampled_from(sorted(state)))
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
    like = state.pop(name)
    size = tuple(shape) if data.draw(st.booleans()) else tuple(like.shape)
    dtype = data.draw(st.sampled_from(DTYPES))
    value = torch.zeros(size).to(torch.int64 if dtype == "C64" else dtype)
    state[name if data.draw(st.booleans()) else data.draw(st.text(min_size=1, max_size=9))] = value
    with copied(folder, tmp_path_factory) as place:
        content = serialise(state)
        (place / WEIGHTS).write_bytes(content.replace(b'"I64"', b'"C64"') if dtype == "C64" else content)
        envelope = json.loads((place / CONFIG).read_text())
        envelope["sha256"][WEIGHTS] = sha256((place / WEIGHTS).read_bytes())
        (place / CONFIG).write_text(json.dumps(envelope))
        loads_or_is_refused(place)


def loads_or_is_refused(folder: Path) -> None:
    model = refused_or(lambda: checkpoints.load(folder))
    if not isinstance(model, GlassformerError):
        assert not any(p.is_meta for p in model.parameters())


_TEMPLATES: dict[str, Path] = {}


def template(name: str, factory: pytest.TempPathFactory) -> Path:
    if name not in _TEMPLATES:
        model = ModelConfig.from_dict(CONFIGS[name][1]).build()
        model.tokenizer = bytes_tokenizer()
        _TEMPLATES[name] = checkpoints.save(model, factory.mktemp(name))
        # else everything made of it would be refused, whatever was done to it
        checkpoints.load(_TEMPLATES[name])
    return _TEMPLATES[name]


class copied:
    """A copy of a folder that is gone afterwards."""

    def __init__(self, folder: Path, factory: pytest.TempPathFactory) -> None:
        self.folder, self.place = folder, factory.getbasetemp() / "mangled"

    def __enter__(self) -> Path:
        return Path(shutil.copytree(self.folder, self.place))

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.place)
