"""Sizes of data: what no data has is refused when it is asked for, by the name of its field."""

import dataclasses
from typing import Any

import pytest
from jaxtyping import TypeCheckError

from glassformer.data import Copy, DataConfig, MixtureConfig
from glassformer.data.images import ImageConfig
from glassformer.errors import ConfigError
from one_pass import in_one_pass

# of the text that there is, however many are asked for
BOUNDED_BY_TEXT = {("text", "shuffle_buffer", 2**31 - 1)}
# none of them is a number as well
MAY_BE_NONE = {("dirichlet-markov", "order"), ("unseen_words", "new_letters")}


def usual(kind: str) -> Any:
    """Return the data of a kind with its default fields."""
    kinds: dict[str, Any] = DataConfig.registry
    return MixtureConfig((Copy(), Copy()), (0.5, 0.5)) if kind == "mixture" else kinds[kind]()


@in_one_pass
@pytest.mark.parametrize("kind", sorted(DataConfig.registry))
def test_a_number_of_which_there_can_be_no_data_is_refused_when_it_is_asked_for(kind):
    config = usual(kind)
    fields = [f.name for f in dataclasses.fields(config) if type(getattr(config, f.name)) is int and f.name != "seed"]
    # an image is of one size
    assert {"batch_size", *(() if isinstance(config, ImageConfig) else ("length",))} <= set(fields)
    for name in fields:
        for asked in (10**11, 2**31 - 1, -1, True, 2.5, "3", None, *([] if (kind, name) in MAY_BE_NONE else [0])):
            if (kind, name, asked) not in BOUNDED_BY_TEXT:
                # with run-time checks of annotations the wrong kind of thing does not come as far
                with pytest.raises((ConfigError, TypeCheckError) if type(asked) is not int else ConfigError):
                    config.replace(**{name: asked})
                    pytest.fail(f"{kind}: {name}={asked} was taken")
        with pytest.raises(ConfigError, match=name):
            config.replace(**{name: 10**11})


def test_what_would_do_is_said_and_does():
    with pytest.raises(ConfigError, match=r"batch_size=2 or length=16,777,216 would do\.") as refused:
        Copy(batch_size=16, length=10**8)
    assert "has 1,600,000,000 tokens, and 268,435,456 are the most" in str(refused.value)
    assert (Copy(2, 10**8).batch_size, Copy(16, 16_777_216).length) == (2, 16_777_216)
    with pytest.raises(ConfigError, match=r"may be\. length=16,777,216 would do\."):
        Copy(batch_size=16, length=10**9)
    with pytest.raises(ConfigError, match=r"batch_size must be .*, found 100000000000"):
        Copy(batch_size=10**11)
