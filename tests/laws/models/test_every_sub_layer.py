"""The laws of sub-layers, for each kind that can stand alone in a decoder."""

from glassformer.attention import Attention
from glassformer.models import MixtureOfExperts, Mlp
from glassformer.testing import SubLayerLaws


class TestEverySubLayer(SubLayerLaws):
    sub_layer = {"attention": Attention(2), "mlp": Mlp(), "experts": MixtureOfExperts(3, 2)}
