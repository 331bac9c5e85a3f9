"""The laws of mechanisms, over the registry: a mechanism is tested the moment it is imported."""

import pytest

from glassformer.attention import Mixer, MixerConfig
from glassformer.testing import MechanismLaws


class TestEveryMechanism(MechanismLaws):
    mechanism = [MixerConfig.registry[kind] for kind in sorted(MixerConfig.registry)]  # type: ignore[assignment]


def test_a_mixer_that_writes_neither_pattern_nor_fast_is_refused() -> None:
    with pytest.raises(TypeError, match="neither `pattern` nor `fast`"):
        type("Nothing", (Mixer,), {})
