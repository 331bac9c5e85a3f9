"""Configs: strict decoding, messages that help, and nothing but `ConfigError` whatever the JSON."""

import contextlib
import copy
import dataclasses
import json
import math
import re
import time
from collections.abc import Iterator
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, strategies as st

from glassformer.arguments import Within, fits, has_words, is_bounded
from glassformer.attention import Attention, MixerConfig, PositionsConfig, Rope, Softmax
from glassformer.config import Config
from glassformer.errors import ConfigError, UnknownField, UnknownKind
from glassformer.models import BlockConfig, DecoderConfig, EncoderDecoderConfig, ModelConfig, NormConfig, block
from glassformer.testing.layers import POSITIONS
from glassformer.testing.models import ARCHITECTURES
from one_pass import in_one_pass

FAMILIES = [ModelConfig, MixerConfig, PositionsConfig, NormConfig, BlockConfig, Attention]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_survives_json(name: str) -> None:
    config = ARCHITECTURES[name]
    assert ModelConfig.from_json(config.to_json()) == config
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


@in_one_pass
@pytest.mark.parametrize("positions", POSITIONS, ids=str)
def test_every_kind_of_position_survives_json(positions: PositionsConfig) -> None:
    assert PositionsConfig.from_json(positions.to_json()) == positions


def message(error: type[ConfigError], data: object, family: type[Config] = MixerConfig) -> str:
    with pytest.raises(error) as caught:
        family.from_dict(data)
    return str(caught.value)


def test_an_unknown_kind_lists_what_exists() -> None:
    known = ", ".join(sorted(MixerConfig.registry))
    expected = f"MixerConfig: no kind 'sofmax'. Nearest: \"softmax\". Known: {known}."
    assert message(UnknownKind, {"kind": "sofmax"}).startswith(f"{expected}\n    A package may bring it")
    assert message(UnknownKind, {}) == f"MixerConfig: no kind None. Known: {known}."


@in_one_pass
@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("titan", 'Described by that word: "linear_memory", "neural_memory", "persistent".'),
        ("Mamba", 'Described by that word: "state_space".'),
        # in descriptions of many kinds, and too short to be looked for
        ("soft", 'Nearest: "softmax".'),
        ("gla", 'Nearest: "pola".'),
    ],
)
def test_a_kind_is_found_by_a_word_that_few_are_described_by_and_else_by_its_letters(word: str, told: str) -> None:
    assert message(UnknownKind, {"kind": word}).startswith(f"MixerConfig: no kind '{word}'. {told} Known: ")


def test_an_unknown_field_lists_what_exists() -> None:
    expected = (
        'MixerConfig: Softmax has no field "windw". Nearest: "window". Fields: window, scale, cap, sinks, temperature.'
    )
    assert message(UnknownField, {"kind": "softmax", "windw": 3}) == expected
    with pytest.raises(UnknownField, match='Softmax has no field "windw"'):
        Softmax().replace(windw=3)


@in_one_pass
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"kind": "softmax", "window": "3"}, "MixerConfig.window: expected int, found '3'."),
        ({"kind": "softmax", "window": True}, "MixerConfig.window: expected int, found True."),
        ({"kind": "softmax", "window": 2.0}, "MixerConfig.window: expected int, found 2.0."),
        ({"kind": "softmax", "window": 0}, "softmax: window must be at least 1, found 0."),
        ({"kind": "softmax", "scale": float("nan")}, "MixerConfig.scale: nan is not a finite number."),
        (
            {"kind": "linear", "feature_map": "elo"},
            "MixerConfig.feature_map: 'elo' is not one of 'elu', 'softplus', 'relu', ",
        ),
        ({"kind": "lightning", "slopes": [1.0, None]}, "MixerConfig.slopes[1]: expected float, found None."),
        ([1], "MixerConfig: expected an object, found list ([1])."),
    ],
)
def test_wrong_values_are_named_with_their_place(data: object, expected: str) -> None:
    assert message(ConfigError, data).startswith(expected)


def test_numbers_too_large_for_a_float_are_refused() -> None:
    assert "not a finite number" in message(ConfigError, {"kind": "softmax", "scale": 10**400})


