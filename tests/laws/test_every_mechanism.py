"""The laws of mechanisms, over the registry: a mechanism is tested the moment it is imported."""

from glassformer.attention import MixerConfig
from glassformer.testing import MechanismLaws


class TestEveryMechanism(MechanismLaws):
    mechanism = [MixerConfig.registry[kind] for kind in sorted(MixerConfig.registry)]  # type: ignore[assignment]
