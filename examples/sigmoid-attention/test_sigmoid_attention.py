"""The laws that the package's own mechanisms are tested with."""

from glassformer.testing import MechanismLaws
from sigmoid_attention import Sigmoid


class TestSigmoid(MechanismLaws):
    mechanism = Sigmoid