def test_a_missing_field_is_named() -> None:
    found = message(ConfigError, {"kind": "decoder", "vocab_size": 3, "layers": []}, ModelConfig)
    assert found == 'ModelConfig: missing "d_model".'


def test_the_place_of_a_mistake_is_a_path() -> None:
    data = ARCHITECTURES["gpt2"].to_dict()
    data["layers"][1]["parts"][0]["mixer"]["window"] = "x"
    assert message(ConfigError, data, ModelConfig).startswith(
        "ModelConfig.layers[1].parts[0].mixer.window: expected int"
    )


def test_documents_that_are_no_configs_are_refused() -> None:
    for text in ("", "{", "[]", "3", '{"format": 99}', "[" * 100_000, '{"a": 1' + "0" * 5000 + "}", "\x00"):
        with pytest.raises(ConfigError):
            ModelConfig.from_json(text)


def test_heads_that_do_not_divide_or_group_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"n_heads=4 does not group into n_kv_heads=3"):
        Attention(4, 3)
    with pytest.raises(ConfigError, match=r"d_model=10 does not divide into n_heads=4"):
        DecoderConfig(7, 10, (block(n_heads=4),)).build()


def test_absurd_sizes_are_refused_or_accepted_quickly() -> None:
    before = time.perf_counter()
    with pytest.raises(ConfigError):
        Attention(10**12, 7)
    Attention(10**9, 10**6)
    assert time.perf_counter() - before < 1


def test_a_mechanism_that_goes_by_distance_cannot_cross() -> None:
    with pytest.raises(ConfigError, match='mixer "softmax" as set here goes by distance'):
        Attention(2, mixer=Softmax(window=3), cross=True)


def test_a_decoder_has_no_cross_attention_and_a_translator_needs_it() -> None:
    with pytest.raises(ConfigError, match="there is no encoder"):
        DecoderConfig(7, 8, (block(n_heads=2, cross=True),))
    with pytest.raises(ConfigError, match="has no cross-attention part"):
        EncoderDecoderConfig(7, 8, (block(n_heads=2),), (block(n_heads=2),))


def test_a_kind_cannot_be_registered_twice() -> None:
    with pytest.raises(ConfigError, match='kind "softmax" is already registered by Softmax'):

        class Again(MixerConfig, kind="softmax"):
            pass


@in_one_pass
@pytest.mark.parametrize(
    "build",
    [
        lambda: Rope(base=0.5),
        lambda: Rope(fraction=0.0),
        lambda: NormConfig.from_dict({"kind": "layer_norm", "eps": -1.0}),
        lambda: NormConfig.from_dict({"kind": "rms_norm", "eps": -1.0}),
        lambda: PositionsConfig.from_dict({"kind": "rope", "scaling": {"factor": 0.0}}),
        lambda: PositionsConfig.from_dict({"kind": "rope", "scaling": {"low": 4.0, "high": 4.0}}),
        lambda: PositionsConfig.from_dict({"kind": "rope", "scaling": {"original_length": 0}}),
    ],
)
def test_numbers_outside_their_range_are_refused(build: Any) -> None:
    with pytest.raises(ConfigError):
        build()


# mangled documents --------------------------------------------------------------------------------------------------

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["softmax", "rope"])
    | st.sampled_from([10**400, -(10**400), 1e308]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("kind"), inner, max_size=3)
    ),
    max_leaves=6,
)


def mangle(draw: st.DrawFn, data: Any) -> Any:
    """Walk down to a random place and put something else there."""
    while isinstance(data, (dict, list)) and data and draw(st.integers(0, 4)):
        if isinstance(data, list):
            i = draw(st.integers(0, len(data) - 1))
            return [*data[:i], mangle(draw, data[i]), *data[i + 1 :]]
        key = draw(st.sampled_from(sorted(data)))
        change = draw(st.sampled_from(["value", "value", "drop", "rename", "extra"]))
        if change == "value":
            return data | {key: mangle(draw, data[key])}
        rest = {k: v for k, v in data.items() if k != key}
        return (
            rest
            if change == "drop"
            else (rest | {draw(st.text(max_size=5)): data[key]})
            if change == "rename"
            else (data | {draw(st.text(max_size=5)): draw(junk)})
        )
    return draw(junk)


@st.composite
def mangled(draw: st.DrawFn) -> Any:
    data = copy.deepcopy(ARCHITECTURES[draw(st.sampled_from(sorted(ARCHITECTURES)))].to_dict())
    for _ in range(draw(st.integers(1, 3))):
        data = mangle(draw, data)
    return data


@given(st.lists(mangled(), min_size=20, max_size=20), st.sampled_from(FAMILIES))
def test_whatever_the_document_only_config_errors_escape(documents: list[Any], family: type[Config]) -> None:
    for data in documents:
        for target in (ModelConfig, family):
            with contextlib.suppress(ConfigError):
                config = target.from_dict(data)
                # what was accepted is a real config
                assert target.from_dict(config.to_dict()) == config


@given(st.sampled_from(sorted(ARCHITECTURES)), st.data())
def test_cut_and_flipped_texts_give_config_errors(name: str, data: st.DataObject) -> None:
    text = ARCHITECTURES[name].to_json()
    for _ in range(20):
        i = data.draw(st.integers(0, len(text) - 1))
        flipped = text[:i] + data.draw(st.characters()) + text[i + 1 :]
        for broken in (text[:i], flipped):
            with contextlib.suppress(ConfigError):
                assert isinstance(ModelConfig.from_json(broken), ModelConfig)


def fields_of_configs() -> Iterator[tuple[type[Config], str, Any]]:
    """Yield every field of the package's configs, with its annotation."""
    classes: list[type[Config]] = [Config]
    for cls in classes:
        classes += cls.__subclasses__()
        if cls.__module__.startswith("glassformer.") and dataclasses.is_dataclass(cls):
            hints = get_type_hints(cls, include_extras=True)
            yield from ((cls, f.name, hints[f.name]) for f in dataclasses.fields(cls))


def beyond(hint: Any) -> Iterator[Any]:
    """Yield values below and above the bounds in an annotation."""
    inner = get_args(hint)
    if bounds := [one for one in inner if isinstance(one, Within)]:
        low, high = bounds[0].low, bounds[0].high
        yield inner[0](low if bounds[0].above else low - 1)
        yield from [] if high == math.inf else [inner[0](high if bounds[0].below else 2 * high)]
    elif get_origin(hint) is tuple:
        yield from ((value,) * len(set(inner) - {...}) for value in beyond(inner[0]))
    else:
        yield from (value for one in inner if is_bounded(one) for value in beyond(one))


def unchecked(cls: type[Config]) -> Any:
    """Return a config with fields that are allowed, one by one; what they have to do with each other is not asked."""
    config, hints = object.__new__(cls), get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cast(Any, cls)):
        hint = hints[field.name]
        allowed = (value for value in (None, 1, 0.5, *literals(hint)) if fits(value, hint))
        object.__setattr__(config, field.name, getattr(cls, field.name, next(allowed, None)))
    return config


def test_a_number_beyond_its_bound_is_refused_with_field_value_and_bound() -> None:
    fields = [one for one in fields_of_configs() if is_bounded(one[-1])]
    assert len(fields) > 90
    for cls, name, hint in fields:
        for value in beyond(hint):
            config = unchecked(cls)
            object.__setattr__(config, name, value)
            with pytest.raises(ConfigError, match=rf": {name} must (not )?be .*, found {re.escape(repr(value))}\."):
                config.__post_init__()


def literals(hint: Any) -> list[Any]:
    """Return the words that an annotation lists."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for inner in get_args(hint) for word in literals(inner)]


def test_a_word_that_a_field_does_not_know_is_refused_with_the_nearest_it_knows() -> None:
    fields = [one for one in fields_of_configs() if has_words(one[-1]) and not is_bounded(one[-1])]
    assert len(fields) > 20
    for cls, name, hint in fields:
        config = unchecked(cls)
        object.__setattr__(config, name, f"{literals(hint)[0]}x")
        with pytest.raises(ConfigError, match=rf": {name} must be .*'{literals(hint)[0]}'.*x'\. Nearest: "):
            config.__post_init__()
